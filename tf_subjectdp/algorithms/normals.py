# SPDX-License-Identifier: Apache-2.0
"""Standard normal numbers, fast, with their tails: Philox words and a Box-Muller transform.

Knows TensorFlow alone. A pair of numbers takes three 32-bit words of Philox-4x32-10, a counter-based
generator, and no word serves twice:

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
* Seeds. 64 bits are Philox's key, 64 the upper half of its counter, none is dropped; the lower half
  of the counter numbers the words of a draw. Two draws share a word's place only if they share
  all 128 bits; the blocks of one draw begin 2^24 counters apart and use less than half of these.

What is not claimed: Philox is not a cipher, and float32 noise on float32 sums has a finite grid, so
attacks on the last bits of floating-point noise are not excluded.
"""

import functools
import logging
import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

_log = logging.getLogger("tf_subjectdp")

_PHILOX = 1  # tf.random.Algorithm.PHILOX
_BLOCK = 1 << 24  # entries drawn at once: bounds the temporaries to about 200 MB
_COUNTERS = 1 << 24  # counters set aside for a block; it uses 3 / 8 of a counter an entry
_COMPILED_FROM = 1 << 13  # entries; below it a compiled program costs more than it saves


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


def transform(words: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """Box-Muller in float32.

    Args:
      words: int32 [3, pairs], uniform over all 2^32 values.
      scale: float32 [], the standard deviation.

    Returns:
      float32 [2, pairs]: independent N(0, scale^2) numbers, finite for all words.
    """
    high, low, turn = words[0], words[1], words[2]
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
    return tf.stack([first, second])


_SIGNATURE = [tf.TensorSpec([3, None], tf.int32), tf.TensorSpec([], tf.float32)]
_plain = tf.function(transform, input_signature=_SIGNATURE, autograph=False)
_compiled = tf.function(transform, input_signature=_SIGNATURE, autograph=False, jit_compile=True)


@functools.cache
def _compiles() -> bool:
    """Whether XLA compiles on every kind of device here, tried once; says so in the log if not."""
    try:
        kinds = {device.device_type for device in tf.config.list_logical_devices()}
        for kind in sorted(kinds & {"CPU", "GPU"}):
            with tf.device(f"/{kind}:0"):
                words = tf.constant([[0, -1, 5], [7, 8, -9], [1, 2, 3]], tf.int32)
                found, wanted = (f(words, tf.constant(1.0)) for f in (_compiled, _plain))
            if not np.allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=0.0):
                raise tf.errors.InternalError(None, None, f"wrong numbers on {kind}")
    except (tf.errors.OpError, RuntimeError, ValueError, NotImplementedError) as error:
        _log.warning(
            "tf_subjectdp: XLA does not compile here, so the noise is drawn uncompiled: the same "
            "numbers, more slowly (%s).",
            str(error).strip().split("\n")[0][:200],
        )
        return False
    return True


def _use_compiled(count: int | tf.Tensor) -> bool:
    if not tf.is_tensor(count) and count < _COMPILED_FROM:
        return False
    with tf.init_scope():
        # Without an eager context (a version 1 graph) nothing can be tried.
        return tf.executing_eagerly() and _compiles()


def words(
    seed: tf.Tensor, pairs: int | tf.Tensor, block: int = 0, after: Sequence[tf.Tensor] = ()
) -> tf.Tensor:
    """Returns int32 [3, pairs] Philox words: key seed[0], counter (block 2^24 + place, seed[1]).

    Args:
      seed: int64 [2].
      pairs: how many words of each of the three kinds.
      block: which stretch of counters.
      after: tensors to wait for; it orders blocks whose memory should not be needed at once.
    """
    seed = tf.bitcast(seed, tf.uint64)
    shape = tf.stack([3, pairs])
    counter = tf.stack([tf.constant(block * _COUNTERS, tf.uint64), seed[1]])
    # The draw alone, or TensorFlow leaves the ordering to the constants that it takes.
    key, algorithm = seed[:1], tf.constant(_PHILOX)
    with tf.control_dependencies(after):
        return tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=shape, key=key, counter=counter, alg=algorithm, dtype=tf.int32
        )


def normal_blocks(
    seed: tf.Tensor, count: int | tf.Tensor, stddev: float | tf.Tensor = 1.0
) -> list[tf.Tensor]:
    """Draws as `normals`, but returns the blocks: float32 [at most 2^24] each, `count` together or
    one more. They are drawn one after the other, so that temporaries stay those of one block. A
    count that only the running graph knows is one block."""
    seed = tf.ensure_shape(tf.convert_to_tensor(seed, tf.int64), [2])
    scale = tf.cast(stddev, tf.float32)
    apply = _compiled if _use_compiled(count) else _plain
    if tf.is_tensor(count):
        return [tf.reshape(apply(words(seed, (count + 1) // 2), scale), [-1])]
    blocks: list[tf.Tensor] = []
    for number, start in enumerate(range(0, count, _BLOCK)):
        pairs = (min(_BLOCK, count - start) + 1) // 2
        drawn = apply(words(seed, pairs, number, after=blocks[-1:]), scale)
        blocks.append(tf.reshape(drawn, [2 * pairs]))
    return blocks


def normals(seed: tf.Tensor, count: int | tf.Tensor, stddev: float | tf.Tensor = 1.0) -> tf.Tensor:
    """Independent N(0, stddev^2) numbers that depend on the arguments alone.

    Runs eagerly, in a `tf.function`, and in one with `jit_compile=True` (where XLA's and
    TensorFlow's arithmetic differ by rounding). For private noise the seed must be new each time:
    `fresh_seed()`, outside what XLA compiles.

    Args:
      seed: int64 [2], all of its 128 bits are used.
      count: how many; an int, or an int32 [] tensor.
      stddev: standard deviation, a number or a float [] tensor.

    Returns:
      float32 [count].

    Raises:
      ValueError: a negative count.
    """
    if tf.is_tensor(count):
        return normal_blocks(seed, count, stddev)[0][:count]
    if count < 0:
        raise ValueError(f"count={count} must be at least 0.")
    blocks = normal_blocks(seed, count, stddev)
    if not blocks:
        return tf.zeros([0], tf.float32)
    return (blocks[0] if len(blocks) == 1 else tf.concat(blocks, 0))[:count]
