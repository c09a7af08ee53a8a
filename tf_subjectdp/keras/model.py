# SPDX-License-Identifier: Apache-2.0
"""`PrivateModel`: compile, fit, evaluate and save as in Keras, with private steps.

It trains the weights of the model that it was given.
"""

import dataclasses
import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_subjectdp import clipping
from tf_subjectdp.keras import batches, compat, validation
from tf_subjectdp.keras.callbacks import (
    PrivacyLedger,
    PrivacyScalars,
    check_figures,
    fit_callbacks,
    with_own_averages,
)
from tf_subjectdp.keras.item_loss import ItemLoss
from tf_subjectdp.keras.lineage import LineageTracker, recorded_initialisers
from tf_subjectdp.keras.optimizer import DPOptimizer, Statistics
from tf_subjectdp.keras.saving import SavesPrivacyState
from tf_subjectdp.keras.step import take_step
from tf_subjectdp.keras.trackers import StepTrackers
from tf_subjectdp.plans import Plan
from tf_subjectdp.sampling import dataset_fingerprint


def weight_penalties(
    model: Any, variables: Sequence[Any]
) -> tuple[tf.Tensor, list[tf.Tensor] | None]:
    """The sum of a model's penalties (float32 scalar) and its gradients, None if there are none."""
    tensors = [compat.raw(v) for v in variables]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(tensors)
        losses = [tf.cast(loss, tf.float32) for loss in model.losses]
        if not losses:
            return tf.constant(0.0), None
        total = tf.add_n(losses)
    gradients = tape.gradient(total, tensors, unconnected_gradients="zero")
    return total, [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients]


def check_dataset(dataset: tf.data.Dataset, optimizer: DPOptimizer) -> None:
    """ValueError unless the dataset is drawn as the optimizer's plan, if it has one, says."""
    fingerprint = dataset_fingerprint(dataset)
    if optimizer.plan is not None and fingerprint != optimizer.plan.fingerprint:
        raise ValueError(
            "this dataset's sampling is not the plan's, so the plan's epsilon would not hold for "
            "it; pass plan.dataset(x, y, subject_id) of the plan that made the optimizer."
        )


class Length(NamedTuple):
    """How many steps a `fit` takes.

    Attributes:
      steps: the steps in all.
      asked: those that Keras would ask for, which may be more than the data have.
      one_pass: whether they are one pass over the data.
    """

    steps: int
    asked: int
    one_pass: bool


def check_budget(
    dataset: tf.data.Dataset, optimizer: DPOptimizer, kwargs: dict[str, Any]
) -> Length:
    """The length of a `fit` with these arguments.

    Raises:
      ValueError: it would take more steps than the plan has left.
    """
    available = int(dataset.cardinality().numpy())
    epochs = batches.whole("epochs", kwargs.get("epochs", 1))
    passes = max(epochs - batches.whole("initial_epoch", kwargs.get("initial_epoch") or 0), 0)
    per_epoch = kwargs.get("steps_per_epoch")
    one_pass = False
    if per_epoch is None or batches.whole("steps_per_epoch", per_epoch, 1) == available:
        # Keras starts the dataset anew at each epoch.
        # Of shuffled epochs, one that a pass before the last leaves unfinished counts whole.
        requested = (
            max(passes - 1, 0) * optimizer._whole_epochs(available) + min(passes, 1) * available
        )
    else:
        requested, one_pass = min(passes * int(per_epoch), available), True
    planned, left = optimizer.plan.steps, optimizer.steps_left
    used_up = passes > 0 and available == left == 0  # of dataset.take(steps_left), for instance
    if requested <= left and not used_up:
        asked = passes * int(per_epoch) if one_pass else requested
        return Length(requested, asked, one_pass or passes == 1)
    hints = []
    if per_epoch is None and passes > 1:
        hints.append(
            "one pass over plan.dataset is the whole plan: leave epochs= out, or pass "
            "steps_per_epoch=plan.steps_per_epoch, epochs=plan.epochs"
        )
    if left:
        hints.append(
            f"take the {left} steps that are left with fit(dataset.take(model.optimizer.steps_left))"
        )
    hints.append(
        "pay for more with model.extend_plan(epochs=...) or (steps=...), the new totals; epsilon "
        "then rises"
    )
    taken, counted = optimizer.steps_taken, optimizer.steps_at_new_pass
    begun = f"; its begun epoch counts whole, as {counted}" if counted > taken else ""
    brought = int(optimizer._lineage.of_this_plan()[0])
    if brought:
        begun += (
            f"; {brought} of them in another process or by another optimizer, whose weights came in: "
            "runs of a plan of other noise or sampling are stated beside this one instead"
        )
    raise ValueError(
        f"fit asks for {requested} steps, and {left} of the plan's {planned} are left ({taken} "
        f"taken{begun}). You may: {'; or '.join(hints)}."
    )


def shortened(
    dataset: tf.data.Dataset, optimizer: DPOptimizer, length: Length
) -> tuple[tf.data.Dataset, int | None]:
    """The data and the last step of a `fit` after a ledger was read, by which fewer steps may be left.

    Args:
      dataset, optimizer: of the `fit`.
      length: what `check_budget` said before the ledger was read.

    Returns:
      The dataset, cut to what is left; and the step count at which `fit` has to end, None where Keras
      ends there by itself.

    Raises:
      ValueError: nothing is left.
    """
    left = optimizer.steps_left
    if length.steps > 0 and left == 0:
        raise ValueError(
            f"by its ledger all {optimizer.plan.steps} steps of the plan are taken, with those that a "
            "crash may have lost. For a new model name a new ledger; to go on with this one, pay for "
            "more with model.extend_plan(epochs=...) or (steps=...)."
        )
    if length.asked <= left and length.asked == length.steps:
        return dataset, None
    last = optimizer.steps_at_new_pass + min(length.steps, left)
    return (dataset.take(left) if left < length.steps else dataset), last


_log = logging.getLogger("tf_subjectdp")


@tf.keras.utils.register_keras_serializable(package="tf_subjectdp")
class PrivateModel(SavesPrivacyState, tf.keras.Model):
    """Wraps a Keras model so that `fit` protects people.

        model = PrivateModel(keras_model)
        model.compile(optimizer=plan.optimizer(tf.keras.optimizers.Adam(1e-3)),
                      loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(plan.dataset(x, y, patient_id), validation_data=(x_test, y_test))
        print(model.privacy_statement())

    `evaluate`, `predict` and the metrics are Keras's own and are not private.

    Args:
      keras_model: any `tf.keras.Model`; its own weights are trained.
      name: name of the wrapper.
      initial_weights: "public" says that the weights of `keras_model` are fresh, or were trained on data
        that need no protection; the statement then says that this is your word. None looks at them:
        weights that this library trained, or that are as they were initialised, are recognised; of
        others the statement says first that their cost is not known.

    Raises:
      ValueError: a model that mixes the items of a batch, that was made for several replicas, or whose
        own `train_step`, `compute_loss`, `test_step`, ... would not be called (`predict_step` is).
    """

    def __init__(
        self,
        keras_model: Any,
        *,
        name: str | None = None,
        initial_weights: str | None = None,
        **kwargs: Any,
    ):
        compat.require_model(keras_model)
        if isinstance(keras_model, PrivateModel):
            raise TypeError("keras_model is a PrivateModel already; wrap the plain model once.")
        validation.check_replicas(keras_model)
        validation.check_methods(keras_model)
        validation.check_layers(keras_model)
        # float32: the wrapped layers keep their own (mixed) precision, and Keras must not put a
        # LossScaleOptimizer around the optimizer.
        kwargs.pop("dtype", None)
        super().__init__(name=name or f"private_{keras_model.name}", dtype="float32", **kwargs)
        self.inner_model = keras_model
        self._own_lineage = LineageTracker(initial_weights)
        self._own_lineage.watch(keras_model)
        self._item_loss: ItemLoss | None = None
        self._engine_choice: tuple[str | None, str] | None = None
        self._statistics = Statistics()
        self._checked_spec: Any = None
        self._trackers = StepTrackers()

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """The wrapped model's outputs."""
        kwargs = {} if mask is None else {"mask": mask}
        return self.inner_model(inputs, training=training, **kwargs)

    # -- compile ------------------------------------------------------------------------------------

    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        loss_weights: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool | None = None,
        steps_per_execution: int = 1,
        jit_compile: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """As in Keras; `optimizer` must be a `DPOptimizer`, see `plan.optimizer(inner)`.

        `jit_compile=True` compiles the clipped sum by XLA, where the model has norm rules
        (`EngineOptions.jit_compile`), False does not, None leaves it to the optimizer's options; pad
        the batches: `plan.dataset(..., pad=True)`.

        Raises:
          ValueError, TypeError: another optimizer, no loss, or more than one replica.
        """
        if not isinstance(optimizer, DPOptimizer):
            raise TypeError(
                f"optimizer is of type {type(optimizer).__name__}, which is not private. Use "
                "compile(optimizer=plan.optimizer(tf.keras.optimizers.Adam(1e-3))), or "
                "DPOptimizer(inner, algorithm, noise_multiplier=...)."
            )
        if isinstance(jit_compile, bool):
            # The engine compiles the clipped sum; the operating system's entropy stays outside.
            optimizer.engine = dataclasses.replace(optimizer.engine, jit_compile=jit_compile)
        validation.check_replicas(self)
        layers = compat.all_layers(self.inner_model)
        validation.check_batch_normalization(layers, optimizer.algorithm)
        optimizer._lineage.take_over(self._lineage)
        optimizer._lineage.watch(self.inner_model)
        self._item_loss = ItemLoss(loss, loss_weights, self.output_names or ())
        if compat.KERAS_3 and isinstance(loss, Mapping) and isinstance(loss_weights, Mapping):
            # Keras 3 takes no weights for some of the losses.
            loss_weights = {name: loss_weights.get(name, 1.0) for name in loss}
        self._engine_choice = None
        super().compile(
            optimizer=optimizer,
            loss=loss,
            metrics=metrics,
            loss_weights=loss_weights,
            weighted_metrics=weighted_metrics,
            run_eagerly=bool(run_eagerly) if compat.KERAS_3 else run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=False if compat.KERAS_3 else None,
            **kwargs,
        )

    # -- fit ----------------------------------------------------------------------------------------

    def fit(
        self, x: Any = None, y: Any = None, *, public_validation: bool = False, **kwargs: Any
    ) -> Any:
        """Trains as Keras's `fit` does, within the plan's steps.

        Callbacks that may decide something by losses and metrics, which nobody noises, are named in the
        first lines of the statement, since epsilon does not cover what they decide.

        Args:
          x: `plan.dataset(...)`.
          public_validation: your word that the validation data are public, so that callbacks that monitor
            "val_..." (EarlyStopping, ReduceLROnPlateau, ModelCheckpoint) look at nobody who is protected.
          **kwargs: Keras's own (epochs, steps_per_epoch, initial_epoch, callbacks, ...).

        Raises:
          ValueError: data without people or not drawn as planned, more steps than are left, or a metric
            called as what does not look at the training data ("epoch", "lr", "val_...").
        """
        optimizer = self._optimizer()
        if not isinstance(public_validation, bool):
            raise TypeError(f"public_validation={public_validation!r} must be True or False.")
        if not isinstance(x, tf.data.Dataset) or y is not None:
            raise ValueError(batches.NEEDS_DATASET)
        for name in ("class_weight", "sample_weight"):
            if kwargs.get(name) is not None:
                raise ValueError(f"{name} belongs into plan.dataset(..., sample_weight=...).")
        if kwargs.get("batch_size") is not None or kwargs.get("validation_split"):
            raise ValueError(
                "batch_size and validation_split change who is in a step; the plan says that. Pass "
                "validation_data=(x, y) of other people."
            )
        check_dataset(x, optimizer)
        self._lineage.look()
        length, last = None, None
        if optimizer.plan is not None:
            length = check_budget(x, optimizer, kwargs)
        callbacks = with_own_averages(_flat(kwargs.pop("callbacks", None)))
        before, opened = self._trackers.total_non_finite(), []
        try:
            if length is not None:
                for ledger in callbacks:
                    if isinstance(ledger, PrivacyLedger):
                        ledger.open(optimizer)
                        opened.append(ledger)
                x, last = shortened(x, optimizer, length)
            self._prepare(x.element_spec)
            self._show_epsilon(callbacks)
            extra = fit_callbacks(
                callbacks,
                kwargs.get("verbose", "auto"),
                steps_taken=optimizer.steps_taken,
                last=last,
                whole_calls=length is not None and not length.one_pass,
                public_validation=public_validation,
            )
            # The plan has drawn the batches; Keras would say that it does not shuffle them.
            kwargs["shuffle"] = False
            return super().fit(x, callbacks=[*callbacks, *extra], **kwargs)
        finally:
            for ledger in opened:
                ledger.close()
            optimizer._parts.restore()
            self._lineage.look()
            self._warn_non_finite(self._trackers.total_non_finite() - before)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Keras's own."""
        return super().evaluate(*args, **_with_own_averages(kwargs))

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Keras's own."""
        return super().predict(*args, **_with_own_averages(kwargs))

    @property
    def _lineage(self) -> LineageTracker:
        """What was released of the weights: the optimizer's record, or one's own before `compile`."""
        optimizer = getattr(self, "optimizer", None)
        return optimizer._lineage if isinstance(optimizer, DPOptimizer) else self._own_lineage

    def _optimizer(self) -> DPOptimizer:
        optimizer = getattr(self, "optimizer", None)
        if not isinstance(optimizer, DPOptimizer):
            raise RuntimeError(
                "compile the model first: compile(optimizer=plan.optimizer(inner), ...)."
            )
        return optimizer

    def _prepare(self, element_spec: Any) -> None:
        """Builds and checks the model and chooses the engine, before anything is traced."""
        validation.check_replicas(self)
        x_spec, y_spec, _ = batches.split_element(element_spec)
        x_spec, y_spec = tf.nest.map_structure(batches.any_rows, (x_spec, y_spec))
        if not self.inner_model.built or not self.built:
            self._lineage.look()
            with recorded_initialisers() as drawn:
                self(tf.nest.map_structure(batches.zero_row, x_spec))
            self._lineage.look(drawn)
        trainable = tuple(id(v) for v in self.trainable_variables)
        optimizer, layers = self._optimizer(), compat.all_layers(self.inner_model)
        validation.check_layers(self.inner_model)
        validation.check_batch_normalization(layers, optimizer.algorithm)
        if self._engine_choice is not None and self._checked_spec == (x_spec, y_spec, trainable):
            return
        self._lineage.look()
        if not trainable:
            raise ValueError("the model has no trainable weights; nothing can be trained.")
        self._statistics.written = validation.check_forward_pass(self.inner_model, x_spec)
        self.make_optimizer_variables()
        optimizer.make_step_variables(
            self.trainable_variables, [v for v, _ in self._statistics.written], layers
        )
        self._checked_spec = (x_spec, y_spec, trainable)
        if self._statistics.written or optimizer.algorithm.inner is not None:
            self._engine_choice = (None, clipping.PART_UPDATES)
            return
        rows_spec = (x_spec, y_spec, tf.TensorSpec([None], tf.float32))
        self._engine_choice = clipping.choose_strategy(
            self._row_function,
            [compat.raw(v) for v in self.trainable_variables],
            rows_spec,
            linear=optimizer.algorithm.kind == "linear",
            options=optimizer.engine,
            layers=layers,
            one_term=optimizer.algorithm.one_term,
        )
        if self._engine_choice[0] != "norm_only" and _has_texts(x_spec):
            _log.warning(
                "the model takes texts: turn them into numbers before plan.dataset, as in "
                "x = text_vectorization(texts), and a faster engine may serve the rest of it"
            )

    def _row_function(self, rows: Any) -> tuple[tf.Tensor, Any]:
        x, y, weight = rows
        predictions = self.inner_model(x, training=True)
        loss, terms = self._item_loss.with_terms(y, predictions)
        terms = {name: term * weight for name, term in terms.items()}
        return loss * weight, (predictions, terms)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One private step; see `private_step`."""
        x, y, extras = batches.split_element(data)
        weight = batches.people_of(extras).weight
        optimizer = self._optimizer()
        if self._engine_choice is None:
            self._prepare(tf.nest.map_structure(tf.TensorSpec.from_tensor, data))
        variables = self.trainable_variables
        regularization, extra_gradients = weight_penalties(self.inner_model, variables)
        summed = take_step(
            optimizer,
            self._row_function,
            list(variables),
            (x, y, weight),
            extras,
            extra_gradients=extra_gradients,
            strategy=self._engine_choice[0],
            layers=compat.all_layers(self.inner_model),
            statistics=self._statistics.written,
        )
        y, weight = tf.nest.map_structure(lambda t: tf.gather(t, summed.rows), (y, weight))
        predictions, terms = summed.predictions
        logs = dict(self.compute_metrics(None, y, predictions, weight))
        check_figures([*logs, *terms])
        noise = optimizer.algorithm.noise_stddev(optimizer.noise_multiplier)
        self._trackers.update(summed, regularization, noise, terms)
        logs.update(self._trackers.results(compat.raw(optimizer.privacy_steps)))
        return logs

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        """One private step: `train_on_batch(*batch)` with a batch of `plan.dataset`.

        Args:
          x, y: inputs and targets of the batch: tensors, NumPy arrays or numbers in lists.
          sample_weight: the batch's third part, a dict with the person of each row.
          **kwargs: Keras's own, except `class_weight`.

        Raises:
          ValueError: a batch without people, or not drawn as planned.
        """
        if kwargs.get("class_weight") is not None:
            raise ValueError("class_weight belongs into plan.dataset(..., sample_weight=...).")
        if not isinstance(sample_weight, dict) or "subject" not in sample_weight:
            raise ValueError(
                f"train_on_batch(x, y, extras) needs the extras: {batches.NEEDS_DATASET}"
            )
        x, y, extras = batches.of_arrays(x, y, sample_weight)
        optimizer = self._optimizer()
        # Refused out here: a trace that fails half-way leaves Keras 2 with a function that does nothing.
        people = batches.people_of(extras)
        batches.check_mark(people.draw, optimizer.plan)
        batches.check_lengths((x, y), people)
        self._prepare(tf.nest.map_structure(batches.batch_spec, (x, y, extras)))
        self._lineage.look_at_turns()
        try:
            return super().train_on_batch(x, y, extras, **kwargs)
        finally:
            optimizer._parts.restore()

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any) -> Any:
        """As in Keras; also `test_on_batch(*batch)` with a batch of `plan.dataset`."""
        if isinstance(sample_weight, dict) and "subject" in sample_weight:
            x, y, sample_weight = batches.of_arrays(x, y, sample_weight)
        return super().test_on_batch(x, y, sample_weight, **kwargs)

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Keras's own; a plan's batches are evaluated without their padding."""
        if isinstance(data, tuple) and len(data) == 3 and isinstance(data[2], dict):
            x, y, extras = batches.split_element(data)
            people = batches.people_of(extras)
            real = tf.where(people.mask)[:, 0]
            data = tf.nest.map_structure(lambda t: tf.gather(t, real), (x, y, people.weight))
        return super().test_step(data)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Keras's own, for `evaluate`; targets by name, and for those outputs alone that need them."""
        y = self._item_loss.arrange(y, y_pred)
        if compat.KERAS_3 and isinstance(self.loss, Mapping) and isinstance(y_pred, (list, tuple)):
            # Keras 3 takes a loss for some of the outputs in a dict of outputs alone.
            y, y_pred = (dict(zip(self.output_names, part, strict=True)) for part in (y, y_pred))
        return super().compute_loss(x, y, y_pred, *args, **kwargs)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        """Keras's own; targets as in `compute_loss`."""
        y = self._item_loss.arrange(y, y_pred)
        return super().compute_metrics(x, y, y_pred, *args, **kwargs)

    def predict_step(self, data: Any) -> Any:
        """The wrapped model's."""
        return self.inner_model.predict_step(data)

    @property
    def output_names(self) -> Any:
        """The wrapped model's, by which Keras names losses and metrics; None if it has none."""
        return getattr(self.inner_model, "output_names", None)

    @output_names.setter
    def output_names(self, names: Any) -> None:
        """Keras 2 sets None when it makes a model."""

    def get_layer(self, name: str | None = None, index: int | None = None) -> Any:
        """The wrapped model's layer, as in Keras."""
        return self.inner_model.get_layer(name, index)

    def summary(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped model's, as in Keras."""
        return self.inner_model.summary(*args, **kwargs)

    def reset_metrics(self) -> None:
        super().reset_metrics()
        self._trackers.reset()

    # -- epsilon --------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        """The plan of the compiled optimizer; None if it has none."""
        return self._optimizer().plan

    def extend_plan(self, *, epochs: float | None = None, steps: int | None = None) -> Plan:
        """Allows more steps with the same noise; epsilon rises.

        Args:
          epochs: the new total number of epochs, not the additional ones; or
          steps: the new total number of steps.

        Returns:
          The longer plan.
        """
        optimizer = self._optimizer()
        if optimizer.plan is None:
            raise ValueError("the optimizer has no plan to extend.")
        optimizer.extend_plan(optimizer.plan.extended(epochs=epochs, steps=steps))
        self._retrace()
        return optimizer.plan

    def privacy_statement(self, *, delta: float | None = None) -> str:
        """Plain sentences on what the steps taken so far protect, and what they do not."""
        from tf_subjectdp.statement import optimizer_statement

        engine = self._engine_choice[1] if self._engine_choice else None
        self._lineage.watch(self.inner_model)
        return optimizer_statement(self._optimizer(), delta=delta, engine=engine)

    def _show_epsilon(self, callbacks: Any) -> None:
        wanted = any(isinstance(callback, PrivacyScalars) for callback in callbacks)
        if self._trackers.show(wanted):
            self._retrace()

    def _retrace(self) -> None:
        self.train_function = None
        if not compat.KERAS_3:
            self.train_tf_function = None

    def _warn_non_finite(self, count: int) -> None:
        if count:
            warnings.warn(
                "item gradients were NaN or infinite and counted as zero; look at the inputs, the loss "
                "and the learning rate.",
                RuntimeWarning,
                stacklevel=3,
            )


def _with_own_averages(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: with_own_averages(value) if name == "callbacks" else value
        for name, value in kwargs.items()
    }


def _has_texts(spec: Any) -> bool:
    return any(leaf.dtype == tf.string for leaf in tf.nest.flatten(spec))


def _flat(callbacks: Any) -> list[Any]:
    """The callbacks that `fit` was given: one, a nest of them, or Keras's `CallbackList`s."""
    found: list[Any] = []
    for part in [] if callbacks is None else tf.nest.flatten(callbacks):
        within = isinstance(part, tf.keras.callbacks.CallbackList)
        found += _flat(part.callbacks) if within else [part]
    return found
