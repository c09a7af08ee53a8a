# SPDX-License-Identifier: Apache-2.0
"""`Plan.dataset`: the plan's steps, drawn afresh, with the plan's constants enforced."""

import numpy as np
import pytest

import tf_subjectdp as sdp
from tf_subjectdp.sampling import dataset_fingerprint

IDS = np.arange(60) % 12
X, Y = np.arange(60, dtype=np.float32)[:, None], np.zeros(60, np.float32)


def make(sampling=None, algorithm=None, **options):
    options = {"steps": 6, "noise_multiplier": 1.0, **options}
    return sdp.plan(
        algorithm or sdp.ItemDP(1.0),
        sampling or sdp.PoissonItems(16),
        sdp.SubjectStats.from_ids(IDS),
        **options,
    )


def batches(dataset):
    return [x[extras["mask"]][:, 0].tolist() for x, _, extras in dataset.as_numpy_iterator()]


@pytest.mark.parametrize(
    "sampling", [sdp.PoissonItems(16), sdp.PoissonSubjects(3), sdp.FixedSize(8), sdp.Shuffle(16)]
)
def test_cardinality_is_the_number_of_planned_steps(sampling):
    dataset = make(sampling).dataset(X, Y, IDS)
    assert int(dataset.cardinality()) == 6
    assert len(batches(dataset)) == 6


@pytest.mark.parametrize("sampling", [sdp.PoissonItems(16), sdp.FixedSize(8), sdp.Shuffle(16)])
def test_every_iteration_draws_afresh_with_a_seed_as_without(sampling):
    for seed in (None, 3):
        dataset = make(sampling).dataset(X, Y, IDS, seed=seed)
        assert batches(dataset) != batches(dataset)
    plan = make(sampling)
    assert batches(plan.dataset(X, Y, IDS, seed=3)) == batches(plan.dataset(X, Y, IDS, seed=3))


def test_the_dataset_carries_the_plan_and_not_that_of_another_sampling():
    plan = make()
    assert dataset_fingerprint(plan.dataset(X, Y, IDS)) == plan.fingerprint
    for other in (make(sdp.PoissonItems(17)), make(max_items_per_subject=3)):
        assert other.fingerprint != plan.fingerprint
    # Rule, noise and length do not change who is drawn.
    assert make(algorithm=sdp.HiGradAvg(2.0), steps=9).fingerprint == plan.fingerprint


def test_a_bound_on_the_items_of_a_subject_is_enforced():
    plan = make(sdp.PoissonItems(24), max_items_per_subject=2)
    assert plan.facts.n_items == 24 and plan.facts.rate == 1.0
    for rows in batches(plan.dataset(X, Y, IDS)):
        assert np.bincount(np.asarray(rows, int) % 12).tolist() == [2] * 12


def test_padding_gives_constant_shapes_and_counts_for_nobody():
    shapes = set()
    for x, _, extras in make().dataset(X, Y, IDS, pad=True).as_numpy_iterator():
        shapes.add(x.shape[0])
        assert (extras["subject"][~extras["mask"]] == -1).all()
        assert (extras["weight"][~extras["mask"]] == 0).all()
    assert len(shapes) == 1


def test_every_pass_has_a_number_of_its_own_and_counts_its_steps():
    dataset = make(sdp.Shuffle(16), steps=8).dataset(X, Y, IDS)
    passes = set()
    for _ in range(2):
        draws = [(extras["pass"], extras["step"]) for _, _, extras in dataset.as_numpy_iterator()]
        assert [step for _, step in draws] == list(range(8))
        passes |= {number for number, _ in draws}
    assert len(passes) == 2 and min(passes) >= 0


@pytest.mark.parametrize("sampling", [sdp.FixedSize, sdp.Shuffle])
def test_a_batch_of_a_fixed_size_is_padded_to_that_size(sampling):
    """15 / 22 * 22 is below 15; cut off, a batch of 15 would be padded to 28."""
    ids = np.arange(22)
    plan = sdp.plan(
        sdp.ItemDP(1.0), sampling(15), sdp.SubjectStats.from_ids(ids), steps=3, noise_multiplier=1.0
    )
    sizes = [len(x) for x, _, _ in plan.dataset(X[:22], Y[:22], ids, pad=True).as_numpy_iterator()]
    assert sizes == [15, 15, 15]


def test_subject_ids_may_be_strings():
    names = np.array([f"patient {i}" for i in IDS])
    plan = sdp.plan(
        sdp.HiGradAvg(1.0),
        sdp.PoissonSubjects(12),
        sdp.SubjectStats.from_ids(names),
        steps=1,
        noise_multiplier=1.0,
    )
    ((_, _, extras),) = plan.dataset(X, Y, names).as_numpy_iterator()
    assert np.bincount(extras["subject"]).tolist() == [5] * 12


def test_poisson_sampling_goes_on_with_other_data_at_the_planned_rate(caplog):
    plan = make(sdp.PoissonItems(60))
    with caplog.at_level("WARNING", "tf_subjectdp"):
        dataset = plan.dataset(X[:48], Y[:48], IDS[:48])
    assert "the data have other numbers of items" in caplog.text
    assert len(batches(dataset)[0]) == 48  # rate 1, not 60/48


def test_pandas_objects_with_unlike_indexes_are_refused():
    pandas = pytest.importorskip("pandas")
    ids = pandas.Series(IDS)
    frame = pandas.DataFrame(X)
    plan = make()
    plan.dataset(frame, Y, ids)
    with pytest.raises(ValueError, match="x and subject_id are pandas objects with unlike indexes"):
        plan.dataset(frame, Y, ids.sort_values(kind="stable"))


def test_columns_that_are_no_numbers_are_named():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": np.arange(len(IDS)), "sex": ["f"] * len(IDS)})
    with pytest.raises(TypeError, match=r"not plain numbers: sex \((object|str)\)"):
        make().dataset(frame, Y, IDS)


@pytest.mark.parametrize("sampling", [sdp.PoissonItems(16), sdp.FixedSize(16)])
def test_rows_that_are_clipped_together_lie_together(sampling):
    for rows in batches(make(sampling, sdp.SubjectDP(1.0)).dataset(X, Y, IDS)):
        people = np.asarray(rows, int) % 12
        assert (np.diff(people) >= 0).all() and len(set(rows)) == len(rows)
    per_item = batches(make(sampling).dataset(X, Y, IDS))
    assert any((np.diff(np.asarray(rows, int) % 12) < 0).any() for rows in per_item)
