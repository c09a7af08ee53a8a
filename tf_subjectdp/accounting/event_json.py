# SPDX-License-Identifier: Apache-2.0
"""Events to and from JSON; a file can name no class but the events'."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attr
import numpy as np
from dp_accounting import dp_event

from tf_subjectdp.accounting import event_types

# No event has a field of this name ("event" is one).
_KIND = "kind"
_CLASSES: dict[str, type[dp_event.DpEvent]] = {
    kind.__name__: kind
    for module in (dp_event, event_types)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, dp_event.DpEvent) and attr.has(kind)
}
_DEEPEST = 200


def encode(event: dp_event.DpEvent) -> dict[str, Any]:
    """A JSON-able dict of `event`; `decode` is the inverse.

    Raises:
      ValueError: an event of a class that is neither dp_accounting's nor this package's.
    """
    return _encode(event, 0)


def _encode(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"the event is nested more than {_DEEPEST} deep; compose it flatly.")
    if isinstance(value, dp_event.DpEvent):
        name = type(value).__name__
        if _CLASSES.get(name) is not type(value):
            raise ValueError(
                f"{value!r} of type {name} cannot be saved: known are dp_accounting's events and "
                f"those of tf_subjectdp.accounting."
            )
        fields = {
            f.name: _encode(getattr(value, f.name), depth + 1) for f in attr.fields(type(value))
        }
        return {_KIND: name, **fields}
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        if value != math.inf:
            raise ValueError(f"{value!r} in an event cannot be saved: it is no parameter of any.")
        return "infinite"  # JSON has no infinity
    if isinstance(value, (list, tuple)):
        return [_encode(part, depth + 1) for part in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"{value!r} of type {type(value).__name__} in an event cannot be saved.")


def decode(config: Any) -> dp_event.DpEvent:
    """The event of a dict made by `encode`.

    Raises:
      ValueError: the dict is of something else.
    """
    event = _decode(config, 0)
    if not isinstance(event, dp_event.DpEvent):
        raise ValueError(f"{config!r} is no event; pass what `encode` returned.")
    return event


def _decode(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"the event is nested more than {_DEEPEST} deep; compose it flatly.")
    if isinstance(value, Mapping):
        fields = dict(value)
        name = fields.pop(_KIND, None)
        kind = _CLASSES.get(name) if isinstance(name, str) else None
        if kind is None:
            raise ValueError(f"unknown event {name!r}; known are {sorted(_CLASSES)}.")
        try:
            return kind(**{key: _decode(part, depth + 1) for key, part in fields.items()})
        except TypeError as error:
            raise ValueError(f"{value!r} is no {name}: {error}.") from None
    if isinstance(value, list):
        return tuple(_decode(part, depth + 1) for part in value)
    return math.inf if value == "infinite" else value


def write(path: str | os.PathLike[str], config: Mapping[str, Any]) -> None:
    """Writes JSON by way of a new file beside `path`, which then takes its place.

    The file keeps the permissions of the one it replaces; a new one gets the usual ones.
    """
    path = Path(path)
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    try:
        with open(new, "x", encoding="utf-8") as file:
            json.dump(config, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, new)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def read(path: str | os.PathLike[str], keys: Sequence[str]) -> dict[str, Any]:
    """Reads what `write` wrote; ValueError unless it is a JSON object with `keys`."""
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)!r} is no saved ledger: {error}.") from None
    if not isinstance(config, dict) or set(keys) - set(config):
        raise ValueError(
            f"{os.fspath(path)!r} is no saved ledger: a JSON object with {sorted(keys)} is expected."
        )
    return config
