# SPDX-License-Identifier: Apache-2.0
"""ClipSchedule: clipping constants that change from round to round, fixed before any data is seen.

Numbers only. The noise is a multiple of the round's own clipping constant, so the ratio that privacy
depends on, and with it every event, is that of a constant one (van Dijk et al., Algorithm 1, C_b).
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence

# Smaller factors would bring the clip norm to where float32 norms cannot be trusted.
_SMALLEST = 1e-6


@dataclasses.dataclass(frozen=True)
class ClipSchedule:
    """Step t clips to clip_norm * factors[min(t // steps_per_factor, last)].

    Attributes:
      factors: factors of `clip_norm`, in [1e-6, 1e6]; the last one stays.
      steps_per_factor: steps that each factor lasts.

    Raises:
      TypeError, ValueError: no factors, or one out of range.
    """

    factors: Sequence[float]
    steps_per_factor: int = 1

    def __post_init__(self):
        given = self.factors
        listed = hasattr(given, "__iter__") and not isinstance(given, (str, dict))
        if not listed or not all(isinstance(v, numbers.Real) for v in given):
            raise TypeError(f"factors={given!r} must be a list of numbers, e.g. [1.0, 0.7, 0.5].")
        factors = tuple(float(value) for value in given)
        if not factors:
            raise ValueError("factors is empty; pass at least one, e.g. [1.0].")
        for value in factors:
            if not (math.isfinite(value) and _SMALLEST <= value <= 1.0 / _SMALLEST):
                raise ValueError(
                    f"factors has {value}; each must be between {_SMALLEST} and {1 / _SMALLEST:g}: "
                    "they multiply clip_norm."
                )
        steps = self.steps_per_factor
        if isinstance(steps, bool) or not isinstance(steps, numbers.Integral) or steps < 1:
            raise ValueError(
                f"steps_per_factor={steps!r} must be a whole number of at least 1, e.g. "
                "plan.steps_per_epoch."
            )
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "steps_per_factor", int(steps))

    @classmethod
    def inverse_power(
        cls, count: int, power: float = 0.5, steps_per_factor: int = 1
    ) -> ClipSchedule:
        """Factors 1, 2^-power, 3^-power, ..., count^-power: diminishing as SGD's step sizes do."""
        return cls([round(i**-power, 12) for i in range(1, count + 1)], steps_per_factor)

    @classmethod
    def exponential(cls, rate: float, count: int, steps_per_factor: int = 1) -> ClipSchedule:
        """Factors 1, rate, rate^2, ..., of which there are `count`."""
        return cls([rate**i for i in range(count)], steps_per_factor)

    def factor(self, step: int) -> float:
        """The factor of step number `step`, counted from 0."""
        return self.factors[min(step // self.steps_per_factor, len(self.factors) - 1)]

    def __str__(self) -> str:
        return (
            f"{len(self.factors)} clipping constants from {self.factors[0]:g} to {self.factors[-1]:g} "
            f"times the clip norm, {self.steps_per_factor} steps each"
        )
