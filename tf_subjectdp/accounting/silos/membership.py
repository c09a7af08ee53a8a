# SPDX-License-Identifier: Apache-2.0
"""epsilon of every person in a table, by the silos (and items) that the person really has.

Such figures depend on the very data they are about: they are for the people who hold the table,
never for release.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.silos.subsets import search_worst
from tf_subjectdp.accounting.silos.views import Question, View

if TYPE_CHECKING:
    from tf_subjectdp.accounting.silos.horizontal import HorizontalPlan

# Numbers of items are rounded up by at most this, so that few patterns remain.
_COARSENESS = 1.08
# Up to so many patterns are all computed by the engine.
_MOST_EXACT = 32
# With more patterns, so many are computed by the engine to find the worst.
_MOST_SEARCHED = 16
_LARGEST_COUNT = 10**9


@dataclasses.dataclass(frozen=True, eq=False)
class SubjectEpsilons:
    """epsilon of every subject of one table.

    Attributes:
      epsilon: float64 of shape (subjects,), upper bounds, in the order of `subjects`.
      delta: the delta they hold at.
      subjects: the subjects' ids, shape (subjects,); the row numbers where a table had no ids.
      patterns: the unlike patterns of items, rounded up, int64 of shape (patterns, silos), 0 for
        not there; subjects of one pattern share their epsilon.
      pattern: the pattern of each subject, an index into `patterns`, int64 of shape (subjects,).
      exact: for each pattern whether its epsilon comes from its loss distribution; otherwise it is a
        Renyi bound (or the plan's figure if that is smaller). bool of shape (patterns,).
      note: what these figures are, and are not; it belongs to whatever shows them.
    """

    epsilon: np.ndarray
    delta: float
    subjects: np.ndarray
    patterns: np.ndarray
    pattern: np.ndarray
    exact: np.ndarray
    note: str

    @property
    def worst(self) -> float:
        """The largest epsilon of the table."""
        return float(self.epsilon.max())

    def quantile(self, p: float) -> float:
        """The smallest of the epsilons that at least the share `p` of the subjects is at or below.

        Raises:
          TypeError, ValueError: `p` is not in [0, 1].
        """
        p = _checks.probability("p", p)
        return float(np.quantile(self.epsilon, p, method="inverted_cdf"))


def per_subject_epsilon(
    plan: HorizontalPlan, membership: Any, *, delta: float, engine: str = "pld"
) -> SubjectEpsilons:
    """epsilon of each subject from its own silos, from above.

    Subjects of one pattern are computed once: each by the engine where patterns are few, otherwise
    all by their loss distributions at once (within 1e-3). In the averaged view, and for tables too
    large for that (two million patterns times unlike (silo, items)), the worst ones are, and the
    others have a Renyi bound, some percent higher.

    A subject in a silo costs that silo's event, whatever the subject's number of items; where the
    silo has an `event_of_items`, the subject's own number is used, rounded up by at most 8 %.

    Args:
      plan: the silos and the view.
      membership: numbers of items, an array or SciPy sparse matrix of shape (subjects, silos), 0
        for not there; an object with such an array as its attribute `counts`, like `SiloStats`
        (its `names` are matched with the plan's where all silos have one); or a TUPLE of two
        equally long arrays, subject ids and silos (indices or names) of each item.
      delta: in (0, 1).
      engine: "pld" or "rdp".

    Raises:
      TypeError, ValueError: an argument is out of its range, the table does not fit the plan's
        silos, or a subject is in more silos than the plan's `silos_per_subject` promises.
    """
    question = Question(delta=_checks.target_delta(delta, allow_zero=False))
    _checks.engine(engine)
    counts, subjects = _counts(plan, membership)
    promised = plan.silos_per_subject
    held = (counts > 0).sum(axis=1)
    if promised is not None and held.max() > promised:
        raise ValueError(
            f"{int((held > promised).sum())} subjects are in more than silos_per_subject="
            f"{promised} silos (one is in {int(held.max())}): the promise does not hold; drop "
            f"items until it does, or make the plan for {int(held.max())}."
        )
    view = plan.make_view()
    rounded, types, covered = _types(plan, view, counts)
    # Which silo a type stands in does not matter: equal multisets of types cost the same.
    rows = np.sort(types, axis=1)
    patterns, first, pattern = _unique_rows(rows)
    ceiling = plan.epsilon(delta, engine) if covered else math.inf
    search = search_worst(view, patterns, question, engine, _MOST_SEARCHED, ceiling)
    values, exact = search.values.copy(), search.evaluated | (search.values == 0.0)
    if len(patterns) <= _MOST_EXACT:
        for i in np.flatnonzero(~exact):
            value = question.answer(view.event(patterns[i][patterns[i] >= 0]), engine)
            values[i] = min(value, values[i])
        exact[:] = True
        values = np.minimum(values, ceiling)
    elif engine == "pld":
        rows = np.flatnonzero(~exact & np.isfinite(values))
        refined = view.epsilons(patterns[rows], values[rows], delta) if len(rows) else None
        if refined is not None:
            values[rows] = np.minimum(refined, ceiling)
            exact[rows] = True
    return SubjectEpsilons(
        epsilon=values[pattern],
        delta=float(delta),
        subjects=subjects,
        patterns=rounded[first],
        pattern=pattern,
        exact=exact,
        note=_note(delta, covered),
    )


def _note(delta: float, covered: bool) -> str:
    note = (
        f"Upper bounds on epsilon at delta={delta:g} for the people in this table, by the silos "
        "they are in. These figures are computed from the data and are not private themselves: "
        "not for release. What may be told is the epsilon of the plan."
    )
    if not covered:
        note += (
            " Some silo's event is not proven to cover its largest number of items: the plan's "
            "epsilon may be too small for these people."
        )
    return note


def _types(
    plan: HorizontalPlan, view: View, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Rounded counts and types, both shaped as `counts`, and whether the plan's events cover them.

    Type -1 is not there.
    """
    rounded, covered = counts.copy(), True
    types = np.full(counts.shape, -1, dtype=np.int32)
    for i, silo in enumerate(plan.silos):
        column = counts[:, i]
        there = column > 0
        if not there.any():
            continue
        usual = view.type_of(i, silo.event)
        if silo.event_of_items is None:
            types[there, i] = usual
            continue
        grid = _grid(int(column.max()))
        place = np.searchsorted(grid, column[there])
        used = np.unique(place)
        numbers = np.zeros(len(grid), dtype=np.int32)
        for one in used:
            numbers[one] = view.type_of(i, silo.event_of_items(int(grid[one])))
        rounded[there, i] = grid[place]
        types[there, i] = numbers[place]
        covered = covered and all(
            view.dominates(usual, int(number)) for number in np.unique(numbers[used])
        )
    return rounded, types, covered


def _grid(largest: int) -> np.ndarray:
    """1, 2, 3, ..., then steps of at most 8 %, up to `largest`, which is the last."""
    values = [1]
    while values[-1] < largest:
        values.append(min(max(values[-1] + 1, int(values[-1] * _COARSENESS)), largest))
    return np.array(values, dtype=np.int64)


def _unique_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unlike rows, the first place of each, and which one every row is."""
    packed = np.ascontiguousarray(rows)
    view = packed.view(np.dtype((np.void, packed.dtype.itemsize * packed.shape[1]))).ravel()
    _, first, inverse = np.unique(view, return_index=True, return_inverse=True)
    return rows[first].astype(np.int64), first, inverse.ravel().astype(np.int64)


def _counts(plan: HorizontalPlan, membership: Any) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of items, int64 of shape (subjects, silos), and the subjects' ids."""
    names = getattr(membership, "names", None)
    membership = getattr(membership, "counts", membership)
    if isinstance(membership, tuple):
        return _from_pairs(plan, membership)
    if sparse.issparse(membership):
        membership = membership.toarray()
    counts = np.asarray(membership)
    n_silos = len(plan.silos)
    named = [silo.name is not None for silo in plan.silos]
    if names is not None and all(named):
        counts = _by_name(plan, counts, names)
    elif names is not None and any(named):
        raise ValueError(
            f"the table names its silos {list(names)[:5]}, and only {sum(named)} of the plan's "
            f"{len(named)} silos have a name: give every Silo its name, or none."
        )
    if counts.ndim != 2 or counts.shape[1] != n_silos or not len(counts):
        raise ValueError(
            f"membership has shape {counts.shape}: pass numbers of items of shape (subjects, "
            f"silos) with {n_silos} silos as the plan has, or a tuple (subject ids, silos)."
        )
    if counts.dtype.kind not in "biuf":
        raise TypeError(f"membership has type {counts.dtype}: pass whole numbers.")
    whole = counts.astype(np.int64) if np.isfinite(counts).all() else None
    if whole is None or not np.array_equal(whole, counts):
        raise ValueError("membership must hold whole numbers of items.")
    if whole.min() < 0 or whole.max() > _LARGEST_COUNT:
        raise ValueError(
            f"membership must hold numbers of items in [0, {_LARGEST_COUNT:g}], got "
            f"{whole.min()} to {whole.max()}."
        )
    return whole, np.arange(len(whole))


def _by_name(plan: HorizontalPlan, counts: np.ndarray, names: Any) -> np.ndarray:
    """The columns in the order of the plan's silos; a silo that the table lacks has no items."""
    columns = [plan.index_of(str(name)) for name in names]
    if counts.ndim != 2 or counts.shape[1] != len(columns) or len(set(columns)) != len(columns):
        raise ValueError(
            f"membership has shape {counts.shape} and names {list(names)}: pass one name, of its "
            f"own, for each column."
        )
    ordered = np.zeros((len(counts), len(plan.silos)), dtype=counts.dtype)
    ordered[:, columns] = counts
    return ordered


def _from_pairs(plan: HorizontalPlan, membership: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray]:
    if len(membership) != 2:
        raise ValueError(
            f"membership is a tuple of {len(membership)}: pass (subject ids, silos) of each item, "
            f"or an array of shape (subjects, silos)."
        )
    for name, part in zip(("subject ids", "silos"), membership, strict=True):
        if isinstance(part, (list, tuple)) and len({type(one) for one in part}) > 1:
            raise TypeError(
                f"{name} are of more than one kind: 7 and '7' would become one; pick one."
            )
    ids, silos = (np.asarray(part) for part in membership)
    if ids.ndim != 1 or ids.shape != silos.shape or not len(ids):
        raise ValueError(
            f"subject ids and silos must be equally long arrays of one dimension, got shapes "
            f"{ids.shape} and {silos.shape}."
        )
    for name, part in (("subject ids", ids), ("silos", silos)):
        if part.dtype.kind not in "iuSUO" or (part.dtype.kind == "O" and _has_missing(part)):
            raise TypeError(
                f"{name} have type {part.dtype}: pass integers or strings (not both), none missing."
            )
    names, which = np.unique(silos, return_inverse=True)
    columns = np.array([plan.index_of(_plain(name)) for name in names], dtype=np.int64)
    subjects, row = np.unique(ids, return_inverse=True)
    n_silos = len(plan.silos)
    cells = row.ravel() * n_silos + columns[which.ravel()]
    counts = np.bincount(cells, minlength=len(subjects) * n_silos)
    return counts.reshape(len(subjects), n_silos).astype(np.int64), subjects


def _has_missing(part: np.ndarray) -> bool:
    kinds = {type(one) for one in part}
    return len(kinds) > 1 or not all(
        issubclass(kind, (str, bytes, int, np.integer)) for kind in kinds
    )


def _plain(name: Any) -> int | str:
    if isinstance(name, bytes):
        return name.decode("utf-8")
    return str(name) if isinstance(name, str) else int(name)
