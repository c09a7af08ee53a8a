# SPDX-License-Identifier: Apache-2.0
"""MixedClipping: the results of m parts of the batch are clipped (van Dijk et al., arXiv:2212.05796).

    step <-  (sum over the parts h of clip(A(w, part h), C) + N(0, (2 C sigma)^2 I)) / m

Between batch clipping (m = 1) and individual clipping (a part is one item; that is `ItemDP`, whose
`noise_multiplier` counts in C, not in 2 C).
"""

from __future__ import annotations

import dataclasses
import numbers

from tf_subjectdp.algorithms import base
from tf_subjectdp.algorithms.part_clipping import PartClipping

# Above this an int64 draw is no longer uniform over the parts.
_MOST_PARTS = 2**53
# Up to here a backward pass for each part was the fastest way (benchmarks/parts.py).
_FEW_PARTS = 16


@base.register_algorithm
@dataclasses.dataclass(frozen=True)
class MixedClipping(PartClipping):
    """Clips the mean gradients (or inner updates) of m random parts of the batch, and sums.

    Attributes:
      clip_norm: C, bound of the L2 norm of one part's result.
      parts: m, at least 1; every item joins one of them at random, afresh in every step.
      inner: None for the mean gradient, or an `InnerOptimizer` (keyword).
      clip_schedule: None, or a `ClipSchedule` (keyword).
    """

    parts: int

    @property
    def one_term(self) -> bool:
        """Few parts have many rows each: a backward pass a part is cheaper than any norms."""
        return self.parts <= _FEW_PARTS

    def __post_init__(self):
        super().__post_init__()
        parts = self.parts
        if isinstance(parts, bool) or not isinstance(parts, numbers.Integral):
            raise TypeError(f"parts={parts!r} must be a whole number of at least 1.")
        if not 1 <= parts <= _MOST_PARTS:
            raise ValueError(
                f"parts={parts} must be at least 1 (which clips the batch) and at most {_MOST_PARTS}."
            )
        object.__setattr__(self, "parts", int(parts))

    @property
    def number_of_parts(self) -> int:
        return self.parts
