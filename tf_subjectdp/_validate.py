# SPDX-License-Identifier: Apache-2.0
"""Checks of what a user gives, for public doors: one function a kind of value.

Each returns the value as a plain Python number, or raises TypeError for another type and ValueError for
a value out of range; the text names the argument, the value, the bound and the remedy.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

#: Below this delta the truncated tails of the loss distributions would no longer be negligible.
SMALLEST_PLD_DELTA = 1e-25

#: Above this a float64 no longer tells whole numbers apart.
LARGEST_INTEGER = 2**53
#: Outside of these the squares of lengths would leave the range of float64.
SMALLEST_LENGTH, LARGEST_LENGTH = 1e-50, 1e50


def real(name: str, value: Any) -> float:
    """Any number but NaN."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        try:
            # 0-d arrays and NumPy/TensorFlow scalars behave as numbers without being registered.
            if isinstance(value, (bool, str, bytes)):
                raise TypeError
            value = value.__float__()
        except (TypeError, AttributeError):
            raise TypeError(
                f"{name} must be a real number, got {value!r} of type {type(value).__name__}."
            ) from None
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(
            f"{name} is {value!r}, above the range of a float (1.8e308); pass a smaller number."
        ) from None
    if math.isnan(number):
        raise ValueError(f"{name} is NaN; pass a real number.")
    return number


def integer(name: str, value: Any, minimum: int, maximum: int = LARGEST_INTEGER) -> int:
    """A whole number in [minimum, maximum]."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"{name} must be an integer, got {value!r} of type {type(value).__name__}; round it "
            "explicitly."
        )
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}.")
    if value > maximum:
        raise ValueError(
            f"{name} must be at most {maximum}, got {value}: this arithmetic ends there; pass a "
            f"smaller number."
        )
    return int(value)


def between(name: str, value: Any, least: float, most: float) -> float:
    """A number in [least, most]."""
    number = real(name, value)
    if not least <= number <= most:
        raise ValueError(f"{name} must be between {least:g} and {most:g}, got {number:g}.")
    return number


def length(name: str, value: Any) -> float:
    """A length, from 1e-50 to 1e50: a radius, or a number of items."""
    return between(name, value, SMALLEST_LENGTH, LARGEST_LENGTH)


def fraction(name: str, value: Any, below: float = 1.0) -> float:
    """A number above 0 (at least 1e-50) and below `below`."""
    number = real(name, value)
    if not SMALLEST_LENGTH <= number < below:
        raise ValueError(f"{name} must be above 0 and below {below:g}, got {number:g}.")
    return number


def probability(name: str, value: Any) -> float:
    """A probability in [0, 1]."""
    number = real(name, value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(
            f"{name} must be a probability in [0, 1], got {name}={number:g} "
            f"({'above 1' if number > 1 else 'below 0'}); a rate is the expected size of a batch "
            f"divided by the size of the data, and cannot exceed 1."
        )
    return number


def noise(name: str, value: Any) -> float:
    """A noise multiplier: 0, or from 1e-50 to 1e50."""
    number = real(name, value)
    if not 0.0 <= number < math.inf:
        raise ValueError(
            f"{name} must be finite and >= 0 (noise standard deviation divided by clip_norm), "
            f"got {number:g}; 0 is accepted and means 'not private'."
        )
    if number > LARGEST_LENGTH or 0.0 < number < SMALLEST_LENGTH:
        raise ValueError(
            f"{name} must be 0 or between {SMALLEST_LENGTH:g} and {LARGEST_LENGTH:g}, got "
            f"{number:g}: this arithmetic ends there; pass 0 for no noise."
        )
    return number


def sensitivity(name: str, value: Any) -> float:
    """A sensitivity in clip norms, from 0 to 1e50."""
    number = real(name, value)
    if not 0.0 <= number < math.inf:
        raise ValueError(
            f"{name} must be finite and >= 0 (in units of clip_norm), got {number:g}; a "
            f"sensitivity is the distance that one unit can move the sum."
        )
    if number > LARGEST_LENGTH:
        raise ValueError(
            f"{name} must be at most {LARGEST_LENGTH:g}, got {number:g}: this arithmetic ends "
            f"there; clip to a smaller norm."
        )
    return number


def target_delta(value: Any, *, allow_zero: bool) -> float:
    """A delta in [0, 1), or in (0, 1) if zero is not allowed."""
    number = real("delta", value)
    if not 0.0 <= number < 1.0 or (number == 0.0 and not allow_zero):
        bracket = "[0, 1)" if allow_zero else "(0, 1)"
        raise ValueError(
            f"delta must be in {bracket}, got {number:g}; it should be well below one over the "
            f"number of subjects."
        )
    return number


def target_epsilon(value: Any, *, allow_zero: bool) -> float:
    """A finite epsilon >= 0, or > 0 if zero is not allowed."""
    number = real("epsilon", value)
    if not 0.0 <= number < math.inf or (number == 0.0 and not allow_zero):
        raise ValueError(
            f"epsilon must be finite and {'>= 0' if allow_zero else '> 0'}, got {number:g}."
        )
    return number


def engine(value: Any) -> str:
    """The name of an engine, "pld" or "rdp"."""
    if not isinstance(value, str) or value not in ("pld", "rdp"):
        raise ValueError(f'engine must be "pld" or "rdp", got {value!r}.')
    return value
