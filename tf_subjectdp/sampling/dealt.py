# SPDX-License-Identifier: Apache-2.0
"""Batches of a fixed size: drawn without replacement, or dealt from a shuffled table.

Nothing here is amplified by Poisson formulas: the guarantee is for replacing contents in place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from tf_subjectdp.sampling._checks import positive_int, positive_number, sampling_rate
from tf_subjectdp.sampling.grouping import SubjectTable
from tf_subjectdp.sampling.samplers import (
    PoissonElements,
    PoissonItems,
    PoissonSubjects,
    Sampler,
    config_mapping,
)


@dataclasses.dataclass(frozen=True)
class FixedSize(Sampler):
    """B rows without replacement, drawn afresh and in random order in every step.

    Attributes:
      batch_size: rows in a step.
    """

    batch_size: int
    unit: ClassVar[str] = "item"
    poisson: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", positive_int("batch_size", self.batch_size))

    def _size(self) -> float:
        return self.batch_size

    def batches(
        self, table: SubjectTable, rate: float, rng: np.random.Generator
    ) -> Iterator[np.ndarray]:
        sampling_rate(rate)
        n_rows = self._available(table.n_items, table.n_subjects)

        def draw() -> Iterator[np.ndarray]:
            while True:
                # shuffled: without it a place in the batch would tell something about the row
                yield rng.choice(n_rows, self.batch_size, replace=False).astype(np.int64)

        return draw()


@dataclasses.dataclass(frozen=True)
class Shuffle(Sampler):
    """A fresh permutation of the rows every epoch, cut into batches of B; the last is smaller.

    With `keep_probability` below 1, probabilistic filtering (van Dijk et al., Appendix D): every row
    has a fresh coin at the start of each epoch, and only those that come up are dealt. An epoch is then
    keep_probability as long, whatever the coins say: rows beyond its last batch are left out, missing
    ones leave the last batches smaller or empty. An item still touches at most one batch of an epoch,
    and that is all that is counted: no gain from the filter (their factor two) is claimed.

    Attributes:
      batch_size: rows in a step, at most.
      keep_probability: probability that a row takes part in an epoch, in (0, 1].
    """

    batch_size: int
    keep_probability: float = 1.0
    unit: ClassVar[str] = "item"
    poisson: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", positive_int("batch_size", self.batch_size))
        keep = positive_number("keep_probability", self.keep_probability)
        if keep > 1:
            raise ValueError(f"keep_probability is {keep}: a probability is at most 1")
        object.__setattr__(self, "keep_probability", float(keep))

    def _size(self) -> float:
        return self.batch_size

    def steps_per_epoch(self, n_items: int, n_subjects: int, n_elements: int | None = None) -> int:
        available = self._available(n_items, n_subjects)
        # a hair off: 0.1 * 30 / 3 is above 1
        return max(1, math.ceil(self.keep_probability * available / self.batch_size - 1e-9))

    def batches(
        self, table: SubjectTable, rate: float, rng: np.random.Generator
    ) -> Iterator[np.ndarray]:
        sampling_rate(rate)
        n_rows = self._available(table.n_items, table.n_subjects)

        def draw() -> Iterator[np.ndarray]:
            steps = self.steps_per_epoch(table.n_items, table.n_subjects)
            while True:
                rows = rng.permutation(n_rows).astype(np.int64, copy=False)
                if self.keep_probability < 1.0:
                    rows = rows[: rng.binomial(n_rows, self.keep_probability)]
                for step in range(steps):
                    yield rows[step * self.batch_size : (step + 1) * self.batch_size]

        return draw()


_SAMPLERS = {
    kind.__name__: kind
    for kind in (PoissonItems, PoissonSubjects, PoissonElements, FixedSize, Shuffle)
}


def sampler_from_config(config: dict[str, Any]) -> Sampler:
    """The sampler that a `get_config` describes.

    Raises:
      ValueError: a config that names no sampler.
    """
    name = config_mapping(config).get("class_name")
    if not isinstance(name, str) or name not in _SAMPLERS:
        raise ValueError(f"class_name is {name!r}: choose one of {sorted(_SAMPLERS)}")
    return _SAMPLERS[name].from_config(config)
