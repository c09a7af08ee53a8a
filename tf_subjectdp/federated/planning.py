# SPDX-License-Identifier: Apache-2.0
"""`federated.plan(...)`: checks the choices together, freezes the constants, finds the noise.

Knows algorithms, samplers, silo statistics and the accountant; the process builder sees its result only.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_subjectdp import accounting
from tf_subjectdp.accounting.searching import smallest_factor
from tf_subjectdp.algorithms import Algorithm, SamplingFacts, check_noise_multiplier
from tf_subjectdp.algorithms.base import ADD_OR_REMOVE_SUBJECT, check_cap
from tf_subjectdp.algorithms.part_clipping import PartClipping
from tf_subjectdp.federated import costs
from tf_subjectdp.federated.plans import NOISE_AT, VIEWS, WEIGHTINGS, FederatedPlan
from tf_subjectdp.plans import (
    check_delta,
    check_epsilon,
    check_unit,
    facts_of,
    guarantee_of,
    number_protected,
    warn_of_delta,
    without_unused_sums,
)
from tf_subjectdp.sampling import (
    FixedSize,
    PoissonElements,
    PoissonItems,
    PoissonSubjects,
    Sampler,
    SiloStats,
)

_SAMPLERS = (PoissonItems, PoissonSubjects, PoissonElements, FixedSize)


def plan(
    algorithm: Algorithm | None,
    sampling: Sampler | Sequence[Sampler] | Mapping[Any, Sampler],
    stats: SiloStats,
    *,
    rounds: int,
    silos_per_round: int | None = None,
    local_steps: int = 1,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | Sequence[float] | None = None,
    noise_at: str = "silo",
    view: str = "updates",
    weighting: str = "uniform",
    silos_per_subject: int | None = None,
    minimum_silos: int | None = None,
    max_items_per_subject: int | None = None,
    unit: str | None = None,
) -> FederatedPlan:
    """Chooses algorithm, sampling, silos, length and promise together.

    Args:
      algorithm: `ItemDP`, `HiGradAvg`, `GroupDP`, `SubjectDP`, `UserLDP` or `ElementDP`; None for
        FedAvg without privacy.
      sampling: who is in a local step: `PoissonItems`, `PoissonSubjects`, `PoissonElements`
        (`ElementDP`) or `FixedSize`, the same for all silos, or one a silo (a sequence in the order of
        `stats.names`, or a dict by name).
      stats: who has how many items where, `SiloStats.from_ids(patient_id, hospital)`; for sampled
        elements `SiloStats.from_ids(patient_id, hospital, element_id=topic)`.
      rounds: R.
      silos_per_round: s; None for all silos. No silo takes part in more than
        ceil(R s / silos) rounds, which the process enforces.
      local_steps: T, steps of a silo in a round.
      epsilon: the promise, over all silos; the smallest noise that keeps it is computed,
        one multiplier for all silos. Needs `delta`. Or
      noise_multiplier: the noise, one number or one a silo; 0.0 is allowed and not private.
      delta: in (0, 1), well below 1 / number of subjects (items, elements: of what is protected).
      noise_at: "silo" (LocalItemDP, LocalGroupDP, HiGradAvgDP, ...) or "server" (CentralSubDP, central
        HiGradAvg): a trusted server adds the noise once, to the sum over the silos; one local step.
      view: "updates": whoever runs the server sees every silo's update; "average": only the sum over
        the silos is seen (secure aggregation), where one local step makes the silos' noises add.
      weighting: "uniform" (as the papers) or "items": silos count by their planned numbers of items.
      silos_per_subject: a promise that nobody is in more silos, checked against the stats; None: a
        person may be in all.
      minimum_silos: a round of fewer is refused; None: 1, and all of a round in the averaged view.
      max_items_per_subject: a public bound k on a subject's items in each silo, enforced by the silos.
        Prefer it: without it k is read from the data. Nothing is proven for elements under it:
        `ElementDP` has bounds of its own.
      unit: whose epsilon the promise is: "subject" (a person, with all items in all silos), "element" (an
        element of a person, with its items in all silos; `ElementDP`) or "item" (in its one silo). None
        is "element" for `ElementDP`, "subject" for all others. Elements and items are promised
        something where the silos add the noise.

    Returns:
      A frozen `FederatedPlan`.

    Raises:
      ValueError: a value out of range (named with its bound), or a combination for which nothing is
        proven.
    """
    if algorithm is not None and not isinstance(algorithm, Algorithm):
        raise TypeError(
            f"algorithm is of type {type(algorithm).__name__}; pass e.g. HiGradAvg(clip_norm=1.0), or "
            "None for FedAvg without privacy."
        )
    if not isinstance(stats, SiloStats):
        raise TypeError(
            f"stats is of type {type(stats).__name__}; pass SiloStats.from_ids(subject_ids, silo_ids)."
        )
    if isinstance(algorithm, PartClipping):
        raise ValueError(
            f"{type(algorithm).__name__} is not offered in silos, neither its parts nor its inner "
            "optimizers; use UserLDP, which clips the mean gradient of a silo's whole batch, and "
            "local_steps=, which takes several steps."
        )
    if unit is None:
        unit = "subject" if algorithm is None else algorithm.default_unit
    check_unit(unit)
    for name, value, known in (
        ("noise_at", noise_at, NOISE_AT),
        ("view", view, VIEWS),
        ("weighting", weighting, WEIGHTINGS),
    ):
        if value not in known:
            raise ValueError(f"{name}={value!r} is unknown; use one of {known}.")
    if len({str(name) for name in stats.names}) < stats.n_silos:
        raise ValueError(
            f"the silos {list(stats.names)} have names that are equal as text; rename them, so that "
            "nobody takes one for the other."
        )
    cap = check_cap("max_items_per_subject", max_items_per_subject)
    if cap is not None:
        stats = stats.bounded(cap)
    n = stats.n_silos
    rounds, local_steps = _whole("rounds", rounds), _whole("local_steps", local_steps)
    per_round = _whole("silos_per_round", n if silos_per_round is None else silos_per_round, n)
    all_of_them = per_round if view == "average" else 1
    minimum = _whole(
        "minimum_silos", all_of_them if minimum_silos is None else minimum_silos, per_round
    )
    most = None if silos_per_subject is None else _whole("silos_per_subject", silos_per_subject)
    if most is not None and stats.silos_per_subject > most:
        raise ValueError(
            f"silos_per_subject={most}, but the stats have a subject in {stats.silos_per_subject} "
            "silos: the promise does not hold; raise it, or leave it out."
        )
    if delta is not None:
        delta = check_delta(delta)
        warn_of_delta(delta, unit, number_protected(unit, stats))
    samplings = _one_a_silo(sampling, stats.names)
    made = FederatedPlan(
        algorithm=algorithm,
        samplings=samplings,
        names=tuple(str(name) for name in stats.names),
        facts=tuple(_facts(i, samplings[i], stats, algorithm, cap) for i in range(n)),
        rounds=rounds,
        silos_per_round=per_round,
        local_steps=local_steps,
        noise_multipliers=(0.0,) * n if algorithm is None else (1.0,) * n,
        noise_at=noise_at,
        view=view,
        weighting=weighting,
        silos_per_subject=most,
        minimum_silos=minimum,
        delta=delta,
        max_items_per_subject=cap,
        unit=unit,
        stats=stats,
    )
    if algorithm is None:
        return _without_privacy(made, epsilon, noise_multiplier)
    _check_combination(made)
    return _with_noise(made, epsilon, noise_multiplier)


def _without_privacy(made, epsilon, noise_multiplier) -> FederatedPlan:
    if epsilon is not None or noise_multiplier is not None:
        raise ValueError(
            "algorithm=None is FedAvg without privacy: leave out epsilon= and noise_multiplier=, or "
            "choose an algorithm, e.g. HiGradAvg(clip_norm=1.0)."
        )
    if made.noise_at == "server":
        raise ValueError("algorithm=None adds no noise; leave out noise_at='server'.")
    if made.unit != "subject" or any(facts.scheme == "poisson_elements" for facts in made.facts):
        raise ValueError(
            "algorithm=None knows neither elements nor a unit; leave out unit=, and sample "
            "PoissonItems or PoissonSubjects."
        )
    return made


def _with_noise(made: FederatedPlan, epsilon, noise_multiplier) -> FederatedPlan:
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError("give exactly one of epsilon= (with delta=) and noise_multiplier=.")
    if noise_multiplier is not None:
        return dataclasses.replace(made, noise_multipliers=_noise(made, noise_multiplier))
    epsilon = check_epsilon(epsilon)
    if made.delta is None:
        raise ValueError("epsilon needs delta=, e.g. delta=1e-5: the promise has two numbers.")
    sigma = _calibrated(made, epsilon)
    return dataclasses.replace(
        made, noise_multipliers=(sigma,) * made.n_silos, target_epsilon=epsilon
    )


def _calibrated(made: FederatedPlan, epsilon: float) -> float:
    """The smallest noise multiplier, the same for all silos, that keeps the promise."""
    if made.noise_at == "server":
        return accounting.noise_multiplier(
            lambda sigma: costs.round_event(
                dataclasses.replace(made, noise_multipliers=(sigma,) * made.n_silos)
            ),
            made.rounds,
            epsilon=epsilon,
            delta=made.delta,
        )
    if len(costs.numbers(made, made.unit)) == 1:
        return made.horizontal().noise_for_budget(epsilon=epsilon, delta=made.delta)

    def spent(sigma: float) -> float:
        return dataclasses.replace(made, noise_multipliers=(sigma,) * made.n_silos).epsilon()

    return smallest_factor(spent, epsilon, 1.0)


def _noise(made: FederatedPlan, given: Any) -> tuple[float, ...]:
    if not isinstance(given, (Sequence, np.ndarray)):
        return (check_noise_multiplier(given),) * made.n_silos
    found = tuple(check_noise_multiplier(value) for value in np.asarray(given).tolist())
    if len(found) != made.n_silos:
        raise ValueError(
            f"noise_multiplier has {len(found)} values for {made.n_silos} silos; pass one a silo."
        )
    if made.noise_at == "server" and len(set(found)) > 1:
        raise ValueError("noise_at='server' adds one noise; pass one noise_multiplier.")
    return found


def _check_combination(made: FederatedPlan) -> None:
    """Refuses what is not proven."""
    costs.check_proven(made, made.unit)
    name = type(made.algorithm).__name__
    if made.view == "average" and made.local_steps > 1:
        raise ValueError(
            f"view='average' needs local_steps=1, not {made.local_steps}: after more steps an update "
            "is no longer one noised sum, and nothing better than view='updates' is proven."
        )
    if made.noise_at == "silo":
        return
    if made.weighting != "uniform" or made.view != "updates":
        raise ValueError(
            "noise_at='server' sums the silos' clipped sums as they are, and only the sum is noised; "
            "leave out weighting= and view=."
        )
    if made.local_steps > 1:
        raise ValueError(
            f"noise_at='server' needs local_steps=1, not {made.local_steps}: what a person adds to an "
            "update is bounded for one clipped sum only. Run more rounds, or let the silos add noise."
        )
    adjacency = guarantee_of(made.algorithm, made.facts[0], 1.0, "subject").adjacency
    if adjacency != ADD_OR_REMOVE_SUBJECT or name == "UserLDP":
        raise ValueError(
            f"noise_at='server' with {name} and {made.samplings[0]} is not proven; use ItemDP, "
            "HiGradAvg, GroupDP, SubjectDP or ElementDP with Poisson sampling."
        )


def _facts(
    i: int, sampling: Sampler, stats: SiloStats, algorithm: Algorithm | None, cap: int | None
) -> SamplingFacts:
    if isinstance(sampling, PoissonElements) and stats.elements is None:
        raise ValueError(
            f"silo {stats.names[i]!r}: {sampling} draws elements, and the stats have none: make them "
            "with SiloStats.from_ids(subject_id, silo_id, element_id=element_id)."
        )
    try:
        own = stats.silo(i)
        facts = without_unused_sums(facts_of(sampling, own, cap), algorithm, own)
        # Where elements are not asked for, a silo always drops a subject's items above its k.
        drops = algorithm is not None and not algorithm.needs_elements
        return dataclasses.replace(facts, data_cap=facts.data_cap or drops)
    except ValueError as error:
        raise ValueError(
            f"silo {stats.names[i]!r}: {error}. Silos may sample differently: pass sampling= as a "
            "list, or a dict by name, with one sampler a silo."
        ) from None


def _one_a_silo(sampling: Any, names: Sequence[Any]) -> tuple[Sampler, ...]:
    if isinstance(sampling, Mapping):
        unknown = [name for name in sampling if name not in names]
        missing = [name for name in names if name not in sampling]
        if unknown or missing:
            raise ValueError(
                f"sampling= has the unknown silos {unknown} and lacks {missing}; the silos are "
                f"{list(names)}."
            )
        sampling = [sampling[name] for name in names]
    elif isinstance(sampling, Sampler):
        sampling = [sampling] * len(names)
    if not isinstance(sampling, Sequence) or len(sampling) != len(names):
        raise ValueError(
            f"sampling={sampling!r} must be a sampler such as PoissonItems(512), or one for each of "
            f"the {len(names)} silos."
        )
    for one in sampling:
        # By the class itself: a subclass may draw in another way than the accountant assumes.
        if type(one) not in _SAMPLERS:
            raise ValueError(
                f"sampling={one!r} is not offered in a silo; use PoissonItems, PoissonSubjects, "
                "PoissonElements or FixedSize (shuffled epochs do not end with a round)."
            )
    return tuple(sampling)


def _whole(name: str, value: Any, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}={value!r} must be a whole number.")
    if value < 1 or (most is not None and value > most):
        bound = "at least 1" if most is None else f"from 1 to {most}"
        raise ValueError(f"{name}={value} must be {bound}.")
    return int(value)
