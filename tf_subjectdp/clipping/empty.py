# SPDX-License-Identifier: Apache-2.0
"""Batches without rows: they go through the model as one row of zeros, so that shapes are as ever."""

from typing import Any

import tensorflow as tf


def padded_if_empty(rows: Any, vectors: tuple[tf.Tensor, ...]) -> tuple[Any, Any]:
    """Gives tensors without rows one row of zeros; others pass unchanged, and are not copied."""
    parts = (rows, vectors)
    flat = tf.nest.flatten(parts)
    if any(t.shape[0] for t in flat):
        return parts

    def one_row():
        return [tf.zeros(tf.concat([[1], tf.shape(t)[1:]], 0), t.dtype) for t in flat]

    found = tf.cond(tf.equal(tf.shape(vectors[0])[0], 0), one_row, lambda: flat)
    for tensor, given in zip(found, flat, strict=True):
        tensor.set_shape([None, *given.shape[1:]])
    return tf.nest.pack_sequence_as(parts, found)
