# SPDX-License-Identifier: Apache-2.0
"""The closed forms of group privacy, from one unit to `size` units and back.

Five languages, each with its inverse: (epsilon, delta) tight and as the papers write it, Renyi,
zero-concentrated, and f-DP of the Gaussian (general curves: `accounting.fdp`). Those of a group take
`size`, the number g of its units, in [1, 1e9]; all raise ValueError or TypeError for an
argument out of its range.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from scipy import optimize

from tf_subjectdp.accounting import _checks

_LARGEST_ORDER = 1e7


class Guarantee(NamedTuple):
    """An (epsilon, delta) guarantee; (inf, 1.0) promises nothing."""

    epsilon: float
    delta: float


class RenyiGuarantee(NamedTuple):
    """A Renyi guarantee: divergence at most `rdp` at order `order`."""

    order: float
    rdp: float


def group_tight(epsilon: float, delta: float, size: int) -> Guarantee:
    """(g eps, delta (e^{g eps} - 1)/(e^eps - 1)): the group's guarantee, by the triangle walk.

    The walk from one neighbour to the next, g times, multiplies the earlier deltas by e^eps each
    (Dwork & Roth 2014, Theorem 2.2, with delta; Vadhan 2017, Lemma 2.2, with its sum kept).

    Args:
      epsilon: of one unit, finite, >= 0.
      delta: of one unit, in [0, 1).

    Returns:
      The group's guarantee; (inf, 1.0) where the delta would reach 1, which promises nothing.
    """
    epsilon, delta, size = _arguments(epsilon, delta, size)
    return _guarantee(size * epsilon, delta, log_tight(epsilon, size))


def ungroup_tight(epsilon: float, delta: float, size: int) -> Guarantee:
    """What one unit needs, by `group_tight`, for the group of `size` to have (epsilon, delta)."""
    epsilon, delta, size = _arguments(epsilon, delta, size)
    return _unit(epsilon / size, delta, log_tight(epsilon / size, size))


def group_loose(epsilon: float, delta: float, size: int) -> Guarantee:
    """(g eps, g e^{(g-1) eps} delta): the form in which the papers state group privacy.

    Never smaller than `group_tight`: each of the g terms of its sum is replaced by the largest.
    Arguments and result as in `group_tight`.
    """
    epsilon, delta, size = _arguments(epsilon, delta, size)
    return _guarantee(size * epsilon, delta, log_loose(epsilon, size))


def ungroup_loose(epsilon: float, delta: float, size: int) -> Guarantee:
    """What one unit needs, by `group_loose`: (eps/g, delta e^{-(g-1) eps/g} / g).

    This is the calibration of LocalGroupDP (`paper_local_group_noise`).
    """
    epsilon, delta, size = _arguments(epsilon, delta, size)
    return _unit(epsilon / size, delta, log_loose(epsilon / size, size))


def group_rdp(order: float, rdp: float, size: int) -> RenyiGuarantee:
    """(alpha / 2^c, 3^c rdp) with c = ceil(log2 size) (Mironov 2017, Proposition 2).

    Args:
      order: alpha, finite, at least 2^(c+1).
      rdp: Renyi divergence of one unit at that order, finite, >= 0.
      size: a group of 3 counts as one of 4.
    """
    doublings = doublings_of(size)
    order, rdp = _positive("order", order), _not_negative("rdp", rdp)
    least = 2.0 ** (doublings + 1)
    # A group of one is the unit itself: any order above 1 stands.
    if (doublings and order < least) or order <= 1.0:
        raise ValueError(
            f"order must be at least {least:g} for a group of {size} (2^(c+1), c = "
            f"{doublings}; Mironov 2017, Proposition 2), got {order:g}; give the divergence at a "
            f"higher order."
        )
    return RenyiGuarantee(order / 2.0**doublings, rdp * 3.0**doublings)


def ungroup_rdp(order: float, rdp: float, size: int) -> RenyiGuarantee:
    """What one unit needs, by `group_rdp`, for the group to have divergence `rdp` at `order`.

    Args:
      order: the group's order, finite, at least 2 (above 1 for a group of one).
      rdp: the group's divergence at that order, finite, >= 0.
    """
    doublings = doublings_of(size)
    order, rdp = _positive("order", order), _not_negative("rdp", rdp)
    if (doublings and order < 2.0) or order <= 1.0:
        raise ValueError(
            f"a group's order must be at least 2 (Mironov 2017, Proposition 2), got {order:g}; "
            f"ask for the divergence at a higher order."
        )
    return RenyiGuarantee(order * 2.0**doublings, rdp / 3.0**doublings)


def group_zcdp(rho: float, size: int) -> float:
    """g^2 rho (Bun & Steinke 2016, Proposition 1.9): rho-zCDP of one unit, for a group of g.

    Args:
      rho: finite, >= 0.
    """
    return _not_negative("rho", rho) * group_size(size) ** 2


def ungroup_zcdp(rho: float, size: int) -> float:
    """rho / g^2: what one unit needs for the group to have rho-zCDP."""
    return _not_negative("rho", rho) / group_size(size) ** 2


def group_mu(mu: float, size: int) -> float:
    """g mu: 1-(1-f)^(o g) of the Gaussian f = G_mu is G_{g mu} (Dong, Roth, Su, Theorem 2.14).

    Args:
      mu: sensitivity over noise standard deviation, finite, >= 0.
    """
    return _not_negative("mu", mu) * group_size(size)


def ungroup_mu(mu: float, size: int) -> float:
    """mu / g: what one unit needs for the group to have G_mu."""
    return _not_negative("mu", mu) / group_size(size)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Smallest epsilon >= 0 that rho-zCDP implies at `delta`, over all real orders.

    Every order alpha > 1 gives rho alpha + log(1 - 1/alpha) - log(delta alpha)/(alpha - 1)
    (Canonne, Kamath, Steinke 2020, Proposition 12); the minimum is below rho + 2 sqrt(rho log
    1/delta). A Gaussian mechanism itself is better still: see `gaussian_epsilon`.

    Args:
      rho: finite, >= 0.
      delta: in (0, 1).
    """
    rho = _not_negative("rho", rho)
    delta = _checks.target_delta(delta, allow_zero=False)
    if rho == 0.0:
        return 0.0
    return smallest_conversion(lambda order: rho * order, delta, 1.0)


def smallest_conversion(divergence: Callable[[float], float], delta: float, least: float) -> float:
    """min over orders above `least` of the conversion of Canonne, Kamath, Steinke, Prop. 12."""
    log_delta = math.log(delta)

    def converted(log_theta: float) -> float:
        theta = math.exp(log_theta)
        order = least + theta
        value = (
            divergence(order)
            - math.log1p(1.0 / (order - 1.0))
            - (log_delta + math.log(order)) / (order - 1.0)
        )
        return value if math.isfinite(value) else 1e300

    grid, values = [], []
    point = math.log(1e-3)
    while point < math.log(_LARGEST_ORDER):
        grid.append(point)
        values.append(converted(point))
        # The objective has one minimum (divergences are convex in the order).
        if min(values[-4:]) > min(values):
            break
        point += 0.5
    best = min(range(len(grid)), key=values.__getitem__)
    found = optimize.minimize_scalar(
        converted,
        bounds=(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]),
        method="bounded",
        options={"xatol": 1e-4},
    )
    smallest = min(values[best], float(found.fun))
    return max(0.0, smallest) if smallest < 1e300 else math.inf


def log_tight(epsilon: float, size: int) -> float:
    """log of (e^{g eps} - 1)/(e^eps - 1), the sum of e^{i eps} for i < g; log g at 0."""
    if epsilon * size < 1e-9 or size == 1:
        # The sum is at most g e^{(g-1) eps}, here within 1e-9 of it.
        return log_loose(epsilon, size)
    return (size - 1) * epsilon + math.log(math.expm1(-size * epsilon) / math.expm1(-epsilon))


def log_loose(epsilon: float, size: int) -> float:
    """log of g e^{(g-1) eps}."""
    return math.log(size) + (size - 1) * epsilon


def _guarantee(epsilon: float, delta: float, log_factor: float) -> Guarantee:
    if delta == 0.0 or log_factor == 0.0:
        return Guarantee(epsilon, delta)
    log_delta = math.log(delta) + log_factor
    if log_delta >= 0.0 or epsilon == math.inf:
        return Guarantee(math.inf, 1.0)
    return Guarantee(epsilon, math.exp(log_delta))


def _unit(epsilon: float, delta: float, log_factor: float) -> Guarantee:
    # Underflow to 0 is on the safe side: it asks more of the unit.
    return Guarantee(epsilon, delta and math.exp(max(math.log(delta) - log_factor, -1e4)))


def _arguments(epsilon: float, delta: float, size: int) -> tuple[float, float, int]:
    return (
        _checks.target_epsilon(epsilon, allow_zero=True),
        _checks.target_delta(delta, allow_zero=True),
        group_size(size),
    )


def group_size(size: int) -> int:
    """Returns a group's size, checked: an integer in [1, 1e9]."""
    return _checks.integer("size", size, 1, 10**9)


def doublings_of(size: int) -> int:
    """Returns c = ceil(log2 size): a group of `size` lies within 2^c steps."""
    return (group_size(size) - 1).bit_length()


def _not_negative(name: str, value: float) -> float:
    number = _checks._real(name, value)
    if not 0.0 <= number < math.inf:
        raise ValueError(f"{name} must be finite and >= 0, got {number:g}; check its unit.")
    return number


def _positive(name: str, value: float) -> float:
    number = _not_negative(name, value)
    if number == 0.0:
        raise ValueError(f"{name} must be above 0, got 0; a Renyi order is above 1.")
    return number
