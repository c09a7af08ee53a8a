# SPDX-License-Identifier: Apache-2.0
"""From rows to counts: names, vocabularies, and what is refused."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse

from tf_subjectdp import release
from tf_subjectdp.release.counting import as_blocks, as_table

_WHO = ["ann", "bob", "ann", "ann", "cid", "bob"]
_WHAT = ["to", "be", "to", "or", "not", "zounds"]


def test_rows_are_counted_and_columns_named():
    counts = release.count_elements(_WHO, _WHAT)
    assert counts.subjects.tolist() == ["ann", "bob", "cid"]
    assert counts.elements.tolist() == ["be", "not", "or", "to", "zounds"]
    assert counts.matrix.toarray().tolist() == [[0, 0, 1, 2, 0], [1, 0, 0, 0, 1], [0, 1, 0, 0, 0]]
    assert not counts.public_elements


def test_a_public_vocabulary_keeps_its_order_and_leaves_the_rest_out():
    counts = release.count_elements(_WHO, _WHAT, vocabulary=["to", "be", "nobler"])
    assert counts.elements.tolist() == ["to", "be", "nobler"]
    # cid said nothing of it and keeps a row: the number of subjects does not depend on what is said.
    assert counts.matrix.toarray().tolist() == [[2, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert counts.public_elements


def test_whole_numbers_bytes_and_objects_are_ids_too():
    numbers = release.count_elements(np.array([7, 3, 7]), np.array([10, 10, 20], np.uint8))
    assert numbers.subjects.tolist() == [3, 7] and numbers.elements.tolist() == [10, 20]
    assert numbers.matrix.toarray().tolist() == [[1, 0], [1, 1]]
    mixed = release.count_elements(np.array([b"x", b"y"]), np.array(["u", "u"], object))
    assert mixed.matrix.toarray().tolist() == [[1], [1]]


@pytest.mark.parametrize(
    ("who", "what", "more", "error", "message"),
    [
        (["a"], ["x", "y"], {}, ValueError, "1 and 2"),
        ([], [], {}, ValueError, "at least one row"),
        ([[1]], [[1]], {}, ValueError, "shape"),
        ([1.5], ["x"], {}, TypeError, "float64"),
        (["a", None], ["x", "y"], {}, ValueError, "row 1: None"),
        (["a", "b"], ["x", ""], {}, ValueError, "element_id is missing in row 1"),
        (np.array(["a", 1], object), ["x", "y"], {}, TypeError, "row 1 holds 1"),
        (np.array(["a", float("nan")], object), ["x", "y"], {}, ValueError, "missing in row 1"),
        (["a"], ["x"], {"vocabulary": ["x", "x"]}, ValueError, "only 1 of its 2"),
    ],
)
def test_bad_rows_are_refused_by_name(who, what, more, error, message):
    with pytest.raises(error, match=message):
        release.count_elements(who, what, **more)


def test_words_met_in_the_data_are_no_public_list():
    with pytest.raises(ValueError, match="public vocabulary, or use discover_elements"):
        release.histogram(release.count_elements(_WHO, _WHAT), radius=1.0, noise_multiplier=1.0)


def test_all_forms_of_counts_are_the_same_table():
    dense = np.array([[0, 2, 1], [0, 0, 0], [3, 0, 0]])
    row, column, count = [0, 0, 0, 2], [1, 2, 1, 0], [1, 1, 1, 3]
    unsorted = sparse.csr_matrix(
        (np.array([1, 2, 3, 0]), np.array([2, 1, 0, 1]), np.array([0, 2, 2, 4])), shape=(3, 3)
    )
    kept = unsorted.copy()
    for form in (dense, sparse.coo_matrix(dense), sparse.csc_matrix(dense), unsorted):
        matrix, n = as_table(form, None, None)
        assert n == 3 and matrix.nnz == 3 and np.array_equal(matrix.toarray(), dense)
    matrix, _ = as_table((row, column, count), 3, 3)
    assert np.array_equal(matrix.toarray(), dense)
    # The caller's arrays stay as they are.
    assert np.array_equal(unsorted.indices, kept.indices) and unsorted.nnz == 4


def test_more_subjects_than_rows_are_subjects_without_words():
    made = release.histogram(np.array([[4.0]]), radius=9.0, noise_multiplier=0.0, n_subjects=8)
    assert made.n_subjects == 8 and made.estimate.tolist() == [0.5]


@pytest.mark.parametrize(
    ("counts", "more", "error", "message"),
    [
        (np.array([[-1.0]]), {}, ValueError, "at least 0"),
        (np.array([[np.nan]]), {}, ValueError, "finite"),
        (np.array([[np.inf]]), {}, ValueError, "finite"),
        (np.array([[1e60]]), {}, ValueError, "1e"),
        (np.array([["x"]]), {}, TypeError, "ndarray"),
        (np.array([[1j]]), {}, TypeError, "ndarray"),
        (sparse.csr_matrix(np.array([[1j]])), {}, TypeError, "complex"),
        ("counts", {}, TypeError, "str"),
        (([0], [0], [1]), {}, ValueError, "needs n_subjects and n_words"),
        (([0], [0]), {"n_subjects": 1, "n_words": 1}, ValueError, "triple"),
        (([0], [3], [1]), {"n_subjects": 1, "n_words": 3}, ValueError, "word ids must lie in 0..2"),
        (([-1], [0], [1]), {"n_subjects": 1, "n_words": 3}, ValueError, "subject codes"),
        (([0.0], [0], [1]), {"n_subjects": 1, "n_words": 3}, TypeError, "whole numbers"),
        (([0], [0], [-1]), {"n_subjects": 1, "n_words": 3}, ValueError, "at least 0"),
        (([0, 0], [0, 0], [3, -1]), {"n_subjects": 1, "n_words": 3}, ValueError, "at least 0"),
        (([0], [0, 1], [1]), {"n_subjects": 1, "n_words": 3}, ValueError, "one length"),
        (np.ones((3, 2)), {"n_subjects": 2}, ValueError, "3 rows"),
        (np.ones((3, 2)), {"n_words": 3}, ValueError, "2 columns"),
        (np.ones((3, 0)), {}, ValueError, "one column"),
        (np.ones((0, 2)), {}, ValueError, "n_subjects"),
    ],
)
def test_bad_counts_are_refused(counts, more, error, message):
    with pytest.raises(error, match=message):
        release.histogram(counts, radius=1.0, noise_multiplier=1.0, **more)


@pytest.mark.parametrize(
    ("block", "error"),
    [([0, 1], ValueError), ([0, -1, 0], ValueError), ([0.0, 1.0, 2.0], TypeError)],
)
def test_bad_blocks_are_refused(block, error):
    with pytest.raises(error, match="block must"):
        as_blocks(block, 3)


def test_numbers_that_fill_64_bits_are_counted_and_floats_are_no_ids():
    assert release.count_elements([0, 1], [7, 2**63]).elements.tolist() == [7, 2**63]
    with pytest.raises(TypeError, match="whole numbers"):
        release.count_elements([0, 1], [7, 2.5])


def test_numbers_of_elements_with_gaps_are_refused_before_memory_is():
    with pytest.raises(ValueError, match="without gaps"):
        release.histogram(np.ones((2, 2)), radius=1.0, noise_multiplier=1.0, block=[0, 10**11])


def test_the_package_needs_no_tensorflow():
    code = (
        "import sys; from tf_subjectdp import release; import numpy as np;"
        "release.histogram(np.ones((2, 2)), radius=1.0, noise_multiplier=1.0).statement();"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
