# SPDX-License-Identifier: Apache-2.0
"""Subject ids to codes, and codes to groups of rows.

Everything downstream works on codes: int64 numbers 0..n_subjects-1, one a row. This module is the
only place that looks at the ids themselves, so it is also the only place that refuses bad ones. A
row without a subject is never guessed at: such a row would belong to nobody, and nobody's budget
would pay for it.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import defaultdict
from collections.abc import Iterator, Set
from typing import Any, NoReturn

import numpy as np

# Strings are turned into Python objects a piece at a time, so that a million long ids never
# exist twice.
_CHUNK_ROWS = 65_536

# pandas marks a missing value with one of these; asking by name spares us importing pandas.
_PANDAS_MISSING = ("NAType", "NaTType")

# What a missing value becomes where somebody made text or whole numbers of a column: pandas and NumPy
# write nan, None, NaT, <NA> and the smallest integers, pandas' categories -1, others the rest.
_MISSING_WORDS = ("NA", "N/A", "#N/A", "#NA", "<NA>", "NaN", "NaT", "None", "Null", "(null)")
_MISSING_WORDS += ("missing", "undefined", "unknown")
_MISSING_NUMBERS = (-1, int(np.iinfo(np.int32).min), int(np.iinfo(np.int64).min))
_MISSING_TEXTS = {form(word) for word in _MISSING_WORDS for form in (str, str.lower, str.upper)}
_MISSING_TEXTS |= set(map(str, _MISSING_NUMBERS)) | {word.capitalize() for word in _MISSING_WORDS}
_READS_MISSING = frozenset(
    {*_MISSING_TEXTS, *_MISSING_NUMBERS, *(text.encode() for text in _MISSING_TEXTS)}
)

_REMEDY = (
    "Every row needs the id of the person it belongs to: drop such rows, or give each one an id "
    "of its own if they belong to different people"
)


def encode_ids(ids: Any) -> tuple[np.ndarray, int]:
    """Numbers the subjects.

    Args:
      ids: one id a row, of one kind: integers, strings or bytes. A NumPy array (any integer type,
        `U`, `S` or object), a list, a tuple, a pandas Series or an eager tensor.

    Returns:
      `(codes, n_subjects)`: int64 codes of shape [rows] in 0..n_subjects-1, equal exactly where
      the ids are equal, numbered in the order in which the subjects first appear.

    Ids are compared as they are. Strings that differ only in upper and lower case, in whitespace
    ("ann" and "ann ") or in the Unicode form of a letter (one code point or two for an accent)
    are different people, and a person with two spellings is protected as two. Make them one
    first: `[unicodedata.normalize("NFC", name).strip() for name in ids]`.

    Raises:
      ValueError: no ids, an empty table, more than one dimension, or a missing id (None, NaN, NA,
        NaT, a masked entry, an empty or blank string); the first such row is named.
      TypeError: ids that are floats, booleans, dates or objects, or of more than one kind.

    Warns:
      UserWarning: an id that reads like a missing value, "nan", "None" or -1 say: all who have none would
        be one subject.
    """
    codes, n_subjects, _ = encode_typed_ids(ids)
    return codes, n_subjects


def encode_typed_ids(ids: Any, of: str = "subject") -> tuple[np.ndarray, int, str]:
    """As `encode_ids`, and says what the ids were: "int64" or "string" (bytes are strings).

    `of` is what they are ids of, for warnings.
    """
    array = _as_rows(ids)
    kind = array.dtype.kind
    if kind in "iu":
        values, first, sorted_codes = np.unique(array, return_index=True, return_inverse=True)
        negative = set(values[values < 0].tolist())
        if negative <= set(_MISSING_NUMBERS):  # else -1 is one number of many
            note_missing(negative, f"the {of} ids have", of)
        by_appearance = np.empty(first.size, np.int64)
        by_appearance[np.argsort(first)] = np.arange(first.size)
        return by_appearance[sorted_codes.reshape(-1)], int(first.size), "int64"
    if kind not in "USOT":
        _refuse(array)
    return _encode_objects(array, of)


def note_missing(ids: Set, found: str, of: str) -> None:
    """Warns of ids that read like a missing value: as an id, each is one subject like any other.

    Args:
      ids: the distinct ids: strings, bytes or integers.
      found: where they are, "the subject ids have" say.
      of: what each of them counts as.
    """
    there = sorted(map(repr, ids & _READS_MISSING))
    if there:
        warnings.warn(
            f"{found} {', '.join(there)}, which reads like a missing value and counts as one {of}; "
            "drop those rows or give each an id of its own",
            stacklevel=4,
        )


def count_items(codes: np.ndarray, n_subjects: int) -> np.ndarray:
    """The number of rows of each subject: int64 of shape [n_subjects].

    Raises:
      ValueError: a code outside 0..n_subjects-1.
    """
    codes = np.asarray(codes)
    if codes.size and (codes.min() < 0 or codes.max() >= n_subjects):
        raise ValueError(
            f"codes run from {codes.min()} to {codes.max()}, outside 0..{n_subjects - 1}: "
            "encode the ids with encode_ids"
        )
    return np.bincount(codes, minlength=n_subjects).astype(np.int64, copy=False)


def rows_by_subject(codes: np.ndarray, n_subjects: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups the rows by subject, in compressed-row form.

    Args:
      codes: int64 of shape [rows], in 0..n_subjects-1.
      n_subjects: number of subjects.

    Returns:
      `(order, starts)`, int64 of shapes [rows] and [n_subjects + 1]: the rows of subject s are
      `order[starts[s]:starts[s + 1]]`, in increasing order.
    """
    codes = np.asarray(codes)
    starts = np.zeros(n_subjects + 1, np.int64)
    np.cumsum(count_items(codes, n_subjects), out=starts[1:])
    return _stable_order(codes, n_subjects), starts


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SubjectTable:
    """Who owns which row: what a sampler draws from.

    Attributes:
      codes: int64 of shape [n_items], the subject of each row.
      n_subjects: number of subjects.
      order, starts: the rows of each subject, see `rows_by_subject`.
    """

    codes: np.ndarray
    n_subjects: int
    order: np.ndarray
    starts: np.ndarray

    @classmethod
    def from_ids(cls, ids: Any) -> SubjectTable:
        """From one id a row; raises what `encode_ids` raises."""
        return cls.from_codes(*encode_ids(ids))

    @classmethod
    def from_codes(cls, codes: np.ndarray, n_subjects: int) -> SubjectTable:
        """From codes made by `encode_ids`."""
        codes = np.asarray(codes, dtype=np.int64)
        return cls(codes, int(n_subjects), *rows_by_subject(codes, n_subjects))

    @property
    def n_items(self) -> int:
        """Number of rows."""
        return int(self.codes.size)

    @property
    def counts(self) -> np.ndarray:
        """Rows of each subject: int64 of shape [n_subjects]."""
        return np.diff(self.starts)

    def __repr__(self) -> str:
        return f"SubjectTable(n_items={self.n_items}, n_subjects={self.n_subjects})"


def _stable_order(codes: np.ndarray, n_subjects: int) -> np.ndarray:
    """argsort of codes, equal codes in row order; linear time.

    NumPy's stable sort is a radix sort for 16-bit numbers only, so wider codes are sorted by their
    low half, then by their high half.
    """
    order = np.argsort((codes & 0xFFFF).astype(np.uint16), kind="stable")
    shift = 16
    while n_subjects > 1 << shift:
        digit = ((codes >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
        shift += 16
    return order.astype(np.int64, copy=False)


def _as_rows(ids: Any) -> np.ndarray:
    """One-dimensional array of the ids, with nothing converted on the way."""
    if ids is None:
        raise ValueError("there are no subject ids (None): pass one id a row")
    if isinstance(ids, (str, bytes)):
        raise TypeError(f"subject ids are a single {type(ids).__name__}: pass one id a row")
    if isinstance(ids, (list, tuple)):
        if ids and np.ndim(ids[0]) > 0:
            array = np.asarray(ids, dtype=object)
        else:
            # np.asarray would turn ["a", 1] into two strings and None into nan.
            array = np.fromiter(ids, dtype=object, count=len(ids))
    else:
        array = np.asarray(ids)
    if array.ndim != 1:
        raise ValueError(
            f"subject ids have shape {array.shape}, not [rows]: pass one id a row, for example "
            "ids[:, 0] or ids.ravel()"
        )
    if array.size == 0:
        raise ValueError("there are no subject ids (no rows): pass one id a row")
    if isinstance(ids, np.ma.MaskedArray) and np.ma.getmaskarray(ids).any():
        _refuse_missing(np.flatnonzero(np.ma.getmaskarray(ids)), "masked")
    return array


def _chunks(array: np.ndarray) -> Iterator[list]:
    for start in range(0, array.size, _CHUNK_ROWS):
        yield array[start : start + _CHUNK_ROWS].tolist()


def _encode_objects(array: np.ndarray, of: str) -> tuple[np.ndarray, int, str]:
    """Numbers strings, bytes or Python integers in the order in which they first appear."""
    codes = np.empty(array.size, np.int64)
    numbers: defaultdict = defaultdict()
    numbers.default_factory = numbers.__len__
    kinds: set[str] = set()
    start = 0
    for chunk in _chunks(array):
        kinds.update(_kind_of(kind) for kind in set(map(type, chunk)))
        if len(kinds) > 1 or "other" in kinds:
            _refuse(array)
        codes[start : start + len(chunk)] = np.fromiter(
            map(numbers.__getitem__, chunk), np.int64, len(chunk)
        )
        start += len(chunk)
    kind = kinds.pop()
    note_missing(numbers.keys(), f"the {of} ids have", of)
    if kind == "integer":
        return codes, len(numbers), "int64"
    if any(not key.strip() for key in numbers):
        _refuse(array)
    return codes, len(numbers), "string"


def _kind_of(kind: type) -> str:
    if issubclass(kind, str):
        return "string"
    if issubclass(kind, bytes):
        return "bytes"
    if issubclass(kind, (int, np.integer)) and not issubclass(kind, bool):
        return "integer"
    return "other"


def _is_missing(value: Any) -> bool:
    if isinstance(value, (str, bytes)):
        return not value.strip()
    if value is None or type(value).__name__ in _PANDAS_MISSING:
        return True
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(value))
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def _refuse(array: np.ndarray) -> NoReturn:
    """Says what is wrong with ids that cannot be encoded: missing ones first, then the type."""
    rows = np.fromiter(
        # datetimes would become integers in tolist, so arrays other than strings go one by one
        (_is_missing(value) for value in array),
        dtype=bool,
        count=array.size,
    )
    if rows.any():
        first = int(np.argmax(rows))
        _refuse_missing(np.flatnonzero(rows), repr(array[first]))
    if array.dtype.kind == "f":
        raise TypeError(
            f"subject ids are {array.dtype} numbers, and rounding would merge people: pass "
            "integers or strings (ids.astype('int64') if they are whole numbers)"
        )
    if array.dtype.kind not in "USOT":
        raise TypeError(
            f"subject ids have type {array.dtype}: pass integers or strings "
            "(ids.astype(str) keeps them apart)"
        )
    first_kind = _kind_of(type(array[0]))
    for row, value in enumerate(array):
        kind = _kind_of(type(value))
        if kind == "other":
            raise TypeError(
                f"the subject id of row {row} is a {type(value).__name__} ({value!r}): pass "
                "integers or strings"
            )
        if kind != first_kind:
            raise TypeError(
                f"subject ids are of more than one kind: row 0 is {array[0]!r} ({first_kind}), "
                f"row {row} is {value!r} ({kind}); equal people could go by unequal ids. Convert "
                "all of them to one type"
            )
    raise TypeError("subject ids are neither integers nor strings: convert them")


def _refuse_missing(rows: np.ndarray, value: str) -> NoReturn:
    others = f" (and {rows.size - 1} more rows)" if rows.size > 1 else ""
    raise ValueError(f"row {rows[0]} has no subject id ({value}){others}. {_REMEDY}")
