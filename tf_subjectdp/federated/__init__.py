# SPDX-License-Identifier: Apache-2.0
"""Training over silos with TensorFlow Federated, with a budget that counts a person once.

    plan = sdp.federated.plan(sdp.HiGradAvg(clip_norm=1.0), sdp.PoissonItems(512), silo_stats,
                              rounds=100, silos_per_round=16, local_steps=10,
                              epsilon=4.0, delta=1e-5)
    process = sdp.federated.build_process(model_fn, plan)
    state = process.initialize()
    for _ in range(plan.rounds):
        state, metrics = process.next(state, silo_datasets)

Plans and partitions need neither TensorFlow nor TFF; processes need both (`pip install
tf-subjectdp[federated]`, Python 3.11).
"""

import importlib
from typing import Any

_HOME = {
    "plans": ("FederatedPlan", "Spent"),
    "planning": ("plan",),
    "ids": ("as_text", "hashed_ids", "silo_stats"),
    "partition_plot": ("plot_partition",),
    "spending": ("epsilon_of", "plan_of", "spent_in"),
    "silo_model": ("KerasSilo",),
    "rounds": ("RoundLog", "round_metrics", "run", "subject_epsilons"),
    "in_process": ("InProcessSilos",),
    "remote": ("RemoteSiloError", "RemoteSilos"),
    "workers": ("LocalWorkers",),
    "process": ("FederatedProcess", "build_process"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_NEED_TFF = ("in_process", "process", "remote", "workers")
_SUBMODULES = ("partition",)

__all__ = sorted([*_MODULE_OF, *_SUBMODULES])


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULE_OF[name]
    try:
        found = importlib.import_module(f"{__name__}.{module}")
    except ModuleNotFoundError as error:
        if module not in _NEED_TFF or (error.name or "").split(".")[0] != "tensorflow_federated":
            raise
        raise ImportError(
            f"federated.{name} needs tensorflow-federated 0.87, which has releases for Python 3.11 only. "
            "Install this package's lock, requirements/py311.txt, with pip install --no-deps -r, or "
            "tf-subjectdp[federated]."
        ) from error
    value = getattr(found, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
