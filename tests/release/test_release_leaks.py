# SPDX-License-Identifier: Apache-2.0
"""What a release could tell beside its numbers: types of names, kinds of ids, generators."""

import numpy as np
import pytest
from scipy import sparse

from tf_subjectdp import release


def _found(extra):
    counts = release.count_elements([*range(300), 5], ["hi"] * 300 + [extra])
    return release.discover_elements(counts, epsilon=1.0, delta=1e-9)


def test_a_name_that_is_not_released_leaves_no_trace_in_the_type():
    plain, long = _found("hi"), _found("my password is 0123456789")
    assert plain.names.tolist() == long.names.tolist() == ["hi"]
    assert plain.names.dtype == long.names.dtype
    made = release.ElementCounts(
        sparse.csr_matrix(np.ones((50, 1))), np.arange(50), np.array(["w"], "<U40"), False
    )
    assert release.discover_elements(made, epsilon=9.0, delta=1e-2).names.dtype == object


def test_names_keep_a_trailing_nul_and_large_numbers():
    words = np.array(["a", "a\0"], dtype=object)
    assert release.count_elements([0, 1], words).elements.tolist() == ["a", "a\0"]
    large = np.array([1, 2**63], dtype=object)
    assert release.count_elements([0, 1], large).elements.tolist() == [1, 2**63]


@pytest.mark.parametrize(("ids", "listed"), [(["7"], [7]), ([7], ["7"]), ([b"a"], ["a"])])
def test_a_vocabulary_of_another_kind_is_refused(ids, listed):
    with pytest.raises(TypeError, match="no row would be counted"):
        release.count_elements([0], ids, vocabulary=listed)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.float16, bool])
def test_repeated_pairs_of_narrow_types_are_summed(kind):
    zeros, ones = np.zeros(3000, np.int64), np.ones(3000, kind)
    forms = [(zeros, zeros, ones)]
    if kind is not np.float16:  # newer SciPy has no such matrices
        forms.append(sparse.coo_matrix((ones, (zeros, zeros)), shape=(1, 1)))
    for counts in forms:
        made = release.histogram(counts, radius=1e6, noise_multiplier=0.0, n_subjects=1, n_words=1)
        assert made.estimate.tolist() == [3000.0]


def test_an_epsilon_below_the_thresholds_share_is_named():
    counts = release.count_elements([0, 1], ["a", "a"])
    with pytest.raises(ValueError, match="threshold alone"):
        release.discover_elements(counts, epsilon=0.05, delta=0.9)


def test_a_number_that_is_not_released_leaves_no_trace_in_the_type():
    for extra in (8, 2**63, 2**64, -(2**70)):
        counts = release.count_elements([*range(300), 5], [7] * 300 + [extra])
        found = release.discover_elements(counts, epsilon=1.0, delta=1e-9)
        assert found.names.tolist() == [7] and found.names.dtype == np.int64
