# SPDX-License-Identifier: Apache-2.0
"""`DPOptimizer`: any Keras optimizer, fed with noised sums only.

Knows algorithms, the engine's options and the plan; a thin wrapper. It never sees a gradient that
was not clipped: `apply_gradients` is refused, `apply_clipped_sum` adds the noise.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp.algorithms import (
    Algorithm,
    add_gaussian_noise,
    algorithm_from_config,
    check_noise_multiplier,
)
from tf_subjectdp.clipping import EngineOptions
from tf_subjectdp.keras import compat
from tf_subjectdp.plans import Plan

_INSTRUCTIONS = (
    "DPOptimizer does not take gradients: an averaged gradient can no longer be clipped person by "
    "person, and applying it would train without privacy. Use PrivateModel(model).fit, or, in a "
    "training loop of your own, tf_subjectdp.private_step(optimizer, row_function, variables, rows, "
    "extras)."
)


@tf.keras.utils.register_keras_serializable(package="tf_subjectdp")
class DPOptimizer(tf.keras.optimizers.Optimizer):
    """Wraps a Keras optimizer so that it sees clipped, noised and constantly scaled sums.

    Made by `plan.optimizer(inner)`, or without a plan, where the sampling is the user's word:

        DPOptimizer("adam", HiGradAvg(clip_norm=1.0), noise_multiplier=1.1, divisor=256)

    The learning rate, its schedules and callbacks act on the inner optimizer. `iterations` counts the
    inner optimizer's updates; `privacy_steps` counts noised sums ever released, is saved with the
    optimizer, and is what epsilon is computed from.

    Args:
      inner: a Keras optimizer, or anything that `tf.keras.optimizers.get` accepts.
      algorithm: the clipping rule; taken from `plan` if there is one.
      noise_multiplier: noise standard deviation on the sum, divided by the clip norm; from `plan`.
      divisor: the public constant that divides the noised sum, e.g. the expected batch size. Without
        a plan and without a divisor the sum itself is applied (divisor 1).
      plan: the `Plan` that fixes all of the above and the number of steps.
      engine: `EngineOptions`, or its fields as a dict.
      name: name of the optimizer.
    """

    def __init__(
        self,
        inner: Any,
        algorithm: Algorithm | None = None,
        *,
        noise_multiplier: float | None = None,
        divisor: float | None = None,
        plan: Plan | None = None,
        engine: EngineOptions | dict | None = None,
        name: str = "DPOptimizer",
        **kwargs: Any,
    ):
        if kwargs:
            raise TypeError(
                f"DPOptimizer has no arguments {sorted(kwargs)}; arguments of the optimizer itself "
                "(learning_rate, beta_1, clipnorm, ...) belong to the inner one."
            )
        inner = tf.keras.optimizers.get(inner)
        if isinstance(inner, DPOptimizer):
            raise ValueError("inner is a DPOptimizer already; wrap the plain optimizer once.")
        compat.require_optimizer(inner)
        if plan is not None:
            given = {
                "algorithm": algorithm,
                "noise_multiplier": noise_multiplier,
                "divisor": divisor,
            }
            both = sorted(key for key, value in given.items() if value is not None)
            if both:
                raise ValueError(f"{both} come from the plan; leave them out or leave out plan=.")
            algorithm, noise_multiplier = plan.algorithm, plan.noise_multiplier
            divisor = plan.divisor
        if not isinstance(algorithm, Algorithm):
            raise TypeError(f"algorithm={algorithm!r} must be an algorithm such as HiGradAvg(1.0).")
        if noise_multiplier is None:
            raise ValueError("noise_multiplier is missing; 0.0 is allowed and is not private.")
        divisor = 1.0 if divisor is None else float(divisor)
        if not math.isfinite(divisor) or divisor <= 0.0:
            raise ValueError(f"divisor={divisor} must be finite and above 0.")
        if compat.KERAS_3:
            super().__init__(learning_rate=0.0, name=name)
        else:
            super().__init__(name=name)
        self.inner = inner
        self.algorithm = algorithm
        self.noise_multiplier = check_noise_multiplier(noise_multiplier)
        self.divisor = divisor
        self.plan = plan
        self.engine = (
            engine if isinstance(engine, EngineOptions) else EngineOptions(**(engine or {}))
        )
        self.privacy_steps = compat.counter("privacy_steps")
        self.seeded_steps = compat.counter("seeded_steps")

    # -- the step ---------------------------------------------------------------------------------

    def apply_clipped_sum(
        self,
        total: Sequence[tf.Tensor],
        variables: Sequence[Any],
        *,
        extra_gradients: Sequence[tf.Tensor] | None = None,
        begins_epoch: tf.Tensor | bool = False,
        seeded: tf.Tensor | bool = False,
    ) -> None:
        """Counts the step, adds noise to a clipped sum, divides by the constant, and updates.

        Args:
          total: float32 tensors shaped as `variables`: the clipped sum of a batch.
          variables: the trainable variables.
          extra_gradients: gradients that do not depend on the data (regularisation), added after
            the division.
          begins_epoch: whether this batch begins a pass over shuffled data; an epoch that was
            begun earlier then counts whole.
          seeded: whether the batch was drawn with a seed; the statement then says so.

        Raises:
          tf.errors.InvalidArgumentError: the plan's steps are used up.
        """
        variables = list(variables)
        with tf.init_scope():
            self.build(variables)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        counted = self._count_step(begins_epoch)
        counted.append(compat.raw(self.seeded_steps).assign_add(tf.cast(seeded, tf.int64)))
        with tf.control_dependencies(counted):
            # The inner optimizer sums over replicas: independent parts of the noise add up to it.
            stddev = self.noise_multiplier * self.algorithm.clip_norm / math.sqrt(replicas)
            noised = add_gaussian_noise(total, stddev)
            gradients = [t / self.divisor for t in noised]
            if extra_gradients is not None:
                gradients = [
                    g + e / replicas for g, e in zip(gradients, extra_gradients, strict=True)
                ]
            gradients = [
                tf.cast(g, compat.raw(v).dtype) for g, v in zip(gradients, variables, strict=True)
            ]
            self.inner.apply_gradients(list(zip(gradients, variables, strict=True)))

    def _count_step(self, begins_epoch: tf.Tensor | bool) -> list[Any]:
        counter = compat.raw(self.privacy_steps)
        taken = tf.identity(counter)
        if self.plan is None:
            return [counter.assign_add(1)]
        taken = tf.where(begins_epoch, self._whole_epochs(taken), taken)
        guard = tf.debugging.Assert(
            taken < self.plan.steps,
            [
                "The planned steps are used up: taken",
                taken,
                f"of {self.plan.steps}. Extend the plan (PrivateModel.extend_plan) to go on; epsilon "
                "then rises.",
            ],
        )
        with tf.control_dependencies([] if guard is None else [guard]):
            return [counter.assign(taken + 1)]

    def _whole_epochs(self, taken: Any) -> Any:
        """Steps that count as taken once a pass over the data begins anew."""
        epoch = self.plan.guarantee(self.plan.unit).steps_per_event if self.plan else 1
        return (taken + epoch - 1) // epoch * epoch

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> None:
        """Always refused: raises ValueError that says what to call instead."""
        raise ValueError(_INSTRUCTIONS)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Always refused, as `apply_gradients`."""
        raise ValueError(_INSTRUCTIONS)

    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> None:
        """Always refused, as `apply_gradients`."""
        raise ValueError(_INSTRUCTIONS)

    # -- the counter and the plan -----------------------------------------------------------------

    @property
    def steps_taken(self) -> int:
        """Noised sums released so far, over all `fit`s and resumes: what epsilon counts."""
        return int(compat.raw(self.privacy_steps).numpy())

    @property
    def steps_drawn_with_seed(self) -> int:
        """How many of the steps had batches drawn with a seed: for tests, and not private."""
        return int(compat.raw(self.seeded_steps).numpy())

    @property
    def steps_at_new_pass(self) -> int:
        """`steps_taken`, with an epoch of shuffled data that was begun counted whole: what is spent
        when another pass over the data begins."""
        return self._whole_epochs(self.steps_taken)

    def count_lost_steps(self, steps: int) -> None:
        """Raises the step count to at least `steps`: steps that a crash lost were taken all the same.

        Args:
          steps: what a record outside the checkpoint says, e.g. `PrivacyLedger`'s file.
        """
        if steps > self.steps_taken:
            compat.raw(self.privacy_steps).assign(int(steps))

    def extend_plan(self, plan: Plan) -> None:
        """Replaces the plan by a longer one of the same sampling, rule and noise.

        Raises:
          ValueError: there is no plan yet, or the new one differs in more than its length.
        """
        if self.plan is None:
            raise ValueError("this optimizer has no plan to extend; make one with plan(...).")
        free = ("steps", "target_epsilon", "delta")
        fields = [f.name for f in dataclasses.fields(Plan) if f.name not in free]
        differing = [f for f in fields if getattr(plan, f) != getattr(self.plan, f)]
        if differing or plan.steps < self.plan.steps:
            raise ValueError(
                f"the new plan differs in {differing or ['steps (fewer)']}; only a longer run of the "
                "same plan can follow: use plan.extended(epochs=...) or plan.extended(steps=...)."
            )
        self.plan = plan

    # -- everything else is the inner optimizer's ---------------------------------------------------

    def _create_iteration_variable(self) -> None:
        """Keras 2: the inner optimizer has the iteration counter."""

    @property
    def iterations(self) -> Any:
        return self.inner.iterations

    @iterations.setter
    def iterations(self, variable: Any) -> None:
        self.inner.iterations = variable

    @property
    def learning_rate(self) -> Any:
        return self.inner.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner.learning_rate = value

    @property
    def lr(self) -> Any:
        return self.inner.learning_rate

    @lr.setter
    def lr(self, value: Any) -> None:
        self.inner.learning_rate = value

    @property
    def variables(self) -> Any:
        inner = self.inner.variables
        found = [self.privacy_steps, self.seeded_steps, *(inner() if callable(inner) else inner)]
        return found if compat.KERAS_3 else _CallableList(found)

    def build(self, var_list: Sequence[Any]) -> None:
        """Makes the inner optimizer's variables."""
        if not getattr(self.inner, "_built", False) or compat.KERAS_3:
            if not (compat.KERAS_3 and self.inner.built):
                self.inner.build(list(var_list))
        if compat.KERAS_3:
            self.built = True
        self._built = True

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        self.inner.finalize_variable_values(var_list)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets all variables, in the order of `variables`."""
        self._check_count(len(weights))
        for variable, weight in zip(self.variables, weights, strict=True):
            compat.raw(variable).assign(weight)

    def save_own_variables(self, store: Any) -> None:
        for position, variable in enumerate(self.variables):
            store[str(position)] = compat.raw(variable).numpy()

    def load_own_variables(self, store: Any) -> None:
        self._check_count(len(store.keys()))
        for position, variable in enumerate(self.variables):
            compat.raw(variable).assign(store[str(position)][()])

    def _check_count(self, found: int) -> None:
        # Keras skips such a state with a warning; a lost step count would make epsilon too small.
        if found != len(self.variables):
            raise ValueError(
                f"the saved optimizer has {found} variables, this one has {len(self.variables)}: the "
                "step count that privacy depends on cannot be restored. Build the model and wrap the "
                "same inner optimizer before loading."
            )

    def get_config(self) -> dict[str, Any]:
        config = {
            "name": self.name,
            # Not optimizers.serialize, whose inverse does not know all of Keras's own optimizers.
            "inner": tf.keras.utils.serialize_keras_object(self.inner),
            "engine": dataclasses.asdict(self.engine),
        }
        if self.plan is not None:
            return {**config, "plan": self.plan.get_config()}
        return {
            **config,
            "algorithm": self.algorithm.get_config(),
            "noise_multiplier": self.noise_multiplier,
            "divisor": self.divisor,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "DPOptimizer":
        config = dict(config)
        config.pop("is_legacy_optimizer", None)
        inner = config.pop("inner")
        if not isinstance(inner, tf.keras.optimizers.Optimizer):
            inner = tf.keras.utils.deserialize_keras_object(inner, custom_objects=custom_objects)
        if config.get("plan") is not None:
            config["plan"] = Plan.from_config(config["plan"])
        if config.get("algorithm") is not None:
            config["algorithm"] = algorithm_from_config(config["algorithm"])
        return cls(inner, **config)


class _CallableList(list):
    """Keras 2 calls `optimizer.variables()` in places."""

    def __call__(self) -> list[Any]:
        return self
