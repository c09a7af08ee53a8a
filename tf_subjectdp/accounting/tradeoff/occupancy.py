# SPDX-License-Identifier: Apache-2.0
"""How many clipped results a group of g items touches: the exact law q_E(c), by counting.

Every number here is a sum of products of positive numbers, so that the tails keep their relative
accuracy. Draws without replacement are computed from independent coins of one probability p, given
that g of them came up: the law does not depend on p.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

# Upper atoms of joint mass below this count as no privacy; lower ones are moved up.
_NEGLIGIBLE = 1e-40
_MAX_WORK = 5e9


def trim(law: np.ndarray, first: int, dropped: float) -> tuple[np.ndarray, int, float]:
    """Cuts the tails of a law on first, first + 1, ...: upper mass to `dropped`, lower moved up."""
    upper = np.cumsum(law[::-1])[::-1]
    high = max(int(np.sum(upper > _NEGLIGIBLE)), 1)
    dropped += float(law[high:].sum())
    law = law[:high]
    low = min(int(np.sum(np.cumsum(law) <= _NEGLIGIBLE)), high - 1)
    moved = law[low:].copy()
    moved[0] += law[:low].sum()
    return moved, first + low, dropped


def fold(law: np.ndarray, count: int) -> tuple[np.ndarray, int, float]:
    """The law of the sum of `count` >= 1 independent draws from `law` (on 0, 1, ...).

    Returns:
      masses, the value of the first one, and the mass that was cut.
    """
    result: tuple[np.ndarray, int, float] | None = None
    base = trim(law, 0, 0.0)
    while True:
        if count & 1:
            result = base if result is None else _sum(result, base)
        count >>= 1
        if not count:
            return result
        base = _sum(base, base)


def _sum(
    a: tuple[np.ndarray, int, float], b: tuple[np.ndarray, int, float]
) -> tuple[np.ndarray, int, float]:
    _affordable(float(len(a[0])) * len(b[0]))
    return trim(np.convolve(a[0], b[0]), a[1] + b[1], a[2] + b[2])


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
    """P[items balls, each in a box of its own choice, hit k boxes], shape (min(boxes, items) + 1,)."""
    law = np.zeros(min(boxes, items) + 1)
    law[0] = 1.0
    k = np.arange(len(law))
    for _ in range(items):
        stay = law * (k / boxes)
        law = stay + np.concatenate([[0.0], (law * ((boxes - k) / boxes))[:-1]])
    return law


def shuffled_epoch(rounds: int, parts: int, size: int, items: int) -> np.ndarray:
    """Law of c = sum over rounds of (parts hit)^2 for items dealt to all places of an epoch.

    Args:
      rounds: M.
      parts: m parts a round, each of `size` places; there are rounds * parts * size places.
      items: g <= rounds * parts * size.

    Returns:
      P[c], c = 0..items * min(parts, items).
    """
    places = rounds * parts * size
    p = min(items / places, 0.5)
    if parts == 1:
        joint = places_hit(rounds, size, items, p)
        law = np.zeros(items + 1)
        law[: joint.shape[1]] = joint[items]
        return law / law.sum()
    widest = min(parts, items)
    # Pairs (j, c) of two rounds are joined in items^2 / 2 convolutions of up to j * widest points.
    _affordable(0.05 * (items**2 * widest) ** 2 * max(1, rounds.bit_length()))
    by_items = _by_squares(places_hit(parts, size, items, p), widest)
    result: list[np.ndarray] | None = None
    base, count = by_items, rounds
    while True:
        if count & 1:
            result = base if result is None else join(result, base)
        count >>= 1
        if not count:
            break
        base = join(base, base)
    law = result[items]
    return law / law.sum()


def _by_squares(joint: np.ndarray, widest: int) -> list[np.ndarray]:
    """joint[j, k] as a list over j of laws over c = k^2 <= j * widest."""
    laws = []
    for j, row in enumerate(joint):
        k = np.arange(min(len(row) - 1, j) + 1)
        law = np.zeros(j * widest + 1)
        law[k**2] = row[k]
        laws.append(law)
    return laws


def join(a: list[np.ndarray], b: list[np.ndarray]) -> list[np.ndarray]:
    """The joint laws of j items and c, of two sets of rounds together; lists over j."""
    laws = [np.zeros_like(law) for law in a]
    for j, total in enumerate(laws):
        for i in range(j + 1):
            if a[i].any() and b[j - i].any():
                total += np.convolve(a[i], b[j - i])
    return laws


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
        for j, weight in enumerate(present):
            if size == 1:
                law[j**2] += weight
            else:
                hit = boxes_hit(parts, j)
                law[np.arange(len(hit)) ** 2] += weight * hit
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
