# SPDX-License-Identifier: Apache-2.0
"""Random draws of a release: fresh from the operating system, unless a test fixes a seed.

NumPy only. float64 noise has a finite grid: attacks on its last bits are not excluded.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np


def generator(seed: Any) -> np.random.Generator:
    """A generator of its own for one release.

    Args:
      seed: None takes 256 bits from the operating system; a whole number >= 0 is for tests.

    Raises:
      TypeError, ValueError: a seed that is not None or a whole number of at least 0.
    """
    if seed is None:
        seed = int.from_bytes(os.urandom(32), "little")
    elif isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed is {seed!r}: pass a whole number, or None outside tests.")
    elif seed < 0:
        raise ValueError(f"seed is {seed}: it must be at least 0.")
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(int(seed))))
