# SPDX-License-Identifier: Apache-2.0
"""The weights' own penalties (L1, L2): free of data, so outside the clipping, once a step."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp.keras import compat


def weight_penalties(
    model: Any, variables: Sequence[Any]
) -> tuple[tf.Tensor, list[tf.Tensor] | None]:
    """The sum of a model's penalties (float32 scalar) and its gradients, None if there are none."""
    tensors = [compat.raw(v) for v in variables]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(tensors)
        losses = [tf.cast(loss, tf.float32) for loss in model.losses]
        if not losses:
            return tf.constant(0.0), None
        total = tf.add_n(losses)
    gradients = tape.gradient(total, tensors, unconnected_gradients="zero")
    return total, [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients]
