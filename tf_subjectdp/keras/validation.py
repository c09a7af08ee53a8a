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
      ValueError: a stateful recurrent layer, or an activity regulariser.
    """
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


def check_forward_pass(model: Any, spec: Any, noised: Any = ()) -> None:
    """Traces one training pass and refuses what a name cannot show.

    Args:
      model: a built Keras model.
      spec: nest of `tf.TensorSpec`, the model's input.
      noised: variables that may be written to, since their changes are clipped and noised.

    Raises:
      ValueError: the pass writes to a variable that is no random seed, or adds a loss.
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
    writes = sorted(_written_variables(model, graph, noised))
    if writes:
        raise ValueError(
            f"in training the model writes to {', '.join(writes)}: values computed from people's data "
            "would be stored without noise. Freeze the layer (trainable = False) or replace it by "
            "one without running statistics, e.g. LayerNormalization."
        )


def _written_variables(model: Any, graph: Any, noised: Any) -> set[str]:
    names = {}
    for variable in (compat.raw(v) for v in model.weights):
        names[id(variable.handle)] = variable.name
    # Random layers of Keras 3 advance a seed state, which does not depend on the data.
    states = compat.seed_handles(compat.all_layers(model))
    states |= {id(compat.raw(variable).handle) for variable in noised}
    seeds = {inner.op.name for outer, inner in graph.captures if id(outer) in states}
    resource_names = {inner.op.name: names.get(id(outer)) for outer, inner in graph.captures}
    written = set()
    for op in graph.get_operations():
        if op.type.startswith(_WRITES):
            resource = op.inputs[0].op.name
            if resource not in seeds:
                written.add(repr(resource_names.get(resource) or resource))
    for function in graph.as_graph_def().library.function:
        for node in function.node_def:
            if node.op.startswith(_WRITES):
                written.add(repr(f"{function.signature.name}/{node.name}"))
    return written
