# SPDX-License-Identifier: Apache-2.0
"""Discretisation of trade-off curves from below, and their tensor product by FFT.

A curve is replaced by the upper envelope of its supporting lines of the slopes -exp(i h): a
piecewise linear curve below it ("connect the dots", Doroshenko et al., arXiv:2207.04380). The
tensor product of such curves is the convolution of their loss distributions; it is taken under P
and under Q separately, because each is accurate only where it is large. Below the true curve always:
the lines by construction; rounding and the wrap-around of the FFT through `error`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import fft

from tf_subjectdp.accounting.engine.composition import log_power, phase_of_power, polar
from tf_subjectdp.accounting.tradeoff.curves import TradeOff
from tf_subjectdp.accounting.tradeoff.polyline import PiecewiseLinear

_TAIL = 1e-18
_LARGEST_LOSS = 700.0
_MAX_POINTS = 1 << 21
_EPS = float(np.finfo(np.float64).eps)
_TILTS = np.geomspace(1e-3, 1e3, 121)


def discretise(curve: TradeOff, interval: float) -> PiecewiseLinear:
    """The envelope of the supporting lines of `curve` whose log-slopes are multiples of `interval`.

    Args:
      curve: any curve.
      interval: h, > 0; made larger where more than two million lines would be needed.

    Returns:
      A curve below `curve`, by at most `resolution`; losses are evenly spaced.
    """
    low, high = -_reach(curve.inverse()), _reach(curve)
    interval = max(interval, (high - low) / _MAX_POINTS)
    grid = interval * np.arange(math.floor(low / interval), math.ceil(high / interval) + 1)
    tails = curve.tails(grid)
    # A mass is a difference of the tails that are small there.
    upper = grid[:-1] >= 0.0
    q_cell = np.where(upper, -np.diff(tails.q_above), np.diff(tails.q_below))
    p_cell = np.where(upper, -np.diff(tails.p_above), np.diff(tails.p_below))
    q_cell = np.maximum(q_cell, 0.0)
    p_cell = np.clip(p_cell, q_cell * np.exp(-grid[1:]), q_cell * np.exp(-grid[:-1]))
    share = -np.expm1(-interval)
    # Both masses of a cell are kept, on its two ends.
    right = np.clip((q_cell - np.exp(grid[:-1]) * p_cell) / share, 0.0, q_cell)
    left = q_cell - right
    q = np.zeros(len(grid))
    q[1:] += right
    q[:-1] += left
    # Beyond the ends: what the outermost lines say.
    q[-1] += min(np.exp(grid[-1]) * tails.p_above[-1], tails.q_above[-1])
    q[0] += min(tails.q_below[0], np.exp(grid[0]) * tails.p_below[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = np.where(q_cell > 0.0, left * right / q_cell, 0.0)
    p = q * np.exp(-grid)
    q_infinite = max(0.0, float(curve._delta(grid[-1:])[0]))
    p_infinite = max(0.0, float(curve.inverse()._delta(-grid[:1])[0]))
    if max(abs(1.0 - q_infinite - q.sum()), abs(1.0 - p_infinite - p.sum())) > 1e-6:
        raise ValueError(
            f"this curve has privacy losses from {low:.3g} to {high:.3g}, of which those beyond "
            f"about 35 are lost to rounding; such curves cannot be composed or grouped numerically: "
            f"take delta and epsilon from the curve itself."
        )
    return PiecewiseLinear(
        losses=grid,
        p_masses=p,
        q_masses=q,
        q_infinite=q_infinite,
        p_infinite=p_infinite,
        self_inverse=curve.symmetric,
        adversary=curve.adversary,
        error=curve.error,
        resolution=curve.resolution + share * float(gap.max(initial=0.0)),
    )


def _reach(curve: TradeOff) -> float:
    """Loss beyond which delta no longer falls, within 1e-18."""
    points = np.concatenate([[1e-9], np.geomspace(1e-8, _LARGEST_LOSS, 600)])
    delta = curve._delta(points)
    return float(points[int(np.argmax(delta <= delta[-1] + _TAIL))])


def composition_interval(count: int) -> float:
    """Spacing h for `count` curves: n (1 + theta) h^2 / 8 is what it may add to epsilon."""
    return 2e-3 / math.sqrt(count)


def convolve(factors: Sequence[tuple[TradeOff, int]], interval: float) -> PiecewiseLinear:
    """The tensor product of the curves, each taken `count` times.

    Args:
      factors: (curve, count >= 1).
      interval: h of the discretisation; doubled until the product fits in memory.
    """
    while True:
        curves = [(discretise(curve, interval), count) for curve, count in factors]
        interval = max(c.losses[1] - c.losses[0] for c, _ in curves)
        low, high = -_tail(curves, under_p=True), _tail(curves, under_p=False)
        first = math.floor(low / interval)
        size = fft.next_fast_len(math.ceil(high / interval) - first + 2, real=True)
        if size <= _MAX_POINTS and all(
            abs(c.losses[1] - c.losses[0] - interval) < 1e-9 * interval for c, _ in curves
        ):
            return _product(curves, interval, first, size)
        interval *= 2.0


def _tail(curves: Sequence[tuple[PiecewiseLinear, int]], *, under_p: bool) -> float:
    """x with P[sum of -L > x] (or Q[sum of L > x]) <= 1e-18, by Chernoff's bound."""
    total = np.zeros_like(_TILTS)
    for curve, count in curves:
        mass, sign = (curve.p_masses, -1.0) if under_p else (curve.q_masses, 1.0)
        used = mass > 0.0
        losses, logs = sign * curve.losses[used], np.log(mass[used])
        for i, tilt in enumerate(_TILTS):
            exponent = tilt * losses + logs
            peak = float(exponent.max())
            total[i] += count * (peak + math.log(float(np.exp(exponent - peak).sum())))
    bound = float(np.min((total - math.log(_TAIL)) / _TILTS))
    furthest = sum(count * float(-c.losses[0] if under_p else c.losses[-1]) for c, count in curves)
    return min(bound, furthest)


def _product(
    curves: Sequence[tuple[PiecewiseLinear, int]], interval: float, first: int, size: int
) -> PiecewiseLinear:
    spectra = [np.ones(size // 2 + 1, dtype=np.complex128) for _ in range(2)]
    offset, steps, norm = 0, 0, 0.0
    for curve, count in curves:
        index = np.rint(curve.losses / interval).astype(np.int64)
        centre = int(index[int(np.argmax(curve.q_masses))])
        offset += count * centre
        steps += count
        for spectrum, mass in zip(spectra, (curve.p_masses, curve.q_masses), strict=True):
            placed = np.bincount((index - centre) % size, weights=mass, minlength=size)
            base = fft.rfft(placed)
            # Every frequency is kept, for the bound on the rounding.
            spectrum *= polar(log_power(base, count), phase_of_power(base, count))
            norm += count * float(np.sqrt(np.sum(placed**2)))
    shift = first - offset
    p, q = (np.maximum(np.roll(fft.irfft(s, size), -shift), 0.0) for s in spectra)
    losses = interval * (first + np.arange(size))
    upper = losses >= 0.0
    q = np.where(upper, q, p * np.exp(np.minimum(losses, 0.0)))
    p = np.where(upper, q * np.exp(-np.maximum(losses, 0.0)), p)
    q_infinite = _any_infinite((c.q_infinite, n) for c, n in curves)
    p_infinite = _any_infinite((c.p_infinite, n) for c, n in curves)
    error = sum(count * curve.error for curve, count in curves)
    resolution = sum(count * curve.resolution for curve, count in curves)
    rounding = _rounding(spectra, steps, norm, size)
    rounding += max(abs(1.0 - q_infinite - float(q.sum())), abs(1.0 - p_infinite - float(p.sum())))
    return PiecewiseLinear(
        losses=losses,
        p_masses=p,
        q_masses=q,
        q_infinite=q_infinite,
        p_infinite=p_infinite,
        self_inverse=all(c.symmetric for c, _ in curves),
        error=error + rounding + 4.0 * _TAIL,
        resolution=resolution + error + 2.0 * rounding,
    )


def _any_infinite(parts) -> float:
    return -math.expm1(sum(n * math.log1p(-min(mass, 1.0 - _EPS)) for mass, n in parts))


def _rounding(spectra: list[np.ndarray], steps: int, norm: float, size: int) -> float:
    """Bound on the L1 error of the inverse transform of a product of `steps` transforms.

    A transform's coefficient is off by c = eps log2(size) relative to the norm of its input. Two
    bounds on what that does to the product: by the triangle inequality over frequencies, and by
    Cauchy-Schwarz over losses.
    """
    unit = _EPS * math.log2(size)
    by_frequency = max(2.0 * float(np.sum(np.abs(s) ** ((steps - 1.0) / steps))) for s in spectra)
    by_norm = math.sqrt(size) * norm
    inverse = math.sqrt(2.0 * max(float(np.sum(np.abs(s) ** 2)) for s in spectra))
    return unit * (min(steps * by_frequency, by_norm) + inverse) + 4.0 * steps * _EPS
