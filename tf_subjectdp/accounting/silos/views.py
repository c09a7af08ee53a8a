# SPDX-License-Identifier: Apache-2.0
"""What an adversary of horizontal composition learns about a subject, for many subjects at once.

A view turns what a silo does with a subject into a TYPE (a small integer; equal types are equal for
privacy). A subject is then a multiset of types, a row of a pattern array padded with -1. A view
gives the exact event of a row (for the engines), and Renyi bounds of all rows (for screening).
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Hashable, Sequence
from typing import Protocol

import dp_accounting
import numpy as np

from tf_subjectdp.accounting import solve
from tf_subjectdp.accounting.engine.renyi import THETA, convert_delta, convert_epsilon


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


class SiloLike(Protocol):
    """What a view reads of a silo; see `horizontal.Silo`."""

    event: dp_accounting.DpEvent
    steps_per_round: int
    rounds: int
    weight: float
    clip_norm: float
    noised_once: bool
    name: str | None


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
