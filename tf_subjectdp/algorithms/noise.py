# SPDX-License-Identifier: Apache-2.0
"""The one place where noise is made. Knows shapes and a standard deviation; imports `clipping`'s
fresh seeds alone."""

from collections.abc import Sequence

import tensorflow as tf

from tf_subjectdp.clipping import fresh_seed


def add_gaussian_noise(sums: Sequence[tf.Tensor], stddev: float | tf.Tensor) -> list[tf.Tensor]:
    """Adds independent N(0, stddev^2) to every entry of every tensor.

    The draws are counter-based (Philox), with a fresh 128-bit key for each tensor (`fresh_seed`): no
    seed, checkpoint, replica or restart repeats them. They are made in float64, because
    the Box-Muller transform in float32 cuts the tail near 5.7 standard deviations, and only then
    rounded to float32.

    Args:
      sums: float32 tensors; entries that no row of the batch touched get their noise as well.
      stddev: standard deviation, in the unit of `sums`; 0 adds nothing.

    Returns:
      float32 tensors shaped as `sums`.
    """
    stddev = tf.cast(stddev, tf.float64)
    noised = []
    for total in sums:
        # A key of its own for each tensor: `stateless_fold_in` would keep no more than 32 bits of
        # a common one, few enough to be searched and to repeat within a long run.
        draw = tf.random.stateless_normal(
            tf.shape(total), fresh_seed(), dtype=tf.float64, alg="philox"
        )
        noised.append(total + tf.cast(stddev * draw, tf.float32))
    return noised
