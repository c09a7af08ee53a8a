# SPDX-License-Identifier: Apache-2.0
"""What bad input gets: an error before any step, with the value, the bound and the remedy."""

import dataclasses
import math
import warnings

import numpy as np
import pytest

import tf_subjectdp as sdp

IDS = np.arange(60) % 12
STATS = sdp.SubjectStats.from_ids(IDS)
X, Y = np.ones((60, 3), np.float32), np.zeros(60, np.float32)


def make(algorithm=None, sampling=None, stats=STATS, **options):
    options = {"steps": 4, "noise_multiplier": 1.0, "delta": 1e-3, **options}
    return sdp.plan(
        algorithm or sdp.HiGradAvg(clip_norm=1.0),
        sampling or sdp.PoissonItems(expected_batch_size=16),
        stats,
        **options,
    )


@pytest.mark.parametrize(
    "lengths, message",
    [
        ({"epochs": None, "steps": None}, "exactly one of epochs= and steps="),
        ({"epochs": 1, "steps": 4}, "exactly one of epochs= and steps="),
        ({"steps": 0}, r"steps=0 must be a whole number of at least 1"),
        ({"steps": -3}, r"steps=-3 must"),
        ({"steps": 2.5}, r"steps=2\.5 must be a whole number"),
        ({"steps": None, "epochs": 0}, r"epochs=0 must be above 0"),
        ({"steps": None, "epochs": math.inf}, r"epochs=inf must"),
        ({"steps": None, "epochs": math.nan}, r"epochs=nan must"),
    ],
)
def test_plan_refuses_a_length_that_is_missing_double_or_out_of_range(lengths, message):
    with pytest.raises(ValueError, match=message):
        make(**lengths)


@pytest.mark.parametrize(
    "promise, message",
    [
        ({"noise_multiplier": None}, "exactly one of epsilon= .* and noise_multiplier="),
        ({"epsilon": 1.0}, "exactly one of epsilon= .* and noise_multiplier="),
        ({"noise_multiplier": None, "epsilon": 0.0}, r"epsilon=0\.0 must be finite and above 0"),
        ({"noise_multiplier": None, "epsilon": -1.0}, r"epsilon=-1\.0 must be finite and above 0"),
        ({"noise_multiplier": None, "epsilon": math.inf}, r"epsilon=inf must be finite"),
        ({"noise_multiplier": None, "epsilon": math.nan}, r"epsilon=nan must be finite"),
        ({"noise_multiplier": None, "epsilon": 1.0, "delta": None}, r"epsilon needs delta="),
        ({"delta": 0.0}, r"delta=0\.0 must lie strictly between 0 and 1"),
        ({"delta": 1.0}, r"delta=1\.0 must lie strictly between 0 and 1"),
        ({"delta": math.nan}, r"delta=nan must lie strictly between 0 and 1"),
        ({"noise_multiplier": -0.5}, r"noise_multiplier=-0\.5 must be finite and at least 0"),
        ({"noise_multiplier": math.nan}, r"noise_multiplier=nan must be finite"),
        ({"max_items_per_subject": 0}, r"max_items_per_subject=0 must be at least 1"),
        ({"unit": "silo"}, r"unit='silo' is unknown; use one of"),
    ],
)
def test_plan_refuses_a_promise_that_is_missing_double_or_out_of_range(promise, message):
    with pytest.raises(ValueError, match=message):
        make(**promise)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan, math.inf])
def test_a_clip_norm_that_is_not_finite_and_positive_is_refused(clip_norm):
    with pytest.raises(ValueError, match="clip_norm=.* must be finite and above 0"):
        sdp.HiGradAvg(clip_norm=clip_norm)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": "4"},
        {"steps": True},
        {"noise_multiplier": "1"},
        {"noise_multiplier": None, "epsilon": "4"},
        {"delta": "1e-5"},
        {"max_items_per_subject": 2.0},
        {"algorithm": "HiGradAvg"},
        {"sampling": 16},
        {"stats": IDS},
    ],
)
def test_a_wrong_type_is_a_type_error_that_names_the_argument(options):
    (name,) = [key for key, value in options.items() if value is not None]
    with pytest.raises(TypeError, match=rf"{name}(=| is of type)"):
        make(**options)


@pytest.mark.parametrize(
    "sampling",
    [sdp.PoissonItems(61), sdp.PoissonSubjects(13), sdp.FixedSize(61), sdp.Shuffle(61)],
)
def test_a_batch_above_the_data_is_refused_with_the_bound(sampling):
    with pytest.raises(ValueError, match="batch above the data: .* at most (60|12)"):
        make(sampling=sampling)


def test_a_delta_not_below_one_over_the_subjects_warns():
    with pytest.warns(UserWarning, match=r"delta=0\.1 is not below 1 / subjects") as said:
        make(delta=0.1)
    assert said[0].filename == __file__  # not a file of the library


def test_delta_is_held_against_the_number_of_what_is_protected():
    ids = np.arange(200) // 10
    stats = sdp.SubjectStats.from_ids(ids, np.arange(200) // 2)
    made = {"stats": stats, "sampling": sdp.PoissonItems(20)}
    item, element = (
        {"algorithm": sdp.ItemDP(1.0), "unit": "item"},
        {"algorithm": sdp.ElementDP(1.0)},
    )
    for options, number, name in ((item, 200, "items"), (element, 100, "elements")):
        with pytest.warns(UserWarning, match=f"is not below 1 / {name} = {1 / number:g}: .* one "):
            make(**made, **options, delta=1 / number)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plan = make(**made, **options, delta=0.99 / number)
        # Where none was given, the statement takes one that a promise to this unit may have.
        assert dataclasses.replace(plan, delta=None).stated_delta == pytest.approx(0.1 / number)


@pytest.mark.parametrize("algorithm", [sdp.SubjectDP(1.0), sdp.GroupDP(1.0), sdp.UserLDP(1.0)])
def test_no_combination_of_unit_and_sampling_is_accepted_without_a_guarantee(algorithm):
    for sampling in (
        sdp.PoissonItems(16),
        sdp.PoissonSubjects(4),
        sdp.FixedSize(8),
        sdp.Shuffle(8),
    ):
        for unit in ("subject", "item"):
            try:
                plan = make(algorithm, sampling, unit=unit, noise_multiplier=5.0)
            except ValueError as error:
                assert "no proven guarantee" in str(error)
            else:
                assert 0.0 < plan.epsilon() < math.inf


@pytest.mark.parametrize(
    "ids, message",
    [
        (None, "subject_id is missing.*patient_id"),
        (IDS[:-1], "unequal numbers of rows|59"),
        ([*(["a"] * 58), "", "b"], "58"),
        ([*(["a"] * 57), None, "b", "c"], "57"),
        (np.where(np.arange(60) == 7, np.nan, IDS), "7"),
    ],
)
def test_missing_ids_are_refused_and_the_first_row_is_named(ids, message):
    plan = make(stats=sdp.SubjectStats.public(n_items=60, n_subjects=12, max_items=60))
    with pytest.raises(ValueError, match=message):
        plan.dataset(X, Y, ids)


@pytest.mark.parametrize("sampling", [sdp.PoissonItems(16), sdp.FixedSize(8)])
def test_unequal_lengths_are_told_before_what_follows_from_them(sampling, caplog):
    """Other numbers of items, people and their items, which are no news where ids are missing."""
    plan = make(sampling=sampling)
    with pytest.raises(ValueError, match="unequal numbers of rows: x has 60.*there are 50 subject"):
        plan.dataset(X, Y, np.arange(50) % 2)
    assert not caplog.messages


def test_an_element_id_is_refused_where_no_element_is_protected():
    with pytest.raises(ValueError, match="element_id was given, but HiGradAvg"):
        make().dataset(X, Y, IDS, element_id=IDS)


def test_a_subject_above_the_planned_k_is_refused_before_any_step():
    with pytest.raises(ValueError, match="a subject has 30 items, above the plan's k=5.*guarantee"):
        make().dataset(X, Y, np.arange(60) % 2)


def test_batches_of_a_fixed_size_refuse_data_of_another_size():
    plan = make(sdp.ItemDP(1.0), sdp.FixedSize(8))
    with pytest.raises(ValueError, match="48 items .*plan was made for 60"):
        plan.dataset(X[:48], Y[:48], IDS[:48])


def test_extending_downward_is_refused():
    with pytest.raises(ValueError, match="3 steps is the new total asked for, below the plan's 4"):
        make().extended(steps=3)


def test_epsilon_without_any_delta_is_refused():
    with pytest.raises(ValueError, match="this plan has no delta; say epsilon"):
        make(delta=None).epsilon()


@pytest.mark.parametrize("steps", [-1, 2.5])
def test_epsilon_of_an_impossible_number_of_steps_is_refused(steps):
    with pytest.raises((TypeError, ValueError), match="steps"):
        make().epsilon(steps=steps)
