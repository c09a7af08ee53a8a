# SPDX-License-Identifier: Apache-2.0
"""The RDP engine: Renyi divergences at real orders, and their conversion to (epsilon, delta).

The Renyi divergence of a mixture of Gaussians is computed by quadrature of exp(log integrand), not
bounded away; of known sensitivities in closed form; of sampling without replacement by
dp_accounting (Wang, Balle, Kasiviswanathan, arXiv:1808.00087, Theorem 27) with the replace-one
relation. Conversion: Canonne, Kamath, Steinke, arXiv:2004.00010, Proposition 12. The order is
optimised for the composition at hand, and kept away from 1, where the conversion loses its digits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import dp_accounting
import numpy as np
from scipy import special

from tf_subjectdp.accounting.discretise import log_ratio
from tf_subjectdp.accounting.ledger import Ledger
from tf_subjectdp.accounting.mechanisms import (
    FixedSize,
    Gaussian,
    Mechanism,
    Pair,
    Revealed,
)

#: Orders are 1 + theta with theta in this range.
_SMALLEST_THETA = 0.02
_LARGEST_THETA = 1e7
# dp_accounting's bound without replacement takes time proportional to the order (squared below
# 257).
_LARGEST_FIXED_SIZE_ORDER = 2048
_SCAN_POINTS = 2001
_MAX_ENTRIES = 3_000_000
_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


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
    budget = delta - ledger.steps * _slack(ledger)
    if budget <= 0.0:
        return math.inf
    log_delta = math.log(budget)

    def converted(theta: float, cumulant: float) -> float:
        return (cumulant - log_delta - math.log1p(theta)) / theta - math.log1p(1.0 / theta)

    return max(0.0, _minimise(ledger, converted))


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

    def converted(theta: float, cumulant: float) -> float:
        return cumulant - theta * (epsilon + math.log1p(1.0 / theta)) - math.log1p(theta)

    log_delta = _minimise(ledger, converted)
    return min(1.0, math.exp(min(log_delta, 0.0)) + ledger.steps * _slack(ledger))


def renyi_divergence(mechanism: Mechanism, order: float) -> float:
    """Renyi divergence of one step of `mechanism`, the larger of its directions.

    Args:
      mechanism: a canonical mechanism.
      order: alpha > 1 (at least 1.02), real.

    Raises:
      ValueError: order is below 1.02, where the quotient by alpha - 1 loses its digits.
    """
    theta = order - 1.0
    if not theta >= _SMALLEST_THETA * (1.0 - 1e-9):
        raise ValueError(
            f"Renyi orders must be at least {1 + _SMALLEST_THETA}, got {order!r}; closer to 1 the "
            f"divergence cannot be told from rounding errors."
        )
    return max(_cumulant(mechanism, d, theta) for d in _direction_numbers(mechanism)) / theta


def _slack(ledger: Ledger) -> float:
    """Mass per step that a mixture may have dropped from its far tail (it goes into delta)."""
    return max((getattr(m, "dropped", 0.0) for m, _ in ledger.entries), default=0.0)


def _direction_numbers(mechanism: Mechanism) -> tuple[int, ...]:
    if isinstance(mechanism, (FixedSize, Gaussian, Revealed)):
        return (0,)
    return tuple(range(len(mechanism.directions())))


def _minimise(ledger: Ledger, converted: Callable[[float, float], float]) -> float:
    """Smallest over orders of `converted`, the larger over directions."""
    largest = _LARGEST_THETA
    if any(isinstance(m, FixedSize) for m, _ in ledger.entries):
        largest = _LARGEST_FIXED_SIZE_ORDER - 1.0
    sides = max(len(_direction_numbers(m)) for m, _ in ledger.entries)
    return max(_minimise_side(ledger, converted, largest, side) for side in range(sides))


def _minimise_side(
    ledger: Ledger, converted: Callable[[float, float], float], largest: float, side: int
) -> float:
    def value(log_theta: float) -> float:
        theta = math.exp(log_theta)
        total = 0.0
        for mechanism, count in ledger.entries:
            direction = min(side, len(_direction_numbers(mechanism)) - 1)
            total += count * _cumulant(mechanism, direction, theta)
        return converted(theta, total)

    grid = np.linspace(math.log(_SMALLEST_THETA), math.log(largest), 29)
    values: list[float] = []
    for point in grid:
        values.append(value(float(point)))
        best = int(np.argmin(values))
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
    smallest = min(smallest, at_left, at_right)
    if any(isinstance(mechanism, FixedSize) for mechanism, _ in ledger.entries):
        # That bound is exact at integer orders only.
        order = math.floor(1.0 + math.exp(low))
        whole = [float(o) for o in range(max(order, 2), order + 3)]
        smallest = min(smallest, *(value(math.log(o - 1.0)) for o in whole))
    return smallest


def _cumulant(mechanism: Mechanism, direction: int, theta: float) -> float:
    """theta times the Renyi divergence of order 1 + theta, >= 0."""
    if isinstance(mechanism, Gaussian):
        return 0.5 * theta * (1.0 + theta) * mechanism.mu**2
    if isinstance(mechanism, Revealed):
        return _log_mean_exp(
            0.5 * theta * (1.0 + theta) * np.square(mechanism.mus),
            np.array(mechanism.probabilities),
        )
    if isinstance(mechanism, FixedSize):
        return _fixed_size(mechanism, theta)
    ((_, pair),) = mechanism.directions()[direction]
    return max(0.0, _mixture_cumulant(pair, theta))


def _log_mean_exp(exponents: np.ndarray, weights: np.ndarray) -> float:
    """log(1 - sum w + sum w exp(e)) for e >= 0, exact for small e."""
    peak = float(exponents.max())
    if peak < 30.0:
        return float(np.log1p(weights @ np.expm1(exponents)))
    rest = max(0.0, 1.0 - float(weights.sum()))
    scaled = weights @ np.exp(exponents - peak) + rest * math.exp(-min(peak, 745.0))
    return peak + math.log(float(scaled))


def _fixed_size(mechanism: FixedSize, theta: float) -> float:
    """Between integer orders the cumulant is bounded by its chord (it is convex)."""
    order = 1.0 + theta
    below = math.floor(order)
    share = order - below
    lower = _fixed_size_at(mechanism, below)
    if share < 1e-12:
        return lower
    return (1.0 - share) * lower + share * _fixed_size_at(mechanism, below + 1)


@functools.lru_cache(maxsize=4096)
def _fixed_size_at(mechanism: FixedSize, order: int) -> float:
    if order == 1:
        return 0.0
    accountant = dp_accounting.rdp.RdpAccountant(
        [float(order)], dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    accountant.compose(
        dp_accounting.SampledWithoutReplacementDpEvent(
            mechanism.population,
            mechanism.batch_size,
            # More noise than this is counted as this much: its logarithms would cancel.
            dp_accounting.GaussianDpEvent(min(mechanism.noise_multiplier, 1e6)),
        )
    )
    # The accountant only tells epsilon(delta): its conversion is undone. delta is so small that the
    # conversion takes its general branch, and costs about 13 digits at most.
    delta = 1e-30
    epsilon = accountant.get_epsilon(delta)
    divergence = epsilon - math.log1p(-1.0 / order) + math.log(delta * order) / (order - 1.0)
    # Never more than the Gaussian itself, which is the bound without any amplification.
    plain = order / (2.0 * mechanism.noise_multiplier**2)
    return (order - 1.0) * min(max(divergence, 0.0) + 1e-13, plain)


def _mixture_cumulant(pair: Pair, theta: float) -> float:
    """log of the integral of P^(1+theta) Q^(-theta): trapezoid rule, or a bound at extremes."""
    p_low, p_high = min(pair.p_locations), max(pair.p_locations)
    q_low, q_high = min(pair.q_locations), max(pair.q_locations)
    # The integrand's logarithm is stationary where x = (1+theta) E_P[c|x] - theta E_Q[c|x].
    low = (1.0 + theta) * p_low - theta * q_high - 14.0
    high = (1.0 + theta) * p_high - theta * q_low + 14.0
    # Its second derivative is at least -1 - theta Var_Q: peaks are this wide at least. The
    # integrand's singularities in the complex plane lie pi / (distance of neighbouring locations)
    # away.
    width = 1.0 / math.sqrt(1.0 + theta * 0.25 * (q_high - q_low) ** 2)
    points = np.unique(np.concatenate([pair.p_locations, pair.q_locations]))
    gap = float(np.diff(points).max()) if len(points) > 1 else 0.0
    spacing = min(0.25 * width, 0.6 / gap if gap else 1.0)
    scan_points = _SCAN_POINTS
    if len(pair.p_locations) > 1:
        # Several peaks are possible: none may fall between two points of the scan. (With a single P
        # the integrand is log-concave and the scan cannot miss its one peak.)
        scan_points = max(scan_points, math.ceil(min((high - low) / (4.0 * width), 1e9)))
    most = _MAX_ENTRIES // max(len(pair.p_locations), len(pair.q_locations))
    if scan_points > most:
        return _convexity_bound(pair, theta)
    scan = np.linspace(low, high, scan_points)
    step = scan[1] - scan[0]
    height = _log_integrand(pair, theta, scan)
    keep = np.flatnonzero(height > height.max() - 80.0)
    low = max(low, float(scan[keep[0]]) - 2.0 * step)
    high = min(high, float(scan[keep[-1]]) + 2.0 * step)
    if (high - low) / spacing > most:
        return _convexity_bound(pair, theta)
    x = np.arange(low, high + spacing, spacing)
    value = _log_integrand(pair, theta, x)
    return float(special.logsumexp(value)) + math.log(spacing)


def _log_integrand(pair: Pair, theta: float, x: np.ndarray) -> np.ndarray:
    lp, _ = log_ratio(x, pair.p_locations, pair.p_weights, 1.0 - math.fsum(pair.p_weights))
    lq, _ = log_ratio(x, pair.q_locations, pair.q_weights, 1.0 - math.fsum(pair.q_weights))
    return (1.0 + theta) * lp - theta * lq - 0.5 * x * x - _LOG_ROOT_2PI


def _convexity_bound(pair: Pair, theta: float) -> float:
    """Without quadrature: exp(cumulant) is jointly convex, so the mixtures' mean bounds it."""
    if len(pair.p_weights) == len(pair.q_weights):
        distance = np.subtract(pair.p_locations, pair.q_locations)
        weights = np.asarray(pair.p_weights)
    elif len(pair.q_weights) == 1:
        distance = np.subtract(pair.p_locations, pair.q_locations[0])
        weights = np.asarray(pair.p_weights)
    else:
        distance = np.subtract(pair.p_locations[0], pair.q_locations)
        weights = np.asarray(pair.q_weights)
    return _log_mean_exp(0.5 * theta * (1.0 + theta) * np.square(distance), weights)
