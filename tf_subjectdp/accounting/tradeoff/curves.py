# SPDX-License-Identifier: Apache-2.0
"""Trade-off curves as objects (Dong, Roth & Su, "Gaussian differential privacy", JRSS-B 2022).

A trade-off curve f maps the false-alarm rate alpha of a test "is it data set D or D'?" to the
smallest miss rate beta that any test can reach: T(P, Q) of a pair of distributions. It is convex,
falls from f(0) <= 1 to f(1) = 0 and lies on or below 1 - alpha; the HIGHER, the more private.

Every curve here is described by one thing, the tails of the privacy loss L = log(dQ/dP) under P and
under Q. The test "accuse if L > t" gives the point (P[L > t], Q[L <= t]) of the curve, where
-exp(t) is the slope of a supporting line; a supporting line lies below a convex curve wherever t
is taken, so a value computed from an inexact t is too low, never too high.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import NamedTuple

import numpy as np

# exp(t) is finite below; a slope beyond it would matter for alpha < 1e-304 only.
_LARGEST_LOSS = 700.0
# Losses from which the search for a slope starts: dense near 0, odd in number so that 0 is one.
_START = 1e-4 * np.sinh(np.linspace(-1.0, 1.0, 1025) * np.arcsinh(_LARGEST_LOSS / 1e-4))
_START[512] = 0.0
# The value is off by the square of what they leave of t: 1e-14 or so.
_BISECTIONS = 24
_LARGEST_EPSILON = 1e9
# Relative accuracy of SciPy's normal tails, and more: epsilon is rounded up by it.
ROUND_UP = 1.0 + 1e-12


def _numbers(name: str, value: object) -> np.ndarray:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number or an array of them, got {value!r}.") from None


class Tails(NamedTuple):
    """P[L > t], Q[L > t], P[L <= t], Q[L <= t], each accurate where it is small."""

    p_above: np.ndarray
    q_above: np.ndarray
    p_below: np.ndarray
    q_below: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TradeOff(abc.ABC):
    """A trade-off curve; call it for beta, ask it for `delta` and `epsilon`.

    Attributes:
      adversary: whom the curve holds against, in words; empty for a bare curve.
      error: what has been subtracted from beta (and added to delta) for the rounding of the
        arithmetic; 0.0 for a closed form.
      resolution: by how much beta may lie below the true curve through discretisation.
    """

    adversary: str = ""
    error: float = 0.0
    resolution: float = 0.0

    @abc.abstractmethod
    def tails(self, loss: np.ndarray) -> Tails:
        """The four tails of the privacy loss at `loss`, float64 of any shape, without `error`."""

    @property
    def symmetric(self) -> bool:
        """Whether the curve is known to be its own inverse."""
        return True

    def __call__(self, alpha: float | np.ndarray) -> np.ndarray:
        """beta = f(alpha), never above the true value.

        Args:
          alpha: false-alarm rates in [0, 1], a number or an array.

        Returns:
          float64 array of alpha's shape (a NumPy scalar for a number).

        Raises:
          ValueError: an alpha lies outside of [0, 1] or is NaN.
        """
        points = _numbers("alpha", alpha)
        if not np.all((points >= 0.0) & (points <= 1.0)):
            raise ValueError(
                f"alpha must be probabilities in [0, 1], got {alpha!r}; it is the false-alarm rate "
                f"of a test."
            )
        beta = self._beta(points.ravel()).reshape(points.shape)
        return np.clip(beta - self.error, 0.0, 1.0 - points)[()]

    def delta(self, epsilon: float | np.ndarray) -> np.ndarray:
        """Smallest delta at `epsilon`: the largest 1 - f(alpha) - exp(epsilon) alpha, from above.

        Args:
          epsilon: a number or an array; negative values are allowed (the other direction).

        Returns:
          float64 of epsilon's shape, in [0, 1].

        Raises:
          ValueError: an epsilon is NaN or infinite.
        """
        points = _numbers("epsilon", epsilon)
        if not np.all(np.isfinite(points)):
            raise ValueError(f"epsilon must be finite, got {epsilon!r}.")
        return np.clip(self._delta(points) + self.error, 0.0, 1.0)[()]

    def epsilon(self, delta: float | np.ndarray) -> np.ndarray:
        """Smallest epsilon >= 0 at `delta`, from above.

        Args:
          delta: in [0, 1), a number or an array.

        Returns:
          float64 of delta's shape; infinite where no epsilon up to 1e9 will do.

        Raises:
          ValueError: a delta is out of range, or not above `error` (it is drowned by the
            arithmetic: take the accountant's `epsilon`, or a closed form).
        """
        targets = _numbers("delta", delta)
        if not np.all((targets >= 0.0) & (targets < 1.0)):
            raise ValueError(f"delta must be in [0, 1), got {delta!r}.")
        if self.error > 0.0 and np.any(targets <= self.error):
            raise ValueError(
                f"delta={float(targets.min()):g} is not above {self.error:.3g}, the rounding error "
                f"of this numerical curve; pass a larger delta, or use accounting.epsilon."
            )
        return self._epsilon(targets.ravel()).reshape(targets.shape)[()]

    def inverse(self) -> TradeOff:
        """The curve with the two hypotheses exchanged, f^-1(beta) = inf{alpha: f(alpha) <= beta}."""
        return self if self.symmetric else Inverse(self)

    def named(self, adversary: str) -> TradeOff:
        """The same curve with `adversary` written on it."""
        return dataclasses.replace(self, adversary=adversary)

    def _beta(self, alpha: np.ndarray) -> np.ndarray:
        start = self._p_above(_START)
        # p_above falls along _START: between which two does alpha lie?
        index = np.clip(len(start) - np.searchsorted(start[::-1], alpha), 1, len(start) - 1)
        low, high = _START[index - 1], _START[index]
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            too_many = self._p_above(middle) > alpha
            low, high = np.where(too_many, middle, low), np.where(too_many, high, middle)
        return np.maximum(self._line(low, alpha), self._line(high, alpha))

    def _p_above(self, loss: np.ndarray) -> np.ndarray:
        return self.tails(loss).p_above

    def _line(self, loss: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        """The supporting line of slope -exp(loss) at alpha."""
        tails = self.tails(loss)
        return tails.q_below + np.exp(loss) * (tails.p_above - alpha)

    def _delta(self, epsilon: np.ndarray) -> np.ndarray:
        tails = self.tails(epsilon)
        return np.maximum(
            tails.q_above - np.exp(np.minimum(epsilon, _LARGEST_LOSS)) * tails.p_above, 0.0
        )

    def _epsilon(self, delta: np.ndarray) -> np.ndarray:
        high = np.ones_like(delta)
        while np.any(short := (self.delta(high) > delta) & (high < _LARGEST_EPSILON)):
            high = np.where(short, 2.0 * high, high)
        low = np.where(high > 1.0, 0.5 * high, 0.0)
        impossible = self.delta(high) > delta
        for _ in range(60):
            middle = 0.5 * (low + high)
            enough = self.delta(middle) <= delta
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        high = np.where(self.delta(np.zeros_like(high)) <= delta, 0.0, high * ROUND_UP)
        return np.where(impossible, np.inf, high)


@dataclasses.dataclass(frozen=True, eq=False)
class Inverse(TradeOff):
    """f^-1: P and Q exchanged; made by `TradeOff.inverse`."""

    base: TradeOff
    adversary: str = dataclasses.field(init=False)
    error: float = dataclasses.field(init=False)
    resolution: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        for name in ("adversary", "error", "resolution"):
            object.__setattr__(self, name, getattr(self.base, name))

    @property
    def symmetric(self) -> bool:
        return self.base.symmetric

    def inverse(self) -> TradeOff:
        return self.base

    def named(self, adversary: str) -> TradeOff:
        return Inverse(self.base.named(adversary))

    def tails(self, loss: np.ndarray) -> Tails:
        # An atom at exactly -loss falls on the other side: another point of the same line.
        base = self.base.tails(-loss)
        return Tails(base.q_below, base.p_below, base.q_above, base.p_above)


@dataclasses.dataclass(frozen=True, eq=False)
class Subsampled(TradeOff):
    """C_p(f) of a symmetric f, in closed form; `subsample(f, p)` makes one.

    C_p(f) = min{f_p, f_p^-1}**, f_p = p f + (1 - p) Id (Dong, Roth & Su, Definition 6 and Theorem
    9): f_p where its slope is below -1, its inverse where it is above, a line of slope -1 between.
    """

    base: TradeOff
    probability: float

    def tails(self, loss: np.ndarray) -> Tails:
        size = np.abs(loss)
        p = self.probability
        # The slope -exp(size) of f_p is where f has slope -exp(inner).
        inner = np.where(
            size < 1.0,
            np.log1p(np.expm1(np.minimum(size, 1.0)) / p),
            size + np.log1p(-(1.0 - p) * np.exp(-size)) - np.log(p),
        )
        base = self.base.tails(inner)
        q_above = p * base.q_above + (1.0 - p) * base.p_above
        q_below = p * base.q_below + (1.0 - p) * base.p_below
        positive = np.asarray(loss) >= 0.0
        return Tails(
            np.where(positive, base.p_above, q_below),
            np.where(positive, q_above, base.p_below),
            np.where(positive, base.p_below, q_above),
            np.where(positive, q_below, base.p_above),
        )
