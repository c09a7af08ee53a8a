# SPDX-License-Identifier: Apache-2.0
"""Norms and clip factors in float32, whatever the gradients are made of.

Knows lists of tensors that share a leading axis; imports TensorFlow alone.
"""

from collections.abc import Sequence

import tensorflow as tf


def as_float32(
    gradients: Sequence[tf.Tensor | tf.IndexedSlices], variables: Sequence[tf.Variable]
) -> list[tf.Tensor]:
    """Densifies sparse gradients (repeated indices are summed) and casts all to float32.

    Args:
      gradients: one a variable.
      variables: give the shapes, which TensorFlow does not always infer (einsum).
    """
    dense = [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients]
    return [tf.reshape(g, v.shape) for g, v in zip(dense, variables, strict=True)]


def row_norms(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """L2 norm of every row over a list of tensors.

    Args:
      gradients: float32 tensors [n, ...], one a variable.

    Returns:
      float32 [n]. A row with a NaN or an infinity has a norm that is not finite. A finite row whose
      squares overflow float32 (entries above 1e19) still has its true norm, unless that overflows
      itself (3.4e38): then it is infinite.
    """
    flat = [tf.reshape(g, [tf.shape(g)[0], g.shape[1:].num_elements()]) for g in gradients]

    def direct():
        # Row times itself as a matrix product: no temporary of the gradients' size.
        squares = [tf.linalg.matvec(g[:, tf.newaxis, :], g)[:, 0] for g in flat]
        return tf.sqrt(tf.add_n(squares))

    def scaled():
        largest = tf.reduce_max(tf.stack([_max_abs(g) for g in flat]), axis=0)
        unit = tf.where(largest > 0, largest, 1.0)[:, tf.newaxis]
        squares = [tf.reduce_sum(tf.square(g / unit), axis=1) for g in flat]
        return unit[:, 0] * tf.sqrt(tf.add_n(squares))

    norms = direct()
    return tf.cond(tf.reduce_all(tf.math.is_finite(norms)), lambda: norms, scaled)


def _max_abs(matrix: tf.Tensor) -> tf.Tensor:
    # A zero column, so that a variable without elements has the maximum 0 instead of -inf.
    return tf.reduce_max(tf.pad(tf.abs(matrix), [[0, 0], [0, 1]]), axis=1)


def zero_rows(gradients: Sequence[tf.Tensor], keep: tf.Tensor) -> list[tf.Tensor]:
    """Replaces the rows where `keep` (bool [n]) is False by zeros, NaN and infinity included."""

    def zeroed():
        return [
            tf.where(tf.reshape(keep, [-1] + [1] * (len(g.shape) - 1)), g, tf.zeros_like(g))
            for g in gradients
        ]

    # Nearly always nothing is to be replaced, and the gradients need not be copied.
    return tf.cond(tf.reduce_all(keep), lambda: list(gradients), zeroed)


def clip_factors(norms: tf.Tensor, clip_norm: float) -> tf.Tensor:
    """Factors that scale vectors of these norms down to `clip_norm`: min(1, clip_norm / norm).

    Args:
      norms: float32 [n], finite.
      clip_norm: the bound, positive.

    Returns:
      float32 [n] in (0, 1]; 1 for a norm of 0.
    """
    return clip_norm / tf.maximum(norms, clip_norm)


def weighted_sum(gradients: Sequence[tf.Tensor], weights: tf.Tensor) -> list[tf.Tensor]:
    """Sums the rows with weights: [n, ...] and float32 [n] -> a list of [...]."""
    return [tf.tensordot(weights, g, axes=1) for g in gradients]
