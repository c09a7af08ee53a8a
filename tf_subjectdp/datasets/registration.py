# SPDX-License-Identifier: Apache-2.0
"""Makes ``tfds.load("insteval_subjects")`` work, whichever of the two packages comes first.

TensorFlow Datasets knows a builder once its class has been defined, and it has no entry points: the
defining module must be imported, which takes TensorFlow Datasets (2 s), for users who may never
ask for it. So the module is imported at once where TensorFlow Datasets is already there, and else
at the end of its import, by a hook that does nothing for any other module.
"""

import importlib
import importlib.abc
import importlib.util
import logging
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_TFDS = "tensorflow_datasets"
_BUILDERS = "tf_subjectdp.datasets.tfds"

_logger = logging.getLogger(__name__)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Imports the builders once ``tensorflow_datasets`` has been imported; then it is gone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _TFDS:
            return None
        # Out of the way first, so that the ordinary finders answer.
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        spec = importlib.util.find_spec(fullname)
        loader = spec.loader if spec is not None else None
        if loader is None:
            return spec
        execute = loader.exec_module

        def execute_then_register(module: ModuleType) -> None:
            execute(module)
            _import_builders()

        # On the loader itself: the module keeps its own spec, loader and resources.
        loader.exec_module = execute_then_register  # type: ignore[method-assign]
        return spec


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
    if _TFDS in sys.modules:
        _import_builders()
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
