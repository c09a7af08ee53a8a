# SPDX-License-Identifier: Apache-2.0
"""Renyi divergences of one step at real orders. Knows `mechanisms`.

The divergence of a mixture of Gaussians, and of the dominating pair of sampling without replacement,
is computed by quadrature of exp(log integrand), not bounded away; of known sensitivities in closed
form.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from tf_subjectdp.accounting.engine.discretise import log_ratio
from tf_subjectdp.accounting.engine.mechanisms import (
    Atoms,
    FixedSize,
    Gaussian,
    Known,
    Mechanism,
    Pair,
    Revealed,
    ZeroConcentrated,
)

#: Orders are at least 1 + this: closer to 1 the divergence cannot be told from rounding errors.
SMALLEST_THETA = 0.02

_SCAN_POINTS = 2001
_MAX_ENTRIES = 3_000_000
_MOST_PANELS = 25_000
# What rounding may take from the logarithm of a sum near 1; with 1e13 steps it matters.
_ROUNDING = 4e-15
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)


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
    return max(cumulant(mechanism, side, theta) for side in range(sides(mechanism))) / theta


def sides(mechanism: Mechanism) -> int:
    """How many directions of `mechanism` differ: 1 or 2."""
    if isinstance(mechanism, (FixedSize, Gaussian, Revealed, ZeroConcentrated)):
        return 1
    if isinstance(mechanism, Known):
        return max(sides(part) for _, part in mechanism.parts)
    return len(mechanism.directions())


def cumulant(mechanism: Mechanism, side: int, theta: float) -> float:
    """theta times the Renyi divergence of order 1 + theta, >= 0, in one direction."""
    side = min(side, sides(mechanism) - 1)
    if isinstance(mechanism, Gaussian):
        return 0.5 * theta * (1.0 + theta) * mechanism.mu**2
    if isinstance(mechanism, Revealed):
        return _log_mean_exp(
            0.5 * theta * (1.0 + theta) * np.square(mechanism.mus),
            np.array(mechanism.probabilities),
        )
    if isinstance(mechanism, Known):
        return _log_mean_exp(
            np.array([cumulant(part, side, theta) for _, part in mechanism.parts]),
            np.array([weight for weight, _ in mechanism.parts]),
        )
    if isinstance(mechanism, FixedSize):
        return _fixed_size(mechanism, theta)
    if isinstance(mechanism, ZeroConcentrated):
        return theta * (mechanism.xi + mechanism.rho * (1.0 + theta))
    ((_, pair),) = mechanism.directions()[side]
    if isinstance(mechanism, Atoms):
        exponent = theta * np.asarray(pair.losses)
        return max(0.0, float(special.logsumexp(exponent, b=pair.masses))) + _ROUNDING
    return max(0.0, _mixture_cumulant(pair, theta)) + _ROUNDING


def _log_mean_exp(exponents: np.ndarray, weights: np.ndarray) -> float:
    """log(1 - sum w + sum w exp(e)) for e >= 0, exact for small e."""
    peak = float(exponents.max())
    if peak < 30.0:
        return float(np.log1p(weights @ np.expm1(exponents)))
    rest = max(0.0, 1.0 - float(weights.sum()))
    scaled = weights @ np.exp(exponents - peak) + rest * math.exp(-min(peak, 745.0))
    return peak + math.log(float(scaled))


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
        return _log_mean_exp(
            np.array([0.5 * theta * (1.0 + theta) * mu**2]), np.array([mechanism.probability])
        )
    half = 0.5 * (high - low) / panels
    centres = low + half * (2.0 * np.arange(panels) + 1.0)
    x = np.add.outer(centres, half * _NODES).ravel()
    weights = np.tile(half * _WEIGHTS, panels)
    loss, _ = log_ratio(x, (0.0, mu), (1.0 - mechanism.probability, mechanism.probability))
    with np.errstate(divide="ignore"):
        differences = np.log(-np.expm1(-theta * loss)) + np.log(-np.expm1(-(1.0 + theta) * loss))
    log_terms = (1.0 + theta) * loss + differences - 0.5 * x * x - _LOG_ROOT_2PI
    return float(np.logaddexp(0.0, special.logsumexp(log_terms, b=weights))) + _ROUNDING


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
