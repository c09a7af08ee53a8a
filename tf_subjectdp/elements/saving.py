# SPDX-License-Identifier: Apache-2.0
"""Centres and their provenance in one `.npz` file, without pickle: a file from elsewhere runs no code.

Knows the file format alone: an array of centres and a JSON text.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

_FORMAT = "tf_subjectdp.elements.KMeansElements 1"
_KINDS: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "iterations": (int,),
    "noise_multiplier": (float, int),
    "radius": (float, int),
    "seeded": (bool,),
    "extractor": (str, type(None)),
    "inertia": (float, int, type(None)),
}


def write(path: str | os.PathLike[str], centres: np.ndarray, record: dict[str, Any]) -> None:
    """Writes by way of a new file beside `path`, which then takes its place."""
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"{str(path)!r} is no '.npz' file: pass a path that ends in '.npz'")
    text = json.dumps({"format": _FORMAT, **record}, allow_nan=False)
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    try:
        with open(new, "xb") as file:
            np.savez(file, centres=centres, provenance=np.array(text))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def read(path: str | os.PathLike[str]) -> tuple[np.ndarray, dict[str, Any]]:
    """`(centres, record)` as they were written.

    Raises:
      ValueError: a file of something else, or with values that cannot be.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as parts:
            centres, text = parts["centres"], str(parts["provenance"])
        record = json.loads(text)
    except (ValueError, KeyError, IndexError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise _refusal(path, str(error)) from None
    if not isinstance(record, dict) or record.pop("format", None) != _FORMAT:
        raise _refusal(path, f"its format is not {_FORMAT!r}")
    if set(record) != set(_KINDS):
        raise _refusal(path, f"it has the entries {sorted(record)}")
    for name, kinds in _KINDS.items():
        value = record[name]
        # a bool is an int to Python
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _refusal(path, f"its {name} is {value!r}")
    if not _consistent(record):
        raise _refusal(path, f"its provenance is {record}")
    fine = centres.dtype == np.float64 and centres.ndim == 2 and centres.size
    if not fine or not np.isfinite(centres).all():
        raise _refusal(
            path, f"its centres are {centres.dtype} of shape {centres.shape}, or not finite"
        )
    return centres, record


def _consistent(record: dict[str, Any]) -> bool:
    paid = record["kind"] == "paid"
    numbers = (record["noise_multiplier"], record["radius"])
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        return False
    if paid:
        return record["iterations"] >= 1 and record["radius"] > 0
    return record["kind"] == "public" and not any(
        (record["iterations"], *numbers, record["seeded"])
    )


def _refusal(path: str | os.PathLike[str], why: str) -> ValueError:
    return ValueError(
        f"{os.fspath(path)!r} holds no elements ({why}): pass a file that KMeansElements.save wrote"
    )
