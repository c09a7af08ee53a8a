# SPDX-License-Identifier: Apache-2.0
"""The papers' own rules, under the papers' names: the published number, with a warning.

Each `paper_*` function (and `abadi_bound`) returns the number that the paper prints and emits a
`PaperRuleWarning` whose text and fields say what is true instead. `compare_rule(name, ...)` gives
the same comparison as an object, without a warning. Where a rule's number happens to be the correct
one (k = 1 item, one silo) nothing is emitted.

Texts: "2022" and "2023" are the two texts on subject-level privacy of Marathe, Kanani, Peterson and
Steele ("Subject Granular Differential Privacy in Federated Learning", arXiv:2206.03617, and its
2023 revision); Asi, Duchi, Javidi, "Element Level Differential Privacy" (arXiv:1912.04042); Abadi
et al., "Deep Learning with Differential Privacy" (CCS 2016).

None of these functions is used to set noise anywhere in this library.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import dp_accounting

from tf_subjectdp.accounting.papers import figures
from tf_subjectdp.accounting.papers.warning import PaperRuleWarning, warn_paper_rule


def paper_rounds(
    rounds: int,
    silos: int,
    *,
    event: dp_accounting.DpEvent | None = None,
    steps_per_round: int = 1,
    delta: float | None = None,
) -> int:
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
    return int(_warned(figures.rounds_rule, rounds, silos, event, steps_per_round, delta))


def paper_higradavg_rate(
    q: float,
    k: int,
    *,
    text: int,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    delta: float | None = None,
) -> float:
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
    return _warned(figures.rate_rule, q, k, text, noise_multiplier, steps, delta)


def paper_local_group_noise(
    group: int, *, k: int, q: float, steps: int, epsilon: float, delta: float
) -> float:
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
    return _warned(figures.local_group_rule, group, k, q, steps, epsilon, delta)


def paper_userldp_condition(epsilon: float, delta: float, *, steps: int = 1) -> float:
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
    return _warned(figures.user_ldp_rule, epsilon, delta, steps)


def paper_element_amplification(
    p: float, noise_multiplier: float, steps: int, *, delta: float, elements: int | None = None
) -> float:
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
    return _warned(figures.element_rule, p, noise_multiplier, steps, delta, elements)


def abadi_bound(q: float, steps: int, epsilon: float, delta: float, *, c2: float) -> float:
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
    return _warned(figures.abadi_rule, q, steps, epsilon, delta, c2)


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
    rule, defaults = _RULES[name]
    given = {**defaults, **arguments}
    wanted = list(inspect.signature(rule).parameters)
    if set(given) != set(wanted):
        raise TypeError(
            f"the rule {name!r} takes {wanted}; missing are {sorted(set(wanted) - set(given))}, "
            f"unknown {sorted(set(given) - set(wanted))}."
        )
    return rule(**given)


def _warned(rule: Callable[..., PaperRuleWarning], *arguments: Any) -> float:
    comparison = rule(*arguments)
    if comparison.published != comparison.honest:
        warn_paper_rule(comparison, stacklevel=3)
    return comparison.published


_RULES: dict[str, tuple[Callable[..., PaperRuleWarning], dict[str, Any]]] = {
    "rounds": (figures.rounds_rule, {"event": None, "steps_per_round": 1, "delta": None}),
    "higradavg_rate": (
        figures.rate_rule,
        {"noise_multiplier": None, "steps": None, "delta": None},
    ),
    "local_group_noise": (figures.local_group_rule, {}),
    "userldp_condition": (figures.user_ldp_rule, {"steps": 1}),
    "element_amplification": (figures.element_rule, {"elements": None}),
    "abadi_bound": (figures.abadi_rule, {}),
}
