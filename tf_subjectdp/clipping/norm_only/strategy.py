# SPDX-License-Identifier: Apache-2.0
"""The strategy "norm_only": clipped sums without item gradients.

Knows rows, layers, variables and a partition; imports `passes`, `sums` and `loop`. One forward pass,
one backward pass down to what the weights put out, the norms of the terms from what was kept, and one
weighted product a weight: no second backward pass.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp.clipping import loop
from tf_subjectdp.clipping.norm_only.passes import forward_backward, no_longer
from tf_subjectdp.clipping.norm_only.sums import rarely, sum_of_chunk, unclipped_sum
from tf_subjectdp.clipping.partition import BatchPartition

# From this many rows a group on average, the gradient of each group is formed: this costs less.
_ROWS_OF_LARGE_GROUPS = 64


def clipped_sum(
    row_function: Callable,
    variables: Sequence[tf.Variable],
    rows: Any,
    index: tf.Tensor,
    partition: BatchPartition,
    clip_norm: float,
    options: Any,
    buffers: list[tf.TensorArray],
    layers: Sequence[Any] = (),
) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor]:
    """The strategy "norm_only": see `engine.clipped_sum`; results as in `vectorized`.

    A batch larger than the memory budget goes through in chunks of whole groups; in one of few or
    larger groups the gradient of each is summed over chunks, and clipped when it is whole.

    Raises:
      RuntimeError: the model no longer is what `why_not` saw.
    """
    passes = []

    def outputs_of(passed):
        return tf.nest.flatten((passed.losses, passed.predictions))

    def pass_over(part):
        passed = forward_backward(row_function, variables, part, layers)
        if passed.reason:
            raise RuntimeError(no_longer(passed.reason))
        return passed

    def chunk(part, group, item_scale, group_scale):
        passed = pass_over(part)
        passes.append(passed)
        partitioned = BatchPartition(group, item_scale, group_scale, partition.linear)
        total, stats = sum_of_chunk(passed, variables, partitioned, clip_norm, in_order=True)
        return total, outputs_of(passed), stats

    def unclipped(part, item_scale):
        passed = pass_over(part)
        return *unclipped_sum(passed.uses, variables, item_scale), outputs_of(passed)

    rows_spec = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), rows)
    vector = tf.TensorSpec([None], tf.float32)
    chunk = tf.function(
        chunk, input_signature=[rows_spec, tf.TensorSpec([None], tf.int32), vector, vector]
    )
    chunk.get_concrete_function()
    bytes_a_row = max(4 * sum(use.numbers_a_row() for use in passes[-1].uses.values()), 1)
    largest = max(1, min(options.max_rows, options.memory_budget // bytes_a_row))

    def of_rows(start, stop):
        picked = index[start:stop]
        part = tf.nest.map_structure(lambda t: tf.gather(t, picked), rows)
        group, scale = partition.group[start:stop], partition.item_scale[start:stop]
        return chunk(part, group, scale, partition.group_scale)

    count = tf.size(index)

    def at_once():
        # Mostly all rows take part, in the order in which they came, and need not be copied.
        every = tf.shape(tf.nest.flatten(rows)[0])[0]
        whole = tf.equal(every, count) & tf.reduce_all(tf.equal(index, tf.range(count)))
        part = tf.cond(
            whole,
            lambda: rows,
            rarely(lambda: tf.nest.map_structure(lambda t: tf.gather(t, index), rows)),
        )
        return chunk(part, *partition[:3])

    def in_chunks():
        return _in_chunks(of_rows, variables, partition, count, largest, buffers)

    def fast():
        return tf.cond(count <= largest, at_once, rarely(in_chunks))

    def group_by_group():
        rows_once = tf.function(unclipped, input_signature=[rows_spec, vector])

        def gradient_of(start, stop):
            picked = index[start:stop]
            part = tf.nest.map_structure(lambda t: tf.gather(t, picked), rows)
            return rows_once(part, partition.item_scale[start:stop])

        return loop.sum_of_terms(gradient_of, variables, partition, clip_norm, largest, buffers)

    if partition.linear:
        total, outputs, stats = fast()
    else:
        total, outputs, stats = tf.cond(
            _fits(partition.group, largest), fast, rarely(group_by_group)
        )
    for tensor, variable in zip(total, variables, strict=True):
        tensor.set_shape(variable.shape)
    return total, outputs, stats


def _fits(group: tf.Tensor, largest: int) -> tf.Tensor:
    """Whether every group fits into a chunk, and there are many of them."""
    first = tf.searchsorted(group, group, side="left")
    last = tf.searchsorted(group, group, side="right")
    sizes = last - first
    begins = tf.reduce_sum(tf.cast(tf.equal(first, tf.range(tf.size(group))), tf.int32))
    few = tf.size(group) >= _ROWS_OF_LARGE_GROUPS * begins
    return (tf.reduce_max(sizes) <= largest) & ~few


def _in_chunks(of_rows, variables, partition, count, largest, buffers):
    """Goes through the rows in chunks that hold whole groups, and adds the sums."""

    def body(start, number, total, stats, buffers):
        stop = tf.minimum(start + largest, count)
        if not partition.linear:
            behind = partition.group[tf.minimum(stop, count - 1)]
            whole = tf.searchsorted(partition.group, behind[tf.newaxis], side="left")[0]
            stop = tf.where(stop < count, whole, count)
        part, outputs, found = of_rows(start, stop)
        total = [a + b for a, b in zip(total, part, strict=True)]
        buffers = [b.write(number, o) for b, o in zip(buffers, outputs, strict=True)]
        return stop, number + 1, total, stats + found, buffers

    zeros = [tf.zeros(v.shape) for v in variables]
    _, _, total, stats, buffers = tf.while_loop(
        lambda start, *_: start < count,
        body,
        (tf.constant(0), tf.constant(0), zeros, tf.zeros([3]), buffers),
        parallel_iterations=1,
    )
    return total, [b.concat() for b in buffers], stats
