# SPDX-License-Identifier: Apache-2.0
"""Holds a layer's norm rule against the general engine."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_subjectdp.clipping import engine, partition
from tf_subjectdp.clipping.norm_only import passes, rules
from tf_subjectdp.clipping.norm_only.uses import as_matrix
from tf_subjectdp.clipping.variables import raw


class RuleCheck(NamedTuple):
    """How far a rule and the general engine are apart, relative to the general engine's sum.

    Attributes:
      linear: every item clipped alone.
      grouped: means of groups of items clipped.
    """

    linear: float
    grouped: float


def check_norm_rule(layer: Any, inputs: Any, *, tolerance: float = 1e-4, **call: Any) -> RuleCheck:
    """Compares a layer's norm rule with the engine that forms every gradient.

    A loss that weighs every output differently is put on the layer; the clipped sums of both engines
    are compared, for items and for groups of items, at clip norms that scale nearly all terms down,
    half of them, and none.

    Args:
      layer: a Keras layer with a registered rule, or a model of such layers; it is built if need be.
      inputs: a batch of its inputs, a nest of [n, ...]; n of at least 4 makes groups of several
        sizes. Use values that are typical, and masks or padding if the layer knows them.
      tolerance: the largest difference allowed, relative to the norm of the sum. The norms of a rule
        are rounded up, by more where more terms are added (1e-4 for 100 steps of a sequence); float16
        layers need about 1e-2.
      **call: further arguments of the layer's call.

    Returns:
      The `RuleCheck`.

    Raises:
      ValueError: the layer has no rule, the rule leaves a use of a weight out, it lets rows meet, or
        its sums differ from the general engine's by more than `tolerance`.
    """
    inputs = tf.nest.map_structure(tf.convert_to_tensor, inputs)
    count = int(tf.nest.flatten(inputs)[0].shape[0])
    layer(inputs, **call)
    layers = list(layer._flatten_layers())
    variables = [raw(v) for v in layer.trainable_variables]
    if not variables:
        raise ValueError(
            f"layer {layer.name!r} has no trainable weights; there is nothing to check."
        )
    if all(rules.rule_of(each) is None for each in layers):
        raise ValueError(
            f"layer {layer.name!r} ({type(layer).__name__}) has no rule; register one with "
            "register_norm_rule."
        )

    def row_function(rows):
        outputs = tf.nest.flatten(layer(rows[0], **call))
        return tf.add_n([_loss(o) for o in outputs if o.dtype.is_floating]), ()

    rows = (inputs,)
    spec = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), rows)
    reason = passes.why_not(row_function, variables, spec, layers)
    if reason:
        raise ValueError(f"the rule of {type(layer).__name__} does not serve this layer: {reason}.")
    # Groups of one, two, three, ... rows.
    people = tf.constant(np.repeat(np.arange(count), np.arange(1, count + 1))[:count])
    kinds = {
        "linear": partition.item_terms,
        "grouped": lambda mask: partition.subject_mean_terms(people, mask),
    }
    worst = []
    for terms in kinds.values():

        @tf.function
        def sums(rows, mask, clip_norm, terms=terms):
            given = (row_function, variables, rows, terms(mask), clip_norm)
            return tuple(
                engine.clipped_sum(*given, strategy=name, layers=layers).total
                for name in ("norm_only", "loop")
            )

        everybody = tf.ones([count], tf.bool)
        group = terms(everybody).group.numpy()
        norms = [
            _norm(sums(rows, tf.constant(group == g), tf.constant(1e30))[1]) for g in set(group)
        ]
        if not max(norms) > 0.0:
            raise ValueError(
                f"all gradients of layer {layer.name!r} are 0 on these inputs, and nothing can be "
                "compared; pass inputs that are not all zero."
            )
        bounds = [0.01 * min(norms), float(np.median(norms)), 100.0 * max(norms)]
        differences = []
        for bound in bounds:
            fast, general = sums(rows, everybody, tf.constant(max(bound, 1e-6), tf.float32))
            apart = [a - b for a, b in zip(fast, general, strict=True)]
            differences.append(_norm(apart) / max(_norm(general), 1e-30))
        worst.append(max(differences))
    found = RuleCheck(*worst)
    if max(found) > tolerance:
        raise ValueError(
            f"the rule of {type(layer).__name__} differs from the general engine by {found}, relative "
            f"to the sum; {tolerance} is allowed. Every use of a weight must go through the record, "
            "and every output be the layer's own."
        )
    return found


def _norm(tensors: Any) -> float:
    return float(tf.linalg.global_norm(tensors))


def _loss(outputs: tf.Tensor) -> tf.Tensor:
    """One number a row that no two outputs enter alike."""
    flat = as_matrix(tf.cast(outputs, tf.float32))
    places = tf.cumsum(tf.ones_like(flat), axis=1)
    return tf.reduce_sum(flat * tf.sin(places) + 0.5 * tf.square(flat), axis=1)
