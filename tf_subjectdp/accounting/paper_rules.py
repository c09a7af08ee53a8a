# SPDX-License-Identifier: Apache-2.0
"""The papers' own rules, under the papers' names: the published number, with a warning.

Each `paper_*` function (and `abadi_bound`) returns the number that the paper prints and emits a
`PaperRuleWarning` whose text and fields say what is true instead. `compare_rule(name, ...)` gives
the same comparison as an object, without a warning. Where a rule's number happens to be the correct
one (k = 1 item, one silo) nothing is emitted. The papers' curves (`fdp.paper_e1_curve`) warn alike.

Texts: "2022" and "2023" are the two texts on subject-level privacy of Marathe, Kanani, Peterson and
Steele ("Subject Granular Differential Privacy in Federated Learning", arXiv:2206.03617, and its
2023 revision); Asi, Duchi, Javidi, "Element Level Differential Privacy" (arXiv:1912.04042); Abadi
et al., "Deep Learning with Differential Privacy" (CCS 2016).

None of these functions is used to set noise anywhere in this library.
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec

import dp_accounting

from tf_subjectdp.accounting import _checks, events, solve
from tf_subjectdp.accounting.group_privacy import ungroup_loose

# The accountant's range of noise multipliers.
_SMALLEST_NOISE, _LARGEST_NOISE = 1e-50, 1e50

_Given = ParamSpec("_Given")
_RULES: dict[str, Callable[..., PaperRuleWarning]] = {}


class PaperRuleWarning(UserWarning):
    """A published rule was used; the text says what it gives, what is true, and why.

    Attributes:
      rule: short name of the rule and its paper, or None.
      published: the number that the paper's rule gives, or None.
      honest: the correct value of the SAME quantity (rounds, rate, noise, epsilon ...), or None.
      stated_epsilon: the epsilon that the paper states for its number, or None.
      honest_epsilon: the epsilon that the paper's number really gives, or None where the
        parameters given do not determine one.
      reason: why the rule fails, in a sentence.
    """

    def __init__(
        self,
        message: str,
        *,
        rule: str | None = None,
        published: float | None = None,
        honest: float | None = None,
        stated_epsilon: float | None = None,
        honest_epsilon: float | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rule = rule
        self.published = published
        self.honest = honest
        self.stated_epsilon = stated_epsilon
        self.honest_epsilon = honest_epsilon
        self.reason = reason


def _rule(
    name: str,
) -> Callable[[Callable[_Given, PaperRuleWarning]], Callable[_Given, float]]:
    """Makes a comparison the rule `name`: it then returns the published number, and warns."""

    def decorate(compare: Callable[_Given, PaperRuleWarning]) -> Callable[_Given, float]:
        _RULES[name] = compare

        @functools.wraps(compare)
        def published(*args: _Given.args, **kwargs: _Given.kwargs) -> float:
            comparison = compare(*args, **kwargs)
            if comparison.published != comparison.honest:
                warnings.warn(comparison, stacklevel=2)
            return comparison.published

        kind = "int" if name == "rounds" else "float"
        published.__signature__ = inspect.signature(compare).replace(return_annotation=kind)
        return published

    return decorate


@_rule("rounds")
def paper_rounds(
    rounds: int,
    silos: int,
    *,
    event: dp_accounting.DpEvent | None = None,
    steps_per_round: int = 1,
    delta: float | None = None,
) -> PaperRuleWarning:
    """floor(R / sqrt(s)): how many rounds both texts allow when s silos compose horizontally.

    Honest: R s T steps compose, whoever runs them, so that floor(R / s) rounds cost what R rounds
    of one silo do.

    Args:
      rounds: R, the rounds that ONE silo may run within the budget, >= 0.
      silos: s, silos in every round, >= 1.
      event: one step of one silo; with `delta` the warning tells epsilon too.
      steps_per_round: T, local steps in a round, >= 1.
      delta: in (0, 1).

    Returns:
      The published number of rounds.

    Raises:
      TypeError, ValueError: an argument is out of its range, or only one of `event` and `delta`
        is given.
    """
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


@_rule("higradavg_rate")
def paper_higradavg_rate(
    q: float,
    k: int,
    *,
    text: int,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    delta: float | None = None,
) -> PaperRuleWarning:
    """The rate at which the texts account HiGradAvg: q (2022) or k q (2023).

    Honest: 1-(1-q)^k, the probability that at least one of the k items is drawn. q is too small; k
    q is a sound but loose upper bound, and can exceed 1.

    Args:
      q: probability that one item is in the batch, in [0, 1].
      k: largest number of items of a subject, >= 1.
      text: 2022 or 2023.
      noise_multiplier, steps, delta: with all three the warning tells epsilon too.

    Returns:
      The published rate.

    Raises:
      TypeError, ValueError: an argument is out of its range, or some but not all of
        `noise_multiplier`, `steps`, `delta` are given.
    """
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


@_rule("local_group_noise")
def paper_local_group_noise(
    group: int, *, k: int, q: float, steps: int, epsilon: float, delta: float
) -> PaperRuleWarning:
    """sigma_Z of LocalGroupDP: item noise for (eps/Z, delta e^{-(Z-1) eps/Z} / Z), Z of the batch.

    The texts choose Z as the largest group in the batch. Honest: the number of a subject's items in
    a batch is Binomial(k, q), cut at Z where a cap is enforced, and the noise must not follow it.

    Args:
      group: Z, >= 1; the honest figures take it as an ENFORCED cap on a subject's items in a batch.
      k: largest number of items of a subject, >= 1.
      q: probability that one item is in the batch, in [0, 1].
      steps: steps that compose, >= 1.
      epsilon: the subject's target, finite, > 0.
      delta: the subject's, in (0, 1).

    Returns:
      The published noise multiplier.

    Raises:
      TypeError, ValueError: an argument is out of its range.
    """
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


@_rule("userldp_condition")
def paper_userldp_condition(epsilon: float, delta: float, *, steps: int = 1) -> PaperRuleWarning:
    """1 / (sqrt(2 pi) eps delta e^eps): the noise above which UserLDP is said to be private.

    The texts' condition is for one step, and its proof bounds a difference of norms, not a distance
    between outputs: it asks for far too much noise at a small delta and for too little at a large
    epsilon. Honest: a Gaussian of sensitivity 2 C.

    Args:
      epsilon: finite, > 0.
      delta: in (0, 1).
      steps: steps that compose, >= 1, for the honest figures.

    Returns:
      The published bound on the noise multiplier (0.0 where it underflows).

    Raises:
      TypeError, ValueError: an argument is out of its range.
    """
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


@_rule("element_amplification")
def paper_element_amplification(
    p: float, noise_multiplier: float, steps: int, *, delta: float, elements: int | None = None
) -> PaperRuleWarning:
    """epsilon of ElementDP as if sampling subjects amplified it (Asi, Duchi, Javidi, Prop. 2 (i)).

    Published: `steps` Poisson-sampled Gaussians at rate p with sensitivity 2 rho. Honest: the
    subject's other elements show that the subject was sampled, so the sampling does not amplify
    (`element_event`); with `elements`, the replace-one figure of the whole subject where smaller.

    Args:
      p: probability that one subject is in the batch, in [0, 1].
      noise_multiplier: noise standard deviation divided by rho, finite, > 0.
      steps: steps that compose, >= 1.
      delta: in (0, 1).
      elements: largest number of elements of one subject, ENFORCED, >= 1, or None.

    Returns:
      The published epsilon.

    Raises:
      TypeError, ValueError: an argument is out of its range.
    """
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


@_rule("abadi_bound")
def abadi_bound(
    q: float, steps: int, epsilon: float, delta: float, *, c2: float
) -> PaperRuleWarning:
    """sigma = c2 q sqrt(T log(1/delta)) / epsilon (Abadi et al., Theorem 1), with YOUR constant.

    The theorem says that some c2 exists (and only for epsilon < c1 q^2 T); no paper that sets noise
    by it states which. Honest: the smallest noise of the item-level event.

    Args:
      q: probability that one item is in the batch, in (0, 1].
      steps: T, >= 1.
      epsilon: finite, > 0.
      delta: in (0, 1).
      c2: the constant, finite, > 0.

    Returns:
      The noise multiplier that the formula gives.

    Raises:
      TypeError, ValueError: an argument is out of its range.
    """
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


def compare_rule(name: str, **arguments: Any) -> PaperRuleWarning:
    """The comparison that a rule's warning carries, as an object, without emitting it.

    Args:
      name: "rounds", "higradavg_rate", "local_group_noise", "userldp_condition",
        "element_amplification" or "abadi_bound".
      **arguments: those of the function of that name (positional ones by their names).

    Returns:
      A `PaperRuleWarning`: read `published`, `honest`, `stated_epsilon`, `honest_epsilon`,
      `reason`, or its text.

    Raises:
      TypeError, ValueError: the name is unknown, or an argument is out of its range.
    """
    if name not in _RULES:
        raise ValueError(f"name must be one of {', '.join(sorted(_RULES))}, got {name!r}.")
    wanted = inspect.signature(_RULES[name]).parameters
    missing = {n for n, one in wanted.items() if one.default is one.empty} - set(arguments)
    if missing or set(arguments) - set(wanted):
        raise TypeError(
            f"the rule {name!r} takes {list(wanted)}; missing are {sorted(missing)}, unknown "
            f"{sorted(set(arguments) - set(wanted))}."
        )
    return _RULES[name](**arguments)


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
