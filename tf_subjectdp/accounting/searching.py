# SPDX-License-Identifier: Apache-2.0
"""Where a monotone function that is known only by its values meets a target.

Brent's method (SciPy) on logarithmic axes, on which epsilon is nearly a straight line in the noise and in
the number of steps. Every answer is a point at which the function was seen to keep the target.
(dp_accounting's `calibrate_dp_mechanism` searches on plain axes, to an absolute precision of 1e-6.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import optimize

# Factors are looked for in this range, to this relative precision.
_LOWEST, _HIGHEST = 1e-3, 1e9
_PRECISION = 5e-5


def smallest_factor(
    function: Callable[[float], float],
    target: float,
    start: float = 1.0,
    *,
    step: float = 1.5,
    precision: float = _PRECISION,
    what: str = "factor",
) -> float:
    """The smallest factor at which a falling `function` is at most `target`, from above.

    Args:
      function: from a factor > 0 to a value >= 0, not increasing.
      target: > 0.
      start: where to look first, between 0.001 and 1e9.
      step: by which factor the answer may differ from `start`; larger ones are tried after it.
      precision: relative, 2e-5 or more: only factors of six digits are tried.
      what: what the errors call a factor.

    Returns:
      A factor at which `function` was seen to keep the target; 0.001 if that does.

    Raises:
      ValueError: no factor up to 1e9 is enough.
    """
    values: dict[float, float] = {}

    def value(factor: float) -> float:
        factor = float(f"{factor:.6g}")
        if factor not in values:
            values[factor] = function(factor)
        return values[factor]

    low = high = start
    while value(high) > target:
        low, high, step = high, high * step, min(step**4, 4.0)
        if high > _HIGHEST:
            raise ValueError(
                f"no {what} up to {_HIGHEST:g} reaches epsilon={target:g}: at {low:g} it is still "
                f"{value(low):g}; take fewer steps, a smaller sampling rate or a larger delta, and "
                f"check that the {what} is used."
            )
    while value(low) <= target:
        if low == _LOWEST:
            return low
        low, high, step = max(low / step, _LOWEST), low, min(step**4, 4.0)
    _meet(value, target, low, high, 0.5 * precision)
    return min(factor for factor, seen in values.items() if seen <= target)


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
    values: dict[int, float] = {}

    def value(x: float) -> float:
        n = math.floor(x * (1.0 + 1e-12))  # exp(log(n)) may lie a little below n
        if n not in values:
            values[n] = function(n)
        return values[n]

    low, high = 0, 1
    while value(high) <= target:
        if high >= most:
            return most
        # Composition grows like the root of n, or faster.
        ratio = target / value(high) if value(high) > 0.0 else 16.0
        low, high = high, min(most, max(high + 1, math.ceil(high * min(1.1 * ratio**2, 1e4))))
    if low and high > low + 1:
        _meet(value, target, low, high, 0.25 / high)
        low = max(n for n, seen in values.items() if seen <= target)
    return low


def _meet(
    value: Callable[[float], float], target: float, low: float, high: float, precision: float
) -> None:
    """Calls `value` on both sides of where it meets `target`, `precision` apart (relative)."""

    def excess(log_x: float) -> float:
        # On the target is below it: whether the next whole number is above is still to be seen.
        return math.log(min(max(value(math.exp(log_x)) / target, 1e-9), 1e9)) or -1e-300

    optimize.brentq(excess, math.log(low), math.log(high), xtol=precision)
