# SPDX-License-Identifier: Apache-2.0
"""From the options to a `Question` and its length; contradictions are refused here."""

from __future__ import annotations

import argparse
import math

from tf_subjectdp.cli import inputs
from tf_subjectdp.cli.arguments import UsageError
from tf_subjectdp.cli.choices import CENTRAL, check_parts
from tf_subjectdp.cli.holders import holders_of, scheme_of
from tf_subjectdp.cli.options import CLIP_ELEMENTS
from tf_subjectdp.cli.question import Question
from tf_subjectdp.sampling import SiloStats, SubjectStats

_UNITS = {
    "elementdp": ("element", "subject", "item"),
    "element-subject": ("subject",),
    "centralgroup": ("subject",),
    "centralhigradavg": ("subject",),
    "userldp": ("subject", "item", "silo"),
}
_OF_ELEMENTS = ("elements", "expected_elements", "elements_in_all", "items_per_element")


def ask(arguments: argparse.Namespace) -> Question:
    """The question of the options; UsageError where they contradict each other or the algorithm."""
    name = arguments.algorithm
    unit = _unit(arguments)
    check_parts(name, arguments.parts)
    scheme = scheme_of(arguments, anything=name == "userldp" and unit != "item")
    if name in CENTRAL and scheme != "poisson_items":
        said = arguments.sampling
        remedy = "say --q or --batch" if said is None else f"leave out --sampling {said}"
        raise UsageError(f"{name} samples items: {remedy}")
    if name in CENTRAL and arguments.view == "updates":
        raise UsageError(f"{name} releases the average only: --view updates contradicts it")
    _check_extras(arguments, name, unit, scheme)
    inputs.refuse_both(arguments, "items_per_subject", ("cap_data",))
    stats = inputs.read_table(arguments)
    step_cap = arguments.cap if scheme == "poisson_subjects" and name != "groupdp" else None
    needs_k = _needs_k(name, unit, scheme, arguments.cap)
    holders = holders_of(arguments, stats, scheme, step_cap, needs_k=needs_k)
    inputs.warn_of_delta(arguments, unit, stats)
    most, source = _most_silos(arguments, stats, len(holders))
    if name in CENTRAL and len(holders) == 1 and arguments.silos is None:
        raise UsageError(f"{name} needs --silos S (or --silo-column NAME): how many silos sum up")
    return Question(
        algorithm=name,
        unit=unit,
        holders=tuple(holders),
        delta=arguments.delta,
        cap=arguments.cap,
        elements=arguments.elements,
        items_per_element=arguments.items_per_element,
        parts=arguments.parts,
        most_silos=most,
        view=arguments.view or ("average" if name in CENTRAL else "updates"),
        engine=arguments.engine or "pld",
        stats=stats,
        m_source=source,
    )


def _unit(arguments: argparse.Namespace) -> str:
    allowed = _UNITS.get(arguments.algorithm, ("subject", "item"))
    unit = arguments.unit or allowed[0]
    if unit not in allowed:
        raise UsageError(
            f"{arguments.algorithm} promises nothing to one {unit}: choose --unit "
            f"{' or '.join(allowed)}"
        )
    return unit


def _check_extras(arguments: argparse.Namespace, name: str, unit: str, scheme: str) -> None:
    for option in ("silos", "silos_per_subject", "cap", *_OF_ELEMENTS):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise UsageError(f"{inputs.flag(option)} is {value}: it must be at least 1")
    if name in CLIP_ELEMENTS:
        _check_elements(arguments, name, unit, scheme)
    for option in () if name in CLIP_ELEMENTS else _OF_ELEMENTS:
        if getattr(arguments, option) is not None:
            raise UsageError(f"{inputs.flag(option)} is for elementdp, not for {name}")
    capped = name in ("groupdp", "centralgroup") or scheme == "poisson_subjects"
    if arguments.cap is not None and (not capped or name in CLIP_ELEMENTS):
        raise UsageError(
            f"--cap has no meaning for {name} here: it is for groupdp, for centralgroup, or where "
            f"subjects are sampled{inputs.or_cap_data(arguments)}"
        )


def _check_elements(arguments: argparse.Namespace, name: str, unit: str, scheme: str) -> None:
    if unit == "subject" and arguments.elements is None:
        raise UsageError("--elements M is missing: a subject's promise follows from their elements")
    if unit != "subject" and arguments.cap_data is not None:
        raise UsageError(
            "--cap-data and the promise to one element contradict each other: a cap on a person's rows "
            "lets one element displace rows of the others; --items-per-element K is a cap that keeps it"
        )
    if arguments.elements_in_all is not None and scheme != "poisson_elements":
        raise UsageError("--elements-in-all needs --expected-elements: it counts what is sampled")
    if scheme == "poisson_items":
        bounds = (arguments.items_per_element, arguments.items_per_subject, arguments.cap_data)
        if arguments.ids is None and not any(bounds):
            raise UsageError(
                "--items-per-element K is missing: an element is in a batch when any of its rows is, so "
                "the promise depends on how many it has"
            )
    elif arguments.items_per_element is not None:
        raise UsageError(
            f"--items-per-element has no meaning for {name} here: it is for sampled items (--q, --batch)"
        )


def _needs_k(name: str, unit: str, scheme: str, cap: int | None) -> bool:
    """Whether the promise depends on k, so that a missing k is an error and not a 1."""
    if name in CENTRAL:
        return True
    if name in CLIP_ELEMENTS or scheme == "any" or unit == "silo":
        return False
    if scheme == "poisson_subjects":
        return name in ("itemdp", "groupdp") or cap is not None
    if unit == "item":
        return name == "subjectdp" or cap is not None
    return name != "userldp" or scheme in ("fixed_size", "shuffle")


def _most_silos(
    arguments: argparse.Namespace, stats: SubjectStats | SiloStats | None, silos: int
) -> tuple[int | None, str | None]:
    if isinstance(stats, SiloStats):
        return inputs.silos_per_subject(arguments, stats)
    if arguments.silos is None:
        for option in ("silos_per_subject", "view"):
            if getattr(arguments, option) is not None:
                raise UsageError(f"{inputs.flag(option)} needs --silos S or --silo-column NAME")
        return None, None
    most = arguments.silos_per_subject
    if most is not None and most > silos:
        raise UsageError(f"--silos-per-subject is {most}, above --silos {silos}")
    return most or silos, None


def lengths_of(arguments: argparse.Namespace, question: Question) -> list[tuple[int, int]]:
    """(steps a round, rounds) of every holder, from the options on the length."""
    inputs.refuse_both(arguments, "steps", ("epochs", "rounds", "steps_per_round"))
    inputs.refuse_both(arguments, "epochs", ("rounds", "steps_per_round"))
    for name in ("steps", "epochs", "rounds", "steps_per_round"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value <= 2**53:
            raise UsageError(f"{inputs.flag(name)} is {value:g}: it must be above 0, at most 2**53")
    holders = question.holders
    if arguments.steps is not None:
        return [(arguments.steps, 1)] * len(holders)
    if arguments.epochs is not None:
        _check_epochs(question)
        return [
            epochs_in_rounds(arguments.epochs, holder.facts.steps_per_epoch) for holder in holders
        ]
    if arguments.rounds is None:
        raise UsageError("the length is missing: say --steps, --epochs, or --rounds")
    return [(steps, arguments.rounds) for steps in steps_per_round(arguments, question)]


def epochs_in_rounds(epochs: float, steps: int) -> tuple[int, int]:
    """(steps a round, rounds): an epoch a round, or one long round for broken numbers."""
    if epochs == int(epochs):
        return steps, int(epochs)
    return max(1, math.ceil(epochs * steps - 1e-9)), 1


def _check_epochs(question: Question) -> None:
    if not question.holders[0].sampled:
        raise UsageError("without a sampling an epoch has no length: say --steps, or --batch too")


def steps_per_round(arguments: argparse.Namespace, question: Question) -> list[int]:
    """Local steps a round of every holder: --steps-per-round, or 1."""
    steps = 1 if arguments.steps_per_round is None else arguments.steps_per_round
    return [steps] * len(question.holders)
