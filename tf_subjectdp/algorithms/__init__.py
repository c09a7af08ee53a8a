# SPDX-License-Identifier: Apache-2.0
"""One file an algorithm: its clipping rule, its divisor, its accounting event, the paper's lines.

TensorFlow is loaded when a batch is at hand.
"""

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
    "algorithm_from_config",
    "check_noise_multiplier",
    "register_algorithm",
]
