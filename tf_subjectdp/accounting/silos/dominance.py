# SPDX-License-Identifier: Apache-2.0
"""A partial order of compositions by what they cost. Events have no total order."""

from __future__ import annotations

import math

from tf_subjectdp.accounting.engine.ledger import Ledger
from tf_subjectdp.accounting.engine.mechanisms import (
    FixedSize,
    Gaussian,
    Mechanism,
    Mixture,
    ReplaceOne,
)
from tf_subjectdp.accounting.silos.laws import Law, dominates


def ledger_dominates(larger: Ledger, smaller: Ledger) -> bool:
    """Whether `larger` in the place of `smaller` never costs less; False where that is not proven.

    A stochastically larger law of the sensitivity is worse; more of the same is worse; void events
    cost nothing and no noise costs everything.
    """
    if larger.nonprivate or larger == smaller or not (smaller.entries or smaller.nonprivate):
        return True
    if smaller.nonprivate or len(larger.entries) != 1 or len(smaller.entries) != 1:
        return False
    (mechanism, count), (other, least) = larger.entries[0], smaller.entries[0]
    if isinstance(mechanism, Gaussian) and isinstance(other, Mixture):
        # A rate that rounds to 1 makes Gaussians, and those were merged into one: taken apart again.
        mechanism, count = Gaussian(mechanism.mu / math.sqrt(least) * (1.0 + 1e-12)), least
    return count >= least and _mechanism_dominates(mechanism, other)


def _mechanism_dominates(larger: Mechanism, smaller: Mechanism) -> bool:
    if larger == smaller:
        return True
    if isinstance(larger, Gaussian) and isinstance(smaller, Mixture):
        larger = Mixture((larger.mu,), (1.0,), smaller.dropped)
    if type(larger) is not type(smaller):
        return False
    if isinstance(larger, Gaussian):
        return larger.mu >= smaller.mu
    if isinstance(larger, Mixture):
        return larger.dropped >= smaller.dropped - 1e-30 and dominates(
            Law(larger.locations, larger.weights), Law(smaller.locations, smaller.weights)
        )
    if isinstance(larger, (FixedSize, ReplaceOne)):
        return larger.probability >= smaller.probability and larger.mu >= smaller.mu
    return False
