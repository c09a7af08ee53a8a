# SPDX-License-Identifier: Apache-2.0
"""The guarantee table: every algorithm under every sampling, for a subject and for an item.

The events are held against ones written here from dp_accounting's own classes and from the laws of
the sampling; the epsilons of some against closed forms.
"""

import dataclasses
import itertools
import math

import attr
import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import pld_privacy_accountant
from scipy import optimize, special, stats

from tf_subjectdp import accounting
from tf_subjectdp.accounting import (
    FixedSizeReplaceOneDpEvent,
    PoissonReplaceOneDpEvent,
    RevealedSensitivityDpEvent,
)
from tf_subjectdp.algorithms import (
    GroupDP,
    HiGradAvg,
    ItemDP,
    SamplingFacts,
    SubjectDP,
    UserLDP,
)

SIGMA = 6.0
SCHEMES = ("poisson_items", "poisson_subjects", "fixed_size", "shuffle")
UNITS = ("subject", "item")
CAP = 2
ALGORITHMS = {
    "ItemDP": ItemDP(1.0),
    "HiGradAvg": HiGradAvg(1.0),
    "GroupDP": GroupDP(1.0),
    "GroupDP capped": GroupDP(1.0, max_items_per_subject=CAP),
    "SubjectDP": SubjectDP(1.0),
    "UserLDP": UserLDP(1.0),
}
N, BATCH, K, M = 60, 15, 4, 20
P, Q = 0.3, BATCH / N


def facts(scheme, **changes):
    given = {
        "scheme": scheme,
        "rate": P if scheme == "poisson_subjects" else Q,
        "n_items": N,
        "n_subjects": M,
        "batch_size": float(BATCH),
        "expected_subjects": 5.0,
        "max_items": K,
        "steps_per_epoch": N // BATCH,
    }
    return SamplingFacts(**{**given, **changes})


def guarantee(name, unit, of, sigma=SIGMA):
    rule = ALGORITHMS[name]
    return (rule.subject_guarantee if unit == "subject" else rule.item_guarantee)(of, sigma)


def poisson(rate, sigma):
    return dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))


def gaussian(sigma):
    return dp_accounting.GaussianDpEvent(sigma)


def one_epoch(sigma):
    return poisson(1.0, sigma)


def revealed(moves, chances):
    return RevealedSensitivityDpEvent(tuple(moves), tuple(chances), SIGMA)


def replaced(rate, sigma):
    return PoissonReplaceOneDpEvent(rate, sigma)


def mixture(q, k, cap=None):
    law = stats.binom(k, q)
    top = k if cap is None else min(k, cap)
    chances = [law.pmf(j) for j in range(top)] + [law.sf(top - 1)]
    return dp_accounting.dp_event.MixtureOfGaussiansDpEvent(SIGMA, range(top + 1), chances)


def draws_of_subject(cap=None):
    """(moves, chances) of a subject's rows in a fixed batch, counted by hand."""
    ways = [math.comb(K, j) * math.comb(N - K, BATCH - j) for j in range(K + 1)]
    top = K if cap is None else cap
    return [2.0 * min(j, top) for j in range(1, K + 1)], [w / sum(ways) for w in ways[1:]]


def same(event, other):
    if type(event) is not type(other):
        return False
    if isinstance(event, dp_accounting.DpEvent):
        left, right = (attr.asdict(e, recurse=False) for e in (event, other))
        return all(same(left[key], right[key]) for key in left)
    return np.shape(event) == np.shape(other) and np.allclose(event, other, rtol=1e-9, atol=1e-15)


def normal(event):
    """Sequences as tuples of floats, so that a range and a list compare."""
    values = {}
    for key, value in attr.asdict(event, recurse=False).items():
        if isinstance(value, dp_accounting.DpEvent):
            values[key] = normal(value)
        elif np.ndim(value):
            values[key] = tuple(map(float, value))
        else:
            values[key] = float(value)
    return type(event)(**values)


PRESENT = 1 - (1 - Q) ** K
WORST_SHUFFLE = 2 * math.sqrt(K * K)  # all K items in one batch
WORST_CAPPED = 2 * math.sqrt(2 * CAP**2)  # K = 4 items, two in each of two batches
PRESENT_FIXED = sum(draws_of_subject()[1])

TABLE = {
    # corrections 1, 5, 6, 11
    ("ItemDP", "poisson_items", "subject"): [mixture(Q, K)],
    ("ItemDP", "poisson_subjects", "subject"): [poisson(P, SIGMA / K)],
    ("ItemDP", "fixed_size", "subject"): [revealed(*draws_of_subject())],
    ("ItemDP", "shuffle", "subject"): [one_epoch(SIGMA / WORST_SHUFFLE)],
    ("ItemDP", "poisson_items", "item"): [poisson(Q, SIGMA)],
    ("ItemDP", "poisson_subjects", "item"): [revealed([1.0], [P]), replaced(P, SIGMA / K)],
    ("ItemDP", "fixed_size", "item"): [FixedSizeReplaceOneDpEvent(N, BATCH, SIGMA)],
    ("ItemDP", "shuffle", "item"): [one_epoch(SIGMA / 2)],
    ("HiGradAvg", "poisson_items", "subject"): [poisson(PRESENT, SIGMA)],
    ("HiGradAvg", "poisson_subjects", "subject"): [poisson(P, SIGMA)],
    ("HiGradAvg", "fixed_size", "subject"): [revealed([2.0], [PRESENT_FIXED])],
    ("HiGradAvg", "shuffle", "subject"): [one_epoch(SIGMA / (2 * math.sqrt(K)))],
    ("HiGradAvg", "poisson_items", "item"): [poisson(Q, SIGMA)],
    ("HiGradAvg", "poisson_subjects", "item"): [revealed([1.0], [P]), replaced(P, SIGMA)],
    ("HiGradAvg", "fixed_size", "item"): [FixedSizeReplaceOneDpEvent(N, BATCH, SIGMA)],
    ("HiGradAvg", "shuffle", "item"): [one_epoch(SIGMA / 2)],
    ("GroupDP capped", "poisson_items", "subject"): [mixture(Q, K, CAP)],
    ("GroupDP capped", "poisson_subjects", "subject"): [poisson(P, SIGMA / CAP)],
    ("GroupDP capped", "fixed_size", "subject"): [revealed(*draws_of_subject(CAP))],
    ("GroupDP capped", "shuffle", "subject"): [one_epoch(SIGMA / WORST_CAPPED)],
    ("GroupDP capped", "poisson_items", "item"): [poisson(Q, SIGMA / 2)],
    ("GroupDP capped", "poisson_subjects", "item"): [
        revealed([2.0], [P]),
        replaced(P, SIGMA / CAP),
    ],
    ("GroupDP capped", "fixed_size", "item"): [revealed([2.0], [BATCH / N])],
    ("GroupDP capped", "shuffle", "item"): [one_epoch(SIGMA / 2)],
    ("SubjectDP", "poisson_items", "subject"): [poisson(PRESENT, SIGMA)],
    ("SubjectDP", "poisson_subjects", "subject"): [poisson(P, SIGMA)],
    ("SubjectDP", "fixed_size", "subject"): [revealed([2.0], [PRESENT_FIXED])],
    ("SubjectDP", "shuffle", "subject"): [one_epoch(SIGMA / (2 * math.sqrt(K)))],
    ("SubjectDP", "poisson_items", "item"): [poisson(Q, SIGMA / 2), replaced(PRESENT, SIGMA)],
    ("SubjectDP", "poisson_subjects", "item"): [replaced(P, SIGMA), revealed([2.0], [P])],
    ("SubjectDP", "fixed_size", "item"): [revealed([2.0], [BATCH / N])],
    ("SubjectDP", "shuffle", "item"): [one_epoch(SIGMA / 2)],
    ("UserLDP", "poisson_items", "subject"): [gaussian(SIGMA / 2)],
    ("UserLDP", "poisson_subjects", "subject"): [gaussian(SIGMA / 2)],
    ("UserLDP", "fixed_size", "subject"): [
        FixedSizeReplaceOneDpEvent(N, BATCH, SIGMA, K),
        gaussian(SIGMA / 2),
    ],
    ("UserLDP", "shuffle", "subject"): [one_epoch(SIGMA / (2 * math.sqrt(K)))],
    ("UserLDP", "poisson_items", "item"): [poisson(Q, SIGMA / 2), gaussian(SIGMA / 2)],
    ("UserLDP", "poisson_subjects", "item"): [gaussian(SIGMA / 2)],
    ("UserLDP", "fixed_size", "item"): [FixedSizeReplaceOneDpEvent(N, BATCH, SIGMA)],
    ("UserLDP", "shuffle", "item"): [one_epoch(SIGMA / 2)],
}
TABLE |= {
    ("GroupDP", scheme, unit): TABLE["ItemDP", scheme, unit]
    for scheme, unit in itertools.product(SCHEMES, UNITS)
}


def check_events(name, unit, of, expected):
    found = guarantee(name, unit, of).events
    assert len(found) == len(expected)
    for event, other in zip(found, expected, strict=True):
        assert same(normal(event), normal(other)), (event, other)


def test_the_table_below_has_every_cell():
    assert set(TABLE) == set(itertools.product(ALGORITHMS, SCHEMES, UNITS))


@pytest.mark.parametrize("cell", TABLE, ids=" - ".join)
def test_every_cell_has_the_event_of_its_proof(cell):
    name, scheme, unit = cell
    of = facts(scheme)
    check_events(name, unit, of, TABLE[cell])
    found = guarantee(name, unit, of)
    assert found.unit == unit
    assert found.steps_per_event == (N // BATCH if scheme == "shuffle" else 1)
    in_place = scheme in ("fixed_size", "shuffle")
    if "change" not in found.adjacency:
        assert found.adjacency.startswith("replacing" if in_place else "adding or removing")
    assert unit in found.adjacency or found.adjacency == "any change of the data"


@pytest.mark.parametrize(
    ("name", "scheme", "changes", "expected"),
    [
        # With a cap on the data one item displaces another: Poisson replace-one.
        ("ItemDP", "poisson_items", {"data_cap": True}, [replaced(Q, SIGMA)]),
        ("HiGradAvg", "poisson_items", {"data_cap": True}, [replaced(Q, SIGMA)]),
        ("GroupDP", "poisson_items", {"data_cap": True}, [replaced(Q, SIGMA)]),
        # With both caps: two clip norms from the sum without either item.
        ("GroupDP capped", "poisson_items", {"data_cap": True}, [replaced(Q, SIGMA / 2)]),
        (
            "SubjectDP",
            "poisson_items",
            {"data_cap": True},
            [replaced(Q, SIGMA / 2), replaced(PRESENT, SIGMA)],
        ),
        (
            "UserLDP",
            "poisson_items",
            {"data_cap": True},
            [replaced(Q, SIGMA / 2), gaussian(SIGMA / 2)],
        ),
        # Subjects sampled: an item that displaces another moves two clip norms.
        (
            "ItemDP",
            "poisson_subjects",
            {"data_cap": True},
            [revealed([2.0], [P]), replaced(P, SIGMA / K)],
        ),
        (
            "HiGradAvg",
            "poisson_subjects",
            {"step_cap": 3},
            [revealed([2.0], [P]), replaced(P, SIGMA)],
        ),
        (
            "ItemDP",
            "poisson_subjects",
            {"step_cap": 3, "data_cap": True},
            [revealed([2.0], [P]), replaced(P, SIGMA / 3)],
        ),
    ],
)
def test_caps_that_let_one_item_displace_another_cost_what_that_moves(
    name, scheme, changes, expected
):
    check_events(name, "item", facts(scheme, **changes), expected)


def test_caps_on_the_data_leave_the_subjects_figure_as_it_is():
    for name, scheme in itertools.product(ALGORITHMS, SCHEMES):
        plain, capped = (
            guarantee(name, "subject", facts(scheme, data_cap=cap)) for cap in (False, True)
        )
        assert plain == capped


def test_a_step_cap_bounds_what_a_sampled_subject_brings():
    check_events(
        "ItemDP", "subject", facts("poisson_subjects", step_cap=3), [poisson(P, SIGMA / 3)]
    )
    capped = facts("poisson_subjects", step_cap=1)
    check_events("GroupDP capped", "subject", capped, [poisson(P, SIGMA)])


def test_caps_that_never_bind_cost_nothing():
    loose = GroupDP(1.0, max_items_per_subject=K)
    for scheme, unit in itertools.product(SCHEMES, UNITS):
        of = facts(scheme)
        rule = "subject_guarantee" if unit == "subject" else "item_guarantee"
        found, free = (getattr(a, rule)(of, SIGMA) for a in (loose, GroupDP(1.0)))
        assert len(found.events) == len(free.events)
        for event, other in zip(found.events, free.events, strict=True):
            assert same(normal(event), normal(other))
    of = facts("poisson_subjects")
    assert guarantee("ItemDP", "item", dataclasses.replace(of, step_cap=K)) == guarantee(
        "ItemDP", "item", of
    )


# -- epsilons against closed forms -------------------------------------------------------------------


def gaussian_delta(mu, epsilon):
    lower = special.log_ndtr(-mu / 2 - epsilon / mu) + epsilon
    return special.ndtr(mu / 2 - epsilon / mu) - math.exp(lower)


def gaussian_epsilon(mu, delta):
    return optimize.brentq(lambda e: gaussian_delta(mu, e) - delta, 0, 1e4)


def close(found, true):
    """An upper bound, at most 1e-3 above the truth."""
    return true * (1 - 1e-6) <= found <= true * (1 + 1e-3) + 1e-6


def test_shuffled_items_of_one_subject_that_all_fall_into_one_batch():
    # Correction 1: one batch an epoch, k 10, sigma 20, 10 epochs: 17.86, not 1.20.
    of = facts("shuffle", n_items=500, batch_size=500.0, max_items=10, steps_per_epoch=1)
    found = guarantee("ItemDP", "subject", of, 20.0).epsilon(10, 1e-5)
    assert close(found, gaussian_epsilon(2 * 10 * math.sqrt(10) / 20, 1e-5))
    assert round(found, 2) == 17.86


def test_a_begun_epoch_counts_whole():
    found = guarantee("HiGradAvg", "subject", facts("shuffle"))
    assert found.epsilon(5, 1e-5) == found.epsilon(8, 1e-5) > found.epsilon(4, 1e-5)
    assert close(found.epsilon(4, 1e-5), gaussian_epsilon(2 * math.sqrt(K) / SIGMA, 1e-5))


def test_user_ldp_is_the_gaussian_of_two_clip_norms_at_every_step():
    found = guarantee("UserLDP", "subject", facts("poisson_items"), 40.0)
    assert close(found.epsilon(100, 1e-5), gaussian_epsilon(2 * 10 / 40, 1e-5))


def test_known_presence_is_the_binomial_mixture_of_gaussians():
    found = guarantee("HiGradAvg", "subject", facts("fixed_size"), 20.0)
    steps = 30
    chances = stats.binom(steps, PRESENT_FIXED).pmf(np.arange(1, steps + 1))

    def delta(epsilon):
        return sum(
            c * gaussian_delta(2 * math.sqrt(n) / 20, epsilon)
            for n, c in enumerate(chances, start=1)
        )

    true = optimize.brentq(lambda e: delta(e) - 1e-5, 0, 100)
    assert close(found.epsilon(steps, 1e-5), true)


def test_sampled_figures_agree_with_dp_accounting():
    steps, delta = 20, 1e-5
    for name in ("SubjectDP", "ItemDP", "GroupDP capped"):
        (event,) = TABLE[name, "poisson_items", "subject"]
        accountant = pld_privacy_accountant.PLDAccountant(value_discretization_interval=1e-3)
        true = accountant.compose(event, steps).get_epsilon(delta)
        found = guarantee(name, "subject", facts("poisson_items")).epsilon(steps, delta)
        assert abs(found - true) < 5e-3 * true


def test_a_displaced_item_costs_the_replace_one_figure():
    found = guarantee("ItemDP", "item", facts("poisson_items", data_cap=True), 1.0)

    def above(x, side):
        return (1 - Q) * special.ndtr(-x) + Q * special.ndtr(side - x)

    def log_ratio(x):
        up, down = (np.log1p(Q * np.expm1(side * x - 0.5)) for side in (1.0, -1.0))
        return up - down

    def delta(epsilon):
        # The ratio of the densities increases with x: the worst event is a half-line.
        edge = optimize.brentq(lambda x: log_ratio(x) - epsilon, 0, 50)
        return above(edge, 1.0) - math.exp(epsilon) * above(edge, -1.0)

    true = optimize.brentq(lambda e: delta(e) - 1e-3, 0, 10)
    assert close(found.epsilon(1, 1e-3), true)


def test_the_smaller_of_two_proven_figures_counts():
    found = guarantee("SubjectDP", "item", facts("poisson_items"))
    each = [accounting.epsilon(event, 10, delta=1e-5) for event in found.events]
    assert found.epsilon(10, 1e-5) == min(each)
    assert found.total(10) == accounting.compose([(found.events[0], 10)])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["ItemDP", "GroupDP", "HiGradAvg", "SubjectDP"])
def test_epsilon_grows_strictly_with_the_items_of_a_subject_where_items_are_sampled(name, scheme):
    found = [
        guarantee(name, "subject", facts(scheme, max_items=k), 12.0).epsilon(8, 1e-5)
        for k in (1, 2, 4)
    ]
    if scheme == "poisson_subjects" and name in ("HiGradAvg", "SubjectDP"):
        assert found[0] == found[1] == found[2]  # one clip norm, however many items
    else:
        assert found[0] < found[1] < found[2]


@pytest.mark.parametrize("name", ["ItemDP", "GroupDP", "GroupDP capped", "HiGradAvg", "SubjectDP"])
def test_a_subject_of_one_item_has_the_figure_of_an_item(name):
    alone = facts("poisson_items", max_items=1)
    item = accounting.epsilon(poisson(Q, SIGMA), 8, delta=1e-5)
    assert guarantee(name, "subject", alone).epsilon(8, 1e-5) == pytest.approx(item, rel=1e-9)
    for scheme in ("fixed_size", "shuffle"):
        of = facts(scheme, max_items=1)
        figures = [guarantee(name, unit, of) for unit in UNITS]
        assert same(*(normal(figure.events[0]) for figure in figures))
        # Silos of subjects with one item compose with silos of more.
        assert figures[0].adjacency == guarantee(name, "subject", facts(scheme)).adjacency


def test_most_items_meet_in_the_fewest_batches_by_exhaustive_search():
    for k, batch, batches, cap in itertools.product((1, 3, 5, 7), (2, 3), (3, 4), (None, 1, 2)):
        if k > batch * batches:
            continue
        of = facts(
            "shuffle",
            n_items=batch * batches,
            batch_size=float(batch),
            max_items=k,
            steps_per_epoch=batches,
        )
        top = cap or k
        best = max(
            sum(min(j, top) ** 2 for j in counts)
            for counts in itertools.product(range(batch + 1), repeat=batches)
            if sum(counts) == k
        )
        assert of.most_square_items(cap) == best


def test_a_batch_size_that_rounds_below_its_whole_number_is_not_cut_short():
    # 15 / 22 * 22 < 15 in floating point; a batch of 14 would be counted.
    size = 15 / 22 * 22
    assert size < 15
    of = facts("fixed_size", n_items=22, batch_size=size, rate=15 / 22, max_items=15)
    assert of.rows_in_batch == 15
    counts, law = of.items_law()
    np.testing.assert_allclose(law, stats.hypergeom(22, 15, 15).pmf(counts), rtol=1e-9)
    assert counts[-1] == 15
    assert guarantee("ItemDP", "item", of).events[0].batch_size == 15
    whole = dataclasses.replace(of, scheme="shuffle", steps_per_epoch=2)
    assert whole.most_square_items() == 15**2


@pytest.mark.parametrize("max_items", [1, 7, 25, 60])
def test_shuffled_guarantees_are_the_accountants_shuffled_epochs(max_items):
    of = facts("shuffle", max_items=max_items)
    batches = of.steps_per_epoch
    for name, size in (("ItemDP", BATCH), ("HiGradAvg", None), ("SubjectDP", None)):
        event = accounting.shuffled_epoch_event(max_items, batches, SIGMA, size)
        stated = guarantee(name, "subject", of).epsilon(3 * batches, 1e-5)
        assert stated == pytest.approx(accounting.epsilon(event, 3, delta=1e-5), rel=1e-9)


def test_the_law_of_a_large_table_sums_to_one():
    of = facts("fixed_size", n_items=10**7, batch_size=1024.0, max_items=5000)
    law = of.items_law()[1]
    assert abs(math.fsum(law) - 1) < 1e-12
    assert of.subject_rate == pytest.approx(-math.expm1(5000 * math.log1p(-1024 / 1e7)), rel=1e-3)


def test_noise_zero_is_not_private_in_any_cell():
    for name, scheme, unit in itertools.product(ALGORITHMS, SCHEMES, UNITS):
        assert guarantee(name, unit, facts(scheme), 0.0).epsilon(4, 1e-5) == math.inf


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_samplings_that_are_not_in_the_table_are_refused(name, unit):
    with pytest.raises(ValueError, match="'round_robin' has no proven guarantee for one " + unit):
        guarantee(name, unit, facts("round_robin"))


@pytest.mark.parametrize("sigma", [-1.0, math.nan, math.inf])
def test_noise_multipliers_out_of_range_are_refused(sigma):
    with pytest.raises(ValueError, match="noise_multiplier="):
        guarantee("ItemDP", "subject", facts("shuffle"), sigma)
