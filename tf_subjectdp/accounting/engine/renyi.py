# SPDX-License-Identifier: Apache-2.0
"""The RDP engine: Renyi divergences of one step at real orders, and what compositions of them prove.

Everything is said by the cumulants K(theta) = theta times the divergence of order 1 + theta, which
add up. Those of mixtures of Gaussians and of sampling without replacement are computed by
quadrature of exp(log integrand), not bounded away; the others in closed form. Conversion to
(epsilon, delta): Canonne, Kamath, Steinke, arXiv:2004.00010, Proposition 12, at an order chosen for
the composition at hand, or at the best of a fixed grid of orders, `THETA`, for very many compositions
at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, special

from tf_subjectdp.accounting.engine.discretise import log_ratio
from tf_subjectdp.accounting.engine.ledger import Ledger
from tf_subjectdp.accounting.engine.mechanisms import (
    Atoms,
    FixedSize,
    Gaussian,
    Known,
    Mechanism,
    Pair,
    ReplaceOne,
    Revealed,
    ZeroConcentrated,
)

#: Orders are at least 1 + this: closer to 1 the divergence cannot be told from rounding errors.
SMALLEST_THETA = 0.02
_LARGEST_THETA = 1e7

#: Orders 1 + THETA of the bounds of many compositions at once; they cost at most one percent.
THETA = np.geomspace(0.05, 5e4, 56)
THETA.flags.writeable = False
# A window of outcomes serves so many orders; outcomes, and outcomes times components, at most.
_ORDERS_A_WINDOW = 7
_QUICK_NODES, _QUICK_ENTRIES = 4_000, 400_000
# On the grid, mechanisms that take long are not asked beyond this order.
_LARGEST_SLOW_THETA = 500.0

_SCAN_POINTS = 2001
_MOST_ENTRIES = 3_000_000
_MOST_PANELS = 25_000
# What rounding may take from the logarithm of a sum near 1; with 1e13 steps it matters.
_ROUNDING = 4e-15
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)


def convert_epsilon(theta, total, delta):
    """epsilon at `delta` from cumulants; may be negative, where epsilon is 0.

    Args:
      theta: the order minus 1, > 0, a number or an array.
      total: theta times the divergence, >= 0; broadcasts with `theta`.
      delta: broadcasts with both; infinite epsilon where it is not positive.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        value = (total - np.log(delta) - np.log1p(theta)) / theta - np.log1p(1.0 / theta)
    return np.where(np.isnan(value), math.inf, value)


def convert_delta(theta, total, epsilon):
    """delta at `epsilon` from cumulants, as in `convert_epsilon`; in [0, 1]."""
    return np.exp(np.minimum(_log_delta(theta, total, epsilon), 0.0))


def _log_delta(theta, total, epsilon):
    return total - theta * (epsilon + np.log1p(1.0 / theta)) - np.log1p(theta)


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
    budget = delta - ledger.dropped
    if ledger.presence <= delta or not ledger.entries:
        return 0.0
    if budget <= 0.0:
        return math.inf
    return max(0.0, _minimise(ledger, lambda theta, k: float(convert_epsilon(theta, k, budget))))


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
    log_delta = _minimise(ledger, lambda theta, k: float(_log_delta(theta, k, epsilon)))
    return min(ledger.presence, math.exp(min(log_delta, 0.0)) + ledger.dropped)


def _minimise(ledger: Ledger, converted: Callable[[float, float], float]) -> float:
    """Smallest over orders of `converted`, the larger over directions."""
    both = max(sides(mechanism) for mechanism, _ in ledger.entries)
    worst = -math.inf
    for side in range(both):
        worst = max(worst, _minimise_side(ledger, converted, side, worst))
    return worst


def _minimise_side(
    ledger: Ledger, converted: Callable[[float, float], float], side: int, enough: float
) -> float:
    """Smallest over orders in one direction; anything not above `enough`, the other's, will do."""

    def value(log_theta: float) -> float:
        theta = math.exp(log_theta)
        total = sum(n * _cumulant(mechanism, side, theta) for mechanism, n in ledger.entries)
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
    if not math.isfinite(values[best]):
        return math.inf
    # Any order is valid; the search only has to come near the best.
    found = optimize.minimize_scalar(
        value,
        bounds=(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]),
        method="bounded",
        options={"xatol": 1e-3},
    )
    return min(values[best], float(found.fun))


def grid_cumulants(ledger: Ledger) -> np.ndarray:
    """Upper bounds on K of a composition at `THETA`, the larger direction of each step."""
    if ledger.nonprivate:
        return np.full(len(THETA), math.inf)
    total = np.zeros(len(THETA))
    for mechanism, count in ledger.entries:
        total += count * _on_grid(mechanism)
    return total


@functools.lru_cache(maxsize=16_384)
def _on_grid(mechanism: Mechanism) -> np.ndarray:
    result = np.full(len(THETA), math.inf)
    slow = isinstance(mechanism, (FixedSize, Known, ReplaceOne))
    asked = int(np.sum(THETA <= _LARGEST_SLOW_THETA)) if slow else len(THETA)
    for start in range(0, asked, _ORDERS_A_WINDOW):
        part = slice(start, min(start + _ORDERS_A_WINDOW, asked))
        result[part] = np.max(
            [
                cumulants(mechanism, side, THETA[part], quick=not slow)
                for side in range(sides(mechanism))
            ],
            axis=0,
        )
    result = result * (1.0 + 1e-9)
    result.flags.writeable = False
    return result


def renyi_divergence(mechanism: Mechanism, order: float) -> float:
    """Renyi divergence of one step of `mechanism`, the larger of its directions.

    Args:
      mechanism: a canonical mechanism.
      order: alpha > 1 (at least 1.02), real.

    Raises:
      ValueError: order is below 1.02, where the quotient by alpha - 1 loses its digits.
    """
    theta = order - 1.0
    if not theta >= SMALLEST_THETA * (1.0 - 1e-9):
        raise ValueError(
            f"Renyi orders must be at least {1 + SMALLEST_THETA}, got {order!r}; closer to 1 the "
            f"divergence cannot be told from rounding errors."
        )
    return max(_cumulant(mechanism, side, theta) for side in range(sides(mechanism))) / theta


def sides(mechanism: Mechanism) -> int:
    """How many directions of `mechanism` differ: 1 or 2."""
    if isinstance(mechanism, (FixedSize, Gaussian, Revealed, ZeroConcentrated)):
        return 1
    if isinstance(mechanism, Known):
        return max(sides(part) for _, part in mechanism.parts)
    return len(mechanism.directions())


def _cumulant(mechanism: Mechanism, side: int, theta: float) -> float:
    return float(cumulants(mechanism, side, np.array([theta]))[0])


def cumulants(
    mechanism: Mechanism, side: int, theta: np.ndarray, *, quick: bool = False
) -> np.ndarray:
    """K(theta) of one step in one direction, from above.

    Args:
      mechanism: a canonical mechanism.
      side: the direction, 0 or 1; of a mechanism whose directions are alike either.
      theta: orders minus 1, ascending, shape (n,); near each other, or a mixture costs much.
      quick: convexity bounds what a mixture's quadrature would take more than a millisecond for.

    Returns:
      float64 of shape (n,), >= 0.
    """
    side = min(side, sides(mechanism) - 1)
    gaussian = 0.5 * theta * (1.0 + theta)
    if isinstance(mechanism, Gaussian):
        return gaussian * mechanism.mu**2
    if isinstance(mechanism, Revealed):
        exponents = np.multiply.outer(gaussian, np.square(mechanism.mus))
        return _log_mean_exp(exponents, np.array(mechanism.probabilities))
    if isinstance(mechanism, Known):
        parts = [cumulants(part, side, theta, quick=quick) for _, part in mechanism.parts]
        weights = np.array([weight for weight, _ in mechanism.parts])
        return _log_mean_exp(np.stack(parts, axis=1), weights)
    if isinstance(mechanism, ZeroConcentrated):
        return theta * (mechanism.xi + mechanism.rho * (1.0 + theta))
    ((_, pair),) = mechanism.directions()[side]
    if isinstance(mechanism, FixedSize):
        found = np.array([_fixed_size(mechanism, float(one)) for one in theta])
    elif isinstance(mechanism, Atoms):
        exponents = np.multiply.outer(theta, pair.losses)
        found = special.logsumexp(exponents, b=np.asarray(pair.masses), axis=1)
    else:
        found = _mixture(pair, theta, quick)
    return np.maximum(found, 0.0) + _ROUNDING


def _log_mean_exp(exponents: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """log(1 - sum w + sum w exp(e)) of rows of e >= 0, shape (n, parts); exact for small e."""
    peak = exponents.max(axis=1)
    small = np.log1p(np.expm1(np.minimum(exponents, 30.0)) @ weights)
    rest = max(0.0, 1.0 - float(weights.sum()))
    scaled = np.exp(exponents - peak[:, None]) @ weights + rest * np.exp(-np.minimum(peak, 745.0))
    return np.where(peak < 30.0, small, peak + np.log(scaled))


def _fixed_size(mechanism: FixedSize, theta: float) -> float:
    """log of the mean of exp(theta * loss) of the symmetric pair.

    With losses L > 0 where x > mu/2, under Q = N(0, 1), their mirror images and the rest at 0 it is 1
    plus the integral there of exp((1 + theta) L) - exp(L) + exp(-theta L) - 1, which is
    (exp(theta L) - 1) (exp(L) - exp(-theta L)): no term is negative.
    """
    mu = mechanism.mu
    low, high = 0.5 * mu, (1.0 + theta) * mu + 14.0
    # The loss is singular pi / mu from the real line.
    panels = math.ceil((high - low) / min(0.5, 4.0 / mu))
    if panels > _MOST_PANELS:
        # Presence taken as known; log(1 / probability) is little beside so large a divergence.
        known = np.array([[0.5 * theta * (1.0 + theta) * mu**2]])
        return float(_log_mean_exp(known, np.array([mechanism.probability]))[0])
    half = 0.5 * (high - low) / panels
    centres = low + half * (2.0 * np.arange(panels) + 1.0)
    x = np.add.outer(centres, half * _NODES).ravel()
    weights = np.tile(half * _WEIGHTS, panels)
    loss, _ = log_ratio(x, (0.0, mu), (1.0 - mechanism.probability, mechanism.probability))
    with np.errstate(divide="ignore"):
        differences = np.log(-np.expm1(-theta * loss)) + np.log(-np.expm1(-(1.0 + theta) * loss))
    log_terms = (1.0 + theta) * loss + differences - 0.5 * x * x - _LOG_ROOT_2PI
    return float(np.logaddexp(0.0, special.logsumexp(log_terms, b=weights)))


def _mixture(pair: Pair, theta: np.ndarray, quick: bool) -> np.ndarray:
    """log of the integral of P^(1+theta) Q^(-theta): trapezoid rule, or a bound at extremes."""
    p_low, p_high = min(pair.p_locations), max(pair.p_locations)
    q_low, q_high = min(pair.q_locations), max(pair.q_locations)
    ends = theta[[0, -1]]
    # The integrand's logarithm is stationary where x = (1+theta) E_P[c|x] - theta E_Q[c|x].
    low = float(((1.0 + ends) * p_low - ends * q_high).min()) - 14.0
    high = float(((1.0 + ends) * p_high - ends * q_low).max()) + 14.0
    # Its second derivative is at least -1 - theta Var_Q: peaks are this wide at least. The
    # integrand's singularities in the complex plane lie pi / (distance of neighbouring locations)
    # away.
    width = 1.0 / math.sqrt(1.0 + float(ends[1]) * 0.25 * (q_high - q_low) ** 2)
    points = np.unique(np.concatenate([pair.p_locations, pair.q_locations]))
    gap = float(np.diff(points).max()) if len(points) > 1 else 0.0
    spacing = min(0.25 * width, 0.6 / gap if gap else 1.0)
    components = max(len(pair.p_locations), len(pair.q_locations))
    most = _MOST_ENTRIES // components
    if quick:
        most = min(_QUICK_NODES, _QUICK_ENTRIES // components)
    elif (high - low) / spacing > _SCAN_POINTS:
        scan_points = _SCAN_POINTS
        if len(pair.p_locations) > 1:
            # Several peaks are possible: none may fall between two points of the scan. (With a
            # single P the integrand is log-concave and the scan cannot miss its one peak.)
            scan_points = max(scan_points, math.ceil(min((high - low) / (4.0 * width), 1e9)))
        if scan_points > most:
            return _convexity_bound(pair, theta)
        scan = np.linspace(low, high, scan_points)
        step = scan[1] - scan[0]
        height = _log_integrand(pair, theta, scan)
        keep = np.flatnonzero((height > height.max(axis=1, keepdims=True) - 80.0).any(axis=0))
        low = max(low, float(scan[keep[0]]) - 2.0 * step)
        high = min(high, float(scan[keep[-1]]) + 2.0 * step)
    if (high - low) / spacing > most:
        return _convexity_bound(pair, theta)
    value = _log_integrand(pair, theta, np.arange(low, high + spacing, spacing))
    peak = value.max(axis=1)
    return peak + np.log(np.exp(value - peak[:, None]).sum(axis=1) * spacing)


def _log_integrand(pair: Pair, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    lp, _ = log_ratio(x, pair.p_locations, pair.p_weights, 1.0 - math.fsum(pair.p_weights))
    lq, _ = log_ratio(x, pair.q_locations, pair.q_weights, 1.0 - math.fsum(pair.q_weights))
    return np.multiply.outer(theta, lp - lq) + (lp - 0.5 * x * x - _LOG_ROOT_2PI)


def _convexity_bound(pair: Pair, theta: np.ndarray) -> np.ndarray:
    """Without quadrature: exp(cumulant) is jointly convex, so the mixtures' mean bounds it."""
    # Both have as many components, or one of them has one, which meets each of the other's.
    distance = np.subtract(pair.p_locations, pair.q_locations)
    weights = pair.p_weights if len(pair.p_weights) > 1 else pair.q_weights
    exponents = np.multiply.outer(0.5 * theta * (1.0 + theta), np.square(distance))
    return _log_mean_exp(exponents, np.asarray(weights))
