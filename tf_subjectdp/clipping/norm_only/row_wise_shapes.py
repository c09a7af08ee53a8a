# SPDX-License-Identifier: Apache-2.0
"""Operations that shape, repeat, fill, draw and look up: the conditions that keep rows apart.

Reshapes are the only ones that change how many entries a row has on the leading axis.
"""

from tf_subjectdp.clipping.norm_only.row_wise_conditions import (
    alone,
    arguments,
    axes_of,
    inner_lengths,
    rule,
    together,
)
from tf_subjectdp.clipping.norm_only.row_wise_values import (
    ONE,
    REST,
    Constant,
    Node,
    Refused,
    Rows,
    Size,
    State,
    leading,
    product,
)

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
