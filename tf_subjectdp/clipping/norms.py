# SPDX-License-Identifier: Apache-2.0
"""Norms and clip factors in float32, whatever the gradients are made of. Norms err upwards.

A float32 sum of n squares may come out too small by n 2^-24 of itself, and one person then moves a step
by that much more than the bound. So no more than 256 squares are added in float32 (`squares_of_rows`);
what is added after that is float64; and what was lost goes back in as a factor. No norm of a gradient is
computed anywhere else.
"""

from collections.abc import Sequence

import tensorflow as tf

#: What one float32 operation may be off by, relative to its result.
ROUNDING = 2.0**-24
# How many squares are added in float32.
_BLOCK = 256


def as_float32(
    gradients: Sequence[tf.Tensor | tf.IndexedSlices], variables: Sequence[tf.Variable]
) -> list[tf.Tensor]:
    """Densifies sparse gradients (repeated indices are summed) and casts all to float32.

    Args:
      gradients: one a variable.
      variables: give the shapes, which TensorFlow does not always infer (einsum).
    """
    dense = [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients]
    return [tf.reshape(g, v.shape) for g, v in zip(dense, variables, strict=True)]


def squares_of_rows(tensor: tf.Tensor, *, one_pass: bool = True) -> tf.Tensor:
    """Sum of squares of every row, rounded up.

    Args:
      tensor: float32 [n, ...].
      one_pass: by an operation that XLA does not know; without, there is a temporary of the tensor's
        size, which XLA spares.

    Returns:
      float64 [n]: never below the exact sum, and above it by less than 3.2e-5 of it, for rows of up to
      2^32 numbers. Not counted is what float32 flushes to zero, 2.4e-38 for each number at most: of
      10^10 numbers less than 2^-24 of the square of the least clip norm, 1e-10. Infinite where 256
      squares add up to more than 3.4e38.
    """
    size = tensor.shape[1:].num_elements()
    if size == 0:
        return tf.zeros(tf.shape(tensor)[:1], tf.float64)
    block = _block(size)
    if block:
        shape = [-1, block] if block == size else [-1, size // block, block]
        return _squares_of_blocks(tf.reshape(tensor, shape), block, one_pass)
    # No whole number of blocks: what is left over is a shorter one.
    rows = tf.shape(tensor)[0]
    size = tf.reduce_prod(tf.shape(tensor)[1:]) if size is None else size
    number, rest = size // _BLOCK, size % _BLOCK
    if tensor.shape[0] == 1:
        # The beginning of a vector is no copy of it.
        flat = tf.reshape(tensor, [-1])
        head, tail = flat[: number * _BLOCK], flat[number * _BLOCK :]
    else:
        flat = tf.reshape(tensor, [rows, size])
        head, tail = flat[:, : number * _BLOCK], flat[:, number * _BLOCK :]
    parts = tf.reshape(head, [rows, number, _BLOCK]), tf.reshape(tail, [rows, rest])
    return tf.add_n([_squares_of_blocks(part, _BLOCK, one_pass) for part in parts])


def _block(size: int | None) -> int | None:
    """The number of squares in a block that divides `size`; None if there is no good one."""
    if size is not None and size <= _BLOCK:
        return size
    return size and next((b for b in range(_BLOCK, _BLOCK // 8, -1) if size % b == 0), None)


def _squares_of_blocks(blocks: tf.Tensor, block: int, one_pass: bool) -> tf.Tensor:
    """[n, block] or [n, blocks, block] -> [n]; `block` is the last axis or more."""
    if one_pass:
        # On CPUs five to ten times as fast as a row times itself.
        norms = tf.cast(tf.math.reduce_euclidean_norm(blocks, axis=-1), tf.float64)
        if blocks.shape.rank == 3:
            norms = tf.math.reduce_euclidean_norm(norms, axis=1)
        squares = tf.square(norms)
    else:
        squares = tf.cast(tf.reduce_sum(tf.square(blocks), axis=-1), tf.float64)
        if blocks.shape.rank == 3:
            squares = tf.reduce_sum(squares, axis=1)
    # Each square, sum and root may lose 2^-24, and so may 2^28 sums in float64 together.
    return squares * (1.0 + (block + 4) * ROUNDING)


def from_squares(squares: Sequence[tf.Tensor]) -> tf.Tensor:
    """Norms from the squares of their parts, rounded up: float64 [n] each, not too small -> float32 [n].

    The norm is so much larger (10 roundings) that its own rounding, those of the clip norm, the factor
    and the scales, and those of their products with the gradient are counted too.
    """
    return tf.cast(tf.sqrt(tf.add_n(squares)) * (1.0 + 10 * ROUNDING), tf.float32)


def row_norms(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """L2 norm of every row over a list of tensors, rounded up.

    Args:
      gradients: float32 tensors [n, ...], one a variable.

    Returns:
      float32 [n]: a row times its `clip_factors` has a norm of at most the bound, however long it is;
      the norm is too large by less than 1.7e-5 of it. A row with a NaN or an infinity has a norm that is
      not finite. A finite row whose squares overflow float32 (entries above 1e18) still has its norm,
      unless that overflows itself (3.4e38): then it is infinite.
    """

    def scaled():
        flat = [tf.reshape(g, [tf.shape(g)[0], g.shape[1:].num_elements()]) for g in gradients]
        largest = tf.reduce_max(tf.stack([_max_abs(g) for g in flat]), axis=0)
        unit = tf.where(largest > 0, largest, 1.0)
        # Two roundings for the square of each quotient; one more of the norm.
        squares = [squares_of_rows(g / unit[:, tf.newaxis]) for g in flat]
        norms = tf.sqrt(tf.add_n(squares) * (1.0 + 3 * ROUNDING)) * tf.cast(unit, tf.float64)
        return from_squares([tf.square(norms)])

    norms = from_squares([squares_of_rows(g) for g in gradients])
    return tf.cond(tf.reduce_all(tf.math.is_finite(norms)), lambda: norms, scaled)


def _max_abs(matrix: tf.Tensor) -> tf.Tensor:
    # A zero column, so that a variable without elements has the maximum 0 instead of -inf.
    return tf.reduce_max(tf.pad(tf.abs(matrix), [[0, 0], [0, 1]]), axis=1)


def zero_rows(gradients: Sequence[tf.Tensor], keep: tf.Tensor) -> list[tf.Tensor]:
    """Replaces the rows where `keep` (bool [n]) is False by zeros, NaN and infinity included."""

    def zeroed():
        return [
            tf.where(tf.reshape(keep, [-1] + [1] * (len(g.shape) - 1)), g, tf.zeros_like(g))
            for g in gradients
        ]

    # Nearly always nothing is to be replaced, and the gradients need not be copied.
    return tf.cond(tf.reduce_all(keep), lambda: list(gradients), zeroed)


def clip_factors(norms: tf.Tensor, clip_norm: float) -> tf.Tensor:
    """Factors that scale vectors of these norms down to `clip_norm`: min(1, clip_norm / norm).

    Args:
      norms: float32 [n], finite; from `from_squares`, which makes room for what is rounded here.
      clip_norm: the bound, positive.

    Returns:
      float32 [n] in (0, 1]; 1 for a norm of 0.
    """
    return clip_norm / tf.maximum(norms, clip_norm)


def weighted_sum(gradients: Sequence[tf.Tensor], weights: tf.Tensor) -> list[tf.Tensor]:
    """Sums the rows with weights: [n, ...] and float32 [n] -> a list of [...]."""
    return [tf.tensordot(weights, g, axes=1) for g in gradients]
