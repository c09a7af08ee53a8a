# SPDX-License-Identifier: Apache-2.0
"""The algebra of trade-off curves (Dong, Roth & Su, "Gaussian differential privacy", JRSS-B 2022).

Where there is no closed form a curve is replaced by the upper envelope of its supporting lines of the
slopes -exp(i h): a piecewise linear curve below it ("connect the dots", Doroshenko et al.,
arXiv:2207.04380). The tensor product of such curves is the convolution of their loss distributions,
by FFT. It is taken under P and under Q separately, because each is accurate only where it is large,
and untilted: the accountant's composition is tilted towards one delta, and exact there only, but a
curve is asked everywhere. Below the true curve always: the lines by construction; rounding and the
wrap-around of the FFT through `error`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import fft

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.engine.composition import log_power, phase_of_power, polar
from tf_subjectdp.accounting.fdp.curves import (
    GaussianCurve,
    PiecewiseLinear,
    Subsampled,
    TradeOff,
    from_powers,
    lower_hull,
)

_TAIL = 1e-18
_LARGEST_LOSS = 700.0
_MAX_POINTS = 1 << 21
_EPS = float(np.finfo(np.float64).eps)
_TILTS = np.geomspace(1e-3, 1e3, 121)


def gaussian(mu: float) -> GaussianCurve:
    """G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu): N(mu, 1) against N(0, 1).

    Args:
      mu: sensitivity over noise standard deviation, finite, >= 0; 0 is the identity 1 - alpha.
    """
    return GaussianCurve(mu)


def identity() -> GaussianCurve:
    """Id(alpha) = 1 - alpha: nothing is released."""
    return GaussianCurve(0.0)


def approximate_dp(epsilon: float, delta: float) -> PiecewiseLinear:
    """f_(epsilon, delta), the curve of all (epsilon, delta)-private mechanisms.

    max{0, 1 - delta - exp(epsilon) alpha, exp(-epsilon) (1 - delta - alpha)} (Wasserman & Zhou;
    Dong, Roth & Su, Proposition 3).

    Args:
      epsilon: in [0, 700].
      delta: in [0, 1).
    """
    return from_approximate_dp([epsilon], [delta])


def from_approximate_dp(
    epsilons: Sequence[float] | np.ndarray, deltas: Sequence[float] | np.ndarray
) -> PiecewiseLinear:
    """The curve of what is (epsilons[i], deltas[i])-private for every i: max_i f_(eps_i, delta_i).

    Args:
      epsilons: in [0, 700], shape (n,).
      deltas: in [0, 1), shape (n,).

    Raises:
      ValueError: the shapes differ, n is 0, or a value is out of its range.
    """
    eps = np.atleast_1d(np.asarray(epsilons, dtype=np.float64))
    delta = np.atleast_1d(np.asarray(deltas, dtype=np.float64))
    if eps.ndim != 1 or eps.shape != delta.shape or not len(eps):
        raise ValueError(
            f"epsilons and deltas must be vectors of one length >= 1, got shapes {eps.shape} and "
            f"{delta.shape}."
        )
    if not np.all((eps >= 0.0) & (eps <= 700.0)):
        raise ValueError(f"epsilons must be in [0, 700], got {epsilons!r}.")
    if not np.all((delta >= 0.0) & (delta < 1.0)):
        raise ValueError(f"deltas must be in [0, 1), got {deltas!r}.")
    # Corners on and left of the diagonal, of the lines 1 - power = 1 - delta - exp(eps) alpha,
    # the steepest first, of equal ones the lowest delta last.
    steepest = np.lexsort((-delta, -np.exp(eps)))
    eps, delta = eps[steepest], np.minimum.accumulate(delta[steepest][::-1])[::-1]
    lines = _upper_envelope(eps, delta)
    eps, delta = eps[lines], delta[lines]
    slopes = np.exp(eps)
    cross = (delta[1:] - delta[:-1]) / (slopes[:-1] - slopes[1:])
    middle = (1.0 - delta[-1]) / (1.0 + slopes[-1])
    alpha = np.concatenate([[0.0], cross, [middle]])
    power = np.concatenate([[delta[0]], delta[:-1] + slopes[:-1] * cross, [1.0 - middle]])
    mirrored = from_powers(
        np.concatenate([alpha, (1.0 - power)[-2::-1]]), np.concatenate([power, 1.0 - alpha[-2::-1]])
    )
    return dataclasses.replace(mirrored, self_inverse=True)


def _upper_envelope(eps: np.ndarray, delta: np.ndarray) -> list[int]:
    """Which lines 1 - delta - exp(eps) alpha are the largest somewhere left of the diagonal."""
    slopes = np.exp(eps)
    kept: list[int] = []
    for i in range(len(eps)):
        # A line no steeper that starts no lower is nowhere below.
        while kept and (delta[i] <= delta[kept[-1]] or slopes[kept[-1]] == slopes[i]):
            kept.pop()
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (delta[i] - delta[a]) * (slopes[a] - slopes[b]) <= (delta[b] - delta[a]) * (
                slopes[a] - slopes[i]
            ):
                kept.pop()
            else:
                break
        kept.append(i)
    # A line that meets its successor beyond the diagonal's crossing never shows there.
    while len(kept) > 1:
        a, b = kept[-2], kept[-1]
        cross = (delta[b] - delta[a]) / (slopes[a] - slopes[b])
        if cross >= 1.0 - delta[a] - slopes[a] * cross:
            kept.pop()
        else:
            break
    return kept


def subsample(curve: TradeOff, p: float) -> TradeOff:
    """C_p(f) = min{f_p, f_p^-1}** with f_p = p f + (1 - p) Id: replace one, sampled at rate p.

    Holds for a sample of fixed size and for Poisson sampling alike (a unit replaced in place), if
    f bounds the step for ANY replaced unit; g = 1 only. Closed form for a symmetric curve.

    Args:
      curve: f.
      p: probability that the unit takes part, in [0, 1].
    """
    p = _checks.probability("p", p)
    if p == 0.0:
        return identity()
    if p == 1.0 and curve.symmetric:
        return curve
    if curve.symmetric:
        return Subsampled(
            curve,
            p,
            adversary=curve.adversary,
            error=p * curve.error,
            resolution=p * curve.resolution,
        )
    base = piecewise_linear(curve)
    alpha, power = base.alphas, base.powers
    mixed = 1.0 - (p * power + (1.0 - p) * alpha)
    # f_p has the corners of f (and the end (1, 0)); its inverse has them mirrored.
    x = np.concatenate([alpha, [1.0], mixed, [0.0]])
    y = np.concatenate([mixed, [0.0], alpha, [1.0]])
    result = double_conjugate(x, y)
    return dataclasses.replace(
        result,
        self_inverse=True,
        adversary=curve.adversary,
        error=base.error,
        resolution=base.resolution,
    )


def double_conjugate(alpha: np.ndarray, beta: np.ndarray) -> PiecewiseLinear:
    """f**: the largest convex curve below the points (alpha, beta), with (0, 1) and (1, 0) added.

    For the corners of a piecewise linear function this is its double conjugate. For samples of a
    curved one the chords lie ABOVE it: use `piecewise_linear` instead.

    Args:
      alpha: in [0, 1], shape (n,), in any order.
      beta: in [0, 1], shape (n,); points above 1 - alpha have no effect.
    """
    x = np.asarray(alpha, dtype=np.float64).ravel()
    y = np.asarray(beta, dtype=np.float64).ravel()
    if x.shape != y.shape or not np.all((x >= 0.0) & (x <= 1.0) & (y >= 0.0) & (y <= 1.0)):
        raise ValueError(
            f"alpha and beta must be of one length and in [0, 1], got shapes {x.shape} and "
            f"{y.shape}."
        )
    x, y = lower_hull(np.concatenate([x, [0.0, 1.0]]), np.concatenate([y, [1.0, 0.0]]))
    return from_powers(x, 1.0 - y)


def tensor(*curves: TradeOff, interval: float | None = None) -> TradeOff:
    """f1 (x) f2 (x) ...: the mechanisms run one after the other, adaptively (Dong et al., Thm 4).

    Gaussian curves compose in closed form. Others are discretised from below and convolved; the
    result lies on or below the true curve, by at most its `resolution`.

    Args:
      curves: at least one.
      interval: spacing of log-slopes; default 0.002 / sqrt(number of curves).

    Raises:
      ValueError: there is no curve, or the interval is not positive.
    """
    product = _tensor([(curve, 1) for curve in curves], interval)
    named = {curve.adversary for curve in curves}
    return product.named(named.pop()) if len(named) == 1 else product


def power(curve: TradeOff, count: int, *, interval: float | None = None) -> TradeOff:
    """f^((x) count): the tensor product of `count` >= 0 equal curves; see `tensor`."""
    if _checks.integer("count", count, 0) == 0:
        return identity().named(curve.adversary)
    return _tensor([(curve, count)], interval).named(curve.adversary)


def _tensor(factors: list[tuple[TradeOff, int]], interval: float | None) -> TradeOff:
    for curve, _ in factors:
        if not isinstance(curve, TradeOff):
            raise TypeError(f"a trade-off curve is expected, got {curve!r}; e.g. gaussian(1.0).")
    if not factors:
        raise ValueError("tensor needs at least one curve; `identity()` is the neutral one.")
    if interval is not None and not 1e-6 <= interval <= 1.0:
        raise ValueError(f"interval must be in [1e-6, 1], got {interval!r}.")
    gaussians = [(c, n) for c, n in factors if isinstance(c, GaussianCurve)]
    others = [(c, n) for c, n in factors if not isinstance(c, GaussianCurve)]
    mu = math.sqrt(math.fsum(n * c.mu**2 for c, n in gaussians))
    if not others:
        return gaussian(mu)
    if mu > 0.0:
        others.append((gaussian(mu), 1))
    if len(others) == 1 and others[0][1] == 1:
        return others[0][0]
    return _convolve(others, interval or _composition_interval(sum(n for _, n in others)))


def inverse(curve: TradeOff) -> TradeOff:
    """f^-1, the curve with the two hypotheses exchanged."""
    return curve.inverse()


def group(curve: TradeOff, size: int) -> TradeOff:
    """1 - (1 - f)^(o size): the curve for a group of `size` units (Dong et al., Theorem 2).

    G_mu gives G_(size mu). Another curve is first replaced by a piecewise linear one below it.

    Args:
      curve: f.
      size: an integer >= 1.
    """
    size = _checks.integer("size", size, 1)
    if size == 1:
        return curve
    if isinstance(curve, GaussianCurve):
        return dataclasses.replace(curve, mu=size * curve.mu)
    return piecewise_linear(curve).group(size).named(curve.adversary)


def piecewise_linear(curve: TradeOff, interval: float = 1e-3) -> PiecewiseLinear:
    """A piecewise linear curve on or below `curve`: the envelope of its supporting lines.

    Args:
      curve: f.
      interval: distance of the log-slopes of the lines, in [1e-6, 1].
    """
    if not 1e-6 <= interval <= 1.0:
        raise ValueError(f"interval must be in [1e-6, 1], got {interval!r}.")
    return curve if isinstance(curve, PiecewiseLinear) else _discretise(curve, interval)


def _discretise(curve: TradeOff, interval: float) -> PiecewiseLinear:
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


def _composition_interval(count: int) -> float:
    """Spacing h for `count` curves: n (1 + theta) h^2 / 8 is what it may add to epsilon."""
    return 2e-3 / math.sqrt(count)


def _convolve(factors: Sequence[tuple[TradeOff, int]], interval: float) -> PiecewiseLinear:
    """The tensor product of the curves, each taken `count` times.

    Args:
      factors: (curve, count >= 1).
      interval: h of the discretisation; doubled until the product fits in memory.
    """
    while True:
        curves = [(_discretise(curve, interval), count) for curve, count in factors]
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
