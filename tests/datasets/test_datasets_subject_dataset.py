# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_subjectdp.datasets import SubjectDataset, split_subjects


def _dataset(rows=4):
    return SubjectDataset(
        name="tiny",
        x={"a": np.arange(rows), "b": np.arange(rows) * 10},
        y=np.arange(rows) % 2,
        subject_id=np.arange(rows) // 2,
        silo_id=np.array(["s", "t"])[np.arange(rows) % 2],
    )


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    ids=st.lists(st.integers(-5, 30), min_size=2, max_size=80).filter(lambda v: len(set(v)) > 1),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 1000),
)
def test_no_subject_is_on_both_sides_and_no_row_is_lost(ids, fraction, seed):
    ids = np.array(ids)
    train, test = split_subjects(ids, fraction, seed)
    assert not set(ids[train]) & set(ids[test])
    assert np.array_equal(train, ~test)
    subjects = len(set(ids.tolist()))
    expected = min(max(round(fraction * subjects), 1), subjects - 1)
    assert len(set(ids[test].tolist())) == expected


def test_split_is_a_function_of_the_seed_and_takes_string_ids():
    ids = np.array([f"p{i % 40}" for i in range(200)])
    assert np.array_equal(split_subjects(ids, seed=3)[0], split_subjects(ids, seed=3)[0])
    assert not np.array_equal(split_subjects(ids, seed=3)[0], split_subjects(ids, seed=4)[0])


def test_split_does_not_depend_on_the_order_of_the_rows():
    ids = np.random.default_rng(0).integers(0, 50, 300)
    order = np.random.default_rng(1).permutation(300)
    assert set(ids[split_subjects(ids)[1]]) == set(ids[order][split_subjects(ids[order])[1]])


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_split_refuses_a_fraction_outside_the_open_interval(fraction):
    with pytest.raises(ValueError, match="test_fraction is"):
        split_subjects(np.array([1, 2]), fraction)


def test_split_refuses_one_subject_and_a_matrix():
    with pytest.raises(ValueError, match="at least 2"):
        split_subjects(np.array([7, 7, 7]))
    with pytest.raises(ValueError, match="shape"):
        split_subjects(np.zeros((2, 2)))


def test_take_keeps_all_columns_aligned_for_masks_and_positions():
    data = _dataset()
    for rows in (np.array([False, True, False, True]), np.array([1, 3])):
        part = data.take(rows)
        assert len(part) == 2
        assert part.x["b"].tolist() == [10, 30]
        assert part.subject_id.tolist() == [0, 1]
        assert part.silo_id.tolist() == ["t", "t"]
    assert data.num_subjects == 2 and data.num_silos == 2


def test_take_refuses_a_mask_of_another_length():
    with pytest.raises(ValueError, match="mask of shape"):
        _dataset().take(np.array([True]))


def test_columns_of_unequal_length_are_refused_by_name():
    with pytest.raises(ValueError, match="silo_id has 3 rows and y has 2"):
        SubjectDataset("tiny", np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match=r"x\['a'\] has 1 rows"):
        SubjectDataset("tiny", {"a": np.zeros(1)}, np.zeros(2), np.zeros(2), np.zeros(2))
