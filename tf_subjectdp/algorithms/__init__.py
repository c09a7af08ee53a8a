# SPDX-License-Identifier: Apache-2.0
"""One file an algorithm: its clipping rule, its divisor, its accounting event, the paper's lines.

Knows `accounting` and `clipping`; `noise` is the one place where noise is made.
"""

from tf_subjectdp.algorithms.base import (
    Algorithm,
    Guarantee,
    SamplingFacts,
    algorithm_from_config,
    check_noise_multiplier,
    register_algorithm,
)
from tf_subjectdp.algorithms.group_dp import GroupDP
from tf_subjectdp.algorithms.higradavg import HiGradAvg
from tf_subjectdp.algorithms.item_dp import ItemDP
from tf_subjectdp.algorithms.noise import add_gaussian_noise
from tf_subjectdp.algorithms.subject_dp import SubjectDP
from tf_subjectdp.algorithms.user_ldp import UserLDP

__all__ = [
    "Algorithm",
    "GroupDP",
    "Guarantee",
    "HiGradAvg",
    "ItemDP",
    "SamplingFacts",
    "SubjectDP",
    "UserLDP",
    "add_gaussian_noise",
    "algorithm_from_config",
    "check_noise_multiplier",
    "register_algorithm",
]
