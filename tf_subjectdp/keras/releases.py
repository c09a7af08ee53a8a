# SPDX-License-Identifier: Apache-2.0
"""What was ever released of a model: steps by plan, kept with the model rather than the optimizer.

Knows plans and `DPOptimizer`'s count. Compiling again, loading without `compile`, or wrapping the same
Keras model a second time makes a new optimizer whose count is 0; the steps were released all the same.
"""

import weakref
from typing import Any

from tf_subjectdp.plans import Plan

# By the wrapped Keras model: a second PrivateModel around it finds what the first one released.
_OF_MODEL: "weakref.WeakKeyDictionary[Any, list[Releases]]" = weakref.WeakKeyDictionary()


class Releases:
    """Steps by plan of one wrapper; plans that differ in their length alone are one.

    Args:
      model: the wrapped Keras model, which other wrappers may have trained before.
    """

    def __init__(self, model: Any):
        self._steps: dict[int | None, tuple[Plan | None, int]] = {}
        self._remarks: dict[str, None] = {}
        self._of_model = _OF_MODEL.setdefault(model, [])
        self._of_model.append(self)

    def record(self, optimizer: Any) -> None:
        """Takes note of what an optimizer has released so far."""
        self._raise_to(optimizer.plan, optimizer.steps_taken)

    def hand_over(self, optimizer: Any) -> None:
        """Tells a new optimizer what was released before under its own plan."""
        _, steps = self._steps.get(_identity(optimizer.plan), (None, 0))
        optimizer.count_lost_steps(steps)

    def not_counted_in(self, optimizer: Any) -> list[tuple[Plan | None, int]]:
        """(plan, steps) of what the optimizer's own epsilon does not cover: other plans, wrappers."""
        own = _identity(optimizer.plan)
        found = [entry for key, entry in self._steps.items() if key != own]
        for other in self._of_model:
            found += other._steps.values() if other is not self else []
        return [(plan, steps) for plan, steps in found if steps > 0]

    def remark(self, sentence: str) -> None:
        """Notes what every statement about these weights must say before its figures; said once."""
        self._remarks[sentence] = None

    @property
    def remarks(self) -> list[str]:
        """The sentences of `remark`, which no epsilon covers."""
        return list(self._remarks)

    def _raise_to(self, plan: Plan | None, steps: int) -> None:
        key = _identity(plan)
        _, before = self._steps.get(key, (None, 0))
        self._steps[key] = (plan, max(steps, before))

    def get_config(self) -> dict[str, Any]:
        """JSON-able; `update_from_config` is the inverse."""
        runs = [
            {"plan": None if plan is None else plan.get_config(), "steps": steps}
            for plan, steps in self._steps.values()
            if steps > 0
        ]
        return {"runs": runs, "remarks": self.remarks}

    def update_from_config(self, config: dict[str, Any]) -> None:
        """Adds what a saved model had released."""
        for entry in config["runs"]:
            plan = None if entry["plan"] is None else Plan.from_config(entry["plan"])
            self._raise_to(plan, int(entry["steps"]))
        for sentence in config["remarks"]:
            self.remark(sentence)


def _identity(plan: Plan | None) -> int | None:
    return None if plan is None else plan.identity
