# SPDX-License-Identifier: Apache-2.0
"""The noise of releases and of private k-means: float64, from the operating system's own bits.

`noise` is its TensorFlow half. Normals are made of the bits themselves, not of a generator that they
seed: whoever knows some counts (words that nobody has) reads their noise off the release, up to rounding,
and NumPy's generators do not promise that the rest cannot be computed from it. float64 noise has a
finite grid: attacks on its last bits are not excluded.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from scipy import special

from tf_subjectdp import _validate


class FreshDraws:
    """What one release draws, from the operating system's entropy: a `Generator` that nobody can seed."""

    def __init__(self):
        seed = np.random.SeedSequence(int.from_bytes(os.urandom(32), "little"))
        # For what is not noise; normals share nothing with it.
        self._choices = np.random.Generator(np.random.PCG64DXSM(seed))

    def standard_normal(self, shape: int | tuple[int, ...]) -> np.ndarray:
        """Standard normals, float64 of `shape`: the inverse distribution function of 63 random bits, and
        a random sign; tails reach 9.1 standard deviations."""
        bits = np.frombuffer(os.urandom(8 * int(np.prod(shape))), np.uint64)
        size = -special.ndtri(((bits >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64)
        return np.where(bits & np.uint64(1), size, -size).reshape(shape)

    def random(self, shape: int | tuple[int, ...]) -> np.ndarray:
        """Uniform numbers, float64 of `shape`."""
        return self._choices.random(shape)

    def permutation(self, values: np.ndarray) -> np.ndarray:
        """The values in a random order."""
        return self._choices.permutation(values)


def draws(seed: Any) -> np.random.Generator | FreshDraws:
    """What one release draws from.

    Args:
      seed: None takes the operating system's entropy; a whole number >= 0 is for tests: NOT PRIVATE.

    Raises:
      TypeError, ValueError: a seed that is not None or a whole number of at least 0.
    """
    if seed is None:
        return FreshDraws()
    seed = _validate.integer("seed", seed, 0)
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(seed)))


def public_draws(seed: Any) -> np.random.Generator:
    """For draws that need no secret: a `Generator` as it is, one of a whole number, or fresh for None."""
    if seed is None or isinstance(seed, np.random.Generator):
        return np.random.default_rng(seed)
    return np.random.default_rng(_validate.integer("seed", seed, 0))
