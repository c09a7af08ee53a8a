# SPDX-License-Identifier: Apache-2.0
"""`subjectdp epsilon`, `noise`, `rounds`, and `compare`: every algorithm at the same data and budget."""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tf_subjectdp.accounting.paper_rules import paper_rounds
from tf_subjectdp.algorithms import check_noise_multiplier
from tf_subjectdp.algorithms.base import rounded_up, within_silos
from tf_subjectdp.algorithms.part_clipping import changes_against_a1
from tf_subjectdp.cli.options import CLIP_PARTS, SAMPLINGS, UsageError
from tf_subjectdp.cli.output import Result, progress_bar
from tf_subjectdp.cli.question import (
    Question,
    ask,
    figures,
    holders_of_stats,
    note_delta,
    read_from_data,
    read_table,
    silos_per_subject,
    stats_data,
)
from tf_subjectdp.sampling import PoissonItems, PoissonSubjects, SiloStats, SubjectStats

_ENGINES = {
    "pld": "privacy loss distributions: never below the true figure of the stated steps",
    "rdp": "Renyi differential privacy, an upper bound",
}


def epsilon(arguments: argparse.Namespace) -> Result:
    """The epsilon of a run."""
    question = ask(arguments)
    lengths = question.lengths(arguments)
    sigma = check_noise_multiplier(arguments.noise)
    worst = question.worst_case(sigma, lengths)
    rows = [("epsilon", rounded_up(worst.value))]
    result = _result(arguments, question, sigma, lengths, rows)
    result.data |= {"epsilon": worst.value, "noise_multiplier": sigma}
    if question.algorithm in CLIP_PARTS:
        _against_a1(result, question, sigma, lengths)
    if question.composes and len(set(question.holders)) > 1:
        names = [question.holders[i].name for i in worst.silos]
        remark = (
            f"The costliest {question.unit} is in the silos {', '.join(map(str, names))}."
            if worst.exact
            else "The figure is a bound over all choices of silos; it belongs to no one choice."
        )
        result.remarks.insert(1, remark)
        result.data |= {"costliest_silos": names if worst.exact else None, "exact": worst.exact}
    if sigma == 0.0:
        result.remarks.insert(0, "NOT PRIVATE: the noise multiplier is 0.")
    return result


def _against_a1(
    result: Result, question: Question, sigma: float, lengths: list[tuple[int, int]]
) -> None:
    """Adds the figure of clipped parts against the paper's own adversary."""
    value = question.epsilon_against_a1(sigma, lengths)
    result.data |= {"adversary": "A0", "epsilon_against_A1": value}
    usual = (
        "Adversaries: epsilon holds against the usual one (A0), who sees every noised update and both "
        "candidate data sets, but not the batches."
    )
    if value is None:
        result.remarks.append(
            f"{usual} Against the paper's (A1), who also knows in which batch and part each item was, no "
            "figure is given for silos that are not alike."
        )
        return
    result.rows.insert(1, ("epsilon, A1", rounded_up(value)))
    items = "the item" if question.unit == "item" else "each of the subject's items"
    seen = ", every silo's updates seen" if question.composes else ""
    changes = changes_against_a1(question.holders[0].facts)
    result.remarks.append(
        f"{usual} The second figure holds against the paper's stronger one (A1), who also knows in "
        f"which batch and part {items} was: the f-DP mixture over these places, for "
        f"{changes}{seen}. It holds against A0 too, so that the smaller one does."
    )


def noise(arguments: argparse.Namespace) -> Result:
    """The noise multiplier that a budget needs."""
    question = ask(arguments)
    lengths = question.lengths(arguments)
    sigma = question.noise(arguments.epsilon, lengths)
    rows = [
        ("noise multiplier", f"{sigma:.6g} ({question.noise_words})"),
        ("epsilon", f"at most {arguments.epsilon:g}"),
    ]
    result = _result(arguments, question, sigma, lengths, rows)
    result.data |= {"noise_multiplier": sigma, "epsilon": arguments.epsilon}
    if question.algorithm in CLIP_PARTS:
        _of_a0(result, question, sigma, lengths)
    return result


def _of_a0(
    result: Result, question: Question, sigma: float, lengths: list[tuple[int, int]]
) -> None:
    """Says against whom the budget of clipped parts is kept, and what the other adversary makes of it."""
    value = question.epsilon_against_a1(sigma, lengths)
    result.data |= {"adversary": "A0", "epsilon_against_A1": value}
    other = "no figure is given" if value is None else f"it is {rounded_up(value)}"
    result.remarks.append(
        "The budget is kept against the usual adversary (A0), who does not know the batches; against A1, "
        f"who also knows in which batch and part each item was, {other}."
    )


def rounds(arguments: argparse.Namespace) -> Result:
    """The largest number of rounds within a budget, and what the published rule would say."""
    question, budget = ask(arguments), arguments.epsilon
    sigma = check_noise_multiplier(arguments.noise)
    steps, one_run = arguments.steps_per_round or 1, arguments.steps_per_round is None
    word = "steps" if one_run else "rounds"

    def most(asked: Question) -> int:
        return asked.rounds(sigma, budget, steps, one_run=one_run)

    def spends(count: int) -> float:
        return question.epsilon(sigma, question.turns(steps, count, one_run)) if count else 0.0

    value = most(question)
    spent = spends(value)
    rows = [
        (f"largest number of {word}", f"{value:,}"),
        ("which spend", f"epsilon {rounded_up(spent)}"),
    ]
    epoch = question.holders[0].facts.steps_per_epoch
    if len(question.holders) == 1 and question.holders[0].sampled:
        rows.insert(1, ("that is", f"{value * steps / epoch:.3g} epochs"))
    rows.append(("budget", f"epsilon {budget:g}"))
    result = _result(arguments, question, sigma, question.turns(steps, 1), rows)
    result.data |= {
        "rounds": value,
        "steps_per_round": steps,
        "steps": value * steps,
        "budget": budget,
        "noise_multiplier": sigma,
        "epsilon": spent,
    }
    if question.algorithm in CLIP_PARTS and value:
        _of_a0(result, question, sigma, question.turns(steps, value, one_run))
    if question.composes and question.most_silos > 1 and question.unit == "subject":
        _published(result, most, spends, question, word)
    return result


def _published(
    result: Result,
    most: Callable[[Question], int],
    spends: Callable[[int], float],
    question: Question,
    word: str,
) -> None:
    """Adds the rule R/sqrt(s) of the papers and what it really spends."""
    silos, budget = question.most_silos, result.data["budget"]
    try:
        alone = most(dataclasses.replace(question, most_silos=1))
    except UsageError:
        return  # one silo alone could go on beyond the end of the search
    with warnings.catch_warnings():
        # The answer says what the warning would.
        warnings.simplefilter("ignore")
        published = paper_rounds(alone, silos)
    spent = spends(published)
    result.remarks.insert(
        0,
        f"The published rule R/sqrt(s) (Marathe et al., horizontal composition) would allow "
        f"{published:,} {word}: one silo alone could run {alone:,}, a subject is in {silos}. They "
        f"spend epsilon {rounded_up(spent)}, not {budget:g}: the steps of all {silos} silos compose, "
        f"so that {result.data['rounds']:,} keep the budget.",
    )
    result.data |= {
        "published_rule": "R/sqrt(s)",
        "rounds_of_one_silo": alone,
        "published_rounds": published,
        "epsilon_of_published_rounds": spent,
    }


def _result(
    arguments: argparse.Namespace,
    question: Question,
    sigma: float,
    lengths: list[tuple[int, int]],
    rows: list[tuple[str, str]],
) -> Result:
    """What the three commands say about the question itself."""
    command = arguments.command
    holder = max(question.holders, key=lambda one: one.facts.max_items)
    guarantee = question.guarantee(holder, sigma if sigma > 0.0 else 1.0)
    adjacency = guarantee.adjacency
    if question.composes:
        adjacency = within_silos(adjacency, question.most_silos, len(question.holders))
    rows += [
        ("delta", f"{question.delta:g}"),
        ("protects", f"one {question.unit}: {adjacency}"),
        ("algorithm", question.display),
    ]
    if command != "noise":
        rows.append(("noise multiplier", f"{sigma:.6g} ({question.noise_words})"))
    rows += _sampling_rows(question)
    if command != "rounds":
        word = "rounds" if arguments.epochs is None else "epochs"
        rows.append(("length", _length(lengths, word)))
    reason = guarantee.reason
    if question.composes and len({one.facts for one in question.holders}) > 1:
        reason = f"in silo {holder.name}: {reason}"
    rows += [("step", reason), ("accountant", _ENGINES[question.engine])]
    data = {
        "command": command,
        **question.data(),
        "adjacency": adjacency,
        "event": reason,
        "engine": question.engine,
    }
    if command != "rounds":
        data |= _length_data(lengths)
    remarks = []
    if question.composes and question.composed_view != "updates":
        remarks.append("All silos have equal weight and one clip norm in the average.")
    if question.composes:
        # the words about views and choices hold for any length and noise
        lines = question.horizontal(1.0, lengths).describe().split("\n")
        composition = " ".join(line for line in lines if "worst_case()" not in line)
        remarks.append(composition)
        data["composition"] = composition
        if question.unit == "element":
            remarks.append(
                "An element of a subject may have rows in as many silos as the subject, and their steps "
                "compose; where a subject above is meant, read: an element."
            )
        if question.composed_view != question.view:
            what = "Shuffled epochs" if question.shuffles else "Elements"
            remarks.append(f"{what} are accounted for in the view 'updates', a bound.")
    elif len(question.holders) > 1 and question.unit != "subject":
        remarks.append(f"One {question.unit} is in one silo: the figure is that of the costliest.")
    told = read_from_data(question.stats, question.m_source)
    if told:
        remarks.append(told)
        data["read_from_data"] = told
    return Result(data, rows, remarks=remarks)


def _sampling_rows(question: Question) -> list[tuple[str, str]]:
    facts = [holder.facts for holder in question.holders]
    drawn = SAMPLINGS[facts[0].scheme.replace("_", "-")]
    rates = sorted({one.rate for one in facts})
    ks = sorted({one.max_items for one in facts})
    if not question.holders[0].sampled:
        rows = [("sampling", "any: the promise does not depend on it")]
    else:
        rate = f"{rates[0]:.6g}" + (f" to {rates[-1]:.6g}" if len(rates) > 1 else "")
        kept = question.holders[0].keep
        filtered = (
            "" if kept == 1.0 else f"; a row takes part in an epoch with probability {kept:g}"
        )
        rows = [("sampling", f"{drawn.words}, {drawn.rate or 'q'} = {rate}{filtered}")]
    if question.algorithm in CLIP_PARTS:
        rows.append(("parts", f"{question.made.number_of_parts:,} of a batch, each clipped"))
    for name, most in (
        ("elements a subject", question.elements),
        ("items an element", question.items_per_element),
    ):
        if most is not None:
            rows.append((name, f"at most {most:,}"))
    if question.unit == "subject" and question.display != "ElementDP":
        k = f"{ks[0]:,}" + (f" to {ks[-1]:,}" if len(ks) > 1 else "")
        if question.holders[0].k_known:
            rows.append(("items a subject", f"at most {k}" + _caps(question)))
    if len(facts) > 1:
        rows.append(
            ("silos", f"{len(facts)}, of which a subject is in at most {question.most_silos}")
        )
    return rows


def _caps(question: Question) -> str:
    return "" if question.cap is None else f", of which at most {question.cap} count in a step"


def _length(lengths: list[tuple[int, int]], word: str) -> str:
    unlike = sorted(set(lengths))
    steps, turns = unlike[0]
    if len(unlike) > 1:
        totals = sorted(steps * turns for steps, turns in unlike)
        return f"{totals[0]:,} to {totals[-1]:,} steps a silo"
    if turns == 1:
        return f"{steps:,} steps"
    one = "1 step" if steps == 1 else f"{steps:,} steps"
    return f"{turns:,} {word} of {one}, {turns * steps:,} steps in all"


def _length_data(lengths: list[tuple[int, int]]) -> dict[str, Any]:
    totals = [steps * turns for steps, turns in lengths]
    if len(set(lengths)) > 1:
        return {"steps_by_silo": totals}
    return {"steps": totals[0], "steps_per_round": lengths[0][0], "rounds": lengths[0][1]}


# -- compare ----------------------------------------------------------------------------------------

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
    if arguments.steps is None and arguments.epochs is None:
        raise UsageError("the length is missing: say --epochs or --steps")
    stats = read_table(arguments)
    if stats is None:
        stats = figures(arguments)
    note_delta(arguments, "subject", stats)
    most, source = None, None
    if isinstance(stats, SiloStats):
        most, source = silos_per_subject(arguments, stats)
    cases = list(_cases(arguments, stats, most, source))
    rows, data = [], []
    known: dict[Any, float] = {}
    with progress_bar(arguments.progress, "comparing") as bar:
        for number, case in enumerate(cases):
            bar(number, number / len(cases))
            row, entry = _row(case, arguments, known)
            rows.append(row)
            data.append(entry)
    told = read_from_data(stats, source)
    found = {
        "command": "compare",
        "budget": arguments.epsilon,
        "delta": arguments.delta,
        "batch": arguments.batch,
        "data": stats_data(stats),
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


def _cases(
    arguments: argparse.Namespace,
    stats: SubjectStats | SiloStats,
    most: int | None,
    source: str | None,
) -> Iterator[_Case]:
    items = holders_of_stats(stats, lambda silo: PoissonItems(arguments.batch))
    subjects = holders_of_stats(stats, lambda silo: _subjects(arguments, silo))
    base = Question(
        algorithm="itemdp",
        unit="subject",
        holders=items,
        delta=arguments.delta,
        most_silos=most,
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
    lengths = question.lengths(arguments)
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
