# SPDX-License-Identifier: Apache-2.0
"""k-means elements on private data: sensitivity, noise and cost of what is paid for.

Statistical tests have a fixed seed and a false-alarm rate of 1e-6 or less each.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from tf_subjectdp import accounting
from tf_subjectdp.elements import KMeansElements, kmeans
from tf_subjectdp.elements.kmeans import nearest

FALSE_ALARM = 1e-6


def contribution_oracle(rows, ids, n_clusters, radius):
    """One subject's vector before the projection and after it, by the docstring's formulas."""
    width = rows.shape[1]
    b = (1 + width**0.5) ** -0.5
    a = (1 - b**2) ** 0.5
    vector = np.zeros((n_clusters, width + 1))
    for row, k in zip(rows, ids, strict=True):
        vector[k, :width] += a * row / radius
        vector[k, width] += b
    return vector, vector / max(1.0, np.linalg.norm(vector))


@st.composite
def tables(draw):
    width, n_clusters = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    n_rows = draw(st.integers(1, 12))
    wild = st.floats(-1e100, 1e100) | st.floats(-2, 2) | st.sampled_from([0.0, 1e-300, 1e99])
    rows = draw(hnp.arrays(np.float64, (n_rows, width), elements=wild))
    ids = draw(hnp.arrays(np.int64, n_rows, elements=st.integers(0, n_clusters - 1)))
    subjects = draw(hnp.arrays(np.int64, n_rows, elements=st.integers(0, 3)))
    radius = draw(st.sampled_from([1e-50, 0.3, 1.0, 7.0, 1e60]))
    return kmeans.into_ball(rows, radius), subjects, ids, n_clusters, radius


@settings(deadline=None, max_examples=150, derandomize=True)
@given(table=tables())
def test_a_subject_moves_the_sum_by_at_most_one_whatever_its_data(table):
    rows, subjects, ids, n_clusters, radius = table
    total = kmeans.total_contribution(rows, subjects, ids, n_clusters, radius)
    assert total.shape == (n_clusters, rows.shape[1] + 1)
    for subject in set(subjects.tolist()):
        rest = subjects != subject
        without = kmeans.total_contribution(
            rows[rest], subjects[rest], ids[rest], n_clusters, radius
        )
        moved = np.linalg.norm(total - without)
        assert moved <= 1.0
        _, expected = contribution_oracle(rows[~rest], ids[~rest], n_clusters, radius)
        np.testing.assert_allclose(total - without, expected, atol=1e-8)


def test_the_bound_is_reached_by_one_row_and_not_passed_by_a_million():
    for width in (1, 10, 784):
        row = np.full((1, width), 3.0 / np.sqrt(width))
        one = kmeans.total_contribution(row, np.zeros(1, int), np.zeros(1, int), 2, 3.0)
        assert np.linalg.norm(one) == pytest.approx(1.0, abs=1e-8)
    many = np.full((1_000_000, 1), 3.0)
    total = kmeans.total_contribution(
        many, np.zeros(len(many), int), np.arange(len(many)) % 3, 3, 3.0
    )
    assert 1 - 1e-6 < np.linalg.norm(total) <= 1.0


def test_rows_of_length_zero_or_beyond_the_ball():
    rows = np.array([[0.0, 0.0], [3.0, 4.0], [0.3, 0.4], [3e99, -4e99]])
    got = kmeans.into_ball(rows, 2.0)
    np.testing.assert_allclose(got, [[0, 0], [1.2, 1.6], [0.3, 0.4], [1.2, -1.6]], rtol=1e-12)
    assert np.linalg.norm(kmeans.into_ball(rows, 1e-100) / 1e-100, axis=1).max() <= 1 + 1e-12


@pytest.mark.parametrize("noise, n_subjects", [(0.0, 20), (3.0, 20), (0.0, 1), (0.1, 1)])
def test_an_iteration_is_the_docstrings(noise, n_subjects):
    rng = np.random.default_rng(0)
    n_clusters, width, radius, iterations = 3, 2, 2.0, 4
    rows = rng.normal(size=(90, width)) * 1.5
    subjects = np.arange(90) % n_subjects
    drawn = [rng.normal(size=(n_clusters, width + 1)) for _ in range(iterations)]
    draws = np.random.default_rng(5)
    given = iter([draws.standard_normal((16 * n_clusters, width)), *drawn])
    fixed = SimpleNamespace(standard_normal=lambda _: next(given), random=draws.random)
    got = kmeans.private_kmeans(
        rows, subjects, n_clusters, noise_multiplier=noise, radius=radius, iterations=iterations,
        rng=fixed,
    )  # fmt: skip
    clipped = rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True) / radius)
    centres = kmeans.first_centres(n_clusters, width, radius, np.random.default_rng(5))
    b = (1 + width**0.5) ** -0.5
    a = (1 - b**2) ** 0.5
    for normal in drawn:
        ids = ((clipped[:, None] - centres[None]) ** 2).sum(-1).argmin(1)
        total = sum(
            contribution_oracle(clipped[subjects == u], ids[subjects == u], n_clusters, radius)[1]
            for u in range(n_subjects)
        )
        noisy = total + noise * normal
        counts = np.maximum(noisy[:, width] / b, 1.0)
        centres = radius / a * noisy[:, :width] / counts[:, None]
        centres /= np.maximum(1, np.linalg.norm(centres, axis=1, keepdims=True) / radius)
    np.testing.assert_allclose(got, centres, rtol=1e-6, atol=1e-7)


def test_noise_of_a_release_has_the_standard_deviation_that_is_paid_for():
    n, sigma, runs = 1_000, 5.0, 1_500
    rows, subjects = np.zeros((n, 1)), np.arange(n)
    a, b = kmeans.scales(1)
    got = np.array([
        kmeans.private_kmeans(
            rows, subjects, 1, noise_multiplier=sigma, radius=5.0, iterations=1,
            rng=np.random.default_rng(seed),
        )[0, 0]
        for seed in range(runs)
    ])  # fmt: skip
    # sums are N(0, sigma^2), counts n b + N(0, sigma^2): a ratio whose variance is 1 + 3 r^2 + ...
    ratio = sigma / (b * n)
    assert ratio < 0.01
    variances = (got * n * a / (5.0 * sigma)) ** 2
    statistic = variances.sum()
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], runs)
    assert low * 0.999 < statistic < high * 1.001


def fitted(sigma=2.0, iterations=3, seed=None, x=None, subject_id=None):
    x = np.random.default_rng(0).normal(size=(60, 2)) if x is None else x
    ids = np.arange(len(x)) // 3 if subject_id is None else subject_id
    return KMeansElements(3).fit_private(
        x, ids, noise_multiplier=sigma, radius=2.0, iterations=iterations, seed=seed
    )


def test_noise_is_fresh_and_a_seed_is_said_not_to_be_private():
    assert not np.array_equal(fitted().centres, fitted().centres)
    one = fitted(seed=4)
    assert np.array_equal(one.centres, fitted(seed=4).centres)
    assert one.seeded and one.provenance.startswith("NOT PRIVATE: the elements are 3 k-means")
    assert "known seed" in one.provenance and one.epsilon(1e-5) == np.inf
    assert accounting.epsilon(one.element_event, delta=1e-5) == np.inf
    bare = fitted(sigma=0.0)
    assert bare.provenance.startswith("NOT PRIVATE") and bare.epsilon(1e-5) == np.inf


def gaussian_delta(epsilon, mu):
    upper = stats.norm.cdf(mu / 2 - epsilon / mu)
    return upper - np.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("sigma, iterations", [(2.0, 1), (5.0, 8), (0.7, 3)])
def test_the_cost_is_so_many_gaussians(sigma, iterations):
    elements = fitted(sigma, iterations)
    for event, mu in (
        (elements.event, iterations**0.5 / sigma),
        (elements.element_event, 2 * iterations**0.5 / sigma),
    ):
        epsilon = accounting.epsilon(event, delta=1e-5)
        assert gaussian_delta(epsilon, mu) <= 1e-5 <= gaussian_delta(epsilon * (1 - 1e-3), mu)
    assert elements.epsilon(1e-5) == accounting.epsilon(elements.event, delta=1e-5)
    assert elements.provenance == (
        "The elements are 3 k-means clusters of the data, whose centres were fitted on the private data "
        f"by {iterations} noisy iterations (features within radius 2, noise multiplier {sigma:g}, "
        f"subject unit, add or remove), {iterations} Gaussian releases to be paid for."
    )


def test_the_cost_composes_with_a_trainings():
    training = accounting.subject_event(0.1, 1.0)
    alone = accounting.epsilon(training, 100, delta=1e-5)
    both = accounting.compose([(fitted().event, 1), (training, 100)])
    together = accounting.epsilon(both, delta=1e-5)
    assert alone < together < alone + fitted().epsilon(1e-6) + 1.0


def test_blobs_of_many_subjects_are_found():
    rng = np.random.default_rng(2)
    truth = 8.0 * np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, 0, -1]])
    labels = rng.integers(4, size=20_000)
    x = truth[labels] + rng.normal(size=(20_000, 3))
    ids = [f"person {i}" for i in rng.integers(4_000, size=20_000)]
    elements = KMeansElements(4).fit_private(
        x, ids, noise_multiplier=5.0, radius=12.0, iterations=6, seed=3
    )
    assert elements.epsilon(1e-5) == np.inf and elements.seeded
    found = nearest(x, elements.centres)[0]
    table = np.zeros((4, 4))
    np.add.at(table, (labels, found), 1)
    assert table.max(axis=1).sum() > 0.99 * len(x)
    assert np.linalg.norm(elements.centres, axis=1).max() <= 12.0 * (1 + 1e-12)


def test_ids_may_be_strings_and_who_is_who_does_not_matter():
    x = np.random.default_rng(1).normal(size=(60, 2))
    numbers = np.arange(60) % 7
    one = fitted(seed=1, x=x, subject_id=numbers).centres
    two = fitted(seed=1, x=x, subject_id=[f"p{i}" for i in numbers]).centres
    three = fitted(seed=1, x=x, subject_id=numbers[::1].astype(np.int16)).centres
    np.testing.assert_allclose(one, two, rtol=1e-12)
    np.testing.assert_allclose(one, three, rtol=1e-12)


def test_first_centres_are_in_the_ball_and_apart():
    centres = kmeans.first_centres(20, 3, 5.0, np.random.default_rng(0))
    lengths = np.linalg.norm(centres, axis=1)
    assert lengths.max() <= 5.0 * (1 + 1e-12)
    gaps = np.linalg.norm(centres[:, None] - centres[None], axis=2) + 99 * np.eye(20)
    assert gaps.min() > 1.0


BAD = [
    ({"noise_multiplier": -1.0}, ValueError, "noise_multiplier"),
    ({"noise_multiplier": np.nan}, ValueError, "noise_multiplier"),
    ({"noise_multiplier": "2"}, TypeError, "noise_multiplier"),
    ({"radius": 0.0}, ValueError, "radius"),
    ({"radius": np.inf}, ValueError, "radius"),
    ({"radius": np.nan}, ValueError, "radius"),
    ({"radius": None}, TypeError, "radius"),
    ({"iterations": 0}, ValueError, "iterations"),
    ({"iterations": 1.5}, TypeError, "iterations"),
    ({"seed": -1}, ValueError, "seed"),
    ({"seed": "x"}, TypeError, "seed"),
    ({"subject_id": [1, 2]}, ValueError, "2 subject ids and 3 rows"),
    ({"subject_id": [1, None, 2]}, ValueError, "row 1 has no subject id"),
    ({"subject_id": ["a", float("nan"), "b"]}, ValueError, "row 1 has no subject id"),
    ({"subject_id": ["a", " ", "b"]}, ValueError, "row 1 has no subject id"),
    ({"subject_id": np.array(["a", "", "b"])}, ValueError, "row 1 has no subject id"),
    ({"subject_id": [b"a", b"c", b""]}, ValueError, "row 2 has no subject id"),
    ({"subject_id": ["a", 1, "b"]}, TypeError, "more than one kind"),
    ({"subject_id": [1.0, 2.0, 3.0]}, TypeError, "float"),
    ({"subject_id": np.ma.masked_equal([1, 2, 3], 2)}, ValueError, "row 1 has no subject id"),
    ({"subject_id": np.ones((3, 1), int)}, ValueError, "one id a row"),
    ({"x": np.full((3, 2), np.nan)}, ValueError, "feature 0 of row 0"),
    ({"x": np.zeros(3)}, ValueError, "shape"),
    ({"x": np.zeros((0, 2)), "subject_id": []}, ValueError, "no rows"),
]


@pytest.mark.parametrize("changed, kind, text", BAD)
def test_bad_input_is_refused_and_nothing_is_fitted(changed, kind, text):
    given = {"x": np.eye(3)[:, :2], "subject_id": [1, 2, 3], "noise_multiplier": 1.0, "radius": 1.0}
    given.update(changed)
    elements = KMeansElements(2)
    with pytest.raises(kind, match=text):
        elements.fit_private(given.pop("x"), given.pop("subject_id"), **given)
    with pytest.raises(ValueError, match="not fitted"):
        _ = elements.event


def test_a_second_fit_is_refused_since_both_would_be_paid_for():
    elements = fitted()
    with pytest.raises(ValueError, match="adds its event"):
        elements.fit_private(np.eye(3), [1, 2, 3], noise_multiplier=1.0, radius=1.0)
