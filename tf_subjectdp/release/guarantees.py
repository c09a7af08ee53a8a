# SPDX-License-Identifier: Apache-2.0
"""How far one element, or one subject, moves a release, as events; and the noise for an epsilon.

Knows `tf_subjectdp.accounting`. Every release here is a sum over subjects, plus N(0, sigma^2 rho_e^2)
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

import math
from collections.abc import Callable
from typing import Any

import dp_accounting

from tf_subjectdp import accounting
from tf_subjectdp.accounting import _checks

_FACTORS = {"paper": 2.0, "counts": math.sqrt(2.0), "in_place": 1.0}
UNITS = ("element", "subject")

#: What one element's replacement means, by the name of its sensitivity.
ADJACENCY = {
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


def check_sensitivity(sensitivity: Any, *, one_word: bool, max_elements: int | None) -> float:
    """The factor of a sensitivity's name, where it is proven.

    Args:
      sensitivity: "paper", "counts" or "in_place".
      one_word: whether every element is one coordinate.
      max_elements: bound that is enforced by dropping, or None.

    Raises:
      ValueError: another name, or "in_place" where it does not hold.
    """
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
    return _FACTORS[sensitivity]


def element_event(sensitivity: str, noise_multiplier: float) -> dp_accounting.DpEvent:
    """The release for the element unit, one element of one subject replaced."""
    if sensitivity == "paper":
        return accounting.histogram_event(noise_multiplier)
    return accounting.revealed_event([_FACTORS[sensitivity]], [1.0], noise_multiplier)


def subject_event(max_elements: int, noise_multiplier: float) -> dp_accounting.DpEvent:
    """The release for the subject unit, one subject with at most so many elements added or removed."""
    return accounting.subject_event(1.0, noise_multiplier / math.sqrt(max_elements))


def check_unit(unit: Any, max_elements: int | None) -> str:
    """`unit`, if a guarantee for it can be stated."""
    if unit not in UNITS:
        raise ValueError(f'unit must be "element" or "subject", got {unit!r}.')
    if unit == "subject" and max_elements is None:
        raise ValueError(
            "a guarantee for a subject needs max_elements, the most elements of one subject that "
            "are counted (further ones are dropped at random)."
        )
    return unit


def solve_noise(
    make_event: Callable[[float], dp_accounting.DpEvent],
    epsilon: float | None,
    delta: float | None,
    noise_multiplier: float | None,
) -> float:
    """The noise multiplier that was given, or that reaches (epsilon, delta).

    Raises:
      ValueError: neither or both are given.
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError("pass either epsilon= and delta=, or noise_multiplier=.")
    if noise_multiplier is not None:
        if delta is not None:
            raise ValueError("delta goes with epsilon; ask the release: .epsilon(delta).")
        return _checks.noise("noise_multiplier", noise_multiplier)
    if delta is None:
        raise ValueError("epsilon needs a delta, well below one over the number of subjects.")
    return accounting.noise_multiplier(make_event, epsilon=epsilon, delta=delta)


def check_radius(name: str, value: Any) -> float:
    """A radius, finite, positive and within the range of lengths."""
    number = _checks.sensitivity(name, value)
    if number < 1e-50:
        raise ValueError(f"{name} must be above 0 (at least 1e-50), got {number:g}.")
    return number


def check_slack(value: Any) -> float:
    """A slack, finite and >= 0."""
    return _checks.sensitivity("slack", value)
