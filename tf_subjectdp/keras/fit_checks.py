# SPDX-License-Identifier: Apache-2.0
"""What `PrivateModel.fit` refuses before anything is traced: other data, and more steps than planned.

Knows the plan and Keras's arguments of `fit`; imports the optimizer and `batches`.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_subjectdp.keras import batches
from tf_subjectdp.keras.optimizer import DPOptimizer
from tf_subjectdp.sampling import dataset_fingerprint


def check_dataset(dataset: tf.data.Dataset, optimizer: DPOptimizer) -> None:
    """ValueError unless the dataset is drawn as the optimizer's plan, if it has one, says."""
    fingerprint = dataset_fingerprint(dataset)
    if optimizer.plan is not None and fingerprint != optimizer.plan.fingerprint:
        raise ValueError(
            "this dataset's sampling is not the plan's, so the plan's epsilon would not hold for "
            "it; pass plan.dataset(x, y, subject_id) of the plan that made the optimizer."
        )


class Length(NamedTuple):
    """How many steps a `fit` takes.

    Attributes:
      steps: the steps in all.
      asked: those that Keras would ask for, which may be more than the data have.
      one_pass: whether they are one pass over the data.
    """

    steps: int
    asked: int
    one_pass: bool


def check_budget(
    dataset: tf.data.Dataset, optimizer: DPOptimizer, kwargs: dict[str, Any]
) -> Length:
    """The length of a `fit` with these arguments.

    Raises:
      ValueError: it would take more steps than the plan has left.
    """
    available = int(dataset.cardinality().numpy())
    epochs = batches.whole("epochs", kwargs.get("epochs", 1))
    passes = max(epochs - batches.whole("initial_epoch", kwargs.get("initial_epoch") or 0), 0)
    per_epoch = kwargs.get("steps_per_epoch")
    one_pass = False
    if per_epoch is None or batches.whole("steps_per_epoch", per_epoch, 1) == available:
        # Keras starts the dataset anew at each epoch.
        # Of shuffled epochs, one that a pass before the last leaves unfinished counts whole.
        requested = (
            max(passes - 1, 0) * optimizer._whole_epochs(available) + min(passes, 1) * available
        )
    else:
        requested, one_pass = min(passes * int(per_epoch), available), True
    planned, left = optimizer.plan.steps, optimizer.steps_left
    used_up = passes > 0 and available == left == 0  # of dataset.take(steps_left), for instance
    if requested <= left and not used_up:
        asked = passes * int(per_epoch) if one_pass else requested
        return Length(requested, asked, one_pass or passes == 1)
    hints = []
    if per_epoch is None and passes > 1:
        hints.append(
            "one pass over plan.dataset is the whole plan: leave epochs= out, or pass "
            "steps_per_epoch=plan.steps_per_epoch, epochs=plan.epochs"
        )
    if left:
        hints.append(
            f"take the {left} steps that are left with fit(dataset.take(model.optimizer.steps_left))"
        )
    hints.append(
        "pay for more with model.extend_plan(epochs=...) or (steps=...), the new totals; epsilon "
        "then rises"
    )
    taken, counted = optimizer.steps_taken, optimizer.steps_at_new_pass
    begun = f"; its begun epoch counts whole, as {counted}" if counted > taken else ""
    brought = int(optimizer._lineage.of_this_plan()[0])
    if brought:
        begun += (
            f"; {brought} of them in another process or by another optimizer, whose weights came in: "
            "runs of a plan of other noise or sampling are stated beside this one instead"
        )
    raise ValueError(
        f"fit asks for {requested} steps, and {left} of the plan's {planned} are left ({taken} "
        f"taken{begun}). You may: {'; or '.join(hints)}."
    )


def shortened(
    dataset: tf.data.Dataset, optimizer: DPOptimizer, length: Length
) -> tuple[tf.data.Dataset, int | None]:
    """The data and the last step of a `fit` after a ledger was read, by which fewer steps may be left.

    Args:
      dataset, optimizer: of the `fit`.
      length: what `check_budget` said before the ledger was read.

    Returns:
      The dataset, cut to what is left; and the step count at which `fit` has to end, None where Keras
      ends there by itself.

    Raises:
      ValueError: nothing is left.
    """
    left = optimizer.steps_left
    if length.steps > 0 and left == 0:
        raise ValueError(
            f"by its ledger all {optimizer.plan.steps} steps of the plan are taken, with those that a "
            "crash may have lost. For a new model name a new ledger; to go on with this one, pay for "
            "more with model.extend_plan(epochs=...) or (steps=...)."
        )
    if length.asked <= left and length.asked == length.steps:
        return dataset, None
    last = optimizer.steps_at_new_pass + min(length.steps, left)
    return (dataset.take(left) if left < length.steps else dataset), last
