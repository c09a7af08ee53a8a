# SPDX-License-Identifier: Apache-2.0
"""The plan: algorithm, sampling, length and promise, chosen once and together.

Most wrong epsilons come from a sampler that does one thing while the accountant assumes another; here
both are read from the same frozen object.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import dp_accounting
import numpy as np

from tf_subjectdp.algorithms import (
    Algorithm,
    Guarantee,
    SamplingFacts,
    algorithm_from_config,
)
from tf_subjectdp.algorithms.base import rounded_up
from tf_subjectdp.plan_length import check_steps, length_in_steps
from tf_subjectdp.sampling import (
    Sampler,
    SubjectStats,
    sampler_from_config,
)

UNITS = ("subject", "element", "item")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What was decided before the first step. Made by `planning.plan(...)`.

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
        from tf_subjectdp.plan_data import plan_dataset

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
