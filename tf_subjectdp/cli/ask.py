# SPDX-License-Identifier: Apache-2.0
"""`subjectdp epsilon`, `noise` and `rounds`."""

from __future__ import annotations

import argparse
import warnings
from typing import Any

from tf_subjectdp.accounting.paper_rules import paper_rounds
from tf_subjectdp.algorithms import check_noise_multiplier
from tf_subjectdp.algorithms.base import rounded_up, within_silos
from tf_subjectdp.algorithms.part_clipping import changes_against_a1
from tf_subjectdp.cli import inputs
from tf_subjectdp.cli.arguments import UsageError
from tf_subjectdp.cli.asking import ask, lengths_of, steps_per_round
from tf_subjectdp.cli.choices import noise_words
from tf_subjectdp.cli.options import CLIP_ELEMENTS, CLIP_PARTS
from tf_subjectdp.cli.output import Result
from tf_subjectdp.cli.question import Question, turns

_RATES = {"poisson_subjects": "p", "poisson_elements": "r"}
_SCHEMES = {
    "poisson_items": "Poisson, items",
    "poisson_subjects": "Poisson, subjects",
    "poisson_elements": "Poisson, elements of a subject",
    "fixed_size": "batches of a fixed size, without replacement",
    "shuffle": "shuffled epochs",
}
_ENGINES = {
    "pld": "privacy loss distributions: never below the true figure of the stated steps",
    "rdp": "Renyi differential privacy, an upper bound",
}


def epsilon(arguments: argparse.Namespace) -> Result:
    """The epsilon of a run."""
    question = ask(arguments)
    lengths = lengths_of(arguments, question)
    sigma = check_noise_multiplier(arguments.noise)
    worst = question.worst_case(sigma, lengths)
    value = question.epsilon(sigma, lengths) if worst is None else worst.value
    rows = [("epsilon", rounded_up(value))]
    result = _result("epsilon", question, sigma, lengths, rows, word=_turns(arguments))
    result.data |= {"epsilon": value, "noise_multiplier": sigma}
    if question.algorithm in CLIP_PARTS:
        _against_a1(result, question, sigma, lengths)
    if worst is not None and len(set(question.holders)) > 1:
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
    lengths = lengths_of(arguments, question)
    sigma = question.noise(arguments.epsilon, lengths)
    rows = [
        ("noise multiplier", f"{sigma:.6g} ({noise_words(question.algorithm)})"),
        ("epsilon", f"at most {arguments.epsilon:g}"),
    ]
    result = _result("noise", question, sigma, lengths, rows, word=_turns(arguments))
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
    inputs.refuse_both(arguments, "rounds", ("epsilon",))
    question = ask(arguments)
    sigma = check_noise_multiplier(arguments.noise)
    steps = steps_per_round(arguments, question)
    one_run = arguments.steps_per_round is None
    value = question.rounds(sigma, arguments.epsilon, steps, one_run=one_run)
    word = "steps" if arguments.steps_per_round is None else "rounds"
    rows = [
        (f"largest number of {word}", f"{value:,}"),
        ("budget", f"epsilon {arguments.epsilon:g}"),
    ]
    remarks, data = _beside(question, sigma, arguments.epsilon, steps, value, word, one_run)
    lengths = [(count, 1) for count in steps]
    result = _result("rounds", question, sigma, lengths, rows, length_is_asked=True)
    result.data |= {
        "rounds": value,
        "steps_per_round": steps[0],
        "steps": value * steps[0],
        "budget": arguments.epsilon,
        "noise_multiplier": sigma,
        **data,
    }
    if question.algorithm in CLIP_PARTS and value:
        _of_a0(result, question, sigma, turns(steps, value, one_run))
    spent = question.epsilon(sigma, turns(steps, value, one_run)) if value else 0.0
    result.rows.insert(1, ("which spend", f"epsilon {rounded_up(spent)}"))
    result.data["epsilon"] = spent
    epoch = question.holders[0].facts.steps_per_epoch
    if len(question.holders) == 1 and question.holders[0].sampled:
        result.rows.insert(1, ("that is", f"{value * steps[0] / epoch:.3g} epochs"))
    result.remarks = remarks + result.remarks
    return result


def _beside(
    question: Question,
    sigma: float,
    budget: float,
    steps: list[int],
    honest: int,
    word: str,
    one_run: bool,
) -> tuple[list[str], dict[str, Any]]:
    """The rule R/sqrt(s) of the papers and what it really spends; nothing without silos."""
    silos = question.most_silos or 1
    if not question.composes or silos < 2 or question.unit != "subject":
        return [], {}
    try:
        alone = question.alone().rounds(sigma, budget, steps, one_run=one_run)
    except UsageError:
        return [], {}  # one silo alone could go on beyond the end of the search
    with warnings.catch_warnings():
        # The answer says what the warning would.
        warnings.simplefilter("ignore")
        published = paper_rounds(alone, silos)
    spent = question.epsilon(sigma, turns(steps, published, one_run)) if published else 0.0
    remark = (
        f"The published rule R/sqrt(s) (Marathe et al., horizontal composition) would allow "
        f"{published:,} {word}: one silo alone could run {alone:,}, a subject is in {silos}. They "
        f"spend epsilon {rounded_up(spent)}, not {budget:g}: the steps of all {silos} silos compose, "
        f"so that {honest:,} keep the budget."
    )
    data = {
        "rounds_of_one_silo": alone,
        "published_rounds": published,
        "epsilon_of_published_rounds": spent,
    }
    return [remark], {"published_rule": "R/sqrt(s)", **data}


def _result(
    command: str,
    question: Question,
    sigma: float,
    lengths: list[tuple[int, int]],
    rows: list[tuple[str, str]],
    *,
    length_is_asked: bool = False,
    word: str = "rounds",
) -> Result:
    """What the three commands say about the question itself."""
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
        rows.append(("noise multiplier", f"{sigma:.6g} ({noise_words(question.algorithm)})"))
    rows += _sampling_rows(question)
    if not length_is_asked:
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
    if not length_is_asked:
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
    told = inputs.read_from_data(question.stats, question.m_source)
    if told:
        remarks.append(told)
        data["read_from_data"] = told
    return Result(data, rows, remarks=remarks)


def _sampling_rows(question: Question) -> list[tuple[str, str]]:
    facts = [holder.facts for holder in question.holders]
    scheme = facts[0].scheme
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
        rows = [("sampling", f"{_SCHEMES[scheme]}, {_RATES.get(scheme, 'q')} = {rate}{filtered}")]
    if question.algorithm in CLIP_PARTS:
        rows.append(("parts", f"{question.made.number_of_parts:,} of a batch, each clipped"))
    for name, most in (
        ("elements a subject", question.elements),
        ("items an element", question.items_per_element),
    ):
        if most is not None:
            rows.append((name, f"at most {most:,}"))
    if question.unit == "subject" and question.algorithm not in CLIP_ELEMENTS:
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


def _turns(arguments: argparse.Namespace) -> str:
    return "rounds" if arguments.epochs is None else "epochs"


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
