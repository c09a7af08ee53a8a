# SPDX-License-Identifier: Apache-2.0
"""The PLD engine: epsilon and delta from privacy loss distributions composed by one FFT.

Every discretised loss distribution is TILTED by exp(theta * loss) before it is composed (Esscher's
transform), with theta chosen so that the composed distribution is centred where the answer lies. Then
the rounding floor of the FFT is relative to the answer, not absolute: a delta of 1e-15 is as safe as one
of 1e-3. Everything approximate is on the pessimistic side: discretisation (see `discretise`), cut
tails (put into delta), wrap-around of the FFT and rounding (both bounded and added to delta).

The grid's interval follows the number of compositions: connecting the dots adds to the cumulant function
K(theta) of one step at most (theta^2 + theta) h^2 / 8, hence to epsilon at most steps * (1 + theta) * h^2 / 8.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from typing import Sequence

import numpy as np
from scipy import fft, signal

from tf_subjectdp.accounting._checks import SMALLEST_PLD_DELTA
from tf_subjectdp.accounting.cumulants import Cumulants, Direction
from tf_subjectdp.accounting.discretise import LossPmf, discretise, infinite_mass
from tf_subjectdp.accounting.gaussian import gaussian_delta, gaussian_epsilon
from tf_subjectdp.accounting.ledger import Ledger
from tf_subjectdp.accounting.rdp import rdp_epsilon

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
        return math.inf
    if delta < SMALLEST_PLD_DELTA:
        raise ValueError(
            f"delta={delta:g} is below {SMALLEST_PLD_DELTA:g}, where this arithmetic ends; "
            f'use engine="rdp", or a larger delta.'
        )
    answer, excess = max(_Direction(d).epsilon(delta, relative_error) for d in _directions(ledger))
    if excess > max(STATED_ERROR, 2.0 * relative_error) * answer:
        _LOGGER.warning(
            "epsilon %.6g over %d steps may be up to %.2g above the true value: its loss distribution "
            "could not be discretised more finely.",
            answer,
            ledger.steps,
            excess,
        )
    # Beyond any use a grid fails or is slow; Renyi's bound is right there too, and close.
    return answer if answer < _HOPELESS else min(answer, rdp_epsilon(ledger, delta))


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
    return min(answer, 1.0)


def _refuse_unsupported(ledger: Ledger) -> None:
    for mechanism, _ in ledger.entries:
        if mechanism.pld_refusal is not None:
            raise ValueError(
                f'engine="pld" cannot account for {mechanism!r}: {mechanism.pld_refusal}.'
            )


def _directions(ledger: Ledger) -> Sequence[Direction]:
    """All entries in the direction "remove", and in the direction "add" where it differs."""
    per_entry = [(mechanism.directions(), count) for mechanism, count in ledger.entries]
    first = tuple((d[0], count) for d, count in per_entry)
    last = tuple((d[-1], count) for d, count in per_entry)
    return (first,) if first == last else (first, last)


@dataclasses.dataclass(frozen=True)
class _Composed:
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
        """Losses l_i, sums over j >= i of w_j, and of w_j exp(l_i - l_j); w untilted up to a factor."""
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
        answer = None
        for tilt in (theta, theta / 2.0, theta / 8.0, theta / 64.0, 0.0):
            if not self._spread(tilt):
                return math.inf, 0.0
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
            # Renyi's bound, by which the interval was chosen, was far above the answer; and where rare
            # steps lose much, a smaller tilt allows a finer grid. Every result bounds from above; with
            # millions of steps the finer is not always the better.
            slope = composed.slope_at(answer, delta)
            wanted = self._interval(max(slope, other), answer, relative_error)
            finer = self._compose(other, wanted, answer)
            refined = finer.epsilon_at(delta)
            if refined is not None and refined < answer:
                answer, composed = refined, finer
                if answer <= 0.0:
                    return 0.0, 0.0
                excess = self._excess(composed, answer, delta)
        return min(answer, max(self._cumulants.largest_loss, 0.0)), excess

    def delta(self, epsilon: float, relative_error: float) -> float:
        """delta from above."""
        if epsilon >= self._cumulants.largest_loss:
            return self._infinite_mass()


        def bound(theta: np.ndarray, cumulant: np.ndarray) -> np.ndarray:
            return cumulant - theta * epsilon

        theta = self._cumulants.minimise(bound)
        answers = []
        for tilt in (theta, theta / 2.0, theta / 8.0, theta / 64.0, 0.0):
            if not self._spread(tilt):
                answers.append(self._chernoff(tilt, epsilon))
                continue
            interval = self._interval(tilt, epsilon, relative_error)
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
        return -math.expm1(log_finite)

    def _spread(self, theta: float) -> bool:
        """Whether the tilted loss has a finite, positive deviation, i.e. whether a grid makes sense."""
        mean, deviation = self._cumulants.mean_and_deviation(theta)
        return math.isfinite(mean) and 0.0 < deviation < math.inf

    def _chernoff(self, theta: float, epsilon: float) -> float:
        """An upper bound on delta that needs no composition (used if epsilon is out of any window)."""
        value = float(self._cumulants(np.array([theta]))[0]) - theta * epsilon
        if not math.isfinite(value):
            return 1.0
        return min(1.0, math.exp(min(value, 0.0)) * (1.0 + 1e-6) + self._infinite_mass())

    def _interval(self, theta: float, epsilon: float, relative_error: float) -> float:
        """Interval at which discretisation adds at most `relative_error` * epsilon."""
        _, deviation = self._cumulants.mean_and_deviation(theta)
        variance = deviation**2
        scale = epsilon / (1.0 + theta)
        scale = min(max(scale, 1e-3 * variance), variance)
        # No loss moves by more than the interval, so this much is always fine enough.
        enough = relative_error * epsilon / self._steps
        return max(math.sqrt(8.0 * relative_error * scale / self._steps), enough)

    def _excess(self, composed: _Composed, epsilon: float, delta: float) -> float:
        """What discretisation has added to epsilon, at most."""
        slope = composed.slope_at(epsilon, delta)
        theta = composed.theta
        bound = self._steps * (1.0 + slope) * composed.cell**2 / 8.0
        if theta < 1e-3 or not 0.5 * slope < theta < 2.0 * slope:
            return bound
        # Around the tilt it can be measured on the cumulant; the quadrature's own error (relative
        # 1e-12 a step) is no evidence of anything.
        exact = float(self._cumulants(np.array([theta]))[0])
        measured = max(0.0, composed.log_moment - exact) / theta
        return min(bound, measured + self._steps * 1e-12 / theta)

    def _window(self, theta: float) -> tuple[float, float, float]:
        """Losses between which all but `_WRAPPED_MASS` of the tilted composition lies (Chernoff)."""
        mean, deviation = self._cumulants.mean_and_deviation(theta)
        # Where rare steps lose much, the best s is far below that of a Gaussian tail (8 / deviation).
        s = np.geomspace(1e-3, 40.0, 36) / deviation
        base = float(self._cumulants(np.array([theta]))[0])
        need = -math.log(_WRAPPED_MASS)
        upper = (self._cumulants(theta + s) - base + need) / s
        lower = -(self._cumulants(theta - s) - base + need) / s
        return float(np.nanmax(lower)), float(np.nanmin(upper)), mean

    def _compose(self, theta: float, interval: float, reach: float | None) -> _Composed:
        low, high, mean = self._window(theta)
        if reach is not None:
            low, high = min(low, reach), max(high, reach)
        interval = max(interval, (high - low) / (_MAX_POINTS - 8))
        size = fft.next_fast_len(
            max(int(math.ceil((high - low) / interval)) + 8, _MIN_POINTS), real=True
        )
        spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
        log_scale, shift, log_finite, cell = 0.0, 0, 0.0, interval
        for branches, count in self._direction:
            pmf = discretise(branches, interval)
            tilted, log_moment, centre = _tilt(pmf, theta, size)
            _multiply_power(spectrum, fft.rfft(tilted), count)
            log_scale += count * log_moment
            shift += count * centre
            log_finite += count * math.log1p(-pmf.infinite)
            cell = max(cell, pmf.cell)
        composed = fft.irfft(spectrum, size)
        # Rounding: relative (steps + log n) * eps in the spectrum, hence at most that times the sum of its
        # moduli over n in every mass.
        moduli = (2.0 * np.abs(spectrum).sum() + 1.0) / size
        rounding = 4.0 * _ROUNDING * (self._steps + math.log2(size)) * moduli
        composed = np.maximum(composed, 0.0) + rounding
        first = int(math.floor(low / interval)) - 2
        composed = np.roll(composed, -((first - shift) % size))
        log_moment = log_scale
        log_scale -= theta * mean
        top = (first + size - 1) * interval
        wrapped = math.log(2.0 * _WRAPPED_MASS) + log_scale - theta * (top - mean)
        extra = -math.expm1(log_finite) + math.exp(min(wrapped, 0.0))
        return _Composed(first, interval, cell, composed, theta, mean, log_scale, extra, log_moment)


def _tilt(pmf: LossPmf, theta: float, size: int) -> tuple[np.ndarray, float, int]:
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


def _multiply_power(spectrum: np.ndarray, base: np.ndarray, count: int) -> None:
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
