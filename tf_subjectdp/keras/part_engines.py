# SPDX-License-Identifier: Apache-2.0
"""What a rule over parts of a batch needs beside gradients: engines of its own, and the step's clip norm.

Knows an algorithm's `inner` and `clip_schedule`; imports `clipping` and `compat`.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp.algorithms import Algorithm
from tf_subjectdp.clipping import PartUpdates
from tf_subjectdp.keras import compat


def clip_factor(algorithm: Algorithm, step: Any) -> tf.Tensor | None:
    """The factor of the clip norm in a step.

    Args:
      algorithm: the rule.
      step: int64 scalar, the number of steps before this one.

    Returns:
      float32 scalar; None if the clip norm never changes.
    """
    schedule = algorithm.clip_schedule
    if schedule is None:
        return None
    number = tf.identity(compat.raw(step)) // schedule.steps_per_factor
    number = tf.minimum(number, len(schedule.factors) - 1)
    return tf.gather(tf.constant(schedule.factors, tf.float32), number)


class Statistics:
    """The moving statistics that a model's pass writes to. A plain object: Keras 3 tracks lists of
    variables as a layer's own, and refuses new ones.

    Attributes:
      written: pairs as of `compat.batch_statistics`.
    """

    def __init__(self):
        self.written: list[tuple[Any, float | None]] = []


class PartEngines:
    """The engines for parts, one a set of variables; no checkpoint looks into it."""

    def __init__(self):
        self._made: dict[tuple[int, ...], PartUpdates] = {}

    def restore(self) -> None:
        """Puts weights back that a step left inside a part, un-noised, when an error ended it."""
        for made in self._made.values():
            made.restore()

    def engine(
        self, inner: Any, variables: Sequence[Any], statistics: Sequence[Any]
    ) -> PartUpdates | None:
        """The engine for parts that go through the model as a whole; None where gradients will do.

        Args:
          inner: an `InnerOptimizer`, or None for the gradient of the part's mean loss.
          variables: what is trained.
          statistics: as `compat.batch_statistics` returns them.
        """
        if inner is None and not statistics:
            return None
        moved = [*variables, *(variable for variable, _ in statistics)]
        key = (len(variables), *(id(compat.raw(v)) for v in moved))
        if key not in self._made:
            with tf.init_scope():
                optimizer = None if inner is None else inner.make()
            steps = 1 if inner is None else inner.steps
            self._made[key] = PartUpdates(
                variables,
                optimizer=optimizer,
                steps=steps if isinstance(steps, int) else None,
                statistics=[variable for variable, _ in statistics],
            )
        return self._made[key]
