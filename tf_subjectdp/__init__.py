# SPDX-License-Identifier: Apache-2.0
"""tf_subjectdp: Keras models whose differential privacy protects a person, not a row.

    import tf_subjectdp as sdp

    stats = sdp.SubjectStats.from_ids(patient_id)
    plan = sdp.plan(sdp.HiGradAvg(clip_norm=1.0), sdp.PoissonItems(512), stats, epochs=10,
                    epsilon=4.0, delta=1e-5)
    model = sdp.PrivateModel(keras_model)
    model.compile(optimizer=plan.optimizer("adam"), loss="sparse_categorical_crossentropy")
    model.fit(plan.dataset(x, y, patient_id))

Names are loaded when they are first used: `import tf_subjectdp.accounting` never loads TensorFlow.
"""

import functools
import importlib
import sys
from typing import Any

# Registers the TensorFlow Datasets builders lazily; loads neither TensorFlow nor TFDS.
from tf_subjectdp import datasets
from tf_subjectdp._after_import import after_import
from tf_subjectdp.version import __version__

_HOME = {
    "algorithms": (
        "Algorithm",
        "BatchClipping",
        "ClipSchedule",
        "ElementDP",
        "GroupDP",
        "HiGradAvg",
        "InnerOptimizer",
        "ItemDP",
        "MixedClipping",
        "SubjectDP",
        "UserLDP",
    ),
    "sampling": (
        "FixedSize",
        "PoissonElements",
        "PoissonItems",
        "PoissonSubjects",
        "Sampler",
        "Shuffle",
        "SiloStats",
        "SubjectStats",
        "stats_from_table",
    ),
    "plans": ("Plan", "plan"),
    "clipping": ("NoRule", "check_norm_rule", "register_norm_rule"),
    "keras": (
        "DPOptimizer",
        "EngineOptions",
        "PrivacyBudget",
        "PrivacyLedger",
        "PrivacyScalars",
        "PrivateModel",
        "private_step",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_SUBMODULES = (
    "accounting",
    "algorithms",
    "cli",
    "clipping",
    "elements",
    "federated",
    "keras",
    "plans",
    "release",
    "sampling",
    "statement",
)

__all__ = ["__version__", "datasets", *_MODULE_OF, *_SUBMODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    elif name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _register_with_keras(other: str) -> None:
    """Lets Keras 3 load saved private models: it looks for registered classes alone, and does not, as
    Keras 2 does, import the module that a file names.

    Args:
      other: the second of the packages that are needed. TensorFlow imports Keras and Keras TensorFlow:
        whichever is ready last ends up here with the other one complete.
    """
    module = sys.modules.get(other)
    ready = module is not None and not getattr(module.__spec__, "_initializing", False)
    if ready and not getattr(sys.modules["keras"], "__version__", "2").startswith("2"):
        importlib.import_module(f"{__name__}.keras")


for _package, _other in (("keras", "tensorflow"), ("tensorflow", "keras")):
    after_import(_package, functools.partial(_register_with_keras, _other))
