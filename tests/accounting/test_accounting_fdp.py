# SPDX-License-Identifier: Apache-2.0
"""Trade-off curves: closed forms, algebra, exchange with (epsilon, delta), and the safe side."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tf_subjectdp.accounting import fdp
from tf_subjectdp.accounting.engine.gaussian import gaussian_delta, gaussian_epsilon

ALPHA = np.concatenate([np.linspace(0.0, 1.0, 101), np.geomspace(1e-12, 1e-2, 20)])
EPSILON = np.linspace(0.0, 6.0, 25)


def numeric(mu):
    """G_mu without its closed form: a mixture of one."""
    return fdp.RevealedGaussians(np.array([mu]), np.array([1.0]))


def asymmetric():
    return fdp.double_conjugate([0.0, 0.1, 0.3, 0.6], [0.9, 0.5, 0.25, 0.05])


def test_the_gaussian_curve_has_its_closed_form():
    assert fdp.gaussian(1.0)(0.05) == pytest.approx(0.7404889771585558, rel=1e-9)
    for mu in (0.0, 1e-3, 0.5, 3.0, 40.0):
        expected = stats.norm.sf(stats.norm.ppf(ALPHA) + mu)
        np.testing.assert_allclose(fdp.gaussian(mu)(ALPHA), expected, rtol=1e-9, atol=1e-300)
    assert fdp.identity()(0.25) == 0.75


def test_delta_and_epsilon_of_the_gaussian_curve_are_the_accountants():
    for curve in (fdp.gaussian(1.7), numeric(1.7)):
        expected = [gaussian_delta(1.7, e) for e in EPSILON]
        np.testing.assert_allclose(curve.delta(EPSILON), expected, rtol=1e-10)
        assert np.all(curve.delta(EPSILON) >= np.array(expected) * (1.0 - 1e-13))
        for delta in (1e-15, 1e-5, 0.3):
            assert curve.epsilon(delta) == pytest.approx(gaussian_epsilon(1.7, delta), rel=1e-10)
    assert fdp.gaussian(1.7).epsilon(0.9) == 0.0
    assert fdp.gaussian(1.0).epsilon(0.0) == math.inf


def test_delta_at_negative_epsilon_is_that_of_the_other_direction():
    curve = fdp.gaussian(0.8)
    mirrored = 1.0 - np.exp(-EPSILON) + np.exp(-EPSILON) * curve.delta(EPSILON)
    np.testing.assert_allclose(curve.delta(-EPSILON), mirrored, rtol=1e-10)


def test_a_mixture_of_one_is_the_gaussian_and_never_above_it():
    for mu in (1e-4, 0.3, 2.0, 8.0):
        gap = fdp.gaussian(mu)(ALPHA) - numeric(mu)(ALPHA)
        assert gap.min() >= -1e-15 and gap.max() <= 1e-12


def test_a_mixture_is_the_best_split_of_alpha_over_its_components():
    mus, weights = np.array([0.0, 0.7, 2.5]), np.array([0.2, 0.5, 0.3])
    curve = fdp.RevealedGaussians(mus, weights)
    first, second = np.meshgrid(np.linspace(0, 1, 601), np.linspace(0, 1, 601), indexing="ij")
    for alpha in (0.05, 0.3, 0.7):
        third = (alpha - weights[0] * first - weights[1] * second) / weights[2]
        fits = (third >= 0.0) & (third <= 1.0)
        total = weights[0] * (1.0 - first[fits])
        total += weights[1] * fdp.gaussian(0.7)(second[fits])
        total += weights[2] * fdp.gaussian(2.5)(third[fits])
        assert -1e-14 <= total.min() - curve(alpha) <= 2e-5


def test_delta_of_a_mixture_is_the_mean_and_dropped_mass_is_lost():
    mus, weights = np.array([0.0, 0.7, 2.5]), np.array([0.2, 0.49, 0.3])
    curve = fdp.RevealedGaussians(mus, weights, 0.01)
    expected = [
        sum(w * gaussian_delta(m, e) for m, w in zip(mus, weights, strict=True)) + 0.01
        for e in EPSILON
    ]
    np.testing.assert_allclose(curve.delta(EPSILON), expected, rtol=1e-10)
    assert curve(0.0) == pytest.approx(0.99, rel=1e-12)
    assert curve(0.99) == pytest.approx(0.0, abs=1e-12)


def test_a_monte_carlo_of_the_best_test_meets_the_mixture():
    # 10^6 draws a hypothesis; 5.3 standard deviations: false alarms below 1e-6 over the 6 checks.
    rng = np.random.default_rng(7)
    mus, weights = np.array([0.4, 1.5]), np.array([0.7, 0.3])
    curve = fdp.RevealedGaussians(mus, weights)
    n = 1_000_000
    mu = mus[(rng.random(n) < 0.3).astype(int)]
    noise = rng.standard_normal((2, n))
    losses = mu * noise[0] - mu**2 / 2.0, mu * (noise[1] + mu) - mu**2 / 2.0
    for threshold in (-0.5, 0.2, 1.0):
        tails = curve.tails(np.array([threshold]))
        for sample, p in zip(losses, (tails.p_above[0], tails.q_above[0]), strict=True):
            assert abs(np.mean(sample > threshold) - p) <= 5.3 * math.sqrt(p * (1 - p) / n)
        assert curve(tails.p_above[0]) == pytest.approx(tails.q_below[0], abs=1e-12)


@pytest.mark.parametrize(
    "curve",
    [
        fdp.gaussian(1.0),
        fdp.RevealedGaussians(np.array([0.0, 1.0, 3.0]), np.array([0.3, 0.4, 0.3])),
        fdp.subsample(fdp.gaussian(2.0), 0.2),
        fdp.approximate_dp(1.0, 1e-3),
        fdp.tensor(fdp.approximate_dp(0.5, 1e-4), fdp.gaussian(0.5)),
        asymmetric(),
        asymmetric().inverse(),
    ],
)
def test_curve_and_delta_are_dual(curve):
    epsilon = np.linspace(-30.0, 30.0, 12001)
    lines = 1.0 - curve.delta(epsilon)[:, None] - np.exp(epsilon)[:, None] * ALPHA
    gap = curve(ALPHA) - np.maximum(lines.max(axis=0), 0.0)
    # A line counts the error once in delta; the curve once in beta.
    assert gap.min() >= -1e-12 and gap.max() <= 1e-3
    assert np.all(np.diff(curve(np.sort(ALPHA))) <= 1e-15)
    assert np.all(curve(ALPHA) <= 1.0 - ALPHA)


def test_the_inverse_undoes_an_asymmetric_curve():
    curve = asymmetric()
    np.testing.assert_allclose(curve.inverse()(curve(ALPHA[:101])), ALPHA[:101], atol=1e-15)
    np.testing.assert_allclose(curve.inverse().inverse()(ALPHA), curve(ALPHA), atol=1e-15)
    assert np.abs(curve.inverse()(ALPHA) - curve(ALPHA)).max() > 0.05
    np.testing.assert_allclose(fdp.inverse(fdp.gaussian(1.0))(ALPHA), fdp.gaussian(1.0)(ALPHA))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12))
def test_the_double_conjugate_is_the_largest_convex_curve_below_the_points(points):
    x, y = np.array(points).T
    curve = fdp.double_conjugate(x, y)
    assert np.all(curve(x) <= y + 1e-12)
    grid = np.linspace(0.0, 1.0, 41)
    beta = curve(grid)
    assert np.all(beta[1:-1] <= 0.5 * (beta[:-2] + beta[2:]) + 1e-12)
    np.testing.assert_allclose(fdp.double_conjugate(grid, beta)(grid), beta, atol=1e-12)
    # The largest: at every alpha a chord of two of the points (or ends) comes down to it.
    x, y = np.append(x, [0.0, 1.0]), np.append(y, [1.0, 0.0])
    for alpha, value in zip(grid[1:-1], beta[1:-1], strict=True):
        best = min(
            b0 if a1 == a0 else b0 + (b1 - b0) * (alpha - a0) / (a1 - a0)
            for (a0, b0), (a1, b1) in itertools.product(zip(x, y, strict=True), repeat=2)
            if a0 <= alpha <= a1 and (a0 < a1 or a0 == alpha)
        )
        assert value == pytest.approx(best, abs=1e-9)


def test_approximate_dp_has_its_closed_form_and_gives_delta_back():
    for eps, delta in ((0.0, 0.1), (1.0, 0.0), (1.0, 1e-3), (5.0, 1e-6)):
        curve = fdp.approximate_dp(eps, delta)
        expected = np.maximum(1 - delta - np.exp(eps) * ALPHA, np.exp(-eps) * (1 - delta - ALPHA))
        np.testing.assert_allclose(curve(ALPHA), np.maximum(expected, 0.0), atol=1e-14)
        assert curve.delta(eps) == pytest.approx(delta, abs=1e-14)
        np.testing.assert_allclose(curve.inverse()(ALPHA), curve(ALPHA), atol=1e-14)
    assert fdp.approximate_dp(1.0, 0.0).delta(0.0) == pytest.approx(math.tanh(0.5))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.floats(0, 8), st.floats(1e-9, 0.9)), min_size=1, max_size=10),
)
def test_a_family_of_guarantees_is_the_largest_of_their_curves(pairs):
    eps, delta = np.array(pairs).T
    alpha = np.linspace(0.0, 1.0, 201)
    curve = fdp.from_approximate_dp(eps, delta)
    expected = np.max([fdp.approximate_dp(e, d)(alpha) for e, d in pairs], axis=0)
    np.testing.assert_allclose(curve(alpha), expected, atol=1e-12)
    assert np.all(curve.delta(eps) <= delta + 1e-12)


def test_the_profile_of_a_curve_gives_the_curve_back_from_below():
    curve = fdp.gaussian(1.3)
    grid = np.linspace(0.0, 12.0, 4001)
    gap = curve(ALPHA) - fdp.from_approximate_dp(grid, curve.delta(grid))(ALPHA)
    assert gap.min() >= -1e-12 and gap.max() <= 1e-5


def test_subsampling_acts_on_delta_as_the_formula_says():
    base, p = fdp.gaussian(1.5), 0.05
    curve = fdp.subsample(base, p)
    expected = p * base.delta(np.log1p(np.expm1(EPSILON) / p))
    np.testing.assert_allclose(curve.delta(EPSILON), expected, rtol=1e-8, atol=1e-15)
    assert fdp.subsample(base, 1.0) is base
    np.testing.assert_allclose(fdp.subsample(base, 0.0)(ALPHA), 1.0 - ALPHA)


def test_subsampling_is_the_double_conjugate_of_the_smaller_of_f_p_and_its_inverse():
    base, p = fdp.gaussian(2.0), 0.3
    fine = np.unique(np.concatenate([np.linspace(0, 1, 20001), np.geomspace(1e-15, 1e-2, 5001)]))
    f_p = p * base(fine) + (1.0 - p) * (1.0 - fine)
    hull = fdp.double_conjugate(np.concatenate([fine, f_p]), np.concatenate([f_p, fine]))
    gap = hull(ALPHA) - fdp.subsample(base, p)(ALPHA)
    assert gap.min() >= -1e-12 and gap.max() <= 1e-6
    # The same for a curve that is not symmetric, through its corners.
    base = asymmetric()
    f_p = p * base(fine) + (1.0 - p) * (1.0 - fine)
    hull = fdp.double_conjugate(np.concatenate([fine, f_p]), np.concatenate([f_p, fine]))
    curve = fdp.subsample(base, p)
    np.testing.assert_allclose(curve(ALPHA), hull(ALPHA), atol=1e-4)
    assert np.all(curve(fine) <= np.minimum(f_p, 1.0) + 1e-15)


@pytest.mark.parametrize("mus", [(1.0, 2.0), (0.1, 0.1, 0.1), (4.0, 0.5)])
def test_the_numerical_product_of_gaussians_is_below_the_true_one_by_what_it_states(mus):
    true = fdp.gaussian(math.sqrt(sum(mu**2 for mu in mus)))
    assert fdp.tensor(*map(fdp.gaussian, mus)).mu == pytest.approx(true.mu)
    product = fdp.tensor(*map(numeric, mus))
    gap = true(ALPHA) - product(ALPHA)
    assert gap.min() >= 0.0
    assert gap.max() <= product.resolution < 1e-5
    assert 0.0 < product.error < 1e-11
    true_delta = true.delta(EPSILON)
    assert np.all(product.delta(EPSILON) >= true_delta)
    np.testing.assert_allclose(product.delta(EPSILON), true_delta, atol=product.resolution)


def test_many_steps_stay_below_and_close():
    for count, mu in ((100, 0.1), (20_000, 0.01)):
        true = fdp.gaussian(mu * math.sqrt(count))
        product = fdp.power(numeric(mu), count)
        gap = true(ALPHA) - product(ALPHA)
        assert gap.min() >= 0.0 and gap.max() <= min(product.resolution, 1e-5)
        for delta in (1e-3, 1e-6):
            assert 1.0 <= product.epsilon(delta) / true.epsilon(delta) <= 1.001


def test_pure_guarantees_compose_as_by_kairouz_oh_and_viswanath():
    eps, k = 0.3, 12
    product = fdp.power(fdp.approximate_dp(eps, 0.0), k)
    # k randomised responses: the loss is eps (2 i - k), i binomial.
    i = np.arange(k + 1)
    mass = stats.binom.pmf(i, k, 1.0 / (1.0 + math.exp(-eps)))
    for target in (0.0, 0.5, 1.2, 3.0):
        exact = np.sum(mass * np.maximum(-np.expm1(target - eps * (2 * i - k)), 0.0))
        assert exact <= product.delta(target) <= exact + product.resolution
    assert product.resolution < 1e-3


def test_an_independent_convolution_brackets_the_composed_subsampled_gaussian():
    p, mu, h = 0.1, 1.0, 1e-3
    inner = fdp.gaussian(mu)

    def profile(eps):  # of C_p(G_mu), for both signs
        size = np.abs(eps)
        delta = p * inner.delta(np.log1p(np.expm1(size) / p))
        return np.where(eps >= 0, delta, 1.0 - np.exp(-size) + np.exp(-size) * delta)

    grid = h * np.arange(-6000, 6001)
    # Q's mass between two losses by Q[L > t] = delta(t) - delta'(t), central differences.
    step = 1e-5
    above = profile(grid) - (profile(grid + step) - profile(grid - step)) / (2.0 * step)
    # At 0 there is an atom: the slope from the right.
    zero = len(grid) // 2
    above[zero] = profile(grid[zero]) - (profile(np.array([step]))[0] - profile(0.0)) / step
    mass = np.maximum(-np.diff(above), 0.0)
    for round_up in (False, True):
        composed, first = mass, grid[0] + (h if round_up else 0.0)
        for _ in range(3):
            composed, first = np.convolve(composed, composed), 2.0 * first
        losses = first + h * np.arange(len(composed))
        found = fdp.power(fdp.subsample(inner, p), 8)
        for eps in (0.2, 1.0, 2.0):
            other = float(np.sum(composed * np.maximum(-np.expm1(eps - losses), 0.0)))
            if round_up:
                assert found.delta(eps) <= other * 1.0005 + 1e-9
            else:
                assert found.delta(eps) >= other * 0.9995 - 1e-9
            assert found.delta(eps) == pytest.approx(other, rel=0.1)


def test_composition_keeps_the_two_directions_of_an_asymmetric_curve_apart():
    curve = fdp.tensor(asymmetric(), asymmetric())
    base = asymmetric()
    p, q, losses = base.p_masses, base.q_masses, base.losses
    for target in (0.0, 0.5, 1.5):
        forward = q[:, None] * q - np.exp(target) * p[:, None] * p
        backward = p[:, None] * p - np.exp(target) * q[:, None] * q
        lost_q, lost_p = 1 - (1 - base.q_infinite) ** 2, 1 - (1 - base.p_infinite) ** 2
        exact = np.maximum(forward, 0.0).sum() + lost_q
        assert exact <= curve.delta(target) <= exact + curve.resolution
        exact = np.maximum(backward, 0.0).sum() + lost_p
        assert exact <= curve.inverse().delta(target) <= exact + curve.resolution
    assert np.all(np.diff(losses) > 0.0)


def test_a_group_of_gaussians_is_g_times_mu():
    assert fdp.group(fdp.gaussian(0.7), 3).mu == pytest.approx(2.1)
    for size in (2, 3, 5):
        gap = fdp.gaussian(0.7 * size)(ALPHA) - fdp.group(numeric(0.7), size)(ALPHA)
        assert gap.min() >= -1e-14 and gap.max() <= 1e-5
        delta = fdp.group(numeric(0.7), size).delta(EPSILON)
        exact = fdp.gaussian(0.7 * size).delta(EPSILON)
        assert np.all(delta >= exact * (1.0 - 2e-12)) and np.all(delta <= exact + 1e-5)


def test_a_group_curve_is_the_iterated_complement():
    uncertain = dataclasses.replace(asymmetric(), error=0.01)
    for curve in (asymmetric(), uncertain, fdp.approximate_dp(0.5, 1e-2)):
        power = ALPHA
        for _ in range(4):
            power = 1.0 - curve(power)
        np.testing.assert_allclose(fdp.group(curve, 4)(ALPHA), 1.0 - power, atol=1e-13)
    assert fdp.group(curve, 1) is curve


def test_piecewise_linear_lies_below_by_at_most_its_resolution():
    for curve in (fdp.gaussian(2.0), fdp.subsample(fdp.gaussian(3.0), 0.01)):
        for interval in (1e-1, 1e-3):
            line = fdp.piecewise_linear(curve, interval)
            gap = curve(ALPHA) - line(ALPHA)
            assert gap.min() >= -1e-14 and gap.max() <= line.resolution + 1e-14


def test_a_delta_below_the_arithmetic_of_a_numerical_curve_is_refused():
    product = fdp.tensor(numeric(1.0), numeric(2.0))
    with pytest.raises(ValueError, match="rounding error"):
        product.epsilon(0.5 * product.error)
    assert product.epsilon(1e-9) > 0.0


def test_shapes_follow_the_input():
    curve = fdp.gaussian(1.0)
    assert curve(np.zeros((2, 3))).shape == (2, 3)
    assert curve.delta(np.zeros((2, 3))).shape == (2, 3)
    assert curve.epsilon(np.full((2, 3), 1e-5)).shape == (2, 3)
    assert np.ndim(curve(0.5)) == np.ndim(curve.delta(0.5)) == np.ndim(curve.epsilon(0.5)) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: fdp.gaussian(-1.0),
        lambda: fdp.gaussian(1.0)(1.1),
        lambda: fdp.gaussian(1.0)(np.nan),
        lambda: fdp.gaussian(1.0).delta(np.inf),
        lambda: fdp.gaussian(1.0).epsilon(1.0),
        lambda: fdp.approximate_dp(-0.1, 0.0),
        lambda: fdp.approximate_dp(1.0, 1.0),
        lambda: fdp.from_approximate_dp([], []),
        lambda: fdp.from_approximate_dp([1.0], [0.1, 0.2]),
        lambda: fdp.subsample(fdp.gaussian(1.0), 1.5),
        lambda: fdp.tensor(),
        lambda: fdp.tensor(numeric(1.0), numeric(1.0), interval=0.0),
        lambda: fdp.power(fdp.gaussian(1.0), -1),
        lambda: fdp.group(fdp.gaussian(1.0), 0),
        lambda: fdp.double_conjugate([0.5], [1.5]),
        lambda: fdp.RevealedGaussians(np.array([1.0]), np.array([0.5])),
        lambda: fdp.RevealedGaussians(np.array([1.0, 2.0]), np.array([1.0])),
        lambda: fdp.RevealedGaussians(np.array([-1.0]), np.array([1.0])),
    ],
)
def test_what_is_out_of_range_is_refused(call):
    with pytest.raises(ValueError):
        call()
