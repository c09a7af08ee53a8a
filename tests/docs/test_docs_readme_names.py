# SPDX-License-Identifier: Apache-2.0
"""What the README names exists: links and their headings, the steps that are left, silos' refusals."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def slug(heading):
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


def test_the_readmes_links_lead_to_files_and_headings():
    links = re.findall(r"\]\((?!http)([^)#]+)(?:#([^)]+))?\)", README)
    assert ("docs/guarantees.md", "which-algorithm-goes-with-which-sampling") in links
    for name, anchor in links:
        page = (ROOT / name).read_text(encoding="utf-8")
        headings = [slug(line) for line in re.findall(r"^#+ (.*)$", page, re.MULTILINE)]
        assert not anchor or anchor in headings, (name, anchor)


def test_runs_go_on_with_what_is_left_not_with_a_difference_of_steps():
    assert len(re.findall(r"\.take\(\w+\.optimizer\.steps_left\)", README)) == 2
    assert "plan.steps - " not in README
