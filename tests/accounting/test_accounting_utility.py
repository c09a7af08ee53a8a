# SPDX-License-Identifier: Apache-2.0
"""Utility theory: the ingredients of the bounds are those of the algorithms, and the bounds hold.

Statistical tests compare a mean of independent draws with a bound, allowing 6 standard errors:
false alarms below 1e-8 each.
"""

import dataclasses
import math

import numpy as np
import pytest
from scipy import optimize

from tf_subjectdp import accounting as acc
from tf_subjectdp.accounting import utility
from tf_subjectdp.accounting.utility import ConvexProblem, SubjectData

PROBLEM = ConvexProblem(diameter=2.0, lipschitz=1.0, smoothness=0.25, dimension=3)
DATA = SubjectData(subjects=12, items=3, silos=2)
Q, SIGMA = 0.3, 1.5
BOUNDS = {
    "local_group_dp": utility.local_group_dp_excess_loss,
    "user_ldp": utility.user_ldp_excess_loss,
    "higradavg": utility.higradavg_excess_loss,
}
algorithms = pytest.mark.parametrize("algorithm", list(BOUNDS))


def _bound(algorithm, data=DATA, problem=PROBLEM, **changes):
    arguments = {"q": Q, "noise_multiplier": SIGMA, "steps": 50} | changes
    return BOUNDS[algorithm](problem, data, **arguments)


def _slopes(w, x):
    """Gradients of log(1 + exp(-<x, w>)); x is [..., items, d], of norm <= 1."""
    return -x / (1.0 + np.exp(np.clip(x @ w, -50, 50)))[..., None]


def _step(algorithm, w, x, coins, q):
    """The average of the silos' un-noised steps, written from the algorithms' definitions.

    x: [silos, subjects, items, d]; coins: [silos, subjects, items], True where sampled.
    """
    grads = np.where(coins[..., None], _slopes(w, x), 0.0)
    silos, subjects, items, _ = x.shape
    batch = q * subjects * items
    if algorithm == "local_group_dp":
        return grads.sum(axis=(1, 2)).mean(0) / batch
    if algorithm == "user_ldp":
        present = np.maximum(coins.sum(axis=(1, 2)), 1)[:, None]
        return (grads.sum(axis=(1, 2)) / present).mean(0)
    per_subject = grads.sum(axis=2) / np.maximum(coins.sum(axis=2), 1)[..., None]
    return per_subject.sum(axis=1).mean(0) / batch


def _noise_deviation(algorithm, data, q, sigma):
    batch = 1.0 if algorithm == "user_ldp" else q * data.subjects * data.items
    return sigma / batch / math.sqrt(data.silos)


def _population(rng, types, items, d=3):
    """Types of subjects, each with its items: [types, items, d], of norm <= 1, pulling one way."""
    x = rng.normal(size=(types, 1, d)) + 0.5 * rng.normal(size=(types, items, d)) + [0.8, 0.0, 0.0]
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1.0)


def _loss(w, x):
    return float(np.logaddexp(0.0, -(x @ w)).mean())


@pytest.fixture
def captured(monkeypatch):
    """What a bound puts into the common formula."""
    seen = {}
    assemble = utility._assemble

    def spy(problem, data, **arguments):
        seen.update(arguments)
        return assemble(problem, data, **arguments)

    monkeypatch.setattr(utility, "_assemble", spy)
    return seen


@algorithms
def test_scale_second_moment_and_stability_are_those_of_the_real_step(algorithm, captured):
    _bound(algorithm)
    rng = np.random.default_rng(1)
    people = DATA.silos * DATA.subjects
    x = _population(rng, people, DATA.items).reshape(DATA.silos, DATA.subjects, DATA.items, 3)
    other = x.copy()
    other[0, 0] = -other[0, 0]
    w = np.array([0.2, -0.1, 0.3])
    coins = rng.random((4000, *x.shape[:3])) < Q
    steps = np.array([_step(algorithm, w, x, c, Q) for c in coins])
    moved = np.array([_step(algorithm, w, other, c, Q) for c in coins]) - steps
    gradient = _slopes(w, x).mean(axis=(0, 1, 2))
    error = 6.0 * steps.std(axis=0) / math.sqrt(len(coins))
    assert np.all(np.abs(steps.mean(axis=0) - captured["scale"] * gradient) <= error)
    squares = (steps**2).sum(axis=1)
    assert squares.mean() - 6.0 * squares.std() / math.sqrt(len(coins)) <= captured["second_moment"]
    lengths = np.linalg.norm(moved, axis=1)
    allowed = 2.0 * captured["scale"] / DATA.distinct_subjects
    assert lengths.mean() - 6.0 * lengths.std() / math.sqrt(len(coins)) <= allowed
    assert lengths.mean() > 0.2 * allowed
    assert captured["deviation"] == pytest.approx(_noise_deviation(algorithm, DATA, Q, SIGMA))


@algorithms
def test_second_moment_is_no_larger_than_coins_make_it(algorithm, captured):
    """With all gradients equal and of norm L, only a factor 1 - rate <= 1 is given away."""
    _bound(algorithm)
    rng = np.random.default_rng(2)
    x = np.zeros((DATA.silos, DATA.subjects, DATA.items, 3)) + [1.0, 0.0, 0.0]
    w = np.array([-60.0, 0.0, 0.0])
    steps = [_step(algorithm, w, x, c, Q) for c in rng.random((20000, *x.shape[:3])) < Q]
    variance = np.var(steps, axis=0).sum()
    claimed = captured["second_moment"] - captured["scale"] ** 2
    if algorithm == "user_ldp":
        assert captured["second_moment"] == 1.0
    else:
        rate = Q if algorithm == "local_group_dp" else 1.0 - (1.0 - Q) ** DATA.items
        assert claimed * (1.0 - rate) == pytest.approx(variance, rel=0.06)  # 6 standard errors


@algorithms
def test_no_batch_makes_the_step_steeper_than_the_bound_assumes(algorithm, captured):
    _bound(algorithm)
    # The fullest batch, all gradients turning alike, at w = 0 where log(1 + e^-t) turns most.
    x = np.ones((DATA.silos, DATA.subjects, DATA.items, 3)) / math.sqrt(3.0)
    everyone = np.ones(x.shape[:3], bool)
    h = 1e-4 * x[0, 0, 0]
    turn = _step(algorithm, h, x, everyone, Q) - _step(algorithm, -h, x, everyone, Q)
    steepness = np.linalg.norm(turn) / np.linalg.norm(2.0 * h)
    assert steepness <= captured["smoothness"] * (1.0 + 1e-6)
    assert steepness > 0.9 * captured["smoothness"]


@algorithms
def test_bound_holds_on_a_small_convex_problem(algorithm):
    rng = np.random.default_rng(7)
    steps, runs = 40, 60
    types = _population(rng, 400, DATA.items)
    found = _bound(algorithm, steps=steps)
    best = optimize.minimize(
        _loss,
        np.zeros(3),
        args=(types,),
        constraints={"type": "ineq", "fun": lambda w: 1.0 - w @ w},
        method="SLSQP",
    )
    deviation = _noise_deviation(algorithm, DATA, Q, SIGMA)
    excess = []
    for _ in range(runs):
        sample = types[rng.integers(len(types), size=DATA.silos * DATA.subjects)]
        x = sample.reshape(DATA.silos, DATA.subjects, DATA.items, 3)
        w, total = np.array([-1.0, 0.0, 0.0]), np.zeros(3)
        for _ in range(steps):
            total += w
            coins = rng.random(x.shape[:3]) < Q
            step = _step(algorithm, w, x, coins, Q) + deviation * rng.normal(size=3)
            w = w - found.learning_rate * step
            w /= max(1.0, np.linalg.norm(w))
        excess.append(_loss(total / steps, types) - best.fun)
    excess = np.array(excess)
    mean, error = excess.mean(), excess.std() / math.sqrt(runs)
    assert mean - 6.0 * error <= found.total
    assert mean > 0.02 * found.total  # a bound of the right size, not any large number


def test_algorithms_coincide_for_one_item_a_subject_in_one_silo():
    data = SubjectData(subjects=500)
    group, higrad = (_bound(a, data) for a in ("local_group_dp", "higradavg"))
    assert group.total == pytest.approx(higrad.total, rel=1e-12)
    assert group.noise == pytest.approx(higrad.noise, rel=1e-12)
    # ... which is DP-SGD on 500 items: Bassily et al.'s lemmas 3.3 and 3.4 in one line.
    batch, eta, steps = Q * 500, group.learning_rate, 50
    expected = (
        4.0 / (2.0 * eta * steps)
        + 0.5 * eta * (1.0 + 1.0 / batch + 3.0 * (SIGMA / batch) ** 2)
        + eta * (steps - 1) / 500.0
    )
    assert group.total == pytest.approx(expected, rel=1e-12)


def test_user_ldp_with_one_item_sampled_surely_is_plain_noised_descent():
    found = _bound("user_ldp", SubjectData(subjects=1), q=1.0, steps=30, learning_rate=0.1)
    assert found.noise == pytest.approx(0.5 * 0.1 * 3.0 * SIGMA**2)
    assert found.generalisation == pytest.approx(0.1 * 29)


@algorithms
def test_noise_term_scales_with_dimension_variance_and_silos(algorithm):
    rate = 0.05
    base = _bound(algorithm, learning_rate=rate)
    wide = dataclasses.replace(PROBLEM, dimension=12)
    many = dataclasses.replace(DATA, silos=8)
    assert _bound(algorithm, problem=wide, learning_rate=rate).noise == pytest.approx(
        4 * base.noise
    )
    assert _bound(algorithm, noise_multiplier=3 * SIGMA, learning_rate=rate).noise == pytest.approx(
        9 * base.noise
    )
    assert _bound(algorithm, many, learning_rate=rate).noise == pytest.approx(base.noise / 4)
    assert _bound(algorithm, noise_multiplier=0.0).noise == 0.0


def test_more_subjects_help_the_noise_of_all_but_user_ldp():
    larger = dataclasses.replace(DATA, subjects=10 * DATA.subjects)
    for algorithm, factor in (("local_group_dp", 100), ("higradavg", 100), ("user_ldp", 1)):
        base = _bound(algorithm, learning_rate=0.05).noise
        more = _bound(algorithm, larger, learning_rate=0.05).noise
        assert more == pytest.approx(base / factor, rel=1e-3)


@algorithms
def test_bound_is_monotone_in_noise_subjects_and_shared_silos(algorithm):
    data = SubjectData(subjects=2000, items=4, silos=4)
    noise = [_bound(algorithm, data, noise_multiplier=s).total for s in (0.0, 0.5, 2.0, 1e6)]
    assert noise == sorted(noise)
    assert noise[-1] == PROBLEM.trivial == 2.0
    fewer = [
        _bound(algorithm, dataclasses.replace(data, silos_per_subject=m)).total for m in (1, 2, 4)
    ]
    assert fewer == sorted(fewer) and fewer[0] < fewer[-1]
    more = [
        _bound(algorithm, dataclasses.replace(data, subjects=n), noise_multiplier=0.1).total
        for n in (2000, 8000, 32000)
    ]
    assert more == sorted(more, reverse=True)


@algorithms
def test_default_learning_rate_is_the_best_allowed(algorithm):
    best = _bound(algorithm)
    parts = best.optimisation + best.noise + best.generalisation
    for factor in (0.5, 0.9, 1.1, 2.0):
        eta = best.learning_rate * factor
        try:
            other = _bound(algorithm, learning_rate=eta)
        except ValueError:
            continue  # beyond what the smoothness allows
        assert other.optimisation + other.noise + other.generalisation >= parts
    linear = dataclasses.replace(PROBLEM, smoothness=0.0)
    assert _bound(algorithm, problem=linear).total <= best.total


def test_higradavgs_two_divisors_have_one_best_bound():
    linear = dataclasses.replace(PROBLEM, smoothness=0.0)
    batch = _bound("higradavg", problem=linear)
    subjects = _bound("higradavg", problem=linear, normalization="expected_subjects")
    assert batch.total == pytest.approx(subjects.total, rel=1e-12)
    present = (1.0 - (1.0 - Q) ** 3) * DATA.subjects
    ratio = Q * DATA.subjects * 3 / present
    assert batch.learning_rate / subjects.learning_rate == pytest.approx(ratio)


def test_budget_takes_the_accountants_noise_for_every_silo_of_a_subject():
    data = SubjectData(subjects=300, items=4, silos=4, silos_per_subject=2)
    budget = {"q": 0.05, "steps": 60, "epsilon": 4.0, "delta": 1e-5}
    for algorithm, event in (
        ("local_group_dp", lambda s: acc.group_event(0.05, 4, s)),
        ("higradavg", lambda s: acc.higradavg_event(0.05, 4, s)),
        ("user_ldp", acc.user_ldp_event),
    ):
        found = utility.excess_loss_at_budget(algorithm, PROBLEM, data, **budget)
        kept = acc.epsilon(event(found.noise_multiplier), 120, delta=1e-5)
        assert kept <= 4.0
        assert kept == pytest.approx(4.0, rel=1e-3)


def test_theorem_holds_for_the_algorithm_it_is_about():
    """Theorem 3.2's constant 10 covers the explicit terms at its own steps, rate and noise."""
    problem = dataclasses.replace(PROBLEM, smoothness=0.0)
    for units, epsilon, d in ((10**4, 1.0, 3), (10**5, 0.5, 200), (10**6, 0.1, 5000)):
        problem = dataclasses.replace(problem, dimension=d)
        log = math.log(1e5)
        steps = int(min(units / 8, (epsilon * units) ** 2 / (32 * d * log)))
        eta = problem.diameter / (problem.lipschitz * math.sqrt(steps))
        variance = 8 * steps * log / (units * epsilon) ** 2
        explicit = (
            problem.diameter**2 / (2 * eta * steps)
            + 0.5 * eta * (1.0 + d * variance)
            + eta * (steps + 1) / units
        )
        bound = utility.bassily_excess_loss(problem, units=units, epsilon=epsilon, delta=1e-5)
        assert explicit <= bound < 10 * explicit


def test_theorem_scales_as_stated_and_is_never_more_than_trivial():
    rate = utility.bassily_excess_loss
    assert rate(PROBLEM, units=10**6, epsilon=50.0, delta=1e-5) == pytest.approx(10 * 2 / 1e3)
    wide = dataclasses.replace(PROBLEM, dimension=10**6)
    noisy = rate(wide, units=10**6, epsilon=1.0, delta=1e-5)
    assert noisy == pytest.approx(20 * math.sqrt(1e6 * math.log(1e5)) / 1e6)
    assert rate(wide, units=2 * 10**6, epsilon=1.0, delta=1e-5) == pytest.approx(noisy / 2)
    assert rate(wide, units=10, epsilon=1e-3, delta=1e-5) == PROBLEM.trivial


def test_rates_reduce_to_the_items_for_groups_of_one_and_grow_with_the_group():
    wide = dataclasses.replace(PROBLEM, dimension=10**6)
    item = utility.bassily_excess_loss(wide, units=10**6, epsilon=2.0, delta=1e-5)
    groups = [
        utility.local_group_dp_rate(wide, items=10**6, group=g, epsilon=2.0, delta=1e-5)
        for g in (1, 2, 5, 10)
    ]
    assert groups[0] == pytest.approx(item, rel=1e-12)
    assert groups == sorted(groups) and groups[1] > 2.0 * item
    subjects = utility.higradavg_rate(wide, subjects=10**6, epsilon=2.0, delta=1e-5)
    assert subjects == pytest.approx(item)
    # k items a subject: n / k subjects. Group privacy is the dearer way to the same unit.
    assert utility.higradavg_rate(wide, subjects=10**5, epsilon=2.0, delta=1e-5) < groups[-1]
    few = utility.user_ldp_rate(PROBLEM, subjects=10**6, silos=16, epsilon=2.0, delta=1e-5)
    assert few == PROBLEM.trivial
    many = [
        utility.user_ldp_rate(PROBLEM, subjects=10**9, silos=s, epsilon=8.0, delta=1e-5)
        for s in (10**4, 4 * 10**4)
    ]
    assert many[0] == pytest.approx(2.0 * many[1])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: _bound("higradavg", clip_norm=0.5), "clip_norm must be at least the Lipschitz"),
        (lambda: _bound("local_group_dp", learning_rate=3.0), r"learning_rate must be in \(0, 2.4"),
        (lambda: _bound("local_group_dp", learning_rate=0.0), "learning_rate must be in"),
        (lambda: _bound("user_ldp", q=0.0), "q must be above 0"),
        (lambda: _bound("user_ldp", steps=0), "steps must be at least 1"),
        (lambda: _bound("higradavg", normalization="batch"), "normalization must be"),
        (lambda: SubjectData(subjects=5, silos=2, silos_per_subject=3), "at most silos"),
        (lambda: SubjectData(subjects=0), "subjects must be at least 1"),
        (lambda: dataclasses.replace(PROBLEM, lipschitz=0.0), "lipschitz must be above 0"),
        (lambda: dataclasses.replace(PROBLEM, dimension=0), "dimension must be at least 1"),
        (
            lambda: utility.bassily_excess_loss(
                dataclasses.replace(PROBLEM, smoothness=1e6), units=10**4, epsilon=1.0, delta=1e-5
            ),
            "smoothness must be at most",
        ),
        (
            lambda: utility.excess_loss_at_budget(
                "sgd", PROBLEM, DATA, q=0.1, steps=1, epsilon=1.0, delta=1e-5
            ),
            "algorithm must be one of",
        ),
    ],
)
def test_errors_name_the_value_and_the_bound(call, message):
    with pytest.raises(ValueError, match=message):
        call()
