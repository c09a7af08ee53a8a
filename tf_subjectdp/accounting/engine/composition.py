# SPDX-License-Identifier: Apache-2.0
"""A composed loss distribution, tilted by exp(theta * loss), and what is read from it."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy import fft, signal

from tf_subjectdp.accounting.engine.discretise import LossPmf

#: Fourier coefficients of a modulus below exp of this are taken as 0: with a hundred million of
#: them the error of a mass is below 1e-25.
NEGLIGIBLE_LOG = -75.0


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
    rounding: float = 0.0

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

    def rounding_at(self, epsilon: float) -> float:
        """How much of delta at `epsilon` is the allowance for rounding, and cut mass."""
        losses = self._sums[0]
        u = losses[np.searchsorted(losses, epsilon, "right") :] - epsilon
        total = self.rounding * float(np.sum(np.exp(-self.theta * u) * -np.expm1(-u)))
        if total <= 0.0:
            return self.extra
        exponent = math.log(total) + self.log_scale - self.theta * (epsilon - self.reference)
        return math.exp(min(exponent, 0.0)) + self.extra

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


@dataclasses.dataclass(frozen=True)
class SingleRelease:
    """The loss distribution of one release: nothing is composed, so nothing is rounded."""

    losses: np.ndarray
    log_mass: np.ndarray
    infinite: float

    @classmethod
    def of(cls, pmf: LossPmf) -> SingleRelease:
        order = np.argsort(pmf.index, kind="stable")
        return cls(
            pmf.index[order] * pmf.interval,
            np.log(pmf.mass[order]),
            pmf.infinite,
        )

    def delta_at(self, epsilon: float) -> float:
        """delta at `epsilon`, of any sign."""
        above = self.losses > epsilon
        gain = -np.expm1(epsilon - self.losses[above])
        return self.infinite + float(np.exp(self.log_mass[above]) @ gain)

    def epsilon_at(self, delta: float) -> float:
        """The smallest epsilon >= 0 at `delta`; infinite if there is none."""
        if delta <= self.infinite:
            return math.inf
        # Between two losses delta is U - exp(epsilon) V, U and V sums over the losses above.
        low, high = 0, len(self.losses)
        while low < high:
            middle = (low + high) // 2
            if self.delta_at(float(self.losses[middle])) > delta:
                low = middle + 1
            else:
                high = middle
        first = low
        left = self.losses[first - 1] if first else -math.inf
        left = max(float(left), 0.0)
        if first == len(self.losses) or self.delta_at(left) <= delta:
            return left
        lower = float(np.exp(self.log_mass[first:] + left - self.losses[first:]).sum())
        # So exp(epsilon - left) = 1 + (delta(left) - delta) / (exp(left) V).
        excess = self.delta_at(left) - delta
        answer = left + math.log1p(excess / lower) if lower > 0.0 else float(self.losses[first])
        return min(answer * (1.0 + 1e-12), float(self.losses[first]))

    def slope_at(self, epsilon: float, delta: float) -> float:
        """-d log(delta) / d epsilon."""
        above = self.losses > epsilon
        return float(np.exp(self.log_mass[above] + epsilon - self.losses[above]).sum()) / delta


def log_power(base: np.ndarray, count: int) -> np.ndarray:
    """log |base ** count|; -infinity where the base is 0."""
    with np.errstate(divide="ignore"):
        return count * 0.5 * np.log(base.real**2 + base.imag**2)


def phase_of_power(base: np.ndarray, count: int) -> np.ndarray:
    """The phase of base ** count, in radians, of any size."""
    return count * np.arctan2(base.imag, base.real)


def polar(log_modulus: np.ndarray, phase: np.ndarray) -> np.ndarray:
    """The complex numbers of these moduli and phases."""
    return np.exp(log_modulus) * (np.cos(phase) + 1j * np.sin(phase))


class Spectrum:
    """The Fourier transform of a composition on `size` points, kept where it is not negligible.

    The transform of a sum of many losses is as good as zero at all but the lowest frequencies. Those
    are found on the first distribution that is multiplied, from its whole transform, and every
    modulus is at most 1; so the others are only evaluated where it matters.
    """

    def __init__(self, size: int):
        self._size = size
        self._frequency: np.ndarray | None = None
        self._value = np.ones(1, dtype=np.complex128)

    def multiply_power(self, masses: TiltedMasses, count: int) -> None:
        """Composes `count` times with `masses`."""
        if self._frequency is None:
            base, frequency = fft.rfft(masses.wrapped(self._size)), np.arange(self._size // 2 + 1)
        else:
            frequency = self._frequency
            # Measured: a transform costs as much as 60 of these products a point.
            if masses.span < self._size and masses.span * len(frequency) < 60 * self._size:
                base = masses.at_frequencies(frequency, self._size)
            else:
                base = fft.rfft(masses.wrapped(self._size))[frequency]
        log_modulus = log_power(base, count)
        keep = np.flatnonzero(log_modulus > NEGLIGIBLE_LOG)
        power = polar(log_modulus[keep], phase_of_power(base[keep], count))
        self._value = power if self._frequency is None else self._value[keep] * power
        self._frequency = frequency[keep]

    def invert(self) -> tuple[np.ndarray, float]:
        """The composed masses [size], and the mean modulus of the transform (for its rounding)."""
        if self._frequency is None:
            spectrum = np.ones(self._size // 2 + 1, dtype=np.complex128)
        else:
            spectrum = np.zeros(self._size // 2 + 1, dtype=np.complex128)
            spectrum[self._frequency] = self._value
        moduli = (2.0 * np.abs(spectrum).sum() + 1.0) / self._size
        return fft.irfft(spectrum, self._size), moduli


@dataclasses.dataclass(frozen=True)
class TiltedMasses:
    """Masses of sum 1, `weight[i]` on the loss `index[i]` (in intervals); losses may repeat.

    The losses may lie far apart: a table of all between them is made where it is short only.
    """

    index: np.ndarray
    weight: np.ndarray

    @property
    def span(self) -> int:
        """Number of grid points from the lowest to the highest loss."""
        return int(self.index.max() - self.index.min()) + 1

    def wrapped(self, size: int) -> np.ndarray:
        """The masses on `size` points, the loss 0 at the first, the others modulo `size`."""
        return np.bincount(self.index % size, weights=self.weight, minlength=size)

    def at_frequencies(self, frequency: np.ndarray, size: int) -> np.ndarray:
        """The Fourier transform on `size` points at some frequencies, as one matrix product.

        The phase of the loss first + a * width + b is a product of those of its two parts, and each
        is reduced modulo `size` in whole numbers, so that no digit is lost.
        """
        first, width = int(self.index.min()), math.isqrt(self.span) + 1
        rows = -(-self.span // width)
        table = np.bincount(self.index - first, weights=self.weight, minlength=rows * width)
        fine = _phases(np.arange(width), frequency, size)
        coarse = _phases(first + width * np.arange(rows), frequency, size)
        inner = table.reshape(rows, width) @ fine.real + 1j * (
            table.reshape(rows, width) @ fine.imag
        )
        return np.einsum("af,af->f", coarse, inner)


def _phases(index: np.ndarray, frequency: np.ndarray, size: int) -> np.ndarray:
    turns = np.multiply.outer(index.astype(np.int64) % size, frequency.astype(np.int64)) % size
    return np.exp(-2j * np.pi / size * turns)


def tilt_masses(pmf: LossPmf, theta: float) -> tuple[TiltedMasses, float, int]:
    """Masses times exp(theta * loss), normalised and centred.

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
    return TiltedMasses(pmf.index - centre, weight), peak + math.log(total), centre
