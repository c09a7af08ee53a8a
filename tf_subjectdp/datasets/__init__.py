# SPDX-License-Identifier: Apache-2.0
"""Public data with real people in it: each loader returns rows with a subject and a silo.

Importing this package also announces the TensorFlow Datasets builders ``insteval_subjects`` and
``shakespeare_subjects`` (see :func:`register_builders`), without importing TensorFlow.
"""

from tf_subjectdp.datasets.insteval_table import insteval, insteval_binary, insteval_one_hot
from tf_subjectdp.datasets.registration import register_builders
from tf_subjectdp.datasets.shakespeare_plays import Role, parse_play, shakespeare_roles
from tf_subjectdp.datasets.shakespeare_windows import (
    SEQUENCE_LENGTH,
    SHAKESPEARE_VOCABULARY,
    SHAKESPEARE_VOCABULARY_SIZE,
    UNKNOWN_CHARACTER,
    decode_text,
    encode_text,
    shakespeare,
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

register_builders()
