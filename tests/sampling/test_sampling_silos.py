# SPDX-License-Identifier: Apache-2.0
"""SiloStats: who has how many items where."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from tf_subjectdp.accounting import higradavg_event
from tf_subjectdp.accounting.silos.horizontal import HorizontalPlan
from tf_subjectdp.sampling import SiloStats, SubjectStats

SUBJECTS = ["ann", "bob", "ann", "cy", "ann", "bob"]
SILOS = ["north", "south", "north", "south", "south", "south"]


def test_counts_are_subjects_by_silos_in_the_order_of_first_appearance():
    stats = SiloStats.from_ids(SUBJECTS, SILOS)
    assert stats.names == ("north", "south")
    assert stats.counts.toarray().tolist() == [[2, 1], [0, 2], [0, 1]]
    assert stats.counts.dtype == np.int64
    assert (stats.n_items, stats.n_subjects, stats.n_silos) == (6, 3, 2)
    assert stats.silos_per_subject == 2
    assert stats.id_dtype == "string"


_TABLES = st.lists(st.tuples(st.integers(0, 9), st.integers(5, 8)), min_size=1, max_size=60)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(_TABLES)
def test_silos_and_total_are_the_stats_of_the_rows_they_hold(rows):
    subjects, silos = (np.array(column) for column in zip(*rows, strict=True))
    stats = SiloStats.from_ids(subjects, silos)
    assert stats.total == SubjectStats.from_ids(subjects)
    assert set(stats.names) == set(silos.tolist())
    for number, name in enumerate(stats.names):
        expected = SubjectStats.from_ids(subjects[silos == name])
        assert stats.silo(number) == expected
        assert sorted(stats.silo(number).counts) == sorted(expected.counts)
    most = max(len(set(silos[subjects == one].tolist())) for one in subjects)
    assert stats.silos_per_subject == most


@settings(deadline=None, max_examples=40, derandomize=True)
@given(_TABLES, st.integers(1, 5))
def test_a_bound_holds_in_every_silo_and_is_its_k(rows, bound):
    subjects, silos = zip(*rows, strict=True)
    stats = SiloStats.from_ids(list(subjects), list(silos))
    bounded = stats.bounded(bound)
    for number in range(stats.n_silos):
        assert bounded.silo(number) == stats.silo(number).bounded(bound)
        assert bounded.silo(number).k_source == "bound"
    assert bounded.counts.max() <= bound
    assert stats.counts.max() >= bounded.counts.max()


def test_from_counts_takes_arrays_and_sparse_matrices_and_leaves_them_alone():
    counts = np.array([[2, 0], [1, 3]])
    stats = SiloStats.from_counts(counts, names=["a", "b"])
    matrix = sparse.csr_matrix(counts)
    again = SiloStats.from_counts(matrix, names=["a", "b"])
    assert (stats.counts != again.counts).nnz == 0
    bounded = stats.bounded(1)
    assert bounded.counts.toarray().tolist() == [[1, 0], [1, 1]]
    assert matrix.toarray().tolist() == stats.counts.toarray().tolist() == counts.tolist()


@pytest.mark.parametrize(
    ("counts", "names", "error", "words"),
    [
        ([[1, -1], [0, 2]], None, ValueError, "subject 0 has -1 items in silo 1"),
        ([[1, 1], [0, 0]], None, ValueError, "subject 1 has no items"),
        ([[1, 0], [1, 0]], ["a", "b"], ValueError, "silo 'b' has no items"),
        ([[1, 1]], ["a"], ValueError, "pass 2 different ones"),
        ([[1, 1]], ["a", "a"], ValueError, "pass 2 different ones"),
        ([[1.5, 1]], None, TypeError, "whole numbers"),
        ([1, 2], None, ValueError, r"pass \[subjects, silos\]"),
        (np.zeros((0, 2), int), None, ValueError, r"pass \[subjects, silos\]"),
    ],
)
def test_counts_that_no_table_has_are_refused(counts, names, error, words):
    with pytest.raises(error, match=words):
        SiloStats.from_counts(counts, names)


def test_columns_of_unequal_length_and_missing_ids_are_refused():
    with pytest.raises(ValueError, match="3 subject ids and 2 silo ids"):
        SiloStats.from_ids([1, 2, 3], ["a", "b"])
    with pytest.raises(ValueError, match="row 1 has no subject id"):
        SiloStats.from_ids(["a", ""], ["x", "y"])
    with pytest.raises(ValueError, match="row 1 has no silo id"):
        SiloStats.from_ids(["a", "b"], ["x", None])


@pytest.mark.parametrize(
    ("index", "error"), [(2, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)]
)
def test_a_silo_that_is_not_there_is_refused(index, error):
    with pytest.raises(error):
        SiloStats.from_ids(SUBJECTS, SILOS).silo(index)


def test_the_stats_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SiloStats.from_ids(SUBJECTS, SILOS).cap = 3


def test_prints_as_a_table_that_says_where_the_figures_come_from():
    stats = SiloStats.from_ids(SUBJECTS, SILOS)
    lines = str(stats).splitlines()
    assert lines[1].split() == ["north", "1", "2", "2"]
    assert lines[2].split() == ["south", "3", "4", "2"]
    assert lines[3].split() == ["all", "silos", "3", "6", "3"]
    assert "at most 2 of 2 silos (read from the data)" in lines[4]
    assert repr(stats) == "SiloStats(n_items=6, n_subjects=3, n_silos=2, silos_per_subject=2)"
    many = SiloStats.from_counts(np.ones((2, 50), int))
    assert "31 more silos" in str(many) and len(str(many).splitlines()) == 23


def test_the_horizontal_plan_takes_the_stats_as_membership():
    stats = SiloStats.from_ids(SUBJECTS, SILOS)
    plan = HorizontalPlan([(higradavg_event(0.1, 2, 3.0), 5, 2)] * 2)
    found = plan.per_subject_epsilon(stats, delta=1e-5)
    dense = plan.per_subject_epsilon(stats.counts.toarray(), delta=1e-5)
    assert found.epsilon.tolist() == dense.epsilon.tolist()
    assert found.epsilon[0] > found.epsilon[1] == found.epsilon[2]


def test_elements_of_two_kinds_are_refused_and_the_kind_is_kept():
    subjects, silos = [1, 1, 2], ["a", "b", "b"]
    with pytest.raises(TypeError, match="element ids are of more than one kind.*equal elements"):
        SiloStats.from_ids(subjects, silos, element_id=[3, "3", "4"])
    for element_id, dtype in (([3, 3, 4], "int64"), (list("334"), "string"), (None, None)):
        stats = SiloStats.from_ids(subjects, silos, element_id=element_id)
        assert stats.element_dtype == dtype
    with pytest.raises(ValueError, match="element_dtype is 'float32'"):
        dataclasses.replace(stats, element_dtype="float32")
