# SPDX-License-Identifier: Apache-2.0
"""The checks of `tf_subjectdp._validate` under the name that the accountant's files import."""

from tf_subjectdp._validate import (
    LARGEST_INTEGER,
    SMALLEST_PLD_DELTA,
    engine,
    integer,
    noise,
    probability,
    sensitivity,
    target_delta,
    target_epsilon,
)
from tf_subjectdp._validate import real as _real

__all__ = [
    "LARGEST_INTEGER",
    "SMALLEST_PLD_DELTA",
    "_real",
    "engine",
    "integer",
    "noise",
    "probability",
    "sensitivity",
    "target_delta",
    "target_epsilon",
]
