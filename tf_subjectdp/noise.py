# SPDX-License-Identifier: Apache-2.0
"""The noise of training: seeds that never repeat, normal numbers with their tails, noised sums.

`noise_numpy` is the half of it that releases and private k-means draw, without TensorFlow.

SEEDS are new at each run of the op. Threefry-4x32-20 (Salmon, Moraes, Dror, Shaw, "Parallel random
numbers: as easy as 1, 2, 3", SC 2011, section 4.2), a counter-based generator, turns each into words:
twenty rounds of the block cipher Threefish cut to words of 32 bits. Each block of four words is a
bijection of its counter that a key of 128 bits picks. It adds, rotates and exclusive-ors alone, which
compilers turn into vector instructions everywhere; Philox needs 64-bit products.

NORMALS are made by a Box-Muller transform. A pair of numbers takes three of the four words of a block of
its own, and no word serves twice:

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
import numbers
import os
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

_log = logging.getLogger("tf_subjectdp")

#: 122 random bits as text, others at each reading (random(4), Linux).
KERNEL_UUID = "/proc/sys/kernel/random/uuid"
# A UUID has 36 characters, of which four are dashes.
_DIGITS = tuple(place for place in range(36) if place not in (8, 13, 18, 23))

_ROUNDS = 20
_PARITY = 0x1BD11BDA
# By how much the two words of a round are rotated; the eight repeat.
_ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
# TensorFlow's number for Philox-4x32-10.
_PHILOX = 1
# Smaller draws share one compiled program, of this many pairs, and drop what they do not need.
_SHARED_PAIRS = 1 << 12

# Cuts at multiples of 64 bytes share the draw's memory; others would be copied.
_ALIGNMENT = 16
# Below this part of the noise would vanish in float32's subnormal numbers, above it overflow.
_LEAST, _MOST = 1e-30, 1e37


def fresh_seed() -> tf.Tensor:
    """Returns an int64 [2] seed that is new each time the op runs.

    `tf.random.set_seed` fixes every stateful random op of TensorFlow, and a `tf.random.Generator`
    saved in a checkpoint draws the same numbers after each restore. Either would repeat the noise
    of a private step, and two outputs with the same noise reveal the difference of their inputs.
    `NonDeterministicInts` ignores all seeds, in eager mode and in a `tf.function` alike, and gives
    new numbers at every run. But TensorFlow takes them from one generator a process that it seeds
    with 32 bits of the operating system, few enough to be searched and to meet by chance among many
    silos. So they are combined with 128 bits that the operating system gives to each trace (in
    eager mode, to each call).
    """
    of_this_run = tf.raw_ops.NonDeterministicInts(shape=tf.constant([2], tf.int64), dtype=tf.int64)
    of_this_trace = tf.constant(np.frombuffer(os.urandom(16), np.int64), tf.int64)
    return tf.bitwise.bitwise_xor(of_this_run, of_this_trace)


def kernel_entropy_is_there() -> bool:
    """Whether this machine has the file; silos are taken to be machines of the same kind."""
    return os.path.exists(KERNEL_UUID)


def silo_seed(kernel: bool) -> tf.Tensor:
    """int64 [2], new at each run of the op, in every silo, from the machine on which the silo computes.

    A federated computation is traced once, by whoever builds it, and runs in other processes: a constant
    of the trace is the same in every silo and known to the server, and TensorFlow's own entropy is 32
    bits a process. Linux hands out 122 fresh random bits at each reading of a file, which a graph can
    do anywhere.

    Args:
      kernel: whether the silos' machines have `KERNEL_UUID`. Without it the seed has no more than the
        32 bits that TensorFlow takes from the operating system in each process, beside 128 bits that
        whoever built the computation knows.
    """
    seed = fresh_seed()
    if not kernel:
        return seed
    # Two readings, so that every one of the 128 bits is random: six of each UUID are fixed.
    first, second = _kernel_words(), tf.roll(_kernel_words(), 1, axis=0)
    return tf.bitwise.bitwise_xor(seed, tf.bitwise.bitwise_xor(first, second))


def _kernel_words() -> tf.Tensor:
    """int64 [2] from one reading."""
    # A data set, since tf.io.read_file believes the file's size, which is said to be 0.
    line = tf.data.TextLineDataset(KERNEL_UUID).take(1).get_single_element()
    characters = tf.ensure_shape(tf.io.decode_raw(line, tf.uint8), [36])
    digits = tf.cast(tf.gather(characters, _DIGITS), tf.int64)
    nibbles = tf.reshape(tf.where(digits < 58, digits - 48, digits - 87), [2, 16])
    shifts = tf.range(0, 64, 4, dtype=tf.int64)
    return tf.reduce_sum(tf.bitwise.left_shift(nibbles, shifts), axis=1)


def threefry(key: tf.Tensor, counters: tf.Tensor) -> list[tf.Tensor]:
    """The Threefry-4x32-20 blocks of the counters (c, 0, 0, 0).

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
    words = threefry(key, tf.bitcast(tf.range(pairs), tf.uint32))
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


def add_gaussian_noise(
    sums: Sequence[tf.Tensor],
    stddev: float | tf.Tensor,
    *,
    divisor: float | tf.Tensor | None = None,
    seed: tf.Tensor | None = None,
    compiled: bool = True,
) -> list[tf.Tensor]:
    """Adds independent N(0, stddev^2) to every entry of every tensor.

    One draw serves all tensors: its numbers are cut into tensors and none is used twice. Its 128-bit
    seed is new at each run of the op, so nothing repeats between tensors, steps, traces, processes or
    restarts. It is made in parallel in float32 and keeps the tail up to 9.4 standard deviations.

    Args:
      sums: float32 tensors; entries that no row of the batch touched get their noise as well.
      stddev: standard deviation, in the unit of `sums`; 0 adds nothing. A tensor is not checked.
      divisor: a public constant; if given, what is returned is (sum + noise) / divisor.
      seed: int64 [2], a `fresh_seed()` that was drawn earlier and serves nothing else, so that the
        noise can be made beside what it is added to; None draws it here. A seed that is used twice
        gives the same noise twice, and the difference of the two outputs has none.
      compiled: whether the draw may be compiled by XLA; False for graphs that run elsewhere.

    Returns:
      float32 tensors shaped as `sums`.

    Raises:
      ValueError: a stddev that is negative, not finite, or out of float32's range.
    """
    if isinstance(stddev, numbers.Real) and stddev != 0:
        if not math.isfinite(stddev) or not _LEAST <= stddev <= _MOST:
            raise ValueError(
                f"stddev={stddev} must be 0 or between {_LEAST} and {_MOST}, where float32 noise "
                "neither vanishes nor overflows; rescale the clip norm."
            )
    sums = [tf.convert_to_tensor(total, tf.float32) for total in sums]
    if not (isinstance(stddev, numbers.Real) and stddev == 0):
        draw = normals if compiled else normals_uncompiled
        noise = _noise(sums, stddev, fresh_seed() if seed is None else seed, draw)
        sums = [total + part for total, part in zip(sums, noise, strict=True)]
    return sums if divisor is None else [total / divisor for total in sums]


def _noise(
    sums: list[tf.Tensor], stddev: float | tf.Tensor, seed: tf.Tensor, draw: Callable
) -> list[tf.Tensor]:
    known = all(total.shape.is_fully_defined() for total in sums)
    starts, counts, end = [], [], 0
    for total in sums:
        counts.append(total.shape.num_elements() if known else tf.size(total))
        starts.append(end)
        end += -(-counts[-1] // _ALIGNMENT) * _ALIGNMENT
    drawn = draw(seed, end, stddev)
    return [
        tf.reshape(drawn[start : start + count], tf.shape(total))
        for total, start, count in zip(sums, starts, counts, strict=True)
    ]
