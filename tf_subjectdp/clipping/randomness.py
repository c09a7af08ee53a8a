# SPDX-License-Identifier: Apache-2.0
"""Seeds that no `tf.random.set_seed`, checkpoint, replica or restart can make repeat."""

import os

import numpy as np
import tensorflow as tf


def fresh_seed() -> tf.Tensor:
    """Returns an int64 [2] seed that is new each time the op runs.

    `tf.random.set_seed` fixes every stateful random op of TensorFlow, and a `tf.random.Generator`
    saved in a checkpoint draws the same numbers after each restore. Either would repeat the noise
    of a private step, and two outputs with the same noise reveal the difference of their inputs.
    `NonDeterministicInts` ignores all seeds, in eager mode and in a `tf.function` alike, and gives
    new numbers at every run. But TensorFlow takes them from one generator a process that it seeds
    with 32 bits of the operating system, few enough to be searched and to meet by chance among many
    silos. So they are combined with 128 bits that the operating system gives to each trace (in
    eager mode, to each call).
    """
    of_this_run = tf.raw_ops.NonDeterministicInts(shape=tf.constant([2], tf.int64), dtype=tf.int64)
    of_this_trace = tf.constant(np.frombuffer(os.urandom(16), np.int64), tf.int64)
    return tf.bitwise.bitwise_xor(of_this_run, of_this_trace)
