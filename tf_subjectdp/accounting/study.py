# SPDX-License-Identifier: Apache-2.0
"""Two tables that a privacy officer can have made again: the papers' rules against the honest ones.

`study_rows` runs the experiments' settings (FEMNIST-like, Shakespeare-like) through the texts'
rules; `rule_rows` shows what each published rule promises and what it gives. Both come as data and
as Markdown, and are computed anew at every call: seconds, not minutes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import dp_accounting

from tf_subjectdp.accounting import _checks, events, paper_rules, solve

__all__ = [
    "FEMNIST_LIKE",
    "SHAKESPEARE_LIKE",
    "STUDY_KEYS",
    "RuleRow",
    "StudyRow",
    "StudySetting",
    "format_figure",
    "rule_markdown",
    "rule_rows",
    "study_markdown",
    "study_rows",
]


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


@dataclasses.dataclass(frozen=True)
class StudyRow:
    """One line of the study: `key`, what it is, and one value for each setting."""

    key: str
    label: str
    values: tuple[float, ...]


def study_rows(
    settings: Iterable[StudySetting] = (FEMNIST_LIKE, SHAKESPEARE_LIKE),
    *,
    keys: Iterable[str] | None = None,
) -> list[StudyRow]:
    """The study's lines: noise multipliers ("sigma_...") and epsilons ("epsilon_...").

    Args:
      settings: the columns.
      keys: which lines (default: all of `STUDY_KEYS`, in their order).

    Returns:
      The lines; an epsilon of more than 1e5 is a Renyi bound, and protects nobody.

    Raises:
      ValueError, TypeError: a key is unknown, or a setting is not a `StudySetting`.
    """
    settings = tuple(settings)
    for setting in settings:
        if not isinstance(setting, StudySetting):
            raise TypeError(f"settings must be StudySetting objects, got {setting!r}.")
    wanted = STUDY_KEYS if keys is None else tuple(keys)
    for key in wanted:
        if key not in _STUDY:
            raise ValueError(f"keys must be among {', '.join(STUDY_KEYS)}, got {key!r}.")
    return [
        StudyRow(key, _STUDY[key][0], tuple(_STUDY[key][1](setting) for setting in settings))
        for key in wanted
    ]


def study_markdown(rows: Iterable[StudyRow] | None = None, names: Iterable[str] = ()) -> str:
    """The study as a Markdown table.

    Args:
      rows: from `study_rows`; None computes all of them for both settings.
      names: headings of the columns (default: the two settings').

    Raises:
      ValueError: there are not as many headings as values.
    """
    if rows is None:
        rows = study_rows()
    rows = list(rows)
    names = tuple(names) or (FEMNIST_LIKE.name, SHAKESPEARE_LIKE.name)
    if any(len(row.values) != len(names) for row in rows):
        raise ValueError(f"every row must have a value for each of the headings {names!r}.")
    body = [(row.label, *(format_figure(value) for value in row.values)) for row in rows]
    return _markdown_table(("", *names), body)


def _item_events(setting: StudySetting) -> Callable[[float], dp_accounting.DpEvent]:
    """From noise to a silo's step at the item rate q."""
    return lambda sigma: events.item_event(setting.q, sigma)


def _subject_events(setting: StudySetting) -> Callable[[float], dp_accounting.DpEvent]:
    """From noise to a silo's HiGradAvg step at the true subject rate."""
    return lambda sigma: events.higradavg_event(setting.q, setting.k, sigma)


@functools.lru_cache(maxsize=32)
def _item_noise(setting: StudySetting) -> float:
    """The 2022 text's noise: R rounds of one silo at the item rate."""
    return _noise_for(setting, _item_events(setting), 1)


def _noise_for(
    setting: StudySetting, event: Callable[[float], dp_accounting.DpEvent], silos: int
) -> float:
    """The noise at which R rounds of `silos` silos keep the setting's budget."""
    steps = setting.rounds * setting.steps_per_round * silos
    return solve.noise_multiplier(event, steps, epsilon=setting.epsilon, delta=setting.delta)


def _published_noise(setting: StudySetting) -> float:
    """The 2023 text's noise: R rounds of one silo at rate k q, or 1 where that exceeds 1."""
    rate = min(1.0, setting.k * setting.q)
    return _noise_for(setting, lambda sigma: events.subject_event(rate, sigma), 1)


def _epsilon(setting: StudySetting, subject: bool, rounds: int, silos: int) -> float:
    """epsilon of the item-rate noise, after `rounds` of `silos` silos, at either rate."""
    event = (_subject_events if subject else _item_events)(setting)(_item_noise(setting))
    return solve.epsilon(event, rounds * setting.steps_per_round * silos, delta=setting.delta)


def _paper_rounds(setting: StudySetting) -> int:
    rule = paper_rules.compare_rule("rounds", rounds=setting.rounds, silos=setting.silos)
    return int(rule.published)


_STUDY: dict[str, tuple[str, Callable[[StudySetting], float]]] = {
    "sigma_item": (
        "sigma for R rounds, one silo, item rate q (2022 text)",
        _item_noise,
    ),
    "epsilon_item_root": (
        "... epsilon at rate q after R/sqrt(s) rounds of all silos",
        lambda s: _epsilon(s, False, _paper_rounds(s), s.silos),
    ),
    "epsilon_item_fair": (
        "... after R/s rounds of all silos",
        lambda s: _epsilon(s, False, s.rounds // s.silos, s.silos),
    ),
    "epsilon_item_all": (
        "... after R rounds of all silos",
        lambda s: _epsilon(s, False, s.rounds, s.silos),
    ),
    "epsilon_subject_one": (
        "the same sigma at the TRUE subject rate 1-(1-q)^k, one silo, R rounds",
        lambda s: _epsilon(s, True, s.rounds, 1),
    ),
    "epsilon_subject_root": (
        "... R/sqrt(s) rounds of all silos",
        lambda s: _epsilon(s, True, _paper_rounds(s), s.silos),
    ),
    "sigma_subject_one": (
        "sigma for R rounds, one silo, true subject rate",
        lambda s: _noise_for(s, _subject_events(s), 1),
    ),
    "sigma_subject_all": (
        "sigma for R rounds, all silos, true subject rate",
        lambda s: _noise_for(s, _subject_events(s), s.silos),
    ),
    "sigma_published": (
        "sigma for R rounds, one silo, published rate k q (2023 text)",
        _published_noise,
    ),
}
#: The study's lines, in order.
STUDY_KEYS: tuple[str, ...] = tuple(_STUDY)


@dataclasses.dataclass(frozen=True)
class RuleRow:
    """One published rule in one worked case.

    Attributes:
      rule: the rule and its paper.
      case: the worked case.
      published: the number the paper's rule gives.
      honest: the correct number of the same quantity.
      stated_epsilon: the epsilon that the paper states.
      honest_epsilon: the epsilon that the published number really gives.
      reason: why.
    """

    rule: str
    case: str
    published: float
    honest: float
    stated_epsilon: float
    honest_epsilon: float
    reason: str


def rule_rows() -> list[RuleRow]:
    """Each published rule against the honest one, on worked cases (delta 1e-5), in seconds."""
    rows = []
    for rule, title, case, arguments in _rule_cases(FEMNIST_LIKE):
        found = paper_rules.compare_rule(rule, **arguments)
        figures = (found.published, found.honest, found.stated_epsilon, found.honest_epsilon)
        rows.append(RuleRow(title, case, *figures, found.reason))
    return rows


def rule_markdown(rows: Iterable[RuleRow] | None = None) -> str:
    """`rule_rows` as a Markdown table; None computes them."""
    rows = rule_rows() if rows is None else list(rows)
    head = ("rule", "case", "published", "honest", "epsilon stated", "epsilon true", "why")
    body = [
        (
            row.rule,
            row.case,
            format_figure(row.published),
            format_figure(row.honest),
            format_figure(row.stated_epsilon),
            format_figure(row.honest_epsilon),
            row.reason,
        )
        for row in rows
    ]
    return _markdown_table(head, body)


def _rule_cases(setting: StudySetting) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """The rule, its title, the case in words, and its arguments."""
    budget = {"epsilon": setting.epsilon, "delta": setting.delta}
    steps = setting.rounds * setting.steps_per_round
    sampled = {"q": setting.q, "steps": steps}
    q = f"q = {setting.q:.4g}"
    yield (
        "rounds",
        "rounds cut to R / sqrt(s) (both texts)",
        f"{setting.rounds} rounds' budget, {setting.silos} silos",
        {
            "rounds": setting.rounds,
            "silos": setting.silos,
            "event": _item_events(setting)(_item_noise(setting)),
            "steps_per_round": setting.steps_per_round,
            "delta": setting.delta,
        },
    )
    # Each text with the noise that it calls enough for epsilon 4.
    for text, rate, noise in ((2022, "q", _item_noise), (2023, "k q", _published_noise)):
        sigma = noise(setting)
        yield (
            "higradavg_rate",
            f"HiGradAvg's rate {rate} ({text} text)",
            f"{q}, k = {setting.k}, sigma {format_figure(sigma)}, {steps} steps",
            {
                **sampled,
                "k": setting.k,
                "text": text,
                "noise_multiplier": sigma,
                "delta": setting.delta,
            },
        )
    for group in (2, 3, 5):
        yield (
            "local_group_noise",
            "LocalGroupDP's sigma_Z, Z of the batch (both texts)",
            f"Z = {group}, enforced, of k = 9; {q}, {steps} steps",
            {**sampled, **budget, "group": group, "k": 9},
        )
    for epsilon in (4.0, 10.0):
        yield (
            "userldp_condition",
            "UserLDP's 1 / (sqrt(2 pi) eps delta e^eps)",
            f"epsilon {epsilon:g}, one step",
            {"epsilon": epsilon, "delta": 1e-5},
        )
    yield (
        "element_amplification",
        "an element amplified by sampling subjects (Asi, Duchi, Javidi, Prop. 2 (i))",
        "p = 0.01, sigma 2, 1000 steps",
        {"p": 0.01, "noise_multiplier": 2.0, "steps": 1000, "delta": 1e-5},
    )
    yield (
        "abadi_bound",
        "c2 q sqrt(T log(1/delta)) / eps (Abadi et al., Theorem 1)",
        f"c2 = 1, {q}, {steps} steps",
        {**sampled, **budget, "c2": 1.0},
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


def _markdown_table(head: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table, one line a row, ending in a newline."""
    lines = [head, tuple("---" for _ in head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
