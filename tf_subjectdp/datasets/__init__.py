# SPDX-License-Identifier: Apache-2.0
"""Public data with real people in it: each loader returns rows with a subject and a silo.

Importing this package also announces the TensorFlow Datasets builders ``insteval_subjects`` and
``shakespeare_subjects`` (see :func:`register_builders`), without importing TensorFlow.
"""

import importlib

from tf_subjectdp._after_import import after_import
from tf_subjectdp.datasets.insteval_table import insteval, insteval_binary, insteval_one_hot
from tf_subjectdp.datasets.shakespeare_plays import (
    SEQUENCE_LENGTH,
    SHAKESPEARE_VOCABULARY,
    SHAKESPEARE_VOCABULARY_SIZE,
    UNKNOWN_CHARACTER,
    Role,
    decode_text,
    encode_text,
    parse_play,
    shakespeare,
    shakespeare_roles,
    window_starts,
)
from tf_subjectdp.datasets.subject_dataset import SubjectDataset, split_subjects

__all__ = [
    "SEQUENCE_LENGTH",
    "SHAKESPEARE_VOCABULARY",
    "SHAKESPEARE_VOCABULARY_SIZE",
    "UNKNOWN_CHARACTER",
    "Role",
    "SubjectDataset",
    "decode_text",
    "encode_text",
    "insteval",
    "insteval_binary",
    "insteval_one_hot",
    "parse_play",
    "register_builders",
    "shakespeare",
    "shakespeare_roles",
    "split_subjects",
    "window_starts",
]


def register_builders() -> None:
    """Registers the builders ``insteval_subjects`` and ``shakespeare_subjects`` with ``tfds``.

    TensorFlow Datasets knows a builder once its class has been defined, and has no entry points: the
    defining module must be imported, which takes TensorFlow Datasets (2 s), for users who may never
    ask for it. So that is done at once where ``tensorflow_datasets`` has been imported, otherwise when
    it will be. Called by ``import tf_subjectdp.datasets``; calling it again changes nothing. It imports
    neither TensorFlow nor TensorFlow Datasets.
    """
    after_import("tensorflow_datasets", _import_builders)


def _import_builders() -> None:
    importlib.import_module("tf_subjectdp.datasets.tfds")


register_builders()
