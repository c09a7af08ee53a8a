# SPDX-License-Identifier: Apache-2.0
"""Uses of weights that multiply: norms from products of what they received and gave.

Row i's gradient is sum_t x_it (outer) d_it, where x is what the weight received and d the gradient of
the loss at what it put out; its square is a sum over pairs of positions (x_it . x_is)(d_it . d_is),
and a group's a sum over pairs of its rows.

Rounding errs upwards: a norm that is taken for too small would clip too little. Products of pairs are
made in float64; and what float32 loses in the step's own sum of a gradient's terms counts as part of the
norm (`uses.longer`).
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from tf_subjectdp.clipping import norms
from tf_subjectdp.clipping.norm_only.groups import Groups
from tf_subjectdp.clipping.norm_only.uses import (
    UNKNOWN_LENGTH,
    ItemGradients,
    Use,
    as_matrix,
    longer,
)

# What float32 may lose of a square below its smallest numbers, in the square and in the sum.
_TINY = 2.4e-38
# Products of a factor with itself are summed in float64: where a row's positions nearly cancel, what
# is left of their sum would drown in float32's rounding, and the norm would come out too small.
_WIDE = tf.float64
_ROUNDING = 2.0**-53
# What a product in float64 costs on a CPU, in products in float32.
_WIDE_COST = 4
# Gradients of a sequence that are formed at a time: 8 MiB.
_BLOCK_ELEMENTS = 1 << 21


class Product(Use):
    """The weight multiplied: received [n, i] or [n, t, i], gradients [n, o] or [n, t, o].

    Args:
      received: what the weight was multiplied with.
      gradient: gradient of the loss at the product.
      shape: the weight's shape, i x o entries in this order; o x i if `swapped`.
      swapped: whether the weight is kept the other way round.
      grams: a common store for the products of a tensor with itself, which several weights share.
      whole: whether this becomes part of a compiled program.
    """

    def __init__(
        self, received, gradient, shape, *, swapped: bool = False, grams=None, whole: bool = False
    ):
        self.shape = tf.TensorShape(shape)
        self._received = tf.cast(received, tf.float32)
        self._gradient = tf.cast(gradient, tf.float32)
        self._swapped = swapped
        self._grams = {} if grams is None else grams
        self._whole = whole

    @property
    def _sequence(self) -> bool:
        return self._received.shape.rank == 3

    def _gram(self, tensor: tf.Tensor) -> tf.Tensor:
        key = tensor.ref()
        if key not in self._grams:
            self._grams[key] = _gram(tensor)
        return self._grams[key]

    def item_squares(self) -> tf.Tensor:
        if not self._sequence:
            return math.prod(self._factor_squares())
        if not self._whole and pairs_cost_more(self._received, self._gradient, price=_WIDE_COST):
            return self._squares_of_item_gradients()
        received, gradient = self._gram(self._received), self._gram(self._gradient)
        squares = tf.reduce_sum(received * gradient, axis=[1, 2])
        return self._upwards(squares, self._lengths(), tf.shape(self._received)[1])

    def _factor_squares(self) -> list[tf.Tensor]:
        """Squares of the last axis of both factors, flat: float64 [n] or [n t] each; with what float32
        may have lost below its smallest numbers."""
        flat = [tf.reshape(t, [-1, t.shape[-1]]) for t in (self._received, self._gradient)]
        return [
            norms.squares_of_rows(t, one_pass=not self._whole) + t.shape[-1] * _TINY for t in flat
        ]

    def _lengths(self) -> tf.Tensor:
        """Norms of the rows' gradients, float64 [n]; of a sequence, the sum of its positions' norms."""
        lengths = tf.sqrt(math.prod(self._factor_squares()))
        if not self._sequence:
            return lengths
        return tf.reduce_sum(tf.reshape(lengths, tf.shape(self._received)[:2]), axis=1)

    def _upwards(self, squares, lengths, terms) -> tf.Tensor:
        """Squares of sums of terms from float64 products of pairs, with what these and the step may lose.

        Args: the squares; the sum of the terms' norms; the number of terms.
        """
        # Each sum over a factor's entries, and the sum over pairs of terms, in any order.
        entries = self._received.shape[-1] + self._gradient.shape[-1]
        pairs = tf.square(tf.cast(terms, _WIDE))
        squares += 2.0 * _ROUNDING * (pairs + entries + 4) * tf.square(lengths)
        return longer(tf.maximum(squares, 0.0), lengths, terms, in_blocks=True)

    def _squares_of_item_gradients(self) -> tf.Tensor:
        """Forms the gradients of some rows at a time."""
        size = self._received.shape[-1] * self._gradient.shape[-1]
        block = max(1, _BLOCK_ELEMENTS // size)
        number = (tf.shape(self._received)[0] + block - 1) // block

        def body(at, squares):
            rows = slice(at * block, (at + 1) * block)
            made = tf.matmul(self._received[rows], self._gradient[rows], transpose_a=True)
            return at + 1, squares.write(at, norms.squares_of_rows(made))

        squares = tf.TensorArray(_WIDE, number, element_shape=[None], infer_shape=False)
        _, squares = tf.while_loop(
            lambda at, _: at < number, body, (tf.constant(0), squares), parallel_iterations=1
        )
        lengths, terms = self._lengths(), tf.shape(self._received)[1]
        return longer(squares.concat(), lengths, terms, sums=2, in_blocks=True)

    def group_squares(self, groups: Groups) -> tf.Tensor:
        lengths = groups.sums(self._lengths() * tf.cast(tf.abs(groups.scale), _WIDE))
        if self._sequence:
            terms = groups.sizes * tf.cast(tf.shape(self._received)[1], tf.float32)
            squares = self._formed_group_squares(groups)
            return longer(squares, lengths, terms, sums=2, in_blocks=True)
        if not groups.sorted:
            squares = self._squares_of_all_pairs(groups)
        else:
            squares = tf.cond(
                groups.blocks().less,
                lambda: self._squares_of_blocks(groups),
                lambda: self._squares_of_all_pairs(groups),
            )
        return self._upwards(squares, lengths, groups.sizes)

    def _squares_of_blocks(self, groups: Groups) -> tf.Tensor:
        """Pairs of rows within each group alone."""
        squares = []
        for place, scale in groups.blocks().rows:
            scale = tf.cast(scale, _WIDE)
            pairs = scale[:, :, tf.newaxis] * scale[:, tf.newaxis]
            for factor in (self._received, self._gradient):
                pairs *= _gram(tf.gather(factor, place))
            squares.append(tf.reduce_sum(pairs, axis=[1, 2]))
        return tf.gather(tf.concat(squares, 0), groups.blocks().order)

    def _squares_of_all_pairs(self, groups: Groups) -> tf.Tensor:
        """All pairs of rows, those of two groups with weight 0."""
        pairs = tf.cast(groups.pairs(), _WIDE) * _gram(self._received) * _gram(self._gradient)
        return groups.sums(tf.reduce_sum(pairs, axis=1))

    def _formed_group_squares(self, groups: Groups) -> tf.Tensor:
        if not groups.sorted:
            scaled = groups.scale[:, tf.newaxis, tf.newaxis] * self._gradient
            each = as_matrix(tf.matmul(self._received, scaled, transpose_a=True))
            return norms.squares_of_rows(groups.sums(each), one_pass=False)
        # One gradient at a time: no bigger than the weight, and matrix products of full size.
        starts, ends = groups.bounds()
        widths = self._received.shape[-1], self._gradient.shape[-1]

        def body(number, squares):
            start, end = starts[number], ends[number]
            scale = groups.scale[start:end, tf.newaxis, tf.newaxis]
            left = tf.reshape(self._received[start:end], [-1, widths[0]])
            right = tf.reshape(self._gradient[start:end] * scale, [-1, widths[1]])
            gradient = tf.matmul(left, right, transpose_a=True)
            square = norms.squares_of_rows(gradient[tf.newaxis])[0]
            return number + 1, squares.write(number, square)

        squares = tf.TensorArray(_WIDE, groups.count, element_shape=[])
        _, squares = tf.while_loop(
            lambda number, _: number < groups.count,
            body,
            (tf.constant(0), squares),
            parallel_iterations=1,
        )
        return squares.stack()

    def weighted(self, weight: tf.Tensor) -> tf.Tensor:
        left, right = self._received, self._gradient
        shaped = tf.reshape(weight, [-1] + [1] * (left.shape.rank - 1))
        # The narrower factor is scaled, which costs less.
        if left.shape[-1] < right.shape[-1]:
            left *= shaped
        else:
            right *= shaped
        if self._sequence:
            left = tf.reshape(left, [-1, left.shape[-1]])
            right = tf.reshape(right, [-1, right.shape[-1]])
        if self._swapped:
            left, right = right, left
        return tf.reshape(tf.matmul(left, right, transpose_a=True), self.shape)

    def item_gradients(self) -> tf.Tensor:
        left, right = (
            t if self._sequence else t[:, tf.newaxis] for t in (self._received, self._gradient)
        )
        if self._swapped:
            left, right = right, left
        return tf.reshape(tf.matmul(left, right, transpose_a=True), [-1, *self.shape])

    def kept_rows(self) -> list[tf.Tensor]:
        return [self._received, self._gradient]

    def of(self, kept: Sequence[tf.Tensor]) -> "Product":
        options = {"swapped": self._swapped, "grams": self._grams, "whole": self._whole}
        return Product(*kept, self.shape, **options)

    def joined(self, other: "Product") -> "Product":
        """The use of one weight at two places, as one: their positions side by side."""
        sequences = []
        for use in (self, other):
            parts = (use._received, use._gradient)
            sequences.append([t if use._sequence else t[:, tf.newaxis] for t in parts])
        received, gradient = (tf.concat(pair, axis=1) for pair in zip(*sequences, strict=True))
        return self.of((received, gradient))

    def joins(self, other: Use) -> bool:
        """Whether `joined` can take it."""
        return isinstance(other, Product) and self._swapped == other._swapped


def product(received, gradient, shape, **options) -> Use:
    """The use of a weight that multiplied, in the form that costs less to take the norm of.

    Args: as `Product`; axes between the first and the last are positions.
    """
    if received.shape.rank > 3:
        received, gradient = (_positions(t) for t in (received, gradient))
    use = Product(received, gradient, shape, **options)
    if received.shape.rank == 3 and pairs_cost_more(received, gradient):
        return ItemGradients(use.item_gradients(), shape)
    return use


def _gram(factor: tf.Tensor) -> tf.Tensor:
    """[..., t, i] times itself, float64 [..., t, t]."""
    factor = tf.cast(factor, _WIDE)
    return tf.matmul(factor, factor, transpose_b=True)


def pairs_cost_more(received: tf.Tensor, gradient: tf.Tensor, price: int = 1) -> bool:
    """Whether all pairs of positions cost more than the gradient itself, [n, t, i] x [n, t, o].

    `price`: of one of the pairs' products, in products of the gradient.
    """
    length = received.shape[1] or UNKNOWN_LENGTH
    inner, outer = received.shape[-1], gradient.shape[-1]
    return price * length * (inner + outer) > inner * outer


def _positions(tensor: tf.Tensor) -> tf.Tensor:
    """[n, ..., i] -> [n, t, i]."""
    size = tensor.shape[1:-1].num_elements()
    size = tf.reduce_prod(tf.shape(tensor)[1:-1]) if size is None else size
    flat = tf.reshape(tensor, tf.stack([tf.shape(tensor)[0], size, tensor.shape[-1]]))
    flat.set_shape([None, tensor.shape[1:-1].num_elements(), tensor.shape[-1]])
    return flat
