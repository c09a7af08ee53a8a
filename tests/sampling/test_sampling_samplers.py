# SPDX-License-Identifier: Apache-2.0
"""The laws of the four samplers, and what they refuse.

Statistical tests have a fixed seed and a false-alarm rate of 1e-6 each.
"""

import json
from collections import Counter
from itertools import islice, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tf_subjectdp.sampling import (
    FixedSize,
    PoissonItems,
    PoissonSubjects,
    Shuffle,
    SubjectTable,
    fresh_rng,
    sampler_from_config,
)

FALSE_ALARM = 1e-6
SAMPLERS = [PoissonItems(5), PoissonSubjects(2.5, 3), FixedSize(4), Shuffle(4)]


def table_of(n_items, n_subjects=None):
    n_subjects = n_subjects or n_items
    return SubjectTable.from_codes(np.arange(n_items) % n_subjects, n_subjects)


def draws(sampler, table, rate, steps, seed):
    return list(islice(sampler.batches(table, rate, np.random.default_rng(seed)), steps))


def p_value(observed, expected):
    """Chi-square against expected counts, rare cells pooled."""
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    rare = expected < 8
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    return stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), observed.size - 1)


def joint_p_value(sets, n, rate):
    """All 2^n subsets of n units against n independent coins."""
    codes = [sum(1 << int(unit) for unit in chosen) for chosen in sets]
    heads = np.array([bin(code).count("1") for code in range(1 << n)])
    law = rate**heads * (1 - rate) ** (n - heads)
    return p_value(np.bincount(codes, minlength=1 << n), len(sets) * law)


def test_poisson_items_are_independent_coins_in_every_joint_outcome():
    sets = draws(PoissonItems(2.1), table_of(7), 0.3, 20_000, seed=11)
    assert joint_p_value(sets, 7, 0.3) > FALSE_ALARM


@pytest.mark.parametrize("rate", [0.002, 0.3])
def test_poisson_items_of_a_large_table_have_binomial_size_and_equal_marginals(rate):
    n, steps = 20_000, 600
    batches = draws(PoissonItems(n * rate), table_of(n), rate, steps, seed=12)
    sizes = np.array([rows.size for rows in batches])
    law = stats.binom(n, rate)
    # the probability integral transform with a coin is uniform exactly
    coin = np.random.default_rng(13).random(steps)
    uniform = law.cdf(sizes - 1) + coin * law.pmf(sizes)
    assert stats.kstest(uniform, "uniform").pvalue > FALSE_ALARM
    bins = np.bincount(np.concatenate(batches) // 200, minlength=100)
    trials = 200 * steps
    z2 = (bins - trials * rate) ** 2 / (trials * rate * (1 - rate))
    assert stats.chi2.sf(z2.sum(), 100) > FALSE_ALARM
    assert all(np.all(np.diff(rows) > 0) for rows in batches)


def test_steps_do_not_depend_on_the_step_before():
    batches = draws(PoissonItems(20), table_of(40), 0.5, 3_000, seed=14)
    present = np.zeros((3_000, 40), bool)
    for step, rows in enumerate(batches):
        present[step, rows] = True
    for lag in (1, 2):
        pairs = 2 * present[lag:].astype(int) + present[:-lag]
        assert p_value(np.bincount(pairs.ravel(), minlength=4), np.full(4, pairs.size / 4)) > (
            FALSE_ALARM
        )


def test_poisson_subjects_are_independent_coins_and_bring_all_their_rows():
    table = SubjectTable.from_ids(np.repeat(np.arange(6), [1, 2, 3, 4, 5, 6])[::-1])
    batches = draws(PoissonSubjects(2.4), table, 0.4, 12_000, seed=15)
    sets = [np.unique(table.codes[rows]) for rows in batches]
    assert joint_p_value(sets, 6, 0.4) > FALSE_ALARM
    for rows, subjects in zip(batches[:500], sets[:500], strict=True):
        expected = np.flatnonzero(np.isin(table.codes, subjects))
        assert sorted(rows.tolist()) == expected.tolist()


def test_poisson_subjects_bring_a_fresh_uniform_choice_of_at_most_the_bound():
    table = SubjectTable.from_ids([0, 1, 0, 0, 1, 0, 2, 0])
    batches = draws(PoissonSubjects(3, max_items_per_subject=2), table, 1.0, 4_000, seed=16)
    pairs = Counter()
    for rows in batches:
        assert np.bincount(table.codes[rows]).tolist() == [2, 2, 1]
        pairs[tuple(sorted(rows[table.codes[rows] == 0].tolist()))] += 1
    assert len(pairs) == 10
    assert p_value(list(pairs.values()), np.full(10, 400)) > FALSE_ALARM


def test_fixed_size_draws_every_ordered_choice_equally_often():
    batches = draws(FixedSize(2), table_of(5), 0.4, 6_000, seed=17)
    cells = Counter(tuple(rows.tolist()) for rows in batches)
    assert set(cells) == set(permutations(range(5), 2))
    assert p_value(list(cells.values()), np.full(20, 300)) > FALSE_ALARM


def test_shuffle_visits_every_row_once_an_epoch_in_a_fresh_uniform_order():
    batches = draws(Shuffle(3), table_of(4), 0.75, 2 * 6_000, seed=18)
    assert [rows.size for rows in batches[:4]] == [3, 1, 3, 1]
    epochs = [tuple(np.concatenate(batches[at : at + 2]).tolist()) for at in range(0, 12_000, 2)]
    cells = Counter(epochs)
    assert set(cells) == set(permutations(range(4)))
    assert p_value(list(cells.values()), np.full(24, 250)) > FALSE_ALARM


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_batches_are_int64_rows_without_repetition(sampler):
    table = table_of(30, 7)
    for rows in draws(sampler, table, sampler.rate(30, 7), 200, seed=19):
        assert rows.dtype == np.int64 and rows.ndim == 1
        assert np.unique(rows).size == rows.size
        assert rows.size == 0 or (rows.min() >= 0 and rows.max() < 30)


@pytest.mark.parametrize("sampler", [PoissonItems(0.1), PoissonSubjects(0.1, 2)])
def test_empty_batches_are_yielded_not_skipped(sampler):
    batches = draws(sampler, table_of(20, 5), 0.001, 500, seed=20)
    assert len(batches) == 500
    empty = [rows for rows in batches if rows.size == 0]
    assert len(empty) > 400
    assert all(rows.shape == (0,) and rows.dtype == np.int64 for rows in empty)


@pytest.mark.parametrize(
    "sampler", [PoissonItems(12), PoissonSubjects(4), FixedSize(12), Shuffle(12)]
)
def test_rate_one_takes_everybody_in_every_step(sampler):
    assert sampler.rate(12, 4) == 1.0
    assert sampler.steps_per_epoch(12, 4) == 1
    for rows in draws(sampler, table_of(12, 4), 1.0, 5, seed=21):
        assert sorted(rows.tolist()) == list(range(12))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(1, 5000), st.integers(1, 5000))
def test_an_epoch_covers_the_data_once_with_no_step_to_spare(first, second):
    size, n_items = sorted((first, second))
    for sampler in (PoissonItems(size), FixedSize(size), Shuffle(size)):
        steps = sampler.steps_per_epoch(n_items, 1)
        assert (steps - 1) * size < n_items <= steps * size
        assert sampler.rate(n_items, 1) == size / n_items
    assert PoissonSubjects(size).steps_per_epoch(10**6, n_items) == -(-n_items // size)


def test_rate_comes_from_the_plan_and_not_from_the_table():
    # a table of another size than the plan's keeps the plan's coin
    sizes = [rows.size for rows in draws(PoissonItems(50), table_of(1000), 0.01, 400, seed=22)]
    assert abs(np.mean(sizes) - 10) < 1


@pytest.mark.parametrize("sampler", [PoissonItems(11), FixedSize(11), Shuffle(11)])
def test_batch_above_the_data_names_both_numbers(sampler):
    for ask in (sampler.rate, sampler.steps_per_epoch):
        with pytest.raises(ValueError, match="batch above the data.* 11 items.* 10;"):
            ask(10, 10)


def test_more_subjects_than_there_are_names_both_numbers():
    with pytest.raises(ValueError, match="batch above the data.* 5.5 subjects.* 5;"):
        PoissonSubjects(5.5).rate(100, 5)
    with pytest.raises(ValueError, match="batch above the data"):
        FixedSize(11).batches(table_of(10), 1.0, np.random.default_rng(0))


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), -0.5])
def test_expected_sizes_that_are_not_positive_are_refused(value):
    for kind in (PoissonItems, PoissonSubjects):
        with pytest.raises(ValueError, match="must be finite and above 0"):
            kind(value)


@pytest.mark.parametrize("value", [True, "12", None])
def test_sizes_that_are_no_numbers_are_refused(value):
    for kind in (PoissonItems, PoissonSubjects, FixedSize, Shuffle):
        with pytest.raises(TypeError, match=f"is {value!r}"):
            kind(value)


def test_fixed_sizes_and_bounds_are_whole_numbers():
    for make in (FixedSize, Shuffle, lambda size: PoissonSubjects(3, size)):
        with pytest.raises(TypeError, match="is 2.5"):
            make(2.5)
        with pytest.raises(ValueError, match="is 0: it must be at least 1"):
            make(0)
        assert make(np.int32(3)) == make(3)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan"), True, None])
def test_rates_outside_zero_to_one_are_refused(sampler, rate):
    with pytest.raises(ValueError, match="a sampling rate is above 0 and at most 1"):
        sampler.batches(table_of(30, 7), rate, np.random.default_rng(0))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_config_round_trip_is_equal_through_json(sampler):
    config = json.loads(json.dumps(sampler.get_config()))
    assert sampler_from_config(config) == sampler
    assert type(sampler).from_config(config) == sampler
    assert hash(sampler_from_config(config)) == hash(sampler)


def test_configs_of_others_are_refused():
    with pytest.raises(ValueError, match="config of Shuffle, not of FixedSize"):
        FixedSize.from_config(Shuffle(3).get_config())
    with pytest.raises(ValueError, match="class_name is 'Bernoulli'"):
        sampler_from_config({"class_name": "Bernoulli"})


def test_arguments_go_by_position_and_by_name():
    assert PoissonItems(5) == PoissonItems(expected_batch_size=5)
    assert PoissonSubjects(5, 2) == PoissonSubjects(expected_subjects=5, max_items_per_subject=2)
    assert FixedSize(5) == FixedSize(batch_size=5)
    assert Shuffle(5) == Shuffle(batch_size=5)
    with pytest.raises(AttributeError):
        Shuffle(5).batch_size = 6


def test_generators_never_repeat_one_another_with_a_seed_or_without():
    for factory in (fresh_rng(), fresh_rng(7)):
        assert len({factory().integers(2**62) for _ in range(50)}) == 50
    first, second = fresh_rng(7), fresh_rng(7)
    assert [first().integers(2**62) for _ in range(3)] == [
        second().integers(2**62) for _ in range(3)
    ]
    assert fresh_rng()().integers(2**62) != fresh_rng()().integers(2**62)


def test_seeds_that_are_no_seeds_are_refused():
    with pytest.raises(ValueError, match="seed is -1"):
        fresh_rng(-1)
    for seed in (1.5, True, "7"):
        with pytest.raises(TypeError, match="seed is"):
            fresh_rng(seed)


@pytest.mark.parametrize("size", [10**400, 1e300, 1e-200])
def test_a_batch_beyond_the_arithmetic_is_refused(size):
    with pytest.raises(ValueError, match="expected_batch_size is"):
        PoissonItems(size)
