# SPDX-License-Identifier: Apache-2.0
"""A composed loss distribution, tilted by exp(theta * loss), and what is read from it."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy import signal

from tf_subjectdp.accounting.discretise import LossPmf


@dataclasses.dataclass(frozen=True)
class Composed:
    """Composed tilted masses `tilted` on the losses (first + i) * interval; see `delta_at`.

    `log_moment` is the log of the sum that the tilted masses were divided by.
    """

    first: int
    interval: float
    cell: float
    tilted: np.ndarray
    theta: float
    reference: float
    log_scale: float
    extra: float
    log_moment: float

    @functools.cached_property
    def _sums(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """l_i; sums over j >= i of w_j and of w_j exp(l_i - l_j), w untilted up to a factor."""
        losses = (self.first + np.arange(len(self.tilted))) * self.interval
        u = losses - self.reference
        # Far below the reference the weight overflows; the answer is never looked for there.
        valid = -self.theta * u < 600.0
        losses = losses[valid]
        weight = self.tilted[valid] * np.exp(-self.theta * u[valid])
        upper = np.cumsum(weight[::-1])[::-1]
        decay = math.exp(-self.interval)
        lower = signal.lfilter([1.0], [1.0, -decay], weight[::-1])[::-1]
        return losses, upper, lower

    def epsilon_at(self, delta: float) -> float | None:
        """epsilon at `delta`; None if it lies below the window, infinite if there is none."""
        losses, upper, lower = self._sums
        if delta <= self.extra:
            return math.inf
        log_target = math.log(delta - self.extra) - self.log_scale
        if log_target > 690.0:
            return None
        target = math.exp(log_target)
        # delta at the grid point i counts the masses above it.
        at_grid = np.append(upper[1:] - math.exp(-self.interval) * lower[1:], 0.0)
        i = int(np.argmax(at_grid <= target))  # exists: the last is 0
        if i == 0:
            return None
        return float(losses[i]) + math.log((upper[i] - target) / lower[i])

    def slope_at(self, epsilon: float, delta: float) -> float:
        """-d log(delta) / d epsilon: the tilt that the answer really corresponds to."""
        losses, _, lower = self._sums
        i = min(int(np.searchsorted(losses, epsilon)), len(losses) - 1)
        return float(lower[i]) * math.exp(min(self.log_scale - math.log(delta), 700.0))

    def delta_at(self, epsilon: float) -> float | None:
        """delta at `epsilon`; None if epsilon lies outside the window."""
        losses = self._sums[0]
        if not losses[0] <= epsilon <= losses[-1]:
            return None
        start = len(self.tilted) - len(losses) + int(np.searchsorted(losses, epsilon, "right"))
        u = (self.first + np.arange(start, len(self.tilted))) * self.interval - epsilon
        total = float(np.sum(self.tilted[start:] * np.exp(-self.theta * u) * -np.expm1(-u)))
        if total <= 0.0:
            return self.extra
        exponent = math.log(total) + self.log_scale - self.theta * (epsilon - self.reference)
        return min(1.0, math.exp(min(exponent, 0.0)) + self.extra)


def tilt_masses(pmf: LossPmf, theta: float, size: int) -> tuple[np.ndarray, float, int]:
    """Masses times exp(theta * loss), normalised, centred and wrapped to `size` points.

    Returns:
      The tilted masses, the log of their sum before normalising, and the index put at 0.
    """
    exponent = theta * pmf.interval * pmf.index + np.log(pmf.mass)
    peak = float(exponent.max())
    weight = np.exp(exponent - peak)
    total = float(weight.sum())
    weight /= total
    # Centred, the phases that are raised to the power `count` are small where it matters.
    centre = int(round(float(weight @ pmf.index)))
    tilted = np.bincount((pmf.index - centre) % size, weights=weight, minlength=size)
    return tilted, peak + math.log(total), centre


def multiply_power(spectrum: np.ndarray, base: np.ndarray, count: int) -> None:
    """spectrum *= base ** count, in place."""
    if count == 1:
        spectrum *= base
        return
    with np.errstate(divide="ignore"):
        log_modulus = 0.5 * np.log(base.real**2 + base.imag**2)
    phase = np.arctan2(base.imag, base.real)
    modulus = np.exp(count * log_modulus)
    phase *= count
    spectrum *= modulus * (np.cos(phase) + 1j * np.sin(phase))
