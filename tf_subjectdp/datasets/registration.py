# SPDX-License-Identifier: Apache-2.0
"""Makes ``tfds.load("insteval_subjects")`` work, whichever of the two packages comes first.

TensorFlow Datasets knows a builder once its class has been defined, and it has no entry points: the
defining module must be imported, which takes TensorFlow Datasets (2 s), for users who may never
ask for it. So the module is imported once TensorFlow Datasets has been.
"""

import importlib
import logging

from tf_subjectdp._after_import import after_import

_BUILDERS = "tf_subjectdp.datasets.tfds"

_logger = logging.getLogger(__name__)


def _import_builders() -> None:
    # What is broken in the user's TensorFlow Datasets must not break the import that ran us; the
    # cause is then named where the builder is asked for.
    try:
        importlib.import_module(_BUILDERS)
    except (ImportError, AttributeError, ValueError) as error:
        _logger.warning(
            "tf_subjectdp could not register its TensorFlow Datasets builders (%s: %s); "
            "import %s shows where",
            type(error).__name__,
            error,
            _BUILDERS,
        )


def register_builders() -> None:
    """Registers the builders ``insteval_subjects`` and ``shakespeare_subjects`` with ``tfds``.

    At once where ``tensorflow_datasets`` has been imported, otherwise when it will be. Called by
    ``import tf_subjectdp.datasets``; calling it again changes nothing. It imports neither
    TensorFlow nor TensorFlow Datasets.
    """
    after_import("tensorflow_datasets", _import_builders)
