# SPDX-License-Identifier: Apache-2.0
"""Who is in a silo's local step, drawn inside the silo's computation.

Knows rows, the subject of each, and public constants; TensorFlow alone. `sampling.samplers` draws the
same laws in NumPy, where Python is at hand.
"""

import tensorflow as tf

from tf_subjectdp.clipping import random_subset
from tf_subjectdp.sampling import FixedSize, PoissonItems, PoissonSubjects

# Keys have 63 bits, so that they are numbers of int64 that are never negative.
_KEYS = 2**63


def bound_items(subject: tf.Tensor, most: tf.Tensor) -> tf.Tensor:
    """At most `most` rows of each subject, chosen at random: the rows that stay, int64 [m] ascending.

    Args:
      subject: int64 [n], the subject of each row, from 0.
      most: int32 [], at least 1.
    """
    kept = random_subset(tf.cast(subject, tf.int32), most)
    return tf.where(kept >= 0)[:, 0]


def rows_of_step(
    kind: type, rate: tf.Tensor, size: tf.Tensor, step_cap: tf.Tensor, subject: tf.Tensor, seed
) -> tf.Tensor:
    """The rows of one step.

    Args:
      kind: `PoissonItems`, `PoissonSubjects` or `FixedSize`.
      rate: float64 [], the probability of an item, or of a subject.
      size: int64 [], the rows of a batch of a fixed size.
      step_cap: int32 [], the most rows that a sampled subject brings.
      subject: int64 [n], as above.
      seed: int64 [2], secret, and used for nothing else.

    Returns:
      int64 [m], ascending for the Poisson samplings.
    """
    rows = tf.shape(subject)[0]
    if kind is FixedSize:
        order = tf.argsort(_keys(rows, seed))
        return tf.cast(order[: tf.cast(size, tf.int32)], tf.int64)
    if kind is PoissonItems:
        return tf.where(_coins(rows, rate, seed))[:, 0]
    if kind is not PoissonSubjects:
        raise ValueError(f"{kind.__name__} is not drawn in silos.")
    people = tf.cast(tf.reduce_max(tf.concat([subject, [-1]], 0)) + 1, tf.int32)
    drawn = tf.where(tf.gather(_coins(people, rate, seed), subject))[:, 0]
    return tf.gather(drawn, bound_items(tf.gather(subject, drawn), step_cap))


def _keys(count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Uniform int64 numbers from 0 to 2^63 - 1."""
    bits = tf.random.stateless_uniform(
        [count], seed, minval=None, maxval=None, dtype=tf.int64, alg="philox"
    )
    return tf.bitwise.bitwise_and(bits, tf.constant(_KEYS - 1, tf.int64))


def _coins(count: tf.Tensor, rate: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Independent coins: True with probability `rate`, rounded down to a multiple of 2^-63."""
    # float64 has 53 bits, so the product is exact, and 2^63 itself is no int64.
    bound = tf.cast(tf.minimum(rate * float(_KEYS), float(_KEYS - 1024)), tf.int64)
    return (_keys(count, seed) < bound) | (rate >= 1.0)
