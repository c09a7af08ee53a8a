# SPDX-License-Identifier: Apache-2.0
"""What one operation does to rows: the states of tensors, the conditions of rules, and the rules.

The number of rows, n, may decide how long a tensor is; it must never become a number that is computed
with, for a sum divided by n changes every row when one row leaves. So shapes have a state of their own.

A rule gets a `Node` with at least one input that is not constant and none that is mixed, and returns
the state of the output or raises `Refused`. A rule that forgets a condition is a privacy hole, an
operation without a rule only costs speed: so a rule is there only where ordinary models need it.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class Refused(Exception):
    """Raised by a rule that cannot prove its output row-wise; says why, without naming the op."""


@dataclasses.dataclass(frozen=True)
class Dim:
    """One length: `factor` * n**`rows` * the inner lengths named in `symbols`; -1 means "the rest"."""

    factor: int = 1
    rows: int = 0
    symbols: tuple[str, ...] = ()

    def times(self, other: "Dim") -> "Dim":
        symbols = tuple(sorted(self.symbols + other.symbols))
        return Dim(self.factor * other.factor, self.rows + other.rows, symbols)

    def over(self, other: "Dim") -> "Dim | None":
        """The quotient where it is certainly a whole number, else None."""
        left = list(self.symbols)
        if other.factor < 1 or self.factor % other.factor or other.rows > self.rows:
            return None
        for symbol in other.symbols:
            if symbol not in left:
                return None
            left.remove(symbol)
        return Dim(self.factor // other.factor, self.rows - other.rows, tuple(left))

    def per_row(self) -> "Dim | None":
        """k where this length is n * k, else None."""
        if self.rows != 1 or self.factor < 1:
            return None
        return Dim(self.factor, 0, self.symbols)


ONE = Dim()
REST = Dim(-1)
ROW_COUNT = Dim(1, 1)


@dataclasses.dataclass(frozen=True)
class Constant:
    """Depends neither on the rows nor on how many there are."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """The leading axis holds `per_row` entries a row, row after row; each depends on that row alone.

    The entries may also be fresh independent draws, or equal for all rows. `per_row` is 1 for an
    ordinary batch, T for the time steps of a [n, T, d] tensor that was reshaped to [n * T, d].
    """

    per_row: Dim = ONE


@dataclasses.dataclass(frozen=True)
class Size:
    """An integer scalar or vector made of lengths. None: an entry that is constant but not known."""

    dims: tuple[Dim | None, ...]
    scalar: bool


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Nothing is proven; `reason` names the operation and says why."""

    reason: str


State = Constant | Rows | Size | Mixed


def is_constant(state: State) -> bool:
    """Whether neither rows nor their number have a part in it; a row's inner lengths count as such."""
    if isinstance(state, Size):
        return not any(d is not None and d.rows for d in state.dims)
    return isinstance(state, Constant)


class Node:
    """One output of one operation with the inputs that it depends on, as a rule sees it.

    `fresh` says whether an input comes from the state of a generator that moves on with every run;
    `scope` tells apart the tensors of equal name in two called functions.
    """

    def __init__(
        self,
        tensor: tf.Tensor,
        inputs: Sequence[tf.Tensor],
        states: Sequence[State],
        scope: str,
        fresh: Callable[[tf.Tensor], bool],
    ):
        self.op = tensor.op
        self.index = tensor.value_index
        self.inputs = list(inputs)
        self.states = list(states)
        self._scope = scope
        self._fresh = fresh

    def fresh(self, i: int) -> bool:
        return self._fresh(self.inputs[i])

    def attr(self, name: str) -> Any:
        """An attribute; strings as str, None where the operation has none of that name."""
        if name not in self.op.node_def.attr:
            return None
        value = self.op.get_attr(name)
        return value.decode() if isinstance(value, bytes) else value

    def rank(self, i: int) -> int:
        rank = self.inputs[i].shape.rank
        if rank is None:
            raise Refused("receives a tensor of unknown rank")
        return rank

    def constant(self, i: int) -> bool:
        return is_constant(self.states[i])

    def rows(self, i: int) -> Dim | None:
        state = self.states[i]
        return state.per_row if isinstance(state, Rows) else None

    def static(self, i: int) -> np.ndarray:
        """The value of a constant input, where the graph holds it."""
        value = tf.get_static_value(self.inputs[i]) if self.constant(i) else None
        if value is None:
            dims = self.sizes(i) if self.constant(i) else None
            if dims is None or any(d is None or d.symbols for d in dims):
                raise Refused("has an argument whose value is not known when the model is traced")
            value = np.array([d.factor for d in dims], np.int64).reshape(self.inputs[i].shape)
        return np.asarray(value)

    def sizes(self, i: int) -> tuple[Dim | None, ...] | None:
        """The entries of an input that is used as a shape; None where their number is not known."""
        state = self.states[i]
        if isinstance(state, Size):
            return state.dims
        entries = _entries(self.inputs[i]) if isinstance(state, Constant) else None
        return entries and tuple(None if e is None else Dim(e) for e in entries)

    def lengths(self, i: int) -> tuple[Dim, ...]:
        """The shape of an input that holds rows; unknown inner lengths get a name."""
        tensor, per_row = self.inputs[i], self.rows(i)
        self.rank(i)
        if per_row is None:
            raise Refused("asks for the shape of what holds no rows")
        inner = (
            Dim(1, 0, (f"{self._scope}{_origin(tensor, axis)}",)) if length is None else Dim(length)
            for axis, length in enumerate(tensor.shape.as_list()[1:], start=1)
        )
        return (per_row.times(ROW_COUNT), *inner)


def _origin(tensor: tf.Tensor, axis: int) -> str:
    """A name for an unknown length, the same for a tensor and its transposed or cast copies."""
    while tensor.op.type in ("Transpose", "Identity", "Cast", "StopGradient"):
        if tensor.op.type == "Transpose":
            order = _entries(tensor.op.inputs[1])
            if not order or order[axis] is None:
                break
            axis = order[axis]
        tensor = tensor.op.inputs[0]
    return f"{tensor.name}[{axis}]"


def _entries(tensor: tf.Tensor, depth: int = 8) -> tuple[int | None, ...] | None:
    """The entries of a constant integer scalar or vector, each None if the graph does not hold it."""
    op, count = tensor.op, tensor.shape.num_elements()
    if tensor.shape.rank not in (0, 1) or count is None or not tensor.dtype.is_integer:
        return None
    value = tf.get_static_value(tensor)
    if value is not None:
        return tuple(int(v) for v in np.reshape(value, -1))
    parts = [_entries(t, depth - 1) for t in op.inputs] if depth else []
    if op.type == "Pack" and parts and all(parts):
        return tuple(entry for part in parts for entry in part)
    if op.type in ("Identity", "Cast", "Reshape", "ExpandDims", "Squeeze") and parts and parts[0]:
        return parts[0]
    if op.type in _ARITHMETIC and len(parts) == 2 and all(p and len(p) == count for p in parts):
        pairs = zip(*parts, strict=True)
        return tuple(None if None in pair else _ARITHMETIC[op.type](*pair) for pair in pairs)
    return (None,) * count


_ARITHMETIC = {"Add": operator.add, "AddV2": operator.add, "Sub": operator.sub}


def product(dims: tuple[Dim | None, ...]) -> Dim:
    """The product of lengths that are all known and not negative."""
    if any(d is None or d.factor < 0 for d in dims):
        raise Refused("multiplies lengths that are not known")
    symbols = tuple(sorted(s for d in dims for s in d.symbols))
    return Dim(math.prod(d.factor for d in dims), sum(d.rows for d in dims), symbols)


def leading(dims: tuple[Dim | None, ...] | None) -> State:
    """The state of a tensor of this shape that is filled with equal or independent entries."""
    if dims is None or any(d is not None and d.rows for d in dims[1:]):
        raise Refused("has the number of rows elsewhere than in its leading length")
    if not dims or dims[0] is None or not dims[0].rows:
        return Constant()
    per_row = dims[0].per_row()
    if per_row is None:
        raise Refused("has a leading length that is not a multiple of the number of rows")
    return Rows(per_row)


def size_state(node: Node) -> State | None:
    """The state of an operation on shapes, or None where it does not keep a shape a shape."""
    rule = _SIZE_RULES.get(node.op.type)
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


def _size_of_reshape(node: Node) -> State | None:
    """Reshape, ExpandDims and Squeeze between a scalar and a vector."""
    rank = node.op.outputs[0].shape.rank
    return Size(node.states[0].dims, rank == 0) if rank in (0, 1) else None


def _size_of_pack(node: Node) -> State | None:
    parts = [node.sizes(i) for i in range(len(node.inputs))]
    if node.attr("axis") != 0 or any(node.rank(i) for i in range(len(parts))):
        return None
    return Size(tuple(part[0] for part in parts), False)


def _size_of_concat(node: Node) -> State | None:
    parts = [node.sizes(i) for i in range(len(node.inputs) - 1)]
    if any(part is None for part in parts):
        return None
    return Size(tuple(d for part in parts for d in part), False)


def _size_of_unpack(node: Node) -> State | None:
    return Size((node.states[0].dims[node.index],), True)


def _size_of_strided_slice(node: Node) -> State | None:
    begin, end, stride = (node.static(i).tolist() for i in (1, 2, 3))
    if len(begin) != 1 or node.attr("ellipsis_mask") or node.attr("new_axis_mask"):
        return None
    dims = node.states[0].dims
    if node.attr("shrink_axis_mask"):
        return Size((dims[begin[0]],), True)
    first = None if node.attr("begin_mask") else begin[0]
    last = None if node.attr("end_mask") else end[0]
    return Size(dims[first : last : stride[0]], False)


def _size_of_slice(node: Node) -> State | None:
    (begin,), (count,) = node.static(1).tolist(), node.static(2).tolist()
    return Size(node.states[0].dims[begin : None if count < 0 else begin + count], False)


def _size_of_gather(node: Node) -> State | None:
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


_SIZE_RULES: dict[str, Callable[[Node], State | None]] = {
    "Identity": _same,
    "StopGradient": _same,
    "PreventGradient": _same,
    "EnsureShape": _same,
    "Cast": _cast,
    "Reshape": _size_of_reshape,
    "ExpandDims": _size_of_reshape,
    "Squeeze": _size_of_reshape,
    "Pack": _size_of_pack,
    "ConcatV2": _size_of_concat,
    "Unpack": _size_of_unpack,
    "StridedSlice": _size_of_strided_slice,
    "Slice": _size_of_slice,
    "GatherV2": _size_of_gather,
    "Gather": _size_of_gather,
    "Prod": _prod,
    "Mul": _mul,
    "FloorDiv": _floor_div,
}


Rule = Callable[[Node], State]
RULES: dict[str, Rule] = {}


def rule(names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return register


def arguments(node: Node, indices: Sequence[int]) -> None:
    """Inputs that have to be constant."""
    for i in indices:
        if isinstance(node.states[i], Size) and not node.constant(i):
            raise Refused("computes with the number of rows")
        if not node.constant(i):
            raise Refused("has an argument that depends on the rows")


def alone(node: Node, data: int = 0, rank: int = 1, shapes: Sequence[int] = ()) -> Rows:
    """One input holds the rows, in a tensor of at least this rank; all the others are constant."""
    arguments(node, [i for i in range(len(node.inputs)) if i != data and i not in shapes])
    per_row = node.rows(data)
    if per_row is None:
        raise Refused("computes with the number of rows")
    if node.rank(data) < rank:
        raise Refused("works along the rows")
    return Rows(per_row)


def together(node: Node, indices: Sequence[int], *, equal_rank: bool = True) -> Rows:
    """Inputs that all hold rows, equally many.

    TensorFlow demands equal leading lengths wherever a rule asks for this, so with two rows or more
    n * T and n * T' can only meet if T = T', even where the proof has two names for the two.
    """
    found = [node.rows(i) for i in indices]
    if not found or None in found:
        raise Refused("joins rows with something that has no rows")
    if len(set(found)) > 1 and not any(per_row.symbols for per_row in found):
        raise Refused("joins rows that do not line up")
    if equal_rank and len({node.rank(i) for i in indices}) > 1:
        raise Refused("joins rows that do not line up")
    return Rows(found[0])


def broadcast(node: Node, indices: Sequence[int]) -> Rows:
    """Inputs that are broadcast against each other: the row axis has to stay the leading one of all."""
    with_rows = [i for i in indices if node.rows(i) is not None]
    constants = [i for i in indices if node.rows(i) is None]
    arguments(node, constants)
    rows = together(node, with_rows)
    rank = node.rank(with_rows[0])
    for i in constants:
        if node.rank(i) > rank:
            raise Refused("shifts the rows to another axis")
        if node.rank(i) == rank and node.inputs[i].shape[0] != 1:
            raise Refused("joins rows with a constant that has a row axis of its own")
    return rows


def axes_of(node: Node, i: int, rank: int) -> set[int]:
    return {int(axis) % rank for axis in node.static(i).reshape(-1)}


def inner_lengths(dims: Iterable[Dim | None]) -> None:
    """Lengths that must not hold the number of rows."""
    if any(d is not None and d.rows for d in dims):
        raise Refused("has the number of rows elsewhere than in its leading length")


# ---------------------------------------------------------------- elementwise

_ELEMENTWISE = """
Abs Neg Sign Square Sqrt Rsqrt Exp Expm1 Log Log1p Sin Cos Tan Sinh Cosh Tanh Asin Acos Atan Asinh Acosh
Atanh Sigmoid Softplus Softsign Erf Erfc Erfinv Ndtri Lgamma Digamma Reciprocal Inv Round Rint Floor Ceil
Relu Relu6 Elu Selu LeakyRelu IsNan IsInf IsFinite LogicalNot Cast Identity StopGradient PreventGradient
CheckNumerics CheckNumericsV2 Snapshot EnsureShape IdentityN ZerosLike OnesLike
Add AddV2 AddN Sub Mul MulNoNan Div RealDiv DivNoNan FloorDiv FloorMod Mod TruncateDiv TruncateMod
Xdivy Xlogy Xlog1py Pow Maximum Minimum SquaredDifference Atan2 Greater GreaterEqual Less LessEqual Equal
NotEqual ApproximateEqual LogicalAnd LogicalOr BitwiseAnd BitwiseOr BitwiseXor
Complex SelectV2 ClipByValue
"""


@rule(_ELEMENTWISE)
def _elementwise(node: Node) -> State:
    if node.op.type == "IdentityN":
        return node.states[0]  # the walk hands over the one input that this output repeats
    return broadcast(node, range(len(node.inputs)))


@rule("Select")
def _select(node: Node) -> State:
    """No broadcasting, but a vector as condition chooses whole slices, and a scalar everything."""
    rows = together(node, (1, 2))
    if node.constant(0) and node.rank(0) == 0:
        return rows
    if node.rank(0) not in (1, node.rank(1)):
        raise Refused("joins rows that do not line up")
    return together(node, (0, 1), equal_rank=False)


@rule("BiasAdd")
def _bias_add(node: Node) -> State:
    return alone(node, rank=2)


# ---------------------------------------------------------------- along inner axes


def _off_the_rows(node: Node, axes: int, does: str) -> State:
    """The state of an operation along the axes that its input number `axes` names."""
    rows = alone(node)
    if 0 in axes_of(node, axes, node.rank(0)):
        raise Refused(f"{does} the rows")
    return rows


@rule("Sum Mean Prod Max Min Any All EuclideanNorm ArgMax ArgMin")
def _reduce(node: Node) -> State:
    return _off_the_rows(node, 1, "reduces over")


@rule("Cumsum Cumprod CumulativeLogsumexp ReverseV2")
def _along(node: Node) -> State:
    return _off_the_rows(node, 1, "runs along")


@rule("Roll")
def _roll(node: Node) -> State:
    return _off_the_rows(node, 2, "runs along")


@rule("ReverseSequence")
def _reverse_sequence(node: Node) -> State:
    if node.attr("batch_dim") != 0 or node.attr("seq_dim") % node.rank(0) == 0:
        raise Refused("runs along the rows")
    return together(node, (0, 1), equal_rank=False)


@rule("Softmax LogSoftmax TopKV2")
def _last_axis(node: Node) -> State:
    return alone(node, rank=2)


@rule("MatrixBandPart")
def _matrices(node: Node) -> State:
    return alone(node, rank=3)


@rule("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_crossentropy(node: Node) -> State:
    if (node.rank(0), node.rank(1)) != (2, 1):
        raise Refused("joins rows that do not line up")
    return together(node, (1, 0), equal_rank=False)


@rule("SoftmaxCrossEntropyWithLogits")
def _crossentropy(node: Node) -> State:
    if (node.rank(0), node.rank(1)) != (2, 2):
        raise Refused("joins rows that do not line up")
    return broadcast(node, (0, 1))


# ---------------------------------------------------------------- products


@rule("MatMul")
def _matmul(node: Node) -> State:
    if node.rows(0) is None or node.attr("transpose_a") or not node.constant(1):
        raise Refused("multiplies or sums over the rows")
    return alone(node, rank=2)


@rule("BatchMatMul BatchMatMulV2 BatchMatMulV3")
def _batch_matmul(node: Node) -> State:
    if max(node.rank(0), node.rank(1)) > 2:
        return broadcast(node, (0, 1))
    if node.rows(0) is None or node.attr("adj_x") or not node.constant(1):
        raise Refused("multiplies or sums over the rows")
    return alone(node, rank=2)


@rule("Einsum")
def _einsum(node: Node) -> State:
    left, right = str(node.attr("equation")).replace(" ", "").split("->")
    terms = [_labels(t, node.rank(i)) for i, t in enumerate(left.split(","))]
    whole = [f"...{j}" for j in range(max(sum(x[:3] == "..." for x in t) for t in terms), 0, -1)]
    head, dots, tail = right.partition("...")
    output = [*head, *(whole if dots else ()), *tail]
    with_rows = [i for i in range(len(terms)) if node.rows(i) is not None]
    rows = together(node, with_rows, equal_rank=False)
    arguments(node, [i for i in range(len(terms)) if i not in with_rows])
    row_label = terms[with_rows[0]][0]
    for i, labels in enumerate(terms):
        if labels.count(row_label) != (i in with_rows) or (
            i in with_rows and labels[0] != row_label
        ):
            raise Refused("does not keep the row axis the leading one")
    if not output or output[0] != row_label or output.count(row_label) != 1:
        raise Refused("does not keep the row axis the leading one")
    return rows


def _labels(term: str, rank: int) -> list[str]:
    """One label an axis; the axes of an ellipsis are numbered from the right, as they broadcast."""
    head, dots, tail = term.partition("...")
    middle = rank - len(head) - len(tail)
    if middle < 0 or (middle and not dots):
        raise Refused("does not fit its equation")
    return [*head, *(f"...{j}" for j in range(middle, 0, -1)), *tail]


def _batch_first(node: Node) -> None:
    """No window, stride, dilation or data format that reaches over the batch axis."""
    if not str(node.attr("data_format") or "N").startswith("N"):
        raise Refused("has its batch axis elsewhere")
    for name in ("ksize", "strides", "dilations"):
        if (node.attr(name) or [1])[0] != 1:
            raise Refused("has a window over the rows")


@rule("Conv2D DepthwiseConv2dNative MaxPool AvgPool LRN DepthToSpace SpaceToDepth")
def _images(node: Node) -> State:
    _batch_first(node)
    return alone(node, rank=4)


@rule("Conv3D MaxPool3D AvgPool3D")
def _volumes(node: Node) -> State:
    _batch_first(node)
    return alone(node, rank=5)


@rule("Conv2DBackpropInput DepthwiseConv2dNativeBackpropInput Conv3DBackpropInputV2")
def _transposed_convolution(node: Node) -> State:
    _batch_first(node)
    rows = alone(node, data=2, rank=5 if "3D" in node.op.type else 4, shapes=(0,))
    sizes = node.sizes(0)
    if not sizes or sizes[0] != node.lengths(2)[0]:
        raise Refused("has another number of rows than it received")
    inner_lengths(sizes[1:])
    return rows


@rule("ResizeBilinear ResizeNearestNeighbor")
def _resize(node: Node) -> State:
    return alone(node, rank=4)


@rule("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3")
def _frozen_batch_norm(node: Node) -> State:
    if node.attr("is_training") or node.index != 0:
        raise Refused("normalises over the rows")
    _batch_first(node)
    return alone(node, rank=4)


# ---------------------------------------------------------------- shapes


@rule("Shape Size Rank ShapeN")
def _shape(node: Node) -> State:
    if node.rows(0) is None:
        return Constant()  # the shape of a shape
    if node.op.type == "Rank":
        return Constant()
    dims = node.lengths(0)
    return Size((product(dims),), True) if node.op.type == "Size" else Size(dims, False)


@rule("Reshape")
def _reshape(node: Node) -> State:
    """A leading length of n * k cuts row-major storage at the ends of rows, if the rest fits.

    That it fits has to be known here: TensorFlow merges a reshape with the next one, and then what
    does not fit is no error any more.
    """
    if node.rows(0) is None:
        raise Refused("shapes a constant by the number of rows")
    target = node.sizes(1)
    if not target:
        raise Refused("has a shape that is not known")
    inner_lengths(target[1:])
    entries = product((node.rows(0), *node.lengths(0)[1:]))
    known = product(tuple(d for d in target[1:] if d != REST))
    per_row = entries.over(known) if target[0] == REST else target[0] and target[0].per_row()
    if per_row is None or per_row.factor < 1:
        raise Refused("does not cut the rows at their ends")
    left = entries.over(known.times(per_row))
    if left is None or (left != ONE and REST not in target[1:]):
        raise Refused("does not cut the rows at their ends")
    return Rows(per_row)


@rule("ExpandDims")
def _expand_dims(node: Node) -> State:
    rows = alone(node)
    if 0 in axes_of(node, 1, node.rank(0) + 1):
        raise Refused("shifts the rows to another axis")
    return rows


@rule("Squeeze")
def _squeeze(node: Node) -> State:
    rows, axes = alone(node), node.attr("squeeze_dims")
    if not axes or 0 in {axis % node.rank(0) for axis in axes}:
        raise Refused("may drop the row axis")
    return rows


@rule("Transpose ConjugateTranspose")
def _transpose(node: Node) -> State:
    rows = alone(node)
    if node.static(1)[0] != 0:
        raise Refused("shifts the rows to another axis")
    return rows


@rule("ConcatV2")
def _concat(node: Node) -> State:
    last = len(node.inputs) - 1
    rows = together(node, range(last))
    if 0 in axes_of(node, last, node.rank(0)):
        raise Refused("joins tensors along the rows")
    return rows


@rule("Pack")
def _pack(node: Node) -> State:
    rows = together(node, range(len(node.inputs)))
    if node.attr("axis") % (node.rank(0) + 1) == 0:
        raise Refused("shifts the rows to another axis")
    return rows


@rule("Unpack")
def _unpack(node: Node) -> State:
    rows = alone(node)
    if node.attr("axis") % node.rank(0) == 0:
        raise Refused("takes single rows")
    return rows


@rule("Split SplitV")
def _split(node: Node) -> State:
    data, axis = (1, 0) if node.op.type == "Split" else (0, 2)
    rows = alone(node, data=data)
    if 0 in axes_of(node, axis, node.rank(data)):
        raise Refused("takes single rows")
    return rows


@rule("Slice")
def _slice(node: Node) -> State:
    rows = alone(node, shapes=(2,))
    counts = node.sizes(2)
    if not counts or counts[0] not in (REST, node.lengths(0)[0]) or node.static(1)[0] != 0:
        raise Refused("takes some of the rows")
    inner_lengths(counts[1:])
    return rows


@rule("StridedSlice")
def _strided_slice(node: Node) -> State:
    """The first entry has to take axis 0 whole, forwards; inner entries may be any constants."""
    rows = alone(node, shapes=(2,))
    ends = node.sizes(2)
    if ends is None:
        raise Refused("has an argument whose value is not known when the model is traced")
    bit = {
        n: (node.attr(f"{n}_mask") or 0)
        for n in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    if bit["ellipsis"] & 1:
        added = sum(bit["new_axis"] >> j & 1 for j in range(len(ends)))
        if len(ends) - 1 - added >= node.rank(0):
            raise Refused("takes some of the rows")  # the ellipsis stands for no axis at all
        inner_lengths(ends)
        return rows
    if not ends:
        return rows
    if bit["new_axis"] & 1:
        raise Refused("shifts the rows to another axis")
    from_start = bit["begin"] & 1 or node.static(1)[0] == 0
    to_end = bit["end"] & 1 or ends[0] == node.lengths(0)[0]
    if bit["shrink_axis"] & 1 or not from_start or not to_end or node.static(3)[0] != 1:
        raise Refused("takes some of the rows")
    inner_lengths(ends[1:])
    return rows


@rule("Pad PadV2 MirrorPad")
def _pad(node: Node) -> State:
    rows = alone(node)
    if node.static(1)[0].any():
        raise Refused("adds rows")
    return rows


# ---------------------------------------------------------------- repeated and filled


@rule("Tile")
def _tile(node: Node) -> State:
    times = node.sizes(1)
    if not times or node.rank(0) != len(times):
        raise Refused("has a shape that is not known")
    if node.rows(0) is None:
        if node.inputs[0].shape[0] != 1:
            raise Refused("lays a constant over the rows")
        return leading(times)
    inner_lengths(times[1:])
    if times[0] != ONE:
        raise Refused("repeats the rows")
    return Rows(node.rows(0))


@rule("BroadcastTo")
def _broadcast_to(node: Node) -> State:
    target = node.sizes(1)
    if target is None or len(target) < node.rank(0):
        raise Refused("has a shape that is not known")
    if node.rows(0) is None:
        if len(target) == node.rank(0) and node.inputs[0].shape[0] != 1:
            raise Refused("lays a constant over the rows")
        return leading(target)
    inner_lengths(target[1:])
    if len(target) != node.rank(0) or target[0] != node.lengths(0)[0]:
        raise Refused("shifts the rows to another axis")
    return Rows(node.rows(0))


@rule("Fill")
def _fill(node: Node) -> State:
    arguments(node, (1,))
    return leading(node.sizes(0))


@rule("RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt")
def _random(node: Node) -> State:
    arguments(node, range(1, len(node.inputs)))
    return leading(node.sizes(0))


@rule("""StatelessRandomUniform StatelessRandomNormal StatelessTruncatedNormal StatelessRandomUniformInt
StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessTruncatedNormalV2 StatelessRandomUniformIntV2
StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2""")
def _stateless_random(node: Node) -> State:
    """With a seed that never changes, a draw depends on the position of its row."""
    if not node.fresh(1):
        raise Refused("draws by position from a seed that stays the same")
    return _random(node)


# ---------------------------------------------------------------- looking up


@rule("GatherV2 Gather")
def _gather(node: Node) -> State:
    axis = int(node.static(2)) % node.rank(0) if len(node.inputs) > 2 else 0
    batch_dims = node.attr("batch_dims") or 0
    if node.rows(0) is None:
        arguments(node, (0,))
        if batch_dims or axis:
            raise Refused("does not keep the row axis the leading one")
        return alone(node, data=1)
    if node.rows(1) is None:
        arguments(node, (1,))
        if batch_dims or axis == 0:
            raise Refused("picks rows")
        return Rows(node.rows(0))
    if batch_dims < 1 or axis < batch_dims:
        raise Refused("picks rows")
    return together(node, (0, 1), equal_rank=False)


@rule("ResourceGather")
def _resource_gather(node: Node) -> State:
    if node.attr("batch_dims"):
        raise Refused("does not keep the row axis the leading one")
    return alone(node, data=1)


@rule("GatherNd ResourceGatherNd")
def _gather_nd(node: Node) -> State:
    return alone(node, data=1, rank=2)


@rule("OneHot")
def _one_hot(node: Node) -> State:
    rows, axis = alone(node), node.attr("axis")
    if axis != -1 and axis % (node.rank(0) + 1) == 0:
        raise Refused("shifts the rows to another axis")
    return rows
