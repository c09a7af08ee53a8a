# SPDX-License-Identifier: Apache-2.0
"""Callbacks: stop before a budget is overspent, show epsilon, keep count through a crash; and what is
said of callbacks that look at the data.
"""

import dataclasses
import json
import logging
import math
import numbers
import os
import string
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import tensorflow as tf

from tf_subjectdp.algorithms.base import rounded_up
from tf_subjectdp.keras import compat
from tf_subjectdp.keras.trackers import EPSILON_POINTS
from tf_subjectdp.plans import UNITS, Plan
from tf_subjectdp.runs import Lineage

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt

_log = logging.getLogger("tf_subjectdp")


def _plan_of(callback: Any) -> Any:
    plan = getattr(getattr(callback.model, "optimizer", None), "plan", None)
    if plan is None:
        raise ValueError(
            f"{type(callback).__name__} needs a model whose optimizer has a plan: "
            "compile(optimizer=plan.optimizer(inner))."
        )
    return plan


def steps_per_call(model: Any) -> int:
    """The steps that one call of the training function takes."""
    value = getattr(model, "_steps_per_execution", None)
    value = getattr(model, "steps_per_execution", 1) if value is None else value
    return int(value.numpy()) if hasattr(value, "numpy") else int(value or 1)


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
    """Stops training before the next step would overspend a budget smaller than the plan's, and says so
    in the log of "tf_subjectdp" when training ends.

    What elements fitted on the private data cost is part of it (`Plan.total_epsilon`), and so is what
    other runs released of the weights. Weights whose cost is not known are refused.

    Args:
      epsilon: the budget, above 0.
      delta: the delta at which it is meant; None takes the plan's.
      unit: "subject", "element" or "item"; None takes the plan's.

    Attributes:
      stopped: why the last `fit` was stopped; None if it was not.
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
        self.stopped: str | None = None
        self._allowed = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._allow()
        plan = _plan_of(self)
        self.stopped = None
        taken = self.model.optimizer.steps_at_new_pass
        if taken + steps_per_call(self.model) > self._allowed:
            raise ValueError(
                f"{taken} steps are taken, and a budget of epsilon={self.epsilon:g} allows "
                f"{self._allowed}: not one more call of the training function fits in. Raise the "
                "budget" + self._before(plan) + "."
            )

    def _allow(self) -> None:
        plan, releases = _plan_of(self), self.model.optimizer._lineage.look()
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
        released = releases.cost
        self._allowed = steps_within(
            lambda steps: released.epsilon_in_all(delta=delta, unit=self.unit, steps=steps),
            self.epsilon,
            plan.steps,
        )

    def _before(self, plan: Plan) -> str:
        others = self.model.optimizer._lineage.of_other_plans()
        if others:
            runs = ", ".join(
                f"{run.steps} steps of {type(run.algorithm).__name__}" for run in others
            )
            return f"; other runs of these weights ({runs}) count too"
        if plan.algorithm.event_before(plan.unit) is None:
            return ""
        fit = plan.known_epsilon(self.delta, unit=self.unit, steps=0)
        return f", of which the fit of the elements alone has spent {rounded_up(fit)}"

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._stop_at(self.model.optimizer.steps_taken)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.model.optimizer._lineage.look().version != self._counted:
            self._allow()  # Other weights came in.
        # The next epoch may begin a new pass over shuffled data, and this one then counts whole.
        self._stop_at(self.model.optimizer.steps_at_new_pass)

    def _stop_at(self, counted: int) -> None:
        if _stop_before(self.model, counted + steps_per_call(self.model), self._allowed):
            if self._allowed < self.model.optimizer.plan.steps:
                self.stopped = (
                    f"PrivacyBudget stopped the training: epsilon={self.epsilon:g} allows "
                    f"{self._allowed} steps of the plan's {self.model.optimizer.plan.steps}, and "
                    f"{counted} are counted."
                )

    def on_train_end(self, logs: Any = None) -> None:
        if self.stopped:
            _log.warning(self.stopped)


class PrivacyScalars(tf.keras.callbacks.Callback):
    """Adds epsilon so far to the progress bar, the history and what TensorBoard's callback writes.

    The share of clipped terms (`clipped`) and the signal-to-noise ratio are shown always. Epsilon is
    computed at 20 points of the plan and rounded up in between, so it is never too low. Other runs of the
    weights are part of it as they were when `fit` began; it is infinite where their cost is not known.

    Args:
      log_dir: also write epsilon per epoch here, under "privacy", for TensorBoard; None does not. The
        other scalars look at the data and are written to no file.
    """

    def __init__(self, log_dir: str | None = None):
        super().__init__()
        self.log_dir = log_dir
        self._writer = None

    def on_train_begin(self, logs: Any = None) -> None:
        plan = _plan_of(self)
        delta = plan.stated_delta
        stride = -(-plan.steps // EPSILON_POINTS)
        points = [min(stride * (n + 1), plan.steps) for n in range(EPSILON_POINTS)]
        released = self.model.optimizer._lineage.look().cost
        values = [released.epsilon_in_all(delta=delta, steps=steps) for steps in points]
        # Rounded up to float32, which the progress bar shows.
        self.model._trackers.set_epsilons(stride, [value * (1.0 + 1e-6) for value in values])
        if self.log_dir is not None:
            self._writer = tf.summary.create_file_writer(os.path.join(self.log_dir, "privacy"))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._writer is None or not logs or "epsilon" not in logs:
            return
        with self._writer.as_default():
            tf.summary.scalar("privacy/epsilon", logs["epsilon"], step=epoch)
        self._writer.flush()

    def on_train_end(self, logs: Any = None) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class PrivacyLedger(tf.keras.callbacks.Callback):
    """Keeps the step count in a file, ahead of the training, so that a crash never lowers it.

    A checkpoint holds the count of the moment when it was written; steps taken after it and lost in a
    crash were released all the same. The ledger reserves steps before they are taken; on the next
    start the reserved ones count as taken, and `fit` takes the steps that are then left.

    One training at a time writes to a ledger: `path.lock` beside it is locked by the operating system
    from the beginning of `fit` to its end, however it ends.

    Args:
      path: a JSON file; made if it is not there.
      reserve: how many steps are reserved at a time; a crash costs at most as many.
    """

    def __init__(self, path: str | os.PathLike, *, reserve: int = 50):
        super().__init__()
        if isinstance(reserve, bool) or not isinstance(reserve, (int, np.integer)) or reserve < 1:
            raise ValueError(f"reserve={reserve!r} must be an integer of at least 1.")
        self.path, self.reserve = Path(path).resolve(), reserve
        self._reserved = 0
        self._known = 0
        self._lock: IO[bytes] | None = None

    def open(self, optimizer: Any) -> None:
        """Locks the file and counts what it says was taken; `fit` does this before it begins.

        Raises:
          ValueError: another training has it, or as `recover`.
        """
        if self._lock is not None:
            raise ValueError(self._in_use())
        lock = self.path.with_name(self.path.name + ".lock").open("ab")
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                msvcrt.locking(lock.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError as error:
            lock.close()
            raise ValueError(f"{self._in_use()} ({error})") from error
        self._lock = lock
        try:
            self.recover(optimizer)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives the lock back; `fit` does this when it ends."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _in_use(self) -> str:
        return (
            f"{self.path} is in use by another training, in this process or in another one, whose steps "
            "it would not count; wait for its end, or name one file a model"
        )

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
            released = Lineage.from_config(record["releases"]) if "releases" in record else None
            if steps < 0:
                raise ValueError(f"steps={steps}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
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
            optimizer._lineage.absorb(released)
        optimizer.count_lost_steps(steps)

    def on_train_begin(self, logs: Any = None) -> None:
        _plan_of(self)
        self._known = self.model.optimizer.steps_taken
        self._write(self._known)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Another callback (BackupAndRestore) may have restored an older count since.
        self.model.optimizer.count_lost_steps(self._known)
        taken = self._known = self.model.optimizer.steps_taken
        per_call = steps_per_call(self.model)
        if taken + per_call > self._reserved:
            planned = _plan_of(self).steps
            self._write(min(taken + max(self.reserve, per_call), max(planned, taken)))

    def on_train_end(self, logs: Any = None) -> None:
        self._write(self.model.optimizer.steps_taken)

    def _write(self, steps: int) -> None:
        self._reserved = steps
        optimizer = self.model.optimizer
        released = optimizer._lineage.record
        ahead = max(steps - optimizer.steps_taken, 0)
        own = optimizer.own_run
        released.add(optimizer._lineage.name, dataclasses.replace(own, steps=own.steps + ahead))
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


class _Bookkeeping(tf.keras.callbacks.Callback):
    """Keeps count beside the user's callbacks: undoes what a restored backup takes from it, since those
    steps were released; ends `fit` with the last step that there is, where Keras would ask for more data;
    makes the weights of an epoch's end known, which other callbacks may keep and put back.

    Args:
      steps: the count when `fit` begins.
      last: the count at which it ends; None leaves that to Keras.
      whole_calls: whether the last call of the training function must be a whole one.
      remarks: gives what a statement must say first once training has begun. It is asked again when
        epochs begin and end, since callbacks may be changed meanwhile, and nothing said is taken back.
    """

    def __init__(
        self, steps: int, last: int | None, whole_calls: bool, remarks: Callable[[], Sequence[str]]
    ):
        super().__init__()
        self._steps, self._last, self._whole_calls = steps, last, whole_calls
        self._remarks = remarks

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.optimizer.count_lost_steps(self._steps)
        self._remark()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._remark()

    def on_train_end(self, logs: Any = None) -> None:
        self._remark()

    def _remark(self) -> None:
        for sentence in self._remarks():
            self.model._lineage.remark(sentence)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._last is not None:
            least = steps_per_call(self.model) if self._whole_calls else 1
            _stop_before(self.model, self.model.optimizer.steps_taken + least, self._last)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._remark()
        self.model._lineage.look()
        if self._last is not None and self._whole_calls:  # the next epoch is another pass
            least = steps_per_call(self.model)
            _stop_before(self.model, self.model.optimizer.steps_at_new_pass + least, self._last)


def _stop_before(model: Any, next_count: int, last: int) -> bool:
    """Stops the training if its next steps would make more than `last`; whether it does."""
    if next_count > last:
        model.stop_training = True
    return next_count > last


class _SwapAverages(getattr(tf.keras.callbacks, "SwapEMAWeights", tf.keras.callbacks.Callback)):
    """Keras 3's `SwapEMAWeights`, which asks the model's optimizer for what the one inside it keeps."""

    def _swap_variables(self) -> None:
        self.model.optimizer.exchange_averages()

    def _finalize_ema_values(self) -> None:
        self.model.optimizer.average_from_here()

    def on_predict_end(self, logs: Any = None) -> None:
        self.on_test_end(logs)  # Keras 3.12 leaves the averages in the model.


def with_own_averages(callbacks: Any) -> Any:
    """The callbacks of `fit`, `evaluate` or `predict`, where Keras 3's `SwapEMAWeights` is made to serve
    a `DPOptimizer`."""
    if isinstance(callbacks, (list, tuple)):
        return [with_own_averages(callback) for callback in callbacks]
    if type(callbacks) is getattr(tf.keras.callbacks, "SwapEMAWeights", None):
        return _SwapAverages(callbacks.swap_on_epoch)
    return callbacks


class _RunningBar(tf.keras.callbacks.ProgbarLogger):
    """Shows figures as they are, and ends where training is stopped: Keras's own goes on to the last step
    of the epoch, and in Keras 2 averages what is no metric of the model over the steps."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.stateful_metrics = set(logs or ())
        super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.model.stop_training and self.seen:
            self.target = self.progbar.target = self.seen
        super().on_epoch_end(epoch, logs)


def fit_callbacks(
    callbacks: list[Any],
    verbose: Any,
    *,
    steps_taken: int,
    last: int | None,
    whole_calls: bool,
    public_validation: bool,
) -> list[Any]:
    """What `PrivateModel.fit` adds to the user's callbacks, to come after them.

    Args:
      callbacks: the user's.
      verbose: `fit`'s argument.
      steps_taken, last, whole_calls: of `_Bookkeeping`.
      public_validation: whether the validation data need no protection.
    """

    def remarks() -> list[str]:
        return uncovered(callbacks, public_validation)

    added: list[Any] = [_Bookkeeping(steps_taken, last, whole_calls, remarks)]
    bar = tf.keras.callbacks.ProgbarLogger
    if verbose != 0 and not any(isinstance(callback, bar) for callback in callbacks):
        added.append(_RunningBar() if compat.KERAS_3 else _RunningBar(count_mode="steps"))
    return added


# What decides nothing by a figure of the data, and writes none. Keras 2 and 3 have some each.
_BLIND = (
    *(PrivacyBudget, PrivacyScalars, PrivacyLedger, _SwapAverages),
    *(
        getattr(tf.keras.callbacks, name)
        for name in (
            "BackupAndRestore",
            "BaseLogger",
            "Callback",
            "History",
            "ProgbarLogger",
            "SwapEMAWeights",
        )
        if hasattr(tf.keras.callbacks, name)
    ),
)
# Figures in the logs that do not look at the data.
_PUBLIC = ("batch", "epoch", "epsilon", "learning_rate", "lr")
_VALIDATION = "val_"
# What a callback may use of which nothing is known.
_ANYTHING = "losses and metrics of the data"


def check_figures(names: Iterable[str]) -> None:
    """ValueError if a figure of the training data has a name that `uncovered` takes for harmless."""
    for name in names:
        if name in _PUBLIC or name.startswith(_VALIDATION):
            raise ValueError(
                f"a metric or loss of the training is called {name!r}, as a figure is that "
                "does not look at the training data: what a callback decides by it would pass for "
                f"harmless. Give the metric (name=...) or the output another name, not one of {_PUBLIC} "
                f"and none that begins with {_VALIDATION!r}."
            )


def uncovered(callbacks: Sequence[Any], public_validation: bool) -> list[str]:
    """What a statement must say first of callbacks that see un-noised losses and metrics.

    Args:
      callbacks: those of `fit`; any of a class that is not known to be blind counts as one that decides.
      public_validation: the user's word that figures named "val_..." are of public data.
    """
    sentences = []
    for callback in callbacks:
        name, (decides, writes) = type(callback).__name__, _uses(callback)
        private = [
            [
                figure
                for figure in uses
                if not (public_validation and figure.startswith(_VALIDATION))
            ]
            for uses in (decides, writes)
        ]
        if private[0]:
            sentences.append(
                f"NOT COVERED by any figure below: the callback {name} saw {private[0][0]}, which nobody "
                "noised, and whatever it decided by that: the number of steps, the learning rates and "
                "the weights that were kept may be no public constants."
            )
        elif decides:
            sentences.append(
                f"ON THE USER'S WORD that the validation data are public (public_validation=True): the "
                f"callback {name} decided by {decides[0]}, which then costs nothing."
            )
        if private[1]:
            sentences.append(
                f"NOT COVERED by any figure below: the callback {name} wrote {private[1][0]}, which "
                "nobody noised, to a file, into its name or to a server."
            )
        if type(callback) is tf.keras.callbacks.LearningRateScheduler:
            sentences.append(
                f"ASSUMED, not looked at: the learning rates that the callback {name} set depend on the "
                "epoch and the rate before it alone. If its function looks at losses, metrics or a "
                "history, which nobody noised, no figure below covers what it decided."
            )
    return list(dict.fromkeys(sentences))


def _by_hand(callback: Any, name: str) -> bool:
    """Whether an attribute is a method, or a comparison of figures, that Keras did not put there."""
    if name != "monitor_op":
        return callable(getattr(type(callback), name, None))
    compares = callback.monitor_op
    of_keras = (getattr(compares, "__module__", None) or "").split(".")[0] == "keras"
    return not (compares is None or isinstance(compares, np.ufunc) or of_keras)


def _uses(callback: Any) -> tuple[list[str], list[str]]:
    """The figures by which a callback decides, and those that it writes."""
    keras, kind = tf.keras.callbacks, type(callback)
    decides, writes = [], []
    if any(_by_hand(callback, name) for name in vars(callback)):
        decides = [_ANYTHING]
    elif kind in _BLIND or kind is keras.LearningRateScheduler:
        pass
    elif kind in (keras.EarlyStopping, keras.ReduceLROnPlateau):
        decides = [callback.monitor]
    elif kind is keras.TerminateOnNaN:
        decides = ["loss"]
    elif kind is keras.ModelCheckpoint:
        decides = [callback.monitor] if callback.save_best_only else []
        writes = _fields(str(callback.filepath))
    elif kind in (keras.CSVLogger, keras.RemoteMonitor, keras.TensorBoard):
        writes = [_ANYTHING]
    else:
        decides = [_ANYTHING]
    return tuple([use for use in uses if use not in _PUBLIC] for uses in (decides, writes))


def _fields(template: str) -> list[str]:
    """The names that a template is filled with, those inside a format ("{lr:{loss}}") included."""
    found = []
    for _, field, inside, _ in string.Formatter().parse(template):
        found += [field, *_fields(inside)] if field else []
    return found
