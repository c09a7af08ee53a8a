# SPDX-License-Identifier: Apache-2.0
"""The lock, the style rules and the Makefile say what the metadata says."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

_ROOT = Path(__file__).resolve().parents[2]
_LOCK = (_ROOT / "requirements" / "py311.txt").read_text(encoding="utf-8")


def _pins():
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", _LOCK, flags=re.MULTILINE)
    return {name.lower().replace("_", "-"): Version(version) for name, version in found}


def _requirements():
    config = configparser.ConfigParser()
    config.read(_ROOT / "setup.cfg", encoding="utf-8")
    lines = config["options"]["install_requires"].splitlines()
    for extra in config["options.extras_require"].values():
        lines += extra.splitlines()
    return [
        Requirement(line) for line in lines if line.strip() and not line.strip().startswith("#")
    ]


def test_lock_pins_every_requirement_within_the_range_of_the_metadata():
    pins = _pins()
    for requirement in _requirements():
        assert requirement.name in pins, f"{requirement.name} is not in the lock: make lock"
        assert requirement.specifier.contains(pins[requirement.name]), str(requirement)


def test_lock_pins_one_version_a_package_each_with_a_hash_and_no_address():
    names = re.findall(r"^([A-Za-z0-9._-]+)==", _LOCK, flags=re.MULTILINE)
    assert len(names) == len(set(names))
    blocks = re.split(r"^(?=[A-Za-z0-9._-]+==)", _LOCK, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in block for block in blocks)
    assert not re.search(r"https?://|file:|--(extra-)?index-url|--find-links|@ ", _LOCK)


def test_lock_is_the_stack_that_tff_runs_on():
    pins = _pins()
    expected = {
        "tensorflow": "2.14.1",
        "keras": "2.14.0",
        "tensorflow-federated": "0.87.0",
        "tensorflow-privacy": "0.9.0",
        "dp-accounting": "0.6.0",
    }
    assert {name: str(pins[name]) for name in expected} == expected


def test_every_python_file_starts_with_the_licence_line():
    folders = ("tf_subjectdp", "tests", "examples", "benchmarks")
    files = [file for folder in folders for file in (_ROOT / folder).rglob("*.py")]
    lacking = [
        str(file.relative_to(_ROOT))
        for file in files
        if not file.read_text(encoding="utf-8").startswith("# SPDX-License-Identifier: Apache-2.0")
    ]
    assert not lacking


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_missing_python_is_a_clear_error(tmp_path):
    for name in ("Makefile", "setup.cfg", "pyproject.toml"):
        shutil.copy(_ROOT / name, tmp_path / name)
    shutil.copytree(_ROOT / "requirements", tmp_path / "requirements")
    done = subprocess.run(
        ["make", "venv", "PYTHON=no-such-python"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "'no-such-python' was not found" in done.stderr and "PYTHON=" in done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_every_target_is_shown_by_help():
    done = subprocess.run(["make", "help"], cwd=_ROOT, capture_output=True, text=True, check=False)
    for target in ("venv", "demo", "test", "lint", "format", "lock", "clean"):
        assert f"make {target}" in done.stdout
