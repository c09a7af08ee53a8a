# SPDX-License-Identifier: Apache-2.0
"""From the counts of a round to figures that people read.

Knows a process's plan and the counts of its silos. Of the figures only `epsilon` may leave those who hold
the data.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_subjectdp.federated import costs
from tf_subjectdp.federated.client_work import SIZE_BINS
from tf_subjectdp.federated.spending import spent_in

# Figures that are one count over another, left out where that is zero.
_RATIOS = {
    "loss": ("loss", "items"),
    "accuracy": ("correct", "predicted"),
    "clipped": ("clipped", "terms"),
    "items": ("items", "steps"),
    "subjects": ("subjects", "steps"),
    "empty": ("empty", "steps"),
}
_COUNTED = ("silos", "non_finite", "dropped", "diverged")
_QUANTILES = {"subject_epsilon_50": 0.5, "subject_epsilon_90": 0.9, "subject_epsilon_100": 1.0}
NOTE = "subject_epsilon_note"
SCALARS = (*_COUNTED, *_RATIOS, "signal_to_noise", "update_norm", "epsilon", *_QUANTILES)
# Group sizes 1, 2, 3-4, 5-8, ...: where a bin begins and the one before it ends. The last is open.
EDGES = (1, *(2**power + 1 for power in range(SIZE_BINS)))
#: The columns of the CSV file.
COLUMNS = (
    *("round", *SCALARS, NOTE, "sizes_1", "sizes_2"),
    *(f"sizes_{first}_{end - 1}" for first, end in zip(EDGES[2:-2], EDGES[3:-1], strict=True)),
    f"sizes_over_{EDGES[-2] - 1}",
)


def round_metrics(
    process: Any,
    state: Any,
    output_metrics: Mapping[str, Any],
    *,
    delta: float | None = None,
    epsilon: bool = True,
) -> dict[str, Any]:
    """The figures of one round. All but round and epsilon look at the data and are not private.

    Args:
      process: the `FederatedProcess`.
      state, output_metrics: what the round returned.
      delta: of epsilon; None takes the plan's.
      epsilon: whether to compute it; with many unlike silos that takes longer than a small round.

    Returns:
      By name; what has no value in this round is left out.
        round: its number, from 1; silos: how many reported.
        loss, accuracy: mean over the items of all batches; accuracy where y is a class.
        clipped: share of the clipped terms that were scaled down.
        items, subjects: mean of a silo's step; empty: share of the steps without any.
        signal_to_noise: mean norm of a silo's clipped sum in a step, over the norm of the noise: mean
          deviation in the silos that took part * sqrt(number of weights). Where the server adds
          the noise this is still ONE silo's sum, over the noise of the sum of all.
        update_norm: root mean square over silos of what each made, before its weight in the average.
        non_finite: gradients that were not finite and counted as zero.
        dropped: items over a subject's bound, left out.
        diverged: silos whose update was not finite and was left out.
        group_sizes: how many subjects brought 1, 2, 3-4, 5-8, ... items to a step; the last bin is open.
        epsilon: of the plan's unit (the costliest subject, say) after all rounds so far, from above.

    Raises:
      ValueError: metrics that are none of `process.next`, or no delta.
    """
    if not isinstance(output_metrics, Mapping) or not {"silos", "took_part"} <= set(output_metrics):
        raise ValueError(
            f"metrics of type {type(output_metrics).__name__} have no 'silos' and 'took_part': pass "
            "output.metrics of output = process.next(...)."
        )
    counts = {name: np.asarray(value).tolist() for name, value in output_metrics["silos"].items()}
    figures: dict[str, Any] = {"round": spent_in(state).rounds}
    figures.update({name: int(counts[name]) for name in _COUNTED})
    for name, (part, whole) in _RATIOS.items():
        if counts[whole] > 0.0:
            figures[name] = counts[part] / counts[whole]
    noise = _norm_of_noise(process.plan, state, np.asarray(output_metrics["took_part"]))
    if noise > 0.0 and counts["steps"] > 0.0:
        figures["signal_to_noise"] = counts["signal"] / counts["steps"] / noise
    if counts["silos"] > 0.0:
        figures["update_norm"] = math.sqrt(counts["squared_update"] / counts["silos"])
    figures["group_sizes"] = [int(n) for n in counts["sizes"]]
    if epsilon:
        private = process.plan.algorithm is not None
        figures["epsilon"] = float(process.epsilon(state, delta)) if private else math.inf
    return figures


def _norm_of_noise(plan: Any, state: Any, took_part: np.ndarray) -> float:
    """Of a step, as expected; 0.0 where there is none."""
    if plan.algorithm is None or took_part.sum() <= 0:
        return 0.0
    deviations = [plan.algorithm.noise_stddev(sigma) for sigma in plan.noise_multipliers]
    size = sum(np.size(part) for part in state.global_model_weights.trainable)
    return float(np.average(deviations, weights=took_part) * math.sqrt(size))


def subject_epsilons(process: Any, state: Any, delta: float | None = None) -> dict[str, Any]:
    """How epsilon is spread over the people of the table: for those who hold it, never for release.

    It can take seconds. Arguments are those of `round_metrics`.

    Returns:
      subject_epsilon_50, _90 and _100: so many percent of the subjects have at most this epsilon; and
      subject_epsilon_note, what these figures are, which belongs to whatever shows them.

    Raises:
      ValueError: a plan without its stats or without privacy.
    """
    check_per_subject(process.plan)
    found = process.plan.per_subject_epsilon(delta=delta, spent=process.spent(state))
    return {**{name: found.quantile(p) for name, p in _QUANTILES.items()}, NOTE: found.note}


def check_per_subject(plan: Any) -> None:
    if plan.algorithm is None or plan.stats is None:
        raise ValueError(
            "single subjects have an epsilon of their own under a plan with an algorithm and its stats; "
            f"this one has algorithm={plan.algorithm!r} and {'no ' if plan.stats is None else ''}stats. "
            "Leave them out (distribution_every=0)."
        )
    try:
        costs.check_proven(plan, "subject")
    except ValueError as error:
        raise ValueError(f"{error} Or leave single subjects out (distribution_every=0).") from None
