# SPDX-License-Identifier: Apache-2.0
"""From events to canonical mechanisms: a list of (mechanism, how often it runs).

This is the only place that knows the event classes, and both engines work on its result, so a count
that is forgotten cannot be forgotten in one engine only. Equal mechanisms are merged, Gaussians into
one.

What neighbouring data are (`NeighboringRelation`) matters for dp_accounting's own events, which
leave it open: their noise is relative to one unit's largest contribution C, so that replacing a
unit moves a sum by 2 C. (dp_accounting's own RDP accountant forgets that factor: 4.73 instead of
10.0 for noise 1 at delta 1e-5, and likewise without replacement.) REPLACE_SPECIAL, a unit set to
zero, moves it by C, as adding or removing does. SampledWithoutReplacementDpEvent means replacing, 2 C,
under every relation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation, dp_event
from scipy import stats

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.engine.mechanisms import (
    Atoms,
    FixedSize,
    Gaussian,
    Known,
    Mechanism,
    Mixture,
    ReplaceOne,
    Revealed,
    ZeroConcentrated,
    discrete_laplace_atoms,
    dropped,
    laplace_atoms,
    make_mixture,
    make_revealed,
    presence,
    randomized_response_atoms,
    sampled_atoms,
)
from tf_subjectdp.accounting.event_types import (
    FixedSizeReplaceOneDpEvent,
    PoissonReplaceOneDpEvent,
    RevealedSensitivityDpEvent,
)

ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
_WITHOUT_REPLACEMENT = (FixedSizeReplaceOneDpEvent, dp_accounting.SampledWithoutReplacementDpEvent)
_INF = math.inf
# Of a product of more factors than this, the rest are taken as small as the smallest.
_MOST_FACTORS = 10**6
_REPLACE = NeighboringRelation.REPLACE_ONE


@dataclasses.dataclass(frozen=True)
class Ledger:
    """What runs: `entries` of (mechanism, count >= 1), and whether anything runs unprotected."""

    entries: tuple[tuple[Mechanism, int], ...]
    nonprivate: bool

    @property
    def steps(self) -> int:
        """Number of mechanisms composed."""
        return sum(count for _, count in self.entries)

    @property
    def presence(self) -> float:
        """An upper bound on the probability that anything that is released depends on the unit.

        It bounds delta at every epsilon: sampling alone protects that much, without any noise.
        """
        if self.nonprivate:
            return 1.0
        shares = [(presence(mechanism), count) for mechanism, count in self.entries]
        if any(share >= 1.0 for share, _ in shares):
            return 1.0
        return -math.expm1(math.fsum(count * math.log1p(-share) for share, count in shares))

    @property
    def dropped(self) -> float:
        """Mass that the mixtures lack, over all steps."""
        return math.fsum(count * dropped(mechanism) for mechanism, count in self.entries)

    @property
    def only_gaussian_mu(self) -> float | None:
        """mu of the one Gaussian all entries amount to (0 for none), or None if there is more."""
        if not self.entries:
            return 0.0
        mechanism = self.entries[0][0]
        return mechanism.mu if len(self.entries) == 1 and mechanism.is_gaussian else None


def ledger(
    event: dp_accounting.DpEvent,
    steps: int,
    relation: dp_accounting.NeighboringRelation = ADD_OR_REMOVE,
) -> Ledger:
    """Decomposes `steps` runs of `event`.

    Args:
      event: any nesting of the events of `tf_subjectdp.accounting` and of dp_accounting's that
        `canonical` knows.
      steps: how often it runs, >= 0.
      relation: what neighbouring data are, for events that leave it open (`canonical`).

    Raises:
      TypeError: `event` is not a `DpEvent`, or `steps` not an integer.
      ValueError: an event is of an unknown kind or has a parameter out of range; the message names
      it.
    """
    steps = _checks.integer("steps", steps, 0)
    counts: dict[Mechanism, int] = {}
    nonprivate = False
    stack: list[tuple[Any, int]] = [(event, steps)]
    while stack:
        current, count = stack.pop()
        if not isinstance(current, dp_accounting.DpEvent):
            raise TypeError(
                f"expected a dp_accounting.DpEvent, got {current!r} of type "
                f"{type(current).__name__}; make one with item_event, group_event, ..."
            )
        if isinstance(current, dp_accounting.SelfComposedDpEvent):
            stack.append((current.event, _times(count, current.count)))
            continue
        if isinstance(current, dp_accounting.ComposedDpEvent):
            stack.extend((part, count) for part in reversed(current.events))
            continue
        try:
            mechanism = canonical(current, relation)
        except NotPrivate:
            nonprivate = nonprivate or count > 0
            continue
        if mechanism is not None and count > 0:
            counts[mechanism] = _checks.integer("steps", counts.get(mechanism, 0) + count, 0)
    return Ledger(_merge_gaussians(counts), nonprivate)


def _times(count: int, inner: Any) -> int:
    """How often a composition within a composition runs; ValueError above the largest count."""
    return _checks.integer("steps", count * _checks.integer("count", inner, 0), 0)


def _merge_gaussians(counts: dict[Mechanism, int]) -> tuple[tuple[Mechanism, int], ...]:
    """n Gaussians of mu are one of mu sqrt(n); several add in squares (exact, not a bound)."""
    squares = [m.mu**2 * n for m, n in counts.items() if isinstance(m, Gaussian)]
    others = [(m, n) for m, n in counts.items() if not isinstance(m, Gaussian)]
    # A fixed order makes the result independent of the order in which events were composed.
    others.sort(key=lambda entry: repr(entry))
    if squares:
        others.insert(0, (Gaussian(math.sqrt(math.fsum(squares))), 1))
    return tuple(others)


class UnknownEventError(ValueError):
    """The event is of a kind that this accountant does not know."""


class NotPrivate(Exception):
    """Raised by an event without noise; whoever walks over events turns it into infinity."""


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


def _noise_of(event: Any, value: Any) -> float:
    """Noise multiplier of `event`; infinite noise is allowed (nothing is released)."""
    if value == math.inf:
        return math.inf
    number = _checks.noise(f"noise of {type(event).__name__}", value)
    if number == 0.0:
        raise NotPrivate
    return number


def _move_of(relation: NeighboringRelation) -> float:
    """How far neighbouring data can move a sum, in units of C."""
    return 2.0 if relation is NeighboringRelation.REPLACE_ONE else 1.0


def _effective_gaussian(event: Any) -> float | None:
    """1/sigma^2 of Gaussians that all see the same batch, hence are one; None if others are in."""
    if isinstance(event, dp_accounting.NoOpDpEvent):
        return 0.0
    if isinstance(event, dp_accounting.NonPrivateDpEvent):
        raise NotPrivate
    if isinstance(event, dp_accounting.GaussianDpEvent):
        return _noise_of(event, event.noise_multiplier) ** -2
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
    sigma = _noise_of(event, event.noise_multiplier)
    return None if sigma == _INF else Gaussian(_move_of(relation) / sigma)


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
            return sampled_atoms(mechanism, rate)
    if isinstance(mechanism, ReplaceOne):
        return ReplaceOne(rate * mechanism.probability, mechanism.mu)
    # Joint convexity: neighbouring samples differ with probability `rate` only. Whether they do is
    # taken as known, which is a bound without amplification.
    if isinstance(mechanism, Revealed):
        return make_revealed(mechanism.mus, [rate * w for w in mechanism.probabilities])
    return Known(((rate, mechanism),))


def _mixture(event: dp_event.MixtureOfGaussiansDpEvent, relation: NeighboringRelation):
    sigma = _noise_of(event, event.standard_deviation)
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
    sigma = _noise_of(event, event.noise_multiplier)
    if p == 0.0 or sigma == _INF:
        return None
    return _sampled_gaussian(p, 1.0 / sigma, _REPLACE)


def _revealed(event: RevealedSensitivityDpEvent, relation: NeighboringRelation):
    sigma = _noise_of(event, event.noise_multiplier)
    if sigma == _INF:
        return None
    return make_revealed([c / sigma for c in event.sensitivities], list(event.probabilities))


def _fixed_size(event: FixedSizeReplaceOneDpEvent, relation: NeighboringRelation):
    sigma = _noise_of(event, event.noise_multiplier)
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
    sigma = _noise_of(event, event.noise_multiplier)
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


def _laplace(event: dp_accounting.LaplaceDpEvent, relation: NeighboringRelation):
    sigma = _noise_of(event, event.noise_multiplier)
    return None if sigma == math.inf else laplace_atoms(sigma / _move_of(relation))


def _discrete_laplace(event: dp_event.DiscreteLaplaceDpEvent, relation: NeighboringRelation):
    if event.noise_parameter == 0:
        raise NotPrivate
    parameter = _checks.noise("noise_parameter", event.noise_parameter)
    sensitivity = _checks.integer("sensitivity", event.sensitivity, 0)
    return discrete_laplace_atoms(parameter, int(_move_of(relation)) * sensitivity)


def _randomized_response(event: dp_event.RandomizedResponseDpEvent, relation: NeighboringRelation):
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise ValueError(
            "RandomizedResponseDpEvent has no meaning when a record is added or removed; make the "
            "accountant with NeighboringRelation.REPLACE_ONE or REPLACE_SPECIAL."
        )
    parameter = _checks.probability("noise_parameter", event.noise_parameter)
    buckets = _checks.integer("num_buckets", event.num_buckets, 1)
    if buckets == 1:
        return None
    if parameter == 0.0:
        raise NotPrivate
    return randomized_response_atoms(parameter, buckets)


def _tree(event: dp_accounting.SingleEpochTreeAggregationDpEvent, relation: NeighboringRelation):
    if relation is not NeighboringRelation.REPLACE_SPECIAL:
        raise ValueError(
            "SingleEpochTreeAggregationDpEvent is proven for a record set to zero only; make the "
            "accountant with NeighboringRelation.REPLACE_SPECIAL."
        )
    sigma = _noise_of(event, event.noise_multiplier)
    counts = event.step_counts
    counts = [counts] if isinstance(counts, int) else list(counts)
    longest = max((_checks.integer("step_counts", count, 0) for count in counts), default=0)
    if longest == 0:
        raise ValueError(f"step_counts must hold a positive number, got {event.step_counts!r}.")
    # A record is in one finished node of each level: as many Gaussians as the number has bits.
    return None if sigma == math.inf else Gaussian(math.sqrt(longest.bit_length()) / sigma)


def _zcdp(event: dp_event.ZCDpEvent, relation: NeighboringRelation):
    rho = _checks.sensitivity("rho", event.rho)
    xi = _checks.sensitivity("xi", event.xi)
    return ZeroConcentrated(rho, xi) if rho or xi else None


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
    (dp_accounting.LaplaceDpEvent, _laplace),
    (dp_event.DiscreteLaplaceDpEvent, _discrete_laplace),
    (dp_event.RandomizedResponseDpEvent, _randomized_response),
    (dp_accounting.SingleEpochTreeAggregationDpEvent, _tree),
    (dp_event.ZCDpEvent, _zcdp),
    (PoissonReplaceOneDpEvent, _replace_one),
    (RevealedSensitivityDpEvent, _revealed),
    (FixedSizeReplaceOneDpEvent, _fixed_size),
)
