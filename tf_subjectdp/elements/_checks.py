# SPDX-License-Identifier: Apache-2.0
"""Checks of what a user gives: numbers, and columns of one value a row.

Each error names the value, the bound and the remedy. NumPy alone.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

# pandas marks a missing value with one of these; asking by name spares us importing pandas.
_PANDAS_MISSING = ("NAType", "NaTType")
_LARGEST = 2**53


def whole(name: str, value: Any, least: int = 1) -> int:
    """`value` as an int of at least `least`; TypeError for other types, ValueError below."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"{name} is {value!r} ({type(value).__name__}): pass a whole number of at least {least}"
        )
    if not least <= value <= _LARGEST:
        raise ValueError(f"{name} is {value}: it must be between {least} and {_LARGEST} (2**53)")
    return int(value)


def positive(name: str, value: Any) -> float:
    """`value` as a float from 1e-100 to 1e100; TypeError for other types, ValueError outside."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}): pass a number above 0")
    if math.isnan(value) or not 1e-100 <= value <= 1e100:
        raise ValueError(f"{name} is {value}: it must be a number from 1e-100 to 1e100")
    return float(value)


def generator(seed: Any) -> np.random.Generator:
    """A `Generator` as it is, one of a whole number, or a fresh one for None."""
    if isinstance(seed, np.random.Generator):
        return seed
    return np.random.default_rng(None if seed is None else whole("seed", seed, 0))


def column(values: Any, what: str) -> np.ndarray:
    """One value a row as an array [rows], with no value changed on the way.

    Args:
      values: an array, list, tuple, pandas Series or eager tensor. NumPy would make two strings of the
        list ["a", 1], and one of [b"a", b"a\\0"]: lists become object arrays.
      what: what a row holds, for messages: "value", "subject id".

    Raises:
      ValueError: another shape, or a missing row (None, NaN, NA, NaT, masked), which is named.
      TypeError: a single string.
    """
    if values is None or isinstance(values, (str, bytes)):
        raise TypeError(f"{what}s are the single value {values!r}: pass one {what} a row")
    if isinstance(values, (list, tuple)):
        array = np.fromiter(values, dtype=object, count=len(values))
    else:
        array = np.asanyarray(values)
    if array.ndim != 1:
        raise ValueError(f"{what}s have shape {array.shape}: pass one {what} a row, shape [rows]")
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        _refuse_missing(int(np.flatnonzero(np.ma.getmaskarray(values))[0]), "masked", what)
    if array.dtype.kind in "OfcmM":
        for row, value in enumerate(array.tolist()):
            if is_missing(value):
                _refuse_missing(row, repr(value), what)
    return np.asarray(array)


def is_missing(value: Any) -> bool:
    """Whether `value` stands for no value: None, NaN, NA, NaT."""
    if value is None or type(value).__name__ in _PANDAS_MISSING:
        return True
    return isinstance(value, float) and math.isnan(value)


def codes(values: Any, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers the different values of a column of integers or of strings.

    Returns:
      `(codes, first)`: int64 [rows] in 0..n-1, equal exactly where the values are equal, numbered in
      the order in which they first appear; int64 [n], the row in which each first appears.

    Raises:
      ValueError: as `column`; an empty or blank text, by row; no rows at all.
      TypeError: values of another kind, or of more than one.
    """
    array = column(values, what)
    if not array.size:
        raise ValueError(f"there are no {what}s (no rows): pass one {what} a row")
    listed = array.tolist()
    kinds = {"int"} if array.dtype.kind in "iu" else {_kind(value) for value in listed}
    if len(kinds) > 1 or "other" in kinds:
        names = sorted({type(value).__name__ for value in listed})
        raise TypeError(
            f"{what}s are of type {', '.join(names)}: pass integers, strings or bytes, all of one "
            "kind, so that equal ones are equal"
        )
    if kinds - {"int"}:
        blank = (
            row for row, one in enumerate(listed) if not isinstance(one, int) and not one.strip()
        )
        for row in blank:
            _refuse_missing(row, repr(listed[row]), what)
    numbered: dict[Any, int] = {}
    coded = np.fromiter(
        (numbered.setdefault(value, len(numbered)) for value in listed), np.int64, array.size
    )
    first = np.empty(len(numbered), np.int64)
    first[coded[::-1]] = np.arange(array.size)[::-1]
    return coded, first


def _kind(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "other"
    for kind in (str, bytes):
        if isinstance(value, kind):
            return kind.__name__
    return "int" if isinstance(value, (int, np.integer)) else "other"


def _refuse_missing(row: int, value: str, what: str) -> None:
    raise ValueError(f"row {row} has no {what} ({value}): drop such rows, or give them a {what}")
