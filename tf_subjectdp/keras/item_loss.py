# SPDX-License-Identifier: Apache-2.0
"""The loss of every single item, from what `compile` was given.

Knows Keras losses only. Clipping needs one loss a row; Keras's own reduction to a mean comes too
early, so losses are called in their unreduced form and averaged over the axes of one item alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

_HOW = (
    "return one value an item: for a loss object pass reduction='none', for a function leave out its "
    "tf.reduce_mean over the batch"
)


class ItemLoss:
    """Turns `compile`'s `loss` and `loss_weights` into a function (y, predictions) -> [n].

    Args:
      loss: a name, a Keras loss, a function, or a dict, list or tuple of these, one an output.
      loss_weights: number(s), structured as `loss`; None for 1.
      output_names: names of the model's outputs, for dicts of losses and lists of outputs.

    Raises:
      ValueError: no loss, or names that are no outputs.
    """

    def __init__(self, loss: Any, loss_weights: Any = None, output_names: Sequence[str] = ()):
        if loss is None:
            raise ValueError(
                "loss is missing: PrivateModel needs a loss that depends on one item at a time, e.g. "
                "compile(loss='sparse_categorical_crossentropy')."
            )
        self._loss = loss
        self._weights = loss_weights
        self._names = list(output_names)

    def __call__(self, y: Any, predictions: Any) -> tf.Tensor:
        """Losses of n items.

        Args:
          y: targets, a nest of [n, ...].
          predictions: outputs, a nest of [n, ...].

        Returns:
          float32 [n].
        """
        names, outputs = self._split(predictions)
        losses = _per_output(self._loss, names, "loss")
        weights = _per_output(self._weights, names, "loss_weights")
        targets = self._targets(y, names)
        terms = []
        for name, output, target, loss, weight in zip(
            names, outputs, targets, losses, weights, strict=True
        ):
            if loss is not None:
                value = unreduced(loss)(target, output)
                term = _per_item(value, output, name)
                terms.append(term if weight is None else float(weight) * term)
        return tf.add_n(terms)

    def _split(self, predictions: Any) -> tuple[list[str], list[tf.Tensor]]:
        if isinstance(predictions, Mapping):
            return list(predictions), list(predictions.values())
        outputs = tf.nest.flatten(predictions)
        names = self._names
        if len(names) != len(outputs):
            names = [f"output_{number + 1}" for number in range(len(outputs))]
        return names, outputs

    def _targets(self, y: Any, names: list[str]) -> list[Any]:
        if isinstance(y, Mapping):
            missing = [name for name in names if name not in y]
            if missing:
                raise ValueError(f"y has no targets for the outputs {missing}; it has {list(y)}.")
            return [y[name] for name in names]
        targets = tf.nest.flatten(y)
        if len(targets) != len(names):
            raise ValueError(f"y has {len(targets)} targets for the {len(names)} outputs {names}.")
        return targets


def _per_output(value: Any, names: list[str], argument: str) -> list[Any]:
    if isinstance(value, Mapping):
        unknown = sorted(set(value) - set(names))
        if unknown:
            raise ValueError(f"{argument} names {unknown}, but the model's outputs are {names}.")
        return [value.get(name) for name in names]
    if isinstance(value, (list, tuple)):
        if len(value) != len(names):
            raise ValueError(f"{argument} has {len(value)} entries for the outputs {names}.")
        return list(value)
    return [value] * len(names)


def unreduced(loss: Any) -> Callable[[Any, Any], tf.Tensor]:
    """A function (y, predictions) -> unreduced losses of a name, a Keras loss or a function."""
    if isinstance(loss, str):
        loss = tf.keras.losses.get(loss)
    if isinstance(loss, tf.keras.losses.Loss):
        function = loss.call  # what `__call__` would average
        return lambda y, p: function(*_matched(y, p))
    if callable(loss):
        return lambda y, p: loss(*_matched(y, p))
    raise TypeError(
        f"loss={loss!r} must be a name, a Keras loss or a function of (y, predictions)."
    )


def _matched(y: Any, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Targets [n] for outputs [n, 1] get the missing axis, as in Keras's own `fit`."""
    y = tf.convert_to_tensor(y)
    if predictions.shape.rank is not None and y.shape.rank == predictions.shape.rank - 1:
        if predictions.shape[-1] == 1:
            y = tf.expand_dims(y, -1)
    if y.dtype.is_floating and predictions.dtype.is_floating and y.dtype != predictions.dtype:
        y = tf.cast(y, predictions.dtype)
    return y, predictions


def _per_item(value: Any, output: tf.Tensor, name: str) -> tf.Tensor:
    value = tf.cast(tf.convert_to_tensor(value), tf.float32)
    if value.shape.rank == 0:
        raise ValueError(
            f"the loss of output {name!r} is one number for the whole batch: it is already averaged, "
            f"and items can no longer be told apart; {_HOW}."
        )
    mask = getattr(output, "_keras_mask", None)
    if mask is not None and value.shape.rank == mask.shape.rank and value.shape.rank > 1:
        mask = tf.cast(mask, value.dtype)
        axes = list(range(1, value.shape.rank))
        valid = tf.maximum(tf.reduce_sum(mask, axes), 1.0)
        return tf.reduce_sum(value * mask, axes) / valid
    if value.shape.rank > 1:
        value = tf.reduce_mean(value, axis=list(range(1, value.shape.rank)))
    return value
