# SPDX-License-Identifier: Apache-2.0
"""f-DP: trade-off curves, their algebra, and their exchange with (epsilon, delta).

        from tf_subjectdp.accounting import fdp
    curve = fdp.tensor(fdp.gaussian(1.0), fdp.subsample(fdp.gaussian(0.5), 0.01))
    curve(0.05), curve.delta(1.0), curve.epsilon(1e-5)

A curve computed numerically lies on or below the true one everywhere (the safe side), and says by
how much it may: `error` and `resolution`. The curves of batch clipping with shuffling and
subsampling (van Dijk et al., arXiv:2212.05796) are in `batch_fdp` and
`paper_fdp`; all their names are here too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.tradeoff.batch_clipping import (
    ADVERSARY_A0,
    ADVERSARY_A1,
    BatchScheme,
    HitLaw,
    closed_form_curve,
    exact_curve,
    hit_law,
    independent_curve,
    lower_curve,
    upper_curve,
)
from tf_subjectdp.accounting.tradeoff.curves import Subsampled, TradeOff
from tf_subjectdp.accounting.tradeoff.gaussians import GaussianCurve, RevealedGaussians
from tf_subjectdp.accounting.tradeoff.plan_curves import (
    fixed_size_parts_curve,
    sampled_parts_curve,
    shuffled_parts_curve,
)
from tf_subjectdp.accounting.tradeoff.polyline import PiecewiseLinear, from_powers, lower_hull
from tf_subjectdp.accounting.tradeoff.published import (
    paper_e1_curve,
    paper_f3_curve,
    paper_f3_occupancy,
)
from tf_subjectdp.accounting.tradeoff.tensor_product import (
    composition_interval,
    convolve,
    discretise,
)

__all__ = [
    "ADVERSARY_A0",
    "ADVERSARY_A1",
    "BatchScheme",
    "GaussianCurve",
    "HitLaw",
    "PiecewiseLinear",
    "RevealedGaussians",
    "TradeOff",
    "approximate_dp",
    "closed_form_curve",
    "double_conjugate",
    "exact_curve",
    "fixed_size_parts_curve",
    "from_approximate_dp",
    "gaussian",
    "group",
    "hit_law",
    "identity",
    "independent_curve",
    "inverse",
    "lower_curve",
    "paper_e1_curve",
    "paper_f3_curve",
    "paper_f3_occupancy",
    "piecewise_linear",
    "power",
    "sampled_parts_curve",
    "shuffled_parts_curve",
    "subsample",
    "tensor",
    "upper_curve",
]


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
    return convolve(others, interval or composition_interval(sum(n for _, n in others)))


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
    return curve if isinstance(curve, PiecewiseLinear) else discretise(curve, interval)
