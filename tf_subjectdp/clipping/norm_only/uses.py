# SPDX-License-Identifier: Apache-2.0
"""What is kept of a weight's use, and what follows from it: norms, and a weighted gradient.

Knows tensors that share the leading axis of the rows; imports `norms` alone. The gradient of row i
with respect to the weight is never formed where its norm follows from less:

* `Product`: the weight multiplied what it received. Row i's gradient is sum_t x_it (outer) d_it, where
  x is what the weight received and d the gradient of the loss at what it put out; its square is a
  sum over pairs of positions of (x_it . x_is)(d_it . d_is).
* `ItemGradients`: the gradients themselves, where they are small (biases, scales, convolutions).
* `Lookups`: the weight is a table, and row i's gradient is zero but for the entries that it looked up.

Rounding errs upwards: a norm that is taken for too small would clip too little.
"""

import abc
from collections.abc import Sequence

import tensorflow as tf

# Twice the spacing of float32 numbers at 1, and the smallest one whose precision is full.
_ROUNDING = 2.4e-7
_TINY = 1.2e-38
# A time axis of unknown length counts as this long when costs are weighed.
UNKNOWN_LENGTH = 128


class Groups:
    """Which rows of a chunk form which clipped term.

    Attributes:
      of_row: int32 [n], the group of each row, in [0, count); -1 for padding.
      scale: float32 [n], multiplies each row's gradient.
      count: int32 scalar, groups.
      sorted: whether the rows of a group are side by side, the groups in ascending order.
    """

    def __init__(self, of_row: tf.Tensor, scale: tf.Tensor, count: tf.Tensor, *, in_order: bool):
        self.of_row = of_row
        self.scale = scale
        self.count = count
        self.sorted = in_order
        self._same: tf.Tensor | None = None

    def pairs(self) -> tf.Tensor:
        """float32 [n, n]: the product of two rows' scales where they share a group, else 0."""
        if self._same is None:
            same = tf.equal(self.of_row[:, tf.newaxis], self.of_row)
            same &= self.of_row[:, tf.newaxis] >= 0
            scales = self.scale[:, tf.newaxis] * self.scale
            self._same = tf.where(same, scales, tf.zeros_like(scales))
        return self._same

    def sums(self, values: tf.Tensor) -> tf.Tensor:
        """Sums rows into groups: [n, ...] -> [count, ...]; padding is left out."""
        if self.sorted:
            return tf.math.segment_sum(values, self.of_row)
        return tf.math.unsorted_segment_sum(values, self.of_row, self.count)

    def bounds(self) -> tuple[tf.Tensor, tf.Tensor]:
        """First row of each group and the row behind its last, int32 [count]; needs `sorted`."""
        number = tf.range(self.count)
        start = tf.searchsorted(self.of_row, number, side="left")
        return start, tf.searchsorted(self.of_row, number, side="right")


class Use(abc.ABC):
    """One weight's meeting with the rows; `shape` is the weight's."""

    shape: tf.TensorShape

    @abc.abstractmethod
    def item_squares(self) -> tf.Tensor:
        """Squared norm of each row's gradient, float32 [n]; never below the true one by more than
        float32's rounding of a plain sum of squares."""

    @abc.abstractmethod
    def group_squares(self, groups: Groups) -> tf.Tensor:
        """Squared norm of each group's scaled sum, float32 [count]; the same."""

    @abc.abstractmethod
    def weighted(self, weight: tf.Tensor) -> tf.Tensor:
        """sum_i weight[i] * (row i's gradient): float32 [n] -> float32 [*shape]."""

    @abc.abstractmethod
    def item_gradients(self) -> tf.Tensor:
        """Every row's gradient, float32 [n, *shape]."""

    @abc.abstractmethod
    def kept_rows(self) -> list[tf.Tensor]:
        """The tensors [n, ...] from which everything follows."""

    @abc.abstractmethod
    def of_rows(self, keep: tf.Tensor) -> "Use":
        """The same use with the rows where `keep` (bool [n]) is False as if their gradient were 0."""


def as_matrix(tensor: tf.Tensor) -> tf.Tensor:
    """Merges all axes but the first: [n, ...] -> [n, m]."""
    size = tensor.shape[1:].num_elements()
    size = tf.reduce_prod(tf.shape(tensor)[1:]) if size is None else size
    return tf.reshape(tensor, tf.stack([tf.shape(tensor)[0], size]))


def zeroed(tensor: tf.Tensor, keep: tf.Tensor) -> tf.Tensor:
    """[n, ...] with zeros in the rows where `keep` is False, whatever was there."""
    shaped = tf.reshape(keep, [-1] + [1] * (tensor.shape.rank - 1))
    return tf.where(shaped, tensor, tf.zeros_like(tensor))


def squares_of_rows(tensor: tf.Tensor) -> tf.Tensor:
    """Sum of squares of every row: [n, ...] -> float32 [n]."""
    return tf.reduce_sum(tf.square(as_matrix(tensor)), axis=1)


class ItemGradients(Use):
    """Gradients of single rows, [n, *shape]."""

    def __init__(self, gradients: tf.Tensor, shape: tf.TensorShape):
        self.shape = tf.TensorShape(shape)
        self._gradients = as_matrix(tf.cast(gradients, tf.float32))

    def item_squares(self) -> tf.Tensor:
        return squares_of_rows(self._gradients)

    def group_squares(self, groups: Groups) -> tf.Tensor:
        scaled = groups.scale[:, tf.newaxis] * self._gradients
        return squares_of_rows(groups.sums(scaled))

    def weighted(self, weight: tf.Tensor) -> tf.Tensor:
        total = tf.matmul(weight[tf.newaxis], self._gradients)
        return tf.reshape(total, self.shape)

    def item_gradients(self) -> tf.Tensor:
        return tf.reshape(self._gradients, [-1, *self.shape])

    def kept_rows(self) -> list[tf.Tensor]:
        return [self._gradients]

    def of_rows(self, keep: tf.Tensor) -> Use:
        return ItemGradients(zeroed(self._gradients, keep), self.shape)


class Product(Use):
    """The weight multiplied: received [n, i] or [n, t, i], gradients [n, o] or [n, t, o].

    Args:
      received: what the weight was multiplied with.
      gradient: gradient of the loss at the product.
      shape: the weight's shape, i x o entries in this order; o x i if `swapped`.
      swapped: whether the weight is kept the other way round.
      grams: a common store for the products of a tensor with itself, which several weights share.
    """

    def __init__(self, received, gradient, shape, *, swapped: bool = False, grams=None):
        self.shape = tf.TensorShape(shape)
        self._received = tf.cast(received, tf.float32)
        self._gradient = tf.cast(gradient, tf.float32)
        self._swapped = swapped
        self._grams = {} if grams is None else grams

    @property
    def _sequence(self) -> bool:
        return self._received.shape.rank == 3

    def _gram(self, tensor: tf.Tensor) -> tf.Tensor:
        key = tensor.ref()
        if key not in self._grams:
            self._grams[key] = tf.matmul(tensor, tensor, transpose_b=True)
        return self._grams[key]

    def _floor(self, received_squares, gradient_squares):
        """Squares of the two factors, with what float32 may have lost below its smallest numbers."""
        received = received_squares + self._received.shape[-1] * _TINY
        gradient = gradient_squares + self._gradient.shape[-1] * _TINY
        return received, gradient

    def item_squares(self) -> tf.Tensor:
        if not self._sequence:
            received, gradient = self._floor(
                squares_of_rows(self._received), squares_of_rows(self._gradient)
            )
            return received * gradient
        received, gradient = self._gram(self._received), self._gram(self._gradient)
        squares = tf.reduce_sum(received * gradient, axis=[1, 2])
        diagonals = self._floor(tf.linalg.diag_part(received), tf.linalg.diag_part(gradient))
        return squares + _ROUNDING * tf.square(
            tf.reduce_sum(tf.sqrt(diagonals[0]) * tf.sqrt(diagonals[1]), axis=1)
        )

    def group_squares(self, groups: Groups) -> tf.Tensor:
        if self._sequence:
            return self._squares_of_group_gradients(groups)
        received, gradient = self._gram(self._received), self._gram(self._gradient)
        per_row = tf.reduce_sum(received * gradient * groups.pairs(), axis=1)
        diagonals = self._floor(tf.linalg.diag_part(received), tf.linalg.diag_part(gradient))
        lengths = tf.sqrt(diagonals[0]) * tf.sqrt(diagonals[1]) * tf.abs(groups.scale)
        real = tf.cast(groups.of_row >= 0, tf.float32)
        squares = groups.sums(tf.stack([per_row * real, lengths * real], axis=1))
        return squares[:, 0] + _ROUNDING * tf.square(squares[:, 1])

    def _squares_of_group_gradients(self, groups: Groups) -> tf.Tensor:
        if not groups.sorted:
            scaled = groups.scale[:, tf.newaxis, tf.newaxis] * self._gradient
            each = as_matrix(tf.matmul(self._received, scaled, transpose_a=True))
            return squares_of_rows(groups.sums(each))
        # One gradient at a time: no bigger than the weight, and matrix products of full size.
        starts, ends = groups.bounds()
        widths = self._received.shape[-1], self._gradient.shape[-1]

        def body(number, squares):
            start, end = starts[number], ends[number]
            scale = groups.scale[start:end, tf.newaxis, tf.newaxis]
            left = tf.reshape(self._received[start:end], [-1, widths[0]])
            right = tf.reshape(self._gradient[start:end] * scale, [-1, widths[1]])
            gradient = tf.matmul(left, right, transpose_a=True)
            return number + 1, squares.write(number, 2.0 * tf.nn.l2_loss(gradient))

        squares = tf.TensorArray(tf.float32, groups.count, element_shape=[])
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

    def of_rows(self, keep: tf.Tensor) -> Use:
        received, gradient = (zeroed(t, keep) for t in self.kept_rows())
        return Product(received, gradient, self.shape, swapped=self._swapped)

    def joined(self, other: "Product") -> "Product":
        """The use of one weight at two places, as one: their positions side by side."""
        sequences = []
        for use in (self, other):
            parts = (use._received, use._gradient)
            sequences.append([t if use._sequence else t[:, tf.newaxis] for t in parts])
        received, gradient = (tf.concat(pair, axis=1) for pair in zip(*sequences, strict=True))
        return Product(received, gradient, self.shape, swapped=self._swapped)

    def joins(self, other: Use) -> bool:
        """Whether `joined` can take it."""
        return isinstance(other, Product) and self._swapped == other._swapped


class Lookups(Use):
    """The weight is a table [v, d] of which the rows looked up entries.

    Args:
      ids: integers [n, ...], which entries each row looked up.
      gradient: gradient of the loss at what was found, [n, ..., d].
      shape: [v, d].
    """

    def __init__(self, ids: tf.Tensor, gradient: tf.Tensor, shape: tf.TensorShape):
        self.shape = tf.TensorShape(shape)
        self._ids = as_matrix(tf.cast(ids, tf.int64))
        width = self.shape[-1]
        flat = tf.shape(self._ids)
        self._gradient = tf.reshape(
            tf.cast(gradient, tf.float32), tf.stack([flat[0], flat[1], width])
        )

    def item_squares(self) -> tf.Tensor:
        rows = tf.shape(self._ids)[0]
        return self._squares_of_owners(tf.range(rows), rows, self._gradient)

    def group_squares(self, groups: Groups) -> tf.Tensor:
        scaled = groups.scale[:, tf.newaxis, tf.newaxis] * self._gradient
        return self._squares_of_owners(groups.of_row, groups.count, scaled)

    def _squares_of_owners(self, owner, count, values) -> tf.Tensor:
        """Sums the values of equal (owner, id), and their squares over each owner's ids."""
        rows, length = tf.shape(self._ids)[0], tf.shape(self._ids)[1]
        owner = tf.broadcast_to(owner[:, tf.newaxis], [rows, length])
        key = tf.reshape(tf.cast(owner, tf.int64) * self.shape[0] + self._ids, [-1])
        order = tf.argsort(key)
        key = tf.gather(key, order)
        # Equal keys are neighbours now; number the runs of equal ones.
        begins = tf.cast(key[1:] != key[:-1], tf.int32)
        run = tf.concat([[0], tf.cumsum(begins)], 0)
        sums = tf.math.unsorted_segment_sum(
            tf.gather(tf.reshape(values, [-1, self.shape[1]]), order), run, rows * length
        )
        owner_of_run = tf.math.unsorted_segment_max(
            tf.gather(tf.reshape(owner, [-1]), order), run, rows * length
        )
        return tf.math.unsorted_segment_sum(squares_of_rows(sums), owner_of_run, count)

    def weighted(self, weight: tf.Tensor) -> tf.Tensor:
        scaled = weight[:, tf.newaxis, tf.newaxis] * self._gradient
        flat = tf.reshape(scaled, [-1, self.shape[1]])
        return tf.math.unsorted_segment_sum(flat, tf.reshape(self._ids, [-1]), self.shape[0])

    def item_gradients(self) -> tf.Tensor:
        rows = tf.range(tf.shape(self._ids, out_type=tf.int64)[0])
        key = tf.reshape(rows[:, tf.newaxis] * self.shape[0] + self._ids, [-1])
        flat = tf.reshape(self._gradient, [-1, self.shape[1]])
        total = tf.math.unsorted_segment_sum(
            flat, key, tf.shape(self._ids, out_type=tf.int64)[0] * self.shape[0]
        )
        return tf.reshape(total, [-1, *self.shape])

    def kept_rows(self) -> list[tf.Tensor]:
        return [self._gradient]

    def of_rows(self, keep: tf.Tensor) -> Use:
        return Lookups(self._ids, zeroed(self._gradient, keep), self.shape)

    def joined(self, other: "Lookups") -> "Lookups":
        """The use of one table at two places, as one."""
        ids = tf.concat([self._ids, other._ids], axis=1)
        return Lookups(ids, tf.concat([self._gradient, other._gradient], axis=1), self.shape)

    def joins(self, other: Use) -> bool:
        """Whether `joined` can take it."""
        return isinstance(other, Lookups)


def product(received, gradient, shape, *, swapped: bool = False, grams=None) -> Use:
    """The use of a weight that multiplied, in the form that costs less to take the norm of.

    Args: as `Product`; axes between the first and the last are positions.
    """
    if received.shape.rank > 3:
        received, gradient = (_positions(t) for t in (received, gradient))
    use = Product(received, gradient, shape, swapped=swapped, grams=grams)
    if received.shape.rank == 3 and pairs_cost_more(received, gradient):
        return ItemGradients(use.item_gradients(), shape)
    return use


def pairs_cost_more(received: tf.Tensor, gradient: tf.Tensor) -> bool:
    """Whether all pairs of positions cost more than the gradient itself, [n, t, i] x [n, t, o]."""
    length = received.shape[1] or UNKNOWN_LENGTH
    inner, outer = received.shape[-1], gradient.shape[-1]
    return length * (inner + outer) > inner * outer


def _positions(tensor: tf.Tensor) -> tf.Tensor:
    """[n, ..., i] -> [n, t, i]."""
    size = tensor.shape[1:-1].num_elements()
    size = tf.reduce_prod(tf.shape(tensor)[1:-1]) if size is None else size
    flat = tf.reshape(tensor, tf.stack([tf.shape(tensor)[0], size, tensor.shape[-1]]))
    flat.set_shape([None, tensor.shape[1:-1].num_elements(), tensor.shape[-1]])
    return flat


def one_use(uses: Sequence[Use]) -> Use:
    """Several uses of one weight as one: joined where their kinds agree, else as item gradients."""
    first, *others = uses
    for other in others:
        if getattr(first, "joins", lambda _: False)(other):
            first = first.joined(other)
        else:
            first = ItemGradients(first.item_gradients() + other.item_gradients(), first.shape)
    return first
