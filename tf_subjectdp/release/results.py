# SPDX-License-Identifier: Apache-2.0
"""What a histogram's release says: the estimate, its noise, its events and its privacy statement.

Values only; `histograms` and `two_stage` make them.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap

import dp_accounting
import numpy as np

from tf_subjectdp import accounting
from tf_subjectdp.release.guarantees import ADJACENCY, UNITS

_WIDTH = 92
FRESH = (
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


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HistogramRelease:
    """A released histogram and the promise that goes with it.

    Attributes:
      estimate: float64 [n_words], the average over subjects of their (projected) counts, with noise;
        entries can be negative.
      radius: of the L2 ball of each element's counts; a float, or float64 [n_elements] for the
        two-stage estimator.
      noise_multiplier: standard deviation of the noise in the sum, divided by the radius.
      noise_stddev: standard deviation of the noise in `estimate`; a float, or float64 [n_words].
      event: the release for the element unit, one element of one subject replaced.
      subject_event: for the subject unit, add or remove; None without a bound on the elements.
      unit: "element" or "subject": whose epsilon `epsilon` returns unless told.
      sensitivity: "paper", "counts" or "in_place", see `guarantees`.
      level: "element", or "user" if a subject's whole vector was projected as one block.
      n_subjects: the public number of subjects, the divisor.
      n_counted: whether n was counted from the rows, which the statement then says.
      n_elements: the public number of elements.
      max_elements: most elements kept of one subject, or None.
      seeded: True if a seed was given: for tests, not private.
      first_stage: float64 [n_elements], the rough element probabilities of a two-stage release;
        as public as the estimate. Otherwise None.
      first_noise_multiplier: the noise multiplier of that first stage, or None.
      delta: the delta that the release was asked for; None if it was asked for by its noise.
    """

    estimate: np.ndarray
    radius: float | np.ndarray
    noise_multiplier: float
    noise_stddev: float | np.ndarray
    event: dp_accounting.DpEvent
    subject_event: dp_accounting.DpEvent | None
    unit: str
    sensitivity: str
    level: str
    n_subjects: int
    n_counted: bool
    n_elements: int
    max_elements: int | None
    seeded: bool
    first_stage: np.ndarray | None = None
    first_noise_multiplier: float | None = None
    delta: float | None = None

    def __post_init__(self):
        for array in (self.estimate, self.radius, self.noise_stddev, self.first_stage):
            if isinstance(array, np.ndarray):
                array.setflags(write=False)

    @property
    def private(self) -> bool:
        """False if there is no noise, or noise from a seed."""
        return self.noise_multiplier > 0.0 and not self.seeded

    def epsilon(self, delta: float | None = None, unit: str | None = None) -> float:
        """Epsilon of this release at `delta`.

        Args:
          delta: in [0, 1); None takes the delta that the release was asked for.
          unit: "element" or "subject"; None takes the release's own.

        Raises:
          ValueError: another unit, or a subject's figure without a bound on its elements.
        """
        return accounting.epsilon(self.event_of(unit), delta=own_delta(self.delta, delta))

    def event_of(self, unit: str | None = None) -> dp_accounting.DpEvent:
        """The event for a unit (None: the release's own), to compose with others of that unit."""
        return pick_event(self.event, self.subject_event, self.unit if unit is None else unit)

    def frequencies(self) -> np.ndarray:
        """The estimate as shares of all words: negative entries set to 0, then scaled to sum 1.

        Returns:
          float64 [n_words], >= 0; all equal if no entry of the estimate is positive.
        """
        positive = np.maximum(self.estimate, 0.0)
        total = positive.sum()
        return positive / total if total > 0.0 else np.full(positive.size, 1.0 / positive.size)

    def statement(self, delta: float | None = None) -> str:
        """The privacy statement, in plain sentences.

        Args:
          delta: None takes the release's, or else a tenth of one over the number of subjects.
        """
        delta = self.delta if delta is None else delta
        delta = 0.1 / self.n_subjects if delta is None else delta
        kind = {"element": "element level", "user": "user level"}[self.level]
        stages = "" if self.first_stage is None else ", two stages"
        paragraphs = [f"PRIVACY STATEMENT (histogram, {kind}{stages})"]
        paragraphs += not_private(self.noise_multiplier, self.seeded)
        paragraphs += unit_sentences(
            self.event, self.subject_event, self.sensitivity, self.max_elements, delta
        )
        paragraphs += [self._what_was_done(), self._what_is_public()]
        paragraphs += [FRESH] if self.private else []
        return wrapped(paragraphs)

    def _what_was_done(self) -> str:
        if self.level == "user":
            how = (
                f"Each subject's whole vector of counts was scaled into the L2 ball of radius "
                f"{self.radius:g}"
            )
        elif self.first_stage is None:
            how = (
                f"Each subject's counts of each element were scaled into the L2 ball of radius "
                f"{self.radius:g}"
            )
        else:
            how = (
                f"A first release (noise multiplier {self.first_noise_multiplier:g}) gave rough "
                f"element probabilities and from them a radius for each element; the figures above are "
                f"those of both releases together. Each subject's counts of each element were scaled "
                f"into the L2 ball of the element's radius"
            )
        return (
            f"{how}, summed over the subjects, given Gaussian noise of {self.noise_multiplier:g} radii "
            f"in every coordinate, and divided by {self.n_subjects}."
        )

    def _what_is_public(self) -> str:
        radius = "the radius"
        if self.first_stage is not None:
            radius = "the items that radii are made for, the split, the slack"
        bound = (
            ""
            if self.max_elements is None
            else f", the bound of {self.max_elements} elements a subject"
        )
        elements = "" if self.level == "user" else f", their map to {self.n_elements} elements"
        return (
            f"Public, and the same for neighbouring data: the number of subjects {self.n_subjects}, the "
            f"list of {self.estimate.size} words{elements}, {radius}{bound} and the noise multiplier."
            + counted_sentence(self.n_counted)
        )


def own_delta(own: float | None, delta: float | None) -> float:
    """The delta that was given, or else the release's own; ValueError if there is neither."""
    if delta is None and own is None:
        raise ValueError(
            "this release was made without a delta: pass epsilon(delta=...), e.g. 1e-6."
        )
    return own if delta is None else delta


def pick_event(
    event: dp_accounting.DpEvent, subject_event: dp_accounting.DpEvent | None, unit: str
) -> dp_accounting.DpEvent:
    """The event of the unit that is asked for."""
    if unit not in UNITS:
        raise ValueError(f'unit must be "element" or "subject", got {unit!r}.')
    if unit == "element":
        return event
    if subject_event is None:
        raise ValueError(
            "this release states the element guarantee only: a subject's needs max_elements, a bound "
            "on how many elements of one subject are counted."
        )
    return subject_event


def counted_sentence(n_counted: bool) -> str:
    """What is added where the number of subjects was read from the data; "" otherwise."""
    if not n_counted:
        return ""
    return (
        " The number of subjects was counted from the rows and is itself information about them, which "
        "no figure here covers; a public n_subjects would not be."
    )


def not_private(noise_multiplier: float, seeded: bool) -> list[str]:
    """The paragraphs that a release without protection starts with."""
    no_noise = [_NO_NOISE] if noise_multiplier == 0.0 else []
    return [*no_noise, *([_SEEDED] if seeded else [])]


def unit_sentences(
    event: dp_accounting.DpEvent,
    subject_event: dp_accounting.DpEvent | None,
    sensitivity: str,
    max_elements: int | None,
    delta: float,
    loss: float = 0.0,
    subject_loss: float = 0.0,
) -> list[str]:
    """One paragraph for the element and one for the subject.

    Args:
      event, subject_event: of the Gaussian part.
      sensitivity: its name.
      max_elements: bound on a subject's elements, or None.
      delta: of the statement.
      loss, subject_loss: probabilities that a threshold fails, see `frequent`.
    """
    figure = shown(event_epsilon(event, delta, loss))
    element = (
        f"Per element of a subject: epsilon = {figure} at delta = {delta:g}. Neighbouring data: "
        f"{ADJACENCY[sensitivity]}."
    )
    if max_elements is not None and max_elements > 1:
        element += (
            " An element more may displace another one in the random choice: that is included."
        )
    if subject_event is None:
        return [
            element,
            "Per subject: no promise; it would need a bound on the elements of a subject.",
        ]
    figure = shown(event_epsilon(subject_event, delta, subject_loss))
    whole = (
        f"Per subject: epsilon = {figure} at delta = {delta:g}. Neighbouring data: one subject's row is "
        f"filled or emptied."
    )
    if max_elements is not None and max_elements > 1:
        whole += (
            f" At most {max_elements} elements of one subject are counted, chosen at random where there "
            f"are more."
        )
    return [element, whole]


def event_epsilon(event: dp_accounting.DpEvent, delta: float, loss: float = 0.0) -> float:
    """Epsilon of a Gaussian part whose threshold fails with probability `loss`; see `frequent`."""
    if loss == 0.0:
        return accounting.epsilon(event, delta=delta)
    if delta <= loss:
        return math.inf
    return accounting.epsilon(event, delta=delta - loss) - math.log1p(-loss)


def shown(epsilon: float) -> str:
    """Rounded up to four digits."""
    if not 0.0 < epsilon < math.inf:
        return "infinite" if epsilon else "0"
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return f"{math.ceil(epsilon / step) * step:.4g}"


def wrapped(paragraphs: list[str]) -> str:
    """Paragraphs of at most 92 letters a line, with blank lines between."""
    return "\n\n".join(textwrap.fill(text, _WIDTH) for text in paragraphs)
