# SPDX-License-Identifier: Apache-2.0
"""The plan: algorithm, sampling, length and promise, chosen once and together.

Knows algorithms, sampling and the accountant; `keras` and `federated` know it. Most wrong epsilons
come from a sampler that does one thing while the accountant assumes another; here both are read from
the same frozen object.
"""

import dataclasses
import decimal
import functools
import hashlib
import json
import logging
import math
import warnings
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
from tf_subjectdp.algorithms.base import check_cap
from tf_subjectdp.sampling import (
    PoissonSubjects,
    Sampler,
    SubjectStats,
    SubjectTable,
    bound_contributions,
    encode_ids,
    fresh_rng,
    sampler_from_config,
)

_log = logging.getLogger("tf_subjectdp")

UNITS = ("subject", "item")
_SCHEMES = {
    "PoissonItems": "poisson_items",
    "PoissonSubjects": "poisson_subjects",
    "FixedSize": "fixed_size",
    "Shuffle": "shuffle",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What was decided before the first step. Make one with `plan(...)`.

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
      unit: "subject" or "item", whose epsilon the promise is.
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
    def event(self) -> dp_accounting.DpEvent:
        """The whole run for the plan's unit, as an event that any accountant composes."""
        return self.guarantee(self.unit).total(self.steps)

    @property
    def step_event(self) -> dp_accounting.DpEvent:
        """What composes: one step, or one epoch where batches are shuffled."""
        return self.guarantee(self.unit).events[0]

    @property
    def fingerprint(self) -> int:
        """A number that tells plans of unlike sampling apart; the plan's datasets carry it."""
        config = self.get_config()
        sampling = [config[key] for key in ("sampling", "stats", "max_items_per_subject")]
        digest = hashlib.sha256(json.dumps(sampling, sort_keys=True).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def guarantee(self, unit: str = "subject") -> Guarantee:
        """The guarantee of a step for a "subject" or an "item"."""
        if unit not in UNITS:
            raise ValueError(f"unit={unit!r} is unknown; use one of {UNITS}.")
        return _guarantee(self.algorithm, self.facts, self.noise_multiplier, unit)

    def epsilon(
        self, delta: float | None = None, *, unit: str | None = None, steps: int | None = None
    ) -> float:
        """The epsilon of the run.

        Args:
          delta: in (0, 1); None takes the plan's.
          unit: "subject" or "item"; None takes the plan's.
          steps: how many steps were taken; None takes all that are planned.

        Returns:
          An upper bound on epsilon; infinity without noise, 0 for no steps.
        """
        delta = self.delta if delta is None else delta
        if delta is None:
            raise ValueError("this plan has no delta; say epsilon(delta=...), e.g. 1e-5.")
        steps = self.steps if steps is None else steps
        if isinstance(steps, bool) or steps != int(steps) or steps < 0:
            raise ValueError(f"steps={steps} must be a whole number of at least 0.")
        return _epsilon(self.guarantee(unit or self.unit), int(steps), float(delta))

    def extended(self, *, epochs: float | None = None, steps: int | None = None) -> "Plan":
        """The same plan with a longer run: same noise, so a larger epsilon.

        Args:
          epochs: total number of epochs; or
          steps: total number of steps; at least the plan's own.
        """
        total = _length(epochs, steps, self.steps_per_epoch)
        if total < self.steps:
            raise ValueError(f"steps={total} is below the plan's {self.steps}; extend only upward.")
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
          element_id: [n], only for algorithms whose unit is a part of a person.
          sample_weight: [n] or None; multiplies the loss before the clipping.
          pad: whether to pad batches to a constant shape, for compilers that need one.
          seed: for tests only: the statement then says that the run is not private.

        Returns:
          A dataset with `steps` elements `(x, y, extras)`.

        Raises:
          ValueError: missing ids, unequal lengths, or data that break the plan's constants.
        """
        if subject_id is None:
            raise ValueError(
                "subject_id is missing: pass the person of each row, e.g. "
                "plan.dataset(x, y, patient_id); without it nobody can be protected."
            )
        if element_id is not None:
            raise ValueError(
                f"element_id was given, but {type(self.algorithm).__name__} protects whole "
                "subjects and items; leave it out."
            )
        from tf_subjectdp.sampling import to_dataset

        codes, n_subjects = encode_ids(subject_id)
        rng = fresh_rng(seed)
        rows = self._rows(codes, n_subjects, rng)
        # Ids renumbered over the rows that stay; a subject always keeps at least one.
        table = SubjectTable.from_codes(codes if rows is None else codes[rows], n_subjects)

        def draws():
            for batch in self.sampling.batches(table, self.facts.rate, rng()):
                yield batch if rows is None else rows[batch]

        return to_dataset(
            {"x": x, "y": y, "subject": codes, "weight": sample_weight},
            draws,
            self.steps,
            pad_to=self._capacity() if pad else None,
            steps_per_epoch=self.steps_per_epoch if self.facts.scheme == "shuffle" else None,
            seeded=seed is not None,
            fingerprint=self.fingerprint,
        )

    def _rows(self, codes: np.ndarray, n_subjects: int, rng) -> np.ndarray | None:
        """Rows that stay after contribution bounding; None for all. Checks the plan's constants."""
        largest = int(np.bincount(codes, minlength=n_subjects).max())
        rows = None
        if self.max_items_per_subject is not None:
            if largest > self.max_items_per_subject:
                rows = bound_contributions(codes, n_subjects, self.max_items_per_subject, rng())
        elif largest > self.facts.max_items:
            raise ValueError(
                f"a subject has {largest} items, above the plan's k={self.facts.max_items}, and the "
                "guarantee would not cover them; plan with max_items_per_subject=K (more items are "
                "then dropped at random), or with the stats of these data."
            )
        n_items = codes.size if rows is None else rows.size
        planned = (self.facts.n_items, self.facts.n_subjects)
        if (n_items, n_subjects) != planned:
            message = (
                f"the data have {n_items} items (after bounding) of {n_subjects} subjects, the plan "
                f"was made for {planned[0]} of {planned[1]}"
            )
            if not self.sampling.poisson:
                raise ValueError(
                    message + ": batches of a fixed size depend on the number of items; plan with "
                    "SubjectStats.from_ids of these ids."
                )
            _log.warning("%s; the plan's rate and divisor stay as they are.", message)
        return rows

    def _capacity(self) -> int:
        """A batch size that a step exceeds with probability below 1e-6; larger ones are split."""
        if not self.sampling.poisson:
            return int(self.facts.batch_size)
        mean, spread = self.facts.batch_size, self.facts.batch_size
        if self.facts.scheme == "poisson_subjects":
            spread *= self.facts.items_in_step
        return int(math.ceil(mean + 5.0 * math.sqrt(spread) + 5.0))

    def statement(self) -> str:
        """Plain sentences on what the planned run protects, from whom, and what it does not."""
        from tf_subjectdp.statement import privacy_statement

        return privacy_statement(self, steps=self.steps)

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
        fields = dict(config)
        fields["algorithm"] = algorithm_from_config(fields["algorithm"])
        fields["sampling"] = sampler_from_config(fields["sampling"])
        fields["stats"] = SubjectStats.from_config(fields["stats"])
        fields["facts"] = SamplingFacts(**fields["facts"])
        return cls(**fields)

    def __str__(self) -> str:
        guarantee = self.guarantee(self.unit)
        rows = [
            (
                "algorithm",
                f"{type(self.algorithm).__name__}, clip norm {self.algorithm.clip_norm:g}",
            ),
            ("protects", f"one {self.unit}"),
            ("adjacency", guarantee.adjacency),
            ("sampling", f"{self.sampling}, rate {self.facts.rate:.6g}"),
            ("items a subject", f"at most {self.facts.max_items}"),
            ("noise multiplier", f"{self.noise_multiplier:.6g}"),
            ("divisor", f"{self.divisor:.6g}"),
            ("steps", f"{self.steps} ({self.steps_per_epoch} an epoch)"),
        ]
        if self.delta is not None:
            rows += [("epsilon", rounded_up(self.epsilon())), ("delta", f"{self.delta:g}")]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


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
    unit: str = "subject",
) -> Plan:
    """Chooses algorithm, sampling, length and promise together.

    Args:
      algorithm: `ItemDP`, `HiGradAvg`, `GroupDP`, `SubjectDP` or `UserLDP`.
      sampling: `PoissonItems`, `PoissonSubjects`, `FixedSize` or `Shuffle`.
      stats: items and subjects of the training data, `SubjectStats.from_ids(patient_id)`.
      epochs: how many passes over the data on average; or
      steps: how many steps.
      epsilon: the promise; the smallest noise that keeps it is computed. Needs `delta`. Or
      noise_multiplier: the noise; 0.0 is allowed and not private.
      delta: in (0, 1), well below 1 / number of subjects.
      max_items_per_subject: a public bound k on a subject's items in the data, enforced by
        `dataset`. Prefer it: without it k is read from the data.
      unit: "subject" (default), or "item" for a promise that covers single items only.

    Returns:
      A frozen `Plan`.

    Raises:
      ValueError: a value out of range (named with its bound), or a combination of algorithm and
        sampling for which nothing is proven.
    """
    _check_types(algorithm, sampling, stats)
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r} is unknown; use one of {UNITS}.")
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError("give exactly one of epsilon= (with delta=) and noise_multiplier=.")
    cap = check_cap("max_items_per_subject", max_items_per_subject)
    if cap is not None:
        stats = _bounded(stats, cap)
    facts = _facts(sampling, stats, cap)
    total = _length(epochs, steps, facts.steps_per_epoch)
    if delta is not None:
        delta = _check_delta(delta, stats.n_subjects)
    if noise_multiplier is None:
        epsilon = _check_epsilon(epsilon)
        if delta is None:
            raise ValueError("epsilon needs delta=, e.g. delta=1e-5: the promise has two numbers.")
        noise_multiplier = _calibrate(algorithm, facts, unit, total, epsilon, delta)
    noise_multiplier = check_noise_multiplier(noise_multiplier)
    _guarantee(algorithm, facts, noise_multiplier, unit)  # refuses what is not proven
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
            raise TypeError(f"{name}={value!r} must be a {kind.__name__} of tf_subjectdp.")


def _bounded(stats: SubjectStats, cap: int) -> SubjectStats:
    if stats.counts is not None:
        return stats.bounded(cap)
    # Public figures only: n_items stays as given, which makes the rate smaller than planned at most.
    return dataclasses.replace(stats, max_items=cap, k_source="bound")


def _facts(sampling: Sampler, stats: SubjectStats, cap: int | None) -> SamplingFacts:
    rate = sampling.rate(stats.n_items, stats.n_subjects)
    step_cap = None
    if isinstance(sampling, PoissonSubjects):
        step_cap = sampling.max_items_per_subject
        counts = stats.counts if stats.counts is not None else np.array([stats.mean])
        brought = counts if step_cap is None else np.minimum(counts, step_cap)
        expected_subjects = rate * stats.n_subjects
        batch_size = expected_subjects * float(np.mean(brought))
    else:
        batch_size = rate * stats.n_items
        expected_subjects = _expected_subjects(rate, stats)
    return SamplingFacts(
        scheme=_SCHEMES[type(sampling).__name__],
        rate=rate,
        n_items=stats.n_items,
        n_subjects=stats.n_subjects,
        batch_size=batch_size,
        expected_subjects=expected_subjects,
        max_items=stats.max_items,
        step_cap=step_cap,
        data_cap=cap is not None,
        steps_per_epoch=sampling.steps_per_epoch(stats.n_items, stats.n_subjects),
    )


def _expected_subjects(rate: float, stats: SubjectStats) -> float:
    """Expected number of subjects with an item in the batch, when items are what is sampled."""
    if rate >= 1.0:
        return float(stats.n_subjects)
    counts = stats.counts
    if counts is None:
        counts = np.full(stats.n_subjects, stats.mean)
    return float(-np.expm1(counts * math.log1p(-rate)).sum())


def _length(epochs, steps, steps_per_epoch: int) -> int:
    if (epochs is None) == (steps is None):
        raise ValueError("give exactly one of epochs= and steps=.")
    name, value = ("steps", steps) if epochs is None else ("epochs", epochs)
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}={value!r} must be a number.")
    if not math.isfinite(value) or value <= 0 or (epochs is None and value != int(value)):
        kind = "a whole number of at least 1" if epochs is None else "above 0"
        raise ValueError(f"{name}={value} must be {kind}.")
    return int(value) if epochs is None else max(1, math.ceil(value * steps_per_epoch - 1e-9))


def _check_epsilon(epsilon) -> float:
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float, np.integer, np.floating)):
        raise TypeError(f"epsilon={epsilon!r} must be a number.")
    if not math.isfinite(epsilon) or epsilon <= 0:
        raise ValueError(f"epsilon={epsilon} must be finite and above 0, e.g. epsilon=4.0.")
    return float(epsilon)


def _check_delta(delta, n_subjects: int) -> float:
    if isinstance(delta, bool) or not isinstance(delta, (int, float, np.integer, np.floating)):
        raise TypeError(f"delta={delta!r} must be a number.")
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta={delta} must lie strictly between 0 and 1, e.g. delta=1e-5.")
    if delta >= 1.0 / n_subjects:
        warnings.warn(
            f"delta={delta:g} is not below 1 / subjects = {1.0 / n_subjects:g}: a mechanism that "
            "publishes one person at random would satisfy it. Choose a smaller delta.",
            stacklevel=3,
        )
    return float(delta)


def rounded_up(epsilon: float) -> str:
    """An epsilon as people read it: three digits after the point, never below the value."""
    if math.isinf(epsilon):
        return "infinite"
    with decimal.localcontext(decimal.Context(prec=400, rounding=decimal.ROUND_CEILING)):
        return str(decimal.Decimal(epsilon).quantize(decimal.Decimal("0.001")))


@functools.lru_cache(maxsize=512)
def _guarantee(algorithm, facts, noise_multiplier, unit) -> Guarantee:
    rule = algorithm.subject_guarantee if unit == "subject" else algorithm.item_guarantee
    return rule(facts, noise_multiplier)


@functools.lru_cache(maxsize=512)
def _epsilon(guarantee: Guarantee, steps: int, delta: float) -> float:
    return guarantee.epsilon(steps, delta)


def _calibrate(algorithm, facts, unit, steps, epsilon, delta) -> float:
    """The smallest noise multiplier with which some event of the guarantee keeps the promise."""
    shape = _guarantee(algorithm, facts, 1.0, unit)
    return min(
        accounting.noise_multiplier(
            lambda sigma, number=number: _guarantee(algorithm, facts, sigma, unit).events[number],
            shape.times(steps),
            epsilon=epsilon,
            delta=delta,
            engine=shape.engine,
        )
        for number in range(len(shape.events))
    )
