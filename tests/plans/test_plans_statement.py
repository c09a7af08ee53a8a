# SPDX-License-Identifier: Apache-2.0
"""The privacy statement says what is protected, from whom, under which assumptions, and what is not."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_subjectdp as sdp
from tf_subjectdp.algorithms.base import rounded_up
from tf_subjectdp.statement import privacy_statement

STATS = sdp.SubjectStats.from_ids(np.arange(1000) % 200)


def make(algorithm=None, sampling=None, stats=STATS, **options):
    options = {"steps": 50, "noise_multiplier": 1.5, "delta": 1e-5, **options}
    return sdp.plan(
        algorithm or sdp.HiGradAvg(1.0), sampling or sdp.PoissonItems(20), stats, **options
    )


def flat(text):
    return " ".join(text.split())


def stated(text, unit):
    return float(re.search(rf"Per {unit}: epsilon = ([0-9.]+) at", flat(text)).group(1))


@pytest.mark.parametrize("unit", ["subject", "item"])
@pytest.mark.parametrize("algorithm", [sdp.HiGradAvg(1.0), sdp.ItemDP(1.0)])
def test_stated_epsilons_are_rounded_up_never_down(unit, algorithm):
    plan = make(algorithm, unit=unit)
    for name in ("subject", "item"):
        value = plan.epsilon(unit=name)
        assert value <= stated(plan.statement(), name) <= value + 1e-3
    assert flat(plan.statement()).count("This is the plan's promise") == 1


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.floats(min_value=0.0, max_value=1e30))
def test_a_rounded_epsilon_is_never_below_the_value(value):
    assert float(rounded_up(value)) >= value
    if value < 1e9:
        assert float(rounded_up(value)) <= value + 1.001e-3


def test_a_hair_above_a_round_number_is_not_shown_as_that_number():
    assert rounded_up(1.0) == "1.000"
    assert rounded_up(np.nextafter(1.0, 2.0)) == "1.001"


def test_the_statement_names_all_that_the_guarantee_rests_on():
    text = flat(make().statement())
    for part in (
        "HiGradAvg, if all 50 planned steps are taken",
        "adding or removing one subject with all of their items",
        "From whom: anyone who sees the trained weights",
        "PoissonItems(expected_batch_size=20)",
        "an item's rate q = 0.02",
        "1000 items of 200 subjects",
        "public constants",
        "at most 5",
        "read from these data",
        "standard deviation 1.5 x 1",
        "divided by 20",
        "privacy loss distributions",
        "NOT covered:",
        "metrics, losses",
        "choice of hyperparameters",
        "constants read from the data",
    ):
        assert part in text


def test_the_statement_says_where_k_came_from():
    assert "enforced by dropping" in flat(make(max_items_per_subject=4).statement())
    public = sdp.SubjectStats.public(n_items=1000, n_subjects=200, max_items=9)
    text = flat(make(stats=public).statement())
    assert "at most 9. It is a public figure given by the user" in text
    assert "constants read from the data" not in text


def test_the_statement_says_not_private_without_noise():
    text = flat(make(noise_multiplier=0.0).statement())
    assert "NOT PRIVATE: the noise multiplier is 0" in text
    assert "epsilon = infinite" in text


def test_the_statement_follows_the_steps_taken():
    plan = make()
    half = privacy_statement(plan, steps=25)
    assert "25 of 50 planned steps taken" in flat(half)
    assert plan.epsilon(steps=25) <= stated(half, "subject") < plan.epsilon()


def test_the_statement_names_another_sampling_and_its_adjacency():
    text = flat(make(sdp.ItemDP(1.0), sdp.Shuffle(20), noise_multiplier=20.0).statement())
    assert "Shuffle(batch_size=20, keep_probability=1.0)" in text
    assert "replacing the contents of all items of one subject, in place" in text
    assert "shuffled epochs" in text


def test_caps_in_a_step_are_stated():
    text = flat(make(sdp.GroupDP(1.0), sdp.PoissonSubjects(4, max_items_per_subject=3)).statement())
    assert "a sampled subject brings at most 3 of them to a step" in text
    text = flat(make(sdp.GroupDP(1.0, max_items_per_subject=2)).statement())
    assert "at most 2 of them count in a batch" in text


def test_a_delta_of_ones_own_is_used_and_checked():
    plan = make()
    assert stated(privacy_statement(plan, steps=50, delta=1e-7), "subject") > plan.epsilon()
    with pytest.raises(ValueError, match=r"delta=1\.5 must lie strictly"):
        privacy_statement(plan, steps=50, delta=1.5)


def test_the_unit_of_a_step_is_the_noised_sum_however_the_batch_is_computed():
    """O18: batch 1024 in one piece or in 256: one step, one epsilon."""
    stats = sdp.SubjectStats.public(n_items=50_000, n_subjects=50_000, max_items=1)
    plans = [
        make(sampling=sdp.PoissonItems(1024), stats=stats, epochs=e, steps=s)
        for e, s in ((2, None), (None, 98))
    ]
    assert plans[0] == plans[1]
    assert "if all 98 planned steps are taken" in flat(plans[0].statement())
    config = plans[0].optimizer("sgd", engine={"max_rows": 4}).plan
    assert config.epsilon() == plans[1].epsilon()


def test_part_way_the_statement_gives_what_was_spent_and_what_all_steps_spend():
    plan = make()
    text = flat(privacy_statement(plan, steps=20))
    assert stated(text, "subject") < plan.epsilon()
    assert f"all 50 planned ones spend {rounded_up(plan.epsilon())}" in text
    assert "This is the plan's promise" not in text


@pytest.mark.parametrize("steps", [20, 50, 70])
def test_another_delta_is_never_called_the_plans_promise(steps):
    plan = make()
    text = flat(privacy_statement(plan, steps=steps, delta=0.3))
    assert "plan's promise" not in text
    if steps == 50:
        promised = f"NOT what the plan promises, epsilon = {rounded_up(plan.epsilon())} at"
        assert f"{promised} delta = 1e-05" in text
    without = flat(privacy_statement(make(delta=None), steps=steps))
    assert "promise" not in without.split("From whom")[0]


def test_a_plan_states_an_intent_and_never_says_that_its_steps_were_taken():
    text = flat(make().statement())
    assert "if all 50 planned steps are taken; nothing was trained yet" in text
    assert "planned steps taken" not in text


def test_beyond_the_plan_the_statement_says_that_the_promise_is_broken():
    plan = make()
    text = flat(privacy_statement(plan, steps=70))
    assert "70 steps taken, MORE than the 50 planned" in text
    assert "This is the plan's promise" not in text
    assert f"ABOVE the plan's promise of {rounded_up(plan.epsilon())} for 50 steps" in text


def test_a_printed_plan_names_no_bound_that_is_none():
    plan = make(sdp.SubjectDP(1.0), sdp.PoissonSubjects(20), max_items_per_subject=3)
    for text in (str(plan), flat(plan.statement()), repr(plan.sampling)):
        assert "None" not in text
    assert "max_items_per_subject=3)" in repr(sdp.PoissonSubjects(20, max_items_per_subject=3))
