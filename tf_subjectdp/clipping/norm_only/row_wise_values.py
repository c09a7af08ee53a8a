# SPDX-License-Identifier: Apache-2.0
"""What the row-wise proof knows of one tensor, and what it knows of shapes that hold the row count.

The number of rows, n, may decide how long a tensor is; it must never become a number that is
computed with, for a sum divided by n changes every row when one row leaves. So shapes have a state
of their own. Knows no operation (see `row_wise_ops`) and no graph (see `row_wise`).
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
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
