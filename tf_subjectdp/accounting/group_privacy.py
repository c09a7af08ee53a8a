# SPDX-License-Identifier: Apache-2.0
"""Group privacy: from a guarantee for one unit to one for `size` units at once, and back.

The conversions hold for ANY mechanism, and therefore cost more than knowing what the group does:
where the subject's law is known, `group_event` gives a smaller epsilon than every one of them.
`group_epsilon` and `group_noise_multiplier` go from an event to the group's epsilon and back; the
closed forms (`group_tight`, `group_loose`, `group_rdp`, `group_zcdp`, `group_mu`, and `ungroup_*`
for their inverses) are those of `group_conversions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import dp_accounting

from tf_subjectdp.accounting import _checks, solve
from tf_subjectdp.accounting.engine.gaussian import gaussian_epsilon
from tf_subjectdp.accounting.engine.ledger import Ledger, ledger
from tf_subjectdp.accounting.engine.renyi import renyi_divergence
from tf_subjectdp.accounting.group_conversions import (
    Guarantee,
    RenyiGuarantee,
    doublings_of,
    group_loose,
    group_mu,
    group_rdp,
    group_size,
    group_tight,
    group_zcdp,
    log_loose,
    log_tight,
    smallest_conversion,
    ungroup_loose,
    ungroup_mu,
    ungroup_rdp,
    ungroup_tight,
    ungroup_zcdp,
    zcdp_epsilon,
)
from tf_subjectdp.accounting.searching import smallest_factor

__all__ = [
    "Guarantee",
    "RenyiGuarantee",
    "group_epsilon",
    "group_loose",
    "group_mu",
    "group_noise_multiplier",
    "group_rdp",
    "group_tight",
    "group_zcdp",
    "ungroup_loose",
    "ungroup_mu",
    "ungroup_rdp",
    "ungroup_tight",
    "ungroup_zcdp",
    "zcdp_epsilon",
]

_RULES = ("tight", "loose", "rdp", "zcdp", "fdp")
# Relative precision of the group's epsilon, from above.
_PRECISION = 1e-6
_MOST_ITERATIONS = 400


def group_epsilon(
    event: dp_accounting.DpEvent,
    steps: int = 1,
    *,
    size: int,
    delta: float,
    rule: str = "tight",
    engine: str = "pld",
) -> float:
    """The epsilon of `size` units at once at `delta`, from what ONE unit's event says. From above.

    "tight" and "loose" return the smallest g eps0 with delta(eps0) times the rule's factor at most
    `delta`, where delta(eps0) is the engine's curve of `steps` runs. "rdp" is Proposition 2 at the
    best order. "zcdp" and "fdp" know only what amounts to one Gaussian.

    Args:
      event: one step, for ONE unit (an item, for instance).
      steps: how often it runs, an integer >= 0.
      size: number of units in the group, >= 1.
      delta: the group's, in (0, 1).
      rule: "tight", "loose", "rdp", "zcdp" or "fdp".
      engine: "pld" or "rdp", for "tight" and "loose"; below delta = 1e-25, where PLD ends, RDP.

    Returns:
      epsilon >= 0, at most 1e-6 (relative) above the rule's fixed point; infinite where there is
      none.

    Raises:
      TypeError, ValueError: an argument is out of its range; the event is unknown, or not a
        Gaussian and the rule is "zcdp" or "fdp".
    """
    size, rule = group_size(size), _rule(rule)
    delta = _checks.target_delta(delta, allow_zero=False)
    engine = _checks.engine(engine)
    entries = ledger(event, steps)
    if entries.nonprivate:
        return math.inf
    if not entries.entries:
        return 0.0
    if rule == "rdp":
        return _rdp_group_epsilon(entries, size, delta)
    if rule in ("zcdp", "fdp"):
        mu = _gaussian_mu(entries, rule)
        if rule == "fdp":
            return gaussian_epsilon(group_mu(mu, size), delta)
        return zcdp_epsilon(group_zcdp(0.5 * mu * mu, size), delta)
    log_factor = log_tight if rule == "tight" else log_loose
    return size * _unit_epsilon(
        event, steps, lambda e: math.log(delta) - log_factor(e, size), engine
    )


def group_noise_multiplier(
    make_event: Callable[[float], dp_accounting.DpEvent],
    steps: int = 1,
    *,
    size: int,
    epsilon: float,
    delta: float,
    rule: str = "tight",
    engine: str = "pld",
) -> float:
    """Smallest noise at which `size` units have (epsilon, delta) by `rule`: `group_epsilon` solved.

    Args:
      make_event: from a noise multiplier to the event of one step for ONE unit.
      steps: how often it runs, an integer >= 0.
      size: number of units in the group, >= 1.
      epsilon: the group's target, finite, > 0.
      delta: the group's, in (0, 1).
      rule: as in `group_epsilon`.
      engine: as in `group_epsilon`.

    Returns:
      sigma, at most 1e-4 (relative) above the smallest one, and enough; 0.0 if `steps` is 0.

    Raises:
      TypeError, ValueError: an argument is out of its range; no noise is enough; the one unit's
        delta falls below 1e-25 (take engine="rdp" or a smaller group).
    """
    size, rule = group_size(size), _rule(rule)
    epsilon = _checks.target_epsilon(epsilon, allow_zero=False)
    delta = _checks.target_delta(delta, allow_zero=False)
    if not callable(make_event):
        raise TypeError(
            f"make_event must be a function from a noise multiplier to an event, got "
            f"{make_event!r}; for instance lambda sigma: item_event(0.01, sigma)."
        )
    if _checks.integer("steps", steps, 0) == 0:
        return 0.0

    def found(sigma: float) -> float:
        return group_epsilon(
            make_event(sigma), steps, size=size, delta=delta, rule=rule, engine=engine
        )

    if rule in ("tight", "loose"):
        unit = (ungroup_tight if rule == "tight" else ungroup_loose)(epsilon, delta, size)
        start = solve.noise_multiplier(
            make_event, steps, epsilon=unit.epsilon, delta=unit.delta, engine=engine
        )
        # The promise is kept as `group_epsilon` will tell it.
        if found(start) <= epsilon:
            return start
        return smallest_factor(found, epsilon, start, step=1.0001, what="noise multiplier")
    return smallest_factor(found, epsilon, what="noise multiplier")


def _unit_epsilon(
    event: dp_accounting.DpEvent, steps: int, log_delta: Callable[[float], float], engine: str
) -> float:
    """The smallest e with epsilon(delta = exp(log_delta(e))) <= e, from above."""

    def needed(e: float) -> float:
        target = math.exp(max(log_delta(e), -800.0))
        if target == 0.0:
            return math.inf
        # log_delta falls in e, so at e = 0 it may ask for a delta that any mechanism keeps.
        used = engine if target >= _checks.SMALLEST_PLD_DELTA else "rdp"
        return solve.epsilon(event, steps, delta=min(target, 1.0 - 1e-12), engine=used)

    # `needed` does not fall in e, so iterating it from 0 climbs to its LEAST fixed point, never
    # beyond; a secant would be faster and might land on a later one.
    low = 0.0
    for _ in range(_MOST_ITERATIONS):
        value = needed(low)
        if not math.isfinite(value):
            return math.inf
        if value <= low * (1.0 + 1e-12):
            return low
        # The end is certified from above: at `trial` no more is needed than `trial`.
        trial = value * (1.0 + _PRECISION)
        if value <= low * (1.0 + 0.5 * _PRECISION) and needed(trial) <= trial:
            return trial
        low = value
    return math.inf


def _rdp_group_epsilon(entries: Ledger, size: int, delta: float) -> float:
    """Proposition 2 at the best real order of the group, at least 2 (above 1 for a group of one)."""
    doublings = doublings_of(size)
    scale, factor = 2.0**doublings, 3.0**doublings
    if entries.dropped > 0.0:
        raise ValueError(
            'rule="rdp" is not proven for an event whose far tail counts as a loss without bound '
            '(a mixture of many sensitivities); take rule="tight".'
        )

    def divergence(order: float) -> float:
        return factor * math.fsum(
            count * renyi_divergence(mechanism, order * scale)
            for mechanism, count in entries.entries
        )

    return smallest_conversion(divergence, delta, 2.0 if doublings else 1.02)


def _gaussian_mu(entries: Ledger, rule: str) -> float:
    mu = entries.only_gaussian_mu
    if mu is None:
        raise ValueError(
            f'rule="{rule}" knows only events that amount to one Gaussian, got '
            f'{[m for m, _ in entries.entries]!r}; take rule="tight" or "rdp".'
        )
    return mu


def _rule(rule: str) -> str:
    if not isinstance(rule, str) or rule not in _RULES:
        raise ValueError(f"rule must be one of {', '.join(_RULES)}, got {rule!r}.")
    return rule
