# SPDX-License-Identifier: Apache-2.0
"""Operations that build shapes from shapes, the only ones that the number of rows may go through.

Every other operation would make it a number that is computed with, which `row_wise_ops` refuses.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_subjectdp.clipping.norm_only.row_wise_values import Node, Size, State, product


def size_state(node: Node) -> State | None:
    """The state of an operation on shapes, or None where it does not keep a shape a shape."""
    rule = _RULES.get(node.op.type)
    holds_size = any(isinstance(node.states[i], Size) for i in _data(node))
    if rule is None or not holds_size or any(node.rows(i) for i in range(len(node.inputs))):
        return None
    return rule(node)


def _data(node: Node) -> range:
    """The inputs that an operation's value is made of; the others only say how."""
    if node.op.type in ("Pack", "Mul"):
        return range(len(node.inputs))
    if node.op.type == "ConcatV2":
        return range(len(node.inputs) - 1)
    return range(min(1, len(node.inputs)))


def _same(node: Node) -> State:
    return node.states[0]


def _cast(node: Node) -> State | None:
    return node.states[0] if node.attr("DstT") in (tf.int32, tf.int64) else None


def _reshape(node: Node) -> State | None:
    """Reshape, ExpandDims and Squeeze between a scalar and a vector."""
    rank = node.op.outputs[0].shape.rank
    return Size(node.states[0].dims, rank == 0) if rank in (0, 1) else None


def _pack(node: Node) -> State | None:
    parts = [node.sizes(i) for i in range(len(node.inputs))]
    if node.attr("axis") != 0 or any(node.rank(i) for i in range(len(parts))):
        return None
    return Size(tuple(part[0] for part in parts), False)


def _concat(node: Node) -> State | None:
    parts = [node.sizes(i) for i in range(len(node.inputs) - 1)]
    if any(part is None for part in parts):
        return None
    return Size(tuple(d for part in parts for d in part), False)


def _unpack(node: Node) -> State | None:
    return Size((node.states[0].dims[node.index],), True)


def _strided_slice(node: Node) -> State | None:
    begin, end, stride = (node.static(i).tolist() for i in (1, 2, 3))
    if len(begin) != 1 or node.attr("ellipsis_mask") or node.attr("new_axis_mask"):
        return None
    dims = node.states[0].dims
    if node.attr("shrink_axis_mask"):
        return Size((dims[begin[0]],), True)
    first = None if node.attr("begin_mask") else begin[0]
    last = None if node.attr("end_mask") else end[0]
    return Size(dims[first : last : stride[0]], False)


def _slice(node: Node) -> State | None:
    (begin,), (count,) = node.static(1).tolist(), node.static(2).tolist()
    return Size(node.states[0].dims[begin : None if count < 0 else begin + count], False)


def _gather(node: Node) -> State | None:
    indices = node.static(1)
    if node.attr("batch_dims") or indices.ndim > 1 or node.states[0].scalar:
        return None
    dims = node.states[0].dims
    return Size(tuple(dims[i] for i in indices.reshape(-1)), indices.ndim == 0)


def _prod(node: Node) -> State | None:
    if node.states[0].scalar or set(np.reshape(node.static(1), -1).tolist()) - {0, -1}:
        return None
    return Size((product(node.states[0].dims),), not node.attr("keep_dims"))


def _mul(node: Node) -> State | None:
    left, right = node.sizes(0), node.sizes(1)
    if (
        left is None
        or right is None
        or (len(left) != len(right) and 1 not in (len(left), len(right)))
    ):
        return None
    count = max(len(left), len(right)) if left and right else 0
    left = left * count if len(left) == 1 else left
    right = right * count if len(right) == 1 else right
    pairs = zip(left, right, strict=True)
    return Size(tuple(product(pair) for pair in pairs), node.rank(0) == node.rank(1) == 0)


def _floor_div(node: Node) -> State | None:
    divisor = node.sizes(1)
    if divisor is None or len(divisor) != 1 or divisor[0] is None:
        return None
    dims = tuple(d and d.over(divisor[0]) for d in node.states[0].dims)
    return None if None in dims else Size(dims, node.states[0].scalar and not node.rank(1))


_RULES: dict[str, Callable[[Node], State | None]] = {
    "Identity": _same,
    "StopGradient": _same,
    "PreventGradient": _same,
    "EnsureShape": _same,
    "Cast": _cast,
    "Reshape": _reshape,
    "ExpandDims": _reshape,
    "Squeeze": _reshape,
    "Pack": _pack,
    "ConcatV2": _concat,
    "Unpack": _unpack,
    "StridedSlice": _strided_slice,
    "Slice": _slice,
    "GatherV2": _gather,
    "Gather": _gather,
    "Prod": _prod,
    "Mul": _mul,
    "FloorDiv": _floor_div,
}
