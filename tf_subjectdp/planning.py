# SPDX-License-Identifier: Apache-2.0
"""`plan(...)`: checks the four choices together, freezes the constants, finds the noise."""

import dataclasses
import math
import warnings

import numpy as np

from tf_subjectdp import accounting
from tf_subjectdp.algorithms import Algorithm, SamplingFacts, check_noise_multiplier
from tf_subjectdp.algorithms.base import check_cap
from tf_subjectdp.plan_length import length_in_steps
from tf_subjectdp.plans import (
    Plan,
    check_delta,
    check_unit,
    divides_by,
    guarantee_of,
    number_protected,
)
from tf_subjectdp.sampling import (
    FixedSize,
    PoissonElements,
    PoissonItems,
    PoissonSubjects,
    Sampler,
    Shuffle,
    SubjectStats,
)

_SCHEMES = {
    PoissonElements: "poisson_elements",
    PoissonItems: "poisson_items",
    PoissonSubjects: "poisson_subjects",
    FixedSize: "fixed_size",
    Shuffle: "shuffle",
}


# Above this a promise is none.
_LARGEST_EPSILON = 1e5


def plan(
    algorithm: Algorithm,
    sampling: Sampler,
    stats: SubjectStats,
    *,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    max_items_per_subject: int | None = None,
    unit: str | None = None,
) -> Plan:
    """Chooses algorithm, sampling, length and promise together.

    Args:
      algorithm: `ItemDP`, `HiGradAvg`, `GroupDP`, `SubjectDP`, `UserLDP`, `ElementDP`,
        `BatchClipping` or `MixedClipping`.
      sampling: `PoissonItems`, `PoissonSubjects`, `PoissonElements`, `FixedSize` or `Shuffle`.
      stats: items and subjects of the training data, `SubjectStats.from_ids(patient_id)`; for sampled
        elements `SubjectStats.from_ids(patient_id, element_id)`.
      epochs: how many passes over the data on average; or
      steps: how many steps.
      epsilon: the promise, of the training alone; the smallest noise that keeps it is computed. Needs
        `delta`. Or
      noise_multiplier: the noise; 0.0 is allowed and not private.
      delta: in (0, 1), well below 1 / number of subjects (items, elements: of what is protected).
      max_items_per_subject: a public bound k on a subject's items in the data, enforced by
        `dataset`. Prefer it: without it k is read from the data.
      unit: whose epsilon the promise is: "subject", or "item" or "element" (`ElementDP`) for a promise
        that covers one of a person's items or elements only. None is "element" for `ElementDP`,
        "subject" for all others.

    Returns:
      A frozen `Plan`.

    Raises:
      ValueError: a value out of range (named with its bound), or a combination of algorithm and
        sampling for which nothing is proven.
    """
    _check_types(algorithm, sampling, stats)
    unit = algorithm.default_unit if unit is None else unit
    check_unit(unit)
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError("give exactly one of epsilon= (with delta=) and noise_multiplier=.")
    cap = check_cap("max_items_per_subject", max_items_per_subject)
    if cap is not None:
        stats = _bounded(stats, cap)
    facts = without_unused_sums(facts_of(sampling, stats, cap), algorithm, stats)
    total = length_in_steps(epochs, steps, facts.steps_per_epoch)
    if delta is not None:
        delta = check_delta(delta)
        warn_of_delta(delta, unit, number_protected(unit, stats))
    if noise_multiplier is None:
        epsilon = check_epsilon(epsilon)
        if delta is None:
            raise ValueError("epsilon needs delta=, e.g. delta=1e-5: the promise has two numbers.")
        noise_multiplier = _calibrate(algorithm, facts, unit, total, epsilon, delta)
    noise_multiplier = check_noise_multiplier(noise_multiplier)
    guarantee_of(algorithm, facts, noise_multiplier, unit)  # refuses what is not proven
    return Plan(
        algorithm=algorithm,
        sampling=sampling,
        stats=stats,
        facts=facts,
        steps=total,
        steps_per_epoch=facts.steps_per_epoch,
        noise_multiplier=noise_multiplier,
        delta=delta,
        target_epsilon=epsilon,
        unit=unit,
        max_items_per_subject=cap,
    )


def _check_types(algorithm, sampling, stats) -> None:
    for name, value, kind in (
        ("algorithm", algorithm, Algorithm),
        ("sampling", sampling, Sampler),
        ("stats", stats, SubjectStats),
    ):
        if not isinstance(value, kind):
            example = {
                "algorithm": "HiGradAvg(clip_norm=1.0)",
                "sampling": "PoissonItems(256)",
                "stats": "SubjectStats.from_ids(patient_id)",
            }[name]
            raise TypeError(
                f"{name} is of type {type(value).__name__}, not {kind.__name__}; pass e.g. {example}."
            )


def _bounded(stats: SubjectStats, cap: int) -> SubjectStats:
    if stats.counts is not None:
        return stats.bounded(cap)
    # Figures only: what the cap drops is not known, but no more than cap items a subject stay. The
    # rate is planned for that many; with fewer, steps are smaller than planned.
    return dataclasses.replace(
        stats,
        n_items=min(stats.n_items, cap * stats.n_subjects),
        max_items=cap,
        k_source="bound",
    )


def facts_of(sampling: Sampler, stats: SubjectStats, cap: int | None) -> SamplingFacts:
    """The public constants of sampling from a table with these (already bounded) stats."""
    # By the class itself: a subclass may draw in another way than the accountant assumes.
    scheme = _SCHEMES.get(type(sampling))
    if scheme is None:
        known = ", ".join(kind.__name__ for kind in _SCHEMES)
        raise ValueError(
            f"sampling={sampling!r} is a sampler the accountant does not know; use one of {known} "
            "itself, not a subclass."
        )
    elements = None if stats.elements is None else stats.elements.n_elements
    rate = sampling.rate(stats.n_items, stats.n_subjects, elements)
    step_cap = None
    if isinstance(sampling, PoissonSubjects):
        step_cap = sampling.max_items_per_subject
        counts = stats.counts if stats.counts is not None else np.array([stats.mean])
        brought = counts if step_cap is None else np.minimum(counts, step_cap)
        expected_subjects = rate * stats.n_subjects
        batch_size = expected_subjects * float(np.mean(brought))
    elif isinstance(sampling, PoissonElements):
        batch_size = rate * stats.n_items
        # So that the expected step is that of sampled subjects: each of their elements, times r.
        expected_subjects = rate * stats.n_subjects
    else:
        batch_size = rate * stats.n_items
        expected_subjects = _expected_subjects(rate, stats)
    return SamplingFacts(
        scheme=scheme,
        rate=rate,
        n_items=stats.n_items,
        n_subjects=stats.n_subjects,
        batch_size=batch_size,
        expected_subjects=expected_subjects,
        max_items=stats.max_items,
        step_cap=step_cap,
        # Items were dropped by the plan's dataset, or before: `SubjectStats.bounded`.
        data_cap=cap is not None or stats.k_source == "bound",
        steps_per_epoch=sampling.steps_per_epoch(stats.n_items, stats.n_subjects, elements),
        max_element_items=None if stats.elements is None else stats.elements.max_items,
    )


def without_unused_sums(
    facts: SamplingFacts, algorithm: Algorithm | None, stats: SubjectStats
) -> SamplingFacts:
    """The facts without exact sums over everybody's counts that the plan does not divide by.

    A plan is saved with what it trained; what it does not need, nobody should read there.
    """
    if not divides_by(algorithm, facts, "expected_subjects"):
        facts = dataclasses.replace(facts, expected_subjects=None)
    capped = facts.scheme == "poisson_subjects" and facts.step_cap is not None
    if capped and not divides_by(algorithm, facts, "batch_size"):
        most = facts.rate * facts.n_subjects * min(stats.mean, facts.step_cap)
        facts = dataclasses.replace(facts, batch_size=most)
    return facts


def _expected_subjects(rate: float, stats: SubjectStats) -> float:
    """Expected number of subjects with an item in the batch, when items are what is sampled."""
    if rate >= 1.0:
        return float(stats.n_subjects)
    counts = stats.counts
    if counts is None:
        return float(-math.expm1(stats.mean * math.log1p(-rate)) * stats.n_subjects)
    return float(-np.expm1(counts * math.log1p(-rate)).sum())


def check_epsilon(epsilon) -> float:
    """Returns a target epsilon as a float; TypeError or ValueError unless it can be one."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float, np.integer, np.floating)):
        raise TypeError(f"epsilon={epsilon!r} must be a number.")
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon} must be finite and above 0, e.g. epsilon=4.0.")
    if epsilon > _LARGEST_EPSILON:
        raise ValueError(
            f"epsilon={epsilon} is above {_LARGEST_EPSILON:g} and protects nobody; use e.g. "
            "epsilon=4.0, or noise_multiplier=0.0 for a run without privacy."
        )
    return float(epsilon)


def warn_of_delta(delta: float, unit: str, number: int) -> None:
    """Warns whoever called the caller of a delta that is not below one over the number of units."""
    if delta >= 1.0 / number:
        warnings.warn(
            f"delta={delta:g} is not below 1 / {unit}s = {1.0 / number:g}: a mechanism that "
            f"publishes one {'person' if unit == 'subject' else unit} at random would satisfy it. "
            "Choose a smaller delta.",
            stacklevel=3,
        )


def _calibrate(algorithm, facts, unit, steps, epsilon, delta) -> float:
    """The smallest noise multiplier with which some event of the guarantee keeps the promise."""
    shape = guarantee_of(algorithm, facts, 1.0, unit)
    return min(
        accounting.noise_multiplier(
            lambda sigma, number=number: guarantee_of(algorithm, facts, sigma, unit).events[number],
            shape.times(steps),
            epsilon=epsilon,
            delta=delta,
        )
        for number in range(len(shape.events))
    )
