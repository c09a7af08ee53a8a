# SPDX-License-Identifier: Apache-2.0
"""Argument checks: each error names the value, the bound and the remedy."""

from __future__ import annotations

import math
import numbers
from typing import Any

#: Below this delta the truncated tails of the loss distributions would no longer be negligible.
SMALLEST_PLD_DELTA = 1e-25

#: Above this a float64 no longer tells whole numbers apart.
LARGEST_INTEGER = 2**53
# Outside of these the squares of lengths would leave the range of float64.
_SMALLEST_NOISE, _LARGEST_LENGTH = 1e-50, 1e50


def _real(name: str, value: Any) -> float:
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
    """Returns `value` as an int in [minimum, maximum] (TypeError or ValueError otherwise)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"{name} must be an integer, got {value!r} of type {type(value).__name__}; "
            f"round it explicitly (upwards is the safe direction for privacy)."
        )
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}.")
    if value > maximum:
        raise ValueError(
            f"{name} must be at most {maximum}, got {value}: this arithmetic ends there; pass a "
            f"smaller number."
        )
    return int(value)


def probability(name: str, value: Any) -> float:
    """Returns `value` as a float in [0, 1] (TypeError or ValueError otherwise)."""
    number = _real(name, value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(
            f"{name} must be a probability in [0, 1], got {name}={number:g} "
            f"({'above 1' if number > 1 else 'below 0'}); a rate is the expected size of a batch "
            f"divided by the size of the data, and cannot exceed 1."
        )
    return number


def noise(name: str, value: Any) -> float:
    """Returns a noise multiplier, finite and >= 0 (TypeError or ValueError otherwise)."""
    number = _real(name, value)
    if not 0.0 <= number < math.inf:
        raise ValueError(
            f"{name} must be finite and >= 0 (noise standard deviation divided by clip_norm), "
            f"got {number:g}; 0 is accepted and means 'not private'."
        )
    if number > _LARGEST_LENGTH or 0.0 < number < _SMALLEST_NOISE:
        raise ValueError(
            f"{name} must be 0 or between {_SMALLEST_NOISE:g} and {_LARGEST_LENGTH:g}, got "
            f"{number:g}: this arithmetic ends there; pass 0 for no noise."
        )
    return number


def sensitivity(name: str, value: Any) -> float:
    """Returns a sensitivity, finite and >= 0 (TypeError or ValueError otherwise)."""
    number = _real(name, value)
    if not 0.0 <= number < math.inf:
        raise ValueError(
            f"{name} must be finite and >= 0 (in units of clip_norm), got {number:g}; a "
            f"sensitivity is the distance that one unit can move the sum."
        )
    if number > _LARGEST_LENGTH:
        raise ValueError(
            f"{name} must be at most {_LARGEST_LENGTH:g}, got {number:g}: this arithmetic ends "
            f"there; clip to a smaller norm."
        )
    return number


def target_delta(value: Any, *, allow_zero: bool) -> float:
    """Returns a delta in [0, 1), or in (0, 1) if zero is not allowed."""
    number = _real("delta", value)
    if not 0.0 <= number < 1.0 or (number == 0.0 and not allow_zero):
        bracket = "[0, 1)" if allow_zero else "(0, 1)"
        raise ValueError(
            f"delta must be in {bracket}, got {number:g}; it should be well below one over the "
            f"number of subjects."
        )
    return number


def target_epsilon(value: Any, *, allow_zero: bool) -> float:
    """Returns a finite epsilon >= 0, or > 0 if zero is not allowed."""
    number = _real("epsilon", value)
    if not 0.0 <= number < math.inf or (number == 0.0 and not allow_zero):
        raise ValueError(
            f"epsilon must be finite and {'>= 0' if allow_zero else '> 0'}, got {number:g}."
        )
    return number


def engine(value: Any) -> str:
    """Returns the name of an engine, "pld" or "rdp" (ValueError otherwise)."""
    if not isinstance(value, str) or value not in ("pld", "rdp"):
        raise ValueError(f'engine must be "pld" or "rdp", got {value!r}.')
    return value
