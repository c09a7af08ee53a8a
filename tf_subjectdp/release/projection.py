# SPDX-License-Identifier: Apache-2.0
"""Each element's counts of a subject onto a ball, and the sum over subjects: sparse, in chunks.

A chunk is some rows with about a million counts, so memory
does not grow with the data beyond the matrix itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import sparse

# Counts in a chunk.
_AT_ONCE = 2**20
# Rounding may lengthen a scaled vector by 2^-53 for each of its coordinates, and by a little more.
_ROUNDING, _MARGIN = 2.0**-53, 1e-12


class Groups(NamedTuple):
    """The elements of some subjects: group g is the counts starts[g] .. starts[g] + lengths[g].

    Attributes:
      columns: word of each count, int64 [counts].
      values: the counts, float64 [counts], > 0.
      starts: first count of each group, int64 [groups].
      lengths: counts in each group, int64 [groups], >= 1.
      elements: element of each group, int64 [groups].
    """

    columns: np.ndarray
    values: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    elements: np.ndarray


def keep_elements(
    matrix: sparse.csr_matrix,
    block: np.ndarray | None,
    n_elements: int,
    max_elements: int,
    rng: np.random.Generator,
) -> sparse.csr_matrix:
    """Drops elements of subjects that have more than `max_elements`, all equally likely.

    Returns:
      The same matrix if nobody has more, otherwise a new one.
    """
    if n_elements <= max_elements:
        return matrix
    kept, removed = [], False
    for low, high, columns, _ in _chunks(matrix):
        key, order = _keys(matrix, block, n_elements, low, high, columns)
        sorted_key = key if order is None else key[order]
        first = np.flatnonzero(np.diff(sorted_key, prepend=-1))
        row = sorted_key[first] // n_elements
        per_row = np.bincount(row, minlength=high - low)
        crowded = per_row[row] > max_elements
        keep = np.ones(first.size, bool)
        if crowded.any():
            removed = True
            groups = np.flatnonzero(crowded)
            # A random order of all, then by row; rows of 16 bits are sorted by radix, in linear time.
            mixed = rng.permutation(groups)
            rows = row[mixed].astype(np.uint16 if high - low <= 2**16 else np.int64)
            mixed = mixed[np.argsort(rows, kind="stable")]
            counts = per_row[per_row > max_elements]
            rank = np.arange(mixed.size) - np.repeat(np.cumsum(counts) - counts, counts)
            keep[mixed] = rank < max_elements
        flags = np.repeat(keep, np.diff(first, append=sorted_key.size))
        if order is not None:
            unsorted = np.empty(flags.size, bool)
            unsorted[order] = flags
            flags = unsorted
        kept.append(flags)
    if not removed:
        return matrix
    flags = np.concatenate(kept)
    new = sparse.csr_matrix(
        (
            matrix.data[flags],
            matrix.indices[flags],
            np.concatenate([[0], np.cumsum(flags)])[matrix.indptr],
        ),
        shape=matrix.shape,
    )
    new.has_canonical_format = True
    return new


def element_groups(
    matrix: sparse.csr_matrix, block: np.ndarray | None, n_elements: int
) -> Iterator[Groups]:
    """The counts, grouped by (subject, element), chunk by chunk."""
    for low, high, columns, values in _chunks(matrix):
        key, order = _keys(matrix, block, n_elements, low, high, columns)
        if order is not None:
            key, columns, values = key[order], columns[order], values[order]
        starts = np.flatnonzero(np.diff(key, prepend=-1))
        lengths = np.diff(starts, append=key.size)
        yield Groups(columns, values, starts, lengths, key[starts] % n_elements)


def projected_sum(
    matrix: sparse.csr_matrix,
    block: np.ndarray | None,
    n_elements: int,
    radius: float | np.ndarray,
) -> np.ndarray:
    """Sum over subjects of their counts, each element's projected onto a ball (equation 5).

    Args:
      matrix: counts [subjects, words], canonical, without stored zeros.
      block: element of each word, or None for each word its own.
      n_elements: number K of elements.
      radius: of the L2 ball, > 0; one for all, or one an element [K].

    Returns:
      float64 [words]. One subject's part in an element has a norm of at most its radius, however many
      words it has: norms are rounded up.
    """
    total = np.zeros(matrix.shape[1])
    for groups in element_groups(matrix, block, n_elements):
        norm = np.sqrt(np.add.reduceat(np.square(groups.values), groups.starts))
        norm *= 1.0 + _MARGIN + _ROUNDING * groups.lengths
        bound = np.broadcast_to(radius, (n_elements,))[groups.elements]
        scale = np.ones_like(norm)
        np.divide(bound, norm, out=scale, where=norm > bound)
        weights = groups.values * np.repeat(scale, groups.lengths)
        total += np.bincount(groups.columns, weights, minlength=total.size)
    return total


def compressed_totals(
    matrix: sparse.csr_matrix, block: np.ndarray | None, n_elements: int, cap: float
) -> np.ndarray:
    """Sum over subjects of log(1 + c) / log(1 + cap), cut at 1; c is all that one has of an element.

    Returns:
      float64 [n_elements]; one subject adds a number in [0, 1] to each.
    """
    total = np.zeros(n_elements)
    for groups in element_groups(matrix, block, n_elements):
        size = np.add.reduceat(groups.values, groups.starts)
        part = np.minimum(np.log1p(size) / np.log1p(cap), 1.0)
        total += np.bincount(groups.elements, part, minlength=n_elements)
    return total


def _chunks(matrix: sparse.csr_matrix) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """(first row, one past the last, columns int64, values float64), none of them empty."""
    indptr = matrix.indptr
    cuts = np.searchsorted(indptr, np.arange(0, matrix.nnz, _AT_ONCE), side="right") - 1
    rows = np.unique(np.concatenate([[0], cuts, [matrix.shape[0]]]))
    for low, high in zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True):
        begin, end = int(indptr[low]), int(indptr[high])
        if end > begin:
            yield (
                low,
                high,
                matrix.indices[begin:end].astype(np.int64),
                matrix.data[begin:end].astype(np.float64),
            )


def _keys(
    matrix: sparse.csr_matrix,
    block: np.ndarray | None,
    n_elements: int,
    low: int,
    high: int,
    columns: np.ndarray,
) -> tuple[np.ndarray, np.ndarray | None]:
    """(row * K + element of each count, the order that sorts it or None if it is sorted)."""
    row = np.repeat(np.arange(high - low), np.diff(matrix.indptr[low : high + 1]))
    key = row * n_elements + (columns if block is None else block[columns])
    if block is None or not np.any(key[1:] < key[:-1]):
        return key, None
    return key, np.argsort(key, kind="stable")
