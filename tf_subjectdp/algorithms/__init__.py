# SPDX-License-Identifier: Apache-2.0
"""One file an algorithm: its clipping rule, its divisor, its accounting event, the paper's lines.

TensorFlow is loaded when a batch is at hand.
"""

import importlib
from typing import Any

from tf_subjectdp.algorithms.base import (
    Algorithm,
    Guarantee,
    SamplingFacts,
    algorithm_from_config,
    check_noise_multiplier,
    register_algorithm,
)
from tf_subjectdp.algorithms.batch_clipping import BatchClipping
from tf_subjectdp.algorithms.clip_schedule import ClipSchedule
from tf_subjectdp.algorithms.element_dp import ElementDP
from tf_subjectdp.algorithms.group_dp import GroupDP
from tf_subjectdp.algorithms.higradavg import HiGradAvg
from tf_subjectdp.algorithms.inner_optimizer import InnerOptimizer
from tf_subjectdp.algorithms.item_dp import ItemDP
from tf_subjectdp.algorithms.mixed_clipping import MixedClipping
from tf_subjectdp.algorithms.subject_dp import SubjectDP
from tf_subjectdp.algorithms.user_ldp import UserLDP

__all__ = [
    "Algorithm",
    "BatchClipping",
    "ClipSchedule",
    "ElementDP",
    "GroupDP",
    "Guarantee",
    "HiGradAvg",
    "InnerOptimizer",
    "ItemDP",
    "MixedClipping",
    "SamplingFacts",
    "SubjectDP",
    "UserLDP",
    "add_gaussian_noise",
    "algorithm_from_config",
    "check_noise_multiplier",
    "register_algorithm",
]


def __getattr__(name: str) -> Any:
    if name == "add_gaussian_noise":
        return importlib.import_module("tf_subjectdp.noise").add_gaussian_noise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
