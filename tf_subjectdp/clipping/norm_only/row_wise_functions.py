# SPDX-License-Identifier: Apache-2.0
"""What the row-wise proof has to know of TensorFlow's functions and variables."""

import tensorflow as tf

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
BRANCHES = frozenset(
    {"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile", "For", "MapDefun"}
)
READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
LOOKS = READS | {"VariableShape", "VarIsInitializedOp"}
ASSIGNS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})


def function_body(graph: tf.Graph, name: str) -> tf.Graph | None:
    """The body of a function of the graph's library; None where TensorFlow does not show it."""
    find = getattr(graph, "_get_function", None)
    body = getattr(find(name), "graph", None) if find else None
    return body if hasattr(body, "inputs") and hasattr(body, "outputs") else None


def only_reads(graph: tf.Graph, op: tf.Operation) -> bool:
    """Whether no function that an operation names, and none that those name, writes to a variable."""
    stack, seen = [(graph, op)], set()
    while stack:
        graph, op = stack.pop()
        names = [a.func.name for a in op.node_def.attr.values() if a.HasField("func")]
        names += [f.name for a in op.node_def.attr.values() for f in a.list.func]
        for name in set(names) - seen:
            seen.add(name)
            body = function_body(graph, name)
            if body is None:
                return False
            for inner in body.get_operations():
                if inner.type in CALLS | BRANCHES:
                    stack.append((body, inner))
                elif inner.type not in LOOKS and any(t.dtype == tf.resource for t in inner.inputs):
                    return False
    return True


def moves_on(assignment: tf.Operation) -> bool:
    """Whether an assignment makes a variable's new value out of its old one."""
    if assignment.type in ("AssignAddVariableOp", "AssignSubVariableOp"):
        return True
    if assignment.type not in ASSIGNS:
        return False
    handle, stack, seen = assignment.inputs[0], [assignment.inputs[1]], set()
    while stack:
        tensor = stack.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        if tensor.op.type == "ReadVariableOp" and tensor.op.inputs[0] is handle:
            return True
        stack.extend(tensor.op.inputs)
    return False
