# SPDX-License-Identifier: Apache-2.0
"""The law of the distance by which one subject moves a noised sum in one step, and sums of laws.

A step that adds one Gaussian noise to a sum is the mixture of Gaussians given by this law
(Choquette-Choo et al., arXiv:2310.15526). A law that is stochastically larger is worse for privacy,
so whatever is merged or cut here is moved UP.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import dp_accounting
import numpy as np

from tf_subjectdp.accounting.events import nonprivate_event

# Atoms of joint probability below this are moved to the largest value.
_NEGLIGIBLE_MASS = 1e-60
# More atoms than this are merged, upwards; unlike silos double them with each silo.
_MOST_ATOMS = 4096
# Values that differ by less than this, relative to the largest, are one value (rounding errors).
_SAME = 1e-11


@dataclasses.dataclass(frozen=True)
class Law:
    """A discrete law of a distance: `values` ascending and >= 0, `probabilities` of sum 1."""

    values: tuple[float, ...]
    probabilities: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(v * w for v, w in zip(self.values, self.probabilities, strict=True))

    def scaled(self, factor: float) -> Law:
        return Law(tuple(v * factor for v in self.values), self.probabilities)

    def survival(self, at: np.ndarray) -> np.ndarray:
        """P(value >= at), elementwise."""
        tail = np.append(np.cumsum(np.asarray(self.probabilities)[::-1])[::-1], 0.0)
        return tail[np.searchsorted(self.values, at, side="left")]


#: A law that never moves anything.
VOID = Law((0.0,), (1.0,))


@dataclasses.dataclass(frozen=True)
class NoisedSum:
    """One step that releases one noised sum: the subject's `law` and the noise's deviation.

    Both in units of the event's sensitivity; `law` is None where nothing is known about it.
    `plain` is a Gaussian without sampling, which may stand for several sums as well: n Gaussians
    are one (a shuffled epoch is stated like that).
    """

    law: Law | None
    deviation: float
    plain: bool = False


def noised_sum(event: dp_accounting.DpEvent) -> NoisedSum | None:
    """What `event` is as one noised sum, or None if it is not (or not under add-or-remove).

    Args:
      event: one step. Gaussian, Poisson-sampled Gaussian and mixture of Gaussians are noised sums;
        `NoOpDpEvent` is one that nobody moves, `NonPrivateDpEvent` one without noise. Compositions
        of one event are seen through.
    """
    if isinstance(event, dp_accounting.SelfComposedDpEvent) and event.count == 1:
        return noised_sum(event.event)
    if isinstance(event, dp_accounting.ComposedDpEvent) and len(event.events) == 1:
        return noised_sum(event.events[0])
    if type(event) is dp_accounting.NoOpDpEvent:
        return NoisedSum(VOID, 0.0)
    if type(event) is dp_accounting.NonPrivateDpEvent:
        return NoisedSum(None, 0.0)
    if type(event) is dp_accounting.GaussianDpEvent:
        return NoisedSum(Law((1.0,), (1.0,)), float(event.noise_multiplier), plain=True)
    if type(event) is dp_accounting.PoissonSampledDpEvent:
        inner = noised_sum(event.event)
        if inner is None or not inner.plain:
            return None
        p = float(event.sampling_probability)
        return NoisedSum(make_law([0.0, 1.0], [1.0 - p, p]), inner.deviation)
    if type(event) is dp_accounting.dp_event.MixtureOfGaussiansDpEvent:
        return NoisedSum(
            make_law(event.sensitivities, event.sampling_probs), float(event.standard_deviation)
        )
    return None


def mixture_event(law: Law, deviation: float) -> dp_accounting.DpEvent:
    """The event of a sum moved according to `law`, with noise of this deviation (same units)."""
    if deviation == 0.0:
        return nonprivate_event()
    return dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
        deviation, law.values, law.probabilities
    )


def make_law(values: object, probabilities: object) -> Law:
    """The law with these values (merged, sorted, negligible tails moved up).

    Args:
      values: distances >= 0, shape (n,).
      probabilities: their probabilities, shape (n,), of sum 1 up to rounding.
    """
    v = np.asarray(values, dtype=np.float64)
    mass = np.asarray(probabilities, dtype=np.float64)
    order = np.argsort(v, kind="stable")
    v, mass = v[order], mass[order]
    keep = mass > 0.0
    v, mass = v[keep], mass[keep]
    top = float(v[-1])
    if top > 0.0:
        v, mass = _merge(v, mass, np.rint(v / (top * _SAME)))
    low = int(np.searchsorted(np.cumsum(mass), _NEGLIGIBLE_MASS))
    mass[low] += mass[:low].sum()
    v, mass = v[low:], mass[low:]
    upper = np.cumsum(mass[::-1])[::-1]
    high = int(np.sum(upper >= _NEGLIGIBLE_MASS))
    if high < len(v):
        v = np.append(v[:high], v[-1])
        mass = np.append(mass[:high], upper[high])
    if len(v) > _MOST_ATOMS:
        v, mass = _coarsened(v, mass)
    mass = mass / math.fsum(mass)
    return Law(tuple(map(float, v)), tuple(map(float, mass)))


def _merge(v: np.ndarray, mass: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Joins runs of equal (ascending) keys, each to its LARGEST value."""
    last = np.flatnonzero(np.append(key[1:] != key[:-1], True))
    starts = np.append(0, last[:-1] + 1)
    return v[last], np.add.reduceat(mass, starts)


def _coarsened(v: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most `_MOST_ATOMS` atoms: narrow in the value AND fine where the second moment is."""
    moment = np.cumsum(mass * v * v)
    coordinate = 0.5 * (v / v[-1] + moment / moment[-1])
    key = np.floor(coordinate * (_MOST_ATOMS - 2))
    # Absence stays absence: without it, sampling would amplify nothing.
    key[v == 0.0] = -1.0
    return _merge(v, mass, key)


@functools.lru_cache(maxsize=64)
def sum_law(laws: tuple[Law, ...]) -> Law:
    """The law of the sum of independent distances; moved up where it has too many values."""
    total = VOID
    for law in sorted(laws, key=lambda one: len(one.values)):
        values = np.add.outer(np.asarray(total.values), np.asarray(law.values))
        masses = np.multiply.outer(np.asarray(total.probabilities), np.asarray(law.probabilities))
        total = make_law(values.ravel(), masses.ravel())
    return total


def dominates(larger: Law, smaller: Law) -> bool:
    """Whether `larger` is stochastically at least `smaller`, hence at least as bad for privacy.

    Up to rounding: a relative 1e-11 of each tail's probability, and 1e-30.
    """
    points = np.union1d(larger.values, smaller.values)
    needed = smaller.survival(points) * (1.0 - 1e-11) - 1e-30
    return bool(np.all(larger.survival(points) >= needed))


def join(laws: tuple[Law, ...]) -> Law:
    """The smallest law that dominates all of `laws`."""
    return _from_survivals(laws, np.max)


def meet(laws: tuple[Law, ...]) -> Law:
    """The largest law that all of `laws` dominate: where each bounds from above, so does this."""
    return _from_survivals(laws, np.min)


def _from_survivals(laws: tuple[Law, ...], choose: Callable[..., np.ndarray]) -> Law:
    points = functools.reduce(np.union1d, [np.asarray(law.values) for law in laws])
    survival = choose([law.survival(points) for law in laws], axis=0)
    return make_law(points, np.maximum(survival - np.append(survival[1:], 0.0), 0.0))
