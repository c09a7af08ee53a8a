# SPDX-License-Identifier: Apache-2.0
"""Seeds of a silo, from the operating system of the machine on which the silo computes.

Knows `clipping.fresh_seed` and a file. A federated computation is traced once, by whoever builds it, and
runs in other processes: a constant of the trace is the same in every silo and known to the server, and
TensorFlow's own entropy is 32 bits a process. Linux hands out 122 fresh random bits at each reading of
a file, which a graph can do anywhere.
"""

import os

import tensorflow as tf

from tf_subjectdp.clipping import fresh_seed

#: 122 random bits as text, others at each reading (random(4), Linux).
KERNEL_UUID = "/proc/sys/kernel/random/uuid"
# A UUID has 36 characters, of which four are dashes.
_DASHES = (8, 13, 18, 23)
_DIGITS = tuple(place for place in range(36) if place not in _DASHES)


def kernel_entropy_is_there() -> bool:
    """Whether this machine has the file; silos are taken to be machines of the same kind."""
    return os.path.exists(KERNEL_UUID)


def silo_seed(kernel: bool) -> tf.Tensor:
    """int64 [2], new at each run of the op, in every silo.

    Args:
      kernel: whether the silos' machines have `KERNEL_UUID`. Without it the seed has no more than the
        32 bits that TensorFlow takes from the operating system in each process, beside 128 bits that
        whoever built the computation knows.
    """
    seed = fresh_seed()
    if not kernel:
        return seed
    # Two readings, so that every one of the 128 bits is random: six of each UUID are fixed.
    first, second = _kernel_words(), tf.roll(_kernel_words(), 1, axis=0)
    return tf.bitwise.bitwise_xor(seed, tf.bitwise.bitwise_xor(first, second))


def _kernel_words() -> tf.Tensor:
    """int64 [2] from one reading."""
    # A data set, since tf.io.read_file believes the file's size, which is said to be 0.
    line = tf.data.TextLineDataset(KERNEL_UUID).take(1).get_single_element()
    characters = tf.ensure_shape(tf.io.decode_raw(line, tf.uint8), [36])
    digits = tf.cast(tf.gather(characters, _DIGITS), tf.int64)
    nibbles = tf.reshape(tf.where(digits < 58, digits - 48, digits - 87), [2, 16])
    shifts = tf.range(0, 64, 4, dtype=tf.int64)
    return tf.reduce_sum(tf.bitwise.left_shift(nibbles, shifts), axis=1)
