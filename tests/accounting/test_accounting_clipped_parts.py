# SPDX-License-Identifier: Apache-2.0
"""Mixed clipping as the library draws it: laws by enumeration, events, and a plan's curves."""

import itertools
import math
import time
from collections import Counter

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tf_subjectdp import accounting
from tf_subjectdp.accounting import fdp, part_laws
from tf_subjectdp.accounting.engine.gaussian import gaussian_delta

Q, SIGMA = 0.02, 2.5


def as_dict(values, masses):
    return dict(zip(np.asarray(values).tolist(), np.asarray(masses).tolist(), strict=True))


def law_of(curve, sigma):
    """c -> probability of a plan's curve."""
    return {
        round(float(mu * sigma) ** 2): w for mu, w in zip(curve.mus, curve.weights, strict=True)
    }


def same_law(found, expected, rel=1e-10):
    for c in set(found) | set(expected):
        assert found.get(c, 0.0) == pytest.approx(expected.get(c, 0.0), rel=rel, abs=1e-38)


def epsilon(event, steps=50, delta=1e-6):
    return accounting.epsilon(event, steps, delta=delta)


# The laws.


@pytest.mark.parametrize(("parts", "items"), [(1, 3), (2, 4), (3, 3), (5, 2)])
def test_the_parts_of_sampled_items_are_those_of_all_outcomes(parts, items):
    expected = Counter()
    for outcome in itertools.product(range(parts + 1), repeat=items):  # 0: not in the batch
        chance = math.prod(1 - Q if o == 0 else Q / parts for o in outcome)
        expected[len(set(outcome) - {0})] += chance
    same_law(as_dict(*part_laws.parts_of_sampled(parts, items, Q)), expected)
    event = accounting.mixed_clipping_event(Q, items, parts, SIGMA)
    assert isinstance(event, dp_accounting.dp_event.MixtureOfGaussiansDpEvent)
    assert event.standard_deviation == SIGMA
    same_law(as_dict(event.sensitivities, event.sampling_probs), expected)


@pytest.mark.parametrize(
    ("parts", "items", "places", "batch"), [(1, 3, 7, 3), (2, 4, 6, 3), (3, 3, 5, 4), (4, 2, 2, 2)]
)
def test_the_parts_of_a_batch_are_those_of_all_outcomes(parts, items, places, batch):
    expected = Counter()
    for drawn in itertools.combinations(range(places), batch):
        mine = sum(i < items for i in drawn)
        for chosen in itertools.product(range(parts), repeat=mine):
            expected[len(set(chosen))] += 1.0 / math.comb(places, batch) / parts**mine
    same_law(as_dict(*part_laws.parts_of_batch(parts, items, places, batch)), expected)
    event = accounting.mixed_clipping_fixed_size_event(places, batch, items, parts, SIGMA)
    del expected[0]
    same_law(as_dict(event.sensitivities, event.probabilities), expected)
    assert event.noise_multiplier == SIGMA


def test_many_items_agree_with_the_mean_that_linearity_gives():
    for parts, items, q in ((64, 5_000, 0.01), (7, 100_000, 1e-5), (300, 40, 0.9)):
        u, p = part_laws.parts_of_sampled(parts, items, q)
        expected = -parts * math.expm1(items * math.log1p(-q / parts))
        assert u @ p == pytest.approx(expected, rel=1e-9)
    u, p = part_laws.parts_of_batch(64, 5_000, 10**6, 10**4)
    j = np.arange(5_001)
    present = stats.hypergeom(10**6, 5_000, 10**4).pmf(j)
    assert u @ p == pytest.approx(64 * (1.0 - present @ (63 / 64) ** j), rel=1e-7)


def test_the_law_for_very_many_items_is_never_smaller_than_the_chain():
    u, p = part_laws.parts_of_sampled(20, 100_001, 2e-4)
    chain = part_laws.parts_of_sampled(20, 100_000, 2e-4)
    for threshold in range(21):
        assert p[u >= threshold].sum() >= chain[1][chain[0] >= threshold].sum() - 1e-12
    np.testing.assert_allclose(p[u < 20], stats.binom.pmf(u[u < 20], 100_001, 2e-4), rtol=1e-6)


def test_cached_laws_cannot_be_changed():
    for law in (part_laws.parts_of_sampled(3, 4, 0.1), part_laws.parts_of_batch(3, 4, 9, 2)):
        for array in law:
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


# One step.


@pytest.mark.parametrize(("q", "k", "sigma"), [(0.01, 30, 2.0), (0.2, 3, 1.0), (1e-4, 5_000, 3.0)])
def test_one_part_is_a_subject_drawn_if_one_of_its_items_is(q, k, sigma):
    one = accounting.mixed_clipping_event(q, k, 1, sigma)
    subject = accounting.subject_event(-math.expm1(k * math.log1p(-q)), sigma)
    assert epsilon(one) == pytest.approx(epsilon(subject), rel=1e-4)


def test_one_item_is_the_item_unit_whatever_the_parts():
    for parts in (1, 4, 10**9):
        event = accounting.mixed_clipping_event(Q, 1, parts, SIGMA)
        assert epsilon(event) == pytest.approx(epsilon(accounting.item_event(Q, SIGMA)), rel=1e-4)
        fixed = accounting.mixed_clipping_fixed_size_event(500, 10, 1, parts, SIGMA)
        known = accounting.revealed_event([1.0], [0.02], SIGMA)
        assert epsilon(fixed) == pytest.approx(epsilon(known), rel=1e-4)


def test_more_parts_cost_more_and_tend_to_the_group():
    found = [
        epsilon(accounting.mixed_clipping_event(Q, 20, m, SIGMA)) for m in (1, 2, 8, 64, 10**8)
    ]
    assert found == sorted(found) and found[0] < 0.9 * found[-1]
    assert found[-1] == pytest.approx(epsilon(accounting.group_event(Q, 20, SIGMA)), rel=1e-4)
    fixed = [
        epsilon(accounting.mixed_clipping_fixed_size_event(2_000, 40, 20, m, SIGMA))
        for m in (1, 2, 8, 64, 10**8)
    ]
    j = np.arange(1, 21)
    group = accounting.revealed_event(j, stats.hypergeom(2_000, 20, 40).pmf(j), SIGMA)
    assert fixed == sorted(fixed)
    assert fixed[-1] == pytest.approx(epsilon(group), rel=1e-4)


@settings(deadline=None, max_examples=15)
@given(
    q=st.floats(1e-4, 1.0),
    k=st.integers(1, 12),
    parts=st.integers(1, 12),
    sigma=st.floats(0.8, 5.0),
)
def test_delta_of_one_step_is_that_of_the_mixture_in_one_dimension(q, k, parts, sigma):
    event = accounting.mixed_clipping_event(q, k, parts, sigma)
    x = np.linspace(-12.0 * sigma, 12.0 * sigma + parts, 40_001)
    with_unit = sum(
        p * stats.norm.pdf(x, u, sigma)
        for u, p in zip(event.sensitivities, event.sampling_probs, strict=True)
    )
    without = stats.norm.pdf(x, 0.0, sigma)
    for eps in (0.1, 1.0):
        pair = (with_unit - math.exp(eps) * without, without - math.exp(eps) * with_unit)
        exact = max(np.maximum(gap, 0.0).sum() * (x[1] - x[0]) for gap in pair)
        # The midpoint sums err by less than 1e-8; the engine errs upward, by at most 1e-3.
        found = accounting.delta(event, 1, epsilon=eps)
        assert exact - 1e-7 <= found <= exact * 1.002 + 1e-7


def moved(assignment, first, second, parts):
    """How far the sum of clipped parts moves when the unit's items change, in units of C."""

    def clipped(rows):
        total = np.zeros(first.shape[1])
        for part in range(parts):
            v = rows[assignment == part].sum(axis=0)
            total += v / max(1.0, np.linalg.norm(v))
        return total

    return float(np.linalg.norm(clipped(first) - clipped(second)))


def test_the_sum_moves_by_no_more_than_two_a_part_hit_and_can():
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(200):
        parts, others, mine = rng.integers(1, 5), rng.integers(0, 20), rng.integers(1, 6)
        assignment = rng.integers(parts, size=others + mine)
        first = rng.standard_normal((others + mine, 1)) * 10.0 ** rng.integers(-1, 3)
        second = first.copy()
        second[:mine] = rng.standard_normal((mine, 1)) * 1e3
        hit = len(set(assignment[:mine]))
        distance = moved(assignment, first, second, parts)
        assert distance <= 2.0 * hit + 1e-12
        largest = max(largest, distance / hit)
    assert largest > 1.99


@pytest.mark.parametrize(
    "event",
    [
        lambda s: accounting.mixed_clipping_event(Q, 5, 3, s),
        lambda s: accounting.mixed_clipping_fixed_size_event(100, 5, 5, 3, s),
    ],
)
def test_events_without_noise_calibration_and_hashing(event):
    assert event(0.0) == dp_accounting.NonPrivateDpEvent()
    assert hash(event(2.0)) == hash(event(2.0)) and event(2.0) == event(2.0)
    sigma = accounting.noise_multiplier(event, 100, epsilon=2.0, delta=1e-6)
    assert 1.99 < accounting.epsilon(event(sigma), 100, delta=1e-6) <= 2.0
    assert accounting.epsilon(event(3.0), 100, delta=1e-6, engine="rdp") >= epsilon(event(3.0), 100)


def test_no_sampling_and_full_sampling():
    assert epsilon(accounting.mixed_clipping_event(0.0, 5, 3, SIGMA)) == 0.0
    whole = accounting.mixed_clipping_event(1.0, 3, 1, SIGMA)
    assert epsilon(whole) == pytest.approx(epsilon(accounting.subject_event(1.0, SIGMA)))
    whole = accounting.mixed_clipping_fixed_size_event(9, 9, 9, 1, SIGMA)
    assert (whole.sensitivities, whole.probabilities) == ((1.0,), (1.0,))


# A plan's curves.


@pytest.mark.parametrize(("rounds", "parts", "group"), [(10, 1, 3), (20, 4, 5), (6, 3, 8)])
def test_poisson_curves_agree_with_the_scheme_where_they_coincide(rounds, parts, group):
    scheme = fdp.BatchScheme.mixed(rounds, parts, 5, "poisson")
    exact = fdp.hit_law(scheme, epochs=3, group=group)
    curve = fdp.sampled_parts_curve(
        q=1 / rounds, k=group, parts=parts, steps=3 * rounds, noise_multiplier=SIGMA
    )
    same_law(law_of(curve, SIGMA), as_dict(exact.values, exact.probabilities))
    assert curve.adversary == fdp.ADVERSARY_A1


@pytest.mark.parametrize("sampling", ["subsampling", "shuffling"])
@pytest.mark.parametrize(("rounds", "size", "group"), [(10, 4, 3), (7, 9, 12), (30, 1, 6)])
def test_one_part_agrees_with_the_scheme_where_they_coincide(sampling, rounds, size, group):
    exact = fdp.hit_law(fdp.BatchScheme.batch(rounds, size, sampling), epochs=3, group=group)
    data = {"n_items": rounds * size, "batch_size": size, "k": group, "parts": 1}
    if sampling == "subsampling":
        curve = fdp.fixed_size_parts_curve(**data, steps=3 * rounds, noise_multiplier=SIGMA)
    else:
        curve = fdp.shuffled_parts_curve(**data, epochs=3, noise_multiplier=SIGMA)
    same_law(law_of(curve, SIGMA), as_dict(exact.values, exact.probabilities))


@pytest.mark.parametrize("sampling", ["subsampling", "shuffling"])
@pytest.mark.parametrize(("rounds", "parts", "size", "group"), [(5, 3, 4, 4), (3, 2, 2, 6)])
def test_dealing_to_places_hits_no_fewer_parts(sampling, rounds, parts, size, group):
    dealt = fdp.hit_law(fdp.BatchScheme.mixed(rounds, parts, size, sampling), epochs=2, group=group)
    data = {"n_items": dealt_items(rounds, parts, size), "batch_size": parts * size}
    data |= {"k": group, "parts": parts, "noise_multiplier": SIGMA}
    if sampling == "subsampling":
        curve = fdp.fixed_size_parts_curve(**data, steps=2 * rounds)
    else:
        curve = fdp.shuffled_parts_curve(**data, epochs=2)
    own = law_of(curve, SIGMA)
    for c in range(int(dealt.values.max()) + 1):
        assert sum(p for v, p in own.items() if v > c) <= dealt.above(c) + 1e-12
    assert sum(v * p for v, p in own.items()) < dealt.mean()


def dealt_items(rounds, parts, size):
    return rounds * parts * size


@pytest.mark.parametrize(
    ("n", "batch", "k", "parts"),
    [
        (7, 3, 3, 1),
        (7, 3, 3, 2),
        (8, 3, 4, 1),
        (6, 4, 3, 3),
        (5, 5, 3, 2),
        (5, 2, 5, 1),
        (4, 1, 2, 2),
    ],
)
def test_an_epoch_with_a_smaller_last_batch_is_that_of_all_outcomes(n, batch, k, parts):
    expected = Counter()
    for mine in itertools.combinations(range(n), k):
        for chosen in itertools.product(range(parts), repeat=k):
            hit = {(place // batch, part) for place, part in zip(mine, chosen, strict=True)}
            c = sum(v**2 for v in Counter(b for b, _ in hit).values())
            expected[c] += 1.0 / math.comb(n, k) / parts**k
    curve = fdp.shuffled_parts_curve(
        n_items=n, batch_size=batch, k=k, parts=parts, epochs=1, noise_multiplier=SIGMA
    )
    same_law(law_of(curve, SIGMA), expected)
    assert max(expected) <= part_laws.worst_epoch(parts, n, batch, k) <= min(parts, k) * k
    values, masses, cut = part_laws.epoch_tail(parts, n, batch, k, 1, 1e-40)
    assert masses.sum() + cut == pytest.approx(1.0)
    for c in range(max(expected) + 1):
        bound = masses[values > c].sum() + cut
        assert sum(p for v, p in expected.items() if v > c) <= bound * (1 + 1e-9)


def test_a_simulation_of_shuffled_epochs_meets_the_laws():
    # 4,000 times two epochs; 6 standard deviations for each of some 60 probabilities: below 1e-6.
    rng, reps, (n, batch, k, parts) = np.random.default_rng(5), 4_000, (330, 50, 12, 4)
    found = np.zeros(reps, dtype=int)
    for _ in range(2):
        places = np.argpartition(rng.random((reps, n)), k)[:, :k] // batch
        cells = places * parts + rng.integers(parts, size=(reps, k))
        table = np.zeros((reps, -(-n // batch) * parts), dtype=bool)
        np.put_along_axis(table, cells, True, axis=1)
        found += (table.reshape(reps, -1, parts).sum(axis=2) ** 2).sum(axis=1)
    data = {"n_items": n, "batch_size": batch, "k": k, "parts": parts, "epochs": 2}
    law = law_of(fdp.shuffled_parts_curve(**data, noise_multiplier=SIGMA), SIGMA)
    values, masses, cut = part_laws.epoch_tail(parts, n, batch, k, 2, 1e-40)
    for c in range(20, 80):
        share, exact = np.mean(found > c), sum(p for v, p in law.items() if v > c)
        assert abs(share - exact) <= 6.0 * math.sqrt(max(exact * (1 - exact), 1e-4) / reps)
        assert exact <= masses[values > c].sum() + cut + 1e-12


def test_a_bounded_epoch_lies_between_its_mean_and_the_worst_case():
    data = {"n_items": 20_010, "batch_size": 100, "k": 400, "parts": 16, "epochs": 10}
    curve = fdp.shuffled_parts_curve(**data, noise_multiplier=100.0)
    mean = 0.0
    for size, count in ((100, 200), (10, 1)):
        u, p = part_laws.parts_of_batch(16, 400, 20_010, size)
        mean += 10 * count * (u.astype(float) ** 2 @ p)
    found = sum(c * p for c, p in law_of(curve, 100.0).items())
    assert mean < found < 1.1 * mean
    worst = fdp.gaussian(math.sqrt(10 * part_laws.worst_epoch(16, 20_010, 100, 400)) / 100.0)
    assert curve.epsilon(1e-6) < 0.7 * worst.epsilon(1e-6)
    assert curve.dropped <= 1e-39


def test_one_item_is_hit_once_an_epoch():
    for parts in (1, 8):
        curve = fdp.shuffled_parts_curve(
            n_items=105, batch_size=10, k=1, parts=parts, epochs=9, noise_multiplier=SIGMA
        )
        assert curve.epsilon(1e-6) == pytest.approx(fdp.gaussian(3.0 / SIGMA).epsilon(1e-6))


def test_an_epoch_too_long_for_its_law_takes_the_worst_case():
    curve = fdp.shuffled_parts_curve(
        n_items=10**6, batch_size=5, k=60_000, parts=1, epochs=2, noise_multiplier=300.0
    )
    assert law_of(curve, 300.0) == {120_000: 1.0}


def test_the_curve_is_the_mean_over_its_law_and_that_of_the_revealed_event():
    data = {"n_items": 2_000, "batch_size": 40, "k": 30, "parts": 5}
    curve = fdp.fixed_size_parts_curve(**data, steps=20, noise_multiplier=SIGMA)
    event = accounting.mixed_clipping_fixed_size_event(2_000, 40, 30, 5, SIGMA)
    for eps in (0.5, 3.0):
        mean = sum(
            p * gaussian_delta(mu, eps) for mu, p in zip(curve.mus, curve.weights, strict=True)
        )
        assert curve.delta(eps) == pytest.approx(mean, rel=1e-9)
        found = accounting.delta(event, 20, epsilon=eps)
        assert mean * (1 - 1e-6) <= found <= mean * 1.005
    # Who sees the places learns no less than who does not.
    sampled = fdp.sampled_parts_curve(q=0.02, k=30, parts=5, steps=20, noise_multiplier=SIGMA)
    unseen = accounting.mixed_clipping_event(0.02, 30, 5, SIGMA)
    assert epsilon(unseen, 20) < sampled.epsilon(1e-6)


def test_rounding_raises_the_squares_a_little_and_never_lowers_them():
    for k, parts, q, steps in ((5_000, 64, 0.005, 2_000), (300, 64, 0.01, 100_000)):
        u, p = part_laws.parts_of_sampled(parts, k, q)
        curve = fdp.sampled_parts_curve(q=q, k=k, parts=parts, steps=steps, noise_multiplier=1.0)
        mean = steps * float(u.astype(float) ** 2 @ p)
        assert mean * (1 - 1e-9) <= curve.mus**2 @ curve.weights <= mean * (1 + 1e-3)
        assert curve.dropped <= 1e-34


def test_large_plans_are_fast():
    sampled = {"q": 0.01, "k": 5_000, "parts": 64, "steps": 99_999, "noise_multiplier": 3e3}
    data = {"n_items": 10**6, "batch_size": 10**4, "k": 5_000, "noise_multiplier": 3e3}
    start = time.process_time()
    for curve in (
        fdp.sampled_parts_curve(**sampled),
        fdp.fixed_size_parts_curve(**data, parts=64, steps=99_999),
        fdp.shuffled_parts_curve(**data, parts=64, epochs=1_000),
        fdp.shuffled_parts_curve(**data, parts=1, epochs=1_000),
        fdp.shuffled_parts_curve(**data | {"k": 40, "batch_size": 999}, parts=64, epochs=1_000),
    ):
        assert 0.0 < curve.epsilon(1e-6) < math.inf
    assert time.process_time() - start < 20.0


BATCHES = {"n_items": 100, "batch_size": 10, "k": 5, "parts": 2, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: accounting.mixed_clipping_event(1.5, 3, 2, 1.0), ValueError, "probability"),
        (lambda: accounting.mixed_clipping_event(0.1, 0, 2, 1.0), ValueError, "k must"),
        (lambda: accounting.mixed_clipping_event(0.1, 3, 0, 1.0), ValueError, "parts"),
        (lambda: accounting.mixed_clipping_event(0.1, 3.0, 2, 1.0), TypeError, "k must"),
        (lambda: accounting.mixed_clipping_event(0.1, 3, 2, -1.0), ValueError, "noise"),
        (lambda: accounting.mixed_clipping_event(0.1, 10**9 + 1, 2, 1.0), ValueError, "at most"),
        (
            lambda: accounting.mixed_clipping_fixed_size_event(10, 11, 2, 2, 1.0),
            ValueError,
            "batch_size=11",
        ),
        (
            lambda: accounting.mixed_clipping_fixed_size_event(10, 5, 11, 2, 1.0),
            ValueError,
            "k=11",
        ),
        (lambda: fdp.shuffled_parts_curve(**BATCHES, epochs=0), ValueError, "epochs"),
        (lambda: fdp.fixed_size_parts_curve(**BATCHES, steps=0), ValueError, "steps"),
        (
            lambda: fdp.shuffled_parts_curve(**BATCHES | {"noise_multiplier": 0.0}, epochs=1),
            ValueError,
            "above 0",
        ),
        (
            lambda: fdp.sampled_parts_curve(q=2.0, k=1, parts=1, steps=1, noise_multiplier=1.0),
            ValueError,
            "probability",
        ),
    ],
)
def test_what_is_out_of_range_is_refused_with_the_reason(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


# -- a shuffled epoch as an event ---------------------------------------------------------------------


@pytest.mark.parametrize(("n", "batch", "k", "m"), [(40, 10, 3, 1), (43, 10, 6, 1), (43, 10, 4, 3)])
def test_a_shuffled_epoch_is_the_law_of_the_parts_that_it_hits(n, batch, k, m):
    """The event's epsilon is that of the A1 curve: both are one mixture of known Gaussians."""
    event = accounting.mixed_clipping_shuffled_event(n, batch, k, m, 2.0)
    curve = fdp.shuffled_parts_curve(
        n_items=n, batch_size=batch, k=k, parts=m, epochs=5, noise_multiplier=2.0
    )
    exact = float(curve.epsilon(1e-5))
    found = accounting.epsilon(event, 5, delta=1e-5)
    assert exact * (1 - 1e-6) <= found <= exact * (1 + 2e-3)
    worst = part_laws.worst_epoch(m, n, batch, k)
    assert found <= float(fdp.gaussian((5 * worst) ** 0.5 / 2.0).epsilon(1e-5)) * (1 + 2e-3)


def test_a_shuffled_epoch_of_one_item_or_without_noise():
    one = accounting.mixed_clipping_shuffled_event(100, 10, 1, 4, 2.0)
    gaussian = float(fdp.gaussian(3**0.5 / 2.0).epsilon(1e-5))
    assert accounting.epsilon(one, 3, delta=1e-5) == pytest.approx(gaussian, rel=1e-6)
    assert math.isinf(
        accounting.epsilon(accounting.mixed_clipping_shuffled_event(100, 10, 3, 4, 0.0), delta=1e-5)
    )
    # Too many items for the exact law: Chernoff's, between the curve's and the worst epoch.
    many = accounting.mixed_clipping_shuffled_event(31_700, 512, 145, 8, 8.0)
    found = accounting.epsilon(many, 5, delta=1e-5)
    curve = fdp.shuffled_parts_curve(
        n_items=31_700, batch_size=512, k=145, parts=8, epochs=5, noise_multiplier=8.0
    )
    worst = part_laws.worst_epoch(8, 31_700, 512, 145)
    bound = float(fdp.gaussian((5 * worst) ** 0.5 / 8.0).epsilon(1e-5))
    assert float(curve.epsilon(1e-5)) < found < 0.6 * bound
    with pytest.raises(ValueError, match="batch_size must not exceed"):
        accounting.mixed_clipping_shuffled_event(10, 20, 3, 4, 1.0)
