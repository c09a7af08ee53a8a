# SPDX-License-Identifier: Apache-2.0
"""The Gaussian trade-off curve, and mixtures of them whose index the adversary learns."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import special

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.engine.gaussian import gaussian_epsilon
from tf_subjectdp.accounting.tradeoff.curves import ROUND_UP, Tails, TradeOff

# Entries of the largest temporary array.
_CHUNK = 1_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class RevealedGaussians(TradeOff):
    """A mixture of Gaussian curves of which the adversary learns the index.

    With probability weights[i], known to the adversary, the pair is N(mus[i], 1) against N(0, 1);
    with probability `dropped` the two are told apart for certain. f is the infimal convolution
    f(alpha) = inf{sum_i w_i G_mu_i(alpha_i): sum_i w_i alpha_i = alpha}, reached where all G_mu_i
    have one slope, and delta(eps) = sum_i w_i delta_Gauss(eps; mu_i) + dropped.

    Args:
      mus: >= 0, shape (n,).
      weights: >= 0, shape (n,); weights and dropped sum to 1.
      dropped: mass that counts as no privacy at all.

    Raises:
      ValueError: the shapes differ, a value is out of its range, or the sum is not 1 (to 1e-9).
    """

    mus: np.ndarray
    weights: np.ndarray
    dropped: float = 0.0

    def __post_init__(self) -> None:
        mus = np.asarray(self.mus, dtype=np.float64)
        weights = np.asarray(self.weights, dtype=np.float64)
        if mus.ndim != 1 or mus.shape != weights.shape or not len(mus):
            raise ValueError(
                f"mus and weights must be vectors of one length >= 1, got shapes {mus.shape} and "
                f"{weights.shape}."
            )
        for mu in (float(mus.min()), float(mus.max()), float(mus.sum())):
            _checks.sensitivity("mu", mu)
        _checks.probability("dropped", self.dropped)
        total = float(weights.sum()) + self.dropped
        if not (np.all(weights >= 0.0) and abs(total - 1.0) <= 1e-9):
            raise ValueError(
                f"weights must be >= 0 and sum to 1 with dropped={self.dropped:g}, got a sum of "
                f"{total:.12g}; normalise them."
            )
        object.__setattr__(self, "mus", mus)
        object.__setattr__(self, "weights", weights * ((1.0 - self.dropped) / weights.sum()))

    def tails(self, loss: np.ndarray) -> Tails:
        loss = np.asarray(loss, dtype=np.float64)
        flat = loss.ravel()
        result = np.empty((4, flat.size))
        rows = max(1, _CHUNK // len(self.mus))
        for start in range(0, flat.size, rows):
            part = slice(start, start + rows)
            result[:, part] = self._tails(flat[part])
        p_above, q_above, p_below, q_below = result.reshape(4, *loss.shape)
        return Tails(p_above, q_above + self.dropped, p_below + self.dropped, q_below)

    def _p_above(self, loss: np.ndarray) -> np.ndarray:
        # Only finds a slope, any of which is sound: rare components are left out.
        used = (self.mus > 0.0) & (self.weights > 1e-17)
        mu, weight = self.mus[used], self.weights[used]
        result = np.where(loss < 0.0, float(self.weights[self.mus == 0.0].sum()), 0.0)
        rows = max(1, _CHUNK // max(len(mu), 1))
        for start in range(0, loss.size, rows):
            part = slice(start, start + rows)
            result[part] += special.ndtr(-loss[part, None] / mu - mu / 2.0) @ weight
        return result

    def _tails(self, loss: np.ndarray) -> np.ndarray:
        column = loss[:, None]
        positive = self.mus > 0.0
        mu, weight = self.mus[positive], self.weights[positive]
        scaled, half = column / mu, mu / 2.0
        rest = float(self.weights[~positive].sum())
        above = np.where(loss < 0.0, rest, 0.0)
        below = rest - above
        return np.stack(
            [
                special.ndtr(-scaled - half) @ weight + above,
                special.ndtr(-scaled + half) @ weight + above,
                special.ndtr(scaled + half) @ weight + below,
                special.ndtr(scaled - half) @ weight + below,
            ]
        )

    def _delta(self, epsilon: np.ndarray) -> np.ndarray:
        column = epsilon.ravel()[:, None]
        positive = self.mus > 0.0
        mu, weight = self.mus[positive], self.weights[positive]
        first = special.log_ndtr(mu / 2.0 - column / mu)
        second = column + special.log_ndtr(-mu / 2.0 - column / mu)
        gap = np.where(first > -np.inf, np.minimum(second - first, 0.0), 0.0)
        total = (np.exp(first) * -np.expm1(gap)) @ weight
        rest = float(self.weights[~positive].sum())
        total += rest * np.maximum(-np.expm1(np.minimum(column[:, 0], 0.0)), 0.0)
        return total.reshape(epsilon.shape) * ROUND_UP + self.dropped


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianCurve(RevealedGaussians):
    """G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu); `gaussian(mu)` makes one."""

    mus: np.ndarray = dataclasses.field(init=False, repr=False)
    weights: np.ndarray = dataclasses.field(init=False, repr=False)
    dropped: float = dataclasses.field(init=False, repr=False, default=0.0)
    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", _checks.sensitivity("mu", self.mu))
        object.__setattr__(self, "mus", np.array([self.mu]))
        object.__setattr__(self, "weights", np.ones(1))

    def _beta(self, alpha: np.ndarray) -> np.ndarray:
        if self.mu == 0.0:
            return 1.0 - alpha
        return special.ndtr(-special.ndtri(alpha) - self.mu)

    def _epsilon(self, delta: np.ndarray) -> np.ndarray:
        return np.array([gaussian_epsilon(self.mu, float(d)) for d in delta])
