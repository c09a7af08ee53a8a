# SPDX-License-Identifier: Apache-2.0
"""Rules of LSTM and GRU, computed by scans of our own (`scans`).

The input's product is taken for all steps at once, and the gradient at it is the gradient at the
gates: with what the kernels received at each step, all that the norms need.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_subjectdp.clipping.norm_only import scans
from tf_subjectdp.clipping.norm_only.record import NoRule, Record
from tf_subjectdp.clipping.norm_only.rules import register_norm_rule
from tf_subjectdp.clipping.norm_only.uses import ItemGradients

_TANH = (tf.keras.activations.tanh, tf.math.tanh)
_SIGMOID = (tf.keras.activations.sigmoid, tf.math.sigmoid)


@register_norm_rule(tf.keras.layers.LSTM)
def lstm(
    layer: Any,
    record: Record,
    sequences: tf.Tensor,
    mask: tf.Tensor | None = None,
    training: bool | None = None,
    initial_state: Any = None,
    **_: Any,
) -> Any:
    """Long short-term memory, gates in Keras's order."""
    sequences, mask, state = _prepared(layer, sequences, mask, initial_state, states=2)
    cell = layer.cell
    gates = _projected(record, sequences, cell.kernel, cell.bias if cell.use_bias else None)
    record.watch(gates)
    kernel = record.value(cell.recurrent_kernel, sequences.dtype)
    time_first = None if mask is None else tf.transpose(mask)
    found = scans.lstm_scan(gates, tf.cast(kernel, gates.dtype), *state, time_first)
    before = _rows_first(found.h_previous)
    turned = _once(_rows_first)
    known = _known(sequences, state, mask)
    record.declare(known, [before])
    record.product(cell.kernel, sequences, gates, turned)
    record.product(cell.recurrent_kernel, before, gates, turned)
    if cell.use_bias:
        shape = cell.bias.shape
        record.note(cell.bias, [sequences], gates, lambda d: ItemGradients(_over_time(d), shape))
    return _outputs(layer, record, known, found, [found.last_h, found.last_c], mask)


@register_norm_rule(tf.keras.layers.GRU)
def gru(
    layer: Any,
    record: Record,
    sequences: tf.Tensor,
    mask: tf.Tensor | None = None,
    training: bool | None = None,
    initial_state: Any = None,
    **_: Any,
) -> Any:
    """Gated recurrent unit whose reset gate acts behind the recurrent product."""
    if not layer.reset_after:
        raise NoRule("reset_after=False")
    sequences, mask, state = _prepared(layer, sequences, mask, initial_state, states=1)
    cell = layer.cell
    bias = record.value(cell.bias, sequences.dtype) if cell.use_bias else None
    gates = _projected(record, sequences, cell.kernel, None if bias is None else bias[0])
    record.watch(gates)
    kernel = tf.cast(record.value(cell.recurrent_kernel, sequences.dtype), gates.dtype)
    inner_bias = None if bias is None else tf.cast(bias[1], gates.dtype)
    time_first = None if mask is None else tf.transpose(mask)
    found = scans.gru_scan(gates, kernel, inner_bias, *state, time_first)
    before = _rows_first(found.h_previous)

    def at_inner(gradient: tf.Tensor) -> tf.Tensor:
        return scans.gru_inner_gradient(gradient, found.reset)

    at_inner = _once(at_inner)
    known = _known(sequences, state, mask)
    record.declare(known, [before])
    record.product(cell.kernel, sequences, gates, _rows_first)
    record.product(cell.recurrent_kernel, before, gates, lambda d: _rows_first(at_inner(d)))
    if cell.use_bias:
        shape = cell.bias.shape

        def both_rows(gradient: tf.Tensor) -> ItemGradients:
            rows = [_over_time(gradient), _over_time(at_inner(gradient))]
            return ItemGradients(tf.stack(rows, axis=1), shape)

        record.note(cell.bias, [sequences], gates, both_rows)
    return _outputs(layer, record, known, found, [found.last_h], mask)


def _known(sequences, state, mask) -> list[tf.Tensor]:
    """What the outputs follow from, row by row."""
    return [t for t in (sequences, *state, mask) if t is not None]


def _prepared(layer, sequences, mask, initial_state, *, states: int):
    """Refuses what the scans do not cover; reverses, fills in zero states."""
    for name, known in (("activation", _TANH), ("recurrent_activation", _SIGMOID)):
        given = getattr(layer, name)
        # The function itself: another may bear its name.
        if not any(given is function for function in known):
            raise NoRule(f"{name}={given!r}")
    for name in ("dropout", "recurrent_dropout", "stateful", "time_major"):
        if getattr(layer, name, False):
            raise NoRule(f"{name}={getattr(layer, name)!r}")
    if not isinstance(sequences, tf.Tensor) or sequences.shape.rank != 3:
        raise NoRule("its inputs are not one dense tensor [n, t, features]")
    if sequences.shape[-1] is None:
        raise NoRule(f"inputs of shape {sequences.shape} have no fixed size")
    sequences = tf.cast(sequences, layer.compute_dtype)
    if layer.go_backwards:
        sequences = tf.reverse(sequences, [1])
        mask = None if mask is None else tf.reverse(mask, [1])
    if initial_state is None:
        return sequences, mask, [None] * states
    given = [tf.cast(s, tf.float32) for s in tf.nest.flatten(initial_state)]
    if len(given) != states:
        raise NoRule(f"{len(given)} initial states")
    return sequences, mask, given


def _projected(record, sequences, kernel, bias) -> tf.Tensor:
    """The input's part of all gates, time first: float32 [t, n, gates]."""
    time_first = tf.transpose(sequences, [1, 0, 2])
    flat = tf.reshape(time_first, [-1, sequences.shape[-1]])
    gates = tf.matmul(flat, record.value(kernel, sequences.dtype))
    if bias is not None:
        gates += record.value(bias, sequences.dtype)
    shape = tf.concat([tf.shape(time_first)[:2], [gates.shape[-1]]], 0)
    projected = tf.cast(tf.reshape(gates, shape), tf.float32)
    projected.set_shape([sequences.shape[1], None, gates.shape[-1]])
    return projected


def _outputs(layer, record, known, found, last, mask) -> Any:
    """What Keras returns: the last output or all, and the states if asked for."""
    outputs = _rows_first(found.h) if layer.return_sequences else found.last_output
    if mask is not None and getattr(layer, "zero_output_for_mask", False):
        shown = mask if layer.return_sequences else mask[:, -1]
        outputs = tf.where(shown[..., tf.newaxis], outputs, tf.zeros_like(outputs))
    outputs, *last = (tf.cast(t, layer.compute_dtype) for t in (outputs, *last))
    record.declare(known, [outputs, *last])
    return [outputs, *last] if layer.return_state else outputs


def _rows_first(time_first: tf.Tensor) -> tf.Tensor:
    return tf.transpose(time_first, [1, 0, 2])


def _over_time(gradient: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(gradient, tf.float32), axis=0)


def _once(function: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Remembers the result for a tensor that several weights ask for."""
    made: dict[Any, tf.Tensor] = {}

    def remembered(tensor: tf.Tensor) -> tf.Tensor:
        key = tensor.ref()
        if key not in made:
            made[key] = function(tensor)
        return made[key]

    return remembered
