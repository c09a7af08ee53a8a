# SPDX-License-Identifier: Apache-2.0
"""From a plan and a table to the plan's steps, with the plan's constants enforced."""

import logging
import math
from typing import Any

import numpy as np

from tf_subjectdp.plans import Plan
from tf_subjectdp.sampling import SubjectTable, bound_contributions, encode_ids, fresh_rng
from tf_subjectdp.sampling._checks import check_indexes
from tf_subjectdp.sampling.pairs import bound_elements, encode_elements, pair_codes

# The rest of what the promise needs, the largest subject and element, is checked or enforced below.
_AS_PLANNED = (
    "the plan's rate and divisor stay as they are: its promise holds, and the utility changes."
)

_log = logging.getLogger("tf_subjectdp")


def plan_dataset(
    plan: Plan,
    x: Any,
    y: Any,
    subject_id: Any,
    element_id: Any,
    *,
    sample_weight: Any,
    pad: bool,
    seed: int | None,
) -> Any:
    """The work of `Plan.dataset`, which has the documentation."""
    if subject_id is None:
        raise ValueError(
            "subject_id is missing: pass the person of each row, e.g. "
            "plan.dataset(x, y, patient_id); without it nobody can be protected."
        )
    if element_id is not None and not plan.algorithm.needs_elements:
        raise ValueError(
            f"element_id was given, but {type(plan.algorithm).__name__} protects whole "
            "subjects and items; leave it out (sample weights go into sample_weight=), or plan with "
            "ElementDP."
        )
    if element_id is None and plan.algorithm.needs_elements:
        raise ValueError(
            f"element_id is missing: {type(plan.algorithm).__name__} needs the element of each row, "
            "plan.dataset(x, y, subject_id, element_id); make one with tf_subjectdp.elements."
        )
    check_indexes(
        {
            "x": x,
            "y": y,
            "subject_id": subject_id,
            "element_id": element_id,
            "sample_weight": sample_weight,
        }
    )
    for name, value in (("x", x), ("y", y)):
        if value is None:
            raise ValueError(
                f"{name} is missing: pass one row an item, as in plan.dataset(x, y, patient_id)."
            )
    if not isinstance(pad, (bool, np.bool_)):
        raise TypeError(f"pad={pad!r} must be True or False.")
    from tf_subjectdp.sampling import to_dataset

    codes, n_subjects = encode_ids(subject_id)
    rng = fresh_rng(seed)
    pairs = None
    if element_id is not None:
        pairs, owners = pair_codes(codes, encode_elements(element_id, codes.size))

    def draws():
        order = rng()
        for batch in plan.sampling.batches(table, plan.facts.rate, rng()):
            drawn = batch if rows is None else rows[batch]
            # A batch is a set. Rows that are clipped together lie together, so that the step does
            # not have to copy them; an inner optimizer takes them as they come, so at random.
            if plan.algorithm.rows_lie_together:
                drawn = drawn[np.argsort(together[drawn], kind="stable")]
            elif plan.algorithm.inner is not None:
                drawn = order.permutation(drawn)
            yield drawn

    # First of all: of unequal lengths nothing is told that follows from them.
    dataset = to_dataset(
        {"x": x, "y": y, "subject": codes, "element": pairs, "weight": sample_weight},
        draws,
        plan.steps,
        pad_to=_capacity(plan) if pad else None,
        seeded=seed is not None,
        fingerprint=plan.fingerprint,
    )
    rows = _rows_that_stay(plan, codes, n_subjects, rng)
    if pairs is not None:
        rows = _elements_that_stay(plan, pairs, owners, rng, rows)
    # What is drawn as one, and what is clipped together.
    drawn_as_one, n_drawn = codes, n_subjects
    if plan.sampling.unit == "element":
        drawn_as_one, n_drawn = pairs, owners.size
    together = codes if pairs is None else pairs
    table = SubjectTable.from_codes(drawn_as_one if rows is None else drawn_as_one[rows], n_drawn)
    return dataset


def _rows_that_stay(plan: Plan, codes: np.ndarray, n_subjects: int, rng) -> np.ndarray | None:
    """Rows that stay after contribution bounding; None for all. Checks the plan's constants."""
    largest = int(np.bincount(codes, minlength=n_subjects).max())
    rows = None
    if plan.max_items_per_subject is not None:
        if largest > plan.max_items_per_subject:
            rows = bound_contributions(codes, n_subjects, plan.max_items_per_subject, rng())
    elif largest > plan.facts.max_items:
        raise ValueError(
            f"a subject has {largest} items, above the plan's k={plan.facts.max_items}, and the "
            "guarantee would not cover them; plan with max_items_per_subject=K (more items are "
            "then dropped at random), or with the stats of these data."
        )
    n_items = codes.size if rows is None else rows.size
    planned = (plan.facts.n_items, plan.facts.n_subjects)
    if (n_items, n_subjects) != planned:
        if not plan.sampling.poisson:
            raise ValueError(
                f"the data have {n_items} items (after bounding) of {n_subjects} subjects, the plan "
                f"was made for {planned[0]} of {planned[1]}: batches of a fixed size depend on the "
                "number of items; plan with SubjectStats.from_ids of these ids."
            )
        # Without the numbers: a log is kept, and they are exact.
        _log.warning(
            "the data have other numbers of items (after bounding) or of subjects than the plan was made "
            "for; %s",
            _AS_PLANNED,
        )
    return rows


def _elements_that_stay(plan: Plan, pairs, owners, rng, rows) -> np.ndarray | None:
    """Rows that stay after bounding elements and their items. Checks the plan's constants."""
    algorithm, found = plan.algorithm, plan.stats.elements
    largest = int(np.bincount(pairs).max())
    bounded = algorithm.max_items_per_element is not None
    if found is not None and not bounded and largest > found.max_items:
        raise ValueError(
            f"an element has {largest} items of one subject, above the plan's {found.max_items}, and the "
            "guarantee would not cover them; plan with the stats of these data, or with "
            f"{type(algorithm).__name__}(..., max_items_per_element=K)."
        )
    if found is not None and owners.size != found.n_elements:
        _log.warning(
            "the data have another number of elements than the plan was made for; %s", _AS_PLANNED
        )
    kept = bound_elements(
        pairs, owners, algorithm.max_elements, algorithm.max_items_per_element, rng()
    )
    if rows is None or kept is None:
        return kept if rows is None else rows
    return np.intersect1d(rows, kept, assume_unique=True)


def _capacity(plan: Plan) -> int:
    """A batch size that a step seldom exceeds (five standard deviations); it then takes twice as much."""
    if not plan.sampling.poisson:
        return plan.facts.rows_in_batch
    mean, spread = plan.facts.batch_size, plan.facts.batch_size
    if plan.facts.scheme == "poisson_subjects":
        spread *= plan.facts.items_in_step
    if plan.facts.scheme == "poisson_elements":
        spread *= plan.facts.max_element_items
    return int(math.ceil(mean + 5.0 * math.sqrt(spread) + 5.0))
