# SPDX-License-Identifier: Apache-2.0
"""One recursive walk over an event: a list of (canonical mechanism, how often it runs).

This is the only place that knows the event classes; both engines work on its result, so a count
that is forgotten cannot be forgotten in one engine only. Equal mechanisms are merged, Gaussians
into one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import dp_accounting

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.events import PoissonReplaceOneDpEvent, RevealedSensitivityDpEvent
from tf_subjectdp.accounting.mechanisms import (
    FixedSize,
    Gaussian,
    Mechanism,
    ReplaceOne,
    make_mixture,
    make_revealed,
)

_INF = math.inf


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
    def only_gaussian_mu(self) -> float | None:
        """mu of the one Gaussian all entries amount to (0 for none), or None if there is more."""
        if not self.entries:
            return 0.0
        mechanism = self.entries[0][0]
        return mechanism.mu if len(self.entries) == 1 and mechanism.is_gaussian else None


class _NotPrivate(Exception):
    """Raised inside the walk by an event without noise."""


def ledger(event: dp_accounting.DpEvent, steps: int) -> Ledger:
    """Decomposes `steps` runs of `event`.

    Args:
      event: any nesting of the events of `tf_subjectdp.accounting` and of dp_accounting's NoOp,
        NonPrivate, Gaussian, PoissonSampled (of Gaussians), MixtureOfGaussians,
        SampledWithoutReplacement (of Gaussians), SelfComposed and Composed.
      steps: how often it runs, >= 0.

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
            mechanism = _canonical(current)
        except _NotPrivate:
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


def _canonical(event: dp_accounting.DpEvent) -> Mechanism | None:
    """The mechanism of a single event; None if it releases nothing; raises _NotPrivate."""
    for kind, convert in _CONVERTERS:
        if isinstance(event, kind):
            return convert(event)
    raise ValueError(
        f"this accountant does not know the event {event!r} of type {type(event).__name__}; known "
        f"are the events of tf_subjectdp.accounting and, from dp_accounting, "
        f"{', '.join(sorted(kind.__name__ for kind, _ in _CONVERTERS if 'Dp' in kind.__name__))}, "
        f"SelfComposedDpEvent and ComposedDpEvent."
    )


def _noise(event: Any, value: Any) -> float:
    """Noise multiplier of `event`; infinite noise is allowed (nothing is released)."""
    if value == _INF:
        return _INF
    number = _checks.noise(f"noise of {type(event).__name__}", value)
    if number == 0.0:
        raise _NotPrivate
    return number


def _effective_gaussian(event: Any, outer: Any) -> float:
    """1/sigma^2 of Gaussians that all see the same batch, hence are one Gaussian query."""
    if isinstance(event, dp_accounting.NoOpDpEvent):
        return 0.0
    if isinstance(event, dp_accounting.NonPrivateDpEvent):
        raise _NotPrivate
    if isinstance(event, dp_accounting.GaussianDpEvent):
        return _noise(event, event.noise_multiplier) ** -2
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        count = _checks.integer("count", event.count, 0)
        return count * _effective_gaussian(event.event, outer) if count else 0.0
    if isinstance(event, dp_accounting.ComposedDpEvent):
        return math.fsum(_effective_gaussian(part, outer) for part in event.events)
    raise ValueError(
        f"{type(outer).__name__} may only contain Gaussian events (or compositions of them), got "
        f"{event!r}; state the sampled mechanism as one event, for instance with group_event."
    )


def _gaussian(event: dp_accounting.GaussianDpEvent) -> Mechanism | None:
    sigma = _noise(event, event.noise_multiplier)
    return None if sigma == _INF else Gaussian(1.0 / sigma)


def _poisson(event: dp_accounting.PoissonSampledDpEvent) -> Mechanism | None:
    rate = _checks.probability("sampling_probability", event.sampling_probability)
    if rate == 0.0:
        return None
    precision = _effective_gaussian(event.event, event)
    if precision == 0.0:
        return None
    return make_mixture((0.0, math.sqrt(precision)), (1.0 - rate, rate))


def _mixture(event: dp_accounting.dp_event.MixtureOfGaussiansDpEvent) -> Mechanism | None:
    sigma = _noise(event, event.standard_deviation)
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
    return None if sigma == _INF else make_mixture([c / sigma for c in sens], probs)


def _replace_one(event: PoissonReplaceOneDpEvent) -> Mechanism | None:
    p = _checks.probability("sampling_probability", event.sampling_probability)
    sigma = _noise(event, event.noise_multiplier)
    if p == 0.0 or sigma == _INF:
        return None
    return Gaussian(2.0 / sigma) if p == 1.0 else ReplaceOne(p, 1.0 / sigma)


def _revealed(event: RevealedSensitivityDpEvent) -> Mechanism | None:
    sigma = _noise(event, event.noise_multiplier)
    if sigma == _INF:
        return None
    return make_revealed([c / sigma for c in event.sensitivities], list(event.probabilities))


def _without_replacement(event: dp_accounting.SampledWithoutReplacementDpEvent) -> Mechanism | None:
    population = _checks.integer("source_dataset_size", event.source_dataset_size, 1)
    batch = _checks.integer("sample_size", event.sample_size, 0)
    if batch > population:
        raise ValueError(
            f"sample_size must not exceed source_dataset_size, got {batch} and {population}."
        )
    precision = _effective_gaussian(event.event, event) if batch else 0.0
    if precision == 0.0:
        return None
    if batch == population:
        return Gaussian(math.sqrt(precision))
    return FixedSize(population, batch, precision**-0.5)


def _non_private(event: dp_accounting.NonPrivateDpEvent) -> Mechanism | None:
    raise _NotPrivate


_CONVERTERS: tuple[tuple[type, Callable[[Any], Mechanism | None]], ...] = (
    (dp_accounting.NoOpDpEvent, lambda event: None),
    (dp_accounting.NonPrivateDpEvent, _non_private),
    (dp_accounting.GaussianDpEvent, _gaussian),
    (dp_accounting.PoissonSampledDpEvent, _poisson),
    (dp_accounting.dp_event.MixtureOfGaussiansDpEvent, _mixture),
    (dp_accounting.SampledWithoutReplacementDpEvent, _without_replacement),
    (PoissonReplaceOneDpEvent, _replace_one),
    (RevealedSensitivityDpEvent, _revealed),
)
