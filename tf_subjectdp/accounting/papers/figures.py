# SPDX-License-Identifier: Apache-2.0
"""What each rule of the papers gives and what is true: the arithmetic behind `paper_rules`.

Every function checks its arguments and returns a `PaperRuleWarning` that nobody has emitted yet.
"""

from __future__ import annotations

import math
from typing import Any

import dp_accounting

from tf_subjectdp.accounting import _checks, events, solve
from tf_subjectdp.accounting.group_privacy import ungroup_loose
from tf_subjectdp.accounting.papers.warning import PaperRuleWarning

# The accountant's range of noise multipliers.
_SMALLEST_NOISE, _LARGEST_NOISE = 1e-50, 1e50


def rounds_rule(
    rounds: int,
    silos: int,
    event: dp_accounting.DpEvent | None,
    steps_per_round: int,
    delta: float | None,
) -> PaperRuleWarning:
    """floor(R / sqrt(s)) against floor(R / s)."""
    rounds = _checks.integer("rounds", rounds, 0)
    silos = _checks.integer("silos", silos, 1)
    steps_per_round = _checks.integer("steps_per_round", steps_per_round, 1)
    _together(event=event, delta=delta)
    # floor(R / sqrt(s)) in integers: a float root may fall on the wrong side.
    published, honest = math.isqrt(rounds * rounds // silos), rounds // silos
    stated = true = None
    if event is not None:
        delta = _checks.target_delta(delta, allow_zero=False)
        stated = solve.epsilon(event, rounds * steps_per_round, delta=delta)
        true = solve.epsilon(event, published * silos * steps_per_round, delta=delta)
    return _comparison(
        "rounds",
        published,
        honest,
        stated,
        true,
        f"{rounds} rounds cut to {published} by R / sqrt(s) for {silos} silos; {honest} (R / s) "
        f"keep the budget of one silo",
        "all the silos' steps compose on a subject they share, and R s T of them need R / s",
    )


def rate_rule(
    q: float,
    k: int,
    text: int,
    noise_multiplier: float | None,
    steps: int | None,
    delta: float | None,
) -> PaperRuleWarning:
    """q or k q against 1-(1-q)^k."""
    q, k = _checks.probability("q", q), _checks.integer("k", k, 1)
    if text not in (2022, 2023):
        raise ValueError(f"text must be 2022 (rate q) or 2023 (rate k q), got {text!r}.")
    _together(noise_multiplier=noise_multiplier, steps=steps, delta=delta)
    published = q if text == 2022 else k * q
    # k = 1 and q = 1 need no power; elsewhere it would lose its digits.
    honest = q if k == 1 or q == 1.0 else -math.expm1(k * math.log1p(-q))
    stated = true = None
    if noise_multiplier is not None:
        true_event = events.higradavg_event(q, k, noise_multiplier)
        stated_event = events.subject_event(min(published, 1.0), noise_multiplier)
        delta = _checks.target_delta(delta, allow_zero=False)
        stated = solve.epsilon(stated_event, steps, delta=delta)
        true = solve.epsilon(true_event, steps, delta=delta)
    if text == 2022:
        reason = "a subject is in the batch when any of its k items is, not one given item"
    else:
        reason = "k q bounds the true rate from above: the guarantee holds, with noise wasted"
    return _comparison(
        "HiGradAvg's rate",
        published,
        honest,
        stated,
        true,
        f"rate {published:.6g} published for q = {q:g} and k = {k}; the rate is {honest:.6g}",
        reason,
    )


def local_group_rule(
    group: int, k: int, q: float, steps: int, epsilon: float, delta: float
) -> PaperRuleWarning:
    """LocalGroupDP's sigma_Z against the noise of the capped mixture."""
    group, k = _checks.integer("group", group, 1), _checks.integer("k", k, 1)
    epsilon = _checks.target_epsilon(epsilon, allow_zero=False)
    delta = _checks.target_delta(delta, allow_zero=False)
    q, steps = _checks.probability("q", q), _checks.integer("steps", steps, 1)
    item = ungroup_loose(epsilon, delta, group)
    if item.delta < _checks.SMALLEST_PLD_DELTA:
        raise ValueError(
            f"groups of {group} at epsilon={epsilon:g}, delta={delta:g} need item noise at "
            f"delta={item.delta:.3g}, below {_checks.SMALLEST_PLD_DELTA:g}, where this arithmetic "
            f"ends; pass a smaller group or epsilon, or a larger delta."
        )
    published = solve.noise_multiplier(
        lambda sigma: events.item_event(q, sigma), steps, epsilon=item.epsilon, delta=item.delta
    )

    def capped(sigma: float) -> dp_accounting.DpEvent:
        return events.group_event(q, k, sigma, group)

    honest = solve.noise_multiplier(capped, steps, epsilon=epsilon, delta=delta)
    return _comparison(
        "LocalGroupDP's noise",
        published,
        honest,
        epsilon,
        solve.epsilon(capped(published), steps, delta=delta),
        f"noise {published:.6g} for groups of Z = {group} of the subject's k = {k} items; with at "
        f"most {group} of them kept in a batch {honest:.6g} is needed",
        "for Z >= k group privacy is sound, with noise wasted (it ignores the sampling)"
        if group >= k
        else "a subject is more likely to be sampled than an item, by all of its k items, and a "
        "noise that follows the groups of a batch is itself a function of the private data",
    )


def user_ldp_rule(epsilon: float, delta: float, steps: int) -> PaperRuleWarning:
    """UserLDP's closed form against a Gaussian of sensitivity 2 C."""
    epsilon = _checks.target_epsilon(epsilon, allow_zero=False)
    delta = _checks.target_delta(delta, allow_zero=False)
    steps = _checks.integer("steps", steps, 1)
    log_published = -0.5 * math.log(2.0 * math.pi) - math.log(epsilon) - math.log(delta) - epsilon
    published = math.exp(min(log_published, 700.0))
    honest = solve.noise_multiplier(events.user_ldp_event, steps, epsilon=epsilon, delta=delta)
    # The accountant's arithmetic: below the one there is no noise to speak of, above the other
    # the epsilon of less noise bounds it.
    usable = min(published, 1e50) if published >= 1e-50 else 0.0
    true = solve.epsilon(events.user_ldp_event(usable), steps, delta=delta)
    return _comparison(
        "UserLDP's condition",
        published,
        honest,
        epsilon,
        true,
        f"noise above {published:.6g} published for epsilon {epsilon:g} at delta {delta:g}; a "
        f"Gaussian of sensitivity 2 C needs {honest:.6g} over {steps} step{'s' if steps > 1 else ''}",
        "the proof bounds a difference of norms, not a distance between outputs"
        + ("" if true > epsilon else "; here the number is enough by accident"),
    )


def element_rule(
    p: float, noise_multiplier: float, steps: int, delta: float, elements: int | None
) -> PaperRuleWarning:
    """Amplified by the sampling of subjects, against not amplified."""
    p, noise = _checks.probability("p", p), _checks.noise("noise_multiplier", noise_multiplier)
    steps, delta = _checks.integer("steps", steps, 1), _checks.target_delta(delta, allow_zero=False)
    published = solve.epsilon(events.subject_event(p, noise / 2.0), steps, delta=delta)
    honest = solve.epsilon(events.element_event(p, noise), steps, delta=delta)
    if elements is not None:
        elements = _checks.integer("elements", elements, 1)
        whole = events.replace_one_event(p, noise / elements)
        honest = min(honest, solve.epsilon(whole, steps, delta=delta))
    return _comparison(
        "element amplification",
        published,
        honest,
        published,
        honest,
        "sampling subjects is said to amplify an element's guarantee",
        "the subject's other elements show that the subject was sampled",
    )


def abadi_rule(q: float, steps: int, epsilon: float, delta: float, c2: float) -> PaperRuleWarning:
    """c2 q sqrt(T log(1/delta)) / epsilon against the accountant."""
    q, steps = _checks.probability("q", q), _checks.integer("steps", steps, 1)
    epsilon = _checks.target_epsilon(epsilon, allow_zero=False)
    delta = _checks.target_delta(delta, allow_zero=False)
    c2 = _checks.noise("c2", c2)
    if q == 0.0 or c2 == 0.0:
        raise ValueError(f"q and c2 must be above 0, got q={q:g} and c2={c2:g}.")
    published = c2 * q * math.sqrt(steps * -math.log(delta)) / epsilon
    if not _SMALLEST_NOISE <= published <= _LARGEST_NOISE:
        raise ValueError(
            f"c2={c2:g} makes the formula ask for noise {published:g}, outside of "
            f"[{_SMALLEST_NOISE:g}, {_LARGEST_NOISE:g}], where the accountant's arithmetic ends; the "
            f"constant is of the order of 1."
        )

    def item(sigma: float) -> dp_accounting.DpEvent:
        return events.item_event(q, sigma)

    honest = solve.noise_multiplier(item, steps, epsilon=epsilon, delta=delta)
    true = solve.epsilon(item(published), steps, delta=delta)
    return _comparison(
        "Abadi's bound",
        published,
        honest,
        epsilon,
        true,
        f"noise {published:.6g} with the constant c2 = {c2:g}; {honest:.6g} is the smallest that "
        f"keeps epsilon {epsilon:g} at delta {delta:g}",
        "the theorem only says that some constant exists"
        + ("" if true > epsilon else "; this one is enough here, which the theorem did not say"),
    )


def _comparison(
    rule: str,
    published: float,
    honest: float,
    stated: float | None,
    true: float | None,
    what: str,
    reason: str,
) -> PaperRuleWarning:
    text = f"{rule}: {what}"
    if true is not None:
        text += f"; the honest epsilon is {true:.6g} where {stated:.6g} is stated"
    return PaperRuleWarning(
        f"{text}. Why: {reason}.",
        rule=rule,
        published=published,
        honest=honest,
        stated_epsilon=stated,
        honest_epsilon=true,
        reason=reason,
    )


def _together(**arguments: Any) -> None:
    missing = [name for name, value in arguments.items() if value is None]
    if missing and len(missing) < len(arguments):
        raise ValueError(
            f"{' and '.join(arguments)} belong together, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing: give all of them for the honest "
            f"epsilon, or none."
        )
