# SPDX-License-Identifier: Apache-2.0
"""What the static shapes of a traced computation tell about its rows, before anything is computed.

Two questions, each answered by a trace with sizes of our choice and a look at every tensor's shape, in
the bodies of functions, loops and conditions too:

* Does a size depend on what is in a row? One row of known shape then leaves a length open.
* Do rows meet? Of a batch whose length is a prime that nothing else has, the prime is then lost.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp.clipping.norm_only.row_wise import function_body

# In place of an inner length that the batches leave open: long enough for poolings and windows.
_LENGTH = 64
# As many rows as nothing else in a model has entries.
_ROWS = 7919
# Lengths that shape inference leaves open though they follow from shapes alone: what a fused
# normalisation keeps for its backward pass, the axes to sum over, and the arguments of a body, which
# the call shows.
_FOLLOW_FROM_SHAPES = (
    "FusedBatchNorm",
    "BroadcastGradientArgs",
    "Placeholder",
)
# A value of a shape, or of none.
_MEASURES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")


def size_by_values(row_function: Callable, variables: Sequence[tf.Variable], row_spec: Any) -> str:
    """Says which operation, in the forward or backward pass of one row, gives a tensor whose size is not
    known from the row's shape, as splitting a text does, or must be compiled; "" if none does.

    Rows of unlike sizes cannot lie in one tensor, which is how `tf.vectorized_map` keeps them.

    Args:
      row_function: rows -> (losses [n], predictions).
      variables: what is differentiated.
      row_spec: nest of `tf.TensorSpec` [None, ...].
    """

    def one(rows):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            losses, predictions = row_function(rows)
        gradients = tape.gradient(losses, variables, unconnected_gradients="zero")
        return losses, predictions, [tf.convert_to_tensor(g) for g in gradients]

    try:
        graph = tf.function(one).get_concrete_function(_of_rows(row_spec, 1)).graph
    # Whatever a model says to a length that is not its own.
    except Exception as error:
        return f"it cannot be traced for one row of known shape, {type(error).__name__}"
    for name, op in _operations(graph):
        if "_XlaMustCompile" in op.node_def.attr and op.node_def.attr["_XlaMustCompile"].b:
            return f"{op.type} {name!r} must be compiled"
        if op.type.startswith(_FOLLOW_FROM_SHAPES):
            continue
        for output in op.outputs:
            if (
                output.dtype not in (tf.variant, tf.resource)
                and not output.shape.is_fully_defined()
            ):
                return f"the size of {op.type} {name!r} depends on what is in a row"
    return ""


def where_rows_meet(row_function: Callable, row_spec: Any, layers: Sequence[Any]) -> str:
    """Names the first layer, and its operation, that makes numbers of several rows; "" if none does.

    A mean over a batch is one. What shapes do not show, a product of rows with rows of as many rows or a
    division by their number, is not found.

    Args:
      row_function: rows -> (losses [n], predictions).
      row_spec: nest of `tf.TensorSpec` [None, ...].
      layers: the Keras layers that `row_function` calls, nested ones included.
    """
    try:
        graph = tf.function(row_function).get_concrete_function(_of_rows(row_spec, _ROWS)).graph
    # As above: only a warning is lost.
    except Exception:
        return ""
    for name, op in _operations(graph):
        given = max((_row_axes(t) for t in op.inputs), default=0)
        if given < 1 or op.type in _MEASURES:
            continue
        # None left: a sum over them. More than there were: all pairs.
        met = [t.dtype.is_floating and _row_axes(t) not in (-1, given) for t in op.outputs]
        layer = layer_of(name, layers)
        if met and all(met) and layer is not None:
            return f"layer {layer.name!r} ({type(layer).__name__}, by {op.type} {name!r})"
    return ""


def layer_of(operation: str, layers: Sequence[Any]) -> Any | None:
    """The innermost layer whose name is in the path of an operation's name; None if there is none.

    Keras opens a scope of the layer's name, to which TensorFlow may add a number.
    """
    named = {layer.name: layer for layer in layers}
    for part in reversed(operation.split("/")[:-1]):
        stem, _, number = part.rpartition("_")
        found = named.get(part) or (named.get(stem) if number.isdigit() else None)
        if found is not None:
            return found
    return None


def _of_rows(row_spec: Any, count: int) -> Any:
    def known(spec: tf.TensorSpec) -> tf.TensorSpec:
        inner = [_LENGTH if size is None else size for size in spec.shape[1:]]
        return tf.TensorSpec([count, *inner], spec.dtype)

    return tf.nest.map_structure(known, row_spec)


def _operations(graph: tf.Graph, scope: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The operations of a graph and of the bodies that it names, with their path."""
    for op in graph.get_operations():
        yield scope + op.name, op
        attributes = op.node_def.attr.values()
        names = [a.func.name for a in attributes if a.HasField("func")]
        names += [f.name for a in attributes for f in a.list.func]
        for name in names:
            body = function_body(graph, name)
            if body is not None and depth < 16:
                yield from _operations(body, f"{scope}{op.name}/", depth + 1)


def _row_axes(tensor: tf.Tensor) -> int:
    """How many axes of a tensor hold rows; -1 where its shape is not known."""
    if not tensor.shape.is_fully_defined():
        return -1
    return sum(size > 0 and size % _ROWS == 0 for size in tensor.shape)
