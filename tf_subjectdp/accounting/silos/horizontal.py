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
from typing import TYPE_CHECKING, Any

import dp_accounting
import numpy as np

from tf_subjectdp.accounting import _checks, solve
from tf_subjectdp.accounting.searching import largest_integer, smallest_factor
from tf_subjectdp.accounting.silos.average_view import AverageView, averaging_refusal
from tf_subjectdp.accounting.silos.silo import Silo, as_silos
from tf_subjectdp.accounting.silos.subsets import held, search_worst, worst_multisets
from tf_subjectdp.accounting.silos.updates_view import UpdatesView
from tf_subjectdp.accounting.silos.views import Question, View
from tf_subjectdp.accounting.silos.wording import VIEWS, describe_plan

if TYPE_CHECKING:
    from tf_subjectdp.accounting.silos.membership import SubjectEpsilons

#: `rounds_within_budget` looks no further.
MOST_ROUNDS = 10**9


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
        """epsilon of every subject by real membership; see `membership.per_subject_epsilon`."""
        from tf_subjectdp.accounting.silos.membership import per_subject_epsilon

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
