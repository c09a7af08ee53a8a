# SPDX-License-Identifier: Apache-2.0
"""Gradients of weights that every row uses alike: position tables, learned scales, class tokens.

Such a weight goes through operations that know nothing of the rows, to a constant c, and then meets
them where c is broadcast: c added to the tokens, multiplied with them, tiled to the batch. The gradient
of row i's loss at what is broadcast is row i of the gradient at the whole, and from there it goes back
to the weight by the operations' own gradients, for all rows by `tf.vectorized_map`. No layer needs a
rule for it; which operations c meets rows in is read off the traced graph, and a product (`MatMul`) is
none of them: what it is worth to keep of it, the layer's rule has to say.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_subjectdp.clipping.norm_only.row_wise import LOOKS, Proof
from tf_subjectdp.clipping.norm_only.row_wise_rules import Mixed, Rows, is_constant

# Every entry of the output is made of one entry of each input, which are broadcast against each other.
_ELEMENTWISE = frozenset(
    {
        *(
            "Add",
            "AddV2",
            "Sub",
            "Mul",
            "MulNoNan",
            "Div",
            "RealDiv",
            "DivNoNan",
            "SquaredDifference",
        ),
        *("Maximum", "Minimum", "Pow", "SelectV2"),
    }
)
# The output repeats one input, of this index.
_REPEATS = {"Tile": 0, "BroadcastTo": 0, "Fill": 1}


class NotAlike(Exception):
    """Raised where a weight is not known to be used by every row alike; says why."""


def gradients_of_rows(
    tape: tf.GradientTape,
    target: tf.Tensor,
    variables: Sequence[tf.Variable],
    proof: Proof,
    traced: int,
) -> list[tf.Tensor]:
    """Every row's gradient of weights that all rows use alike.

    Args:
      tape: a persistent tape that watched the weights.
      target: the sum of the rows' losses, each proven to be of its row alone (by the caller).
      variables: the weights.
      proof: what is proven of the graph's tensors.
      traced: the number of the graph's operations that are the forward pass.

    Returns:
      float32 [n, *shape], one a weight.

    Raises:
      NotAlike: a weight meets the rows in another way.
    """
    graph = target.graph
    forward = {op.name for op in graph.get_operations()[:traced]}
    meetings = _meetings([graph.capture(v.handle) for v in variables], forward, proof)
    gradients = tape.gradient(target, [tensor for tensor, _ in meetings])
    total: list[tf.Tensor | None] = [None] * len(variables)
    for (tensor, at), gradient in zip(meetings, gradients, strict=True):
        if gradient is None:
            continue
        state, gradient = proof.state_of(tensor), tf.convert_to_tensor(gradient)
        if isinstance(state, Mixed):
            raise NotAlike(state.reason)
        if not isinstance(state, Rows) or state.per_row.symbols:
            raise NotAlike(f"{tensor.op.type} {tensor.op.name!r} has several entries for each row")
        given = (tape, tensor, at, gradient, state.per_row.factor, variables)
        for place, found in _gradients(*given).items():
            total[place] = found if total[place] is None else total[place] + found
    if any(found is None for found in total):
        raise NotAlike("it is used in a way that the graph does not show")
    return total


def _meetings(
    handles: Sequence[tf.Tensor], forward: set[str], proof: Proof
) -> list[tuple[tf.Tensor, int]]:
    """Where the weights' constants meet the rows: outputs, and the place of the constant input."""
    found, seen = {}, set()
    stack = list(handles)
    while stack:
        tensor = stack.pop()
        for op in tensor.consumers():
            if op.name not in forward:
                continue
            if tensor.dtype == tf.resource and op.type not in LOOKS:
                raise NotAlike(f"{op.type} {op.name!r} uses it")
            for output in op.outputs:
                if not output.dtype.is_floating:
                    continue
                if not is_constant(proof.state_of(output)):
                    places = [at for at, given in enumerate(op.inputs) if given is tensor]
                    found.update({(output.name, at): (output, at) for at in places})
                elif output.name not in seen:
                    seen.add(output.name)
                    stack.append(output)
    return list(found.values())


def _gradients(
    tape: tf.GradientTape,
    output: tf.Tensor,
    at: int,
    gradient: tf.Tensor,
    entries: int,
    variables: Sequence[tf.Variable],
) -> dict[int, tf.Tensor]:
    """What one meeting adds to every row's gradient of some of the weights, by their place.

    `entries`: how many entries of the output's leading axis belong to a row.
    """
    op, constant = output.op, output.op.inputs[at]
    row = tf.concat([[entries], tf.shape(output)[1:]], 0)
    if op.type in _ELEMENTWISE:
        gradient = _at_each_entry(output, at, gradient)
    elif op.type == "BiasAdd" and op.get_attr("data_format") == b"NHWC":
        pass
    elif _REPEATS.get(op.type) != at:
        raise NotAlike(f"{op.type} {op.name!r} meets it with the rows")
    with tf.GradientTape() as of_one:
        of_one.watch(constant)
        if op.type == "Tile":
            one = tf.tile(constant, tf.concat([[entries], op.inputs[1][1:]], 0))
        else:
            one = tf.broadcast_to(constant, row)
    connected: list[int] = []

    def of_row(gradient: tf.Tensor) -> list[tf.Tensor]:
        back = of_one.gradient(one, constant, output_gradients=gradient)
        found = tape.gradient(constant, variables, output_gradients=back)
        connected[:] = [place for place, each in enumerate(found) if each is not None]
        return [tf.reshape(tf.convert_to_tensor(found[k]), variables[k].shape) for k in connected]

    try:
        gradient = tf.reshape(gradient, tf.concat([[-1], row], 0))
        found = tf.vectorized_map(of_row, gradient, fallback_to_while_loop=False)
    # The conversion raises whatever it trips over.
    except Exception as error:
        raise NotAlike(
            f"{type(error).__name__} in the gradients of {constant.op.name!r}"
        ) from error
    return dict(zip(connected, found, strict=True))


def _at_each_entry(output: tf.Tensor, at: int, gradient: tf.Tensor) -> tf.Tensor:
    """The gradient at an input, had it been broadcast to the output's shape before: [n, ...]."""
    op = output.op
    names = [argument.name for argument in op.op_def.input_arg]
    whole = tf.broadcast_to(op.inputs[at], tf.shape(output))
    with tf.GradientTape() as tape:
        tape.watch(whole)
        given = [whole if place == at else each for place, each in enumerate(op.inputs)]
        again = getattr(tf.raw_ops, op.type)(**dict(zip(names, given, strict=True)))
    return tape.gradient(again, whole, output_gradients=gradient)
