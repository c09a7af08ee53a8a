# SPDX-License-Identifier: Apache-2.0
"""What a layer's rule calls instead of the plain operation, so that norms can be taken afterwards.

A rule is the layer's forward pass written with a `Record`: every method computes what its TensorFlow
counterpart would, and notes what the weight received. The weight's value is cut off from
differentiation; any gradient that still reaches a weight therefore comes from a use that no rule
knows, which is how such uses are found.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_subjectdp.clipping.norm_only import convolution
from tf_subjectdp.clipping.norm_only.products import product
from tf_subjectdp.clipping.norm_only.row_wise import Proof
from tf_subjectdp.clipping.norm_only.row_wise_rules import is_constant
from tf_subjectdp.clipping.norm_only.uses import ItemGradients, Lookups, Use, one_use
from tf_subjectdp.clipping.variables import raw


class NoRule(Exception):
    """Raised by a rule for a configuration of its layer that it does not cover."""


class _Note(NamedTuple):
    """A weight's use: what is differentiated, and how its gradient becomes a `Use`."""

    variable: int
    watched: tf.Tensor
    use: Callable[[tf.Tensor], Use]


def identity_of(variable: Any) -> int:
    """What tells variables apart, whatever wraps them (mixed precision, Keras 3)."""
    variable = raw(variable)
    if not hasattr(variable, "handle"):
        raise NoRule("its rule must hand the layer's own weights to the record, not values of them")
    return id(variable.handle)


class Record:
    """The uses of the weights in one traced forward pass.

    Args:
      tape: a tape that watches nothing by itself.
      variables: the weights that are trained; others pass through without a note.
      rows: the batch, tensors [n, ...] of the graph that is traced.
      whole: whether everything is made in one go, without loops over parts, as a compiled program
        needs it.
    """

    def __init__(
        self,
        tape: tf.GradientTape,
        variables: Sequence[tf.Variable],
        rows: Sequence[tf.Tensor],
        *,
        whole: bool = False,
    ):
        self._whole = whole
        self._tape = tape
        self._graph = tf.compat.v1.get_default_graph()
        self._trained = {identity_of(v): v.shape for v in variables}
        self._notes: list[_Note] = []
        self._of_products: dict[str, Any] = {"grams": {}, "whole": whole}
        self.received: list[tf.Tensor] = []
        self._rules: list[tuple[int, int, str]] = []
        self.proof = Proof(rows)

    # -- for the engine -----------------------------------------------------------------------------

    @property
    def watched(self) -> list[tf.Tensor]:
        """The tensors whose gradients `uses` needs."""
        return [note.watched for note in self._notes]

    def uses(
        self, gradients: Sequence[tf.Tensor | None], alike: dict[int, tf.Tensor]
    ) -> dict[int, Use]:
        """One `Use` a variable (keys: `identity_of`), from the gradients of the loss at `watched`, and
        every row's gradients of the weights that no rule notes and all rows use `alike`."""
        found: dict[int, list[Use]] = {
            key: [ItemGradients(each, each.shape[1:])] for key, each in alike.items()
        }
        for note, gradient in zip(self._notes, gradients, strict=True):
            if gradient is not None:
                found.setdefault(note.variable, []).append(note.use(gradient))
        return {variable: one_use(uses) for variable, uses in found.items()}

    def is_here(self) -> bool:
        """Whether operations go into the graph that is recorded."""
        if tf.executing_eagerly():
            return False
        return tf.compat.v1.get_default_graph() is self._graph

    def is_constant(self, tensors: Sequence[Any]) -> bool:
        """Whether tensors, of which there are some, are the same for every row."""
        given = [t for t in tf.nest.flatten(tensors) if isinstance(t, tf.Tensor)]
        known = (not tf.is_symbolic_tensor(t) or is_constant(self.proof.state_of(t)) for t in given)
        return bool(given) and all(known)

    def begin(self) -> int:
        """The number of operations before a layer's rule."""
        return len(self._graph.get_operations())

    def end(self, began: int, layer: str) -> None:
        """Notes which operations a layer's rule made."""
        self._rules.append((began, len(self._graph.get_operations()), layer))

    def leak(self) -> str:
        """Why a weight's value inside a rule was used outside, as a gradient within the model does.

        The value is cut off from differentiation there, so such a use would be lost without a trace.
        What the layer computed of the rows may be used anywhere: Keras's losses look for the logits
        behind a softmax. To be asked before the engine's own backward pass.
        """
        operations = self._graph.get_operations()
        owner = {}
        for number, (began, ended, _) in enumerate(self._rules):
            for operation in operations[began:ended]:
                if operation.type == "ReadVariableOp" or _made_of(operation, owner, number):
                    owner[operation.name] = number
        inside = [range(began, ended) for began, ended, _ in self._rules]
        for place, operation in enumerate(operations):
            for tensor in operation.inputs:
                number = owner.get(tensor.op.name)
                if number is not None and place not in inside[number]:
                    layer = self._rules[number][2]
                    return f"{operation.type} {operation.name!r} looks inside {layer}"
        return ""

    # -- for rules ----------------------------------------------------------------------------------

    def value(self, variable: Any, dtype: tf.DType | None = None) -> tf.Tensor:
        """The weight's value, cut off from differentiation, in the type of the computation."""
        value = tf.stop_gradient(tf.convert_to_tensor(variable))
        return value if dtype is None else tf.cast(value, dtype)

    def watch(self, tensor: tf.Tensor) -> None:
        """Has a tensor differentiated that `note` names later; before anything is computed of it."""
        self._tape.watch(tensor)

    def note(
        self,
        variable: Any,
        received: Sequence[tf.Tensor],
        watched: tf.Tensor,
        use: Callable[[tf.Tensor], Use],
    ) -> None:
        """Notes a use of a weight's `value`.

        Args:
          variable: the weight; one that is not trained is passed over.
          received: tensors [n, ...] that the weight met, one entry a row; the engine proves it.
          watched: where the loss is differentiated; nothing may have been computed of it, unless
            `watch` was called.
          use: makes the `Use` from the gradient at `watched`.
        """
        if not self.is_here():
            raise NoRule("it runs inside a loop, a condition or a function of its own")
        key = identity_of(variable)
        if key in self._trained:
            self._tape.watch(watched)
            self._notes.append(_Note(key, watched, use))
            self.received.extend(received)

    def _noted(self, variable, inputs, output, use) -> tf.Tensor:
        """The common case: the output of one tensor, row by row."""
        self.declare([inputs], [output])
        self.note(variable, [inputs], output, use)
        return output

    def declare(self, received: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> None:
        """States that row i of each output depends on row i of the received tensors alone.

        Both have one entry a row, [n, ...]. The engine does not look behind a declared output.
        """
        if not self.is_here():
            raise NoRule("it runs inside a loop, a condition or a function of its own")
        self.proof.declare(received, outputs)

    def matmul(self, inputs: tf.Tensor, kernel: Any, *, transpose: bool = False) -> tf.Tensor:
        """inputs [n, ..., i] times kernel [i, o] (or [o, i] with `transpose`) -> [n, ..., o]."""
        value = self.value(kernel, inputs.dtype)
        output = tf.linalg.matmul(_flat(inputs), value, transpose_b=transpose)
        output = _unflat(output, inputs)
        shape = kernel.shape
        return self._noted(
            kernel,
            inputs,
            output,
            lambda d: product(inputs, d, shape, swapped=transpose, **self._of_products),
        )

    def product(
        self,
        kernel: Any,
        received: tf.Tensor,
        watched: tf.Tensor,
        gradient: Callable[[tf.Tensor], tf.Tensor] = lambda d: d,
    ) -> None:
        """Notes that the rule itself multiplied `received` [n, ..., i] by a kernel of i x o weights.

        `gradient` turns the gradient at `watched` into [n, ..., o], aligned with `received`.
        """
        shape = kernel.shape
        self.note(
            kernel,
            [received],
            watched,
            lambda d: product(received, gradient(d), shape, **self._of_products),
        )

    def bias(self, inputs: tf.Tensor, bias: Any) -> tf.Tensor:
        """inputs [n, ...] plus a bias that is broadcast to a row."""
        output = inputs + self.value(bias, inputs.dtype)
        shape = bias.shape
        return self._noted(bias, inputs, output, lambda d: ItemGradients(_reduced(d, shape), shape))

    def scale(self, inputs: tf.Tensor, factor: Any) -> tf.Tensor:
        """inputs [n, ...] times a factor that is broadcast to a row."""
        output = inputs * self.value(factor, inputs.dtype)
        shape = factor.shape

        def use(d):
            terms = tf.cast(d, tf.float32) * tf.cast(inputs, tf.float32)
            return ItemGradients(_reduced(terms, shape), shape)

        return self._noted(factor, inputs, output, use)

    def lookup(self, ids: tf.Tensor, table: Any, dtype: tf.DType | None = None) -> tf.Tensor:
        """Entries [n, ..., d] of a table [v, d]; ids are integers [n, ...]."""
        found = tf.gather(tf.stop_gradient(tf.convert_to_tensor(table)), ids)
        output = found if dtype is None else tf.cast(found, dtype)
        shape = table.shape
        return self._noted(table, ids, output, lambda d: Lookups(ids, d, shape))

    def convolution(
        self,
        inputs: tf.Tensor,
        kernel: Any,
        *,
        strides: tuple[int, ...],
        padding: str,
        dilations: tuple[int, ...],
    ) -> tf.Tensor:
        """`tf.nn.convolution` of images [n, h, w, c] with a kernel [kh, kw, c / groups, o] or, for
        images of height 1, [kw, c / groups, o]; of volumes alike; NoRule if their size is unknown."""
        value = self.value(kernel, inputs.dtype)
        value = value[tf.newaxis] if value.shape.rank == 3 else value
        options = {"strides": strides, "padding": padding, "dilations": dilations}
        window, shape = _window(inputs, value.shape, options), kernel.shape
        groups = int(inputs.shape[-1]) // int(shape[-2])
        # Not `tf.nn.conv2d`: CPUs may lack the gradients of one with dilation or with groups.
        parts = zip(tf.split(inputs, groups, -1), tf.split(value, groups, -1), strict=True)
        output = tf.concat([tf.nn.convolution(x, w, **options) for x, w in parts], -1)
        if groups > 1 or inputs.shape.rank == 5:
            return self._noted(
                kernel,
                inputs,
                output,
                lambda d: convolution.use_of_patches(
                    inputs, d, shape, window, groups, whole=self._whole
                ),
            )
        return self._noted(
            kernel,
            inputs,
            output,
            lambda d: convolution.use(inputs, d, shape, window, whole=self._whole),
        )

    def depthwise_convolution(
        self,
        inputs: tf.Tensor,
        kernel: Any,
        *,
        strides: tuple[int, int],
        padding: str,
        dilations: tuple[int, int],
    ) -> tf.Tensor:
        """`tf.nn.depthwise_conv2d` of images [n, h, w, c] with a kernel [kh, kw, c, m] or, for images
        of height 1, [kw, c, m]; NoRule if their size is unknown."""
        value = self.value(kernel, inputs.dtype)
        value = value[tf.newaxis] if value.shape.rank == 3 else value
        options = {"strides": strides, "padding": padding, "dilations": dilations}
        window, shape = _window(inputs, value.shape, options), kernel.shape
        output = tf.nn.depthwise_conv2d(
            inputs, value, [1, *strides, 1], padding, dilations=dilations
        )
        return self._noted(
            kernel,
            inputs,
            output,
            lambda d: convolution.depthwise_use(inputs, d, shape, window),
        )

    def item_gradients(
        self,
        variable: Any,
        received: Sequence[tf.Tensor],
        output: tf.Tensor,
        gradients: Callable[[tf.Tensor], tf.Tensor],
    ) -> tf.Tensor:
        """Notes a use by a function from the gradient at `output` to [n, *variable.shape]."""
        shape = variable.shape
        self.declare(received, [output])
        self.note(variable, received, output, lambda d: ItemGradients(gradients(d), shape))
        return output


def _made_of(operation: tf.Operation, owner: dict[str, int], number: int) -> bool:
    """Whether an operation's inputs are values of a rule's weights, and otherwise constants."""
    made = [owner.get(tensor.op.name) == number for tensor in operation.inputs]
    known = [m or t.op.type == "Const" for m, t in zip(made, operation.inputs, strict=True)]
    return any(made) and all(known)


def _window(inputs: tf.Tensor, kernel_shape: Any, options: dict[str, Any]) -> convolution.Window:
    if None in tuple(inputs.shape[1:]):
        raise NoRule(f"inputs of shape {inputs.shape[1:]} have no fixed size")
    return convolution.Window.of(inputs, kernel_shape, **options)


def _flat(inputs: tf.Tensor) -> tf.Tensor:
    return inputs if inputs.shape.rank == 2 else tf.reshape(inputs, [-1, inputs.shape[-1]])


def _unflat(output: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    if like.shape.rank == 2:
        return output
    shape = tf.concat([tf.shape(like)[:-1], [output.shape[-1]]], 0)
    output = tf.reshape(output, shape)
    output.set_shape([*like.shape[:-1], output.shape[-1]])
    return output


def _reduced(gradient: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Sums a row's gradient [n, ...] over the axes along which a weight was broadcast."""
    gradient = tf.cast(gradient, tf.float32)
    surplus = gradient.shape.rank - 1 - len(shape)
    axes = list(range(1, 1 + surplus))
    axes += [
        1 + surplus + at
        for at, size in enumerate(shape)
        if size == 1 and gradient.shape[1 + surplus + at] != 1
    ]
    reduced = tf.reduce_sum(gradient, axes) if axes else gradient
    return tf.reshape(reduced, [-1, *shape])
