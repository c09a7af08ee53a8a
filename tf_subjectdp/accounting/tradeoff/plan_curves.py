# SPDX-License-Identifier: Apache-2.0
"""Curves of batch and mixed clipping for a plan's own numbers, against adversary A1.

`batch_clipping` follows the paper: N = M m s, a rate of 1/M, parts of s places. Here the rate, the
number of items and the size of a batch are whatever a plan has, the last batch of an epoch may be
smaller, and every item joins one of m parts independently, as the library draws. The adversary
knows where a unit's items went; if they hit u of a step's parts, the step is a Gaussian of u /
sigma (`noise_multiplier` is sigma = sd / (2 C)), and all of them are one of sqrt(c) / sigma, c = sum
of u^2. Each curve is the mixture over a law of c that is exact, or never smaller than the exact one:
delta_Gauss(eps; sqrt(c)/sigma) grows with c, so such a law is sound. Knows `part_laws` and
`occupancy`.
"""

from __future__ import annotations

import math

import numpy as np

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.clipped_parts import checked_batches, checked_sampling
from tf_subjectdp.accounting.engine.binomial import binomial_window
from tf_subjectdp.accounting.tradeoff import occupancy, part_laws
from tf_subjectdp.accounting.tradeoff.batch_clipping import ADVERSARY_A1
from tf_subjectdp.accounting.tradeoff.gaussians import RevealedGaussians

_NEGLIGIBLE = 1e-40
# A law of the sum of squares holds at most so many values; beyond, they are rounded up.
_MOST_VALUES = 16_384


def sampled_parts_curve(
    *, q: float, k: int, parts: int, steps: int, noise_multiplier: float
) -> RevealedGaussians:
    """Poisson-sampled items: c = sum over the steps of u^2, u as in `mixed_clipping_event`.

    Against A1, so without amplification; the unit's k items are replaced in place, added or removed.
    parts = 1 is exact (c is binomial). Otherwise values of c are rounded up where there are more
    than some 16,000: by less than 1e-3 of c for up to 64 parts. Above 100,000 items the parts hit
    are bounded by min(Binomial(k, q), parts).

    Args:
      q: probability that one item is in the batch, in [0, 1].
      k: largest number of items of the unit, in [1, 1e9].
      parts: m, clipped results in a step, >= 1.
      steps: number of steps, >= 1.
      noise_multiplier: sigma = noise standard deviation divided by 2 C, > 0.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    q, k, parts = checked_sampling(q, k, parts)
    return _curve(
        _folded(*part_laws.parts_of_sampled(parts, k, q), _steps(steps)), noise_multiplier
    )


def fixed_size_parts_curve(
    *, n_items: int, batch_size: int, k: int, parts: int, steps: int, noise_multiplier: float
) -> RevealedGaussians:
    """Batches of fixed size, each drawn afresh without replacement; k items replaced in place.

    c = sum over the steps of u^2, u as in `mixed_clipping_fixed_size_event`; rounding and large k
    as in `sampled_parts_curve`.

    Args:
      n_items: items in the data, >= 1.
      batch_size: items in a batch, 1 <= batch_size <= n_items.
      k: largest number of items of the unit, 1 <= k <= n_items, k <= 1e9.
      parts: m, clipped results in a step, >= 1.
      steps: number of steps, >= 1.
      noise_multiplier: sigma = noise standard deviation divided by 2 C, > 0.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    n_items, batch_size, k, parts = checked_batches(n_items, batch_size, k, parts)
    law = part_laws.parts_of_batch(parts, k, n_items, batch_size)
    return _curve(_folded(*law, _steps(steps)), noise_multiplier)


def shuffled_parts_curve(
    *, n_items: int, batch_size: int, k: int, parts: int, epochs: int, noise_multiplier: float
) -> RevealedGaussians:
    """Shuffled epochs, the last batch of each smaller if it must be; k items replaced in place.

    c = sum over all epochs' batches of u^2. One item, k = 1, is hit once an epoch: G_(sqrt(E)/sigma).
    Batch clipping (parts = 1) has the exact law of the batches hit; mixed clipping has the exact law
    up to some 40 items, and beyond a law by Chernoff's bound (`part_laws.epoch_tail`), never smaller
    (epsilon some 8 % above at 40 items, a few percent where c is large). Never above
    G_(sqrt(w)/sigma), w = E times the largest possible sum of an epoch, which is at most min(m, k) k
    (Theorem F.1 with its correction for m > 1); that stands in where k times the batches is above
    3e8.

    Args:
      n_items: items in the data, all of them in each epoch, >= 1.
      batch_size: items in a batch, 1 <= batch_size <= n_items.
      k: largest number of items of the unit, 1 <= k <= n_items, k <= 1e9.
      parts: m, clipped results in a step, >= 1.
      epochs: E >= 1.
      noise_multiplier: sigma = noise standard deviation divided by 2 C, > 0.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    n_items, batch_size, k, parts = checked_batches(n_items, batch_size, k, parts)
    epochs = _checks.integer("epochs", epochs, 1)
    if k == 1:
        return _curve((np.array([epochs]), np.ones(1), 0.0), noise_multiplier)
    if parts == 1:
        epoch = part_laws.batches_hit(n_items, batch_size, k)
        if epoch is None:
            worst = part_laws.worst_epoch(1, n_items, batch_size, k)
            return _curve((np.array([float(worst) * epochs]), np.ones(1), 0.0), noise_multiplier)
    else:
        epoch = part_laws.parts_of_epoch(parts, n_items, batch_size, k)
        if epoch is None:
            bound = part_laws.epoch_tail(parts, n_items, batch_size, k, epochs, _NEGLIGIBLE)
            return _curve(bound, noise_multiplier)
    return _curve(_fold(np.arange(len(epoch)), epoch, epochs), noise_multiplier)


def _steps(steps: int) -> int:
    return _checks.integer("steps", steps, 1)


def _folded(u: np.ndarray, masses: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray, float]:
    """The law of the sum of u^2 over the steps: values, masses, mass cut above."""
    if len(u) == 1:
        return np.array([float(u[0]) ** 2 * steps]), np.ones(1), 0.0
    if len(u) == 2 and u[0] == 0:
        rate = float(masses[1])
        if 0.0 < rate < 1.0:
            low, law = binomial_window(steps, rate, _NEGLIGIBLE)
            hits = low + np.arange(len(law))
            cut = 0.0 if hits[-1] == steps else _NEGLIGIBLE
            return hits * float(u[1]) ** 2, law * (1.0 - cut), cut
    return _fold(u.astype(np.int64) ** 2, masses, steps)


def _fold(
    values: np.ndarray, masses: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """The law of the sum of `count` draws from integer values >= 0 (increasing)."""
    base = _Grid.of(values, masses)
    result: _Grid | None = None
    while True:
        if count & 1:
            result = base if result is None else result.plus(base)
        count >>= 1
        if not count:
            break
        base = base.plus(base)
    used = result.law > 0.0
    kept = (result.first + result.step * np.arange(len(result.law), dtype=np.float64))[used]
    law = result.law[used]
    return kept, law * ((1.0 - result.dropped) / law.sum()), result.dropped


class _Grid:
    """A law on first, first + step, ...: rounded up to a coarser grid when it grows too long."""

    def __init__(self, law: np.ndarray, first: int, step: int, dropped: float) -> None:
        law, skipped, self.dropped = occupancy.trim(law, 0, dropped)
        self.first, self.step, self.law = first + step * skipped, step, law
        while len(self.law) > _MOST_VALUES:
            self.law, self.step = _coarser(self.law, 2), 2 * self.step

    @classmethod
    def of(cls, values: np.ndarray, masses: np.ndarray) -> _Grid:
        upper = np.cumsum(masses[::-1])[::-1] > _NEGLIGIBLE
        dropped = float(masses[~upper].sum())
        values, masses = values[upper], masses[upper]
        span = int(values[-1] - values[0])
        step = max(1, -(-span // (_MOST_VALUES - 1)))
        index = -(-(values - values[0]) // step)
        law = np.bincount(index.astype(np.int64), weights=masses)
        return cls(law, int(values[0]), step, dropped)

    def plus(self, other: _Grid) -> _Grid:
        # Steps are the first one's times powers of two, so that the coarser is a multiple.
        step = max(self.step, other.step)
        a = _coarser(self.law, step // self.step)
        b = _coarser(other.law, step // other.step)
        law = np.convolve(a, b)
        return _Grid(law, self.first + other.first, step, self.dropped + other.dropped)


def _coarser(law: np.ndarray, factor: int) -> np.ndarray:
    """Every value, counted from the first one, rounded up to a multiple of `factor`."""
    if factor == 1:
        return law
    return np.bincount(-(-np.arange(len(law)) // factor), weights=law)


def _curve(law: tuple[np.ndarray, np.ndarray, float], noise_multiplier: float) -> RevealedGaussians:
    sigma = _checks.noise("noise_multiplier", noise_multiplier)
    if sigma == 0.0:
        raise ValueError(
            "noise_multiplier must be above 0 (standard deviation of the noise over 2 C), got 0: "
            "without noise there is no curve but beta = 0."
        )
    values, masses, dropped = law
    mus = np.array([math.sqrt(c) for c in values.tolist()]) / sigma
    return RevealedGaussians(mus, masses, dropped, adversary=ADVERSARY_A1)
