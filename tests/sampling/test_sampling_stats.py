# SPDX-License-Identifier: Apache-2.0
"""SubjectStats: what is counted, what is public, and what travels in a config."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_subjectdp.sampling import SubjectStats, SubjectTable, bound_contributions

IDS = ["a"] * 4 + ["b"] + ["c"] * 3


def test_figures_are_those_of_the_table():
    stats = SubjectStats.from_ids(IDS)
    assert (stats.n_items, stats.n_subjects, stats.max_items) == (8, 3, 4)
    assert sorted(stats.counts.tolist()) == [1, 3, 4]
    assert stats.mean == pytest.approx(8 / 3)
    assert stats.k_source == "data"
    assert stats.id_dtype == "string"
    assert SubjectStats.from_ids([7, 8]).id_dtype == "int64"


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.floats(0, 1))
def test_quantile_is_the_least_bound_that_covers_the_share(counts, p):
    value = SubjectStats.from_counts(counts).quantile(p)
    assert value in counts
    assert np.mean(np.array(counts) <= value) >= p - 1e-12
    assert np.mean(np.array(counts) < value) <= p + 1e-12


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 12))
def test_bounded_stats_are_those_of_the_bounded_rows(ids, bound):
    table = SubjectTable.from_ids(ids)
    rows = bound_contributions(table.codes, table.n_subjects, bound, np.random.default_rng(0))
    bounded = SubjectStats.from_ids(ids).bounded(bound)
    assert bounded.n_items == rows.size
    assert bounded.n_subjects == table.n_subjects
    np.testing.assert_array_equal(bounded.counts, np.bincount(table.codes[rows]))


def test_bound_is_the_public_figure_even_above_the_largest_count():
    bounded = SubjectStats.from_ids(IDS).bounded(100)
    assert bounded.max_items == 100 and bounded.n_items == 8
    assert bounded.k_source == "bound"
    assert bounded.id_dtype == "string"


def test_config_holds_no_counts_and_restores_equal_stats():
    for stats in (
        SubjectStats.from_ids(IDS),
        SubjectStats.from_counts([3, 1]).bounded(2),
        SubjectStats.public(n_items=10, n_subjects=5, max_items=4),
    ):
        config = json.loads(json.dumps(stats.get_config()))
        assert "counts" not in config
        restored = SubjectStats.from_config(config)
        assert restored == stats and restored.counts is None
        assert restored.get_config() == stats.get_config()


def test_what_needs_the_counts_says_so_where_only_figures_are_known():
    stats = SubjectStats.public(n_items=10, n_subjects=5, max_items=4)
    assert stats.k_source == "public"
    for ask in (lambda: stats.quantile(0.5), lambda: stats.bounded(2)):
        with pytest.raises(ValueError, match="from_ids or from_counts"):
            ask()


@pytest.mark.parametrize(
    "figures, message",
    [
        ({"n_items": 0}, "n_items is 0"),
        ({"n_subjects": 11}, "n_subjects is 11, above n_items 10"),
        ({"max_items": 1}, "max_items 1 is too small.*at least 2"),
    ],
)
def test_figures_that_no_table_has_are_refused(figures, message):
    with pytest.raises(ValueError, match=message):
        SubjectStats.public(**{"n_items": 10, "n_subjects": 5, "max_items": 4, **figures})


def test_wrong_arguments_are_refused_with_value_and_remedy():
    with pytest.raises(TypeError, match="n_items is 10.0"):
        SubjectStats.public(n_items=10.0, n_subjects=5, max_items=4)
    with pytest.raises(ValueError, match="subject 1 has 0 items"):
        SubjectStats.from_counts([1, 0])
    with pytest.raises(TypeError, match="float64"):
        SubjectStats.from_counts([1.5])
    with pytest.raises(ValueError, match="shape"):
        SubjectStats.from_counts([])
    with pytest.raises(ValueError, match="p is 1.5"):
        SubjectStats.from_ids(IDS).quantile(1.5)
    with pytest.raises(ValueError, match="max_items is 0"):
        SubjectStats.from_ids(IDS).bounded(0)
    with pytest.raises(ValueError, match="k_source is 'guess'"):
        SubjectStats(n_items=1, n_subjects=1, max_items=1, k_source="guess")


def test_prints_short_and_without_the_counts():
    stats = SubjectStats.from_ids(np.repeat(np.arange(2000), 3))
    assert repr(stats) == (
        "SubjectStats(n_items=6000, n_subjects=2000, max_items=3, k_source='data')"
    )
    lines = str(stats).splitlines()
    assert len(lines) == 4 and max(map(len, lines)) < 80
    assert "2,000" in lines[0] and "6,000" in lines[1] and "read from the data" in lines[3]


def test_counts_whose_sum_overflows_are_refused():
    with pytest.raises(ValueError, match="counts add up to 1.38e\\+19 items"):
        SubjectStats.from_counts([2**62] * 3)


def test_only_public_figures_have_public_sizes():
    public = SubjectStats.public(n_items=10, n_subjects=5, max_items=4)
    assert public.sizes_public and SubjectStats.from_config(public.get_config()).sizes_public
    assert not SubjectStats.from_ids(IDS).bounded(2).sizes_public


def test_a_source_that_is_a_list_is_named():
    with pytest.raises(ValueError, match=r"k_source is \['data'\]"):
        SubjectStats(n_items=1, n_subjects=1, max_items=1, k_source=["data"])
