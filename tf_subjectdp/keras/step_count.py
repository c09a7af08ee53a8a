# SPDX-License-Identifier: Apache-2.0
"""The count of released steps that epsilon is computed from: kept, saved, and never lowered.

Knows variables, the plan and how a batch was drawn; a part of `DPOptimizer`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_subjectdp.keras import compat
from tf_subjectdp.keras.batches import Draw
from tf_subjectdp.plans import Plan


class CountsSteps:
    """The part of `DPOptimizer` that counts; mixed in before Keras's optimizer.

    The counters come first among the optimizer's `variables`, so that they are saved with it.
    """

    plan: Plan | None
    variables: Any

    def _make_counters(self) -> None:
        self.privacy_steps = compat.counter("privacy_steps")
        self.seeded_steps = compat.counter("seeded_steps")
        # Not saved: another process never draws the same pass again.
        self._last_pass = compat.counter("last_pass", -1)
        self._last_step = compat.counter("last_step", -1)

    @property
    def steps_taken(self) -> int:
        """Noised sums released so far, over all `fit`s and resumes: what epsilon counts."""
        return int(compat.raw(self.privacy_steps).numpy())

    @property
    def steps_drawn_with_seed(self) -> int:
        """How many of the steps had batches drawn with a seed: for tests, and not private."""
        return int(compat.raw(self.seeded_steps).numpy())

    @property
    def steps_at_new_pass(self) -> int:
        """`steps_taken`, with an epoch of shuffled data that was begun counted whole: what is spent
        when another pass over the data begins."""
        return self._whole_epochs(self.steps_taken)

    def count_lost_steps(self, steps: int) -> None:
        """Raises the step count to at least `steps`: steps that a crash lost were taken all the same.

        Args:
          steps: what a record outside the checkpoint says, e.g. `PrivacyLedger`'s file.
        """
        if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 0:
            raise ValueError(f"steps={steps!r} must be a whole number of at least 0.")
        if steps > self.steps_taken:
            compat.raw(self.privacy_steps).assign(int(steps))

    def _count_step(self, draw: Draw | None, seeded: tf.Tensor) -> list[Any]:
        """Counts a step before it is released; what the release has to wait for.

        A batch that was trained on before, or a step beyond the plan's, stops there.
        """
        counter = compat.raw(self.privacy_steps)
        of_seeds = compat.raw(self.seeded_steps).assign_add(tf.cast(seeded, tf.int64))
        if self.plan is None:
            return [of_seeds, counter.assign_add(1)]
        last_pass, last_step = compat.raw(self._last_pass), compat.raw(self._last_step)
        new_pass = tf.not_equal(draw.number, last_pass)
        fresh = tf.debugging.Assert(
            new_pass | (draw.step > last_step),
            [
                "This batch was trained on before. The steps of a plan are independent draws: iterate "
                "over plan.dataset(...) itself, not over a list or a cache of its batches. Step:",
                draw.step,
            ],
        )
        taken = tf.identity(counter)
        epoch = self._epoch_length
        if epoch > 1:
            begins = new_pass | tf.not_equal(draw.step // epoch, last_step // epoch)
            taken = tf.where(begins, self._whole_epochs(taken), taken)
        budget = tf.debugging.Assert(
            taken < self.plan.steps,
            [
                "The planned steps are used up: taken",
                taken,
                f"of {self.plan.steps}. Extend the plan (PrivateModel.extend_plan) to go on; epsilon "
                "then rises.",
            ],
        )
        with tf.control_dependencies([guard for guard in (fresh, budget) if guard is not None]):
            return [
                of_seeds,
                counter.assign(taken + 1),
                last_pass.assign(draw.number),
                last_step.assign(draw.step),
            ]

    @property
    def _epoch_length(self) -> int:
        return self.plan.guarantee(self.plan.unit).steps_per_event if self.plan else 1

    def _whole_epochs(self, taken: Any) -> Any:
        """Steps that count as taken once a pass over the data begins anew."""
        epoch = self._epoch_length
        return (taken + epoch - 1) // epoch * epoch

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets all variables, in the order of `variables`; counts of steps never go down."""
        self._check_count(len(weights))
        for variable, weight in zip(self.variables, weights, strict=True):
            self._restore(variable, weight)

    def save_own_variables(self, store: Any) -> None:
        for position, variable in enumerate(self.variables):
            store[str(position)] = compat.raw(variable).numpy()

    def load_own_variables(self, store: Any) -> None:
        self._check_count(len(store.keys()))
        for position, variable in enumerate(self.variables):
            self._restore(variable, store[str(position)][()])

    def _restore(self, variable: Any, value: Any) -> None:
        raw = compat.raw(variable)
        if variable is self.privacy_steps or variable is self.seeded_steps:
            # Steps that were taken since were released, whatever is loaded now.
            value = max(int(value), int(raw.numpy()))
        raw.assign(value)

    def _check_count(self, found: int) -> None:
        # Keras skips such a state with a warning; a lost step count would make epsilon too small.
        if found != len(self.variables):
            raise ValueError(
                f"the saved optimizer has {found} variables, this one has {len(self.variables)}: the "
                "step count that privacy depends on cannot be restored. Build the model and wrap the "
                "same inner optimizer before loading."
            )
