# SPDX-License-Identifier: Apache-2.0
"""The accountant: what a step is (`*_event`), what it costs (`epsilon`, `delta`), what it needs.

    from tf_subjectdp import accounting
    event = accounting.higradavg_event(q=0.016, k=145, noise_multiplier=60.0)
    accounting.epsilon(event, steps=6200, delta=1e-5)

NumPy, SciPy and dp_accounting only: TensorFlow is never imported. Two engines: "pld" (default;
within 1e-3 of the true value and never below it) and "rdp" (looser). Modules of their own:
`fdp`, `group_privacy`, `paper_rules`, `study`, `utility`.
"""

import importlib
from typing import Any

from tf_subjectdp.accounting.accountants import SubjectPLDAccountant, SubjectRdpAccountant
from tf_subjectdp.accounting.clipped_parts import (
    mixed_clipping_event,
    mixed_clipping_fixed_size_event,
    mixed_clipping_shuffled_event,
)
from tf_subjectdp.accounting.event_types import (
    FixedSizeReplaceOneDpEvent,
    PoissonReplaceOneDpEvent,
    RevealedSensitivityDpEvent,
)
from tf_subjectdp.accounting.events import (
    compose,
    element_event,
    element_subject_event,
    fixed_size_event,
    group_event,
    higradavg_event,
    histogram_event,
    item_event,
    nonprivate_event,
    replace_one_event,
    revealed_event,
    shuffled_epoch_event,
    silo_event,
    subject_event,
    truncated_poisson_event,
    user_ldp_event,
)
from tf_subjectdp.accounting.paper_rules import PaperRuleWarning
from tf_subjectdp.accounting.silos.central import (
    central_event,
    central_group_event,
    central_higradavg_event,
)
from tf_subjectdp.accounting.silos.horizontal import (
    HorizontalPlan,
    SubjectEpsilons,
    WorstCase,
    per_subject_epsilon,
)
from tf_subjectdp.accounting.silos.silo import Silo
from tf_subjectdp.accounting.solve import delta, epsilon, noise_multiplier

_SUBMODULES = ("fdp", "group_privacy", "paper_rules", "study", "utility")

__all__ = [
    "FixedSizeReplaceOneDpEvent",
    "HorizontalPlan",
    "PaperRuleWarning",
    "PoissonReplaceOneDpEvent",
    "RevealedSensitivityDpEvent",
    "Silo",
    "SubjectEpsilons",
    "SubjectPLDAccountant",
    "SubjectRdpAccountant",
    "WorstCase",
    "central_event",
    "central_group_event",
    "central_higradavg_event",
    "compose",
    "delta",
    "element_event",
    "element_subject_event",
    "epsilon",
    "fdp",
    "fixed_size_event",
    "group_event",
    "group_privacy",
    "higradavg_event",
    "histogram_event",
    "item_event",
    "mixed_clipping_event",
    "mixed_clipping_fixed_size_event",
    "mixed_clipping_shuffled_event",
    "noise_multiplier",
    "nonprivate_event",
    "paper_rules",
    "per_subject_epsilon",
    "replace_one_event",
    "revealed_event",
    "shuffled_epoch_event",
    "silo_event",
    "study",
    "subject_event",
    "truncated_poisson_event",
    "user_ldp_event",
    "utility",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
