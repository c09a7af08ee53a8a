# SPDX-License-Identifier: Apache-2.0
"""The TensorFlow Datasets builders; importing this package registers them.

Both read the same installed packages as the loaders and use no network. ``import
tf_subjectdp.datasets`` imports this package where it is wanted (see
:func:`tf_subjectdp.datasets.register_builders`).

Raises:
    ImportError: TensorFlow Datasets is not installed.
"""

try:
    import tensorflow_datasets as _tfds  # noqa: F401
except ImportError as _error:
    raise ImportError(
        "the TensorFlow Datasets builders need tensorflow-datasets; install it with: "
        "pip install 'tf-subjectdp[datasets]'",
        name="tensorflow_datasets",
    ) from _error

from tf_subjectdp.datasets.tfds.insteval_subjects import InstevalSubjects
from tf_subjectdp.datasets.tfds.shakespeare_subjects import ShakespeareSubjects

__all__ = ["InstevalSubjects", "ShakespeareSubjects"]
