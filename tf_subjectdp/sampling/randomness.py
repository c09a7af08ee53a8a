# SPDX-License-Identifier: Apache-2.0
"""Fresh randomness for every pass over the data."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np


def fresh_rng(seed: int | None = None) -> Callable[[], np.random.Generator]:
    """A factory of random generators, no two of which repeat one another.

    A sampler that is restarted with the seed it had before draws the batches it drew before, and
    the guarantee of the second pass is gone: the steps are no longer independent. So every call
    of the factory gives another stream, with a seed as without.

    Args:
      seed: None (the default) takes entropy from the operating system at every call. A whole
        number makes the SEQUENCE of streams reproducible, for tests: a run whose sampling can be
        foretold is not private.

    Returns:
      A function without arguments; safe to call from several threads.

    Raises:
      ValueError: a negative seed.
      TypeError: a seed that is not a whole number.
    """
    if seed is None:
        return lambda: np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence()))
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed is {seed!r}: pass a whole number, or None outside tests")
    if seed < 0:
        raise ValueError(f"seed is {seed}: it must be at least 0")
    root = np.random.SeedSequence(int(seed))
    lock = threading.Lock()

    def spawn() -> np.random.Generator:
        with lock:
            (child,) = root.spawn(1)
        return np.random.Generator(np.random.PCG64DXSM(child))

    return spawn
