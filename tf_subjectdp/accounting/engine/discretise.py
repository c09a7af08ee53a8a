# SPDX-License-Identifier: Apache-2.0
"""From a pair of mixtures to a discretised, pessimistic privacy loss distribution.

The line of outcomes is cut into cells; a cell's mass under P and under Q is put on the two losses
at the cell's ends so that both masses are kept, then each of those on the two neighbours in the
grid of losses in the same way. This is the "connect the dots" discretisation (Doroshenko et al.,
arXiv:2207.04380, Algorithm 1) applied cell by cell: it never lies below the true divergence, and
needs neither a difference of nearly equal deltas nor the exact inverse of the loss. What lies
beyond the last outcome counts as infinite loss; what lies before the first is moved up to the
first.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from scipy import special

from tf_subjectdp.accounting.engine.mechanisms import Branches, LossAtoms, Pair

# Outcomes further than this many standard deviations from every component are cut: mass 4e-36.
_REACH = 12.5
_CUT_MASS = 2.0 * float(special.ndtr(-_REACH))
_NODE_SPACING = 0.005
_COARSEST_SPACING = 0.05
_MAX_ENTRIES = 20_000_000
_MAX_ALIGNED = 300_000
_CHUNK = 2_000_000
_LOG_ROOT_2PI = 0.5 * float(np.log(2.0 * np.pi))


def log_ratio(
    x: np.ndarray, locations: tuple[float, ...], weights: tuple[float, ...], dropped: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """log of (sum_j w_j N(c_j, 1)) / N(0, 1) at `x`, and its derivative (the posterior mean of c).

    Args:
      x: outcomes, shape (n,), float64.
      locations: c_j, in standard deviations.
      weights: w_j, of sum 1 - dropped.
      dropped: what the weights lack of 1.

    Returns:
      Two arrays of shape (n,).
    """
    if len(locations) == 1 and weights[0] == 1.0:
        c = locations[0]
        return c * x - 0.5 * c * c, np.full_like(x, c)
    c = np.asarray(locations)
    w = np.asarray(weights)
    log_w = np.log(w)
    value, slope = np.empty_like(x), np.empty_like(x)
    rows = max(1, _CHUNK // len(c))
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        exponent = np.multiply.outer(x[part], c) - 0.5 * c * c
        # For rare sampling the ratio is close to 1: log1p keeps digits that a log-sum-exp loses.
        small = np.expm1(np.minimum(exponent, 50.0)) @ w - dropped
        exponent += log_w
        peak = exponent.max(axis=1)
        terms = np.exp(exponent - peak[:, None])
        total = terms.sum(axis=1)
        near_one = np.abs(small) < 0.5
        log_sum = peak + np.log(total)
        log_sum[near_one] = np.log1p(small[near_one])
        value[part] = log_sum
        slope[part] = (terms @ c) / total
    return value, slope


@dataclasses.dataclass(frozen=True)
class LossTable:
    """Outcomes `x` with log(P/N(0,1)) `lp`, the loss log(P/Q) `loss`, and their derivatives."""

    x: np.ndarray
    lp: np.ndarray
    lp_slope: np.ndarray
    loss: np.ndarray
    loss_slope: np.ndarray
    mass: float
    infinite: float

    def interpolate(self, x: np.ndarray, cell: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(lp, loss) at `x`, x[i] between nodes cell[i] and cell[i] + 1 (cubic Hermite)."""
        left = self.x[cell]
        width = self.x[cell + 1] - left
        t = (x - left) / width
        s = 1.0 - t
        # Hermite basis, written so that each end reproduces its node exactly.
        h00, h10 = (1.0 + 2.0 * t) * s * s, t * s * s * width
        h01, h11 = t * t * (3.0 - 2.0 * t), -t * t * s * width
        result = []
        for f, d in ((self.lp, self.lp_slope), (self.loss, self.loss_slope)):
            result.append(f[cell] * h00 + d[cell] * h10 + f[cell + 1] * h01 + d[cell + 1] * h11)
        return result[0], result[1]


@functools.lru_cache(maxsize=40)
def loss_table(pair: Pair) -> LossTable:
    """Tabulates the privacy loss of `pair` around the components of P."""
    nodes, mass = _nodes(pair), float(np.sum(pair.p_weights))
    if pair.symmetric:
        nodes, mass = _above_zero(pair, nodes)
    dropped_p, dropped_q = (pair.dropped, 0.0) if len(pair.p_weights) > 1 else (0.0, pair.dropped)
    lp, lp_slope = log_ratio(nodes, pair.p_locations, pair.p_weights, dropped_p)
    lq, lq_slope = log_ratio(nodes, pair.q_locations, pair.q_weights, dropped_q)
    return LossTable(
        x=nodes,
        lp=lp,
        lp_slope=lp_slope,
        loss=np.maximum.accumulate(lp - lq),
        loss_slope=lp_slope - lq_slope,
        mass=mass,
        infinite=pair.dropped + _CUT_MASS,
    )


def _nodes(pair: Pair) -> np.ndarray:
    """Evenly spaced nodes around every component of P; a wide gap without mass is one cell."""
    centres = np.asarray(pair.p_locations)
    starts = [float(centres[0] - _REACH)]
    ends = []
    for before, after in zip(centres[:-1], centres[1:], strict=True):
        if after - before > 2.0 * _REACH:
            ends.append(float(before + _REACH))
            starts.append(float(after - _REACH))
    ends.append(float(centres[-1] + _REACH))
    length = sum(e - s for s, e in zip(starts, ends, strict=True))
    atoms = max(len(pair.p_locations), len(pair.q_locations))
    spacing = min(max(_NODE_SPACING, length * atoms / _MAX_ENTRIES), _COARSEST_SPACING)
    pieces = [
        np.linspace(s, e, int(np.ceil((e - s) / spacing)) + 1)
        for s, e in zip(starts, ends, strict=True)
    ]
    return np.concatenate(pieces)


def _above_zero(pair: Pair, nodes: np.ndarray) -> tuple[np.ndarray, float]:
    """The nodes from the outcome of loss 0 on, half way to the other component, and P's mass there."""
    zero = 0.5 * pair.p_locations[-1]
    beyond = special.ndtr(np.asarray(pair.p_locations) - zero)
    return np.append(zero, nodes[nodes > zero]), float(beyond @ pair.p_weights)


def _mirrored_samples(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Losses and log masses of a symmetric pair, by Gauss-Legendre: a trapezoid needs two tails."""
    edges = loss_table(pair).x[:: 10 if _smooth(pair) else 1]
    half = 0.5 * np.diff(edges)
    node, weight = np.polynomial.legendre.leggauss(4)
    x = (edges[:-1] + half + np.multiply.outer(node, half)).ravel()
    loss, _ = log_ratio(x, pair.p_locations, pair.p_weights)
    under_q = np.log(np.multiply.outer(weight, half)).ravel() - 0.5 * x * x - _LOG_ROOT_2PI
    # 1 - 2 Phi(-mu/2)
    middle = np.log(pair.p_weights[0] * special.erf(pair.p_locations[-1] / np.sqrt(8.0)))
    # The last node is the largest loss there is; no mass lies on it.
    return (
        np.concatenate([loss, -loss, [0.0, loss_table(pair).loss[-1]]]),
        np.concatenate([under_q + loss, under_q, [middle, -np.inf]]),
    )


def samples(branches: Branches) -> tuple[np.ndarray, np.ndarray]:
    """Losses and log masses by quadrature: for moments of the loss, not for a guarantee.

    Returns:
      `loss` and `log_mass`, both of shape (n,); masses sum to 1 up to the quadrature's error
      (1e-9).
    """
    losses, logs = [], []
    for probability, pair in branches:
        if isinstance(pair, LossAtoms):
            losses.append(np.asarray(pair.losses))
            logs.append(np.log(pair.masses) + np.log(probability))
            continue
        if pair.symmetric:
            loss, log_mass = _mirrored_samples(pair)
            losses.append(loss)
            logs.append(log_mass + np.log(probability))
            continue
        table = loss_table(pair)
        # The trapezoid rule converges geometrically on Gaussian tails; every tenth node is plenty
        # unless sensitivities exceed the noise by far.
        stride = 10 if _smooth(pair) else 1
        x = table.x[::stride]
        width = np.gradient(x)
        losses.append(table.loss[::stride])
        logs.append(
            table.lp[::stride] - 0.5 * x * x - _LOG_ROOT_2PI + np.log(width) + np.log(probability)
        )
    rest = 1.0 - sum(probability for probability, _ in branches)
    if rest > 1e-15:
        losses.append(np.zeros(1))
        logs.append(np.log(np.array([rest])))
    return np.concatenate(losses), np.concatenate(logs)


def _smooth(pair: Pair) -> bool:
    points = np.unique(np.concatenate([pair.p_locations, pair.q_locations]))
    return len(points) < 2 or float(np.diff(points).max()) < 4.0


def infinite_mass(branches: Branches) -> float:
    """Mass that counts as infinite loss in `branches`: cut tails and dropped components."""
    return sum(
        probability * loss_table(pair).infinite
        for probability, pair in branches
        if not isinstance(pair, LossAtoms)
    )


@dataclasses.dataclass(frozen=True)
class LossPmf:
    """Masses on the losses index[i] * interval (indices may repeat), and `infinite` at infinity.

    `cell` is the largest distance over which a loss was spread where the mass is.
    """

    index: np.ndarray
    mass: np.ndarray
    interval: float
    infinite: float
    cell: float


def discretise(branches: Branches, interval: float) -> LossPmf:
    """The pessimistic loss distribution of `branches` on the grid of multiples of `interval`.

    Args:
      branches: (probability, pair) of one direction of a mechanism.
      interval: distance of the grid, > 0.
    """
    indices, masses = [], []
    widest = interval
    for weight, pair in branches:
        if isinstance(pair, LossAtoms):
            index, mass = _to_grid(np.asarray(pair.losses), np.asarray(pair.masses), interval)
        else:
            index, mass, cell = _pair_masses(loss_table(pair), interval)
            if pair.symmetric:
                index, mass = _with_mirror(index, mass, interval)
            widest = max(widest, cell)
        indices.append(index)
        masses.append(weight * mass)
    rest = 1.0 - sum(weight for weight, _ in branches)
    if rest > 1e-15:
        indices.append(np.zeros(1, dtype=np.int64))
        masses.append(np.array([rest]))
    index, mass = np.concatenate(indices), np.concatenate(masses)
    used = mass > 0.0
    return LossPmf(index[used], mass[used], interval, infinite_mass(branches), widest)


def _pair_masses(table: LossTable, interval: float) -> tuple[np.ndarray, np.ndarray, float]:
    edges, losses, aligned = _edges(table, interval)
    cell = np.clip(np.searchsorted(table.x, edges[:-1], side="right") - 1, 0, len(table.x) - 2)
    width = np.diff(edges)
    middle = edges[:-1] + 0.5 * width
    offset = width * (0.5 / np.sqrt(3.0))  # two-point Gauss-Legendre
    density, weighted = 0.0, 0.0
    for x in (middle - offset, middle + offset):
        lp, loss = table.interpolate(x, cell)
        value = np.exp(lp - 0.5 * x * x - _LOG_ROOT_2PI)
        density = density + value
        weighted = weighted - value * np.expm1(-np.maximum(loss - losses[:-1], 0.0))
    mass = 0.5 * width * density
    span = -np.expm1(-np.diff(losses))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = weighted / (density * span)
    # 0/0 where a cell has no width or no mass: everything at its upper end, the safe side.
    share = np.where(np.isfinite(share), np.clip(share, 0.0, 1.0), 1.0)
    mass *= table.mass / mass.sum()
    atoms = np.zeros(len(edges))
    atoms[:-1] += mass * (1.0 - share)
    atoms[1:] += mass * share
    return *_to_grid(losses, atoms, interval), aligned


def _with_mirror(
    index: np.ndarray, mass: np.ndarray, interval: float
) -> tuple[np.ndarray, np.ndarray]:
    """Masses on losses above 0, the same under Q on their negatives, and the rest at 0.

    What bounds the profile of orders above 1 bounds by that the one below, which follows from it.
    """
    above = index > 0
    index, mass = index[above], mass[above]
    below = mass * np.exp(-interval * index)
    rest = max(0.0, 1.0 - float(mass.sum()) - float(below.sum()))
    return np.concatenate([index, -index, [0]]), np.concatenate([mass, below, [rest]])


def _to_grid(
    losses: np.ndarray, atoms: np.ndarray, interval: float
) -> tuple[np.ndarray, np.ndarray]:
    below = np.floor(losses / interval)
    index = below.astype(np.int64)
    remainder = np.maximum(losses - below * interval, 0.0)
    share = np.clip(np.expm1(-remainder) / np.expm1(-interval), 0.0, 1.0)
    return (
        np.concatenate([index, index + 1]),
        np.concatenate([atoms * (1.0 - share), atoms * share]),
    )


def _edges(table: LossTable, interval: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Cell edges (all nodes, and the outcomes whose loss is a grid point) and the loss at each.

    Also the distance of the grid points used: a multiple of `interval` if there would be too many.
    """
    low, high = _aligned_range(table, interval)
    step = interval * max(1.0, np.ceil((high - low) / (interval * _MAX_ALIGNED)))
    targets = np.arange(np.ceil(low / step), np.floor(high / step) + 1.0) * step
    targets = targets[(targets > table.loss[0]) & (targets < table.loss[-1])]
    if not len(targets):
        return table.x, table.loss, step
    cell = np.clip(np.searchsorted(table.loss, targets, side="right") - 1, 0, len(table.x) - 2)
    left, right = table.x[cell], table.x[cell + 1]
    rise = table.loss[cell + 1] - table.loss[cell]
    x = left + (right - left) * (targets - table.loss[cell]) / np.where(rise > 0.0, rise, 1.0)
    slope = np.maximum(rise / (right - left), 1e-300)
    for _ in range(3):
        _, loss = table.interpolate(x, cell)
        x = np.clip(x - (loss - targets) / slope, left, right)
    _, loss = table.interpolate(x, cell)
    edges = np.concatenate([table.x, x])
    losses = np.concatenate([table.loss, loss])
    order = np.argsort(edges, kind="stable")
    return edges[order], np.maximum.accumulate(losses[order]), step


def _aligned_range(table: LossTable, interval: float) -> tuple[float, float]:
    """Losses between which cells follow the grid: all of them, or those that carry the mass.

    Elsewhere cells are one node wide: still pessimistic, only coarser where nothing much happens.
    """
    density = np.exp(table.lp - 0.5 * table.x**2 - _LOG_ROOT_2PI) * np.gradient(table.x)
    below, above = np.cumsum(density), np.cumsum(density[::-1])[::-1]
    low = high = 0.0
    for tail in (0.0, 1e-25, 1e-18, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6):
        inside = np.flatnonzero((below >= min(tail * 1e3, 1e-6)) & (above >= tail))
        if not len(inside):
            break
        low, high = float(table.loss[inside[0]]), float(table.loss[inside[-1]])
        if high - low <= interval * _MAX_ALIGNED:
            break
    return low, high
