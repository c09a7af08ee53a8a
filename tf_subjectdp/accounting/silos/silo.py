# SPDX-License-Identifier: Apache-2.0
"""One silo of a federation for the accountant, and the same silo with more noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import attr
import dp_accounting

from tf_subjectdp.accounting import _checks

# Attributes of events that hold the noise's deviation in units of the sensitivity.
_NOISE_FIELDS = ("noise_multiplier", "standard_deviation")


@dataclasses.dataclass(frozen=True)
class Silo:
    """What one silo does.

    Attributes:
      event: one step, for the subject unit (all silos of a plan for one unit and one adjacency).
      steps_per_round: T, local steps a round, >= 1.
      rounds: R, rounds that the silo takes part in, >= 0. In the averaged view it reports in the
        rounds 1 to R.
      weight: factor of the silo's noised update in the average, > 0. Used by the averaged view
        only, where weights matter up to a common factor.
      clip_norm: the length of one unit of sensitivity of `event`: C, and 2 C for `user_ldp_event`.
        Used by the averaged view only.
      name: what to call the silo; needed where membership is given by name.
      noised_once: a promise, used by the averaged view only, that a step whose event is a plain
        Gaussian adds noise ONCE, as `UserLDP` does with one batch. False, the default, is right for
        `shuffled_epoch_event`, whose batches adapt to the noise of those before; the averaged view
        then takes the bound of the updates. Of no matter for sampled events, which are one batch.
      event_of_items: from a subject's number of items in the silo to the event of one step, of the
        same noise, growing in the number; None if `event` stands for every member. Used by
        `per_subject_epsilon` only.

    Raises:
      TypeError, ValueError: an attribute is out of its range; the message names it.
    """

    event: dp_accounting.DpEvent
    steps_per_round: int = 1
    rounds: int = 1
    _: dataclasses.KW_ONLY
    weight: float = 1.0
    clip_norm: float = 1.0
    name: str | None = None
    noised_once: bool = False
    event_of_items: Callable[[int], dp_accounting.DpEvent] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.event, dp_accounting.DpEvent):
            raise TypeError(
                f"event must be a dp_accounting.DpEvent, got {self.event!r}; make one with "
                f"higradavg_event, group_event, ..."
            )
        steps = _checks.integer("steps_per_round", self.steps_per_round, 1)
        object.__setattr__(self, "steps_per_round", steps)
        object.__setattr__(self, "rounds", _checks.integer("rounds", self.rounds, 0))
        for name in ("weight", "clip_norm"):
            value = _checks.sensitivity(name, getattr(self, name))
            if value == 0.0:
                raise ValueError(f"{name} must be above 0, got 0; leave the silo out instead.")
            object.__setattr__(self, name, value)
        if self.name is not None and not isinstance(self.name, str):
            raise TypeError(f"name must be a string or None, got {self.name!r}.")
        if not isinstance(self.noised_once, bool):
            raise TypeError(f"noised_once must be True or False, got {self.noised_once!r}.")
        if self.event_of_items is not None and not callable(self.event_of_items):
            raise TypeError(
                f"event_of_items must be a function from a number of items to an event, got "
                f"{self.event_of_items!r}."
            )

    def scaled(self, factor: float) -> Silo:
        """The silo with its noise multiplied by `factor`."""
        inner = self.event_of_items
        return dataclasses.replace(
            self,
            event=scaled_event(self.event, factor),
            event_of_items=None
            if inner is None
            else lambda items: scaled_event(inner(items), factor),
        )


def as_silos(silos: Any) -> tuple[Silo, ...]:
    """`Silo`s from `Silo`s and from tuples (event, steps_per_round, rounds).

    Raises:
      TypeError, ValueError: no silos, or an entry is neither.
    """
    if not isinstance(silos, Iterable):
        raise TypeError(f"silos must be a list of Silo, got {silos!r}.")
    result = []
    for silo in silos:
        if isinstance(silo, tuple) and 1 <= len(silo) <= 3:
            silo = Silo(*silo)
        if not isinstance(silo, Silo):
            raise TypeError(
                f"silos must be Silo objects or tuples (event, steps_per_round, rounds), got "
                f"{silo!r}."
            )
        result.append(silo)
    if not result:
        raise ValueError("silos is empty; pass one Silo for each organisation that takes part.")
    return tuple(result)


def scaled_event(event: dp_accounting.DpEvent, factor: float) -> dp_accounting.DpEvent:
    """`event` with the noise of everything in it multiplied by `factor`.

    Args:
      event: any event whose noise is in attributes `noise_multiplier` or `standard_deviation` of it
        or of events inside it; an event without noise stays without.
      factor: finite, >= 0.

    Raises:
      TypeError, ValueError: `factor` is out of range, or the event's noise is not known.
    """
    factor = _checks.noise("factor", factor)
    unchanged = (dp_accounting.NoOpDpEvent, dp_accounting.NonPrivateDpEvent)
    if isinstance(event, unchanged):
        return event
    if not attr.has(type(event)):
        raise ValueError(f"the noise of {event!r} cannot be scaled: it is not an attrs class.")
    changes: dict[str, Any] = {}
    for field in attr.fields(type(event)):
        value = getattr(event, field.name)
        if field.name in _NOISE_FIELDS:
            changes[field.name] = value * factor
        elif isinstance(value, dp_accounting.DpEvent):
            changes[field.name] = scaled_event(value, factor)
        elif isinstance(value, (list, tuple)) and any(
            isinstance(one, dp_accounting.DpEvent) for one in value
        ):
            changes[field.name] = type(value)(scaled_event(one, factor) for one in value)
        elif field.name == "events" and not value:
            changes[field.name] = value
    if not changes:
        raise ValueError(
            f"the noise of {type(event).__name__} cannot be scaled: it has none of the attributes "
            f"{', '.join(_NOISE_FIELDS)}; calibrate it on its own."
        )
    return attr.evolve(event, **changes)
