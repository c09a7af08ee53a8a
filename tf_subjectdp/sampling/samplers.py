# SPDX-License-Identifier: Apache-2.0
"""Who is in a step: the four ways of drawing a batch.

| sampler           | what is drawn                          | size of a batch           |
| ----------------- | -------------------------------------- | ------------------------- |
| `PoissonItems`    | every row, with probability q          | random, q n on average    |
| `PoissonSubjects` | every subject, with probability p      | random                    |
| `FixedSize`       | B rows without replacement, every step | B                         |
| `Shuffle`         | a fresh permutation every epoch        | B, the last one smaller   |

A sampler is a frozen description. `rate` and `steps_per_epoch` are asked once, by the plan, which
then freezes them as public constants; `batches` gets the rate handed in and never computes it from
the table, so that one person more or less does not change the coins of all the others.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from tf_subjectdp.sampling._checks import positive_int, positive_number, sampling_rate
from tf_subjectdp.sampling.bounding import bound_contributions
from tf_subjectdp.sampling.grouping import SubjectTable


@dataclasses.dataclass(frozen=True)
class Sampler(abc.ABC):
    """What the four samplers have in common.

    Attributes:
      unit: "item" or "subject", what is drawn.
      poisson: whether every unit has an independent coin of its own; otherwise batches have a
        fixed size and the guarantee is for replacing a unit, not for adding or removing one.
    """

    unit: ClassVar[str]
    poisson: ClassVar[bool]

    @abc.abstractmethod
    def _size(self) -> float:
        """Expected number of units in a step."""

    def rate(self, n_items: int, n_subjects: int) -> float:
        """The probability that one unit is in a step: q for items, p for subjects.

        Raises:
          ValueError: a batch above the data.
        """
        return self._size() / self._available(n_items, n_subjects)

    def steps_per_epoch(self, n_items: int, n_subjects: int) -> int:
        """Steps after which every unit has been drawn once, on average: 1 / rate, rounded up.

        Raises:
          ValueError: a batch above the data.
        """
        # not 1 / rate: 1 / (10 / 490) is a hair above 49
        return math.ceil(self._available(n_items, n_subjects) / self._size())

    @abc.abstractmethod
    def batches(
        self, table: SubjectTable, rate: float, rng: np.random.Generator
    ) -> Iterator[np.ndarray]:
        """Draws without end.

        Args:
          table: who owns which row.
          rate: the plan's constant, what `rate` said when the plan was made.
          rng: where the draws come from; a fresh one for every pass, see `fresh_rng`.

        Yields:
          The rows of one step: int64 of shape [batch], which may be [0] under Poisson sampling.

        Raises:
          ValueError: a rate outside (0, 1], a batch above the table.
        """

    def get_config(self) -> dict[str, Any]:
        """The class name and the arguments, ready for JSON."""
        return {"class_name": type(self).__name__, **dataclasses.asdict(self)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Sampler:
        """The inverse of `get_config`.

        Raises:
          ValueError: the config of another sampler.
        """
        arguments = _mapping(config)
        name = arguments.pop("class_name", cls.__name__)
        if name != cls.__name__:
            raise ValueError(f"this is a config of {name}, not of {cls.__name__}")
        try:
            return cls(**arguments)
        except TypeError as error:
            raise ValueError(
                f"{arguments!r} is no config of {cls.__name__}: {error}; pass what get_config "
                "returned"
            ) from None

    def _available(self, n_items: int, n_subjects: int) -> int:
        available = positive_int("n_items", n_items)
        if self.unit == "subject":
            available = positive_int("n_subjects", n_subjects)
        if self._size() > available:
            raise ValueError(
                f"batch above the data: {self} asks for {self._size()} {self.unit}s a step, "
                f"and there are {available}; ask for at most {available}"
            )
        return available


@dataclasses.dataclass(frozen=True)
class PoissonItems(Sampler):
    """Every row is in a step with probability q = expected_batch_size / n_items, independently.

    Attributes:
      expected_batch_size: rows in a step on average, above 0; need not be whole.
    """

    expected_batch_size: float
    unit: ClassVar[str] = "item"
    poisson: ClassVar[bool] = True

    def __post_init__(self) -> None:
        size = positive_number("expected_batch_size", self.expected_batch_size)
        object.__setattr__(self, "expected_batch_size", size)

    def _size(self) -> float:
        return self.expected_batch_size

    def batches(
        self, table: SubjectTable, rate: float, rng: np.random.Generator
    ) -> Iterator[np.ndarray]:
        rate = sampling_rate(rate)

        def draw() -> Iterator[np.ndarray]:
            while True:
                yield _coins(table.n_items, rate, rng)

        return draw()


@dataclasses.dataclass(frozen=True)
class PoissonSubjects(Sampler):
    """Every subject is in a step with probability p = expected_subjects / n_subjects.

    Attributes:
      expected_subjects: subjects in a step on average, above 0; need not be whole.
      max_items_per_subject: the most rows that a subject brings to a step, drawn at random afresh
        in every step; None brings all of them.
    """

    expected_subjects: float
    max_items_per_subject: int | None = None
    unit: ClassVar[str] = "subject"
    poisson: ClassVar[bool] = True

    def __post_init__(self) -> None:
        size = positive_number("expected_subjects", self.expected_subjects)
        object.__setattr__(self, "expected_subjects", size)
        if self.max_items_per_subject is not None:
            bound = positive_int("max_items_per_subject", self.max_items_per_subject)
            object.__setattr__(self, "max_items_per_subject", bound)

    def _size(self) -> float:
        return self.expected_subjects

    def batches(
        self, table: SubjectTable, rate: float, rng: np.random.Generator
    ) -> Iterator[np.ndarray]:
        rate = sampling_rate(rate)

        def draw() -> Iterator[np.ndarray]:
            while True:
                yield self._rows(table, _coins(table.n_subjects, rate, rng), rng)

        return draw()

    def _rows(
        self, table: SubjectTable, subjects: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Rows of the subjects drawn, one subject after the other."""
        starts = table.starts[subjects]
        lengths = table.starts[subjects + 1] - starts
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if ends.size else 0
        # place t of the batch belongs to subject a and is its (t - ends[a] + lengths[a])-th row
        rows = table.order[np.arange(total) + np.repeat(starts - ends + lengths, lengths)]
        if self.max_items_per_subject is None:
            return rows
        owners = np.repeat(np.arange(subjects.size), lengths)
        return rows[bound_contributions(owners, subjects.size, self.max_items_per_subject, rng)]


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
                rows = rng.permutation(n_rows).astype(np.int64, copy=False)
                for start in range(0, n_rows, self.batch_size):
                    yield rows[start : start + self.batch_size]

        return draw()


_SAMPLERS = {kind.__name__: kind for kind in (PoissonItems, PoissonSubjects, FixedSize, Shuffle)}


def sampler_from_config(config: dict[str, Any]) -> Sampler:
    """The sampler that a `get_config` describes.

    Raises:
      ValueError: a config that names no sampler.
    """
    name = _mapping(config).get("class_name")
    if not isinstance(name, str) or name not in _SAMPLERS:
        raise ValueError(f"class_name is {name!r}: choose one of {sorted(_SAMPLERS)}")
    return _SAMPLERS[name].from_config(config)


def _mapping(config: Any) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        raise TypeError(f"config is {config!r}: pass the dict that get_config returned")
    return dict(config)


def _coins(n: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    """The heads among n independent coins: int64, increasing; as costly as the heads, not as n.

    Given how many heads there are (binomial), every set of that many is equally likely. Sorted,
    because a Poisson batch is a set: its order may say nothing, and sorted rows gather faster.
    """
    heads = rng.binomial(n, rate)
    rows = rng.choice(n, heads, replace=False, shuffle=False)
    return np.sort(rows).astype(np.int64, copy=False)
