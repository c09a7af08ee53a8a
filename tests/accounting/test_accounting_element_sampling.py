# SPDX-License-Identifier: Apache-2.0
"""Sampling ELEMENTS (or items) amplifies the element unit; sampling subjects does not.

Claim. One element of one subject is replaced; it is present with probability at most r, by a coin of
its own, and contributes u in one world and v in the other, |u|, |v| <= 1 (rho), in any dimension.
Then a step is `replace_one_event(r, sigma)`: (1-r) N(0) + r N(1) against (1-r) N(0) + r N(-1).

Proof. The subject's other elements, with their own coins, and items drawn in part, are mixtures of
such pairs (joint convexity; a smaller probability is a contribution that is 0 at times). For one pair
the divergence is H = E[(y_u - a y_v - b y_0)^+] (times r), y_w = exp(<w, z> - |w|^2 / 2), z standard
normal (sigma = 1), a = exp(eps), b = (exp(eps) - 1) (1 - r) / r >= 0. Gaussian integration by parts
along a path u(t), v(t) gives, with expectation over the surface y_u = a y_v + b y_0,
    2 dH = E[a y_u y_v d|u - v|^2 + b y_u y_0 d|u|^2 - a b y_v y_0 d|v|^2],
which is >= 0 wherever d|u|^2 >= 0 and d|u - v|^2 >= d|v|^2 >= 0, as y_u >= b y_0. Turn v away from u
to 180 degrees, then lengthen u, then v: each step of it is of that kind, and it ends at (1, -1).

The integrals here are exact in one direction (error functions) wherever the integrand keeps its sign
over a cell of 0.02 sigma, and sums in the other; `TOLERANCE` holds their error, see the first test.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from tf_subjectdp import accounting
from tf_subjectdp.accounting.engine.gaussian import gaussian_delta

# Absolute error of `hockey_stick`: measured below 1.6e-8 against closed forms (sigma >= 0.5).
TOLERANCE = 5e-8
RATES = (0.02, 0.2, 0.6, 0.95)
EPSILONS = (0.0, 1e-3, 0.3, 1.0, 3.0, 6.0)
# The engine errs upward, by at most so much (relative).
ENGINE = 2e-3


def mixture(parts, sigma):
    """[(weight, vector)] in units of the noise."""
    return np.array([w for w, _ in parts]), np.array([v for _, v in parts], dtype=float) / sigma


def hockey_stick(first, second, eps, sigma, step=0.02, reach=9.0):
    """E_(exp(eps)): integral of (P - exp(eps) Q)^+ over the plane, P and Q mixtures of N(v, s^2 I).

    A row is cut into cells; where the integrand has one sign at both ends its integral is exact, in
    the others it is exact up to the root of the chord. Rows are summed (the trapezoidal rule); they
    run along the difference of the means, so that the edge of {P > exp(eps) Q} crosses them.
    """
    (pw, pv), (qw, qv) = mixture(first, sigma), mixture(second, sigma)
    weight, centre = np.concatenate([pw, -math.exp(eps) * qw]), np.concatenate([pv, qv])
    apart = pw @ pv - qw @ qv
    if np.linalg.norm(apart) > 0.0:
        along = apart / np.linalg.norm(apart)
        centre = centre @ np.array([[along[0], -along[1]], [along[1], along[0]]])
    low, high = centre.min(axis=0) - reach, centre.max(axis=0) + reach
    x = np.linspace(low[0], high[0], math.ceil((high[0] - low[0]) / step))
    y = np.linspace(low[1], high[1], math.ceil((high[1] - low[1]) / (2.5 * step)))
    rows = weight * np.exp(-0.5 * (y[:, None] - centre[:, 1]) ** 2) / math.sqrt(2.0 * math.pi)
    density = np.exp(-0.5 * (x - centre[:, :1]) ** 2) / math.sqrt(2.0 * math.pi)
    below = special.ndtr(x - centre[:, :1])
    value = rows @ density
    whole = rows @ np.diff(below, axis=1)
    left, right = value[:, :-1], value[:, 1:]
    total = whole[(left > 0.0) & (right > 0.0)].sum()
    row, cell = np.nonzero((left > 0.0) != (right > 0.0))
    a, b = left[row, cell], right[row, cell]
    root = x[cell] + (x[1] - x[0]) * a / (a - b)
    at_root = (rows[row] * special.ndtr(root[:, None] - centre[:, 0])).sum(axis=1)
    starts, ends = ((rows[row] * below[:, k].T).sum(axis=1) for k in (cell, cell + 1))
    total += np.where(a > 0.0, at_root - starts, ends - at_root).sum()
    return float(total * (y[1] - y[0]))


def worst(rate, eps, sigma):
    """The claimed dominating pair, in one dimension: the integrand changes its sign once."""
    log_a, s = eps, 1.0 / sigma
    b = (math.exp(eps) - 1.0) * (1.0 - rate) / rate

    def positive(z):
        return math.exp(s * z - s * s / 2) - math.exp(log_a - s * z - s * s / 2) > b

    low, high = -60.0 * sigma - 10.0, 60.0 * sigma + 10.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if positive(middle) else (middle, high)
    tail = [special.ndtr(c - high) for c in (s, -s, 0.0)]
    return rate * (tail[0] - math.exp(eps) * tail[1] - b * tail[2])


def pair(rate, u, v):
    zero = (1.0 - rate, (0.0, 0.0))
    return [zero, (rate, u)], [zero, (rate, v)]


def at(length, degrees):
    return (length * math.cos(math.radians(degrees)), length * math.sin(math.radians(degrees)))


def allowed(rate, eps, sigma):
    return accounting.delta(accounting.replace_one_event(rate, sigma), 1, epsilon=eps)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_the_integrals_are_those_of_closed_forms(sigma):
    for eps, degrees in itertools.product(EPSILONS, (0, 20, 75, 90, 130, 180)):
        u, v = at(1.0, 10.0), at(0.8, 10.0 + degrees)
        exact = gaussian_delta(math.dist(u, v) / sigma, eps)
        assert abs(hockey_stick(*pair(1.0, u, v), eps, sigma) - exact) < TOLERANCE / 2
    for eps, rate in itertools.product(EPSILONS, RATES):
        both = pair(rate, at(1.0, 33.0), at(1.0, 213.0))
        assert abs(hockey_stick(*both, eps, sigma) - worst(rate, eps, sigma)) < TOLERANCE / 2
    for eps, degrees in itertools.product((0.3, 3.0), (0, 75, 130)):
        both = pair(0.2, at(0.6, 10.0), at(1.0, 10.0 + degrees))
        fine = hockey_stick(*both, eps, sigma, step=0.006)
        assert abs(hockey_stick(*both, eps, sigma) - fine) < TOLERANCE / 2


@pytest.mark.parametrize("sigma", [0.4, 1.0, 4.0])
def test_the_accountant_never_understates_the_claimed_pair(sigma):
    for rate, eps in itertools.product(RATES, EPSILONS):
        exact = worst(rate, eps, sigma)
        assert exact * (1.0 - 1e-9) - 1e-13 <= allowed(rate, eps, sigma)
        assert allowed(rate, eps, sigma) <= exact * (1.0 + ENGINE) + 1e-13


@pytest.mark.parametrize("rate", RATES)
def test_an_element_with_its_own_coin_is_never_worse_than_the_claim(rate):
    for sigma, eps in ((0.6, 0.0), (0.6, 0.3), (0.6, 3.0), (2.0, 1e-3), (2.0, 1.0)):
        bound = allowed(rate, eps, sigma)
        for a, b in ((1.0, 1.0), (1.0, 0.6), (0.6, 1.0), (0.0, 1.0)):
            found = [
                hockey_stick(*pair(rate, (a, 0.0), at(b, degrees)), eps, sigma)
                for degrees in (0, 45, 90, 150, 180)
            ]
            assert max(found) <= bound + TOLERANCE
            # The angle, then the lengths: what the proof says.
            assert np.all(np.diff(found) >= -TOLERANCE)


@settings(deadline=None, max_examples=50)
@given(
    rate=st.floats(0.001, 1.0),
    sigma=st.floats(0.5, 6.0),
    eps=st.floats(0.0, 8.0),
    a=st.floats(0.0, 1.0),
    b=st.floats(0.0, 1.0),
    degrees=st.floats(0.0, 180.0),
)
def test_no_counterexample_is_found(rate, sigma, eps, a, b, degrees):
    found = hockey_stick(*pair(rate, (a, 0.0), at(b, degrees)), eps, sigma)
    assert found <= worst(rate, eps, sigma) + TOLERANCE


def with_others(rate, own, others):
    """The element's mixture `own`, and other elements that each have their own coin."""
    parts = []
    for coins in itertools.product((0, 1), repeat=len(others)):
        chance = math.prod(rate if c else 1.0 - rate for c in coins)
        shift = np.array([c * np.array(w) for c, w in zip(coins, others, strict=True)]).sum(axis=0)
        parts += [(chance * w, np.array(v) + shift) for w, v in own]
    return parts


@pytest.mark.parametrize("rate", (0.1, 0.5))
@pytest.mark.parametrize("others", [[(0.0, 1.0)], [(0.0, 1.0), (0.5, 0.8), (-1.0, 0.0)]])
def test_other_elements_with_coins_of_their_own_do_not_help_the_adversary(rate, others):
    for sigma, eps, degrees in itertools.product((0.5, 1.0), (0.0, 0.5, 2.0), (120, 180)):
        first, second = (
            with_others(rate, own, others) for own in pair(rate, (1.0, 0.0), at(1.0, degrees))
        )
        found = hockey_stick(first, second, eps, sigma)
        alone = hockey_stick(*pair(rate, (1.0, 0.0), at(1.0, degrees)), eps, sigma)
        assert found <= alone + TOLERANCE
        assert found <= allowed(rate, eps, sigma) + TOLERANCE


def test_sampling_items_is_the_claim_at_the_rate_of_one_item_or_more():
    q, k, rng = 0.15, 3, np.random.default_rng(2)
    rate = 1.0 - (1.0 - q) ** k
    for _ in range(20):
        first, second = [], []
        # One world has k items, the other fewer (0: the subject does not have the element).
        fewer = int(rng.integers(0, k + 1))
        for parts, items in ((first, k), (second, fewer)):
            for drawn in itertools.product((0, 1), repeat=items):
                chance = math.prod(q if c else 1.0 - q for c in drawn)
                mine = at(rng.uniform(0.5, 1.0), rng.uniform(0, 70) + 180 * (parts is second))
                parts.append((chance, mine if any(drawn) else (0.0, 0.0)))
        for sigma, eps in ((0.5, 0.4), (1.5, 0.1), (1.0, 0.0)):
            bound = allowed(rate, eps, sigma) + TOLERANCE
            assert hockey_stick(first, second, eps, sigma) <= bound
            assert hockey_stick(second, first, eps, sigma) <= bound


def test_sampling_subjects_breaks_the_amplified_figure_and_keeps_the_revealed_one():
    # One coin for all of a subject's elements: nine others, of rho each, show that it came up.
    rate, sigma = 0.1, 1.0
    for eps in (0.1, 0.5, 1.0):
        zero = (1.0 - rate, (0.0, 0.0))
        first, second = ([zero, (rate, (c, 9.0))] for c in (1.0, -1.0))
        exact = hockey_stick(first, second, eps, sigma)
        revealed = accounting.delta(accounting.element_event(rate, sigma), 1, epsilon=eps)
        assert exact > 1.2 * allowed(rate, eps, sigma)
        assert exact <= revealed + TOLERANCE
        assert exact > 0.99 * revealed
        # One other element shows a part of it, and breaks the amplified figure already.
        first, second = ([zero, (rate, (c, 1.0))] for c in (1.0, -1.0))
        assert hockey_stick(first, second, eps, sigma) > allowed(rate, eps, sigma) * (1 + ENGINE)


LOSS = 1e-3


def loss_distribution(first, second, sigma, step=0.04, reach=8.5):
    """Mass of P by log(P/Q), rounded DOWN to multiples of LOSS (a lower bound of every delta).

    Returns the first index and the masses. Sums of smooth densities over a grid of 0.04 are exact
    to rounding; which cell a loss falls into errs by some 0.04 of a loss's slope, on average zero,
    and is what `SLACK` is for.
    """
    (pw, pv), (qw, qv) = mixture(first, sigma), mixture(second, sigma)
    centre = np.concatenate([pv, qv])
    axes = [np.arange(c.min() - reach, c.max() + reach, step) for c in centre.T]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)

    def log_density(weights, centres):
        square = ((grid[:, None, :] - centres) ** 2).sum(axis=2)
        return special.logsumexp(-0.5 * square, b=weights, axis=1)

    p, q = log_density(pw, pv), log_density(qw, qv)
    mass = np.exp(p) * step**2 / (2.0 * math.pi)
    index = np.floor((p - q) / LOSS).astype(int)
    return index.min(), np.bincount(index - index.min(), weights=mass)


def delta_of(first, masses, eps):
    """sum (1 - exp(eps - loss))^+ mass, for many eps."""
    losses = LOSS * (first + np.arange(len(masses)))
    above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
    scaled = np.append(np.cumsum((masses * np.exp(-losses))[::-1])[::-1], 0.0)
    start = np.searchsorted(losses, eps, side="right")
    return above[start] - np.exp(eps) * scaled[start]


# Sums over a grid of a kinked function: relative error below this.
SLACK = 1e-4


@pytest.mark.parametrize("steps", [2, 3])
def test_composed_steps_are_never_worse_than_the_accountant(steps):
    rate, sigma = 0.3, 1.0
    event = accounting.replace_one_event(rate, sigma)
    for degrees, b, tight in ((180, 1.0, True), (120, 1.0, False), (180, 0.5, False)):
        both = pair(rate, (1.0, 0.0), at(b, degrees))
        for others in ([], [(0.0, 1.0)]):
            first, second = (with_others(rate, own, others) for own in both)
            start, one = loss_distribution(first, second, sigma)
            law = one
            for _ in range(steps - 1):
                law = np.convolve(law, one)
            for eps in (0.2, 0.8, 2.0):
                found = delta_of(steps * start, law, eps)
                bound = accounting.delta(event, steps, epsilon=eps)
                assert found <= bound * (1.0 + SLACK)
                if tight and not others:
                    assert found >= bound * 0.98


def test_a_second_step_that_depends_on_the_first_is_never_worse_than_the_accountant():
    rate, sigma = 0.3, 0.8
    event = accounting.replace_one_event(rate, sigma)
    one = pair(rate, (1.0, 0.0), (-1.0, 0.0))
    pairs = [
        one,
        pair(rate, (0.0, 1.0), at(1.0, 200.0)),
        pair(rate, (0.0, -1.0), (0.0, 1.0)),
        pair(rate, (0.3, 0.0), (0.0, 0.0)),
    ]
    start, law = loss_distribution(*one, sigma)
    loss = LOSS * (start + np.arange(len(law)))
    later = [loss_distribution(*p, sigma) for p in pairs]
    for eps in (0.2, 1.0, 2.0):
        # Given the first loss, the second pair faces eps - loss; a chosen rule, and the worst one.
        given_loss = np.array([delta_of(*each, eps - loss) for each in later])
        rule = np.where(
            loss > 0.5, given_loss[1], np.where(loss > -0.5, given_loss[2], given_loss[3])
        )
        bound = accounting.delta(event, 2, epsilon=eps)
        assert rule @ law <= bound * (1.0 + SLACK)
        assert given_loss.max(axis=0) @ law <= bound * (1.0 + SLACK)
        assert given_loss.max(axis=0) @ law >= 0.98 * bound
