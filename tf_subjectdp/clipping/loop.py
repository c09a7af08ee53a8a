# SPDX-License-Identifier: Apache-2.0
"""Clipped sums by one ordinary backward pass a row (LINEAR) or a group (GROUPED).

Works for everything that has a gradient and holds one gradient at a time.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp.clipping import norms
from tf_subjectdp.clipping.partition import BatchPartition


def clipped_sum(
    row_function: Callable,
    variables: Sequence[tf.Variable],
    rows: Any,
    index: tf.Tensor,
    partition: BatchPartition,
    clip_norm: float,
    options: Any,
    buffers: list[tf.TensorArray],
) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor]:
    """The strategy "loop": see `engine.clipped_sum`; arguments and results as in `vectorized`."""
    zeros = [tf.zeros(v.shape, tf.float32) for v in variables]

    def rows_between(start, stop):
        picked = index[start:stop]
        return tf.nest.map_structure(lambda t: tf.gather(t, picked), rows)

    def gradient_of(start, stop):
        part = rows_between(start, stop)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            losses, predictions = row_function(part)
            scale = tf.cast(partition.item_scale[start:stop], losses.dtype)
            loss = tf.reduce_sum(scale * losses)
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        return norms.as_float32(gradients, variables), tf.nest.flatten((losses, predictions))

    def finite_gradient_of(start, stop):
        gradients, outputs = gradient_of(start, stop)
        finite = tf.math.is_finite(_norm(gradients))
        if partition.linear:
            gradients = [tf.where(finite, g, tf.zeros_like(g)) for g in gradients]
            return gradients, tf.cast(~finite, tf.float32), outputs
        gradients, bad = tf.cond(
            finite, lambda: (gradients, tf.constant(0.0)), lambda: row_by_row(start, stop)
        )
        return gradients, bad, outputs

    def row_by_row(start, stop):
        """The same sum without the rows whose gradient is not finite: only met with such rows."""

        def add_row(row, total, bad):
            gradients, _ = gradient_of(row, row + 1)
            finite = tf.math.is_finite(_norm(gradients))
            total = [
                t + tf.where(finite, g, tf.zeros_like(g))
                for t, g in zip(total, gradients, strict=True)
            ]
            return row + 1, total, bad + tf.cast(~finite, tf.float32)

        _, total, bad = tf.while_loop(
            lambda row, *_: row < stop,
            add_row,
            (start, zeros, tf.constant(0.0)),
            parallel_iterations=1,
        )
        return total, bad

    piece = 1 if partition.linear else options.max_rows
    return sum_of_terms(finite_gradient_of, variables, partition, clip_norm, piece, buffers)


def sum_of_terms(
    gradient_of: Callable,
    variables: Sequence[tf.Variable],
    partition: BatchPartition,
    clip_norm: float,
    piece: int | tf.Tensor,
    buffers: list[tf.TensorArray],
) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor]:
    """Clips and adds the gradients of all rows (LINEAR) or groups, one at a time.

    Args:
      gradient_of: (start, stop) -> the scaled sum of the gradients of these rows, one float32 tensor a
        variable; how many rows were not finite and count as zero; the rows' outputs.
      variables, partition, clip_norm, buffers: as in `clipped_sum`.
      piece: how many rows `gradient_of` takes at most.
    """
    zeros = [tf.zeros(v.shape, tf.float32) for v in variables]
    count = tf.size(partition.group)
    if partition.linear:
        ends = tf.range(count) + 1
    else:
        ends = tf.searchsorted(partition.group, partition.group, side="right")

    def close_group(total, term, group):
        norm = _norm(term)
        finite = tf.math.is_finite(norm)
        norm = tf.where(finite, norm, 0.0)
        scale = tf.gather(partition.group_scale, tf.maximum(group, 0))
        weight = norms.clip_factors(norm, clip_norm) * scale
        total = [
            t + weight * tf.where(finite, g, tf.zeros_like(g))
            for t, g in zip(total, term, strict=True)
        ]
        counts = tf.stack([norm > clip_norm, tf.constant(True), ~finite])
        return total, tf.cast(counts, tf.float32)

    def body(start, number, total, open_sum, stats, buffers):
        stop = tf.minimum(start + piece, ends[start])
        gradients, bad, outputs = gradient_of(start, stop)
        group = partition.group[start]
        if partition.linear:
            total, counts = close_group(total, gradients, group)
        else:
            term = [a + b for a, b in zip(open_sum, gradients, strict=True)]
            total, open_sum, counts = tf.cond(
                tf.equal(stop, ends[start]),
                lambda: _with_zeros(close_group(total, term, group), zeros),
                lambda: (total, term, tf.zeros([3])),
            )
        stats += counts + bad * tf.constant([0.0, 0.0, 1.0])
        buffers = [b.write(number, o) for b, o in zip(buffers, outputs, strict=True)]
        return stop, number + 1, total, open_sum, stats, buffers

    open_sum = [] if partition.linear else zeros
    _, _, total, _, stats, buffers = tf.while_loop(
        lambda start, *_: start < count,
        body,
        (tf.constant(0), tf.constant(0), zeros, open_sum, tf.zeros([3]), buffers),
        parallel_iterations=1,
    )
    return total, [b.concat() for b in buffers], stats


def _norm(gradient: Sequence[tf.Tensor]) -> tf.Tensor:
    return norms.row_norms([tf.expand_dims(g, 0) for g in gradient])[0]


def _with_zeros(closed, zeros):
    total, counts = closed
    return total, zeros, counts
