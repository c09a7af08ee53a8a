# SPDX-License-Identifier: Apache-2.0
"""One-shot releases of who has how much of what: histograms and frequent elements.

    from tf_subjectdp import release
    counts = release.count_elements(subject_id, word, vocabulary=public_words)
    histogram = release.histogram(counts, radius=5.0, epsilon=1.0, delta=1e-6)
    print(histogram.statement())

After Asi, Duchi and Javidi, "Element level differential privacy": two data sets are neighbours if
one subject differs on one element (by default: on one word). NumPy, SciPy and
`tf_subjectdp.accounting` only; TensorFlow is never imported. Names are loaded when first used.
"""

import importlib
from typing import Any

_HOME = {
    "counting": ("ElementCounts", "count_elements"),
    "results": ("HistogramRelease",),
    "histograms": ("histogram", "user_level_histogram"),
    "two_stage": ("two_stage_histogram",),
    "frequent": ("FrequentElements", "discover_elements", "frequent_elements"),
    "bounds": ("ErrorBound", "error_bound"),
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
