# SPDX-License-Identifier: Apache-2.0
"""The strategy "norm_only": clipped sums without item gradients.

One forward pass, one backward pass down to what the weights put out, the norms of the terms from what
was kept, and one weighted product a weight: no second backward pass. In chunks of rows as the memory
allows (`clipped_sum`), or all at once as one XLA program (`compiled_sum`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp.clipping import loop, norms
from tf_subjectdp.clipping.norm_only.groups import Groups
from tf_subjectdp.clipping.norm_only.passes import Pass, as_written, forward_backward, no_longer
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


def compiled_sum(
    row_function: Callable,
    variables: Sequence[tf.Variable],
    rows: Any,
    partition: BatchPartition,
    clip_norm: float,
    layers: Sequence[Any],
) -> tuple[list[tf.Tensor], tuple[tf.Tensor, Any], tf.Tensor]:
    """The clipped sum of all rows, compiled.

    Args:
      row_function: rows -> (losses [n], predictions).
      variables: what is trained.
      rows: nest of [B, ...], B of at least 1.
      partition: for the B rows, -1 for those that take no part.
      clip_norm: the bound.
      layers: the layers that `row_function` calls.

    Returns:
      The sums; losses [B] and predictions, of all rows; float32 [3]: groups clipped, groups in all,
      rows that were not finite. Such a row counts as zero, and so does one whose squares overflow
      float32 (`norms.squares_of_rows`: entries above 1e18).
    """

    def of_all(rows, group, item_scale, group_scale):
        passed = forward_backward(row_function, variables, rows, layers, whole=True)
        if passed.reason:
            raise RuntimeError(no_longer(passed.reason))
        given = BatchPartition(group, item_scale, group_scale, partition.linear)
        total, stats = _sum_of_all(passed, variables, given, clip_norm)
        return total, (passed.losses, passed.predictions), stats

    # The number of rows is unknown to the trace, as the proof needs it, and known to the compiler.
    given = (rows, *partition[:3])
    spec = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), given)
    return tf.function(of_all, jit_compile=True, input_signature=spec)(*given)


@as_written
def _sum_of_all(passed, variables, partition, clip_norm):
    keep = finite_rows(passed.uses)
    passed = passed._replace(uses={k: use.of_rows(keep) for k, use in passed.uses.items()})
    total, counts, finite = sum_of_uses(
        passed.uses, variables, partition, clip_norm, in_order=False
    )
    bad = count_bad(keep, partition, finite)
    return total, tf.concat([counts, [bad]], 0)
