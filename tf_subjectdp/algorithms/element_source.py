# SPDX-License-Identifier: Apache-2.0
"""Where the elements of `ElementDP` come from, and what it cost to make them.

Elements that were fitted on the private data are a release before the training; both compose. Two data
sets are neighbours at element level if one subject differs on one element of the map that came out. For a
given pair let C be the maps under which they are neighbours. The fit, whose cost is that of all data of
the subject replaced, is bounded for every map; given a map of C the training is bounded, and any other
map says nothing (as if the training were left out there). So the composition bounds all outcomes in C.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import dp_accounting

from tf_subjectdp import accounting
from tf_subjectdp.accounting import event_json

_KEYS = ("provenance", "event", "element_event")


@dataclasses.dataclass(frozen=True)
class ElementSource:
    """What is kept of an object of `tf_subjectdp.elements`: its sentence and its cost.

    Attributes:
      provenance: the sentence for the statement.
      event: the cost for one subject added or removed; None if the elements cost nothing.
      element_event: the cost for one element, or all data of a subject, replaced; likewise.
    """

    provenance: str
    event: dp_accounting.DpEvent | None = None
    element_event: dp_accounting.DpEvent | None = None

    def __post_init__(self) -> None:
        events = (self.event, self.element_event)
        if not isinstance(self.provenance, str) or not all(
            event is None or isinstance(event, dp_accounting.DpEvent) for event in events
        ):
            raise TypeError(
                f"provenance={self.provenance!r}, event={events[0]!r} and element_event={events[1]!r} "
                "must be a sentence and two events, both None for elements that cost nothing."
            )
        if (events[0] is None) != (events[1] is None):
            raise ValueError(
                "one of event and element_event is missing: elements that cost something cost "
                "subjects and elements; give both, or neither."
            )
        for name, event in zip(_KEYS[1:], events, strict=True):
            if event is not None:
                _check_accounted(name, event)

    def cost(self, unit: str) -> dp_accounting.DpEvent | None:
        """The event of the fit for a "subject", an "element" or an "item"; None for no cost."""
        # An item that changes changes the subject's data, which `element_event` lets be replaced whole.
        return self.event if unit == "subject" else self.element_event

    def get_config(self) -> dict[str, Any]:
        """JSON-able; `source_of` takes it back."""
        events = {name: getattr(self, name) for name in _KEYS[1:]}
        encoded = {
            name: None if event is None else event_json.encode(event)
            for name, event in events.items()
        }
        return {"provenance": self.provenance, **encoded}


def source_of(elements: Any) -> ElementSource | str | None:
    """What `ElementDP` keeps of its `elements`.

    Args:
      elements: an `Elements` object, an `ElementSource` or its config, a sentence, or None.

    Returns:
      An `ElementSource` where the cost is known; else the sentence, or None.

    Raises:
      TypeError, ValueError: anything else, elements that are not fitted, or no such config.
    """
    if elements is None or isinstance(elements, (str, ElementSource)):
        return elements
    if isinstance(elements, Mapping):
        return _from_config(elements)
    provenance = getattr(elements, "provenance", None)
    if not isinstance(provenance, str):
        raise TypeError(
            f"elements={elements!r} must be an object of tf_subjectdp.elements, a sentence on "
            "where the elements come from, or None."
        )
    events = [getattr(elements, name, None) for name in _KEYS[1:]]
    if all(event is None for event in events):
        # Of what says neither what it cost nor that it cost nothing, nobody knows.
        free = getattr(type(elements), "costs_nothing", False) is True
        return ElementSource(provenance) if free else provenance
    nothing = all(event == dp_accounting.ComposedDpEvent(()) for event in events)
    return ElementSource(provenance) if nothing else ElementSource(provenance, *events)


def _check_accounted(name: str, event: dp_accounting.DpEvent) -> None:
    """Refuses here what would leave the statement without its total."""
    try:
        hash(event)
    except TypeError:
        raise TypeError(f"{name}={event!r} holds a list; make events of tuples.") from None
    try:
        accounting.epsilon(event, delta=1e-5)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name}={event!r} cannot be composed with a training's: {error}"
        ) from None


def _from_config(config: Mapping[str, Any]) -> ElementSource:
    if set(config) != set(_KEYS):
        raise ValueError(
            f"elements={dict(config)!r} is no config of elements; pass what ElementDP.get_config() "
            "returned."
        )
    events = [
        None if config[name] is None else event_json.decode(config[name]) for name in _KEYS[1:]
    ]
    return ElementSource(config["provenance"], *events)
