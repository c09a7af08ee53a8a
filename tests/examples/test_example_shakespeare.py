# SPDX-License-Identifier: Apache-2.0
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tf_subjectdp import accounting

_ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = _ROOT / "examples" / "shakespeare.py"

_PLAYS, _ROLES = 4, 10
_STEPS, _ROLES_A_STEP, _EPSILON, _DELTA = 3, 8, 8.0, 1e-3
_WORDS = "to be or not that is the question whether tis nobler in mind suffer slings".split()


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("example_shakespeare", _SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def plays(tmp_path_factory):
    """Plays of made-up lines, in the format of the package's."""
    folder = tmp_path_factory.mktemp("plays")
    rng = np.random.default_rng(0)
    for play in range(_PLAYS):
        speeches = []
        for role in range(_ROLES):
            said = " ".join(rng.choice(_WORDS, 150 + 10 * role))
            speeches.append(f"**ROLE {role}**\n{said}.\n")
        text = "# A play\n\n## ACT I\n\n" + "\n".join(speeches)
        (folder / f"play-{play}.md").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(plays, tmp_path_factory):
    """The script as a user starts it, on small plays for a few steps."""
    folder = tmp_path_factory.mktemp("run")
    arguments = ["--small", "--plays", plays, "--steps", _STEPS, "--roles", _ROLES_A_STEP]
    arguments += ["--context", 2, "--epsilon", _EPSILON, "--delta", _DELTA, "--output", folder]
    arguments += ["--algorithm", "none", "item", "subject", "--verbose", 2]
    done = subprocess.run(
        [sys.executable, _SCRIPT, *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "CUDA_VISIBLE_DEVICES": "",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, folder


def _row(text, algorithm):
    """(protects, epsilon per item, epsilon per character, accuracy) of a row of the table."""
    lines = [line for line in text.splitlines() if re.match(rf"{algorithm}\s\s", line)]
    return lines[-1].split()[-4:]


def _planned(text, algorithm):
    """The figures of the printed plan of an algorithm."""
    block = next(
        block for block in text.split("\n\n") if re.search(rf"^algorithm +{algorithm},", block)
    )
    sigma = float(re.search(r"^noise multiplier +(\S+)", block, re.MULTILINE).group(1))
    rate = float(re.search(r"rate (\S+)$", block, re.MULTILINE).group(1))
    steps = int(re.search(r"^steps +(\d+)", block, re.MULTILINE).group(1))
    return sigma, rate, steps


@pytest.mark.slow
def test_script_ends_well_and_prints_plan_statement_and_table(run):
    done, folder = run
    assert done.returncode == 0, done.stderr[-2000:]
    out = done.stdout
    assert "protects" in out and "one subject" in out
    assert "PRIVACY STATEMENT (SubjectDP, 3 of 3 planned steps taken)" in out
    assert "epsilon per character" in out
    assert _row(out, "none")[:3] == ["nobody", "infinite", "infinite"]
    assert _row(out, "most common character")[:3] == ["-", "-", "-"]
    assert 0.0 <= float(_row(out, "SubjectDP")[3]) <= 1.0
    written = {path.name for path in folder.iterdir()}
    assert written >= {"table.txt", "subject.keras", "subject_statement.txt", "item.keras"}
    assert "NOT FOR RELEASE" not in out


@pytest.mark.slow
def test_epsilon_of_the_table_is_the_accountants_for_the_printed_plan(run):
    out = run[0].stdout
    sigma, rate, steps = _planned(out, "SubjectDP")
    assert steps == _STEPS
    assert rate == pytest.approx(_ROLES_A_STEP / (_PLAYS * _ROLES), rel=1e-5)
    event = accounting.subject_event(rate, sigma)
    expected = accounting.epsilon(event, steps, delta=_DELTA)
    protects, _, shown, _ = _row(out, "SubjectDP")
    assert protects == "character"
    assert float(shown) == pytest.approx(expected, abs=0.02)
    assert float(shown) <= _EPSILON + 0.01


@pytest.mark.slow
def test_a_promise_to_a_window_is_shown_to_be_far_less_for_a_character(run):
    out = run[0].stdout
    protects, item, character, _ = _row(out, "ItemDP")
    assert protects == "window"
    assert float(item) <= _EPSILON + 0.01
    assert float(character) > 3 * float(item)
    sigma, rate, steps = _planned(out, "ItemDP")
    longest = int(re.search(r"items a subject +at most (\d+)", out).group(1))
    event = accounting.group_event(rate, longest, sigma)
    expected = accounting.epsilon(event, steps, delta=_DELTA)
    assert float(character) == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
def test_statement_file_says_what_the_table_says(run):
    done, folder = run
    statement = " ".join((folder / "subject_statement.txt").read_text(encoding="utf-8").split())
    stated = float(re.search(r"Per subject: epsilon = (\S+) at", statement).group(1))
    assert float(_row(done.stdout, "SubjectDP")[2]) == pytest.approx(stated, abs=0.02)
    assert "public bound" in statement


def test_table_rounds_epsilon_up_and_names_the_baseline(example):
    rows = [example.Result("SubjectDP", "character", 9.001, 7.991, 0.3)]
    text = example.table(rows, 0.188, 1e-4)
    assert _row(text, "SubjectDP") == ["character", "9.01", "8.00", "0.300"]
    assert _row(text, "most common character") == ["-", "-", "-", "0.188"]


def test_full_model_is_that_of_the_papers(example):
    model = example.make_model(example.Settings(context=5))
    kinds = [type(layer).__name__ for layer in model.layers]
    assert kinds == ["InputLayer", "Embedding", "LSTM", "LSTM", "Dense"]
    vocabulary = 81
    lstm = [4 * 256 * (inputs + 256 + 1) for inputs in (8, 256)]
    assert model.count_params() == vocabulary * 8 + sum(lstm) + 257 * vocabulary


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--context", "81"], "--context 81 must lie in 1..80"),
        (["--steps", "5", "--epochs", "2"], "not allowed with"),
        (["--algorithm", "magic"], "magic"),
    ],
)
def test_bad_arguments_are_refused_by_name(example, capsys, arguments, named):
    with pytest.raises(SystemExit) as refused:
        example.parse(arguments)
    assert refused.value.code == 2
    assert named in capsys.readouterr().err
