# SPDX-License-Identifier: Apache-2.0
"""The conditions that the rules of the row-wise proof are made of, and the register of the rules.

A rule gets a `Node` with at least one input that is not constant and none that is mixed, and returns
the state of the output or raises `Refused`. A rule that forgets a condition is a privacy hole, an
operation without a rule only costs speed: so a rule is there only where ordinary models need it.
"""

from collections.abc import Callable, Iterable, Sequence

from tf_subjectdp.clipping.norm_only.row_wise_values import Dim, Node, Refused, Rows, Size, State

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
