# SPDX-License-Identifier: Apache-2.0
"""The one search for a factor, and for a whole number, that keeps a target."""

import math

import pytest

from tf_subjectdp.accounting.searching import largest_integer, smallest_factor

FALLING = {
    "plain": lambda s: 5.0 / s,
    "bent": lambda s: 5.0 / s + 3.0 / s**2,
    "zero from somewhere on": lambda s: max(0.0, 5.0 / s - 0.3),
    "infinite below 7": lambda s: math.inf if s < 7.0 else 30.0 / s,
    "a step": lambda s: 100.0 if s < 3.217 else 0.5,
}
GROWING = {
    "root": lambda n: 0.01 * math.sqrt(n),
    "line": lambda n: 0.003 * n,
    "both": lambda n: 0.01 * math.sqrt(n) + 1e-4 * n,
}


@pytest.mark.parametrize("start", [1.0, 0.02, 4e4])
@pytest.mark.parametrize("target", [0.51, 1.0, 4.0, 17.0])
@pytest.mark.parametrize("name", FALLING)
def test_a_factor_keeps_the_target_and_a_smaller_one_does_not(name, target, start):
    function, calls = FALLING[name], []
    found = smallest_factor(lambda s: calls.append(s) or function(s), target, start)
    assert function(found) <= target < function(found * (1.0 - 1e-4))
    assert found in calls and len(calls) == len(set(calls)) < 40


def test_a_good_guess_saves_calls():
    calls = []
    smallest_factor(lambda s: calls.append(s) or 5.0 / s, 1.0, 5.001, step=1.001)
    assert len(calls) <= 5


def test_the_smallest_factor_of_all_is_enough_or_none_is():
    assert smallest_factor(lambda s: 0.0, 1.0) == 1e-3
    with pytest.raises(ValueError, match="no noise up to 1e"):
        smallest_factor(lambda s: 2.0, 1.0, what="noise")


@pytest.mark.parametrize("target", [0.0105, 0.03, 1.0, 4.0, 100.0])
@pytest.mark.parametrize("name", GROWING)
def test_a_whole_number_keeps_the_target_and_the_next_does_not(name, target):
    # Exactly on the target among them: 0.01 sqrt(10^4) = 1.
    function, calls = GROWING[name], []
    found = largest_integer(lambda n: calls.append(n) or function(n), target, 10**9)
    below = function(found) if found else 0.0
    assert below <= target < function(found + 1)
    assert len(calls) < 20


def test_whole_numbers_end_at_the_first_and_at_the_last():
    assert largest_integer(lambda n: 2.0, 1.0, 100) == 0
    assert largest_integer(lambda n: 0.0, 1.0, 100) == 100
