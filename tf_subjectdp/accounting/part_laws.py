# SPDX-License-Identifier: Apache-2.0
"""How many clipped results a unit's items hit: exact laws by counting, or laws never smaller.

Two ways of filling the parts of a batch. PLACES: items are dealt to N = M m s places, parts of s
places each (van Dijk et al., arXiv:2212.05796): `shuffled_epoch`, `sampled_round`. OWN CHOICE: every
item of a batch of any size joins one of the m parts independently, as the library draws: one step is
`parts_of_sampled` or `parts_of_batch`, an epoch of shuffled batches `epoch_law` or, never smaller,
`epoch_tail`. Places hit no fewer parts: with u parts hit after t items, an item more meets a new one
with chance (m - u) s / (m s - t) >= (m - u) / m, so that both can be coupled with the dealt u never
the smaller.

Every number is a sum of products of positive ones, so that the tails keep their relative accuracy;
mass that is cut moves upwards. Draws without replacement are computed from independent coins of one
probability p, given that all items came up: the law does not depend on p.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from scipy import special, stats

from tf_subjectdp.accounting.engine.binomial import binomial_window

# Of a sum of squares: upper mass below this counts as no privacy; lower mass is moved up.
_NEGLIGIBLE = 1e-40
# Of the parts hit in one step: mass below this is moved upwards.
_STEP_NEGLIGIBLE = 1e-60
# For laws that enter an exponential moment, where 1e-60 at the top would be felt.
_TINY = 1e-290
# Above these the law of the parts hit is replaced by one that is never smaller.
_MOST_THROWN, _MAX_THROW_WORK = 100_000, 3e8
# The exact law of a sum is taken up to this many operations.
_MAX_WORK = 5e9
_TAIL_ATOMS = 2_000

_T = TypeVar("_T")


def _repeated(base: _T, count: int, plus: Callable[[_T, _T], _T]) -> _T:
    """The sum of `count` >= 1 equal terms, by doubling."""
    result: _T | None = None
    while True:
        if count & 1:
            result = base if result is None else plus(result, base)
        count >>= 1
        if not count:
            return result
        base = plus(base, base)


def sum_law(
    values: np.ndarray, masses: np.ndarray, count: int, *, most_values: int | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """The law of the sum of `count` independent draws from whole numbers.

    Args:
      values: increasing, >= 0, shape (n,).
      masses: their probabilities, shape (n,).
      count: >= 1.
      most_values: where a law grows longer, its values are rounded up to a coarser grid; None: never.

    Returns:
      Values (float64, increasing), masses (those and the cut sum to 1), and the mass cut above.

    Raises:
      ValueError: the law is too costly.
    """
    values, masses = values[masses > 0.0], masses[masses > 0.0]
    if len(values) == 1:
        return np.array([float(values[0]) * count]), np.ones(1), 0.0
    if len(values) == 2 and values[0] == 0 and masses[1] < 1.0:
        low, law = binomial_window(count, float(masses[1]), _NEGLIGIBLE)
        cut = 0.0 if low + len(law) - 1 == count else _NEGLIGIBLE
        total = _Grid(law, low * int(values[1]), int(values[1]), cut, None)
    else:
        total = _repeated(_Grid.of(values, masses, most_values), count, _Grid.plus)
    used = total.law > 0.0
    kept = (total.first + total.step * np.arange(len(total.law), dtype=np.float64))[used]
    law = total.law[used]
    return kept, law * ((1.0 - total.dropped) / law.sum()), total.dropped


@dataclasses.dataclass
class _Grid:
    """A law on first, first + step, ...; tails cut, and coarser when it grows too long."""

    law: np.ndarray
    first: int
    step: int
    dropped: float
    most: int | None

    def __post_init__(self) -> None:
        upper = np.cumsum(self.law[::-1])[::-1]
        high = max(int(np.sum(upper > _NEGLIGIBLE)), 1)
        self.dropped += float(self.law[high:].sum())
        law = self.law[:high]
        low = min(int(np.sum(np.cumsum(law) <= _NEGLIGIBLE)), high - 1)
        self.law = law[low:].copy()
        self.law[0] += law[:low].sum()
        self.first += self.step * low
        while self.most is not None and len(self.law) > self.most:
            self.law, self.step = _coarser(self.law, 2), 2 * self.step

    @classmethod
    def of(cls, values: np.ndarray, masses: np.ndarray, most: int | None) -> _Grid:
        upper = np.cumsum(masses[::-1])[::-1] > _NEGLIGIBLE
        dropped = float(masses[~upper].sum())
        values, masses = values[upper], masses[upper]
        span = int(values[-1] - values[0])
        step = 1 if most is None else max(1, -(-span // (most - 1)))
        index = -(-(values - values[0]) // step)
        law = np.bincount(index.astype(np.int64), weights=masses)
        return cls(law, int(values[0]), step, dropped, most)

    def plus(self, other: _Grid) -> _Grid:
        # Steps are the first one's times powers of two, so that the coarser is a multiple.
        step = max(self.step, other.step)
        a = _coarser(self.law, step // self.step)
        b = _coarser(other.law, step // other.step)
        _affordable(float(len(a)) * len(b))
        law = np.convolve(a, b)
        first, dropped = self.first + other.first, self.dropped + other.dropped
        return _Grid(law, first, step, dropped, self.most)


def _coarser(law: np.ndarray, factor: int) -> np.ndarray:
    """Every value, counted from the first one, rounded up to a multiple of `factor`."""
    if factor == 1:
        return law
    return np.bincount(-(-np.arange(len(law)) // factor), weights=law)


def _affordable(work: float) -> None:
    if work > _MAX_WORK:
        raise ValueError(
            f"the exact law of so large a group needs {work:.2g} operations, above "
            f"{_MAX_WORK:.0e}; take a smaller group, or under shuffling `closed_form_curve`, which "
            f"holds for any."
        )


def places_hit(boxes: int, size: int, items: int, p: float) -> np.ndarray:
    """P[j coins came up, in exactly k of the boxes], shape (items + 1, min(boxes, items) + 1).

    Args:
      boxes: number of boxes, each of `size` places.
      items: largest j kept.
      p: probability of each place's coin, in (0, 1).
    """
    most = min(boxes, items)
    _affordable((most + 1.0) * (items + 1.0) ** 2)
    hit = -np.expm1(size * np.log1p(-p))
    one = stats.binom.pmf(np.arange(items + 1), size, p)
    one[0] = 0.0
    one /= hit  # given that the box is hit
    result = np.zeros((items + 1, most + 1))
    several = np.zeros(items + 1)
    several[0] = 1.0
    for k in range(most + 1):
        result[:, k] = stats.binom.pmf(k, boxes, hit) * several
        several = np.convolve(several, one)[: items + 1]
    return result


def boxes_hit(boxes: int, items: int) -> np.ndarray:
    """P[j balls, each in a box of its own choice, hit k boxes], [items + 1, min(boxes, items) + 1]."""
    laws = np.zeros((items + 1, min(boxes, items) + 1))
    laws[0, 0] = 1.0
    for j in range(items):
        laws[j + 1] = laws[j]
        _throw(laws[j + 1], boxes, 1.0)
    return laws


def _throw(law: np.ndarray, parts: int, rate: float) -> None:
    """One item more, in place; what leaves the array is at most the caller's `residue`."""
    u = np.arange(len(law))
    move = law * (rate * ((parts - u) / parts))
    law *= (1.0 - rate) + rate * (u / parts)
    law[1:] += move[:-1]


def _squares_law(batches: Sequence[tuple[np.ndarray, int]], items: int, widest: int) -> np.ndarray:
    """The law of c = sum over batches of (parts hit)^2 if `items` coins came up in all.

    Args:
      batches: P[j coins of a batch came up, in exactly k of its parts], [j, k], and how many such
        batches there are.
      items: in all.
      widest: at most so many parts of a batch are hit.

    Returns:
      P[c], c = 0..items * widest.
    """
    total: list[np.ndarray] | None = None
    for joint, count in batches:
        laws = []
        for j, row in enumerate(joint):
            k = np.arange(min(len(row) - 1, j, widest) + 1)
            law = np.zeros(j * widest + 1)
            law[k**2] = row[k]
            laws.append(law)
        several = _repeated(laws, count, _join)
        total = several if total is None else _join(total, several)
    law = total[items]
    return law / law.sum()


def _join(a: list[np.ndarray], b: list[np.ndarray]) -> list[np.ndarray]:
    """The joint laws of j items and c, of two sets of rounds together; lists over j."""
    laws = [np.zeros_like(law) for law in a]
    for j, total in enumerate(laws):
        for i in range(j + 1):
            if a[i].any() and b[j - i].any():
                total += np.convolve(a[i], b[j - i])
    return laws


def shuffled_epoch(rounds: int, parts: int, size: int, items: int) -> np.ndarray:
    """Law of c = sum over rounds of (parts hit)^2 for items dealt to all places of an epoch.

    Args:
      rounds: M.
      parts: m parts a round, each of `size` places; there are rounds * parts * size places.
      items: g <= rounds * parts * size.

    Returns:
      P[c], c = 0..items * min(parts, items).
    """
    p = min(items / (rounds * parts * size), 0.5)
    if parts == 1:
        joint = places_hit(rounds, size, items, p)
        law = np.zeros(items + 1)
        law[: joint.shape[1]] = joint[items]
        return law / law.sum()
    widest = min(parts, items)
    _affordable(_epoch_work(items, widest, rounds))
    return _squares_law([(places_hit(parts, size, items, p), rounds)], items, widest)


def _epoch_work(items: int, widest: int, rounds: int) -> float:
    # Pairs (j, c) of two rounds are joined in items^2 / 2 convolutions of up to j * widest points.
    return 0.05 * (float(items) ** 2 * widest) ** 2 * rounds.bit_length()


def sampled_round(
    parts: int, size: int, items: int, *, places: int | None, rate: float
) -> np.ndarray:
    """Law of c = (parts hit)^2 of one round that draws its batch independently of the others.

    Args:
      parts, size: the batch has `parts` parts of `size` places.
      items: g.
      places: size of the data, of which a batch of fixed size is drawn without replacement; None
        for Poisson sampling, where each item takes part with probability `rate` in a part of its
        own choice (every item is its own part if size is 1).
    """
    widest = items if places is None and size == 1 else min(parts, items)
    law = np.zeros(widest**2 + 1)
    if places is None:
        present = stats.binom.pmf(np.arange(items + 1), items, rate)
        hits = present if size == 1 else present @ boxes_hit(parts, items)
        law[np.arange(len(hits)) ** 2] = hits
        return law / law.sum()
    batch = parts * size
    most = min(items, batch)
    p = min(items / places, 0.5)
    joint = places_hit(parts, size, most, p)
    present = stats.hypergeom.pmf(np.arange(most + 1), places, items, batch)
    for j, weight in enumerate(present):
        if weight > 0.0:
            row = joint[j]
            law[np.arange(len(row)) ** 2] += weight * (row / row.sum())
    return law / law.sum()


@functools.lru_cache(maxsize=32)
def parts_of_sampled(parts: int, items: int, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """How many of the parts a unit hits in one step: each item joins one of them, at `rate`.

    Every item takes part with probability `rate` and then joins a part of its own choice, so one
    item more takes u to u + 1 with probability rate (parts - u) / parts: a Markov chain, exact up to
    100,000 items. Beyond, and where the chain would be too long, min(Binomial(items, rate), parts)
    stands in its place: it is never smaller, item by item.

    Args:
      parts: m >= 1.
      items: k >= 1.
      rate: in [0, 1].

    Returns:
      Values (increasing, int64) and their probabilities, of sum 1; negligible mass is moved upwards.
    """
    if rate == 0.0:
        return _frozen(np.zeros(1, np.int64), np.ones(1))
    if rate == 1.0:
        low, present = items, np.ones(1)
    else:
        low, present = binomial_window(items, rate, _STEP_NEGLIGIBLE)
    top = min(low + len(present) - 1, items, parts)
    residue = 0.0 if low + len(present) - 1 >= items else _STEP_NEGLIGIBLE
    if items > _MOST_THROWN or float(items) * (top + 1) > _MAX_THROW_WORK:
        return _capped(low, present, min(parts, items), residue, _STEP_NEGLIGIBLE)
    law = np.zeros(top + 1)
    law[0] = 1.0
    for _ in range(items):
        _throw(law, parts, rate)
    return _upwards(law, min(parts, items), residue, _STEP_NEGLIGIBLE)


@functools.lru_cache(maxsize=32)
def parts_of_batch(
    parts: int, items: int, places: int, batch: int, negligible: float = _STEP_NEGLIGIBLE
) -> tuple[np.ndarray, np.ndarray]:
    """How many parts a unit hits in one batch of fixed size, drawn without replacement.

    j of its `items` items are among the `batch` drawn from `places` (hypergeometric), and each of
    the j joins a part of its own choice. Too many items for that: min(j, parts), never smaller.

    Args:
      parts: m >= 1.
      items: k, 1 <= k <= places.
      places: size of the data.
      batch: size of the batch, 1 <= batch <= places.
      negligible: tails up to this mass are moved upwards.

    Returns:
      As `parts_of_sampled`.
    """
    low, present, residue = _hypergeometric_window(places, items, batch, negligible)
    high = low + len(present) - 1
    most, top = min(items, batch, parts), min(high, parts)
    if high > _MOST_THROWN or float(high) * (top + 1) > _MAX_THROW_WORK:
        return _capped(low, present, most, residue, negligible)
    law, total = np.zeros(top + 1), np.zeros(top + 1)
    law[0] = 1.0
    for j in range(high + 1):
        if j:
            _throw(law, parts, 1.0)
        if j >= low:
            total += present[j - low] * law
    return _upwards(total, most, residue, negligible)


def _hypergeometric_window(
    places: int, items: int, batch: int, negligible: float
) -> tuple[int, np.ndarray, float]:
    """First value, probabilities, and a bound on the mass above, as `binomial_window` has them.

    The tails are no heavier than the binomial's in Bernstein's bound (Hoeffding 1963, Theorem 4).
    """
    first, last = max(0, items + batch - places), min(items, batch)
    if first == last:
        return first, np.ones(1), 0.0
    start, window = binomial_window(items, batch / places, negligible)
    low, high = max(first, start), min(last, start + len(window) - 1)
    j = np.arange(low, high, dtype=np.float64)
    ratios = np.log((items - j) * (batch - j)) - np.log(
        (j + 1.0) * (places - items - batch + j + 1.0)
    )
    log_law = np.concatenate(([0.0], np.cumsum(ratios)))
    law = np.exp(log_law - log_law.max())
    return low, law / law.sum(), 0.0 if high == last else negligible


def _capped(
    low: int, present: np.ndarray, most: int, residue: float, negligible: float
) -> tuple[np.ndarray, np.ndarray]:
    """The law of min(j, most), j = low, low + 1, ... of probabilities `present`."""
    if low >= most:
        return _frozen(np.array([most]), np.ones(1))
    law = np.zeros(min(most, low + len(present) - 1) + 1)
    law[low:] = present[: len(law) - low]
    law[-1] += present[len(law) - low :].sum()
    return _upwards(law, most, residue, negligible)


def _upwards(
    law: np.ndarray, most: int, residue: float, negligible: float
) -> tuple[np.ndarray, np.ndarray]:
    """Values and masses of a law on 0, 1, ...; negligible tails moved up, the residue to `most`."""
    last = int(np.sum(np.cumsum(law[::-1])[::-1] > negligible))
    first = min(int(np.sum(np.cumsum(law) <= negligible)), last - 1)
    masses = law[first:last].copy()
    masses[0] += law[:first].sum()
    values = np.arange(first, last, dtype=np.int64)
    residue += float(law[last:].sum())
    if values[-1] == most:
        masses[-1] += residue
    elif residue > 0.0:
        values, masses = np.append(values, most), np.append(masses, residue)
    return _frozen(values, masses / masses.sum())


def _frozen(values: np.ndarray, masses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    for array in (values, masses):
        array.flags.writeable = False  # they are cached
    return values, masses


@functools.lru_cache(maxsize=64)
def epoch_law(parts: int, places: int, batch: int, items: int) -> np.ndarray | None:
    """The exact law of c = sum over an epoch's batches of (parts hit)^2, P[c] for c = 0, 1, ...

    All `places` are dealt into batches of `batch`, the last one smaller if they do not divide; each
    item that a batch holds joins a part of its own choice.

    Returns:
      The law, or None if it would take too long (for parts > 1 above some 40 items).
    """
    if items == 1:
        law: np.ndarray | None = np.array([0.0, 1.0])
    elif parts == 1:
        law = _batches_hit(places, batch, items)
    else:
        law = _parts_of_epoch(parts, places, batch, items)
    if law is not None:
        law.flags.writeable = False  # it is cached
    return law


def _batches_hit(places: int, batch: int, items: int) -> np.ndarray | None:
    """The law of an epoch for m = 1: how many of its batches hold one of the items.

    A batch not yet hit has all its places free, so with t items dealt and u full batches hit, the
    next item hits a new full one with chance (full - u) batch / (places - t), and the last one, if
    it is new, with rest / (places - t): a Markov chain, exact.
    """
    full, rest = divmod(places, batch)
    width = min(full, items) + 1
    if float(items) * width > _MAX_THROW_WORK:
        return None
    u = np.arange(width)
    # Free places of full batches not yet hit, and the two laws: last batch not hit, hit.
    fresh = (full - u) * float(batch)
    missed, hit = np.zeros(width), np.zeros(width)
    missed[0] = 1.0
    for t in range(items):
        left = float(places - t)
        new_missed, new_hit = missed * (fresh / left), hit * (fresh / left)
        to_last = missed * (rest / left)
        missed *= (left - fresh - rest) / left
        hit *= (left - fresh) / left
        hit += to_last
        missed[1:] += new_missed[:-1]
        hit[1:] += new_hit[:-1]
    law = np.concatenate([missed, [0.0]])
    law[1:] += hit
    # Impossible states have probability 0 up to the sign.
    law = np.maximum(law, 0.0)
    return law / law.sum()


def _parts_of_epoch(parts: int, places: int, batch: int, items: int) -> np.ndarray | None:
    """The law of an epoch for any m: coins of one probability a place, given that `items` came up."""
    full, rest = divmod(places, batch)
    widest = min(parts, items, batch)
    if _epoch_work(items, widest, full) > _MAX_WORK:
        return None
    p = min(items / places, 0.5)
    hits = boxes_hit(parts, items)
    batches = [
        (stats.binom.pmf(np.arange(items + 1), size, p)[:, None] * hits, count)
        for size, count in ((batch, full), (rest, 1))
        if size
    ]
    return _squares_law(batches, items, widest)


def worst_epoch(parts: int, places: int, batch: int, items: int) -> int:
    """The largest sum over an epoch's batches of (parts hit)^2: as many full hits as fit."""
    widest = min(parts, batch)
    batches = -(-places // batch)
    filled = min(items // widest, batches)
    if filled == batches:
        return batches * widest**2
    return filled * widest**2 + (items - filled * widest) ** 2


def epoch_tail(
    parts: int,
    places: int,
    batch: int,
    items: int,
    epochs: int,
    negligible: float,
    atoms: int = _TAIL_ATOMS,
) -> tuple[np.ndarray, np.ndarray, float]:
    """A law never smaller than that of c over `epochs` epochs, by Chernoff's bound.

    The numbers of items in the batches of an epoch are negatively associated (Joag-Dev & Proschan
    1983), and given them E exp(theta u^2) is an increasing function of each one alone, so that
    E exp(theta c) <= prod over batches of E exp(theta u_b^2), for theta > 0, where each u_b has its
    own law, `parts_of_batch`. Hence P[c >= x] <= min over theta of that product exp(-theta x), and
    c never exceeds epochs * `worst_epoch`. With fewer `atoms` masses move further up.

    Returns:
      Values, masses, and the mass cut above (at most `negligible`).
    """
    full, rest = divmod(places, batch)
    sizes = [(batch, full)] + ([(rest, 1)] if rest else [])
    most = epochs * worst_epoch(parts, places, batch, items)
    mean = variance = 0.0
    squares = []
    for size, count in sizes:
        u, masses = parts_of_batch(parts, items, places, size, _TINY)
        c = u.astype(np.float64) ** 2
        squares.append((c, np.log(masses), epochs * count))
        first = float(c @ masses)
        mean += epochs * count * first
        variance += epochs * count * float((c - first) ** 2 @ masses)
    theta = np.geomspace(1e-2 / (math.sqrt(variance) + 1.0), 200.0, 800)
    exponent = np.zeros(len(theta))
    for c, log_masses, count in squares:
        exponent += count * special.logsumexp(theta[:, None] * c + log_masses, axis=1)

    def above(x: np.ndarray) -> np.ndarray:
        """A bound on P[c > x], x whole numbers."""
        result = np.ones(len(x))
        for i, value in enumerate(x):
            result[i] = math.exp(min(0.0, float((exponent - theta * (value + 1.0)).min())))
        result[x >= most] = 0.0
        return result

    low = min(math.ceil(mean) - 1, most)
    high = low + 1
    while high < most and above(np.array([high]))[0] > negligible:
        high = low + 2 * (high - low)
    high = min(high, most)
    values = np.unique(np.ceil(np.linspace(low, high, atoms)).astype(np.int64))
    tail = np.minimum.accumulate(above(values))
    return values, -np.diff(tail, prepend=1.0), float(tail[-1])
