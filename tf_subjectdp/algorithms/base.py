# SPDX-License-Identifier: Apache-2.0
"""What every algorithm is: a clipping rule, a divisor and its guarantee under each sampling.

TensorFlow is loaded when a batch is at hand, not before: a plan can be made and stated without it.
"""

from __future__ import annotations

import abc
import dataclasses
import decimal
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import dp_accounting
import numpy as np
from scipy import stats

from tf_subjectdp import accounting, clipping
from tf_subjectdp.algorithms import pairs

if TYPE_CHECKING:
    import tensorflow as tf

# Below this the squares of a float32 gradient vanish before they can be compared with the bound;
# above the other, the bound or its noise is no longer a float32 number.
_SMALLEST_CLIP_NORM = 1e-10
_LARGEST_CLIP_NORM = 1e30
# A cap above this is no number of items, and a float64 no longer tells such numbers apart.
_LARGEST_CAP = 2**53
# Below this noise (but 0) the accountant's arithmetic ends.
_SMALLEST_NOISE = 1e-50
_LARGEST_NOISE = 1e50
# A hypergeometric law with more values than this is not worth its memory.
_MOST_ITEMS_IN_LAW = 10**7

ADD_OR_REMOVE_SUBJECT = "adding or removing one subject with all of their items"
REPLACE_SUBJECT = "replacing the contents of all items of one subject, in place"
CHANGE_ANYTHING = "any change of the data"
ADD_OR_REMOVE_ITEM = "adding or removing one item"
REPLACE_ITEM = "replacing the contents of one item, in place"
REPLACE_ELEMENT = "replacing, adding or removing one element of one subject, with all of its items"


def within_silos(adjacency: str, most: int | None, silos: int) -> str:
    """An adjacency where the steps of at most `most` silos compose: no more of them may change."""
    if adjacency != CHANGE_ANYTHING or most is None or most >= silos:
        return adjacency
    return f"{CHANGE_ANYTHING} of at most {most} of the {silos} silos"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingFacts:
    """The public constants of a plan that a guarantee depends on.

    Attributes:
      scheme: "poisson_items", "poisson_subjects", "poisson_elements", "fixed_size" or "shuffle".
      rate: probability that an item (a subject for "poisson_subjects", an element of a subject for
        "poisson_elements") is in a step's batch.
      n_items: items in the data, after contribution bounding.
      n_subjects: subjects in the data.
      batch_size: expected (or fixed) number of items of a step. Where subjects are sampled with a
        `step_cap`, it is a sum over everybody's counts in a plan that divides by it, and in another
        an upper bound on it: rate * n_subjects * min(mean, step_cap).
      expected_subjects: expected number of subjects of a step: where items are sampled, a sum over
        everybody's counts. None in a plan that does not divide by it.
      max_items: k, the most items that one subject has in the data, after contribution bounding.
      step_cap: most items that a sampled subject brings to a step; None without such a cap.
      data_cap: whether items were dropped to make `max_items` hold, so that one may displace another.
      steps_per_epoch: steps of one pass over the data.
      max_element_items: the most items that one element of a subject has; None if elements were not
        counted.
    """

    scheme: str
    rate: float
    n_items: int
    n_subjects: int
    batch_size: float
    expected_subjects: float | None
    max_items: int
    step_cap: int | None = None
    data_cap: bool = False
    steps_per_epoch: int = 1
    max_element_items: int | None = None

    @property
    def items_in_step(self) -> int:
        """The most items that a subject who was sampled as a whole can bring to a step."""
        return self.max_items if self.step_cap is None else min(self.max_items, self.step_cap)

    @property
    def rows_in_batch(self) -> int:
        """Rows of a batch of a fixed size.

        `batch_size` is rate * n_items, which rounds to a hair below the whole number as often as
        above it: 15 / 22 * 22 < 15. Cut off, it would be a batch of 14.
        """
        return min(math.ceil(self.batch_size - 1e-6), self.n_items)

    @property
    def subject_rate(self) -> float:
        """Largest probability that a subject has any item in a step's batch."""
        if self.scheme == "poisson_subjects":
            return self.rate
        if self.scheme == "poisson_elements":
            raise ValueError("elements are sampled one by one: a subject has no rate of its own.")
        if self.scheme == "poisson_items":
            if self.rate >= 1.0:
                return 1.0
            return -math.expm1(self.max_items * math.log1p(-self.rate))
        if self.scheme == "fixed_size":
            return float(1.0 - self.items_law()[1][0])
        return 1.0

    def items_law(self) -> tuple[np.ndarray, np.ndarray]:
        """Law of the number of the largest subject's items in one batch of a fixed size."""
        size = self.rows_in_batch
        if min(self.max_items, size) > _MOST_ITEMS_IN_LAW:
            raise ValueError(
                f"max_items={self.max_items} with batches of {size} rows: the law of a subject's "
                f"items in a batch is computed up to {_MOST_ITEMS_IN_LAW} items; bound them with "
                "max_items_per_subject=, or use smaller batches."
            )
        items = min(self.max_items, self.n_items)
        counts = np.arange(min(items, size) + 1)
        law = stats.hypergeom(self.n_items, items, size).pmf(counts)
        # SciPy's logarithms of factorials lose digits in large tables: the sum is off by 1e-9.
        return counts, law / law.sum()

    def most_square_items(self, cap: int | None = None) -> int:
        """Largest sum over the batches of a shuffled epoch of (a subject's items in it)^2."""
        batch = min(self.rows_in_batch, cap or self.max_items, self.max_items)
        full, rest = divmod(self.max_items, batch)
        full = min(full, self.steps_per_epoch)
        rest = rest if full < self.steps_per_epoch else 0
        return full * batch**2 + rest**2


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """What a run of steps promises to one unit.

    Attributes:
      unit: "subject", "element" (of a subject) or "item".
      adjacency: the change of the data that the promise is about, in words.
      events: dp_accounting events, each of which alone bounds `steps_per_event` steps; the
        smallest resulting epsilon counts.
      reason: one sentence on why this is the event.
      steps_per_event: 1, or the steps of an epoch where an epoch is what composes.
    """

    unit: str
    adjacency: str
    events: tuple[dp_accounting.DpEvent, ...]
    reason: str
    steps_per_event: int = 1

    def times(self, steps: int) -> int:
        """How often the events occur in `steps` steps: a begun epoch counts whole."""
        return -(-steps // self.steps_per_event)

    def epsilon(
        self, steps: int, delta: float, beside: dp_accounting.DpEvent | None = None
    ) -> float:
        """The smallest epsilon that any of the events proves for `steps` steps at `delta`.

        `beside` is what else was released about the unit, under the same adjacency: composed exactly.
        """
        runs = [(event, self.times(steps)) for event in self.events]
        if beside is not None:
            runs = [(accounting.compose([run, (beside, 1)]), 1) for run in runs]
        return min(accounting.epsilon(event, count, delta=delta) for event, count in runs)

    def total(self, steps: int) -> dp_accounting.DpEvent:
        """The first event, composed over `steps` steps: `tf_subjectdp.accounting` knows it always,
        dp_accounting's accountants where it is an event of dp_accounting's own."""
        return accounting.compose([(self.events[0], self.times(steps))])


def rounded_up(epsilon: float) -> str:
    """An epsilon as people read it: three digits after the point, never below the value."""
    if math.isinf(epsilon):
        return "infinite"
    with decimal.localcontext(decimal.Context(prec=400, rounding=decimal.ROUND_CEILING)):
        return str(decimal.Decimal(epsilon).quantize(decimal.Decimal("0.001")))


def check_noise_multiplier(value: float) -> float:
    """Returns a noise multiplier as a float; ValueError unless it is finite and at least 0."""
    value = _finite("noise_multiplier", value, lambda v: v >= 0.0, "at least 0")
    if value > _LARGEST_NOISE or 0.0 < value < _SMALLEST_NOISE:
        raise ValueError(
            f"noise_multiplier={value} must be 0 or between {_SMALLEST_NOISE} and "
            f"{_LARGEST_NOISE}, where the accountant's arithmetic ends; use 0.0 for no noise."
        )
    return value


def _finite(name, value, holds, bound) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}={value!r} must be a number.")
    try:
        value = float(value)
    except OverflowError:
        raise ValueError(
            f"{name}={value} must be finite and {bound}; it is above the range of a float."
        ) from None
    if not math.isfinite(value) or not holds(value):
        raise ValueError(f"{name}={value} must be finite and {bound}.")
    return value


def check_cap(name: str, value: int | None) -> int | None:
    """Returns a cap on items as an int or None; ValueError unless it is at least 1."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}={value!r} must be an integer or None.")
    if value < 1:
        raise ValueError(f"{name}={value} must be at least 1; use None for no cap.")
    if value > _LARGEST_CAP:
        raise ValueError(
            f"{name}={value} must be at most {_LARGEST_CAP}; use None for no cap in a batch."
        )
    return int(value)


@dataclasses.dataclass(frozen=True)
class Algorithm(abc.ABC):
    """A rule for what a subject may add to a step. Frozen; a subclass is one file.

    Attributes:
      clip_norm: C, the bound of the L2 norm of one clipped term, in units of the loss's gradient.
    """

    clip_norm: float

    kind: ClassVar[str]
    #: Whose epsilon a plan promises unless told otherwise, and whose the statement gives.
    default_unit: ClassVar[str] = "subject"
    units: ClassVar[tuple[str, ...]] = ("subject", "item")
    #: Whether a row's element is needed to form the terms.
    needs_elements: ClassVar[bool] = False
    #: Whether a step is cheaper where the rows of a term lie side by side.
    rows_lie_together: ClassVar[bool] = False
    #: Whether the batch is one clipped term, or few large ones.
    one_term: ClassVar[bool] = False
    #: How many clip norms one unit of `noise_multiplier` is.
    clip_norms_of_noise: ClassVar[float] = 1.0
    #: How a clipped term comes about where it is not a mean of gradients, and how C changes.
    inner: ClassVar[Any] = None
    clip_schedule: ClassVar[Any] = None

    def __post_init__(self):
        clip_norm = _finite("clip_norm", self.clip_norm, lambda v: v > 0.0, "above 0")
        if clip_norm < _SMALLEST_CLIP_NORM:
            raise ValueError(
                f"clip_norm={clip_norm} is below {_SMALLEST_CLIP_NORM}, where float32 norms cannot "
                "be trusted; scale the loss up and use a larger clip_norm."
            )
        if clip_norm > _LARGEST_CLIP_NORM:
            raise ValueError(
                f"clip_norm={clip_norm} is above {_LARGEST_CLIP_NORM}, where float32 noise "
                "overflows; no gradient needs so large a bound, use e.g. 1e6 to clip nothing."
            )
        object.__setattr__(self, "clip_norm", clip_norm)

    @abc.abstractmethod
    def partition(
        self, subject: tf.Tensor, mask: tf.Tensor, element: tf.Tensor | None = None
    ) -> clipping.BatchPartition:
        """Says which rows of a batch form which clipped term.

        Args:
          subject: integer or string [B].
          mask: bool [B], False for padding.
          element: integer or string [B]; only for algorithms that need it (`needs_elements`).
        """

    def data_bounds(self) -> dict[str, int | None]:
        """Bounds that `plan.dataset` enforces for this algorithm: a part of how batches are drawn."""
        return {}

    def noise_stddev(self, noise_multiplier: float) -> float:
        """The noise's standard deviation on every coordinate of the sum."""
        return noise_multiplier * self.clip_norms_of_noise * self.clip_norm

    def notes(
        self, facts: SamplingFacts, noise_multiplier: float, steps: int, delta: float
    ) -> list[str]:
        """Further figures of one holder's run, in sentences; none unless an algorithm has some."""
        return []

    def sources(self) -> list[str]:
        """Sentences on where what the algorithm takes as given comes from, in silos too."""
        return []

    def event_before(self, unit: str) -> dp_accounting.DpEvent | None:
        """What was released about one unit to make what is taken as given, for the adjacency of the
        unit's guarantee, so that both compose; None for nothing, or nothing known."""
        return None

    def unpaid(self) -> list[str]:
        """What may have been released of the data before, at a cost that is not known."""
        return []

    def divisor(self, facts: SamplingFacts) -> float:
        """The constant by which the noised sum is divided; never a function of the batch."""
        return facts.batch_size

    def subject_guarantee(self, facts: SamplingFacts, noise_multiplier: float) -> Guarantee:
        """What one step promises to a person. Raises ValueError where nothing is proven."""
        return self._guarantee("subject", facts, noise_multiplier)

    def element_guarantee(self, facts: SamplingFacts, noise_multiplier: float) -> Guarantee:
        """What one step promises to one element of a person. ValueError where nothing is proven."""
        return self._guarantee("element", facts, noise_multiplier)

    def item_guarantee(self, facts: SamplingFacts, noise_multiplier: float) -> Guarantee:
        """What one step promises to a single item. Raises ValueError where nothing is proven."""
        return self._guarantee("item", facts, noise_multiplier)

    def _guarantee(self, unit: str, facts: SamplingFacts, noise_multiplier: float) -> Guarantee:
        rule = pairs.proven_rule(self, unit, facts.scheme)
        return rule(facts, check_noise_multiplier(noise_multiplier))

    def get_config(self) -> dict[str, Any]:
        """JSON-able fields; `algorithm_from_config` is the inverse."""
        return {"name": type(self).__name__, **dataclasses.asdict(self)}


_ALGORITHMS: dict[str, type[Algorithm]] = {}


def register_algorithm(cls: type[Algorithm]) -> type[Algorithm]:
    """Class decorator that lets `algorithm_from_config` find an algorithm by its name."""
    _ALGORITHMS[cls.__name__] = cls
    return cls


def algorithm_from_config(config: dict[str, Any]) -> Algorithm:
    """Rebuilds an algorithm from `Algorithm.get_config()`; ValueError for any other config."""
    if not isinstance(config, Mapping):
        raise TypeError(f"config={config!r} must be a dict made by get_config() of an algorithm.")
    config = dict(config)
    name = config.pop("name", None)
    if not isinstance(name, str) or name not in _ALGORITHMS:
        raise ValueError(f"algorithm {name!r} is unknown; known are {sorted(_ALGORITHMS)}.")
    try:
        return _ALGORITHMS[name](**config)
    except TypeError as error:
        raise ValueError(
            f"{config!r} is no config of {name}: {error}; pass what its get_config() returned."
        ) from None
