# SPDX-License-Identifier: Apache-2.0
"""The PLD engine: epsilon and delta of ledgers from privacy loss distributions (`composition`).

One at a time (`pld_epsilon`, `pld_delta`), or of very many compositions of a few types at once
(`batch_epsilons`, `batch_deltas`): the worse of the two directions.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence

import numpy as np

from tf_subjectdp.accounting._checks import SMALLEST_PLD_DELTA
from tf_subjectdp.accounting.engine.composition import (
    HOPELESS,
    ComposedDirection,
    ComposedRows,
    Direction,
)
from tf_subjectdp.accounting.engine.gaussian import gaussian_delta, gaussian_epsilon
from tf_subjectdp.accounting.engine.ledger import Ledger
from tf_subjectdp.accounting.engine.mechanisms import LossAtoms
from tf_subjectdp.accounting.engine.renyi import rdp_epsilon

_LOGGER = logging.getLogger(__name__)

#: Relative error in epsilon the discretisation aims at, and the one above which it says so.
TARGET_ERROR = 1e-5
STATED_ERROR = 1e-3
# Of many compositions: epsilons at which delta is computed, for one epsilon.
_GRID_POINTS = 120


def pld_epsilon(ledger: Ledger, delta: float, relative_error: float = TARGET_ERROR) -> float:
    """Smallest epsilon >= 0 at `delta`, from above; logs a warning where it may be far above.

    Args, Raises: see `pld_bound`.

    Returns:
      epsilon, infinite if there is none.
    """
    epsilon, excess = pld_bound(ledger, delta, relative_error)
    if excess is not None:
        _LOGGER.warning(
            "epsilon %.6g at delta %.3g over %d steps may be up to %.2g above the true value: its "
            "loss distribution could not be discretised more finely.",
            epsilon,
            delta,
            ledger.steps,
            excess,
        )
    return epsilon


@functools.lru_cache(maxsize=256)
def pld_bound(
    ledger: Ledger, delta: float, relative_error: float = TARGET_ERROR
) -> tuple[float, float | None]:
    """Smallest epsilon >= 0 at `delta`, from above, and how far above it may be where that is much.

    Args:
      ledger: what runs.
      delta: in [0, 1).
      relative_error: bound on what the discretisation may add to epsilon, relative.

    Returns:
      (epsilon, infinite if there is none; None, or the excess if it is above what was aimed at).

    Raises:
      ValueError: the ledger holds a mechanism without a loss distribution, or delta is positive but
        below 1e-25.
    """
    _refuse_unsupported(ledger)
    if ledger.nonprivate:
        return math.inf, None
    mu = ledger.only_gaussian_mu
    if mu is not None:
        return gaussian_epsilon(mu, delta), None
    if delta == 0.0:
        return _pure_epsilon(ledger), None
    if delta < SMALLEST_PLD_DELTA:
        raise ValueError(
            f"delta={delta:g} is below {SMALLEST_PLD_DELTA:g}, where this arithmetic ends; "
            f'use engine="rdp", or a larger delta.'
        )
    if ledger.presence <= delta:
        return 0.0, None
    if _largest_shift(ledger) > 30.0:
        bound = rdp_epsilon(ledger, delta)
        if bound >= HOPELESS:
            return bound, None
    answer, excess = max(
        ComposedDirection(d).epsilon(delta, relative_error) for d in _directions(ledger)
    )
    if answer < HOPELESS and excess <= max(STATED_ERROR, 2.0 * relative_error) * answer:
        return answer, None
    bound = rdp_epsilon(ledger, delta)
    if min(answer, bound) >= HOPELESS:
        return min(answer, bound), None
    return min(answer, bound), excess if answer <= bound else bound


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
    answer = max(ComposedDirection(d).delta(epsilon, relative_error) for d in _directions(ledger))
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


def can_batch(ledgers: Sequence[Ledger]) -> bool:
    """Whether every type has a loss distribution."""
    return all(
        not ledger.nonprivate and all(m.pld_refusal is None for m, _ in ledger.entries)
        for ledger in ledgers
    )


def batch_deltas(
    ledgers: Sequence[Ledger], counts: np.ndarray, epsilons: np.ndarray, delta: float
) -> np.ndarray:
    """delta of every row at every epsilon, from above.

    Args:
      ledgers: the types; see `can_batch`.
      counts: how often each type runs, float64 of shape (rows >= 1, types); no row is empty.
      epsilons: ascending, > 0 and next to each other (within a factor of four or so), shape (e,).
      delta: near which the answers are wanted accurately.

    Returns:
      float64 of shape (rows, e), at most 1.
    """
    per_type = [[(m.directions(), n) for m, n in ledger.entries] for ledger in ledgers]
    first = [tuple((d[0], n) for d, n in one) for one in per_type]
    last = [tuple((d[-1], n) for d, n in one) for one in per_type]
    result = ComposedRows(first).deltas(counts, epsilons, delta)
    if last != first:
        result = np.maximum(result, ComposedRows(last).deltas(counts, epsilons, delta))
    return np.minimum(result, 1.0)


def batch_epsilons(
    ledgers: Sequence[Ledger], counts: np.ndarray, bounds: np.ndarray, delta: float
) -> np.ndarray:
    """epsilon of every row, from above, within about 1e-3 (relative) of the true value.

    Args:
      ledgers, counts: as for `batch_deltas`.
      bounds: upper bounds on epsilon, finite and > 0, shape (rows,), at most about twice too large.
      delta: in (0, 1).

    Returns:
      float64 of shape (rows,), never above `bounds`.
    """
    result = bounds.copy()
    left = np.argsort(-bounds)
    while len(left):
        top = float(bounds[left[0]])
        # One tilt and one window serve rows of about the same epsilon.
        members = int(np.sum(bounds[left] > 0.5 * top))
        rows, left = left[:members], left[members:]
        grid = np.geomspace(0.3 * top, top, _GRID_POINTS)
        result[rows] = np.minimum(
            result[rows], _solve(batch_deltas(ledgers, counts[rows], grid, delta), grid, delta)
        )
    return result


def _solve(deltas: np.ndarray, epsilons: np.ndarray, delta: float) -> np.ndarray:
    """The smallest epsilon of each row that its deltas prove; delta is convex in exp(epsilon)."""
    deltas = np.minimum.accumulate(deltas, axis=1)
    kept = deltas <= delta
    place = np.argmax(kept, axis=1)
    rows = np.arange(len(deltas))
    before = np.maximum(place - 1, 0)
    high, low = deltas[rows, before], deltas[rows, place]
    left, step = epsilons[before], epsilons[place] - epsilons[before]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(high > low, (high - delta) / (high - low), 1.0)
    answer = left + np.log1p(np.clip(share, 0.0, 1.0) * np.expm1(step))
    answer = np.where(place == 0, epsilons[0], answer)
    return np.where(kept.any(axis=1), answer, math.inf)
