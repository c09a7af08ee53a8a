# SPDX-License-Identifier: Apache-2.0
"""How far one element, or one subject, moves a release; the noise for an epsilon; what is said of it.

Every release here is a sum over subjects, plus N(0, sigma^2 rho_e^2)
in every coordinate of element e, where a subject's part in e has a norm of at most rho_e. Divided by
rho_e the ratio of movement to noise is the same in every element, so that rho = 1 below.

One element of one subject is replaced. v and w, in the unit ball, are its parts before and after.

* "paper", 2: |v - w| <= 2 whatever they are (their equation 5 and its proposition).
* "counts", sqrt(2): counts are not negative, and scaling a vector down keeps that, so |v - w|^2 =
  |v|^2 + |w|^2 - 2 v.w <= 2. If the element turns into another one that the subject did not have, v
  and w are in different coordinates, v.w = 0, and the same holds.
* "in_place", 1: an element of one coordinate that keeps its name: v and w are numbers in [0, 1]. Does
  not cover a word that turns into another one: then sqrt(2).

All three include having the element or not (v or w is 0).

With `max_elements` M a subject keeps M of its elements, all M-subsets equally likely. Number its
elements by independent uniform draws and keep the M smallest. Let two neighbours use the same draws,
and the replaced element and its successor the same one. Replaced by another: the same slot is kept or
dropped in both, so one slot changes. Added: it is dropped, and nothing changes, or it takes a place,
and at most one other element f loses it: one slot changes from f to it. Removed: the reverse. So the
kept elements are again neighbours, a slot whose name may change: 2 and sqrt(2) hold (v.w = 0), 1 does
not and is refused. The draws have the same law for both neighbours, and (epsilon, delta) of a mixture
of pairs over the same draws is at most the largest of the pairs'.

One subject is added or removed (its row filled or emptied; n is public and stays): blocks are
orthogonal, at most M of them are not 0, each of norm at most 1: sqrt(min(K, M)).
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np

from tf_subjectdp import _validate, accounting

_FACTORS = {"paper": 2.0, "counts": math.sqrt(2.0), "in_place": 1.0}
# What one element's replacement means, by the name of its sensitivity.
_ADJACENCY = {
    "paper": (
        "what one subject has of one element is replaced by anything, by nothing, or by another element "
        "that the subject does not have"
    ),
    "counts": (
        "one subject's counts of one element are replaced by other counts, by nothing, or by those of "
        "another element that the subject does not have"
    ),
    "in_place": (
        "one subject's count of one element is changed, or set to nothing; the element keeps its name"
    ),
}
_WIDTH = 92
_FRESH = (
    "The noise is float64, from entropy of the operating system; attacks on its last bits are not "
    "excluded."
)
_SEEDED = (
    "NOT PRIVATE: the noise was drawn with a seed, which is for tests. Whoever knows the seed can take "
    "the noise off. The figures below are those of a release without a seed."
)
_NO_NOISE = (
    "NOT PRIVATE: the noise multiplier is 0. Nothing below protects anybody; epsilon is infinite."
)


@dataclasses.dataclass(frozen=True)
class Movement:
    """How far a release moves, as arguments of a release that were checked together say.

    Attributes:
      sensitivity: "paper", "counts" or "in_place".
      unit: "element" or "subject", whose epsilon is asked for.
      max_elements: bound on a subject's elements that is enforced by dropping, or None.
      stages: the noise of each release on the way, over the noise multiplier of all of them together.
    """

    sensitivity: str
    unit: str
    max_elements: int | None
    stages: tuple[float, ...] = (1.0,)

    @classmethod
    def of(
        cls,
        sensitivity: Any,
        unit: Any,
        max_elements: Any,
        *,
        one_word: bool,
        n_elements: int | None = None,
        stages: tuple[float, ...] = (1.0,),
    ) -> Movement:
        """Checked.

        Args:
          sensitivity, unit, max_elements, stages: as the attributes.
          one_word: whether every element is one coordinate.
          n_elements: how many elements there are, which max_elements is cut to; None if unknown.

        Raises:
          ValueError, TypeError: an argument out of its range, or a guarantee that is not proven.
        """
        if max_elements is not None:
            max_elements = _validate.integer("max_elements", max_elements, 1)
            max_elements = min(max_elements, n_elements or max_elements)
        if sensitivity not in _FACTORS:
            raise ValueError(
                f'sensitivity must be "paper", "counts" or "in_place", got {sensitivity!r}.'
            )
        if sensitivity == "in_place" and not one_word:
            raise ValueError(
                'sensitivity="in_place" holds for elements of one word only: two counts of an element '
                'of several words can be sqrt(2) radii apart; use "counts".'
            )
        if sensitivity == "in_place" and max_elements is not None:
            raise ValueError(
                'sensitivity="in_place" does not hold with max_elements: an element more can displace '
                'another, and the slot then changes its name; use "counts".'
            )
        _check_unit(unit)
        if unit == "subject" and max_elements is None:
            raise ValueError(
                "a guarantee for a subject needs max_elements, the most elements of one subject that "
                "are counted (further ones are dropped at random)."
            )
        return cls(sensitivity, unit, max_elements, stages)

    def element_event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
        """One element of one subject replaced."""

        def one(sigma: float) -> dp_accounting.DpEvent:
            if self.sensitivity == "paper":
                return accounting.histogram_event(sigma)
            return accounting.revealed_event([_FACTORS[self.sensitivity]], [1.0], sigma)

        return self._composed(one, noise_multiplier)

    def subject_event(self, noise_multiplier: float) -> dp_accounting.DpEvent | None:
        """One subject added or removed; None without a bound on its elements."""
        if self.max_elements is None:
            return None
        root = math.sqrt(self.max_elements)
        return self._composed(
            lambda sigma: accounting.subject_event(1.0, sigma / root), noise_multiplier
        )

    def noise(
        self, epsilon: float | None, delta: float | None, noise_multiplier: float | None
    ) -> float:
        """The noise multiplier that was given, or that reaches (epsilon, delta) for the unit.

        Raises:
          ValueError: neither or both are given.
        """
        if (epsilon is None) == (noise_multiplier is None):
            raise ValueError("pass either epsilon= and delta=, or noise_multiplier=.")
        if noise_multiplier is not None:
            if delta is not None:
                raise ValueError("delta goes with epsilon; ask the release: .epsilon(delta).")
            return _validate.noise("noise_multiplier", noise_multiplier)
        if delta is None:
            raise ValueError("epsilon needs a delta, well below one over the number of subjects.")
        event_of = self.element_event if self.unit == "element" else self.subject_event
        return accounting.noise_multiplier(event_of, epsilon=epsilon, delta=delta)

    def promise(self, noise_multiplier: float) -> dict[str, Any]:
        """The fields of a `Release` that follow."""
        return {
            "event": self.element_event(noise_multiplier),
            "subject_event": self.subject_event(noise_multiplier),
            "unit": self.unit,
            "sensitivity": self.sensitivity,
            "max_elements": self.max_elements,
        }

    def _composed(
        self, event_of: Callable[[float], dp_accounting.DpEvent], noise_multiplier: float
    ) -> dp_accounting.DpEvent:
        events = [event_of(noise_multiplier * stage) for stage in self.stages]
        return events[0] if len(events) == 1 else accounting.compose([(one, 1) for one in events])


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Release:
    """What was released of a table of counts, and the promise that goes with it.

    Attributes:
      noise_multiplier: standard deviation of the noise in the sum, divided by the radius.
      event: for the element unit, one element of one subject replaced.
      subject_event: for the subject unit, add or remove; None without a bound on the elements.
      unit: "element" or "subject": whose epsilon `epsilon` returns unless told.
      sensitivity: "paper", "counts" or "in_place", see the head of this module.
      n_subjects: the public number of subjects, the divisor.
      n_counted: whether n was counted from the rows, which the statement then says.
      max_elements: most elements kept of one subject, or None.
      seeded: True if a seed was given: for tests, not private.
      delta: the delta that the release was asked for; None if it was asked for by its noise.
    """

    noise_multiplier: float
    event: dp_accounting.DpEvent
    subject_event: dp_accounting.DpEvent | None
    unit: str
    sensitivity: str
    n_subjects: int
    n_counted: bool
    max_elements: int | None
    seeded: bool
    delta: float | None = None

    def __post_init__(self):
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    @property
    def private(self) -> bool:
        """False if there is no noise, or noise from a seed."""
        return self.noise_multiplier > 0.0 and not self.seeded

    def epsilon(self, delta: float | None = None, unit: str | None = None) -> float:
        """Epsilon of this release at `delta`; infinite at a delta below `loss`.

        Args:
          delta: in [0, 1); None takes the delta that the release was asked for.
          unit: "element" or "subject"; None takes the release's own.

        Raises:
          ValueError: another unit, a subject's figure without a bound on its elements, or no delta.
        """
        unit = self.unit if unit is None else unit
        event = self._event_of(unit)
        delta = self.delta if delta is None else delta
        if delta is None:
            raise ValueError(
                "this release was made without a delta: pass epsilon(delta=...), e.g. 1e-6."
            )
        delta = _validate.target_delta(delta, allow_zero=True)
        loss = self.loss(unit)
        if loss == 0.0:
            return accounting.epsilon(event, delta=delta)
        if delta <= loss:
            return math.inf
        return accounting.epsilon(event, delta=delta - loss) - math.log1p(-loss)

    def loss(self, unit: str) -> float:
        """The share of delta that something else than the noise takes."""
        return 0.0

    def statement(self, delta: float | None = None) -> str:
        """The privacy statement, in plain sentences.

        Args:
          delta: None takes the release's, or else a tenth of one over the number of subjects.
        """
        delta = self.delta if delta is None else delta
        delta = 0.1 / self.n_subjects if delta is None else delta
        title, done, public = self._words()
        public = (
            f"Public, and the same for neighbouring data: the number of subjects {self.n_subjects}, "
            f"{public} the noise multiplier."
        )
        if self.n_counted:
            public += (
                " The number of subjects was counted from the rows and is itself information about "
                "them, which no figure here covers; a public n_subjects would not be."
            )
        paragraphs = [f"PRIVACY STATEMENT ({title})"]
        paragraphs += [_NO_NOISE] if self.noise_multiplier == 0.0 else []
        paragraphs += [_SEEDED] if self.seeded else []
        paragraphs += [self._of_an_element(delta), self._of_a_subject(delta), done, public]
        paragraphs += [_FRESH] if self.private else []
        return "\n\n".join(textwrap.fill(text, _WIDTH) for text in paragraphs)

    def _words(self) -> tuple[str, str, str]:
        """The statement's title, what was done, and what is public beside n and the noise."""
        raise NotImplementedError

    @property
    def _bound(self) -> str:
        if self.max_elements is None:
            return ""
        return f", the bound of {self.max_elements} elements a subject"

    def _event_of(self, unit: str) -> dp_accounting.DpEvent:
        _check_unit(unit)
        if unit == "element":
            return self.event
        if self.subject_event is None:
            raise ValueError(
                "this release states the element guarantee only: a subject's needs max_elements, a "
                "bound on how many elements of one subject are counted."
            )
        return self.subject_event

    def _of_an_element(self, delta: float) -> str:
        text = (
            f"Per element of a subject: epsilon = {_shown(self.epsilon(delta, 'element'))} at delta = "
            f"{delta:g}. Neighbouring data: {_ADJACENCY[self.sensitivity]}."
        )
        if self.max_elements is not None and self.max_elements > 1:
            text += (
                " An element more may displace another one in the random choice: that is included."
            )
        return text

    def _of_a_subject(self, delta: float) -> str:
        if self.subject_event is None:
            return "Per subject: no promise; it would need a bound on the elements of a subject."
        text = (
            f"Per subject: epsilon = {_shown(self.epsilon(delta, 'subject'))} at delta = {delta:g}. "
            "Neighbouring data: one subject's row is filled or emptied."
        )
        if self.max_elements is not None and self.max_elements > 1:
            text += (
                f" At most {self.max_elements} elements of one subject are counted, chosen at random "
                "where there are more."
            )
        return text


def _check_unit(unit: Any) -> None:
    if unit not in ("element", "subject"):
        raise ValueError(f'unit must be "element" or "subject", got {unit!r}.')


def _shown(epsilon: float) -> str:
    """Rounded up to four digits."""
    if not 0.0 < epsilon < math.inf:
        return "infinite" if epsilon else "0"
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return f"{math.ceil(epsilon / step) * step:.4g}"
