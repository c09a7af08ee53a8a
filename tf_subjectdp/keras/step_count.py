# SPDX-License-Identifier: Apache-2.0
"""The count of released steps that epsilon is computed from: kept, saved, and never lowered."""

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_subjectdp.algorithms import Algorithm
from tf_subjectdp.keras import compat
from tf_subjectdp.keras.batches import Draw
from tf_subjectdp.keras.lineage import LineageTracker, register_file
from tf_subjectdp.plans import Plan
from tf_subjectdp.runs import PrivateRun
from tf_subjectdp.sampling.dataset import LAST_PASS, new_pass

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
