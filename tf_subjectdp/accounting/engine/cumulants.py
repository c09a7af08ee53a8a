# SPDX-License-Identifier: Apache-2.0
"""Cumulants of the composed privacy loss: where the PLD engine looks, and how finely.

These are not part of a guarantee: they choose the tilt, the interval and the window of a
composition.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tf_subjectdp.accounting.engine.discretise import samples
from tf_subjectdp.accounting.engine.mechanisms import Branches

#: One direction of a composition: what runs, and how often.
Direction = tuple[tuple[Branches, int], ...]


class Cumulants:
    """K(theta) = log E exp(theta * loss) of the composition, by quadrature."""

    def __init__(self, direction: Direction):
        self._parts = [(*samples(branches), count) for branches, count in direction]
        self._of = dict(zip(direction, self._parts, strict=True))

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        total = np.zeros(len(theta))
        for loss, log_mass, count in self._parts:
            rows = max(1, 2_000_000 // len(loss))
            for start in range(0, len(theta), rows):
                part = slice(start, start + rows)
                exponent = np.multiply.outer(theta[part], loss) + log_mass
                peak = exponent.max(axis=1)
                total[part] += count * (peak + np.log(np.exp(exponent - peak[:, None]).sum(axis=1)))
        return total

    @property
    def largest_loss(self) -> float:
        """The composed loss is at most this, but for the mass that counts as infinite loss."""
        return math.fsum(count * float(loss.max()) for loss, _, count in self._parts)

    def width(self, entry: tuple[Branches, int]) -> float:
        """Variance of the loss that `entry` of the direction contributes."""
        loss, log_mass, count = self._of[entry]
        mass = np.exp(log_mass)
        mean = float(mass @ loss)
        return count * float(mass @ (loss - mean) ** 2)

    def mean_and_deviation(self, theta: float) -> tuple[float, float]:
        """Mean and standard deviation of the composed loss tilted by theta."""
        mean = variance = 0.0
        for loss, log_mass, count in self._parts:
            exponent = theta * loss + log_mass
            weight = np.exp(exponent - exponent.max())
            weight /= weight.sum()
            centre = float(weight @ loss)
            mean += count * centre
            variance += count * float(weight @ (loss - centre) ** 2)
        return mean, math.sqrt(variance)

    def minimise(self, objective: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
        """The theta > 0 at which objective(theta, K(theta)) is smallest (to a percent)."""
        grid = np.geomspace(1e-4, 1e8, 97)
        for _ in range(3):
            values = objective(grid, self(grid))
            best = int(np.nanargmin(values))
            low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
            grid = np.geomspace(low, high, 9)
        values = objective(grid, self(grid))
        return float(grid[int(np.nanargmin(values))])
