# SPDX-License-Identifier: Apache-2.0
"""Runs of private steps, the lineage that weights and files keep of them, and what they cost together.

The words that every statement about weights begins with where their cost is not known are here too.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tf_subjectdp import accounting
from tf_subjectdp.algorithms import Algorithm, Guarantee, algorithm_from_config
from tf_subjectdp.algorithms.base import CHANGE_ANYTHING
from tf_subjectdp.plans import Plan

UNKNOWN = (
    "WEIGHTS FROM ELSEWHERE, whose cost is not known: some weights of this model, or what its optimizer "
    "keeps beside them, were written by something else than the private steps that are counted here, "
    "and are not those of a run that is known. If people's data "
    "went into them, the figures below do not cover it, and may not be taken "
    "for the cost of the model. (Of fresh weights, or public ones, you say so: "
    'PrivateModel(model, initial_weights="public").)'
)
PUBLIC = (
    "The weights that the training began with, and the optimizer's state, are fresh or were trained on "
    'data that need no protection: this is the user\'s word (initial_weights="public").'
)


@dataclasses.dataclass(frozen=True)
class PrivateRun:
    """Steps that one optimizer released in one process.

    Attributes:
      plan: the plan; None where the sampling was the user's word.
      algorithm, noise_multiplier: the plan's, or the optimizer's.
      steps: noised sums released.
      seeded: how many of them were drawn with a seed.
    """

    plan: Plan | None
    algorithm: Algorithm
    noise_multiplier: float
    steps: int
    seeded: int = 0

    @functools.cached_property
    def identity(self) -> Any:
        """Equal for runs that differ in their length alone, whose steps may be added up."""
        if self.plan is not None:
            return self.plan.identity
        return json.dumps([self.algorithm.get_config(), self.noise_multiplier], sort_keys=True)

    def counted(self) -> np.ndarray:
        """int64 [2]: steps, where an epoch of shuffled data that was begun counts whole; seeded ones."""
        length = 1
        if self.plan is not None:
            length = self.plan.guarantee(self.plan.unit).steps_per_event
        return np.array([-(-self.steps // length) * length, self.seeded], np.int64)

    def merged(self, other: "PrivateRun") -> "PrivateRun":
        """The later state of the same run."""
        longer = max(
            (run.plan for run in (self, other)), key=lambda plan: plan.steps if plan else 0
        )
        steps, seeded = max(self.steps, other.steps), max(self.seeded, other.seeded)
        return dataclasses.replace(self, plan=longer, steps=steps, seeded=seeded)

    def get_config(self) -> dict[str, Any]:
        """JSON-able; `from_config` is the inverse."""
        return {
            "plan": None if self.plan is None else self.plan.get_config(),
            "algorithm": self.algorithm.get_config(),
            "noise_multiplier": self.noise_multiplier,
            "steps": int(self.steps),
            "seeded": int(self.seeded),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "PrivateRun":
        plan = None if config["plan"] is None else Plan.from_config(config["plan"])
        algorithm = plan.algorithm if plan else algorithm_from_config(config["algorithm"])
        noise = float(config["noise_multiplier"])
        return cls(plan, algorithm, noise, int(config["steps"]), int(config["seeded"]))


class Lineage:
    """What went into weights: runs by their random names, and what is said before all figures."""

    def __init__(self, runs: Iterable[tuple[str, PrivateRun]] = (), remarks: Iterable[str] = ()):
        self.runs: dict[str, PrivateRun] = {}
        self.remarks: dict[str, None] = dict.fromkeys(remarks)
        for name, run in runs:
            self.add(name, run)

    def add(self, name: str, run: PrivateRun) -> None:
        if run.steps > 0:
            before = self.runs.get(name)
            self.runs[name] = run if before is None else before.merged(run)

    def absorb(self, other: "Lineage") -> None:
        """Adds what `other` has; the same run with fewer steps adds nothing."""
        for name, run in other.runs.items():
            self.add(name, run)
        self.remarks.update(other.remarks)

    def split(self, identity: Any, without: str = "") -> tuple[np.ndarray, tuple[PrivateRun, ...]]:
        """int64 [2], steps and seeded ones of the runs of one plan; and the runs of other plans.

        Args:
          identity: the plan's, see `PrivateRun.identity`.
          without: the name of a run that is left out.
        """
        runs = [run for name, run in self.runs.items() if name != without]
        same = [run.counted() for run in runs if run.identity == identity]
        others = tuple(run for run in runs if run.identity != identity)
        return np.sum([np.zeros(2, np.int64), *same], axis=0), others

    @property
    def unknown(self) -> bool:
        """Whether some weights came from elsewhere, so that no figure covers all of them."""
        return UNKNOWN in self.remarks

    def first(self) -> tuple[str, ...]:
        """The remarks in the order in which a statement says them."""
        return tuple(sorted(self.remarks, key=lambda sentence: sentence != UNKNOWN))

    def get_config(self) -> dict[str, Any]:
        """JSON-able; `from_config` is the inverse."""
        runs = {name: run.get_config() for name, run in self.runs.items()}
        return {"runs": runs, "remarks": list(self.remarks)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Lineage":
        runs = [(name, PrivateRun.from_config(run)) for name, run in config["runs"].items()]
        return cls(runs, config["remarks"])


@dataclasses.dataclass(frozen=True)
class WeightsCost:
    """What a statement about weights prices: the steps of its plan, and all that came with the weights.

    Attributes:
      own: all steps of the plan at hand, those of other optimizers and processes included.
      divisor: the constant that divides the noised sums of these steps.
      before: how many of the steps were taken by others, whose weights came in.
      others: runs of other plans.
      remarks: what must be said before all figures.
    """

    own: PrivateRun
    divisor: float
    before: int
    others: tuple[PrivateRun, ...]
    remarks: tuple[str, ...]

    @classmethod
    def of_file(cls, record: Lineage, own: PrivateRun, divisor: float) -> "WeightsCost":
        """What a saved model's record says, for the plan (or algorithm and noise) that `own` names."""
        counted, others = record.split(own.identity)
        steps, seeded = counted.tolist()
        own = dataclasses.replace(own, steps=steps, seeded=seeded)
        return cls(own, divisor, steps, others, record.first())

    @property
    def unknown(self) -> bool:
        """Whether some weights came from elsewhere, so that no figure covers all of them."""
        return UNKNOWN in self.remarks

    def epsilon_in_all(
        self, *, delta: float, unit: str | None = None, steps: int | None = None
    ) -> float:
        """What the plan's steps and the runs of other plans cost together; see `epsilon_in_all`.

        Args:
          delta: in (0, 1).
          unit: None takes the plan's.
          steps: of the plan; None takes those that were taken.
        """
        plan, steps = self.own.plan, self.own.steps if steps is None else steps
        if self.unknown:
            return math.inf
        if not self.others:
            return plan.known_epsilon(delta, unit=unit, steps=steps)
        return epsilon_in_all(plan, steps, self.others, delta=delta, unit=unit)


def epsilon_in_all(
    plan: Plan, steps: int, others: Sequence[PrivateRun], *, delta: float, unit: str | None = None
) -> float:
    """Epsilon of `steps` steps of a plan and of other runs together, for the adjacency of the plan.

    Composed exactly. As in `Plan.known_epsilon` the fit of elements counts where it is known.

    Returns:
      An upper bound; infinity where a run has no figure for this unit and change of the data.
    """
    unit = plan.unit if unit is None else unit
    own = plan.guarantee(unit)
    beside = _before(plan, unit)
    for run in others:
        found = None if run.plan is None else _guarantee(run.plan, unit)
        if found is None or not _compose(plan, own, run.plan, found, unit):
            return math.inf
        times = found.times(run.steps)
        event = min(found.events, key=lambda event: accounting.epsilon(event, times, delta=delta))
        beside += [(event, times), *_before(run.plan, unit)]
    return own.epsilon(steps, delta, accounting.compose(beside) if beside else None)


def _guarantee(plan: Plan, unit: str) -> Guarantee | None:
    try:
        return plan.guarantee(unit)
    except ValueError:  # nothing is proven for this unit
        return None


def _before(plan: Plan, unit: str) -> list[tuple[Any, int]]:
    event = None if plan.algorithm.unpaid() else plan.algorithm.event_before(unit)
    return [] if event is None else [(event, 1)]


def _compose(plan: Plan, own: Guarantee, other: Plan, found: Guarantee, unit: str) -> bool:
    """Whether two promises are about the same change of the data."""
    if unit == "element" and plan.algorithm.get_config() != other.algorithm.get_config():
        return False  # An element of one map is no element of the other.
    return own.adjacency == found.adjacency or found.adjacency == CHANGE_ANYTHING
