# SPDX-License-Identifier: Apache-2.0
"""What a model must not do: mix the items of a batch, or write data into variables un-noised.

A layer that averages over the batch makes one person's gradient depend on others; a layer that keeps
statistics (BatchNormalization's moving averages) stores people's data without noise, and clipping
gradients does not help.
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

# What `PrivateModel` does itself, by the method of Keras that would do it; and what to do instead.
_OWN_LOOP = "write the step as a loop of your own around tf_subjectdp.private_step"
_LOSS = "pass compile(loss=...) a function with one value an item"
_METRICS = "pass compile(metrics=...) your metrics, or evaluate in a loop of your own"
_REPLACED = {
    "train_step": _OWN_LOOP,
    "make_train_function": _OWN_LOOP,
    "compute_loss": _LOSS,
    "test_step": _METRICS,
    "make_test_function": _METRICS,
    "compute_metrics": _METRICS,
    "get_metrics_result": _METRICS,
    "make_predict_function": "override predict_step, which is used",
}


def check_methods(model: Any) -> None:
    """Refuses a model with methods of its own that would not be called.

    Raises:
      ValueError: its own `train_step`, `compute_loss`, `test_step`, ...
    """
    for name, remedy in _REPLACED.items():
        used = [getattr(base, name, None) for base in (tf.keras.Model, tf.keras.Sequential)]
        if name in vars(model) or getattr(type(model), name, None) not in used:
            raise ValueError(
                f"model {model.name!r} ({type(model).__name__}) has its own {name}, which would never be "
                f"called: the steps are PrivateModel's. Leave it out, and {remedy}."
            )


def check_replicas(*made: Any) -> None:
    """Refuses more than one replica, of the strategy in use or that models or variables were made under.

    Raises:
      ValueError: no rule holds where a person's rows are in several places.
    """
    strategies = [getattr(each, "distribute_strategy", None) for each in made]
    strategies.append(tf.distribute.get_strategy())
    replicas = max(each.num_replicas_in_sync for each in strategies if each is not None)
    if replicas > 1:
        raise ValueError(
            f"the strategy has {replicas} replicas, which would see parts of one person each, and "
            "no clipping rule holds across them; make the model and train it on one device."
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
      ValueError: the pass writes to another variable that is no random seed, or adds a loss, or
        has one by a function that looks at more than weights.
    """
    added: dict[str, bool] = {}
    # Every call would add another one of those that are added in a call.
    before = {id(layer): len(compat.loss_functions(layer)) for layer in compat.all_layers(model)}

    def forward(x):
        outputs = model(x, training=True)
        graph = tf.compat.v1.get_default_graph()
        for layer in compat.all_layers(model):
            functions = compat.loss_functions(layer)
            added[f"layer {layer.name!r} ({type(layer).__name__})"] = (
                len(functions) > before.get(id(layer), len(functions))
                or any(getattr(loss, "graph", None) is graph for loss in compat.own_losses(layer))
                or any(_looks_at(loss, tf.nest.flatten(x)) for loss in functions)
            )
        return outputs

    graph = tf.function(forward).get_concrete_function(spec).graph
    names = [name for name, adds in added.items() if adds]
    if names:
        raise ValueError(
            f"{', '.join(names)} calls add_loss: it would be added outside the clipping. Put it into "
            "the loss function, one value an item; for a penalty on weights use a regularizer of the "
            "weight."
        )
    writes, statistics = _written(graph, compat.all_layers(model))
    if writes:
        raise ValueError(
            f"in training the model writes to {', '.join(writes)}: values computed from people's data "
            "would be stored without noise. Freeze the layer (trainable = False) or replace it by "
            "one without running statistics, e.g. LayerNormalization."
        )
    return statistics


def _looks_at(loss: Any, data: list[Any]) -> bool:
    """Whether a function without arguments computes from tensors of the graph that is being traced."""
    try:
        value = loss()
    except (TypeError, ValueError):
        return True  # From tensors of a graph that is gone.
    if value is None or isinstance(value, tf.__internal__.EagerTensor):
        return False
    if not isinstance(value, tf.Tensor):
        return True  # One of Keras's symbolic tensors, an output of a layer.
    names, ahead, reached = {tensor.name for tensor in data}, [value], set()
    while ahead:
        tensor = ahead.pop()
        if tensor.name not in reached:
            reached.add(tensor.name)
            ahead += tensor.op.inputs
    return not names.isdisjoint(reached)


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
