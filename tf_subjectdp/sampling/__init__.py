# SPDX-License-Identifier: Apache-2.0
"""Who is in a step: subject ids, contribution bounds, samplers, and the way to `tf.data`.

Only `to_dataset` needs TensorFlow, which is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

from tf_subjectdp.sampling.bounding import bound_batch, bound_contributions, bounded_batches
from tf_subjectdp.sampling.dealt import FixedSize, Shuffle, sampler_from_config
from tf_subjectdp.sampling.fingerprint import dataset_fingerprint
from tf_subjectdp.sampling.grouping import SubjectTable, count_items, encode_ids, rows_by_subject
from tf_subjectdp.sampling.pairs import ElementStats
from tf_subjectdp.sampling.randomness import fresh_rng
from tf_subjectdp.sampling.samplers import (
    PoissonElements,
    PoissonItems,
    PoissonSubjects,
    Sampler,
)
from tf_subjectdp.sampling.silos import SiloStats
from tf_subjectdp.sampling.stats import SubjectStats
from tf_subjectdp.sampling.tables import stats_from_table

_NEEDS_TENSORFLOW = {"to_dataset": "tf_subjectdp.sampling.dataset"}

__all__ = [
    "ElementStats",
    "FixedSize",
    "PoissonElements",
    "PoissonItems",
    "PoissonSubjects",
    "Sampler",
    "Shuffle",
    "SiloStats",
    "SubjectStats",
    "SubjectTable",
    "bound_batch",
    "bound_contributions",
    "bounded_batches",
    "count_items",
    "dataset_fingerprint",
    "encode_ids",
    "fresh_rng",
    "rows_by_subject",
    "sampler_from_config",
    "stats_from_table",
    "to_dataset",
]


def __getattr__(name: str) -> Any:
    if name in _NEEDS_TENSORFLOW:
        return getattr(importlib.import_module(_NEEDS_TENSORFLOW[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
