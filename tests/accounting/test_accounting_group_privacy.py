# SPDX-License-Identifier: Apache-2.0
"""Group privacy: closed forms against references (O17..O21), inverses, and end to end (O19)."""

import math

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_subjectdp import accounting as acc
from tf_subjectdp.accounting import group_privacy as group
from tf_subjectdp.accounting.engine.gaussian import gaussian_delta, gaussian_epsilon

ITEM = 0.016151419558359623
HYPOTHESIS = settings(max_examples=60, deadline=None, derandomize=True)
epsilons = st.floats(0.0, 30.0)
deltas = st.floats(1e-30, 1e-3)
sizes = st.integers(1, 40)


def _summed(epsilon, delta, size):
    """The walk of `size` neighbours, term by term."""
    return delta * math.fsum(math.exp(min(i * epsilon, 700.0)) for i in range(size))


def test_tight_conversion_equals_reference_o17():
    found = group.group_tight(0.5, 1e-7, 4)
    assert found == pytest.approx((2.0, 9.848692169497236e-07), rel=1e-9)


def test_loose_conversion_equals_reference_o18():
    found = group.group_loose(0.5, 1e-7, 4)
    assert found == pytest.approx((2.0, 1.7926756281352257e-06), rel=1e-9)


def test_renyi_conversion_equals_reference_o20():
    assert group.group_rdp(16.0, 0.01, 4) == pytest.approx((4.0, 0.09), rel=1e-9)


def test_zcdp_conversion_equals_reference_o21():
    rho = group.group_zcdp(0.01, 3)
    assert rho == pytest.approx(0.09, rel=1e-12)
    found = group.zcdp_epsilon(rho, 1e-5)
    assert found == pytest.approx(1.8061580595509894, rel=2e-3)
    assert found <= rho + 2.0 * math.sqrt(rho * math.log(1e5))
    # rho-zCDP knows less than the Gaussian of which it is one property.
    assert found >= gaussian_epsilon(math.sqrt(2.0 * rho), 1e-5) > 1.6599


@HYPOTHESIS
@given(epsilons, deltas, sizes)
def test_tight_is_the_sum_of_the_walk_and_never_above_loose(epsilon, delta, size):
    total = _summed(epsilon, delta, size)
    tight, loose = (f(epsilon, delta, size) for f in (group.group_tight, group.group_loose))
    if total >= 1.0:
        assert tight == (math.inf, 1.0)
    elif total < 1.0 - 1e-9:
        assert tight == pytest.approx((size * epsilon, total), rel=1e-9)
    assert tight.epsilon <= loose.epsilon
    assert tight.delta <= loose.delta * (1.0 + 1e-12)


@HYPOTHESIS
@given(epsilons, deltas, sizes)
def test_ungroup_inverts_group_for_tight_and_loose(epsilon, delta, size):
    for there, back in (
        (group.group_tight, group.ungroup_tight),
        (group.group_loose, group.ungroup_loose),
    ):
        unit = back(epsilon, delta, size)
        assert unit.epsilon * size == pytest.approx(epsilon, rel=1e-12)
        assert unit.delta <= delta * (1.0 + 1e-12)
        if unit.delta > 1e-290:
            assert there(*unit, size) == pytest.approx((epsilon, delta), rel=1e-9)


@HYPOTHESIS
@given(st.floats(2.0, 500.0), st.floats(0.0, 20.0), st.integers(2, 100))
def test_ungroup_inverts_group_for_renyi_zcdp_and_mu(order, value, size):
    assert group.group_rdp(*group.ungroup_rdp(order, value, size), size) == pytest.approx(
        (order, value), rel=1e-12
    )
    assert group.group_zcdp(group.ungroup_zcdp(value, size), size) == pytest.approx(value)
    assert group.group_mu(group.ungroup_mu(value, size), size) == pytest.approx(value)


def test_a_group_of_one_changes_nothing():
    assert group.group_tight(0.7, 1e-6, 1) == (0.7, 1e-6)
    assert group.group_loose(0.7, 1e-6, 1) == (0.7, 1e-6)
    assert group.ungroup_tight(0.7, 1e-6, 1) == pytest.approx((0.7, 1e-6))
    assert group.group_rdp(1.5, 0.3, 1) == (1.5, 0.3)
    assert group.group_zcdp(0.3, 1) == 0.3
    assert group.group_mu(0.3, 1) == 0.3


def test_extreme_arguments_neither_overflow_nor_promise_anything():
    assert group.group_tight(1000.0, 1e-300, 1000) == (math.inf, 1.0)
    assert group.group_loose(1000.0, 1e-300, 1000) == (math.inf, 1.0)
    assert group.group_tight(0.0, 0.4, 3) == group.group_loose(0.1, 0.4, 3) == (math.inf, 1.0)
    assert group.group_tight(1000.0, 0.0, 1000) == (1e6, 0.0)
    assert group.group_tight(0.0, 1e-9, 7).delta == pytest.approx(7e-9)
    assert group.group_tight(1e-14, 1e-9, 7).delta == pytest.approx(7e-9, rel=1e-9)
    # Asked for the impossible, the unit's delta underflows to none: the strict side.
    assert group.ungroup_loose(5000.0, 1e-5, 100) == (50.0, 0.0)
    assert group.ungroup_tight(1000.0, 1e-5, 2).delta == pytest.approx(1e-5 * math.exp(-500.0))


@pytest.mark.parametrize(
    "size, least", [(2, 4.0), (3, 8.0), (4, 8.0), (5, 16.0), (8, 16.0), (9, 32.0)]
)
def test_renyi_conversion_refuses_orders_below_two_to_the_c_plus_one(size, least):
    assert group.group_rdp(least, 0.1, size).order == 2.0
    with pytest.raises(ValueError, match=f"at least {least:g}"):
        group.group_rdp(least - 0.01, 0.1, size)
    with pytest.raises(ValueError, match="at least 2"):
        group.ungroup_rdp(1.9, 0.1, size)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_renyi_conversion_bounds_the_gaussian_whose_group_is_known(size):
    order, mu = 64.0, 0.3
    converted = group.group_rdp(order, 0.5 * order * mu * mu, size)
    assert converted.rdp >= 0.5 * converted.order * (size * mu) ** 2


@pytest.mark.parametrize("size", [2, 5, 30])
@pytest.mark.parametrize("mu", [0.02, 0.3])
def test_tight_conversion_bounds_the_gaussian_whose_group_is_known(size, mu):
    for epsilon in (0.01, 0.1, 0.5):
        claimed = group.group_tight(epsilon, gaussian_delta(mu, epsilon), size)
        if claimed.delta < 1.0:
            assert claimed.delta >= gaussian_delta(size * mu, size * epsilon)


def test_zcdp_epsilon_equals_dp_accountings_conversion_on_a_dense_grid():
    orders = 1.0 + np.geomspace(1e-2, 1e4, 4000)
    for rho, delta in ((1e-4, 1e-6), (0.02, 1e-5), (3.0, 1e-9)):
        expected, _ = dp_accounting.rdp.compute_epsilon(orders, rho * orders, delta)
        assert group.zcdp_epsilon(rho, delta) == pytest.approx(expected, rel=1e-4, abs=1e-9)
    assert group.zcdp_epsilon(0.0, 1e-5) == 0.0


def test_group_epsilon_equals_reference_o19():
    found = acc_group(acc.item_event(ITEM, 4.0), 6200, 2)
    assert found == pytest.approx(2.713389891820035, rel=1e-3)
    assert found > 2.71325  # the truth, by dp_accounting at an interval of 1e-5, is 2.71324


def acc_group(event, steps, size, delta=1e-5, **options):
    return group.group_epsilon(event, steps, size=size, delta=delta, **options)


def test_group_epsilon_keeps_the_inequality_that_defines_it_and_barely():
    event, steps, size, delta = acc.item_event(0.02, 3.0), 500, 3, 1e-6
    for rule, convert in (("tight", group.group_tight), ("loose", group.group_loose)):
        unit = acc_group(event, steps, size, delta, rule=rule) / size
        assert convert(unit, acc.delta(event, steps, epsilon=unit), size).delta <= delta * 1.001
        less = 0.995 * unit
        assert convert(less, acc.delta(event, steps, epsilon=less), size).delta > delta


def test_rules_order_as_the_specification_says_and_none_beats_the_mixture():
    event = acc.item_event(ITEM, 12.0)
    tight, loose, renyi = (acc_group(event, 6200, 8, rule=r) for r in ("tight", "loose", "rdp"))
    mixture = acc.epsilon(acc.group_event(ITEM, 8, 12.0), 6200, delta=1e-5)
    assert mixture == pytest.approx(3.63, abs=0.01)
    assert renyi == pytest.approx(7.97, abs=0.01)
    assert mixture < tight < loose < renyi


def test_rules_of_a_gaussian_all_bound_its_own_group():
    event, steps, size = acc.user_ldp_event(40.0), 50, 3
    exact = acc_group(event, steps, size, rule="fdp")
    assert exact == pytest.approx(gaussian_epsilon(3 * math.sqrt(50) / 20.0, 1e-5), rel=1e-9)
    for rule in ("tight", "loose", "rdp", "zcdp"):
        assert acc_group(event, steps, size, rule=rule) > exact


@pytest.mark.parametrize("rule", ["tight", "loose"])
def test_a_group_of_one_is_the_accountant_itself(rule):
    event = acc.item_event(0.01, 1.0)
    found = acc_group(event, 1000, 1, rule=rule)
    assert found == pytest.approx(acc.epsilon(event, 1000, delta=1e-5), rel=2e-6)
    renyi = acc_group(event, 1000, 1, rule="rdp")
    assert renyi == pytest.approx(acc.epsilon(event, 1000, delta=1e-5, engine="rdp"), rel=1e-3)


def test_group_epsilon_grows_with_the_group_and_the_steps_and_falls_with_delta():
    event = acc.item_event(0.01, 3.0)
    by_size = [acc_group(event, 300, g) for g in (1, 2, 3, 5)]
    by_steps = [acc_group(event, t, 2) for t in (100, 300, 900)]
    by_delta = [acc_group(event, 300, 2, d) for d in (1e-4, 1e-5, 1e-7)]
    for values in (by_size, by_steps, by_delta):
        assert values == sorted(values) and len(set(values)) == len(values)


def test_group_epsilon_at_the_edges():
    assert acc_group(acc.nonprivate_event(), 1, 2) == math.inf
    assert acc_group(acc.item_event(0.01, 1.0), 0, 2) == 0.0
    # The unit's delta would have to be below every float: no promise rather than a wrong one.
    assert acc_group(acc.item_event(ITEM, 1.0), 6200, 9) == math.inf
    # Below 1e-25, where loss distributions end, Renyi's bound answers.
    deep = acc_group(acc.item_event(ITEM, 12.0), 6200, 50)
    assert math.isfinite(deep) and deep > acc_group(acc.item_event(ITEM, 12.0), 6200, 8)


def test_rules_refuse_what_they_cannot_account_for():
    event = acc.item_event(0.01, 1.0)
    for rule in ("zcdp", "fdp"):
        with pytest.raises(ValueError, match="one Gaussian"):
            acc_group(event, 10, 2, rule=rule)
    with pytest.raises(ValueError, match="not proven"):
        acc_group(acc.group_event(0.0005, 4484, 60.0), 10, 2, rule="rdp")
    with pytest.raises(ValueError, match="rule must be one of"):
        acc_group(event, 10, 2, rule="tightest")
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        acc_group(event, 10, 0)
    with pytest.raises(TypeError, match="size must be an integer"):
        group.group_tight(1.0, 1e-5, 2.0)
    with pytest.raises(ValueError, match="rho must be finite"):
        group.group_zcdp(-1.0, 2)
    with pytest.raises(ValueError, match="order must be above 0"):
        group.group_rdp(0.0, 0.1, 2)
    with pytest.raises(ValueError, match="delta must be in"):
        group.group_tight(1.0, 1.0, 2)


@pytest.mark.parametrize("rule", ["tight", "loose", "rdp"])
def test_group_noise_inverts_group_epsilon_from_above(rule):
    def item(sigma):
        return acc.item_event(0.02, sigma)

    sigma = group.group_noise_multiplier(item, 400, size=3, epsilon=2.0, delta=1e-5, rule=rule)
    kept = acc_group(item(sigma), 400, 3, rule=rule)
    assert kept <= 2.0
    assert acc_group(item(sigma * (1.0 - 4e-4)), 400, 3, rule=rule) > 2.0


@pytest.mark.parametrize("rule", ["fdp", "zcdp"])
def test_group_noise_of_a_gaussian_is_size_times_that_of_one(rule):
    one, three = (
        group.group_noise_multiplier(
            acc.user_ldp_event, 50, size=g, epsilon=2.0, delta=1e-5, rule=rule
        )
        for g in (1, 3)
    )
    assert three == pytest.approx(3.0 * one, rel=1e-4)


def test_group_noise_at_the_edges():
    noise = group.group_noise_multiplier
    options = {"size": 2, "epsilon": 1.0, "delta": 1e-5}
    assert noise(lambda s: acc.item_event(0.01, s), 0, **options) == 0.0
    with pytest.raises(TypeError, match="make_event must be a function"):
        noise(1.0, 10, **options)
    with pytest.raises(ValueError, match="no noise multiplier up to"):
        noise(lambda s: acc.user_ldp_event(1.0), 10, rule="fdp", **options)
