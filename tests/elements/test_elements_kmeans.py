# SPDX-License-Identifier: Apache-2.0
"""k-means elements on public data: the fit against NumPy, the nearest centre, files, bad input.

Statistical tests have a fixed seed and a false-alarm rate of 1e-6 or less each.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from scipy.cluster import vq

from tf_subjectdp import accounting
from tf_subjectdp.elements import KMeansElements, clusters, kmeans

FALSE_ALARM = 1e-6


def blobs(n_clusters=5, each=60, width=3, seed=0):
    rng = np.random.default_rng(seed)
    centres = 20.0 * np.stack([np.eye(width)[i % width] * (1 + i) for i in range(n_clusters)])
    labels = rng.permutation(np.repeat(np.arange(n_clusters), each))
    return centres[labels] + rng.normal(size=(labels.size, width)), labels


def squares_of(x, centres):
    return ((x[:, None, :] - centres[None]) ** 2).sum(axis=2)


def lloyd_oracle(x, centres, times):
    """Lloyd's algorithm, written out."""
    centres = centres.copy()
    for _ in range(times):
        ids = squares_of(x, centres).argmin(axis=1)
        for k in range(len(centres)):
            if (ids == k).any():
                centres[k] = x[ids == k].mean(axis=0)
    return centres


def same_partition(one, other):
    pairs = set(zip(one.tolist(), other.tolist(), strict=True))
    return len(pairs) == len(set(one.tolist())) == len(set(other.tolist()))


def test_separated_blobs_are_the_elements_whatever_the_seed():
    x, labels = blobs()
    for seed in range(5):
        elements = KMeansElements(5).fit(x, public=True, seed=seed)
        assert same_partition(elements.element_ids(x), labels)
        means = np.array([x[elements.element_ids(x) == k].mean(axis=0) for k in range(5)])
        np.testing.assert_allclose(elements.centres, means, rtol=1e-9)
        inertia = squares_of(x, elements.centres).min(axis=1).sum()
        assert elements.inertia == pytest.approx(inertia, rel=1e-9)


def test_one_start_is_lloyds_algorithm_from_its_seeds():
    x = np.random.default_rng(3).normal(size=(200, 4))
    x -= x.mean(axis=0)
    first = kmeans.seeds(x, 7, np.random.default_rng(1))
    centres, inertia = kmeans._settled(x, first.copy(), 5)
    expected = lloyd_oracle(x, first, 5)
    np.testing.assert_allclose(centres, expected, rtol=1e-9, atol=1e-12)
    assert inertia == pytest.approx(squares_of(x, expected).min(axis=1).sum(), rel=1e-9)


def test_a_fit_is_a_fixed_point_and_no_worse_than_scipys_own():
    x = np.random.default_rng(4).normal(size=(500, 2))
    elements = KMeansElements(12).fit(x, public=True, seed=0, restarts=8, iterations=500)
    further = lloyd_oracle(x, elements.centres, 5)
    assert squares_of(x, further).min(axis=1).sum() >= elements.inertia * (1 - 1e-3)
    theirs = min(
        squares_of(x, vq.kmeans2(x, 12, iter=100, minit="++", seed=seed)[0]).min(axis=1).sum()
        for seed in range(4)
    )
    assert elements.inertia <= theirs * 1.05


def test_the_best_of_the_starts_is_kept():
    x = np.random.default_rng(5).normal(size=(300, 2))
    alone = [
        kmeans.kmeans(x, 9, 1, 50, rng)[1] for rng in [np.random.default_rng(2)] for _ in range(4)
    ]
    assert len(set(alone)) > 1, "or this tests nothing"
    assert kmeans.kmeans(x, 9, 4, 50, np.random.default_rng(2))[1] == pytest.approx(min(alone))


def test_seeds_are_drawn_by_their_squared_distance():
    x = np.array([[0.0], [1.0], [3.0], [3.0], [7.0]])
    rng, times = np.random.default_rng(0), 8_000
    firsts, seconds = np.zeros(5), np.zeros((5, 5))
    for _ in range(times):
        one, two = kmeans.seeds(x + np.arange(5)[:, None] * 1e-9, 2, rng)[:, 0]
        i, j = np.rint((one % 0.5) * 1e9).astype(int), np.rint((two % 0.5) * 1e9).astype(int)
        firsts[i] += 1
        seconds[i, j] += 1
    assert stats.chisquare(firsts).pvalue > FALSE_ALARM / 6
    squares = (x - x.T) ** 2
    for i in range(5):
        expected = firsts[i] * squares[i] / squares[i].sum()
        likely = expected > 0
        assert not seconds[i][~likely].any()
        assert stats.chisquare(seconds[i][likely], expected[likely]).pvalue > FALSE_ALARM / 6


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    x=hnp.arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(1, 3)),
                 elements=st.integers(-3, 3).map(float)),
    n_clusters=st.integers(1, 6),
)  # fmt: skip
def test_no_cluster_is_left_empty_where_there_are_rows_enough(x, n_clusters):
    different = len(np.unique(x, axis=0))
    elements = KMeansElements(n_clusters)
    if different < n_clusters:
        with pytest.raises(ValueError, match=f"n_clusters of at most {different}"):
            elements.fit(x, public=True, seed=0)
    else:
        ids = elements.fit(x, public=True, seed=0).element_ids(x)
        assert set(ids.tolist()) == set(range(n_clusters))


def test_a_cluster_that_lloyd_leaves_empty_moves_to_the_furthest_row():
    x, _ = blobs(3)
    start = np.concatenate([x[:2], np.full((1, 3), 1e6)])
    centres, inertia = kmeans._settled(x, start, 5)
    assert np.bincount(kmeans.nearest(x, centres)[0], minlength=3).min() > 0
    assert inertia < squares_of(x, lloyd_oracle(x, start, 10)).min(axis=1).sum()


@pytest.mark.parametrize("shift, scale", [(1e8, 1.0), (0.0, 1e-40), (-3e60, 1e55), (0.0, 1e90)])
def test_features_far_from_zero_or_of_any_size_are_told_apart(shift, scale):
    x, labels = blobs()
    moved = shift + scale * x
    elements = KMeansElements(5).fit(moved, public=True, seed=0)
    assert same_partition(elements.element_ids(moved), labels)


def test_public_is_the_users_word_and_private_data_must_be_paid_for():
    x, _ = blobs()
    with pytest.raises(TypeError, match="public"):
        KMeansElements(2).fit(x)
    with pytest.raises(ValueError, match="must be paid for.*fit_private"):
        KMeansElements(2).fit(x, public=False)
    for word in ("yes", 1, None):
        with pytest.raises(TypeError, match="your word"):
            KMeansElements(2).fit(x, public=word)


def test_public_centres_cost_nothing_and_the_provenance_says_whose_word_it_is():
    elements = KMeansElements(5).fit(blobs()[0], public=True)
    assert elements.epsilon(1e-5) == 0.0 and not elements.seeded
    assert accounting.epsilon(elements.element_event, delta=0.0) == 0.0
    assert elements.provenance == (
        "The elements are 5 k-means clusters of the data, whose centres were fitted on data that the "
        "user declared to be public, at no cost in privacy."
    )
    with pytest.raises(ValueError, match="fitted already"):
        elements.fit(blobs()[0], public=True)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    data=st.data(),
    width=st.integers(1, 4),
    n_clusters=st.integers(1, 5),
)
def test_the_nearest_centre_is_the_oracles_and_ties_go_to_the_lowest_number(
    data, width, n_clusters
):
    small = st.integers(-4, 4).map(float)
    x = data.draw(hnp.arrays(np.float64, (data.draw(st.integers(0, 9)), width), elements=small))
    centres = data.draw(hnp.arrays(np.float64, (n_clusters, width), elements=small))
    ids, squares = kmeans.nearest(x, centres)
    expected = squares_of(x, centres)  # exact, and so are its ties
    assert np.array_equal(ids, expected.argmin(axis=1)) and ids.dtype == np.int64
    assert np.array_equal(squares, expected.min(axis=1))


def test_ties_that_only_rounding_breaks_are_ties():
    # the row is as far from one as from the other in numbers with commas, not in float64
    centres = np.array([[0.3], [0.1]])
    assert abs(0.2 - 0.3) != abs(0.2 - 0.1)
    assert kmeans.nearest(np.array([[0.2]]), centres)[0].tolist() == [0]
    assert kmeans.nearest(np.array([[0.2]]), centres[::-1])[0].tolist() == [0]
    assert kmeans.nearest(np.array([[0.2 - 1e-8]]), centres)[0].tolist() == [1]


def test_ids_do_not_depend_on_chunks_nor_on_the_rows_beside(monkeypatch):
    rng = np.random.default_rng(8)
    x = rng.normal(size=(403, 5, 2)).astype(np.float32)
    elements = KMeansElements(11).fit(x, public=True, seed=0)
    ids = elements.element_ids(x)
    assert np.array_equal(ids, squares_of(x.reshape(403, 10), elements.centres).argmin(axis=1))
    assert np.array_equal(ids, np.concatenate([elements.element_ids(row[None]) for row in x]))
    monkeypatch.setattr(kmeans, "CELLS", 70)
    assert np.array_equal(ids, elements.element_ids(x))


def test_memory_of_ids_is_bounded():
    import tracemalloc

    elements = KMeansElements(50).fit(np.random.default_rng(0).normal(size=(99, 2)), public=True)
    x = np.zeros((1_000_000, 2), np.float32)
    tracemalloc.start()
    ids = elements.element_ids(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ids.shape == (1_000_000,)
    assert peak < 150e6, "all distances at once would be 400 MB"


def test_a_feature_function_gets_batches_and_its_features_are_what_counts():
    seen = []

    def length(words):
        seen.append(len(words))
        return np.array([[len(word)] for word in words])

    words = np.array(["a", "bb", "cccccc", "dddddd", "e"] * 3)
    elements = KMeansElements(2, length, batch_size=4).fit(words, public=True)
    ids = elements.element_ids(words)
    assert max(seen) == 4 and sum(seen) == 30
    assert same_partition(ids, np.array([len(word) > 3 for word in words]))
    assert "features (" in elements.provenance and "length" in elements.provenance
    assert elements.element_ids(np.array([], dtype="U1")).shape == (0,)


BAD_ROWS = [
    (np.array([[0.0, 1.0], [np.nan, 0.0]]), ValueError, "feature 0 of row 1 is nan"),
    (np.array([[0.0, np.inf]]), ValueError, "feature 1 of row 0 is inf"),
    (np.array([[0.0, 1e101]]), ValueError, "at most 1e.100"),
    (np.zeros(4), ValueError, r"shape \(4,\).*x\[:, None\]"),
    (np.float64(3.0), ValueError, r"shape \(\)"),
    (np.array([["a", "b"]]), TypeError, "must be numbers"),
    (np.zeros((2, 2), complex), TypeError, "must be numbers"),
    ([[None, 1.0]], TypeError, "must be numbers"),
]


@pytest.mark.parametrize("x, kind, text", BAD_ROWS)
def test_bad_rows_are_refused_by_fit_and_by_element_ids(x, kind, text):
    fitted = KMeansElements(2).fit(np.arange(8.0).reshape(4, 2), public=True)
    with pytest.raises(kind, match=text):
        fitted.element_ids(x)
    with pytest.raises(kind, match=text):
        KMeansElements(1).fit(x, public=True)


def test_the_bad_row_is_named_in_a_later_chunk_too(monkeypatch):
    fitted = KMeansElements(2).fit(np.arange(8.0).reshape(4, 2), public=True)
    x = np.zeros((50, 2))
    x[37, 1] = np.nan
    monkeypatch.setattr(clusters, "CELLS", 8)
    with pytest.raises(ValueError, match="feature 1 of row 37"):
        fitted.element_ids(x)


def test_other_bad_input():
    fitted = KMeansElements(2).fit(np.arange(8.0).reshape(4, 2), public=True)
    with pytest.raises(ValueError, match="3 features and the centres have 2"):
        fitted.element_ids(np.zeros((4, 3)))
    assert fitted.element_ids(np.zeros((0, 2))).shape == (0,)
    for empty in (np.zeros((0, 2)), np.zeros((3, 0))):
        with pytest.raises(ValueError, match="no rows|no features"):
            KMeansElements(1).fit(empty, public=True)
    with pytest.raises(ValueError, match="one row of features"):
        KMeansElements(1, lambda batch: batch[:1]).fit(np.zeros((3, 2)), public=True)
    for use in (
        lambda e: e.element_ids(np.zeros((1, 2))),
        lambda e: e.provenance,
        lambda e: e.event,
    ):
        with pytest.raises(ValueError, match="not fitted"):
            use(KMeansElements(2))
    for bad, kind in ((0, ValueError), (2.0, TypeError), (True, TypeError), ("3", TypeError)):
        with pytest.raises(kind, match="n_clusters"):
            KMeansElements(bad)
    with pytest.raises(TypeError, match="feature_extractor"):
        KMeansElements(2, 3)
    with pytest.raises(ValueError, match="read-only"):
        fitted.centres[0] = 0.0


def test_files_round_trip_exactly(tmp_path):
    x, _ = blobs()
    path = tmp_path / "elements.npz"
    public = KMeansElements(5).fit(x, public=True)
    paid = KMeansElements(4).fit_private(
        x, np.arange(300), noise_multiplier=1.7, radius=100.0, iterations=3
    )
    test = KMeansElements(4).fit_private(
        x, np.arange(300), noise_multiplier=0.0, radius=100.0, seed=1
    )
    for elements in (public, paid, test):
        elements.save(path)
        again = KMeansElements.load(str(path))
        assert np.array_equal(again.centres, elements.centres)
        assert again.provenance == elements.provenance and again.event == elements.event
        assert again.seeded == elements.seeded and again.inertia == elements.inertia
        assert again.n_clusters == elements.n_clusters
        with np.load(path, allow_pickle=False) as parts:
            assert {str(parts[name].dtype.kind) for name in parts.files} == {"f", "U"}
    assert list(tmp_path.iterdir()) == [path]


def doubled(batch):
    return 2 * batch


def test_a_file_of_features_is_not_loaded_without_them(tmp_path):
    x, _ = blobs()
    path = tmp_path / "features.npz"
    KMeansElements(5, doubled).fit(x, public=True, seed=0).save(path)
    with pytest.raises(ValueError, match="fitted on the features of 'doubled': pass the same"):
        KMeansElements.load(path)
    loaded = KMeansElements.load(path, doubled)
    plain = KMeansElements(5).fit(x, public=True, seed=0)
    assert same_partition(loaded.element_ids(x), plain.element_ids(x))
    plain.save(path)
    with pytest.raises(ValueError, match="without a feature_extractor"):
        KMeansElements.load(path, doubled)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "e.npz"
    with pytest.raises(ValueError, match="ends in '.npz'"):
        KMeansElements(1).fit(np.zeros((1, 1)), public=True).save(tmp_path / "e.npy")
    with pytest.raises(FileNotFoundError):
        KMeansElements.load(path)
    KMeansElements(1).fit(np.zeros((1, 1)), public=True).save(path)
    with np.load(path) as parts:
        record = json.loads(str(parts["provenance"]))
    fine = {"centres": np.zeros((1, 1)), "provenance": record}

    def refused(**changed):
        parts = {**fine, **changed}
        text = parts.pop("provenance")
        if isinstance(text, dict):
            text = json.dumps(text)
        np.savez(path, provenance=np.array(text), **parts)
        with pytest.raises(ValueError, match="holds no elements"):
            KMeansElements.load(path)

    np.savez(path, provenance=np.array(json.dumps(record)), centres=fine["centres"])
    KMeansElements.load(path)
    refused(centres=np.array([object()]))
    refused(centres=np.zeros((1, 1), np.float32))
    refused(centres=np.zeros(3))
    refused(centres=np.full((1, 1), np.nan))
    refused(provenance="{")
    refused(provenance="[]")
    refused(provenance={**record, "format": "another"})
    refused(provenance={**record, "more": 1})
    refused(provenance={**record, "kind": "free"})
    refused(provenance={**record, "iterations": 2})
    refused(provenance={**record, "kind": "paid", "iterations": 0, "radius": 1.0})
    refused(provenance={**record, "kind": "paid", "iterations": 2, "noise_multiplier": -1.0})
    refused(provenance={**record, "seeded": "no"})
    for content in (b"", b"no archive", b"PK\x03\x04 cut off"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="holds no elements"):
            KMeansElements.load(path)


def test_everything_but_tensors_works_without_tensorflow():
    code = """
import sys
import numpy as np
from tf_subjectdp import elements
for name in elements.__all__:
    getattr(elements, name)
e = elements.KMeansElements(2).fit_private(
    np.eye(3), [1, 2, 3], noise_multiplier=1.0, radius=1.0)
e.element_ids(np.eye(3)), e.epsilon(1e-5)
elements.HashElements(3).element_ids([1, "a"])
sys.exit("tensorflow" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
