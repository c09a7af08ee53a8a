# SPDX-License-Identifier: Apache-2.0
"""What a private step takes in beside the rows: whose they are, and how they were drawn."""

import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
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
      seeded: bool scalar, whether the batch was drawn with a seed.
      draw: how the batch was drawn; None if no plan drew it.
      element: integer or string [B], the element of each row; None if there are none.
    """

    subject: tf.Tensor
    mask: tf.Tensor
    weight: tf.Tensor
    seeded: tf.Tensor
    draw: "Draw | None"
    element: tf.Tensor | None = None


class Draw(NamedTuple):
    """Which draw a batch is.

    Attributes:
      plan: int64 scalar, the fingerprint of the plan that drew it.
      number: int64 scalar, drawn anew for each pass over the plan's dataset.
      step: int64 scalar, the number of the step in its pass.
    """

    plan: tf.Tensor
    number: tf.Tensor
    step: tf.Tensor


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
    if not (subject.dtype.is_integer or subject.dtype == tf.string) or subject.shape.rank != 1:
        raise ValueError(
            f"'subject' has type {subject.dtype.name} and shape {subject.shape}: pass one integer or "
            "string a row."
        )
    element = extras.get("element")
    if element is not None:
        element = tf.convert_to_tensor(element)
        if not (element.dtype.is_integer or element.dtype == tf.string) or element.shape.rank != 1:
            raise ValueError(
                f"'element' has type {element.dtype.name} and shape {element.shape}: pass one integer "
                "or string a row."
            )
    ones = tf.ones(tf.shape(subject), tf.float32)
    mask = tf.convert_to_tensor(extras.get("mask", tf.cast(ones, tf.bool)))
    weight = tf.cast(extras.get("weight", ones), tf.float32)
    if mask.dtype != tf.bool or mask.shape.rank != 1:
        raise ValueError(
            f"'mask' has type {mask.dtype.name} and shape {mask.shape}: pass one bool a row."
        )
    parts = [extras.get(name) for name in ("plan", "pass", "step")]
    # Keras 2's `train_on_batch` wants a leading axis on every part.
    drawn = None if None in parts else Draw(*(tf.reshape(part, [-1])[0] for part in parts))
    seeded = tf.reduce_any(extras.get("seeded", False))
    return People(subject, mask, weight, seeded, drawn, element)


def of_arrays(x: Any, y: Any, extras: Mapping[str, Any]) -> tuple[Any, Any, dict[str, tf.Tensor]]:
    """A batch of arrays, or of lists of numbers or strings, as tensors.

    Floating-point arrays become Keras's default type, as in Keras; a scalar among the extras is repeated
    for each row, since Keras 2 reads a batch size off every part.
    """
    parts = {key: _tensor(value) for key, value in extras.items()}
    rows = tf.shape(parts["subject"])[:1]
    parts = {
        key: tf.broadcast_to(value, rows) if value.shape.rank == 0 else value
        for key, value in parts.items()
    }
    return (*(_tensors(part) for part in (x, y)), parts)


def _tensors(value: Any) -> Any:
    leaves = tf.nest.flatten(value)
    if isinstance(value, list) and all(isinstance(v, (numbers.Number, str, bytes)) for v in leaves):
        return _tensor(value)
    return tf.nest.map_structure(_tensor, value)


def _tensor(value: Any) -> tf.Tensor:
    if not tf.is_tensor(value):
        value = np.asarray(value)
        if value.dtype.kind == "f":
            value = value.astype(tf.keras.backend.floatx())
    return tf.convert_to_tensor(value)


def check_lengths(rows: Any, people: People) -> list[Any]:
    """What the step must wait for: as many rows everywhere as there are people.

    Raises:
      ValueError: parts whose lengths are known and differ.
    """
    parts = [*tf.nest.flatten(rows), people.subject, people.mask]
    parts += [] if people.element is None else [people.element]
    known = sorted({t.shape[0] for t in parts if t.shape.rank and t.shape[0] is not None})
    if len(known) > 1 or any(t.shape.rank == 0 for t in parts):
        shapes = [tuple(t.shape) for t in parts]
        raise ValueError(
            f"rows, 'subject' and 'mask' have the shapes {shapes}: they need one leading axis of the "
            "same length."
        )
    unknown = [t for t in parts if t.shape[0] is None]
    if not unknown:
        return []
    lengths = tf.stack([tf.shape(t)[0] for t in [people.subject, *unknown]])
    guard = tf.debugging.Assert(
        tf.reduce_all(tf.equal(lengths, lengths[0])), ["Rows and people differ in number:", lengths]
    )
    return [] if guard is None else [guard]


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


def check_mark(draw: Draw | None, plan: Plan | None) -> list[Any]:
    """Refuses a batch that no dataset of the plan drew, however it came to the step.

    Returns:
      What the step must wait for.
    """
    if plan is None:
        return []
    if draw is None:
        raise ValueError(
            "this batch was not drawn by the plan, whose epsilon would not hold for it; take batches "
            "from plan.dataset(x, y, subject_id), e.g. train_on_batch(*batch)."
        )
    guard = tf.debugging.Assert(
        tf.equal(draw.plan, tf.constant(plan.fingerprint, tf.int64)),
        [
            "The sampling of this batch is not that of the plan: take batches from plan.dataset(...)."
        ],
    )
    return [] if guard is None else [guard]


def whole(name: str, value: Any, least: int = 0) -> int:
    """An argument of `fit` as an int; ValueError unless it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")
    return int(value)


def batch_spec(value: Any) -> tf.TensorSpec:
    """The spec of a batch's tensor, with an unknown number of rows."""
    return any_rows(tf.TensorSpec.from_tensor(tf.convert_to_tensor(value)))


def any_rows(spec: tf.TensorSpec) -> tf.TensorSpec:
    """The spec with an unknown number of rows."""
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)


def zero_row(spec: tf.TensorSpec) -> tf.Tensor:
    """One row of zeros (or empty strings) that fits a spec; unknown sizes become 1."""
    return tf.zeros([1, *(1 if size is None else size for size in spec.shape[1:])], spec.dtype)
