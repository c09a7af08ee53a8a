# SPDX-License-Identifier: Apache-2.0
"""The command as a process: what it imports, its pipes, its progress bar."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tf_subjectdp.cli.progress import ProgressBar

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

_IMPORTS = """
import sys
from tf_subjectdp.cli import main
status = main(sys.argv[1:])
heavy = {"tensorflow", "keras", "matplotlib", "pandas", "tensorflow_datasets"} & set(sys.modules)
assert not heavy, heavy
if sys.argv[1:] == ["--help"]:
    assert not {"scipy", "dp_accounting", "pyarrow"} & set(sys.modules)
sys.exit(status)
"""

COMMANDS = {
    "help": "--help",
    "epsilon": "epsilon --algorithm subjectdp --p 0.1 --noise 3 --steps 10 --delta 1e-5",
    "parts": "epsilon --algorithm mixedclipping --parts 3 --batch 5 --items 90 --items-per-subject 9 "
    "--noise 3 --steps 10 --delta 1e-5",
    "elements": "epsilon --algorithm elementdp --r 0.1 --noise 3 --steps 10 --delta 1e-5",
    "rounds": "rounds --algorithm userldp --noise 30 --epsilon 1 --delta 1e-5 --silos 3",
    "statement": "statement --algorithm groupdp --batch 5 --items 90 --subjects 30 "
    "--items-per-subject 9 --steps 3 --noise 8 --delta 1e-5",
    "compare": "compare --batch 90 --items 90 --subjects 90 --items-per-subject 1 --steps 1 "
    "--epsilon 1 --delta 1e-5",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_imports_tensorflow_or_anything_to_plot_with(name):
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS, *COMMANDS[name].split()],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_module_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "tf_subjectdp", "noise", "--algorithm", "magic"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("subjectdp: error: ") and done.stderr.count("\n") == 1


def test_a_closed_pipe_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "tf_subjectdp", *COMMANDS["epsilon"].split()],
            env=ENVIRONMENT,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_that_knows_ascii_only_shows_all_the_same(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,silo\na,Łódź\nb,Łódź\n", encoding="utf-8")
    words = "epsilon --algorithm userldp --noise 3 --steps 1 --delta 1e-5 --silo-column silo --json"
    done = subprocess.run(
        [sys.executable, "-m", "tf_subjectdp", *words.split(), "--ids", path, "--column", "id"],
        env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_the_bar_is_one_line_on_standard_error_that_leaves_nothing(capsys, monkeypatch):
    monkeypatch.setattr("tf_subjectdp.cli.progress._SECONDS_BETWEEN", 0.0)
    with ProgressBar(True, "reading t.csv") as bar:
        bar(500, 0.25)
        bar(1_000, 0.5)
        bar(2_000, None)
    out, err = capsys.readouterr()
    assert out == "" and "\n" not in err
    assert "[########......................]  25% 500 rows" in err
    shown = err.split("\r")
    assert shown[-1] == "" and shown[-2].strip() == ""
    with ProgressBar(None, "reading t.csv") as bar:  # standard error is no terminal here
        bar(500, 0.25)
        bar.say("HiGradAvg (3 of 6)")
    assert capsys.readouterr() == ("", "")
