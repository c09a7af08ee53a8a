# SPDX-License-Identifier: Apache-2.0
"""Inversions of functions that are known only by their values: noise factors and whole numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

# Factors are looked for in this range, to this relative precision.
_LOWEST, _HIGHEST = 1e-3, 1e9
_PRECISION = 8e-5


def smallest_factor(function: Callable[[float], float], target: float, start: float = 1.0) -> float:
    """The smallest factor at which a falling `function` is at most `target`, from above.

    Args:
      function: from a factor > 0 to a value >= 0, not increasing.
      target: > 0.
      start: where to look first, between 0.001 and 1e9.

    Returns:
      A factor at which `function` was seen to keep the target; 0.001 if that does.

    Raises:
      ValueError: no factor up to 1e9 is enough.
    """
    low = high = start
    values = {start: function(start)}
    # Short steps first: the start may be a good guess.
    ratio = 1.05
    while values[high] > target:
        low, high, ratio = high, high * ratio, min(ratio * ratio, 4.0)
        if high > _HIGHEST:
            raise ValueError(
                f"no factor up to {_HIGHEST:g} reaches {target:g}: at {low:g} the value is still "
                f"{values[low]:g}; take fewer steps, a smaller sampling rate or a larger delta."
            )
        values[high] = function(high)
    while values[low] <= target:
        if low == _LOWEST:
            return low
        low, high, ratio = max(low / ratio, _LOWEST), low, min(ratio * ratio, 4.0)
        values[low] = function(low)
    turn = 0
    while high > low * (1.0 + _PRECISION):
        turn += 1
        trial = _between(math.log(low), math.log(high), values[low], values[high], target, turn)
        # A little above the estimate is expected to keep the target, a little below it not to.
        trial = math.exp(trial) * (1.0 + (0.4 if turn % 2 else -0.4) * _PRECISION)
        if not low < trial < high:
            trial = math.sqrt(low * high)
        values[trial] = function(trial)
        if values[trial] > target:
            low = trial
        else:
            high = trial
    return high


def largest_integer(function: Callable[[int], float], target: float, most: int) -> int:
    """The largest n in [0, most] at which a growing `function` is at most `target`.

    Args:
      function: from a whole number >= 1 to a value >= 0, not decreasing.
      target: > 0.
      most: where the search ends, >= 1.

    Returns:
      n with function(n) <= target < function(n + 1); 0 if function(1) is above; `most` if that is
      not.
    """
    low, high = 0, 1
    values = {1: function(1)}
    while values[high] <= target:
        if high >= most:
            return most
        # Composition grows like the root of n, or faster.
        ratio = target / values[high] if values[high] > 0.0 else 16.0
        low, high = high, min(most, max(high + 1, math.ceil(high * min(1.1 * ratio**2, 1e4))))
        values[high] = function(high)
    if low == 0:
        return 0
    turn = 0
    while high - low > 1:
        turn += 1
        trial = _between(math.log(low), math.log(high), values[low], values[high], target, turn)
        whole = min(max(math.floor(math.exp(trial)) + (turn % 2), low + 1), high - 1)
        values[whole] = function(whole)
        if values[whole] > target:
            high = whole
        else:
            low = whole
    return low


def _between(
    low: float, high: float, at_low: float, at_high: float, target: float, turn: int
) -> float:
    """Where the line through the ends, in log value, meets the target; the middle now and then."""
    middle = 0.5 * (low + high)
    if turn % 4 == 0 or not (0.0 < at_low < math.inf and 0.0 < at_high < math.inf):
        return middle
    rise = math.log(at_high / at_low)
    if rise == 0.0:
        return middle
    share = math.log(target / at_low) / rise
    return low + (high - low) * min(max(share, 0.0), 1.0)
