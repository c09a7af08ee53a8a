# SPDX-License-Identifier: Apache-2.0
"""From raw rows (subject, element) to a sparse table of counts, subjects x words, and its checks.

Nothing here is private, noise comes later.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy import sparse

from tf_subjectdp import _validate

#: Counts above this would leave the range in which squares of lengths are computed.
LARGEST_COUNT = 1e50
# Arrays of one number an element (128 MiB) are made without asking; more where there are more words.
_MOST_ELEMENTS = 2**24


@dataclasses.dataclass(frozen=True, eq=False)
class ElementCounts:
    """How often each subject has each element.

    Attributes:
      matrix: counts, `scipy.sparse.csr_matrix` [n_subjects, n_words].
      subjects: the ids of the rows [n_subjects], ascending.
      elements: the names of the columns [n_words].
      public_elements: True if the names were given as a public vocabulary; False if they are those
        met in the data, and thereby private themselves.
    """

    matrix: sparse.csr_matrix
    subjects: np.ndarray
    elements: np.ndarray
    public_elements: bool


def count_elements(subject_id: Any, element_id: Any, *, vocabulary: Any = None) -> ElementCounts:
    """Counts rows (subject, element), for instance the words of everybody's messages.

    Args:
      subject_id: one id a row, shape [n_rows]; integers, strings or bytes.
      element_id: what the row is of (a word, a domain, a cluster), shape [n_rows]; likewise.
      vocabulary: the names of the columns, in their order: a PUBLIC list without repetitions, not
        one read from these data. Rows of other elements are left out, which is a rule for each
        element by itself and so keeps the guarantee. None takes the elements met in the data: such
        counts serve `discover_elements` only.

    Returns:
      `ElementCounts`; a subject of whom nothing is in the vocabulary keeps an empty row.

    Raises:
      ValueError: no rows, columns of unlike length, missing ids, repeated names in the vocabulary.
      TypeError: ids that are neither whole numbers nor strings nor bytes, or of several kinds.
    """
    row, subjects = _codes("subject_id", subject_id)
    column, elements = _codes("element_id", element_id)
    if row.size != column.size:
        raise ValueError(
            f"subject_id and element_id must have one entry a row each, got {row.size} and "
            f"{column.size}."
        )
    if vocabulary is not None:
        _, names = _codes("vocabulary", vocabulary)
        listed = np.asarray(vocabulary)
        if names.size != listed.size:
            raise ValueError(
                f"vocabulary names only {names.size} of its {listed.size} elements once; each must "
                f"be there once, for instance list(dict.fromkeys(words))."
            )
        kinds = [type(one.tolist()[0]).__name__ for one in (elements, listed)]
        if kinds[0] != kinds[1]:
            raise TypeError(
                f"element_id holds {kinds[0]} and vocabulary {kinds[1]}: no row would be counted; "
                "pass both as one kind."
            )
        place = {name: i for i, name in enumerate(listed.tolist())}
        moved = np.array([place.get(name, -1) for name in elements.tolist()], np.int64)
        column, elements = moved[column], listed
        row, column = row[column >= 0], column[column >= 0]
    shape = (subjects.size, elements.size)
    ones = np.ones(row.size, np.int64)
    matrix = sparse.csr_matrix((ones, (row, column)), shape=shape)
    matrix.sum_duplicates()
    return ElementCounts(matrix, subjects, elements, vocabulary is not None)


def _codes(name: str, values: Any) -> tuple[np.ndarray, np.ndarray]:
    """(codes [n], names ascending) with names[codes] == values."""
    array = np.asarray(values)
    listed = isinstance(values, (list, tuple)) and len(values) > 0
    if array.dtype.kind == "f" and listed and type(values[0]) is int:
        # Whole numbers below 0 or 2^63 and above have no common type of NumPy's.
        array = np.array(values, object)
    if array.ndim != 1 or not array.size:
        raise ValueError(
            f"{name} must be a list with one id a row and at least one row, got shape "
            f"{array.shape}."
        )
    if array.dtype.kind in "iu":
        names, codes = np.unique(array, return_inverse=True)
        return codes, names
    if array.dtype.kind not in "USO":
        raise TypeError(
            f"{name} must hold whole numbers, strings or bytes, got {array.dtype}; convert them "
            f"first, for instance with .astype(str)."
        )
    listed = array.tolist()
    kind = type(listed[0])
    for i, value in enumerate(listed):
        if value is None or value != value or (isinstance(value, (str, bytes)) and not value):
            raise ValueError(f"{name} is missing in row {i}: {value!r}; leave such rows out first.")
        if type(value) is not kind or kind not in (str, bytes, int):
            raise TypeError(
                f"{name} must hold whole numbers, strings or bytes, all of one kind; row {i} holds "
                f"{value!r} of type {type(value).__name__}."
            )
    number: dict[Any, int] = {}
    codes = np.fromiter(
        (number.setdefault(value, len(number)) for value in listed), np.int64, len(listed)
    )
    order = sorted(number)
    place = np.empty(len(order), np.int64)
    place[[number[value] for value in order]] = np.arange(len(order))
    # Objects: an array of text would cut a trailing NUL off, and its type tells the longest name.
    names = np.empty(len(order), object)
    names[:] = order
    return place[codes], names


def as_table(
    counts: Any, n_subjects: int | None, n_words: int | None, *, public: bool = True
) -> tuple[sparse.csr_matrix, int]:
    """The counts as a canonical CSR matrix without stored zeros, and the public n.

    Args:
      counts: `ElementCounts`, a sparse or dense matrix [subjects, words], or a triple of arrays
        (subject codes, word ids, counts), repeated pairs being summed.
      n_subjects: the public number of subjects; None counts the rows of a matrix. More than there
        are rows: the others have nothing.
      n_words: the number of columns; needed for a triple.
      public: whether the columns must be a public list.

    Returns:
      `(matrix, n)`. The caller's arrays are not changed.

    Raises:
      ValueError, TypeError: what is passed is none of these, or counts that are negative, not
        finite or above 1e50, or a shape that does not fit.
    """
    if isinstance(counts, ElementCounts):
        if public and not counts.public_elements:
            raise ValueError(
                "the elements of these counts were read from the data, and which words occur is "
                "private: pass count_elements a public vocabulary, or use discover_elements."
            )
        counts = counts.matrix
    if isinstance(counts, (tuple, list)):
        matrix = _from_triple(counts, n_subjects, n_words)
    elif sparse.issparse(counts):
        matrix = _wide(counts).tocsr() if counts.dtype.kind in "biuf" else counts
    elif isinstance(counts, np.ndarray) and counts.ndim == 2 and counts.dtype.kind in "biuf":
        matrix = sparse.csr_matrix(counts)
    else:
        raise TypeError(
            f"counts must be a sparse matrix [subjects, words], an ElementCounts or a triple "
            f"(subject codes, word ids, counts), got {type(counts).__name__}."
        )
    if matrix.dtype.kind not in "biuf":
        raise TypeError(f"counts must be numbers, got {matrix.dtype}.")
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    if matrix.nnz:
        low, high = matrix.data.min(), matrix.data.max()
        if not (low >= 0 and high <= LARGEST_COUNT):  # NaN fails too
            raise ValueError(
                f"counts must be finite, at least 0 and at most {LARGEST_COUNT:g}; they run from "
                f"{low} to {high}."
            )
        if low == 0:
            matrix = matrix.copy()
            matrix.eliminate_zeros()
    if n_words is not None and matrix.shape[1] != _validate.integer("n_words", n_words, 1):
        raise ValueError(f"n_words is {n_words}, and counts have {matrix.shape[1]} columns.")
    if matrix.shape[1] < 1:
        raise ValueError("counts must have at least one column.")
    n = _validate.integer("n_subjects", matrix.shape[0] if n_subjects is None else n_subjects, 1)
    if n < matrix.shape[0]:
        raise ValueError(
            f"n_subjects is {n}, and counts have {matrix.shape[0]} rows: n must be the public "
            f"number of all subjects."
        )
    return matrix, n


def _from_triple(triple: Any, n_subjects: Any, n_words: Any) -> sparse.csr_matrix:
    if len(triple) != 3:
        raise ValueError(
            f"counts as arrays are a triple (subject codes, word ids, counts), got {len(triple)}."
        )
    if n_subjects is None or n_words is None:
        raise ValueError(
            "a triple needs n_subjects and n_words: both are public, and the largest code that "
            "occurs is not."
        )
    shape = (
        _validate.integer("n_subjects", n_subjects, 1),
        _validate.integer("n_words", n_words, 1),
    )
    row, column, count = (np.asarray(part) for part in triple)
    if not row.ndim == column.ndim == count.ndim == 1 or not row.size == column.size == count.size:
        raise ValueError(
            f"the arrays of a triple must be one-dimensional and of one length, got shapes "
            f"{row.shape}, {column.shape} and {count.shape}."
        )
    if count.dtype.kind not in "biuf":
        raise TypeError(f"counts must be numbers, got {count.dtype}.")
    if count.size and not (count.min() >= 0 and count.max() <= LARGEST_COUNT):
        raise ValueError(f"counts must be finite, at least 0 and at most {LARGEST_COUNT:g}.")
    for name, codes, bound in (
        ("subject codes", row, shape[0]),
        ("word ids", column, shape[1]),
    ):
        if codes.size and codes.dtype.kind not in "iu":
            raise TypeError(f"{name} must be whole numbers, got {codes.dtype}.")
        if codes.size and (codes.min() < 0 or codes.max() >= bound):
            raise ValueError(
                f"{name} must lie in 0..{bound - 1}, got {codes.min()} to {codes.max()}."
            )
    return sparse.csr_matrix((_wide(count), (row, column)), shape=shape)


def _wide(counts: Any) -> Any:
    """Counts of 64 bits: sums of repeated pairs would wrap around, or overflow, in fewer."""
    kind = np.float64 if counts.dtype.kind == "f" else np.int64
    fits = counts.dtype.itemsize >= 8 and counts.dtype.kind in "iuf"
    # Unique entries are not summed, and need no copy.
    once = sparse.issparse(counts) and counts.format == "csr" and counts.has_canonical_format
    if fits or once:
        return counts
    if not sparse.issparse(counts):
        return counts.astype(kind)
    # SciPy's astype would sum first, in the narrow type.
    entries = counts.tocoo()
    data = entries.data.astype(kind)
    return sparse.coo_matrix((data, (entries.row, entries.col)), shape=entries.shape)


def as_blocks(block: Any, n_words: int) -> tuple[np.ndarray | None, int]:
    """The public map from words to elements, and the number K of elements.

    Args:
      block: whole numbers [n_words] in 0..K-1, K one more than the largest, or None for each word
        an element of its own.
      n_words: number of words.

    Returns:
      `(block, K)`, block as int64, or None where each element is one word under its own number.

    Raises:
      ValueError, TypeError: not such an array.
    """
    if block is None:
        return None, n_words
    block = np.asarray(block)
    if block.dtype.kind not in "iu":
        raise TypeError(f"block must hold whole numbers (elements), got {block.dtype}.")
    if block.shape != (n_words,) or block.min() < 0:
        raise ValueError(
            f"block must give each of the {n_words} words its element, 0 or more; got shape "
            f"{block.shape}" + (f" and a least element of {block.min()}." if block.size else ".")
        )
    n_elements = int(block.max()) + 1
    if n_elements > max(n_words, _MOST_ELEMENTS):
        raise ValueError(
            f"block numbers elements up to {n_elements - 1} for {n_words} words; number them from 0 "
            f"without gaps, for instance np.unique(block, return_inverse=True)[1]."
        )
    return block.astype(np.int64), n_elements
