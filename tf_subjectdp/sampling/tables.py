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

import contextlib
import gzip
import importlib.util
import io
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, KeysView, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from tf_subjectdp.sampling import _arrow_rows, _csv_rows
from tf_subjectdp.sampling._csv_rows import NO_ID_REMEDY
from tf_subjectdp.sampling.grouping import note_missing
from tf_subjectdp.sampling.silos import SiloStats
from tf_subjectdp.sampling.stats import SubjectStats

#: Called now and then with the rows read and the share of the file read (None if not known).
Progress = Callable[[int, "float | None"], None]

# A key holds the subject above these bits and the silo below.
_SILO_BITS = 22
_MOST_SILOS = 1 << _SILO_BITS
# Rows are counted when this many have come together.
_MERGE_AT = 1 << 20
_READERS = ("auto", "python", "pyarrow")


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
        pieces = _csv_rows.chunks(_unpacked(raw, start), columns, delimiter)
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
        pieces = _csv_rows.chunks(_unpacked(source, start), columns, delimiter)
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
    header = _csv_rows.header(_unpacked(raw, start), delimiter)
    _csv_rows.check_columns(header, columns)
    raw.seek(0)
    if len(header) == 1 or not delimiter.isascii():
        return None  # in one column lines without a character are rows, and pyarrow skips them
    try:
        pieces = _arrow_rows.csv_chunks(_unpacked(raw, start), header, columns, delimiter)
        return _count(pieces, columns, report)
    except _arrow_rows.Refused:
        # Python's reader reads on where it can, or says which row is at fault.
        return None


def _count_parquet(raw, path, columns, progress) -> SubjectStats | SiloStats:
    if not _has_pyarrow():
        raise ImportError(
            f"{path} is a Parquet file, which needs pyarrow: pip install 'tf-subjectdp[tables]', or "
            "write the columns to a CSV file"
        )
    file = _arrow_rows.open_parquet(raw, path)
    total = file.metadata.num_rows
    pieces = _arrow_rows.parquet_chunks(file, path, columns)
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
                f"{place} has no id in column {self.column!r} ({value!r}). {NO_ID_REMEDY}"
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
