# SPDX-License-Identifier: Apache-2.0
"""What an adversary of horizontal composition learns about a subject, for many subjects at once.

A view turns what a silo does with a subject into a TYPE (a small integer; equal types are equal for
privacy). A subject is then a multiset of types, a row of a pattern array padded with -1. A view
gives the exact event of a row (for the engines), and Renyi bounds of all rows (for screening).
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Hashable, Sequence

import dp_accounting
import numpy as np
from scipy import sparse

from tf_subjectdp.accounting import solve
from tf_subjectdp.accounting.engine.ledger import Ledger, ledger
from tf_subjectdp.accounting.engine.mechanisms import (
    FixedSize,
    Gaussian,
    Mechanism,
    Mixture,
    ReplaceOne,
    make_mixture,
)
from tf_subjectdp.accounting.engine.pld import batch_deltas, batch_epsilons, can_batch
from tf_subjectdp.accounting.engine.renyi import (
    THETA,
    convert_delta,
    convert_epsilon,
    grid_cumulants,
)
from tf_subjectdp.accounting.events import compose, nonprivate_event
from tf_subjectdp.accounting.silos.laws import (
    Law,
    NoisedSum,
    dominates,
    mixture_event,
    noised_sum,
    sum_law,
)
from tf_subjectdp.accounting.silos.silo import Silo

# Rows of a table that are summed at once.
_ROWS = 8192
# The loss distributions of so many types at most are kept at once; and of so many types times rows
# (some ten seconds).
_MOST_BATCHED_TYPES = 96
_MOST_BATCHED_ENTRIES = 2_000_000
# More cumulant functions than this are not computed at once, over all segments: the noise is split
# more coarsely instead.
_MOST_SPLITS = 1500


@dataclasses.dataclass(frozen=True)
class Question:
    """epsilon at `delta`, or delta at `epsilon`: exactly one of them is set."""

    delta: float | None = None
    epsilon: float | None = None

    def answer(self, event: dp_accounting.DpEvent, engine: str) -> float:
        """The answer for one event, by an engine."""
        if self.delta is not None:
            return solve.epsilon(event, delta=self.delta, engine=engine)
        return solve.delta(event, epsilon=self.epsilon, engine=engine)

    def bound(self, cumulants: np.ndarray, dropped: np.ndarray | float) -> np.ndarray:
        """An upper bound on the answer from cumulants.

        Args:
          cumulants: K(theta) of the compositions at `THETA`, shape (n, orders); infinite where
            unknown.
          dropped: mass that the mixtures lack (it goes into delta), shape (n,) or a number.

        Returns:
          Bounds, float64 of shape (n,).
        """
        if self.delta is None:
            found = convert_delta(THETA, cumulants, self.epsilon).min(axis=1)
            return np.minimum(found + dropped, 1.0)
        budget = np.reshape(self.delta - dropped, (-1, 1))
        found = convert_epsilon(THETA, cumulants, budget).min(axis=1)
        return np.where(cumulants.max(axis=1) > 0.0, np.maximum(found, 0.0), 0.0)


class View(abc.ABC):
    """Base class; see the module's docstring."""

    def __init__(self) -> None:
        self._ids: dict[Hashable, int] = {}

    @property
    def n_types(self) -> int:
        return len(self._ids)

    def type_of(self, index: int, event: dp_accounting.DpEvent) -> int:
        """The type of a subject for which silo `index` runs `event` in each step."""
        return self._ids.setdefault(self._key(index, event), len(self._ids))

    @property
    def _keys(self) -> list[Hashable]:
        return list(self._ids)

    @abc.abstractmethod
    def _key(self, index: int, event: dp_accounting.DpEvent) -> Hashable: ...

    @abc.abstractmethod
    def event(self, types: Sequence[int]) -> dp_accounting.DpEvent:
        """All that is released about a subject of these types."""

    @abc.abstractmethod
    def dominates(self, larger: int, smaller: int) -> bool:
        """Whether type `larger` in the place of `smaller` never costs a subject less. Proven."""

    @abc.abstractmethod
    def bounds(self, patterns: np.ndarray, question: Question) -> np.ndarray:
        """Upper bounds for all rows, by Renyi divergences.

        Args:
          patterns: types, int64 of shape (n, width), -1 for none.
          question: what is asked.

        Returns:
          float64 of shape (n,).
        """

    def deltas(self, patterns: np.ndarray, epsilons: np.ndarray, delta: float) -> np.ndarray | None:
        """delta of all rows at all epsilons, from loss distributions; None where that is slow.

        Args:
          patterns: as for `bounds`, no row empty.
          epsilons: ascending, > 0, shape (e,).
          delta: near which answers are wanted accurately.

        Returns:
          float64 of shape (n, e), from above.
        """
        return None

    def epsilons(self, patterns: np.ndarray, bounds: np.ndarray, delta: float) -> np.ndarray | None:
        """epsilon of all rows, from above, from loss distributions; None where that is slow.

        Args:
          patterns: as for `bounds`, no row empty.
          bounds: what `bounds` gave for them, finite and > 0.
          delta: in (0, 1).
        """
        return None

    @abc.abstractmethod
    def bound_of_any(self, types: np.ndarray, most: int, question: Question) -> float:
        """An upper bound for every choice of at most `most` entries of `types`."""


def largest_of_any(table: np.ndarray, dropped: np.ndarray, most: int, question: Question) -> float:
    """At each order the `most` largest cumulants bound every choice of `most` rows."""
    total = np.sort(table, axis=0)[-most:].sum(axis=0)
    return float(question.bound(total[None], np.sort(dropped)[-most:].sum())[0])


class UpdatesView(View):
    """The server sees every silo's update: what the subject's silos release composes.

    Silos in `unprotected` have their noise known to the adversary.
    """

    def __init__(self, silos: Sequence[Silo], unprotected: frozenset[int] = frozenset()):
        super().__init__()
        self._silos = silos
        self._unprotected = unprotected
        self._parts: dict[int, tuple[dp_accounting.DpEvent, int]] = {}

    def type_of(self, index: int, event: dp_accounting.DpEvent) -> int:
        number = super().type_of(index, event)
        if number not in self._parts:
            self._parts[number] = self._part(index, event)
        return number

    def _part(self, index: int, event: dp_accounting.DpEvent) -> tuple[dp_accounting.DpEvent, int]:
        silo = self._silos[index]
        shown = nonprivate_event() if index in self._unprotected else event
        return shown, silo.steps_per_round * silo.rounds

    def _key(self, index: int, event: dp_accounting.DpEvent) -> Ledger:
        return ledger(*self._part(index, event))

    def event(self, types: Sequence[int]) -> dp_accounting.DpEvent:
        return compose([self._parts[int(number)] for number in types])

    def dominates(self, larger: int, smaller: int) -> bool:
        keys = self._keys
        return ledger_dominates(keys[larger], keys[smaller])

    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        table = np.array([grid_cumulants(key) for key in self._keys])
        return table, np.array([key.dropped for key in self._keys])

    def bounds(self, patterns: np.ndarray, question: Question) -> np.ndarray:
        table, dropped = self._table()
        result = np.zeros(len(patterns))
        for start in range(0, len(patterns), _ROWS):
            rows = patterns[start : start + _ROWS]
            counts = _incidence(rows, self.n_types)
            result[start : start + _ROWS] = question.bound(counts @ table, counts @ dropped)
        return result

    def deltas(self, patterns: np.ndarray, epsilons: np.ndarray, delta: float) -> np.ndarray | None:
        if not self._batches(patterns):
            return None
        return batch_deltas(self._keys, self._dense(patterns), epsilons, delta)

    def epsilons(self, patterns: np.ndarray, bounds: np.ndarray, delta: float) -> np.ndarray | None:
        if not self._batches(patterns):
            return None
        return batch_epsilons(self._keys, self._dense(patterns), bounds, delta)

    def _batches(self, patterns: np.ndarray) -> bool:
        few = len(patterns) * self.n_types <= _MOST_BATCHED_ENTRIES
        return few and self.n_types <= _MOST_BATCHED_TYPES and can_batch(self._keys)

    def _dense(self, patterns: np.ndarray) -> np.ndarray:
        return _incidence(patterns, self.n_types).toarray()

    def bound_of_any(self, types: np.ndarray, most: int, question: Question) -> float:
        table, dropped = self._table()
        return largest_of_any(table[types], dropped[types], most, question)


def _incidence(patterns: np.ndarray, n_types: int) -> sparse.csr_matrix:
    """How often each type is in each row, shape (n, n_types)."""
    row, slot = np.nonzero(patterns >= 0)
    number = patterns[row, slot]
    return sparse.csr_matrix((np.ones(len(row)), (row, number)), shape=(len(patterns), n_types))


def ledger_dominates(larger: Ledger, smaller: Ledger) -> bool:
    """Whether `larger` in the place of `smaller` never costs less; False where that is not proven.

    A stochastically larger law of the sensitivity is worse; more of the same is worse; void events
    cost nothing and no noise costs everything.
    """
    if larger.nonprivate or larger == smaller or not (smaller.entries or smaller.nonprivate):
        return True
    if smaller.nonprivate or len(larger.entries) != 1 or len(smaller.entries) != 1:
        return False
    (mechanism, count), (other, least) = larger.entries[0], smaller.entries[0]
    if isinstance(mechanism, Gaussian) and isinstance(other, Mixture):
        # A rate that rounds to 1 makes Gaussians, and those were merged into one: taken apart again.
        mechanism, count = Gaussian(mechanism.mu / math.sqrt(least) * (1.0 + 1e-12)), least
    return count >= least and _mechanism_dominates(mechanism, other)


def _mechanism_dominates(larger: Mechanism, smaller: Mechanism) -> bool:
    if larger == smaller:
        return True
    if isinstance(larger, Gaussian) and isinstance(smaller, Mixture):
        larger = Mixture((larger.mu,), (1.0,), smaller.dropped)
    if type(larger) is not type(smaller):
        return False
    if isinstance(larger, Gaussian):
        return larger.mu >= smaller.mu
    if isinstance(larger, Mixture):
        return larger.dropped >= smaller.dropped - 1e-30 and dominates(
            Law(larger.locations, larger.weights), Law(smaller.locations, smaller.weights)
        )
    if isinstance(larger, (FixedSize, ReplaceOne)):
        return larger.probability >= smaller.probability and larger.mu >= smaller.mu
    return False


@dataclasses.dataclass(frozen=True)
class _Segment:
    """`count` rounds up to round `end`; `deviation` of the sum of the noises of who reports."""

    end: int
    count: int
    deviation: float


class AverageView(View):
    """The server sees only the weighted sum of the silos' updates, one step a round (T = 1).

    In round r the silos with at least r rounds report; their noises add in squares, without those
    in `known`. A subject's silos move the sum by independent distances, which add.
    """

    def __init__(self, silos: Sequence[Silo], known: frozenset[int] = frozenset()):
        super().__init__()
        self._silos = silos
        squares = [
            0.0
            if i in known
            else (silo.weight * silo.clip_norm * _noised_sum(silo.event).deviation) ** 2
            for i, silo in enumerate(silos)
        ]
        self._segments = []
        previous = 0
        for end in sorted({silo.rounds for silo in silos if silo.rounds > 0}):
            reporting = [
                square for square, s in zip(squares, silos, strict=True) if s.rounds >= end
            ]
            deviation = math.sqrt(math.fsum(reporting))
            self._segments.append(_Segment(end, end - previous, deviation))
            previous = end

    def _key(self, index: int, event: dp_accounting.DpEvent) -> tuple[Law | None, int]:
        silo = self._silos[index]
        step, own = _noised_sum(event), _noised_sum(silo.event)
        if step.law is not None and step.deviation != own.deviation:
            raise ValueError(
                f"event_of_items of silo {index} returned an event with noise {step.deviation:g}, "
                f"but the silo's event has {own.deviation:g}; the noise may not depend on a "
                f"subject's items."
            )
        law = step.law
        return (law if law is None else law.scaled(silo.weight * silo.clip_norm), silo.rounds)

    def event(self, types: Sequence[int]) -> dp_accounting.DpEvent:
        keys = self._keys
        held = [keys[number] for number in sorted(map(int, types))]
        parts = []
        for segment in self._segments:
            laws = tuple(law for law, rounds in held if rounds >= segment.end)
            if not laws:
                continue
            if any(law is None for law in laws):
                parts.append((nonprivate_event(), segment.count))
                continue
            total = sum_law(laws)
            if total.values[-1] > 0.0:
                parts.append((mixture_event(total, segment.deviation), segment.count))
        return compose(parts)

    def dominates(self, larger: int, smaller: int) -> bool:
        (law, rounds), (other, least) = self._keys[larger], self._keys[smaller]
        if rounds < least:
            return False
        return law is None or (other is not None and dominates(law, other))

    def bounds(self, patterns: np.ndarray, question: Question) -> np.ndarray:
        """As in the base class.

        The sum of n unlike presences has no Renyi divergence that adds up over silos. But the noise
        can be split: N(0, S^2) is a sum of independent N(0, s_i^2), one for each of the SUBJECT's
        silos, with sum s_i^2 = S^2; the sum is then post-processing of separate releases, which
        compose. s_i^2 in proportion to the mean distances is nearly tight for rare sampling.
        """
        total, lost = np.zeros((len(patterns), len(THETA))), np.zeros(len(patterns))
        for segment in self._segments:
            mean = self._means(segment)
            # The last entry stands for "none" (-1).
            held = np.append(mean, 0.0)[patterns]
            whole = held.sum(axis=1)
            row, slot = np.nonzero(held > 0.0)
            number = patterns[row, slot]
            table, dropped, where = self._split(
                segment, number, 0.5 * np.log(mean[number] / whole[row])
            )
            for start in range(0, len(patterns), _ROWS):
                first, last = np.searchsorted(row, [start, start + _ROWS])
                rows = min(_ROWS, len(patterns) - start)
                counts = sparse.csr_matrix(
                    (np.ones(last - first), (row[first:last] - start, where[first:last])),
                    shape=(rows, len(table)),
                )
                total[start : start + rows] += counts @ table
                lost[start : start + rows] += counts @ dropped
        return question.bound(total, lost)

    def bound_of_any(self, types: np.ndarray, most: int, question: Question) -> float:
        table, dropped = np.zeros((len(types), len(THETA))), np.zeros(len(types))
        for segment in self._segments:
            mean = self._means(segment)[types]
            # Whatever is chosen, its means add up to this at most: noise may be left over.
            whole = np.sort(mean)[-most:].sum()
            moved = np.flatnonzero(mean > 0.0)
            for i in moved:
                spent, lost = self._cumulants(
                    segment, int(types[i]), 0.5 * math.log(mean[i] / whole)
                )
                table[i] += spent
                dropped[i] += lost
        return largest_of_any(table, dropped, most, question)

    def _means(self, segment: _Segment) -> np.ndarray:
        """Mean distance by type in a segment; 1 where nothing is known (its cost is infinite)."""
        return np.array(
            [
                0.0 if rounds < segment.end else 1.0 if law is None else law.mean
                for law, rounds in self._keys
            ]
        )

    def _split(
        self, segment: _Segment, number: np.ndarray, log_share: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cumulants of the unlike (type, share of the noise), and which of them each entry is."""
        pairs = np.zeros((0, 2))
        where = np.zeros(0, dtype=np.int64)
        for step in (0.02, 0.05, 0.1, 0.2, 0.4, math.inf):
            if not len(number):
                break
            if step == math.inf:
                # One share for each type: the smallest that occurs.
                level = np.full(self.n_types, math.inf)
                np.minimum.at(level, number, log_share)
                level = level[number]
            else:
                # Less noise than the share is the safe direction.
                level = np.floor(log_share / step + 1e-9) * step
                level = np.minimum(level, log_share)
            level = np.round(level, 9) - 1e-9
            pairs, where = np.unique(np.stack([number, level], axis=1), axis=0, return_inverse=True)
            if len(pairs) <= _MOST_SPLITS / len(self._segments):
                break
        rows = [self._cumulants(segment, int(n), float(share)) for n, share in pairs]
        table = np.array([row for row, _ in rows]).reshape(len(rows), len(THETA))
        return table, np.array([lost for _, lost in rows]), where.ravel()

    def _cumulants(
        self, segment: _Segment, number: int, log_share: float
    ) -> tuple[np.ndarray, float]:
        law, _ = self._keys[number]
        deviation = segment.deviation * math.exp(log_share)
        if law is None or deviation == 0.0:
            return np.full(len(THETA), math.inf), 0.0
        mechanism = make_mixture(np.asarray(law.values) / deviation, law.probabilities)
        released = Ledger(() if mechanism is None else ((mechanism, segment.count),), False)
        return grid_cumulants(released), released.dropped


def averaging_refusal(silos: Sequence[Silo]) -> str | None:
    """Why the noises of `silos` do not simply add up; None if they do."""
    for number, silo in enumerate(silos):
        i = number if silo.name is None else repr(silo.name)
        if silo.steps_per_round > 1:
            return (
                f"silo {i} runs {silo.steps_per_round} local steps a round, each of which adapts "
                f"to the noise of the one before"
            )
        step = noised_sum(silo.event)
        if step is not None and step.plain and not silo.noised_once:
            return (
                f"the event of silo {i} is a plain Gaussian, which may stand for several noised "
                f"sums (as a shuffled epoch does); Silo(noised_once=True) promises that it is one"
            )
        if step is None:
            return (
                f"the event of silo {i}, {type(silo.event).__name__}, is not one noised sum under "
                f"add-or-remove"
            )
    return None


def _noised_sum(event: dp_accounting.DpEvent) -> NoisedSum:
    step = noised_sum(event)
    if step is None:
        raise ValueError(
            f"event_of_items returned {event!r}, which is not one noised sum as the silo's event "
            f"is; return an event of the same kind."
        )
    return step
