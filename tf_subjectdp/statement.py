# SPDX-License-Identifier: Apache-2.0
"""The privacy statement: what is protected, from whom, and what is not, in plain sentences."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from tf_subjectdp import accounting
from tf_subjectdp.algorithms import Algorithm
from tf_subjectdp.algorithms.base import ADD_OR_REMOVE_SUBJECT, rounded_up
from tf_subjectdp.plans import Plan, check_delta, divisor_of_counts
from tf_subjectdp.runs import PrivateRun, WeightsCost

_WIDTH = 92
_SOURCES = {
    "data": (
        "It was read from these data and is itself information about them; a public bound "
        "(max_items_per_subject) would not be."
    ),
    "bound": "It is a public bound, enforced by dropping further items at random.",
    "public": "It is a public figure given by the user, and data that break it are refused.",
}


def privacy_statement(
    plan: Plan,
    *,
    steps: int,
    delta: float | None = None,
    engine: str | None = None,
    seeded_steps: int = 0,
    planned: bool = False,
    first: Sequence[str] = (),
) -> str:
    """The statement for a run of a plan.

    Args:
      plan: the plan.
      steps: steps taken (or planned) so far.
      delta: None takes the plan's, or a tenth of 1 / the units that it protects.
      engine: how the sums were computed, for the technical lines.
      seeded_steps: how many of the steps were drawn with a seed.
      planned: whether the steps are yet to be taken: a statement of intent, not of a run.
      first: what must be said before the figures, since they do not cover it.

    Returns:
      Text of several paragraphs.
    """
    delta = _delta(plan, delta)
    name = type(plan.algorithm).__name__
    facts = plan.facts
    length = f"{steps} of {plan.steps} planned steps taken"
    if planned:
        length = f"if all {steps} planned steps are taken; nothing was trained yet"
    elif steps > plan.steps:
        length = f"{steps} steps taken, MORE than the {plan.steps} planned"
    paragraphs = [f"PRIVACY STATEMENT ({name}, {length})", *first]
    if plan.noise_multiplier == 0.0:
        paragraphs.append(
            "NOT PRIVATE: the noise multiplier is 0. Nothing below protects anybody; epsilon is "
            "infinite."
        )
    paragraphs += fit_not_private(plan.algorithm, "training")
    if seeded_steps:
        paragraphs.append(
            f"NOT PRIVATE: the batches of {seeded_steps} steps were drawn with a seed, which is for "
            "tests: whoever knows the seed knows who was in each step. The figures below are those of a "
            "run without a seed."
        )
    paragraphs += [_guarantee_sentence(plan, unit, steps, delta) for unit in plan.algorithm.units]
    paragraphs += plan.algorithm.notes(facts, plan.noise_multiplier, steps, delta)
    paragraphs += plan.algorithm.sources() + _total(plan, steps, delta)
    paragraphs += [
        (
            f"From whom: anyone who sees the trained weights, every intermediate weight, and all other "
            f"data, but neither the training data of the protected {plan.unit} nor the random draws."
        ),
        (
            f"Sampling, assumed and used: {plan.sampling}, "
            f"{_rate_name(facts.scheme)} {facts.rate:.6g}, from {facts.n_items} items of "
            f"{facts.n_subjects} subjects. Rate, number of steps and the divisor {plan.divisor:.6g} are "
            "public constants: neighbouring data are compared under the same ones."
        ),
        (f"Items a subject: at most {facts.max_items}. {_source(plan)}" + _step_cap(plan)),
        _noise_sentence(plan.noise_multiplier, plan.algorithm, plan.divisor),
        "Accountant: privacy loss distributions, discretised so that epsilon errs upward.",
        not_covered(
            plan.stats.k_source == "data",
            not plan.stats.sizes_public,
            plan.algorithm.needs_elements and not plan.stats.sizes_public,
            plan.algorithm.unpaid(),
            divisor_of_counts(plan.algorithm, plan.facts, plan.stats),
        ),
    ]
    if engine:
        paragraphs.append(f"Technical: {engine}.")
    return layout(paragraphs)


def optimizer_statement(
    optimizer: Any,
    *,
    delta: float | None = None,
    engine: str | None = None,
) -> str:
    """The statement of a `DPOptimizer`; without a plan it cannot state an epsilon.

    It covers whatever the weights that the optimizer trains have brought with them.

    Args:
      optimizer: the optimizer.
      delta: None takes the plan's, or a tenth of 1 / the units that it protects.
      engine: how the sums were computed, for the technical lines.
    """
    return weights_statement(optimizer._lineage.look().cost, delta=delta, engine=engine)


def weights_statement(
    released: WeightsCost, *, delta: float | None = None, engine: str | None = None
) -> str:
    """The statement about weights, of a model at hand or in a file; see `optimizer_statement`."""
    own = released.own
    paragraphs = [_own_statement(released, delta, engine)]
    paragraphs += [layout([_earlier_sentence(run, delta)]) for run in released.others]
    if released.before:
        paragraphs.append(
            layout(
                [
                    f"Of these {own.steps} steps {released.before} were taken before, by another "
                    "optimizer or in another process, whose weights came in. The figures count them."
                ]
            )
        )
    if released.others and own.plan is not None:
        paragraphs.append(layout([_in_all(released, _delta(own.plan, delta))]))
    return "\n\n".join(paragraphs)


def _in_all(released: WeightsCost, delta: float) -> str:
    """One figure for all runs, where there is one."""
    plan = released.own.plan
    total = released.epsilon_in_all(delta=delta)
    if math.isfinite(total):
        return (
            f"IN ALL: this run and those beside it, composed: epsilon per {plan.unit} = "
            f"{rounded_up(total)} at delta = {delta:g}, for "
            f"{plan.guarantee(plan.unit).adjacency}."
        )
    return (
        f"IN ALL: no figure per {plan.unit}: some of it has no known or finite cost, or is promised for "
        "another change of the data."
    )


def _earlier_sentence(run: PrivateRun, delta: float | None) -> str:
    plan, steps = run.plan, run.steps
    seeded = "" if not run.seeded else f" NOT PRIVATE: {run.seeded} of them were drawn with a seed."
    if plan is None:
        spent = (
            f"without a plan ({type(run.algorithm).__name__}, noise multiplier "
            f"{run.noise_multiplier:.6g}), so no epsilon can be stated for them"
        )
    else:
        delta = _delta(plan, delta)
        before = plan.algorithm.event_before(plan.unit)
        epsilon = plan.known_epsilon(delta, steps=steps)
        spent = (
            f"in another run ({type(plan.algorithm).__name__}, noise multiplier "
            f"{plan.noise_multiplier:.6g}), which spent epsilon "
            f"{rounded_up(epsilon)} at delta = {delta:g} per {plan.unit}"
            + ("" if before is None else ", together with the fit of its elements")
            + "".join(f" (NOT counted: {cost})" for cost in plan.algorithm.unpaid())
        )
    return (
        f"BESIDE THIS: the same weights were trained for {steps} steps {spent}.{seeded} The figures "
        "compose: what is promised in all is at most the sum of the epsilons at the sum of the deltas, "
        "for changes of the data that both cover."
    )


def _own_statement(released: WeightsCost, delta: float | None, engine: str | None) -> str:
    own = released.own
    if own.plan is not None:
        return privacy_statement(
            own.plan,
            steps=own.steps,
            delta=delta,
            engine=engine,
            seeded_steps=own.seeded,
            first=released.remarks,
        )
    algorithm = own.algorithm
    title = f"PRIVACY STATEMENT ({type(algorithm).__name__}, {own.steps} steps taken)"
    paragraphs = [title, *released.remarks]
    if own.noise_multiplier == 0.0:
        paragraphs.append("NOT PRIVATE: the noise multiplier is 0.")
    paragraphs += [
        (
            "No epsilon can be stated: this optimizer was made without a plan, so how the batches were "
            "drawn is the user's word. Compute it with tf_subjectdp.accounting from the sampling that "
            "was really used, or train with a plan."
        ),
        *algorithm.sources(),
        _noise_sentence(own.noise_multiplier, algorithm, released.divisor),
        not_covered(True, True, unpaid=algorithm.unpaid()),
    ]
    if engine:
        paragraphs.append(f"Technical: {engine}.")
    return layout(paragraphs)


def _delta(plan: Plan, delta: float | None) -> float:
    if delta is not None:
        return check_delta(delta)
    return plan.stated_delta


def _guarantee_sentence(plan: Plan, unit: str, steps: int, delta: float) -> str:
    try:
        guarantee = plan.guarantee(unit)
    except ValueError as error:
        return f"Per {unit}: no figure, since nothing is proven: {error}"
    epsilon = plan.epsilon(delta, unit=unit, steps=steps)
    promise, promised = "", delta == plan.delta
    if unit == plan.unit and steps == plan.steps:
        if promised:
            promise = " This is the plan's promise."
        elif plan.delta is not None:
            promise = (
                f" It is NOT what the plan promises, epsilon = {rounded_up(plan.epsilon(unit=unit))} at "
                f"delta = {plan.delta:g}."
            )
    elif unit == plan.unit and steps > plan.steps:
        planned = "the plan's promise of" if promised else "the planned epsilon of"
        promise = (
            f" This is ABOVE {planned} {rounded_up(plan.epsilon(delta, unit=unit))} for {plan.steps} "
            "steps."
        )
    elif unit == plan.unit:
        promise = (
            f" This is what {steps} steps have spent; all {plan.steps} planned ones spend "
            f"{rounded_up(plan.epsilon(delta, unit=unit))}."
        )
    if plan.algorithm.event_before(unit) is not None:
        promise += " It is of the training alone: the fit of the elements, below, is on top."
    if unit != "subject":
        promise += f" It says nothing about a person's other {unit}s."
        promise += _above_subject(plan, unit, epsilon, steps, delta)
    return (
        f"Per {unit}: epsilon = {rounded_up(epsilon)} at delta = {delta:g}, for {guarantee.adjacency}."
        f"{promise} Why: {guarantee.reason}."
    )


def fit_not_private(algorithm: Algorithm, alone: str) -> list[str]:
    """Leads a statement where what the algorithm takes as given was made at an infinite cost."""
    before = algorithm.event_before(algorithm.default_unit)
    if before is None or math.isfinite(accounting.epsilon(before, delta=0.5)):
        return []
    return [
        "NOT PRIVATE: the elements were fitted on the private data without noise, or with noise from a "
        f"seed. The figures of the {alone} alone protect nobody from that."
    ]


def _total(plan: Plan, steps: int, delta: float) -> list[str]:
    """What the training and an earlier release of the same data (elements that were paid for) cost."""
    figures = []
    for unit in plan.algorithm.units:
        before = plan.algorithm.event_before(unit)
        if before is None:
            continue
        try:
            plan.guarantee(unit)
        except ValueError:  # said above: nothing is proven
            continue
        total = plan.total_epsilon(delta, unit=unit, steps=steps)
        figures.append(f"epsilon per {unit} = {rounded_up(total)}")
    if not figures:
        return []
    return [
        f"In all, together with the fit of the elements on the private data: {', '.join(figures)} at "
        f"delta = {delta:g}, composed exactly. An element is a cluster of the map that the fit released."
    ]


def _above_subject(plan: Plan, unit: str, epsilon: float, steps: int, delta: float) -> str:
    """Why the figure per item or element is above that per subject; empty where it is not."""
    try:
        subject = plan.guarantee("subject")
    except ValueError:
        return ""
    if epsilon <= plan.epsilon(delta, unit="subject", steps=steps):
        return ""
    if subject.adjacency == ADD_OR_REMOVE_SUBJECT:
        return (
            f" It is above the figure per subject because one {unit} may replace what a subject adds to "
            "a step, and replacing is more than adding or removing."
        )
    # A change of one item is then among the changes that the subject's promise is about.
    return (
        " It is above the figure per subject only because its bound is looser: that one holds for "
        "an item too."
    )


def _rate_name(scheme: str) -> str:
    names = {
        "poisson_subjects": "a subject's rate p =",
        "poisson_elements": "an element's rate r =",
    }
    return names.get(scheme, "an item's rate q =")


def _step_cap(plan: Plan) -> str:
    caps = []
    elements = getattr(plan.algorithm, "max_elements", None)
    of_element = getattr(plan.algorithm, "max_items_per_element", None)
    bounds = []
    if elements is not None:
        bounds.append(f" Elements a subject: at most {elements}, further ones dropped at random.")
    if of_element is not None:
        bounds.append(f" Items an element: at most {of_element}, further ones dropped at random.")
    if plan.facts.step_cap is not None:
        caps.append(f"a sampled subject brings at most {plan.facts.step_cap} of them to a step")
    in_batch = getattr(plan.algorithm, "max_items_per_subject", None)
    if in_batch is not None:
        caps.append(f"at most {in_batch} of them count in a batch")
    in_step = f" In a step, {' and '.join(caps)}, drawn at random." if caps else ""
    return "".join(bounds) + in_step


def _noise_sentence(noise_multiplier: float, algorithm: Algorithm, divisor: float) -> str:
    twice, norm = ("", f"{algorithm.clip_norm:g}")
    if algorithm.clip_norms_of_noise != 1.0:
        twice = f"{algorithm.clip_norms_of_noise:g} x "
    schedule = algorithm.clip_schedule
    changes = "" if schedule is None else f" The clip norm has {schedule}, fixed beforehand."
    return (
        f"Noise: Gaussian, standard deviation {noise_multiplier:.6g} x {twice}{norm} (noise multiplier "
        f"x {twice}clip norm) on every coordinate of the clipped sum, drawn afresh at every step with a "
        f"key that no seed fixes and the operating system's entropy goes into; then "
        f"divided by {divisor:.6g}.{changes}"
    )


def _source(plan: Plan) -> str:
    source = _SOURCES[plan.stats.k_source]
    if plan.algorithm.needs_elements:
        # A cap on a subject's items is what an element's promise does not allow.
        source = source.replace(
            "a public bound (max_items_per_subject) would",
            "public bounds (max_elements, max_items_per_element) would",
        )
    return source


def not_covered(
    k_from_data: bool,
    sizes_from_data: bool,
    elements_from_data: bool = False,
    unpaid: Sequence[str] = (),
    divisor_from_counts: bool = False,
) -> str:
    """What no statement covers; with constants read from the data, and costs that are not known."""
    items = [
        "metrics, losses, counts and shares of clipped items shown, logged or written while training or "
        "evaluating on people's data, and what warnings and errors say of the data",
        "the choice of hyperparameters, architecture, clip norm, number of steps and weights to keep by "
        "looking at results on these data",
        "preprocessing and vocabularies computed from the data",
        "weights that were trained before",
        "attacks on floating-point rounding of the noise",
        "predictions that a model makes about a person from what it learned about others",
    ]
    constants = ["items a subject"] if k_from_data else []
    if elements_from_data:
        constants.append("number of elements and items an element")
    if sizes_from_data:
        constants.append(
            "numbers of rows and subjects, and through them the rate, the divisor and the steps "
            "that epochs= comes to"
        )
    if divisor_from_counts:
        constants.append("the divisor, a sum over everybody's counts of rows, exactly")
    if constants:
        items.insert(2, f"constants read from the data ({'; '.join(constants)})")
    items += unpaid
    return "NOT covered: " + "; ".join(items) + "."


def layout(paragraphs: list[str]) -> str:
    """Paragraphs as lines of readable length."""
    return "\n\n".join(textwrap.fill(paragraph, _WIDTH) for paragraph in paragraphs)
