# SPDX-License-Identifier: Apache-2.0
"""Makes ``tfds.load("insteval_subjects")`` work, whichever of the two packages comes first.

TensorFlow Datasets knows a builder once its class has been defined, and it has no entry points: the
defining module must be imported, which takes TensorFlow Datasets (2 s), for users who may never
ask for it. So the module is imported once TensorFlow Datasets has been.
"""

import importlib

from tf_subjectdp._after_import import after_import

_BUILDERS = "tf_subjectdp.datasets.tfds"


def _import_builders() -> None:
    importlib.import_module(_BUILDERS)


def register_builders() -> None:
    """Registers the builders ``insteval_subjects`` and ``shakespeare_subjects`` with ``tfds``.

    At once where ``tensorflow_datasets`` has been imported, otherwise when it will be. Called by
    ``import tf_subjectdp.datasets``; calling it again changes nothing. It imports neither
    TensorFlow nor TensorFlow Datasets.
    """
    after_import("tensorflow_datasets", _import_builders)
