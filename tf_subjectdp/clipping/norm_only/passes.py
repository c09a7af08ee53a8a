# SPDX-License-Identifier: Apache-2.0
"""One forward and one backward pass over all rows, down to what the weights put out.

The forward pass sees the whole batch at once, so item i's gradient may be read off row i only where
no row meets another. That is proven from the traced graph before anything is computed (`row_wise`);
whatever cannot be proven is not served.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_subjectdp.clipping.norm_only.broadcasts import NotAlike, gradients_of_rows
from tf_subjectdp.clipping.norm_only.record import Record, identity_of
from tf_subjectdp.clipping.norm_only.rules import recorded
from tf_subjectdp.clipping.norm_only.uses import Use

# What does not call the model is left by autograph as it is written, which halves the tracing time.
as_written = tf.autograph.experimental.do_not_convert


class Pass(NamedTuple):
    """One traced forward and backward pass.

    Attributes:
      losses: [n].
      predictions: nest of [n, ...].
      uses: what is kept of each trained weight, by `identity_of`; missing where the loss does not
        depend on the weight.
      reason: why norms cannot be taken from this pass; "" if they can.
    """

    losses: tf.Tensor
    predictions: Any
    uses: dict[int, Use]
    reason: str


def forward_backward(
    row_function: Callable,
    variables: Sequence[tf.Variable],
    rows: Any,
    layers: Sequence[Any],
    *,
    whole: bool = False,
) -> Pass:
    """Traces the pass and proves that it treats every row alone; for graph mode only."""
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        # Nothing but a use without a note still connects a variable to the losses.
        tape.watch(variables)
        record = Record(tape, variables, tf.nest.flatten(rows), whole=whole)
        with recorded(layers, record) as declined:
            losses, predictions = row_function(rows)
        target = tf.reduce_sum(losses)
        leak = record.leak()
        traced = record.begin()
    stray = tape.gradient(target, variables)
    gradients = tape.gradient(target, record.watched)
    unnoted = [v for v, gradient in zip(variables, stray, strict=True) if gradient is not None]
    alike, reason = _alike(tape, target, unnoted, record, traced, declined)
    del tape
    reason = reason or leak or record.proof.why_not([losses, *record.received])
    uses = {} if reason else as_written(record.uses)(gradients, alike)
    return Pass(losses, predictions, uses, reason)


@as_written
def _alike(tape, target, variables, record, traced, declined) -> tuple[dict[int, tf.Tensor], str]:
    """Every row's gradients of the weights that are used without a note, or why there are none."""
    if not variables:
        return {}, ""
    try:
        found = gradients_of_rows(tape, target, variables, record.proof, traced)
    except NotAlike as why:
        names = ", ".join(v.name for v in variables[:3])
        whys = "; ".join([*declined, str(why)])
        return (
            {},
            f"no rule covers the use of {names} ({whys}): register_norm_rule gives a layer one",
        )
    return {identity_of(v): each for v, each in zip(variables, found, strict=True)}, ""


def no_longer(reason: str) -> str:
    """What to say where a model that was served is so no more."""
    return f"the engine norm_only was chosen, but {reason}; compile the model again."


def why_not(
    row_function: Callable, variables: Sequence[tf.Variable], row_spec: Any, layers: Sequence[Any]
) -> str:
    """Traces one pass, to learn whether this strategy serves the model.

    Args:
      row_function: rows -> (losses [n], predictions).
      variables: what is trained.
      row_spec: nest of `tf.TensorSpec` [None, ...].
      layers: the Keras layers that `row_function` calls, nested ones included.

    Returns:
      The reason why it does not; "" if it does.
    """
    if not layers:
        return "no layers were named (model=)"
    found = []

    def traced(rows):
        found.append(forward_backward(row_function, variables, rows, layers))
        return found[-1].losses

    tf.function(traced).get_concrete_function(row_spec)
    return found[-1].reason
