# SPDX-License-Identifier: Apache-2.0
"""The ids of a CSV or Parquet file by pyarrow, a piece at a time."""

from __future__ import annotations

import codecs
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from tf_subjectdp.sampling._csv_rows import DAMAGES, NO_ID_REMEDY, check_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

_BLOCK_BYTES = 8 << 20
_PIECE_BYTES = 1 << 18
_BATCH_ROWS = 1 << 16


class Refused(Exception):
    """pyarrow does not read this CSV; Python's reader may, or says why not."""


def csv_chunks(
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
      Refused: any other table.
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
    except (pa.ArrowException, OSError, UnicodeDecodeError, *DAMAGES) as error:
        raise Refused(str(error)) from error


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Whole lines, some megabytes at a time, between two empty ones (which pyarrow skips)."""
    start = stream.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
    while lines := start + stream.read(_BLOCK_BYTES):
        rest = stream.readline(_BLOCK_BYTES)
        if len(rest) == _BLOCK_BYTES:
            raise Refused("its lines are too long")
        yield b"".join((b"\n", lines, rest, b"\n"))
        start = b""


def _check_quotes(block: bytes, rows: int, delimiter: str) -> None:
    """Refused unless the block has a row a line, and each quoted field opens and ends as it should.

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
            raise Refused("a quote opens or ends in the middle of a field")
        inside ^= quotes.size % 2
    if inside or rows != lines:
        raise Refused("a field in quotes stands on several lines")


def open_parquet(raw: BinaryIO, path: Path) -> parquet.ParquetFile:
    """The file; ValueError if it is none."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(raw)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as a Parquet file: {error}") from None


def parquet_chunks(
    file: parquet.ParquetFile, path: Path, columns: Sequence[str]
) -> Generator[list, None, None]:
    """As `csv_chunks`; batches within the row groups, never a whole one."""
    import pyarrow as pa

    schema = file.schema_arrow
    check_columns(schema.names, columns)
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
                raise ValueError(f"row {row} has no id in column {column!r} (null). {NO_ID_REMEDY}")
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
