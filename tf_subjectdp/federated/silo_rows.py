# SPDX-License-Identifier: Apache-2.0
"""Which rows of a silo take part in a round: the plan's bounds, enforced inside the silo's computation.

Knows the plan and rows; imports `draws`. Bounds that were declared (`max_items_per_subject`,
`max_elements`, `max_items_per_element`) are enforced by dropping rows at random, afresh in each round.
What stays of a subject depends on no other subject; what stays of an element (`ElementDP`) moves those of
others by one place at most, which is why figures read from the data are held against it, not enforced.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_subjectdp.federated import draws


class Rows(NamedTuple):
    """The rows of a silo that take part in a round.

    Attributes:
      data: (x, y), nests of tensors of all rows of the silo.
      kept: int64 [m], the rows that stay after bounding.
      subject: int64 [m], whose they are.
      pair: int64 [m], the element of a subject that they belong to, from 0; None if it is not needed.
    """

    data: Any
    kept: tf.Tensor
    subject: tf.Tensor
    pair: tf.Tensor | None


def rows_that_stay(plan: Any, data: Any, max_items: tf.Tensor, element_items: tf.Tensor) -> Rows:
    """The rows after bounding.

    Args:
      plan: the `FederatedPlan`.
      data: the silo's, as `SiloWork` takes it.
      max_items: int32 [], k, the most items of one subject in this silo.
      element_items: int64 [], the most items of one element of a subject, as they were counted.
    """
    subject, rows = data["subject"], (data["x"], data["y"])
    if not plan.needs_elements:
        kept = draws.bound_items(subject, max_items)
        return Rows(rows, kept, tf.gather(subject, kept), None)
    algorithm = plan.algorithm
    pair = draws.number_pairs(subject, data["element"])
    if plan.max_items_per_subject is None:
        _check_largest("a subject", subject, tf.cast(max_items, tf.int64))
    if algorithm.max_items_per_element is None:
        _check_largest("an element of a subject", pair, element_items)
    kept = draws.bound_elements(
        subject, pair, algorithm.max_elements, algorithm.max_items_per_element
    )
    if plan.max_items_per_subject is not None:
        kept = tf.gather(kept, draws.bound_items(tf.gather(subject, kept), max_items))
    # Numbered anew: of the elements that stay.
    subject = tf.gather(subject, kept)
    return Rows(rows, kept, subject, draws.number_pairs(subject, tf.gather(pair, kept)))


def _check_largest(name: str, group: tf.Tensor, most: tf.Tensor) -> None:
    """Whoever calls the computation itself is held to what `silo_data.check_rows` checks."""
    found = draws.largest_group(group)
    tf.debugging.Assert(
        found <= most,
        [f"A silo has {name} with", found, "items and the plan was made for at most", most],
    )


def check_size(subject: tf.Tensor, fixed: tf.Tensor, items: tf.Tensor) -> None:
    """Refuses another number of items than the plan's where batches are of a fixed size.

    Args:
      subject: int64 [m], of the rows that stay.
      fixed: bool [], whether the silo's batches are.
      items: int64 [], the plan's number.
    """
    rows = tf.size(subject, out_type=tf.int64)
    tf.debugging.Assert(
        ~fixed | tf.equal(rows, items),
        [
            "A silo has",
            rows,
            "items and the plan was made for",
            items,
            ": batches of a fixed size depend on that number; plan with its stats.",
        ],
    )
