# SPDX-License-Identifier: Apache-2.0
"""The ids of a CSV by Python's own reader, a piece at a time."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import operator
import zlib
from collections.abc import Generator, Iterator, Sequence
from typing import BinaryIO

# Small enough for the strings to stay in the processor's cache.
_CHUNK_ROWS = 1 << 14
_SHOWN_COLUMNS = 20
# What reading a compressed file raises when it is not whole.
_DAMAGES = (EOFError, zlib.error, gzip.BadGzipFile)
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

#: What to do about a row without an id, of a person or of a silo.
NO_ID_REMEDY = (
    "Every row must say there whose it is: fill it in, or drop such rows. Rows of different people "
    "need different ids, even where nobody knows the name"
)


def _text(stream: BinaryIO) -> io.TextIOWrapper:
    # Bytes that are no UTF-8 survive here: only ids have to be text, and are checked when counted.
    return io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _header_of(rows: Iterator[list[str]]) -> list[str]:
    for row in rows:
        if row:
            if row[0].encode("utf-8", "surrogateescape").startswith(_UTF16_MARKS):
                raise ValueError("the table is UTF-16 text: save it as UTF-8")
            return row
    raise ValueError("the table is empty: it needs a header with the names of its columns")


def _damaged(error: Exception) -> ValueError:
    return ValueError(f"the compressed table is cut off or damaged: {error}")


def header(stream: BinaryIO, delimiter: str) -> list[str]:
    """The names of the columns; leaves `stream` open, somewhere behind them."""
    text = _text(stream)
    try:
        return _header_of(csv.reader(text, delimiter=delimiter))
    except csv.Error as error:
        raise ValueError(f"the header of the table cannot be read: {error}") from None
    except _DAMAGES as error:
        raise _damaged(error) from None
    finally:
        text.detach()


def chunks(stream: BinaryIO, columns: Sequence[str], delimiter: str) -> Generator[list, None, None]:
    """The ids of the columns, lists of strings: one list a column, some ten thousand rows a time.

    Raises:
      ValueError: see `stats_from_table`.
    """
    text = _text(stream)
    rows = csv.reader(text, delimiter=delimiter)
    done = 0
    try:
        names = _header_of(rows)
        check_columns(names, columns)
        take = [operator.itemgetter(names.index(column)) for column in columns]
        while held := list(itertools.islice(rows, _CHUNK_ROWS)):
            if set(map(len, held)) != {len(names)}:
                held = list(_whole_rows(held, len(names), done))
            yield [list(map(column, held)) for column in take]
            done += len(held)
    except csv.Error as error:
        raise ValueError(
            f"line {rows.line_num} of the table cannot be read: {error}; mend its quotes"
        ) from None
    except _DAMAGES as error:
        raise _damaged(error) from None
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
