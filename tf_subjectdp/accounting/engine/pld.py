# SPDX-License-Identifier: Apache-2.0
"""The PLD engine: epsilon and delta from privacy loss distributions composed by one FFT.

Every discretised loss distribution is TILTED by exp(theta * loss) before it is composed (Esscher's
transform), with theta chosen so that the composed distribution is centred where the answer lies.
Then the rounding floor of the FFT is relative to the answer, not absolute: a delta of 1e-15 is as
safe as one of 1e-3. Everything approximate is on the pessimistic side: discretisation (see
`discretise`), cut tails (put into delta), wrap-around of the FFT and rounding (both bounded and
added to delta).

The grid's interval follows the number of compositions: connecting the dots adds to the cumulant
function K(theta) of one step at most (theta^2 + theta) h^2 / 8, hence to epsilon at most steps * (1
+ theta) * h^2 / 8.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence

from tf_subjectdp.accounting._checks import SMALLEST_PLD_DELTA
from tf_subjectdp.accounting.engine.cumulants import Direction
from tf_subjectdp.accounting.engine.direction import HOPELESS, ComposedDirection
from tf_subjectdp.accounting.engine.gaussian import gaussian_delta, gaussian_epsilon
from tf_subjectdp.accounting.engine.ledger import Ledger
from tf_subjectdp.accounting.engine.mechanisms import LossAtoms
from tf_subjectdp.accounting.engine.renyi import rdp_epsilon

_LOGGER = logging.getLogger(__name__)

#: Relative error in epsilon the discretisation aims at, and the one above which it says so.
TARGET_ERROR = 1e-5
STATED_ERROR = 1e-3


def pld_epsilon(ledger: Ledger, delta: float, relative_error: float = TARGET_ERROR) -> float:
    """Smallest epsilon >= 0 at `delta`, from above; logs a warning where it may be far above.

    Args, Raises: see `pld_bound`.

    Returns:
      epsilon, infinite if there is none.
    """
    epsilon, excess = pld_bound(ledger, delta, relative_error)
    if excess is not None:
        _LOGGER.warning(
            "epsilon %.6g at delta %.3g over %d steps may be up to %.2g above the true value: its "
            "loss distribution could not be discretised more finely.",
            epsilon,
            delta,
            ledger.steps,
            excess,
        )
    return epsilon


@functools.lru_cache(maxsize=256)
def pld_bound(
    ledger: Ledger, delta: float, relative_error: float = TARGET_ERROR
) -> tuple[float, float | None]:
    """Smallest epsilon >= 0 at `delta`, from above, and how far above it may be where that is much.

    Args:
      ledger: what runs.
      delta: in [0, 1).
      relative_error: bound on what the discretisation may add to epsilon, relative.

    Returns:
      (epsilon, infinite if there is none; None, or the excess if it is above what was aimed at).

    Raises:
      ValueError: the ledger holds a mechanism without a loss distribution, or delta is positive but
        below 1e-25.
    """
    _refuse_unsupported(ledger)
    if ledger.nonprivate:
        return math.inf, None
    mu = ledger.only_gaussian_mu
    if mu is not None:
        return gaussian_epsilon(mu, delta), None
    if delta == 0.0:
        return _pure_epsilon(ledger), None
    if delta < SMALLEST_PLD_DELTA:
        raise ValueError(
            f"delta={delta:g} is below {SMALLEST_PLD_DELTA:g}, where this arithmetic ends; "
            f'use engine="rdp", or a larger delta.'
        )
    if ledger.presence <= delta:
        return 0.0, None
    if _largest_shift(ledger) > 30.0:
        bound = rdp_epsilon(ledger, delta)
        if bound >= HOPELESS:
            return bound, None
    answer, excess = max(
        ComposedDirection(d).epsilon(delta, relative_error) for d in _directions(ledger)
    )
    if answer < HOPELESS and excess <= max(STATED_ERROR, 2.0 * relative_error) * answer:
        return answer, None
    bound = rdp_epsilon(ledger, delta)
    if min(answer, bound) >= HOPELESS:
        return min(answer, bound), None
    return min(answer, bound), excess if answer <= bound else bound


@functools.lru_cache(maxsize=256)
def pld_delta(ledger: Ledger, epsilon: float, relative_error: float = TARGET_ERROR) -> float:
    """Smallest delta at `epsilon`, from above; never below 1e-36 or so unless it is zero.

    Args:
      ledger: what runs.
      epsilon: finite, >= 0.
      relative_error: bound on what the discretisation may add, as a relative change of epsilon.

    Raises:
      ValueError: the ledger holds a mechanism without a loss distribution.
    """
    _refuse_unsupported(ledger)
    if ledger.nonprivate:
        return 1.0
    mu = ledger.only_gaussian_mu
    if mu is not None:
        return gaussian_delta(mu, epsilon)
    answer = max(ComposedDirection(d).delta(epsilon, relative_error) for d in _directions(ledger))
    return min(answer, ledger.presence)


def _pure_epsilon(ledger: Ledger) -> float:
    """epsilon at delta 0: infinite as soon as anything is Gaussian."""
    largest = 0.0
    for direction in _directions(ledger):
        pairs = [[pair for _, pair in branches] for branches, _ in direction]
        if not all(isinstance(pair, LossAtoms) for step in pairs for pair in step):
            return math.inf
        losses = [max(0.0, *(pair.losses[-1] for pair in step)) for step in pairs]
        total = math.fsum(count * loss for loss, (_, count) in zip(losses, direction, strict=True))
        largest = max(largest, total)
    return largest


def _refuse_unsupported(ledger: Ledger) -> None:
    for mechanism, _ in ledger.entries:
        if mechanism.pld_refusal is not None:
            raise ValueError(
                f'engine="pld" cannot account for {mechanism!r}: {mechanism.pld_refusal}.'
            )


def _largest_shift(ledger: Ledger) -> float:
    """The largest distance of a component of P from 0, in standard deviations of the noise."""
    branches = (b for mechanism, _ in ledger.entries for b in mechanism.directions()[0])
    return max(
        (max(pair.p_locations) for _, pair in branches if not isinstance(pair, LossAtoms)),
        default=0.0,
    )


def _directions(ledger: Ledger) -> Sequence[Direction]:
    """All entries in the direction "remove", and in the direction "add" where it differs."""
    per_entry = [(mechanism.directions(), count) for mechanism, count in ledger.entries]
    first = tuple((d[0], count) for d, count in per_entry)
    last = tuple((d[-1], count) for d, count in per_entry)
    return (first,) if first == last else (first, last)
