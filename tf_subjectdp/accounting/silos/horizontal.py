# SPDX-License-Identifier: Apache-2.0
"""Horizontal composition: one person in several silos of a federation.

Silo i runs T_i steps a round for R_i rounds. A subject in the silos I composes the events of those
silos: sum over i in I of R_i T_i events, adaptively. (Cutting R to R/sqrt(s) for s silos, as both
texts on horizontal composition do, does not keep the budget: R s steps compose.)
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import dp_accounting
import numpy as np
from scipy import sparse

from tf_subjectdp.accounting import _checks, solve
from tf_subjectdp.accounting.searching import largest_integer, smallest_factor
from tf_subjectdp.accounting.silos.silo import Silo, as_silos
from tf_subjectdp.accounting.silos.subsets import held, search_worst, worst_multisets
from tf_subjectdp.accounting.silos.views import (
    AverageView,
    Question,
    UpdatesView,
    View,
    averaging_refusal,
)

#: `rounds_within_budget` looks no further.
MOST_ROUNDS = 10**9
#: What the adversary of each view sees.
VIEWS = {
    "updates": "the server sees the update of every silo",
    "average": "only the weighted average over the silos is seen (secure aggregation, or a trusted "
    "server)",
    "final_model": "only the final model is seen",
}
_COMPOSED = "every step of the subject's silos composes, adaptively"
# Numbers of items are rounded up by at most this, so that few patterns remain.
_COARSENESS = 1.08
# Up to so many patterns are all computed by the engine.
_MOST_EXACT = 32
# With more patterns, so many are computed by the engine to find the worst.
_MOST_SEARCHED = 16
_LARGEST_COUNT = 10**9


@dataclasses.dataclass(frozen=True)
class WorstCase:
    """The costliest subject that a plan allows.

    Attributes:
      value: the epsilon (or delta) of that subject, an upper bound.
      silos: indices of the silos of a subject that costs this much; empty if `exact` is False and
        the value belongs to no subject in particular.
      exact: whether `value` is the engine's figure of `silos` and no other choice is worse (of many
        choices: within 5e-4 of epsilon, or about a per cent of delta).
      choices: how many choices of silos were compared; 0 if there were too many to list.
    """

    value: float
    silos: tuple[int, ...]
    exact: bool
    choices: int


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


@dataclasses.dataclass(frozen=True)
class HorizontalPlan:
    """Several silos, and who sees what.

    Attributes:
      silos: `Silo`s, or tuples (event, steps_per_round, rounds).
      silos_per_subject: m, a promise that nobody is in more than m silos; None for every silo. Where
        an event is about replacing, all silos with data of the subject, in both of two neighbouring data
        sets, are among the same m: data that move to other silos would touch 2 m.
      view: "updates" (the server sees each silo's update), "average" (only the weighted sum of the
        silos' updates is seen) or "final_model".
      known_noise: silos (indices or names) whose own noise the adversary knows, so that it does not
        count in the average: a curious silo knows its own.

    Raises:
      TypeError, ValueError: an attribute is out of its range; the message names it.
    """

    silos: Sequence[Silo | tuple[Any, ...]]
    _: dataclasses.KW_ONLY
    silos_per_subject: int | None = None
    view: str = "updates"
    known_noise: Sequence[int | str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "silos", as_silos(self.silos))
        if self.silos_per_subject is not None:
            most = _checks.integer("silos_per_subject", self.silos_per_subject, 1)
            object.__setattr__(self, "silos_per_subject", most)
        if self.view not in VIEWS:
            raise ValueError(f"view must be one of {sorted(VIEWS)}, got {self.view!r}.")
        known = self.known_noise
        if isinstance(known, str) or not isinstance(known, Iterable):
            raise TypeError(f"known_noise must be a list of silos, got {known!r}.")
        indices = tuple(sorted({self.index_of(one) for one in known}))
        object.__setattr__(self, "known_noise", indices)
        if indices and self.view == "updates":
            raise ValueError(
                f'known_noise={indices} has no meaning for view="updates", where every update is '
                f"protected by its own noise only; what a curious silo sees of the others is "
                f'view="average", or a plan without that silo.'
            )

    def index_of(self, silo: int | str) -> int:
        """The index of a silo given by index or name; ValueError, TypeError if there is none."""
        if isinstance(silo, str):
            found = [i for i, one in enumerate(self.silos) if one.name == silo]
            if len(found) != 1:
                raise ValueError(
                    f"{len(found)} silos are called {silo!r}; give each Silo a name of its own."
                )
            return found[0]
        return _checks.integer("silo", silo, 0, len(self.silos) - 1)

    def epsilon(self, delta: float, engine: str = "pld") -> float:
        """epsilon of the costliest subject at `delta`, from above.

        Args:
          delta: in [0, 1).
          engine: "pld" or "rdp".

        Raises:
          TypeError, ValueError: see `accounting.epsilon`.
        """
        return self.worst_case(delta=delta, engine=engine).value

    def delta(self, epsilon: float, engine: str = "pld") -> float:
        """delta of the costliest subject at `epsilon`, from above; see `epsilon`."""
        return self.worst_case(epsilon=epsilon, engine=engine).value

    def worst_case(
        self, *, delta: float | None = None, epsilon: float | None = None, engine: str = "pld"
    ) -> WorstCase:
        """The costliest subject: its epsilon at `delta`, or its delta at `epsilon` (give one).

        Raises:
          TypeError, ValueError: not exactly one of both is given, or see `accounting.epsilon`.
        """
        if (delta is None) == (epsilon is None):
            raise ValueError("give exactly one of delta and epsilon.")
        if delta is not None:
            question = Question(delta=_checks.target_delta(delta, allow_zero=True))
        else:
            question = Question(epsilon=_checks.target_epsilon(epsilon, allow_zero=True))
        return self._worst(question, _checks.engine(engine))

    @functools.cached_property
    def event(self) -> dp_accounting.DpEvent:
        """All that is released about the costliest subject, as one event that composes anywhere.

        Raises:
          ValueError: which silos cost most depends on delta, so that no event stands for all
            subjects.
        """
        choices = self._choices
        if choices is None or len(choices) > 1:
            raise ValueError(
                f"which {self.silos_per_subject} of {len(self.silos)} unlike silos cost most "
                f"depends on delta: no single event stands for them; use epsilon(delta), or "
                f"silos_per_subject=None for the event of all silos, an upper bound."
            )
        return self._model[0].event(held(choices[0]))

    def scaled(self, factor: float) -> HorizontalPlan:
        """The plan with every silo's noise multiplied by `factor` (finite, >= 0).

        Raises:
          TypeError, ValueError: `factor` is out of range, or an event's noise cannot be scaled.
        """
        factor = _checks.noise("factor", factor)
        return dataclasses.replace(self, silos=tuple(silo.scaled(factor) for silo in self.silos))

    def noise_for_budget(self, *, epsilon: float, delta: float) -> float:
        """The factor by which every silo's noise must be multiplied to keep the budget.

        It is the noise multiplier itself where the events were made with `noise_multiplier=1.0`.

        Args:
          epsilon: the target, finite, > 0.
          delta: in (0, 1).

        Returns:
          The factor, at most 1e-4 (relative) above the smallest and verified; 0.0 if nothing is
          released, and 0.001 if even so little is enough.

        Raises:
          TypeError, ValueError: an argument is out of its range, a silo adds no noise, or no factor
            below 1e9 is enough.
        """
        target = _checks.target_epsilon(epsilon, allow_zero=False)
        delta = _checks.target_delta(delta, allow_zero=False)
        value = self.epsilon(delta)
        if value == 0.0 and self.delta(0.0) == 0.0:
            return 0.0
        if value == math.inf and self.scaled(1e6).epsilon(delta) == math.inf:
            raise ValueError(
                "no amount of noise reaches the budget: a silo adds no noise at all, or none that "
                "the adversary does not know; make its event with noise_multiplier=1.0."
            )
        if self._choices is not None and len(self._choices) == 1:
            return solve.noise_multiplier(
                lambda factor: self.scaled(factor).event, epsilon=target, delta=delta
            )
        return self._calibrated(target, delta)

    def rounds_within_budget(self, *, epsilon: float, delta: float) -> int | float:
        """The largest R such that all silos for R rounds keep the budget (their own R is ignored).

        Args:
          epsilon: finite, > 0.
          delta: in (0, 1).

        Returns:
          R, 0 if not even one round does; infinite if nothing is spent in a round.

        Raises:
          TypeError, ValueError: an argument is out of its range, or more than 1e9 rounds keep the
            budget.
        """
        target = _checks.target_epsilon(epsilon, allow_zero=False)
        delta = _checks.target_delta(delta, allow_zero=False)

        def plan(rounds: int) -> HorizontalPlan:
            silos = tuple(dataclasses.replace(silo, rounds=rounds) for silo in self.silos)
            return dataclasses.replace(self, silos=silos)

        if plan(1).delta(0.0) == 0.0:
            return math.inf
        found = largest_integer(lambda rounds: plan(rounds).epsilon(delta), target, MOST_ROUNDS)
        if found >= MOST_ROUNDS:
            raise ValueError(
                f"more than {MOST_ROUNDS:g} rounds keep epsilon={target:g} at delta={delta:g}; the "
                f"search ends there: less noise would do."
            )
        return found

    def per_subject_epsilon(
        self, stats: Any, *, delta: float, engine: str = "pld"
    ) -> SubjectEpsilons:
        """epsilon of every subject by real membership; see `per_subject_epsilon`."""
        return per_subject_epsilon(self, stats, delta=delta, engine=engine)

    def describe(self) -> str:
        """What is assumed and what is proven, in plain sentences."""
        return describe_plan(self, self._model[1], self._choices)

    @functools.cached_property
    def _model(self) -> tuple[View, str | None]:
        """A view for the plan's own figures, and why it is not the averaged one if asked for."""
        return self.make_view(), None if self.view == "updates" else averaging_refusal(self.silos)

    def make_view(self) -> View:
        """A fresh view of the adversary, from which all figures come (for this package)."""
        known = frozenset(self.known_noise)
        if self.view == "updates":
            return UpdatesView(self.silos)
        if averaging_refusal(self.silos) is not None:
            return UpdatesView(self.silos, known)
        return AverageView(self.silos, known)

    @functools.cached_property
    def _types(self) -> tuple[int, ...]:
        view = self._model[0]
        return tuple(view.type_of(i, silo.event) for i, silo in enumerate(self.silos))

    @functools.cached_property
    def _choices(self) -> np.ndarray | None:
        """Types of the subjects that may be the worst, shape (n, silos); None if too many."""
        most = self.silos_per_subject
        if most is None or most >= len(self.silos):
            return np.sort(np.array([self._types], dtype=np.int64))
        return worst_multisets(self._model[0], self._types, most)

    def _calibrated(self, target: float, delta: float) -> float:
        """`noise_for_budget` where several choices of silos may be the worst."""
        factor = 1.0
        for _ in range(4 if self._choices is not None else 0):
            # What the worst choice needs, all need; mostly it is enough.
            silos = self.scaled(factor)._worst_evaluated(delta)
            needed = solve.noise_multiplier(
                lambda trial, silos=silos: self.scaled(trial)._event_of(silos),
                epsilon=target,
                delta=delta,
            )
            if self.scaled(needed).epsilon(delta) <= target:
                return needed
            factor = needed
        return smallest_factor(lambda trial: self.scaled(trial).epsilon(delta), target, factor)

    def _worst_evaluated(self, delta: float) -> tuple[int, ...]:
        """The costliest of the choices of silos that were evaluated exactly."""
        search = search_worst(self._model[0], self._choices, Question(delta=delta), "pld")
        row = int(np.argmax(np.where(search.evaluated, search.values, -1.0)))
        return self._holders(self._choices[row])

    def _event_of(self, silos: tuple[int, ...]) -> dp_accounting.DpEvent:
        return self._model[0].event([self._types[i] for i in silos])

    def _worst(self, question: Question, engine: str) -> WorstCase:
        view = self._model[0]
        choices = self._choices
        if choices is None:
            types = np.array(self._types)
            value = view.bound_of_any(types, self.silos_per_subject, question)
            return WorstCase(min(value, self._of_all(question, engine)), (), False, 0)
        search = search_worst(view, choices, question, engine)
        value = float(search.values[search.worst])
        if search.exact:
            return WorstCase(value, self._holders(choices[search.worst]), True, len(choices))
        # Nobody is in more than all silos.
        return WorstCase(min(value, self._of_all(question, engine)), (), False, len(choices))

    def _of_all(self, question: Question, engine: str) -> float:
        return question.answer(self._model[0].event(self._types), engine)

    def _holders(self, row: np.ndarray) -> tuple[int, ...]:
        """The first silos that are of the types in `row`."""
        wanted = Counter(held(row))
        found = []
        for i, number in enumerate(self._types):
            if wanted[number] > 0:
                wanted[number] -= 1
                found.append(i)
        return tuple(found)


def describe_plan(plan: HorizontalPlan, refusal: str | None, choices: np.ndarray | None) -> str:
    """The text of `HorizontalPlan.describe`.

    Args:
      plan: the plan.
      refusal: why the noises do not simply add, where an average was asked for; None if they do.
      choices: the choices of silos that are compared; None if there are too many.
    """
    most = plan.silos_per_subject
    lines = [f"View: {VIEWS[plan.view]}."]
    if most is None or most >= len(plan.silos):
        lines.append("Assumed: a subject may be in every silo.")
    else:
        lines.append(
            f"Assumed: nobody is in more than {most} of {len(plan.silos)} silos; where an event is about "
            f"replacing, all silos with data of the subject, before and after, are among the same {most}."
        )
    if plan.known_noise:
        lines.append(f"The adversary knows the noise of silos {list(plan.known_noise)}.")
    lines.extend(_proof(plan, refusal))
    if choices is None:
        lines.append(
            "Too many choices of silos to compare: the Renyi bound of the costliest silos at each "
            "order, or all silos if that is less; both are upper bounds."
        )
    elif len(choices) > 1:
        lines.append(
            f"{len(choices)} choices of silos are compared, since events have no total order; "
            "worst_case() says whether the largest is exact or bounded."
        )
    return "\n".join(lines)


def _proof(plan: HorizontalPlan, refusal: str | None) -> list[str]:
    if plan.view == "updates":
        return [f"Proven: {_COMPOSED}."]
    lines = []
    if plan.view == "final_model":
        lines.append(
            "The final model is computed from the averages, so it reveals no more than they do; no "
            "proof of anything smaller is used."
        )
    if refusal is None:
        lines.append(
            "Proven: one step a round, so the noises of the silos that report add, and a step is a "
            "mixture of Gaussians over the distances that the subject moves the sum by. A silo "
            "reports from round 1 to its last one."
        )
        return lines
    lines.append(
        f"Proven: the bound of view 'updates' ({_COMPOSED}), of which the average is "
        f"post-processing. The noises of the silos do not simply add: {refusal}."
    )
    if plan.known_noise:
        lines.append(
            "So a subject in a silo whose noise is known has no guarantee: its update counts as "
            "released without noise."
        )
    return lines


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
    rounded, types, covered = _member_types(plan, view, counts)
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


def _member_types(
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
