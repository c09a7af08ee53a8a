# SPDX-License-Identifier: Apache-2.0
"""One recursive walk over an event: a list of (canonical mechanism, how often it runs).

This is the only place that knows the event classes; both engines work on its result, so a count
that is forgotten cannot be forgotten in one engine only. Equal mechanisms are merged, Gaussians
into one.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import dp_accounting

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.engine.canonical import NotPrivate, canonical
from tf_subjectdp.accounting.engine.mechanisms import Gaussian, Mechanism, dropped, presence

ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


@dataclasses.dataclass(frozen=True)
class Ledger:
    """What runs: `entries` of (mechanism, count >= 1), and whether anything runs unprotected."""

    entries: tuple[tuple[Mechanism, int], ...]
    nonprivate: bool

    @property
    def steps(self) -> int:
        """Number of mechanisms composed."""
        return sum(count for _, count in self.entries)

    @property
    def presence(self) -> float:
        """An upper bound on the probability that anything that is released depends on the unit.

        It bounds delta at every epsilon: sampling alone protects that much, without any noise.
        """
        if self.nonprivate:
            return 1.0
        shares = [(presence(mechanism), count) for mechanism, count in self.entries]
        if any(share >= 1.0 for share, _ in shares):
            return 1.0
        return -math.expm1(math.fsum(count * math.log1p(-share) for share, count in shares))

    @property
    def dropped(self) -> float:
        """Mass that the mixtures lack, over all steps."""
        return math.fsum(count * dropped(mechanism) for mechanism, count in self.entries)

    @property
    def only_gaussian_mu(self) -> float | None:
        """mu of the one Gaussian all entries amount to (0 for none), or None if there is more."""
        if not self.entries:
            return 0.0
        mechanism = self.entries[0][0]
        return mechanism.mu if len(self.entries) == 1 and mechanism.is_gaussian else None


def ledger(
    event: dp_accounting.DpEvent,
    steps: int,
    relation: dp_accounting.NeighboringRelation = ADD_OR_REMOVE,
) -> Ledger:
    """Decomposes `steps` runs of `event`.

    Args:
      event: any nesting of the events of `tf_subjectdp.accounting` and of dp_accounting's that
        `canonical` knows.
      steps: how often it runs, >= 0.
      relation: what neighbouring data are, for events that leave it open (`canonical`).

    Raises:
      TypeError: `event` is not a `DpEvent`, or `steps` not an integer.
      ValueError: an event is of an unknown kind or has a parameter out of range; the message names
      it.
    """
    steps = _checks.integer("steps", steps, 0)
    counts: dict[Mechanism, int] = {}
    nonprivate = False
    stack: list[tuple[Any, int]] = [(event, steps)]
    while stack:
        current, count = stack.pop()
        if not isinstance(current, dp_accounting.DpEvent):
            raise TypeError(
                f"expected a dp_accounting.DpEvent, got {current!r} of type "
                f"{type(current).__name__}; make one with item_event, group_event, ..."
            )
        if isinstance(current, dp_accounting.SelfComposedDpEvent):
            stack.append((current.event, _times(count, current.count)))
            continue
        if isinstance(current, dp_accounting.ComposedDpEvent):
            stack.extend((part, count) for part in reversed(current.events))
            continue
        try:
            mechanism = canonical(current, relation)
        except NotPrivate:
            nonprivate = nonprivate or count > 0
            continue
        if mechanism is not None and count > 0:
            counts[mechanism] = _checks.integer("steps", counts.get(mechanism, 0) + count, 0)
    return Ledger(_merge_gaussians(counts), nonprivate)


def _times(count: int, inner: Any) -> int:
    """How often a composition within a composition runs; ValueError above the largest count."""
    return _checks.integer("steps", count * _checks.integer("count", inner, 0), 0)


def _merge_gaussians(counts: dict[Mechanism, int]) -> tuple[tuple[Mechanism, int], ...]:
    """n Gaussians of mu are one of mu sqrt(n); several add in squares (exact, not a bound)."""
    squares = [m.mu**2 * n for m, n in counts.items() if isinstance(m, Gaussian)]
    others = [(m, n) for m, n in counts.items() if not isinstance(m, Gaussian)]
    # A fixed order makes the result independent of the order in which events were composed.
    others.sort(key=lambda entry: repr(entry))
    if squares:
        others.insert(0, (Gaussian(math.sqrt(math.fsum(squares))), 1))
    return tuple(others)
