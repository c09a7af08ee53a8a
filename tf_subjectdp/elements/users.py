# SPDX-License-Identifier: Apache-2.0
"""Pseudo-users: the users of the experiments of Asi, Duchi and Javidi, made of a data set without any.

n users of m items each, the items of a user from k of the K elements (clusters).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tf_subjectdp import _validate
from tf_subjectdp.elements.maps import value_column
from tf_subjectdp.noise_numpy import public_draws
from tf_subjectdp.sampling.pairs import encode_elements

# Users' elements are drawn for as many users at once as fit into about 32 MB.
_MOST_CELLS = 2**22


class PseudoUsers(NamedTuple):
    """Who has which row: take `x[rows]`, with `users` for subject ids and `elements` for element ids.

    Attributes:
      rows: int64 [n_users * items_per_user], places in the data, users one after the other.
      users: int64, the same length: 0..n_users-1, each `items_per_user` times.
      elements: the same length: the labels of those rows, of the type that they had.
    """

    rows: np.ndarray
    users: np.ndarray
    elements: np.ndarray


def pseudo_users(
    element_ids: Any,
    *,
    n_users: int,
    items_per_user: int,
    elements_per_user: int,
    n_elements: int | None = None,
    when_empty: str = "error",
    seed: np.random.Generator | int | None = None,
) -> PseudoUsers:
    """Deals the items out to users, each with items of a few elements.

    1. Every user is given `elements_per_user` of the elements, all subsets equally likely, independent
       of other users.
    2. User after user takes `items_per_user` of the items that its elements have left, all subsets
       equally likely. So a user has at most `elements_per_user` elements; a large element gives it more
       items than a small one, and might leave it none of the small one.

    No item is dealt out twice while there are others. What happens where a user's elements have too few
    left is `when_empty`'s:

    * "error": a ValueError that names the user. Large demands on few elements do that: ask for fewer
      users or items, or for more elements a user.
    * "copy": the user takes what is left, then all items of its elements are dealt anew. One row of the
      data is then several users' (each has a copy, an item of its own), and never one user's twice.

    Args:
      element_ids: the element of each row, shape [rows]: integers, strings or bytes, of one kind.
      n_users: n, at least 1.
      items_per_user: m, at least 1.
      elements_per_user: k, at most the number of elements that have items.
      n_elements: K, a check: ids must then be integers in 0..n_elements-1. Elements without items are
        given to nobody. None takes the elements as they come.
      when_empty: "error" or "copy".
      seed: a whole number gives the same users again; a `Generator` is drawn from; None is fresh.

    Returns:
      `PseudoUsers(rows, users, elements)`; with "error" no row is named twice.

    Raises:
      ValueError: an argument out of its range; too few elements or items; missing ids, by row.
      TypeError: an argument or ids of another type.
    """
    n_users = _validate.integer("n_users", n_users, 1)
    items_per_user = _validate.integer("items_per_user", items_per_user, 1)
    elements_per_user = _validate.integer("elements_per_user", elements_per_user, 1)
    if when_empty not in ("error", "copy"):
        raise ValueError(f'when_empty is {when_empty!r}: pass "error" or "copy"')
    rng = public_draws(seed)
    labels = value_column(element_ids, "element id")
    codes = encode_elements(labels, len(labels))
    found = int(codes.max()) + 1
    if n_elements is not None:
        _check_range(labels, _validate.integer("n_elements", n_elements, 1))
    if elements_per_user > found:
        raise ValueError(
            f"elements_per_user is {elements_per_user}, and {found} elements have items: pass at "
            f"most {found}"
        )
    if when_empty == "error" and n_users * items_per_user > len(codes):
        raise ValueError(
            f"{n_users} users of {items_per_user} items need {n_users * items_per_user} items and there "
            f'are {len(codes)}: ask for fewer, or pass when_empty="copy"'
        )
    decks = _Decks(codes, found, rng)
    rows = np.empty((n_users, items_per_user), np.int64)
    user = 0
    at_once = max(1, _MOST_CELLS // found)
    for low in range(0, n_users, at_once):
        # the places of the k smallest of K uniform numbers are a uniform subset
        draws = rng.random((min(at_once, n_users - low), found))
        last = elements_per_user - 1
        for chosen in np.argpartition(draws, last, axis=1)[:, :elements_per_user]:
            rows[user] = decks.deal(np.sort(chosen), items_per_user, user, when_empty)
            user += 1
    flat = rows.reshape(-1)
    return PseudoUsers(flat, np.repeat(np.arange(n_users), items_per_user), labels[flat])


class _Decks:
    """The items that each element has left, in random order: dealing is taking from the end."""

    def __init__(self, codes: np.ndarray, n_elements: int, rng: np.random.Generator):
        self.rng = rng
        order = rng.permutation(len(codes))
        order = order[np.argsort(codes[order], kind="stable")]
        bounds = np.cumsum(np.bincount(codes, minlength=n_elements))[:-1]
        self.items = np.split(order, bounds)
        self.decks = list(self.items)
        self.left = np.array([len(deck) for deck in self.decks])

    def deal(self, elements: np.ndarray, wanted: int, user: int, when_empty: str) -> np.ndarray:
        """`wanted` different rows of these elements, all subsets of what is left equally likely."""
        there = int(self.left[elements].sum())
        if there >= wanted:
            return self._take(elements, wanted)
        if when_empty == "error":
            raise ValueError(
                f"the elements of user {user} have {there} items left and it needs {wanted}: ask for "
                'fewer users or items, for more elements a user, or pass when_empty="copy"'
            )
        full = sum(len(self.items[element]) for element in elements)
        if full < wanted:
            raise ValueError(
                f"the elements of user {user} have {full} items in all and it needs {wanted}: ask for "
                "fewer items a user or more elements a user; no user gets an item twice"
            )
        rest = self._take(elements, there)
        held = []
        for element in elements:
            items = self.items[element]
            mine = np.isin(items, rest)
            self._shuffle_in(element, items[~mine])
            held.append(items[mine])
        more = self._take(elements, wanted - there)
        # what the user took last of the old deal belongs to the new one for the others
        for element, items in zip(elements, held, strict=True):
            self._shuffle_in(element, items)
        return np.concatenate([rest, more])

    def _shuffle_in(self, element: int, items: np.ndarray) -> None:
        left = self.decks[element][: self.left[element]]
        self.decks[element] = self.rng.permutation(np.concatenate([left, items]))
        self.left[element] = len(left) + len(items)

    def _take(self, elements: np.ndarray, wanted: int) -> np.ndarray:
        counts = self.rng.multivariate_hypergeometric(
            self.left[elements], wanted, method="marginals"
        )
        taken = []
        for element, count in zip(elements, counts, strict=True):
            deck, left = self.decks[element], self.left[element]
            taken.append(deck[left - count : left])
            self.left[element] = left - count
        return np.concatenate(taken)


def _check_range(labels: np.ndarray, n_elements: int) -> None:
    if not isinstance(labels[0], (int, np.integer)):
        raise TypeError(
            f"n_elements is {n_elements} and the element ids are no integers: pass n_elements=None for "
            "labels"
        )
    if labels.min() < 0 or labels.max() >= n_elements:
        raise ValueError(
            f"element ids run from {labels.min()} to {labels.max()}, outside 0..{n_elements - 1}: "
            "pass n_elements as the map to elements has it"
        )
