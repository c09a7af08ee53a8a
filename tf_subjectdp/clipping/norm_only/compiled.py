# SPDX-License-Identifier: Apache-2.0
"""The strategy "norm_only" as one XLA program: no loop over parts, no host in between.

Knows what `strategy` knows; imports `passes` and `sums`. All rows go through at once, those that take
no part with weight zero, so that the shapes are those of the batch: XLA compiles anew for each shape,
and batches should be padded to few of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp.clipping.norm_only import passes, sums
from tf_subjectdp.clipping.partition import BatchPartition


def clipped_sum(
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
        passed = passes.forward_backward(row_function, variables, rows, layers, whole=True)
        if passed.reason:
            raise RuntimeError(passes.no_longer(passed.reason))
        given = BatchPartition(group, item_scale, group_scale, partition.linear)
        total, stats = _sum_of_all(passed, variables, given, clip_norm)
        return total, (passed.losses, passed.predictions), stats

    # The number of rows is unknown to the trace, as the proof needs it, and known to the compiler.
    given = (rows, *partition[:3])
    spec = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), given)
    return tf.function(of_all, jit_compile=True, input_signature=spec)(*given)


@passes.as_written
def _sum_of_all(passed, variables, partition, clip_norm):
    keep = sums.finite_rows(passed.uses)
    passed = passed._replace(uses={k: use.of_rows(keep) for k, use in passed.uses.items()})
    total, counts, finite = sums.sum_of_uses(
        passed.uses, variables, partition, clip_norm, in_order=False
    )
    bad = sums.count_bad(keep, partition, finite)
    return total, tf.concat([counts, [bad]], 0)
