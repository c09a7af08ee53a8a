# SPDX-License-Identifier: Apache-2.0
"""Loss distributions of very many compositions of a few types at once.

A row says how often each type runs. The Fourier transform of a row's composed (tilted) loss is a
product of the types' transforms, of which only the lowest frequencies matter; and delta at one
epsilon is a linear function of it. So all rows are two matrix products, where the engine (`pld`)
would take a transform each. What is approximate errs upward as there: discretisation, cut tails,
wrap-around and rounding are in delta.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import fft

from tf_subjectdp.accounting.engine.composition import (
    NEGLIGIBLE_LOG,
    log_power,
    phase_of_power,
    tilt_masses,
)
from tf_subjectdp.accounting.engine.cumulants import Cumulants, Direction
from tf_subjectdp.accounting.engine.direction import WRAPPED_MASS
from tf_subjectdp.accounting.engine.discretise import discretise
from tf_subjectdp.accounting.engine.ledger import Ledger

#: Relative error in epsilon that the discretisation aims at.
TARGET_ERROR = 1e-4
_MOST_POINTS = 1 << 21
_BLOCK = 64
_ROWS = 4096
_GRID_POINTS = 120
_EPS = float(np.finfo(np.float64).eps)
_THETAS = np.geomspace(1e-3, 1e4, 141)


def can_batch(ledgers: Sequence[Ledger]) -> bool:
    """Whether every type has a loss distribution."""
    return all(
        not ledger.nonprivate and all(m.pld_refusal is None for m, _ in ledger.entries)
        for ledger in ledgers
    )


def batch_deltas(
    ledgers: Sequence[Ledger], counts: np.ndarray, epsilons: np.ndarray, delta: float
) -> np.ndarray:
    """delta of every row at every epsilon, from above.

    Args:
      ledgers: the types; see `can_batch`.
      counts: how often each type runs, float64 of shape (rows >= 1, types); no row is empty.
      epsilons: ascending, > 0 and next to each other (within a factor of four or so), shape (e,).
      delta: near which the answers are wanted accurately.

    Returns:
      float64 of shape (rows, e), at most 1.
    """
    per_type = [[(m.directions(), n) for m, n in ledger.entries] for ledger in ledgers]
    first = [tuple((d[0], n) for d, n in one) for one in per_type]
    last = [tuple((d[-1], n) for d, n in one) for one in per_type]
    result = _Side(first).deltas(counts, epsilons, delta)
    if last != first:
        result = np.maximum(result, _Side(last).deltas(counts, epsilons, delta))
    return np.minimum(result, 1.0)


@dataclasses.dataclass(frozen=True)
class _Grid:
    """Losses (first + i) * interval for i < size, and the tilt."""

    theta: float
    interval: float
    first: int
    size: int


class _Side:
    """One direction of all types."""

    def __init__(self, types: Sequence[Direction]):
        self._types = types
        self._cumulants = [Cumulants(one) for one in types]
        self._steps = np.array([sum(count for _, count in one) for one in types], dtype=np.float64)

    def deltas(self, counts: np.ndarray, epsilons: np.ndarray, delta: float) -> np.ndarray:
        grid = self._grid(counts, epsilons, delta)
        if grid is None:
            return np.ones((len(counts), len(epsilons)))
        log_modulus, phase, log_moment, log_finite = self._transforms(grid, counts)
        frequency = self._frequencies(log_modulus, counts)
        weight = np.where((frequency == 0) | (2 * frequency == grid.size), 1.0, 2.0) / grid.size
        payoff, payoff_sum = _payoff(grid, epsilons, frequency)
        payoff = np.conj(payoff) * weight
        log_modulus, phase = log_modulus[:, frequency], phase[:, frequency]
        top = (grid.first + grid.size - 1) * grid.interval
        result = np.empty((len(counts), len(epsilons)))
        for start in range(0, len(counts), _ROWS):
            rows = counts[start : start + _ROWS]
            modulus = np.exp(rows @ log_modulus)
            angle = rows @ phase
            # Re(spectrum * conj(payoff)), in real arithmetic: two products instead of four.
            total = (modulus * np.cos(angle)) @ payoff.real.T
            total -= (modulus * np.sin(angle)) @ payoff.imag.T
            moduli = modulus @ weight + 1.0 / grid.size + math.exp(NEGLIGIBLE_LOG)
            steps = rows @ self._steps
            # The payoff's two series cancel by a factor of up to 1 + theta.
            rounding = 4.0 * _EPS * (steps + math.log2(grid.size) + 1.0 + grid.theta) * moduli
            total = np.maximum(total, 0.0) + rounding[:, None] * payoff_sum
            moment = rows @ log_moment
            exponent = moment[:, None] - grid.theta * epsilons + np.log(total)
            wrapped = math.log(2.0 * WRAPPED_MASS) + moment - grid.theta * top
            extra = -np.expm1(rows @ log_finite) + np.exp(np.minimum(wrapped, 0.0))
            result[start : start + _ROWS] = np.exp(np.minimum(exponent, 0.0)) + extra[:, None]
        return result

    def _grid(self, counts: np.ndarray, epsilons: np.ndarray, delta: float) -> _Grid | None:
        """A tilt for the row that costs most, a window for all rows, an interval for the finest.

        None where the tilted loss has no spread, so that no grid makes sense.
        """
        table = np.array([one(_THETAS) for one in self._cumulants])
        log_delta = math.log(delta)
        converted = (counts @ table - log_delta - np.log1p(_THETAS)) / _THETAS - np.log1p(
            1.0 / _THETAS
        )
        dearest = int(np.argmax(converted.min(axis=1)))
        theta = float(_THETAS[int(np.argmin(converted[dearest]))])
        moments = np.array([one.mean_and_deviation(theta) for one in self._cumulants])
        variance = float(counts[dearest] @ moments[:, 1] ** 2)
        if not 0.0 < variance < math.inf:
            return None
        s = np.geomspace(1e-3, 40.0, 36) / math.sqrt(variance)
        base = np.array([one(np.array([theta]))[0] for one in self._cumulants])[:, None]
        above = np.array([one(theta + s) for one in self._cumulants]) - base
        below = np.array([one(theta - s) for one in self._cumulants]) - base
        need = -math.log(WRAPPED_MASS)
        high = float(((counts @ above + need) / s).min(axis=1).max())
        low = float((-(counts @ below + need) / s).max(axis=1).min())
        low, high = min(low, float(epsilons[0])), max(high, float(epsilons[-1]))
        scale = max(float(epsilons[0]) / (1.0 + theta), 1e-3 * variance)
        steps = float((counts @ self._steps).max())
        interval = math.sqrt(8.0 * TARGET_ERROR * scale / steps)
        interval = max(interval, (high - low) / (_MOST_POINTS - 8))
        size = fft.next_fast_len(max(math.ceil((high - low) / interval) + 8, 1024), real=True)
        return _Grid(theta, interval, math.floor(low / interval) - 2, size)

    def _transforms(
        self, grid: _Grid, counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """log modulus and phase of each type's transform; logs of its moment and finite mass."""
        n_types, half = len(self._types), grid.size // 2 + 1
        used = counts.any(axis=0)
        log_modulus, phase = np.zeros((n_types, half)), np.zeros((n_types, half))
        log_moment, log_finite = np.zeros(n_types), np.zeros(n_types)
        for i in np.flatnonzero(used):
            shift = 0
            for branches, count in self._types[i]:
                pmf = discretise(branches, grid.interval)
                tilted, moment, centre = tilt_masses(pmf, grid.theta)
                base = fft.rfft(tilted.wrapped(grid.size))
                log_modulus[i] += log_power(base, count)
                phase[i] += phase_of_power(base, count)
                log_moment[i] += count * moment
                shift += count * centre
                log_finite[i] += count * math.log1p(-pmf.infinite)
            turns = np.arange(half, dtype=np.int64) * (shift % grid.size) % grid.size
            phase[i] = np.remainder(phase[i] - 2.0 * np.pi / grid.size * turns, 2.0 * np.pi)
        # A modulus of 0 to the power 0 is 1: rows without a type must not see its infinity.
        return np.maximum(log_modulus, -1e4), phase, log_moment, log_finite

    def _frequencies(self, log_modulus: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Frequencies at which some row is not negligible, by blocks."""
        half = log_modulus.shape[1]
        starts = np.arange(0, half, _BLOCK)
        largest = np.maximum.reduceat(log_modulus, starts, axis=1)
        best = np.full(len(starts), -math.inf)
        for start in range(0, len(counts), _ROWS):
            best = np.maximum(best, (counts[start : start + _ROWS] @ largest).max(axis=0))
        kept = np.repeat(best > NEGLIGIBLE_LOG, _BLOCK)[:half]
        return np.flatnonzero(kept)


def _payoff(
    grid: _Grid, epsilons: np.ndarray, frequency: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The transforms of what a tilted mass at each loss adds to delta, and its sum: per epsilon.

    exp(-theta u) - exp(-(theta + 1) u) at the losses u above epsilon: two geometric series.
    """
    start = np.floor(epsilons / grid.interval).astype(np.int64) + 1
    number = grid.first + grid.size - start
    above = start * grid.interval - epsilons
    both = np.append(0, frequency)

    def series(power: float) -> np.ndarray:
        ratio = np.expm1(-power * grid.interval - 2j * np.pi / grid.size * both)
        turns = np.multiply.outer(number, both) % grid.size
        last = np.exp(-power * grid.interval * number[:, None] - 2j * np.pi / grid.size * turns)
        return np.exp(-power * above)[:, None] * (last - 1.0) / ratio

    turns = np.multiply.outer(start % grid.size, both) % grid.size
    transforms = np.exp(-2j * np.pi / grid.size * turns)
    transforms *= series(grid.theta) - series(grid.theta + 1.0)
    return transforms[:, 1:], transforms[:, 0].real


def batch_epsilons(
    ledgers: Sequence[Ledger], counts: np.ndarray, bounds: np.ndarray, delta: float
) -> np.ndarray:
    """epsilon of every row, from above, within about 1e-3 (relative) of the true value.

    Args:
      ledgers, counts: as for `batch_deltas`.
      bounds: upper bounds on epsilon, finite and > 0, shape (rows,), at most about twice too large.
      delta: in (0, 1).

    Returns:
      float64 of shape (rows,), never above `bounds`.
    """
    result = bounds.copy()
    left = np.argsort(-bounds)
    while len(left):
        top = float(bounds[left[0]])
        # One tilt and one window serve rows of about the same epsilon.
        members = int(np.sum(bounds[left] > 0.5 * top))
        rows, left = left[:members], left[members:]
        grid = np.geomspace(0.3 * top, top, _GRID_POINTS)
        result[rows] = np.minimum(
            result[rows], _solve(batch_deltas(ledgers, counts[rows], grid, delta), grid, delta)
        )
    return result


def _solve(deltas: np.ndarray, epsilons: np.ndarray, delta: float) -> np.ndarray:
    """The smallest epsilon of each row that its deltas prove; delta is convex in exp(epsilon)."""
    deltas = np.minimum.accumulate(deltas, axis=1)
    kept = deltas <= delta
    place = np.argmax(kept, axis=1)
    rows = np.arange(len(deltas))
    before = np.maximum(place - 1, 0)
    high, low = deltas[rows, before], deltas[rows, place]
    left, step = epsilons[before], epsilons[place] - epsilons[before]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(high > low, (high - delta) / (high - low), 1.0)
    answer = left + np.log1p(np.clip(share, 0.0, 1.0) * np.expm1(step))
    answer = np.where(place == 0, epsilons[0], answer)
    return np.where(kept.any(axis=1), answer, math.inf)
