# SPDX-License-Identifier: Apache-2.0
"""Operations on values: the conditions under which rows that come in apart go out apart.

Everything here treats the slices of axis 0 alone, so it keeps `Rows(k)` for any k.
"""

from tf_subjectdp.clipping.norm_only.row_wise_conditions import (
    alone,
    arguments,
    axes_of,
    broadcast,
    inner_lengths,
    rule,
    together,
)
from tf_subjectdp.clipping.norm_only.row_wise_values import (
    Node,
    Refused,
    State,
)

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
