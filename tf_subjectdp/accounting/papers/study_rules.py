# SPDX-License-Identifier: Apache-2.0
"""Each published rule against the honest one, on worked cases: data and Markdown. See `study`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable

from tf_subjectdp.accounting import paper_rules
from tf_subjectdp.accounting.papers.study_settings import (
    FEMNIST_LIKE,
    format_figure,
    item_events,
    item_noise,
    markdown_table,
    published_noise,
)


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
    return [make() for make in _RULE_CASES]


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
    return markdown_table(head, body)


def _row(name: str, title: str, case: str, **arguments: object) -> RuleRow:
    found = paper_rules.compare_rule(name, **arguments)
    return RuleRow(
        title,
        case,
        found.published,
        found.honest,
        found.stated_epsilon,
        found.honest_epsilon,
        found.reason,
    )


def _rounds_row() -> RuleRow:
    setting = FEMNIST_LIKE
    return _row(
        "rounds",
        "rounds cut to R / sqrt(s) (both texts)",
        f"{setting.rounds} rounds' budget, {setting.silos} silos",
        rounds=setting.rounds,
        silos=setting.silos,
        event=item_events(setting)(item_noise(setting)),
        steps_per_round=setting.steps_per_round,
        delta=setting.delta,
    )


def _rate_row(text: int) -> RuleRow:
    setting = FEMNIST_LIKE
    # Each text with the noise that it calls enough for epsilon 4.
    sigma = item_noise(setting) if text == 2022 else published_noise(setting)
    return _row(
        "higradavg_rate",
        f"HiGradAvg's rate {'q' if text == 2022 else 'k q'} ({text} text)",
        f"q = {setting.q:.4g}, k = {setting.k}, sigma {format_figure(sigma)}, {_steps()} steps",
        q=setting.q,
        k=setting.k,
        text=text,
        noise_multiplier=sigma,
        steps=_steps(),
        delta=setting.delta,
    )


def _group_row(group: int) -> RuleRow:
    setting = FEMNIST_LIKE
    return _row(
        "local_group_noise",
        "LocalGroupDP's sigma_Z, Z of the batch (both texts)",
        f"Z = {group}, enforced, of k = 9; q = {setting.q:.4g}, {_steps()} steps",
        group=group,
        k=9,
        q=setting.q,
        steps=_steps(),
        epsilon=setting.epsilon,
        delta=setting.delta,
    )


def _user_row(epsilon: float) -> RuleRow:
    return _row(
        "userldp_condition",
        "UserLDP's 1 / (sqrt(2 pi) eps delta e^eps)",
        f"epsilon {epsilon:g}, one step",
        epsilon=epsilon,
        delta=1e-5,
    )


def _element_row() -> RuleRow:
    return _row(
        "element_amplification",
        "an element amplified by sampling subjects (Asi, Duchi, Javidi, Prop. 2 (i))",
        "p = 0.01, sigma 2, 1000 steps",
        p=0.01,
        noise_multiplier=2.0,
        steps=1000,
        delta=1e-5,
    )


def _abadi_row() -> RuleRow:
    setting = FEMNIST_LIKE
    return _row(
        "abadi_bound",
        "c2 q sqrt(T log(1/delta)) / eps (Abadi et al., Theorem 1)",
        f"c2 = 1, q = {setting.q:.4g}, {_steps()} steps",
        q=setting.q,
        steps=_steps(),
        epsilon=setting.epsilon,
        delta=setting.delta,
        c2=1.0,
    )


def _steps() -> int:
    return FEMNIST_LIKE.rounds * FEMNIST_LIKE.steps_per_round


_RULE_CASES: tuple[Callable[[], RuleRow], ...] = (
    _rounds_row,
    functools.partial(_rate_row, 2022),
    functools.partial(_rate_row, 2023),
    functools.partial(_group_row, 2),
    functools.partial(_group_row, 3),
    functools.partial(_group_row, 5),
    functools.partial(_user_row, 4.0),
    functools.partial(_user_row, 10.0),
    _element_row,
    _abadi_row,
)
