# SPDX-License-Identifier: Apache-2.0
"""Updates of parts of a batch that go through the model as a whole: several optimizer steps, or one
gradient of a model that mixes the rows of a part (BatchNormalization).

Every part starts from the step's weights, statistics and a new optimizer, all of which are put back
when it is done: nothing of a part stays but its update, which is clipped. So what happens inside a
part may be anything.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp.clipping import loop, norms
from tf_subjectdp.clipping.partition import BatchPartition
from tf_subjectdp.clipping.variables import raw

# A part goes through the model in one piece. (Added to a row's number it must stay an int32.)
_ALL_ROWS = 2**30


class PartUpdates:
    """How a part's update is computed: an engine of its own for GROUPED rules.

    Args:
      variables: what is trained, Keras variables.
      optimizer: a Keras optimizer of its own, which is run on each part; None for the gradient of the
        part's mean loss.
      steps: steps on the whole part's mean loss; None for one step on each of its rows in turn.
      statistics: variables that a pass of the model writes to (moving means and variances); their change
        is a part of the update.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        *,
        optimizer: Any = None,
        steps: int | None = 1,
        statistics: Sequence[Any] = (),
    ):
        self.variables = list(variables)
        self.statistics = list(statistics)
        self._optimizer, self._steps = optimizer, steps
        self._kept: list[tuple[Any, Any]] = []
        self._moved = [raw(v) for v in [*self.variables, *self.statistics]]
        with tf.init_scope():
            # What the weights were before the step, for a step that ends in the middle of a part.
            self._safe = [tf.Variable(v, trainable=False) for v in self._moved]
            self._inside = tf.Variable(False, trainable=False)
        if optimizer is not None:
            with tf.init_scope():
                optimizer.build(self.variables)
                state = optimizer.variables
                state = [raw(v) for v in (state() if callable(state) else state)]
                known = {id(v) for v in state} | {id(raw(v)) for v in self.variables}
                # Nadam keeps a variable that its `variables` does not tell of.
                state += [v for v in _found(vars(optimizer)) if id(v) not in known]
                self._kept = [(v, v.numpy()) for v in state]

    def clipped_sum(
        self,
        row_function: Callable,
        variables: Sequence[tf.Variable],
        rows: Any,
        index: tf.Tensor,
        partition: BatchPartition,
        clip_norm: float,
        options: Any,
        buffers: list[tf.TensorArray],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor]:
        """Arguments and results as in `vectorized.clipped_sum`; the sums of `statistics` come last.

        An update is (before - after), in units of `partition.item_scale` times the part's size: a scale
        of 1 / size is the update itself, half of that is half of it.
        """
        del options
        moved = [raw(v) for v in variables] + [raw(v) for v in self.statistics]

        with tf.control_dependencies(self._begin()):
            index = tf.identity(index)

        def update_of(start, stop):
            picked = index[start:stop]
            part = tf.nest.map_structure(lambda t: tf.gather(t, picked), rows)
            before = [tf.identity(v) for v in moved]
            for variable, value in self._kept:
                variable.assign(value)
            size = tf.cast(stop - start, tf.float32)
            if self._optimizer is None:
                gradients, outputs = self._gradient(row_function, variables, part)
                changes = [b - v for b, v in zip(before, moved, strict=True)][len(variables) :]
                update = [*gradients, *norms.as_float32(changes, moved[len(variables) :])]
            else:
                outputs = self._run(row_function, variables, part)
                changes = [b - v for b, v in zip(before, moved, strict=True)]
                update = norms.as_float32(changes, moved)
            # Nothing is put back before it was read.
            with tf.control_dependencies([*update, *outputs]):
                for variable, value in zip(moved, before, strict=True):
                    variable.assign(value)
            scale = partition.item_scale[start] * size
            return [scale * part for part in update], tf.constant(0.0), outputs

        result = loop.sum_of_terms(update_of, moved, partition, clip_norm, _ALL_ROWS, buffers)
        with tf.control_dependencies(tf.nest.flatten(result)):
            for variable, value in self._kept:
                variable.assign(value)
            self._inside.assign(False)
        return result

    def _begin(self) -> list[Any]:
        """Notes the weights; what the parts wait for. Refuses while another step is inside a part."""
        guard = tf.debugging.Assert(
            tf.logical_not(self._inside),
            [
                "Another thread's step is inside a part, or an error ended one there: the weights are "
                "un-noised. Train in one thread; after an error call optimizer.restore_weights()."
            ],
        )
        with tf.control_dependencies([] if guard is None else [guard]):
            noted = [self._inside.assign(True)]
        with tf.control_dependencies(noted):
            return [
                safe.assign(variable)
                for safe, variable in zip(self._safe, self._moved, strict=True)
            ]

    def restore(self) -> None:
        """After an error: the weights of before the step that it ended; eager."""
        if bool(self._inside.numpy()):
            for safe, variable in zip(self._safe, self._moved, strict=True):
                variable.assign(safe)
            self._inside.assign(False)

    def _gradient(self, row_function, variables, part):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            losses, predictions = row_function(part)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        return norms.as_float32(gradients, variables), tf.nest.flatten((losses, predictions))

    def _step(self, row_function, variables, part):
        gradients, outputs = self._gradient(row_function, variables, part)
        gradients = [tf.cast(g, v.dtype) for g, v in zip(gradients, variables, strict=True)]
        self._optimizer.apply_gradients(list(zip(gradients, self.variables, strict=True)))
        return outputs

    def _run(self, row_function, variables, part):
        """Takes the steps; the outputs are those that every row had when it was first used."""
        if self._steps is None:
            return self._row_by_row(row_function, variables, part)
        outputs = self._step(row_function, variables, part)

        def body(number):
            self._step(row_function, variables, part)
            return (number + 1,)

        if self._steps > 1:
            tf.while_loop(
                lambda number: number < self._steps,
                body,
                (tf.constant(1),),
                parallel_iterations=1,
            )
        return outputs

    def _row_by_row(self, row_function, variables, part):
        count = tf.shape(tf.nest.flatten(part)[0])[0]

        def row(number):
            one = tf.nest.map_structure(lambda t: t[number : number + 1], part)
            return self._step(row_function, variables, one)

        first = row(0)
        arrays = [
            tf.TensorArray(
                o.dtype, 0, dynamic_size=True, infer_shape=False, element_shape=[1, *o.shape[1:]]
            ).write(0, o)
            for o in first
        ]

        def body(number, arrays):
            arrays = [a.write(number, o) for a, o in zip(arrays, row(number), strict=True)]
            return number + 1, arrays

        _, arrays = tf.while_loop(
            lambda number, _: number < count,
            body,
            (tf.constant(1), arrays),
            parallel_iterations=1,
        )
        return [array.concat() for array in arrays]


def _found(value: Any) -> list[tf.Variable]:
    """The variables in an optimizer's attributes, each once."""
    if isinstance(value, tf.Variable):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        return []
    found = {id(v): v for item in value for v in _found(item)}
    return list(found.values())
