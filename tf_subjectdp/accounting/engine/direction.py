# SPDX-License-Identifier: Apache-2.0
"""One direction of a composition (a unit removed, or added): its epsilon and delta by one FFT.

Knows discretised losses and their cumulants; `pld` takes the worse of the two directions.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import fft

from tf_subjectdp.accounting.engine.composition import (
    Composed,
    SingleRelease,
    Spectrum,
    tilt_masses,
)
from tf_subjectdp.accounting.engine.cumulants import Cumulants, Direction
from tf_subjectdp.accounting.engine.discretise import discretise, infinite_mass

#: An epsilon above this protects nobody: Renyi's bound is returned instead of a grid's.
HOPELESS = 1e5
#: Mass of the tilted sum that may lie outside of a window; it is put into delta.
WRAPPED_MASS = 1e-14

_MIN_POINTS = 1 << 10
_MAX_POINTS = 1 << 22
_ROUNDING = float(np.finfo(np.float64).eps)


class ComposedDirection:
    """epsilon and delta of one direction of a composition."""

    def __init__(self, direction: Direction):
        self._direction = direction
        self._steps = sum(count for _, count in direction)
        self._cumulants = Cumulants(direction)

    def epsilon(self, delta: float, relative_error: float) -> tuple[float, float]:
        """epsilon from above, and what discretisation may have added to it."""
        log_delta = math.log(delta)

        def bound(theta: np.ndarray, cumulant: np.ndarray) -> np.ndarray:
            # Canonne, Kamath, Steinke (arXiv:2004.00010), Proposition 12, with order 1 + theta.
            return (cumulant - log_delta - np.log1p(theta)) / theta - np.log1p(1.0 / theta)

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
            composed = self._compose(tilt, wanted, answer)
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
            if self._finest(other, wanted, answer) > 0.9 * composed.interval:
                continue
            finer = self._compose(other, wanted, answer)
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
            answer = self._compose(tilt, interval, epsilon).delta_at(epsilon)
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
        """Interval at which discretisation adds at most `relative_error` * epsilon.

        `cautious` is for an epsilon whose slope is not checked afterwards.
        """
        _, deviation = self._cumulants.mean_and_deviation(theta)
        variance = deviation**2
        scale = epsilon / (1.0 + theta)
        scale = max(scale, 1e-3 * variance)
        if cautious:
            scale = min(scale, variance)
        # No loss moves by more than the interval, so this much is always fine enough.
        enough = relative_error * epsilon / self._steps
        return max(math.sqrt(8.0 * relative_error * scale / self._steps), enough)

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

    def _window(self, theta: float) -> tuple[float, float, float]:
        """Losses between which all but `WRAPPED_MASS` of the tilted sum lies (Chernoff)."""
        mean, deviation = self._cumulants.mean_and_deviation(theta)
        # Where rare steps lose much, the best s is far below that of a Gaussian tail (8 /
        # deviation).
        s = np.geomspace(1e-3, 40.0, 36) / deviation
        base = float(self._cumulants(np.array([theta]))[0])
        need = -math.log(WRAPPED_MASS)
        upper = (self._cumulants(theta + s) - base + need) / s
        lower = -(self._cumulants(theta - s) - base + need) / s
        return float(np.nanmax(lower)), float(np.nanmin(upper)), mean

    def _reach(self, theta: float, reach: float | None) -> tuple[float, float, float]:
        low, high, mean = self._window(theta)
        return (low, high, mean) if reach is None else (min(low, reach), max(high, reach), mean)

    def _finest(self, theta: float, wanted: float, reach: float | None) -> float:
        """The interval a composition can have: the wanted one unless the window is too wide."""
        low, high, _ = self._reach(theta, reach)
        return max(wanted, (high - low) / (_MAX_POINTS - 8))

    def _compose(self, theta: float, wanted: float, reach: float | None) -> Composed:
        low, high, mean = self._reach(theta, reach)
        interval = self._finest(theta, wanted, reach)
        size = fft.next_fast_len(
            max(int(math.ceil((high - low) / interval)) + 8, _MIN_POINTS), real=True
        )
        spectrum = Spectrum(size)
        log_scale, shift, log_finite, cell = 0.0, 0, 0.0, interval
        # The widest first: it tells which frequencies matter.
        for branches, count in sorted(self._direction, key=self._cumulants.width, reverse=True):
            pmf = discretise(branches, interval)
            tilted, log_moment, centre = tilt_masses(pmf, theta)
            spectrum.multiply_power(tilted, count)
            log_scale += count * log_moment
            shift += count * centre
            log_finite += count * math.log1p(-pmf.infinite)
            cell = max(cell, pmf.cell)
        composed, moduli = spectrum.invert()
        # Rounding: relative (steps + log n) * eps in the spectrum, hence at most that times the sum
        # of its moduli over n in every mass.
        rounding = 4.0 * _ROUNDING * (self._steps + math.log2(size)) * moduli
        composed = np.maximum(composed, 0.0) + rounding
        first = int(math.floor(low / interval)) - 2
        composed = np.roll(composed, -((first - shift) % size))
        log_moment = log_scale
        log_scale -= theta * mean
        top = (first + size - 1) * interval
        wrapped = math.log(2.0 * WRAPPED_MASS) + log_scale - theta * (top - mean)
        extra = -math.expm1(log_finite) + math.exp(min(wrapped, 0.0))
        return Composed(
            first, interval, cell, composed, theta, mean, log_scale, extra, log_moment, rounding
        )
