# SPDX-License-Identifier: Apache-2.0
"""From the uses of the weights to norms, clip factors and the weighted sum of a chunk of rows.

Knows uses and a partition; imports `passes`, `groups`, `uses`, `norms` and `partition`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp.clipping import norms
from tf_subjectdp.clipping.norm_only.groups import Groups
from tf_subjectdp.clipping.norm_only.passes import Pass, as_written
from tf_subjectdp.clipping.norm_only.record import identity_of
from tf_subjectdp.clipping.norm_only.uses import Use, as_matrix, zeroed
from tf_subjectdp.clipping.partition import BatchPartition


def rarely(branch: Callable[[], Any]) -> Callable[[], Any]:
    """A branch of `tf.cond` that stays a function of its own.

    TensorFlow's executor goes through every node of a branch that is not taken: for a small model that
    takes longer than its forward pass. A function is one node. Eagerly it is just called.
    """
    if tf.executing_eagerly():
        return branch
    return tf.function(branch, autograph=False, experimental_attributes={"_noinline": True})


@as_written
def sum_of_chunk(
    passed: Pass,
    variables: Sequence[tf.Variable],
    partition: BatchPartition,
    clip_norm: float,
    *,
    in_order: bool,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Norms, factors and the weighted sum of one chunk of rows.

    Returns:
      The sums; and float32 [3]: groups clipped, groups in all, rows that were not finite. Such a row
      counts as zero, and so does one (or a group) whose squares overflow float32
      (`norms.squares_of_rows`: entries above 1e18).
    """
    summed = _of_kept(
        passed.uses,
        lambda uses: sum_of_uses(uses, variables, partition, clip_norm, in_order=in_order),
    )
    total, counts, finite = summed()

    def without_bad_rows():
        keep = finite_rows(passed.uses)
        total, counts, finite = summed(keep)
        return total, tf.concat([counts, [count_bad(keep, partition, finite)]], 0)

    # Nearly always nothing is to be left out.
    return tf.cond(
        tf.reduce_all(finite),
        lambda: (total, tf.concat([counts, [0.0]], 0)),
        rarely(without_bad_rows),
    )


def _of_kept(uses_of: dict[int, Use], function: Callable[[dict[int, Use]], Any]) -> Callable:
    """`function` of all rows, or of those alone that are to be kept (bool [n]); traced once for both."""
    # What several uses share stays one tensor, whose products with itself are made once.
    shared = {id(t): t for use in uses_of.values() for t in use.kept_rows()}

    @tf.function(
        autograph=False, input_signature=[[tf.TensorSpec.from_tensor(t) for t in shared.values()]]
    )
    def traced(tensors):
        given = dict(zip(shared, tensors, strict=True))
        return function(
            {k: use.of([given[id(t)] for t in use.kept_rows()]) for k, use in uses_of.items()}
        )

    def call(keep: tf.Tensor | None = None):
        tensors = list(shared.values())
        return traced(tensors if keep is None else [zeroed(t, keep) for t in tensors])

    return call


def count_bad(keep: tf.Tensor, partition: BatchPartition, finite: tf.Tensor) -> tf.Tensor:
    """Rows that were left out, and groups that were not finite all the same."""
    rows = tf.cast(~keep & (partition.group >= 0), tf.float32)
    return tf.reduce_sum(rows) + tf.reduce_sum(tf.cast(~finite, tf.float32))


def finite_rows(uses: dict[int, Use]) -> tf.Tensor:
    """Which rows have finite gradients with finite squares: bool [n], or [] for all without uses."""
    squares = [use.item_squares() for use in uses.values()]
    if not squares:
        return tf.constant(True)
    finite = [tf.math.is_finite(tf.add_n(squares))]
    for use in uses.values():
        for kept in use.kept_rows():
            finite.append(tf.math.is_finite(tf.reduce_sum(tf.abs(as_matrix(kept)), axis=1)))
    return tf.reduce_all(tf.stack(finite), axis=0)


def sum_of_uses(
    uses_of: dict[int, Use],
    variables: Sequence[tf.Variable],
    partition: BatchPartition,
    clip_norm: float,
    *,
    in_order: bool,
) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
    """The sums, [groups clipped, groups in all], and of which terms the norm was finite: bool."""
    uses = list(uses_of.values())
    real = tf.cast(partition.group >= 0, tf.float32)
    scale = partition.item_scale * real
    group = tf.maximum(partition.group, 0)
    if partition.linear:
        squares = [use.item_squares() for use in uses] or [tf.zeros_like(scale, tf.float64)]
        term_norms = norms.from_squares(squares) * tf.abs(scale)
        present = real
        factors = tf.gather(partition.group_scale, group)
    else:
        if in_order:
            # Numbered from 0 within the chunk; rows of a group are side by side.
            begins = tf.cast(tf.not_equal(partition.group[1:], partition.group[:-1]), tf.int32)
            of_row = tf.concat([[0], tf.cumsum(begins)], 0)
            count = of_row[-1] + 1
            ids = tf.math.segment_max(partition.group, of_row)
        else:
            of_row, count = partition.group, tf.size(partition.group_scale)
            ids = tf.range(count)
        groups = Groups(of_row, scale, count, in_order=in_order)
        squares = [use.group_squares(groups) for use in uses]
        term_norms = norms.from_squares(squares or [tf.zeros(count[tf.newaxis], tf.float64)])
        sizes = tf.math.unsorted_segment_sum(real, of_row, count)
        present = tf.cast(sizes > 0, tf.float32)
        factors = tf.gather(partition.group_scale, tf.maximum(ids, 0))
    finite = tf.math.is_finite(term_norms)
    term_norms = tf.where(finite, term_norms, 0.0)
    # A norm that is not finite bounds nothing: such a term is left out.
    factors *= norms.clip_factors(term_norms, clip_norm) * present * tf.cast(finite, tf.float32)
    clipped = tf.reduce_sum(tf.cast(term_norms > clip_norm, tf.float32) * present)
    weight, total = factors * scale if partition.linear else None, []
    for variable in variables:
        use = uses_of.get(identity_of(variable))
        if use is None:
            total.append(tf.zeros(variable.shape))
        elif partition.linear:
            total.append(use.weighted(weight))
        else:
            total.append(use.weighted_groups(groups, factors))
    return total, tf.stack([clipped, tf.reduce_sum(present)]), finite


@as_written
def unclipped_sum(
    uses_of: dict[int, Use], variables: Sequence[tf.Variable], scale: tf.Tensor
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The scaled sum of the gradients of a chunk's rows, and how many counted as zero: not finite."""

    def sum_of(uses_of):
        uses = (uses_of.get(identity_of(v)) for v in variables)
        return [
            tf.zeros(v.shape) if use is None else use.weighted_alone(scale)
            for use, v in zip(uses, variables, strict=True)
        ]

    summed = _of_kept(uses_of, sum_of)

    def without_bad_rows():
        keep = finite_rows(uses_of)
        return summed(keep), tf.reduce_sum(tf.cast(~keep, tf.float32))

    total = summed()
    finite = tf.reduce_all([tf.math.is_finite(tf.reduce_sum(t)) for t in total])
    return tf.cond(finite, lambda: (total, tf.constant(0.0)), rarely(without_bad_rows))
