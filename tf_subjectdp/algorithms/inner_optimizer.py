# SPDX-License-Identifier: Apache-2.0
"""InnerOptimizer: several optimizer steps over one part of a batch, as one update that is clipped."""

from __future__ import annotations

import dataclasses
import json
import numbers
from typing import Any

ONE_AN_ITEM = "one an item"


@dataclasses.dataclass(frozen=True)
class InnerOptimizer:
    """Algorithm A of van Dijk et al.: what is run on each part, from the step's weights, anew each time.

        InnerOptimizer(tf.keras.optimizers.SGD(0.1, momentum=0.9), steps="one an item")

    The part's update is (weights before) - (weights after), which takes the place of a gradient: with
    `plan.optimizer(tf.keras.optimizers.SGD(1.0))` the weights move by the mean of the clipped, noised
    updates. Nothing of the optimizer (momentum, moments, iterations) stays between parts. Penalties of
    weights are applied by the outer optimizer, once a step.

    Attributes:
      optimizer: a Keras optimizer or its name; kept as its config (JSON text).
      steps: n steps, each on the mean loss of the whole part; or "one an item", a step on each item of
        the part, in the order of the batch, which is random in `plan.dataset`.

    Raises:
      TypeError, ValueError: no optimizer, or another number of steps.
    """

    optimizer: Any
    steps: int | str = 1

    def __post_init__(self):
        object.__setattr__(self, "optimizer", _as_text(self.optimizer))
        steps = self.steps
        whole = isinstance(steps, numbers.Integral) and not isinstance(steps, bool)
        if steps != ONE_AN_ITEM and not (whole and steps >= 1):
            raise ValueError(
                f"steps={steps!r} must be a whole number of at least 1, or {ONE_AN_ITEM!r}."
            )
        object.__setattr__(self, "steps", int(steps) if whole else steps)

    def make(self) -> Any:
        """A new Keras optimizer; ValueError if Keras does not know the config."""
        import tensorflow as tf

        return tf.keras.utils.deserialize_keras_object(json.loads(self.optimizer))

    def __str__(self) -> str:
        name = json.loads(self.optimizer)["class_name"]
        steps = ONE_AN_ITEM if self.steps == ONE_AN_ITEM else f"{self.steps} a part"
        return f"{name}, {'one step an item' if self.steps == ONE_AN_ITEM else steps}"


def _as_text(optimizer: Any) -> str:
    if isinstance(optimizer, str) and optimizer.startswith("{"):
        try:
            config = json.loads(optimizer)
        except ValueError as error:
            raise ValueError(f"optimizer={optimizer!r} is no config (JSON): {error}.") from None
        _refuse_averages(config)
        return optimizer
    import tensorflow as tf

    if isinstance(optimizer, str):
        try:
            optimizer = tf.keras.optimizers.get(optimizer)
        except ValueError:
            raise ValueError(
                f"optimizer={optimizer!r} is no optimizer that Keras knows; pass one, e.g. "
                'tf.keras.optimizers.SGD(0.1), or a name such as "sgd", "adam" or "rmsprop".'
            ) from None
    if not isinstance(optimizer, tf.keras.optimizers.Optimizer) or hasattr(optimizer, "inner"):
        raise TypeError(
            f"optimizer={optimizer!r} must be a plain Keras optimizer or its name, e.g. "
            "tf.keras.optimizers.SGD(0.1, momentum=0.9)."
        )
    config = tf.keras.utils.serialize_keras_object(optimizer)
    _refuse_averages(config)
    return json.dumps(config, sort_keys=True)


def _refuse_averages(config: Any) -> None:
    if isinstance(config, dict) and config.get("config", {}).get("use_ema"):
        raise ValueError(
            "use_ema=True averages weights over steps, and nothing of a part stays; leave it out."
        )
