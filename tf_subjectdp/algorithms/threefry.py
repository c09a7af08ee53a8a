# SPDX-License-Identifier: Apache-2.0
"""Threefry-4x32-20, a counter-based generator of random words. Knows TensorFlow alone.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4.2: twenty
rounds of the block cipher Threefish cut to words of 32 bits. Each block of four words is a
bijection of its counter that a key of 128 bits picks. It adds, rotates and exclusive-ors alone, which
compilers turn into vector instructions everywhere; Philox needs 64-bit products.
"""

import tensorflow as tf

_ROUNDS = 20
_PARITY = 0x1BD11BDA
# By how much the two words of a round are rotated; the eight repeat.
_ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))


def blocks(key: tf.Tensor, counters: tf.Tensor) -> list[tf.Tensor]:
    """The blocks of the counters (c, 0, 0, 0).

    Args:
      key: uint32 [4].
      counters: uint32 [n], the c.

    Returns:
      Four words of each block: uint32 [n] each.
    """
    parts = [key[0], key[1], key[2], key[3]]
    parity = tf.constant(_PARITY, tf.uint32)
    for part in parts:
        parity = tf.bitwise.bitwise_xor(parity, part)
    parts.append(parity)
    zeros = tf.zeros_like(counters)
    x = [counters + parts[0], *(zeros + part for part in parts[1:4])]
    for number in range(_ROUNDS):
        # Odd rounds mix the pairs the other way round.
        pairs = ((0, 1), (2, 3)) if number % 2 == 0 else ((0, 3), (2, 1))
        for (i, j), bits in zip(pairs, _ROTATIONS[number % 8], strict=True):
            x[i] += x[j]
            x[j] = tf.bitwise.bitwise_xor(_rotated(x[j], bits), x[i])
        if number % 4 == 3:
            turn = number // 4 + 1
            x = [word + parts[(turn + place) % 5] for place, word in enumerate(x)]
            x[3] += tf.constant(turn, tf.uint32)
    return x


def _rotated(word: tf.Tensor, bits: int) -> tf.Tensor:
    left = tf.bitwise.left_shift(word, tf.constant(bits, tf.uint32))
    right = tf.bitwise.right_shift(word, tf.constant(32 - bits, tf.uint32))
    return tf.bitwise.bitwise_or(left, right)
