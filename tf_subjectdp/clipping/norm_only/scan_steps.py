# SPDX-License-Identifier: Apache-2.0
"""What the scans of `scans` are made of: a loop that keeps what its steps give, and small operations.

Internal to `scans`, where the notation and the reasons are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class Reader:
    """Step `t` of a tensor `[T, n, width]`, and of the mask, as a view where TensorFlow can."""

    def __init__(self, values: tf.Tensor, mask: tf.Tensor | None = None):
        self._values, self._mask = values, mask

    def __call__(self, t: tf.Tensor) -> tf.Tensor:
        return self._values[t]

    def mask(self, t: tf.Tensor) -> tf.Tensor:
        return self._mask[t]


def run_loop(
    body: Callable,
    states: tuple,
    widths: Sequence[int],
    like: tf.Tensor,
    reverse: bool = False,
) -> tuple[tuple, list[tf.TensorArray]]:
    """Runs `body(t, *states) -> states, values` over the steps of `like`; keeps the values.

    Returns the last states and one array of `[n, width]` for each value. The arrays are read by the
    backward scan as they are: stacking them would copy them.
    """
    steps = like.shape[0] if like.shape[0] is not None else tf.shape(like)[0]
    arrays = [
        tf.TensorArray(
            like.dtype, steps, clear_after_read=False, element_shape=[like.shape[1], width]
        )
        for width in widths
    ]

    def step(t, states, arrays):
        new_states, values = body(t, *states)
        for old, new in zip(tf.nest.flatten(states), tf.nest.flatten(new_states), strict=True):
            new.set_shape(old.shape)
        arrays = tuple(a.write(t, v) for a, v in zip(arrays, values, strict=True))
        return t + (-1 if reverse else 1), new_states, arrays

    first = tf.convert_to_tensor(steps - 1 if reverse else 0)
    _, states, arrays = tf.while_loop(
        lambda t, *_: t >= 0 if reverse else t < steps, step, (first, states, tuple(arrays))
    )
    return states, list(arrays)


def prepared(
    z: tf.Tensor, kernel: Any, gates: int, starts: Sequence[Any | None], mask: Any | None
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor], tf.Tensor | None, bool]:
    """Checked and cast arguments, and whether the initial output state is zero by default."""
    if not z.dtype.is_floating:
        raise TypeError(f"z has dtype {z.dtype.name}; it must be floating: cast it first")
    dtype = tf.float64 if z.dtype == tf.float64 else tf.float32
    z = tf.cast(z, dtype)
    kernel = tf.stop_gradient(tf.cast(kernel, dtype))
    if kernel.shape.rank != 2 or kernel.shape[0] is None:
        raise ValueError(
            f"recurrent_kernel has shape {kernel.shape}; it must be a known [u, {gates}u]"
        )
    units = kernel.shape[0]
    expect("recurrent_kernel", kernel, [units, gates * units])
    expect("z", z, [None, None, gates * units])
    states = []
    for start in starts:
        if start is None:
            start = tf.zeros([tf.shape(z)[1], units], dtype)
            start = tf.ensure_shape(start, [z.shape[1], units])
        start = tf.cast(start, dtype)
        expect("an initial state", start, [z.shape[1], units])
        states.append(start)
    if mask is not None:
        mask = tf.cast(mask, tf.bool)
        expect("mask", mask, z.shape[:2])
    return z, kernel, states, mask, starts[0] is None


def expect(name: str, value: tf.Tensor, shape: Any) -> None:
    if not value.shape.is_compatible_with(shape):
        raise ValueError(f"{name} has shape {value.shape}; it must be {tf.TensorShape(shape)}")


def kernel_blocks() -> int:
    """How many products the LSTM's recurrent product is cut in."""
    return 1 if tf.config.list_physical_devices("GPU") else 2


def gates_of(values: tf.Tensor, units: int) -> list[tf.Tensor]:
    return tf.split(values, values.shape[-1] // units, axis=-1)


def rows_where(rows: tf.Tensor, yes: tf.Tensor, no: tf.Tensor) -> tf.Tensor:
    """Whole rows of either. The old op: it takes a vector, where the new one would broadcast."""
    return tf.raw_ops.Select(condition=rows, x=yes, y=no)


def sigmoid_slope(value: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """`factor value (1 - value)`, in one operation."""
    return tf.raw_ops.SigmoidGrad(y=value, dy=factor)


def tanh_slope(value: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """`factor (1 - value^2)`, in one operation."""
    return tf.raw_ops.TanhGrad(y=value, dy=factor)


def stacked(array: tf.TensorArray, like: tf.Tensor) -> tf.Tensor:
    values = array.stack()
    return tf.ensure_shape(values, [like.shape[0], like.shape[1], None])


def joined(pieces: Sequence[tf.Tensor]) -> tf.Tensor:
    return pieces[0] if len(pieces) == 1 else tf.concat(pieces, axis=2)


def shifted(states: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
    return tf.concat([first[tf.newaxis], states[:-1]], axis=0)


def shown_outputs(
    states: tf.Tensor, last: tf.Tensor, mask: tf.Tensor | None, zero_start: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Outputs from states: zero up to the first unmasked step, where the state is the initial one."""
    if mask is None or zero_start:
        return states, last
    started = tf.cumsum(tf.cast(mask, tf.int32), axis=0) > 0
    output = tf.where(started[:, :, tf.newaxis], states, tf.zeros_like(states))
    return output, tf.where(started[-1][:, tf.newaxis], last, tf.zeros_like(last))
