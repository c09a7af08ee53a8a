# SPDX-License-Identifier: Apache-2.0
"""The PLD engine: epsilon and delta from privacy loss distributions composed by one FFT.

Every discretised loss distribution is TILTED by exp(theta * loss) before it is composed (Esscher's
transform), with theta chosen so that the composed distribution is centred where the answer lies.
Then the rounding floor of the FFT is relative to the answer, not absolute: a delta of 1e-15 is as
safe as one of 1e-3. Everything approximate is on the pessimistic side: discretisation (see
`discretise`), cut tails (put into delta), wrap-around of the FFT and rounding (both bounded and
added to delta).

The grid's interval follows the number of compositions: connecting the dots adds to the cumulant
function K(theta) of one step at most (theta^2 + theta) h^2 / 8, hence to epsilon at most steps * (1
+ theta) * h^2 / 8.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence

import numpy as np
from scipy import fft

from tf_subjectdp.accounting._checks import SMALLEST_PLD_DELTA
from tf_subjectdp.accounting.engine.composition import (
    Composed,
    SingleRelease,
    Spectrum,
    tilt_masses,
)
from tf_subjectdp.accounting.engine.cumulants import Cumulants, Direction
from tf_subjectdp.accounting.engine.discretise import discretise, infinite_mass
from tf_subjectdp.accounting.engine.gaussian import gaussian_delta, gaussian_epsilon
from tf_subjectdp.accounting.engine.ledger import Ledger
from tf_subjectdp.accounting.engine.mechanisms import LossAtoms
from tf_subjectdp.accounting.engine.rdp import rdp_epsilon

_LOGGER = logging.getLogger(__name__)

#: Relative error in epsilon the discretisation aims at, and the one above which it says so.
TARGET_ERROR = 1e-5
STATED_ERROR = 1e-3

# An epsilon above this protects nobody: Renyi's bound is returned instead of a grid's.
_HOPELESS = 1e5

_WRAPPED_MASS = 1e-14
_MIN_POINTS = 1 << 10
_MAX_POINTS = 1 << 22
_ROUNDING = float(np.finfo(np.float64).eps)


@functools.lru_cache(maxsize=256)
def pld_epsilon(ledger: Ledger, delta: float, relative_error: float = TARGET_ERROR) -> float:
    """Smallest epsilon >= 0 at `delta`, from above.

    Args:
      ledger: what runs.
      delta: in [0, 1).
      relative_error: bound on what the discretisation may add to epsilon, relative.

    Returns:
      epsilon, infinite if there is none.

    Raises:
      ValueError: the ledger holds a mechanism without a loss distribution, or delta is positive but
        below 1e-25.
    """
    _refuse_unsupported(ledger)
    if ledger.nonprivate:
        return math.inf
    mu = ledger.only_gaussian_mu
    if mu is not None:
        return gaussian_epsilon(mu, delta)
    if delta == 0.0:
        return _pure_epsilon(ledger)
    if delta < SMALLEST_PLD_DELTA:
        raise ValueError(
            f"delta={delta:g} is below {SMALLEST_PLD_DELTA:g}, where this arithmetic ends; "
            f'use engine="rdp", or a larger delta.'
        )
    if ledger.presence <= delta:
        return 0.0
    if _largest_shift(ledger) > 30.0:
        bound = rdp_epsilon(ledger, delta)
        if bound >= _HOPELESS:
            return bound
    answer, excess = max(_Direction(d).epsilon(delta, relative_error) for d in _directions(ledger))
    if answer < _HOPELESS and excess <= max(STATED_ERROR, 2.0 * relative_error) * answer:
        return answer
    bound = rdp_epsilon(ledger, delta)
    if min(answer, bound) < _HOPELESS:
        _LOGGER.warning(
            "epsilon %.6g at delta %.3g over %d steps may be up to %.2g above the true value: its "
            "loss distribution could not be discretised more finely.",
            min(answer, bound),
            delta,
            ledger.steps,
            excess if answer <= bound else bound,
        )
    return min(answer, bound)


@functools.lru_cache(maxsize=256)
def pld_delta(ledger: Ledger, epsilon: float, relative_error: float = TARGET_ERROR) -> float:
    """Smallest delta at `epsilon`, from above; never below 1e-36 or so unless it is zero.

    Args:
      ledger: what runs.
      epsilon: finite, >= 0.
      relative_error: bound on what the discretisation may add, as a relative change of epsilon.

    Raises:
      ValueError: the ledger holds a mechanism without a loss distribution.
    """
    _refuse_unsupported(ledger)
    if ledger.nonprivate:
        return 1.0
    mu = ledger.only_gaussian_mu
    if mu is not None:
        return gaussian_delta(mu, epsilon)
    answer = max(_Direction(d).delta(epsilon, relative_error) for d in _directions(ledger))
    return min(answer, ledger.presence)


def _pure_epsilon(ledger: Ledger) -> float:
    """epsilon at delta 0: infinite as soon as anything is Gaussian."""
    largest = 0.0
    for direction in _directions(ledger):
        pairs = [[pair for _, pair in branches] for branches, _ in direction]
        if not all(isinstance(pair, LossAtoms) for step in pairs for pair in step):
            return math.inf
        losses = [max(0.0, *(pair.losses[-1] for pair in step)) for step in pairs]
        total = math.fsum(count * loss for loss, (_, count) in zip(losses, direction, strict=True))
        largest = max(largest, total)
    return largest


def _refuse_unsupported(ledger: Ledger) -> None:
    for mechanism, _ in ledger.entries:
        if mechanism.pld_refusal is not None:
            raise ValueError(
                f'engine="pld" cannot account for {mechanism!r}: {mechanism.pld_refusal}.'
            )


def _largest_shift(ledger: Ledger) -> float:
    """The largest distance of a component of P from 0, in standard deviations of the noise."""
    branches = (b for mechanism, _ in ledger.entries for b in mechanism.directions()[0])
    return max(
        (max(pair.p_locations) for _, pair in branches if not isinstance(pair, LossAtoms)),
        default=0.0,
    )


def _directions(ledger: Ledger) -> Sequence[Direction]:
    """All entries in the direction "remove", and in the direction "add" where it differs."""
    per_entry = [(mechanism.directions(), count) for mechanism, count in ledger.entries]
    first = tuple((d[0], count) for d, count in per_entry)
    last = tuple((d[-1], count) for d, count in per_entry)
    return (first,) if first == last else (first, last)


class _Direction:
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
        if not expected < _HOPELESS:
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
        """Losses between which all but `_WRAPPED_MASS` of the tilted sum lies (Chernoff)."""
        mean, deviation = self._cumulants.mean_and_deviation(theta)
        # Where rare steps lose much, the best s is far below that of a Gaussian tail (8 /
        # deviation).
        s = np.geomspace(1e-3, 40.0, 36) / deviation
        base = float(self._cumulants(np.array([theta]))[0])
        need = -math.log(_WRAPPED_MASS)
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
        wrapped = math.log(2.0 * _WRAPPED_MASS) + log_scale - theta * (top - mean)
        extra = -math.expm1(log_finite) + math.exp(min(wrapped, 0.0))
        return Composed(
            first, interval, cell, composed, theta, mean, log_scale, extra, log_moment, rounding
        )
