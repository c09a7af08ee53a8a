# SPDX-License-Identifier: Apache-2.0
"""Who has how many items where: a table of people by silos (organisations that hold data)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_subjectdp.sampling._checks import LARGEST, positive_int
from tf_subjectdp.sampling.grouping import encode_typed_ids
from tf_subjectdp.sampling.pairs import ElementStats, encode_typed_elements
from tf_subjectdp.sampling.stats import SubjectStats

if TYPE_CHECKING:
    from scipy import sparse

# Lines of the printed table; further silos are summed up in one.
_MOST_LINES = 20


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SiloStats:
    """Items of every person in every silo.

    Make one with `from_ids`, `from_counts` or `stats_from_table`. The figures are read from the
    data and so are themselves information about the people in it; `bounded` gives a k that is not.

    Attributes:
      counts: `scipy.sparse.csr_array`, int64 of shape [n_subjects, n_silos]: items of a subject in a
        silo; nothing is stored where a subject has none. Rows in the order in which the subjects
        first appear.
      names: what the silos are called: strings or integers, in the order of the columns; ascending
        where they were read from a column.
      id_dtype: "int64" or "string", what the subject ids were; None where they were not seen.
      cap: the public bound on a subject's items in one silo, see `bounded`; None for none.
      elements: for each silo the elements that its rows belong to, in the order of `names`; None if
        they were not given.
      element_dtype: "int64" or "string", what the elements' ids were, in all silos; None where they
        were not seen.
    """

    counts: sparse.csr_array
    names: tuple[Any, ...]
    id_dtype: str | None = None
    cap: int | None = None
    elements: tuple[ElementStats, ...] | None = None
    element_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.elements is not None and len(self.elements) != len(self.names):
            raise ValueError(
                f"elements has {len(self.elements)} entries for {len(self.names)} silos: pass one "
                "ElementStats a silo"
            )
        if self.element_dtype not in (None, "int64", "string"):
            raise ValueError(
                f"element_dtype is {self.element_dtype!r}: choose 'int64', 'string' or None"
            )

    @classmethod
    def from_ids(cls, subject_ids: Any, silo_ids: Any, element_id: Any = None) -> SiloStats:
        """Counts rows by subject and silo.

        Args:
          subject_ids: one id a row; integers, strings or bytes, see `encode_ids`.
          silo_ids: one silo a row, by the same rules.
          element_id: the element of each row, for `ElementDP`; None if there are none. A subject's
            element may have rows in several silos, and each silo counts its own.

        Raises:
          ValueError, TypeError: ids that are missing or of a wrong type (see `encode_ids`), or
            columns of unequal length.
        """
        subjects, n_subjects, id_dtype = encode_typed_ids(subject_ids)
        try:
            silos, n_silos, _ = encode_typed_ids(silo_ids, "silo")
        except (ValueError, TypeError) as error:
            message = str(error).replace("subject ids", "silo ids").replace("subject id", "silo id")
            raise type(error)(message) from None
        if subjects.size != silos.size:
            raise ValueError(
                f"there are {subjects.size} subject ids and {silos.size} silo ids: pass one of each "
                "a row"
            )
        first = np.full(n_silos, silos.size)
        np.minimum.at(first, silos, np.arange(silos.size))
        names = np.asarray(silo_ids, dtype=object)[first]
        keys, counts = np.unique(subjects * n_silos + silos, return_counts=True)
        stats = cls._from_sorted(
            keys // n_silos, keys % n_silos, counts, n_subjects, names.tolist(), id_dtype
        )
        if element_id is None:
            return stats
        codes, element_dtype = encode_typed_elements(element_id, subjects.size)
        code_of = {name: code for code, name in enumerate(names.tolist())}
        rows = [np.flatnonzero(silos == code_of[name]) for name in stats.names]
        elements = tuple(ElementStats.from_codes(subjects[own], codes[own]) for own in rows)
        return dataclasses.replace(stats, elements=elements, element_dtype=element_dtype)

    @classmethod
    def from_counts(cls, counts: Any, names: Any = None) -> SiloStats:
        """From items by subject and silo.

        Args:
          counts: whole numbers, at least 0, shape [subjects, silos]; an array or a sparse matrix.
          names: what the silos are called; None numbers them from 0.

        Raises:
          ValueError: a negative count, a subject or a silo without items, or names that are not one
            a silo.
          TypeError: counts that are not whole numbers.
        """
        from scipy import sparse

        matrix = counts if sparse.issparse(counts) else np.asarray(counts)
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise ValueError(f"counts have shape {matrix.shape}: pass [subjects, silos]")
        if matrix.dtype.kind not in "iu":
            raise TypeError(f"counts have type {matrix.dtype}: pass whole numbers")
        names = list(range(matrix.shape[1])) if names is None else list(names)
        if len(names) != matrix.shape[1] or len(set(names)) != len(names):
            raise ValueError(
                f"names are {names!r}: pass {matrix.shape[1]} different ones, one a silo"
            )
        matrix = sparse.csr_array(matrix, copy=True)
        matrix.sum_duplicates()
        _check_counts(matrix, names)
        return cls(matrix.astype(np.int64), tuple(names))

    @classmethod
    def _from_sorted(cls, rows, columns, counts, n_subjects, names, id_dtype) -> SiloStats:
        """From pairs in the order of rows, then columns; each comes once, with a count above 0."""
        from scipy import sparse

        starts = np.zeros(n_subjects + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=n_subjects), out=starts[1:])
        shape = (int(n_subjects), len(names))
        matrix = sparse.csr_array((counts, columns, starts), shape=shape)
        # Names in ascending order: what a list with one entry a silo will be in.
        order = sorted(range(len(names)), key=names.__getitem__)
        matrix = sparse.csr_array(matrix[:, order])
        matrix.sort_indices()
        return cls(matrix, tuple(names[i] for i in order), id_dtype)

    @property
    def n_items(self) -> int:
        """Number of rows."""
        return int(self.counts.data.sum())

    @property
    def n_subjects(self) -> int:
        """Number of people."""
        return int(self.counts.shape[0])

    @property
    def n_silos(self) -> int:
        """Number of silos."""
        return int(self.counts.shape[1])

    @property
    def silos_per_subject(self) -> int:
        """The largest number of silos that hold items of one person; read from the data."""
        return int(np.diff(self.counts.indptr).max())

    @property
    def total(self) -> SubjectStats:
        """The people over all silos: their items are added up."""
        sums = np.asarray(self.counts.sum(axis=1)).reshape(-1)
        stats = SubjectStats.from_counts(sums)
        return dataclasses.replace(stats, id_dtype=self.id_dtype)

    def silo(self, i: int) -> SubjectStats:
        """The people of one silo, those only who have items there.

        Args:
          i: number of the silo, 0..n_silos-1, in the order of `names`.

        Raises:
          ValueError: no such silo.
          TypeError: `i` is not a whole number.
        """
        if isinstance(i, bool) or not isinstance(i, (int, np.integer)):
            raise TypeError(f"i is {i!r} ({type(i).__name__}): pass the number of a silo")
        if not 0 <= i < self.n_silos:
            raise ValueError(f"i is {i}: the silos are numbered 0..{self.n_silos - 1}")
        stats = SubjectStats.from_counts(self.counts.data[self.counts.indices == i])
        elements = None if self.elements is None else self.elements[int(i)]
        stats = dataclasses.replace(stats, id_dtype=self.id_dtype, elements=elements)
        return stats if self.cap is None else stats.bounded(self.cap)

    def bounded(self, max_items: int) -> SiloStats:
        """After every silo has cut each of its subjects to at most `max_items` items.

        `max_items` becomes the k of every silo even where nobody has as many: the bound is public,
        the largest count is not.

        Raises:
          ValueError, TypeError: as `SubjectStats.bounded`.
        """
        max_items = positive_int("max_items", max_items)
        counts = self.counts.copy()
        counts.data = np.minimum(counts.data, max_items)
        return dataclasses.replace(self, counts=counts, cap=max_items)

    def __repr__(self) -> str:
        return (
            f"SiloStats(n_items={self.n_items}, n_subjects={self.n_subjects}, "
            f"n_silos={self.n_silos}, silos_per_subject={self.silos_per_subject})"
        )

    def __str__(self) -> str:
        rows = [("silo", "subjects", "items", "items a subject, at most")]
        shown = self.n_silos if self.n_silos <= _MOST_LINES else _MOST_LINES - 1
        for i in range(shown):
            stats = self.silo(i)
            figures = (stats.n_subjects, stats.n_items, stats.max_items)
            rows.append((str(self.names[i]), *(f"{figure:,}" for figure in figures)))
        if shown < self.n_silos:
            rows.append((f"... {self.n_silos - shown} more silos", "", "", ""))
        total = self.total
        figures = (total.n_subjects, total.n_items, total.max_items)
        rows.append(("all silos", *(f"{figure:,}" for figure in figures)))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            "  ".join(
                [
                    row[0].ljust(widths[0]),
                    *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)),
                ]
            ).rstrip()
            for row in rows
        ]
        lines.append(
            f"a subject is in at most {self.silos_per_subject} of {self.n_silos} silos (read from "
            "the data)"
        )
        return "\n".join(lines)


def _check_counts(matrix: sparse.csr_array, names: list) -> None:
    """ValueError unless the counts are at least 0 and every subject and silo has items."""
    if matrix.data.size and matrix.data.min() < 0:
        pairs = matrix.tocoo()
        at = int(np.argmin(pairs.data))
        raise ValueError(
            f"subject {pairs.row[at]} has {pairs.data[at]} items in silo "
            f"{names[pairs.col[at]]!r}: a count is at least 0"
        )
    if matrix.data.sum(dtype=np.float64) > LARGEST:
        raise ValueError(
            f"counts add up to {matrix.data.sum(dtype=np.float64):.3g} items: the sum must be at "
            f"most {LARGEST} (2**53)"
        )
    matrix.eliminate_zeros()
    empty = np.flatnonzero(np.diff(matrix.indptr) == 0)
    if empty.size:
        raise ValueError(f"subject {empty[0]} has no items: leave out subjects without items")
    absent = np.flatnonzero(np.bincount(matrix.indices, minlength=matrix.shape[1]) == 0)
    if absent.size:
        raise ValueError(f"silo {names[absent[0]]!r} has no items: leave out silos without items")
