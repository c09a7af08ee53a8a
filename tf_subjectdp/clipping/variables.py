# SPDX-License-Identifier: Apache-2.0
"""The TensorFlow variable behind whatever a model keeps its weights in."""

from typing import Any

import tensorflow as tf


def raw(variable: Any) -> tf.Variable:
    """The TensorFlow variable behind a Keras variable (Keras 3), or the variable itself."""
    if isinstance(variable, tf.Variable):
        return variable
    # Under mixed precision Keras 3's `value` is a cast copy; `_value` is the variable always.
    for name in ("_value", "value"):
        inner = getattr(variable, name, None)
        if isinstance(inner, tf.Variable):
            return inner
    return variable
