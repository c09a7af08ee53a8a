# SPDX-License-Identifier: Apache-2.0
"""What `PrivateModel.fit` refuses before anything is traced: other data, and more steps than planned.

Knows the plan and Keras's arguments of `fit`; imports the optimizer and `batches`.
"""

from typing import Any

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


def check_budget(dataset: tf.data.Dataset, optimizer: DPOptimizer, kwargs: dict[str, Any]) -> None:
    """ValueError if `fit` with these arguments would take more steps than the plan has left."""
    available = int(dataset.cardinality().numpy())
    epochs = batches.whole("epochs", kwargs.get("epochs", 1))
    passes = max(epochs - batches.whole("initial_epoch", kwargs.get("initial_epoch") or 0), 0)
    per_epoch = kwargs.get("steps_per_epoch")
    if per_epoch is None or batches.whole("steps_per_epoch", per_epoch, 1) == available:
        # Keras starts the dataset anew at each epoch.
        # Of shuffled epochs, one that a pass before the last leaves unfinished counts whole.
        requested = (
            max(passes - 1, 0) * optimizer._whole_epochs(available) + min(passes, 1) * available
        )
    else:
        requested = min(passes * int(per_epoch), available)
    planned, left = optimizer.plan.steps, optimizer.steps_left
    used_up = passes > 0 and available == left == 0  # of dataset.take(steps_left), for instance
    if requested <= left and not used_up:
        return
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
    raise ValueError(
        f"fit asks for {requested} steps, and {left} of the plan's {planned} are left ({taken} "
        f"taken{begun}). You may: {'; or '.join(hints)}."
    )
