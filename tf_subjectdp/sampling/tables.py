# SPDX-License-Identifier: Apache-2.0
"""Counts people (and silos) in a CSV or Parquet file, a piece at a time and no other column.

Python's `csv` says what a CSV is. pyarrow, where it is installed, reads the files whose every line is a
row, some four times as fast, and Parquet; it leaves any other CSV to Python's. So both agree:

* Every id of a CSV is a string, compared as it is written: 007 and 7 are two people, and so are
  "ann" and "ann ". Quotes around a field are not part of it. Parquet columns of integers hold
  integers, of strings strings; floats, dates and booleans are refused, as by `encode_ids`.
* An id that is empty or blank (null, in Parquet) is missing, and an error names its row.
* A row with another number of fields than the header is an error. Lines without any character are
  no rows, but in a file of one column they are rows without an id.
* A quote that opens a field closes it: the end of the file within quotes is an error, and so is text
  behind a closing quote. A quote within an unquoted field, and a byte of zero, are text.
* A quoted field may hold ends of lines. Two stray quotes can look like one, and hide the rows between
  them, so where each line of such a row could be a row itself, a warning says how many there are.
* Text is UTF-8, with or without a byte order mark; lines end as they like (LF, CRLF, CR).
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import importlib.util
import io
import itertools
import operator
import os
import re
import sys
import threading
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, KeysView, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import numpy as np

from tf_subjectdp.sampling.grouping import note_missing
from tf_subjectdp.sampling.silos import SiloStats
from tf_subjectdp.sampling.stats import SubjectStats

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

#: Called now and then with the rows read and the share of the file read (None if not known).
Progress = Callable[[int, "float | None"], None]

# A key holds the subject above these bits and the silo below.
_SILO_BITS = 22
_MOST_SILOS = 1 << _SILO_BITS
# Rows are counted when this many have come together.
_MERGE_AT = 1 << 20
_READERS = ("auto", "python", "pyarrow")
# Small enough for the strings to stay in the processor's cache.
_CHUNK_ROWS = 1 << 14
# Whole rows in memory at a time: what stands beside the ids may be long texts.
_HELD_ROWS = 64
_SHOWN_COLUMNS = 20
_PEEKED_BYTES = 1024
# The longest field, in characters: a text, an image. A longer one is a quote without its end, and would
# be read into memory up to the end of the file.
_LONGEST_FIELD = 1 << 27
# What reading a compressed file raises when it is not whole.
_DAMAGES = (EOFError, zlib.error, gzip.BadGzipFile)
_LINE_END = re.compile("\r\n|\r|\n")
_MARKS = (
    ("UTF-32", (b"\xff\xfe\0\0", b"\0\0\xfe\xff")),
    ("UTF-16", (b"\xff\xfe", b"\xfe\xff")),
)

# What to do about a row without an id, of a person or of a silo.
_NO_ID_REMEDY = (
    "Every row must say there whose it is: fill it in, or drop such rows. Rows of different people "
    "need different ids, even where nobody knows the name"
)

# pyarrow: bytes of a CSV at a time, bytes looked at for quotes at a time, rows of a Parquet file.
_BLOCK_BYTES = 8 << 20
_PIECE_BYTES = 1 << 18
_BATCH_ROWS = 1 << 16


def stats_from_table(
    path: str | os.PathLike | BinaryIO,
    column: str,
    *,
    silo_column: str | None = None,
    delimiter: str = ",",
    progress: Progress | None = None,
    reader: str = "auto",
) -> SubjectStats | SiloStats:
    """Counts the rows of each person, and in each silo, without loading the table.

    Memory follows the number of people, not of rows: about 200 bytes a person.

    Args:
      path: a CSV file (also gzipped) or a Parquet file; a CSV opened for reading, from where it stands,
        which is left open; or "-" for a CSV on standard input.
      column: name of the column with the subject ids.
      silo_column: name of the column that says which silo holds the row, or None.
      delimiter: what stands between the fields of a CSV: one character.
      progress: called with the rows read so far and the share of the file; None for silence.
      reader: "pyarrow", "python" (for CSV), or "auto", which takes pyarrow where it is installed; a CSV
        that is opened already, or on standard input, is read by Python's.

    Returns:
      `SubjectStats`, or `SiloStats` with a silo column; equal to what `from_ids` gives for the ids.

    Warns:
      UserWarning: an id reads like a missing value ("NA", "null", ...) and counts as one person; a row
        of a CSV stands on several lines, by its quotes, and each of them reads like a row.

    Raises:
      ValueError: a column that is not there (the message lists those that are) or is there twice, a
        missing id (the message names the row, counted from 1 without the header), a table without
        rows, fields too many or too few, a quote without its end or with text behind it, text that is
        not UTF-8, a file that is no Parquet file.
      TypeError: a Parquet column of another type than integers or strings.
      ImportError: a Parquet file, and pyarrow is not installed.
      OSError: a file that is not there or cannot be read.
    """
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n\0':
        raise ValueError(f"delimiter is {delimiter!r}: pass one character, such as ',' or ';'")
    if reader not in _READERS:
        raise ValueError(f"reader is {reader!r}: choose one of {_READERS}")
    columns = [column] if silo_column is None else [column, silo_column]
    for name in columns:
        if not isinstance(name, str):
            raise TypeError(f"a column is {name!r} ({type(name).__name__}): pass its name")
    if silo_column == column:
        raise ValueError(
            f"the subject and the silo are both in column {column!r}: name two columns"
        )
    if hasattr(path, "read"):
        return _count_stream(path, "the table", columns, delimiter, progress)
    if not os.fspath(path):
        raise ValueError("the path of the table is empty: pass a file, or '-' for standard input")
    if os.fspath(path) == "-":
        if sys.stdin is None:
            raise ValueError("standard input is closed: pass the path of the table")
        return _count_stream(sys.stdin, "standard input", columns, delimiter, progress)
    path = Path(path)
    with open(path, "rb") as raw:
        if not raw.seekable():
            raise ValueError(f"{path} cannot be read twice, being a pipe: pass it as '-'")
        start = raw.read(4)
        raw.seek(0)
        _refuse_archive(start, str(path))
        if start == b"PAR1" or path.suffix.lower() in (".parquet", ".pq"):
            return _count_parquet(raw, path, columns, progress)
        size = os.fstat(raw.fileno()).st_size
        report = _reporter(progress, lambda rows: min(raw.tell() / size, 1.0) if size else None)
        if reader == "pyarrow" or (reader == "auto" and _has_pyarrow()):
            counted = _count_by_arrow(raw, start, columns, delimiter, report)
            if counted is not None:
                return counted
            raw.seek(0)
        pieces = _csv_chunks(_unpacked(raw, start), columns, delimiter)
        return _count(pieces, columns, report)


def _count_stream(
    stream: Any, name: str, columns: Sequence[str], delimiter: str, progress: Progress | None
) -> SubjectStats | SiloStats:
    """Counts a CSV that cannot be read twice."""
    stream = getattr(stream, "buffer", stream)
    if isinstance(stream, io.TextIOBase):
        raise TypeError(f"{name} gives text: open it with mode 'rb', or pass its path")
    wrapped = None if hasattr(stream, "peek") else io.BufferedReader(stream)
    source = stream if wrapped is None else wrapped
    try:
        start = source.peek(4)[:4]
        _refuse_archive(start, name)
        if start == b"PAR1":
            raise ValueError(f"{name} is a Parquet file: pass its path")
        pieces = _csv_chunks(_unpacked(source, start), columns, delimiter)
        return _count(pieces, columns, _reporter(progress, lambda rows: None))
    finally:
        if wrapped is not None:
            wrapped.detach()  # else it closes what was passed


def _refuse_archive(start: bytes, name: str) -> None:
    if start == b"PK\x03\x04":
        raise ValueError(
            f"{name} is a zip archive or an Excel workbook, not a table: save it as CSV or Parquet"
        )


def _reporter(
    progress: Progress | None, share: Callable[[int], float | None]
) -> Callable[[int], None]:
    if progress is None:
        return lambda rows: None
    return lambda rows: progress(rows, share(rows))


def _has_pyarrow() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def _unpacked(raw: BinaryIO, start: bytes) -> BinaryIO:
    return gzip.GzipFile(fileobj=raw) if start.startswith(b"\x1f\x8b") else raw


def _count_by_arrow(raw, start, columns, delimiter, report) -> SubjectStats | SiloStats | None:
    """The counts; None where Python's reader has to have the last word."""
    header = _csv_header(_unpacked(raw, start), delimiter)
    _check_columns(header, columns)
    raw.seek(0)
    if len(header) == 1 or not delimiter.isascii():
        return None  # in one column lines without a character are rows, and pyarrow skips them
    try:
        pieces = _arrow_chunks(_unpacked(raw, start), header, columns, delimiter)
        return _count(pieces, columns, report)
    except _Refused:
        # Python's reader reads on where it can, or says which row is at fault.
        return None


def _count_parquet(raw, path, columns, progress) -> SubjectStats | SiloStats:
    if not _has_pyarrow():
        raise ImportError(
            f"{path} is a Parquet file, which needs pyarrow: pip install 'tf-subjectdp[tables]', or "
            "write the columns to a CSV file"
        )
    file = _open_parquet(raw, path)
    total = file.metadata.num_rows
    pieces = _parquet_chunks(file, path, columns)
    return _count(pieces, columns, _reporter(progress, lambda rows: rows / total))


class _Numbers:
    """Numbers ids in the order in which they first appear."""

    def __init__(self, column: str) -> None:
        self.column = column
        self._numbers: defaultdict[Any, int] = defaultdict()
        self._numbers.default_factory = self._numbers.__len__

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def ids(self) -> KeysView:
        """The distinct ids."""
        return self._numbers.keys()

    def encode(self, piece: Any, row: int) -> np.ndarray:
        """int64 codes of a piece: a list of ids, or a pair (distinct ids, index of each row)."""
        values, index = piece if isinstance(piece, tuple) else (piece, None)
        known = len(self._numbers)
        codes = np.fromiter(map(self._numbers.__getitem__, values), np.int64, len(values))
        if len(self._numbers) > known:
            self._check(values, index, codes, known, row)
        return codes if index is None else codes[index]

    def _check(self, values, index, codes, known, row) -> None:
        fresh = np.flatnonzero(codes >= known)
        names = [values[at] for at in fresh.tolist()]
        if isinstance(names[0], int) or (
            all(map(str.strip, names)) and _is_unicode("".join(names))
        ):
            return
        for at, name in zip(fresh.tolist(), names, strict=True):
            if not name.strip() or not _is_unicode(name):
                where = at if index is None else int(np.argmax(index == at))
                self._refuse(row + where, name)

    def _refuse(self, row: int, value: str) -> NoReturn:
        place = f"row {row + 1} (the header not counted)"
        if not value.strip():
            raise ValueError(
                f"{place} has no id in column {self.column!r} ({value!r}). {_NO_ID_REMEDY}"
            )
        raise ValueError(
            f"{place}, column {self.column!r}: the id {value!r} is not UTF-8 text; save the table "
            "as UTF-8"
        )


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _count(
    pieces: Generator[list, None, None], columns: Sequence[str], report: Callable[[int], None]
) -> SubjectStats | SiloStats:
    """Adds up the pieces: lists with one entry a column, each as `_Numbers.encode` takes it."""
    numbers = [_Numbers(column) for column in columns]
    pairs = _Pairs()
    rows = 0
    with contextlib.closing(pieces):
        for piece in pieces:
            codes = [number.encode(part, rows) for number, part in zip(numbers, piece, strict=True)]
            if len(numbers) == 1:
                codes.append(np.zeros(1, np.int64))
            elif len(numbers[1]) > _MOST_SILOS:
                raise ValueError(
                    f"there are more than {_MOST_SILOS} silos: is {columns[1]!r} their column?"
                )
            pairs.add(codes[0] << _SILO_BITS | codes[1])
            rows += codes[0].size
            report(rows)
    if rows == 0:
        raise ValueError("the table has a header and no rows: there is nobody to count")
    for number in numbers:
        note_missing(number.ids, f"column {number.column!r} has the id", "subject or silo")
    kind = "int64" if isinstance(next(iter(numbers[0].ids)), int) else "string"
    n_subjects, names = len(numbers[0]), [list(number.ids) for number in numbers[1:]]
    numbers.clear()  # the ids of the people are not needed any more
    keys, counts = pairs.merged()
    if len(columns) == 1:
        return SubjectStats._count(counts, kind)
    silos = (keys & (_MOST_SILOS - 1)).astype(np.int32)
    keys >>= _SILO_BITS
    return SiloStats._from_sorted(keys, silos, counts, n_subjects, names[0], kind)


class _Pairs:
    """How often each key came; memory follows the distinct keys."""

    def __init__(self) -> None:
        self._fresh: list[np.ndarray] = []
        self._keys = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int64)
        self._held = 0

    def add(self, keys: np.ndarray) -> None:
        self._fresh.append(keys)
        self._held += keys.size
        if self._held >= max(_MERGE_AT, self._keys.size // 2):
            self._merge()

    def _merge(self) -> None:
        keys, counts = np.unique(np.concatenate(self._fresh), return_counts=True)
        self._fresh.clear()
        at = np.searchsorted(self._keys, keys)
        known = np.zeros(keys.size, bool)
        inside = at < self._keys.size
        known[inside] = self._keys[at[inside]] == keys[inside]
        self._counts[at[known]] += counts[known]
        new = ~known
        self._keys = np.insert(self._keys, at[new], keys[new])
        self._counts = np.insert(self._counts, at[new], counts[new])
        self._held = 0

    def merged(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct keys, increasing, and how often each came; int64."""
        if self._fresh:
            self._merge()
        return self._keys, self._counts


# -- a CSV by Python's own reader ------------------------------------------------------------


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


def _csv_header(stream: BinaryIO, delimiter: str) -> list[str]:
    """The names of the columns; leaves `stream` open, somewhere behind them."""
    with _rows_of(stream, delimiter) as rows:
        return rows.header()


def _csv_chunks(
    stream: BinaryIO, columns: Sequence[str], delimiter: str
) -> Generator[list, None, None]:
    """The ids of the columns, lists of strings: one list a column, some ten thousand rows a time.

    Raises:
      ValueError: see `stats_from_table`.
    """
    done = 0
    with _rows_of(stream, delimiter) as rows:
        names = rows.header()
        _check_columns(names, columns)
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
        """Counts the rows of which two lines could be one; `before` lines came before them."""
        for at, row in enumerate(held):
            # few rows have delimiters enough, and lines are slow to make
            if self._delimiter.join(row).count(self._delimiter) < 2 * (len(row) - 1):
                continue
            like_a_row = (line.count(self._delimiter) >= len(row) - 1 for line in self._lines(row))
            if len(row) > 1 and sum(like_a_row) > 1:
                self._hiding += 1
                if self._hiding == 1:
                    self._first_hiding = before + 1 + self._lines_of(held[:at])

    def _lines(self, row: list[str]) -> list[str]:
        """The lines on which the row stands, without their quotes."""
        return _LINE_END.split(self._delimiter.join(row))

    def _lines_of(self, rows: list[list[str]]) -> int:
        return sum(len(self._lines(row)) for row in rows)

    def note_lines_within(self) -> None:
        """Warns of rows whose lines would be rows if the quotes were strays."""
        if self._hiding:
            warnings.warn(
                "the quotes of the table make one row of several lines that read like rows, "
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


def _check_columns(there: Sequence[str], wanted: Sequence[str]) -> None:
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


# -- CSV and Parquet by pyarrow --------------------------------------------------------------


class _Refused(Exception):
    """pyarrow does not read this CSV; Python's reader may, or says why not."""


def _arrow_chunks(
    stream: BinaryIO, names: Sequence[str], columns: Sequence[str], delimiter: str
) -> Generator[list, None, None]:
    """Pairs (distinct ids, index of each row), one a column.

    pyarrow takes any quotes, and those without an end go to the end of the file. So only tables whose
    every line is a row are its own, with quotes as strict `csv` wants them.

    Args:
      stream: the table from its beginning.
      names: its header.
      columns: the names wanted, each once in the header.
      delimiter: one ASCII character.

    Raises:
      _Refused: any other table.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # By place: the header itself is a row, and two columns may have one name.
    wanted = [str(names.index(column)) for column in columns]
    places = list(map(str, range(len(names))))
    parse = arrow_csv.ParseOptions(delimiter=delimiter)
    convert = arrow_csv.ConvertOptions(
        include_columns=wanted,
        # Strings, whatever they look like: 007 and 7 are two people, and NA is a name.
        column_types={column: pa.string() for column in wanted},
        strings_can_be_null=False,
    )
    header_rows = 1
    try:
        for block in _blocks(stream):
            read = arrow_csv.ReadOptions(
                use_threads=False, column_names=places, block_size=len(block)
            )
            rows = arrow_csv.read_csv(pa.BufferReader(block), read, parse, convert)
            if b'"' in block:
                _check_quotes(block, rows.num_rows, delimiter)
            for batch in rows.slice(header_rows).to_batches():
                yield [_distinct(batch.column(column)) for column in wanted]
            header_rows = 0
    except (pa.ArrowException, OSError, UnicodeDecodeError, *_DAMAGES) as error:
        raise _Refused(str(error)) from error


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Whole lines, some megabytes at a time, between two empty ones (which pyarrow skips)."""
    start = stream.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
    while lines := start + stream.read(_BLOCK_BYTES):
        rest = stream.readline(_BLOCK_BYTES)
        if len(rest) == _BLOCK_BYTES:
            raise _Refused("its lines are too long")
        yield b"".join((b"\n", lines, rest, b"\n"))
        start = b""


def _check_quotes(block: bytes, rows: int, delimiter: str) -> None:
    """_Refused unless the block has a row a line, and each quoted field opens and ends as it should.

    Then the quotes take turns: one opens, one closes. A quote within quotes, written twice, closes and
    opens again. An eighth of the time where each field is quoted.
    """
    data = np.frombuffer(block, np.uint8)
    inside = lines = 0
    # a piece stays in the processor's cache; it sees the byte before it and the one behind it
    for start in range(1, data.size - 1, _PIECE_BYTES):
        piece = data[start - 1 : start + _PIECE_BYTES + 1]
        quote = piece == ord('"')
        end = (piece == ord("\n")) | (piece == ord("\r"))
        edge = quote | end | (piece == ord(delimiter))
        lines += np.count_nonzero(end[:-2] & ~end[1:-1])
        quotes = np.flatnonzero(quote[1:-1])
        opening, closing = quotes[inside::2], quotes[1 - inside :: 2]
        if not (edge[opening].all() and edge[2:][closing].all()):
            raise _Refused("a quote opens or ends in the middle of a field")
        inside ^= quotes.size % 2
    if inside or rows != lines:
        raise _Refused("a field in quotes stands on several lines")


def _open_parquet(raw: BinaryIO, path: Path) -> parquet.ParquetFile:
    """The file; ValueError if it is none."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(raw)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as a Parquet file: {error}") from None


def _parquet_chunks(
    file: parquet.ParquetFile, path: Path, columns: Sequence[str]
) -> Generator[list, None, None]:
    """As `_arrow_chunks`; batches within the row groups, never a whole one."""
    import pyarrow as pa

    schema = file.schema_arrow
    _check_columns(schema.names, columns)
    for column in columns:
        _check_type(column, schema.field(column).type)
    rows = 0
    batches = file.iter_batches(batch_size=_BATCH_ROWS, columns=list(columns))
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} cannot be read as a Parquet file: {error}") from None
        if batch is None:
            return
        if batch.num_rows == 0:
            continue
        pieces = []
        for column in columns:
            values = batch.column(batch.schema.names.index(column))
            if pa.types.is_dictionary(values.type):
                # a dictionary may hold values that no row has, and nulls
                values = values.dictionary_decode()
            if values.null_count:
                row = rows + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))) + 1
                raise ValueError(
                    f"row {row} has no id in column {column!r} (null). {_NO_ID_REMEDY}"
                )
            try:
                pieces.append(_distinct(values))
            except (pa.ArrowException, UnicodeDecodeError) as error:
                raise ValueError(
                    f"column {column!r} cannot be read in the rows {rows + 1} to "
                    f"{rows + batch.num_rows}: {error}; write the file anew, text as UTF-8"
                ) from None
        rows += batch.num_rows
        yield pieces


def _distinct(values: pa.Array) -> tuple[list, np.ndarray]:
    encoded = values.dictionary_encode()
    # by way of NumPy: a tenth of the time of to_pylist
    values = encoded.dictionary.to_numpy(zero_copy_only=False).tolist()
    return values, encoded.indices.to_numpy(zero_copy_only=False)


def _check_type(column: str, kind: pa.DataType) -> None:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return
    if pa.types.is_floating(kind):
        raise TypeError(
            f"column {column!r} holds {kind} numbers, and rounding would merge people: write it as "
            "integers or strings"
        )
    raise TypeError(f"column {column!r} has type {kind}: write it as integers or strings")
