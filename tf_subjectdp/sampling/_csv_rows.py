# SPDX-License-Identifier: Apache-2.0
"""The ids of a CSV by Python's own reader, a piece at a time."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import operator
import re
import threading
import warnings
import zlib
from collections.abc import Generator, Iterator, Sequence
from typing import BinaryIO

# Small enough for the strings to stay in the processor's cache.
_CHUNK_ROWS = 1 << 14
# Whole rows in memory at a time: what stands beside the ids may be long texts.
_HELD_ROWS = 64
_SHOWN_COLUMNS = 20
_PEEKED_BYTES = 1024
# The longest field, in characters: a text, an image. A longer one is a quote without its end, and would
# be read into memory up to the end of the file.
_LONGEST_FIELD = 1 << 27
#: What reading a compressed file raises when it is not whole.
DAMAGES = (EOFError, zlib.error, gzip.BadGzipFile)
_LINE_END = re.compile("\r\n|\r|\n")
_MARKS = (
    ("UTF-32", (b"\xff\xfe\0\0", b"\0\0\xfe\xff")),
    ("UTF-16", (b"\xff\xfe", b"\xfe\xff")),
)

#: What to do about a row without an id, of a person or of a silo.
NO_ID_REMEDY = (
    "Every row must say there whose it is: fill it in, or drop such rows. Rows of different people "
    "need different ids, even where nobody knows the name"
)


def _text(stream: BinaryIO) -> io.TextIOWrapper:
    # Bytes that are no UTF-8 survive here: only ids have to be text, and are checked when counted.
    return io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")


class _LongFields:
    """While it is entered, in however many threads, `csv` takes fields of `_LONGEST_FIELD`.

    The limit is one of the process; that of before comes back with the last to leave.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = csv.field_size_limit(_LONGEST_FIELD)
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                csv.field_size_limit(self._before)


_long_fields = _LongFields()


def _check_encoding(start: bytes) -> None:
    """ValueError for a table of another encoding than UTF-8, by its name."""
    header = start.lstrip(b"\r\n").split(b"\n", 1)[0]
    for name, marks in _MARKS:
        if header.startswith(marks):
            raise ValueError(f"the table is {name} text: save it as UTF-8")
    if b"\0" in header:
        # In UTF-32 every delimiter has three zeros beside it, in UTF-16 one.
        name = "UTF-32" if b"\0\0\0" in header else "UTF-16"
        raise ValueError(
            f"the table is {name} text without a byte order mark, or no text at all: save it as UTF-8"
        )


def header(stream: BinaryIO, delimiter: str) -> list[str]:
    """The names of the columns; leaves `stream` open, somewhere behind them."""
    with _rows_of(stream, delimiter) as rows:
        return rows.header()


def chunks(stream: BinaryIO, columns: Sequence[str], delimiter: str) -> Generator[list, None, None]:
    """The ids of the columns, lists of strings: one list a column, some ten thousand rows a time.

    Raises:
      ValueError: see `stats_from_table`.
    """
    done = 0
    with _rows_of(stream, delimiter) as rows:
        names = rows.header()
        check_columns(names, columns)
        take = [operator.itemgetter(names.index(column)) for column in columns]
        found: list[list[str]] = [[] for _ in columns]
        while held := rows.take(_HELD_ROWS):
            if set(map(len, held)) != {len(names)}:
                held = list(_whole_rows(held, len(names), done))
            for ids, column in zip(found, take, strict=True):
                ids.extend(map(column, held))
            done += len(held)
            if len(found[0]) >= _CHUNK_ROWS:
                yield found
                found = [[] for _ in columns]
        yield found
        rows.note_lines_within()


class _Rows:
    """The rows of a CSV, lists of fields, and what becomes of lines that are not rows."""

    def __init__(self, text: io.TextIOWrapper, delimiter: str) -> None:
        # `strict`: a quote that opens a field has to close it, else the rows below are part of it.
        self._reader = csv.reader(text, delimiter=delimiter, strict=True)
        self._delimiter = delimiter
        self._hiding = 0
        self._first_hiding = 0

    def header(self) -> list[str]:
        while held := self.take(1):
            if held[0]:
                return held[0]
        raise ValueError("the table is empty: it needs a header with the names of its columns")

    def take(self, count: int) -> list[list[str]]:
        """The next rows, so many at most; a line without any character is one without fields."""
        held: list[list[str]] = []
        before = self._reader.line_num
        try:
            held.extend(itertools.islice(self._reader, count))
        except csv.Error as error:
            # what `extend` had from the reader before it failed is held
            begins = before + 1 + self._lines_of(held)
            raise ValueError(
                f"the row that begins in line {begins} of the table cannot be read: {error}. A quote "
                "that opens a field must close it, or the rows below would be part of that field: "
                "mend its quotes (a quote within quotes is written twice)"
            ) from None
        if self._reader.line_num - before != len(held):
            self._look_within(held, before)
        return held

    def _look_within(self, held: list[list[str]], before: int) -> None:
        """Counts the rows whose every line could be one; `before` lines came before them."""
        for at, row in enumerate(held):
            # few rows have delimiters enough, and lines are slow to make
            if self._delimiter.join(row).count(self._delimiter) < 2 * (len(row) - 1):
                continue
            lines = [line for line in self._lines(row) if line]
            if len(lines) > 1 and all(
                line.count(self._delimiter) >= len(row) - 1 for line in lines
            ):
                self._hiding += 1
                if self._hiding == 1:
                    self._first_hiding = before + 1 + self._lines_of(held[:at])

    def _lines(self, row: list[str]) -> list[str]:
        """The lines on which the row stands, without their quotes."""
        return _LINE_END.split(self._delimiter.join(row))

    def _lines_of(self, rows: list[list[str]]) -> int:
        return sum(len(self._lines(row)) for row in rows)

    def note_lines_within(self) -> None:
        """Warns of rows whose every line would be a row if the quotes were strays."""
        if self._hiding:
            warnings.warn(
                "the quotes of the table make one row of several lines that each read like a row, "
                f"{self._hiding} times (first in line {self._first_hiding}); if those lines are rows, "
                "people are missing in the count: mend the quotes",
                stacklevel=4,
            )


@contextlib.contextmanager
def _rows_of(stream: BinaryIO, delimiter: str) -> Generator[_Rows, None, None]:
    """The rows of a table; leaves `stream` open, and says what is wrong."""
    text = _text(stream)
    try:
        _check_encoding(stream.peek(_PEEKED_BYTES)[:_PEEKED_BYTES])
        with _long_fields:
            yield _Rows(text, delimiter)
    except DAMAGES as error:
        raise ValueError(f"the compressed table is cut off or damaged: {error}") from None
    finally:
        text.detach()


def _whole_rows(rows: list[list[str]], fields: int, done: int) -> Iterator[list[str]]:
    """The rows that count, of so many fields each; `done` came before them."""
    for row in rows:
        if not row and fields == 1:
            row = [""]  # a line without a character is a row without an id
        if row and len(row) != fields:
            raise ValueError(
                f"row {done + 1} (the header not counted) has {len(row)} fields, the header "
                f"{fields}: mend the row, or its quotes"
            )
        if row:
            done += 1
            yield row


def check_columns(there: Sequence[str], wanted: Sequence[str]) -> None:
    """ValueError unless each wanted column is there, and once."""
    for name in wanted:
        if there.count(name) == 1:
            continue
        if name in there:
            raise ValueError(
                f"column {name!r} is there {there.count(name)} times, so which one is meant is not "
                "known: rename all but one"
            )
        shown = ", ".join(repr(other) for other in there[:_SHOWN_COLUMNS])
        more = len(there) - _SHOWN_COLUMNS
        shown += f" and {more} more" if more > 0 else ""
        hint = ""
        if len(there) == 1 and any(mark in there[0] for mark in ";\t|,"):
            hint = " (is the delimiter right?)"
        raise ValueError(f"there is no column {name!r}; the columns are {shown}{hint}")
