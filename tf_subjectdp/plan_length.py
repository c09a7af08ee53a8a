# SPDX-License-Identifier: Apache-2.0
"""How long a plan is: from epochs or steps, as a user says them, to a checked number of steps."""

import math

import numpy as np

# Above this a float64 no longer tells whole numbers apart.
_MOST_STEPS = 2**53


def length_in_steps(epochs: float | None, steps: int | None, steps_per_epoch: int) -> int:
    """T, from a number of epochs or of steps: exactly one of them is given.

    Args:
      epochs: passes over the data on average, above 0, or None.
      steps: a whole number of at least 1, or None.
      steps_per_epoch: steps of one pass.

    Raises:
      TypeError, ValueError: none or both are given, or one is out of its range.
    """
    if (epochs is None) == (steps is None):
        raise ValueError("give exactly one of epochs= and steps=.")
    name, value = ("steps", steps) if epochs is None else ("epochs", epochs)
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}={value!r} must be a number.")
    value = value.item() if isinstance(value, np.generic) else value
    # Compared, never made a float: a whole number of 400 digits has none.
    if not 0 < value < math.inf or (epochs is None and value != int(value)):
        kind = "a whole number of at least 1" if epochs is None else "above 0"
        raise ValueError(f"{name}={value} must be {kind}.")
    # An epoch has a step at least, so this also keeps the product below in range.
    if value > _MOST_STEPS or (epochs is not None and value * steps_per_epoch > _MOST_STEPS):
        raise ValueError(f"{name}={value} is too long: a plan has at most {_MOST_STEPS} steps.")
    return int(value) if epochs is None else max(1, math.ceil(value * steps_per_epoch - 1e-9))


def check_steps(steps: int) -> int:
    """A number of steps as an int; TypeError or ValueError unless it is whole and at least 0."""
    if isinstance(steps, bool) or not isinstance(steps, (int, float, np.integer, np.floating)):
        raise TypeError(f"steps={steps!r} must be a whole number.")
    if not 0 <= steps <= _MOST_STEPS or steps != int(steps):
        raise ValueError(
            f"steps={steps} must be a whole number of at least 0 and at most {_MOST_STEPS}."
        )
    return int(steps)
