# SPDX-License-Identifier: Apache-2.0
"""LSTM and GRU scans over input products made beforehand, with hand-written backward scans.

The input projection `z = x W + b` of all time steps is one large product, made by the caller. A scan
here runs the recurrence on it, and its backward scan gives the gradient of the loss with respect to
`z`, which is the gradient at the pre-activation of every gate: all that the norms of the layer's own
gradients need. Tensors are time-major: `T` steps (at least one), `n` rows, `u` units. The activation
is tanh, the recurrent activation sigmoid.

Why by hand: every product of derivatives that does not wait for later steps (for the input gate,
`g i (1 - i)`) is formed in the forward scan, from values still in the cache and beside the next
step's matrix product. A backward step is left with one multiplication a gate and the products with
the transposed kernel. Gates are kept apart, as arrays `[n, u]`, and on a CPU the kernel is cut in
blocks: TensorFlow runs such operations side by side, whereas the threads of one wide elementwise
operation cost more than the operation.

Masks follow Keras: where False, state and output are carried from the step before, and the output
before the first unmasked step is zero (the state there is the initial one).

What is computed: float64 for a `z` of float64, else float32; results are cast to the dtype of `z`,
gradients to the dtype of what they belong to. Derivatives of the gradients are not defined. A static
number of steps and rows is needed under XLA only.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


_LSTM_GATES = 4
_GRU_GATES = 3


class LstmStates(NamedTuple):
    """What `lstm_scan` computed, in the dtype of `z`.

    `h`: outputs `[T, n, u]`. `h_previous`: the state that each step received, `[T, n, u]`, which is
    what the recurrent kernel was multiplied with. `last_h`, `last_c`: states after the last step,
    `[n, u]`. `last_output`: output of the last step, `[n, u]`; better than `h[-1]`, whose gradient
    is an array of zeros for all other steps.
    """

    h: tf.Tensor
    h_previous: tf.Tensor
    last_h: tf.Tensor
    last_c: tf.Tensor
    last_output: tf.Tensor


class GruStates(NamedTuple):
    """What `gru_scan` computed, in the dtype of `z`.

    `h`, `h_previous`, `last_h`, `last_output`: as in `LstmStates`. `reset`: reset gates `[T, n, u]`.
    `candidate_input`: what the candidate's columns of the recurrent kernel were multiplied with,
    `[T, n, u]`: `h_previous` with `reset_after`, else `reset * h_previous`. No gradient flows through
    the last two.
    """

    h: tf.Tensor
    h_previous: tf.Tensor
    last_h: tf.Tensor
    last_output: tf.Tensor
    reset: tf.Tensor
    candidate_input: tf.Tensor


@tf.autograph.experimental.do_not_convert
def lstm_scan(
    z: Any,
    recurrent_kernel: Any,
    h0: Any | None = None,
    c0: Any | None = None,
    mask: Any | None = None,
) -> LstmStates:
    """The LSTM recurrence on given input products.

    Args:
      z: input products `[T, n, 4u]`, bias included, gates in Keras's order: input, forget,
        candidate, output.
      recurrent_kernel: `[u, 4u]`; gets no gradient.
      h0: initial state `[n, u]`; zeros by default.
      c0: initial memory `[n, u]`; zeros by default.
      mask: bool `[T, n]`, False where a step is skipped.

    Returns:
      The states; gradients flow to `z`, `h0` and `c0`.

    Raises:
      TypeError: `z` is not of a floating dtype.
      ValueError: a shape does not fit.
    """
    given = tf.convert_to_tensor(z)
    z, kernel, (h, c), mask, zero_start = prepared(
        given, recurrent_kernel, _LSTM_GATES, (h0, c0), mask
    )
    units = kernel.shape[0]
    blocks = tf.split(kernel, kernel_blocks(), axis=1)
    read = Reader(tf.stop_gradient(z), mask)
    zeros, ones = tf.zeros_like(h), tf.ones_like(h)

    def forward(t, h, c):
        products = [p for b in blocks for p in gates_of(tf.matmul(h, b), units)]
        i, f, g, o = (a + p for a, p in zip(gates_of(read(t), units), products, strict=True))
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        if mask is not None:
            # Exactly 0 and 1: the memory is carried, and every coefficient below is zero.
            unmasked = read.mask(t)
            i, f = rows_where(unmasked, i, zeros), rows_where(unmasked, f, ones)
            o = rows_where(unmasked, o, zeros)
        new_c = f * c + i * g
        tanh_c = tf.tanh(new_c)
        new_h = o * tanh_c
        if mask is not None:
            new_h = rows_where(unmasked, new_h, h)
        kept = (
            sigmoid_slope(i, g),
            sigmoid_slope(f, c),
            tanh_slope(g, i),
            sigmoid_slope(o, tanh_c),
            tanh_slope(tanh_c, o),
            f,
        )
        return (new_h, new_c), (new_h, *kept)

    start = (tf.stop_gradient(h), tf.stop_gradient(c))
    (last_h, last_c), (states, *kept) = run_loop(forward, start, [units] * 7, z)
    states = stacked(states, z)
    transposed = [tf.transpose(b) for b in blocks]

    @tf.custom_gradient
    def attach(z, h, c):
        def backward_scan(d_states, d_last_h, d_last_c):
            read_d = Reader(d_states, mask)

            def backward(t, partial, dc):
                to_i, to_f, to_g, to_o, to_c, f = (k.read(t) for k in kept)
                dh = tf.add_n([*partial, read_d(t)])
                dc = dc + dh * to_c
                gates = [dc * to_i, dc * to_f, dc * to_g, dh * to_o]
                size = _LSTM_GATES // len(blocks)
                pieces = [tf.concat(gates[k : k + size], 1) for k in range(0, _LSTM_GATES, size)]
                partial = [tf.matmul(p, b) for p, b in zip(pieces, transposed, strict=True)]
                if mask is not None:
                    partial.append(rows_where(read_d.mask(t), zeros, dh))
                return (tuple(partial), dc * f), pieces

            count = len(blocks) + (mask is not None)
            start = ((d_last_h, *[zeros] * (count - 1)), d_last_c)
            widths = [b.shape[1] for b in blocks]
            (partial, dc), pieces = run_loop(backward, start, widths, z, reverse=True)
            return joined([stacked(p, z) for p in pieces]), tf.add_n(partial), dc

        return (tf.identity(states), tf.identity(last_h), tf.identity(last_c)), backward_scan

    states, last_h, last_c = attach(z, h, c)
    output, last_output = shown_outputs(states, last_h, mask, zero_start)
    results = (output, shifted(states, h), last_h, last_c, last_output)
    return LstmStates(*(tf.cast(r, given.dtype) for r in results))


@tf.autograph.experimental.do_not_convert
def gru_scan(
    z: Any,
    recurrent_kernel: Any,
    recurrent_bias: Any | None = None,
    h0: Any | None = None,
    mask: Any | None = None,
    probe: Any | None = None,
    *,
    reset_after: bool = True,
) -> GruStates:
    """The GRU recurrence on given input products.

    With `reset_after`, `inner = h_previous U + recurrent_bias + probe` and the candidate is
    `tanh(z_h + reset * inner_h)`; without, it is `tanh(z_h + (reset * h_previous) U_h)`.

    The gradient at `inner`, which the norms of the recurrent kernel and bias need with `reset_after`,
    is the gradient with respect to `probe`. `gru_inner_gradient` gives the same from the gradient
    with respect to `z`, without the cost of a probe.

    Args:
      z: input products `[T, n, 3u]`, input bias included, gates in Keras's order: update, reset,
        candidate.
      recurrent_kernel: `[u, 3u]`; gets no gradient.
      recurrent_bias: `[3u]`, with `reset_after` only; gets no gradient.
      h0: initial state `[n, u]`; zeros by default.
      mask: bool `[T, n]`, False where a step is skipped.
      probe: `[T, n, 3u]`, with `reset_after` only; usually zeros.
      reset_after: whether the reset gate is applied after the product (Keras's default).

    Returns:
      The states; gradients flow to `z`, `h0` and `probe`.

    Raises:
      TypeError: `z` is not of a floating dtype.
      ValueError: a shape does not fit, or a bias or probe is given without `reset_after`.
    """
    for name, value in (("recurrent_bias", recurrent_bias), ("probe", probe)):
        if value is not None and not reset_after:
            raise ValueError(
                f"{name} belongs to reset_after=True; leave it out, or add the bias to z instead"
            )
    given = tf.convert_to_tensor(z)
    z, kernel, (h,), mask, zero_start = prepared(given, recurrent_kernel, _GRU_GATES, (h0,), mask)
    units = kernel.shape[0]
    kernel_zr, kernel_h = tf.split(kernel, [2 * units, units], axis=1)
    if recurrent_bias is None:
        recurrent_bias = tf.zeros([_GRU_GATES * units], z.dtype)
    bias = tf.stop_gradient(tf.cast(recurrent_bias, z.dtype))
    expect("recurrent_bias", bias, [_GRU_GATES * units])
    bias_zr, bias_h = tf.split(bias, [2 * units, units])
    probes = () if probe is None else (tf.cast(probe, z.dtype),)
    for p in probes:
        expect("probe", p, z.shape)
    read = Reader(tf.stop_gradient(z), mask)
    read_probe = Reader(tf.stop_gradient(probes[0])) if probes else None
    ones = tf.ones_like(h)

    def forward(t, h):
        update, reset, candidate = gates_of(read(t), units)
        inner = tf.matmul(h, kernel_zr)
        inner = gates_of(tf.nn.bias_add(inner, bias_zr) if reset_after else inner, units)
        if reset_after:
            inner.append(tf.nn.bias_add(tf.matmul(h, kernel_h), bias_h))
        if read_probe is not None:
            extra = gates_of(read_probe(t), units)
            inner = [a + b for a, b in zip(inner, extra, strict=True)]
        update, reset = tf.sigmoid(update + inner[0]), tf.sigmoid(reset + inner[1])
        if mask is not None:
            # Exactly 1: the state is carried, and every coefficient below but `reset` is zero.
            update = rows_where(read.mask(t), update, ones)
        if reset_after:
            candidate = tf.tanh(candidate + reset * inner[2])
        else:
            candidate = tf.tanh(candidate + tf.matmul(reset * h, kernel_h))
        renewal = ones - update
        new_h = update * h + renewal * candidate
        kept = (
            sigmoid_slope(update, h - candidate),
            sigmoid_slope(reset, inner[2] if reset_after else h),
            tanh_slope(candidate, renewal),
            update,
            reset,
        )
        return (new_h,), (new_h, *kept)

    (last_h,), (states, *kept) = run_loop(forward, (tf.stop_gradient(h),), [units] * 6, z)
    states = stacked(states, z)
    transposed_zr, transposed_h = tf.transpose(kernel_zr), tf.transpose(kernel_h)

    @tf.custom_gradient
    def attach(z, h, *probes):
        def backward_scan(d_states, d_last_h):
            read_d = Reader(d_states)

            def backward(t, partial):
                to_update, to_reset, to_candidate, update, reset = (k.read(t) for k in kept)
                dh = tf.add_n([*partial, read_d(t)])
                d_candidate = dh * to_candidate
                if reset_after:
                    d_reset = d_candidate * to_reset
                    through = tf.matmul(d_candidate * reset, transposed_h)
                else:
                    through = tf.matmul(d_candidate, transposed_h)
                    d_reset = through * to_reset
                    through = through * reset
                zr = tf.concat([dh * to_update, d_reset], 1)
                partial = (tf.matmul(zr, transposed_zr), through, dh * update)
                return (partial,), (zr, d_candidate)

            start = ((d_last_h, tf.zeros_like(h), tf.zeros_like(h)),)
            (partial,), pieces = run_loop(backward, start, [2 * units, units], z, reverse=True)
            dz = joined([stacked(p, z) for p in pieces])
            d_probes = [gru_inner_gradient(dz, stacked(kept[-1], z)) for _ in probes]
            return dz, tf.add_n(partial), *d_probes

        return (tf.identity(states), tf.identity(last_h)), backward_scan

    states, last_h = attach(z, h, *probes)
    output, last_output = shown_outputs(states, last_h, mask, zero_start)
    previous, reset = shifted(states, h), stacked(kept[-1], z)
    candidate_input = tf.stop_gradient(previous if reset_after else reset * previous)
    results = (output, previous, last_h, last_output, reset, candidate_input)
    return GruStates(*(tf.cast(r, given.dtype) for r in results))


def gru_inner_gradient(dz: tf.Tensor, reset: tf.Tensor) -> tf.Tensor:
    """The gradient at `h_previous U + recurrent_bias` of a GRU with `reset_after`.

    Args:
      dz: gradient with respect to `z`, `[T, n, 3u]`.
      reset: the reset gates of `GruStates`, `[T, n, u]`, of the same dtype.

    Returns:
      `[T, n, 3u]`: as `dz` for the update and reset gates; the candidate's is multiplied by `reset`.
    """
    units = reset.shape[-1]
    return tf.concat([dz[..., : 2 * units], dz[..., 2 * units :] * reset], axis=-1)
