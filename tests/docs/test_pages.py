# SPDX-License-Identifier: Apache-2.0
"""The README and the pages of docs/: their code and commands run as they stand, their links hold."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tf_subjectdp import cli

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", *DOCS]
# `test_privacy_officer.py` runs what that page shows, and compares the figures.
OFFICER = ROOT / "docs" / "privacy_officer.md"
NEEDS_TFF = ROOT / "docs" / "silos.md"

# Runs files in their order: the first gives its names to each of the others, which share no more.
_RUNNER = """
import sys

def run(path, names):
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), names)
    return names

first, *others = sys.argv[1:]
shared = run(first, {"__name__": "__main__"})
for path in others:
    run(path, dict(shared))
    sys.stdout.write(f"RAN {path}\\n")
"""


def code(page: Path, language: str = "python") -> str:
    """The code of a page, every line at the number that it has in the page; "" if there is none."""
    kept, block = [], None
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = line.startswith("```")
        kept.append(line if block == language and not fence else "")
        if fence:
            block = line[3:] if block is None else None
    return "\n".join(kept) + "\n" if any(kept) else ""


def slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


def test_the_readme_is_short_and_its_example_has_twenty_lines():
    assert len(README.read_text(encoding="utf-8").splitlines()) < 180
    assert len([line for line in code(README).splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_to_files_and_headings(page):
    text = page.read_text(encoding="utf-8")
    for name, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", text):
        linked = page.parent / name if name else page
        assert linked.is_file(), name
        if anchor:
            lines = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, lines), (name, anchor)


def test_the_readme_leads_to_every_page():
    linked = re.findall(r"\]\(([^)#]+)", README.read_text(encoding="utf-8"))
    assert {str(page.relative_to(ROOT)) for page in PAGES[1:]} <= set(linked)


@pytest.mark.slow
def test_the_code_of_the_pages_runs_as_it_stands_after_the_readmes(tmp_path):
    without = {OFFICER}
    if importlib.util.find_spec("tensorflow_federated") is None:
        without.add(NEEDS_TFF)
    files = []
    for page in [README, *DOCS]:
        if page not in without and code(page):
            files.append(tmp_path / f"{page.stem}.py")
            files[-1].write_text(code(page), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-c", _RUNNER, *map(str, files)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("RAN ") == len(files) - 1 >= 5
    assert "Per subject: epsilon = " in run.stdout.split("RAN ")[0]


def test_the_commands_of_the_pages_run(capsys):
    ran = 0
    for page in [README, *DOCS]:
        lines = code(page, language="").splitlines() if page != OFFICER else []
        for line in lines:
            if line.startswith("subjectdp ") and "--ids" not in line:
                assert cli.main(shlex.split(line)[1:]) == 0, line
                assert capsys.readouterr().out.strip()
                ran += 1
    assert ran
