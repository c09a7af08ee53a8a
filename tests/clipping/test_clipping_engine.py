# SPDX-License-Identifier: Apache-2.0
"""The clipped sum of a linear model, whose gradient of a row IS the row, against NumPy loops."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_subjectdp import clipping
from tf_subjectdp.clipping import BatchPartition, EngineOptions, PartUpdates, clipped_sum
from tf_subjectdp.clipping import partition as partitions
from tf_subjectdp.keras import compat

STRATEGIES = ("vectorized", "loop")
KINDS = ("linear", "grouped")
FIRST = tf.Variable(np.full(3, 0.5, np.float32))
SECOND = tf.Variable(np.full((2, 1), 2.0, np.float32))
UNUSED = tf.Variable(np.ones(2, np.float32))
VARIABLES = [FIRST, SECOND, UNUSED]
WIDTH = 5


def row_function(rows):
    losses = tf.reduce_sum(rows[:, :3] * FIRST, axis=1)
    losses += tf.reduce_sum(rows[:, 3:] * SECOND[:, 0], axis=1)
    return losses, {"twice": 2.0 * rows, "first": rows[:, 0]}


@functools.cache
def engine(strategy, linear, max_rows=1024):
    """One trace for all batches, masks and clip norms."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, WIDTH], tf.float32),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([], tf.float32),
        ]
    )
    def run(rows, group, item_scale, group_scale, clip_norm):
        partition = BatchPartition(group, item_scale, group_scale, linear)
        options = EngineOptions(max_rows=max_rows)
        return clipped_sum(
            row_function, VARIABLES, rows, partition, clip_norm, strategy=strategy, options=options
        )

    return run


@pytest.fixture(scope="module", autouse=True)
def traces():
    yield
    engine.cache_clear()


def clip(vector, bound):
    norm = np.linalg.norm(vector)
    return vector if norm <= bound else vector * (bound / norm)


def oracle(rows, group, item_scale, group_scale, clip_norm):
    """The formula of `partition`, in float64 and with loops; rows that are not finite are zero."""
    rows = np.asarray(rows, np.float64)
    total = np.zeros(WIDTH)
    for a in sorted(set(group) - {-1}):
        term = np.zeros(WIDTH)
        for i in np.flatnonzero(np.asarray(group) == a):
            if np.all(np.isfinite(rows[i])):
                term += float(item_scale[i]) * rows[i]
        total += float(group_scale[a]) * clip(term, clip_norm)
    return total


def batch_of(group, kind, seed=0, size=2.0):
    rng = np.random.default_rng(seed)
    count = len(group)
    rows = rng.normal(size=(count, WIDTH)).astype(np.float32) * size
    group = np.array(group, np.int32)
    if kind == "linear":
        group = np.where(group >= 0, np.arange(count), -1).astype(np.int32)
        item_scale = np.ones(count, np.float32)
    else:
        item_scale = rng.uniform(0.1, 1.0, count).astype(np.float32)
    return rows, group, item_scale, rng.uniform(0.1, 1.0, count).astype(np.float32)


def run(strategy, kind, batch, clip_norm=3.0, max_rows=1024):
    rows, group, item_scale, group_scale = batch
    return engine(strategy, kind == "linear", max_rows)(
        tf.constant(rows), tf.constant(group), item_scale, group_scale, clip_norm
    )


def flat(result):
    assert [t.dtype for t in result.total] == [tf.float32] * 3
    assert [t.shape for t in result.total] == [v.shape for v in VARIABLES]
    np.testing.assert_array_equal(result.total[2].numpy(), 0.0)
    return np.concatenate([t.numpy().ravel() for t in result.total[:2]])


def check(strategy, kind, batch, clip_norm=3.0, max_rows=1024):
    result = run(strategy, kind, batch, clip_norm, max_rows)
    expected = oracle(*batch, clip_norm)
    scale = max(np.linalg.norm(expected), 1e-3)
    np.testing.assert_allclose(flat(result) / scale, expected / scale, atol=2e-6)
    return result


GROUPS = {
    "one group": [0] * 7,
    "groups of one": list(range(7)),
    "sizes 1 to 4, shuffled": [3, 0, 1, 3, 2, 3, 1, 2, 3, 2],
    "masked rows between": [-1, 4, -1, 2, 4, 4, -1, 2, -1],
    "a single row": [0],
    "all rows masked": [-1, -1, -1],
    "empty": [],
}


@pytest.mark.parametrize("max_rows", [1024, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sum_losses_and_counts_equal_a_numpy_loop_for_every_grouping(strategy, kind, max_rows):
    for group in GROUPS.values():
        batch = batch_of(group, kind, seed=len(group))
        result = check(strategy, kind, batch, max_rows=max_rows)
        rows, index, item_scale, _ = batch
        taking_part = np.flatnonzero(index >= 0)
        assert sorted(result.rows.numpy()) == list(taking_part)
        picked = rows[result.rows.numpy()]
        losses = picked @ np.array([0.5, 0.5, 0.5, 2.0, 2.0], np.float32)
        np.testing.assert_allclose(result.losses.numpy(), losses, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(result.predictions["twice"].numpy(), 2.0 * picked)
        np.testing.assert_allclose(result.predictions["first"].numpy(), picked[:, 0])
        present = sorted(set(index) - {-1})
        norms = [np.linalg.norm((item_scale[:, None] * rows)[index == a].sum(0)) for a in present]
        assert float(result.groups) == len(present)
        assert float(result.clipped) == sum(norm > 3.0 for norm in norms)
        assert float(result.non_finite) == 0.0


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(-1, 5), max_size=12),
    st.sampled_from(KINDS),
    st.sampled_from(STRATEGIES),
    st.floats(0.01, 100.0),
    st.integers(0, 10**6),
)
def test_sum_equals_a_numpy_loop_for_any_grouping_in_chunks_of_three(
    group, kind, strategy, clip_norm, seed
):
    group = [g if g < len(group) else -1 for g in group]
    check(strategy, kind, batch_of(group, kind, seed), clip_norm, max_rows=3)


@pytest.mark.parametrize("max_rows", [1024, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_row_that_is_not_finite_counts_as_zero_and_is_counted(strategy, kind, max_rows):
    # Alone in its group, beside finite rows of its group, and three in one group.
    batch = batch_of([0, 1, 1, 1, 2, 2, 2, 2, 3, -1, 4], kind, seed=5)
    rows = batch[0]
    rows[0, 1], rows[2, 4] = np.nan, np.inf
    rows[4, 0], rows[5, 3], rows[7, 2] = -np.inf, np.nan, np.nan
    rows[9] = np.nan  # masked: neither used nor counted
    result = check(strategy, kind, batch, max_rows=max_rows)
    assert float(result.non_finite) == 5.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_entries_whose_squares_overflow_are_clipped_to_exactly_the_bound(strategy, kind):
    batch = batch_of([0, 1, 2], kind, seed=6)
    batch[0][1] = [1e25, -2e25, 1e24, 3e25, 0.0]
    batch[2][:], batch[3][:] = 1.0, [0.0, 1.0, 0.0]
    total = flat(run(strategy, kind, batch, clip_norm=0.7)).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(total), 0.7, rtol=1e-6)
    np.testing.assert_allclose(total / 0.7, clip(batch[0][1].astype(np.float64), 1.0), atol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_group_whose_sum_overflows_counts_as_zero_and_is_counted(strategy):
    batch = batch_of([0, 0, 1], "grouped", seed=7)
    batch[0][:2] = [3e38, 0.0, 0.0, 0.0, 0.0]
    batch[2][:] = 1.0
    result = run(strategy, "grouped", batch)
    only_last = clip(batch[0][2].astype(np.float64), 3.0) * float(batch[3][1])
    np.testing.assert_allclose(flat(result), only_last, rtol=1e-5)
    assert float(result.non_finite) == 1.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_zero_and_tiny_gradients_are_added_as_they_are(strategy, kind):
    batch = batch_of([0, 1, 2], kind, seed=8, size=1e-12)
    batch[0][1] = 0.0
    check(strategy, kind, batch)
    assert float(run(strategy, kind, batch).clipped) == 0.0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_half_precision_gradients_are_clipped_in_float32(strategy):
    # 300^2 overflows float16: a norm in float16 is infinite, and the gradient would become 0.
    weight = tf.Variable(np.ones(2, np.float16))

    def half(rows):
        return tf.reduce_sum(rows * weight, axis=1), rows

    rows = tf.constant([[300.0, 300.0], [0.5, 0.0], [np.inf, 0.0]], tf.float16)
    partition = BatchPartition(tf.range(3), tf.ones([3]), tf.ones([3]), linear=True)
    result = clipped_sum(half, [weight], rows, partition, 1.0, strategy=strategy)
    assert result.total[0].dtype == tf.float32
    np.testing.assert_allclose(result.total[0], [0.5 + 0.5**0.5, 0.5**0.5], rtol=1e-3)
    assert float(result.non_finite) == 1.0


def test_what_is_added_to_a_batch_does_not_depend_on_the_chunk_it_falls_into():
    batch = batch_of([i % 4 for i in range(10)], "grouped", seed=9)
    sums = [
        flat(run(strategy, "grouped", batch, max_rows=size))
        for strategy in STRATEGIES
        for size in (1024, 3)
    ]
    for other in sums[1:]:
        np.testing.assert_allclose(other, sums[0], rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def large():
    """A layer of 10^8 weights, and a loss whose gradient is (row of the first) x (row of the second)."""
    width = 10**4
    layer = tf.keras.layers.Dense(width, use_bias=False, kernel_initializer="zeros")
    model = tf.keras.Sequential([tf.keras.Input([width]), layer])

    def product(rows):
        return tf.reduce_sum(model(rows[0]) * rows[1], axis=1), ()

    yield model, product, width


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["norm_only", "loop", "vectorized", "parts"])
def test_one_person_moves_a_hundred_million_weights_by_no_more_than_the_bound(engine, large):
    """In float32 their squares add up to a thousandth less than they should."""
    model, product, width = large
    updates = PartUpdates(model.trainable_variables) if engine == "parts" else None
    people, both = tf.constant([5, 5]), tf.constant([True, True])
    kinds = {"group": partitions.subject_mean_terms(people, both)}
    if engine != "parts":
        kinds["item"] = partitions.item_terms(tf.constant([True, False]))
    for terms in kinds.values():

        @tf.function(autograph=False)
        def moves(rows, terms=terms):
            return clipped_sum(
                product,
                [compat.raw(v) for v in model.trainable_variables],
                rows,
                terms,
                1.0,
                strategy="loop" if engine == "parts" else engine,
                layers=compat.all_layers(model),
                updates=updates,
            ).total[0]

        constant = tf.fill([2, width], 0.11), tf.ones([2, width])
        normal = (tf.random.stateless_normal([2, width], [1, k]) for k in (1, 2))
        for rows in (constant, tuple(normal)):
            total = moves(rows).numpy()
            moved = math.sqrt(sum(np.sum(np.square(row.astype(np.float64))) for row in total))
            assert 1.0 - 1e-4 < moved <= 1.0 + 2e-6


# -- rows whose tensors have sizes of their own ------------------------------------------------------


def growing(row):
    count = tf.cast(3.0 * tf.abs(row[0]), tf.int32)
    shapes = (tf.TensorShape([]), tf.TensorShape([None]))
    grown = tf.while_loop(
        lambda at, _: at < count,
        lambda at, v: (at + 1, tf.concat([v, 0.5 * v[:1]], 0)),
        (tf.constant(0), row[:1]),
        shape_invariants=shapes,
    )
    return tf.reduce_sum(grown[1])


def each(function):
    return lambda x: tf.map_fn(function, x)


SIZES_OF_THEIR_OWN = {
    "mask": lambda x: tf.math.segment_sum(tf.boolean_mask(x, x > 0), tf.where(x > 0)[:, 0]),
    "ragged": lambda x: tf.reduce_sum(
        tf.RaggedTensor.from_tensor(x, tf.cast(tf.abs(x[:, 0]), tf.int32)).to_tensor(), 1
    ),
    "map_fn": each(lambda row: tf.reduce_sum(tf.boolean_mask(row, row > 0))),
    "cond": each(lambda row: tf.reduce_sum(tf.cond(row[0] > 0, lambda: row[:1], lambda: row[:2]))),
    "while": each(growing),
    "compiled": tf.function(lambda x: tf.reduce_sum(x, 1), jit_compile=True),
}


@pytest.mark.parametrize("kind", list(SIZES_OF_THEIR_OWN))
def test_rows_of_unlike_sizes_go_to_the_loop_before_anything_is_computed(kind):
    kernel = tf.Variable([[1.0, 2.0, 3.0]])

    def losses(rows):
        return SIZES_OF_THEIR_OWN[kind](rows[:, :3] * kernel), ()

    found = clipping.choose_strategy(losses, [kernel], tf.TensorSpec([None, 3]), linear=True)
    assert found[0] == "loop"
    expected = "must be compiled" if kind == "compiled" else "depends on what is in a row"
    assert expected in found[1]


def test_inner_lengths_that_batches_leave_open_are_no_sizes_of_the_rows():
    kernel = tf.Variable([[1.0, 2.0, 3.0]])

    def losses(rows):
        return tf.reduce_sum(tf.nn.softmax(rows * kernel), [1, 2]), ()

    found = clipping.choose_strategy(losses, [kernel], tf.TensorSpec([None, None, 3]), linear=True)
    assert found[0] == "vectorized"
