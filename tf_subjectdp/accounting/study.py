# SPDX-License-Identifier: Apache-2.0
"""Two tables that a privacy officer can have made again: the papers' rules against the honest ones.

`study_rows` runs the experiments' settings (FEMNIST-like, Shakespeare-like) through the texts'
rules; `rule_rows` shows what each published rule promises and what it gives. Both come as data and
as Markdown, and are computed anew at every call: seconds, not minutes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from tf_subjectdp.accounting import paper_rules, solve
from tf_subjectdp.accounting.papers.study_rules import RuleRow, rule_markdown, rule_rows
from tf_subjectdp.accounting.papers.study_settings import (
    FEMNIST_LIKE,
    SHAKESPEARE_LIKE,
    StudySetting,
    format_figure,
    item_events,
    item_noise,
    markdown_table,
    noise_for,
    published_noise,
    subject_events,
)

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
    return markdown_table(("", *names), body)


def _epsilon(setting: StudySetting, subject: bool, rounds: int, silos: int) -> float:
    """epsilon of the item-rate noise, after `rounds` of `silos` silos, at either rate."""
    event = (subject_events if subject else item_events)(setting)(item_noise(setting))
    return solve.epsilon(event, rounds * setting.steps_per_round * silos, delta=setting.delta)


def _paper_rounds(setting: StudySetting) -> int:
    rule = paper_rules.compare_rule("rounds", rounds=setting.rounds, silos=setting.silos)
    return int(rule.published)


_STUDY: dict[str, tuple[str, Callable[[StudySetting], float]]] = {
    "sigma_item": (
        "sigma for R rounds, one silo, item rate q (2022 text)",
        item_noise,
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
        lambda s: noise_for(s, subject_events(s), 1),
    ),
    "sigma_subject_all": (
        "sigma for R rounds, all silos, true subject rate",
        lambda s: noise_for(s, subject_events(s), s.silos),
    ),
    "sigma_published": (
        "sigma for R rounds, one silo, published rate k q (2023 text)",
        published_noise,
    ),
}
#: The study's lines, in order.
STUDY_KEYS: tuple[str, ...] = tuple(_STUDY)
