# SPDX-License-Identifier: Apache-2.0
"""The view in which only the weighted sum of the silos' updates is seen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import dp_accounting
import numpy as np
from scipy import sparse

from tf_subjectdp.accounting.engine.ledger import Ledger
from tf_subjectdp.accounting.engine.mechanisms import make_mixture
from tf_subjectdp.accounting.engine.renyi import THETA, grid_cumulants
from tf_subjectdp.accounting.events import compose, nonprivate_event
from tf_subjectdp.accounting.silos.central import mixture_event
from tf_subjectdp.accounting.silos.laws import Law, NoisedSum, dominates, noised_sum, sum_law
from tf_subjectdp.accounting.silos.views import Question, SiloLike, View, largest_of_any

# Rows of a table that are summed at once.
_ROWS = 8192
# More cumulant functions than this are not computed at once, over all segments: the noise is split
# more coarsely instead.
_MOST_SPLITS = 1500


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

    def __init__(self, silos: Sequence[SiloLike], known: frozenset[int] = frozenset()):
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


def averaging_refusal(silos: Sequence[SiloLike]) -> str | None:
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
