# SPDX-License-Identifier: Apache-2.0
"""The strategy "norm_only": clipped sums without item gradients.

Knows rows, layers, variables and a partition; imports the rest of `norm_only`, `loop`, `norms` and
`partition`. One forward pass, one backward pass down to what the weights put out, the norms of the
terms from what was kept, and one weighted product a weight: no second backward pass.

The forward pass sees the whole batch at once, so item i's gradient may be read off row i only where
no row meets another. That is proven from the traced graph before anything is computed
(`row_wise`); whatever cannot be proven goes to the general engine.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_subjectdp.clipping import loop, norms
from tf_subjectdp.clipping.norm_only.groups import Groups
from tf_subjectdp.clipping.norm_only.record import Record, identity_of
from tf_subjectdp.clipping.norm_only.row_wise import why_not_row_wise
from tf_subjectdp.clipping.norm_only.rules import recorded
from tf_subjectdp.clipping.norm_only.uses import UNKNOWN_LENGTH, Use, as_matrix
from tf_subjectdp.clipping.partition import BatchPartition

# From this many rows a group on average, an ordinary backward pass a group costs less.
_ROWS_OF_LARGE_GROUPS = 64


# What does not call the model is left by autograph as it is written, which halves the tracing time.
as_written = tf.autograph.experimental.do_not_convert


class _Pass(NamedTuple):
    """One traced forward and backward pass.

    Attributes:
      losses: [n].
      predictions: nest of [n, ...].
      uses: what is kept of each trained weight, by `identity_of`; missing where the loss does not
        depend on the weight.
      reason: why norms cannot be taken from this pass; "" if they can.
    """

    losses: tf.Tensor
    predictions: Any
    uses: dict[int, Use]
    reason: str


def forward_backward(
    row_function: Callable,
    variables: Sequence[tf.Variable],
    rows: Any,
    layers: Sequence[Any],
    *,
    whole: bool = False,
) -> _Pass:
    """Traces the pass and proves that it treats every row alone; for graph mode only."""
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        # Nothing but a use without a note still connects a variable to the losses.
        tape.watch(variables)
        record = Record(tape, variables, whole=whole)
        with recorded(layers, record) as declined:
            losses, predictions = row_function(rows)
        target = tf.reduce_sum(losses)
        leak = record.leak()
    stray = tape.gradient(target, variables)
    gradients = tape.gradient(target, record.watched)
    del tape
    reason = _reason(variables, stray, declined) or leak
    if not reason:
        reason = as_written(why_not_row_wise)(
            [losses, *record.received], tf.nest.flatten(rows), record.declared
        )
    uses = {} if reason else as_written(record.uses)(gradients)
    return _Pass(losses, predictions, uses, reason)


def no_longer(reason: str) -> str:
    """What to say where a model that was served is so no more."""
    return f"the engine norm_only was chosen, but {reason}; compile the model again."


def _reason(variables, stray, declined) -> str:
    found = [v.name for v, gradient in zip(variables, stray, strict=True) if gradient is not None]
    if not found:
        return ""
    why = f" ({'; '.join(declined)})" if declined else ""
    return f"no rule covers the use of {', '.join(found[:3])}{why}"


def why_not(
    row_function: Callable, variables: Sequence[tf.Variable], row_spec: Any, layers: Sequence[Any]
) -> str:
    """Traces one pass, to learn whether this strategy serves the model.

    Args:
      row_function: rows -> (losses [n], predictions).
      variables: what is trained.
      row_spec: nest of `tf.TensorSpec` [None, ...].
      layers: the Keras layers that `row_function` calls, nested ones included.

    Returns:
      The reason why it does not; "" if it does.
    """
    if not layers:
        return "no layers were named (model=)"
    found = []

    def traced(rows):
        found.append(forward_backward(row_function, variables, rows, layers))
        return found[-1].losses

    tf.function(traced).get_concrete_function(row_spec)
    return found[-1].reason


def _row_elements(uses: dict[int, Use]) -> int:
    """Numbers that are kept for one row."""
    total = 0
    for use in uses.values():
        for tensor in use.kept_rows():
            sizes = [UNKNOWN_LENGTH if size is None else size for size in tensor.shape[1:]]
            total += int(tf.TensorShape(sizes).num_elements())
    return max(total, 1)


@as_written
def sum_of_chunk(
    passed: _Pass,
    variables: Sequence[tf.Variable],
    partition: BatchPartition,
    clip_norm: float,
    *,
    in_order: bool,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Norms, factors and the weighted sum of one chunk of rows.

    Returns:
      The sums; and float32 [3]: groups clipped, groups in all, rows that were not finite. Such a row
      counts as zero, and so does one (or a group) whose squares overflow float32.
    """
    given = (variables, partition, clip_norm)
    total, counts, finite = sum_of_uses(passed.uses, *given, in_order=in_order)

    def without_bad_rows():
        keep = finite_rows(passed.uses)
        kept = {k: use.of_rows(keep) for k, use in passed.uses.items()}
        total, counts, finite = sum_of_uses(kept, *given, in_order=in_order)
        return total, tf.concat([counts, [count_bad(keep, partition, finite)]], 0)

    # Nearly always nothing is to be left out.
    return tf.cond(
        tf.reduce_all(finite), lambda: (total, tf.concat([counts, [0.0]], 0)), without_bad_rows
    )


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
        squares = _total([use.item_squares() for use in uses], tf.shape(scale)[:1])
        term_norms = tf.sqrt(squares) * tf.abs(scale)
        present = real
        factors = tf.gather(partition.group_scale, group)
    else:
        if in_order:
            # Numbered from 0 within the chunk; rows of a group are side by side.
            begins = tf.cast(partition.group[1:] != partition.group[:-1], tf.int32)
            of_row = tf.concat([[0], tf.cumsum(begins)], 0)
            count = of_row[-1] + 1
            ids = tf.math.segment_max(partition.group, of_row)
        else:
            of_row, count = partition.group, tf.size(partition.group_scale)
            ids = tf.range(count)
        groups = Groups(of_row, scale, count, in_order=in_order)
        squares = _total([use.group_squares(groups) for use in uses], count[tf.newaxis])
        term_norms = tf.sqrt(squares)
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


def _total(squares: list[tf.Tensor], shape: tf.Tensor) -> tf.Tensor:
    return tf.add_n(squares) if squares else tf.zeros(shape)


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

    A batch larger than the memory budget goes through in chunks of whole groups; one of few large
    groups is left to "loop".

    Raises:
      RuntimeError: the model no longer is what `why_not` saw.
    """
    passes = []

    def chunk(part, group, item_scale, group_scale):
        passed = forward_backward(row_function, variables, part, layers)
        if passed.reason:
            raise RuntimeError(no_longer(passed.reason))
        passes.append(passed)
        partitioned = BatchPartition(group, item_scale, group_scale, partition.linear)
        total, stats = sum_of_chunk(passed, variables, partitioned, clip_norm, in_order=True)
        return total, tf.nest.flatten((passed.losses, passed.predictions)), stats

    rows_spec = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), rows)
    vector = tf.TensorSpec([None], tf.float32)
    chunk = tf.function(
        chunk, input_signature=[rows_spec, tf.TensorSpec([None], tf.int32), vector, vector]
    )
    chunk.get_concrete_function()
    bytes_a_row = 4 * _row_elements(passes[-1].uses)
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
            lambda: tf.nest.map_structure(lambda t: tf.gather(t, index), rows),
        )
        return chunk(part, *partition[:3])

    def in_chunks():
        return _in_chunks(of_rows, variables, partition, count, largest, buffers)

    def fast():
        return tf.cond(count <= largest, at_once, in_chunks)

    def general():
        return loop.clipped_sum(
            row_function, variables, rows, index, partition, clip_norm, options, buffers
        )

    if partition.linear:
        total, outputs, stats = fast()
    else:
        total, outputs, stats = tf.cond(_fits(partition.group, largest), fast, general)
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
