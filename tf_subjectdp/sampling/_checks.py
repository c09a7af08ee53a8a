# SPDX-License-Identifier: Apache-2.0
"""Checks of numbers that a user gives; the error names the argument, the value and the bound."""

from __future__ import annotations

import math
import numbers
from typing import Any

# Above this a float64 no longer tells whole numbers apart.
LARGEST = 2**53
# A step of fewer units than this on average would need more than 2**53 steps for the first.
SMALLEST = 1e-15


def positive_int(name: str, value: Any) -> int:
    """`value` as an int >= 1; TypeError for anything but a whole number, ValueError below 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}): pass a whole number >= 1")
    if value < 1:
        raise ValueError(f"{name} is {value}: it must be at least 1")
    if value > LARGEST:
        raise ValueError(f"{name} is {value}: it must be at most {LARGEST} (2**53)")
    return int(value)


def positive_number(name: str, value: Any) -> int | float:
    """`value` as a finite number above 0; TypeError for other types, ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}): pass a number above 0")
    # compared before it is made a float: a whole number of 400 digits has none
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}: it must be finite and above 0")
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"{name} is {value}: it must be between {SMALLEST} and {LARGEST} (2**53)")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def sampling_rate(value: Any) -> float:
    """`value` as a probability in (0, 1]; ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value <= 1:
        raise ValueError(f"rate is {value!r}: a sampling rate is above 0 and at most 1")
    return float(value)


def check_indexes(parts: dict[str, Any]) -> None:
    """Refuses pandas objects whose indexes differ: rows are matched by position, never by index."""
    first = None
    for name, part in parts.items():
        leaves = part.values() if isinstance(part, dict) else [part]
        for leaf in leaves:
            index = getattr(leaf, "index", None)
            if not hasattr(leaf, "iloc") or index is None:
                continue
            if first is None:
                first = (name, index)
            elif len(index) == len(first[1]) and not index.equals(first[1]):
                raise ValueError(
                    f"{first[0]} and {name} are pandas objects with unlike indexes: rows are matched by "
                    "position, so people would be given the rows of others. Align them, or pass "
                    ".to_numpy() if the positions are right."
                )
