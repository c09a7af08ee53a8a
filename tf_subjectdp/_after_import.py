# SPDX-License-Identifier: Apache-2.0
"""Runs a function once a package has been imported, whichever of the two comes first.

For what must be known to a large package (a class in its registry) of which this library cannot say
whether the user will ever want it: importing it takes seconds.
"""

import importlib.abc
import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_log = logging.getLogger("tf_subjectdp")


class _AfterImport(importlib.abc.MetaPathFinder):
    """Waits for one package; after its import it is gone."""

    def __init__(self, package: str, function: Callable[[], None]):
        self.package, self.function = package, function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.package:
            return None
        # Out of the way first, so that the ordinary finders answer.
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        spec = importlib.util.find_spec(fullname)
        loader = spec.loader if spec is not None else None
        if loader is None:
            return spec
        execute, package, function = loader.exec_module, self.package, self.function

        def execute_then_call(module: ModuleType) -> None:
            execute(module)
            _call(package, function)

        # On the loader itself: the module keeps its own spec, loader and resources.
        loader.exec_module = execute_then_call  # type: ignore[method-assign]
        return spec


def after_import(package: str, function: Callable[[], None]) -> None:
    """Calls `function` at once where `package` has been imported, otherwise at the end of its import.

    Args:
      package: name of a top-level package.
      function: asked for twice it is called once. What it raises is logged: the package is the user's,
        and its import must not break by what we wanted after it.
    """
    if package in sys.modules:
        _call(package, function)
    elif not any(
        isinstance(finder, _AfterImport)
        and (finder.package, finder.function) == (package, function)
        for finder in sys.meta_path
    ):
        sys.meta_path.insert(0, _AfterImport(package, function))


def _call(package: str, function: Callable[[], None]) -> None:
    try:
        function()
    except Exception as error:  # whatever it is, the user's import goes on
        _log.warning(
            "tf_subjectdp could not finish what it does after the import of %s (%s: %s)",
            package,
            type(error).__name__,
            error,
        )
