# SPDX-License-Identifier: Apache-2.0
"""From one event to the canonical mechanism that both engines understand.

The only place that knows the event classes. Knows `mechanisms`, `foreign` and `event_types`.

What neighbouring data are (`NeighboringRelation`) matters for dp_accounting's own events, which
leave it open: their noise is relative to one unit's largest contribution C, so that replacing a
unit moves a sum by 2 C. (dp_accounting's own RDP accountant forgets that factor: 4.73 instead of
10.0 for noise 1 at delta 1e-5, and likewise without replacement.) REPLACE_SPECIAL, a unit set to
zero, moves it by C, as adding or removing does. SampledWithoutReplacementDpEvent means replacing, 2 C,
under every relation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation, dp_event
from scipy import stats

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.engine import foreign, foreign_events
from tf_subjectdp.accounting.engine.foreign_events import NotPrivate, move_of, noise_of
from tf_subjectdp.accounting.engine.mechanisms import (
    Atoms,
    FixedSize,
    Gaussian,
    Known,
    Mechanism,
    Mixture,
    ReplaceOne,
    Revealed,
    make_mixture,
    make_revealed,
)
from tf_subjectdp.accounting.event_types import (
    FixedSizeReplaceOneDpEvent,
    PoissonReplaceOneDpEvent,
    RevealedSensitivityDpEvent,
)

_WITHOUT_REPLACEMENT = (FixedSizeReplaceOneDpEvent, dp_accounting.SampledWithoutReplacementDpEvent)
_INF = math.inf
# Of a product of more factors than this, the rest are taken as small as the smallest.
_MOST_FACTORS = 10**6
_REPLACE = NeighboringRelation.REPLACE_ONE


class UnknownEventError(ValueError):
    """The event is of a kind that this accountant does not know."""


def canonical(event: dp_accounting.DpEvent, relation: NeighboringRelation) -> Mechanism | None:
    """The mechanism of a single event; None if it releases nothing.

    Args:
      event: an event of this package, or dp_accounting's NoOp, NonPrivate, Gaussian, Laplace,
        DiscreteLaplace, RandomizedResponse, PoissonSampled, SampledWithoutReplacement,
        MixtureOfGaussians, TruncatedSubsampledGaussian, SingleEpochTreeAggregation or ZCDp.
      relation: what neighbouring data are.

    Raises:
      UnknownEventError: another kind of event.
      ValueError, TypeError: a parameter out of range, or an event that means nothing under
        `relation`.
      NotPrivate: an event without noise.
    """
    for kind, convert in _CONVERTERS:
        if isinstance(event, kind):
            return convert(event, relation)
    known = ", ".join(sorted(kind.__name__ for kind, _ in _CONVERTERS))
    raise UnknownEventError(
        f"this accountant does not know the event {event!r} of type {type(event).__name__}; known "
        f"are {known}, SelfComposedDpEvent and ComposedDpEvent."
    )


def _effective_gaussian(event: Any) -> float | None:
    """1/sigma^2 of Gaussians that all see the same batch, hence are one; None if others are in."""
    if isinstance(event, dp_accounting.NoOpDpEvent):
        return 0.0
    if isinstance(event, dp_accounting.NonPrivateDpEvent):
        raise NotPrivate
    if isinstance(event, dp_accounting.GaussianDpEvent):
        return noise_of(event, event.noise_multiplier) ** -2
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        count = _checks.integer("count", event.count, 0)
        if count == 0:
            return 0.0
        inner = _effective_gaussian(event.event)
        return None if inner is None else count * inner
    if isinstance(event, dp_accounting.ComposedDpEvent):
        parts = [_effective_gaussian(part) for part in event.events]
        return None if None in parts else math.fsum(parts)
    return None


def _gaussian(event: dp_accounting.GaussianDpEvent, relation: NeighboringRelation):
    sigma = noise_of(event, event.noise_multiplier)
    return None if sigma == _INF else Gaussian(move_of(relation) / sigma)


def _poisson(event: dp_accounting.PoissonSampledDpEvent, relation: NeighboringRelation):
    rate = _checks.probability("sampling_probability", event.sampling_probability)
    if rate == 0.0:
        return None
    precision = _effective_gaussian(event.event)
    if precision == 0.0:
        return None
    if precision is not None:
        return _sampled_gaussian(rate, math.sqrt(precision), relation)
    inner = _single(event.event)
    if isinstance(inner, (PoissonReplaceOneDpEvent, RevealedSensitivityDpEvent)):
        return _sampled_pair(inner, rate, relation)
    if isinstance(inner, _WITHOUT_REPLACEMENT):
        raise ValueError(
            f"nothing is proven about Poisson sampling of {type(inner).__name__}, which draws its "
            f"batch itself; state the sampled step as one event."
        )
    mechanism = canonical(inner, relation)
    return mechanism if mechanism is None or rate == 1.0 else _sampled(mechanism, rate, relation)


def _single(event: Any) -> Any:
    """The one event in compositions of one; two unlike ones on one batch are no mechanism here."""
    while isinstance(event, (dp_accounting.ComposedDpEvent, dp_accounting.SelfComposedDpEvent)):
        if isinstance(event, dp_accounting.SelfComposedDpEvent):
            parts = [event.event] * min(_checks.integer("count", event.count, 0), 2)
        else:
            parts = list(event.events)
        if len(parts) != 1:
            raise ValueError(
                f"PoissonSampledDpEvent may contain several Gaussian events, or one event of another "
                f"kind, got {event!r}; state what runs on one sample as one event."
            )
        event = parts[0]
    return event


def _sampled_gaussian(rate: float, mu: float, relation: NeighboringRelation) -> Mechanism | None:
    if relation is not _REPLACE:
        return make_mixture((0.0, mu), (1.0 - rate, rate))
    return Gaussian(2.0 * mu) if rate == 1.0 else ReplaceOne(rate, mu)


def _sampled_pair(event: Any, rate: float, relation: NeighboringRelation) -> Mechanism | None:
    """An event that states its own pair keeps it: never becomes "add or remove" by being sampled."""
    if isinstance(event, PoissonReplaceOneDpEvent):
        p = _checks.probability("sampling_probability", event.sampling_probability)
        return canonical(PoissonReplaceOneDpEvent(rate * p, event.noise_multiplier), relation)
    chances = [rate * _checks.probability("probabilities", w) for w in event.probabilities]
    return canonical(
        RevealedSensitivityDpEvent(event.sensitivities, chances, event.noise_multiplier), relation
    )


def _sampled(mechanism: Mechanism, rate: float, relation: NeighboringRelation) -> Mechanism | None:
    """`mechanism` on a unit that takes part with probability `rate`, by a coin of its own."""
    if mechanism.pld_refusal is not None or isinstance(mechanism, Known):
        raise ValueError(
            f"nothing is proven about Poisson sampling of {type(mechanism).__name__}; state "
            f"the sampled step as one event, for instance with item_event or group_event."
        )
    if relation is not _REPLACE:
        if isinstance(mechanism, Gaussian):
            return make_mixture((0.0, mechanism.mu), (1.0 - rate, rate))
        if isinstance(mechanism, Mixture):
            # What the mixture dropped is not told apart any more: it goes to the top.
            weights = [rate * w for w in mechanism.weights]
            weights[-1] += rate * mechanism.dropped
            return make_mixture((0.0, *mechanism.locations), (1.0 - rate, *weights))
        if isinstance(mechanism, Atoms):
            return foreign.sampled(mechanism, rate)
    if isinstance(mechanism, ReplaceOne):
        return ReplaceOne(rate * mechanism.probability, mechanism.mu)
    # Joint convexity: neighbouring samples differ with probability `rate` only. Whether they do is
    # taken as known, which is a bound without amplification.
    if isinstance(mechanism, Revealed):
        return make_revealed(mechanism.mus, [rate * w for w in mechanism.probabilities])
    return Known(((rate, mechanism),))


def _mixture(event: dp_event.MixtureOfGaussiansDpEvent, relation: NeighboringRelation):
    sigma = noise_of(event, event.standard_deviation)
    sens = [_checks.sensitivity("sensitivities", c) for c in event.sensitivities]
    probs = [_checks.probability("sampling_probs", w) for w in event.sampling_probs]
    if len(sens) != len(probs) or not sens:
        raise ValueError(
            f"MixtureOfGaussiansDpEvent needs as many sensitivities as sampling_probs, at "
            f"least one; got {len(sens)} and {len(probs)}."
        )
    if abs(math.fsum(probs) - 1.0) > 1e-9:
        raise ValueError(
            f"sampling_probs of MixtureOfGaussiansDpEvent must sum to 1, "
            f"got {math.fsum(probs):.12g}."
        )
    if sigma == _INF:
        return None
    if relation is _REPLACE:
        if len(sens) == 2 and min(sens) == 0.0 and max(sens) > 0.0:
            return _sampled_gaussian(probs[sens.index(max(sens))], max(sens) / sigma, relation)
        # Replaced in place, the sampled rows have the same law in both worlds and may be known.
        return make_revealed([2.0 * c / sigma for c in sens], probs)
    return make_mixture([c / sigma for c in sens], probs)


def _replace_one(event: PoissonReplaceOneDpEvent, relation: NeighboringRelation):
    p = _checks.probability("sampling_probability", event.sampling_probability)
    sigma = noise_of(event, event.noise_multiplier)
    if p == 0.0 or sigma == _INF:
        return None
    return _sampled_gaussian(p, 1.0 / sigma, _REPLACE)


def _revealed(event: RevealedSensitivityDpEvent, relation: NeighboringRelation):
    sigma = noise_of(event, event.noise_multiplier)
    if sigma == _INF:
        return None
    return make_revealed([c / sigma for c in event.sensitivities], list(event.probabilities))


def _fixed_size(event: FixedSizeReplaceOneDpEvent, relation: NeighboringRelation):
    sigma = noise_of(event, event.noise_multiplier)
    precision = 0.0 if sigma == _INF else 1.0 / sigma
    return _without_replacement(event.population, event.batch_size, precision, event.rows)


def _sampled_without_replacement(
    event: dp_accounting.SampledWithoutReplacementDpEvent, relation: NeighboringRelation
):
    precision = _effective_gaussian(event.event)
    if precision is None:
        raise ValueError(
            f"SampledWithoutReplacementDpEvent may only contain Gaussian events (or compositions of "
            f"them), got {event.event!r}."
        )
    return _without_replacement(event.source_dataset_size, event.sample_size, math.sqrt(precision))


def _without_replacement(
    population: Any, batch: Any, precision: float, rows: Any = 1
) -> Mechanism | None:
    """Replaced: 2 C, whatever the relation says, for no other is proven."""
    population = _checks.integer("population (source_dataset_size)", population, 1)
    batch = _checks.integer("batch_size (sample_size)", batch, 0)
    rows = _checks.integer("rows", rows, 1, population)
    if batch > population:
        raise ValueError(f"a batch of {batch} is larger than the population of {population}.")
    if batch == 0 or precision == 0.0:
        return None
    chance = _chance_of_any(population, batch, rows)
    return Gaussian(2.0 * precision) if chance == 1.0 else FixedSize(chance, 2.0 * precision)


def _chance_of_any(population: int, batch: int, rows: int) -> float:
    """1 - C(n - k, B) / C(n, B): that a batch of B out of n holds any of k rows, never too small."""
    if min(batch, rows) == 1:
        return max(batch, rows) / population
    if batch + rows > population:
        return 1.0
    few, many = sorted((batch, rows))
    exact = min(few, _MOST_FACTORS)
    log_none = float(np.log1p(-many / (population - np.arange(exact, dtype=np.float64))).sum())
    log_none += (few - exact) * math.log1p(-many / (population - few + 1))
    return -math.expm1(log_none)


def _truncated(event: dp_event.TruncatedSubsampledGaussianDpEvent, relation: NeighboringRelation):
    """arXiv:2508.15089: whether the batch was truncated is known; if so an item displaces another.

    As in dp_accounting, the data hold `dataset_size` items with the protected one.
    """
    size = _checks.integer("dataset_size", event.dataset_size, 0)
    batch = _checks.integer("truncated_batch_size", event.truncated_batch_size, 0)
    rate = _checks.probability("sampling_probability", event.sampling_probability)
    sigma = noise_of(event, event.noise_multiplier)
    if size == 0 or batch == 0 or rate == 0.0 or sigma == _INF:
        return None
    plain = _sampled_gaussian(rate, 1.0 / sigma, relation)
    full = float(stats.binom.sf(batch - 1, size - 1, rate))
    if full == 0.0 or plain is None:
        return plain
    kept = float(stats.binom.sf(batch, size, rate)) * batch / full / size
    displaced = _sampled_gaussian(min(1.0, kept), 2.0 / sigma, _REPLACE)
    parts = [(1.0 - full, plain), (full, displaced)]
    return Known(tuple((weight, part) for weight, part in parts if weight > 0.0))


def _nothing(event: dp_accounting.NoOpDpEvent, relation: NeighboringRelation):
    return None


def _non_private(event: dp_accounting.NonPrivateDpEvent, relation: NeighboringRelation):
    raise NotPrivate


_CONVERTERS: tuple[tuple[type, Callable[[Any, NeighboringRelation], Mechanism | None]], ...] = (
    (dp_accounting.NoOpDpEvent, _nothing),
    (dp_accounting.NonPrivateDpEvent, _non_private),
    (dp_accounting.GaussianDpEvent, _gaussian),
    (dp_accounting.PoissonSampledDpEvent, _poisson),
    (dp_event.MixtureOfGaussiansDpEvent, _mixture),
    (dp_accounting.SampledWithoutReplacementDpEvent, _sampled_without_replacement),
    (dp_event.TruncatedSubsampledGaussianDpEvent, _truncated),
    (dp_accounting.LaplaceDpEvent, foreign_events.laplace),
    (dp_event.DiscreteLaplaceDpEvent, foreign_events.discrete_laplace),
    (dp_event.RandomizedResponseDpEvent, foreign_events.randomized_response),
    (dp_accounting.SingleEpochTreeAggregationDpEvent, foreign_events.tree),
    (dp_event.ZCDpEvent, foreign_events.zcdp),
    (PoissonReplaceOneDpEvent, _replace_one),
    (RevealedSensitivityDpEvent, _revealed),
    (FixedSizeReplaceOneDpEvent, _fixed_size),
)
