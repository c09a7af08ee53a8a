# SPDX-License-Identifier: Apache-2.0
"""`subjectdp compare`: one table of every algorithm at the same data and budget."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from typing import Any

from tf_subjectdp.algorithms.base import rounded_up
from tf_subjectdp.cli import inputs
from tf_subjectdp.cli.arguments import UsageError
from tf_subjectdp.cli.asking import epochs_in_rounds
from tf_subjectdp.cli.holders import Holder, each_silo
from tf_subjectdp.cli.output import Result
from tf_subjectdp.cli.progress import ProgressBar
from tf_subjectdp.cli.question import Question
from tf_subjectdp.plans import facts_of
from tf_subjectdp.sampling import PoissonItems, PoissonSubjects, SiloStats, SubjectStats

_HEADER = (
    "algorithm",
    "promise to one",
    "sampling",
    "noise multiplier",
    "noise in a step",
    "epsilon a subject",
    "k",
    "rate",
    "steps",
)


@dataclasses.dataclass(frozen=True)
class _Case:
    """A row: whose promise the noise is chosen for, and what is then said of a subject."""

    label: str
    calibrated: Question
    subject: Question


def compare(arguments: argparse.Namespace) -> Result:
    """The table."""
    _check(arguments)
    stats = inputs.read_table(arguments)
    if stats is None:
        stats = inputs.figures(arguments)
    inputs.warn_of_delta(arguments, "subject", stats)
    most, source = None, None
    if isinstance(stats, SiloStats):
        most, source = inputs.silos_per_subject(arguments, stats)
    elif arguments.silos_per_subject is not None:
        raise UsageError("--silos-per-subject needs --silo-column NAME")
    cases = list(_cases(arguments, stats, most, source))
    rows, data = [], []
    known: dict[Any, float] = {}
    with ProgressBar(arguments.progress, "") as bar:
        for number, case in enumerate(cases):
            bar.say(f"{case.label} ({number + 1} of {len(cases)})")
            row, entry = _row(case, arguments, known)
            rows.append(row)
            data.append(entry)
    told = inputs.read_from_data(stats, source)
    found = {
        "command": "compare",
        "budget": arguments.epsilon,
        "delta": arguments.delta,
        "batch": arguments.batch,
        "data": inputs.stats_data(stats),
        "silos_per_subject": most,
        "algorithms": data,
    }
    if told:
        found["read_from_data"] = told
    return Result(
        found,
        [("budget", f"epsilon {arguments.epsilon:g} at delta {arguments.delta:g}"), *_lines(stats)],
        table=[_HEADER, *rows],
        remarks=_remarks(cases[0], data, stats, most, arguments.epsilon)
        + _of_elements(arguments)
        + ([told] if told else []),
    )


def _check(arguments: argparse.Namespace) -> None:
    inputs.refuse_both(arguments, "steps", ("epochs",))
    if arguments.steps is None and arguments.epochs is None:
        raise UsageError("the length is missing: say --epochs or --steps")
    for name in ("steps", "epochs", "batch", "expected_subjects", "elements"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise UsageError(f"{inputs.flag(name)} is {value:g}: it must be above 0")
    for cap in arguments.cap or ():
        if cap < 1:
            raise UsageError(f"--cap is {cap}: it must be at least 1")


def _cases(
    arguments: argparse.Namespace,
    stats: SubjectStats | SiloStats,
    most: int | None,
    source: str | None,
) -> Iterator[_Case]:
    items = _holders(stats, lambda silo: PoissonItems(arguments.batch))
    subjects = _holders(stats, lambda silo: _subjects(arguments, silo))
    base = Question(
        algorithm="itemdp",
        unit="subject",
        holders=items,
        delta=arguments.delta,
        cap=None,
        elements=None,
        items_per_element=None,
        parts=None,
        most_silos=most,
        view="updates",
        engine="pld",
        stats=stats,
        m_source=source,
    )
    yield _Case("ItemDP", dataclasses.replace(base, unit="item"), base)
    yield _Case("ItemDP", base, base)
    averaged = dataclasses.replace(base, algorithm="higradavg")
    yield _Case("HiGradAvg", averaged, averaged)
    grouped = dataclasses.replace(base, algorithm="groupdp")
    yield _Case("GroupDP", grouped, grouped)
    for cap in arguments.cap or ():
        capped = dataclasses.replace(grouped, cap=cap)
        yield _Case(f"GroupDP, cap {cap}", capped, capped)
    sampled = dataclasses.replace(base, algorithm="subjectdp", holders=subjects)
    yield _Case("SubjectDP", sampled, sampled)
    if arguments.elements is not None:
        element = dataclasses.replace(sampled, algorithm="elementdp", elements=arguments.elements)
        if arguments.cap_data is None:  # else nothing is proven for one element: see _remarks
            yield _Case("ElementDP", dataclasses.replace(element, unit="element"), element)
        yield _Case("ElementDP", element, element)
    whole = dataclasses.replace(base, algorithm="userldp")
    yield _Case("UserLDP", whole, whole)


def _holders(stats, sampler) -> tuple[Holder, ...]:
    holders = []
    for name, silo in each_silo(stats):
        try:
            holders.append(Holder(name, facts_of(sampler(silo), silo, None)))
        except ValueError as error:
            raise UsageError(f"silo {name!r}: {error}" if name else str(error)) from None
    return tuple(holders)


def _subjects(arguments: argparse.Namespace, silo: SubjectStats) -> PoissonSubjects:
    """As many people as bring B items on average, unless said otherwise."""
    expected = arguments.expected_subjects
    if expected is None:
        PoissonItems(arguments.batch).rate(silo.n_items, silo.n_subjects)  # refuses B > N
        expected = min(arguments.batch / silo.n_items * silo.n_subjects, silo.n_subjects)
    return PoissonSubjects(expected)


def _row(
    case: _Case, arguments: argparse.Namespace, known: dict[Any, float]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """A line of the table and of the JSON; `known` remembers the noise of equal mechanisms."""
    question = case.calibrated
    facts = [holder.facts for holder in question.holders]
    if arguments.steps is not None:
        lengths = [(arguments.steps, 1)] * len(facts)
    else:
        lengths = [epochs_in_rounds(arguments.epochs, one.steps_per_epoch) for one in facts]
    key = _mechanism(question, lengths)
    if key not in known:
        known[key] = question.noise(arguments.epsilon, lengths)
    sigma = known[key]
    epsilon = case.subject.epsilon(sigma, lengths)
    steps = [count * rounds for count, rounds in lengths]
    relative = [sigma / question.made.divisor(one) for one in facts]
    rates = [one.rate for one in facts]
    ks = [one.max_items for one in facts]
    sampling = "subjects, p" if facts[0].scheme == "poisson_subjects" else "items, q"
    row = (
        case.label,
        question.unit,
        sampling,
        f"{sigma:.4g}",
        _range(relative, ".3g"),
        rounded_up(epsilon),
        _range(ks, ","),
        _range(rates, ".3g"),
        _range(steps, ","),
    )
    entry: dict[str, Any] = {
        "algorithm": question.display,
        "noise_for": question.unit,
        "cap": question.cap,
        "elements": question.elements,
        "sampling": facts[0].scheme,
        "noise_multiplier": sigma,
        "relative_noise": max(relative),
        "epsilon_per_subject": epsilon,
    }
    if len(facts) == 1 and question.holders[0].name is None:
        entry |= {"k": ks[0], "rate": rates[0], "steps": steps[0]}
    else:
        entry["silos"] = [
            {"name": holder.name, "k": k, "rate": rate, "steps": count, "relative_noise": noise}
            for holder, k, rate, count, noise in zip(
                question.holders, ks, rates, steps, relative, strict=True
            )
        ]
    return row, entry


def _mechanism(question: Question, lengths: list[tuple[int, int]]) -> Any:
    """Equal for questions of equal noise: a subject of ItemDP is one of GroupDP without a cap."""
    events = tuple(question.guarantee(holder, 1.0).events for holder in question.holders)
    return question.composes, events, tuple(lengths)


def _of_elements(arguments: argparse.Namespace) -> list[str]:
    if arguments.elements is None or arguments.cap_data is None:
        return []
    return [
        "No row promises anything to one element: --cap-data lets an element displace rows of a person's "
        "other elements, and nothing is proven for one of them then."
    ]


def _range(values: list, form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


def _lines(stats: SubjectStats | SiloStats) -> list[tuple[str, str]]:
    if isinstance(stats, SubjectStats):
        return [
            (
                "data",
                f"{stats.n_items:,} items of {stats.n_subjects:,} subjects, at most "
                f"{stats.max_items:,} a subject",
            )
        ]
    return [
        (
            "data",
            f"{stats.n_items:,} items of {stats.n_subjects:,} subjects in {stats.n_silos:,} silos",
        )
    ]


def _remarks(
    first: _Case,
    data: list[dict[str, Any]],
    stats: SubjectStats | SiloStats,
    most: int | None,
    budget: float,
) -> list[str]:
    remarks = [
        "noise multiplier: noise standard deviation / clip norm, sigma. noise in a step: sigma / "
        "divisor, the noise on the averaged step relative to the clip norm. Clip norms of unlike "
        "algorithms bound unlike things: averages over a subject are smaller than single gradients.",
        f"The first row is ItemDP with noise that is enough for single items: it promises epsilon "
        f"{budget:g} to one item, and {rounded_up(data[0]['epsilon_per_subject'])} to a subject.",
    ]
    if most is not None:
        remarks.append(
            f"A subject is in at most {most} of {len(first.calibrated.holders)} silos, whose steps "
            "compose, as they do for an element; one item is in one. Where something is replaced, all "
            f"silos with data of the subject, before and after, are among the same {most}. The adversary "
            "sees every silo's updates."
        )
        if isinstance(stats, SiloStats) and stats.cap is not None:
            remarks.append(f"Every silo keeps at most {stats.cap} items of a subject.")
    return remarks
