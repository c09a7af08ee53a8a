# SPDX-License-Identifier: Apache-2.0
"""Seeds that no `tf.random.set_seed`, checkpoint, replica or restart can make repeat."""

import tensorflow as tf


def fresh_seed() -> tf.Tensor:
    """Returns an int64 [2] seed read from the operating system each time the op runs.

    `tf.random.set_seed` fixes every stateful random op of TensorFlow, and a `tf.random.Generator`
    saved in a checkpoint draws the same numbers after each restore. Either would repeat the noise
    of a private step, and two outputs with the same noise reveal the difference of their inputs.
    This op has no state and ignores all seeds, in eager mode and in a `tf.function` alike.
    """
    return tf.raw_ops.NonDeterministicInts(shape=tf.constant([2], tf.int64), dtype=tf.int64)
