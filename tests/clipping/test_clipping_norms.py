# SPDX-License-Identifier: Apache-2.0
"""Norms and clip factors at the edges of float16 and float32, and of very long gradients."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_subjectdp.clipping import norms

CLIP = 1.5


def row_norms(*arrays):
    return norms.row_norms(norms.as_float32([tf.constant(a) for a in arrays], arrays)).numpy()


def test_norm_runs_over_all_variables_of_a_row():
    rng = np.random.default_rng(1)
    parts = [rng.normal(size=(5, *shape)).astype(np.float32) for shape in ((3, 2), (), (7,))]
    flat = np.concatenate([p.reshape(5, -1) for p in parts], axis=1).astype(np.float64)
    np.testing.assert_allclose(row_norms(*parts), np.linalg.norm(flat, axis=1), rtol=2e-6)


def test_float16_gradients_whose_squares_overflow_keep_their_norm():
    # 300^2 is above the largest float16.
    found = row_norms(np.full((1, 4), 300.0, np.float16))
    np.testing.assert_allclose(found, [600.0], rtol=1e-6)


@pytest.mark.parametrize("size", [1e-18, 1.0, 1e18, 1e25, 1e37])
def test_norms_hold_where_float32_squares_would_overflow_or_not(size):
    found = row_norms(np.array([[3.0 * size, 4.0 * size]], np.float32))
    np.testing.assert_allclose(found, [5.0 * size], rtol=1e-6)


def test_a_huge_row_leaves_the_norms_of_its_neighbours_alone():
    found = row_norms(np.array([[3e25, 4e25], [3.0, 4.0], [0.0, 0.0]], np.float32))
    np.testing.assert_allclose(found, [5e25, 5.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_has_a_norm_that_is_not_finite_and_no_other_row_has(value):
    rows = np.array([[1.0, value], [3.0, 4.0], [3e25, 4e25]], np.float32)
    found = row_norms(rows)
    assert not np.isfinite(found[0])
    np.testing.assert_allclose(found[1:], [5.0, 5e25], rtol=1e-6)


def test_variables_without_elements_do_not_disturb_the_norm():
    huge = np.array([[3e25, 4e25], [0.0, 2.0]], np.float32)
    np.testing.assert_allclose(
        row_norms(huge, np.zeros((2, 0), np.float32)), [5e25, 2.0], rtol=1e-6
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 40) | st.sampled_from([257, 3000, 4099, 65536]), max_size=3),
    exponents=st.lists(st.floats(-45.0, 17.0), min_size=1, max_size=4),
    constant=st.booleans(),
    rows=st.integers(1, 3),
    one_pass=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_squares_of_any_magnitudes_and_lengths_are_never_too_small_and_hardly_too_large(
    sizes, exponents, constant, rows, one_pass, seed
):
    random = np.random.default_rng(seed)
    shape = [rows, *sizes] if math.prod(sizes) < 10**5 else [rows, *sizes[:1]]
    powers = 10.0 ** np.array(exponents)
    values = random.choice(powers, shape) * (1.0 if constant else random.normal(size=shape))
    values = values.astype(np.float32)
    found = norms.squares_of_rows(tf.constant(values), one_pass=one_pass).numpy()
    for row, square in zip(values.reshape(rows, -1).astype(np.float64), found, strict=True):
        exact = math.fsum(np.square(row).tolist())
        assert exact <= square + 2.4e-38 * row.size
        assert square <= exact * (1.0 + 3.2e-5)


def test_the_length_of_a_row_may_be_unknown_when_it_is_traced():
    traced = tf.function(
        norms.squares_of_rows, input_signature=[tf.TensorSpec([None, None, 3], tf.float32)]
    )
    for rows, length in ((0, 5), (2, 0), (2, 5), (3, 2**11)):
        given = np.random.default_rng(1).normal(size=(rows, length, 3)).astype(np.float32)
        np.testing.assert_allclose(
            traced(given), np.square(given.astype(np.float64)).sum(axis=(1, 2)), rtol=3.2e-5
        )


def test_a_compiled_program_adds_squares_in_blocks_too():
    @tf.function(jit_compile=True)
    def compiled(row):
        return norms.squares_of_rows(row, one_pass=False)

    for size in (2**23, 2**23 + 1):
        exact = size * float(np.float32(0.11)) ** 2
        assert exact <= compiled(tf.fill([1, size], 0.11)).numpy()[0] <= exact * (1.0 + 3.2e-5)


@pytest.mark.parametrize("kind", ["constant", "normal"])
def test_a_row_of_a_hundred_million_numbers_is_not_clipped_to_more_than_the_bound(kind):
    row = tf.fill([1, 10**8], 0.37)
    if kind == "normal":
        row = tf.tile(tf.random.stateless_normal([1, 10**6], [1, 2]), [1, 100])
    (weight,) = norms.clip_factors(norms.row_norms([row]), 1.0).numpy()
    moved = 0.0
    for part in np.split(row.numpy()[0], 100):
        part = (weight * part).astype(np.float64)
        moved += part @ part
    assert 1.0 - 2e-5 < math.sqrt(moved) <= 1.0


def test_clip_factors_scale_down_to_the_bound_and_never_up():
    given = np.array([0.0, 1e-30, 1.0, CLIP, 3.0, 1e38], np.float32)
    factors = norms.clip_factors(tf.constant(given), CLIP).numpy()
    np.testing.assert_allclose(factors[:4], 1.0)
    np.testing.assert_allclose((factors * given)[4:], CLIP, rtol=1e-6)


def test_repeated_indices_of_a_sparse_gradient_are_summed():
    sparse = tf.IndexedSlices(
        tf.constant([[1.0, 0.0], [2.0, 5.0]]), tf.constant([1, 1]), tf.constant([3, 2])
    )
    (dense,) = norms.as_float32([sparse], [np.zeros([3, 2])])
    np.testing.assert_array_equal(dense.numpy(), [[0, 0], [3, 5], [0, 0]])


def test_zero_rows_removes_nan_and_infinity():
    gradient = tf.constant([[np.nan, 1.0], [2.0, 3.0], [np.inf, 4.0]], tf.float32)
    (kept,) = norms.zero_rows([gradient], tf.constant([False, True, False]))
    np.testing.assert_array_equal(kept.numpy(), [[0, 0], [2, 3], [0, 0]])
