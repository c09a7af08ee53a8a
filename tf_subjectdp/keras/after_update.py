# SPDX-License-Identifier: Apache-2.0
"""What follows an update: noised statistics are stored, weights go back into their ball.

Knows variables and noised tensors; imports `norms` and `compat`. All of it works on what is private
already.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_subjectdp.clipping import norms
from tf_subjectdp.keras import compat


def move_statistics(statistics: Sequence[Any], changes: Sequence[tf.Tensor]) -> None:
    """Subtracts noised changes from moving statistics; a variance never falls below 0.

    Args:
      statistics: pairs (variable, smallest value or None), see `compat.batch_statistics`.
      changes: float32 tensors shaped as the variables: (before - after), clipped, noised, averaged.
    """
    for (variable, least), change in zip(statistics, changes, strict=True):
        variable = compat.raw(variable)
        value = variable - tf.cast(change, variable.dtype)
        variable.assign(value if least is None else tf.maximum(value, least))


def project(variables: Sequence[Any], radius: float) -> None:
    """Scales all weights together into the L2 ball of `radius` around 0 (Asi et al., Algorithm 1)."""
    tensors = [compat.raw(v) for v in variables]
    norm = norms.row_norms([tf.cast(v, tf.float32)[tf.newaxis] for v in tensors])[0]
    factor = norms.clip_factors(norm, radius)
    for tensor in tensors:
        tensor.assign(tf.cast(factor, tensor.dtype) * tensor)
