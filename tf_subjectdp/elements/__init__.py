# SPDX-License-Identifier: Apache-2.0
"""Which element a datum belongs to: k-means clusters, hash buckets, or a function of the user's.

The unit of element-level privacy (Asi, Duchi, Javidi): every datum is in exactly one element, by a
rule that is public, or was paid for. Knows NumPy, SciPy and `tf_subjectdp.accounting`; TensorFlow is
imported when ids are asked for in a `tf.data` pipeline, and not before. Names are loaded when they
are first used.
"""

import importlib
from typing import Any

_HOME = {
    "base": ("Elements", "TensorElements"),
    "functions": ("FunctionElements", "lower_word", "url_domain"),
    "hashing": ("HashElements",),
    "kmeans": ("KMeansElements",),
    "partition": ("PseudoUsers", "pseudo_users"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
