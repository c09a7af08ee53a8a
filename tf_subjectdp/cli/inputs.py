# SPDX-License-Identifier: Apache-2.0
"""From the options about the data to stats, with every contradiction refused."""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from typing import Any

from tf_subjectdp import plans
from tf_subjectdp.cli.arguments import UsageError
from tf_subjectdp.cli.progress import ProgressBar
from tf_subjectdp.plans import number_protected
from tf_subjectdp.sampling import SiloStats, SubjectStats, stats_from_table

# A tabulator is hard to type; a shell passes on what was typed for it.
_DELIMITERS = {None: ",", "tab": "\t", "\\t": "\t"}
_FIGURES = ("items", "subjects", "items_per_subject")


def flag(name: str) -> str:
    """The option of an attribute: items_per_subject is --items-per-subject."""
    return "--" + name.replace("_", "-")


def refuse_both(arguments: argparse.Namespace, first: str, others: tuple[str, ...]) -> None:
    """UsageError if `first` and one of `others` were given."""
    if getattr(arguments, first, None) is None:
        return
    for other in others:
        if getattr(arguments, other, None) is not None:
            raise UsageError(f"{flag(first)} and {flag(other)} contradict each other: give one")


def read_table(arguments: argparse.Namespace) -> SubjectStats | SiloStats | None:
    """The counts of the table of --ids, bounded by --cap-data; None without a table."""
    if arguments.ids is None:
        for name in ("column", "silo_column", "delimiter", "progress"):
            if getattr(arguments, name) is not None:
                raise UsageError(f"{flag(name)} needs --ids FILE, the table to read")
        return None
    if arguments.column is None:
        raise UsageError("--ids needs --column NAME, the column with the person of each row")
    refuse_both(arguments, "ids", (*_FIGURES, "silos"))
    with ProgressBar(arguments.progress, f"reading {arguments.ids}") as bar:
        stats = stats_from_table(
            arguments.ids,
            arguments.column,
            silo_column=arguments.silo_column,
            delimiter=_DELIMITERS.get(arguments.delimiter, arguments.delimiter),
            progress=bar,
        )
    return stats if arguments.cap_data is None else stats.bounded(arguments.cap_data)


def or_cap_data(arguments: argparse.Namespace) -> str:
    """What else bounds items, unless it was given."""
    return "" if arguments.cap_data is not None else "; --cap-data bounds the items in the data"


def warn_of_delta(
    arguments: argparse.Namespace, unit: str, stats: SubjectStats | SiloStats | None
) -> None:
    """Warns, as `plan` does, where delta is not below one over the number of what is protected."""
    if unit == "silo":
        return
    if stats is None:
        of_all = arguments.elements_in_all
        stats = argparse.Namespace(
            n_items=arguments.items or 0,
            n_subjects=arguments.subjects or 0,
            elements=None if of_all is None else argparse.Namespace(n_elements=of_all),
        )
    number = number_protected(unit, stats)
    if number:
        plans.warn_of_delta(arguments.delta, unit, number)


def note_cap_of_figures(arguments: argparse.Namespace) -> None:
    """Warns that --items cannot tell how many rows a cap leaves."""
    if arguments.cap_data is not None and arguments.items is not None:
        warnings.warn(
            "--items is taken as the rows that are LEFT after --cap-data: the rate is batch / items. "
            "Where the cap drops rows and batches keep their size, the rate and epsilon are larger; "
            "--ids FILE counts what is left.",
            stacklevel=2,
        )


def figures(arguments: argparse.Namespace) -> SubjectStats:
    """The stats of --items, --subjects and --items-per-subject or --cap-data; all are needed."""
    refuse_both(arguments, "items_per_subject", ("cap_data",))
    missing = [flag(name) for name in _FIGURES if getattr(arguments, name) is None]
    if arguments.cap_data is not None and "--items-per-subject" in missing:
        missing.remove("--items-per-subject")
    if missing:
        raise UsageError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: say how many "
            "items and subjects there are and the most items of one subject, or --ids FILE --column "
            "NAME"
        )
    if arguments.cap_data is None:
        k, people = arguments.items_per_subject, arguments.subjects
        if min(k, people, arguments.items) > 0 and k * people < arguments.items:
            raise UsageError(
                f"--items-per-subject {k} is too small: {arguments.items:,} items of {people:,} "
                f"subjects need at least {-(-arguments.items // people):,} for some subject"
            )
        return SubjectStats.public(
            n_items=arguments.items,
            n_subjects=arguments.subjects,
            max_items=arguments.items_per_subject,
        )
    note_cap_of_figures(arguments)
    # Of the rows that were counted, no more than K a subject stay.
    most = SubjectStats.public(
        n_items=arguments.items, n_subjects=arguments.subjects, max_items=arguments.items
    )
    kept = min(most.n_items, arguments.cap_data * most.n_subjects)
    return dataclasses.replace(most, n_items=kept, max_items=arguments.cap_data, k_source="bound")


def silos_per_subject(arguments: argparse.Namespace, stats: SiloStats) -> tuple[int, str]:
    """m and where it came from: counted in the table, or promised and checked against it."""
    counted, promised = stats.silos_per_subject, arguments.silos_per_subject
    if promised is None:
        return counted, "data"
    if promised < counted:
        raise UsageError(
            f"--silos-per-subject is {promised}, and a subject of the table is in {counted} silos: "
            f"say at least {counted}"
        )
    return min(promised, stats.n_silos), "public"


def read_from_data(stats: SubjectStats | SiloStats | None, m_source: str | None = None) -> str:
    """What the figures tell about the people in the table; empty if nothing was read."""
    if stats is None:
        return ""
    k_read = stats.cap is None if isinstance(stats, SiloStats) else stats.k_source == "data"
    parts = []
    if k_read:
        parts.append(
            "k was read from the data and is itself information about the people in them; a public "
            "bound, --cap-data K, would not be."
        )
    if m_source == "data":
        parts.append(
            "So was the number of silos that hold one subject; --silos-per-subject M is a bound."
            if k_read
            else "The number of silos that hold one subject was read from the data and is itself "
            "information about the people in them; --silos-per-subject M is a bound."
        )
    if not (isinstance(stats, SubjectStats) and stats.sizes_public):
        parts.append("The numbers of items and subjects, and the rates, follow from the data too.")
    return " ".join(parts)


def stats_data(stats: SubjectStats | SiloStats) -> dict[str, Any]:
    """The figures for `--json`."""
    if isinstance(stats, SubjectStats):
        return {
            "items": stats.n_items,
            "subjects": stats.n_subjects,
            "items_per_subject": stats.max_items,
            "k_source": stats.k_source,
        }
    total = stats.total
    return {
        "items": total.n_items,
        "subjects": total.n_subjects,
        "items_per_subject_over_all_silos": total.max_items,
        "k_source": "data" if stats.cap is None else "bound",
        "silos_per_subject_in_the_table": stats.silos_per_subject,
    }
