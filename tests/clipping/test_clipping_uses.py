# SPDX-License-Identifier: Apache-2.0
"""What is kept of a weight's use, against item gradients formed by NumPy loops in float64."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_subjectdp.clipping import norms
from tf_subjectdp.clipping.norm_only import convolution, products, uses
from tf_subjectdp.clipping.norm_only import groups as grouping

ROWS = 6
GROUPS = np.array([0, 0, 1, 2, 2, 2])
SCALE = np.array([0.5, 0.5, 1.0, 0.2, 0.7, 0.1], np.float32)


def rng(seed=0):
    return np.random.default_rng(seed)


def dense():
    x, d = rng().normal(size=(ROWS, 3)), rng(1).normal(size=(ROWS, 4))
    return products.Product(tf.constant(x, tf.float32), tf.constant(d, tf.float32), [3, 4]), [
        np.outer(a, b) for a, b in zip(x, d, strict=True)
    ]


def sequence(length=5, swapped=False, widths=(3, 4)):
    x, d = (rng(k).normal(size=(ROWS, length, width)) for k, width in enumerate(widths))
    made = [sum(np.outer(a[t], b[t]) for t in range(length)) for a, b in zip(x, d, strict=True)]
    shape = list(reversed(widths)) if swapped else list(widths)
    made = [m.T for m in made] if swapped else made
    use = products.Product(
        tf.constant(x, tf.float32), tf.constant(d, tf.float32), shape, swapped=swapped
    )
    return use, made


def lookups(length=7):
    ids, d = rng().integers(0, 4, (ROWS, length)), rng(1).normal(size=(ROWS, length, 2))
    made = np.zeros((ROWS, 4, 2))
    for i in range(ROWS):
        for t in range(length):
            made[i, ids[i, t]] += d[i, t]
    return uses.Lookups(tf.constant(ids), tf.constant(d, tf.float32), [4, 2]), list(made)


def item_gradients():
    made = rng().normal(size=(ROWS, 2, 3))
    return uses.ItemGradients(tf.constant(made, tf.float32), [2, 3]), list(made)


def image_gradients_of(x, d, window, shape):
    """The gradient of sum(conv(x) * d) by the definition of a convolution, in loops."""
    made = np.zeros((len(x), *shape))
    padded = np.pad(x, [(0, 0), *zip(window.before, window.after, strict=True), (0, 0)])
    for i in range(shape[0]):
        for j in range(shape[1]):
            for a in range(window.output[0]):
                for b in range(window.output[1]):
                    row = a * window.strides[0] + i * window.dilations[0]
                    column = b * window.strides[1] + j * window.dilations[1]
                    made[:, i, j] += padded[:, row, column, :, None] * d[:, a, b, None, :]
    return list(made)


def images(size=6, channels=2, outputs=3, kernel=3, kind=None, **options):
    options = {"strides": (1, 1), "padding": "SAME", **options}
    shape = [kernel, kernel, channels, outputs]
    x = rng().normal(size=(ROWS, size, size, channels))
    window = convolution.Window.of(tf.constant(x), shape, **options)
    d = rng(1).normal(size=(ROWS, *window.output, outputs))
    kept = tf.constant(x, tf.float32), tf.constant(d, tf.float32), shape, window
    use = kind(*kept) if kind else convolution.use(*kept)
    return use, image_gradients_of(x, d, window, shape)


def images_in_blocks(rows):
    """Blocks of images that end within groups."""
    use, made = images()
    use._block = rows
    return use, made


CASES = {
    "dense": dense,
    "sequence": sequence,
    "sequence, swapped": lambda: sequence(swapped=True),
    "sequence of one": lambda: sequence(1),
    "short sequence, from pairs": lambda: sequence(3, widths=(24, 24)),
    "lookups": lookups,
    "item gradients": item_gradients,
    "images": images,
    "images, blocks of four": lambda: images_in_blocks(4),
    "images, blocks of one": lambda: images_in_blocks(1),
    "images, strided": lambda: images(strides=(2, 2)),
    "images, dilated": lambda: images(dilations=(2, 2), padding="VALID"),
    "images, even kernel": lambda: images(kernel=2, strides=(2, 2), size=5),
    "images, as patches": lambda: images(kind=convolution.PatchProduct, strides=(2, 2)),
    "images, valid, as patches": lambda: images(kind=convolution.PatchProduct, padding="VALID"),
}


def assert_bounds(found, expected):
    """Squares of norms are not too small, and larger by what float32 may lose in the step's own sum."""
    # The inputs of the loops are float64.
    assert np.all(found >= np.array(expected) * (1.0 - 1e-6))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-30)


@pytest.fixture(params=list(CASES))
def case(request):
    return CASES[request.param]()


def groups(in_order):
    order = np.arange(ROWS) if in_order else np.array([3, 0, 5, 1, 2, 4])
    ids = np.empty(ROWS, np.int32)
    ids[order] = GROUPS
    made = grouping.Groups(tf.constant(ids), tf.constant(SCALE), tf.constant(3), in_order=in_order)
    return made, ids


def test_item_gradients_are_those_of_the_loops(case):
    use, made = case
    np.testing.assert_allclose(use.item_gradients(), made, rtol=1e-4, atol=1e-5)


def test_item_squares_are_squared_norms_and_never_less(case):
    use, made = case
    expected = [np.sum(np.square(m)) for m in made]
    assert_bounds(use.item_squares(), expected)


@pytest.mark.parametrize("in_order", [True, False])
def test_group_squares_are_those_of_the_groups_scaled_sums(case, in_order):
    use, made = case
    given_groups, ids = groups(in_order)
    expected = [
        np.sum(np.square(sum(SCALE[i] * made[i] for i in range(ROWS) if ids[i] == a)))
        for a in range(3)
    ]
    assert_bounds(use.group_squares(given_groups), expected)


def test_the_weighted_sum_is_that_of_the_item_gradients(case):
    use, made = case
    weight = rng(2).normal(size=ROWS).astype(np.float32)
    expected = sum(w * m for w, m in zip(weight, made, strict=True))
    for found in (use.weighted(tf.constant(weight)), use.weighted_alone(tf.constant(weight))):
        assert found.shape == use.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 4, 6, 100])
def test_a_sequence_s_item_squares_do_not_depend_on_the_rows_of_a_block(rows, monkeypatch):
    monkeypatch.setattr(products, "_BLOCK_ELEMENTS", 12 * rows)
    use, made = sequence()
    assert_bounds(use.item_squares(), [np.sum(m**2) for m in made])


@pytest.mark.parametrize("in_order", [True, False])
def test_the_weighted_sum_of_groups_is_that_of_their_scaled_sums(case, in_order):
    use, made = case
    kept, ids = groups(in_order)
    factors = np.array([0.3, 2.0, 0.0], np.float32)
    wanted = sum(factors[g] * s * m for g, s, m in zip(ids, SCALE, made, strict=True))
    for _ in range(2):
        found = use.weighted_groups(kept, tf.constant(factors))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_rows_that_are_left_out_count_as_zero_even_if_they_are_not_finite(case):
    use, made = case
    keep = np.array([True, False, True, True, False, True])
    squares = use.of_rows(tf.constant(keep)).item_squares()
    expected = [k * np.sum(np.square(m)) for k, m in zip(keep, made, strict=True)]
    assert_bounds(squares, expected)
    zero = uses.zeroed(tf.constant([[np.nan], [1.0]]), tf.constant([False, True]))
    np.testing.assert_array_equal(zero, [[0.0], [1.0]])


def test_two_uses_of_one_weight_are_one_with_the_sum_of_their_gradients():
    for first, second in ((sequence(3), sequence(4)), (lookups(2), lookups(5)), (dense(), dense())):
        joined = uses.one_use([first[0], second[0]])
        made = [a + b for a, b in zip(first[1], second[1], strict=True)]
        assert type(joined) is type(first[0])
        assert_bounds(joined.item_squares(), [np.sum(np.square(m)) for m in made])
        np.testing.assert_allclose(joined.item_gradients(), made, rtol=1e-4, atol=1e-5)


def test_two_uses_of_different_kinds_are_joined_as_item_gradients():
    tied = products.Product(tf.ones([ROWS, 4]), tf.ones([ROWS, 2]), [4, 2])
    joined = uses.one_use([lookups()[0], tied])
    expected = [m + 1.0 for m in lookups()[1]]
    np.testing.assert_allclose(joined.item_gradients(), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    length=st.integers(2, 40),
    cancels=st.floats(0.0, 1.0),
    widths=st.sampled_from([(5, 3), (400, 300)]),  # formed in float32, and from pairs in float64
    size=st.sampled_from([1e-12, 1e-3, 1.0, 1e6]),
    seed=st.integers(0, 1000),
)
def test_a_norm_is_not_underestimated_where_a_row_s_steps_cancel(
    length, cancels, widths, size, seed
):
    """A norm that rounding makes too small would clip too little."""
    x = rng(seed).normal(size=(1, length, widths[0])) * size
    d = rng(seed + 1).normal(size=(1, length, widths[1])) / size
    half = length // 2
    # The second half repeats the first with the sign turned, up to a small remainder.
    x[:, half : 2 * half] = x[:, :half]
    d[:, half : 2 * half] = -d[:, :half] * (1.0 - (1.0 - cancels) * 1e-4)
    if length % 2:
        d[:, -1] *= 1e-4
    x, d = x.astype(np.float32), d.astype(np.float32)
    exact = np.einsum("nti,nto->nio", x.astype(np.float64), d.astype(np.float64))
    use = products.Product(tf.constant(x), tf.constant(d), widths)
    found = np.sqrt(use.item_squares().numpy()[0])
    assert found >= np.linalg.norm(exact)
    every = grouping.Groups(tf.constant([0]), tf.constant([1.0]), tf.constant(1), in_order=True)
    rows = products.Product(tf.constant(x[0]), tf.constant(d[0]), widths)
    one = grouping.Groups(
        tf.zeros([length], tf.int32), tf.ones([length]), tf.constant(1), in_order=True
    )
    grouped = np.sqrt(rows.group_squares(one).numpy()[0])
    assert grouped >= np.linalg.norm(exact)
    assert np.isfinite(use.group_squares(every).numpy()).all()


def long_use(kind, constant):
    """One row, or one person's rows, of many terms, or of very long ones."""

    def made(*shape):
        return tf.fill(shape, 0.37) if constant else tf.random.stateless_normal(shape, [1, 2])

    if kind == "row of long factors":
        return products.Product(made(1, 2**22), made(1, 3), [2**22, 3]), 1
    if kind == "rows":
        return products.Product(made(900, 8), made(900, 5), [8, 5]), 900
    if kind == "positions":
        return products.Product(made(1, 2000, 64), made(1, 2000, 32), [64, 32]), 1
    if kind == "positions, from pairs":
        return products.Product(made(1, 100, 1024), made(1, 100, 1024), [1024, 1024]), 1
    if kind == "positions of rows":
        return products.Product(made(9, 200, 64), made(9, 200, 32), [64, 32]), 9
    if kind == "items":
        return uses.ItemGradients(made(900, 4099), [4099]), 900
    length = 2**20
    ids = tf.range(length)[tf.newaxis] // (4 if kind == "ids, repeated" else 1)
    return uses.Lookups(ids, made(1, length, 1), [length, 1]), 1


LONG = (
    "row of long factors",
    "rows",
    "positions",
    "positions, from pairs",
    "positions of rows",
    "items",
    "ids",
    "ids, repeated",
)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("kind", LONG)
def test_what_is_added_of_long_sums_has_at_most_the_norm_that_was_taken(kind, constant):
    use, rows = long_use(kind, constant)
    person = grouping.Groups(
        tf.zeros([rows], tf.int32), tf.ones([rows]), tf.constant(1), in_order=True
    )
    found = [(use.group_squares(person), lambda w: use.weighted_groups(person, w))]
    if rows == 1:
        found.append((use.item_squares(), use.weighted))
    for squares, weighted in found:
        weight = norms.clip_factors(norms.from_squares([squares]), 1e-6)
        moved = np.linalg.norm(weighted(weight).numpy().astype(np.float64)) / 1e-6
        assert 0.99 < moved <= 1.0


@pytest.mark.parametrize(("received", "gradient"), [(1e18, 1e-24), (1e-24, 1e18)])
def test_a_factor_whose_squares_vanish_in_float32_still_counts(received, gradient):
    x = tf.fill([1, 4], tf.constant(received, tf.float32))
    d = tf.fill([1, 4], tf.constant(gradient, tf.float32))
    found = products.Product(x, d, [4, 4]).item_squares().numpy()[0]
    assert found >= (4 * received * gradient) ** 2


def test_the_cheaper_form_is_chosen_by_the_shapes():
    long, short = tf.zeros([2, 50, 4]), tf.zeros([2, 3, 100])
    assert isinstance(products.product(long, tf.zeros([2, 50, 4]), [4, 4]), uses.ItemGradients)
    assert isinstance(products.product(short, tf.zeros([2, 3, 80]), [100, 80]), products.Product)
    few, many = tf.zeros([2, 2, 2, 64]), tf.zeros([2, 16, 16, 3])
    window = convolution.Window.of(few, [2, 2, 64, 99], strides=(1, 1), padding="SAME")
    use = convolution.use(few, tf.zeros([2, 2, 2, 99]), [2, 2, 64, 99], window)
    assert isinstance(use, convolution.PatchProduct)
    window = convolution.Window.of(many, [3, 3, 3, 8], strides=(1, 1), padding="SAME")
    use = convolution.use(many, tf.zeros([2, 16, 16, 8]), [3, 3, 3, 8], window)
    assert isinstance(use, convolution.ImageGradients)


@pytest.mark.parametrize("order", ["small first", "mixed"])
def test_groups_of_uneven_sizes_are_laid_out_in_blocks_of_similar_ones(order):
    sizes = np.array([1] * 30 + [2] * 30 + [9] * 5 + [40])
    if order == "mixed":
        sizes = rng(3).permutation(sizes)
    ids = np.repeat(np.arange(sizes.size), sizes)
    x, d = rng(1).normal(size=(ids.size, 5)), rng(2).normal(size=(ids.size, 4))
    scale = rng(4).uniform(0.1, 1.0, ids.size).astype(np.float32)
    kept = grouping.Groups(
        tf.constant(ids, tf.int32), tf.constant(scale), tf.constant(sizes.size), in_order=True
    )
    blocks = kept.blocks()
    assert blocks.less
    assert [int(place.shape[0]) for place, _ in blocks.rows] == [60, 5, 1]
    use = products.Product(tf.constant(x, tf.float32), tf.constant(d, tf.float32), [5, 4])
    wanted = [
        np.sum(np.einsum("n,ni,no->io", scale[ids == g], x[ids == g], d[ids == g]) ** 2)
        for g in range(sizes.size)
    ]
    assert_bounds(use.group_squares(kept), wanted)


def test_blocks_are_given_up_where_all_pairs_are_less_work():
    one = grouping.Groups(tf.zeros([50], tf.int32), tf.ones([50]), tf.constant(1), in_order=True)
    assert not one.blocks().less
    use = products.Product(tf.ones([50, 2]), tf.ones([50, 3]), [2, 3])
    assert_bounds(use.group_squares(one), [2500.0 * 6])


def test_what_cancels_in_a_row_rounds_no_other_row_away():
    """Parts of 10^8 that cancel pass through the float32 sum in which everybody else's are."""
    positions, inner, outer = 2, 16, 50

    def row(first, last):
        received = np.full((positions, inner), inner**-0.5)
        gradient = np.zeros((positions, outer))
        gradient[0], gradient[1] = first * outer**-0.5, last * outer**-0.5
        return received, gradient

    def clipped(*rows):
        received, gradient = (
            tf.constant(np.stack(part), tf.float32) for part in zip(*rows, strict=True)
        )
        use = products.Product(received, gradient, [inner, outer])
        factors = norms.clip_factors(norms.from_squares([use.item_squares()]), 1.0)
        return use.weighted(factors).numpy().astype(np.float64)

    for base in np.linspace(0.0, 0.2, 11):
        with_person = clipped(row(base, 0.0), row(1.0, 0.0), row(1e8, -1e8))
        without = clipped(row(base, 0.0), row(0.0, 0.0), row(1e8, -1e8))
        assert np.linalg.norm(with_person - without) <= 1.0 + 1e-4
