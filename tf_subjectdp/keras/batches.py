# SPDX-License-Identifier: Apache-2.0
"""What a private step takes in beside the rows: whose they are, and how they were drawn.

Knows the plan's mark; imports TensorFlow and the plan's type alone.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf_subjectdp.plans import Plan

NEEDS_DATASET = (
    "PrivateModel.fit takes plan.dataset(x, y, subject_id), whose steps are drawn as the plan says; "
    "or, with a DPOptimizer without a plan, a tf.data.Dataset of (x, y, {'subject': ids}) batches."
)


class People(NamedTuple):
    """The third part of a batch, with its gaps filled in.

    Attributes:
      subject: integer or string [B], the person of each row.
      mask: bool [B], False for padding rows.
      weight: float32 [B], sample weights.
      begins_epoch: bool scalar, whether a pass over shuffled data begins.
      seeded: bool scalar, whether the batch was drawn with a seed.
      plan: int64, the fingerprint of the plan that drew the batch; None for none.
    """

    subject: tf.Tensor
    mask: tf.Tensor
    weight: tf.Tensor
    begins_epoch: tf.Tensor
    seeded: tf.Tensor
    plan: tf.Tensor | None


def people_of(extras: Any) -> People:
    """Reads the extras of a batch, a dict with at least "subject".

    Raises:
      ValueError: no dict, or no "subject" in it.
    """
    if not isinstance(extras, Mapping) or "subject" not in extras:
        keys = sorted(extras) if isinstance(extras, Mapping) else type(extras).__name__
        raise ValueError(
            f"the batch's third part ({keys}) has no 'subject', the person of each row. {NEEDS_DATASET}"
        )
    subject = tf.convert_to_tensor(extras["subject"])
    ones = tf.ones(tf.shape(subject), tf.float32)
    mark = extras.get("plan")
    return People(
        subject=subject,
        mask=tf.convert_to_tensor(extras.get("mask", tf.cast(ones, tf.bool))),
        weight=tf.cast(extras.get("weight", ones), tf.float32),
        begins_epoch=tf.reduce_any(extras.get("begins_epoch", False)),
        seeded=tf.reduce_any(extras.get("seeded", False)),
        plan=None if mark is None else tf.convert_to_tensor(mark),
    )


def split_element(element: Any) -> tuple[Any, Any, Any]:
    """(x, y, extras) of a batch or of its spec.

    Raises:
      ValueError: another structure.
    """
    parts = element if isinstance(element, (tuple, list)) else ()
    if len(parts) != 3 or not isinstance(parts[2], Mapping):
        raise ValueError(NEEDS_DATASET)
    if "subject" not in parts[2]:
        people_of(parts[2])
    return parts[0], parts[1], parts[2]


def check_mark(mark: Any, plan: Plan | None) -> list[Any]:
    """Refuses a batch that no dataset of the plan drew, however it came to the step.

    Returns:
      What the step must wait for.
    """
    if plan is None:
        return []
    if mark is None:
        raise ValueError(
            "this batch was not drawn by the plan, whose epsilon would not hold for it; take batches "
            "from plan.dataset(x, y, subject_id), e.g. train_on_batch(*batch)."
        )
    guard = tf.debugging.Assert(
        tf.reduce_all(tf.equal(mark, tf.constant(plan.fingerprint, tf.int64))),
        [
            "The sampling of this batch is not that of the plan: take batches from plan.dataset(...)."
        ],
    )
    return [] if guard is None else [guard]


def batch_spec(value: Any) -> tf.TensorSpec:
    """The spec of a batch's tensor, with an unknown number of rows."""
    tensor = tf.convert_to_tensor(value)
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def zero_row(spec: tf.TensorSpec) -> tf.Tensor:
    """One row of zeros (or empty strings) that fits a spec; unknown sizes become 1."""
    return tf.zeros([1, *(1 if size is None else size for size in spec.shape[1:])], spec.dtype)
