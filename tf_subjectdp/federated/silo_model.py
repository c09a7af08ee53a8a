# SPDX-License-Identifier: Apache-2.0
"""What a silo trains: a Keras model with a loss, or TFF's own `VariableModel`, item by item.

Knows Keras and the clipping engine's row functions; TFF models are known by their methods, so that TFF
is not imported here.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp import clipping
from tf_subjectdp.keras import compat, validation
from tf_subjectdp.keras.item_loss import ItemLoss


class KerasSilo:
    """A Keras model for silos, the fast way: its items can be told apart without a pass for each.

        def model_fn():
            model = tf.keras.Sequential([tf.keras.Input([20]), tf.keras.layers.Dense(2)])
            loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            return sdp.federated.KerasSilo(model, loss, (
                tf.TensorSpec([None, 20], tf.float32), tf.TensorSpec([None], tf.int64)))

    Make the model inside `model_fn`, anew at every call, as TFF wants it.

    Args:
      model: a `tf.keras.Model`, not compiled.
      loss: as in Keras's `compile`: one value an item.
      input_spec: (x, y), nests of `tf.TensorSpec` with a batch axis of None; or a dict with "x", "y".

    Raises:
      ValueError, TypeError: a model that mixes the items of a batch, or a spec that is none.
    """

    def __init__(self, model: Any, loss: Any, input_spec: Any):
        compat.require_model(model)
        validation.check_layers(model)
        validation.check_batch_normalization(compat.all_layers(model), None)
        self.model = model
        self.input_spec = split_spec(input_spec)
        if not model.built:
            model(tf.nest.map_structure(_zero_rows, self.input_spec[0]))
        validation.check_forward_pass(model, self.input_spec[0])
        self.loss = ItemLoss(loss, None, getattr(model, "output_names", None) or ())

    @property
    def trainable_variables(self) -> list[Any]:
        """The weights that silos train."""
        return [compat.raw(v) for v in self.model.trainable_variables]

    @property
    def non_trainable_variables(self) -> list[Any]:
        """The weights that stay as they are."""
        return [compat.raw(v) for v in self.model.non_trainable_variables]

    @property
    def layers(self) -> list[Any]:
        """For the engine that needs no item gradients."""
        return compat.all_layers(self.model)

    @property
    def options(self) -> clipping.EngineOptions:
        """How sums are computed."""
        return clipping.EngineOptions()

    def row_function(self, rows: Any) -> tuple[tf.Tensor, Any]:
        """(x, y) of n rows to (losses [n], predictions)."""
        x, y = rows
        predictions = self.model(x, training=True)
        return self.loss(y, predictions), predictions

    def penalties(self) -> list[tf.Tensor]:
        """The regularisers' values, free of data."""
        return [tf.cast(loss, tf.float32) for loss in self.model.losses]


class VariableModelSilo:
    """A `tff.learning.models.VariableModel`, which knows the mean loss of a batch only.

    So every item is a batch of its own. Slow, and right for any such model.

    Args:
      model: what `model_fn` returned.

    Raises:
      ValueError: a Keras model with regularisers, or layers that mix the items of a batch.
    """

    layers: Sequence[Any] = ()

    def __init__(self, model: Any):
        keras_model = getattr(model, "_keras_model", None)
        if keras_model is not None:
            validation.check_layers(keras_model)
            validation.check_batch_normalization(compat.all_layers(keras_model), None)
            if keras_model.losses:
                raise ValueError(
                    "the VariableModel has regularisers, which it adds to each batch's mean loss, where "
                    "they would be clipped with every item. Return "
                    "tf_subjectdp.federated.KerasSilo(model, loss, input_spec) from model_fn instead."
                )
        self.model = model
        self.input_spec = split_spec(model.input_spec)
        self.trainable_variables = list(model.trainable_variables)
        self.non_trainable_variables = list(model.non_trainable_variables)
        self._kept = self._variables_beside_the_trained()

    def _variables_beside_the_trained(self) -> list[Any]:
        """Whatever the forward pass reads or writes: metrics, running statistics."""

        def forward(x, y):
            output = self.model.forward_pass(collections.OrderedDict(x=x, y=y), training=True)
            return output.loss

        graph = tf.function(forward).get_concrete_function(*self.input_spec).graph
        trained = {id(compat.raw(v)) for v in self.trainable_variables}
        return [v for v in graph.variables if id(compat.raw(v)) not in trained]

    @property
    def options(self) -> clipping.EngineOptions:
        """How sums are computed."""
        return clipping.EngineOptions(strategy="loop")

    def row_function(self, rows: Any) -> tuple[tf.Tensor, Any]:
        """(x, y) of n rows to (losses [n], ()), each row a batch of its own."""

        # What the model keeps of one row must not meet the next: a person would move everybody's loss.
        before = [tf.identity(v) for v in self._kept]

        def forget():
            for variable, value in zip(self._kept, before, strict=True):
                variable.assign(value)

        def loss_of(row):
            x, y = tf.nest.map_structure(lambda t: t[tf.newaxis], row)
            output = self.model.forward_pass(collections.OrderedDict(x=x, y=y), training=True)
            loss = tf.reshape(tf.cast(output.loss, tf.float32), [])
            with tf.control_dependencies([loss]):
                forget()
            return loss

        losses = tf.map_fn(loss_of, rows, fn_output_signature=tf.float32, parallel_iterations=1)
        return losses, ()

    def penalties(self) -> list[tf.Tensor]:
        """None: see the constructor."""
        return []


SiloModel = KerasSilo | VariableModelSilo


@contextlib.contextmanager
def kept_keras_classes() -> Iterator[None]:
    """Inside, Keras may turn its classes into those of version 1; behind it they are what they were.

    In a version 1 graph, which TFF traces, Keras 2 exchanges the bases of its layers and models where
    one is made, for the whole process: `get_weights` of a model that was made before then fails.
    """
    kept = {kind: kind.__bases__ for kind in _kinds_of(tf.keras.layers.Layer)}
    try:
        yield
    finally:
        for kind, bases in kept.items():
            if kind.__bases__ != bases:
                kind.__bases__ = bases


def _kinds_of(kind: type) -> set[type]:
    found = set()
    for child in kind.__subclasses__():
        if child not in found:
            found |= {child} | _kinds_of(child)
    return found


def made_by(model_fn: Callable[[], Any]) -> SiloModel:
    """Calls `model_fn`, inside the computation in which the model is used.

    Raises:
      TypeError: `model_fn` is no function, or returns neither of the two kinds.
      ValueError: it returns, or takes weights from, a model that was made before.
    """
    if not callable(model_fn):
        raise TypeError(
            f"model_fn is of type {type(model_fn).__name__}: pass a function without arguments that "
            "makes and returns a KerasSilo or a tff.learning.models.VariableModel."
        )
    try:
        model = model_fn()
    except AttributeError as error:
        if "_distribution_strategy" not in str(error):
            raise
        raise ValueError(
            "model_fn uses a Keras model that was made before, which Keras does not allow in TFF's "
            "graphs; take what is needed of it outside, weights = model.get_weights(), and in model_fn "
            "make a model and call its set_weights(weights)."
        ) from error
    if isinstance(model, tf.keras.Model):
        raise TypeError(
            "model_fn returned a Keras model; return tf_subjectdp.federated.KerasSilo(model, loss, "
            "input_spec), which says what is to be learnt from what."
        )
    if not isinstance(model, KerasSilo):
        if not all(hasattr(model, name) for name in ("forward_pass", "input_spec")):
            raise TypeError(
                f"model_fn returned a {type(model).__name__}: return a KerasSilo or a "
                "tff.learning.models.VariableModel."
            )
        model = VariableModelSilo(model)
    for variable in model.trainable_variables:
        if variable.dtype != tf.float32:
            raise ValueError(
                f"the weight {variable.name} is {variable.dtype.name}; silos train float32 weights. Use "
                'dtype="float32", or mixed precision ("mixed_float16"), whose weights are float32.'
            )
    if not model.trainable_variables:
        raise ValueError("the model has no trainable weights; nothing can be trained.")
    if not tf.executing_eagerly() and any(
        isinstance(v, tf.Variable) and _is_eager(v) for v in model.trainable_variables
    ):
        raise ValueError(
            "model_fn returned a model that was made before; make it inside model_fn, anew at every "
            "call, so that every silo has weights of its own."
        )
    return model


def with_penalties(model: SiloModel, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Gradients with those of the regularisers, which know no data: neither clipped nor divided."""
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        losses = model.penalties()
        total = tf.add_n(losses) if losses else None
    if total is None:
        return list(gradients)
    extra = tape.gradient(total, variables, unconnected_gradients="zero")
    return [g + tf.cast(e, tf.float32) for g, e in zip(gradients, extra, strict=True)]


def _is_eager(variable: Any) -> bool:
    return getattr(variable, "_in_graph_mode", True) is False


def split_spec(input_spec: Any) -> tuple[Any, Any]:
    """(x, y) of a batched input spec.

    Raises:
      ValueError, TypeError: another structure, a leaf that is no `tf.TensorSpec`, or one without a
        batch axis of None.
    """
    if dataclasses.is_dataclass(input_spec) or hasattr(input_spec, "_asdict"):
        input_spec = {name: getattr(input_spec, name) for name in ("x", "y")}
    if isinstance(input_spec, Mapping):
        if set(input_spec) != {"x", "y"}:
            raise ValueError(
                f"input_spec has the keys {sorted(input_spec)}; it must have x and y only: the "
                "subject of a row is no input of the model."
            )
        input_spec = (input_spec["x"], input_spec["y"])
    if not isinstance(input_spec, (tuple, list)) or len(input_spec) != 2:
        raise ValueError(f"input_spec={input_spec!r} must be a pair (x, y) of tf.TensorSpecs.")
    for leaf in tf.nest.flatten(tuple(input_spec)):
        if not isinstance(leaf, tf.TensorSpec):
            raise TypeError(f"input_spec has {leaf!r}; pass tf.TensorSpec([None, ...], dtype).")
        if leaf.shape.rank is None or leaf.shape.rank < 1 or leaf.shape[0] is not None:
            raise ValueError(
                f"input_spec has {leaf}: the first axis is the batch, of size None, since its size "
                "changes from step to step."
            )
    return tuple(input_spec)


def _zero_rows(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([1 if size is None else size for size in spec.shape], spec.dtype)
