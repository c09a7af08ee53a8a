# SPDX-License-Identifier: Apache-2.0
"""The worst of very many subjects: which m silos cost most, and how sure one can be.

Privacy events have no total order (which of two is worse depends on delta and on what else runs),
so the m costliest silos cannot be picked one by one. All multisets that a proven partial order
leaves are compared: first by their Renyi bounds, then by their loss distributions, all at once
where the view can (`pld.batch_deltas`), otherwise the worst of them one by one, until no bound of the
others exceeds what was found.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tf_subjectdp.accounting.silos.views import Question, View

#: More multisets than this are not listed; a bound on all of them at once is taken.
MOST_SUBSETS = 20_000
#: So many compositions are computed exactly at most, to find the worst: of few, and of many.
MOST_EXACT_OF_FEW, MOST_EXACT_OF_MANY = 48, 16
FEW = 256
# With more, all are compared by their loss distributions at once, where the view can.
_FEW_ENOUGH = 16
# A bound on all rows may exceed the worst row's figure by this, relative.
_SLACK = 3e-4
_MOST_ROUNDS = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Search:
    """Upper bounds of all rows: `values`, exact where `evaluated`; `exact`: the largest one is."""

    values: np.ndarray
    evaluated: np.ndarray
    exact: bool
    worst: int


def search_worst(
    view: View,
    patterns: np.ndarray,
    question: Question,
    engine: str,
    most: int | None = None,
    ceiling: float = math.inf,
) -> Search:
    """Bounds every row of `patterns`, and the worst ones by `engine`.

    Args:
      view: gives bounds and events.
      patterns: types, int64 of shape (n >= 1, width), -1 for none.
      question: what is asked.
      engine: "pld" or "rdp".
      most: largest number of rows to evaluate exactly; None for 48 of few rows, 16 of many.
      ceiling: an upper bound for every row that is known from elsewhere.
    """
    if most is None:
        most = MOST_EXACT_OF_FEW if len(patterns) <= FEW else MOST_EXACT_OF_MANY
    evaluated = np.zeros(len(patterns), dtype=bool)
    if len(patterns) == 1:
        values = np.full(1, math.inf)
    else:
        values = view.bounds(patterns, question)
    if engine == "pld" and len(patterns) > _FEW_ENOUGH:
        batched = _batched(view, patterns, question, np.minimum(values, ceiling))
        if batched is not None:
            return batched
    while True:
        worst = int(np.argmax(values))
        found = values[evaluated].max(initial=0.0)
        # What was found is the largest, or as large as any may be.
        exact = bool(min(values[worst], ceiling) <= found)
        if exact or evaluated.sum() >= most:
            values = np.minimum(values, ceiling)
            if exact and found > 0.0:
                worst = int(np.flatnonzero(evaluated)[np.argmax(values[evaluated])])
            return Search(values, evaluated, exact, worst)
        answer = question.answer(view.event(held(patterns[worst])), engine)
        # Both are upper bounds.
        values[worst] = min(answer, values[worst])
        evaluated[worst] = True


def _batched(
    view: View, patterns: np.ndarray, question: Question, bounds: np.ndarray
) -> Search | None:
    """`search_worst` by the loss distributions of all rows at once; None where that is slow.

    The worst row that was evaluated, raised by `_SLACK`, is shown to bound every other one.
    """
    rows = np.flatnonzero(bounds > 0.0)
    if not len(rows) or not np.isfinite(bounds).all():
        return None
    values, evaluated = bounds.copy(), np.zeros(len(patterns), dtype=bool)
    if question.delta is None:
        at = np.array([question.epsilon])
        near = min(float(bounds.max()), 0.5)
        deltas = view.deltas(patterns[rows], at, near) if question.epsilon > 0.0 else None
        if deltas is None:
            return None
        values[rows] = np.minimum(values[rows], deltas[:, 0])
        best = int(np.argmax(values))
        evaluated[best] = True
        return Search(values, evaluated, True, best)
    best, largest = int(np.argmax(values)), 0.0
    candidate = best
    for _ in range(_MOST_ROUNDS):
        answer = question.answer(view.event(held(patterns[candidate])), "pld")
        values[candidate], evaluated[candidate] = min(values[candidate], answer), True
        if values[candidate] > largest:
            best, largest = candidate, float(values[candidate])
        ceiling = largest * (1.0 + _SLACK)
        open_rows = np.flatnonzero(values > ceiling)
        if len(open_rows):
            if not 0.0 < ceiling < math.inf:
                return None
            deltas = view.deltas(patterns[open_rows], np.array([ceiling]), question.delta)
            if deltas is None:
                return None
            passed = deltas[:, 0] <= question.delta
            values[open_rows[passed]] = ceiling
            open_rows, deltas = open_rows[~passed], deltas[~passed, 0]
        if not len(open_rows):
            values[best] = values.max()
            return Search(values, evaluated, True, best)
        candidate = int(open_rows[np.argmax(deltas)])
    return None


def held(pattern: np.ndarray) -> list[int]:
    """The types of a row, without the padding."""
    return [int(number) for number in pattern if number >= 0]


def worst_multisets(view: View, types: Sequence[int], size: int) -> np.ndarray | None:
    """Multisets of `size` silos, among which a worst one is; None if there are too many.

    If a silo's type is in a worst multiset then so may be every silo of a type that dominates it:
    putting that one in its place costs no less. So only multisets are listed that are closed
    upwards.

    Args:
      view: knows which type dominates which.
      types: the type of each silo.
      size: number of silos of a subject, >= 1; all silos if there are no more.

    Returns:
      int64 of shape (n, size), or None.
    """
    numbers, multiplicity = np.unique(np.asarray(types, dtype=np.int64), return_counts=True)
    size = min(size, len(types))
    better = _strict_dominators(view, numbers)
    if len(numbers) > 1:
        # A type with `size` dominating silos is in no multiset that is closed upwards.
        needed = [multiplicity[b].sum() < size for b in better]
        order = sorted(np.flatnonzero(needed), key=lambda t: len(better[t]))
    else:
        order = [0]
    after = np.append(np.cumsum([multiplicity[t] for t in order][::-1])[::-1], 0)
    found: list[list[int]] = []
    stack: list[tuple[int, dict[int, int], int]] = [(0, {}, size)]
    visited = 0
    while stack:
        position, chosen, left = stack.pop()
        visited += 1
        if left == 0:
            found.append([int(numbers[t]) for t, n in chosen.items() for _ in range(n)])
        if len(found) > MOST_SUBSETS or visited > 40 * MOST_SUBSETS:
            return None
        if left == 0 or after[position] < left:
            continue
        t = order[position]
        full = all(chosen.get(b, 0) == multiplicity[b] for b in better[t])
        for n in range(min(left, int(multiplicity[t])) + 1 if full else 1):
            stack.append((position + 1, {**chosen, t: n} if n else chosen, left - n))
    return np.array(found, dtype=np.int64).reshape(len(found), size)


def _strict_dominators(view: View, numbers: np.ndarray) -> list[list[int]]:
    """For each type the types before it in the partial order (of two equal ones the first)."""
    n = len(numbers)
    above = [
        [i != j and view.dominates(int(numbers[i]), int(numbers[j])) for i in range(n)]
        for j in range(n)
    ]
    return [[i for i in range(n) if above[j][i] and (i < j or not above[i][j])] for j in range(n)]
