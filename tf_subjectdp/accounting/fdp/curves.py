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
import functools
from typing import NamedTuple

import numpy as np
from scipy import special

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.engine.gaussian import gaussian_epsilon

# exp(t) is finite below; a slope beyond it would matter for alpha < 1e-304 only.
_LARGEST_LOSS = 700.0
# Losses from which the search for a slope starts: dense near 0, odd in number so that 0 is one.
_START = 1e-4 * np.sinh(np.linspace(-1.0, 1.0, 1025) * np.arcsinh(_LARGEST_LOSS / 1e-4))
_START[512] = 0.0
# The value is off by the square of what they leave of t: 1e-14 or so.
_BISECTIONS = 24
_LARGEST_EPSILON = 1e9
# Relative accuracy of SciPy's normal tails, and more: epsilon is rounded up by it.
_ROUND_UP = 1.0 + 1e-12
# Entries of the largest temporary array.
_CHUNK = 1_000_000


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
        high = np.where(self.delta(np.zeros_like(high)) <= delta, 0.0, high * _ROUND_UP)
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
        return total.reshape(epsilon.shape) * _ROUND_UP + self.dropped


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


@dataclasses.dataclass(frozen=True, eq=False)
class PiecewiseLinear(TradeOff):
    """A curve of finitely many straight pieces, kept as the discrete pair that it is T of.

    The piece of slope -exp(losses[i]) is p_masses[i] wide and q_masses[i] high.

    Attributes:
      losses: increasing, shape (n,).
      p_masses, q_masses: >= 0, shape (n,); q = p exp(loss).
      q_infinite: 1 - f(0), what Q has where P has nothing.
      p_infinite: 1 - f^-1(0), what P has where Q has nothing.
      self_inverse: whether the curve is known to be symmetric.
    """

    losses: np.ndarray
    p_masses: np.ndarray
    q_masses: np.ndarray
    q_infinite: float = 0.0
    p_infinite: float = 0.0
    self_inverse: bool = False

    @property
    def symmetric(self) -> bool:
        return self.self_inverse

    @functools.cached_property
    def _sums(self) -> Tails:
        """The tails between the losses: k = 0 below all of them, k = n above."""
        zero = np.zeros(1)
        return Tails(
            np.concatenate([np.cumsum(self.p_masses[::-1])[::-1], zero]),
            np.concatenate([np.cumsum(self.q_masses[::-1])[::-1], zero]) + self.q_infinite,
            np.concatenate([zero, np.cumsum(self.p_masses)]) + self.p_infinite,
            np.concatenate([zero, np.cumsum(self.q_masses)]),
        )

    @property
    def alphas(self) -> np.ndarray:
        """alpha of the corners, increasing, shape (n + 1,)."""
        return np.minimum(self._sums.p_above[::-1], 1.0)

    @property
    def powers(self) -> np.ndarray:
        """1 - f at the corners, shape (n + 1,), accurate where it is small; without `error`."""
        return np.minimum(self._sums.q_above[::-1], 1.0)

    def tails(self, loss: np.ndarray) -> Tails:
        k = np.searchsorted(self.losses, loss, side="right")
        return Tails(*(tail[k] for tail in self._sums))

    def _beta(self, alpha: np.ndarray) -> np.ndarray:
        return np.interp(alpha, self._sums.p_above[::-1], self._sums.q_below[::-1], right=0.0)

    def inverse(self) -> TradeOff:
        """f^-1, again piecewise linear."""
        if self.self_inverse:
            return self
        return dataclasses.replace(
            self,
            losses=-self.losses[::-1],
            p_masses=self.q_masses[::-1],
            q_masses=self.p_masses[::-1],
            q_infinite=self.p_infinite,
            p_infinite=self.q_infinite,
        )

    def group(self, size: int) -> PiecewiseLinear:
        """1 - (1 - f)^(o size), exactly: the corners are those of f, pulled back step by step.

        `error` goes into the curve itself; a `resolution` of f is no longer bounded (1.0).
        """
        corners, heights = self.alphas, self.powers + self.error
        if heights[0] < 1.0 < heights[-1]:
            # A corner where the raised curve reaches 1.
            full = np.interp(1.0, heights, corners)
            corners = np.concatenate([corners[heights < 1.0], [full, 1.0]])
            heights = np.concatenate([heights[heights < 1.0], [1.0, 1.0]])
        heights = np.minimum(heights, 1.0)
        x, y = corners, heights
        for _ in range(size - 1):
            rising = np.concatenate([[True], np.diff(y) > 0.0])
            inside = corners[(corners > y[0]) & (corners < y[-1])]
            finer = np.unique(np.concatenate([x, np.interp(inside, y[rising], x[rising])]))
            x, y = finer, np.interp(np.interp(finer, x, y), corners, heights)
        return dataclasses.replace(
            from_powers(x, y),
            self_inverse=self.self_inverse and self.error == 0.0,
            resolution=1.0 if self.resolution else 0.0,
        )


def from_powers(alpha: np.ndarray, power: np.ndarray) -> PiecewiseLinear:
    """The curve with the corners (alpha, 1 - power), a concave power that ends at 1.

    Args:
      alpha: increasing, from 0, shape (n,).
      power: not decreasing, shape (n,).
    """
    p, q = np.diff(alpha), np.maximum(np.diff(power), 0.0)
    used = (p > 0.0) & (q > 0.0)
    # Where P has (almost) nothing, Q's mass counts as infinite loss, the safe side.
    infinite = float(power[0]) + float(q[p <= 0.0].sum())
    last = int(np.flatnonzero(q > 0.0)[-1]) + 1 if np.any(q > 0.0) else 0
    p, q = p[used][::-1], q[used][::-1]
    return PiecewiseLinear(
        losses=np.maximum.accumulate(np.log(q) - np.log(p)),
        p_masses=p,
        q_masses=q,
        q_infinite=min(infinite, 1.0),
        p_infinite=float(1.0 - alpha[last]),
    )


def lower_hull(alpha: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Corners of the largest convex function below the points, alpha increasing."""
    order = np.lexsort((beta, alpha))
    hull: list[tuple[float, float]] = []
    for x, y in zip(alpha[order].tolist(), beta[order].tolist(), strict=True):
        if hull and x == hull[-1][0]:
            continue
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2], hull[-1]
            if (y1 - y0) * (x - x0) >= (y - y0) * (x1 - x0):
                hull.pop()
            else:
                break
        hull.append((x, y))
    corners = np.array(hull)
    return corners[:, 0], corners[:, 1]
