# SPDX-License-Identifier: Apache-2.0
"""The error bound against simulated releases: never below them, and not far above."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_subjectdp import release
from tf_subjectdp.release.bounds import _binomial_excess, _excess

_N, _D, _M = 60, 24, 30


def _law(kind):
    p = {
        "even": np.ones(_D),
        "zipf": 1.0 / np.arange(1, _D + 1),
        "one": np.r_[40.0, np.ones(_D - 1)],
    }[kind]
    return p / p.sum()


def _measured(p, block, radius, sigma, level, repetitions=300):
    """Mean and standard error of |estimate / m - p|^2 over fresh data and noise."""
    rng = np.random.default_rng(11)
    errors = []
    for seed in range(repetitions):
        counts = rng.multinomial(_M, p, size=_N)
        if level == "user":
            made = release.user_level_histogram(
                counts, radius=radius, noise_multiplier=sigma, seed=seed
            )
        else:
            made = release.histogram(
                counts, radius=radius, noise_multiplier=sigma, block=block, seed=seed
            )
        errors.append(np.sum((made.estimate / _M - p) ** 2))
    return np.mean(errors), np.std(errors) / math.sqrt(repetitions)


@pytest.mark.parametrize("kind", ["even", "zipf", "one"])
@pytest.mark.parametrize("radius", [0.7, 2.0, 8.0])
@pytest.mark.parametrize("level", ["element", "blocks", "user"])
def test_bound_is_above_the_measured_error_and_not_by_much(kind, radius, level):
    """The mean of 300 runs may lie 5 standard errors above by chance: 3e-7 a case."""
    p = _law(kind)
    block = np.arange(_D) // 4 if level == "blocks" else None
    name = "user" if level == "user" else "element"
    bound = release.error_bound(
        p,
        n_subjects=_N,
        items=_M,
        radius=radius,
        noise_multiplier=1.5,
        block=block,
        level=name,
    )
    mean, error = _measured(p, block, radius, 1.5, name)
    assert bound.total >= mean - 5 * error
    assert bound.total == bound.sampling + bound.noise + bound.bias
    # One word an element: bias and noise are exact. Else the bias is bounded by norms.
    assert bound.total <= (1.6 if level == "element" else 8.0) * mean


def test_noise_term_is_exact_and_bias_vanishes_for_a_large_radius():
    p = _law("zipf")
    bound = release.error_bound(p, n_subjects=_N, items=_M, radius=float(_M), noise_multiplier=2.0)
    assert bound.noise == pytest.approx(_D * (2.0 * _M / (_N * _M)) ** 2)
    assert bound.bias == pytest.approx(0.0, abs=1e-20)
    assert bound.sampling == pytest.approx((1.0 - np.sum(p**2)) / (_N * _M))


def test_radii_of_their_own_are_those_of_a_two_stage_release():
    p = _law("zipf")
    counts = np.random.default_rng(0).multinomial(_M, p, size=4000)
    made = release.two_stage_histogram(counts, items=_M, epsilon=1.0, delta=1e-5, seed=0)
    bound = release.error_bound(
        p, n_subjects=4000, items=_M, radius=made.radius, noise_multiplier=made.noise_multiplier
    )
    assert bound.noise == pytest.approx(np.sum((made.noise_stddev / _M) ** 2))
    # One run: chi-square-like, well within three times its expectation for 24 words.
    assert np.sum((made.estimate / _M - p) ** 2) < 3 * bound.total


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 60), st.floats(0, 1), st.floats(1e-3, 80))
def test_binomial_excess_is_the_sum_over_the_law(m, p, rho):
    law = [math.comb(m, k) * p**k * (1.0 - p) ** (m - k) for k in range(m + 1)]
    exact = math.fsum(max(k - rho, 0.0) * share for k, share in enumerate(law))
    found = float(_binomial_excess(m, np.array([p]), np.array([rho]))[0])
    assert found == pytest.approx(exact, rel=1e-7, abs=1e-9 * m)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0, 50), min_size=1, max_size=8),
    st.floats(-20, 50),
)
def test_excess_holds_for_every_law_of_that_second_moment(values, room):
    r = np.array(values)
    found = float(_excess(np.array([np.mean(r**2)]), np.array([room]))[0])
    assert found >= np.mean(np.maximum(r - room, 0.0)) * (1 - 1e-12) - 1e-12


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"probabilities": [0.5, 0.4]}, ValueError, "sum"),
        ({"probabilities": [1.5, -0.5]}, ValueError, "numbers >= 0"),
        ({"probabilities": [math.nan, 1.0]}, ValueError, "numbers >= 0"),
        ({"probabilities": [[1.0]]}, ValueError, "vector"),
        ({"n_subjects": 0}, ValueError, "n_subjects"),
        ({"items": 2.5}, TypeError, "items"),
        ({"radius": [1.0]}, ValueError, "each of the 2"),
        ({"radius": [1.0, 0.0]}, ValueError, "above 0"),
        ({"radius": -1.0}, ValueError, "radius"),
        ({"noise_multiplier": -1.0}, ValueError, "noise_multiplier"),
        ({"level": "word"}, ValueError, "level"),
        ({"level": "user", "block": [0, 1]}, ValueError, "leave block out"),
    ],
)
def test_bad_arguments_are_refused(more, error, message):
    arguments = {
        "probabilities": [0.5, 0.5],
        "n_subjects": 10,
        "items": 5,
        "radius": 1.0,
        "noise_multiplier": 1.0,
        **more,
    }
    with pytest.raises(error, match=message):
        release.error_bound(arguments.pop("probabilities"), **arguments)
