# SPDX-License-Identifier: Apache-2.0
"""At most so many items a subject: in the data, or within one batch.

The bound is what turns "a person may have any number of rows" into a k that is public. Which rows
stay is drawn uniformly, so the training data remain a fair sample of each person's rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tf_subjectdp.sampling._checks import positive_int
from tf_subjectdp.sampling.grouping import SubjectTable, count_items


def bound_contributions(
    codes: np.ndarray, n_subjects: int, max_items: int, rng: np.random.Generator
) -> np.ndarray:
    """Keeps at most `max_items` rows of every subject, chosen uniformly at random.

    Args:
      codes: int64 of shape [rows], the subject of each row, in 0..n_subjects-1.
      n_subjects: number of subjects.
      max_items: the bound, at least 1.
      rng: where the choice comes from.

    Returns:
      The rows kept, int64, increasing. All rows of a subject within the bound are kept.

    Raises:
      ValueError: a bound below 1, a code out of range.
      TypeError: a bound that is not a whole number.
    """
    max_items = positive_int("max_items", max_items)
    codes = np.asarray(codes)
    crowded = np.flatnonzero((count_items(codes, n_subjects) > max_items)[codes])
    keep = np.ones(codes.size, bool)
    if crowded.size:
        # Random ranks (a permutation has no ties, random floats may) order each subject's rows;
        # the first max_items of every run stay.
        owners = codes[crowded]
        order = np.lexsort((rng.permutation(crowded.size), owners))
        owners = owners[order]
        first = np.flatnonzero(np.concatenate(([True], owners[1:] != owners[:-1])))
        lengths = np.diff(np.append(first, owners.size))
        place = np.arange(owners.size) - np.repeat(first, lengths)
        keep[crowded[order[place >= max_items]]] = False
    return np.flatnonzero(keep).astype(np.int64, copy=False)


def bound_batch(
    table: SubjectTable, rows: np.ndarray, max_items: int, rng: np.random.Generator
) -> np.ndarray:
    """Keeps at most `max_items` of the batch's rows of every subject, in the batch's order.

    Args:
      table: who owns which row.
      rows: int64 of shape [batch], rows of the table.
      max_items: the bound, at least 1.
      rng: where the choice comes from.

    Returns:
      int64 of shape [kept]. Costs as much as the batch, not as the table.

    Raises:
      ValueError, TypeError: as `bound_contributions`.
    """
    present, local = np.unique(table.codes[rows], return_inverse=True)
    return rows[bound_contributions(local.reshape(-1), present.size, max_items, rng)]


def bounded_batches(
    batches: Iterator[np.ndarray], table: SubjectTable, max_items: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Every batch of `batches` with at most `max_items` rows a subject, drawn afresh each step."""
    max_items = positive_int("max_items", max_items)
    return (bound_batch(table, rows, max_items, rng) for rows in batches)
