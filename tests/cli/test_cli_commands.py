# SPDX-License-Identifier: Apache-2.0
"""Every command: help, one answer, one refusal; and as a process: imports, pipes, the progress bar."""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tf_subjectdp.accounting.engine import pld
from tf_subjectdp.accounting.engine.composition import ComposedDirection
from tf_subjectdp.cli import main
from tf_subjectdp.cli.options import COMMANDS, PLANNED, SAMPLINGS, make_parser
from tf_subjectdp.cli.output import progress_bar

_DATA = "--batch 9 --items 90 --subjects 30 --items-per-subject 9 --steps 3 --delta 1e-2"
#: Of each command: a line with how its answer begins, and one with what is wrong with it.
TABLE = {
    "epsilon": (f"--algorithm itemdp {_DATA} --noise 30", "epsilon  ", "", "required: --algorithm"),
    "noise": (f"--algorithm itemdp {_DATA} --epsilon 2", "noise multiplier", "", "--algorithm"),
    "rounds": (
        f"--algorithm itemdp {_DATA.replace('--steps 3 ', '')} --epsilon 2 --noise 30",
        "largest number of steps",
        "--rounds 3",
        "required",
    ),
    "plan": (f"--algorithm itemdp {_DATA} --noise 30", "algorithm", "--algorithm no", "'no' is"),
    "statement": (
        f"--algorithm itemdp {_DATA} --noise 30",
        "PRIVACY STATEMENT",
        "",
        "say --plan FILE, --model FILE",
    ),
    "compare": (f"{_DATA} --epsilon 2", "budget  epsilon 2", "--epsilon 2", "--batch, --delta"),
}


@pytest.mark.parametrize("command", TABLE)
def test_every_command_has_an_answer_and_a_refusal(capsys, command):
    asked, begin, wrong, error = TABLE[command]
    assert main([command, *asked.split()]) == 0
    assert capsys.readouterr().out.lower().startswith(begin.lower())
    assert main([command, *wrong.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and error in err
    assert set(TABLE) == set(COMMANDS)


@pytest.mark.parametrize("command", ["epsilon", "noise", "rounds", "plan", "statement", "compare"])
def test_help_says_units_adjacency_and_papers(capsys, command):
    assert main([command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for word in (
        "noise standard deviation / clip norm",
        "probability that one ITEM",
        "probability that one SUBJECT",
        "probability that one ELEMENT",
        "the most items of one subject",
        "adding or removing one unit",
        "arXiv:2206.03617",
        "--json",
        "Exit status",
    ):
        assert word in out


_OPTION = re.compile(r"--[a-z][a-z-]*")
# Other commands, quoted with an option of theirs.
_QUOTED = re.compile(r"'(?:subjectdp )?(?:plan|statement) [^']*'")


def known(command):
    (sub,) = (a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return set(sub.choices[command]._option_string_actions)


def named(text):
    return set(_OPTION.findall(_QUOTED.sub("", " ".join(text.split()))))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_names_only_options_of_its_command(capsys, command):
    assert main([command, "--help"]) == 0
    assert named(capsys.readouterr().out) <= known(command)


def test_the_help_of_plan_lists_the_samplings_that_a_plan_takes(capsys):
    main(["plan", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    (listed,) = re.findall(r"--sampling NAME ([a-z, -]+?) \(default", words)
    data = "--items 1000 --subjects 100 --items-per-subject 20 --steps 3 --noise 2"
    for sampling in SAMPLINGS:
        size = "--expected-subjects" if sampling == "poisson-subjects" else "--batch"
        made = main(f"plan --algorithm itemdp --sampling {sampling} {size} 10 {data}".split()) == 0
        assert made == (sampling in listed.split(", ")), sampling


@pytest.mark.parametrize("sampling", [None, *SAMPLINGS])
@pytest.mark.parametrize("algorithm", PLANNED)
def test_what_plan_refuses_it_refuses_in_its_own_options(capsys, algorithm, sampling):
    words = f"plan --algorithm {algorithm} --steps 3 --noise 2".split()
    words += ["--parts", "2"] if algorithm == "mixedclipping" else []
    words += [] if sampling is None else ["--sampling", sampling]
    assert main(words) == 2
    assert named(capsys.readouterr().err) - {"--help"} <= known("plan")


@pytest.mark.parametrize("sampling", ["poisson-items", "shuffle"])
def test_a_plan_for_an_epsilon_notes_the_noise_it_found_and_no_trial(capsys, monkeypatch, sampling):
    exact = ComposedDirection.epsilon

    def coarse(self, delta, relative_error):
        value, excess = exact(self, delta, relative_error)
        return value, max(excess, 0.01 * value)

    monkeypatch.setattr(ComposedDirection, "epsilon", coarse)
    pld.pld_bound.cache_clear()
    words = (
        f"plan --algorithm mixedclipping --parts 3 --sampling {sampling} --batch 50 --items 1000 "
    )
    words += "--subjects 100 --items-per-subject 12 --steps 20 --epsilon 2 --delta 1e-5"
    try:
        assert main(words.split()) == 0
    finally:
        pld.pld_bound.cache_clear()
    out, err = capsys.readouterr()
    notes = [line for line in err.splitlines() if "discretised" in line]
    assert len(notes) == 1 and "epsilon           2.000" in out
    assert re.search(r"epsilon (1\.99\d*|2) at delta 1e-05", notes[0])


ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

_IMPORTS = """
import sys
from tf_subjectdp.cli import main
status = main(sys.argv[1:])
heavy = {"tensorflow", "keras", "matplotlib", "pandas", "tensorflow_datasets"} & set(sys.modules)
assert not heavy, heavy
if sys.argv[1:] == ["--help"]:
    assert not {"scipy", "dp_accounting", "pyarrow", "tqdm"} & set(sys.modules)
sys.exit(status)
"""

LINES = {
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


@pytest.mark.parametrize("name", LINES)
def test_no_command_imports_tensorflow_or_anything_to_plot_with(name):
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS, *LINES[name].split()],
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
            [sys.executable, "-m", "tf_subjectdp", *LINES["epsilon"].split()],
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


def test_the_bar_is_one_line_on_standard_error_that_leaves_nothing(capsys):
    with progress_bar(True, "reading t.csv") as bar:
        time.sleep(0.11)  # a bar is drawn ten times a second
        bar(500, 0.25)
    out, err = capsys.readouterr()
    assert out == "" and "\n" not in err
    assert "reading t.csv  25%|" in err and "500" in err
    assert err.split("\r")[-1].strip() == ""
    for shown in (None, False):  # standard error is no terminal here
        with progress_bar(shown, "reading t.csv") as bar:
            bar(500, None)
    assert capsys.readouterr() == ("", "")
