# SPDX-License-Identifier: Apache-2.0
"""What a federation's releases cost a person: from a plan's constants to events and their composition.

Knows algorithms' guarantees and the accountant's horizontal composition; takes a `FederatedPlan` and does
not import it. The unit that is protected is a subject, with all items in all silos; an element of a
subject, which has items in as many silos; or one item, which lies in one silo.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np

from tf_subjectdp import accounting
from tf_subjectdp.accounting.silos.laws import noised_sum
from tf_subjectdp.plans import guarantee_of


def check_proven(plan: Any, unit: str) -> None:
    """Refuses a unit to which the plan promises nothing.

    Where the server adds the noise, silos that move ONE sum by a replaced element each are no case of the
    accountant's: it adds up distances for adding or removing a subject only.

    Raises:
      ValueError: as said; with the reason.
    """
    if unit != "subject" and plan.noise_at == "server":
        raise ValueError(
            f"unit={unit!r} with noise_at='server' is not proven: let the silos add the noise "
            "(noise_at='silo', view='updates'), or plan with unit='subject'"
            + (" and ElementDP(clip_norm, max_elements=M)." if unit == "element" else ".")
        )
    guarantees = [guarantee_of(plan.algorithm, facts, 1.0, unit) for facts in plan.facts]
    if len({guarantee.adjacency for guarantee in guarantees}) > 1:
        raise ValueError(
            "the silos' samplings make unlike promises (adding or removing a person in one, replacing "
            "their items in another), which do not compose; use one kind of sampling in all silos."
        )


def silo_event(
    plan: Any, silo: int, number: int = 0, unit: str = "subject"
) -> dp_accounting.DpEvent:
    """One step of a silo.

    Args:
      plan: the `FederatedPlan`.
      silo: number of the silo.
      number: which of the events that the guarantee names, each of which alone is a bound.
      unit: "subject", "element" (of a subject) or "item".
    """
    if plan.algorithm is None:
        return dp_accounting.NonPrivateDpEvent()
    sigma = plan.noise_multipliers[silo]
    return guarantee_of(plan.algorithm, plan.facts[silo], sigma, unit).events[number]


def round_event(plan: Any) -> dp_accounting.DpEvent:
    """Central algorithms: one round for the subject unit, whoever takes part in it."""
    events = [guarantee_of(plan.algorithm, facts, 1.0, "subject").events[0] for facts in plan.facts]
    most = min(plan.silos_per_round, plan.silos_per_subject or plan.n_silos)
    return accounting.central_event(events, plan.noise_multipliers[0], silos_per_subject=most)


def horizontal(
    plan: Any, spent: Any, number: int = 0, unit: str = "subject"
) -> accounting.HorizontalPlan:
    """What the silos release, for the accountant.

    In the averaged view every silo is taken to be in every round that was run, and each round to have no
    more noise than that of the `minimum_silos` silos that add least. This is for subjects: that the
    noises of the silos add up is proven for units that are added or removed. To an element or an item,
    which may displace another, the bound of the updates applies, of which an average is post-processing.

    An element of a subject may have items in as many silos as the subject; an item is in one, and an
    item that moves to another silo is two changes.

    With silos_per_subject = m, neighbouring data are those where all silos with data of the subject, in
    BOTH data sets, are among one set of m silos; then each of at most m silos sees a replacement, which
    is what composes. (Data replaced by data in m OTHER silos would touch 2m. In-place replacement moves
    nothing between silos, and adding or removing leaves one of the two data sets without the subject.)

    Args:
      plan: the `FederatedPlan`.
      spent: the `Spent`.
      number, unit: as in `silo_event`.

    Raises:
      ValueError: the server adds the noise, and the silos release nothing of their own.
    """
    if plan.noise_at == "server":
        raise ValueError(
            "noise_at='server': the silos release nothing of their own, and what composes are rounds; "
            "use epsilon()."
        )
    together = plan.view == "average" and unit == "subject"
    silos = [
        accounting.Silo(
            silo_event(plan, i, number, unit),
            steps_per_round=plan.local_steps,
            rounds=spent.rounds if together else spent.of_silos[i],
            weight=plan.weights[i] / plan.divisors[i],
            clip_norm=_unit_of_sensitivity(plan, i, number, unit),
            name=plan.names[i],
            noised_once=plan.local_steps == 1,
            event_of_items=_event_of_items(plan, i, number) if unit == "subject" else None,
        )
        for i in range(plan.n_silos)
    ]
    return accounting.HorizontalPlan(
        silos,
        silos_per_subject=1 if unit == "item" else plan.silos_per_subject,
        view="average" if together else "updates",
        known_noise=_uncounted_noise(plan) if together else (),
    )


def _noised_sum(plan: Any, spent: Any) -> accounting.HorizontalPlan:
    """Central algorithms, as if every silo added its share of the server's noise.

    All silos are taken to be in every round.
    """
    share = plan.noise_multipliers[0] / math.sqrt(plan.n_silos)
    shared = dataclasses.replace(
        plan, noise_at="silo", view="average", noise_multipliers=(share,) * plan.n_silos
    )
    silos = [
        accounting.Silo(
            silo_event(shared, i),
            rounds=spent.rounds,
            clip_norm=_unit_of_sensitivity(shared, i, 0),
            name=plan.names[i],
            event_of_items=_event_of_items(shared, i, 0),
        )
        for i in range(plan.n_silos)
    ]
    return accounting.HorizontalPlan(
        silos, silos_per_subject=plan.silos_per_subject, view="average"
    )


def epsilon(plan: Any, spent: Any, delta: float, unit: str = "subject") -> float:
    """epsilon of the costliest subject, element or item, from above; of a plan with an algorithm."""
    check_proven(plan, unit)
    if plan.noise_at == "server":
        return _central_epsilon(round_event(plan), spent.rounds, delta)
    return min(_local_epsilon(plan, spent, number, delta, unit) for number in numbers(plan, unit))


def of_every_subject(plan: Any, spent: Any, delta: float) -> accounting.SubjectEpsilons:
    """epsilon of every subject of the plan's stats."""
    check_proven(plan, "subject")
    if plan.noise_at == "server":
        return _noised_sum(plan, spent).per_subject_epsilon(plan.stats, delta=delta)
    number = min(numbers(plan), key=lambda n: _local_epsilon(plan, spent, n, delta, "subject"))
    return horizontal(plan, spent, number).per_subject_epsilon(plan.stats, delta=delta)


def numbers(plan: Any, unit: str = "subject") -> range:
    """The numbers of the events that every silo's guarantee names."""
    counts = [
        len(guarantee_of(plan.algorithm, facts, sigma, unit).events)
        for facts, sigma in zip(plan.facts, plan.noise_multipliers, strict=True)
    ]
    return range(min(counts))


def _unit_of_sensitivity(plan: Any, silo: int, number: int, unit: str = "subject") -> float:
    """How long one unit of the event's sensitivity is, in units of the loss's gradient.

    Not always one clip norm: `UserLDP` counts in two, sampled subjects of k items in k. The noise tells:
    its deviation is known, and the event states it in its own units.
    """
    if plan.algorithm is None:
        return 1.0
    sigma = plan.noise_multipliers[silo]
    found = noised_sum(silo_event(plan, silo, number, unit))
    if sigma == 0.0 or found is None or not found.deviation > 0.0:
        return plan.algorithm.clip_norm
    return plan.algorithm.noise_stddev(sigma) / found.deviation


def _event_of_items(plan: Any, silo: int, number: int) -> Callable | None:
    """From a subject's items in a silo to the event; None where it would be of another kind."""
    facts, sigma = plan.facts[silo], plan.noise_multipliers[silo]
    by_items = facts.scheme == "poisson_items"
    by_items |= facts.scheme == "poisson_subjects" and plan.view == "updates"
    if plan.algorithm is None or not by_items:
        return None

    def event(items: int) -> dp_accounting.DpEvent:
        fewer = dataclasses.replace(facts, max_items=items)
        return guarantee_of(plan.algorithm, fewer, sigma, "subject").events[number]

    return event


def _uncounted_noise(plan: Any) -> list[int]:
    """Averaged view: the silos whose noise may be missing, those of the most noise."""
    noise = [
        weight * sigma / divisor
        for weight, sigma, divisor in zip(
            plan.weights, plan.noise_multipliers, plan.divisors, strict=True
        )
    ]
    return np.argsort(noise, kind="stable")[plan.minimum_silos :].tolist()


@functools.lru_cache(maxsize=256)
def _central_epsilon(event: dp_accounting.DpEvent, rounds: int, delta: float) -> float:
    return accounting.epsilon(event, rounds, delta=delta)


@functools.lru_cache(maxsize=256)
def _local_epsilon(plan: Any, spent: Any, number: int, delta: float, unit: str) -> float:
    return horizontal(plan, spent, number, unit).epsilon(delta)
