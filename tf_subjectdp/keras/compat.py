# SPDX-License-Identifier: Apache-2.0
"""The few places where Keras 2.14 and Keras 3 differ."""

from typing import Any

import tensorflow as tf

from tf_subjectdp.clipping.variables import raw

__all__ = [
    "KERAS_3",
    "all_layers",
    "batch_statistics",
    "counter",
    "loss_functions",
    "own_losses",
    "raw",
    "require_model",
    "require_optimizer",
    "seed_handles",
    "weights_of",
]

KERAS_3 = not str(getattr(tf.keras, "__version__", "2")).startswith("2")


def counter(name: str, value: int = 0) -> Any:
    """An int64 scalar variable that optimizers may save, starting at `value`."""
    with tf.init_scope():
        if KERAS_3:
            return tf.keras.Variable(
                lambda shape, dtype: tf.fill(shape, tf.cast(value, dtype)),
                shape=(),
                dtype="int64",
                trainable=False,
                name=name,
                aggregation="only_first_replica",
            )
        return tf.Variable(
            value,
            name=name,
            dtype=tf.int64,
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )


def _is_model(base: type) -> bool:
    return "Model" in base.__name__ or base.__name__ in ("Functional", "Sequential")


def all_layers(model: Any) -> list[Any]:
    """A model's layers, nested ones and the model itself included; of a list of models, all of
    theirs; none for None."""
    models = [] if model is None else model if isinstance(model, (list, tuple)) else [model]
    found = {id(layer): layer for each in models for layer in each._flatten_layers()}
    return list(found.values())


def weights_of(layers: Any) -> list[tf.Variable]:
    """All floating-point variables of layers, also of models that are not built; none of a layer that
    prepares data (`adapt`)."""
    lists = ("_trainable_variables", "_non_trainable_variables")
    if not KERAS_3:
        lists = ("_trainable_weights", "_non_trainable_weights")
    found = {}
    for layer in layers:
        if hasattr(layer, "adapt"):
            continue
        for variable in (raw(v) for name in lists for v in getattr(layer, name, ())):
            if variable.dtype.is_floating and variable.shape.num_elements():
                found[id(variable)] = variable
    return list(found.values())


def batch_statistics(layers: Any) -> list[tuple[Any, float | None]]:
    """The moving statistics that training writes to: pairs (variable, smallest value or None)."""
    found = []
    for layer in layers:
        if isinstance(layer, tf.keras.layers.BatchNormalization) and layer.trainable:
            found += [(layer.moving_mean, None), (layer.moving_variance, 0.0)]
    return found


def own_losses(layer: Any) -> list[Any]:
    """What the layer's `call` handed to `add_loss`; regularisers of weights are not among these."""
    return [*getattr(layer, "_losses", ()), *getattr(layer, "_eager_losses", ())]


def loss_functions(layer: Any) -> list[Any]:
    """The functions that were handed to `add_loss`, and Keras 2's regularisers (Keras 3 has neither)."""
    return list(getattr(layer, "_callable_losses", ()))


def seed_handles(layers: Any) -> set[int]:
    """The identities of the handles of the layers' random states (Keras 3; Keras 2 has none)."""
    generators = [g for layer in layers for g in getattr(layer, "_seed_generators", ())]
    return {id(raw(g.state).handle) for g in generators if hasattr(g, "state")}


def require_optimizer(inner: Any) -> None:
    """Refuses an optimizer that does not take the gradients it is given, as they are, at every step.

    Raises:
      TypeError: no optimizer of this Keras, or one that scales the loss.
      ValueError: one that accumulates gradients.
    """
    name = f"{type(inner).__module__}.{type(inner).__name__}"
    if not isinstance(inner, tf.keras.optimizers.Optimizer):
        raise TypeError(
            f"inner is a {name}: pass an optimizer of tf.keras.optimizers; those of "
            "tf.keras.optimizers.legacy and of TensorFlow 1 are not supported."
        )
    if isinstance(inner, tf.keras.mixed_precision.LossScaleOptimizer):
        raise TypeError(
            f"inner is a {name}, which would divide the noised step by a loss scale that was never "
            "applied; pass the optimizer inside it: clipping works on float32 gradients of the plain "
            "loss."
        )
    if getattr(inner, "gradient_accumulation_steps", None) is not None:
        raise ValueError(
            f"inner is a {name} with gradient_accumulation_steps="
            f"{inner.gradient_accumulation_steps}: every small step would be noised and paid for, and "
            "the update would be a mean of noises. Plan with a batch so many times as large instead; "
            "memory does not grow with it, since a batch goes through the model in chunks."
        )


def require_model(model: Any, argument: str = "keras_model") -> None:
    """TypeError unless `model` is a model of the Keras that this TensorFlow uses."""
    if isinstance(model, tf.keras.Model):
        return
    bases = {
        f"{base.__module__}.{base.__name__}" for base in type(model).__mro__ if _is_model(base)
    }
    hint = "pass a tf.keras.Model"
    if any(name.startswith(("keras.", "tf_keras.")) for name in bases):
        hint = (
            "it belongs to another Keras than the one of this TensorFlow "
            f"{tf.__version__} (Keras {'3' if KERAS_3 else '2'}); build it with tf.keras"
        )
    raise TypeError(f"{argument} is a {type(model).__module__}.{type(model).__name__}: {hint}.")
