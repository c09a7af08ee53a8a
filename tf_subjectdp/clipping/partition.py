# SPDX-License-Identifier: Apache-2.0
"""How the rows of a batch form the clipped terms of a step: the language of every algorithm.

Every step of this library is

    sum over groups a of  group_scale[a] * clip( sum over rows i in a of item_scale[i] * g_i )

where g_i is the gradient of row i's loss and clip scales a vector down to norm `clip_norm`. An
algorithm is the choice of the three vectors, a `BatchPartition`. If every group is one row the rule
is LINEAR (the weights follow from the norms |g_i|); otherwise it is GROUPED (they follow from the
norms of the groups' sums).
"""

from typing import NamedTuple

import tensorflow as tf

from tf_subjectdp.noise import fresh_seed


class BatchPartition(NamedTuple):
    """The clipped terms of one batch of B rows.

    Attributes:
      group: int32 [B], the group of each row, in [0, B); -1 for a row that takes no part.
      item_scale: float32 [B], multiplies the row's gradient before the clipping.
      group_scale: float32 [B], indexed by group, multiplies the group's clipped sum.
      linear: whether every group is a single row and all `item_scale` are 1.
    """

    group: tf.Tensor
    item_scale: tf.Tensor
    group_scale: tf.Tensor
    linear: bool


def item_terms(mask: tf.Tensor) -> BatchPartition:
    """Every unmasked row is a term of weight 1 (LINEAR): bool [B] to a partition."""
    ones = tf.ones_like(mask, tf.float32)
    return BatchPartition(tf.where(mask, tf.range(tf.size(mask)), -1), ones, ones, linear=True)


def subject_mean_terms(subject: tf.Tensor, mask: tf.Tensor) -> BatchPartition:
    """The mean over each subject's unmasked rows is a term (GROUPED); `subject` as below."""
    index = subject_index(subject, mask)
    ones = tf.ones_like(index, tf.float32)
    return BatchPartition(index, 1.0 / sizes_of_rows(index), ones, linear=False)


def element_mean_terms(subject: tf.Tensor, element: tf.Tensor, mask: tf.Tensor) -> BatchPartition:
    """The mean over each (subject, element) pair's unmasked rows is a term (GROUPED).

    Args:
      subject: integer or string [B], the subject of each row.
      element: integer or string [B], the element of each row; two subjects' elements of one name are
        two terms.
      mask: bool [B], False for padding rows.
    """
    _, subjects = tf.unique(subject, out_idx=tf.int64)
    _, elements = tf.unique(element, out_idx=tf.int64)
    pairs = subjects * tf.size(element, out_type=tf.int64) + elements
    return subject_mean_terms(pairs, mask)


def random_part_mean_terms(mask: tf.Tensor, parts: int) -> BatchPartition:
    """Each unmasked row joins one of `parts` parts; the mean over a part's rows is a term (GROUPED).

    Every row has a draw of its own, uniform and fresh at every call: one row more or less does not
    move the others, as slicing the batch by position would.

    Args:
      mask: bool [B].
      parts: m, at least 1.
    """
    if parts == 1:
        return batch_mean_term(mask)
    # Of 64 bits, so that no part is likelier than another by more than parts / 2^64.
    part = tf.random.stateless_uniform(
        tf.shape(mask), fresh_seed(), minval=0, maxval=parts, dtype=tf.int64, alg="philox"
    )
    return subject_mean_terms(part, mask)


def batch_mean_term(mask: tf.Tensor) -> BatchPartition:
    """The mean over all unmasked rows is the one term (GROUPED): bool [B] to a partition."""
    present = tf.maximum(tf.reduce_sum(tf.cast(mask, tf.float32)), 1.0)
    ones = tf.ones_like(mask, tf.float32)
    return BatchPartition(tf.where(mask, 0, -1), ones / present, ones, linear=False)


def subject_index(subject: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Numbers the subjects of a batch densely.

    Args:
      subject: integer or string [B], the subject of each row.
      mask: bool [B], False for padding rows.

    Returns:
      int32 [B] with values in [0, B); -1 where `mask` is False.
    """
    _, index = tf.unique(subject)
    return tf.where(mask, index, -1)


def group_sizes(index: tf.Tensor) -> tf.Tensor:
    """Counts the rows of each group: int32 [B] -> float32 [B], indexed by group (0 if unused)."""
    ones = tf.ones_like(index, dtype=tf.float32)
    # Rows with index -1 are dropped by unsorted_segment_sum.
    return tf.math.unsorted_segment_sum(ones, index, tf.size(index))


def sizes_of_rows(index: tf.Tensor) -> tf.Tensor:
    """The size of each row's own group: int32 [B] -> float32 [B]; 1 for rows without a group."""
    sizes = tf.gather(group_sizes(index), tf.maximum(index, 0))
    return tf.where(index >= 0, sizes, 1.0)


def random_subset(index: tf.Tensor, limit: int) -> tf.Tensor:
    """Keeps at most `limit` rows of each group, chosen uniformly and afresh at every call.

    Args:
      index: int32 [B], group of each row, -1 for none.
      limit: how many rows a group may keep, at least 1.

    Returns:
      int32 [B]: `index` with -1 for the rows that were dropped.
    """
    rows = tf.size(index)
    keys = tf.random.stateless_uniform(
        [rows], fresh_seed(), minval=None, maxval=None, dtype=tf.int64, alg="philox"
    )
    shuffled = tf.argsort(keys)
    # A stable sort by group of an already shuffled order: random inside every group.
    order = tf.gather(shuffled, tf.argsort(tf.gather(index, shuffled), stable=True))
    ordered = tf.gather(index, order)
    rank = tf.range(rows) - tf.searchsorted(ordered, ordered, side="left")
    kept = tf.where(rank < limit, ordered, -1)
    return tf.tensor_scatter_nd_update(tf.fill([rows], -1), order[:, tf.newaxis], kept)
