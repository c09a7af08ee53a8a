# SPDX-License-Identifier: Apache-2.0
"""One-shot releases of who has how much of what: histograms and frequent elements.

    from tf_subjectdp import release
    counts = release.count_elements(subject_id, word, vocabulary=public_words)
    histogram = release.histogram(counts, radius=5.0, epsilon=1.0, delta=1e-6)
    print(histogram.statement())

After Asi, Duchi and Javidi, "Element level differential privacy": two data sets are neighbours if
one subject differs on one element (by default: on one word). TensorFlow is never imported.
"""

from tf_subjectdp.release.bounds import ErrorBound, error_bound
from tf_subjectdp.release.counting import ElementCounts, count_elements
from tf_subjectdp.release.frequent import FrequentElements, discover_elements, frequent_elements
from tf_subjectdp.release.histograms import (
    HistogramRelease,
    histogram,
    two_stage_histogram,
    user_level_histogram,
)

__all__ = [
    "ElementCounts",
    "ErrorBound",
    "FrequentElements",
    "HistogramRelease",
    "count_elements",
    "discover_elements",
    "error_bound",
    "frequent_elements",
    "histogram",
    "two_stage_histogram",
    "user_level_histogram",
]
