# SPDX-License-Identifier: Apache-2.0
"""One private step, for `PrivateModel` and for training loops that users write themselves.

Knows the engine and `DPOptimizer`; imports those two.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp import clipping
from tf_subjectdp.keras import compat
from tf_subjectdp.keras.optimizer import DPOptimizer


def private_step(
    optimizer: DPOptimizer,
    row_function: Callable[[Any], tuple[tf.Tensor, Any]],
    variables: Sequence[Any],
    rows: Any,
    subject: tf.Tensor,
    mask: tf.Tensor | None = None,
    *,
    extra_gradients: Sequence[tf.Tensor] | None = None,
    begins_epoch: tf.Tensor | bool = False,
    strategy: str | None = None,
) -> clipping.ClippedSum:
    """Clips by person, adds noise, and updates `variables` once.

    Use it in a loop of your own (a GAN's discriminator, several models, ...), best inside a
    `tf.function` that is made once:

        def row_function(rows):
            x, y = rows
            predictions = model(x, training=True)
            return tf.keras.losses.sparse_categorical_crossentropy(y, predictions), predictions

        for x, y, extras in plan.dataset(x, y, patient_id):
            private_step(optimizer, row_function, model.trainable_variables, (x, y),
                         extras["subject"], extras["mask"])

    Args:
      optimizer: a `DPOptimizer`.
      row_function: rows -> (loss of each row [n], predictions: a nest of [n, ...]).
      variables: what is trained.
      rows: nest of tensors [B, ...]; B may be 0: the step then adds noise alone.
      subject: integer or string [B], the person of each row.
      mask: bool [B], False for padding rows; None for none.
      extra_gradients: gradients that do not depend on the data, one a variable.
      begins_epoch: whether the batch begins a pass over shuffled data.
      strategy: "vectorized" or "loop"; None chooses (once a trace) and logs the choice.

    Returns:
      The `ClippedSum` that was noised. It is NOT private; do not release it.

    Raises:
      ValueError: a loss that is already averaged, or lengths that differ.
    """
    if not isinstance(optimizer, DPOptimizer):
        raise TypeError(
            f"optimizer={optimizer!r} must be a DPOptimizer; see plan.optimizer(inner)."
        )
    variables = list(variables)
    tensors = [compat.raw(v) for v in variables]
    rows = tf.nest.map_structure(tf.convert_to_tensor, rows)
    subject = tf.convert_to_tensor(subject)
    mask = tf.ones_like(subject, tf.bool) if mask is None else tf.convert_to_tensor(mask)
    partition = optimizer.algorithm.partition(subject, mask)
    if strategy is None:
        spec = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), rows)
        strategy, _ = clipping.choose_strategy(
            row_function, tensors, spec, linear=partition.linear, options=optimizer.engine
        )
    summed = clipping.clipped_sum(
        row_function,
        tensors,
        rows,
        partition,
        optimizer.algorithm.clip_norm,
        strategy=strategy,
        options=optimizer.engine,
    )
    optimizer.apply_clipped_sum(
        summed.total, variables, extra_gradients=extra_gradients, begins_epoch=begins_epoch
    )
    return summed
