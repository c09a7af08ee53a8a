# SPDX-License-Identifier: Apache-2.0
"""Which rows of a chunk form which clipped term. Knows ids and scales; TensorFlow alone."""

import tensorflow as tf


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
        self._blocks: tuple[tf.Tensor, tf.Tensor, tf.Tensor] | None = None
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

    def blocks(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The rows of each group side by side, as wide as the largest; needs `sorted`.

        Returns:
          int32 [count, width], rows; float32 [count, width], their scales, 0 where a group has
          ended; and whether this is less work than all pairs of rows.
        """
        if self._blocks is None:
            start, end = self.bounds()
            place = start[:, tf.newaxis] + tf.range(tf.reduce_max(end - start))
            real = place < end[:, tf.newaxis]
            place = tf.where(real, place, 0)
            scale = tf.where(real, tf.gather(self.scale, place), 0.0)
            # Copying the rows costs as much as some pairs.
            less = 4 * tf.shape(place)[1] <= tf.size(self.of_row)
            less &= tf.size(place) <= 4 * tf.size(self.of_row)
            self._blocks = place, scale, less
        return self._blocks

    def bounds(self) -> tuple[tf.Tensor, tf.Tensor]:
        """First row of each group and the row behind its last, int32 [count]; needs `sorted`."""
        number = tf.range(self.count)
        start = tf.searchsorted(self.of_row, number, side="left")
        return start, tf.searchsorted(self.of_row, number, side="right")
