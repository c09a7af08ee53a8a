# SPDX-License-Identifier: Apache-2.0
"""What ONE step of each algorithm is for the accountant, as a `dp_accounting.DpEvent`.

Vocabulary: `q` is the probability that one ITEM is in a step's batch, `p` that one SUBJECT is, `k`
the largest number of items of one subject, `noise_multiplier` the noise's standard deviation
divided by the clipping norm C. Unless a docstring says otherwise adjacency is "add or remove one
unit".

Every function accepts `noise_multiplier=0.0` and then returns `dp_accounting.NonPrivateDpEvent()`,
whose epsilon is infinite: this lets a step be compared with an oracle without pretending to be
private. A sampling probability of 0 is a step without privacy loss.

An event does not carry its unit or adjacency. Whoever composes several must make sure that they
are stated for the same unit and the same adjacency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import dp_accounting
import numpy as np

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.engine.binomial import binomial_window
from tf_subjectdp.accounting.event_types import (
    FixedSizeReplaceOneDpEvent,
    PoissonReplaceOneDpEvent,
    RevealedSensitivityDpEvent,
)

# Binomial atoms whose joint probability is below this are moved to the largest sensitivity
# (upwards, hence pessimistic), so that an event of k = 5,000 items holds some tens of numbers.
_NEGLIGIBLE_MASS = 1e-60
# Above this many items the window of the binomial law no longer fits into memory.
_MOST_GROUPED_ITEMS = 10**9


def nonprivate_event() -> dp_accounting.DpEvent:
    """The event of a release without protection: epsilon is infinite, delta is 1."""
    return dp_accounting.NonPrivateDpEvent()


def _sampled_gaussian(rate: float, noise_multiplier: float) -> dp_accounting.DpEvent:
    if noise_multiplier == 0.0:
        return nonprivate_event()
    return dp_accounting.PoissonSampledDpEvent(
        rate, dp_accounting.GaussianDpEvent(noise_multiplier)
    )


def item_event(q: float, noise_multiplier: float) -> dp_accounting.DpEvent:
    """One step of `ItemDP` (DP-SGD, LocalItemDP) for the ITEM unit: Poisson-sampled at rate q.

    Args:
      q: probability that one item is in the batch, in [0, 1].
      noise_multiplier: noise standard deviation divided by C, finite, >= 0.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    return _sampled_gaussian(
        _checks.probability("q", q), _checks.noise("noise_multiplier", noise_multiplier)
    )


def higradavg_event(q: float, k: int, noise_multiplier: float) -> dp_accounting.DpEvent:
    """One step of `HiGradAvg` for the SUBJECT unit: Poisson-sampled Gaussian, rate 1-(1-q)^k.

    The subject's j items in the batch contribute their mean, of norm at most C, whatever j >= 1; so
    the step depends on the subject with the probability that at least one of the k items is drawn.
    (The published rates are q, too small, and k q, an upper bound that can exceed 1.)

    Args:
      q: probability that one item is in the batch, in [0, 1].
      k: largest number of items of a subject, >= 1.
      noise_multiplier: noise standard deviation divided by C, finite, >= 0.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    return _sampled_gaussian(
        _presence(_checks.probability("q", q), _checks.integer("k", k, 1)),
        _checks.noise("noise_multiplier", noise_multiplier),
    )


def _presence(q: float, k: int) -> float:
    if q == 1.0 or k == 1:
        return q
    # 1-(1-q)^k loses all its digits for small q; expm1 and log1p keep them.
    return -math.expm1(k * math.log1p(-q))


def group_event(
    q: float, k: int, noise_multiplier: float, max_items_per_subject: int | None = None
) -> dp_accounting.DpEvent:
    """One step of `GroupDP` (and of `ItemDP`) for the SUBJECT unit: a mixture of Gaussians.

    The subject's j items in the batch contribute a sum of norm at most j C, with j ~ Binomial(k,
    q), so the step is N(0, s^2) without the subject and sum_j P(j) N(j, s^2) with it
    (Choquette-Choo et al., arXiv:2310.15526, "mixture of Gaussians mechanism"). With a cap in the
    batch, the probability of more items than the cap sits at the cap.

    Args:
      q: probability that one item is in the batch, in [0, 1].
      k: largest number of items of a subject, in [1, 1e9].
      noise_multiplier: noise standard deviation divided by C, finite, >= 0.
      max_items_per_subject: largest number of items of one subject kept in a batch, >= 1, or None.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    q = _checks.probability("q", q)
    k = _checks.integer("k", k, 1, _MOST_GROUPED_ITEMS)
    noise_multiplier = _checks.noise("noise_multiplier", noise_multiplier)
    cap = k
    if max_items_per_subject is not None:
        cap = min(k, _checks.integer("max_items_per_subject", max_items_per_subject, 1))
    if noise_multiplier == 0.0:
        return nonprivate_event()
    counts, probabilities = _capped_binomial(k, q, cap)
    return dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
        noise_multiplier, tuple(float(j) for j in counts), tuple(float(v) for v in probabilities)
    )


def _capped_binomial(k: int, q: float, cap: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and probabilities of min(Binomial(k, q), cap); negligible tails are moved upwards."""
    if q in (0.0, 1.0):
        return np.array([cap if q else 0]), np.ones(1)
    low, pmf = binomial_window(k, q, _NEGLIGIBLE_MASS)
    j = low + np.arange(len(pmf), dtype=np.float64)
    high = low + len(pmf) - 1
    first = int(np.searchsorted(np.cumsum(pmf), _NEGLIGIBLE_MASS))
    upper = np.cumsum(pmf[::-1])[::-1]
    last = int(np.searchsorted(-upper, -_NEGLIGIBLE_MASS, side="right"))
    pmf[first] += pmf[:first].sum()
    kept, values = pmf[first:last], j[first:last]
    residue = float(pmf[last:].sum()) + (_NEGLIGIBLE_MASS if high < k else 0.0)
    if residue > 0.0 and values[-1] < k:
        values, kept = np.append(values, float(k)), np.append(kept, residue)
    over = values >= cap
    if over.any() and cap < k:
        tail = kept[over].sum()
        values, kept = np.append(values[~over], float(cap)), np.append(kept[~over], tail)
    return values.astype(np.int64), kept


def subject_event(p: float, noise_multiplier: float) -> dp_accounting.DpEvent:
    """One step of `SubjectDP` for the SUBJECT unit: Poisson-sampled Gaussian, rate p.

    Args:
      p: probability that one subject is in the batch, in [0, 1].
      noise_multiplier: noise standard deviation divided by C, finite, >= 0.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    return _sampled_gaussian(
        _checks.probability("p", p), _checks.noise("noise_multiplier", noise_multiplier)
    )


def user_ldp_event(noise_multiplier: float) -> dp_accounting.DpEvent:
    """One step of `UserLDP` (silo unit, any change of the data): Gaussian of sensitivity 2 C.

    The whole batch gradient is clipped to norm C, and any change of the silo's data can move it
    from one side of the ball to the other. The factor two is folded into the noise: multiplier
    sigma / 2.

    Raises:
      ValueError, TypeError: noise_multiplier is not a finite number >= 0.
    """
    noise_multiplier = _checks.noise("noise_multiplier", noise_multiplier)
    if noise_multiplier == 0.0:
        return nonprivate_event()
    return dp_accounting.GaussianDpEvent(noise_multiplier / 2.0)


def silo_event(p: float, noise_multiplier: float) -> dp_accounting.DpEvent:
    """One round for the SILO unit under a trusted server (user-level FedAvg): rate p.

    Each silo's update is clipped to C, the server samples silos independently with probability p,
    sums and adds the noise once (McMahan et al. 2018). Without a trusted server the silo adds its
    own noise: `user_ldp_event`.

    Args:
      p: probability that one silo takes part in a round, in [0, 1].
      noise_multiplier: noise standard deviation divided by C, finite, >= 0.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    return subject_event(p, noise_multiplier)


def truncated_poisson_event(
    q: float, n_items: int, max_batch_size: int, noise_multiplier: float
) -> dp_accounting.DpEvent:
    """One step of `ItemDP` for the ITEM unit with a Poisson batch cut at random to a largest size.

    A full batch makes an added item displace another: 2 C instead of C (Ganesh et al.,
    arXiv:2508.15089). With `max_batch_size` far above q * n_items it is `item_event`.

    Args:
      q: probability that one item is drawn, in [0, 1].
      n_items: items in the data, the protected one included (public), >= 1.
      max_batch_size: largest number of items kept, >= 1.
      noise_multiplier: noise standard deviation divided by C, finite, >= 0.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    q = _checks.probability("q", q)
    n_items = _checks.integer("n_items", n_items, 1)
    max_batch_size = _checks.integer("max_batch_size", max_batch_size, 1)
    noise_multiplier = _checks.noise("noise_multiplier", noise_multiplier)
    if noise_multiplier == 0.0:
        return nonprivate_event()
    return dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent(
        n_items, q, max_batch_size, noise_multiplier
    )


def element_subject_event(
    p: float, noise_multiplier: float, elements: int
) -> dp_accounting.DpEvent:
    """One step of `ElementDP` for the SUBJECT unit: rate p, sensitivity `elements` * rho.

    Args:
      p: probability that one subject is in the batch, in [0, 1].
      noise_multiplier: noise standard deviation divided by rho, finite, >= 0.
      elements: largest number of elements of one subject, >= 1.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    elements = _checks.integer("elements", elements, 1)
    return subject_event(p, _checks.noise("noise_multiplier", noise_multiplier) / elements)


# Of a unit that is REPLACED, which moves a sum by up to 2 C. What neighbouring data share (who was
# drawn, how often) may be known to the adversary, and then does not amplify.


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


def compose(
    events_and_counts: Iterable[tuple[dp_accounting.DpEvent, int]],
) -> dp_accounting.DpEvent:
    """The (adaptive) composition of unlike events: each `event` runs `count` times.

    Args:
      events_and_counts: pairs (event, count) with count >= 0; an event may itself be composed.

    Returns:
      A `dp_accounting.ComposedDpEvent`, accepted wherever an event is.

    Raises:
      TypeError: an entry is not a pair of a `DpEvent` and an integer.
      ValueError: a count is negative.
    """
    if not isinstance(events_and_counts, Iterable):
        raise TypeError(f"compose takes a list of pairs (event, count), got {events_and_counts!r}.")
    return dp_accounting.ComposedDpEvent(tuple(_self_composed(pair) for pair in events_and_counts))


def _self_composed(pair: Any) -> dp_accounting.DpEvent:
    if not isinstance(pair, Sequence) or len(pair) != 2:
        raise TypeError(f"compose takes pairs (event, count), got {pair!r}.")
    event, count = pair
    if not isinstance(event, dp_accounting.DpEvent):
        raise TypeError(
            f"compose takes pairs (event, count) with a dp_accounting.DpEvent first, got {event!r}."
        )
    return dp_accounting.SelfComposedDpEvent(event, _checks.integer("count", count, 0))
