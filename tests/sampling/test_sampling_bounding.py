# SPDX-License-Identifier: Apache-2.0
"""Contribution bounding: never above the bound, never less than it allows, a uniform choice.

The statistical test has a fixed seed and a false-alarm rate of 1e-6.
"""

from itertools import combinations, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tf_subjectdp.sampling import (
    PoissonItems,
    SubjectTable,
    bound_batch,
    bound_contributions,
    bounded_batches,
)

FALSE_ALARM = 1e-6


@settings(deadline=None, max_examples=80, derandomize=True)
@given(st.lists(st.integers(0, 7), max_size=80), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_every_subject_keeps_exactly_the_smaller_of_bound_and_count(codes, bound, seed):
    codes = np.array(codes, np.int64)
    rows = bound_contributions(codes, 8, bound, np.random.default_rng(seed))
    assert rows.dtype == np.int64
    assert np.all(np.diff(rows) > 0)
    np.testing.assert_array_equal(
        np.bincount(codes[rows], minlength=8), np.minimum(np.bincount(codes, minlength=8), bound)
    )


def test_every_choice_of_rows_is_equally_likely():
    # subject 1 has five rows between those of others; all 10 pairs must come equally often
    codes = np.array([1, 0, 1, 1, 2, 1, 0, 1, 2, 2])
    mine = np.flatnonzero(codes == 1).tolist()
    cells = dict.fromkeys(combinations(mine, 2), 0)
    rng = np.random.default_rng(3)
    for _ in range(5_000):
        rows = bound_contributions(codes, 3, 2, rng)
        cells[tuple(row for row in rows.tolist() if codes[row] == 1)] += 1
    assert stats.chisquare(list(cells.values())).pvalue > FALSE_ALARM


def test_batch_is_bounded_in_its_own_order():
    table = SubjectTable.from_codes(np.repeat(np.arange(4), 5), 4)
    batch = np.array([19, 2, 0, 4, 7, 1, 18])
    kept = bound_batch(table, batch, 2, np.random.default_rng(0))
    assert sorted(np.bincount(table.codes[kept]).tolist()) == [0, 1, 2, 2]
    positions = [batch.tolist().index(row) for row in kept]
    assert positions == sorted(positions)
    assert bound_batch(table, batch[:0], 2, np.random.default_rng(0)).shape == (0,)


def test_bounded_batches_hold_the_bound_in_every_batch_and_choose_afresh():
    table = SubjectTable.from_codes(np.repeat(np.arange(3), 20), 3)
    rng = np.random.default_rng(5)
    batches = bounded_batches(PoissonItems(60).batches(table, 1.0, rng), table, 4, rng)
    drawn = list(islice(batches, 50))
    assert all(np.bincount(table.codes[rows]).tolist() == [4, 4, 4] for rows in drawn)
    assert len({tuple(rows.tolist()) for rows in drawn}) == 50


def test_a_bound_that_is_no_count_is_refused():
    rng = np.random.default_rng(0)
    for bound in (0, -1):
        with pytest.raises(ValueError, match=f"max_items is {bound}"):
            bound_contributions(np.zeros(3, int), 1, bound, rng)
    for bound in (1.5, True, None):
        with pytest.raises(TypeError, match="max_items is"):
            bound_contributions(np.zeros(3, int), 1, bound, rng)
