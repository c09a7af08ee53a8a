# SPDX-License-Identifier: Apache-2.0
"""Random draws of a release: fresh from the operating system, unless a test fixes a seed.

NumPy and SciPy only. Noise is made of the operating system's bits themselves, not of a generator that
they seed: whoever knows some counts (words that nobody has) reads their noise off the release, up to
rounding, and NumPy's generators do not promise that the rest cannot be computed from it. float64 noise
has a finite grid: attacks on its last bits are not excluded.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from tf_subjectdp.elements.private_lloyd import normals


class Fresh:
    """What a release draws, from the operating system's entropy."""

    def __init__(self):
        seed = np.random.SeedSequence(int.from_bytes(os.urandom(32), "little"))
        self._choices = np.random.Generator(np.random.PCG64DXSM(seed))

    def permutation(self, values: np.ndarray) -> np.ndarray:
        """A random order; nothing of it is released but through noised sums."""
        return self._choices.permutation(values)

    def standard_normal(self, size: int) -> np.ndarray:
        """Standard normals, float64 [size], see `elements.private_lloyd.normals`."""
        return normals((size,), None)


def generator(seed: Any) -> np.random.Generator | Fresh:
    """A generator of its own for one release.

    Args:
      seed: None takes 256 bits from the operating system; a whole number >= 0 is for tests.

    Raises:
      TypeError, ValueError: a seed that is not None or a whole number of at least 0.
    """
    if seed is None:
        return Fresh()
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed is {seed!r}: pass a whole number, or None outside tests.")
    if seed < 0:
        raise ValueError(f"seed is {seed}: it must be at least 0.")
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(int(seed))))
