# SPDX-License-Identifier: Apache-2.0
"""Steps of the central algorithms: silos sum, and a trusted server adds noise ONCE.

The average over the silos is the only release, so what a subject does in several silos adds up
before the noise: j is a sum over ALL silos that may hold the subject.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import dp_accounting

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.events import group_event, higradavg_event
from tf_subjectdp.accounting.silos.laws import (
    Law,
    dominates,
    join,
    meet,
    mixture_event,
    noised_sum,
    sum_law,
)


def central_group_event(
    silos: Iterable[tuple[float, int]],
    noise_multiplier: float,
    max_items_per_subject: int | None = None,
    *,
    silos_per_subject: int | None = None,
) -> dp_accounting.DpEvent:
    """One step of `CentralGroupDP` (CentralSubDP) for the SUBJECT unit: a mixture of Gaussians.

    The subject's j items in the silos' batches contribute a sum of norm at most j C, and j is the
    sum over the silos of Binomial(k_i, q_i), each capped BEFORE the sum.

    Args:
      silos: pairs (q_i, k_i): the probability that one item is in silo i's batch, and the largest
        number of items of a subject there. Pass every silo of the step.
      noise_multiplier: standard deviation of the server's noise divided by C, finite, >= 0.
      max_items_per_subject: largest number of items of one subject kept in ONE silo's batch, >= 1,
        or None.
      silos_per_subject: m, a promise that nobody is in more than m of the silos, or None for all.
        Where the m worst silos are not the same for every outcome, a law that dominates every
        choice is taken, which can be loose. Exact, but without one event: a `HorizontalPlan` with
        view="average" and events of noise noise_multiplier / sqrt(number of silos).

    Returns:
      A `MixtureOfGaussiansDpEvent`; `NonPrivateDpEvent` without noise.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    events = [group_event(q, k, 1.0, max_items_per_subject) for q, k in _pairs(silos, ("q", "k"))]
    return _summed(events, noise_multiplier, silos_per_subject)


def central_higradavg_event(
    silos: Iterable[tuple[float, int]],
    noise_multiplier: float,
    *,
    silos_per_subject: int | None = None,
) -> dp_accounting.DpEvent:
    """One step of central `HiGradAvg` for the SUBJECT unit: Poisson-binomial presence.

    In each silo in which at least one of the subject's items was drawn, probability 1-(1-q_i)^k_i,
    the subject contributes a mean of norm at most C; the server sums over silos and adds noise.

    Args:
      silos: pairs (q_i, k_i) as for `central_group_event`.
      noise_multiplier: standard deviation of the server's noise divided by C, finite, >= 0.
      silos_per_subject: m, a promise that nobody is in more than m of the silos, or None for all.
        Exact: the m silos of the largest presence are the worst.

    Returns:
      A `MixtureOfGaussiansDpEvent`; `NonPrivateDpEvent` without noise.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    events = [higradavg_event(q, k, 1.0) for q, k in _pairs(silos, ("q", "k"))]
    return _summed(events, noise_multiplier, silos_per_subject)


def central_event(
    events: Iterable[dp_accounting.DpEvent],
    noise_multiplier: float,
    *,
    silos_per_subject: int | None = None,
) -> dp_accounting.DpEvent:
    """One step of any central algorithm for the SUBJECT unit, from the silos' own events.

    Args:
      events: one step of each silo as if it added noise of multiplier 1 itself: an event of
        `subject_event`, `higradavg_event`, `group_event`, ... for adding or removing a subject. An event
        in longer units than C says so by a smaller noise: `subject_event(p, 1 / 5)` moves by 5 C.
      noise_multiplier: standard deviation of the server's noise divided by C, finite, >= 0.
      silos_per_subject: as for `central_group_event`.

    Returns:
      A `MixtureOfGaussiansDpEvent`; `NonPrivateDpEvent` without noise.

    Raises:
      ValueError, TypeError: an argument is out of its range, or an event is no noised sum of a
        sampled contribution.
    """
    events = list(events)
    if not events:
        raise ValueError("events is empty; pass one event for every silo of the step.")
    laws = []
    for event in events:
        if not isinstance(event, dp_accounting.DpEvent):
            raise TypeError(f"events must be dp_accounting.DpEvents, got {event!r}.")
        found = noised_sum(event)
        if found is None or found.law is None or not found.deviation > 0.0:
            raise ValueError(
                f"{event!r} is not one noised sum; make it with noise_multiplier=1.0, by subject_event, "
                "higradavg_event or group_event."
            )
        laws.append(found.law.scaled(1.0 / found.deviation))
    return _of_laws(laws, noise_multiplier, silos_per_subject)


def _summed(
    events: Sequence[dp_accounting.DpEvent], noise_multiplier: float, most: int | None
) -> dp_accounting.DpEvent:
    laws = [noised_sum(event).law for event in events]
    return _of_laws(laws, noise_multiplier, most)


def _of_laws(
    laws: Sequence[Law], noise_multiplier: float, most: int | None
) -> dp_accounting.DpEvent:
    noise_multiplier = _checks.noise("noise_multiplier", noise_multiplier)
    laws = tuple(laws)
    if most is not None:
        most = _checks.integer("silos_per_subject", most, 1)
        if most < len(laws):
            # Nobody is in more than all silos.
            law = meet((sum_law(_worst(laws, most)), sum_law(laws)))
            return mixture_event(law, noise_multiplier)
    return mixture_event(sum_law(laws), noise_multiplier)


def _worst(laws: tuple[Law, ...], most: int) -> tuple[Law, ...]:
    """`most` laws whose sum dominates the sum of any `most` of `laws`."""
    candidates = []
    for i, law in enumerate(laws):
        better = 0
        for j, other in enumerate(laws):
            if i != j and dominates(other, law) and (j < i or not dominates(law, other)):
                better += 1
        if better < most:
            candidates.append(law)
    if len(candidates) == most:
        return tuple(candidates)
    return (join(tuple(candidates)),) * most


def _pairs(silos: Any, names: tuple[str, str]) -> list[tuple[Any, Any]]:
    if not isinstance(silos, Iterable):
        raise TypeError(f"silos must be a list of pairs ({', '.join(names)}), got {silos!r}.")
    pairs = list(silos)
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise TypeError(f"silos must be pairs ({', '.join(names)}), got {pair!r}.")
    if not pairs:
        raise ValueError("silos is empty; pass one pair (q, k) for every silo of the step.")
    return pairs
