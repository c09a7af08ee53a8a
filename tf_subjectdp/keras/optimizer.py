# SPDX-License-Identifier: Apache-2.0
"""`DPOptimizer`: any Keras optimizer, fed with noised sums only; and the count of its steps.

It never sees a gradient that was not clipped: `apply_gradients` is refused, and `private_step` hands
over clipped sums. The count is kept, saved, and never lowered.
"""

import dataclasses
import functools
import json
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_subjectdp.algorithms import Algorithm, algorithm_from_config, check_noise_multiplier
from tf_subjectdp.clipping import EngineOptions, PartUpdates, norms
from tf_subjectdp.keras import compat
from tf_subjectdp.keras.batches import Draw
from tf_subjectdp.keras.lineage import LineageTracker, register_file
from tf_subjectdp.noise import add_gaussian_noise
from tf_subjectdp.plans import Plan
from tf_subjectdp.runs import PrivateRun
from tf_subjectdp.sampling.dataset import LAST_PASS, new_pass


def clip_factor(algorithm: Algorithm, step: Any) -> tf.Tensor | None:
    """The factor of the clip norm in a step.

    Args:
      algorithm: the rule.
      step: int64 scalar, the number of steps before this one.

    Returns:
      float32 scalar; None if the clip norm never changes.
    """
    schedule = algorithm.clip_schedule
    if schedule is None:
        return None
    number = tf.identity(compat.raw(step)) // schedule.steps_per_factor
    number = tf.minimum(number, len(schedule.factors) - 1)
    return tf.gather(tf.constant(schedule.factors, tf.float32), number)


class Statistics:
    """The moving statistics that a model's pass writes to. A plain object: Keras 3 tracks lists of
    variables as a layer's own, and refuses new ones.

    Attributes:
      written: pairs as of `compat.batch_statistics`.
    """

    def __init__(self):
        self.written: list[tuple[Any, float | None]] = []


class PartEngines:
    """The engines for parts, one a set of variables; no checkpoint looks into it."""

    def __init__(self):
        self._made: dict[tuple[int, ...], PartUpdates] = {}

    def restore(self) -> None:
        """Puts weights back that a step left inside a part, un-noised, when an error ended it."""
        for made in self._made.values():
            made.restore()

    def engine(
        self, inner: Any, variables: Sequence[Any], statistics: Sequence[Any]
    ) -> PartUpdates | None:
        """The engine for parts that go through the model as a whole; None where gradients will do.

        Args:
          inner: an `InnerOptimizer`, or None for the gradient of the part's mean loss.
          variables: what is trained.
          statistics: as `compat.batch_statistics` returns them.
        """
        if inner is None and not statistics:
            return None
        moved = [*variables, *(variable for variable, _ in statistics)]
        key = (len(variables), *(id(compat.raw(v)) for v in moved))
        if key not in self._made:
            with tf.init_scope():
                optimizer = None if inner is None else inner.make()
            steps = 1 if inner is None else inner.steps
            self._made[key] = PartUpdates(
                variables,
                optimizer=optimizer,
                steps=steps if isinstance(steps, int) else None,
                statistics=[variable for variable, _ in statistics],
            )
        return self._made[key]


def move_statistics(statistics: Sequence[Any], changes: Sequence[tf.Tensor]) -> None:
    """Subtracts noised changes from moving statistics; a variance never falls below 0.

    Args:
      statistics: pairs (variable, smallest value or None), see `compat.batch_statistics`.
      changes: float32 tensors shaped as the variables: (before - after), clipped, noised, averaged.
    """
    for (variable, least), change in zip(statistics, changes, strict=True):
        variable = compat.raw(variable)
        value = variable - tf.cast(change, variable.dtype)
        variable.assign(value if least is None else tf.maximum(value, least))


def project(variables: Sequence[Any], radius: float) -> None:
    """Scales all weights together into the L2 ball of `radius` around 0 (Asi et al., Algorithm 1)."""
    tensors = [compat.raw(v) for v in variables]
    norm = norms.row_norms([tf.cast(v, tf.float32)[tf.newaxis] for v in tensors])[0]
    factor = norms.clip_factors(norm, radius)
    for tensor in tensors:
        tensor.assign(tf.cast(factor, tensor.dtype) * tensor)


# Passes over a plan's dataset share this many places, by their numbers. A place knows the newest pass
# that was trained on and refuses older ones, so that nothing that was trained on is ever forgotten.
_PLACES = 1024
_REPLAYED = (
    "This batch was trained on before, or out of its order, or it may have been: it comes from another "
    "process, from a pass that began before this optimizer was made, or from one that is "
    f"{_PLACES} passes behind. The steps of a plan are independent draws: iterate over plan.dataset(...) "
    "itself, not over a list, a file, a cache or a shuffling of its batches. Step:"
)


class _Seen(tf.train.experimental.PythonState):
    """What this process released and trained on; no checkpoint lowers it, and each one saves it.

    TensorFlow does not look for variables in it: a checkpoint has the text of `serialize` alone.

    Attributes:
      counters: the optimizer's saved variables, steps released and those drawn with a seed, which a
        checkpoint may set back until the next step. They show the count; nothing is decided by them.
      state: int64 [4]: the same two, never set back; pass and step of the last batch.
      steps: int64 [_PLACES, 2]: a pass, and the last of its steps that was trained on; at first the pass
        that was the newest when the optimizer was made, with no step left.

    Args:
      counters: see above.
      file: gives what a checkpoint holds of the weights' releases, JSON-able.
      read: takes it back.
    """

    def __init__(
        self,
        counters: Sequence[Any],
        file: Callable[[], dict[str, Any]],
        read: Callable[[dict[str, Any]], None],
    ):
        self.counters, self._file, self._read = counters, file, read
        with tf.init_scope():
            given = {"dtype": tf.int64, "trainable": False}
            given["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
            self.state = tf.Variable([0, 0, -1, -1], name="seen", **given)
            self.steps = tf.Variable([[new_pass(), tf.int64.max]] * _PLACES, **given)

    def counts(self) -> list[int]:
        """Steps released, and how many of them were drawn with a seed."""
        return self.state.numpy()[:2].tolist()

    def raise_to(self, counts: Sequence[int]) -> None:
        """Raises the two counts to at least these, wherever they are kept."""
        counts = tf.constant(
            [max(pair) for pair in zip(counts, self.counts(), strict=True)], tf.int64
        )
        for counter, count in zip(self.counters, tf.unstack(counts), strict=True):
            compat.raw(counter).assign(count)
        self.state.scatter_max(tf.IndexedSlices(counts, tf.constant([0, 1])))

    def serialize(self) -> str:
        """For checkpoints, where the counters themselves may be behind."""
        return json.dumps({"counts": self.counts(), **self._file()})

    def deserialize(self, string_value: bytes) -> None:
        """What a checkpoint says; it may restore the counters, which nothing reads, before or after."""
        self._read(json.loads(string_value))


class CountsSteps:
    """The part of `DPOptimizer` that counts; mixed in before Keras's optimizer.

    The counters come first among the optimizer's `variables`, so that they are saved with it.
    """

    plan: Plan | None
    algorithm: Algorithm
    noise_multiplier: float
    variables: Any

    def _make_counters(self, initial_weights: str | None) -> None:
        self.privacy_steps = compat.counter("privacy_steps")
        self.seeded_steps = compat.counter("seeded_steps")
        counters = [self.privacy_steps, self.seeded_steps]
        self._own_lineage = LineageTracker(initial_weights)
        self._seen = _Seen(counters, lambda: self._lineage.file(), self._read_file)

    @property
    def _lineage(self) -> LineageTracker:
        """Everything released of the weights. A copy of this optimizer owns a copy of it."""
        self._own_lineage.owner = self
        return self._own_lineage

    @property
    def own_run(self) -> PrivateRun:
        """What this optimizer itself released, without other runs of its plan."""
        steps, seeded = self.own_counts.tolist()
        return PrivateRun(self.plan, self.algorithm, self.noise_multiplier, steps, seeded)

    @property
    def own_counts(self) -> np.ndarray:
        """int64 [2]: its own steps, and how many of them were drawn with a seed."""
        return np.maximum(np.array(self._seen.counts()) - self._lineage.of_this_plan(), 0)

    @functools.cached_property
    def identity(self) -> Any:
        """See `PrivateRun.identity`."""
        return PrivateRun(self.plan, self.algorithm, self.noise_multiplier, 0).identity

    def raise_counts(self, counts: Sequence[int]) -> None:
        """Raises the counts, steps and seeded ones, to at least these."""
        self._seen.raise_to([int(count) for count in counts])

    def _read_file(self, config: dict[str, Any]) -> None:
        self._lineage.absorb(register_file(config))

    @property
    def steps_taken(self) -> int:
        """Noised sums released so far, over all `fit`s and resumes: what epsilon counts.

        Steps of other runs of the same plan, whose weights came in, are among them.
        """
        return self._seen.counts()[0]

    @property
    def steps_drawn_with_seed(self) -> int:
        """How many of the steps had batches drawn with a seed: for tests, and not private."""
        return self._seen.counts()[1]

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
        if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 0:
            raise ValueError(f"steps={steps!r} must be a whole number of at least 0.")
        self._seen.raise_to([int(steps), 0])

    def _count_step(self, draw: Draw | None, seeded: tf.Tensor) -> list[Any]:
        """Counts a step before it is released; what the release has to wait for.

        A batch that was trained on before, or a step beyond the plan's, stops there.
        """
        counter, of_seeds = compat.raw(self.privacy_steps), compat.raw(self.seeded_steps)
        taken, with_seed, last_pass, last_step = tf.unstack(tf.identity(self._seen.state))
        guards = []
        if self.plan is not None:
            place = draw.number % _PLACES
            met, met_step = tf.unstack(tf.gather(self._seen.steps, place))
            newer = (draw.number > met) & (draw.number <= LAST_PASS)
            guards.append(
                tf.debugging.Assert(
                    newer | (tf.equal(draw.number, met) & (draw.step > met_step)),
                    [
                        _REPLAYED,
                        draw.step,
                    ],
                )
            )
            epoch = self._epoch_length
            if epoch > 1:
                begins = tf.not_equal(draw.number, last_pass)
                begins |= tf.not_equal(draw.step // epoch, last_step // epoch)
                taken = tf.where(begins, self._whole_epochs(taken), taken)
            guards.append(
                tf.debugging.Assert(
                    taken < self.plan.steps,
                    [
                        "The planned steps are used up: taken",
                        taken,
                        f"of {self.plan.steps}. Extend the plan (extend_plan of PrivateModel or "
                        "DPOptimizer) to go on; epsilon then rises.",
                    ],
                )
            )
            last_pass, last_step = draw.number, draw.step
        with tf.control_dependencies([guard for guard in guards if guard is not None]):
            # Added, not assigned: steps of several threads are all counted.
            state = self._seen.state
            state.scatter_max(tf.IndexedSlices(tf.stack([taken, with_seed]), tf.constant([0, 1])))
            more = tf.stack([tf.constant(1, tf.int64), tf.cast(seeded, tf.int64)])
            state.scatter_add(tf.IndexedSlices(more, tf.constant([0, 1])))
            now = tf.unstack(tf.identity(state))
            updates = [counter.assign(now[0]), of_seeds.assign(now[1])]
            if self.plan is not None:
                last = tf.stack([last_pass, last_step])
                updates += [
                    state.scatter_update(tf.IndexedSlices(last, tf.constant([2, 3]))),
                    self._seen.steps.scatter_update(
                        tf.IndexedSlices(last[tf.newaxis], place[tf.newaxis])
                    ),
                ]
        return updates

    @property
    def _epoch_length(self) -> int:
        return self.plan.guarantee(self.plan.unit).steps_per_event if self.plan else 1

    def _whole_epochs(self, taken: Any) -> Any:
        """Steps that count as taken once a pass over the data begins anew."""
        epoch = self._epoch_length
        return (taken + epoch - 1) // epoch * epoch

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets all variables, in the order of `variables`; counts of steps never go down."""
        self._check_count(len(weights))
        for variable, weight in zip(self.variables, weights, strict=True):
            self._restore(variable, weight)

    def save_own_variables(self, store: Any) -> None:
        self._seen.raise_to([0, 0])
        for position, variable in enumerate(self.variables):
            store[str(position)] = compat.raw(variable).numpy()
        text = json.dumps(self._lineage.file())
        store["releases"] = np.frombuffer(text.encode(), np.uint8)

    def load_own_variables(self, store: Any) -> None:
        saved = set(store.keys())
        self._check_count(len(saved - {"releases"}))
        counts = [] if "releases" not in saved else [self.privacy_steps, self.seeded_steps]
        for position, variable in enumerate(self.variables):
            if not any(variable is count for count in counts):
                self._restore(variable, store[str(position)][()])
        if counts:
            # Whose steps these are is in the record: the counts may be those of another plan.
            self._read_file(json.loads(bytes(np.asarray(store["releases"][()]))))

    def _restore(self, variable: Any, value: Any) -> None:
        if variable is self.privacy_steps:
            self._seen.raise_to([int(value), 0])
        elif variable is self.seeded_steps:
            self._seen.raise_to([0, int(value)])
        else:
            compat.raw(variable).assign(value)

    def _check_count(self, found: int) -> None:
        # Keras skips such a state with a warning; a lost step count would make epsilon too small.
        if found != len(self.variables):
            raise ValueError(
                f"the saved optimizer has {found} variables, this one has {len(self.variables)}: the "
                "step count that privacy depends on cannot be restored. Build the model and wrap the "
                "same inner optimizer before loading."
            )


_INSTRUCTIONS = (
    "DPOptimizer does not take gradients: an averaged gradient can no longer be clipped person by "
    "person, and applying it would train without privacy. Use PrivateModel(model).fit, or, in a "
    "training loop of your own, tf_subjectdp.private_step(optimizer, row_function, variables, rows, "
    "extras)."
)


@tf.keras.utils.register_keras_serializable(package="tf_subjectdp")
class DPOptimizer(CountsSteps, tf.keras.optimizers.Optimizer):
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
      weight_radius: None, or the radius of an L2 ball around 0 into which all weights are scaled after
        each update (the projection of Asi et al., Algorithm 1).
      initial_weights: "public" says that the weights which it begins with are fresh, or were trained
        on data that need no protection; see `PrivateModel`.
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
        weight_radius: float | None = None,
        initial_weights: str | None = None,
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
        if plan is not None and not isinstance(plan, Plan):
            raise TypeError(f"plan must be a Plan made by plan(...), not {type(plan).__name__}.")
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
        divisor = _above_zero("divisor", 1.0 if divisor is None else divisor)
        if weight_radius is not None:
            weight_radius = _above_zero("weight_radius", weight_radius)
        if compat.KERAS_3:
            super().__init__(learning_rate=0.0, name=name)
        else:
            super().__init__(name=name)
        self.inner = inner
        self._algorithm = algorithm
        self._noise_multiplier = check_noise_multiplier(noise_multiplier)
        self._divisor = divisor
        self._weight_radius = weight_radius
        self._parts = PartEngines()
        self._plan = plan
        self.engine = _engine_options(engine)
        self._engine_said = ""
        self._make_counters(initial_weights)

    # Read-only: what the statement says must be what the steps did.

    @property
    def algorithm(self) -> Algorithm:
        """The clipping rule."""
        return self._algorithm

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation on the sum, divided by the clip norm."""
        return self._noise_multiplier

    @property
    def divisor(self) -> float:
        """The constant that divides the noised sum."""
        return self._divisor

    @property
    def plan(self) -> Plan | None:
        """The plan; None where the sampling is the user's word."""
        return self._plan

    # -- the step ---------------------------------------------------------------------------------

    def _release(
        self,
        total: Sequence[tf.Tensor],
        variables: Sequence[Any],
        *,
        after: Sequence[Any],
        seed: tf.Tensor,
        extra_gradients: Sequence[tf.Tensor] | None,
        draw: Draw | None,
        seeded: tf.Tensor,
        statistics: Sequence[Any] = (),
        layers: Sequence[Any] = (),
        factor: tf.Tensor | None = None,
        counted: list[Any] | None = None,
    ) -> None:
        """Counts the step, adds noise to a clipped sum, divides by the constant, and updates.

        For `private_step` alone, which has clipped. Args: `total`, float32 tensors shaped as
        `variables`; what all of it waits for; the noise's fresh seed; gradients free of data that are
        added after the division; which draw the batch is; whether it was drawn with a seed; moving
        statistics, whose changes come last in `total`; the model's layers; what multiplies the noised
        sum, if anything.
        """
        variables = list(variables)
        with tf.init_scope():
            self.build(variables)
        written = self._followed(variables, [v for v, _ in statistics], layers)
        written.before_step()
        if counted is None:
            counted = self._count(after, draw, seeded)
        # The sums wait for the count. The noise does not: it can be made beside the batch's gradients.
        with tf.control_dependencies(counted):
            total = [tf.identity(part) for part in total]
        stddev = self.algorithm.noise_stddev(self.noise_multiplier)
        gradients = add_gaussian_noise(total, stddev, divisor=self.divisor, seed=seed)
        if factor is not None:
            gradients = [factor * part for part in gradients]
        gradients, changes = gradients[: len(variables)], gradients[len(variables) :]
        with tf.control_dependencies(counted):
            move_statistics(statistics, changes)
            if extra_gradients is not None:
                gradients = [g + e for g, e in zip(gradients, extra_gradients, strict=True)]
            gradients = [
                tf.cast(g, compat.raw(v).dtype) for g, v in zip(gradients, variables, strict=True)
            ]
            self.inner.apply_gradients(list(zip(gradients, variables, strict=True)))
            if self._weight_radius is not None:
                project(variables, self._weight_radius)
            written.after_step()

    def _slots(self, variables: Sequence[Any]) -> list[tf.Variable]:
        """What the inner optimizer keeps of earlier steps, but single numbers (its rates) where no weight
        is one."""
        least = 0 if any(variable.shape.rank == 0 for variable in map(compat.raw, variables)) else 1
        names = ("learning_rate", "current_learning_rate")
        found = map(compat.raw, self.variables[2:])
        return [
            v
            for v in found
            if v.dtype.is_floating
            and v.shape.rank >= least
            and v.shape.num_elements()
            and v.name.split("/")[-1].split(":")[0] not in names
        ]

    def make_step_variables(
        self, variables: Sequence[Any], statistics: Sequence[Any], layers: Sequence[Any]
    ) -> None:
        """Makes what a step keeps before it is traced: TensorFlow traces a function that makes variables
        a second time. Args: as in `_release`, the statistics without their momentum."""
        pairs = [(variable, None) for variable in statistics]
        self._parts.engine(self.algorithm.inner, variables, pairs)
        self._followed(variables, statistics, layers)

    def _followed(self, variables, statistics, layers) -> Any:
        return self._lineage.stepped([*variables, *statistics], layers, self._slots(variables))

    def _count(self, after: Sequence[Any], draw: Draw | None, seeded: tf.Tensor) -> list[Any]:
        with tf.control_dependencies(after):
            return self._count_step(draw, seeded)

    def restore_weights(self) -> None:
        """After an error in a loop of your own: puts back weights that a step left inside a part.

        With an `InnerOptimizer` (or BatchNormalization) a part trains the model's own weights, and an
        error there leaves them un-noised. `PrivateModel` calls this itself.
        """
        self._parts.restore()

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> None:
        """Always refused: raises ValueError that says what to call instead."""
        raise ValueError(_INSTRUCTIONS)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Always refused, as `apply_gradients`."""
        raise ValueError(_INSTRUCTIONS)

    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> None:
        """Always refused, as `apply_gradients`."""
        raise ValueError(_INSTRUCTIONS)

    # -- the plan ---------------------------------------------------------------------------------

    def extend_plan(self, plan: Plan) -> None:
        """Replaces the plan by a longer one of the same sampling, rule and noise.

        Raises:
          ValueError: there is no plan yet, or the new one differs in more than its length.
        """
        if self.plan is None:
            raise ValueError("this optimizer has no plan to extend; make one with plan(...).")
        if not isinstance(plan, Plan):
            raise TypeError(f"plan must be a Plan, not {type(plan).__name__}; see Plan.extended.")
        free = ("steps", "target_epsilon", "delta")
        fields = [f.name for f in dataclasses.fields(Plan) if f.name not in free]
        differing = [f for f in fields if getattr(plan, f) != getattr(self.plan, f)]
        if differing or plan.steps < self.plan.steps:
            raise ValueError(
                f"the new plan differs in {differing or ['steps (fewer)']}; only a longer run of the "
                "same plan can follow: use plan.extended(epochs=...) or plan.extended(steps=...)."
            )
        self._plan = plan

    @property
    def steps_left(self) -> int | None:
        """Steps of the plan that a new pass over its data may take, for `dataset.take(steps_left)`.

        A begun epoch of shuffled data counts whole, since a new pass begins another one. None without a
        plan.
        """
        return None if self.plan is None else max(self.plan.steps - self.steps_at_new_pass, 0)

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
        self._lineage.look()
        self.inner.finalize_variable_values(var_list)
        self._lineage.accept()

    def exchange_averages(self) -> None:
        """Exchanges the weights with the averages that an inner optimizer of Keras 3 keeps (`use_ema`).

        Averages of noised weights cost nothing more. Keras's own `SwapEMAWeights` adds and subtracts: by
        its rounding neither the averages nor the weights would be what the steps left.

        Raises:
          ValueError: the inner optimizer keeps no averages, or no weights are known to it yet.
        """
        pairs = self._weights_and_averages()
        self._lineage.look()
        for weight, average in pairs:
            kept = tf.identity(weight)
            weight.assign(average)
            average.assign(kept)
        self._lineage.accept()
        self._lineage.look()

    def average_from_here(self) -> None:
        """Sets the averages of `exchange_averages` to the weights as they are."""
        for weight, average in self._weights_and_averages():
            average.assign(weight)

    def _weights_and_averages(self) -> list[tuple[tf.Variable, tf.Variable]]:
        averages = getattr(self.inner, "_model_variables_moving_average", None)
        if averages is None:
            name = type(self.inner).__name__
            raise ValueError(
                f"{name} keeps no averages of the weights, or has no weights yet: make it with "
                f"use_ema=True, plan.optimizer(tf.keras.optimizers.{name}(..., use_ema=True)), and build "
                "the model."
            )
        pairs = zip(self.inner._trainable_variables, averages, strict=True)
        return [(compat.raw(weight), compat.raw(average)) for weight, average in pairs]

    def get_config(self) -> dict[str, Any]:
        config = {
            "name": self.name,
            # Not optimizers.serialize, whose inverse does not know all of Keras's own optimizers.
            "inner": tf.keras.utils.serialize_keras_object(self.inner),
            "engine": dataclasses.asdict(self.engine),
            "weight_radius": self._weight_radius,
            "initial_weights": self._lineage.initial_weights,
        }
        if self._lineage.decisions:
            config["decisions"] = self._lineage.decisions
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
        decisions = config.pop("decisions", ())
        made = cls(inner, **config)
        for sentence in decisions:
            made._lineage.remark(sentence)
        return made

    def __deepcopy__(self, memo: Any) -> "DPOptimizer":
        """As Keras's `from_config(get_config())`: it has taken no step, and neither has its inner one.

        What the steps of this one cost belongs to the weights that they left, and so to whoever goes on
        with these, the copy included. The user's word on the first weights is not about those.
        """
        given: dict[str, Any] = {"plan": self.plan}
        if self.plan is None:
            given = {
                "algorithm": self.algorithm,
                "noise_multiplier": self.noise_multiplier,
                "divisor": self.divisor,
            }
        memo[id(self)] = copied = type(self)(
            type(self.inner).from_config(self.inner.get_config()),
            **given,
            engine=self.engine,
            weight_radius=self._weight_radius,
            initial_weights=None if self.steps_taken else self._lineage.initial_weights,
            name=self.name,
        )
        for sentence in self._lineage.decisions:
            copied._lineage.remark(sentence)
        return copied


def _above_zero(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r} must be a number.")
    if not math.isfinite(value) or value <= 0.0:
        raise ValueError(f"{name}={value} must be finite and above 0.")
    return float(value)


class _CallableList(list):
    """Keras 2 calls `optimizer.variables()` in places."""

    def __call__(self) -> list[Any]:
        return self


def _engine_options(engine: Any) -> EngineOptions:
    if isinstance(engine, EngineOptions):
        return engine
    known = {field.name for field in dataclasses.fields(EngineOptions)}
    if engine is None or (isinstance(engine, dict) and set(engine) <= known):
        return EngineOptions(**(engine or {}))
    raise TypeError(
        f"engine={engine!r} must be EngineOptions(...) or a dict with some of {sorted(known)}."
    )
