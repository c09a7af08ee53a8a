# SPDX-License-Identifier: Apache-2.0
"""The study's table comes out of the library itself.

Expected figures were measured with dp_accounting's loss distributions. Those that the study calls
"about" were measured on a coarse grid (interval 1e-3) that lies some percent above the truth:
51.7 is 51.15, 104 is 99.9 and 96 is 92.7 on a fine one (2e-5).
"""

import math

import pytest

from tf_subjectdp import accounting as acc
from tf_subjectdp.accounting import study

# key: (FEMNIST-like, Shakespeare-like); None is "more than", tested apart.
EXPECTED = {
    "sigma_item": (1.553, 0.683),
    "epsilon_item_root": (8.98, 8.91),
    "epsilon_item_fair": (3.91, 3.91),
    "epsilon_item_all": (21.5, 21.3),
    "epsilon_subject_one": (69.0, None),
    "epsilon_subject_root": (205.0, None),
    "sigma_subject_one": (12.82, 92.7),
    "sigma_subject_all": (51.15, 371.0),
    "sigma_published": (13.78, 99.9),
}
REL_TOL = 4e-3  # the table's own rounding: 69 is 69.1, 8.91 is 8.906


def test_settings_are_those_of_the_study():
    femnist, shakespeare = study.FEMNIST_LIKE, study.SHAKESPEARE_LIKE
    assert (femnist.silo_items, femnist.k, femnist.steps_per_round) == (31718, 10, 62)
    assert (shakespeare.silo_items, shakespeare.k, shakespeare.steps_per_round) == (
        184965,
        281,
        1850,
    )
    assert femnist.q == 512 / 31718


def test_femnist_column_is_the_studys():
    rows = study.study_rows([study.FEMNIST_LIKE])
    assert [row.key for row in rows] == list(study.STUDY_KEYS) == list(EXPECTED)
    for row in rows:
        assert row.values[0] == pytest.approx(EXPECTED[row.key][0], rel=REL_TOL), row.key


def test_shakespeare_noise_at_the_true_rate_keeps_four_and_barely():
    setting, steps = study.SHAKESPEARE_LIKE, 200 * 1850
    for sigma, low, high in ((92.721, 3.999, 4.0), (92.5, 4.0, 4.1)):
        event = acc.higradavg_event(setting.q, setting.k, sigma)
        assert low < acc.epsilon(event, steps, delta=setting.delta) <= high


@pytest.mark.slow  # a minute or more: 370,000 steps at rate 0.0005, and 5.9 million
def test_shakespeare_column_is_the_studys():
    values = {row.key: row.values[0] for row in study.study_rows([study.SHAKESPEARE_LIKE])}
    assert values.pop("epsilon_subject_one") > 1e4
    assert values.pop("epsilon_subject_root") > 5e4
    assert values["sigma_subject_all"] > 200.0
    for key, value in values.items():
        assert value == pytest.approx(EXPECTED[key][1], rel=REL_TOL), key


def test_honest_noise_is_less_than_the_published_upper_bound_and_more_than_the_item_rate():
    small = study.StudySetting(
        name="small", subjects=400, items=12, batch=30, rounds=20, silos=4, epsilon=3.0
    )
    values = {row.key: row.values[0] for row in study.study_rows([small])}
    assert values["sigma_item"] < values["sigma_subject_one"] < values["sigma_published"]
    assert values["sigma_subject_one"] < values["sigma_subject_all"]
    assert values["epsilon_item_fair"] <= 3.0 < values["epsilon_item_root"]
    assert values["epsilon_item_root"] < values["epsilon_item_all"]
    assert values["epsilon_subject_one"] < values["epsilon_subject_root"]
    table = study.study_markdown(study.study_rows([small], keys=["sigma_item"]), ["small"])
    assert table.startswith("|  | small |\n| --- | --- |\n| sigma for R rounds")


def test_rules_table_is_complete_and_honest():
    rows = study.rule_rows()
    by_rule = {}
    for row in rows:
        assert row.honest_epsilon > 0.0 and row.reason
        by_rule.setdefault(row.rule.split()[0], []).append(row)
    rounds = by_rule["rounds"][0]
    assert (rounds.published, rounds.honest) == (25, 6)
    assert rounds.honest_epsilon == pytest.approx(8.98, rel=REL_TOL)
    q_rate, kq_rate = by_rule["HiGradAvg's"]
    assert q_rate.honest_epsilon == pytest.approx(69.1, rel=REL_TOL)
    assert kq_rate.honest_epsilon < kq_rate.stated_epsilon <= 4.0
    groups = [row.honest_epsilon for row in by_rule["LocalGroupDP's"]]
    assert groups == pytest.approx([24.0, 13.9, 7.3], rel=5e-3)
    assert by_rule["an"][0].honest_epsilon == pytest.approx(23.4, abs=0.05)
    text = study.rule_markdown(rows)
    assert text.count("\n") == len(rows) + 2
    assert all(line.count("|") == 8 for line in text.splitlines())
    for row in rows:
        assert study.format_figure(row.honest_epsilon) in text


@pytest.mark.parametrize(
    "value, text",
    [
        (25, "25"),
        (4.0, "4"),
        (4.00001, "4.000"),
        (1.55309, "1.554"),
        (21.5366, "21.54"),
        (205.3057, "205.4"),
        (0.0301067, "0.03011"),
        (15292.7, "> 10,000"),
        (123456.0, "> 100,000"),
        (math.inf, "infinite"),
        (0.0, "0"),
        (1e-9, "1.001e-09"),
    ],
)
def test_figures_are_rounded_up(value, text):
    assert study.format_figure(value) == text


def test_study_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="keys must be among"):
        study.study_rows(keys=["sigma_wishful"])
    with pytest.raises(TypeError, match="StudySetting"):
        study.study_rows(["FEMNIST"])
    with pytest.raises(ValueError, match="batch must be at most the 31718 items"):
        study.StudySetting(name="x", subjects=3500, items=145, batch=40000, rounds=1)
    with pytest.raises(ValueError, match="headings"):
        study.study_markdown([study.StudyRow("a", "b", (1.0,))], ["one", "two"])
    with pytest.raises(ValueError, match="below"):
        study.format_figure(-1.0)
