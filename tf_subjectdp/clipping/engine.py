# SPDX-License-Identifier: Apache-2.0
"""From the gradients of a batch to one clipped sum, in bounded memory, for any layer.

It never sees subjects: which rows belong together is the algorithm's word.

Three strategies give the same sum:

* "norm_only": norms from what each layer received and the gradients at what it put out, then one
  weighted product a weight; item gradients are never formed. Serves models whose layers have a rule
  (`norm_only.rules`) and which provably treat every row alone.
* "vectorized": the gradients of a chunk of rows at a time by `tf.vectorized_map`; fast where
  TensorFlow can vectorise the model. The chunk follows from the number of parameters.
* "loop": one ordinary backward pass a row (LINEAR) or a group (GROUPED), in a `tf.while_loop`; works
  for anything that has a gradient and holds one gradient at a time.
"""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_subjectdp.clipping import loop, norm_only, traced_shapes, vectorized
from tf_subjectdp.clipping.empty import padded_if_empty
from tf_subjectdp.clipping.norm_only.strategy import compiled_sum
from tf_subjectdp.clipping.part_updates import PartUpdates
from tf_subjectdp.clipping.partition import BatchPartition

_log = logging.getLogger("tf_subjectdp")

# rows -> (loss [n], predictions: nest of [n, ...]); rows is a nest of [n, ...].
RowFunction = Callable[[Any], tuple[tf.Tensor, Any]]


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """How the sum is computed; nothing here changes what is computed or its guarantee.

    Attributes:
      strategy: "auto", "norm_only", "vectorized" or "loop".
      memory_budget: bytes that one chunk's item gradients ("vectorized") or kept inputs and output
        gradients ("norm_only") may take, about a third of what the step needs beside the model.
      max_rows: rows of one group that go through one backward pass of "loop", and the largest chunk
        of the others.
      jit_compile: whether "norm_only" is compiled by XLA, all rows in one program; for accelerators
        and batches padded to a constant shape (`plan.dataset(..., pad=True)`): every new number of
        rows is compiled anew.
    """

    strategy: str = "auto"
    memory_budget: int = 256 * 2**20
    max_rows: int = 1024
    jit_compile: bool = False

    def __post_init__(self):
        if self.strategy not in ("auto", *STRATEGIES):
            raise ValueError(
                f"strategy={self.strategy!r} is unknown; use one of {('auto', *STRATEGIES)}."
            )
        for name in ("memory_budget", "max_rows"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be an integer of at least 1.")

        if not isinstance(self.jit_compile, bool):
            raise TypeError(f"jit_compile={self.jit_compile!r} must be True or False.")
        if self.jit_compile and self.strategy not in ("auto", "norm_only"):
            raise ValueError(
                f"jit_compile=True compiles the strategy 'norm_only' alone, not {self.strategy!r}; "
                "leave one of the two out."
            )

    def chunk_rows(self, variables: Sequence[tf.Variable]) -> int:
        """How many item gradients of these variables fit into the budget, between 1 and `max_rows`."""
        parameters = sum(v.shape.num_elements() for v in variables)
        return max(1, min(self.max_rows, self.memory_budget // (4 * max(parameters, 1))))


class ClippedSum(NamedTuple):
    """What a batch contributes to a step, before the noise.

    Attributes:
      total: list of float32 tensors shaped as the variables: the clipped sum.
      rows: int32 [m], the rows of the batch that took part, in the order of what follows.
      losses: float32 [m], their losses.
      predictions: nest of [m, ...], what the model put out for them.
      clipped: float32 scalar, groups that were scaled down.
      groups: float32 scalar, groups in all.
      non_finite: float32 scalar, rows (or sums of a group) that were not finite and count as zero.
    """

    total: list[tf.Tensor]
    rows: tf.Tensor
    losses: tf.Tensor
    predictions: Any
    clipped: tf.Tensor
    groups: tf.Tensor
    non_finite: tf.Tensor


class Strategy(NamedTuple):
    """One way of computing a clipped sum.

    Attributes:
      what: what the log and the statement say; takes the unit, "item" or "group of items".
      run: computes the sum.
      needs_layers: whether `run` takes the model's layers.
    """

    what: str
    run: Callable[..., Any]
    needs_layers: bool = False


STRATEGIES = {
    "norm_only": Strategy(
        "norms of each {unit}'s gradient from layer inputs and output gradients, none of them formed",
        norm_only.clipped_sum,
        needs_layers=True,
    ),
    "vectorized": Strategy("per-item gradients by tf.vectorized_map", vectorized.clipped_sum),
    "loop": Strategy("one backward pass for each {unit}", loop.clipped_sum),
}

#: What is said where `PartUpdates` take the place of gradients.
PART_UPDATES = "clipping engine: each part's rows go through the model together, one part at a time"


def choose_strategy(
    row_function: RowFunction,
    variables: Sequence[tf.Variable],
    row_spec: Any,
    *,
    linear: bool,
    options: EngineOptions = EngineOptions(),
    layers: Sequence[Any] = (),
    said: str = "",
    one_term: bool = False,
) -> tuple[str, str]:
    """Decides how the step is computed, before it is traced, and says so in one log line.

    The line is a warning where a model was named and the fast engine does not serve it, or one of its
    layers makes numbers of several rows, as a mean over the batch does.

    Args:
      row_function: rows -> (loss [n], predictions). Whatever it raises is raised.
      variables: what is trained.
      row_spec: nest of `tf.TensorSpec` with an unknown leading dimension.
      linear: the kind of rule.
      options: the user's choice; "auto" tries "norm_only" first, then "vectorized".
      layers: the Keras layers that `row_function` calls, nested ones included; without them
        "norm_only" cannot be used.
      said: the sentence of an earlier choice, which is not logged again.
      one_term: whether the batch is one term or few, for which "auto" takes ordinary backward passes.

    Returns:
      The strategy's name and the sentence that was logged.

    Raises:
      ValueError: `row_function` does not give one loss a row, or a strategy was asked for that does
        not serve the model.
    """
    # A mistake in the model or the loss must surface as itself, not as "cannot be vectorised".
    _output_specs(row_function, row_spec)
    if one_term and options.strategy == "auto" and not options.jit_compile:
        name, detail, level = "loop", "the batch is one term, or few", logging.INFO
    else:
        name, detail, level = _choose(row_function, variables, row_spec, linear, options, layers)
    unit = "item" if linear else "group of items"
    sentence = f"clipping engine: {STRATEGIES[name].what.format(unit=unit)} ({detail})"
    if name != "norm_only" and layers:
        meeting = traced_shapes.where_rows_meet(row_function, row_spec, layers)
        if meeting:
            seen = "a group of them" if name == "loop" and not linear else "one"
            sentence += (
                f". Rows of a batch meet in {meeting}: this engine shows it {seen} at a time, so it "
                "computes something else than Keras would; use one that treats every row alone"
            )
            level = logging.WARNING
    if sentence != said:
        _log.log(level, sentence)
    return name, sentence


def _choose(row_function, variables, row_spec, linear, options, layers) -> tuple[str, str, int]:
    """The strategy, why, and how loud to say it."""
    if options.strategy == "loop":
        return "loop", "asked for", logging.INFO
    note = ""
    if options.strategy != "vectorized":
        reason = norm_only.why_not(row_function, variables, row_spec, layers)
        if not reason:
            how = "every use of a weight is known, and no row meets another"
            if options.jit_compile:
                how += "; compiled by XLA, anew for each size of a batch: pad batches"
            return "norm_only", how, logging.INFO
        if options.strategy == "norm_only" or options.jit_compile:
            asked = "jit_compile=True" if options.jit_compile else "strategy='norm_only'"
            raise ValueError(
                f"{asked} was asked for, but {reason}. Leave it out, or give the layer a rule with "
                "register_norm_rule."
            )
        note = f"; not norm_only: {reason}"
    name, detail = _general(row_function, variables, row_spec, linear, options)
    level = logging.WARNING if note and layers else logging.INFO
    return name, detail + note, level


def _general(row_function, variables, row_spec, linear, options) -> tuple[str, str]:
    """Chooses between "vectorized" and "loop", and says why."""
    chunk = options.chunk_rows(variables)
    if options.strategy == "auto" and chunk == 1:
        return "loop", "one item gradient fills the memory budget"
    reason, sequential = traced_shapes.size_by_values(row_function, variables, row_spec), []
    if not reason:
        reason, sequential = vectorized.why_not(row_function, variables, row_spec, chunk)
    if reason:
        if options.strategy == "vectorized":
            raise ValueError(
                f"strategy='vectorized' was asked for, but TensorFlow cannot vectorise this model: "
                f"{reason}. Use strategy='auto' or 'loop'."
            )
        return "loop", f"TensorFlow cannot vectorise this model ({reason})"
    if sequential and not linear and options.strategy == "auto":
        # One ordinary backward pass a group beats a sequential loop over its items.
        return "loop", f"TensorFlow runs {', '.join(sequential)} item by item"
    detail = f"chunks of up to {chunk} items"
    if sequential:
        detail += f"; TensorFlow runs {', '.join(sequential)} item by item inside a chunk"
    return "vectorized", detail


def clipped_sum(
    row_function: RowFunction,
    variables: Sequence[tf.Variable],
    rows: Any,
    partition: BatchPartition,
    clip_norm: float,
    *,
    strategy: str,
    options: EngineOptions = EngineOptions(),
    layers: Sequence[Any] = (),
    updates: PartUpdates | None = None,
) -> ClippedSum:
    """Computes sum_a group_scale[a] * clip(sum_{i in a} item_scale[i] * g_i, clip_norm).

    Args:
      row_function: rows -> (loss [n], predictions: nest of [n, ...]).
      variables: what is trained.
      rows: nest of [B, ...]; B = 0 is allowed.
      partition: the groups and the scales, for B rows.
      clip_norm: the bound of a group's norm, positive.
      strategy: a name in `STRATEGIES`, as `choose_strategy` returned it.
      options: budget and chunk bounds.
      layers: as in `choose_strategy`.
      updates: what takes the place of a group's sum of gradients (GROUPED rules only); its statistics
        follow the variables in `ClippedSum.total`. None for gradients.

    Returns:
      The `ClippedSum`. A row whose gradient is not finite counts as zero and is counted.

    Raises:
      ValueError: `row_function` does not give one loss a row.
    """
    if updates is None and options.jit_compile and strategy == "norm_only":
        return _compiled_sum(row_function, variables, rows, partition, clip_norm, layers)
    group = partition.group
    taking_part = tf.cast(tf.where(group >= 0)[:, 0], tf.int32)
    if not partition.linear:
        order = tf.argsort(tf.gather(group, taking_part), stable=True)
        taking_part = tf.gather(taking_part, order)
    count = tf.size(taking_part)
    # An empty batch still goes once through the model, with weight zero, so that all shapes and
    # the predictions' structure are the same as ever.
    empty = tf.cast(tf.equal(count, 0), tf.int32)
    index = tf.concat([taking_part, tf.zeros([empty], tf.int32)], 0)
    rows, (group, item_scale, group_scale) = padded_if_empty(rows, tuple(partition[:3]))
    ordered = BatchPartition(
        group=tf.gather(group, index),
        item_scale=tf.where(empty > 0, 0.0, tf.gather(item_scale, index)),
        group_scale=tf.where(empty > 0, 0.0, group_scale),
        linear=partition.linear,
    )
    rows_spec = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), rows)
    outputs_spec = _output_specs(row_function, rows_spec)
    chosen = STRATEGIES[strategy]
    if updates is not None:
        chosen = Strategy(PART_UPDATES, updates.clipped_sum)
    total, outputs, stats = chosen.run(
        row_function,
        variables,
        rows,
        index,
        ordered,
        clip_norm,
        options,
        _buffers(outputs_spec),
        **({"layers": layers} if chosen.needs_layers else {}),
    )
    stats *= tf.cast(1 - empty, tf.float32)
    for output, spec in zip(outputs, tf.nest.flatten(outputs_spec), strict=True):
        output.set_shape([None, *spec.shape[1:]])
    losses, predictions = tf.nest.pack_sequence_as(outputs_spec, [o[:count] for o in outputs])
    return ClippedSum(total, taking_part, losses, predictions, stats[0], stats[1], stats[2])


def _compiled_sum(row_function, variables, rows, partition, clip_norm, layers) -> ClippedSum:
    """All rows go through one XLA program; only then are those picked that took part."""
    taking_part = tf.cast(tf.where(partition.group >= 0)[:, 0], tf.int32)
    rows, vectors = padded_if_empty(rows, tuple(partition[:3]))
    # The row that fills an empty batch belongs to no group.
    empty = tf.equal(tf.shape(partition.group)[0], 0)
    group = tf.where(empty, -1, vectors[0])
    given = BatchPartition(group, *vectors[1:], partition.linear)
    total, outputs, stats = compiled_sum(row_function, variables, rows, given, clip_norm, layers)
    losses, predictions = tf.nest.map_structure(lambda t: tf.gather(t, taking_part), outputs)
    return ClippedSum(total, taking_part, losses, predictions, stats[0], stats[1], stats[2])


def _output_specs(row_function: RowFunction, row_spec: Any) -> Any:
    """The structure, types and shapes [None, ...] of what `row_function` returns.

    Raises:
      ValueError: it does not return a pair, or not one loss a row, or a prediction without rows.
    """
    outputs = tf.function(row_function).get_concrete_function(row_spec).structured_outputs
    if not isinstance(outputs, (tuple, list)) or len(outputs) != 2:
        raise ValueError(
            f"row_function returned {outputs!r}; it must return a pair (losses, predictions), the "
            "loss of each row first."
        )
    losses, predictions = outputs
    # A mean over the rows cannot be told apart again; and [n, 1] times the scales [n] would
    # broadcast to [n, n], every row weighted with the scales of all.
    if losses.shape.rank is not None and (losses.shape.rank != 1 or losses.shape[0] is not None):
        raise ValueError(
            f"row_function returned losses of shape {losses.shape}; it must return one number a "
            "row, shape [n]: leave out the mean over the rows (reduction='none'), and reduce or "
            "squeeze all other axes."
        )
    for output in tf.nest.flatten(predictions):
        if output.shape.rank == 0:
            raise ValueError(
                "row_function returned a prediction that is a single number; predictions must have "
                "one entry a row, shape [n, ...]: leave it out."
            )
    return tf.nest.map_structure(lambda s: tf.TensorSpec([None, *s.shape[1:]], s.dtype), outputs)


def _buffers(specs: Any) -> list[tf.TensorArray]:
    """Empty arrays that take the outputs of any number of chunks of any length."""
    return [
        tf.TensorArray(s.dtype, 0, dynamic_size=True, infer_shape=False, element_shape=s.shape)
        for s in tf.nest.flatten(specs)
    ]
