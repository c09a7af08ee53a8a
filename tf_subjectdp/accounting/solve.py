# SPDX-License-Identifier: Apache-2.0
"""`epsilon`, `delta` and `noise_multiplier`: the three questions one asks of an event."""

from __future__ import annotations

from collections.abc import Callable

import dp_accounting

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.engine.ledger import ledger
from tf_subjectdp.accounting.engine.pld import TARGET_ERROR, pld_bound, pld_delta, pld_epsilon
from tf_subjectdp.accounting.engine.renyi import rdp_delta, rdp_epsilon
from tf_subjectdp.accounting.searching import smallest_factor

# Relative error of the grid on which a search for noise starts.
_COARSE_ERROR = 3e-4
_NOISE = "noise multiplier"


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
        return smallest_factor(
            lambda sigma: rdp_epsilon(ledger(make_event(sigma), steps), delta), target, what=_NOISE
        )

    def at(error: float) -> Callable[[float], float]:
        # Without a warning: only what the search ends with is of interest.
        return lambda sigma: pld_bound(ledger(make_event(sigma), steps), delta, error)[0]

    # A coarse grid overstates epsilon a little, so the answer lies a little below what it finds.
    start = smallest_factor(at(_COARSE_ERROR), target, precision=1e-3, what=_NOISE)
    found = smallest_factor(at(TARGET_ERROR), target, start, step=1.001, what=_NOISE)
    pld_epsilon(ledger(make_event(found), steps), delta)  # warns if it is far above the truth
    return found
