# SPDX-License-Identifier: Apache-2.0
"""The loss of every single item, from what `compile` was given.

Clipping needs one loss a row; Keras's own reduction to a mean comes too early, so losses are called
in their unreduced form and averaged over the axes of one item alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp.keras import compat

_HOW = (
    "return one value an item: for a loss object pass reduction='none', for a function leave out its "
    "tf.reduce_mean over the batch"
)


class ItemLoss:
    """Turns `compile`'s `loss` and `loss_weights` into a function (y, predictions) -> [n].

    Outputs, losses and targets belong together by name, or in Keras's order (that of the model's list,
    of a dict's sorted keys). An output without a loss needs no target.

    Args:
      loss: a name, a Keras loss, a function, or a dict, list or tuple of these, one an output; None for
        an output without a loss.
      loss_weights: number(s), structured as `loss`; None for 1.
      output_names: names of the model's outputs, for dicts of losses and lists of outputs.

    Raises:
      ValueError: no loss, or names that are no outputs.
    """

    def __init__(self, loss: Any, loss_weights: Any = None, output_names: Sequence[str] = ()):
        if all(each is None for each in tf.nest.flatten(loss)):
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
        return self.with_terms(y, predictions)[0]

    def with_terms(self, y: Any, predictions: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """As a call; and the losses of single outputs, not weighted, that Keras shows beside it.

        Returns:
          float32 [n]; and float32 [n] by the name that Keras's `fit` gives each, none of one output.
        """
        names, outputs = self._split(predictions)
        losses = _per_output(self._loss, names, "loss")
        weights = _per_output(self._weights, names, "loss_weights")
        total, terms = [], {}
        for name, shown, output, target, loss, weight in zip(
            names,
            self._shown(names, losses, predictions),
            outputs,
            self._targets(y, names, losses),
            losses,
            weights,
            strict=True,
        ):
            if loss is not None:
                term = _per_item(unreduced(loss)(target, output), output, name)
                terms[f"{shown}_loss"] = term
                total.append(term if weight is None else float(weight) * term)
        several = len(total) > 1 if compat.KERAS_3 else len(names) > 1
        return tf.add_n(total), terms if several else {}

    def arrange(self, y: Any, predictions: Any) -> Any:
        """The targets in the structure of the outputs, with None where there is none."""
        if y is None:
            return None
        names, _ = self._split(predictions)
        targets = self._targets(y, names, _per_output(self._loss, names, "loss"))
        if isinstance(predictions, Mapping):
            return dict(zip(names, targets, strict=True))
        return targets if tf.nest.is_nested(predictions) else targets[0]

    def _split(self, predictions: Any) -> tuple[list[str], list[tf.Tensor]]:
        if isinstance(predictions, Mapping):
            names = sorted(predictions)
            return names, [predictions[name] for name in names]
        outputs = tf.nest.flatten(predictions)
        names = self._names
        if len(names) != len(outputs):
            names = [f"output_{number + 1}" for number in range(len(outputs))]
        return names, outputs

    def _shown(self, names: list[str], losses: list[Any], predictions: Any) -> list[str]:
        """What Keras calls the outputs in `history`; the tests compare it with Keras itself."""
        if compat.KERAS_3:
            if isinstance(predictions, Mapping) or names == self._names:
                return names
            # Outputs without names go by their losses, even where two are then the same.
            return [str(getattr(f, "name", getattr(f, "__name__", f))) for f in losses]
        return self._names if len(self._names) == len(names) else names

    def _targets(self, y: Any, names: list[str], losses: list[Any]) -> list[Any]:
        needed = [name for name, loss in zip(names, losses, strict=True) if loss is not None]
        if isinstance(y, Mapping):
            unknown, missing = sorted(set(y) - set(names)), sorted(set(needed) - set(y))
            if unknown:
                raise ValueError(f"y has targets {unknown}, but the model's outputs are {names}.")
            if missing:
                raise ValueError(f"y has no targets for the outputs {missing}; it has {list(y)}.")
            return [y.get(name) for name in names]
        targets = tf.nest.flatten(y)
        if len(targets) == len(names):
            return targets
        if len(targets) == len(needed):
            found = dict(zip(needed, targets, strict=True))
            return [found.get(name) for name in names]
        raise ValueError(f"y has {len(targets)} targets for the {len(names)} outputs {names}.")


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
