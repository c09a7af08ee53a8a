# SPDX-License-Identifier: Apache-2.0
"""Findings of a review: a cap on the stats alone, public sizes, figures out of any range."""

import math

import numpy as np
import pytest

import tf_subjectdp as sdp
from tf_subjectdp.statement import privacy_statement

STATS = sdp.SubjectStats.from_ids(np.arange(1000) % 200)
PUBLIC = sdp.SubjectStats.public(n_items=4000, n_subjects=300, max_items=50)


def make(algorithm=None, sampling=None, stats=STATS, **options):
    options = {"steps": 50, "noise_multiplier": 1.5, "delta": 1e-5, **options}
    return sdp.plan(
        algorithm or sdp.HiGradAvg(1.0), sampling or sdp.PoissonItems(20), stats, **options
    )


def flat(plan):
    return " ".join(plan.statement().split())


def test_stats_bounded_beforehand_count_an_item_as_replaced():
    before, by_the_plan = make(stats=STATS.bounded(4)), make(max_items_per_subject=4)
    assert before.facts.data_cap
    assert before.epsilon(unit="item") == by_the_plan.epsilon(unit="item")
    assert before.epsilon(unit="item") > make().epsilon(unit="item")


def test_sizes_read_from_the_data_are_not_covered_even_with_a_public_cap():
    capped, public = flat(make(max_items_per_subject=4)), flat(make(stats=PUBLIC))
    assert "constants read from the data (numbers of rows and subjects, and through" in capped
    assert "constants read from the data (items a subject; numbers of rows" in flat(make())
    assert "constants read" not in public
    assert "constants read" not in flat(make(stats=PUBLIC, max_items_per_subject=10))


def test_public_figures_may_be_capped_below_their_mean():
    plan = make(stats=PUBLIC, max_items_per_subject=10)
    assert (plan.facts.n_items, plan.facts.max_items) == (3000, 10)


def test_the_statement_says_why_an_item_costs_more_than_its_subject():
    one = sdp.SubjectStats.from_ids(np.arange(1000))
    assert "replacing is more than adding" in flat(make(stats=one, max_items_per_subject=1))
    assert "above the figure per subject" not in flat(make())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"steps": 10**400}, "steps=.* must|steps=.* too long"),
        ({"steps": None, "epochs": 1e300}, "epochs=1e\\+300 is too long"),
        ({"noise_multiplier": 10**400}, "noise_multiplier=.* finite"),
        ({"noise_multiplier": 1e-200}, "noise_multiplier=1e-200 must be 0 or between"),
        ({"noise_multiplier": None, "epsilon": 10**400}, "epsilon="),
        ({"max_items_per_subject": 10**30}, "max_items_per_subject=.* at most"),
    ],
)
def test_figures_beyond_the_arithmetic_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
    with pytest.raises(ValueError, match="clip_norm="):
        sdp.HiGradAvg(10**400)


@pytest.mark.parametrize(
    "options, name",
    [
        ({"delta": "x"}, "delta='x'"),
        ({"delta": [1]}, "delta="),
        ({"steps": math.nan}, "steps=nan"),
        ({"steps": math.inf}, "steps=inf"),
        ({"steps": [1]}, "steps="),
        ({"steps": 10**400}, "steps="),
        ({"unit": np.array(["item", "subject"])}, "unit="),
    ],
)
def test_epsilon_names_an_argument_that_is_wrong(options, name):
    with pytest.raises((TypeError, ValueError), match=name):
        make().epsilon(**options)


def test_a_statement_names_a_delta_that_is_no_number():
    with pytest.raises(TypeError, match="delta='x' must be a number"):
        privacy_statement(make(), steps=5, delta="x")


def test_a_sampler_of_ones_own_is_refused():
    class Mine(sdp.PoissonItems):
        pass

    with pytest.raises(ValueError, match="a sampler the accountant does not know"):
        make(sampling=Mine(20))


@pytest.mark.parametrize(
    "build",
    [sdp.Plan.from_config, sdp.SubjectStats.from_config, sdp.algorithms.algorithm_from_config],
)
@pytest.mark.parametrize("config", [{}, {"a": 1}, {"name": "HiGradAvg"}])
def test_a_config_of_something_else_is_refused(build, config):
    with pytest.raises(ValueError, match="config|unknown"):
        build(config)


def test_a_dataset_without_targets_or_with_a_pad_that_is_no_bool_is_refused():
    x = np.zeros((1000, 1), np.float32)
    with pytest.raises(ValueError, match="y is missing"):
        make().dataset(x, None, np.arange(1000) % 200)
    with pytest.raises(TypeError, match="pad='no' must be True or False"):
        make().dataset(x, x, np.arange(1000) % 200, pad="no")
