# SPDX-License-Identifier: Apache-2.0
"""Events of ONE step of `MixedClipping` (van Dijk et al., arXiv:2212.05796), as the library draws.

Every item of a step's batch joins one of m = `parts` parts, INDEPENDENTLY and uniformly; each part's
result is clipped to norm C, the m results are summed, and noise of standard deviation 2 C sigma is
added. `noise_multiplier` is the paper's sigma, sd / (2 C). `BatchClipping` is m = 1.

A unit whose items hit u of the parts moves the sum by at most 2 C u (each hit part from one point of
the ball to another), that is u / sigma in units of the noise; the law of u is exact, see
`part_laws`. Curves over many steps against an adversary who sees the places are in `fdp`.
"""

from __future__ import annotations

import dp_accounting
import numpy as np

from tf_subjectdp.accounting import _checks, part_laws
from tf_subjectdp.accounting.events import nonprivate_event, revealed_event

# As in `events`: above this many items the window of their law no longer fits into memory.
_MOST_ITEMS = 10**9
# Each known sensitivity costs a loss distribution of its own.
_MOST_ATOMS = 160
_NEGLIGIBLE = 1e-20


def mixed_clipping_event(
    q: float, k: int, parts: int, noise_multiplier: float
) -> dp_accounting.DpEvent:
    """One step of `MixedClipping` for the SUBJECT unit, added or removed; k = 1 is the ITEM unit.

    u = parts hit by Binomial(k, q) items thrown into m parts, and the step is N(0, sigma^2) without
    the unit against sum_u P(u) N(u, sigma^2) with it. Adding or removing is sound because every item
    draws its own coin and its own part: the other items' parts have the same law in both worlds and
    do not shift. Given them (hockey-stick divergences are jointly convex, so the worst choice bounds
    the average), the unit's u parts move by vectors of norm at most 2 C u in all, and a mixture of
    such Gaussians is dominated by the one-dimensional mixture (arXiv:2310.15526). Slicing a Poisson
    batch by position would shift every later part: this event does NOT hold there.

    parts = 1 is `subject_event(1 - (1-q)^k, sigma)`, k = 1 is `item_event(q, sigma)`, and many parts
    tend to `group_event(q, k, sigma)`. Above 100,000 items, min(Binomial(k, q), parts) stands for u:
    never smaller.

    Args:
      q: probability that one item is in the batch, in [0, 1].
      k: largest number of items of a unit, in [1, 1e9].
      parts: m, clipped results in a step, >= 1.
      noise_multiplier: noise standard deviation divided by 2 C, finite, >= 0.

    Returns:
      A `MixtureOfGaussiansDpEvent` for add-or-remove accounting; `NonPrivateDpEvent` without noise.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    q, k, parts = checked_sampling(q, k, parts)
    noise_multiplier = _checks.noise("noise_multiplier", noise_multiplier)
    if noise_multiplier == 0.0:
        return nonprivate_event()
    values, masses = part_laws.parts_of_sampled(parts, k, q)
    return dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
        noise_multiplier, tuple(float(u) for u in values), tuple(float(p) for p in masses)
    )


def mixed_clipping_fixed_size_event(
    n_items: int, batch_size: int, k: int, parts: int, noise_multiplier: float
) -> dp_accounting.DpEvent:
    """One step of `MixedClipping` with batches of fixed size, k items of a unit REPLACED in place.

    The batch is drawn without replacement, afresh in each step, and its items join parts
    independently. Both have the same law in the two worlds, so which items are where may be known;
    with j hypergeometric and u the parts hit by j items, a Gaussian of sensitivity u / sigma runs
    with the known probability P(u). No amplification is claimed. k = 1 is the ITEM unit.

    Args:
      n_items: items in the data (public), >= 1.
      batch_size: items in a batch, 1 <= batch_size <= n_items.
      k: largest number of items of a unit, 1 <= k <= n_items, k <= 1e9.
      parts: m, clipped results in a step, >= 1.
      noise_multiplier: noise standard deviation divided by 2 C, finite, >= 0.

    Returns:
      A `RevealedSensitivityDpEvent`; `NonPrivateDpEvent` without noise.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    n_items, batch_size, k, parts = checked_batches(n_items, batch_size, k, parts)
    noise_multiplier = _checks.noise("noise_multiplier", noise_multiplier)
    if noise_multiplier == 0.0:
        return nonprivate_event()
    values, masses = part_laws.parts_of_batch(parts, k, n_items, batch_size)
    pairs = [(float(u), float(p)) for u, p in zip(values, masses, strict=True) if u > 0]
    return revealed_event([u for u, _ in pairs], [p for _, p in pairs], noise_multiplier)


def mixed_clipping_shuffled_event(
    n_items: int, batch_size: int, k: int, parts: int, noise_multiplier: float
) -> dp_accounting.DpEvent:
    """One EPOCH of shuffled batches with parts, k items of a unit REPLACED in place.

    Which batches and parts the items are in has the same law in both worlds and may be known: over the
    epoch a Gaussian of sensitivity sqrt(c) / sigma runs, c = sum over its batches of (parts hit)^2, with
    the known probability P(c), exact. Where that law is too costly (above some 40 items for parts > 1,
    or too many values), a law by Chernoff's bound stands in, never smaller (`part_laws.epoch_tail`).

    Args:
      n_items: items in the data, dealt into batches of `batch_size`, the last one smaller if need be.
      batch_size, k, parts, noise_multiplier: as in `mixed_clipping_fixed_size_event`.

    Returns:
      A `RevealedSensitivityDpEvent`; `NonPrivateDpEvent` without noise.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    n_items, batch_size, k, parts = checked_batches(n_items, batch_size, k, parts)
    noise_multiplier = _checks.noise("noise_multiplier", noise_multiplier)
    if noise_multiplier == 0.0:
        return nonprivate_event()
    values, masses = _epoch_law(n_items, batch_size, k, parts)
    sensitivities = np.sqrt(values.astype(np.float64))
    return revealed_event(sensitivities.tolist(), masses.tolist(), noise_multiplier)


def _epoch_law(n_items: int, batch_size: int, k: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and masses of c over one epoch: exact, or never smaller."""
    law = part_laws.epoch_law(parts, n_items, batch_size, k)
    if law is not None:
        # Rare small values move up, which only costs; rare large ones stay.
        values = np.flatnonzero(law > 0.0)
        low = int(np.searchsorted(np.cumsum(law[values]), _NEGLIGIBLE))
        masses = law[values[low:]].copy()
        masses[0] += float(law[values[:low]].sum())
        if len(masses) <= _MOST_ATOMS:
            return values[low:], masses
    values, masses, cut = part_laws.epoch_tail(
        parts, n_items, batch_size, k, 1, _NEGLIGIBLE, _MOST_ATOMS
    )
    worst = part_laws.worst_epoch(parts, n_items, batch_size, k)
    return np.append(values, worst), np.append(masses, cut)


def checked_sampling(q: float, k: int, parts: int) -> tuple[float, int, int]:
    """The three numbers of Poisson-sampled items, checked."""
    return (
        _checks.probability("q", q),
        _checks.integer("k", k, 1, _MOST_ITEMS),
        _checks.integer("parts", parts, 1),
    )


def checked_batches(n_items: int, batch_size: int, k: int, parts: int) -> tuple[int, int, int, int]:
    """The four numbers of batches of fixed size, checked."""
    n_items = _checks.integer("n_items", n_items, 1)
    batch_size = _checks.integer("batch_size", batch_size, 1)
    k = _checks.integer("k", k, 1, _MOST_ITEMS)
    parts = _checks.integer("parts", parts, 1)
    for name, value in (("batch_size", batch_size), ("k", k)):
        if value > n_items:
            raise ValueError(
                f"{name} must not exceed n_items, got {name}={value} and n_items={n_items}; "
                f"n_items counts all items of the data, every unit's."
            )
    return n_items, batch_size, k, parts
