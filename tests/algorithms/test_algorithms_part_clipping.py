# SPDX-License-Identifier: Apache-2.0
"""BatchClipping and MixedClipping: the clipped sums against NumPy, sensitivity, noise, promises.

The model is linear, so that the gradient of a row IS the row and can be dictated.
"""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import tf_subjectdp as sdp
from tf_subjectdp import accounting
from tf_subjectdp.algorithms import (
    BatchClipping,
    ClipSchedule,
    InnerOptimizer,
    ItemDP,
    MixedClipping,
    SamplingFacts,
    algorithm_from_config,
)
from tf_subjectdp.clipping import clipped_sum, partition

FALSE_ALARM = 1e-6
C, WIDTH, SIGMA = 0.6, 3, 2.0
WEIGHTS = tf.Variable(np.zeros(WIDTH, np.float32))


@functools.cache
def _run(strategy, linear):
    vector = tf.TensorSpec([None], tf.float32)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, WIDTH], tf.float32),
            tf.TensorSpec([None], tf.int32),
            vector,
            vector,
        ]
    )
    def run(rows, *terms):
        return clipped_sum(
            lambda r: (tf.linalg.matvec(r, WEIGHTS), ()),
            [WEIGHTS],
            rows,
            partition.BatchPartition(*terms, linear),
            C,
            strategy=strategy,
        ).total[0]

    return run


def summed(terms, rows, strategy="vectorized"):
    rows = tf.constant(np.asarray(rows, np.float32))
    return _run(strategy, terms.linear)(rows, *terms[:3]).numpy()


def parts_of(algorithm, count, mask=None):
    mask = tf.ones([count], tf.bool) if mask is None else tf.constant(mask)
    return algorithm.partition(tf.zeros([count], tf.int64), mask)


def clip(g, c=C):
    return g / max(1.0, np.linalg.norm(g) / c)


@pytest.fixture
def fixed_parts(monkeypatch):
    """The same draw of parts at every call: what replacing a row in place leaves as it is."""

    def fix(seed):
        monkeypatch.setattr(partition, "fresh_seed", lambda: tf.constant([seed, 7], tf.int64))

    return fix


@pytest.mark.parametrize("strategy", ["vectorized", "loop"])
@pytest.mark.parametrize("parts", [1, 2, 5, 40])
def test_the_sum_is_that_of_the_clipped_means_of_the_parts(parts, strategy):
    rng = np.random.default_rng(parts)
    rows = rng.normal(size=(30, WIDTH)) * rng.choice([0.2, 4.0], size=(30, 1))
    mask = rng.random(30) < 0.9
    terms = parts_of(MixedClipping(C, parts=parts), 30, mask)
    group = terms.group.numpy()
    assert (group[~mask] == -1).all() and len(set(group[mask].tolist())) <= parts
    expected = sum(clip(rows[group == g].mean(axis=0)) for g in set(group[mask].tolist()))
    np.testing.assert_allclose(summed(terms, rows, strategy=strategy), expected, atol=2e-6)


def test_batch_clipping_is_one_part():
    rows = np.random.default_rng(0).normal(size=(9, WIDTH))
    for algorithm in (BatchClipping(C), MixedClipping(C, parts=1)):
        found = summed(parts_of(algorithm, 9), rows)
        np.testing.assert_allclose(found, clip(rows.mean(axis=0)), atol=1e-6)
        assert algorithm.divisor(None) == 1.0
    assert MixedClipping(C, parts=8).divisor(None) == 8.0


def test_parts_of_one_item_are_individual_clipping_in_the_papers_convention_of_noise():
    """So many parts that no two of 30 rows meet in one, but with a probability of 1e-12."""
    rows = np.random.default_rng(1).normal(size=(30, WIDTH))
    single = MixedClipping(C, parts=2**50)
    mask = tf.ones([30], tf.bool)
    individual = ItemDP(C).partition(tf.zeros([30], tf.int64), mask)
    np.testing.assert_allclose(
        summed(parts_of(single, 30), rows), summed(individual, rows), atol=1e-5
    )
    # sigma of the paper counts in 2 C: a replaced item moves the sum by 2 C in both.
    assert single.noise_stddev(SIGMA) == ItemDP(C).noise_stddev(2 * SIGMA) == 2 * C * SIGMA
    of = facts("shuffle")
    assert single.item_guarantee(of, SIGMA) == ItemDP(C).item_guarantee(of, 2 * SIGMA)
    of = facts("fixed_size")
    assert single.item_guarantee(of, SIGMA) == ItemDP(C).item_guarantee(of, 2 * SIGMA)


def test_parts_are_drawn_afresh_uniformly_and_one_by_one():
    """chi^2 of 40,000 draws of 8 parts, and of pairs of neighbours; false alarm 1e-6 each."""
    algorithm = MixedClipping(C, parts=8)
    draws = [parts_of(algorithm, 40_000).group.numpy() for _ in range(2)]
    assert not np.array_equal(*draws)
    for group in draws:
        counts = np.bincount(group, minlength=8)
        assert stats.chisquare(counts).pvalue > FALSE_ALARM
        pairs = np.bincount(group[::2] * 8 + group[1::2], minlength=64)
        assert stats.chisquare(pairs).pvalue > FALSE_ALARM


def test_a_row_less_moves_no_other_row_to_another_part(fixed_parts):
    fixed_parts(3)
    algorithm = MixedClipping(C, parts=4)
    rows = np.random.default_rng(2).normal(size=(20, WIDTH))
    mask = np.ones(20, bool)
    whole = parts_of(algorithm, 20, mask).group.numpy()
    mask[5] = False
    less = parts_of(algorithm, 20, mask).group.numpy()
    kept = np.flatnonzero(mask)
    for a in kept:
        np.testing.assert_array_equal(whole[kept] == whole[a], less[kept] == less[a])
    moved = summed(parts_of(algorithm, 20), rows) - summed(parts_of(algorithm, 20, mask), rows)
    assert np.linalg.norm(moved) <= 2 * C * (1 + 1e-5)


KINDS = st.sampled_from([0.0, 1e-20, 1.0, 5.0, 1e25, np.nan])


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 6), KINDS)
def test_replaced_items_move_the_sum_by_two_clip_norms_a_part(seed, parts, j, size):
    """A subject's j rows replaced in place: at most 2 C min(j, m); one item: 2 C."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(10, WIDTH)) * 3.0
    other = rows.copy()
    other[:j] = size * rng.normal(size=(j, WIDTH)) - (5.0 if size == 5.0 else 0.0)
    fixed = tf.constant([seed, 1], tf.int64)
    before = partition.fresh_seed
    partition.fresh_seed = lambda: fixed
    try:
        terms = parts_of(MixedClipping(C, parts=parts), 10)
        again = parts_of(MixedClipping(C, parts=parts), 10)
    finally:
        partition.fresh_seed = before
    np.testing.assert_array_equal(terms.group, again.group)
    hit = len(set(terms.group.numpy()[:j].tolist()))
    assert hit <= min(j, parts)
    moved = np.linalg.norm(summed(terms, rows) - summed(again, other))
    assert moved <= 2 * C * hit * (1 + 1e-5)


# -- noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "m"), [(BatchClipping(C), 1), (MixedClipping(C, parts=4), 4)]
)
def test_the_noise_of_a_step_has_twice_sigma_clip_norms(algorithm, m):
    """Empirical variance of 20,000 coordinates of a step without a gradient, false alarm 1e-6."""
    weights = tf.Variable(tf.zeros([20_000]))
    optimizer = sdp.DPOptimizer(
        tf.keras.optimizers.SGD(1.0),
        algorithm,
        noise_multiplier=SIGMA,
        divisor=algorithm.divisor(None),
    )
    sdp.private_step(
        optimizer,
        lambda rows: (0.0 * tf.reduce_sum(rows * weights, axis=1), ()),
        [weights],
        tf.ones([6, 20_000]),
        {"subject": [1, 1, 2, 3, 4, 5]},
        strategy="loop",
    )
    moved = weights.numpy().astype(np.float64)
    square = (moved**2).sum() / (2 * C * SIGMA / m) ** 2
    low, high = stats.chi2(20_000).ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2])
    assert low < square < high


# -- schedules -----------------------------------------------------------------------------------


def one_step(optimizer, weights, row):
    def losses(rows):
        return tf.linalg.matvec(rows, weights), ()

    @tf.function
    def step():
        extras = {"subject": tf.constant([1])}
        sdp.private_step(optimizer, losses, [weights], tf.constant(row), extras, strategy="loop")

    return step


def test_a_schedule_changes_clipping_and_noise_together():
    schedule = ClipSchedule([1.0, 0.5, 0.1], steps_per_factor=2)
    for sigma in (0.0, 3.0):
        weights = tf.Variable(tf.zeros([5_000]))
        optimizer = sdp.DPOptimizer(
            tf.keras.optimizers.SGD(1.0),
            BatchClipping(2.0, clip_schedule=schedule),
            noise_multiplier=sigma,
        )
        row = np.zeros([1, 5_000], np.float32)
        row[0, 0] = 100.0
        step = one_step(optimizer, weights, row)
        for number, factor in enumerate([1.0, 1.0, 0.5, 0.5, 0.1, 0.1, 0.1]):
            before = weights.numpy()
            step()
            moved = before - weights.numpy()
            assert schedule.factor(number) == factor
            if sigma == 0.0:
                assert np.linalg.norm(moved) == pytest.approx(2.0 * factor, rel=1e-5)
            else:
                ratio = moved[1:].std() / (2 * 2.0 * sigma * factor)
                # sd of a standard deviation from 5,000 normals is 1 %: 5.5 of these, 1e-7 a check.
                assert abs(ratio - 1) < 0.055


def test_schedules_are_checked_and_made():
    assert ClipSchedule.inverse_power(3, 0.5).factors == pytest.approx((1, 2**-0.5, 3**-0.5))
    assert ClipSchedule.exponential(0.5, 3, 10) == ClipSchedule([1.0, 0.5, 0.25], 10)
    for bad in ([], [0.0], [float("nan")], [1e9]):
        with pytest.raises(ValueError, match="factors"):
            ClipSchedule(bad)
    with pytest.raises(TypeError, match="factors"):
        ClipSchedule(0.5)
    for bad in (0, True, 1.5):
        with pytest.raises(ValueError, match="steps_per_factor"):
            ClipSchedule([1.0], bad)


# -- promises ------------------------------------------------------------------------------------


def facts(scheme, k=6, **changes):
    return SamplingFacts(
        scheme=scheme,
        rate=0.1,
        n_items=300,
        n_subjects=60,
        batch_size=30.0,
        expected_subjects=20.0,
        max_items=k,
        steps_per_epoch=10,
        **changes,
    )


def epsilon(guarantee, steps=20):
    return guarantee.epsilon(steps, 1e-5)


def gaussian(mu):
    return float(accounting.fdp.gaussian(mu).epsilon(1e-5))


def test_shuffled_epochs_have_the_root_of_items_times_epochs():
    for k in (1, 6, 10):
        found = epsilon(BatchClipping(C).subject_guarantee(facts("shuffle", k), SIGMA))
        assert found <= gaussian((k * 2) ** 0.5 / SIGMA) * (1 + 1e-3)
    # More items than batches: every batch is touched, and that is all.
    many = epsilon(BatchClipping(C).subject_guarantee(facts("shuffle", 50), SIGMA))
    assert many <= gaussian((10 * 2) ** 0.5 / SIGMA) * (1 + 1e-3)
    # m parts: in the worst shuffle all 6 items meet, in 4 parts and 2.
    mixed = epsilon(MixedClipping(C, parts=4).subject_guarantee(facts("shuffle"), SIGMA))
    assert mixed <= gaussian(((16 + 4) * 2) ** 0.5 / SIGMA) * (1 + 1e-3)


def test_sampled_items_have_the_law_of_the_parts_that_they_hit():
    of = facts("poisson_items")
    rate = 1 - 0.9**6
    batch = BatchClipping(C).subject_guarantee(of, SIGMA)
    expected = accounting.epsilon(accounting.subject_event(rate, SIGMA), 20, delta=1e-5)
    assert epsilon(batch) == pytest.approx(expected, rel=1e-6)
    item = MixedClipping(C, parts=4).item_guarantee(of, SIGMA)
    assert item.events == (accounting.item_event(0.1, SIGMA),)
    capped = MixedClipping(C, parts=4).item_guarantee(facts("poisson_items", data_cap=True), SIGMA)
    assert capped.events == (accounting.replace_one_event(0.1, SIGMA),)
    few, many, all_apart = (
        epsilon(MixedClipping(C, parts=m).subject_guarantee(of, SIGMA)) for m in (2, 8, 2**40)
    )
    group = accounting.epsilon(accounting.group_event(0.1, 6, SIGMA), 20, delta=1e-5)
    assert epsilon(batch) < few < many < all_apart
    assert all_apart == pytest.approx(group, rel=1e-6)


@pytest.mark.parametrize("scheme", ["poisson_subjects", "poisson_elements"])
def test_sampled_subjects_are_refused(scheme):
    for unit in ("subject", "item"):
        with pytest.raises(ValueError, match="no proven guarantee"):
            getattr(BatchClipping(C), f"{unit}_guarantee")(facts(scheme), SIGMA)


@pytest.mark.parametrize("sampling", [sdp.PoissonItems(30), sdp.FixedSize(30), sdp.Shuffle(30)])
@pytest.mark.parametrize("algorithm", [BatchClipping(C), MixedClipping(C, parts=3)])
def test_the_statement_names_both_adversaries(algorithm, sampling):
    stats_ = sdp.SubjectStats.from_counts([5] * 60)
    plan = sdp.plan(algorithm, sampling, stats_, epochs=2, noise_multiplier=SIGMA, delta=1e-5)
    text = plan.statement().replace("\n", " ")
    assert "Per subject: epsilon" in text and "(A0)" in text and "(A1)" in text
    assert "2 x 2 x 0.6 (noise multiplier x 2 x clip norm)" in text
    again = type(plan).from_config(json.loads(json.dumps(plan.get_config())))
    assert again == plan and again.epsilon() == plan.epsilon()


def test_a_statement_says_infinite_where_hardly_any_noise_is_left():
    stats_ = sdp.SubjectStats.from_counts([5] * 60)
    plan = sdp.plan(
        BatchClipping(C), sdp.Shuffle(30), stats_, epochs=2, noise_multiplier=1e-8, delta=1e-5
    )
    assert "per subject (5 items) infinite" in plan.statement().replace("\n", " ")


# -- arguments -----------------------------------------------------------------------------------


def test_configs_go_round():
    for algorithm in (
        BatchClipping(C),
        MixedClipping(C, 5),
        MixedClipping(
            C,
            parts=3,
            inner=InnerOptimizer(tf.keras.optimizers.Adam(0.01), steps="one an item"),
            clip_schedule=ClipSchedule([1.0, 0.5], 10),
        ),
        BatchClipping(C, inner=InnerOptimizer("sgd", 4)),
    ):
        config = json.loads(json.dumps(algorithm.get_config()))
        again = algorithm_from_config(config)
        assert again == algorithm and hash(again) == hash(algorithm)
    made = InnerOptimizer(tf.keras.optimizers.SGD(0.25, momentum=0.5), 2).make()
    assert float(made.learning_rate) == 0.25 and made.momentum == 0.5


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: MixedClipping(C, parts=0), ValueError),
        (lambda: MixedClipping(C, parts=2.5), TypeError),
        (lambda: MixedClipping(C, parts=None), TypeError),
        (lambda: BatchClipping(-1.0), ValueError),
        (lambda: BatchClipping(C, inner="sgd"), TypeError),
        (lambda: BatchClipping(C, clip_schedule=0.5), TypeError),
        (lambda: InnerOptimizer("sgd", steps=0), ValueError),
        (lambda: InnerOptimizer("sgd", steps="two an item"), ValueError),
        (lambda: InnerOptimizer("sgd", steps=True), ValueError),
        (lambda: InnerOptimizer(3), TypeError),
        (lambda: InnerOptimizer("no such optimizer"), (ValueError, TypeError)),
        (lambda: InnerOptimizer("{junk"), ValueError),
        (lambda: InnerOptimizer(tf.keras.optimizers.Adam(use_ema=True)), ValueError),
        (lambda: ClipSchedule([None]), TypeError),
        (lambda: ClipSchedule({1.0: 2}), TypeError),
    ],
)
def test_wrong_arguments_are_named(make, error):
    with pytest.raises(error):
        make()
