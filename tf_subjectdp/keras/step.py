# SPDX-License-Identifier: Apache-2.0
"""One private step, for `PrivateModel` and for training loops that users write themselves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp import clipping
from tf_subjectdp.keras import compat, validation
from tf_subjectdp.keras.batches import check_lengths, check_mark, people_of
from tf_subjectdp.keras.optimizer import DPOptimizer, clip_factor
from tf_subjectdp.noise import fresh_seed


def private_step(
    optimizer: DPOptimizer,
    row_function: Callable[[Any], tuple[tf.Tensor, Any]],
    variables: Sequence[Any],
    rows: Any,
    extras: Mapping[str, Any],
    *,
    extra_gradients: Sequence[tf.Tensor] | None = None,
    strategy: str | None = None,
    model: Any = None,
) -> clipping.ClippedSum:
    """Clips by person, adds noise, and updates `variables` once.

    For a loop of your own (a GAN's discriminator, several models, ...), inside a `tf.function` that is
    traced once. Not one with jit_compile=True, which cannot draw fresh seeds: the optimizer's
    engine={"jit_compile": True} compiles what can be.

        dataset = plan.dataset(x, y, patient_id)

        def row_function(rows):
            features, labels = rows
            predictions = model(features, training=True)
            losses = tf.keras.losses.sparse_categorical_crossentropy(labels, predictions)
            return losses, predictions

        @tf.function(input_signature=dataset.element_spec)
        def train(features, labels, extras):
            rows = (features, labels)
            private_step(
                optimizer, row_function, model.trainable_variables, rows, extras, model=model
            )

        for batch in dataset:
            train(*batch)

    Every optimizer of a plan may take all of the plan's steps. Two of them, for two models, release
    twice as much: their epsilons compose.

    Args:
      optimizer: a `DPOptimizer`.
      row_function: rows -> (loss of each row [n], predictions: a nest of [n, ...]).
      variables: what is trained.
      rows: nest of tensors [B, ...]; B may be 0: the step then adds noise alone.
      extras: the third part of a batch of `plan.dataset`; or, with an optimizer without a plan, a
        dict with "subject" (integer or string [B], the person of each row), for `ElementDP` "element"
        (the same), and, where there is padding, "mask" (bool [B], False for padding rows).
      extra_gradients: gradients that do not depend on the data, one a variable.
      strategy: "norm_only", "vectorized" or "loop"; None chooses (once a trace) and logs a new choice.
      model: the Keras model (or layer, or a list of them) that `row_function` calls: the fast engine
        looks into its layers, and is not used without it; and BatchNormalization (in parts) needs it.
        Its layers also tell that weights are fresh: without them the statement begins with weights whose
        cost is not known, unless `DPOptimizer(..., initial_weights="public")` says that they are.
        After an error inside a part call `optimizer.restore_weights()`.

    Returns:
      The `ClippedSum` that was noised. It is NOT private; do not release it.

    Raises:
      ValueError: a loss that is already averaged, no people, a batch that the optimizer's plan did not
        draw, a `row_function` that stores something un-noised (metrics too: update them outside), or
        several replicas.
      tf.errors.InvalidArgumentError: a batch of another plan, or the plan's steps are used up.
    """
    if not isinstance(optimizer, DPOptimizer):
        raise TypeError(
            f"optimizer={optimizer!r} must be a DPOptimizer; see plan.optimizer(inner)."
        )
    variables = list(variables)
    rows = tf.nest.map_structure(tf.convert_to_tensor, rows)
    if not variables:
        raise ValueError("variables is empty; nothing can be trained.")
    validation.check_gradients(variables)
    layers = compat.all_layers(model)
    for part in [] if model is None else model if isinstance(model, (list, tuple)) else [model]:
        optimizer._lineage.watch(part)
    validation.check_batch_normalization(layers, optimizer.algorithm)
    people = people_of(extras)
    check_mark(people.draw, optimizer.plan)
    check_lengths(rows, people)
    spec = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), rows)
    statistics = validation.check_row_function(row_function, spec, layers)
    if strategy is None and not statistics and optimizer.algorithm.inner is None:
        strategy, optimizer._engine_said = clipping.choose_strategy(
            row_function,
            [compat.raw(v) for v in variables],
            spec,
            linear=optimizer.algorithm.kind == "linear",
            options=optimizer.engine,
            layers=layers,
            said=optimizer._engine_said,
            one_term=optimizer.algorithm.one_term,
        )
    return take_step(
        optimizer,
        row_function,
        variables,
        rows,
        extras,
        extra_gradients=extra_gradients,
        strategy=strategy,
        layers=layers,
        statistics=statistics,
    )


def take_step(
    optimizer: DPOptimizer,
    row_function: Callable[[Any], tuple[tf.Tensor, Any]],
    variables: list[Any],
    rows: Any,
    extras: Mapping[str, Any],
    *,
    extra_gradients: Sequence[tf.Tensor] | None,
    strategy: str | None,
    layers: Sequence[Any],
    statistics: Sequence[Any],
) -> clipping.ClippedSum:
    """The step itself, of a model and a row function that have been checked.

    Args and results as in `private_step`; `layers` are the model's, `statistics` those that a pass
    writes to, as `validation` found them, and `strategy` is None where these or an inner optimizer need
    parts that go through the model as a whole.
    """
    validation.check_replicas(*(compat.raw(v) for v in variables))
    # Before all else that TensorFlow runs in the order in which it was written.
    seed = fresh_seed()
    people = people_of(extras)
    guards = check_mark(people.draw, optimizer.plan) + check_lengths(rows, people)
    algorithm = optimizer.algorithm
    partition = algorithm.partition(people.subject, people.mask, people.element)
    factor = clip_factor(algorithm, optimizer._seen.state[0])
    if factor is not None:
        # Clipping v / f to C and multiplying by f clips v to f C.
        partition = partition._replace(item_scale=partition.item_scale / factor)
    updates = optimizer._parts.engine(algorithm.inner, variables, statistics)
    counted = None
    if updates is not None:
        # A part trains the model's own weights: whatever may refuse the step must do so before.
        counted = optimizer._count(guards, people.draw, people.seeded)
        with tf.control_dependencies(counted):
            rows = tf.nest.map_structure(tf.identity, rows)
            partition = partition._replace(group=tf.identity(partition.group))
    summed = clipping.clipped_sum(
        row_function,
        [compat.raw(v) for v in variables],
        rows,
        partition,
        algorithm.clip_norm,
        strategy=strategy or "loop",
        options=optimizer.engine,
        layers=layers,
        updates=updates,
    )
    optimizer._release(
        summed.total,
        variables,
        after=guards,
        seed=seed,
        extra_gradients=extra_gradients,
        draw=people.draw,
        seeded=people.seeded,
        statistics=statistics,
        layers=layers,
        factor=factor,
        counted=counted,
    )
    return summed
