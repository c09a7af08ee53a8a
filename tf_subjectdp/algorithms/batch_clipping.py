# SPDX-License-Identifier: Apache-2.0
"""BatchClipping: the result of the whole batch is clipped (van Dijk et al., arXiv:2212.05796, m = 1).

    step <-  clip(A(w, batch), C) + N(0, (2 C sigma)^2 I)

Whoever is in the batch moves the step by at most 2 C, however many items they have in it: in an epoch
of shuffled batches k items of a subject touch at most k of them, hence sqrt(k E) over E epochs instead
of k sqrt(E).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tf_subjectdp.algorithms import base
from tf_subjectdp.algorithms.part_clipping import PartClipping


@base.register_algorithm
@dataclasses.dataclass(frozen=True)
class BatchClipping(PartClipping):
    """Clips the batch's mean gradient, or an inner optimizer's update of the whole batch.

    Attributes:
      clip_norm: C, bound of the L2 norm of the batch's result.
      inner: None for the mean gradient, or an `InnerOptimizer` (keyword).
      clip_schedule: None, or a `ClipSchedule` (keyword).
    """

    one_term: ClassVar[bool] = True

    @property
    def number_of_parts(self) -> int:
        return 1
