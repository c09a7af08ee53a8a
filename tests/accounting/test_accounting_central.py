# SPDX-License-Identifier: Apache-2.0
"""Central algorithms: j adds up over the silos before the noise; laws are moved up, never down."""

import dataclasses
import itertools
import math

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from tf_subjectdp import accounting as acc
from tf_subjectdp.accounting.silos import laws
from tf_subjectdp.accounting.silos.central import central_group_event, central_higradavg_event
from tf_subjectdp.accounting.silos.horizontal import HorizontalPlan
from tf_subjectdp.accounting.silos.laws import Law, make_law, sum_law
from tf_subjectdp.accounting.silos.silo import Silo


def _law(event):
    return dict(zip(event.sensitivities, event.sampling_probs, strict=True))


def test_equal_silos_of_central_group_dp_are_one_binomial():
    event = central_group_event([(0.1, 3), (0.1, 4)], 2.0)
    expected = stats.binom.pmf(np.arange(8), 7, 0.1)
    assert event.standard_deviation == 2.0
    assert [_law(event)[float(j)] for j in range(8)] == pytest.approx(expected, rel=1e-12)


def test_one_silo_of_central_group_dp_is_that_silo():
    ours = central_group_event([(0.016, 9)], 6.0, 3)
    silo = acc.group_event(0.016, 9, 6.0, 3)
    assert acc.epsilon(ours, 500, delta=1e-5) == pytest.approx(
        acc.epsilon(silo, 500, delta=1e-5), rel=1e-12
    )


def test_the_cap_holds_in_each_silo_before_the_sum():
    event = central_group_event([(0.3, 4), (0.5, 2)], 2.0, 2)
    first, second = stats.binom.pmf(range(5), 4, 0.3), stats.binom.pmf(range(3), 2, 0.5)
    expected = np.convolve([first[0], first[1], first[2:].sum()], second)
    assert max(event.sensitivities) == 4.0
    assert [_law(event)[float(j)] for j in range(5)] == pytest.approx(expected, rel=1e-12)


def test_presence_in_central_higradavg_is_poisson_binomial():
    silos = [(0.1, 3), (0.2, 1), (0.05, 20)]
    rates = [1 - (1 - q) ** k for q, k in silos]
    expected = np.zeros(4)
    for there in itertools.product((0, 1), repeat=3):
        expected[sum(there)] += math.prod(
            p if t else 1 - p for p, t in zip(rates, there, strict=True)
        )
    event = central_higradavg_event(silos, 3.0)
    assert [_law(event)[float(j)] for j in range(4)] == pytest.approx(expected, rel=1e-12)


def test_central_noise_once_costs_more_than_one_silo_alone_and_grows_with_silos():
    values = [
        acc.epsilon(central_higradavg_event([(0.01, 5)] * s, 6.0), 100, delta=1e-5)
        for s in (1, 2, 4)
    ]
    assert values[0] < values[1] < values[2]
    assert values[0] == pytest.approx(
        acc.epsilon(acc.higradavg_event(0.01, 5, 6.0), 100, delta=1e-5), rel=1e-9
    )


@pytest.mark.parametrize("make", [central_higradavg_event, central_group_event])
@pytest.mark.parametrize(
    "silos", [[(0.1, 3), (0.02, 30), (0.2, 1), (0.01, 9)], [(0.4, 1), (0.1, 4), (0.05, 8)]]
)
def test_silos_per_subject_is_no_less_than_any_choice_and_no_more_than_all(make, silos):
    def cost(event):
        return acc.epsilon(event, 40, delta=1e-5)

    bound = cost(make(silos, 5.0, silos_per_subject=2))
    choices = [cost(make(list(two), 5.0)) for two in itertools.combinations(silos, 2)]
    assert max(choices) * (1 - 1e-9) <= bound <= cost(make(silos, 5.0)) * (1 + 1e-9)
    if make is central_higradavg_event:
        assert bound == pytest.approx(max(choices), rel=1e-9)


def test_the_averaged_view_with_the_noise_split_is_the_central_step():
    silos = [(0.1, 3), (0.02, 30), (0.2, 1), (0.01, 9)]
    plan = HorizontalPlan(
        [Silo(acc.group_event(q, k, 5.0 / math.sqrt(4)), 1, 40) for q, k in silos], view="average"
    )
    central = acc.epsilon(central_group_event(silos, 5.0), 40, delta=1e-5)
    assert plan.epsilon(1e-5) == pytest.approx(central, rel=1e-9)
    two = dataclasses.replace(plan, silos_per_subject=2).epsilon(1e-5)
    choices = [
        acc.epsilon(central_group_event(list(pair), 5.0), 40, delta=1e-5)
        for pair in itertools.combinations(silos, 2)
    ]
    assert two == pytest.approx(max(choices), rel=1e-9)


def test_no_noise_is_not_private():
    assert central_group_event([(0.1, 2)], 0.0) == dp_accounting.NonPrivateDpEvent()


def test_thousands_of_items_in_each_silo_keep_their_mean():
    event = central_group_event([(0.0005406, 4484)] * 16, 60.0)
    mean = np.dot(event.sensitivities, event.sampling_probs)
    assert mean == pytest.approx(16 * 4484 * 0.0005406, rel=1e-9)
    assert math.isfinite(acc.epsilon(event, 400, delta=1e-5))


def test_a_sum_with_too_many_values_is_moved_up_and_by_little():
    rng = np.random.default_rng(0)
    weights, rates = rng.uniform(0.2, 3.0, 13), rng.uniform(0.01, 0.3, 13)
    pairs = list(zip(weights, rates, strict=True))
    coarse = sum_law(tuple(make_law([0, w], [1 - p, p]) for w, p in pairs))
    values, mass = np.zeros(1), np.ones(1)
    for w, p in pairs:  # all 8,192 values, none merged
        values = np.concatenate([values, values + w])
        mass = np.concatenate([mass * (1 - p), mass * p])
    order = np.argsort(values)
    exact = Law(tuple(values[order]), tuple(mass[order]))
    assert len(coarse.values) < len(exact.values)
    assert laws.dominates(coarse, exact)
    assert not laws.dominates(exact, coarse)
    assert exact.mean <= coarse.mean <= exact.mean * 1.001
    assert math.fsum(coarse.probabilities) == pytest.approx(1.0, abs=1e-12)
    assert coarse.probabilities[0] == pytest.approx(np.prod(1 - rates), rel=1e-9)


def test_the_join_dominates_its_parts_and_they_the_meet():
    parts = (make_law([0, 1, 5], [0.5, 0.4, 0.1]), make_law([0, 2], [0.7, 0.3]))
    assert all(laws.dominates(laws.join(parts), part) for part in parts)
    assert all(laws.dominates(part, laws.meet(parts)) for part in parts)
    assert not laws.dominates(parts[0], parts[1])
    assert not laws.dominates(parts[1], parts[0])


@pytest.mark.parametrize(
    ("silos", "error", "word"),
    [
        ([], ValueError, "empty"),
        ([(0.1, 2, 3)], TypeError, "pairs"),
        ([0.1], TypeError, "pairs"),
        (7, TypeError, "list"),
        ([(1.5, 2)], ValueError, "1.5"),
        ([(0.1, 0)], ValueError, "at least 1"),
    ],
)
def test_wrong_silos_are_refused_by_name(silos, error, word):
    with pytest.raises(error, match=word):
        central_group_event(silos, 2.0)
    with pytest.raises(error, match=word):
        central_higradavg_event(silos, 2.0)
