# SPDX-License-Identifier: Apache-2.0
"""The privacy officer's page: its tables are what the library computes, its commands run."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

from tf_subjectdp import cli

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "privacy_officer.md").read_text(encoding="utf-8")
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*\.?\d*(?:e-?\d+)?(?![\w])")

# accounting_study, measured with dp_accounting at an interval of 1e-4; where it only says "about"
# or ">", a tolerance of its own. (Its "about 96" and "about 104" come from a coarse grid.)
STUDY = [
    (1.553, 0.683, 1e-3),
    (8.98, 8.91, 2e-3),
    (3.91, 3.91, 2e-3),
    (21.5, 21.3, 3e-3),
    (69, None, 3e-3),
    (205, None, 3e-3),
    (12.82, 96, 0.04),
    (51.7, None, 0.02),
    (13.8, 104, 0.05),
]


def tables():
    found = re.findall(r"<!-- table: (\w+) -->\n(.*?)\n<!-- end of table -->", PAGE, re.DOTALL)
    return {name: text.strip() for name, text in found}


def made():
    spec = importlib.util.spec_from_file_location("make_tables", DOCS / "make_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same(printed, computed):
    """Equal words; numbers that agree to 2e-3, which another SciPy's last digit cannot break."""
    assert _NUMBER.sub("#", printed) == _NUMBER.sub("#", computed)
    pairs = zip(_NUMBER.findall(printed), _NUMBER.findall(computed), strict=True)
    for before, after in pairs:
        assert float(before.replace(",", "")) == pytest.approx(
            float(after.replace(",", "")), rel=2e-3
        )


def test_the_matrix_of_guarantees_is_what_the_library_proves():
    printed = tables()["matrix"]
    assert printed == made().matrix().strip()
    rows = [line.split(" | ") for line in printed.splitlines()]
    # Without Poisson sampling presence is not protected, but where anything may change.
    assert all(row[-1] == "refused |" for row in rows if row[2] == "add or remove")


@pytest.mark.slow
def test_the_papers_rules_are_what_the_library_computes():
    same(tables()["rules"], made().TABLES["rules"]().strip())


@pytest.mark.slow
def test_the_study_is_what_the_library_computes():
    same(tables()["study"], made().TABLES["study"]().strip())


def test_the_study_agrees_with_the_independent_measurement():
    rows = [line.split("|")[1:-1] for line in tables()["study"].splitlines()[2:]]
    for (_, *cells), (*known, tolerance) in zip(rows, STUDY, strict=True):
        for cell, value in zip(cells, known, strict=True):
            if value is not None:
                assert float(cell) == pytest.approx(value, rel=tolerance)
    assert "> 10,000" in rows[4][2] and "> 10,000" in rows[5][2]
    assert float(rows[7][2]) > 200


def commands():
    blocks = re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
    lines = "".join(blocks).splitlines()
    return [line for line in lines if line.startswith("subjectdp ") and "--ids" not in line]


def test_the_commands_of_the_page_run_in_their_order(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert commands()
    for line in commands():
        assert cli.main(shlex.split(line)[1:]) == 0, line
        assert capsys.readouterr().out.strip()


# What a section's sentences print to two decimals or more, in their order: of which command (by its
# place among the section's commands) and under which name in its JSON.
FIGURES = {
    "## Three claims, checked": [(number, "epsilon") for number in range(5)],
    "## Elements, whole batches, releases": [
        (0, "epsilon"),
        (1, "epsilon"),
        (2, "epsilon"),
        (3, "noise_multiplier"),
        (4, "epsilon"),
        (5, "epsilon"),
        (5, "epsilon_against_A1"),
        (6, "epsilon"),
        (7, "epsilon"),
        (7, "epsilon_against_A1"),
        (8, "noise_multiplier"),
        (8, "epsilon_against_A1"),
    ],
}


@pytest.mark.parametrize("heading", FIGURES)
def test_the_figures_that_a_section_prints_are_what_its_commands_say(heading, capsys):
    section = PAGE.split(heading + "\n")[1].split("\n## ")[0]
    answers = []
    for line in section.splitlines():
        if line.startswith("subjectdp "):
            assert cli.main([*shlex.split(line)[1:], "--json"]) == 0, line
            answers.append(json.loads(capsys.readouterr().out))
    assert {number for number, _ in FIGURES[heading]} == set(range(len(answers)))
    printed = re.findall(r"\d+\.\d\d+", re.sub(r"```.*?```", "", section, flags=re.DOTALL))
    for text, (number, name) in zip(printed, FIGURES[heading], strict=True):
        last_place = 10.0 ** -len(text.split(".")[1])
        assert float(text) == pytest.approx(answers[number][name], rel=1e-3, abs=last_place)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_python_of_the_page_runs_and_agrees_with_its_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(compile(code, "privacy_officer.md", "exec"), names)
    assert capsys.readouterr().out.count("\n") >= 7
    assert names["plan"].epsilon(1e-6) == pytest.approx(2.016, rel=1e-3)
