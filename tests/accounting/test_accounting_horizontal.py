# SPDX-License-Identifier: Apache-2.0
"""Horizontal composition over silos: references, brute force over subsets, the averaged view."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from scipy import optimize, stats

from tf_subjectdp import accounting as acc
from tf_subjectdp.accounting.engine.ledger import ledger
from tf_subjectdp.accounting.engine.renyi import THETA, grid_cumulants, renyi_divergence
from tf_subjectdp.accounting.silos import subsets
from tf_subjectdp.accounting.silos.horizontal import HorizontalPlan
from tf_subjectdp.accounting.silos.silo import Silo, scaled_event

ITEM = 0.016151419558359623
SIGMA = 1.5537692098577436
# No subset of these is the worst at every delta: rate against noise against steps.
UNLIKE = (
    Silo(acc.item_event(0.01, 1.2), 100, 10),
    Silo(acc.item_event(0.03, 2.0), 40, 10),
    Silo(acc.item_event(0.005, 0.9), 200, 10),
    Silo(acc.group_event(0.02, 5, 6.0), 30, 10),
    Silo(acc.user_ldp_event(90.0), 1, 10),
)
ONE_STEP = (
    Silo(acc.higradavg_event(0.05, 3, 1.5), 1, 30, weight=1.0),
    Silo(acc.higradavg_event(0.02, 5, 2.0), 1, 20, weight=2.0),
    Silo(acc.group_event(0.03, 4, 3.0), 1, 30, weight=0.5),
    Silo(acc.subject_event(0.1, 2.5), 1, 10, weight=1.5),
)


@pytest.mark.parametrize(
    ("silos", "delta", "epsilon"),
    [
        ([(acc.higradavg_event(0.01, 5, 4.0), 100)] * 4, 1e-5, 0.942864),
        (
            [
                (acc.higradavg_event(0.01, 5, 4.0), 200),
                (acc.higradavg_event(0.05, 3, 6.0), 50),
                (acc.higradavg_event(0.2, 1, 5.0), 30),
            ],
            1e-6,
            1.473498,
        ),
        ([(acc.user_ldp_event(40.0), 50)], 1e-5, 1.3564673644570344),
        ([(acc.item_event(ITEM, SIGMA), 62, 25)] * 16, 1e-5, 8.978541810899834),
        ([(acc.item_event(ITEM, SIGMA), 62, 100)] * 16, 1e-5, 21.537609155470207),
        (UNLIKE[:3], 1e-5, 2.4228443772230284),
    ],
    ids=["horizontal-1", "horizontal-2", "O22", "O24", "O25", "O26"],
)
def test_reference_values(silos, delta, epsilon):
    plan = HorizontalPlan(silos)
    assert plan.epsilon(delta) == pytest.approx(epsilon, rel=2e-3)
    assert plan.epsilon(delta, engine="rdp") >= epsilon * (1 - 1e-4)
    assert plan.delta(epsilon) == pytest.approx(delta, rel=2e-2)


def test_reference_o27_noise_for_budget_from_unit_noise_is_sigma():
    plan = HorizontalPlan([(acc.item_event(ITEM, 1.0), 62, 100)] * 16)
    sigma = plan.noise_for_budget(epsilon=4.0, delta=1e-5)
    assert sigma == pytest.approx(5.550065361234472, rel=1e-3)
    assert plan.scaled(sigma).epsilon(1e-5) <= 4.0
    assert plan.scaled(sigma * (1 - 1.5e-4)).epsilon(1e-5) > 4.0


def test_reference_o28_rounds_within_budget_is_exact():
    plan = HorizontalPlan([(acc.item_event(ITEM, SIGMA), 62, 100)] * 16)
    assert plan.rounds_within_budget(epsilon=4.0, delta=1e-5) == 6


def test_one_silo_is_that_silo_in_every_view():
    event = acc.group_event(0.02, 5, 4.0)
    alone = acc.epsilon(event, 40, delta=1e-5)
    for view in ("updates", "average", "final_model"):
        plan = HorizontalPlan([(event, 1, 40)], view=view, silos_per_subject=1)
        assert plan.epsilon(1e-5) == pytest.approx(alone, rel=1e-9)
    assert HorizontalPlan([(event, 4, 10)]).epsilon(1e-5) == pytest.approx(alone, rel=1e-12)


# Subsets.


@pytest.mark.parametrize(
    ("most", "delta", "engine"),
    [(1, 1e-3, "pld"), (2, 1e-9, "pld"), (3, 1e-5, "pld"), (2, 1e-5, "rdp")],
)
def test_silos_per_subject_is_the_largest_over_all_subsets(most, delta, engine):
    plan = HorizontalPlan(UNLIKE, silos_per_subject=most)
    every = {
        chosen: HorizontalPlan([UNLIKE[i] for i in chosen]).epsilon(delta, engine)
        for chosen in itertools.combinations(range(len(UNLIKE)), most)
    }
    found = plan.worst_case(delta=delta, engine=engine)
    assert found.exact
    assert found.value == pytest.approx(max(every.values()), rel=1e-6)
    assert every[found.silos] == pytest.approx(found.value, rel=1e-6)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_silos_per_subject_in_the_average_is_the_largest_over_all_subsets(most):
    plan = HorizontalPlan(ONE_STEP, silos_per_subject=most, view="average")
    values = [_average(ONE_STEP, chosen, 1e-5) for chosen in itertools.combinations(range(4), most)]
    assert plan.epsilon(1e-5) == pytest.approx(max(values), rel=1e-6)


def _average(silos, chosen, delta):
    """The averaged view of a subject in `chosen`: the law by enumeration of all presences."""
    parts, previous = [], 0
    for end in sorted({s.rounds for s in silos}):
        noise = math.sqrt(
            sum((s.weight * s.clip_norm * _sigma(s.event)) ** 2 for s in silos if s.rounds >= end)
        )
        laws = [_outcomes(silos[i]) for i in chosen if silos[i].rounds >= end]
        if laws:
            values, masses = [], []
            for outcome in itertools.product(*laws):
                values.append(sum(v for v, _ in outcome))
                masses.append(math.prod(w for _, w in outcome))
            event = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(noise, values, masses)
            parts.append((event, end - previous))
        previous = end
    return acc.epsilon(acc.compose(parts), delta=delta)


def _sigma(event):
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        return event.event.noise_multiplier
    return event.standard_deviation


def _outcomes(silo):
    if isinstance(silo.event, dp_accounting.PoissonSampledDpEvent):
        p = silo.event.sampling_probability
        law = [(0.0, 1 - p), (1.0, p)]
    else:
        law = list(zip(silo.event.sensitivities, silo.event.sampling_probs, strict=True))
    return [(silo.weight * silo.clip_norm * v, w) for v, w in law]


def test_a_promise_of_more_silos_costs_more_up_to_all_silos():
    values = [HorizontalPlan(UNLIKE, silos_per_subject=m).epsilon(1e-5) for m in (1, 3, 5, 9)]
    assert values == sorted(values)
    assert values[-1] == HorizontalPlan(UNLIKE).epsilon(1e-5)


def test_dominated_silos_are_not_compared():
    silos = [(acc.higradavg_event(0.01, k, 2.0), 20) for k in (1, 4, 9, 2, 9)]
    plan = HorizontalPlan(silos, silos_per_subject=2)
    found = plan.worst_case(delta=1e-5)
    assert (found.silos, found.choices, found.exact) == ((2, 4), 1, True)
    assert ledger(plan.event, 1) == ledger(acc.compose([silos[2], silos[4]]), 1)


def test_a_search_that_ends_early_stays_above_and_says_so(monkeypatch):
    plan = HorizontalPlan(UNLIKE, silos_per_subject=3)
    true = plan.epsilon(1e-5)
    monkeypatch.setattr(subsets.search_worst, "__defaults__", (1, math.inf))
    early = plan.worst_case(delta=1e-5)
    assert not early.exact
    assert early.silos == ()
    assert true <= early.value <= HorizontalPlan(UNLIKE).epsilon(1e-5)
    monkeypatch.setattr(subsets, "MOST_SUBSETS", 2)
    unlisted = HorizontalPlan(UNLIKE, silos_per_subject=3)
    assert "Too many" in unlisted.describe()
    bound = unlisted.worst_case(delta=1e-5)
    assert bound.choices == 0
    assert true <= bound.value <= HorizontalPlan(UNLIKE).epsilon(1e-5)


def test_too_many_choices_in_the_average_stay_above(monkeypatch):
    true = HorizontalPlan(ONE_STEP, silos_per_subject=2, view="average").epsilon(1e-5)
    monkeypatch.setattr(subsets, "MOST_SUBSETS", 2)
    plan = HorizontalPlan(ONE_STEP, silos_per_subject=2, view="average")
    assert true <= plan.epsilon(1e-5) <= HorizontalPlan(ONE_STEP, view="average").epsilon(1e-5)


def test_no_single_event_stands_for_unlike_subsets():
    with pytest.raises(ValueError, match="depends on delta"):
        _ = HorizontalPlan(UNLIKE, silos_per_subject=2).event


# The averaged view.


def test_the_average_of_equal_silos_never_costs_more_than_their_updates():
    for event in (acc.higradavg_event(0.05, 3, 2.0), acc.group_event(0.1, 4, 4.0)):
        silos = [(event, 1, 20)] * 4
        updates = HorizontalPlan(silos)
        average = HorizontalPlan(silos, view="average")
        for delta in (1e-3, 1e-6, 1e-10):
            assert average.epsilon(delta) <= updates.epsilon(delta) * (1 + 1e-6)
            final = HorizontalPlan(silos, view="final_model").epsilon(delta)
            assert final == average.epsilon(delta)


def test_the_average_is_the_hockey_stick_of_the_convolved_presence():
    """Against quadrature of max(P - e^eps Q, 0) for one step, both directions."""
    rates, weights, sigmas = (0.3, 0.2, 0.5), (1.0, 2.0, 0.5), (1.5, 1.2, 2.0)
    silos = [
        Silo(acc.subject_event(p, s), weight=w)
        for p, w, s in zip(rates, weights, sigmas, strict=True)
    ]
    noise = math.hypot(*(w * s for w, s in zip(weights, sigmas, strict=True)))
    x = np.linspace(-12 * noise, 12 * noise + 4, 400_001)
    p = np.zeros_like(x)
    for there in itertools.product((0, 1), repeat=3):
        mass = math.prod(r if t else 1 - r for r, t in zip(rates, there, strict=True))
        p += mass * stats.norm.pdf(x, np.dot(there, weights), noise)
    q = stats.norm.pdf(x, 0.0, noise)

    def delta_at(epsilon):
        pairs = ((p, q), (q, p))
        return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() * (x[1] - x[0]) for a, b in pairs)

    plan = HorizontalPlan(silos, view="average")
    exact = optimize.brentq(lambda e: delta_at(e) - 1e-3, 0.01, 5.0, xtol=1e-9)
    assert exact * (1 - 1e-6) <= plan.epsilon(1e-3) <= exact * (1 + 1e-4)


def test_in_the_average_a_silo_reports_in_its_first_rounds_only():
    plan = HorizontalPlan(ONE_STEP, view="average")
    assert plan.epsilon(1e-5) == pytest.approx(_average(ONE_STEP, range(4), 1e-5), rel=1e-4)


def test_the_absent_silos_noise_protects_and_known_noise_does_not():
    silos = [Silo(acc.higradavg_event(0.05, 3, 2.0), 1, 20, name=name) for name in "abcd"]
    values = [
        HorizontalPlan(silos, view="average", known_noise=known).epsilon(1e-5)
        for known in ((), ("b",), (1, "c"))
    ]
    assert values[0] < values[1] < values[2]
    # Without the noise of b the deviation is sqrt(3) sigma C.
    scaled = [Silo(acc.higradavg_event(0.05, 3, 2.0 * math.sqrt(3) / 2), 1, 20)] * 4
    assert values[1] == pytest.approx(
        HorizontalPlan(scaled, view="average").epsilon(1e-5), rel=1e-6
    )
    assert HorizontalPlan(silos, view="average", known_noise=range(4)).epsilon(1e-5) == math.inf


def test_a_silo_without_noise_exposes_its_own_subjects_only():
    silos = (*ONE_STEP[:2], Silo(acc.nonprivate_event(), 1, 30))
    plan = HorizontalPlan(silos, view="average")
    assert plan.epsilon(1e-5) == math.inf
    result = plan.per_subject_epsilon([[1, 0, 1], [1, 1, 0], [0, 0, 1]], delta=1e-5)
    assert list(np.isinf(result.epsilon)) == [True, False, True]
    others = HorizontalPlan(ONE_STEP[:2], view="average").epsilon(1e-5)
    assert result.epsilon[1] == pytest.approx(others, rel=1e-9)


def test_where_noises_do_not_add_the_average_has_the_bound_of_the_updates():
    several = [(acc.higradavg_event(0.05, 3, 2.0), steps, 20) for steps in (1, 2)]
    replaced = [(acc.replace_one_event(0.1, 3.0), 1, 20), (acc.subject_event(0.1, 3.0), 1, 20)]
    revealed = [(acc.element_event(0.01, 4.0), 1, 20)] * 2
    epoch = [(acc.shuffled_epoch_event(3, 10, 30.0), 1, 20)] * 2
    for silos in (several, replaced, revealed, epoch):
        for view in ("average", "final_model"):
            plan = HorizontalPlan(silos, view=view)
            assert plan.epsilon(1e-5) == HorizontalPlan(silos).epsilon(1e-5)
            assert "view 'updates'" in plan.describe()
        # Nothing covers a subject whose own update is seen with its noise known.
        curious = HorizontalPlan(silos, view="average", known_noise=[0])
        assert curious.epsilon(1e-5) == math.inf
        assert "no guarantee" in curious.describe()


def test_weights_matter_up_to_a_common_factor_only():
    def plan(factor):
        silos = [
            Silo(s.event, 1, s.rounds, weight=factor * s.weight, clip_norm=2.0) for s in ONE_STEP
        ]
        return HorizontalPlan(silos, view="average").epsilon(1e-5)

    assert plan(1.0) == pytest.approx(plan(1e-6), rel=1e-9)


def test_user_ldp_in_the_average_moves_by_twice_the_clip_norm():
    silos = [Silo(acc.user_ldp_event(30.0), 1, 10, clip_norm=2.0, noised_once=True)] * 3
    one = HorizontalPlan(silos, view="average", silos_per_subject=1).epsilon(1e-5)
    expected = acc.epsilon(dp_accounting.GaussianDpEvent(15.0 * math.sqrt(3)), 10, delta=1e-5)
    assert one == pytest.approx(expected, rel=1e-9)


# Inversions.


@pytest.mark.parametrize(("view", "budget"), [("updates", 4.0), ("average", 0.8)])
@pytest.mark.parametrize("most", [None, 2])
def test_noise_and_rounds_are_exact_inversions(view, budget, most):
    plan = HorizontalPlan(ONE_STEP, silos_per_subject=most, view=view)
    factor = plan.noise_for_budget(epsilon=budget, delta=1e-5)
    assert plan.scaled(factor).epsilon(1e-5) <= budget
    assert plan.scaled(factor * (1 - 2e-4)).epsilon(1e-5) > budget
    rounds = plan.rounds_within_budget(epsilon=budget, delta=1e-5)

    def spent(n):
        silos = [Silo(s.event, 1, n, weight=s.weight) for s in ONE_STEP]
        return HorizontalPlan(silos, silos_per_subject=most, view=view).epsilon(1e-5)

    assert rounds >= 1
    assert spent(rounds) <= budget < spent(rounds + 1)


def test_a_budget_that_not_one_round_keeps_has_no_rounds():
    plan = HorizontalPlan([(acc.item_event(0.5, 0.5), 100)] * 3)
    assert plan.rounds_within_budget(epsilon=0.5, delta=1e-5) == 0


def test_what_spends_nothing_needs_no_noise_and_lasts_for_ever():
    plan = HorizontalPlan([(acc.item_event(0.0, 1.0), 10, 5)] * 2)
    assert plan.epsilon(1e-5) == 0.0
    assert plan.noise_for_budget(epsilon=1.0, delta=1e-5) == 0.0
    assert plan.rounds_within_budget(epsilon=1.0, delta=1e-5) == math.inf


def test_a_silo_without_noise_cannot_be_calibrated():
    plan = HorizontalPlan([(acc.item_event(0.1, 0.0), 1, 1), (acc.item_event(0.1, 1.0), 1, 1)])
    assert plan.epsilon(1e-5) == math.inf
    with pytest.raises(ValueError, match="no noise at all"):
        plan.noise_for_budget(epsilon=1.0, delta=1e-5)
    assert plan.rounds_within_budget(epsilon=1.0, delta=1e-5) == 0


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (acc.item_event(0.1, 2.0), acc.item_event(0.1, 6.0)),
        (acc.group_event(0.1, 3, 2.0), acc.group_event(0.1, 3, 6.0)),
        (acc.user_ldp_event(2.0), acc.user_ldp_event(6.0)),
        (acc.replace_one_event(0.1, 2.0), acc.replace_one_event(0.1, 6.0)),
        (acc.element_event(0.1, 2.0), acc.element_event(0.1, 6.0)),
        (acc.fixed_size_event(100, 5, 2.0), acc.fixed_size_event(100, 5, 6.0)),
        (
            acc.compose([(acc.item_event(0.1, 2.0), 3), (acc.user_ldp_event(1.0), 2)]),
            acc.compose([(acc.item_event(0.1, 6.0), 3), (acc.user_ldp_event(3.0), 2)]),
        ),
        (dp_accounting.NoOpDpEvent(), dp_accounting.NoOpDpEvent()),
        (dp_accounting.NonPrivateDpEvent(), dp_accounting.NonPrivateDpEvent()),
    ],
)
def test_scaling_reaches_the_noise_of_every_event(event, expected):
    assert scaled_event(event, 3.0) == expected


def test_an_event_whose_noise_is_not_known_is_not_scaled():
    with pytest.raises(ValueError, match="cannot be scaled"):
        scaled_event(dp_accounting.ZCDpEvent(0.1), 2.0)


# Renyi bounds on the grid of orders.


@pytest.mark.parametrize(
    "event",
    [
        acc.item_event(0.01, 1.0),
        acc.group_event(0.02, 60, 8.0),
        acc.group_event(0.3, 9, 0.7),
        acc.user_ldp_event(3.0),
        acc.element_event(0.01, 4.0),
        acc.replace_one_event(0.1, 3.0),
    ],
)
def test_grid_cumulants_are_the_renyi_divergence_and_never_below(event):
    ((mechanism, _),) = ledger(event, 1).entries
    ours = grid_cumulants(ledger(event, 1))
    largest = max(max(pair.p_locations) for _, pair in mechanism.directions()[0])
    for i in range(0, len(THETA), 5):
        exact = THETA[i] * renyi_divergence(mechanism, 1.0 + THETA[i])
        assert ours[i] >= exact * (1 - 1e-9)
        if THETA[i] * largest**2 < 50.0:  # beyond, the convexity bound may be taken
            assert ours[i] <= exact * (1 + 1e-7) + 1e-13


# Arguments.


@pytest.mark.parametrize(
    ("make", "error", "word"),
    [
        (lambda: HorizontalPlan([]), ValueError, "empty"),
        (lambda: HorizontalPlan(3), TypeError, "Silo"),
        (lambda: HorizontalPlan(["a"]), TypeError, "Silo"),
        (lambda: HorizontalPlan(UNLIKE, view="all"), ValueError, "view"),
        (lambda: HorizontalPlan(UNLIKE, silos_per_subject=0), ValueError, "silos_per_subject"),
        (lambda: HorizontalPlan(UNLIKE, known_noise=[0]), ValueError, "known_noise"),
        (lambda: HorizontalPlan(UNLIKE, view="average", known_noise=[9]), ValueError, "at most 4"),
        (lambda: HorizontalPlan(UNLIKE, view="average", known_noise=["x"]), ValueError, "'x'"),
        (lambda: Silo(3), TypeError, "DpEvent"),
        (lambda: Silo(UNLIKE[0].event, 0), ValueError, "steps_per_round"),
        (lambda: Silo(UNLIKE[0].event, 1, 1.5), TypeError, "rounds"),
        (lambda: Silo(UNLIKE[0].event, noised_once=1), TypeError, "noised_once"),
        (lambda: Silo(UNLIKE[0].event, weight=0.0), ValueError, "weight"),
        (lambda: HorizontalPlan(UNLIKE).epsilon(2.0), ValueError, "delta"),
        (lambda: HorizontalPlan(UNLIKE).epsilon(1e-5, "gdp"), ValueError, "engine"),
        (lambda: HorizontalPlan(UNLIKE).worst_case(), ValueError, "exactly one"),
        (
            lambda: HorizontalPlan([(dp_accounting.dp_event.ZCDpEvent(1.0), 3)] * 2).epsilon(1e-5),
            ValueError,
            "rdp",
        ),
    ],
)
def test_wrong_arguments_are_refused_by_name(make, error, word):
    with pytest.raises(error, match=word):
        make()


def test_the_text_says_what_is_assumed_and_proven():
    text = HorizontalPlan(UNLIKE, silos_per_subject=2).describe()
    assert "more than 2 of 5" in text
    assert "composes" in text
    assert "10 choices" in text or "choices of silos are compared" in text
    assert "every silo" in HorizontalPlan(UNLIKE).describe()
    assert "mixture of Gaussians" in HorizontalPlan(ONE_STEP, view="average").describe()
