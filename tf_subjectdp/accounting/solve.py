# SPDX-License-Identifier: Apache-2.0
"""`epsilon`, `delta` and `noise_multiplier`: the three questions one asks of an event."""

from __future__ import annotations

import math
from collections.abc import Callable

import dp_accounting

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.engine.ledger import Ledger, ledger
from tf_subjectdp.accounting.engine.pld import TARGET_ERROR, pld_bound, pld_delta, pld_epsilon
from tf_subjectdp.accounting.engine.rdp import rdp_delta, rdp_epsilon

# Calibration looks for noise in this range, to this relative precision.
_LOWEST_NOISE = 1e-3
_HIGHEST_NOISE = 1e9
_PRECISION = 5e-5
_COARSE_ERROR = 3e-4


def epsilon(
    event: dp_accounting.DpEvent, steps: int = 1, *, delta: float, engine: str = "pld"
) -> float:
    """Smallest epsilon for which `steps` runs of `event` are (epsilon, delta)-private, from above.

    Args:
      event: one step, from this package or from dp_accounting; `compose` makes one of unlike
        events.
      steps: how often it runs, an integer >= 0.
      delta: in [0, 1).
      engine: "pld" (privacy loss distributions, relative error at most 1e-3, usually 2e-5) or
        "rdp".

    Returns:
      epsilon >= 0; 0.0 if nothing is released, infinite if there is none (no noise; delta = 0).

    Raises:
      TypeError, ValueError: an argument is out of its range, the event is unknown, or the engine
        cannot account for it (zCDP events need engine="rdp").
    """
    delta = _checks.target_delta(delta, allow_zero=True)
    entries = ledger(event, steps)
    if _checks.engine(engine) == "rdp":
        return rdp_epsilon(entries, delta)
    return pld_epsilon(entries, delta)


def delta(
    event: dp_accounting.DpEvent, steps: int = 1, *, epsilon: float, engine: str = "pld"
) -> float:
    """Smallest delta for which `steps` runs of `event` are (epsilon, delta)-private, from above.

    Args:
      event: one step, from this package or from dp_accounting; `compose` makes one of unlike
        events.
      steps: how often it runs, an integer >= 0.
      epsilon: finite, >= 0.
      engine: "pld" or "rdp".

    Returns:
      delta in [0, 1]; 0.0 if nothing is released, 1.0 without noise.

    Raises:
      TypeError, ValueError: an argument is out of its range, the event is unknown, or the engine
        cannot account for it (zCDP events need engine="rdp").
    """
    epsilon = _checks.target_epsilon(epsilon, allow_zero=True)
    entries = ledger(event, steps)
    if _checks.engine(engine) == "rdp":
        return rdp_delta(entries, epsilon)
    return pld_delta(entries, epsilon)


def noise_multiplier(
    make_event: Callable[[float], dp_accounting.DpEvent],
    steps: int = 1,
    *,
    epsilon: float,
    delta: float,
    engine: str = "pld",
) -> float:
    """Smallest noise at which `steps` runs of `make_event(sigma)` are (epsilon, delta)-private.

    Args:
      make_event: from a noise multiplier to the event of one step; more noise must mean more
        privacy.
      steps: how often it runs, an integer >= 0.
      epsilon: the target, finite, > 0.
      delta: in (0, 1).
      engine: "pld" or "rdp".

    Returns:
      sigma, at most 1e-4 (relative) above the smallest one, verified to keep `epsilon` at `delta`;
      0.0 if `steps` is 0, and 0.001 if even so little noise is enough.

    Raises:
      TypeError: `make_event` is not callable, or does not return an event.
      ValueError: an argument is out of its range, or no amount of noise below 1e9 is enough.
    """
    if not callable(make_event):
        raise TypeError(
            f"make_event must be a function from a noise multiplier to an event, got "
            f"{make_event!r}; for instance lambda sigma: item_event(0.01, sigma)."
        )
    target = _checks.target_epsilon(epsilon, allow_zero=False)
    delta = _checks.target_delta(delta, allow_zero=False)
    if _checks.integer("steps", steps, 0) == 0:
        _checks.engine(engine)
        return 0.0

    if _checks.engine(engine) == "rdp":

        def coarse(sigma: float) -> float:
            return rdp_epsilon(ledger(make_event(sigma), steps), delta)

        fine = coarse
    else:

        def coarse(sigma: float) -> float:
            return _pld(ledger(make_event(sigma), steps), delta, _COARSE_ERROR)

        def fine(sigma: float) -> float:
            return _pld(ledger(make_event(sigma), steps), delta, TARGET_ERROR)

    low, high = _bracket(coarse, target)
    if low == high:
        return _verified(fine, target, low)
    low, high = _narrow(coarse, target, low, high, 1e-3)
    # The coarse grid overstates epsilon a little, so the fine root lies a little below the coarse.
    low *= 1.0 - 1e-3
    while fine(low) <= target:
        low, high = low * 0.99, low
    found = _verified(fine, target, _narrow(fine, target, low, high, _PRECISION)[1])
    if engine == "pld":
        pld_epsilon(ledger(make_event(found), steps), delta)  # warns if it is far above the truth
    return found


def _pld(entries: Ledger, delta: float, error: float) -> float:
    # Without a warning: only what the search ends with is of interest.
    return pld_bound(entries, delta, error)[0]


def _bracket(function: Callable[[float], float], target: float) -> tuple[float, float]:
    """(low, high) with function(low) > target >= function(high); equal if the lowest will do."""
    low = high = 1.0
    if function(high) > target:
        while True:
            low, high = high, high * 4.0
            if high > _HIGHEST_NOISE:
                raise ValueError(
                    f"no noise multiplier up to {_HIGHEST_NOISE:g} reaches epsilon={target:g}: at "
                    f"{low:g} epsilon is still {function(low):g}; check that make_event uses its "
                    f"argument, and take fewer steps, a smaller sampling rate or a larger delta."
                )
            if function(high) <= target:
                return low, high
    while True:
        low = max(low / 4.0, _LOWEST_NOISE)
        if function(low) > target:
            return low, high
        if low == _LOWEST_NOISE:
            return low, low
        high = low


def _narrow(
    function: Callable[[float], float], target: float, low: float, high: float, precision: float
) -> tuple[float, float]:
    """Shrinks the bracket to `precision`, relative: secant steps on log epsilon over log sigma."""
    points = [(low, function(low)), (high, function(high))]
    while high > low * (1.0 + precision):
        estimate = _secant(points[-2], points[-1], target)
        # A little above the estimate is expected to keep the target and become the upper end; once
        # it has, a little below the upper end closes the bracket from the other side.
        trial = estimate * (1.0 + 0.3 * precision)
        if high > trial * (1.0 - 1e-12) >= high * (1.0 - precision):
            trial = high * (1.0 - 0.9 * precision)
        if not low < trial < high or len(points) % 4 == 0:
            trial = math.sqrt(low * high)
        value = function(trial)
        points.append((trial, value))
        if value > target:
            low = trial
        else:
            high = trial
    return low, high


def _secant(first: tuple[float, float], second: tuple[float, float], target: float) -> float:
    """Where the line through two points (sigma, epsilon), on logarithmic axes, meets the target."""
    (x0, y0), (x1, y1) = first, second
    if not (0.0 < y0 < math.inf and 0.0 < y1 < math.inf) or y0 == y1:
        return math.nan
    slope = math.log(x1 / x0) / math.log(y1 / y0)
    return x1 * math.exp(min(max(slope * math.log(target / y1), -50.0), 50.0))


def _verified(function: Callable[[float], float], target: float, sigma: float) -> float:
    """Rounds sigma up to six digits, and makes sure that the promise holds there."""
    for _ in range(60):
        digits = 5 - math.floor(math.log10(sigma))
        rounded = math.ceil(sigma * 10.0**digits) / 10.0**digits
        rounded = max(rounded, sigma)
        if function(rounded) <= target:
            return rounded
        sigma = rounded * (1.0 + 1e-5)
    raise ValueError(
        f"no noise multiplier near {sigma:g} reaches epsilon={target:g}: epsilon does not fall as "
        f"the noise grows; check make_event."
    )
