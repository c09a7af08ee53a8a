# SPDX-License-Identifier: Apache-2.0
"""What a plan of horizontal composition assumes and proves, in plain sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tf_subjectdp.accounting.silos.horizontal import HorizontalPlan

#: What the adversary of each view sees.
VIEWS = {
    "updates": "the server sees the update of every silo",
    "average": "only the weighted average over the silos is seen (secure aggregation, or a trusted "
    "server)",
    "final_model": "only the final model is seen",
}
_COMPOSED = "every step of the subject's silos composes, adaptively"


def describe_plan(plan: HorizontalPlan, refusal: str | None, choices: np.ndarray | None) -> str:
    """The text of `HorizontalPlan.describe`.

    Args:
      plan: the plan.
      refusal: why the noises do not simply add, where an average was asked for; None if they do.
      choices: the choices of silos that are compared; None if there are too many.
    """
    most = plan.silos_per_subject
    lines = [f"View: {VIEWS[plan.view]}."]
    if most is None or most >= len(plan.silos):
        lines.append("Assumed: a subject may be in every silo.")
    else:
        lines.append(
            f"Assumed: nobody is in more than {most} of {len(plan.silos)} silos; where an event is about "
            f"replacing, all silos with data of the subject, before and after, are among the same {most}."
        )
    if plan.known_noise:
        lines.append(f"The adversary knows the noise of silos {list(plan.known_noise)}.")
    lines.extend(_proof(plan, refusal))
    if choices is None:
        lines.append(
            "Too many choices of silos to compare: the Renyi bound of the costliest silos at each "
            "order, or all silos if that is less; both are upper bounds."
        )
    elif len(choices) > 1:
        lines.append(
            f"{len(choices)} choices of silos are compared, since events have no total order; "
            "worst_case() says whether the largest is exact or bounded."
        )
    return "\n".join(lines)


def _proof(plan: HorizontalPlan, refusal: str | None) -> list[str]:
    if plan.view == "updates":
        return [f"Proven: {_COMPOSED}."]
    lines = []
    if plan.view == "final_model":
        lines.append(
            "The final model is computed from the averages, so it reveals no more than they do; no "
            "proof of anything smaller is used."
        )
    if refusal is None:
        lines.append(
            "Proven: one step a round, so the noises of the silos that report add, and a step is a "
            "mixture of Gaussians over the distances that the subject moves the sum by. A silo "
            "reports from round 1 to its last one."
        )
        return lines
    lines.append(
        f"Proven: the bound of view 'updates' ({_COMPOSED}), of which the average is "
        f"post-processing. The noises of the silos do not simply add: {refusal}."
    )
    if plan.known_noise:
        lines.append(
            "So a subject in a silo whose noise is known has no guarantee: its update counts as "
            "released without noise."
        )
    return lines
