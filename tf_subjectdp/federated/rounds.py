# SPDX-License-Identifier: Apache-2.0
"""What a round shows, and where it is written: a CSV file, TensorBoard, a progress bar.

Knows a process's plan and the counts of its silos; imports TensorFlow for summaries, and tqdm when a bar
is wanted. It changes no state. Of the figures only `epsilon` may leave those who hold the data.
"""

import contextlib
import csv
import numbers
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import tensorflow as tf

from tf_subjectdp.algorithms.base import rounded_up
from tf_subjectdp.federated.client_work import SIZE_BINS
from tf_subjectdp.federated.round_figures import (
    COLUMNS,
    EDGES,
    NOTE,
    SCALARS,
    check_per_subject,
    round_metrics,
    subject_epsilons,
)
from tf_subjectdp.federated.spending import spent_in

__all__ = ["COLUMNS", "RoundLog", "round_metrics", "run", "subject_epsilons"]


class RoundLog(contextlib.AbstractContextManager):
    """Writes the figures of each round; a context manager.

        with RoundLog(process, csv="rounds.csv", tensorboard="logs") as log:
            state = run(process, state, silo_datasets, log=log)

    Args:
      process: the `FederatedProcess`.
      csv: a file that gets one line a round under the header `COLUMNS`; appended to if it is there. What
        has no value in a round is an empty cell.
      tensorboard: a log directory.
      progress: whether to show a bar over the plan's rounds; needs tqdm.
      delta: of epsilon; None takes the plan's.
      epsilon_every: how many rounds there are from one epsilon to the next; the plan's last round has
        one too. 0: none.
      distribution_every: likewise for `subject_epsilons`.
      file: where the bar is drawn; None is stderr.

    Attributes:
      state: the last state that was given to `write`, even if writing failed.

    Raises:
      ImportError: a bar is wanted and tqdm is missing.
      ValueError: a file with another header, no delta, or a value out of range.
    """

    def __init__(
        self,
        process: Any,
        *,
        csv: str | os.PathLike | None = None,
        tensorboard: str | os.PathLike | None = None,
        progress: bool = True,
        delta: float | None = None,
        epsilon_every: int = 1,
        distribution_every: int = 0,
        file: TextIO | None = None,
    ):
        self._process, self._delta, self._file = process, delta, file
        self._epsilon_every = _whole("epsilon_every", epsilon_every, 0)
        self._distribution_every = _whole("distribution_every", distribution_every, 0)
        if self._distribution_every:
            check_per_subject(process.plan)
        if process.plan.algorithm is not None and self._epsilon_every + self._distribution_every:
            self._delta = process.plan.checked_delta(delta)
        self._tqdm = _tqdm() if progress else None
        self._csv = None if csv is None else Path(csv)
        self._last_in_file = 0 if self._csv is None else _begin_csv(self._csv)
        self._tensorboard = None if tensorboard is None else os.fspath(tensorboard)
        self._writer = self._bar = self.state = None
        self._epsilon_shown = ""

    def __exit__(self, *error: Any) -> None:
        self.close()

    def start(self, done: int) -> None:
        """Shows the bar before the first round, at the rounds that were spent already."""
        if self._tqdm is not None and self._bar is None:
            rounds = self._process.plan.rounds
            self._bar = self._tqdm(total=rounds, initial=done, desc="rounds", file=self._file)

    def write(self, state: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Writes the round that returned this state and these metrics; returns the figures."""
        self.state = state
        number = spent_in(state).rounds
        wanted = self._due(number, self._epsilon_every)
        figures = round_metrics(self._process, state, metrics, delta=self._delta, epsilon=wanted)
        if self._due(number, self._distribution_every):
            figures.update(subject_epsilons(self._process, state, self._delta))
        if self._csv is not None:
            self._append(figures)
        if self._tensorboard is not None:
            self._summarise(figures)
        if self._tqdm is not None:
            self._advance(figures)
        return figures

    def close(self) -> None:
        """Ends the bar and TensorBoard's file; `write` begins new ones."""
        for one in (self._writer, self._bar):
            if one is not None:
                one.close()
        self._writer = self._bar = None

    def _due(self, number: int, every: int) -> bool:
        return every > 0 and (number % every == 0 or number >= self._process.plan.rounds)

    def _append(self, figures: Mapping[str, Any]) -> None:
        last, self._last_in_file = self._last_in_file, 0
        if figures["round"] <= last:
            warnings.warn(
                f"{self._csv} has round {last} already, and this is round {figures['round']}. For "
                "another run name another file. If this run went back to an older state, epsilon lacks "
                "the rounds in between, which were released: go on from the latest state.",
                stacklevel=3,
            )
        cells = [figures.get(name, "") for name in COLUMNS[:-SIZE_BINS]]
        with open(self._csv, "a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow([*cells, *figures["group_sizes"]])

    def _summarise(self, figures: Mapping[str, Any]) -> None:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._tensorboard)
        with self._writer.as_default(step=figures["round"]):
            for name in SCALARS:
                if name in figures:
                    value = np.float32(figures[name])
                    if "epsilon" in name and value < figures[name]:
                        value = np.nextafter(value, np.float32(np.inf))
                    tf.summary.scalar(f"federated/{name}", value)
            if NOTE in figures:
                tf.summary.text(f"federated/{NOTE}", figures[NOTE])
            _histogram("federated/group_sizes", figures["group_sizes"])
        self._writer.flush()

    def _advance(self, figures: Mapping[str, Any]) -> None:
        number = figures["round"]
        self.start(number - 1)
        shown = {name: f"{figures[name]:.4g}" for name in ("accuracy", "loss") if name in figures}
        if "epsilon" in figures:
            shown["epsilon"] = rounded_up(figures["epsilon"])
            self._epsilon_shown = f"{shown['epsilon']} (round {number})"
        elif self._epsilon_shown:
            # More was spent since: never shown as if it were this round's.
            shown["epsilon"] = self._epsilon_shown
        self._bar.update(number - self._bar.n)
        self._bar.set_postfix(shown)


def _histogram(name: str, sizes: list[int]) -> None:
    """Writes rows of (from, below, how many), without the empty bins at the end."""
    used = max((i + 1 for i, n in enumerate(sizes) if n), default=0)
    if used:
        plugin = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="histograms")
        rows = np.array([EDGES[:used], EDGES[1 : used + 1], sizes[:used]], np.float64).T
        metadata = tf.compat.v1.SummaryMetadata(plugin_data=plugin)
        tf.summary.write(name, tf.constant(rows), metadata=metadata)


def _begin_csv(path: Path) -> int:
    """Makes the file, or checks its header; returns the largest round in it."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if not text:
        with open(path, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(COLUMNS)
        return 0
    header, *lines = csv.reader(text.splitlines())
    if tuple(header) != COLUMNS:
        raise ValueError(
            f"{path} begins with another header ({','.join(header)[:80]!r}) than a log's: name another "
            "file, or move this one away."
        )
    if not text.endswith("\n"):
        # A line that a crash cut short stays by itself.
        with open(path, "a", encoding="utf-8", newline="") as file:
            file.write("\n")
    return max((int(line[0]) for line in lines if line and line[0].isdecimal()), default=0)


def _tqdm() -> Any:
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError(
            "the progress bar needs tqdm, which is not installed: pip install tqdm, or progress=False."
        ) from error
    return tqdm


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")
    return int(value)


def run(
    process: Any,
    state: Any,
    silo_datasets: Any,
    *,
    rounds: int | None = None,
    log: RoundLog | None = None,
    on_round: Callable[[Any, dict[str, Any]], Any] | None = None,
) -> Any:
    """Runs rounds until those of the plan are done.

    Args:
      process, state: the `FederatedProcess`, and where to start from.
      silo_datasets: what `process.next` takes, a list or a dict; or a function that returns it for the
        number of a round, from 1.
      rounds: how many more to run; None for all that are left.
      log: a `RoundLog`, which stays open.
      on_round: called after each round with its state and its figures: those that `log` wrote, or
        `round_metrics` without epsilon.

    Returns:
      The last state.

    Raises:
      ValueError: more rounds than are left; or a round was refused, because fewer than `minimum_silos`
        were there, say. Every error that ends the loop (Ctrl-C too) passes through with the state after
        the last whole round as its attribute `state`: go on from that, with the same log.
    """
    done = process.spent(state).rounds
    left = process.plan.rounds - done
    more = left if rounds is None else _whole("rounds", rounds, 1)
    if more > left:
        raise ValueError(
            f"rounds={more}, but {done} of the plan's {process.plan.rounds} rounds are spent and {left} "
            "are left; ask for no more, or plan more rounds from the start."
        )
    if log is not None:
        log.start(done)
    try:
        for number in range(done + 1, done + more + 1):
            data = silo_datasets(number) if callable(silo_datasets) else silo_datasets
            state, metrics = process.next(state, data)
            figures = None if log is None else log.write(state, metrics)
            if on_round is not None:
                on_round(state, figures or round_metrics(process, state, metrics, epsilon=False))
    except BaseException as error:
        error.state = state
        raise
    return state
