# SPDX-License-Identifier: Apache-2.0
"""What `fit` shows beside Keras's metrics: loss, share of clipped terms, signal to noise, epsilon.

A plain object, so that Keras does not mix these numbers, which exist in training alone, into
`evaluate`. All of them except epsilon look at the data and are not private.
"""

from typing import Any

import tensorflow as tf

# Points of the run at which epsilon is computed; in between the next one is shown, so never too low.
EPSILON_POINTS = 20


# Where the sums of an epoch are kept: first those of the means, each a sum and what it is divided by.
_MEANS = ("loss", "clipped", "signal_to_noise")
_STEPS, _NON_FINITE = 6, 7
# The norm of all sums is not taken at every step: for a small model it costs as much as the noise.
_SIGNAL_STRIDE = 8


class StepTrackers:
    """Running means of one epoch, and the count of non-finite gradients since the beginning.

    All sums are one variable, so that a step updates it once: a small model's step is short.
    """

    def __init__(self):
        self._sums = tf.Variable(tf.zeros([8], tf.float64), trainable=False)
        self._epsilons = tf.Variable(tf.zeros([EPSILON_POINTS]), trainable=False)
        self._stride = tf.Variable(1, dtype=tf.int64, trainable=False)
        self._shown = False
        # The losses of single outputs, whose names are known when the step is traced.
        self._output_sums: dict[str, tf.Variable] = {}

    def update(
        self, summed: Any, regularization: tf.Tensor, noise: float, outputs: dict[str, tf.Tensor]
    ) -> None:
        """Takes in one step.

        Args:
          summed: the step's `ClippedSum`.
          regularization: the weights' penalties.
          noise: standard deviation of the noise on each coordinate of the sum.
          outputs: [n] losses of single outputs, by name.
        """
        if set(outputs) != set(self._output_sums):
            with tf.init_scope():
                self._output_sums = {
                    name: tf.Variable(0.0, dtype=tf.float64, trainable=False) for name in outputs
                }
        for name, losses in outputs.items():
            self._output_sums[name].assign_add(tf.reduce_sum(tf.cast(losses, tf.float64)))
        rows = tf.cast(tf.size(summed.losses), tf.float32)
        size = float(sum(t.shape.num_elements() for t in summed.total))
        measured = tf.equal(tf.cast(self._sums[_STEPS], tf.int64) % _SIGNAL_STRIDE, 0)
        signal = tf.cond(
            measured, lambda: tf.linalg.global_norm(summed.total), lambda: tf.constant(0.0)
        )
        terms = [
            tf.reduce_sum(summed.losses) + rows * regularization,
            rows,
            summed.clipped,
            summed.groups,
            tf.math.divide_no_nan(signal, noise * size**0.5),
            tf.cast(measured, tf.float32),
            1.0,
            summed.non_finite,
        ]
        self._sums.assign_add(tf.cast(tf.stack(terms), tf.float64))

    def results(self, steps: tf.Tensor) -> dict[str, tf.Tensor]:
        """The numbers for the progress bar; `steps` is the private step count."""
        pairs = tf.reshape(tf.cast(self._sums[: 2 * len(_MEANS)], tf.float32), [-1, 2])
        means = tf.unstack(tf.math.divide_no_nan(pairs[:, 0], pairs[:, 1]))
        logs = dict(zip(_MEANS, means, strict=True))
        rows = self._sums[_MEANS.index("loss") * 2 + 1]
        for name, value in self._output_sums.items():
            logs[name] = tf.cast(tf.math.divide_no_nan(value, rows), tf.float32)
        if self._shown:
            point = (tf.identity(steps) + self._stride - 1) // self._stride - 1
            logs["epsilon"] = tf.gather(
                self._epsilons, tf.clip_by_value(point, 0, EPSILON_POINTS - 1)
            )
        return logs

    def show(self, wanted: bool) -> bool:
        """Says whether epsilon is among the results; returns whether that changed."""
        changed, self._shown = wanted != self._shown, wanted
        return changed

    def set_epsilons(self, stride: int, values: Any) -> None:
        """Sets epsilon after stride, 2 stride, ... steps: `EPSILON_POINTS` values."""
        self._stride.assign(stride)
        self._epsilons.assign(values)

    def total_non_finite(self) -> int:
        return int(self._sums.numpy()[_NON_FINITE])

    def reset(self) -> None:
        """Begins an epoch; the count of non-finite gradients goes on."""
        kept = self._sums.numpy()[_NON_FINITE]
        self._sums.assign([0.0] * _NON_FINITE + [kept])
        for value in self._output_sums.values():
            value.assign(0.0)
