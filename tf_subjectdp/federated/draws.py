# SPDX-License-Identifier: Apache-2.0
"""Who is in a silo's local step, drawn inside the silo's computation.

Knows rows, the subject of each, and public constants; TensorFlow alone. `sampling.samplers` draws the
same laws in NumPy, where Python is at hand.
"""

import tensorflow as tf

from tf_subjectdp.clipping import random_subset
from tf_subjectdp.sampling import FixedSize, PoissonElements, PoissonItems, PoissonSubjects

# Keys have 63 bits, so that they are numbers of int64 that are never negative.
_KEYS = 2**63
# A bound that bounds nothing: there are no more rows.
_LARGEST_INT32 = 2**31 - 1


def bound_items(subject: tf.Tensor, most: tf.Tensor) -> tf.Tensor:
    """At most `most` rows of each subject, chosen at random: the rows that stay, int64 [m] ascending.

    Args:
      subject: int64 [n], the subject of each row, from 0.
      most: int32 [], at least 1.
    """
    kept = random_subset(tf.cast(subject, tf.int32), most)
    return tf.where(kept >= 0)[:, 0]


def number_pairs(subject: tf.Tensor, element: tf.Tensor) -> tf.Tensor:
    """Numbers the (subject, element) pairs of rows.

    Args:
      subject, element: int64 [n], any numbers.

    Returns:
      int64 [n], from 0, in the order of the pairs' first rows.
    """
    _, subjects = tf.unique(subject, out_idx=tf.int64)
    _, elements = tf.unique(element, out_idx=tf.int64)
    _, pairs = tf.unique(
        subjects * tf.size(element, out_type=tf.int64) + elements, out_idx=tf.int64
    )
    return pairs


def bound_elements(
    subject: tf.Tensor, pair: tf.Tensor, max_elements: int | None, max_items: int | None
) -> tf.Tensor:
    """At most so many elements of each subject, and so many rows of each of these.

    Which ones stay is uniform and depends on no contents: an element that appears displaces at most one
    other, and a row at most one of its own element.

    Args:
      subject, pair: int64 [n], numbers from 0; rows of one pair have one subject.
      max_elements: most elements of a subject; None for any number.
      max_items: most rows of a pair; None for any number.

    Returns:
      The rows that stay, int64 [m] ascending.
    """
    stays = tf.ones_like(subject, tf.bool)
    if max_elements is not None:
        count = tf.reduce_max(tf.concat([pair, [-1]], 0)) + 1
        owners = tf.math.unsorted_segment_max(subject, pair, count)
        kept = random_subset(tf.cast(owners, tf.int32), min(max_elements, _LARGEST_INT32)) >= 0
        stays = tf.gather(kept, pair)
    if max_items is not None:
        kept = random_subset(tf.cast(pair, tf.int32), min(max_items, _LARGEST_INT32)) >= 0
        stays = stays & kept
    return tf.where(stays)[:, 0]


def largest_group(group: tf.Tensor) -> tf.Tensor:
    """The most rows that a group has, int64 []; 0 without rows. `group` is int64 [n], from 0."""
    count = tf.reduce_max(tf.concat([group, [-1]], 0)) + 1
    sizes = tf.math.unsorted_segment_sum(tf.ones_like(group), group, count)
    return tf.reduce_max(tf.concat([sizes, [0]], 0))


def rows_of_step(
    kind: type,
    rate: tf.Tensor,
    size: tf.Tensor,
    step_cap: tf.Tensor,
    subject: tf.Tensor,
    seed: tf.Tensor,
    pair: tf.Tensor | None = None,
) -> tf.Tensor:
    """The rows of one step.

    Args:
      kind: `PoissonItems`, `PoissonSubjects`, `PoissonElements` or `FixedSize`.
      rate: float64 [], the probability of an item, of a subject, or of an element of a subject.
      size: int64 [], the rows of a batch of a fixed size.
      step_cap: int32 [], the most rows that a sampled subject brings.
      subject: int64 [n], as above.
      seed: int64 [2], secret, and used for nothing else.
      pair: int64 [n], the element of a subject that each row belongs to, from 0; for
        `PoissonElements`.

    Returns:
      int64 [m], ascending for the Poisson samplings.
    """
    rows = tf.shape(subject)[0]
    if kind is FixedSize:
        order = tf.argsort(_keys(rows, seed))
        return tf.cast(order[: tf.cast(size, tf.int32)], tf.int64)
    if kind is PoissonItems:
        return tf.where(_coins(rows, rate, seed))[:, 0]
    if kind is PoissonElements and pair is not None:
        return _rows_of_drawn(pair, rate, seed)
    if kind is not PoissonSubjects:
        raise ValueError(f"{kind.__name__} is not drawn in silos.")
    drawn = _rows_of_drawn(subject, rate, seed)
    return tf.gather(drawn, bound_items(tf.gather(subject, drawn), step_cap))


def _rows_of_drawn(owner: tf.Tensor, rate: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """All rows of the owners that were drawn; every owner has a coin of its own."""
    owners = tf.cast(tf.reduce_max(tf.concat([owner, [-1]], 0)) + 1, tf.int32)
    return tf.where(tf.gather(_coins(owners, rate, seed), owner))[:, 0]


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
