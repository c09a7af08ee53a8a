# SPDX-License-Identifier: Apache-2.0
"""The ids of a CSV by Python's own reader, a piece at a time."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import operator
import threading
import zlib
from collections.abc import Generator, Iterator, Sequence
from typing import BinaryIO

# Small enough for the strings to stay in the processor's cache.
_CHUNK_ROWS = 1 << 14
# Whole rows in memory at a time: what stands beside the ids may be long texts.
_HELD_ROWS = 64
_SHOWN_COLUMNS = 20
# The longest field, in characters: a text, an image. A longer one is a quote without its end, and would
# be read into memory up to the end of the file.
_LONGEST_FIELD = 1 << 27
# What reading a compressed file raises when it is not whole.
_DAMAGES = (EOFError, zlib.error, gzip.BadGzipFile)
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


def _header_of(rows: Iterator[list[str]]) -> list[str]:
    for row in rows:
        if row:
            _check_encoding(",".join(row).encode("utf-8", "surrogateescape"))
            return row
    raise ValueError("the table is empty: it needs a header with the names of its columns")


def _check_encoding(header: bytes) -> None:
    """ValueError for a header of another encoding than UTF-8, by its name."""
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
        return _header_of(rows)


def chunks(stream: BinaryIO, columns: Sequence[str], delimiter: str) -> Generator[list, None, None]:
    """The ids of the columns, lists of strings: one list a column, some ten thousand rows a time.

    Raises:
      ValueError: see `stats_from_table`.
    """
    done = 0
    with _rows_of(stream, delimiter) as rows:
        names = _header_of(rows)
        check_columns(names, columns)
        take = [operator.itemgetter(names.index(column)) for column in columns]
        found: list[list[str]] = [[] for _ in columns]
        while held := list(itertools.islice(rows, _HELD_ROWS)):
            if set(map(len, held)) != {len(names)}:
                held = list(_whole_rows(held, len(names), done))
            for ids, column in zip(found, take, strict=True):
                ids.extend(map(column, held))
            done += len(held)
            if len(found[0]) >= _CHUNK_ROWS:
                yield found
                found = [[] for _ in columns]
        yield found


@contextlib.contextmanager
def _rows_of(stream: BinaryIO, delimiter: str) -> Generator[Iterator[list[str]], None, None]:
    """The lines of a table as lists of fields; leaves `stream` open, and says what is wrong."""
    text = _text(stream)
    rows = csv.reader(text, delimiter=delimiter)
    try:
        with _long_fields:
            yield rows
    except csv.Error as error:
        raise ValueError(
            f"line {rows.line_num} of the table cannot be read: {error}; mend its quotes"
        ) from None
    except _DAMAGES as error:
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
