# SPDX-License-Identifier: Apache-2.0
"""What a model must not do: mix the items of a batch, or write data into variables un-noised.

Knows Keras layers and the kind of clipping rule. A layer that averages over the batch makes one
person's gradient depend on others; a layer that keeps statistics (BatchNormalization's moving averages)
stores people's data without noise, and clipping gradients does not help.
"""

from typing import Any

import tensorflow as tf

from tf_subjectdp.algorithms.part_clipping import PartClipping
from tf_subjectdp.keras import compat

# Whatever puts values into a variable or a table: the beginnings of the ops' names.
_WRITES = (
    "Assign",
    "ResourceScatter",
    "ResourceStridedSliceAssign",
    "LookupTableImport",
    "LookupTableInsert",
)


def check_layers(model: Any) -> None:
    """Refuses layers that mix the items of a batch, by name.

    Raises:
      ValueError: a stateful recurrent layer, an activity regulariser, or a float8 policy.
    """
    if compat.KERAS_3:  # Keras 2 has no float8, and does not name the weights of what is not built
        check_gradients(model.trainable_variables)
    for layer in _layers(model):
        name = f"layer {layer.name!r} ({type(layer).__name__})"
        if getattr(layer, "stateful", False) and isinstance(layer, tf.keras.layers.RNN):
            raise ValueError(
                f"{name} is stateful: it carries items of one batch into the next. Use "
                "stateful=False."
            )
        if getattr(layer, "activity_regularizer", None) is not None:
            raise ValueError(
                f"{name} has an activity_regularizer, a loss that depends on the data and is added "
                "outside the clipping. Put it into the loss function, one value an item."
            )


def check_gradients(variables: Any) -> None:
    """Refuses weights whose "gradient" is no gradient, by name.

    Raises:
      ValueError: a scale of Keras's float8 policies, which the optimizer overwrites with its gradient:
        the largest entries of the batch.
    """
    for variable in variables:
        if getattr(variable, "overwrite_with_gradient", False):
            raise ValueError(
                f"weight {variable.path!r} belongs to a float8 policy: training would put the largest "
                "entries of a batch into it, which clipping and noise do not cover. Give its layer "
                "dtype='mixed_bfloat16' or 'float32'."
            )


def check_batch_normalization(layers: Any, algorithm: Any) -> None:
    """Refuses layers that normalise over a batch, unless whole parts of it are what is clipped.

    Args:
      layers: the model's layers, nested ones included.
      algorithm: the clipping rule.

    Raises:
      ValueError: a trainable BatchNormalization (also a subclass) under another rule than
        `BatchClipping` and `MixedClipping`.
    """
    if isinstance(algorithm, PartClipping):
        return
    for layer in layers:
        if isinstance(layer, tf.keras.layers.BatchNormalization) and layer.trainable:
            raise ValueError(
                f"layer {layer.name!r} ({type(layer).__name__}) normalises over the items of a batch "
                "and keeps their statistics without noise. Use LayerNormalization or "
                "GroupNormalization instead, or freeze it "
                f"(model.get_layer({layer.name!r}).trainable = False) to use stored statistics; or "
                "clip whole parts of a batch, BatchClipping or MixedClipping, where it is allowed."
            )


def _layers(model: Any) -> list[Any]:
    return [layer for layer in compat.all_layers(model) if layer is not model]


def check_forward_pass(model: Any, spec: Any) -> list[Any]:
    """Traces one training pass and refuses what a name cannot show.

    Args:
      model: a built Keras model.
      spec: nest of `tf.TensorSpec`, the model's input.

    Returns:
      The moving statistics that the pass writes to, of `compat.batch_statistics`: their changes are to
      be clipped and noised.

    Raises:
      ValueError: the pass writes to another variable that is no random seed, or adds a loss.
    """
    found: dict[str, Any] = {}

    def forward(x):
        outputs = model(x, training=True)
        found["losses"] = [
            loss for layer in compat.all_layers(model) for loss in compat.own_losses(layer)
        ]
        return outputs

    graph = tf.function(forward).get_concrete_function(spec).graph
    if any(getattr(loss, "graph", None) is graph for loss in found["losses"]):
        raise ValueError(
            "a layer calls add_loss: it would be added outside the clipping. Put it into the loss "
            "function, one value an item; for a penalty on weights use a regularizer of the weight."
        )
    writes, statistics = _written(graph, compat.all_layers(model))
    if writes:
        raise ValueError(
            f"in training the model writes to {', '.join(writes)}: values computed from people's data "
            "would be stored without noise. Freeze the layer (trainable = False) or replace it by "
            "one without running statistics, e.g. LayerNormalization."
        )
    return statistics


def check_row_function(row_function: Any, spec: Any, layers: Any) -> list[Any]:
    """As `check_forward_pass`, for a loop of one's own.

    Args:
      row_function: rows -> (losses, predictions).
      spec: nest of `tf.TensorSpec` of the rows.
      layers: of the model that it calls, as far as it was named.
    """
    graph = tf.function(row_function).get_concrete_function(spec).graph
    writes, statistics = _written(graph, layers)
    if writes:
        raise ValueError(
            f"row_function writes to {', '.join(writes)}: values computed from people's data would be "
            "stored without noise. BatchNormalization is for BatchClipping and MixedClipping with "
            "private_step(..., model=model), which noises its statistics; use LayerNormalization or "
            "frozen layers otherwise, and update metrics outside of row_function."
        )
    return statistics


def _written(graph: Any, layers: Any) -> tuple[list[str], list[Any]]:
    """What a traced pass writes to: names of what may not be, and the moving statistics."""
    names = {id(variable.handle): variable.name for variable in graph.variables}
    moving = {id(compat.raw(pair[0]).handle): pair for pair in compat.batch_statistics(layers)}
    # Random layers of Keras 3 advance a seed state, which does not depend on the data.
    states = compat.seed_handles(layers)
    outer_of = {inner.op.name: id(outer) for outer, inner in graph.captures}
    refused, statistics = set(), set()
    for op in graph.get_operations():
        if op.type.startswith(_WRITES):
            resource = op.inputs[0].op.name
            outer = outer_of.get(resource)
            if outer in moving:
                statistics.add(outer)
            elif outer not in states:
                refused.add(repr(names.get(outer) or resource))
    for function in graph.as_graph_def().library.function:
        for node in function.node_def:
            if node.op.startswith(_WRITES):
                refused.add(repr(f"{function.signature.name}/{node.name}"))
    return sorted(refused), [pair for handle, pair in moving.items() if handle in statistics]
