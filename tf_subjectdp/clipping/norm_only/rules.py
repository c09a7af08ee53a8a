# SPDX-License-Identifier: Apache-2.0
"""The registry of layer rules, and how they take the place of the layers' own `call`.

A rule is written for one class: a subclass may compute something else, and has none unless it is
registered itself.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp.clipping.norm_only.record import NoRule, Record

# (layer, record, *args, **kwargs as of the layer's call) -> the layer's outputs.
Rule = Callable[..., Any]

_RULES: dict[type, Rule] = {}
# What somebody may have replaced on a layer to make it compute something else.
_METHODS = ("call", "convolution_op")
# Layers are changed while they are traced; two threads must not trace one layer at a time.
_TRACING = threading.RLock()


def register_norm_rule(layer_class: type, rule: Rule | None = None) -> Any:
    """Registers how a layer's item gradients get their norms without being formed.

        @register_norm_rule(MyDense)
        def my_dense(layer, record, inputs):
            outputs = record.matmul(inputs, layer.kernel)
            return layer.activation(record.bias(outputs, layer.offset))

    The rule is the layer's forward pass, with the methods of `Record` in place of the operations that
    use trained weights; everything else stays as it is. Every use of a weight must go through
    `record`: one that does not is found, and the model falls back to the general engine. Compare a
    new rule with that engine by `check_norm_rule(layer, inputs)`.

    Args:
      layer_class: a Keras layer's class; subclasses of it need rules of their own.
      rule: (layer, record, *args, **kwargs) -> outputs; None makes this a decorator. It may raise
        `NoRule` with a reason where it does not cover the layer's configuration.

    Returns:
      The rule.

    Raises:
      TypeError: `layer_class` is no class of layers, or the rule cannot be called.
    """
    if not (isinstance(layer_class, type) and issubclass(layer_class, tf.keras.layers.Layer)):
        raise TypeError(f"layer_class={layer_class!r} must be a class of tf.keras layers.")
    if rule is None:
        return lambda function: register_norm_rule(layer_class, function)
    if not callable(rule):
        raise TypeError(f"rule={rule!r} must be a function of (layer, record, *args, **kwargs).")
    _RULES[layer_class] = rule
    return rule


def rule_of(layer: Any) -> Rule | None:
    """The rule of exactly this layer's class; None if there is none, or its `call` was replaced."""
    replaced = any(name in vars(layer) for name in _METHODS)
    return None if replaced else _RULES.get(type(layer))


def registered() -> list[type]:
    """The classes that have a rule."""
    return list(_RULES)


@contextlib.contextmanager
def recorded(layers: Sequence[Any], record: Record) -> Iterator[list[str]]:
    """Within the context, the layers that have a rule compute by it.

    Args:
      layers: all layers of a model, the nested ones too.
      record: takes the notes.

    Yields:
      A list that fills with one sentence for each layer whose rule did not apply; such a layer
      computes as ever, and its weights are then found to be used without a note.
    """
    declined: list[str] = []
    with _TRACING:
        replaced = [layer for layer in layers if rule_of(layer) is not None]
        try:
            for layer in replaced:
                # Past Keras's own __setattr__, which would track it.
                object.__setattr__(layer, "call", _call(layer, record, declined))
            yield declined
        finally:
            for layer in replaced:
                vars(layer).pop("call", None)


def _call(layer: Any, record: Record, declined: list[str]) -> Callable[..., Any]:
    rule, original, thread = rule_of(layer), layer.call, threading.get_ident()
    running = False

    @tf.autograph.experimental.do_not_convert
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal running
        if threading.get_ident() != thread:
            return original(*args, **kwargs)
        name = f"layer {layer.name!r} ({type(layer).__name__})"
        reason: object = "it runs inside a loop, a condition or a function of its own"
        if running:
            reason = "its rule calls the layer itself, whose call it takes the place of"
        elif record.is_here() and record.is_constant((args, kwargs)):
            reason = "what it receives is the same for every row"
        elif record.is_here():
            began, running = record.begin(), True
            try:
                outputs = rule(layer, record, *args, **kwargs)
            except NoRule as declining:
                reason = declining
            except (AttributeError, TypeError, ValueError) as error:
                # Keras's own `call` says it better if the inputs are at fault.
                reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            else:
                if outputs is not None:
                    record.end(began, name)
                    return outputs
                reason = "its rule returned None"
            finally:
                running = False
        declined.append(f"{name}: {reason}")
        return original(*args, **kwargs)

    return call
