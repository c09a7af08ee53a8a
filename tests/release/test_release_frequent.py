# SPDX-License-Identifier: Apache-2.0
"""Frequent elements: by post-processing, and by a threshold where the list is not public."""

import math

import numpy as np
import pytest
from scipy import sparse, stats

from tf_subjectdp import accounting, release


def _counts(matrix):
    matrix = sparse.csr_matrix(matrix)
    names = np.array([f"w{j}" for j in range(matrix.shape[1])])
    return release.ElementCounts(matrix, np.arange(matrix.shape[0]), names, False)


def test_known_list_top_and_threshold():
    counts = np.array([[5, 0, 2, 9], [5, 1, 2, 9]])
    made = release.histogram(counts, radius=6.0, noise_multiplier=0.0)
    top = release.frequent_elements(made, top=2, names=["to", "be", "or", "not"])
    assert top.names.tolist() == ["not", "to"] and top.estimate.tolist() == pytest.approx([6, 5])
    above = release.frequent_elements(made, threshold=2.0)
    assert above.names.tolist() == [3, 0]
    assert release.frequent_elements(made, top=99).names.size == 4


def test_known_list_costs_what_the_histogram_cost():
    made = release.user_level_histogram(np.ones((9, 4)), radius=2.0, epsilon=1.0, delta=1e-5)
    found = release.frequent_elements(made, top=1)
    assert found.epsilon(1e-5) == made.epsilon(1e-5)
    assert found.epsilon(1e-5, unit="element") == made.epsilon(1e-5, unit="element")
    text = " ".join(found.statement().split())
    assert "was public" in text and "row is filled" in text


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({}, ValueError, "either top"),
        ({"top": 1, "threshold": 1.0}, ValueError, "either top"),
        ({"top": 0}, ValueError, "top"),
        ({"threshold": math.nan}, ValueError, "threshold is NaN"),
        ({"threshold": "a"}, TypeError, "threshold must be"),
        ({"top": 1, "names": ["a"]}, ValueError, "one a word"),
    ],
)
def test_known_list_bad_arguments(more, error, message):
    made = release.histogram(np.ones((2, 3)), radius=1.0, noise_multiplier=1.0)
    with pytest.raises(error, match=message):
        release.frequent_elements(made, **more)
    with pytest.raises(TypeError, match="discover_elements"):
        release.frequent_elements(np.ones(3), top=1)


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("radius", [1.0, 4.0])
def test_a_word_of_one_subject_appears_as_rarely_as_is_stated(count, radius):
    """60,000 words of one subject each; binomial test, false alarms: 1e-6 a side."""
    trials, b = 60_000, 0.02
    counts = _counts(count * sparse.identity(trials, int, "csr"))
    found = release.discover_elements(
        counts, radius=radius, noise_multiplier=1.7, appear_probability=b, seed=2
    )
    assert found.names.size <= stats.binom.isf(1e-6, trials, b)
    if count >= radius:  # then the stated probability is the true one
        assert found.names.size >= stats.binom.ppf(1e-6, trials, b)
    assert found.threshold * trials == pytest.approx(
        radius * (1.0 + 1.7 * stats.norm.isf(b)), rel=1e-9
    )


def test_words_that_nobody_has_never_appear_and_dropped_words_neither():
    matrix = np.zeros((30, 500))
    matrix[:, 0] = 1.0
    found = release.discover_elements(
        _counts(matrix), noise_multiplier=50.0, appear_probability=0.49, seed=0
    )
    assert set(found.names.tolist()) <= {"w0"}
    crowded = _counts(np.ones((1, 500)))
    for seed in range(20):
        found = release.discover_elements(
            crowded, noise_multiplier=9.0, appear_probability=0.49, max_elements=3, seed=seed
        )
        assert found.names.size <= 3


def test_frequent_words_are_found_most_frequent_first():
    matrix = np.zeros((400, 50))
    for j, held in enumerate((400, 300, 200)):
        matrix[:held, j] = 5
    for j in range(3, 50):
        matrix[j, j] = 1
    found = release.discover_elements(_counts(matrix), epsilon=1.0, delta=1e-6, seed=1)
    assert found.names.tolist() == ["w0", "w1", "w2"]
    assert np.all(np.abs(found.estimate - [1.0, 0.75, 0.5]) < 6 * found.noise_multiplier / 400)
    assert not found.private and "NOT PRIVATE" in found.statement()


def _censored(mean, sigma, tau, grid):
    """P(not shown) and the density, times the step, of N(mean, sigma^2) above tau."""
    inside = np.exp(-((grid - mean) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
    return np.concatenate([[stats.norm.cdf((tau - mean) / sigma)], inside * (grid[1] - grid[0])])


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0, 3.0])
@pytest.mark.parametrize("b", [1e-4, 0.05])
@pytest.mark.parametrize("others", [1, 3])
def test_no_pair_of_neighbours_exceeds_what_is_accounted(epsilon, b, others):
    """Exact divergences on a grid of 1e-3 sd (error below 1e-6) for a word taken away or renamed.

    The common word is held by `others` subjects, and by the replaced one in one of the worlds.
    """
    sigma = 0.8
    tau = 1.0 + sigma * stats.norm.isf(b)
    grid = np.arange(tau, tau + 12 * sigma, 1e-3 * sigma) + 5e-4 * sigma
    with_it = _censored(others + 1, sigma, tau, grid)
    without = _censored(others, sigma, tau, grid)
    alone = _censored(1.0, sigma, tau, grid)[0]  # P(a word of one subject is not shown)
    assert 1.0 - alone == pytest.approx(b, rel=1e-6)

    def divergence(p, q):
        return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())

    # The subject's word: common, and its own new one; (kept, new word shown with probability b).
    worst = max(
        divergence(with_it, without),  # common word taken away
        divergence(without, with_it),
        divergence(with_it, alone * without),  # common word renamed to a new one
        (1.0 - alone) + divergence(alone * without, with_it),
        (1.0 - alone) + divergence(np.array([alone]), np.ones(1)),  # new word from nothing
        divergence(np.ones(1), np.array([alone])),
        (1.0 - alone) + divergence(np.array([alone]), np.array([alone])),  # new to another new one
    )
    for sensitivity in ("paper", "counts"):
        found = release.discover_elements(
            _counts(np.ones((2, 1))),
            noise_multiplier=sigma,
            appear_probability=b,
            sensitivity=sensitivity,
        )
        inner = max(epsilon + math.log1p(-b), 0.0)
        accounted = b + accounting.delta(found.event, epsilon=inner)
        assert worst <= accounted + 1e-6
        # `epsilon` is the inverse: what it states for that delta is that epsilon.
        if epsilon > 0.2:
            assert found.epsilon(accounted) == pytest.approx(epsilon, rel=5e-3)


def test_target_is_met_with_the_thresholds_share():
    counts = _counts(np.ones((10, 40)))
    for unit, held in (("element", 1), ("subject", 16)):
        found = release.discover_elements(
            counts, epsilon=2.0, delta=1e-6, threshold_share=0.3, max_elements=16, unit=unit
        )
        assert found.loss(unit) == pytest.approx(0.3e-6)
        assert found.appear_probability == pytest.approx(0.3e-6 / held)
        assert 1.99 < found.epsilon(1e-6) <= 2.0
        assert found.epsilon(0.29e-6) == math.inf
        if unit == "subject":
            assert found.subject_event == accounting.subject_event(1.0, found.noise_multiplier / 4)
    text = " ".join(found.statement(1e-6).split())
    assert "list of elements was not public" in text and "At most 16 elements" in text
    assert "Per subject: epsilon = 2 at" in text


def test_a_subjects_figure_counts_the_threshold_for_each_of_its_words():
    found = release.discover_elements(
        _counts(np.ones((10, 4))), noise_multiplier=4.0, appear_probability=1e-7, max_elements=100
    )
    assert (
        found.max_elements == 100
    )  # the number of words met is private: no smaller bound is taken
    inner = accounting.epsilon(accounting.subject_event(1.0, 0.4), delta=1e-4 - 1e-5)
    assert found.epsilon(1e-4, unit="subject") == pytest.approx(inner - math.log1p(-1e-5))


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"epsilon": 1.0}, ValueError, "needs a delta"),
        ({"epsilon": 1.0, "delta": 1e-5, "appear_probability": 0.1}, ValueError, "threshold_share"),
        ({"epsilon": 1.0, "delta": 1e-5, "noise_multiplier": 1.0}, ValueError, "either epsilon"),
        ({"epsilon": 1.0, "delta": 1e-5, "threshold_share": 1.0}, ValueError, "threshold_share"),
        ({"noise_multiplier": 1.0}, ValueError, "needs appear_probability"),
        ({"noise_multiplier": 1.0, "appear_probability": 0.5}, ValueError, "appear_probability"),
        ({"noise_multiplier": 1.0, "appear_probability": 0.0}, ValueError, "appear_probability"),
        ({"epsilon": 1.0, "delta": 1e-5, "unit": "subject"}, ValueError, "max_elements"),
    ],
)
def test_unknown_list_bad_arguments(more, error, message):
    with pytest.raises(error, match=message):
        release.discover_elements(_counts(np.ones((2, 3))), **more)


def test_unknown_list_needs_names():
    with pytest.raises(TypeError, match="count_elements"):
        release.discover_elements(np.ones((2, 3)), epsilon=1.0, delta=1e-5)


def _found(extra):
    counts = release.count_elements([*range(300), 5], ["hi"] * 300 + [extra])
    return release.discover_elements(counts, epsilon=1.0, delta=1e-9)


def test_a_name_that_is_not_released_leaves_no_trace_in_the_type():
    plain, long = _found("hi"), _found("my password is 0123456789")
    assert plain.names.tolist() == long.names.tolist() == ["hi"]
    assert plain.names.dtype == long.names.dtype
    made = release.ElementCounts(
        sparse.csr_matrix(np.ones((50, 1))), np.arange(50), np.array(["w"], "<U40"), False
    )
    assert release.discover_elements(made, epsilon=9.0, delta=1e-2).names.dtype == object


def test_an_epsilon_below_the_thresholds_share_is_named():
    counts = release.count_elements([0, 1], ["a", "a"])
    with pytest.raises(ValueError, match="threshold alone"):
        release.discover_elements(counts, epsilon=0.05, delta=0.9)


def test_a_number_that_is_not_released_leaves_no_trace_in_the_type():
    for extra in (8, 2**63, 2**64, -(2**70)):
        counts = release.count_elements([*range(300), 5], [7] * 300 + [extra])
        found = release.discover_elements(counts, epsilon=1.0, delta=1e-9)
        assert found.names.tolist() == [7] and found.names.dtype == np.int64
