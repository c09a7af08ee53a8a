# SPDX-License-Identifier: Apache-2.0
"""Pseudo-users: who gets which items of which elements.

Statistical tests have a fixed seed and a false-alarm rate of 1e-6 or less each.
"""

import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from tf_subjectdp.elements import pseudo_users

FALSE_ALARM = 1e-6


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    n_users=st.integers(1, 8),
    items=st.integers(1, 8),
    per_user=st.integers(1, 4),
    when_empty=st.sampled_from(["error", "copy"]),
    seed=st.integers(0, 2**40),
)
def test_every_user_has_its_items_from_its_elements(
    labels, n_users, items, per_user, when_empty, seed
):
    labels = np.array(labels)
    try:
        rows, users, elements = pseudo_users(
            labels, n_users=n_users, items_per_user=items, elements_per_user=per_user,
            when_empty=when_empty, seed=seed,
        )  # fmt: skip
    except ValueError:
        smallest = np.sort(np.bincount(labels)[np.unique(labels)])[:per_user]
        enough = smallest.sum() >= items * (n_users if when_empty == "error" else 1)
        assert len(smallest) < per_user or not enough, "refused without need"
        assume(False)
    assert rows.dtype == users.dtype == np.int64 and rows.shape == users.shape == elements.shape
    assert np.array_equal(users, np.repeat(np.arange(n_users), items))
    assert np.array_equal(elements, labels[rows])
    for user in range(n_users):
        mine = rows[users == user]
        assert len(set(mine.tolist())) == items
        assert len(set(labels[mine].tolist())) <= per_user
    if when_empty == "error":
        assert len(set(rows.tolist())) == len(rows)
    again = pseudo_users(
        labels, n_users=n_users, items_per_user=items, elements_per_user=per_user,
        when_empty=when_empty, seed=seed,
    )  # fmt: skip
    assert np.array_equal(rows, again.rows)
    named = pseudo_users(
        [f"e{k}" for k in labels], n_users=n_users, items_per_user=items,
        elements_per_user=per_user, when_empty=when_empty, seed=seed,
    )  # fmt: skip
    assert np.array_equal(rows, named.rows), "what elements are called does not matter"
    assert named.elements.tolist() == [f"e{k}" for k in elements]


def test_a_copy_is_made_only_where_a_users_elements_have_run_out():
    labels = np.repeat([0, 1], [10, 30])
    rows, users, _ = pseudo_users(
        labels, n_users=8, items_per_user=5, elements_per_user=2, when_empty="copy", seed=0
    )
    assert sorted(rows.tolist()) == list(range(40)), "exactly enough: no copy"
    rows, users, _ = pseudo_users(
        labels, n_users=12, items_per_user=9, elements_per_user=2, when_empty="copy", seed=0
    )
    times = np.bincount(rows, minlength=40)
    assert times.min() >= 2 and times.max() <= 3, "108 items of 40, dealt in turn"
    assert len(set(zip(rows.tolist(), users.tolist(), strict=True))) == len(rows)


def test_elements_of_users_are_uniform_subsets():
    # five elements of so many items that all of a user's are seen
    labels = np.tile(np.arange(5), 40_000)
    rows, users, elements = pseudo_users(
        labels, n_users=3_000, items_per_user=50, elements_per_user=2, seed=1
    )
    table = np.zeros((3_000, 5), bool)
    table[users, elements] = True
    assert (table.sum(axis=1) == 2).all()  # fails with probability 3000 * 2**-49
    pairs = np.array([np.flatnonzero(row) for row in table]) @ [5, 1]
    found = np.unique(pairs, return_counts=True)[1]
    assert len(found) == 10 and stats.chisquare(found).pvalue > FALSE_ALARM


def test_items_are_a_uniform_draw_from_what_the_elements_have():
    labels = np.repeat([0, 1, 2], [2, 3, 5])
    rng, times, counts = np.random.default_rng(3), 3_000, np.zeros(10)
    small = 0
    for _ in range(times):
        rows = pseudo_users(labels, n_users=2, items_per_user=3, elements_per_user=3, seed=rng).rows
        counts[rows[3:]] += 1
        small += (labels[rows[:3]] == 0).sum()
    # three of ten without replacement: less even than independent draws would be; so scaled
    expected = times * 0.3
    statistic = ((counts - expected) ** 2).sum() / (expected * 0.7) * 9 / 10
    assert FALSE_ALARM / 4 < stats.chi2.sf(statistic, 9) < 1 - FALSE_ALARM / 4
    # of the first element: hypergeometric
    sd = stats.hypergeom(10, 2, 3).std() * np.sqrt(times)
    assert abs(small - times * 0.6) < stats.norm.isf(FALSE_ALARM / 4) * sd * 1.01


def test_seeds():
    labels = np.arange(1000) % 20
    given = {"n_users": 30, "items_per_user": 10, "elements_per_user": 4}
    assert not np.array_equal(
        pseudo_users(labels, **given).rows, pseudo_users(labels, **given).rows
    )
    rng = np.random.default_rng(0)
    one, two = pseudo_users(labels, seed=rng, **given), pseudo_users(labels, seed=rng, **given)
    assert not np.array_equal(one.rows, two.rows)


def test_sixty_thousand_items_and_a_thousand_users_take_no_time():
    labels = np.random.default_rng(0).integers(100, size=60_000)
    start = time.process_time()
    made = pseudo_users(
        labels, n_users=1_000, items_per_user=60, elements_per_user=5, when_empty="copy", seed=0
    )
    assert time.process_time() - start < 5.0, "0.05 s is usual"
    assert made.rows.shape == (60_000,)


@pytest.mark.parametrize(
    "changed, kind, text",
    [
        ({"n_users": 0}, ValueError, "n_users"),
        ({"items_per_user": 1.0}, TypeError, "items_per_user"),
        ({"elements_per_user": True}, TypeError, "elements_per_user"),
        ({"elements_per_user": 4}, ValueError, "3 elements have items"),
        ({"n_users": 10}, ValueError, 'need 30 items and there are 12: .*"copy"'),
        ({"n_users": 4, "elements_per_user": 1}, ValueError, "elements of user .* items left"),
        ({"items_per_user": 9, "when_empty": "copy"}, ValueError, "8 items in all"),
        ({"when_empty": "more"}, ValueError, "when_empty"),
        ({"n_elements": 2}, ValueError, "from 0 to 2, outside 0..1"),
        ({"n_elements": 2.5}, TypeError, "n_elements"),
        ({"element_ids": ["a", "b"] * 6, "n_elements": 3}, TypeError, "no integers"),
        ({"element_ids": [0, None]}, ValueError, "row 1 has no element id"),
        ({"element_ids": [0.0, 1.0]}, TypeError, "float"),
        ({"element_ids": []}, ValueError, "no rows"),
        ({"element_ids": np.zeros((2, 2), int)}, ValueError, "one element id a row"),
        ({"seed": "x"}, TypeError, "seed"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(changed, kind, text):
    given = {"element_ids": np.arange(12) % 3, "n_users": 2, "items_per_user": 3}
    given |= {"elements_per_user": 2, "seed": 0, **changed}
    with pytest.raises(kind, match=text):
        pseudo_users(given.pop("element_ids"), **given)


def test_n_elements_is_a_check_alone():
    labels = np.array([0, 1, 5, 5, 1, 0])
    given = {"n_users": 2, "items_per_user": 2, "elements_per_user": 2, "seed": 3}
    for n_elements in (6, 100):
        one = pseudo_users(labels.tolist(), n_elements=n_elements, **given)
        assert np.array_equal(one.rows, pseudo_users(labels, **given).rows)
