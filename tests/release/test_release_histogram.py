# SPDX-License-Identifier: Apache-2.0
"""Equation 5 against NumPy; sensitivities; the law of the noise; what a release says of itself."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, stats

from tf_subjectdp import accounting, release
from tf_subjectdp.release.counting import as_table
from tf_subjectdp.release.projection import keep_elements, projected_sum

_FACTOR = {"paper": 2.0, "counts": math.sqrt(2.0), "in_place": 1.0}


def _oracle(counts, block, radius):
    """Equation 5, a loop: the sum over subjects of each block projected onto its ball."""
    total = np.zeros(counts.shape[1])
    radius = np.broadcast_to(radius, (block.max() + 1,))
    for x in counts.astype(float):
        for e in range(block.max() + 1):
            part = np.where(block == e, x, 0.0)
            norm = np.linalg.norm(part)
            total += part * min(1.0, radius[e] / norm) if norm > 0 else 0.0
    return total


def _some_counts(seed, shape=(40, 12), rate=1.5):
    return np.random.default_rng(seed).poisson(rate, shape)


@pytest.mark.parametrize("radius", [0.3, 1.0, 2.5, 100.0])
@pytest.mark.parametrize("blocks", ["words", "few", "one"])
def test_without_noise_it_is_equation_5(blocks, radius):
    counts = _some_counts(0)
    block = {
        "words": None,
        "few": np.array([3, 0, 1, 1, 0, 2, 5, 0, 1, 2, 2, 5]),  # element 4 has no word
        "one": np.zeros(12, int),
    }[blocks]
    made = release.histogram(counts, radius=radius, noise_multiplier=0.0, block=block)
    expected = _oracle(counts, np.arange(12) if block is None else block, radius) / 40
    np.testing.assert_allclose(made.estimate, expected, rtol=1e-11)
    if blocks == "one":
        user = release.user_level_histogram(counts, radius=radius, noise_multiplier=0.0)
        np.testing.assert_allclose(user.estimate, expected, rtol=1e-11)


def test_chunks_change_nothing(monkeypatch):
    counts = _some_counts(1, (200, 30))
    counts[50:120] = 0
    block = np.random.default_rng(0).integers(8, size=30)
    matrix, _ = as_table(counts, None, None)
    whole = projected_sum(matrix, block, 8, 2.0)
    monkeypatch.setattr("tf_subjectdp.release.projection._AT_ONCE", 7)
    np.testing.assert_allclose(projected_sum(matrix, block, 8, 2.0), whole, rtol=1e-12)
    kept = keep_elements(matrix, block, 8, 3, np.random.default_rng(0)).toarray()
    per_row = [len(np.unique(block[row > 0])) for row in kept]
    before = [len(np.unique(block[row > 0])) for row in counts]
    assert per_row == np.minimum(before, 3).tolist()


@st.composite
def _neighbours(draw):
    """(subject, the same with one element replaced, block, whether it kept its name)."""
    block = np.array(draw(st.lists(st.integers(0, 3), min_size=6, max_size=6)))
    count = st.one_of(st.integers(0, 9), st.floats(0, 1e6), st.just(1e50))
    x = np.array(draw(st.lists(count, min_size=6, max_size=6)), float)
    other = np.array(draw(st.lists(count, min_size=6, max_size=6)), float)
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    if before != after:
        x[block == after] = 0.0  # the subject does not have the new element yet
    y = np.where(block == before, 0.0, x)
    y[block == after] = other[block == after]
    return x, y, block, before == after


def _moved(x, y, block, radius):
    parts = []
    for row in (x, y):
        matrix, _ = as_table(row[None, :], None, None)
        parts.append(projected_sum(matrix, block, 4, radius))
    return parts[1] - parts[0]


@settings(max_examples=150, deadline=None)
@given(_neighbours(), st.sampled_from([1e-3, 1.0, 7.3, 1e4]))
def test_a_replaced_element_moves_the_sum_by_sqrt_2_radii_at_most(pair, radius):
    x, y, block, same_name = pair
    moved = np.linalg.norm(_moved(x, y, block, radius)) / radius
    assert moved <= _FACTOR["counts"] * (1 + 1e-14)
    one_word = np.bincount(block).max() == 1 or same_name and np.sum(x != y) <= 1
    if same_name and one_word and all(np.sum(block == e) <= 1 for e in block[x != y]):
        assert moved <= _FACTOR["in_place"] * (1 + 1e-14)


@settings(max_examples=100, deadline=None)
@given(_neighbours())
def test_radii_of_their_own_keep_the_ratio_to_the_noise(pair):
    x, y, block, _ = pair
    radius = np.array([0.5, 1.0, 30.0, 1e4])
    moved = np.linalg.norm(_moved(x, y, block, radius) / radius[block])
    assert moved <= _FACTOR["counts"] * (1 + 1e-14)


def test_the_sensitivities_are_reached():
    two = np.zeros(2, int)
    turned = _moved(np.array([9.0, 0.0]), np.array([0.0, 9.0]), two, 2.0)
    assert np.linalg.norm(turned) == pytest.approx(2.0 * math.sqrt(2.0))
    renamed = _moved(np.array([9.0, 0.0]), np.array([0.0, 9.0]), np.array([0, 1]), 2.0)
    assert np.linalg.norm(renamed) == pytest.approx(2.0 * math.sqrt(2.0))
    recounted = _moved(np.array([9.0, 0.0]), np.array([0.0, 0.0]), np.array([0, 1]), 2.0)
    assert np.linalg.norm(recounted) == pytest.approx(2.0)


def test_a_subject_of_ten_million_words_stays_in_the_ball():
    """NumPy adds them one by one."""
    words = 10**7
    indices, ends = np.arange(words, dtype=np.int32), np.array([0, words])
    matrix = sparse.csr_matrix((np.full(words, 0.37), indices, ends), shape=(1, words))
    user = projected_sum(matrix, np.zeros(words, int), 1, 1.0)
    assert 1.0 - 1e-8 < math.sqrt(np.sum(np.square(user))) <= 1.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1e50), min_size=6, max_size=6), st.integers(1, 4))
def test_a_subject_moves_the_sum_by_sqrt_of_its_elements(x, bound):
    block = np.array([0, 1, 2, 3, 0, 1])
    matrix, _ = as_table(np.array([x]), None, None)
    kept = keep_elements(matrix, block, 4, bound, np.random.default_rng(0))
    moved = np.linalg.norm(projected_sum(kept, block, 4, 3.0))
    assert moved <= 3.0 * math.sqrt(bound) * (1 + 1e-14)
    user = projected_sum(matrix, np.zeros(6, int), 1, 3.0)
    assert np.linalg.norm(user) <= 3.0


def test_dropping_keeps_all_subsets_equally_often():
    """Chi-square over the 10 subsets of 2 of 5 elements; false alarms: 1e-6."""
    n = 20_000
    block = np.array([0, 1, 2, 2, 3, 4])
    counts = np.ones((n, 6), int)
    matrix, _ = as_table(counts, None, None)
    kept = keep_elements(matrix, block, 5, 2, np.random.default_rng(5)).toarray()
    assert np.array_equal(kept[:, 2], kept[:, 3])  # an element goes as a whole
    code = kept[:, [0, 1, 2, 4, 5]] @ (1 << np.arange(5))
    subsets, times = np.unique(code, return_counts=True)
    assert subsets.size == 10
    assert stats.chisquare(times).pvalue > 1e-6


def test_a_release_counts_no_more_elements_than_its_bound():
    made = release.histogram(np.full((1, 9), 5), radius=2.0, noise_multiplier=0.0, max_elements=4)
    assert np.count_nonzero(made.estimate) == 4


def test_nobody_with_few_elements_loses_any():
    counts = np.array([[1, 2, 0, 0], [1, 1, 1, 1], [0, 0, 0, 5]])
    matrix, _ = as_table(counts, None, None)
    kept = keep_elements(matrix, None, 4, 2, np.random.default_rng(0)).toarray()
    assert np.array_equal(kept[[0, 2]], counts[[0, 2]])
    assert (kept[1] > 0).sum() == 2
    assert keep_elements(matrix, None, 4, 4, np.random.default_rng(0)) is matrix


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 6.0])
def test_a_displaced_element_costs_sqrt_2_but_more_than_1(epsilon):
    """One of two elements is kept: (1/2) N(e1) + (1/2) N(e2) against N(e1), integrated in 2-D.

    The midpoint rule on 0.02 over +-8 sd errs by less than 1e-9 here.
    """
    sigma = 0.6
    axis = np.arange(-5.0, 6.0, 0.02) + 0.01
    a, b = np.meshgrid(axis, axis)
    cell = 0.02**2 / (2 * np.pi * sigma**2)
    first = cell * np.exp(-((a - 1) ** 2 + b**2) / (2 * sigma**2))
    second = cell * np.exp(-(a**2 + (b - 1) ** 2) / (2 * sigma**2))
    with_it = 0.5 * (first + second)
    for p, q in ((with_it, first), (first, with_it)):
        exact = np.maximum(p - math.exp(epsilon) * q, 0.0).sum()
        event = accounting.revealed_event([math.sqrt(2.0)], [1.0], sigma)
        assert exact <= accounting.delta(event, epsilon=epsilon)
    if epsilon == 6.0:
        exact = np.maximum(with_it - math.exp(epsilon) * first, 0.0).sum()
        in_place = accounting.revealed_event([1.0], [1.0], sigma)
        assert exact > 1.5 * accounting.delta(in_place, epsilon=epsilon)


@pytest.mark.parametrize("function", [release.histogram, release.user_level_histogram])
def test_noise_is_gaussian_of_the_stated_size_and_independent(function):
    """Kolmogorov-Smirnov, variance and correlation on 20,000 draws; false alarms: 1e-6 each."""
    d = 20_000
    counts = np.zeros((50, d), int)
    made = function(counts, radius=3.0, noise_multiplier=2.0, seed=1)
    assert made.noise_stddev == pytest.approx(2.0 * 3.0 / 50)
    z = made.estimate / made.noise_stddev
    assert stats.kstest(z, "norm").pvalue > 1e-6
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], d) / d
    assert low < np.mean(z**2) < high
    assert abs(np.mean(z[1:] * z[:-1])) < 4.9 / math.sqrt(d)


def test_noise_is_fresh_every_time_unless_seeded():
    def draw(**more):
        return release.histogram(np.ones((3, 50)), radius=1.0, noise_multiplier=1.0, **more)

    assert not np.any(draw().estimate == draw().estimate)
    assert np.array_equal(draw(seed=4).estimate, draw(seed=4).estimate)
    assert draw().private and not draw(seed=4).private
    assert draw(seed=4).statement().count("NOT PRIVATE") == 1
    assert "NOT PRIVATE" not in draw().statement()
    for seed, error in ((-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="seed must be"):
            draw(seed=seed)


@pytest.mark.parametrize("unit", ["element", "subject"])
@pytest.mark.parametrize("sensitivity", ["paper", "counts"])
def test_noise_reaches_epsilon_for_the_unit_and_events_are_the_accountants(unit, sensitivity):
    made = release.histogram(
        np.ones((10, 30)),
        radius=1.0,
        epsilon=1.5,
        delta=1e-5,
        max_elements=9,
        unit=unit,
        sensitivity=sensitivity,
    )
    assert 1.49 < made.epsilon(1e-5) <= 1.5
    sigma = made.noise_multiplier
    factor = {"element": _FACTOR[sensitivity], "subject": 3.0}[unit]
    exact = accounting.epsilon(accounting.subject_event(1.0, sigma / factor), delta=1e-5)
    assert made.epsilon(1e-5) == pytest.approx(exact, rel=2e-3)
    other = {"element": "subject", "subject": "element"}[unit]
    ratio = {"element": _FACTOR[sensitivity], "subject": 3.0}[other]
    expected = accounting.epsilon(accounting.subject_event(1.0, sigma / ratio), delta=1e-5)
    assert made.epsilon(1e-5, unit=other) == pytest.approx(expected, rel=2e-3)
    if sensitivity == "paper":
        assert made.event == accounting.histogram_event(sigma)


def test_in_place_is_the_cheapest_and_is_refused_where_it_is_wrong():
    counts = np.ones((4, 6))
    made = release.histogram(counts, radius=1.0, noise_multiplier=2.0, sensitivity="in_place")
    event = accounting.revealed_event([1.0], [1.0], 2.0)
    assert made.epsilon(1e-5) == accounting.epsilon(event, delta=1e-5)
    assert "keeps its name" in " ".join(made.statement().split())
    permuted = {"sensitivity": "in_place", "block": [5, 4, 3, 2, 1, 0]}
    release.histogram(counts, radius=1.0, noise_multiplier=2.0, **permuted)
    for more, message in (
        ({"block": [0, 0, 1, 2, 3, 4]}, "one word"),
        ({"max_elements": 2}, "displace"),
    ):
        with pytest.raises(ValueError, match=message):
            release.histogram(
                counts, radius=1.0, noise_multiplier=2.0, sensitivity="in_place", **more
            )
    with pytest.raises(ValueError, match="several words"):
        release.user_level_histogram(
            counts, radius=1.0, noise_multiplier=1.0, sensitivity="in_place"
        )


def test_user_level_states_a_subject_added_or_removed_and_an_element_replaced():
    made = release.user_level_histogram(np.ones((9, 4)), radius=2.0, epsilon=1.0, delta=1e-5)
    assert 0.99 < made.epsilon(1e-5) <= 1.0
    assert made.subject_event == accounting.subject_event(1.0, made.noise_multiplier)
    assert made.event == accounting.histogram_event(made.noise_multiplier)
    assert "whole vector" in made.statement() and "bound of" not in made.statement()


def test_a_bound_above_the_number_of_elements_costs_no_more_than_all_of_them():
    made = release.histogram(np.ones((2, 3)), radius=1.0, noise_multiplier=2.0, max_elements=50)
    assert made.max_elements == 3
    assert made.subject_event == accounting.subject_event(1.0, 2.0 / 3**0.5)


def test_statement_says_unit_neighbours_and_what_is_public():
    made = release.histogram(np.ones((200, 7)), radius=2.5, epsilon=1.0, delta=1e-6, max_elements=3)
    text = " ".join(made.statement(1e-6).split())
    for part in (
        "Per element of a subject: epsilon = 1 at delta = 1e-06",
        "replaced by anything",
        "may displace another one",
        "row is filled or emptied",
        "At most 3 elements of one subject",
        "radius 2.5",
        "number of subjects 200, the list of 7 words, their map to 7 elements, the radius",
        "divided by 200",
        "operating system",
    ):
        assert part in text, part
    # Without a delta: that of the promise, or else a tenth of 1 / subjects.
    assert " ".join(made.statement().split()) == text
    other = release.histogram(np.ones((200, 2)), radius=1.0, noise_multiplier=1.0).statement()
    assert "no promise" in other and f"delta = {0.1 / 200:g}" in other


def test_no_noise_is_not_private_and_says_so():
    made = release.histogram(np.ones((2, 2)), radius=1.0, noise_multiplier=0.0, max_elements=1)
    assert made.epsilon(1e-5) == math.inf == made.epsilon(1e-5, unit="subject")
    text = made.statement()
    assert text.count("NOT PRIVATE") == 1 and "epsilon = infinite" in text
    assert not made.private


def test_a_release_cannot_be_changed_and_gives_frequencies():
    made = release.histogram(np.array([[3, 1, 0]]), radius=9.0, noise_multiplier=0.0)
    np.testing.assert_allclose(made.frequencies(), [0.75, 0.25, 0.0])
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.unit = "subject"
    with pytest.raises(ValueError, match="read-only"):
        made.estimate[0] = 1.0
    nothing = release.histogram(np.zeros((1, 4)), radius=9.0, noise_multiplier=0.0)
    np.testing.assert_allclose(nothing.frequencies(), 0.25)


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({}, ValueError, "either epsilon"),
        ({"epsilon": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}, ValueError, "either epsilon"),
        ({"epsilon": 1.0}, ValueError, "needs a delta"),
        ({"noise_multiplier": 1.0, "delta": 1e-5}, ValueError, "delta goes with epsilon"),
        ({"noise_multiplier": -1.0}, ValueError, "noise_multiplier"),
        ({"noise_multiplier": 1.0, "radius": 0.0}, ValueError, "radius must be"),
        ({"noise_multiplier": 1.0, "radius": math.inf}, ValueError, "radius"),
        ({"noise_multiplier": 1.0, "radius": "2"}, TypeError, "radius"),
        ({"noise_multiplier": 1.0, "unit": "subject"}, ValueError, "needs max_elements"),
        ({"noise_multiplier": 1.0, "unit": "word"}, ValueError, "unit must be"),
        ({"noise_multiplier": 1.0, "sensitivity": "best"}, ValueError, "sensitivity must be"),
        ({"noise_multiplier": 1.0, "max_elements": 0}, ValueError, "max_elements"),
        ({"noise_multiplier": 1.0, "max_elements": 1.5}, TypeError, "max_elements"),
    ],
)
def test_bad_arguments_are_refused(more, error, message):
    with pytest.raises(error, match=message):
        release.histogram(np.ones((2, 3)), **{"radius": 1.0, **more})


def test_a_figure_without_its_bound_is_refused():
    made = release.histogram(np.ones((2, 3)), radius=1.0, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="element guarantee only"):
        made.epsilon(1e-5, unit="subject")
    with pytest.raises(ValueError, match="unit must be"):
        made.epsilon(1e-5, unit="word")
