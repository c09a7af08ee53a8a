# SPDX-License-Identifier: Apache-2.0
"""What privacy costs a convex problem: bounds on the excess population loss, with constants.

WHAT IS WHOSE. The 2022 and 2023 texts (Marathe, Kanani, Peterson, Steele, arXiv:2206.03617) state
bounds for LocalGroupDP, UserLDP and HiGradAvg that rest on Bassily, Feldman, Talwar, Thakurta,
"Private Stochastic Convex Optimization with Optimal Rates" (arXiv:1908.09970), Theorem 3.2. The
texts' own theorems are NOT reproduced here: they use the calibrations that `paper_rules` shows to
be wrong. The functions below are derived from the steps of Bassily et al.'s proof (regret of
projected SGD, plus uniform stability) with the noise, the sampling and the divisor of the
algorithms AS THIS LIBRARY RUNS THEM; `bassily_excess_loss` is their theorem (its constants
from the derivation, its text was not at hand), and the `*_rate`
functions are that theorem with the unit and the budget of each algorithm put in.

THE SETTING of the `*_excess_loss` functions:

* `silos` silos each hold `subjects` subjects with `items` items each; a subject is in
  `silos_per_subject` silos. Subjects are drawn independently from one population; the items of one
  subject may depend on each other in any way. The loss of a subject is the mean of its items'.
* The loss of an item is convex, L-Lipschitz and beta-smooth in w on a closed convex set of diameter
  D, in dimension d. clip_norm C >= L, so that clipping never acts.
* Every round each silo takes ONE noised step from the common w, the server averages, projects on
  the set, and after `steps` rounds returns the mean of the iterates. (One silo: plain local steps.)
* Items are sampled by independent coins of probability q; the sum is divided by a public constant
  (UserLDP: the mean over the items present is clipped, no divisor).

THE BOUND. With E[step] = kappa * gradient, E|step|^2 <= V + d tau^2, n distinct subjects, step size
eta at which every realised step is non-expansive (eta <= 2 / its smoothness, for any batch):

    E[F(w) - min F] <= D^2 / (2 eta kappa T) + eta (V + d tau^2) / (2 kappa)
                       + eta kappa L^2 (T - 1) / n.

First and second: regret. Third: replacing one subject moves a step by at most 2 kappa L / n on
average (whatever the algorithm: it is the subject's share of the objective), hence the mean iterate
by eta kappa L (T - 1) / n, and the loss by L times that. Never more than L D, which is always true.

An excess loss says nothing of privacy; take the noise from the accountant (`excess_loss_at_budget`
does).
"""

from __future__ import annotations

import dataclasses
import math

import dp_accounting

from tf_subjectdp.accounting import _checks, events, solve
from tf_subjectdp.accounting.group_privacy import ungroup_loose

__all__ = [
    "ConvexProblem",
    "ExcessLoss",
    "SubjectData",
    "bassily_excess_loss",
    "excess_loss_at_budget",
    "higradavg_excess_loss",
    "higradavg_rate",
    "local_group_dp_excess_loss",
    "local_group_dp_rate",
    "user_ldp_excess_loss",
    "user_ldp_rate",
]

_ALGORITHMS = ("local_group_dp", "user_ldp", "higradavg")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvexProblem:
    """A convex, L-Lipschitz, beta-smooth loss on a closed convex set.

    Attributes:
      diameter: D, largest distance of two points of the set, > 0.
      lipschitz: L, bound on the norm of an item's gradient, > 0.
      smoothness: beta, bound on how fast that gradient turns, >= 0 (0 for a linear loss).
      dimension: d, number of parameters, >= 1.

    Raises:
      ValueError, TypeError: an attribute is out of its range.
    """

    diameter: float
    lipschitz: float
    smoothness: float
    dimension: int

    def __post_init__(self) -> None:
        for name in ("diameter", "lipschitz", "smoothness"):
            value = _checks.sensitivity(name, getattr(self, name))
            if value == 0.0 and name != "smoothness":
                raise ValueError(f"{name} must be above 0, got 0: such a problem has no loss.")
        _checks.integer("dimension", self.dimension, 1)

    @property
    def trivial(self) -> float:
        """L D: no two points of the set differ by more in loss."""
        return self.lipschitz * self.diameter


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubjectData:
    """Who holds what, evenly spread.

    Attributes:
      subjects: N, subjects in each silo, >= 1.
      items: k, items of one subject in one silo, >= 1.
      silos: s, silos in every round, >= 1.
      silos_per_subject: m, silos that hold the same subject, in [1, silos].

    Raises:
      ValueError, TypeError: an attribute is out of its range.
    """

    subjects: int
    items: int = 1
    silos: int = 1
    silos_per_subject: int = 1

    def __post_init__(self) -> None:
        for name in ("subjects", "items", "silos", "silos_per_subject"):
            _checks.integer(name, getattr(self, name), 1)
        if self.silos_per_subject > self.silos:
            raise ValueError(
                f"silos_per_subject must be at most silos, got {self.silos_per_subject} of "
                f"{self.silos}."
            )

    @property
    def distinct_subjects(self) -> float:
        """s N / m: the independent draws from the population."""
        return self.silos * self.subjects / self.silos_per_subject


@dataclasses.dataclass(frozen=True)
class ExcessLoss:
    """A bound on the expected excess population loss, in its parts (all in units of the loss).

    Attributes:
      optimisation: what finitely many steps leave, and the gradients' own second moment.
      noise: what the privacy noise adds.
      generalisation: what is lost from the sample to the population.
      trivial: L D.
      learning_rate: eta, the step size of the bound.
      noise_multiplier: sigma.
    """

    optimisation: float
    noise: float
    generalisation: float
    trivial: float
    learning_rate: float
    noise_multiplier: float

    @property
    def total(self) -> float:
        """The bound: the sum of the parts, and never more than `trivial`."""
        return min(self.optimisation + self.noise + self.generalisation, self.trivial)


def local_group_dp_excess_loss(
    problem: ConvexProblem,
    data: SubjectData,
    *,
    q: float,
    noise_multiplier: float,
    steps: int,
    clip_norm: float | None = None,
    learning_rate: float | None = None,
) -> ExcessLoss:
    """Excess population loss of LocalGroupDP (GroupDP): clipped items summed, divided by B = q N k.

    kappa = 1, V = L^2 (1 + 1/(s B)), tau = sigma C / (B sqrt(s)), eta <= 2 q / beta. Derived; see
    the module. A subject's k items enter through sigma (its group), not through the formula. With k
    = 1, s = 1 this is ItemDP.

    Args:
      problem: the loss.
      data: who holds what.
      q: probability that one item is in a batch, in (0, 1].
      noise_multiplier: sigma, noise standard deviation divided by C, finite, >= 0.
      steps: T, >= 1.
      clip_norm: C, at least L (default L).
      learning_rate: eta, > 0; by default the one that makes the bound smallest.

    Raises:
      ValueError, TypeError: an argument is out of its range; C < L (clipping would bias the
        gradient, and no such bound holds); the learning rate is too large for the smoothness.
    """
    q, sigma, clip = _arguments(problem, q, noise_multiplier, clip_norm)
    batch = q * data.subjects * data.items
    return _assemble(
        problem,
        data,
        scale=1.0,
        second_moment=problem.lipschitz**2 * (1.0 + 1.0 / (data.silos * batch)),
        deviation=sigma * clip / (batch * math.sqrt(data.silos)),
        smoothness=problem.smoothness / q,
        steps=steps,
        learning_rate=learning_rate,
        noise_multiplier=sigma,
    )


def user_ldp_excess_loss(
    problem: ConvexProblem,
    data: SubjectData,
    *,
    q: float,
    noise_multiplier: float,
    steps: int,
    clip_norm: float | None = None,
    learning_rate: float | None = None,
) -> ExcessLoss:
    """Excess population loss of UserLDP: the batch's mean gradient, clipped to C, noised as it is.

    kappa = 1-(1-q)^(N k), the probability of a batch with anything in it; V = L^2, tau = sigma C /
    sqrt(s): the noise is not divided by a batch, only silos average it; eta <= 2 / beta. Derived;
    see the module. Arguments and errors as in `local_group_dp_excess_loss`.
    """
    q, sigma, clip = _arguments(problem, q, noise_multiplier, clip_norm)
    return _assemble(
        problem,
        data,
        scale=_presence(q, data.subjects * data.items),
        second_moment=problem.lipschitz**2,
        deviation=sigma * clip / math.sqrt(data.silos),
        smoothness=problem.smoothness,
        steps=steps,
        learning_rate=learning_rate,
        noise_multiplier=sigma,
    )


def higradavg_excess_loss(
    problem: ConvexProblem,
    data: SubjectData,
    *,
    q: float,
    noise_multiplier: float,
    steps: int,
    clip_norm: float | None = None,
    learning_rate: float | None = None,
    normalization: str = "expected_batch",
) -> ExcessLoss:
    """Excess population loss of HiGradAvg: each present subject's mean gradient, summed, divided.

    With pi = 1-(1-q)^k and the divisor b = q N k ("expected_batch", 2022 text) or b = pi N
    ("expected_subjects", constant form of the 2023 text): kappa = pi N / b, V = kappa^2 L^2 + pi N
    L^2 / (s b^2), tau = sigma C / (b sqrt(s)), eta <= 2 b / (beta N). Both divisors have the same
    best bound, at learning rates in the ratio of the divisors. Derived; see the module. Arguments
    and errors as in `local_group_dp_excess_loss`.
    """
    q, sigma, clip = _arguments(problem, q, noise_multiplier, clip_norm)
    present = _presence(q, data.items) * data.subjects
    if normalization == "expected_batch":
        divisor = q * data.subjects * data.items
    elif normalization == "expected_subjects":
        divisor = present
    else:
        raise ValueError(
            f'normalization must be "expected_batch" or "expected_subjects", got {normalization!r}.'
        )
    scale = present / divisor
    variance = present / (data.silos * divisor**2)
    return _assemble(
        problem,
        data,
        scale=scale,
        second_moment=problem.lipschitz**2 * (scale**2 + variance),
        deviation=sigma * clip / (divisor * math.sqrt(data.silos)),
        smoothness=problem.smoothness * data.subjects / divisor,
        steps=steps,
        learning_rate=learning_rate,
        noise_multiplier=sigma,
    )


def _assemble(
    problem: ConvexProblem,
    data: SubjectData,
    *,
    scale: float,
    second_moment: float,
    deviation: float,
    smoothness: float,
    steps: int,
    learning_rate: float | None,
    noise_multiplier: float,
) -> ExcessLoss:
    """THE BOUND, term by term.

    Args:
      problem: the loss.
      data: who holds what.
      scale: kappa, what the expected step is of the gradient.
      second_moment: V, bound on the second moment of a step without noise.
      deviation: tau, standard deviation of the noise in a step, in each coordinate.
      smoothness: of the step taken on the fullest batch.
      steps: T, >= 1.
      learning_rate: eta, or None for the best.
      noise_multiplier: sigma, for the record.

    Raises:
      ValueError, TypeError: an argument is out of its range.
    """
    steps = _checks.integer("steps", steps, 1)
    distance = problem.diameter**2 / (2.0 * scale * steps)
    gradient = second_moment / (2.0 * scale)
    noise = problem.dimension * deviation**2 / (2.0 * scale)
    stability = scale * problem.lipschitz**2 * (steps - 1) / data.distinct_subjects
    largest = 2.0 / smoothness if smoothness else math.inf
    if learning_rate is None:
        eta = min(math.sqrt(distance / (gradient + noise + stability)), largest)
    else:
        eta = _checks.sensitivity("learning_rate", learning_rate)
        if not 0.0 < eta <= largest:
            raise ValueError(
                f"learning_rate must be in (0, {largest:g}] (2 over the smoothness of the fullest "
                f"batch), got {eta:g}; above it a step may push two runs apart."
            )
    return ExcessLoss(
        optimisation=distance / eta + gradient * eta,
        noise=noise * eta,
        generalisation=stability * eta,
        trivial=problem.trivial,
        learning_rate=eta,
        noise_multiplier=noise_multiplier,
    )


def excess_loss_at_budget(
    algorithm: str,
    problem: ConvexProblem,
    data: SubjectData,
    *,
    q: float,
    steps: int,
    epsilon: float,
    delta: float,
) -> ExcessLoss:
    """The bound at the smallest noise that keeps (epsilon, delta) for a subject, by the accountant.

    Every silo's update counts as seen, so a subject spends `steps` steps in each of its silos:
    `group_event`, `user_ldp_event` or `higradavg_event`.

    Args:
      algorithm: "local_group_dp", "user_ldp" or "higradavg".
      problem, data, q, steps: as in `local_group_dp_excess_loss`.
      epsilon: finite, > 0.
      delta: in (0, 1).

    Raises:
      ValueError, TypeError: an argument is out of its range.
    """
    if algorithm not in _ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(_ALGORITHMS)}, got {algorithm!r}.")
    q, _, _ = _arguments(problem, q, 0.0, None)
    count = _checks.integer("steps", steps, 1) * data.silos_per_subject

    def event(sigma: float) -> dp_accounting.DpEvent:
        if algorithm == "user_ldp":
            return events.user_ldp_event(sigma)
        make = events.group_event if algorithm == "local_group_dp" else events.higradavg_event
        return make(q, data.items, sigma)

    sigma = solve.noise_multiplier(event, count, epsilon=epsilon, delta=delta)
    bounds = {
        "local_group_dp": local_group_dp_excess_loss,
        "user_ldp": user_ldp_excess_loss,
        "higradavg": higradavg_excess_loss,
    }
    return bounds[algorithm](problem, data, q=q, noise_multiplier=sigma, steps=steps)


def bassily_excess_loss(
    problem: ConvexProblem, *, units: int, epsilon: float, delta: float
) -> float:
    """10 L D max(1/sqrt(n), sqrt(d log(1/delta)) / (n epsilon)): Bassily et al., Theorem 3.2.

    For their noisy SGD on n independent units, T = min(n / 8, epsilon^2 n^2 / (32 d log(1/delta)))
    steps at eta = D / (L sqrt(T)), gradient noise of variance 8 T L^2 log(1/delta) / (n epsilon)^2
    in each coordinate. That this noise is (epsilon, delta)-private is THEIR claim, for a restricted
    epsilon; it is used for theory only, never to set noise.

    Args:
      problem: the loss.
      units: n, >= 1.
      epsilon: finite, > 0.
      delta: in (0, 1).

    Returns:
      The bound, and never more than L D.

    Raises:
      ValueError, TypeError: an argument is out of its range, or the loss is too sharply curved for
        the theorem: beta <= 2 L sqrt(T) / D.
    """
    units = _checks.integer("units", units, 1)
    return _theorem(problem, float(units), float(units), epsilon, delta)


def local_group_dp_rate(
    problem: ConvexProblem, *, items: int, group: int, epsilon: float, delta: float
) -> float:
    """`bassily_excess_loss` for items at the budget that group privacy leaves an item.

    (eps/Z, delta e^{-(Z-1) eps/Z} / Z) as LocalGroupDP publishes it: the noise term grows by Z and
    a little more. Derived by that substitution; it treats the n items as independent.

    Args:
      problem: the loss.
      items: n, all items, >= 1.
      group: Z, >= 1; k for a guarantee that holds.
      epsilon, delta: the subject's.

    Raises:
      ValueError, TypeError: as in `bassily_excess_loss`.
    """
    unit = ungroup_loose(epsilon, delta, group)
    return bassily_excess_loss(problem, units=items, epsilon=unit.epsilon, delta=unit.delta)


def higradavg_rate(problem: ConvexProblem, *, subjects: int, epsilon: float, delta: float) -> float:
    """`bassily_excess_loss` with subjects as the units: HiGradAvg gives each of them one gradient.

    Derived by that substitution (a subject's share of the mean is 1/n, whatever its items).

    Raises:
      ValueError, TypeError: as in `bassily_excess_loss`.
    """
    return bassily_excess_loss(problem, units=subjects, epsilon=epsilon, delta=delta)


def user_ldp_rate(
    problem: ConvexProblem, *, subjects: int, silos: int, epsilon: float, delta: float
) -> float:
    """10 L D max(1/sqrt(n), sqrt(d log(1/delta)) / (sqrt(s) epsilon)): UserLDP over s silos.

    Derived as Theorem 3.2 is: a silo's step can move by 2 L instead of 2 L / n, and only the s
    silos average the noise. Independent of how much data a silo has.

    Args:
      problem: the loss.
      subjects: n, distinct subjects, >= 1.
      silos: s, >= 1.
      epsilon, delta: the silo's.

    Raises:
      ValueError, TypeError: as in `bassily_excess_loss`.
    """
    subjects, silos = _checks.integer("subjects", subjects, 1), _checks.integer("silos", silos, 1)
    return _theorem(problem, float(subjects), math.sqrt(silos), epsilon, delta)


def _theorem(
    problem: ConvexProblem, units: float, averaged: float, epsilon: float, delta: float
) -> float:
    epsilon = _checks.target_epsilon(epsilon, allow_zero=False)
    delta = _checks.target_delta(delta, allow_zero=False)
    private = math.sqrt(problem.dimension * -math.log(delta)) / (averaged * epsilon)
    steps = min(units / 8.0, 1.0 / (32.0 * private**2))
    steepest = 2.0 * problem.lipschitz * math.sqrt(steps) / problem.diameter
    bound = 10.0 * problem.trivial * max(1.0 / math.sqrt(units), private)
    if bound >= problem.trivial:
        return problem.trivial
    if problem.smoothness > steepest:
        raise ValueError(
            f"smoothness must be at most 2 L sqrt(T) / D = {steepest:g} with T = {steps:g}, got "
            f"{problem.smoothness:g}; the theorem needs more units or a larger epsilon."
        )
    return bound


def _presence(q: float, count: int) -> float:
    return 1.0 if q == 1.0 else -math.expm1(count * math.log1p(-q))


def _arguments(
    problem: ConvexProblem, q: float, noise_multiplier: float, clip_norm: float | None
) -> tuple[float, float, float]:
    q = _checks.probability("q", q)
    if q == 0.0:
        raise ValueError("q must be above 0, got 0: no step would see any data.")
    sigma = _checks.noise("noise_multiplier", noise_multiplier)
    clip = problem.lipschitz if clip_norm is None else _checks.sensitivity("clip_norm", clip_norm)
    if clip < problem.lipschitz:
        raise ValueError(
            f"clip_norm must be at least the Lipschitz constant {problem.lipschitz:g}, got "
            f"{clip:g}: clipping would bias the gradient, and this bound would not hold."
        )
    return q, sigma, clip
