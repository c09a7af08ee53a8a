# SPDX-License-Identifier: Apache-2.0
"""Groups of a batch, random subsets and fresh seeds.

The draws have no seed by design; statistical tests have a false-alarm rate of 1e-6 each.
"""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tf_subjectdp import clipping

FALSE_ALARM = 1e-6


@tf.function(
    input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32)],
    reduce_retracing=True,
)
def subset(index, limit):
    return clipping.random_subset(index, limit)


@pytest.mark.parametrize("ids", [[7, -3, 7, 7, 2**40], ["b", "", "b", "b", "c"]])
def test_subjects_are_numbered_densely_whatever_their_ids_are(ids):
    mask = tf.constant([True, True, True, False, True])
    index = clipping.subject_index(tf.constant(ids), mask).numpy()
    np.testing.assert_array_equal(index, [0, 1, 0, -1, 2])
    np.testing.assert_array_equal(clipping.group_sizes(index).numpy(), [2, 1, 1, 0, 0])
    np.testing.assert_array_equal(clipping.sizes_of_rows(index).numpy(), [2, 1, 2, 1, 1])


def test_padding_that_shares_a_subjects_id_is_not_counted():
    index = clipping.subject_index(tf.constant([5, 5, 5]), tf.constant([True, False, False]))
    np.testing.assert_array_equal(clipping.sizes_of_rows(index).numpy()[:1], [1])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.integers(-1, 6), max_size=40), st.integers(1, 5))
def test_random_subset_keeps_the_limit_of_each_group_and_changes_nothing_else(groups, limit):
    index = np.array([g if g < len(groups) else -1 for g in groups], np.int32)
    kept = subset(tf.constant(index, tf.int32), limit).numpy()
    assert np.all((kept == index) | (kept == -1))
    before, after = Counter(index[index >= 0]), Counter(kept[kept >= 0])
    assert after == {group: min(size, limit) for group, size in before.items()}


def test_random_subset_is_uniform_over_the_subsets_of_every_group():
    # Two interleaved groups of 5 and a row without a group; 10 pairs each, drawn afresh every call.
    index = tf.constant([0, 1, 0, 1, 0, -1, 1, 0, 1, 0, 1], tf.int32)
    tf.random.set_seed(1)
    draws = np.array([subset(index, 2).numpy() for _ in range(3000)])
    pairs = []
    for group in (0, 1):
        chosen = [tuple(np.flatnonzero(draw == group)) for draw in draws]
        counts = Counter(chosen)
        assert len(counts) == 10
        assert stats.chisquare(list(counts.values())).pvalue > FALSE_ALARM
        pairs.append(chosen)
    # The groups are drawn independently of each other.
    table = Counter(zip(*pairs, strict=True))
    first, second = sorted(set(pairs[0])), sorted(set(pairs[1]))
    counts = [[table[(a, b)] for b in second] for a in first]
    assert stats.chi2_contingency(counts)[1] > FALSE_ALARM
