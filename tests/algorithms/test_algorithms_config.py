# SPDX-License-Identifier: Apache-2.0
"""Algorithms as configurations: what they refuse, how they are saved, by what they divide."""

import json
import math

import numpy as np
import pytest

from tf_subjectdp import accounting
from tf_subjectdp.algorithms import (
    GroupDP,
    HiGradAvg,
    ItemDP,
    SamplingFacts,
    SubjectDP,
    UserLDP,
    algorithm_from_config,
)

ALGORITHMS = [
    ItemDP(0.5),
    HiGradAvg(clip_norm=2),
    HiGradAvg(1.0, normalization="expected_subjects"),
    GroupDP(1.0),
    GroupDP(1.0, max_items_per_subject=np.int64(3)),
    SubjectDP(np.float32(0.25)),
    UserLDP(3.0),
]
FACTS = SamplingFacts(
    scheme="poisson_items",
    rate=0.1,
    n_items=480,
    n_subjects=100,
    batch_size=48.0,
    expected_subjects=31.5,
    max_items=9,
)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_config_survives_json(algorithm):
    config = json.loads(json.dumps(algorithm.get_config()))
    assert algorithm_from_config(config) == algorithm


def test_unknown_algorithms_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'Nobody' is unknown.*'HiGradAvg'"):
        algorithm_from_config({"name": "Nobody", "clip_norm": 1.0})


@pytest.mark.parametrize("kind", [ItemDP, HiGradAvg, GroupDP, SubjectDP, UserLDP])
def test_clip_norms_out_of_range_are_refused_by_value(kind):
    for value in (0.0, -1.0, math.nan, math.inf, 1e-20, 1e31):
        with pytest.raises(ValueError, match="clip_norm="):
            kind(clip_norm=value)
    for value in ("1", None, True):
        with pytest.raises(TypeError, match="clip_norm="):
            kind(clip_norm=value)


def test_caps_and_normalizations_out_of_range_are_refused():
    with pytest.raises(ValueError, match="max_items_per_subject=0 must be at least 1"):
        GroupDP(1.0, max_items_per_subject=0)
    with pytest.raises(TypeError, match="max_items_per_subject=1.5"):
        GroupDP(1.0, max_items_per_subject=1.5)
    with pytest.raises(ValueError, match="normalization='subjects'.*expected_items"):
        HiGradAvg(1.0, normalization="subjects")


def test_the_sum_is_divided_by_a_constant_of_the_plan_never_by_the_realised_batch():
    divisors = [algorithm.divisor(FACTS) for algorithm in ALGORITHMS]
    assert divisors == [48.0, 48.0, 31.5, 48.0, 48.0, 31.5, 1.0]


def test_presence_keeps_its_digits_for_tiny_rates():
    of = SamplingFacts(
        scheme="poisson_items",
        rate=1e-12,
        n_items=10**9,
        n_subjects=10**6,
        batch_size=1e-3,
        expected_subjects=1e-3,
        max_items=5,
    )
    assert of.subject_rate == pytest.approx(5e-12, rel=1e-9)
    event = SubjectDP(1.0).subject_guarantee(of, 1.0).events[0]
    assert event == accounting.subject_event(of.subject_rate, 1.0)
