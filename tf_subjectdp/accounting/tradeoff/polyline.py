# SPDX-License-Identifier: Apache-2.0
"""Piecewise linear trade-off curves: what every numerical operation returns."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from tf_subjectdp.accounting.tradeoff.curves import Tails, TradeOff


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
