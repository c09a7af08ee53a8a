# SPDX-License-Identifier: Apache-2.0
"""Callbacks: stop before a budget is overspent, show epsilon, and keep count through a crash.

Knows `PrivateModel` and its plan. Imports Keras, `trackers` and the plan's methods only.
"""

import dataclasses
import json
import math
import numbers
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tf_subjectdp.keras import compat
from tf_subjectdp.keras.releases import Record
from tf_subjectdp.keras.trackers import EPSILON_POINTS, NAMES
from tf_subjectdp.plans import UNITS, Plan, rounded_up


def _plan_of(callback: Any) -> Any:
    plan = getattr(getattr(callback.model, "optimizer", None), "plan", None)
    if plan is None:
        raise ValueError(
            f"{type(callback).__name__} needs a model whose optimizer has a plan: "
            "compile(optimizer=plan.optimizer(inner))."
        )
    return plan


def _is_number(value: Any) -> bool:
    return isinstance(value, (numbers.Real, np.floating)) and not isinstance(value, bool)


def steps_within(epsilon_of: Callable[[int], float], budget: float, most: int) -> int:
    """The largest number of steps, at most `most`, whose epsilon is within `budget`."""
    low, high = 0, most
    if epsilon_of(most) <= budget:
        return most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon_of(middle) <= budget else (low, middle)
    return low


class PrivacyBudget(tf.keras.callbacks.Callback):
    """Stops training before the next step would overspend a budget smaller than the plan's.

    What elements fitted on the private data cost is part of it (`Plan.total_epsilon`), and so is what
    other runs released of the weights. Weights whose cost is not known are refused.

    Args:
      epsilon: the budget, above 0.
      delta: the delta at which it is meant; None takes the plan's.
      unit: "subject", "element" or "item"; None takes the plan's.
    """

    def __init__(self, epsilon: float, *, delta: float | None = None, unit: str | None = None):
        super().__init__()
        if not _is_number(epsilon) or not math.isfinite(epsilon) or epsilon <= 0:
            raise ValueError(f"epsilon={epsilon!r} must be a finite number above 0.")
        if delta is not None and not (_is_number(delta) and 0.0 < delta < 1.0):
            raise ValueError(f"delta={delta!r} must be a number strictly between 0 and 1.")
        if unit not in (None, *UNITS):
            raise ValueError(f"unit={unit!r} is unknown; use one of {UNITS} or None.")
        self.epsilon, self.delta, self.unit = float(epsilon), delta, unit
        self._allowed = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._allow()
        plan = _plan_of(self)
        taken = self.model.optimizer.steps_at_new_pass
        if taken + self._per_call() > self._allowed:
            raise ValueError(
                f"{taken} steps are taken, and a budget of epsilon={self.epsilon:g} allows "
                f"{self._allowed}: not one more call of the training function fits in. Raise the "
                "budget" + self._before(plan) + "."
            )

    def _allow(self) -> None:
        plan, releases = _plan_of(self), self.model.optimizer._releases.look()
        self._counted = releases.version
        if releases.unknown:
            raise ValueError(
                "some weights of this model come from elsewhere, and their cost is not known: no budget "
                "can hold. Load them from a file that a PrivateModel saved, or, if they are fresh or "
                "were trained on data that need no protection, wrap them with "
                "PrivateModel(model, initial_weights='public')."
            )
        delta = plan.delta if self.delta is None else self.delta
        if delta is None:
            raise ValueError("this plan has no delta; say PrivacyBudget(..., delta=1e-5).")
        self._allowed = steps_within(
            lambda steps: releases.epsilon_in_all(delta=delta, unit=self.unit, steps=steps),
            self.epsilon,
            plan.steps,
        )

    def _before(self, plan: Plan) -> str:
        others = self.model.optimizer._releases.of_other_plans()
        if others:
            runs = ", ".join(
                f"{run.steps} steps of {type(run.algorithm).__name__}" for run in others
            )
            return f"; other runs of these weights ({runs}) count too"
        if plan.algorithm.event_before(plan.unit) is None:
            return ""
        fit = plan.known_epsilon(self.delta, unit=self.unit, steps=0)
        return f", of which the fit of the elements alone has spent {rounded_up(fit)}"

    def _per_call(self) -> int:
        value = getattr(self.model, "_steps_per_execution", None)
        value = getattr(self.model, "steps_per_execution", 1) if value is None else value
        return int(value.numpy()) if hasattr(value, "numpy") else int(value or 1)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.model.optimizer.steps_taken + self._per_call() > self._allowed:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.model.optimizer._releases.look().version != self._counted:
            self._allow()  # Other weights came in.
        # The next epoch may begin a new pass over shuffled data, and this one then counts whole.
        if self.model.optimizer.steps_at_new_pass + self._per_call() > self._allowed:
            self.model.stop_training = True


class PrivacyScalars(tf.keras.callbacks.Callback):
    """Adds epsilon so far to the progress bar, the history and TensorBoard's epoch scalars.

    The share of clipped terms (`clipped`) and the signal-to-noise ratio are shown always. Epsilon is
    computed at 20 points of the plan and rounded up in between, so it is never too low. Other runs of the
    weights are part of it as they were when `fit` began; it is infinite where their cost is not known.

    Args:
      log_dir: also write the scalars per epoch here, under "privacy", for TensorBoard; None does not.
    """

    def __init__(self, log_dir: str | None = None):
        super().__init__()
        self.log_dir = log_dir
        self._writer = None

    def on_train_begin(self, logs: Any = None) -> None:
        plan = _plan_of(self)
        delta = plan.delta or 1.0 / (10.0 * plan.stats.n_subjects)
        stride = -(-plan.steps // EPSILON_POINTS)
        points = [min(stride * (n + 1), plan.steps) for n in range(EPSILON_POINTS)]
        releases = self.model.optimizer._releases.look()
        values = [releases.epsilon_in_all(delta=delta, steps=steps) for steps in points]
        # Rounded up to float32, which the progress bar shows.
        self.model._trackers.set_epsilons(stride, [value * (1.0 + 1e-6) for value in values])
        if self.log_dir is not None:
            self._writer = tf.summary.create_file_writer(os.path.join(self.log_dir, "privacy"))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._writer is None:
            return
        with self._writer.as_default():
            for name in ("epsilon", "clipped", "signal_to_noise"):
                if logs and name in logs:
                    tf.summary.scalar(f"privacy/{name}", logs[name], step=epoch)
        self._writer.flush()

    def on_train_end(self, logs: Any = None) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class PrivacyLedger(tf.keras.callbacks.Callback):
    """Keeps the step count in a file, ahead of the training, so that a crash never lowers it.

    A checkpoint holds the count of the moment when it was written; steps taken after it and lost in a
    crash were released all the same. The ledger reserves steps before they are taken; on the next
    start the reserved ones count as taken.

    Args:
      path: a JSON file; made if it is not there.
      reserve: how many steps are reserved at a time; a crash costs at most as many.
    """

    def __init__(self, path: str | os.PathLike, *, reserve: int = 50):
        super().__init__()
        if isinstance(reserve, bool) or not isinstance(reserve, (int, np.integer)) or reserve < 1:
            raise ValueError(f"reserve={reserve!r} must be an integer of at least 1.")
        self.path, self.reserve = Path(path), reserve
        self._reserved = 0
        self._known = 0

    def recover(self, optimizer: Any) -> None:
        """Counts what the file says was taken.

        Raises:
          ValueError: a file that is no ledger, or the ledger of another plan.
        """
        if not self.path.exists():
            return
        try:
            record = json.loads(self.path.read_text(encoding="utf-8"))
            steps, owner = int(record["steps"]), int(record["plan"])
            released = Record.from_config(record["releases"]) if "releases" in record else None
            if steps < 0:
                raise ValueError(f"steps={steps}")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.path} is not a ledger of this library ({error}); name another file, or "
                "find out how many steps were taken before going on."
            ) from error
        if owner != optimizer.plan.identity:
            raise ValueError(
                f"{self.path} belongs to another plan (algorithm, sampling or noise differ); use one "
                "ledger a plan."
            )
        if released is not None:
            optimizer._releases.absorb(released)
        optimizer.count_lost_steps(steps)

    def on_train_begin(self, logs: Any = None) -> None:
        _plan_of(self)
        optimizer = self.model.optimizer
        self.recover(optimizer)
        self._known = optimizer.steps_taken
        if optimizer.steps_at_new_pass >= optimizer.plan.steps:
            raise ValueError(
                f"by {self.path} all {optimizer.plan.steps} steps of the plan are taken. For a new "
                "model name a new file; to go on with this one, extend_plan."
            )
        self._write(self._known)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Another callback (BackupAndRestore) may have restored an older count since.
        self.model.optimizer.count_lost_steps(self._known)
        taken = self._known = self.model.optimizer.steps_taken
        if taken + self._per_call() > self._reserved:
            planned = _plan_of(self).steps
            self._write(min(taken + max(self.reserve, self._per_call()), max(planned, taken)))

    _per_call = PrivacyBudget._per_call

    def on_train_end(self, logs: Any = None) -> None:
        self._write(self.model.optimizer.steps_taken)

    def _write(self, steps: int) -> None:
        self._reserved = steps
        optimizer = self.model.optimizer
        released = optimizer._releases.record
        ahead = max(steps - optimizer.steps_taken, 0)
        own = optimizer.own_run
        released.add(optimizer._releases.name, dataclasses.replace(own, steps=own.steps + ahead))
        record = {
            "steps": steps,
            "plan": _plan_of(self).identity,
            "releases": released.get_config(),
        }
        temporary = self.path.with_name(self.path.name + ".tmp")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(record, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)


class _KnowWeights(tf.keras.callbacks.Callback):
    """Makes the weights of an epoch's end known, which other callbacks may keep and put back."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model._releases.look()


class _KeepCount(tf.keras.callbacks.Callback):
    """Undoes what a restored backup takes from the count: the steps since were released."""

    def __init__(self, steps: int):
        super().__init__()
        self._steps = steps

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.optimizer.count_lost_steps(self._steps)


def fit_callbacks(callbacks: list[Any], verbose: Any, steps_taken: int) -> list[Any]:
    """What `PrivateModel.fit` adds to the user's callbacks, to come after them.

    Args:
      callbacks: the user's.
      verbose: `fit`'s argument.
      steps_taken: the count when `fit` begins.
    """
    added: list[Any] = [_KnowWeights(), _KeepCount(steps_taken)]
    bar = tf.keras.callbacks.ProgbarLogger
    if not compat.KERAS_3 and verbose in ("auto", 1, True):
        if not any(isinstance(callback, bar) for callback in callbacks):
            # Keras 2's bar averages whatever is not one of the model's metrics, epsilon included,
            # over the steps; these are running figures already.
            added.append(bar(count_mode="steps", stateful_metrics=list(NAMES)))
    return added
