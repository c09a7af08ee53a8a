# SPDX-License-Identifier: Apache-2.0
"""Figures. matplotlib is imported when one is drawn, never before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tf_subjectdp.accounting import SubjectEpsilons

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tf_subjectdp.accounting.fdp import TradeOff

# A curve over more people than this is drawn through so many of them, the worst one included.
_MOST_POINTS = 2000
# Dashes tell curves apart without colour.
_DASHES = ("-", "--", "-.", ":")


def trade_off(
    *curves: TradeOff,
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
    points: int = 401,
) -> Axes:
    """Draws trade-off curves, miss rate beta over false-alarm rate alpha, as in f-DP papers.

    The thin diagonal is 1 - alpha, where a test does no better than a coin: the closer a curve is to
    it, the more private.

    Args:
      curves: at least one, from `accounting.fdp`.
      labels: one a curve; default the Gaussians' mu, or the adversary, or a number.
      ax: where to draw; default a new square figure.
      points: how many alphas, >= 2; half of them crowd at either end, where curves are steep.

    Returns:
      The axes.

    Raises:
      ImportError: matplotlib is missing.
      TypeError, ValueError: there is no curve, what is passed is not a curve, or the number of
        labels or of points does not fit.
    """
    if not curves:
        raise ValueError("trade_off needs at least one curve, for instance fdp.gaussian(1.0).")
    for curve in curves:
        if not callable(curve):
            raise TypeError(
                f"trade_off draws curves from accounting.fdp, got {curve!r} of type "
                f"{type(curve).__name__}; pass several as trade_off(*curves)."
            )
    if labels is not None and len(labels) != len(curves):
        raise ValueError(
            f"labels must be one for each of the {len(curves)} curves, got {len(labels)}."
        )
    if points < 2:
        raise ValueError(f"points must be at least 2, got {points}.")
    if ax is None:
        ax = _pyplot().subplots(figsize=(4.8, 4.8))[1]
    # The nodes of Chebyshev: dense at both ends.
    alpha = 0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, points))
    for i, curve in enumerate(curves):
        label = labels[i] if labels is not None else _label(curve, i)
        ax.plot(alpha, curve(alpha), _DASHES[i % len(_DASHES)], label=label)
    ax.plot([0.0, 1.0], [1.0, 0.0], color="0.6", linewidth=0.8, zorder=0)
    ax.set(
        xlim=(0.0, 1.0),
        ylim=(0.0, 1.0),
        aspect="equal",
        xlabel="false alarms (type I error) alpha",
        ylabel="misses (type II error) beta",
    )
    ax.legend()
    return ax


def subject_epsilons(
    result: SubjectEpsilons, *, plan_epsilon: float | None = None, ax: Axes | None = None
) -> Axes:
    """Draws which share of the subjects has at most which epsilon.

    The picture is computed from the data: like `result`, it is not for release, and says so.

    Args:
      result: from `per_subject_epsilon`.
      plan_epsilon: the plan's own epsilon, drawn as a vertical line; None for no line.
      ax: where to draw; default a new figure.

    Returns:
      The axes.

    Raises:
      ImportError: matplotlib is not installed.
      TypeError: `result` is not a `SubjectEpsilons`.
      ValueError: no subject has a finite epsilon.
    """
    if not isinstance(result, SubjectEpsilons):
        raise TypeError(
            f"result must come from per_subject_epsilon, got {result!r} of type "
            f"{type(result).__name__}."
        )
    axes = _pyplot().subplots(figsize=(7.0, 4.2), layout="constrained")[1] if ax is None else ax
    values = np.sort(result.epsilon)
    share = np.arange(1, len(values) + 1) / len(values)
    finite = np.isfinite(values)
    if not finite.any():
        raise ValueError(
            "no subject has a finite epsilon, so there is nothing to draw: a silo of every subject "
            "adds no noise."
        )
    values, share = values[finite], share[finite]
    shown = np.unique(np.linspace(0, len(values) - 1, _MOST_POINTS).astype(np.int64))
    label = f"{len(result.epsilon):,} subjects"
    if not finite.all():
        label += f", {int((~finite).sum()):,} of them without a bound"
    axes.step(values[shown], share[shown], where="post", label=label)
    if plan_epsilon is not None:
        axes.axvline(plan_epsilon, color="black", linestyle="--", label="the plan's epsilon")
    axes.set_xlabel(f"epsilon (upper bound) at delta = {result.delta:g}")
    axes.set_ylabel("share of subjects at or below")
    axes.set_ylim(0.0, 1.02)
    axes.set_title("epsilon by real membership: for the people in this table, not for release")
    axes.legend(loc="lower right")
    return axes


def _label(curve: TradeOff, index: int) -> str:
    mu = getattr(curve, "mu", None)
    name = f"curve {index + 1}" if mu is None else f"Gaussian, mu = {mu:.3g}"
    adversary = getattr(curve, "adversary", "")
    return f"{name} ({adversary.split(':')[0]})" if adversary else name


def _pyplot():
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "figures need matplotlib, which is not installed: pip install 'tf-subjectdp[plots]'."
        ) from error
    return pyplot
