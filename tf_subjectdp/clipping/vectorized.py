# SPDX-License-Identifier: Apache-2.0
"""Clipped sums from per-item gradients of chunks of rows, by `tf.vectorized_map`."""

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp.clipping import norms
from tf_subjectdp.clipping.partition import BatchPartition


def item_gradients(
    row_function: Callable, variables: Sequence[tf.Variable], rows: Any
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Gradients of single rows.

    Args:
      row_function: rows -> (losses [n], predictions).
      variables: what is differentiated.
      rows: nest of [n, ...].

    Returns:
      A float32 tensor [n, *shape] for each variable; and the losses and all predictions, flat.
    """

    def one(row):
        single = tf.nest.map_structure(lambda t: tf.expand_dims(t, 0), row)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            losses, predictions = row_function(single)
            loss = tf.reduce_sum(losses)
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        outputs = [tf.squeeze(t, 0) for t in tf.nest.flatten((losses, predictions))]
        return norms.as_float32(gradients, variables), outputs

    return tf.vectorized_map(one, rows)


class _PforMessages(logging.Filter):
    """Keeps the conversion's messages out of the log; the engine says what they mean in one line.

    Attributes:
      ops: the ops that TensorFlow said it would run one item at a time.
    """

    _SEQUENTIAL = re.compile(r"Using a while_loop for converting (\w+)|(\w+) uses a while_loop")
    _NOISE = ("Got error while pfor", "name: ", "No converter", "Fallback is")

    def __init__(self):
        super().__init__()
        self.ops: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        found = self._SEQUENTIAL.search(message)
        op = found and (found.group(1) or found.group(2))
        if op and op not in self.ops:
            self.ops.append(op)
        return not (found or message.startswith(self._NOISE))

    def __enter__(self) -> "_PforMessages":
        tf.get_logger().addFilter(self)
        return self

    def __exit__(self, *_) -> None:
        tf.get_logger().removeFilter(self)


def why_not(
    row_function: Callable, variables: Sequence[tf.Variable], row_spec: Any, chunk: int
) -> tuple[str, list[str]]:
    """Traces the item gradients once, to learn whether TensorFlow can vectorise them.

    Args:
      row_function: rows -> (losses [n], predictions).
      variables: what is differentiated.
      row_spec: nest of `tf.TensorSpec` [None, ...].
      chunk: rows to trace with.

    Returns:
      The reason why it cannot ("" if it can), and the ops that it would run item by item.
    """
    spec = tf.nest.map_structure(lambda s: tf.TensorSpec([chunk, *s.shape[1:]], s.dtype), row_spec)
    traced = tf.function(lambda rows: item_gradients(row_function, variables, rows))
    with _PforMessages() as messages:
        try:
            traced.get_concrete_function(spec)
        # The conversion raises whatever its converters trip over (TypeError on the variant tensors
        # of recurrent layers, ValueError on stateful ops, ...): any means "not this model".
        except Exception as error:
            name = type(error).__name__
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [name]
            last = lines[-1][:160]
            return last if last.startswith(name) else f"{name}, {last}", messages.ops
    return "", messages.ops


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
    """The strategy "vectorized": see `engine.clipped_sum`.

    Args:
      row_function: rows -> (losses [n], predictions).
      variables: what is trained.
      rows: nest of [B, ...].
      index: int32 [m], the rows that take part, those of one group side by side; m >= 1.
      partition: `group` and `item_scale` aligned with `index`, `group_scale` by group.
      clip_norm: the bound.
      options: `EngineOptions`.
      buffers: empty arrays for the losses and each prediction.

    Returns:
      The sums; losses and predictions [>= m, ...] in the order of `index`; and float32 [3]: groups
      clipped, groups in all, rows not finite.
    """
    count = tf.size(index)
    size = tf.minimum(options.chunk_rows(variables), count)
    zeros = [tf.zeros(v.shape, tf.float32) for v in variables]
    accumulate = _add_items if partition.linear else _add_groups

    def body(number, total, open_group, stats, buffers):
        position = number * size + tf.range(size)
        real = position < count
        position = tf.minimum(position, count - 1)
        picked = tf.gather(index, position)
        chunk = tf.nest.map_structure(lambda t: tf.gather(t, picked), rows)
        group = tf.where(real, tf.gather(partition.group, position), -1)
        scale = tf.where(real, tf.gather(partition.item_scale, position), 0.0)
        with _PforMessages():
            gradients, outputs = item_gradients(row_function, variables, chunk)
        item_norms = norms.row_norms(gradients)
        finite = tf.math.is_finite(item_norms)
        gradients = norms.zero_rows(gradients, finite)
        item_norms = tf.where(finite, item_norms, 0.0)
        total, open_group, counts = accumulate(
            total, open_group, gradients, item_norms, group, scale, partition, clip_norm
        )
        bad = tf.reduce_sum(tf.cast(~finite & (group >= 0), tf.float32))
        stats += tf.concat([counts[:2], [counts[2] + bad]], 0)
        buffers = [b.write(number, o) for b, o in zip(buffers, outputs, strict=True)]
        return number + 1, total, open_group, stats, buffers

    open_group = (tf.constant(-1), [] if partition.linear else zeros)
    _, total, open_group, stats, buffers = tf.while_loop(
        lambda number, *_: number * size < count,
        body,
        (tf.constant(0), zeros, open_group, tf.zeros([3]), buffers),
        parallel_iterations=1,
    )
    if not partition.linear:
        ids, sums = open_group
        last = ([tf.expand_dims(s, 0) for s in sums], tf.expand_dims(ids, 0))
        total, counts = _close_groups(total, *last, partition, clip_norm)
        stats += counts
    return total, [b.concat() for b in buffers], stats


def _add_items(total, open_group, gradients, item_norms, group, scale, partition, clip_norm):
    """LINEAR: every row is its own group."""
    real = tf.cast(group >= 0, tf.float32)
    term_norms = item_norms * tf.abs(scale)
    weights = norms.clip_factors(term_norms, clip_norm) * scale * real
    weights *= tf.gather(partition.group_scale, tf.maximum(group, 0))
    total = _add(total, norms.weighted_sum(gradients, weights))
    clipped = tf.reduce_sum(tf.cast(term_norms > clip_norm, tf.float32) * real)
    return total, open_group, tf.stack([clipped, tf.reduce_sum(real), 0.0])


def _add_groups(total, open_group, gradients, item_norms, group, scale, partition, clip_norm):
    """GROUPED: rows of a group are side by side; the last group stays open for the next chunk."""
    del item_norms
    open_id, open_sum = open_group
    ids = tf.concat([tf.expand_dims(open_id, 0), group], 0)
    starts = tf.cast(tf.not_equal(ids[1:], ids[:-1]), tf.int32)
    local = tf.concat([[0], tf.cumsum(starts)], 0)
    sums = []
    for gradient, carried in zip(gradients, open_sum, strict=True):
        shaped = tf.reshape(scale, [-1] + [1] * (len(gradient.shape) - 1))
        terms = tf.concat([tf.expand_dims(carried, 0), shaped * gradient], 0)
        sums.append(tf.math.segment_sum(terms, local))
    local_ids = tf.math.segment_max(ids, local)
    total, counts = _close_groups(
        total, [s[:-1] for s in sums], local_ids[:-1], partition, clip_norm
    )
    return total, (local_ids[-1], [s[-1] for s in sums]), counts


def _close_groups(total, sums, ids, partition, clip_norm):
    """Clips finished groups and adds them; an id of -1 is padding."""
    real = tf.cast(ids >= 0, tf.float32)
    group_norms = norms.row_norms(sums)
    finite = tf.math.is_finite(group_norms)
    group_norms = tf.where(finite, group_norms, 0.0)
    weights = norms.clip_factors(group_norms, clip_norm) * real
    weights *= tf.gather(partition.group_scale, tf.maximum(ids, 0))
    total = _add(total, norms.weighted_sum(norms.zero_rows(sums, finite), weights))
    clipped = tf.reduce_sum(tf.cast(group_norms > clip_norm, tf.float32) * real)
    bad = tf.reduce_sum(tf.cast(~finite, tf.float32) * real)
    return total, tf.stack([clipped, tf.reduce_sum(real), bad])


def _add(left, right):
    return [a + b for a, b in zip(left, right, strict=True)]
