# SPDX-License-Identifier: Apache-2.0
"""Gradients of a batch to one clipped sum. Knows nobody else in the package; TensorFlow alone."""

from tf_subjectdp.clipping.engine import (
    ClippedSum,
    EngineOptions,
    choose_strategy,
    clipped_sum,
)
from tf_subjectdp.clipping.partition import (
    BatchPartition,
    group_sizes,
    random_subset,
    sizes_of_rows,
    subject_index,
)
from tf_subjectdp.clipping.randomness import fresh_seed

__all__ = [
    "BatchPartition",
    "ClippedSum",
    "EngineOptions",
    "choose_strategy",
    "clipped_sum",
    "fresh_seed",
    "group_sizes",
    "random_subset",
    "sizes_of_rows",
    "subject_index",
]
