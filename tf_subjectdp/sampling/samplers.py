# SPDX-License-Identifier: Apache-2.0
"""Who is in a step: the five ways of drawing a batch, and those three with coins.

| sampler           | what is drawn                          | size of a batch           |
| ----------------- | -------------------------------------- | ------------------------- |
| `PoissonItems`    | every row, with probability q          | random, q n on average    |
| `PoissonSubjects` | every subject, with probability p      | random                    |
| `PoissonElements` | every element of a subject, with r     | random                    |
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
    """What the samplers have in common.

    Attributes:
      unit: "item", "subject" or "element" (of a subject), what is drawn.
      poisson: whether every unit has an independent coin of its own; otherwise batches have a
        fixed size and the guarantee is for replacing a unit, not for adding or removing one.
    """

    unit: ClassVar[str]
    poisson: ClassVar[bool]

    @abc.abstractmethod
    def _size(self) -> float:
        """Expected number of units in a step."""

    def rate(self, n_items: int, n_subjects: int, n_elements: int | None = None) -> float:
        """The probability that one unit is in a step: q for items, p for subjects, r for elements.

        Raises:
          ValueError: a batch above the data.
        """
        return self._size() / self._available(n_items, n_subjects, n_elements)

    def steps_per_epoch(self, n_items: int, n_subjects: int, n_elements: int | None = None) -> int:
        """Steps after which every unit has been drawn once, on average: 1 / rate, rounded up.

        Raises:
          ValueError: a batch above the data.
        """
        # not 1 / rate: 1 / (10 / 490) is a hair above 49
        return math.ceil(self._available(n_items, n_subjects, n_elements) / self._size())

    @abc.abstractmethod
    def batches(
        self, table: SubjectTable, rate: float, rng: np.random.Generator
    ) -> Iterator[np.ndarray]:
        """Draws without end.

        Args:
          table: who owns which row; for "element", which row belongs to which element of a subject.
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
        arguments = config_mapping(config)
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

    def _available(self, n_items: int, n_subjects: int, n_elements: int | None = None) -> int:
        available = positive_int("n_items", n_items)
        if self.unit == "subject":
            available = positive_int("n_subjects", n_subjects)
        if self.unit == "element":
            if n_elements is None:
                raise ValueError(
                    f"{self} draws elements, and the stats have none: make them with "
                    "SubjectStats.from_ids(subject_id, element_id)"
                )
            available = positive_int("n_elements", n_elements)
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


@dataclasses.dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        # Without a bound none is named: the data may have one, under the same name.
        bound = self.max_items_per_subject
        most = "" if bound is None else f", max_items_per_subject={bound}"
        return f"PoissonSubjects(expected_subjects={self.expected_subjects}{most})"

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
class PoissonElements(Sampler):
    """Every element of every subject is in a step with probability r = expected_elements / elements.

    With all of its rows, and independently of the subject's other elements: the sampling under which
    the promise to an element is amplified (`ElementDP`).

    Attributes:
      expected_elements: (subject, element) pairs in a step on average, above 0; need not be whole.
    """

    expected_elements: float
    unit: ClassVar[str] = "element"
    poisson: ClassVar[bool] = True

    def __post_init__(self) -> None:
        size = positive_number("expected_elements", self.expected_elements)
        object.__setattr__(self, "expected_elements", size)

    def _size(self) -> float:
        return self.expected_elements

    def batches(
        self, table: SubjectTable, rate: float, rng: np.random.Generator
    ) -> Iterator[np.ndarray]:
        # The table's owners are elements here.
        return PoissonSubjects(self.expected_elements).batches(table, rate, rng)


def config_mapping(config: Any) -> dict[str, Any]:
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
