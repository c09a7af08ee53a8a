# SPDX-License-Identifier: Apache-2.0
"""(subject, element) pairs: their numbers, their sizes, and bounds on both.

An element is a part of ONE subject: two people's elements of the same name are two pairs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tf_subjectdp.sampling._checks import positive_int
from tf_subjectdp.sampling.bounding import bound_contributions
from tf_subjectdp.sampling.grouping import encode_typed_ids


@dataclasses.dataclass(frozen=True)
class ElementStats:
    """Elements of a table, as a plan needs them. Read from the data, they are information about it.

    Attributes:
      n_elements: number of (subject, element) pairs.
      max_elements: the largest number of elements of one subject.
      max_items: the largest number of items of one element of a subject.
    """

    n_elements: int
    max_elements: int
    max_items: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(
                self, field.name, positive_int(field.name, getattr(self, field.name))
            )

    @classmethod
    def from_codes(cls, subjects: np.ndarray, elements: np.ndarray) -> ElementStats:
        """From the codes of the subject and of the element of each row, int64 of shape [rows]."""
        pairs, owners = pair_codes(subjects, elements)
        return cls(
            n_elements=int(owners.size),
            max_elements=int(np.bincount(owners).max()),
            max_items=int(np.bincount(pairs).max()),
        )


def encode_elements(element_id: Any, rows: int) -> np.ndarray:
    """Numbers the elements: int64 codes of shape [rows]; see `encode_ids`.

    Raises:
      ValueError, TypeError: missing or mixed ids, or not one a row.
    """
    return encode_typed_elements(element_id, rows)[0]


def encode_typed_elements(element_id: Any, rows: int) -> tuple[np.ndarray, str]:
    """As `encode_elements`, and says what the ids were: "int64" or "string" (bytes are strings)."""
    try:
        codes, _, dtype = encode_typed_ids(element_id, "element")
    except (ValueError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        text = str(error).replace("subject id", "element id")
        text = text.replace("the id of the person it belongs to", "the element it belongs to")
        text = text.replace("equal people could go by", "equal elements could have")
        raise kind(f"element_id: {text}") from None
    if codes.size != rows:
        raise ValueError(
            f"element_id has {codes.size} rows, and there are {rows} subject ids: pass the element of "
            "each row."
        )
    return codes, dtype


def pair_codes(subjects: np.ndarray, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers the pairs.

    Args:
      subjects, elements: int64 codes of shape [rows], >= 0.

    Returns:
      The pair of each row, int64 in 0..pairs-1, sorted by subject; and the subject of each pair.
    """
    width = int(elements.max()) + 1
    keys, pairs = np.unique(subjects * width + elements, return_inverse=True)
    return pairs.reshape(-1).astype(np.int64), (keys // width).astype(np.int64)


def bound_elements(
    pairs: np.ndarray,
    owners: np.ndarray,
    max_elements: int | None,
    max_items: int | None,
    rng: np.random.Generator,
) -> np.ndarray | None:
    """Rows that stay when subjects have at most so many elements, and these so many items.

    Which ones stay is uniform and does not depend on their contents or sizes.

    Args:
      pairs, owners: as `pair_codes` returned them.
      max_elements: most elements of a subject; None for any number.
      max_items: most items of one element of a subject; None for any number.
      rng: where the choices come from.

    Returns:
      int64 rows, increasing; None if all stay.
    """
    keep = np.ones(pairs.size, bool)
    if max_elements is not None:
        kept = bound_contributions(owners, int(owners.max()) + 1, max_elements, rng)
        stays = np.zeros(owners.size, bool)
        stays[kept] = True
        keep &= stays[pairs]
    if max_items is not None:
        kept = bound_contributions(pairs, owners.size, max_items, rng)
        within = np.zeros(pairs.size, bool)
        within[kept] = True
        keep &= within
    return None if keep.all() else np.flatnonzero(keep).astype(np.int64, copy=False)
