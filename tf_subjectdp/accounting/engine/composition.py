# SPDX-License-Identifier: Apache-2.0
"""Compositions of loss distributions by FFT: of one ledger, and of very many of a few types at once.

Every discretised loss distribution is TILTED by exp(theta * loss) before it is composed (Esscher's
transform), with theta chosen so that the composed distribution is centred where the answer lies.
Then the rounding floor of the FFT is relative to the answer, not absolute: a delta of 1e-15 is as
safe as one of 1e-3. Everything approximate is on the pessimistic side: discretisation (see
`discretise`), cut tails (put into delta), wrap-around of the FFT and rounding (both bounded and
added to delta).

The grid's interval follows the number of compositions: connecting the dots adds to the cumulant
function K(theta) of one step at most (theta^2 + theta) h^2 / 8, hence to epsilon at most steps * (1
+ theta) * h^2 / 8.

`ComposedDirection` composes one row and inverts the transform: every epsilon, and a check of what
discretisation added. `ComposedRows` multiplies the types' transforms to the powers of many rows; as delta
at one epsilon is a linear function of a transform, of which only the lowest frequencies matter, all
rows are two matrix products.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import fft, signal

from tf_subjectdp.accounting.engine.discretise import (
    LossPmf,
    discretise,
    infinite_mass,
    samples,
)
from tf_subjectdp.accounting.engine.mechanisms import Branches
from tf_subjectdp.accounting.engine.renyi import convert_epsilon

#: One direction of a composition (a unit removed, or added): what runs, and how often.
Direction = tuple[tuple[Branches, int], ...]

#: An epsilon above this protects nobody: Renyi's bound is returned instead of a grid's.
HOPELESS = 1e5
#: Fourier coefficients of a modulus below exp of this are taken as 0: with a hundred million of
#: them the error of a mass is below 1e-25.
NEGLIGIBLE_LOG = -75.0
# Mass of the tilted sum that may lie outside of a window; it is put into delta.
_WRAPPED_MASS = 1e-14

_MIN_POINTS = 1 << 10
_MAX_POINTS, _MAX_POINTS_OF_ROWS = 1 << 22, 1 << 21
_EPS = float(np.finfo(np.float64).eps)

# Of many rows: the relative error in epsilon that the discretisation aims at, rows that are
# multiplied at once, frequencies that are kept or left together, and tilts tried.
ROWS_ERROR = 1e-4
_ROWS = 4096
_BLOCK = 64
_THETAS = np.geomspace(1e-3, 1e4, 141)


class Cumulants:
    """K(theta) = log E exp(theta * loss) of the composition, by quadrature.

    These are not part of a guarantee: they choose the tilt, the interval and the window.
    """

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


@dataclasses.dataclass(frozen=True)
class _Grid:
    """Losses (first + i) * interval for i < size, and the tilt."""

    theta: float
    interval: float
    first: int
    size: int

    @classmethod
    def of(cls, theta: float, window: tuple[float, float], wanted: float, most: int) -> _Grid:
        """The grid of interval `wanted` over `window`, coarser if it took more than `most` points."""
        low, high = window
        interval = max(wanted, (high - low) / (most - 8))
        points = max(math.ceil((high - low) / interval) + 8, _MIN_POINTS)
        first = math.floor(low / interval) - 2
        return cls(theta, interval, first, fft.next_fast_len(points, real=True))

    def wrapped(self, log_moment):
        """What may have wrapped around it, in delta; of sums whose tilted mass is exp(log_moment)."""
        top = (self.first + self.size - 1) * self.interval
        exponent = math.log(2.0 * _WRAPPED_MASS) + log_moment - self.theta * top
        return np.exp(np.minimum(exponent, 0.0))

    def rounding(self, operations, moduli):
        """Rounding errors of masses: relative in the transform, hence at most this times its mean."""
        return 4.0 * _EPS * (operations + math.log2(self.size)) * moduli


def _window(
    types: Sequence[Cumulants], counts: np.ndarray, theta: float, deviation: float
) -> tuple[float, float]:
    """Losses between which all but `_WRAPPED_MASS` of every row's tilted sum lies (Chernoff).

    Args:
      types: cumulants of each type.
      counts: how often each runs, shape (rows, types).
      theta: the tilt.
      deviation: of a row's tilted sum.
    """
    # Where rare steps lose much, the best s is far below that of a Gaussian tail (8 / deviation).
    s = np.geomspace(1e-3, 40.0, 36) / deviation
    base = np.array([one(np.array([theta])) for one in types])
    need = -math.log(_WRAPPED_MASS)
    above = (counts @ (np.array([one(theta + s) for one in types]) - base) + need) / s
    below = (counts @ (np.array([one(theta - s) for one in types]) - base) + need) / s
    return float(np.nanmax(-below, axis=1).min()), float(np.nanmin(above, axis=1).max())


def _interval(
    theta: float,
    epsilon: float,
    variance: float,
    steps: float,
    relative_error: float,
    cautious: bool = False,
) -> float:
    """Interval at which discretisation adds at most `relative_error` * epsilon.

    `variance` is that of the tilted sum; `cautious` is for an epsilon whose slope is not checked
    afterwards.
    """
    scale = max(epsilon / (1.0 + theta), 1e-3 * variance)
    if cautious:
        scale = min(scale, variance)
    # No loss moves by more than the interval, so this much is always fine enough.
    enough = relative_error * epsilon / steps
    return max(math.sqrt(8.0 * relative_error * scale / steps), enough)


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
    extra: float
    log_moment: float
    rounding: float = 0.0

    @property
    def log_scale(self) -> float:
        return self.log_moment - self.theta * self.reference

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


class ComposedDirection:
    """epsilon and delta of one direction of a composition."""

    def __init__(self, direction: Direction):
        self._direction = direction
        self._steps = sum(count for _, count in direction)
        self._cumulants = Cumulants(direction)

    def epsilon(self, delta: float, relative_error: float) -> tuple[float, float]:
        """epsilon from above, and what discretisation may have added to it."""

        def bound(theta: np.ndarray, cumulant: np.ndarray) -> np.ndarray:
            return convert_epsilon(theta, cumulant, delta)

        theta = self._cumulants.minimise(bound)
        expected = float(bound(np.array([theta]), self._cumulants(np.array([theta])))[0])
        if not expected < HOPELESS:
            return math.inf, 0.0
        if expected <= 0.0:
            return 0.0, 0.0
        if self._steps == 1:
            return self._single_epsilon(theta, expected, delta, relative_error)
        answer = None
        for tilt in (theta, theta / 8.0, 0.0):
            if not self._spread(tilt):
                # Without spread the sum is as large as it can be, or infinite.
                finite = self._infinite_mass() <= delta
                return (max(self._cumulants.largest_loss, 0.0) if finite else math.inf), 0.0
            wanted = self._interval(tilt, max(expected, 0.0), relative_error)
            composed = self._compose(self._grid(tilt, wanted, answer))
            answer = composed.epsilon_at(delta)
            if answer is not None:
                break
        if answer is None:
            # delta is large: even the lowest loss of the window satisfies it, and bounds epsilon.
            return max(0.0, composed.first * composed.interval), 0.0
        if answer <= 0.0:
            return 0.0, 0.0
        if not math.isfinite(answer):
            return math.inf, 0.0
        excess = self._excess(composed, answer, delta)
        for other in (tilt, tilt / 8.0, 0.0):
            if excess <= 2.0 * relative_error * answer:
                break
            # Renyi's bound, by which the interval was chosen, was far above the answer; and where
            # rare steps lose much, a smaller tilt allows a finer grid. Every result bounds from
            # above; with millions of steps the finer is not always the better.
            slope = composed.slope_at(answer, delta)
            wanted = self._interval(max(slope, other), answer, relative_error)
            grid = self._grid(other, wanted, answer)
            if grid.interval > 0.9 * composed.interval:
                continue
            finer = self._compose(grid)
            refined = finer.epsilon_at(delta)
            if refined is not None and refined < answer:
                answer, composed = refined, finer
                if answer <= 0.0:
                    return 0.0, 0.0
                excess = self._excess(composed, answer, delta)
        return min(answer, max(self._cumulants.largest_loss, 0.0)), excess

    def _single_epsilon(
        self, theta: float, expected: float, delta: float, relative_error: float
    ) -> tuple[float, float]:
        """As `epsilon`, for one release: its loss distribution itself, with nothing to compose."""
        ((branches, _),) = self._direction
        answer = math.inf
        for tilt in (theta, theta / 8.0):
            interval = self._interval(tilt, min(expected, answer), relative_error)
            pmf = discretise(branches, interval)
            release = SingleRelease.of(pmf)
            answer = min(answer, release.epsilon_at(delta))
            if not 0.0 < answer < math.inf:
                break
            excess = (1.0 + release.slope_at(answer, delta)) * pmf.cell**2 / 8.0
            if excess <= relative_error * answer:
                break
        if not 0.0 < answer < math.inf:
            return answer, 0.0
        return answer, excess

    def delta(self, epsilon: float, relative_error: float) -> float:
        """delta from above."""
        if epsilon >= self._cumulants.largest_loss:
            return self._infinite_mass()

        def bound(theta: np.ndarray, cumulant: np.ndarray) -> np.ndarray:
            return cumulant - theta * epsilon

        theta = self._cumulants.minimise(bound)
        if self._steps == 1:
            ((branches, _),) = self._direction
            interval = self._interval(theta, epsilon, relative_error, cautious=True)
            return SingleRelease.of(discretise(branches, interval)).delta_at(epsilon)
        answers = []
        for tilt in (theta, theta / 8.0, 0.0):
            if not self._spread(tilt):
                answers.append(self._chernoff(tilt, epsilon))
                continue
            interval = self._interval(tilt, epsilon, relative_error, cautious=True)
            answer = self._compose(self._grid(tilt, interval, epsilon)).delta_at(epsilon)
            if answer is not None:
                return answer
            answers.append(self._chernoff(tilt, epsilon))
        return min(1.0, min(answers))

    def _infinite_mass(self) -> float:
        """The probability that any step has infinite loss."""
        log_finite = 0.0
        for branches, count in self._direction:
            log_finite += count * math.log1p(-infinite_mass(branches))
        return 0.0 - math.expm1(log_finite)

    def _spread(self, theta: float) -> bool:
        """Whether the tilted loss has a finite, positive deviation, so that a grid makes sense."""
        mean, deviation = self._cumulants.mean_and_deviation(theta)
        return math.isfinite(mean) and 0.0 < deviation < math.inf

    def _chernoff(self, theta: float, epsilon: float) -> float:
        """An upper bound on delta without composition (for an epsilon out of any window)."""
        value = float(self._cumulants(np.array([theta]))[0]) - theta * epsilon
        if not math.isfinite(value):
            return 1.0
        return min(1.0, math.exp(min(value, 0.0)) * (1.0 + 1e-6) + self._infinite_mass())

    def _interval(
        self, theta: float, epsilon: float, relative_error: float, cautious: bool = False
    ) -> float:
        variance = self._cumulants.mean_and_deviation(theta)[1] ** 2
        return _interval(theta, epsilon, variance, self._steps, relative_error, cautious)

    def _excess(self, composed: Composed, epsilon: float, delta: float) -> float:
        """What discretisation has added to epsilon, at most."""
        slope = composed.slope_at(epsilon, delta)
        theta = composed.theta
        # What rounding and cut tails have added to delta, as a change of epsilon.
        rounded = composed.rounding_at(epsilon) / delta / max(slope, 1e-3)
        bound = self._steps * (1.0 + slope) * composed.cell**2 / 8.0 + rounded
        if theta < 1e-3 or not 0.5 * slope < theta < 2.0 * slope:
            return bound
        # Around the tilt it can be measured on the cumulant; the quadrature's own error (relative
        # 1e-12 a step) is no evidence of anything.
        exact = float(self._cumulants(np.array([theta]))[0])
        measured = max(0.0, composed.log_moment - exact) / theta
        return min(bound, measured + self._steps * 1e-12 / theta + rounded)

    def _grid(self, theta: float, wanted: float, reach: float | None) -> _Grid:
        """The grid of a composition that holds `reach`."""
        deviation = self._cumulants.mean_and_deviation(theta)[1]
        low, high = _window([self._cumulants], np.ones((1, 1)), theta, deviation)
        if reach is not None:
            low, high = min(low, reach), max(high, reach)
        return _Grid.of(theta, (low, high), wanted, _MAX_POINTS)

    def _compose(self, grid: _Grid) -> Composed:
        spectrum = Spectrum(grid.size)
        log_moment, shift, log_finite, cell = 0.0, 0, 0.0, grid.interval
        # The widest first: it tells which frequencies matter.
        for branches, count in sorted(self._direction, key=self._cumulants.width, reverse=True):
            pmf = discretise(branches, grid.interval)
            tilted, moment, centre = tilt_masses(pmf, grid.theta)
            spectrum.multiply_power(tilted, count)
            log_moment += count * moment
            shift += count * centre
            log_finite += count * math.log1p(-pmf.infinite)
            cell = max(cell, pmf.cell)
        composed, moduli = spectrum.invert()
        rounding = grid.rounding(self._steps, moduli)
        composed = np.maximum(composed, 0.0) + rounding
        return Composed(
            first=grid.first,
            interval=grid.interval,
            cell=cell,
            tilted=np.roll(composed, -((grid.first - shift) % grid.size)),
            theta=grid.theta,
            reference=self._cumulants.mean_and_deviation(grid.theta)[0],
            extra=-math.expm1(log_finite) + float(grid.wrapped(log_moment)),
            log_moment=log_moment,
            rounding=rounding,
        )


class ComposedRows:
    """One direction of very many compositions; a row says how often each type runs."""

    def __init__(self, types: Sequence[Direction]):
        self._types = types
        self._cumulants = [Cumulants(one) for one in types]
        self._steps = np.array([sum(count for _, count in one) for one in types], dtype=np.float64)

    def deltas(self, counts: np.ndarray, epsilons: np.ndarray, delta: float) -> np.ndarray:
        """delta of every row at every epsilon, from above; see `pld.batch_deltas`."""
        grid = self._grid(counts, epsilons, delta)
        if grid is None:
            return np.ones((len(counts), len(epsilons)))
        log_modulus, phase, log_moment, log_finite = self._transforms(grid, counts)
        frequency = self._frequencies(log_modulus, counts)
        weight = np.where((frequency == 0) | (2 * frequency == grid.size), 1.0, 2.0) / grid.size
        payoff, payoff_sum = _payoff(grid, epsilons, frequency)
        payoff = np.conj(payoff) * weight
        log_modulus, phase = log_modulus[:, frequency], phase[:, frequency]
        result = np.empty((len(counts), len(epsilons)))
        for start in range(0, len(counts), _ROWS):
            rows = counts[start : start + _ROWS]
            modulus = np.exp(rows @ log_modulus)
            angle = rows @ phase
            # Re(spectrum * conj(payoff)), in real arithmetic: two products instead of four.
            total = (modulus * np.cos(angle)) @ payoff.real.T
            total -= (modulus * np.sin(angle)) @ payoff.imag.T
            moduli = modulus @ weight + 1.0 / grid.size + math.exp(NEGLIGIBLE_LOG)
            # The payoff's two series cancel by a factor of up to 1 + theta.
            rounding = grid.rounding(rows @ self._steps + 1.0 + grid.theta, moduli)
            total = np.maximum(total, 0.0) + rounding[:, None] * payoff_sum
            moment = rows @ log_moment
            exponent = moment[:, None] - grid.theta * epsilons + np.log(total)
            extra = -np.expm1(rows @ log_finite) + grid.wrapped(moment)
            result[start : start + _ROWS] = np.exp(np.minimum(exponent, 0.0)) + extra[:, None]
        return result

    def _grid(self, counts: np.ndarray, epsilons: np.ndarray, delta: float) -> _Grid | None:
        """A tilt for the row that costs most, a window for all rows, an interval for the finest.

        None where the tilted loss has no spread, so that no grid makes sense.
        """
        table = np.array([one(_THETAS) for one in self._cumulants])
        converted = convert_epsilon(_THETAS, counts @ table, delta)
        dearest = int(np.argmax(converted.min(axis=1)))
        theta = float(_THETAS[int(np.argmin(converted[dearest]))])
        moments = np.array([one.mean_and_deviation(theta) for one in self._cumulants])
        variance = float(counts[dearest] @ moments[:, 1] ** 2)
        if not 0.0 < variance < math.inf:
            return None
        low, high = _window(self._cumulants, counts, theta, math.sqrt(variance))
        low, high = min(low, float(epsilons[0])), max(high, float(epsilons[-1]))
        steps = float((counts @ self._steps).max())
        interval = _interval(theta, float(epsilons[0]), variance, steps, ROWS_ERROR)
        return _Grid.of(theta, (low, high), interval, _MAX_POINTS_OF_ROWS)

    def _transforms(
        self, grid: _Grid, counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """log modulus and phase of each type's transform; logs of its moment and finite mass."""
        n_types, half = len(self._types), grid.size // 2 + 1
        used = counts.any(axis=0)
        log_modulus, phase = np.zeros((n_types, half)), np.zeros((n_types, half))
        log_moment, log_finite = np.zeros(n_types), np.zeros(n_types)
        for i in np.flatnonzero(used):
            shift = 0
            for branches, count in self._types[i]:
                pmf = discretise(branches, grid.interval)
                tilted, moment, centre = tilt_masses(pmf, grid.theta)
                base = fft.rfft(tilted.wrapped(grid.size))
                log_modulus[i] += log_power(base, count)
                phase[i] += phase_of_power(base, count)
                log_moment[i] += count * moment
                shift += count * centre
                log_finite[i] += count * math.log1p(-pmf.infinite)
            turns = np.arange(half, dtype=np.int64) * (shift % grid.size) % grid.size
            phase[i] = np.remainder(phase[i] - 2.0 * np.pi / grid.size * turns, 2.0 * np.pi)
        # A modulus of 0 to the power 0 is 1: rows without a type must not see its infinity.
        return np.maximum(log_modulus, -1e4), phase, log_moment, log_finite

    def _frequencies(self, log_modulus: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Frequencies at which some row is not negligible, by blocks."""
        half = log_modulus.shape[1]
        starts = np.arange(0, half, _BLOCK)
        largest = np.maximum.reduceat(log_modulus, starts, axis=1)
        best = np.full(len(starts), -math.inf)
        for start in range(0, len(counts), _ROWS):
            best = np.maximum(best, (counts[start : start + _ROWS] @ largest).max(axis=0))
        kept = np.repeat(best > NEGLIGIBLE_LOG, _BLOCK)[:half]
        return np.flatnonzero(kept)


def _payoff(
    grid: _Grid, epsilons: np.ndarray, frequency: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The transforms of what a tilted mass at each loss adds to delta, and its sum: per epsilon.

    exp(-theta u) - exp(-(theta + 1) u) at the losses u above epsilon: two geometric series.
    """
    start = np.floor(epsilons / grid.interval).astype(np.int64) + 1
    number = grid.first + grid.size - start
    above = start * grid.interval - epsilons
    both = np.append(0, frequency)

    def series(power: float) -> np.ndarray:
        ratio = np.expm1(-power * grid.interval - 2j * np.pi / grid.size * both)
        turns = np.multiply.outer(number, both) % grid.size
        last = np.exp(-power * grid.interval * number[:, None] - 2j * np.pi / grid.size * turns)
        return np.exp(-power * above)[:, None] * (last - 1.0) / ratio

    turns = np.multiply.outer(start % grid.size, both) % grid.size
    transforms = np.exp(-2j * np.pi / grid.size * turns)
    transforms *= series(grid.theta) - series(grid.theta + 1.0)
    return transforms[:, 1:], transforms[:, 0].real
