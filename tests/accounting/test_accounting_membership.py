# SPDX-License-Identifier: Apache-2.0
"""epsilon of every subject by real membership: against one plan for each subject."""

import types

import numpy as np
import pytest
from scipy import sparse

from tf_subjectdp import accounting as acc
from tf_subjectdp.accounting.silos.horizontal import HorizontalPlan, _grid, per_subject_epsilon
from tf_subjectdp.accounting.silos.silo import Silo
from tf_subjectdp.sampling.silos import SiloStats

DELTA = 1e-5
SILOS = tuple(
    Silo(acc.higradavg_event(0.01 + 0.01 * i, 4, 2.0 + 0.5 * i), 1, 20 + 5 * i, name=f"h{i}")
    for i in range(4)
)
TABLE = np.array([[1, 0, 0, 0], [3, 2, 0, 0], [0, 1, 0, 4], [0, 0, 0, 0], [2, 9, 0, 0]])


@pytest.mark.parametrize("engine", ["pld", "rdp"])
def test_each_subject_costs_what_its_silos_cost(engine):
    result = HorizontalPlan(SILOS).per_subject_epsilon(TABLE, delta=DELTA, engine=engine)
    for row, value in zip(TABLE, result.epsilon, strict=True):
        own = [SILOS[i] for i in np.flatnonzero(row)]
        expected = HorizontalPlan(own).epsilon(DELTA, engine) if own else 0.0
        assert value == pytest.approx(expected, rel=1e-6)
    assert result.epsilon.dtype == np.float64
    assert len(result.patterns) == 4
    assert result.exact.all()
    assert result.worst == result.epsilon.max()
    assert result.quantile(0.0) == 0.0
    assert result.quantile(1.0) == result.worst
    assert result.worst <= HorizontalPlan(SILOS).epsilon(DELTA)


def test_in_the_average_the_noise_of_all_silos_protects_each_subject():
    plan = HorizontalPlan(SILOS, view="average")
    result = plan.per_subject_epsilon(TABLE, delta=DELTA)
    there = np.array([[1, 1, 1, 1]])
    assert plan.per_subject_epsilon(there, delta=DELTA).worst == pytest.approx(
        plan.epsilon(DELTA), rel=1e-9
    )
    # Subject 0, in silo 0 alone, against all four noises while they report.
    single = HorizontalPlan(SILOS, view="average", silos_per_subject=1)
    alone = single.make_view()
    number = alone.type_of(0, SILOS[0].event)
    assert result.epsilon[0] == pytest.approx(acc.epsilon(alone.event([number]), delta=DELTA))
    updates = HorizontalPlan(SILOS).per_subject_epsilon(TABLE, delta=DELTA)
    assert (result.epsilon <= updates.epsilon).all()


def test_all_forms_of_membership_agree():
    plan = HorizontalPlan(SILOS)
    expected = plan.per_subject_epsilon(TABLE, delta=DELTA).epsilon
    stats = types.SimpleNamespace(counts=TABLE)
    for form in (TABLE.tolist(), TABLE.astype(float), sparse.csr_matrix(TABLE), stats):
        assert np.array_equal(plan.per_subject_epsilon(form, delta=DELTA).epsilon, expected)
    row, column = np.nonzero(TABLE)
    row, column = np.repeat(row, TABLE[row, column]), np.repeat(column, TABLE[row, column])
    shuffle = np.random.default_rng(0).permutation(len(row))
    row, column = row[shuffle], column[shuffle]
    named = np.array([f"patient{r}" for r in row]), np.array([f"h{c}" for c in column])
    for pair in ((row, column), named):
        result = per_subject_epsilon(plan, pair, delta=DELTA)
        assert np.array_equal(result.epsilon, expected[[0, 1, 2, 4]])  # subject 3 has no items
    assert list(result.subjects) == ["patient0", "patient1", "patient2", "patient4"]
    assert np.array_equal(result.patterns[result.pattern] > 0, TABLE[[0, 1, 2, 4]] > 0)


def test_columns_are_matched_by_name_where_there_are_names():
    plan = HorizontalPlan(SILOS)
    expected = plan.per_subject_epsilon(TABLE, delta=DELTA).epsilon
    turned = SiloStats.from_counts(TABLE[[0, 1, 2, 4]][:, [3, 1, 0]], ["h3", "h1", "h0"])
    assert np.array_equal(
        plan.per_subject_epsilon(turned, delta=DELTA).epsilon, expected[[0, 1, 2, 4]]
    )
    with pytest.raises(ValueError, match="'z'"):
        plan.per_subject_epsilon(
            types.SimpleNamespace(counts=TABLE, names=["h0", "h1", "h2", "z"]), delta=DELTA
        )
    with pytest.raises(ValueError, match="one name"):
        plan.per_subject_epsilon(
            types.SimpleNamespace(counts=TABLE, names=["h0", "h1", "h2"]), delta=DELTA
        )


def _by_items(i):
    return lambda items: acc.group_event(0.02 + 0.01 * i, items, 6.0 + i)


@pytest.mark.parametrize("view", ["updates", "average"])
def test_a_subject_costs_what_its_own_items_cost_rounded_up(view):
    silos = [Silo(_by_items(i)(40), 1, 30, event_of_items=_by_items(i)) for i in range(2)]
    plan = HorizontalPlan(silos, view=view)
    table = np.array([[1, 0], [13, 5], [40, 40], [0, 27]])
    result = plan.per_subject_epsilon(table, delta=DELTA)
    for row, value in zip(table, result.epsilon, strict=True):
        worse = row + np.ceil(0.08 * row).astype(int)
        low, high = (
            _own(silos, counts, view).per_subject_epsilon([row.tolist()], delta=DELTA).worst
            for counts in (row, np.minimum(worse, 40))
        )
        assert low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
    assert result.epsilon[2] == pytest.approx(plan.epsilon(DELTA), rel=1e-9)
    assert "not proven" not in result.note


def _own(silos, counts, view):
    """A plan in which each silo has the event of exactly so many items."""
    own = [
        Silo(silo.event_of_items(max(int(n), 1)), 1, silo.rounds)
        for silo, n in zip(silos, counts, strict=True)
    ]
    return HorizontalPlan(own, view=view)


def test_more_items_than_the_plan_covers_are_counted_and_noted():
    silos = [Silo(_by_items(0)(10), 1, 30, event_of_items=_by_items(0))]
    plan = HorizontalPlan(silos)
    result = plan.per_subject_epsilon([[10], [30]], delta=DELTA)
    assert result.epsilon[0] == pytest.approx(plan.epsilon(DELTA))
    assert result.worst > plan.epsilon(DELTA)
    assert "not proven to cover" in result.note


def test_item_counts_are_rounded_up_by_at_most_eight_percent():
    grid = _grid(5000)
    counts = np.arange(1, 5001)
    rounded = grid[np.searchsorted(grid, counts)]
    assert (rounded >= counts).all()
    assert (rounded <= 1.08 * counts).all()
    assert grid[-1] == 5000
    assert len(grid) < 100


@pytest.mark.parametrize("view", ["updates", "average"])
def test_a_large_table_has_upper_bounds_for_everybody_within_the_plan(view):
    silos = [
        Silo(acc.higradavg_event(0.01 + 0.001 * i, 5 + i, 4.0 + 0.25 * i), 1, 20 - 10 * (i > 4))
        for i in range(9)
    ]
    plan = HorizontalPlan(silos, view=view)
    rng = np.random.default_rng(1)
    table = (rng.random((20_000, 9)) < rng.beta(0.6, 1.2, size=(20_000, 1))).astype(np.int64)
    result = plan.per_subject_epsilon(table, delta=DELTA)
    assert len(result.patterns) > 400
    # The averaged view has Renyi bounds for most; the other loss distributions for everybody.
    assert result.exact.all() == (plan.view == "updates")
    assert result.epsilon.max() <= plan.epsilon(DELTA)
    for subject in rng.choice(len(table), 6, replace=False):
        exact = plan.per_subject_epsilon(table[[subject]], delta=DELTA).epsilon[0]
        assert exact * (1 - 1e-9) <= result.epsilon[subject] <= exact * 1.35
    # Being in one more silo never costs less, exactly or by the bounds.
    exact_sizes = table.sum(axis=1)
    assert result.epsilon[exact_sizes == 0].max() == 0.0
    assert result.worst == pytest.approx(plan.epsilon(DELTA))  # somebody is in all silos


def test_a_broken_promise_is_refused_with_the_number_of_people():
    plan = HorizontalPlan(SILOS, silos_per_subject=1)
    with pytest.raises(ValueError, match="3 subjects are in more than silos_per_subject=1"):
        plan.per_subject_epsilon(TABLE, delta=DELTA)
    single = plan.per_subject_epsilon(TABLE[[0, 3]], delta=DELTA)
    assert single.worst <= plan.epsilon(DELTA)


def test_the_figures_are_marked_as_not_for_release():
    note = HorizontalPlan(SILOS).per_subject_epsilon(TABLE, delta=DELTA).note
    assert "people in this table" in note
    assert "not for release" in note
    assert "computed from the data" in note


@pytest.mark.parametrize(
    ("table", "error", "word"),
    [
        (TABLE[:, :3], ValueError, "4 silos"),
        (TABLE[0], ValueError, "shape"),
        (np.zeros((0, 4), int), ValueError, "shape"),
        (-TABLE, ValueError, "-9"),
        (TABLE + 0.5, ValueError, "whole"),
        (np.where(TABLE > 0, np.nan, 0.0), ValueError, "whole"),
        (np.array([["a"] * 4]), TypeError, "whole"),
        (([1, 2], [0]), ValueError, "equally long"),
        (([1, 2], [0, 4]), ValueError, "at most 3"),
        (([1, 2], ["h0", "x"]), ValueError, "'x'"),
        (([1.5, 2.0], [0, 1]), TypeError, "subject ids"),
        ((np.array(["a", None], object), [0, 1]), TypeError, "missing"),
        (([1], [0], [1]), ValueError, "tuple of 3"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name(table, error, word):
    with pytest.raises(error, match=word):
        HorizontalPlan(SILOS).per_subject_epsilon(table, delta=DELTA)


@pytest.mark.parametrize("k", [10, 40, 60, 100])
def test_a_rate_that_rounds_to_one_raises_no_false_alarm(k):
    # 1-(1-q)^k = 1 for k = 60: a plain Gaussian, which covers the mixture of fewer items.
    def event(items):
        return acc.higradavg_event(0.5, items, 10.0)

    plan = acc.HorizontalPlan([acc.Silo(event(k), 1, 10, event_of_items=event)])
    result = plan.per_subject_epsilon(np.array([[5], [9], [3]]), delta=1e-5)
    assert "may be too small" not in result.note
    assert result.worst <= plan.epsilon(1e-5)


def test_names_of_a_table_are_never_guessed_for_a_plan_that_is_half_named():
    table = SiloStats.from_ids(["x", "x", "y"], ["B", "B", "A"])
    cheap, dear = acc.item_event(0.01, 50.0), acc.item_event(0.01, 1.0)
    whole = acc.HorizontalPlan([acc.Silo(dear, 1, 9, name="A"), acc.Silo(cheap, 1, 9, name="B")])
    figures = whole.per_subject_epsilon(table, delta=1e-5).epsilon
    assert figures[1] > figures[0]
    half = acc.HorizontalPlan([acc.Silo(dear, 1, 9, name="A"), acc.Silo(cheap, 1, 9)])
    with pytest.raises(ValueError, match="give every Silo its name, or none"):
        half.per_subject_epsilon(table, delta=1e-5)


@pytest.mark.parametrize("ids", [[7, "7"], np.array([7, "7"], dtype=object)])
def test_ids_of_two_kinds_do_not_become_one_person(ids):
    plan = acc.HorizontalPlan([acc.Silo(acc.item_event(0.01, 2.0), 1, 9)])
    with pytest.raises(TypeError):
        plan.per_subject_epsilon((ids, [0, 0]), delta=1e-5)
