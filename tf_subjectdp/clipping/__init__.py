# SPDX-License-Identifier: Apache-2.0
"""Gradients of a batch to one clipped sum.

Names are loaded when they are first used, so that an algorithm can be named without TensorFlow.
"""

import importlib
from typing import Any

_HOME = {
    "engine": (
        "PART_UPDATES",
        "ClippedSum",
        "EngineOptions",
        "choose_strategy",
        "clipped_sum",
    ),
    "part_updates": ("PartUpdates",),
    "norm_only": ("NoRule", "Record", "register_norm_rule"),
    "norm_only.checking": ("RuleCheck", "check_norm_rule"),
    "partition": (
        "BatchPartition",
        "batch_mean_term",
        "element_mean_terms",
        "group_sizes",
        "item_terms",
        "random_part_mean_terms",
        "random_subset",
        "sizes_of_rows",
        "subject_index",
        "subject_mean_terms",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
