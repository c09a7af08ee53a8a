# SPDX-License-Identifier: Apache-2.0
"""How many parts a unit's items hit where every item joins a part of its OWN choice.

The law of mixed clipping as the library draws it, for one step (`parts_of_sampled`,
`parts_of_batch`) and for one epoch of shuffled batches of any size (`batches_hit`,
`parts_of_epoch`). Dealing to places, as `occupancy` has it, hits no fewer parts: with u parts hit
after t items, an item more meets a new one with chance (m - u) s / (m s - t) >= (m - u) / m, so that
both can be coupled with the dealt u never the smaller. Every number is a sum of products of
positive ones; mass that is cut moves upwards.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy import special, stats

from tf_subjectdp.accounting.engine.binomial import binomial_window
from tf_subjectdp.accounting.tradeoff import occupancy

# Mass below this is moved upwards.
_STEP_NEGLIGIBLE = 1e-60
# Above these the law of the parts hit is replaced by one that is never smaller.
_MOST_THROWN, _MAX_THROW_WORK = 100_000, 3e8
# The exact law of an epoch of mixed clipping is taken up to this many operations.
_MAX_EPOCH_WORK = 5e9
_TAIL_ATOMS = 2_000
# For laws that enter an exponential moment, where 1e-60 at the top would be felt.
_TINY = 1e-290


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


def _throw(law: np.ndarray, parts: int, rate: float) -> None:
    """One item more, in place; what leaves the array is at most the caller's `residue`."""
    u = np.arange(len(law))
    move = law * (rate * ((parts - u) / parts))
    law *= (1.0 - rate) + rate * (u / parts)
    law[1:] += move[:-1]


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
def batches_hit(places: int, batch: int, items: int) -> np.ndarray | None:
    """How many batches of an epoch hold one of the items (m = 1), P[c] for c = 0, 1, ...

    All `places` are dealt into batches of `batch`, the last one smaller if they do not divide. A
    batch not yet hit has all its places free, so with t items dealt and u full batches hit, the
    next item hits a new full one with chance (full - u) batch / (places - t), and the last one, if
    it is new, with rest / (places - t): a Markov chain, exact.

    Returns:
      The law, or None if it would take too long.
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
    return _frozen_law(law / law.sum())


@functools.lru_cache(maxsize=64)
def parts_of_epoch(parts: int, places: int, batch: int, items: int) -> np.ndarray | None:
    """The exact law of c = sum over an epoch's batches of (parts hit)^2, P[c] for c = 0, 1, ...

    Batches as in `batches_hit`. Dealing without replacement is independent coins of one probability
    per place, given that `items` came up; each item that a batch holds joins a part of its own
    choice.

    Returns:
      The law, or None if it would take too long (more than some 40 items).
    """
    full, rest = divmod(places, batch)
    widest = min(parts, items, batch)
    if 0.05 * (float(items) ** 2 * widest) ** 2 * full.bit_length() > _MAX_EPOCH_WORK:
        return None
    p = min(items / places, 0.5)
    hits = [occupancy.boxes_hit(parts, j) for j in range(min(items, batch) + 1)]
    result: list[np.ndarray] | None = None
    base, count = _one_batch(hits, items, batch, p, widest), full
    while count:
        if count & 1:
            result = base if result is None else occupancy.join(result, base)
        count >>= 1
        if count:
            base = occupancy.join(base, base)
    if rest:
        result = occupancy.join(result, _one_batch(hits, items, rest, p, widest))
    law = result[items]
    return _frozen_law(law / law.sum())


def _frozen_law(law: np.ndarray) -> np.ndarray:
    law.flags.writeable = False  # it is cached
    return law


def _one_batch(
    hits: list[np.ndarray], items: int, batch: int, p: float, widest: int
) -> list[np.ndarray]:
    """By j = items in the batch: the law over c = u^2 <= j * widest, times P[j of its coins]."""
    present = stats.binom.pmf(np.arange(items + 1), batch, p)
    laws = []
    for j in range(items + 1):
        law = np.zeros(j * widest + 1)
        if present[j] > 0.0:
            law[np.arange(len(hits[j])) ** 2] = present[j] * hits[j]
        laws.append(law)
    return laws


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
