# SPDX-License-Identifier: Apache-2.0
"""dp_accounting's events without Gaussian noise or with a sum of Gaussians, as mechanisms.

Part of `canonical`'s table. Knows `foreign` and `mechanisms`; says what noise and neighbouring data
mean for all events.
"""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation, dp_event

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.engine import foreign
from tf_subjectdp.accounting.engine.mechanisms import Gaussian, ZeroConcentrated


class NotPrivate(Exception):
    """Raised by an event without noise; whoever walks over events turns it into infinity."""


def noise_of(event: Any, value: Any) -> float:
    """Noise multiplier of `event`; infinite noise is allowed (nothing is released)."""
    if value == math.inf:
        return math.inf
    number = _checks.noise(f"noise of {type(event).__name__}", value)
    if number == 0.0:
        raise NotPrivate
    return number


def move_of(relation: NeighboringRelation) -> float:
    """How far neighbouring data can move a sum, in units of C."""
    return 2.0 if relation is NeighboringRelation.REPLACE_ONE else 1.0


def laplace(event: dp_accounting.LaplaceDpEvent, relation: NeighboringRelation):
    sigma = noise_of(event, event.noise_multiplier)
    return None if sigma == math.inf else foreign.laplace(sigma / move_of(relation))


def discrete_laplace(event: dp_event.DiscreteLaplaceDpEvent, relation: NeighboringRelation):
    if event.noise_parameter == 0:
        raise NotPrivate
    parameter = _checks.noise("noise_parameter", event.noise_parameter)
    sensitivity = _checks.integer("sensitivity", event.sensitivity, 0)
    return foreign.discrete_laplace(parameter, int(move_of(relation)) * sensitivity)


def randomized_response(event: dp_event.RandomizedResponseDpEvent, relation: NeighboringRelation):
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise ValueError(
            "RandomizedResponseDpEvent has no meaning when a record is added or removed; make the "
            "accountant with NeighboringRelation.REPLACE_ONE or REPLACE_SPECIAL."
        )
    parameter = _checks.probability("noise_parameter", event.noise_parameter)
    buckets = _checks.integer("num_buckets", event.num_buckets, 1)
    if buckets == 1:
        return None
    if parameter == 0.0:
        raise NotPrivate
    return foreign.randomized_response(parameter, buckets)


def tree(event: dp_accounting.SingleEpochTreeAggregationDpEvent, relation: NeighboringRelation):
    if relation is not NeighboringRelation.REPLACE_SPECIAL:
        raise ValueError(
            "SingleEpochTreeAggregationDpEvent is proven for a record set to zero only; make the "
            "accountant with NeighboringRelation.REPLACE_SPECIAL."
        )
    sigma = noise_of(event, event.noise_multiplier)
    counts = event.step_counts
    counts = [counts] if isinstance(counts, int) else list(counts)
    longest = max((_checks.integer("step_counts", count, 0) for count in counts), default=0)
    if longest == 0:
        raise ValueError(f"step_counts must hold a positive number, got {event.step_counts!r}.")
    # A record is in one finished node of each level: as many Gaussians as the number has bits.
    return None if sigma == math.inf else Gaussian(math.sqrt(longest.bit_length()) / sigma)


def zcdp(event: dp_event.ZCDpEvent, relation: NeighboringRelation):
    rho = _checks.sensitivity("rho", event.rho)
    xi = _checks.sensitivity("xi", event.xi)
    return ZeroConcentrated(rho, xi) if rho or xi else None
