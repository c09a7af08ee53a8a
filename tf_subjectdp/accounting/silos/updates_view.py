# SPDX-License-Identifier: Apache-2.0
"""The view in which the server sees every silo's update."""

from __future__ import annotations

from collections.abc import Sequence

import dp_accounting
import numpy as np
from scipy import sparse

from tf_subjectdp.accounting.engine.ledger import Ledger, ledger
from tf_subjectdp.accounting.engine.renyi import grid_cumulants
from tf_subjectdp.accounting.events import compose, nonprivate_event
from tf_subjectdp.accounting.silos.batch_pld import batch_deltas, batch_epsilons, can_batch
from tf_subjectdp.accounting.silos.dominance import ledger_dominates
from tf_subjectdp.accounting.silos.views import Question, SiloLike, View, largest_of_any

# Rows of a table that are summed at once.
_ROWS = 8192
# The loss distributions of so many types at most are kept at once; and of so many types times rows
# (some ten seconds).
_MOST_BATCHED_TYPES = 96
_MOST_BATCHED_ENTRIES = 2_000_000


class UpdatesView(View):
    """The server sees every silo's update: what the subject's silos release composes.

    Silos in `unprotected` have their noise known to the adversary.
    """

    def __init__(self, silos: Sequence[SiloLike], unprotected: frozenset[int] = frozenset()):
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
