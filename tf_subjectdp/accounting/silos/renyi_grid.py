# SPDX-License-Identifier: Apache-2.0
"""Renyi bounds of very many compositions at once: cumulants on one fixed grid of orders.

For screening subsets of silos, and for tables of subjects. Every order gives a bound, so that the
grid costs tightness (at most about one percent against the RDP engine) and never soundness.
Conversion: Canonne, Kamath, Steinke, arXiv:2004.00010, Proposition 12.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import dp_accounting
import numpy as np

from tf_subjectdp.accounting import solve
from tf_subjectdp.accounting.engine.discretise import log_ratio
from tf_subjectdp.accounting.engine.ledger import Ledger
from tf_subjectdp.accounting.engine.mechanisms import Gaussian, Mechanism, Mixture
from tf_subjectdp.accounting.engine.renyi import renyi_divergence

#: Orders are 1 + THETA.
THETA = np.geomspace(0.05, 5e4, 56)
THETA.flags.writeable = False

_BLOCKS = 8
_MOST_NODES = 4_000
_MOST_ENTRIES = 400_000
# Mechanisms without a vectorised form are not asked beyond this order.
_LARGEST_SLOW_THETA = 500.0
_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)
# What rounding may take from the logarithm of a sum near 1; it is added.
_ROUNDING = 4e-15


@dataclasses.dataclass(frozen=True)
class Question:
    """epsilon at `delta`, or delta at `epsilon`: exactly one of them is set."""

    delta: float | None = None
    epsilon: float | None = None

    def answer(self, event: dp_accounting.DpEvent, engine: str) -> float:
        """The answer for one event, by an engine."""
        if self.delta is not None:
            return solve.epsilon(event, delta=self.delta, engine=engine)
        return solve.delta(event, epsilon=self.epsilon, engine=engine)

    def bound(self, cumulants: np.ndarray, dropped: np.ndarray | float) -> np.ndarray:
        """An upper bound on the answer from cumulants.

        Args:
          cumulants: K(theta) of the compositions at `THETA`, shape (n, orders); infinite where
            unknown.
          dropped: mass that the mixtures lack (it goes into delta), shape (n,) or a number.

        Returns:
          Bounds, float64 of shape (n,).
        """
        dropped = np.broadcast_to(np.asarray(dropped, dtype=np.float64), cumulants.shape[:1])
        spread = np.log1p(1.0 / THETA)
        if self.delta is None:
            exponent = (cumulants - THETA * (self.epsilon + spread) - np.log1p(THETA)).min(axis=1)
            return np.minimum(np.exp(np.minimum(exponent, 0.0)) + dropped, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_delta = np.log(self.delta - dropped)[:, None]
        converted = (cumulants - log_delta - np.log1p(THETA)) / THETA - spread
        smallest = np.where(np.isnan(converted), math.inf, converted).min(axis=1)
        released = cumulants.max(axis=1) > 0.0
        return np.where(released, np.maximum(smallest, 0.0), 0.0)


def ledger_cumulants(ledger: Ledger) -> tuple[np.ndarray, float]:
    """K(theta) of a composition at `THETA`, shape (orders,), and the mass it lacks."""
    if ledger.nonprivate:
        return np.full(len(THETA), math.inf), 0.0
    total, dropped = np.zeros(len(THETA)), 0.0
    for mechanism, count in ledger.entries:
        total += count * cumulants(mechanism)
        dropped += count * _dropped(mechanism)
    return total, dropped


def _dropped(mechanism: Mechanism) -> float:
    """Mass per step that mixtures in `mechanism` have dropped from their far tails."""
    inner = [_dropped(part) for _, part in getattr(mechanism, "parts", ())]
    return max([getattr(mechanism, "dropped", 0.0), *inner])


@functools.lru_cache(maxsize=16_384)
def cumulants(mechanism: Mechanism) -> np.ndarray:
    """K(theta), the larger of the mechanism's directions, at `THETA`; read-only, shape (orders,).

    theta times the Renyi divergence of order 1 + theta, or an upper bound on it.
    """
    if isinstance(mechanism, Gaussian):
        result = 0.5 * THETA * (1.0 + THETA) * mechanism.mu**2
    elif isinstance(mechanism, Mixture):
        result = _mixture(np.asarray(mechanism.locations), np.asarray(mechanism.weights))
    else:
        result = np.full(len(THETA), math.inf)
        for i in np.flatnonzero(THETA <= _LARGEST_SLOW_THETA):
            result[i] = THETA[i] * renyi_divergence(mechanism, 1.0 + float(THETA[i]))
    result = result * (1.0 + 1e-9) + _ROUNDING
    result.flags.writeable = False
    return result


def _mixture(locations: np.ndarray, weights: np.ndarray) -> np.ndarray:
    result = _convexity(locations, weights)
    gap = float(np.diff(np.union1d(locations, [0.0])).max())
    low, high = float(locations.min()), float(locations.max())
    for part in np.array_split(np.arange(len(THETA)), _BLOCKS):
        theta = THETA[part]
        # As in `renyi`: where the integrands' peaks may lie, how narrow they are, and how far
        # their singularities in the complex plane. Direction "remove", then direction "add".
        width = 1.0 / math.sqrt(1.0 + 0.25 * theta[-1] * (high - low) ** 2)
        remove = ((1.0 + theta[0]) * low, (1.0 + theta[-1]) * high, 0.25)
        add = (-theta[-1] * high, -theta[0] * low, 0.25 * width)
        values = []
        for power, (first, last, spacing) in ((1.0 + theta, remove), (-theta, add)):
            spacing = min(spacing, 0.6 / gap)
            nodes = (last - first + 28.0) / spacing
            if nodes > min(_MOST_NODES, _MOST_ENTRIES / len(locations)):
                break
            x = first - 14.0 + spacing * np.arange(math.ceil(nodes) + 1)
            dropped = 1.0 - math.fsum(weights)
            log_r, _ = log_ratio(x, tuple(locations), tuple(weights), dropped)
            exponent = np.multiply.outer(power, log_r) - 0.5 * x * x - _LOG_ROOT_2PI
            peak = exponent.max(axis=1)
            total = np.exp(exponent - peak[:, None]).sum(axis=1)
            values.append(peak + np.log(total * spacing))
        if len(values) == 2:
            result[part] = np.clip(np.maximum(*values), 0.0, result[part])
    return result


def _convexity(locations: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Without quadrature: exp(K) is jointly convex, so the mean over the mixture bounds it."""
    exponent = np.multiply.outer(0.5 * THETA * (1.0 + THETA), locations**2)
    peak = exponent.max(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        small = np.log1p(np.expm1(np.minimum(exponent, 30.0)) @ weights)
    large = peak[:, 0] + np.log(np.exp(exponent - peak) @ weights)
    return np.where(peak[:, 0] < 30.0, small, large)
