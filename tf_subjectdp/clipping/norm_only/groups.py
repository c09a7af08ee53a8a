# SPDX-License-Identifier: Apache-2.0
"""Which rows of a chunk form which clipped term."""

from typing import NamedTuple

import tensorflow as tf

# Groups up to these multiples of the mean size share a block; the largest ones are a block too.
_WIDTHS = (1.5, 4.0)
# What a pair of rows costs in a block, and a row's copy, in pairs of one large product.
_PRICE, _PRICE_OF_A_COPY = 3, 16


class Blocks(NamedTuple):
    """The rows of groups, laid out for products of the rows of a group with each other.

    Attributes:
      rows: for each block, int32 [groups, width], which rows; and float32 [groups, width], their
        scales, 0 where a group has ended.
      order: int32 [count], where each group is when the blocks' groups follow each other.
      less: bool scalar, whether this is less work than all pairs of rows.
    """

    rows: list[tuple[tf.Tensor, tf.Tensor]]
    order: tf.Tensor
    less: tf.Tensor


class Groups:
    """Which rows of a chunk form which clipped term.

    Attributes:
      of_row: int32 [n], the group of each row, in [0, count); -1 for padding.
      scale: float32 [n], multiplies each row's gradient.
      count: int32 scalar, groups.
      sizes: float32 [count], rows of each group.
      sorted: whether the rows of a group are side by side, the groups in ascending order.
    """

    def __init__(self, of_row: tf.Tensor, scale: tf.Tensor, count: tf.Tensor, *, in_order: bool):
        self.of_row = of_row
        self.scale = scale
        self.count = count
        self.sorted = in_order
        self.sizes = tf.math.unsorted_segment_sum(tf.ones_like(scale), of_row, count)
        self._blocks: Blocks | None = None
        self._spread: dict = {}

    def spread(self, factors: tf.Tensor) -> tf.Tensor:
        """A factor of each group as one of each row, its scale included: [count] -> float32 [n]."""
        key = factors.ref()
        if key not in self._spread:
            self._spread[key] = tf.gather(factors, tf.maximum(self.of_row, 0)) * self.scale
        return self._spread[key]

    def pairs(self) -> tf.Tensor:
        """float32 [n, n]: the product of two rows' scales where they share a group, else 0."""
        same = tf.equal(self.of_row[:, tf.newaxis], self.of_row)
        same &= self.of_row[:, tf.newaxis] >= 0
        scales = self.scale[:, tf.newaxis] * self.scale
        return tf.where(same, scales, tf.zeros_like(scales))

    def sums(self, values: tf.Tensor) -> tf.Tensor:
        """Sums rows into groups: [n, ...] -> [count, ...]; padding is left out."""
        if self.sorted:
            return tf.math.segment_sum(values, self.of_row)
        return tf.math.unsorted_segment_sum(values, self.of_row, self.count)

    def blocks(self) -> Blocks:
        """The rows of each group side by side, groups of a similar size together; needs `sorted`."""
        if self._blocks is None:
            start, end = self.bounds()
            size, rows = end - start, tf.size(self.of_row)
            largest = tf.reduce_max(size)
            mean = tf.cast(rows, tf.float32) / tf.cast(self.count, tf.float32)
            widths = [
                tf.minimum(tf.cast(tf.math.ceil(times * mean), tf.int32), largest)
                for times in _WIDTHS
            ]
            made, members, work, below = [], [], tf.constant(0), tf.constant(-1)
            for width in [*widths, largest]:
                member = tf.cast(tf.where((size > below) & (size <= width))[:, 0], tf.int32)
                place = tf.gather(start, member)[:, tf.newaxis] + tf.range(width)
                real = place < tf.gather(end, member)[:, tf.newaxis]
                place = tf.where(real, place, 0)
                scale = tf.where(real, tf.gather(self.scale, place), 0.0)
                made.append((place, scale))
                members.append(member)
                work += tf.size(place) * (_PRICE * width + _PRICE_OF_A_COPY)
                below = width
            order = tf.math.invert_permutation(tf.concat(members, 0))
            self._blocks = Blocks(made, order, work <= rows * rows)
        return self._blocks

    def bounds(self) -> tuple[tf.Tensor, tf.Tensor]:
        """First row of each group and the row behind its last, int32 [count]; needs `sorted`."""
        number = tf.range(self.count)
        start = tf.searchsorted(self.of_row, number, side="left")
        return start, tf.searchsorted(self.of_row, number, side="right")
