# SPDX-License-Identifier: Apache-2.0
"""The work of a silo in one round: its own draws, clipped sums, noise, and an update.

Knows the plan, a model, draws and seeds; imports `clipping` and `algorithms`. TFF's own client work takes
a batch's mean loss, in which a person can no longer be told apart.
"""

import collections
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_subjectdp import clipping
from tf_subjectdp.federated import draws, silo_rows
from tf_subjectdp.federated.plans import FederatedPlan
from tf_subjectdp.federated.silo_model import SiloModel, with_penalties
from tf_subjectdp.noise import add_gaussian_noise, silo_seed
from tf_subjectdp.sampling import FixedSize

#: Group sizes are counted in bins 1, 2, 3-4, 5-8, ...: the upper ends are powers of two.
SIZE_BINS = 16
# A cap that caps nothing.
_NO_CAP = 2**31 - 1

#: What a silo reports beside its update, added up over silos. Not private.
COUNTS = (
    "silos",
    "steps",
    "items",
    "subjects",
    "loss",
    "correct",
    "predicted",
    "clipped",
    "terms",
    "non_finite",
    "dropped",
    "empty",
    "signal",
    "squared_update",
    "diverged",
)


class SiloWork:
    """One silo's round, as a function of weights and data; traced inside a TFF computation.

    Args:
      plan: the plan; its constants become tables in the graph, read at the silo's own number.
      optimizer: a `tff.learning.optimizers.Optimizer`, stateless between rounds.
      model: the model, made in this computation.
      kernel: whether the silos' machines have the kernel's file of random bits.
      counts: whether counts are reported; zeros stand for them if not.
    """

    def __init__(
        self,
        plan: FederatedPlan,
        optimizer: Any,
        model: SiloModel,
        *,
        kernel: bool,
        counts: bool = True,
    ):
        self._plan, self._optimizer, self._model, self._kernel = plan, optimizer, model, kernel
        self._reports_counts = counts
        self._kinds = sorted({type(one) for one in plan.samplings}, key=lambda kind: kind.__name__)

    def input_signature(self) -> list[Any]:
        """The `tf.TensorSpec`s of what a call takes."""
        model = self._model
        x, y = model.input_spec
        weights, frozen = (
            [tf.TensorSpec(v.shape, v.dtype) for v in group]
            for group in (model.trainable_variables, model.non_trainable_variables)
        )
        data = {"silo": tf.TensorSpec([], tf.int32), "x": x, "y": y}
        groups = ("subject", "element") if self._plan.needs_elements else ("subject",)
        data.update({group: tf.TensorSpec([None], tf.int64) for group in groups})
        return [weights, frozen, data]

    def __call__(self, weights: list[tf.Tensor], frozen: list[tf.Tensor], data: Any) -> Any:
        """One round.

        Args:
          weights: trainable weights that the round starts from.
          frozen: the others.
          data: dict with "silo" (int32, its number), "x", "y" (nests of [n, ...]) and "subject"
            (int64 [n], numbers from 0); for an algorithm that needs elements also "element" (int64 [n],
            any number for the element that a row belongs to within its subject).

        Returns:
          What the silo reports. "update": tensors shaped as `weights`, weight times (start - end), or,
          where the server adds the noise, the clipped sum. "counts": float32 by name (`COUNTS`), and
          "sizes" float32 [`SIZE_BINS`], how many subjects of all batches brought so many items.
          "took_part": int64 [silos], 1 at this silo.
        """
        model, central = self._model, self._plan.noise_at == "server"
        for variable, value in zip(model.trainable_variables, weights, strict=True):
            variable.assign(value)
        for variable, value in zip(model.non_trainable_variables, frozen, strict=True):
            variable.assign(value)
        constants = self._constants(data["silo"])
        rows = silo_rows.rows_that_stay(
            self._plan, data, constants["max_items"], constants["element_items"]
        )
        counts = self._no_counts()
        dropped = tf.size(data["subject"]) - tf.size(rows.subject)
        counts["dropped"] = tf.cast(dropped, tf.float32)
        if any(kind is FixedSize for kind in self._kinds):
            fixed = tf.equal(constants["kind"], self._kinds.index(FixedSize))
            silo_rows.check_size(rows.subject, fixed, constants["items"])
        strategy = self._strategy(rows.data)
        if central:
            sums, found = self._clipped_sum(rows, constants, strategy)
            update, counts = sums.total, _added(counts, found)
        else:
            update, found = self._local_steps(rows, constants, strategy)
            counts = _added(counts, found)
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(part)) for part in update])
        # What is released already may be left out: the others' rounds go on.
        update = [tf.where(finite, part, tf.zeros_like(part)) for part in update]
        counts["diverged"] = tf.cast(~finite, tf.float32)
        counts["silos"] = tf.constant(1.0)
        counts["squared_update"] = tf.square(tf.linalg.global_norm(update))
        if not central:
            update = [constants["weight"] * part for part in update]
        if not self._reports_counts:
            counts = self._no_counts()
        took_part = tf.one_hot(data["silo"], self._plan.n_silos, dtype=tf.int64)
        return collections.OrderedDict(update=list(update), counts=counts, took_part=took_part)

    def _constants(self, silo: tf.Tensor) -> dict[str, tf.Tensor]:
        """The silo's own line of the plan."""
        plan, algorithm = self._plan, self._plan.algorithm
        caps = [facts.step_cap or _NO_CAP for facts in plan.facts]
        noise = [0.0] * plan.n_silos
        if algorithm is not None:
            noise = [algorithm.noise_stddev(sigma) for sigma in plan.noise_multipliers]
        largest = [facts.max_element_items or _NO_CAP for facts in plan.facts]
        tables = {
            "rate": tf.constant([facts.rate for facts in plan.facts], tf.float64),
            "size": tf.constant([round(facts.batch_size) for facts in plan.facts], tf.int64),
            "items": tf.constant([facts.n_items for facts in plan.facts], tf.int64),
            "max_items": tf.constant([facts.max_items for facts in plan.facts], tf.int32),
            "step_cap": tf.constant(caps, tf.int32),
            "element_items": tf.constant(largest, tf.int64),
            "divisor": tf.constant(plan.divisors, tf.float32),
            "noise": tf.constant(noise, tf.float32),
            "weight": tf.constant(plan.weights, tf.float32),
            "kind": tf.constant([self._kinds.index(type(one)) for one in plan.samplings]),
        }
        return {name: tf.gather(table, silo) for name, table in tables.items()}

    def _strategy(self, rows: Any) -> str:
        """How sums are computed; chosen as the computation is traced."""
        model = self._model
        spec = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), rows)
        name, _ = clipping.choose_strategy(
            model.row_function,
            model.trainable_variables,
            spec,
            linear=self._plan.algorithm is None or self._plan.algorithm.kind == "linear",
            options=model.options,
            layers=model.layers,
            one_term=self._plan.algorithm is not None and self._plan.algorithm.one_term,
        )
        return name

    def _drawn(self, rows: silo_rows.Rows, constants: dict) -> tf.Tensor:
        seed = silo_seed(self._kernel)

        def drawn(kind: type) -> Callable[[], tf.Tensor]:
            return lambda: draws.rows_of_step(
                kind,
                constants["rate"],
                constants["size"],
                constants["step_cap"],
                rows.subject,
                seed,
                rows.pair,
            )

        if len(self._kinds) == 1:
            found = drawn(self._kinds[0])()
        else:
            found = tf.switch_case(constants["kind"], [drawn(kind) for kind in self._kinds])
        if self._plan.algorithm is not None and self._plan.algorithm.rows_lie_together:
            # Rows that are clipped together lie together, and need not be copied.
            together = rows.subject if rows.pair is None else rows.pair
            found = tf.gather(found, tf.argsort(tf.gather(together, found), stable=True))
        return found

    def _clipped_sum(self, rows, constants, strategy):
        """One step's sum, and what it counts."""
        model, algorithm = self._model, self._plan.algorithm
        drawn = self._drawn(rows, constants)
        people, places = tf.gather(rows.subject, drawn), tf.gather(rows.kept, drawn)
        batch = tf.nest.map_structure(lambda t: tf.gather(t, places), rows.data)
        mask = tf.ones_like(people, tf.bool)
        if algorithm is None:
            partition = clipping.item_terms(mask)
            clip_norm = 1e30
        else:
            pair = None if rows.pair is None else tf.gather(rows.pair, drawn)
            partition = algorithm.partition(people, mask, pair)
            clip_norm = algorithm.clip_norm
        summed = clipping.clipped_sum(
            model.row_function,
            model.trainable_variables,
            batch,
            partition,
            clip_norm,
            strategy=strategy,
            options=model.options,
            layers=model.layers,
        )
        return summed, self._counts_of(summed, people, batch[1])

    def _local_steps(self, rows, constants, strategy):
        """T noised steps; (start - end, counts)."""
        plan, model, optimizer = self._plan, self._model, self._optimizer
        variables = model.trainable_variables
        start = [tf.identity(v) for v in variables]
        specs = tuple(tf.TensorSpec(v.shape, v.dtype) for v in variables)
        private = plan.algorithm is not None

        def step(number, state, counts):
            noise_seed = silo_seed(self._kernel)
            summed, found = self._clipped_sum(rows, constants, strategy)
            total = summed.total
            if private and max(plan.noise_multipliers) > 0.0:
                total = add_gaussian_noise(
                    total, constants["noise"], seed=noise_seed, compiled=False
                )
            gradients = [part / constants["divisor"] for part in total]
            gradients = with_penalties(model, gradients)
            gradients = [tf.cast(g, v.dtype) for g, v in zip(gradients, variables, strict=True)]
            state, moved = optimizer.next(
                state, tuple(tf.identity(v) for v in variables), tuple(gradients)
            )
            for variable, value in zip(variables, moved, strict=True):
                variable.assign(value)
            return number + 1, state, _added(counts, found)

        state = optimizer.initialize(specs)
        _, _, counts = tf.while_loop(
            lambda number, *_: number < plan.local_steps,
            step,
            (tf.constant(0), state, self._no_counts()),
            parallel_iterations=1,
        )
        return [tf.cast(a - b, tf.float32) for a, b in zip(start, variables, strict=True)], counts

    def _no_counts(self) -> dict[str, tf.Tensor]:
        counts = {name: tf.constant(0.0) for name in COUNTS}
        return collections.OrderedDict(counts, sizes=tf.zeros([SIZE_BINS]))

    def _counts_of(self, summed: Any, people: tf.Tensor, y: Any) -> dict[str, tf.Tensor]:
        index = clipping.subject_index(people, tf.ones_like(people, tf.bool))
        sizes = clipping.group_sizes(index)
        ends = tf.constant([2.0**power for power in range(SIZE_BINS - 1)])
        bins = tf.where(sizes > 0, tf.searchsorted(ends, sizes), -1)
        correct, predicted = _accuracy(summed, y)
        counts = self._no_counts()
        counts.update(
            steps=tf.constant(1.0),
            items=tf.cast(tf.size(summed.losses), tf.float32),
            subjects=tf.reduce_sum(tf.cast(sizes > 0, tf.float32)),
            loss=tf.reduce_sum(summed.losses),
            correct=correct,
            predicted=predicted,
            clipped=summed.clipped,
            terms=summed.groups,
            non_finite=summed.non_finite,
            empty=tf.cast(tf.equal(tf.size(people), 0), tf.float32),
            signal=tf.linalg.global_norm(summed.total),
            sizes=tf.math.unsorted_segment_sum(tf.ones_like(sizes), bins, SIZE_BINS),
        )
        return counts


def _accuracy(summed: Any, y: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Items that were predicted right and items with a class; zeros where y is no class."""
    none = tf.constant(0.0), tf.constant(0.0)
    predictions = summed.predictions
    if tf.nest.is_nested(y) or tf.nest.is_nested(predictions):
        return none
    if not y.dtype.is_integer or predictions.shape.rank != 2 or predictions.shape[-1] < 2:
        return none
    classes = tf.reshape(tf.gather(y, summed.rows), [-1])
    found = tf.equal(tf.argmax(predictions, axis=-1), tf.cast(classes, tf.int64))
    return tf.reduce_sum(tf.cast(found, tf.float32)), tf.cast(tf.size(classes), tf.float32)


def _added(first: dict, second: dict) -> dict[str, tf.Tensor]:
    return collections.OrderedDict((name, first[name] + second[name]) for name in first)
