# SPDX-License-Identifier: Apache-2.0
"""What a round shows, and where it is written: a CSV file, TensorBoard, a progress bar.

Knows a process's plan and the counts of its silos; imports TensorFlow for summaries, and tqdm when a bar
is wanted. Nothing here changes a state. Of all figures only `epsilon` may leave those who hold the data.
"""

import csv
import math
import numbers
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import tensorflow as tf

from tf_subjectdp.federated.client_work import SIZE_BINS
from tf_subjectdp.federated.spending import spent_in
from tf_subjectdp.plans import check_delta, rounded_up

#: The scalars of `round_metrics`, in the order of the CSV file's columns.
SCALARS = (
    "round",
    "silos",
    "loss",
    "accuracy",
    "clipped",
    "items",
    "subjects",
    "signal_to_noise",
    "update_norm",
    "non_finite",
    "dropped",
    "empty",
    "diverged",
    "epsilon",
)
# The shares of the subjects whose epsilons are shown.
_QUANTILES = {"subject_epsilon_50": 0.5, "subject_epsilon_90": 0.9, "subject_epsilon_100": 1.0}
_NOTE = "subject_epsilon_note"
# Where the bins of group sizes begin: 1, 2, 3, 5, 9, ...; the last one has no end.
_STARTS = (1, *(2**power + 1 for power in range(SIZE_BINS - 1)))
_ENDS = (*(2**power for power in range(SIZE_BINS - 1)), None)


def _size_column(start: int, end: int | None) -> str:
    if end is None:
        return f"sizes_over_{start - 1}"
    return f"sizes_{start}" if start == end else f"sizes_{start}_{end}"


#: The columns of the CSV file.
COLUMNS = (
    *SCALARS,
    *_QUANTILES,
    _NOTE,
    *(_size_column(start, end) for start, end in zip(_STARTS, _ENDS, strict=True)),
)


def round_metrics(
    process: Any,
    state: Any,
    output_metrics: Mapping[str, Any],
    *,
    delta: float | None = None,
    epsilon: bool = True,
) -> dict[str, float | list[int]]:
    """The figures of one round. All but round and epsilon look at the data and are not private.

    Args:
      process: the `FederatedProcess`.
      state: the state that the round returned.
      output_metrics: the metrics that it returned.
      delta: of epsilon; None takes the plan's.
      epsilon: whether to compute it; with many unlike silos that takes longer than a small round.

    Returns:
      By name; what has no value in this round is left out.
        round: number of the round, from 1; lost rounds are counted too.
        silos: silos that reported.
        loss, accuracy: mean over the items of all batches; accuracy where y is a class.
        clipped: share of the clipped terms that were scaled down.
        items, subjects: mean of a silo's step.
        signal_to_noise: mean norm of a step's clipped sum in a silo, over the norm of the noise: mean
          sigma of the silos that took part * clip norm * sqrt(number of weights). Where the server adds
          the noise, this is still ONE silo's sum: the sum of all of them is larger.
        update_norm: root mean square over silos of what each sent, before its weight in the average.
        non_finite: gradients that were not finite and counted as zero.
        dropped: items over `max_items_per_subject`, left out.
        empty: share of the steps whose batch was empty.
        diverged: silos whose update was not finite and was left out.
        group_sizes: how many subjects brought 1, 2, 3-4, 5-8, ... items to a step; the last bin is open.
        epsilon: of the costliest subject after all rounds so far, from above.

    Raises:
      ValueError: metrics that are none of `process.next`, or no delta.
    """
    if not isinstance(output_metrics, Mapping) or not {"silos", "took_part"} <= set(output_metrics):
        raise ValueError(
            f"metrics of type {type(output_metrics).__name__} lack 'silos' and 'took_part': pass the "
            "metrics that process.next returned, output.metrics."
        )
    counts = {name: np.asarray(value) for name, value in output_metrics["silos"].items()}
    sizes = [int(n) for n in counts.pop("sizes")]
    counts = {name: float(value) for name, value in counts.items()}
    figures = {"round": spent_in(state).rounds, "silos": int(counts["silos"])}

    def ratio(name: str, part: str, whole: str) -> None:
        if counts[whole] > 0.0:
            figures[name] = counts[part] / counts[whole]

    ratio("loss", "loss", "items")
    ratio("accuracy", "correct", "predicted")
    ratio("clipped", "clipped", "terms")
    ratio("items", "items", "steps")
    ratio("subjects", "subjects", "steps")
    noise = _norm_of_noise(process.plan, state, np.asarray(output_metrics["took_part"]))
    if noise > 0.0 and counts["steps"] > 0.0:
        figures["signal_to_noise"] = counts["signal"] / counts["steps"] / noise
    if counts["silos"] > 0.0:
        figures["update_norm"] = math.sqrt(counts["squared_update"] / counts["silos"])
    for name in ("non_finite", "dropped", "diverged"):
        figures[name] = int(counts[name])
    ratio("empty", "empty", "steps")
    figures["group_sizes"] = sizes
    if epsilon:
        # Nothing depends on delta where nothing is private.
        figures["epsilon"] = (
            math.inf if process.plan.algorithm is None else float(process.epsilon(state, delta))
        )
    return figures


def _norm_of_noise(plan: Any, state: Any, took_part: np.ndarray) -> float:
    """Of a step, as expected; 0.0 where there is none, or no silo."""
    if plan.algorithm is None or took_part.sum() <= 0:
        return 0.0
    sigma = np.average(plan.noise_multipliers, weights=took_part)
    size = sum(np.size(part) for part in state.global_model_weights.trainable)
    return float(sigma * plan.algorithm.clip_norm * math.sqrt(size))


def subject_epsilons(
    process: Any, state: Any, delta: float | None = None
) -> dict[str, float | str]:
    """How epsilon is distributed over the people of the table: for those who hold it, never for release.

    Takes seconds where many people are in unlike sets of silos.

    Args:
      process, state, delta: as for `round_metrics`.

    Returns:
      subject_epsilon_50, _90 and _100: so many percent of the subjects have at most this epsilon; and
      subject_epsilon_note, what these figures are, which belongs to whatever shows them.

    Raises:
      ValueError: a plan without its stats, without privacy, or one whose server adds the noise.
    """
    _check_per_subject(process.plan)
    found = process.plan.per_subject_epsilon(delta=delta, spent=process.spent(state))
    return {**{name: found.quantile(p) for name, p in _QUANTILES.items()}, _NOTE: found.note}


def _check_per_subject(plan: Any) -> None:
    for unfit, why in (
        (plan.algorithm is None, "FedAvg without privacy has no epsilon"),
        (
            plan.noise_at != "silo",
            "noise_at='server' counts rounds, and every subject in all of them",
        ),
        (plan.stats is None, "the plan was read from a state and has no stats"),
    ):
        if unfit:
            raise ValueError(
                f"there is no epsilon of single subjects: {why}. Leave it out (distribution_every=0), or "
                "use a plan with stats whose silos add the noise."
            )


class RoundLog:
    """Writes the figures of each round; a context manager, closed at its end.

        with RoundLog(process, csv="rounds.csv", tensorboard="logs") as log:
            state = run(process, state, silo_datasets, log=log)

    Args:
      process: the `FederatedProcess`.
      csv: a file to which one line a round is appended, under the header `COLUMNS`; made if it is not
        there. What has no value in a round is an empty cell. None writes none.
      tensorboard: a log directory; None writes none.
      progress: whether to show a progress bar over the plan's rounds; needs tqdm.
      delta: of epsilon; None takes the plan's.
      epsilon_every: epsilon is computed in each so manieth round and in the plan's last; 0 never.
      distribution_every: likewise for `subject_epsilons`, which may take seconds; 0 never.
      file: where the bar is drawn; None is stderr.

    Attributes:
      state: the last state that was written, also of a round whose line could not be written.

    Raises:
      ImportError: a bar is wanted and tqdm is missing.
      ValueError: a file with another header, no delta, or numbers out of range.
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
        plan = process.plan
        if self._distribution_every:
            _check_per_subject(plan)
        if plan.algorithm is not None and (self._epsilon_every or self._distribution_every):
            if delta is None and plan.delta is None:
                raise ValueError(
                    "delta is missing: the plan has none; pass delta=, e.g. delta=1e-5, or "
                    "epsilon_every=0."
                )
            check_delta(plan.delta if delta is None else delta)
        self._tqdm = _tqdm() if progress else None
        self._csv = None if csv is None else Path(csv)
        self._last_in_file = None if self._csv is None else _begin_csv(self._csv)
        self._tensorboard = None if tensorboard is None else os.fspath(tensorboard)
        self._writer = self._bar = None
        self._epsilon_shown = ""
        self.state: Any = None

    def __enter__(self) -> "RoundLog":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def start(self, state: Any) -> None:
        """Shows the bar, at the rounds that were spent before; `write` does it if this was not called."""
        self._show_bar(self._process.spent(state).rounds)

    def write(self, state: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Writes a round: what `process.next` returned, its state and its metrics.

        Returns:
          What was written: `round_metrics`, and `subject_epsilons` in its rounds.
        """
        self.state = state
        number = spent_in(state).rounds
        figures: dict[str, Any] = round_metrics(
            self._process,
            state,
            metrics,
            delta=self._delta,
            epsilon=self._due(number, self._epsilon_every),
        )
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
        """Ends the bar and TensorBoard's file; writing on opens them again."""
        if self._writer is not None:
            self._writer.close()
        if self._bar is not None:
            self._bar.close()
        self._writer = self._bar = None

    def _due(self, number: int, every: int) -> bool:
        return every > 0 and (number % every == 0 or number >= self._process.plan.rounds)

    def _append(self, figures: Mapping[str, Any]) -> None:
        last, self._last_in_file = self._last_in_file, None
        if last is not None and figures["round"] <= last:
            warnings.warn(
                f"{self._csv} has a line for round {last}, and round {figures['round']} is written now. If "
                "the run went back to an older state, the rounds in between were released and epsilon "
                "does not count them: go on from the latest state. For another run name another file.",
                stacklevel=3,
            )
        cells = [figures.get(name, "") for name in (*SCALARS, *_QUANTILES, _NOTE)]
        with open(self._csv, "a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow([*cells, *figures["group_sizes"]])

    def _summarise(self, figures: Mapping[str, Any]) -> None:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._tensorboard)
        with self._writer.as_default(step=figures["round"]):
            for name in (*SCALARS[1:], *_QUANTILES):
                if name in figures:
                    value = figures[name]
                    tf.summary.scalar(
                        f"federated/{name}", _float32_above(value) if "epsilon" in name else value
                    )
            if _NOTE in figures:
                tf.summary.text(f"federated/{_NOTE}", figures[_NOTE])
            _summarise_sizes("federated/group_sizes", figures["group_sizes"])
        self._writer.flush()

    def _show_bar(self, done: int) -> None:
        if self._tqdm is not None and self._bar is None:
            self._bar = self._tqdm(
                total=self._process.plan.rounds,
                initial=done,
                desc="rounds",
                unit="round",
                file=self._file,
            )

    def _advance(self, figures: Mapping[str, Any]) -> None:
        number = figures["round"]
        self._show_bar(number - 1)
        shown = {name: f"{figures[name]:.4g}" for name in ("accuracy", "loss") if name in figures}
        if "epsilon" in figures:
            self._epsilon_shown = rounded_up(figures["epsilon"])
            shown["epsilon"] = self._epsilon_shown
            self._epsilon_shown += f" (round {number})"
        elif self._epsilon_shown:
            # Spent since: never shown as if it were this round's.
            shown["epsilon"] = self._epsilon_shown
        self._bar.update(number - self._bar.n)
        self._bar.set_postfix(shown)


def _summarise_sizes(name: str, sizes: list[int]) -> None:
    """A histogram whose bins are these: rows of (from, below, how many)."""
    used = max((i + 1 for i, n in enumerate(sizes) if n), default=0)
    if not used:
        return
    edges = [*_STARTS, 2 * _STARTS[-1] - 1]
    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="histograms")
    )
    rows = np.array([edges[:used], edges[1 : used + 1], sizes[:used]], np.float64).T
    tf.summary.write(name, rows, metadata=metadata)


def _float32_above(value: float) -> np.float32:
    """TensorBoard keeps float32; an epsilon is rounded up to it."""
    near = np.float32(value)
    return near if near >= value else np.nextafter(near, np.float32(np.inf))


def _begin_csv(path: Path) -> int | None:
    """Makes the file, or checks its header; returns the largest round in it."""
    if not path.exists() or not path.stat().st_size:
        with open(path, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(COLUMNS)
        return None
    text = path.read_text(encoding="utf-8", errors="replace")
    header, *lines = csv.reader(text.splitlines()) if text.strip() else [[]]
    if tuple(header) != COLUMNS:
        raise ValueError(
            f"{path} begins with another header ({','.join(header)[:80]!r}) than this log's columns: name "
            "another file, or move this one away."
        )
    if not text.endswith("\n"):
        # A line that a crash cut short stays by itself.
        with open(path, "a", encoding="utf-8", newline="") as file:
            file.write("\n")
    return max((int(line[0]) for line in lines if line and line[0].isdecimal()), default=None)


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
      process: the `FederatedProcess`.
      state: to start from.
      silo_datasets: what `process.next` takes, a list or a dict; or a function that returns it for the
        number of a round, from 1.
      rounds: how many rounds to run; None for all that are left.
      log: a `RoundLog`, which stays open.
      on_round: called after each round with its state and its figures: those that `log` wrote, or
        `round_metrics` without epsilon.

    Returns:
      The last state.

    Raises:
      ValueError: more rounds than are left; or a round is refused, because fewer than `minimum_silos`
        are there, say. Like every error that ends the run (Ctrl-C too), that one passes through with the
        state after the last whole round as its attribute `state`: go on from it, with the same log.
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
        log.start(state)
    try:
        for number in range(done + 1, done + more + 1):
            data = silo_datasets(number) if callable(silo_datasets) else silo_datasets
            output = process.next(state, data)
            state = output.state
            if log is not None:
                figures = log.write(state, output.metrics)
            elif on_round is not None:
                figures = round_metrics(process, state, output.metrics, epsilon=False)
            if on_round is not None:
                on_round(state, figures)
    except BaseException as error:
        error.state = state
        raise
    return state
