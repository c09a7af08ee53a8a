# SPDX-License-Identifier: Apache-2.0
"""Standard normal numbers, fast, with their tails: Threefry words and a Box-Muller transform.

Knows TensorFlow and `threefry`. A pair of numbers takes three of the four 32-bit words of a block of its
own of Threefry-4x32-20, a counter-based generator, and no word serves twice:

* u from 64 bits: a side bit and 63 bits of v in (0, 1/2]; u = v or u = 1 - v. The radius
  is sqrt(-2 ln u). It is computed from v on both sides, never from a rounded 1 - v, so float32 keeps
  its full relative precision next to u = 0 (the tail) and next to u = 1 (radii close to 0).
* an angle from 32 bits: two choose the quadrant, thirty the place in it.

What is true of it, for a reader who has to trust it:

* Tail. The radius reaches sqrt(2 * 65 ln 2) = 9.49; there is no cut near 5.7, where float32
  uniforms would end. The law of u differs from the uniform one by its 2^64 cells only. Of these one
  has no end in terms of the radius: u < 2^-64, which is drawn as its midpoint. The total variation
  due to this cut is 2^-64 = 5.4e-20 a pair: 1.8e-13 a step for 6.6 million weights, 1.8e-9 for
  10,000 such steps. Whoever wants to count it adds (1 + e^epsilon) times this to delta.
* Precision. Up to a radius of 8 a number is that of an exact radius and angle, the angle rounded by
  at most 2^-31 of a quadrant, to a relative error of 1e-6. Beyond 8 the grid of u is coarser than
  float32's; neighbouring radii differ by 0.12 at its end. A radius beyond 8 comes once in 8e13 pairs.
* Seeds. All 128 bits are the generator's key, and a pair's place is its counter: two draws share a
  word's place only if they share all 128 bits, and no two pairs of a draw share a counter.

What is not claimed: Threefry is not a cipher, and float32 noise on float32 sums has a finite grid, so
attacks on the last bits of floating-point noise are not excluded.
"""

import functools
import logging
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_subjectdp.algorithms import threefry

_log = logging.getLogger("tf_subjectdp")

# Smaller draws share one compiled program, of this many pairs, and drop what they do not need.
_SHARED_PAIRS = 1 << 12
# TensorFlow's number for Philox-4x32-10.
_PHILOX = 1


def _series(first: int, sign: float) -> Callable[[float], float]:
    """x -> sign (1 / first! - x / (first + 2)! + x^2 / (first + 4)! - ...), in float64."""
    return lambda x: sign * sum((-x) ** k / math.factorial(first + 2 * k) for k in range(10))


def _interpolated(function: Callable[[float], float], degree: int) -> list[float]:
    """Coefficients of a near-minimax polynomial in t^2, for t in [-pi/4, pi/4]."""
    nodes = (math.pi**2 / 32) * (1 + np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)))
    fit = np.polynomial.Polynomial.fit(nodes, [function(x) for x in nodes], degree)
    return fit.convert().coef.tolist()


# sin t = t (1 + t^2 S(t^2)), cos t = 1 - t^2 / 2 + t^4 C(t^2), both to 2e-8 relative.
_SIN = _interpolated(_series(3, -1.0), 2)
_COS = _interpolated(_series(4, 1.0), 2)
# artanh(s) / s in s^2, for s in [0, 1/3]; the remainder is below 1e-8.
_ARTANH = [1.0 / (2 * k + 1) for k in range(8)]


def _polynomial(coefficients: list[float], x: tf.Tensor) -> tf.Tensor:
    total = tf.constant(coefficients[-1], tf.float32)
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def transform(
    high: tf.Tensor, low: tf.Tensor, turn: tf.Tensor, scale: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Box-Muller in float32.

    Args:
      high, low, turn: int32 [pairs], words uniform over all 2^32 values.
      scale: float32 [], the standard deviation.

    Returns:
      Two float32 [pairs]: independent N(0, scale^2) numbers, finite for all words.
    """
    bits = tf.bitwise.bitwise_and
    # Halves of 16 bits: a float32 of all 32 would lose what is small, which is the tail.
    low = tf.cast(bits(tf.bitwise.right_shift(low, 16), 0xFFFF), tf.float32) + (
        tf.cast(bits(low, 0xFFFF), tf.float32) + 0.5
    ) * (2.0**-16)
    v = (tf.cast(bits(high, 0x7FFFFFFF), tf.float32) + low * (2.0**-16)) * (2.0**-32)
    # -ln(1 - v) = 2 artanh(v / (2 - v)): no difference that a compiler or rounding could spoil.
    s = v / (2.0 - v)
    near = 2.0 * s * _polynomial(_ARTANH, s * s)
    radius = tf.sqrt(2.0 * tf.where(high < 0, near, -tf.math.log(v))) * scale
    # t in (-pi/4, pi/4), never 0; XLA calls a slow library for sin and cos, hence polynomials.
    t = (tf.cast(tf.bitwise.right_shift(turn, 2), tf.float32) + 0.5) * (math.pi / 2 * 2.0**-30)
    square = t * t
    sine = t + t * square * _polynomial(_SIN, square)
    cosine = 1.0 - 0.5 * square + square * square * _polynomial(_COS, square)
    odd, back = bits(turn, 1) > 0, bits(turn, 2) > 0
    first = tf.where(back, -radius, radius) * tf.where(odd, cosine, sine)
    second = tf.where(tf.not_equal(back, odd), -radius, radius) * tf.where(odd, sine, cosine)
    return first, second


def pairs_of_normals(key: tf.Tensor, pairs: int | tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """Draws pairs of N(0, scale^2) numbers.

    Args:
      key: uint32 [4].
      pairs: how many.
      scale: float32 [].

    Returns:
      complex64 [pairs], so that a compiler has one output to make, in one pass over the pairs.
    """
    # int32 and uint32 have the same words, and TensorFlow counts in int32 alone everywhere.
    words = threefry.blocks(key, tf.bitcast(tf.range(pairs), tf.uint32))
    return tf.complex(*transform(*(tf.bitcast(word, tf.int32) for word in words[:3]), scale))


@functools.lru_cache(maxsize=256)
def _compiled(pairs: int) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """(key, scale) -> complex64 [pairs] by XLA, whose shapes are constants of the program."""
    return tf.function(
        lambda key, scale: pairs_of_normals(key, pairs, scale),
        input_signature=[tf.TensorSpec([4], tf.uint32), tf.TensorSpec([], tf.float32)],
        autograph=False,
        jit_compile=True,
    )


@functools.cache
def _compiles() -> bool:
    """Whether XLA compiles on every kind of device here, tried once; says so in the log if not."""
    try:
        kinds = {device.device_type for device in tf.config.list_logical_devices()}
        for kind in sorted(kinds & {"CPU", "GPU"}):
            with tf.device(f"/{kind}:0"):
                key, scale = tf.constant([1, 2, 3, 4], tf.uint32), tf.constant(1.0)
                found = _compiled(_SHARED_PAIRS)(key, scale)[:64]
            with tf.device("/CPU:0"):
                wanted = pairs_of_normals(key, 64, scale)
            if not np.allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=0.0):
                raise tf.errors.InternalError(None, None, f"wrong numbers on {kind}")
    except (tf.errors.OpError, RuntimeError, ValueError, NotImplementedError) as error:
        _log.warning(
            "tf_subjectdp: XLA does not compile here, so the noise is drawn uncompiled: the same "
            "numbers, much more slowly (%s).",
            str(error).strip().split("\n")[0][:200],
        )
        return False
    return True


def _use_compiled() -> bool:
    with tf.init_scope():
        # Without an eager context (a version 1 graph) nothing can be tried.
        return tf.executing_eagerly() and _compiles()


def normals_uncompiled(seed: tf.Tensor, count: int, stddev: float | tf.Tensor = 1.0) -> tf.Tensor:
    """As `normals`, other numbers: for graphs that run where nothing is compiled, as silos' do.

    Uncompiled, the 200 passes that Threefry makes over its words take longer than the transform. Here
    the words are those of Philox-4x32-10, TensorFlow's own counter-based generator, which is one
    operation: half of the seed is its key, the other half the upper half of its counter, so that two
    draws share a block only if they share all 128 bits.

    Args:
      seed: int64 [2], all of its 128 bits are used.
      count: how many, below 2^32.
      stddev: standard deviation, a number or a float [] tensor.

    Returns:
      float32 [count].
    """
    seed = tf.bitcast(tf.ensure_shape(tf.convert_to_tensor(seed, tf.int64), [2]), tf.uint64)
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[3, (count + 1) // 2],
        key=seed[:1],
        counter=tf.stack([tf.constant(0, tf.uint64), seed[1]]),
        alg=_PHILOX,
        dtype=tf.int32,
    )
    return tf.concat(transform(*tf.unstack(words), tf.cast(stddev, tf.float32)), 0)[:count]


def normals(seed: tf.Tensor, count: int | tf.Tensor, stddev: float | tf.Tensor = 1.0) -> tf.Tensor:
    """Independent N(0, stddev^2) numbers that depend on the arguments alone.

    Runs eagerly and in a `tf.function`; it compiles itself, and cannot stand in what XLA compiles,
    no more than `fresh_seed()` can, which private noise needs. A count that only the running graph
    knows is drawn uncompiled: the same numbers but for rounding, much more slowly.

    Args:
      seed: int64 [2], all of its 128 bits are used.
      count: how many, below 2^32; an int, or an int32 [] tensor.
      stddev: standard deviation, a number or a float [] tensor.

    Returns:
      float32 [count].

    Raises:
      ValueError: a count that is negative or too large.
    """
    seed = tf.ensure_shape(tf.convert_to_tensor(seed, tf.int64), [2])
    key = tf.reshape(tf.bitcast(seed, tf.uint32), [4])
    scale = tf.cast(stddev, tf.float32)
    if tf.is_tensor(count):
        drawn = pairs_of_normals(key, (count + 1) // 2, scale)
    elif not 0 <= count < 2**32:
        raise ValueError(f"count={count} must be at least 0 and below 2^32.")
    elif _use_compiled():
        drawn = _compiled(max((count + 1) // 2, _SHARED_PAIRS))(key, scale)
    else:
        drawn = pairs_of_normals(key, (count + 1) // 2, scale)
    # The same memory, taken for twice as many real numbers.
    return tf.reshape(tf.bitcast(drawn, tf.float32), [-1])[:count]
