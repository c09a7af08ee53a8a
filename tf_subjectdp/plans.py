# SPDX-License-Identifier: Apache-2.0
"""The plan: algorithm, sampling, length and promise, chosen once and together.

Most wrong epsilons come from a sampler that does one thing while the accountant assumes another; here
both are read from the same frozen object.
"""

import dataclasses
import functools
import hashlib
import json
import logging
import math
import warnings
from collections.abc import Mapping
from typing import Any

import dp_accounting
import numpy as np

from tf_subjectdp import accounting
from tf_subjectdp.algorithms import (
    Algorithm,
    Guarantee,
    SamplingFacts,
    algorithm_from_config,
    check_noise_multiplier,
)
from tf_subjectdp.algorithms.base import check_cap, rounded_up
from tf_subjectdp.sampling import (
    FixedSize,
    PoissonElements,
    PoissonItems,
    PoissonSubjects,
    Sampler,
    Shuffle,
    SubjectStats,
    SubjectTable,
    bound_contributions,
    encode_ids,
    fresh_rng,
    sampler_from_config,
)
from tf_subjectdp.sampling._checks import check_indexes
from tf_subjectdp.sampling.pairs import bound_elements, encode_elements, pair_codes

# Above this a float64 no longer tells whole numbers apart.
_MOST_STEPS = 2**53


def length_in_steps(epochs: float | None, steps: int | None, steps_per_epoch: int) -> int:
    """T, from a number of epochs or of steps: exactly one of them is given.

    Args:
      epochs: passes over the data on average, above 0, or None.
      steps: a whole number of at least 1, or None.
      steps_per_epoch: steps of one pass.

    Raises:
      TypeError, ValueError: none or both are given, or one is out of its range.
    """
    if (epochs is None) == (steps is None):
        raise ValueError("give exactly one of epochs= and steps=.")
    name, value = ("steps", steps) if epochs is None else ("epochs", epochs)
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}={value!r} must be a number.")
    value = value.item() if isinstance(value, np.generic) else value
    # Compared, never made a float: a whole number of 400 digits has none.
    if not 0 < value < math.inf or (epochs is None and value != int(value)):
        kind = "a whole number of at least 1" if epochs is None else "above 0"
        raise ValueError(f"{name}={value} must be {kind}.")
    # An epoch has a step at least, so this also keeps the product below in range.
    if value > _MOST_STEPS or (epochs is not None and value * steps_per_epoch > _MOST_STEPS):
        raise ValueError(f"{name}={value} is too long: a plan has at most {_MOST_STEPS} steps.")
    return int(value) if epochs is None else max(1, math.ceil(value * steps_per_epoch - 1e-9))


def check_steps(steps: int) -> int:
    """A number of steps as an int; TypeError or ValueError unless it is whole and at least 0."""
    if isinstance(steps, bool) or not isinstance(steps, (int, float, np.integer, np.floating)):
        raise TypeError(f"steps={steps!r} must be a whole number.")
    if not 0 <= steps <= _MOST_STEPS or steps != int(steps):
        raise ValueError(
            f"steps={steps} must be a whole number of at least 0 and at most {_MOST_STEPS}."
        )
    return int(steps)


UNITS = ("subject", "element", "item")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What was decided before the first step. Made by `plan(...)`.

    All fields are public constants: the guarantee holds for neighbouring data under the SAME rate,
    length and divisor, so they are frozen here and never read from the data again.

    Attributes:
      algorithm: the clipping rule.
      sampling: who is in a step.
      stats: items and subjects that the constants were derived from, after contribution bounding.
      facts: rate, k, sizes: what the accountant needs.
      steps: T, the steps that may be taken.
      steps_per_epoch: steps of one pass over the data on average.
      noise_multiplier: sigma, noise standard deviation on the sum divided by the clip norm.
      delta: the delta of the promise; None if none was given.
      target_epsilon: the epsilon that the noise was chosen for; None if the noise was given.
      unit: "subject", "element" or "item", whose epsilon the promise is.
      max_items_per_subject: the public bound on a subject's items in the data, enforced by
        `dataset`; None if k was read from the data.
    """

    algorithm: Algorithm
    sampling: Sampler
    stats: SubjectStats
    facts: SamplingFacts
    steps: int
    steps_per_epoch: int
    noise_multiplier: float
    delta: float | None = None
    target_epsilon: float | None = None
    unit: str = "subject"
    max_items_per_subject: int | None = None

    @property
    def epochs(self) -> int:
        """Epochs that hold all planned steps: `fit(steps_per_epoch=plan.steps_per_epoch,
        epochs=plan.epochs)`; the last may be cut short by the dataset's end."""
        return -(-self.steps // self.steps_per_epoch)

    @property
    def divisor(self) -> float:
        """The constant by which the noised sum is divided."""
        return self.algorithm.divisor(self.facts)

    @property
    def stated_delta(self) -> float:
        """The plan's delta; where it has none, a tenth of 1 / the units that it protects."""
        if self.delta is not None:
            return self.delta
        return 0.1 / number_protected(self.unit, self.stats)

    @property
    def event(self) -> dp_accounting.DpEvent:
        """The whole run for the plan's unit: `event_of(plan.unit)`."""
        return self.event_of(self.unit)

    def event_of(self, unit: str) -> dp_accounting.DpEvent:
        """The whole run for a "subject", an "element" or an "item", as an event.

        Compose it with `accounting.compose`, for one unit and adjacency; the fit of elements that were
        paid for is `algorithm.event_before(unit)`, and not in it. Where `guarantee(unit)` names
        several events, each alone is a bound and this is the first; another may be smaller.
        `tf_subjectdp.accounting` knows it always; dp_accounting's own accountants only where it is one
        of their events: they refuse `PoissonReplaceOneDpEvent` and `RevealedSensitivityDpEvent` (a
        replaced unit, a known presence), which are of this library.
        """
        return self.guarantee(unit).total(self.steps)

    @property
    def step_event(self) -> dp_accounting.DpEvent:
        """What composes: one step, or one epoch where batches are shuffled."""
        return self.guarantee(self.unit).events[0]

    @property
    def fingerprint(self) -> int:
        """A number that tells plans of unlike sampling apart; the plan's datasets carry it."""
        return self._digest("sampling", "stats", "max_items_per_subject", "bounds")

    @property
    def identity(self) -> int:
        """A number that tells plans apart that differ in more than their length."""
        return self._digest(
            "sampling", "stats", "max_items_per_subject", "algorithm", "noise_multiplier"
        )

    def _digest(self, *keys: str) -> int:
        config = {**self.get_config(), "bounds": self.algorithm.data_bounds()}
        text = json.dumps([config[key] for key in keys], sort_keys=True)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    def guarantee(self, unit: str = "subject") -> Guarantee:
        """The guarantee of a step for a "subject", an "item", or an "element" (`ElementDP`)."""
        check_unit(unit)
        return guarantee_of(self.algorithm, self.facts, self.noise_multiplier, unit)

    def epsilon(
        self, delta: float | None = None, *, unit: str | None = None, steps: int | None = None
    ) -> float:
        """The epsilon of the run: of the training alone; see `total_epsilon`.

        Args:
          delta: in (0, 1); None takes the plan's.
          unit: "subject", "element" or "item"; None takes the plan's.
          steps: how many steps were taken; None takes all that are planned.

        Returns:
          An upper bound on epsilon; infinity without noise, 0 for no steps.
        """
        return self._spent(delta, unit, steps, None)

    def total_epsilon(
        self, delta: float | None = None, *, unit: str | None = None, steps: int | None = None
    ) -> float:
        """As `epsilon`, with what was released of the data before: elements that were paid for.

        ValueError where elements are the user's word alone, so that their cost is not known.
        """
        if self.algorithm.unpaid():
            raise ValueError(
                "the cost of these elements is not known, so there is no total, only epsilon(), of the "
                "training alone; pass ElementDP(elements=) the object that made them."
            )
        before = self.algorithm.event_before(self.unit if unit is None else unit)
        return self._spent(delta, unit, steps, before)

    def known_epsilon(
        self, delta: float | None = None, *, unit: str | None = None, steps: int | None = None
    ) -> float:
        """`total_epsilon` where all costs are known; else `epsilon`: the statement says what is not."""
        figure = self.epsilon if self.algorithm.unpaid() else self.total_epsilon
        return figure(delta, unit=unit, steps=steps)

    def _spent(self, delta, unit, steps, before) -> float:
        delta = self.delta if delta is None else delta
        if delta is None:
            raise ValueError("this plan has no delta; say epsilon(delta=...), e.g. 1e-5.")
        steps = self.steps if steps is None else check_steps(steps)
        guarantee = self.guarantee(self.unit if unit is None else unit)
        return _epsilon(guarantee, steps, check_delta(delta), before)

    def extended(self, *, epochs: float | None = None, steps: int | None = None) -> "Plan":
        """The same plan with a longer run: same noise, so a larger epsilon.

        Args:
          epochs: total number of epochs; or
          steps: total number of steps; at least the plan's own.
        """
        total = length_in_steps(epochs, steps, self.steps_per_epoch)
        if total < self.steps:
            raise ValueError(
                f"{total} steps is the new total asked for, below the plan's {self.steps}; epochs= and "
                f"steps= are totals, not additions: for ten steps more pass steps={self.steps + 10}."
            )
        return dataclasses.replace(self, steps=total, target_epsilon=None)

    def optimizer(self, inner: Any, **options: Any) -> Any:
        """Wraps any Keras optimizer so that its steps are this plan's.

        Args:
          inner: a Keras optimizer, or its name.
          **options: passed on to `DPOptimizer` (engine, ...).
        """
        from tf_subjectdp.keras import DPOptimizer

        return DPOptimizer(inner, plan=self, **options)

    def dataset(
        self,
        x: Any,
        y: Any,
        subject_id: Any = None,
        element_id: Any = None,
        *,
        sample_weight: Any = None,
        pad: bool = False,
        seed: int | None = None,
    ) -> Any:
        """The steps of this plan as a `tf.data.Dataset` for `PrivateModel.fit`.

        Every iteration draws afresh. Items above `max_items_per_subject` are dropped at random.

        Args:
          x: array, or a nest (dict, tuple) of arrays, [n, ...].
          y: array, or a nest of arrays, [n, ...].
          subject_id: [n] integers or strings, the person of each row.
          element_id: [n] integers or strings, the element of each row: for `ElementDP`, which needs it,
            and for no other algorithm.
          sample_weight: [n] or None; multiplies the loss before the clipping.
          pad: whether to pad batches to a constant shape, for compilers that need one.
          seed: for tests only: the statement then says that the run is not private.

        Returns:
          A dataset with `steps` elements `(x, y, extras)`.

        Raises:
          ValueError: missing ids, unequal lengths, or data that break the plan's constants.
        """

        return plan_dataset(
            self, x, y, subject_id, element_id, sample_weight=sample_weight, pad=pad, seed=seed
        )

    def statement(self) -> str:
        """Plain sentences on what the planned run protects, from whom, and what it does not."""
        from tf_subjectdp.statement import privacy_statement

        return privacy_statement(self, steps=self.steps, planned=True)

    def _counted(self) -> list[tuple[str, str]]:
        elements = getattr(self.algorithm, "max_elements", None)
        if elements is not None:
            return [("elements a subject", f"at most {elements}")]
        caps = [self.facts.step_cap, getattr(self.algorithm, "max_items_per_subject", None)]
        least = min((cap for cap in caps if cap is not None), default=None)
        return [] if least is None else [("  in a step", f"at most {least} of them")]

    def get_config(self) -> dict[str, Any]:
        """JSON-able figures; `Plan.from_config` is the inverse."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["algorithm"] = self.algorithm.get_config()
        fields["sampling"] = self.sampling.get_config()
        fields["stats"] = self.stats.get_config()
        fields["facts"] = dataclasses.asdict(self.facts)
        return fields

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Plan":
        """Rebuilds a plan; its epsilon is computed anew, never read from the config."""
        if not isinstance(config, Mapping):
            raise TypeError(f"config={config!r} must be a dict made by Plan.get_config().")
        missing = {field.name for field in dataclasses.fields(cls)} - set(config)
        if missing:
            raise ValueError(
                f"this is no config of a Plan: {sorted(missing)} are missing; pass what "
                "Plan.get_config() returned."
            )
        fields = dict(config)
        fields["algorithm"] = algorithm_from_config(fields["algorithm"])
        fields["sampling"] = sampler_from_config(fields["sampling"])
        fields["stats"] = SubjectStats.from_config(fields["stats"])
        try:
            fields["facts"] = SamplingFacts(**fields["facts"])
            return cls(**fields)
        except TypeError as error:
            raise ValueError(
                f"this is no config of a Plan: {error}; pass what Plan.get_config() returned."
            ) from None

    def __str__(self) -> str:
        guarantee = self.guarantee(self.unit)
        rows = [
            (
                "algorithm",
                f"{type(self.algorithm).__name__}, clip norm {self.algorithm.clip_norm:g}",
            ),
            (
                "protects",
                "one element of a subject" if self.unit == "element" else f"one {self.unit}",
            ),
            ("adjacency", guarantee.adjacency),
            ("sampling", f"{self.sampling}, rate {self.facts.rate:.6g}"),
            ("items a subject", f"at most {self.facts.max_items}"),
            *self._counted(),
            ("noise multiplier", f"{self.noise_multiplier:.6g}"),
            ("divisor", f"{self.divisor:.6g}"),
            ("steps", f"{self.steps} ({self.steps_per_epoch} an epoch)"),
        ]
        if self.delta is not None:
            rows += [("epsilon", rounded_up(self.epsilon())), ("delta", f"{self.delta:g}")]
            if self.algorithm.event_before(self.unit) is not None:
                rows.insert(-1, ("  with the fit", rounded_up(self.total_epsilon())))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def check_unit(unit: str) -> None:
    if not isinstance(unit, str) or unit not in UNITS:
        raise ValueError(f"unit={unit!r} is unknown; use one of {UNITS}.")


def divides_by(algorithm: Algorithm | None, facts: SamplingFacts, name: str) -> bool:
    """Whether this fact, "batch_size" or "expected_subjects", is what a plan's sums are divided by."""
    if algorithm is None:
        return name == "batch_size"
    return math.isnan(algorithm.divisor(dataclasses.replace(facts, **{name: math.nan})))


def divisor_of_counts(
    algorithm: Algorithm | None, facts: SamplingFacts, stats: SubjectStats | None
) -> bool:
    """Whether the divisor is a sum over everybody's counts, and not of the sizes of the data alone."""
    if stats is not None and stats.sizes_public:
        return False
    if facts.scheme == "poisson_subjects":
        return facts.step_cap is not None and divides_by(algorithm, facts, "batch_size")
    return facts.scheme != "poisson_elements" and facts.expected_subjects is not None


def number_protected(unit: str, stats: Any) -> int:
    """How many units the data have, of which a delta must be well below one over.

    Elements that were not counted are taken to be no more than there are subjects: each has one. In
    silos one element may have items in several: they are taken to be as many as in one silo at most.

    Args:
      unit: the protected unit; a "silo" is as many as its subjects.
      stats: `SubjectStats` or `SiloStats`, of which `n_items`, `n_subjects` and `elements` are read.
    """
    if unit == "item":
        return stats.n_items
    found = stats.elements if unit == "element" else None
    counted = () if found is None else found if isinstance(found, tuple) else (found,)
    return max([stats.n_subjects, *(elements.n_elements for elements in counted)])


def check_delta(delta: float) -> float:
    """Returns a delta as a float; TypeError or ValueError unless it is a number in (0, 1)."""
    if isinstance(delta, bool) or not isinstance(delta, (int, float, np.integer, np.floating)):
        raise TypeError(f"delta={delta!r} must be a number.")
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta={delta} must lie strictly between 0 and 1, e.g. delta=1e-5.")
    return float(delta)


@functools.lru_cache(maxsize=512)
def guarantee_of(algorithm, facts, noise_multiplier, unit) -> Guarantee:
    rules = {
        "subject": algorithm.subject_guarantee,
        "element": algorithm.element_guarantee,
        "item": algorithm.item_guarantee,
    }
    return rules[unit](facts, noise_multiplier)


@functools.lru_cache(maxsize=512)
def _epsilon(guarantee: Guarantee, steps: int, delta: float, before: Any) -> float:
    return guarantee.epsilon(steps, delta, before)


# The rest of what the promise needs, the largest subject and element, is checked or enforced below.
_AS_PLANNED = (
    "the plan's rate and divisor stay as they are: its promise holds, and the utility changes."
)

_log = logging.getLogger("tf_subjectdp")


def plan_dataset(
    plan: Plan,
    x: Any,
    y: Any,
    subject_id: Any,
    element_id: Any,
    *,
    sample_weight: Any,
    pad: bool,
    seed: int | None,
) -> Any:
    """The work of `Plan.dataset`, which has the documentation."""
    if subject_id is None:
        raise ValueError(
            "subject_id is missing: pass the person of each row, e.g. "
            "plan.dataset(x, y, patient_id); without it nobody can be protected."
        )
    if element_id is not None and not plan.algorithm.needs_elements:
        raise ValueError(
            f"element_id was given, but {type(plan.algorithm).__name__} protects whole "
            "subjects and items; leave it out (sample weights go into sample_weight=), or plan with "
            "ElementDP."
        )
    if element_id is None and plan.algorithm.needs_elements:
        raise ValueError(
            f"element_id is missing: {type(plan.algorithm).__name__} needs the element of each row, "
            "plan.dataset(x, y, subject_id, element_id); make one with tf_subjectdp.elements."
        )
    check_indexes(
        {
            "x": x,
            "y": y,
            "subject_id": subject_id,
            "element_id": element_id,
            "sample_weight": sample_weight,
        }
    )
    for name, value in (("x", x), ("y", y)):
        if value is None:
            raise ValueError(
                f"{name} is missing: pass one row an item, as in plan.dataset(x, y, patient_id)."
            )
    if not isinstance(pad, (bool, np.bool_)):
        raise TypeError(f"pad={pad!r} must be True or False.")
    from tf_subjectdp.sampling import to_dataset

    codes, n_subjects = encode_ids(subject_id)
    rng = fresh_rng(seed)
    pairs = None
    if element_id is not None:
        pairs, owners = pair_codes(codes, encode_elements(element_id, codes.size))

    def draws():
        order = rng()
        for batch in plan.sampling.batches(table, plan.facts.rate, rng()):
            drawn = batch if rows is None else rows[batch]
            # A batch is a set. Rows that are clipped together lie together, so that the step does
            # not have to copy them; an inner optimizer takes them as they come, so at random.
            if plan.algorithm.rows_lie_together:
                drawn = drawn[np.argsort(together[drawn], kind="stable")]
            elif plan.algorithm.inner is not None:
                drawn = order.permutation(drawn)
            yield drawn

    # First of all: of unequal lengths nothing is told that follows from them.
    dataset = to_dataset(
        {"x": x, "y": y, "subject": codes, "element": pairs, "weight": sample_weight},
        draws,
        plan.steps,
        pad_to=_capacity(plan) if pad else None,
        seeded=seed is not None,
        fingerprint=plan.fingerprint,
    )
    rows = _rows_that_stay(plan, codes, n_subjects, rng)
    if pairs is not None:
        rows = _elements_that_stay(plan, pairs, owners, rng, rows)
    # What is drawn as one, and what is clipped together.
    drawn_as_one, n_drawn = codes, n_subjects
    if plan.sampling.unit == "element":
        drawn_as_one, n_drawn = pairs, owners.size
    together = codes if pairs is None else pairs
    table = SubjectTable.from_codes(drawn_as_one if rows is None else drawn_as_one[rows], n_drawn)
    return dataset


def _rows_that_stay(plan: Plan, codes: np.ndarray, n_subjects: int, rng) -> np.ndarray | None:
    """Rows that stay after contribution bounding; None for all. Checks the plan's constants."""
    largest = int(np.bincount(codes, minlength=n_subjects).max())
    rows = None
    if plan.max_items_per_subject is not None:
        if largest > plan.max_items_per_subject:
            rows = bound_contributions(codes, n_subjects, plan.max_items_per_subject, rng())
    elif largest > plan.facts.max_items:
        raise ValueError(
            f"a subject has {largest} items, above the plan's k={plan.facts.max_items}, and the "
            "guarantee would not cover them; plan with max_items_per_subject=K (more items are "
            "then dropped at random), or with the stats of these data."
        )
    n_items = codes.size if rows is None else rows.size
    planned = (plan.facts.n_items, plan.facts.n_subjects)
    if (n_items, n_subjects) != planned:
        if not plan.sampling.poisson:
            raise ValueError(
                f"the data have {n_items} items (after bounding) of {n_subjects} subjects, the plan "
                f"was made for {planned[0]} of {planned[1]}: batches of a fixed size depend on the "
                "number of items; plan with SubjectStats.from_ids of these ids."
            )
        # Without the numbers: a log is kept, and they are exact.
        _log.warning(
            "the data have other numbers of items (after bounding) or of subjects than the plan was made "
            "for; %s",
            _AS_PLANNED,
        )
    return rows


def _elements_that_stay(plan: Plan, pairs, owners, rng, rows) -> np.ndarray | None:
    """Rows that stay after bounding elements and their items. Checks the plan's constants."""
    algorithm, found = plan.algorithm, plan.stats.elements
    largest = int(np.bincount(pairs).max())
    bounded = algorithm.max_items_per_element is not None
    if found is not None and not bounded and largest > found.max_items:
        raise ValueError(
            f"an element has {largest} items of one subject, above the plan's {found.max_items}, and the "
            "guarantee would not cover them; plan with the stats of these data, or with "
            f"{type(algorithm).__name__}(..., max_items_per_element=K)."
        )
    if found is not None and owners.size != found.n_elements:
        _log.warning(
            "the data have another number of elements than the plan was made for; %s", _AS_PLANNED
        )
    kept = bound_elements(
        pairs, owners, algorithm.max_elements, algorithm.max_items_per_element, rng()
    )
    if rows is None or kept is None:
        return kept if rows is None else rows
    return np.intersect1d(rows, kept, assume_unique=True)


def _capacity(plan: Plan) -> int:
    """A batch size that a step seldom exceeds (five standard deviations); it then takes twice as much."""
    if not plan.sampling.poisson:
        return plan.facts.rows_in_batch
    mean, spread = plan.facts.batch_size, plan.facts.batch_size
    if plan.facts.scheme == "poisson_subjects":
        spread *= plan.facts.items_in_step
    if plan.facts.scheme == "poisson_elements":
        spread *= plan.facts.max_element_items
    return int(math.ceil(mean + 5.0 * math.sqrt(spread) + 5.0))


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
