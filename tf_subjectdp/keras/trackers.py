# SPDX-License-Identifier: Apache-2.0
"""What `fit` shows beside Keras's metrics: loss, share of clipped terms, signal to noise, epsilon.

Knows Keras metrics only. A plain object, so that Keras does not mix these numbers, which exist in
training alone, into `evaluate`. All of them except epsilon look at the data and are not private.
"""

from typing import Any

import tensorflow as tf

# Points of the run at which epsilon is computed; in between the next one is shown, so never too low.
EPSILON_POINTS = 20

# The names of what is shown.
NAMES = ("loss", "clipped", "signal_to_noise", "epsilon")


class StepTrackers:
    """Running means of one epoch, and the count of non-finite gradients since the beginning."""

    def __init__(self):
        self._loss = tf.keras.metrics.Mean("loss")
        self._clipped = tf.keras.metrics.Mean("clipped")
        self._signal = tf.keras.metrics.Mean("signal_to_noise")
        self._non_finite = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self._epsilons = tf.Variable(tf.zeros([EPSILON_POINTS]), trainable=False)
        self._stride = tf.Variable(1, dtype=tf.int64, trainable=False)
        self._shown = False

    def update(self, summed: Any, regularization: tf.Tensor, noise: float) -> None:
        """Takes in one step.

        Args:
          summed: the step's `ClippedSum`.
          regularization: the weights' penalties.
          noise: standard deviation of the noise on each coordinate of the sum.
        """
        self._loss.update_state(summed.losses + regularization)
        self._clipped.update_state(
            tf.math.divide_no_nan(summed.clipped, summed.groups), sample_weight=summed.groups
        )
        size = float(sum(t.shape.num_elements() for t in summed.total))
        signal = tf.linalg.global_norm(summed.total)
        self._signal.update_state(tf.math.divide_no_nan(signal, noise * size**0.5))
        self._non_finite.assign_add(tf.cast(summed.non_finite, tf.float64))

    def results(self, steps: tf.Tensor) -> dict[str, tf.Tensor]:
        """The numbers for the progress bar; `steps` is the private step count."""
        logs = {
            "loss": self._loss.result(),
            "clipped": self._clipped.result(),
            "signal_to_noise": self._signal.result(),
        }
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
        return int(self._non_finite.numpy())

    def reset(self) -> None:
        for metric in (self._loss, self._clipped, self._signal):
            metric.reset_state()
