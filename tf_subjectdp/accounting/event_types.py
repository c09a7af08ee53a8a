# SPDX-License-Identifier: Apache-2.0
"""The events that dp_accounting has no name for. Values only; `events` makes them.

Each states its own pair of neighbouring data, so it means the same under every
`NeighboringRelation` of an accountant.
"""

from __future__ import annotations

from collections.abc import Sequence

import attr
import dp_accounting


@attr.s(frozen=True, slots=True, auto_attribs=True)
class PoissonReplaceOneDpEvent(dp_accounting.DpEvent):
    """One step under Poisson sampling when a unit's contribution is REPLACED by another one.

    The dominating pair is (1-p) N(0, s^2) + p N(+1, s^2) against (1-p) N(0, s^2) + p N(-1, s^2):
    the unit is sampled with probability p in both worlds and contributes opposite vectors of norm
    C.

    Attributes:
      sampling_probability: probability p that the unit is sampled.
      noise_multiplier: noise standard deviation s divided by C.
    """

    sampling_probability: float
    noise_multiplier: float


@attr.s(frozen=True, slots=True, auto_attribs=True)
class RevealedSensitivityDpEvent(dp_accounting.DpEvent):
    """A step in which one of several Gaussians runs and the adversary learns WHICH one.

    With probability `probabilities[i]` the Gaussian mechanism runs with sensitivity
    `sensitivities[i]` (in units of C) and noise `noise_multiplier` * C; with the remaining
    probability nothing about the unit is released. Because the choice is known, sampling does not
    amplify: the privacy loss distribution is the convex combination of the Gaussian ones, with an
    atom at 0.

    Attributes:
      sensitivities: sensitivities in units of C.
      probabilities: probability of each; their sum is at most 1.
      noise_multiplier: noise standard deviation divided by C.
    """

    sensitivities: Sequence[float]
    probabilities: Sequence[float]
    noise_multiplier: float


@attr.s(frozen=True, slots=True, auto_attribs=True)
class FixedSizeReplaceOneDpEvent(dp_accounting.DpEvent):
    """One step with a batch drawn WITHOUT replacement, one unit's contribution REPLACED.

    Exchanging one drawn row for another moves what is noised by at most 2 C, and so does replacing
    the unit. With more than one row of the unit, nothing in the batch may move it by more than that.

    Attributes:
      population: rows of the data.
      batch_size: rows of a batch.
      noise_multiplier: noise standard deviation divided by C.
      rows: rows of the unit, drawn if any of them is.
    """

    population: int
    batch_size: int
    noise_multiplier: float
    rows: int = 1
