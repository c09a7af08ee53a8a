# SPDX-License-Identifier: Apache-2.0
"""Proof that a traced computation treats every row of a batch alone.

The norm-only engine runs the model once over the whole batch and reads the norm of item i's gradient
from row i. That is item i's gradient only if row i of every tensor depends on row i of the batch
alone; else one person's record has a part in what is clipped as another's, and the guarantee is gone.
So the computation is walked backwards from its outputs, every tensor gets one of the states of
`row_wise_rules` by the rules there, and what no rule proves is refused.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_subjectdp.clipping.norm_only.row_wise_rules import (
    ONE,
    RULES,
    Constant,
    Mixed,
    Node,
    Refused,
    Rows,
    Size,
    State,
    is_constant,
    size_state,
)

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


# Stateful, and yet nothing of the batch can come out of their state: a handle, and fresh draws.
_HARMLESS = frozenset(
    {
        "VarHandleOp",
        "RngReadAndSkip",
        "RandomUniform",
        "RandomUniformInt",
        "RandomStandardNormal",
        "TruncatedNormal",
    }
)
# Outputs that repeat, or only measure, the input of the same index.
_BY_INDEX = frozenset({"IdentityN", "ShapeN"})
_DEEPEST_CALL = 16


class Proof:
    """What can be proven of the tensors of one graph, which may still grow.

    Args:
      rows: the batch, [n, ...] each, n unknown when traced; any dtype.
    """

    def __init__(self, rows: Sequence[tf.Tensor]):
        self._rows = {t.name for t in rows}
        self._declared: dict[str, list[tf.Tensor]] = {}
        given: dict[str, State] = {name: Rows() for name in self._rows}
        self._walk = _Walk(rows[0].graph, given, self._declared)

    def declare(self, received: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> None:
        """If each tensor received is row-wise or constant, so is each output; not to be looked behind."""
        self._declared.update({t.name: list(received) for t in outputs if t.name not in self._rows})

    @tf.autograph.experimental.do_not_convert
    def state_of(self, tensor: tf.Tensor) -> State:
        """What is proven of a tensor."""
        return self._walk.state_of(tensor)

    @tf.autograph.experimental.do_not_convert
    def why_not(self, tensors: Sequence[tf.Tensor]) -> str:
        """Says why row i of the tensors may depend on more than row i of the batch; "" if it cannot.

        A yes is a proof, with these premises: all of `rows` have equally many rows, everything that
        comes from the batch is in `rows` (another placeholder counts as a constant), what was declared
        is true, and a random generator gives independent draws. A no may only mean that no rule knows
        the case.

        Args:
          tensors: symbolic tensors of the function that `rows` are of.

        Returns:
          "" if each is proven to have the rows as its leading axis, slice i of it depending on row i
          alone (and on constants and random draws); else a phrase that names an operation and what it
          does.
        """
        for tensor in tensors:
            reason = _why_not_rows(tensor, self.state_of(tensor))
            if reason:
                return reason
        return ""


def _why_not_rows(tensor: tf.Tensor, state: State) -> str:
    name = f"{tensor.op.type} {tensor.op.name!r}"
    if isinstance(state, Mixed):
        return state.reason
    if isinstance(state, Rows):
        return "" if state.per_row == ONE else f"{name} has several entries for each row"
    if is_constant(state):
        return f"{name} does not depend on the rows"
    return f"{name} is made of the number of rows"


class _Walk:
    """The states of the tensors of one graph: the traced one, or the body of a function it calls."""

    def __init__(
        self,
        graph: tf.Graph,
        given: Mapping[str, State],
        declared: Mapping[str, list[tf.Tensor]] | None = None,
        caller: "tuple[_Walk, tf.Operation] | None" = None,
    ):
        self._graph = graph
        self._declared = {} if declared is None else declared
        self._caller = caller
        self._depth: int = caller[0]._depth + 1 if caller else 0
        self._scope: str = f"{caller[0]._scope}{caller[1].name}/" if caller else ""
        self._states: dict[str, State] = {}
        self._given = given
        self._open: set[str] = set()
        self._bodies: dict[str, _Walk | str] = {}
        self._places: dict[str, int] = {}

    def state_of(self, output: tf.Tensor) -> State:
        """The state of a tensor, from those that it depends on; a loop over a stack, not recursion."""
        stack = [output]
        while stack:
            tensor = stack[-1]
            if tensor.name in self._states:
                stack.pop()
                continue
            needs = self._needs(tensor)
            missing = [t for t in needs if t.name not in self._states]
            if missing and tensor.name not in self._open:
                self._open.add(tensor.name)
                stack.extend(missing)
                continue
            if missing:
                state = _mixed(tensor.op, "depends on itself")
            else:
                state = self._checked(tensor, self._find(tensor, needs))
            self._states[tensor.name] = state
            stack.pop()
        return self._states[output.name]

    # ------------------------------------------------------------ one tensor

    def _needs(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        op = tensor.op
        if tensor.name in self._given:
            return []
        if tensor.name in self._declared:
            return self._declared[tensor.name]
        if op.type in _BY_INDEX:
            return [op.inputs[tensor.value_index]]
        if op.type == "RngReadAndSkip":
            return list(op.inputs)[:2]  # how many are drawn moves only the place of the next draws
        if op.type in READS:
            return [*op.inputs, *self._writes(op.inputs[0], op)[0]]
        return list(op.inputs)

    def _find(self, tensor: tf.Tensor, needs: Sequence[tf.Tensor]) -> State:
        op = tensor.op
        states = [self._states[t.name] for t in needs]
        if tensor.name in self._given:
            return self._given[tensor.name]
        if op.type in CALLS and tensor.name not in self._declared:
            return self._called(tensor, states)
        for state in states:
            if isinstance(state, Mixed):
                return state
        if tensor.name in self._declared:
            return _declared_state(op, states)
        if op.type in READS:
            inputs = list(op.inputs)
            if not all(is_constant(s) for s in states[len(inputs) :]):
                return _mixed(op, "reads a variable that was assigned something of the batch")
            if self._unknown_write(op.inputs[0], op):
                return _mixed(
                    op, "reads a variable that may have been assigned something of the batch"
                )
            needs, states = inputs, states[: len(inputs)]
        try:
            return self._by_rule(Node(tensor, needs, states, self._scope, self._fresh))
        except Refused as why:
            return _mixed(op, str(why))

    def _by_rule(self, node: Node) -> State:
        constant = all(node.constant(i) for i in range(len(node.inputs)))
        try:
            size = size_state(node)
        except Refused:
            size = None  # not a shape any more; a number then
        if size is not None:
            return size
        if constant:
            if node.op.op_def.is_stateful and node.op.type not in READS | _HARMLESS:
                raise Refused("has a state that cannot be looked into")
            return Constant()
        if node.op.type == "RngReadAndSkip":
            return (
                Constant()
            )  # the place of the draws; their number moves only the next run's place
        if "_gradient_op_type" in node.op.node_def.attr:
            # Its backward pass may be anything, and only the forward pass is walked through.
            raise Refused("has a gradient of its own")
        if node.op.type in RULES:
            return RULES[node.op.type](node)
        if node.op.type in BRANCHES:
            raise Refused("cannot be looked into")
        if any(isinstance(s, Rows) for s in node.states):
            raise Refused("is not known to keep the rows apart")
        raise Refused("computes with the number of rows")

    def _checked(self, tensor: tf.Tensor, state: State) -> State:
        """Rows need a leading axis whose length is open: a fixed one would fit a constant by chance."""
        if not isinstance(state, Rows):
            return state
        if tensor.shape.rank is None:
            return _mixed(tensor.op, "has a shape of unknown rank")
        if tensor.shape.rank == 0 or tensor.shape[0] is not None:
            return _mixed(tensor.op, f"has a fixed number of rows (its shape is {tensor.shape})")
        return state

    # ------------------------------------------------------------ called functions

    def _called(self, tensor: tf.Tensor, states: Sequence[State]) -> State:
        """The state of an output of a call: that of the body's output, the arguments' states given."""
        op = tensor.op
        if op.name not in self._bodies:
            self._bodies[op.name] = self._body(op, states)
        body = self._bodies[op.name]
        if isinstance(body, str):
            return _mixed(op, body)
        return body.state_of(body._graph.outputs[tensor.value_index])

    def _body(self, op: tf.Operation, states: Sequence[State]) -> "_Walk | str":
        graph = function_body(self._graph, op.get_attr("f").name)
        if graph is None or self._depth >= _DEEPEST_CALL:
            return "cannot be looked into"
        if len(graph.inputs) != len(states) or len(graph.outputs) != len(op.outputs):
            return "has another signature than the function it calls"
        given = {t.name: state for t, state in zip(graph.inputs, states, strict=True)}
        return _Walk(graph, given, caller=(self, op))

    def _argument(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """What the caller passed for a tensor of this body, or None for any other tensor."""
        if self._caller is not None:
            for place, placeholder in enumerate(self._graph.inputs):
                if placeholder is tensor or placeholder.name == tensor.name:
                    return self._caller[1].inputs[place]
        return None

    # ------------------------------------------------------------ variables and generators

    def _writes(self, handle: tf.Tensor, reader: tf.Operation) -> tuple[list[tf.Tensor], bool]:
        """What a variable was assigned before an operation runs, and whether that may not be all.

        TensorFlow runs the reads and writes of a variable in the order in which they were traced.
        """
        values = []
        for user in handle.consumers():
            if self._place(user) >= self._place(reader) or user.type in LOOKS:
                continue
            if user.type in ASSIGNS:
                values.append(user.inputs[1])
            elif not (user.type in CALLS | BRANCHES and only_reads(self._graph, user)):
                return [], True
        return values, False

    def _place(self, op: tf.Operation) -> int:
        if op.name not in self._places:
            operations = self._graph.get_operations()
            self._places = {each.name: place for place, each in enumerate(operations)}
        return self._places[op.name]

    def _unknown_write(self, handle: tf.Tensor, reader: tf.Operation) -> bool:
        """Whether a write that the states of this graph do not show may have come before."""
        # Any other way to a handle could be a second one to the same variable.
        if handle.op.type != "Placeholder" or self._writes(handle, reader)[1]:
            return True
        outer = self._argument(handle)
        if outer is None:
            return False
        if [t.name for t in self._caller[1].inputs].count(outer.name) > 1:
            return True
        walk, call = self._caller
        values, unknown = walk._writes(outer, call)
        if unknown or not all(is_constant(walk.state_of(value)) for value in values):
            return True
        return walk._unknown_write(outer, call)

    def _fresh(self, seed: tf.Tensor) -> bool:
        """Whether a seed comes from a state that the computation itself moves on."""
        stack, seen = [seed], set()
        while stack:
            tensor = stack.pop()
            if tensor.name in seen:
                continue
            seen.add(tensor.name)
            if tensor.op.type == "RngReadAndSkip":
                # A state that is set back to a number gives the same draws again.
                users = tensor.op.inputs[0].consumers()
                return not any(user.type in ASSIGNS for user in users)
            if tensor.op.type == "ReadVariableOp":
                if any(moves_on(user) for user in tensor.op.inputs[0].consumers()):
                    return True
            outer = self._argument(tensor)
            if outer is not None and self._caller[0]._fresh(outer):
                return True
            stack.extend(tensor.op.inputs)
        return False


def _mixed(op: tf.Operation, why: str) -> Mixed:
    return Mixed(f"{op.type} {op.name!r} {why}")


def _declared_state(op: tf.Operation, states: Sequence[State]) -> State:
    if all(is_constant(s) for s in states):
        return Constant()
    if all(is_constant(s) or s == Rows() for s in states):
        return Rows()
    if any(isinstance(s, Size) and not is_constant(s) for s in states):
        return _mixed(op, "is of a layer that receives the number of rows")
    return _mixed(op, "is of a layer that receives several entries for each row")
