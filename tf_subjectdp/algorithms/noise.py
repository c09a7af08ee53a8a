# SPDX-License-Identifier: Apache-2.0
"""The one place where noise is made. Knows shapes and a standard deviation; imports `clipping`'s
fresh seeds and `normals`, whose docstring says why its numbers are sound, and what is not claimed.

One draw serves all tensors of a step: its numbers are cut into tensors, none is used twice, and
its 128-bit seed is new at each run of the op. So nothing repeats between tensors, steps, traces,
processes or restarts.
"""

import math
import numbers
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_subjectdp.algorithms.normals import normals, normals_uncompiled
from tf_subjectdp.clipping import fresh_seed

# Cuts at multiples of 64 bytes share the draw's memory; others would be copied.
_ALIGNMENT = 16
# Below this part of the noise would vanish in float32's subnormal numbers, above it overflow.
_LEAST, _MOST = 1e-30, 1e37


def add_gaussian_noise(
    sums: Sequence[tf.Tensor],
    stddev: float | tf.Tensor,
    *,
    divisor: float | tf.Tensor | None = None,
    seed: tf.Tensor | None = None,
    compiled: bool = True,
) -> list[tf.Tensor]:
    """Adds independent N(0, stddev^2) to every entry of every tensor.

    The draw is counter-based (Threefry) with a fresh 128-bit seed (`fresh_seed`): no seed,
    checkpoint, replica or restart repeats it. It is made in parallel in float32, by a transform that
    keeps the tail up to 9.4 standard deviations (`normals`).

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
