# SPDX-License-Identifier: Apache-2.0
"""The two-stage histogram: its radii, its budget, its noise, and that it pays."""

import math

import numpy as np
import pytest
from scipy import stats

from tf_subjectdp import accounting, release
from tf_subjectdp.release.histograms import element_radii
from tf_subjectdp.release.projection import compressed_totals, projected_sum


def _zipf_counts(seed, n=600, d=200, m=100):
    p = 1.0 / np.arange(1, d + 1)
    p /= p.sum()
    return np.random.default_rng(seed).multinomial(m, p, size=n), p


def test_compressed_totals_are_logarithms_of_a_subjects_items_of_an_element():
    from tf_subjectdp.release.counting import as_table

    counts = np.array([[3, 0, 1, 0], [0, 0, 0, 50], [2, 2, 0, 0]])
    matrix, _ = as_table(counts, None, None)
    block = np.array([0, 1, 0, 1])
    per_block = np.array([[4, 0], [0, 50], [2, 2]])
    expected = np.minimum(np.log1p(per_block) / np.log1p(9), 1.0).sum(axis=0)
    np.testing.assert_allclose(compressed_totals(matrix, block, 2, 9.0), expected)
    assert compressed_totals(matrix, None, 4, 9.0)[3] == 1.0  # a subject adds at most 1


def test_radii_follow_the_rule_and_stay_in_their_range():
    p = np.array([0.0, 0.01, 0.04, 0.5, 1.0])
    radius = element_radii(p, 100.0, slack=2.0, smallest=1.5)
    np.testing.assert_allclose(radius, [1.5, 3.0, 8.0, 50 + 2 * math.sqrt(50), 100.0])


def test_without_noise_the_radii_are_those_of_the_data_and_the_rest_is_equation_5():
    counts, p = _zipf_counts(0)
    made = release.two_stage_histogram(counts, items=100, noise_multiplier=0.0)
    from tf_subjectdp.release.counting import as_table

    matrix, n = as_table(counts, None, None)
    np.testing.assert_allclose(
        made.radius, element_radii(made.first_stage, 100.0, slack=2.0, smallest=1.0)
    )
    np.testing.assert_allclose(
        made.estimate, projected_sum(matrix, None, 200, made.radius) / n, rtol=1e-12
    )
    # Rough: within a third for the frequent words.
    assert np.all(np.abs(made.first_stage[:10] / p[:10] - 1.0) < 1 / 3)
    assert made.epsilon(1e-5) == math.inf and "NOT PRIVATE" in made.statement()


@pytest.mark.parametrize("split", [0.05, 0.2, 0.7])
@pytest.mark.parametrize("unit", ["element", "subject"])
def test_both_stages_together_meet_the_target(split, unit):
    counts, _ = _zipf_counts(1, n=50)
    made = release.two_stage_histogram(
        counts, items=100, epsilon=2.0, delta=1e-5, split=split, unit=unit, max_elements=25
    )
    assert 1.99 < made.epsilon(1e-5) <= 2.0
    first, second = made.first_noise_multiplier, made.noise_multiplier
    sigma = (first**-2 + second**-2) ** -0.5
    assert sigma**2 / first**2 == pytest.approx(split)
    alone = {
        "element": accounting.histogram_event(sigma),
        "subject": accounting.subject_event(1.0, sigma / 5.0),
    }[unit]
    assert made.epsilon(1e-5) == pytest.approx(accounting.epsilon(alone, delta=1e-5), rel=2e-3)
    parts = [accounting.histogram_event(first), accounting.histogram_event(second)]
    composed = accounting.compose([(part, 1) for part in parts])
    assert made.epsilon(1e-5, unit="element") == pytest.approx(
        accounting.epsilon(composed, delta=1e-5), rel=1e-6
    )
    assert "both releases together" in " ".join(made.statement().split())


def test_noise_of_a_word_is_in_proportion_to_its_elements_radius():
    """Kolmogorov-Smirnov on 12,000 draws; false alarms: 1e-6."""
    n, d = 40, 12_000
    counts = np.zeros((n, d), int)
    counts[:, :4000] = 9
    block = np.arange(d) // 2
    made = release.two_stage_histogram(counts, items=500, noise_multiplier=3.0, block=block, seed=3)
    assert made.radius.shape == (d // 2,) and np.unique(made.radius).size > 1
    np.testing.assert_allclose(
        made.noise_stddev, made.noise_multiplier * made.radius[block] / n, rtol=1e-12
    )
    from tf_subjectdp.release.counting import as_table

    matrix, _ = as_table(counts, None, None)
    exact = projected_sum(matrix, block, d // 2, made.radius) / n
    z = (made.estimate - exact) / made.noise_stddev
    assert stats.kstest(z, "norm").pvalue > 1e-6


def test_the_first_stage_is_noised_as_it_says():
    """Without counts p_e is the noise itself, where that is positive; false alarms: 1e-6 each."""
    d, n = 20_000, 20_000
    made = release.two_stage_histogram(
        np.zeros((1, d), int), items=1, noise_multiplier=1.0, n_subjects=n, seed=8
    )
    # The rough counts sum to less than 1, so they are not divided by their sum.
    z = np.log1p(made.first_stage) / math.log(2.0) * n / made.first_noise_multiplier
    positive = z[z > 0.0]
    assert abs(positive.size - d / 2) < 4.9 * math.sqrt(d) / 2
    assert stats.kstest(positive, "halfnorm").pvalue > 1e-6
    second = made.estimate[z > 0.0] / made.noise_stddev[z > 0.0]
    assert abs(np.mean(positive * second)) < 4.9 / math.sqrt(positive.size)


def test_dropped_elements_are_in_neither_stage():
    counts = np.full((1, 12), 5)
    block = np.arange(12) // 2
    made = release.two_stage_histogram(
        counts, items=10, noise_multiplier=0.0, block=block, max_elements=2, seed=0
    )
    kept = np.flatnonzero(made.first_stage)
    assert kept.size == 2
    assert np.array_equal(np.flatnonzero(made.estimate), np.flatnonzero(np.isin(block, kept)))


def test_it_pays_where_frequencies_differ():
    """At one epsilon the error is less than half that of the best single radius (fixed seeds)."""
    counts, p = _zipf_counts(2)

    def error(made):
        return float(np.sum((made.estimate / 100 - p) ** 2))

    def of(function, **more):
        made = [function(counts, epsilon=1.0, delta=1e-5, seed=s, **more) for s in range(5)]
        return float(np.mean([error(m) for m in made]))

    single = min(of(release.histogram, radius=r) for r in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0))
    assert of(release.two_stage_histogram, items=100) < 0.5 * single


def test_seed_repeats_and_no_seed_does_not():
    counts, _ = _zipf_counts(3, n=20)

    def draw(**more):
        made = release.two_stage_histogram(counts, items=100, noise_multiplier=1.0, **more)
        return np.concatenate([made.first_stage, made.estimate])

    assert np.array_equal(draw(seed=1), draw(seed=1))
    assert not np.any(draw()[200:] == draw()[200:])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"split": 0.0}, "split"),
        ({"split": 1.0}, "split must be above 0 and below"),
        ({"slack": -1.0}, "slack"),
        ({"items": 0.5}, "smallest_radius must be at most"),
        ({"smallest_radius": 0.0}, "smallest_radius must be between"),
        ({"unit": "subject"}, "max_elements"),
        ({"sensitivity": "in_place", "max_elements": 3}, "displace"),
        ({"sensitivity": "in_place", "block": [0, 0, 1]}, "one word"),
    ],
)
def test_bad_arguments_are_refused(more, message):
    with pytest.raises(ValueError, match=message):
        release.two_stage_histogram(
            np.ones((2, 3)), **{"items": 10, "noise_multiplier": 1.0, **more}
        )
