# SPDX-License-Identifier: Apache-2.0
"""What a plan needs to know about the people in a table: how many, and with how many items."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_subjectdp.sampling._checks import LARGEST, check_indexes, positive_int
from tf_subjectdp.sampling.grouping import count_items, encode_typed_ids
from tf_subjectdp.sampling.pairs import ElementStats, encode_elements

# Where the largest number of items of a subject came from; the privacy statement says which.
K_SOURCES = {
    "data": "read from the data",
    "bound": "a public bound, enforced by dropping items",
    "public": "a public figure, given by the user",
}


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class SubjectStats:
    """Items and subjects of a table.

    Make one with `from_ids`, `from_counts` or `public`. A figure read from the data is itself
    information about the people in it; `bounded` and `public` give figures that are not.

    Attributes:
      n_items: number of rows.
      n_subjects: number of people.
      max_items: k, the largest number of rows that one person may have.
      k_source: where `max_items` came from: "data", "bound" or "public", see `K_SOURCES`.
      id_dtype: "int64" or "string", what the ids were; None where they were not seen.
      sizes_public: whether `n_items` and `n_subjects` may be told to anybody: True from `public`,
        False where they were counted.
      elements: the elements that the rows belong to; None if they were not given.
      counts: rows of each subject, int64 of shape [n_subjects] in the order of the codes of
        `encode_ids`; None where only figures are known. Neither compared nor serialised.
    """

    n_items: int
    n_subjects: int
    max_items: int
    k_source: str = "public"
    id_dtype: str | None = None
    sizes_public: bool = False
    elements: ElementStats | None = None
    counts: np.ndarray | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("n_items", "n_subjects", "max_items"):
            object.__setattr__(self, name, positive_int(name, getattr(self, name)))
        if self.n_subjects > self.n_items:
            raise ValueError(
                f"n_subjects is {self.n_subjects}, above n_items {self.n_items}: a subject "
                "without items is not in the table"
            )
        if self.max_items * self.n_subjects < self.n_items:
            raise ValueError(
                f"max_items {self.max_items} is too small: {self.n_items} items of "
                f"{self.n_subjects} subjects need at least "
                f"{-(-self.n_items // self.n_subjects)} for some subject"
            )
        if not isinstance(self.k_source, str) or self.k_source not in K_SOURCES:
            raise ValueError(f"k_source is {self.k_source!r}: choose one of {sorted(K_SOURCES)}")
        if self.id_dtype is not None and (
            not isinstance(self.id_dtype, str) or self.id_dtype not in ("int64", "string")
        ):
            raise ValueError(f"id_dtype is {self.id_dtype!r}: choose 'int64', 'string' or None")
        if not isinstance(self.sizes_public, bool):
            raise TypeError(f"sizes_public is {self.sizes_public!r}: pass True or False")
        if isinstance(self.elements, Mapping):  # from a config
            object.__setattr__(self, "elements", ElementStats(**self.elements))
        if self.elements is not None and not isinstance(self.elements, ElementStats):
            raise TypeError(f"elements is {self.elements!r}: pass an ElementStats, or None")

    @classmethod
    def from_ids(cls, ids: Any, element_id: Any = None) -> SubjectStats:
        """Counts the rows of each subject.

        Args:
          ids: one id a row; integers, strings or bytes, see `encode_ids`.
          element_id: the element of each row, for `ElementDP`; None if there are none.

        Raises:
          ValueError, TypeError: ids that are missing or of a wrong type, see `encode_ids`.
        """
        codes, n_subjects, id_dtype = encode_typed_ids(ids)
        stats = cls._count(count_items(codes, n_subjects), id_dtype)
        if element_id is None:
            return stats
        check_indexes({"ids": ids, "element_id": element_id})
        elements = ElementStats.from_codes(codes, encode_elements(element_id, codes.size))
        return dataclasses.replace(stats, elements=elements)

    @classmethod
    def from_counts(cls, counts: Any) -> SubjectStats:
        """From the number of rows of each subject: whole numbers, at least 1, shape [subjects].

        Raises:
          ValueError: no counts, more than one dimension, or a count below 1.
          TypeError: counts that are not whole numbers.
        """
        array = np.asarray(counts)
        if array.ndim != 1 or array.size == 0:
            raise ValueError(f"counts have shape {array.shape}: pass one number a subject")
        if array.dtype.kind not in "iu":
            raise TypeError(f"counts have type {array.dtype}: pass whole numbers")
        if array.min() < 1:
            subject = int(np.argmax(array < 1))
            raise ValueError(
                f"subject {subject} has {array[subject]} items: leave out subjects without items"
            )
        if array.sum(dtype=np.float64) > LARGEST:
            raise ValueError(
                f"counts add up to {array.sum(dtype=np.float64):.3g} items: the sum must be at "
                f"most {LARGEST} (2**53)"
            )
        return cls._count(array.astype(np.int64), None)

    @classmethod
    def public(
        cls,
        *,
        n_items: int,
        n_subjects: int,
        max_items: int,
        elements: ElementStats | None = None,
    ) -> SubjectStats:
        """From figures that may be told to anybody, without looking at the data.

        Args:
          n_items, n_subjects, max_items: see the class.
          elements: the same of the elements, `ElementStats(n_elements=, max_elements=, max_items=)`.

        Raises:
          ValueError: figures that no table can have.
          TypeError: figures that are not whole numbers.
        """
        return cls(
            n_items=n_items,
            n_subjects=n_subjects,
            max_items=max_items,
            k_source="public",
            sizes_public=True,
            elements=elements,
        )

    @classmethod
    def _count(cls, counts: np.ndarray, id_dtype: str | None) -> SubjectStats:
        return cls(
            n_items=int(counts.sum()),
            n_subjects=int(counts.size),
            max_items=int(counts.max()),
            k_source="data",
            id_dtype=id_dtype,
            counts=counts,
        )

    @property
    def mean(self) -> float:
        """Items a subject, on average."""
        return self.n_items / self.n_subjects

    def quantile(self, p: float) -> int:
        """The smallest m such that at least a share p of the subjects have at most m items.

        Raises:
          ValueError: p outside [0, 1], or counts that are not known.
        """
        if isinstance(p, bool) or not isinstance(p, numbers.Real) or not 0 <= p <= 1:
            raise ValueError(f"p is {p!r}: a share lies between 0 and 1")
        return int(np.quantile(self._known_counts("quantile"), p, method="inverted_cdf"))

    def bounded(self, max_items: int) -> SubjectStats:
        """The stats after every subject has been cut to at most `max_items` items.

        `max_items` becomes the new k even where no subject has as many: the bound is public, the
        largest count is not. Cut the rows themselves with `bound_contributions`.

        Raises:
          ValueError: a bound below 1, or counts that are not known.
          TypeError: a bound that is not a whole number.
        """
        max_items = positive_int("max_items", max_items)
        counts = np.minimum(self._known_counts("bounded"), max_items)
        return dataclasses.replace(
            self,
            n_items=int(counts.sum()),
            max_items=max_items,
            k_source="bound",
            counts=counts,
        )

    def get_config(self) -> dict[str, Any]:
        """Figures only, ready for JSON: the counts of the people stay behind."""
        config = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "counts"
        }
        if self.elements is not None:
            config["elements"] = dataclasses.asdict(self.elements)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SubjectStats:
        """The inverse of `get_config`; the counts are not known any more.

        Raises:
          ValueError: a config of something else.
        """
        if not isinstance(config, Mapping):
            raise TypeError(f"config is {config!r}: pass the dict that get_config returned")
        try:
            return cls(**config)
        except TypeError as error:
            raise ValueError(
                f"{config!r} is no config of SubjectStats: {error}; pass what get_config returned"
            ) from None

    def _known_counts(self, wanted: str) -> np.ndarray:
        if self.counts is None:
            raise ValueError(
                f"{wanted} needs the items of each subject, and only the figures are known: "
                "make the stats with SubjectStats.from_ids or from_counts"
            )
        return self.counts

    def __repr__(self) -> str:
        return (
            f"SubjectStats(n_items={self.n_items}, n_subjects={self.n_subjects}, "
            f"max_items={self.max_items}, k_source={self.k_source!r})"
        )

    def __str__(self) -> str:
        spread = f"mean {self.mean:,.1f}"
        if self.counts is not None:
            spread += f", median {self.quantile(0.5):,}, 99% {self.quantile(0.99):,}"
        return "\n".join(
            [
                f"subjects        {self.n_subjects:,}",
                f"items           {self.n_items:,}",
                f"items a subject {spread}, at most {self.max_items:,}",
                f"the bound is    {K_SOURCES[self.k_source]}",
                *self._of_elements(),
            ]
        )

    def _of_elements(self) -> list[str]:
        if self.elements is None:
            return []
        found = self.elements
        return [
            f"elements        {found.n_elements:,}, at most {found.max_elements:,} a subject, at most "
            f"{found.max_items:,} items each"
        ]
