# SPDX-License-Identifier: Apache-2.0
"""The papers' rules: the published number comes out, and never without the honest one."""

import math
import warnings

import pytest

from tf_subjectdp import accounting as acc
from tf_subjectdp.accounting import paper_rules as rules
from tf_subjectdp.accounting.paper_rules import PaperRuleWarning

ITEM = 0.016151419558359623  # 512 of 31,700 items


def _warned(function, *args, **kwargs):
    with pytest.warns(PaperRuleWarning) as record:
        value = function(*args, **kwargs)
    assert len(record) == 1
    assert record[0].filename == __file__  # the caller's line, not the library's
    return value, record[0].message


def _tells(warning, number):
    """Whether the text contains the number, as it prints numbers."""
    return f"{number:.6g}" in str(warning)


def test_rounds_give_the_published_floor_and_the_honest_one():
    value, warning = _warned(rules.paper_rounds, 100, 16)
    assert (value, warning.published, warning.honest) == (25, 25, 6)
    assert isinstance(value, int)
    assert _tells(warning, 25) and "6 (R / s)" in str(warning)
    assert warning.honest_epsilon is None


def test_rounds_tell_the_epsilon_of_reference_o24():
    event = acc.item_event(ITEM, 1.5537692098577436)
    _, warning = _warned(rules.paper_rounds, 100, 16, event=event, steps_per_round=62, delta=1e-5)
    assert warning.stated_epsilon == pytest.approx(4.0, rel=1e-4)
    assert warning.honest_epsilon == pytest.approx(8.978541810899834, rel=1e-3)
    assert _tells(warning, warning.honest_epsilon)
    kept = acc.epsilon(event, 6 * 16 * 62, delta=1e-5)
    assert kept <= warning.stated_epsilon < acc.epsilon(event, 7 * 16 * 62, delta=1e-5)


@pytest.mark.parametrize(
    "rounds, silos, published", [(0, 4, 0), (10, 2, 7), (99, 9, 33), (10**15, 10**14 + 1, 99999999)]
)
def test_rounds_are_floored_in_exact_arithmetic(rounds, silos, published):
    assert rules.compare_rule("rounds", rounds=rounds, silos=silos).published == published


def test_a_rule_that_happens_to_be_right_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rules.paper_rounds(100, 1) == 100
        assert rules.paper_higradavg_rate(0.02, 1, text=2022) == 0.02
        assert rules.paper_higradavg_rate(0.02, 1, text=2023) == 0.02


def test_rate_of_2022_is_the_items_and_far_too_small():
    value, warning = _warned(
        rules.paper_higradavg_rate,
        ITEM,
        9,
        text=2022,
        noise_multiplier=12.0,
        steps=6200,
        delta=1e-5,
    )
    assert value == ITEM
    assert warning.honest == pytest.approx(1.0 - (1.0 - ITEM) ** 9, rel=1e-12)
    assert warning.honest_epsilon == pytest.approx(3.8624, rel=2e-3)
    assert warning.stated_epsilon < 0.5
    assert _tells(warning, warning.honest_epsilon)


def test_rate_of_2023_is_an_upper_bound_that_can_exceed_one():
    value, warning = _warned(
        rules.paper_higradavg_rate,
        ITEM,
        9,
        text=2023,
        noise_multiplier=12.0,
        steps=6200,
        delta=1e-5,
    )
    assert value == pytest.approx(9 * ITEM)
    assert warning.stated_epsilon == pytest.approx(4.15889128184766, rel=1e-3)
    assert warning.honest_epsilon == pytest.approx(3.8624, rel=2e-3)
    assert "the guarantee holds" in str(warning)
    value, warning = _warned(rules.paper_higradavg_rate, 0.2, 10, text=2023)
    assert value == pytest.approx(2.0)
    assert 0.0 < warning.honest < 1.0


@pytest.mark.parametrize("group, true", [(2, 24.0), (3, 13.9), (5, 7.3)])
def test_local_group_noise_states_four_and_gives_what_the_study_found(group, true):
    value, warning = _warned(
        rules.paper_local_group_noise, group, k=9, q=ITEM, steps=6200, epsilon=4.0, delta=1e-5
    )
    assert warning.stated_epsilon == 4.0
    assert warning.honest_epsilon == pytest.approx(true, rel=5e-3)
    assert value == warning.published < warning.honest
    assert _tells(warning, warning.honest_epsilon)
    # The published calibration: the item's share by the loose group rule.
    kept = acc.epsilon(
        acc.item_event(ITEM, value),
        6200,
        delta=1e-5 * math.exp(-(group - 1) * 4.0 / group) / group,
    )
    assert kept == pytest.approx(4.0 / group, rel=1e-3)


def test_local_group_noise_honest_value_is_reference_o16():
    found = rules.compare_rule(
        "local_group_noise", group=2, k=9, q=ITEM, steps=6200, epsilon=4.0, delta=1e-5
    )
    assert found.honest == pytest.approx(12.389534896068398, rel=1e-3)


def test_local_group_noise_for_all_the_items_is_sound_and_says_so():
    found = rules.compare_rule(
        "local_group_noise", group=3, k=3, q=0.02, steps=200, epsilon=2.0, delta=1e-5
    )
    assert found.honest_epsilon <= 2.0
    assert "group privacy is sound" in str(found)


def test_userldp_condition_fails_where_epsilon_is_large_or_delta_is():
    value, warning = _warned(rules.paper_userldp_condition, 10.0, 1e-5)
    assert value == pytest.approx(1.0 / (math.sqrt(2.0 * math.pi) * 1e-4 * math.exp(10.0)))
    assert warning.honest_epsilon > 100.0
    assert warning.honest == pytest.approx(0.99975, rel=1e-3)
    assert _tells(warning, warning.honest_epsilon)
    assert rules.compare_rule("userldp_condition", epsilon=1.0, delta=0.1).honest_epsilon > 1.9


def test_userldp_condition_asks_too_much_where_delta_is_small_and_says_so():
    _, warning = _warned(rules.paper_userldp_condition, 4.0, 1e-5, steps=1000)
    assert warning.published > warning.honest
    assert warning.honest_epsilon < 4.0
    assert "by accident" in str(warning)
    event = acc.user_ldp_event(warning.published)
    assert warning.honest_epsilon == pytest.approx(acc.epsilon(event, 1000, delta=1e-5))


def test_userldp_condition_survives_extreme_arguments():
    assert rules.compare_rule("userldp_condition", epsilon=500.0, delta=1e-5).honest_epsilon == (
        math.inf
    )
    assert rules.compare_rule("userldp_condition", epsilon=1e-3, delta=1e-300).published > 1e290


def test_element_amplification_is_the_studys_case():
    value, warning = _warned(rules.paper_element_amplification, 0.01, 2.0, 1000, delta=1e-5)
    assert value == pytest.approx(1.83, abs=0.01)
    assert warning.honest == warning.honest_epsilon == pytest.approx(23.4, abs=0.05)
    assert _tells(warning, warning.honest_epsilon)


def test_element_amplification_takes_the_whole_subject_where_that_is_smaller():
    case = {"p": 0.01, "noise_multiplier": 2.0, "steps": 1000, "delta": 1e-5}
    alone = rules.compare_rule("element_amplification", **case).honest
    two = rules.compare_rule("element_amplification", elements=2, **case).honest
    ten = rules.compare_rule("element_amplification", elements=10, **case).honest
    # Replacing a subject of two elements of norm rho is O38: sigma 2 / 2, p 0.01.
    assert two == pytest.approx(2.843445811703821, rel=1e-3)
    assert ten == alone  # and the exact 21.4 of ten elements stays below
    assert ten > 21.4


def test_abadi_bound_is_the_formula_with_the_callers_constant():
    value, warning = _warned(rules.abadi_bound, ITEM, 6200, 4.0, 1e-5, c2=1.0)
    assert value == pytest.approx(ITEM * math.sqrt(6200 * math.log(1e5)) / 4.0, rel=1e-12)
    assert warning.honest == pytest.approx(1.5537734912987489, rel=1e-3)
    assert warning.honest_epsilon > 7.0 > warning.stated_epsilon == 4.0
    enough = rules.compare_rule("abadi_bound", q=ITEM, steps=6200, epsilon=4.0, delta=1e-5, c2=2.0)
    assert enough.honest_epsilon < 4.0
    assert "enough here" in str(enough)


def test_abadi_bound_needs_its_constant():
    with pytest.raises(TypeError, match="c2"):
        rules.abadi_bound(0.01, 100, 1.0, 1e-5)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: rules.paper_rounds(-1, 4), "rounds must be at least 0"),
        (lambda: rules.paper_rounds(10, 0), "silos must be at least 1"),
        (lambda: rules.paper_rounds(10, 4, delta=1e-5), "event is missing"),
        (lambda: rules.paper_higradavg_rate(1.5, 2, text=2022), "above 1"),
        (lambda: rules.paper_higradavg_rate(0.1, 2, text=2021), "2022"),
        (lambda: rules.paper_higradavg_rate(0.1, 2, text=2022, steps=5), "missing"),
        (lambda: rules.paper_userldp_condition(0.0, 1e-5), "epsilon must be finite and > 0"),
        (lambda: rules.abadi_bound(0.0, 10, 1.0, 1e-5, c2=1.0), "q and c2 must be above 0"),
        (lambda: rules.compare_rule("nobody"), "name must be one of"),
    ],
)
def test_errors_name_the_value_and_the_bound(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_warning_is_a_user_warning_with_a_reason():
    found = rules.compare_rule("rounds", rounds=10, silos=4)
    assert isinstance(found, UserWarning)
    assert found.rule == "rounds" and found.reason in str(found)
