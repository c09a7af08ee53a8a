# SPDX-License-Identifier: Apache-2.0
"""The RDP engine: Renyi divergences at real orders, and their conversion to (epsilon, delta).

Divergences are those of `renyi`. Conversion: Canonne, Kamath, Steinke, arXiv:2004.00010,
Proposition 12. The order is optimised for the composition at hand, and kept away from 1, where the
conversion loses its digits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from tf_subjectdp.accounting.engine.ledger import Ledger
from tf_subjectdp.accounting.engine.mechanisms import Known, Mechanism, Mixture
from tf_subjectdp.accounting.engine.renyi import SMALLEST_THETA, cumulant, sides

#: Orders are 1 + theta with theta in [SMALLEST_THETA, this].
_LARGEST_THETA = 1e7
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


@functools.lru_cache(maxsize=256)
def rdp_epsilon(ledger: Ledger, delta: float) -> float:
    """An epsilon >= 0 at `delta`, from above: min over orders of the converted Renyi bound.

    Args:
      ledger: what runs.
      delta: in [0, 1).

    Returns:
      epsilon; infinite for delta = 0 unless nothing is released.
    """
    if ledger.nonprivate:
        return math.inf
    if not ledger.entries:
        return 0.0
    if ledger.presence <= delta:
        return 0.0
    budget = delta - ledger.steps * _slack(ledger)
    if budget <= 0.0:
        return math.inf

    def converted(theta: float, total: float) -> float:
        return convert_epsilon(theta, total, budget)

    return max(0.0, _minimise(ledger, converted))


@functools.lru_cache(maxsize=256)
def rdp_delta(ledger: Ledger, epsilon: float) -> float:
    """A delta at `epsilon`, from above: min over orders of the converted Renyi bound.

    Args:
      ledger: what runs.
      epsilon: finite, >= 0.
    """
    if ledger.nonprivate:
        return 1.0
    if not ledger.entries:
        return 0.0

    def converted(theta: float, total: float) -> float:
        return _log_delta(theta, total, epsilon)

    log_delta = _minimise(ledger, converted)
    bound = math.exp(min(log_delta, 0.0)) + ledger.steps * _slack(ledger)
    return min(ledger.presence, bound)


def convert_epsilon(theta: float, total: float, delta: float) -> float:
    """epsilon at `delta` from a cumulant: `total` is theta times the divergence of order 1 + theta.

    May be negative, where epsilon is 0; infinite at delta = 0.
    """
    if delta == 0.0:
        return math.inf
    return (total - math.log(delta) - math.log1p(theta)) / theta - math.log1p(1.0 / theta)


def convert_delta(theta: float, total: float, epsilon: float) -> float:
    """delta at `epsilon` from a cumulant, as in `convert_epsilon`; in [0, 1]."""
    return math.exp(min(_log_delta(theta, total, epsilon), 0.0))


def _log_delta(theta: float, total: float, epsilon: float) -> float:
    return total - theta * (epsilon + math.log1p(1.0 / theta)) - math.log1p(theta)


def _slack(ledger: Ledger) -> float:
    """Mass per step that a mixture may have dropped from its far tail (it goes into delta)."""
    return max((_dropped(mechanism) for mechanism, _ in ledger.entries), default=0.0)


def _dropped(mechanism: Mechanism) -> float:
    if isinstance(mechanism, Known):
        return max(_dropped(part) for _, part in mechanism.parts)
    return mechanism.dropped if isinstance(mechanism, Mixture) else 0.0


def _minimise(ledger: Ledger, converted: Callable[[float, float], float]) -> float:
    """Smallest over orders of `converted`, the larger over directions."""
    both = max(sides(mechanism) for mechanism, _ in ledger.entries)
    worst = -math.inf
    for side in range(both):
        worst = max(worst, _minimise_side(ledger, converted, side, worst))
    return worst


def _minimise_side(
    ledger: Ledger,
    converted: Callable[[float, float], float],
    side: int,
    enough: float,
) -> float:
    """Smallest over orders in one direction; anything not above `enough`, the other's, will do."""

    def value(log_theta: float) -> float:
        theta = math.exp(log_theta)
        total = 0.0
        for mechanism, count in ledger.entries:
            total += count * cumulant(mechanism, side, theta)
        return converted(theta, total)

    grid = np.linspace(math.log(SMALLEST_THETA), math.log(_LARGEST_THETA), 29)
    values: list[float] = []
    for point in grid:
        values.append(value(float(point)))
        best = int(np.argmin(values))
        if values[best] <= enough:
            return values[best]
        # The objective has one minimum (the cumulants are convex): no need to go far beyond it.
        if len(values) - best > 3 and math.isfinite(values[best]):
            break
    best = int(np.argmin(values))
    smallest = values[best]
    if not math.isfinite(smallest):
        return math.inf
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = value(left), value(right)
    # Any order is valid; the search only has to come near the best (here within 1e-3 of its log).
    while high - low > 1e-3:
        smallest = min(smallest, at_left, at_right)
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = value(right)
    return min(smallest, at_left, at_right)
