# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of privacy_officer.md and guarantees.md anew, from the library itself.

python docs/make_tables.py            # rewrites the pages, about a minute
python docs/make_tables.py --check    # exit status 1 if a page differs
"""

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable
from pathlib import Path

import tf_subjectdp as sdp
from tf_subjectdp.accounting import study

PAGE = Path(__file__).with_name("privacy_officer.md")
GUARANTEES = Path(__file__).with_name("guarantees.md")

ALGORITHMS = (
    sdp.ItemDP(1.0),
    sdp.GroupDP(1.0, max_items_per_subject=2),
    sdp.HiGradAvg(1.0),
    sdp.SubjectDP(1.0),
    sdp.UserLDP(1.0),
    sdp.ElementDP(1.0, max_elements=4),
    sdp.BatchClipping(1.0),
    sdp.MixedClipping(1.0, parts=4),
)
SAMPLERS = (
    sdp.PoissonItems(100),
    sdp.PoissonSubjects(20),
    sdp.PoissonElements(40),
    sdp.FixedSize(100),
    sdp.Shuffle(100),
)
STATS = dataclasses.replace(
    sdp.SubjectStats.public(n_items=10_000, n_subjects=1_000, max_items=12),
    elements={"n_elements": 3_000, "max_elements": 4, "max_items": 6},
)
ADD, REPLACE = "add or remove", "replace in place"
NO_FIGURE = ("refused", "not stated")
STARTS = {
    "replacing, adding or removing": (ADD, REPLACE),
    "adding or removing": (ADD,),
    "replacing": (REPLACE,),
    "any change": (ADD, REPLACE),
}


def cell(algorithm, sampler, unit: str, adjacency: str) -> str:
    """The proof for one combination, always by privacy loss distributions; or that there is none."""
    try:
        plan = sdp.plan(algorithm, sampler, STATS, steps=100, noise_multiplier=5.0, unit=unit)
        guarantee = plan.guarantee(unit)
    except ValueError:
        return "refused"
    proven = next(kinds for words, kinds in STARTS.items() if guarantee.adjacency.startswith(words))
    if adjacency in proven:
        return "PLD"
    return "refused" if adjacency == ADD else "not stated"


def matrix() -> str:
    """Algorithm x sampling x unit x adjacency: how it is proven, or "refused"."""
    names = [type(sampler).__name__ for sampler in SAMPLERS]
    lines = [
        f"| algorithm | unit | neighbours | {' | '.join(names)} |",
        "| --- " * (len(names) + 3) + "|",
    ]
    for algorithm in ALGORITHMS:
        for unit in algorithm.units:
            for adjacency in (ADD, REPLACE):
                cells = [cell(algorithm, sampler, unit, adjacency) for sampler in SAMPLERS]
                name = type(algorithm).__name__
                lines.append(f"| {name} | {unit} | {adjacency} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pairs() -> str:
    """Algorithm x sampling: the units for which there is a figure."""
    names = [type(sampler).__name__ for sampler in SAMPLERS]
    lines = [f"| algorithm | {' | '.join(names)} |", "| --- " * (len(names) + 1) + "|"]
    for algorithm in ALGORITHMS:
        cells = []
        for sampler in SAMPLERS:
            found = [
                unit
                for unit in algorithm.units
                if any(
                    cell(algorithm, sampler, unit, one) not in NO_FIGURE for one in (ADD, REPLACE)
                )
            ]
            cells.append(", ".join(found) or "refused")
        lines.append(f"| {type(algorithm).__name__} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "matrix": matrix,
    "rules": study.rule_markdown,
    "study": lambda: study.study_markdown(names=("FEMNIST-like", "Shakespeare-like")),
}


def filled(text: str, tables: dict[str, Callable[[], str]] = TABLES) -> str:
    """`text` with every table between its markers made anew."""
    for name, table in tables.items():
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end of table -->)"
        if not re.search(pattern, text, re.DOTALL):
            raise ValueError(f"the page has no place for the table {name!r}")
        made = table().strip()
        text = re.sub(
            pattern, lambda m, made=made: m[1] + made + "\n" + m[2], text, flags=re.DOTALL
        )
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    arguments = parser.parse_args()
    differ = False
    for page, tables in ((PAGE, TABLES), (GUARANTEES, {"pairs": pairs})):
        before = page.read_text(encoding="utf-8")
        after = filled(before, tables)
        differ |= before != after
        if not arguments.check:
            page.write_text(after, encoding="utf-8")
    return int(arguments.check and differ)


if __name__ == "__main__":
    sys.exit(main())
