# SPDX-License-Identifier: Apache-2.0
"""The binomial law where it is not negligible, for any number of trials."""

from __future__ import annotations

import math

import numpy as np


def binomial_window(trials: int, rate: float, negligible: float) -> tuple[int, np.ndarray]:
    """Binomial(trials, rate) on a window outside of which less than `negligible` lies on each side.

    Args:
      trials: n >= 1; the window holds about sqrt(n) values.
      rate: in (0, 1).
      negligible: in (0, 1).

    Returns:
      The first value, and the probabilities from there on, float64 of sum 1.
    """
    reach = -math.log(negligible)
    spread = math.sqrt(2.0 * trials * rate * (1.0 - rate) * reach) + reach  # Bernstein
    low = max(0, math.floor(trials * rate - spread))
    high = min(trials, math.ceil(trials * rate + spread))
    j = np.arange(low, high + 1, dtype=np.float64)
    # By the ratios of neighbours: logarithms of factorials would cancel in so many trials.
    ratios = np.log((trials - j[:-1]) / j[1:]) + (math.log(rate) - math.log1p(-rate))
    log_law = np.concatenate(([0.0], np.cumsum(ratios)))
    law = np.exp(log_law - log_law.max())
    return low, law / law.sum()
