# SPDX-License-Identifier: Apache-2.0
"""Events of one step or release when a unit is REPLACED instead of added or removed.

Replacing moves a sum by up to 2 C. What neighbouring data share (who was drawn, how often) may be
known to the adversary, and then does not amplify. Vocabulary and checks as in `events`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import dp_accounting

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.event_types import (
    FixedSizeReplaceOneDpEvent,
    PoissonReplaceOneDpEvent,
    RevealedSensitivityDpEvent,
)
from tf_subjectdp.accounting.events import nonprivate_event


def revealed_event(
    sensitivities: Iterable[float], probabilities: Iterable[float], noise_multiplier: float
) -> dp_accounting.DpEvent:
    """A step in which a Gaussian of KNOWN sensitivity runs; see `RevealedSensitivityDpEvent`.

    Over T steps, with one sensitivity c of probability p, delta(eps) = sum_n Binom(n; T, p)
    delta_Gauss(eps; c sqrt(n) / sigma).

    Args:
      sensitivities: sensitivities in units of C, finite, >= 0.
      probabilities: as many probabilities, of sum at most 1; with the rest nothing is released.
      noise_multiplier: noise standard deviation divided by C, finite, >= 0.

    Raises:
      ValueError, TypeError: an argument is out of its range, or the lengths differ.
    """
    for name, values in (("sensitivities", sensitivities), ("probabilities", probabilities)):
        if not isinstance(values, Iterable):
            raise TypeError(f"{name} must be a list of numbers, got {values!r}.")
    sens = tuple(_checks.sensitivity("sensitivities", c) for c in sensitivities)
    probs = tuple(_checks.probability("probabilities", v) for v in probabilities)
    noise_multiplier = _checks.noise("noise_multiplier", noise_multiplier)
    if len(sens) != len(probs):
        raise ValueError(
            f"sensitivities and probabilities must be of one length, "
            f"got {len(sens)} and {len(probs)}."
        )
    if math.fsum(probs) > 1.0 + 1e-9:
        raise ValueError(
            f"probabilities must sum to at most 1, got {math.fsum(probs):.9g}; give the "
            f"probability of each sensitivity in one step."
        )
    if noise_multiplier == 0.0:
        return nonprivate_event()
    return RevealedSensitivityDpEvent(sens, probs, noise_multiplier)


def element_event(p: float, noise_multiplier: float) -> dp_accounting.DpEvent:
    """One step of `ElementDP` (Asi, Duchi, Javidi) for the ELEMENT unit, one element REPLACED.

    Replacing one element moves the sum by 2 rho. The sampling of the subject does NOT amplify: the
    subject's other elements show that the subject was sampled. So with probability p a Gaussian of
    sensitivity 2 rho runs and its presence is revealed. (Their Proposition 2 (i) amplifies.)

    Args:
      p: probability that one subject is in the batch, in [0, 1].
      noise_multiplier: noise standard deviation divided by rho, finite, >= 0.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    return revealed_event([2.0], [_checks.probability("p", p)], noise_multiplier)


def replace_one_event(p: float, noise_multiplier: float) -> dp_accounting.DpEvent:
    """One Poisson-sampled step when one unit's contribution is REPLACED (each of norm <= C).

    See `PoissonReplaceOneDpEvent`. At p = 1 it is the Gaussian of sensitivity 2 C.

    Args:
      p: probability that the unit is in the batch, in [0, 1].
      noise_multiplier: noise standard deviation divided by C, finite, >= 0.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    p = _checks.probability("p", p)
    noise_multiplier = _checks.noise("noise_multiplier", noise_multiplier)
    if noise_multiplier == 0.0:
        return nonprivate_event()
    return PoissonReplaceOneDpEvent(p, noise_multiplier)


def fixed_size_event(
    population: int, batch_size: int, noise_multiplier: float, rows: int = 1
) -> dp_accounting.DpEvent:
    """One step with a batch drawn WITHOUT replacement, one unit REPLACED in place.

    The unit's presence amplifies (Zhu, Dong, Wang, arXiv:2106.08567, Theorem 11; both halves of the
    profile compose, see `engine.mechanisms.FixedSize`) where two things are true of what is noised:
    the replacement moves it by at most 2 C, and so does a batch with the unit against one that has
    other rows in the unit's places. With one row a unit this holds for sums of clipped rows, and for
    sums of averages of clipped rows (`HiGradAvg`: the one average changes by C, the other by C).
    With more rows it holds where the whole batch is ONE clipped vector (`UserLDP`, `BatchClipping`).
    It does NOT hold for sums of rows with more than one row a unit, nor for sums of clipped averages
    (`SubjectDP`) if others have more rows: the average that another row joins may turn round as well,
    4 C. The factor two is the event's own; its noise is relative to C.

    Args:
      population: rows of the data, >= 1 (public).
      batch_size: rows of a batch, 1 <= batch_size <= population.
      noise_multiplier: noise standard deviation divided by C, finite, >= 0.
      rows: rows of the unit, 1 <= rows <= population; above 1 only as said.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    population = _checks.integer("population", population, 1)
    batch_size = _checks.integer("batch_size", batch_size, 1)
    noise_multiplier = _checks.noise("noise_multiplier", noise_multiplier)
    if batch_size > population:
        raise ValueError(
            f"batch_size must not exceed population, got batch_size={batch_size} and "
            f"population={population}; the sampling rate "
            f"{batch_size / population:g} would exceed 1."
        )
    rows = _checks.integer("rows", rows, 1, population)
    if noise_multiplier == 0.0:
        return nonprivate_event()
    return FixedSizeReplaceOneDpEvent(population, batch_size, noise_multiplier, rows)


def shuffled_epoch_event(
    k: int, batches: int, noise_multiplier: float, batch_size: int | None = None
) -> dp_accounting.DpEvent:
    """One EPOCH of shuffled batches, all k items of a unit REPLACED in place: a Gaussian.

    Taking an item away would move every later batch, so the promise is about contents. The places
    have the same law in both worlds; in the worst shuffle the unit touches as many batches, or
    fills as few, as it can. No amplification is claimed.

    Args:
      k: items of the unit in the data, >= 1 (1 for the ITEM unit).
      batches: batches of an epoch, >= 1.
      noise_multiplier: noise standard deviation divided by C, finite, >= 0.
      batch_size: None where a touched batch moves by 2 C however many of the items it holds
        (HiGradAvg, SubjectDP, UserLDP, BatchClipping): 2 C sqrt(min(k, batches)) over the epoch. Or
        the items of a batch, where each of them moves it by 2 C (ItemDP, GroupDP): all k items in
        as few batches as they fit into.

    Raises:
      ValueError, TypeError: an argument is out of its range, or k items do not fit into the
        epoch.
    """
    k = _checks.integer("k", k, 1)
    batches = _checks.integer("batches", batches, 1)
    noise_multiplier = _checks.noise("noise_multiplier", noise_multiplier)
    if batch_size is None:
        square = min(k, batches)
    else:
        batch_size = _checks.integer("batch_size", batch_size, 1)
        if k > batches * batch_size:
            raise ValueError(
                f"k={k} items do not fit into an epoch of {batches} batches of {batch_size}; k is at "
                f"most {batches * batch_size}."
            )
        full, rest = divmod(k, batch_size)
        square = full * batch_size**2 + rest**2
    return revealed_event([2.0 * math.sqrt(square)], [1.0], noise_multiplier)


def histogram_event(noise_multiplier: float) -> dp_accounting.DpEvent:
    """One histogram release of elements (Asi, Duchi, Javidi, equation 5), one element REPLACED.

    Each element's counts are projected onto the L2 ball of radius rho; replacing one moves the sum
    by 2 rho, and nothing is sampled.

    Args:
      noise_multiplier: noise standard deviation divided by rho, finite, >= 0.

    Raises:
      ValueError, TypeError: noise_multiplier is not a finite number >= 0.
    """
    return revealed_event([2.0], [1.0], noise_multiplier)
