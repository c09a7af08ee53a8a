# SPDX-License-Identifier: Apache-2.0
"""The experiments' settings, the noise that they ask for, and how figures are printed."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable

import dp_accounting

from tf_subjectdp.accounting import _checks, events, solve


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudySetting:
    """One experiment: `subjects` x `items`, spread evenly over `silos` that all take every round.

    Attributes:
      name: heading of the column.
      subjects: subjects in all, >= 1.
      items: items of one subject in all silos together, >= 1.
      batch: expected batch size B of a silo, >= 1.
      rounds: R, >= 1.
      silos: s, >= 1.
      epsilon: target, > 0.
      delta: in (0, 1).
    """

    name: str
    subjects: int
    items: int
    batch: int
    rounds: int
    silos: int = 16
    epsilon: float = 4.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("subjects", "items", "batch", "rounds", "silos"):
            _checks.integer(name, getattr(self, name), 1)
        _checks.target_epsilon(self.epsilon, allow_zero=False)
        _checks.target_delta(self.delta, allow_zero=False)
        if self.batch > self.silo_items:
            raise ValueError(
                f"batch must be at most the {self.silo_items} items of a silo, got {self.batch}."
            )

    @property
    def silo_items(self) -> int:
        """|D_i|, items in a silo, rounded down."""
        return self.subjects * self.items // self.silos

    @property
    def q(self) -> float:
        """B / |D_i|, the probability that one item is in a batch."""
        return self.batch / self.silo_items

    @property
    def k(self) -> int:
        """Items of one subject in one silo, rounded up."""
        return -(-self.items // self.silos)

    @property
    def steps_per_round(self) -> int:
        """T: one pass over the silo's data, rounded up."""
        return -(-self.silo_items // self.batch)


FEMNIST_LIKE = StudySetting(name="FEMNIST-like", subjects=3500, items=145, batch=512, rounds=100)
SHAKESPEARE_LIKE = StudySetting(
    name="Shakespeare-like", subjects=660, items=4484, batch=100, rounds=200
)


def format_figure(value: float) -> str:
    """A number as the tables print it: short, and never one that looks better than it is.

    Whole numbers below 10,000 are kept; other numbers are rounded UP to four significant digits
    (of noise and of epsilon the larger is the safe one); from 10,000 on only "> " and the power of
    ten below.

    Raises:
      ValueError, TypeError: the value is NaN or negative, or not a number.
    """
    value = _checks._real("value", value)
    if value < 0.0:
        raise ValueError(f"value must be >= 0, got {value:g}: no figure of these tables is below.")
    if value == math.inf:
        return "infinite"
    if value >= 1e4:
        return f"> {10 ** math.floor(math.log10(value)):,}"
    if value.is_integer():
        return f"{int(value)}"
    if value < 1e-6:
        return f"{value * (1.0 + 1e-3):.3e}"
    digits = 3 - math.floor(math.log10(value))
    # The accountant is a few 1e-6 above the truth: no reason to print the next digit.
    rounded = math.ceil(value * (1.0 - 1e-5) * 10.0**digits) / 10.0**digits
    return f"{rounded:.{max(digits, 0)}f}"


def markdown_table(head: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table, one line a row, ending in a newline."""
    lines = [head, tuple("---" for _ in head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def item_events(setting: StudySetting) -> Callable[[float], dp_accounting.DpEvent]:
    """From noise to a silo's step at the item rate q."""
    return lambda sigma: events.item_event(setting.q, sigma)


def subject_events(setting: StudySetting) -> Callable[[float], dp_accounting.DpEvent]:
    """From noise to a silo's HiGradAvg step at the true subject rate."""
    return lambda sigma: events.higradavg_event(setting.q, setting.k, sigma)


@functools.lru_cache(maxsize=32)
def item_noise(setting: StudySetting) -> float:
    """The 2022 text's noise: R rounds of one silo at the item rate."""
    return noise_for(setting, item_events(setting), 1)


def noise_for(
    setting: StudySetting, event: Callable[[float], dp_accounting.DpEvent], silos: int
) -> float:
    """The noise at which R rounds of `silos` silos keep the setting's budget."""
    steps = setting.rounds * setting.steps_per_round * silos
    return solve.noise_multiplier(event, steps, epsilon=setting.epsilon, delta=setting.delta)


def published_noise(setting: StudySetting) -> float:
    """The 2023 text's noise: R rounds of one silo at rate k q, or 1 where that exceeds 1."""
    rate = min(1.0, setting.k * setting.q)
    return noise_for(setting, lambda sigma: events.subject_event(rate, sigma), 1)
