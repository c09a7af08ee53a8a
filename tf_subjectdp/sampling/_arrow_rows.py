# SPDX-License-Identifier: Apache-2.0
"""The ids of a CSV or Parquet file by pyarrow, a piece at a time."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from tf_subjectdp.sampling._csv_rows import NO_ID_REMEDY, check_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

_BLOCK_BYTES = 4 << 20
_BATCH_ROWS = 1 << 16


class Refused(Exception):
    """pyarrow does not read this CSV; Python's reader may, or says why not."""


def csv_chunks(
    stream: BinaryIO, columns: Sequence[str], delimiter: str
) -> Generator[list, None, None]:
    """Pairs (distinct ids, index of each row), one a column."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    try:
        with arrow_csv.open_csv(
            stream,
            read_options=arrow_csv.ReadOptions(block_size=_BLOCK_BYTES),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=list(columns),
                # Strings, whatever they look like: 007 and 7 are two people, and NA is a name.
                column_types={column: pa.string() for column in columns},
                strings_can_be_null=False,
            ),
        ) as reader:
            for batch in reader:
                yield [_distinct(batch.column(column)) for column in columns]
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise Refused(str(error)) from error


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
