# SPDX-License-Identifier: Apache-2.0
"""Batch, mixed and individual clipping: q_E by enumeration, the curves and their bounds."""

import itertools
import math
import warnings
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from tf_subjectdp.accounting import fdp
from tf_subjectdp.accounting.engine.gaussian import gaussian_delta
from tf_subjectdp.accounting.paper_rules import PaperRuleWarning

BatchScheme = fdp.BatchScheme
ALPHA = np.concatenate([np.linspace(0.0, 1.0, 51), np.geomspace(1e-9, 1e-2, 8)])


def hits(positions, parts, size, rounds):
    """c of one epoch from the places of the differing items."""
    touched = {p // size for p in positions}
    return int(sum(k**2 for k in np.bincount([t // parts for t in touched], minlength=rounds)))


def as_dict(law):
    return dict(zip(law.values.tolist(), law.probabilities.tolist(), strict=True))


def assert_same_law(law, expected):
    found = as_dict(law)
    assert law.dropped <= 1e-35
    for c in set(found) | set(expected):
        assert found.get(c, 0.0) == pytest.approx(expected.get(c, 0.0), rel=1e-12, abs=1e-39)


def convolve(law, count):
    total = {0: 1.0}
    for _ in range(count):
        step = Counter()
        for (a, p), (b, q) in itertools.product(total.items(), law.items()):
            step[a + b] += p * q
        total = step
    return total


@pytest.mark.parametrize(
    ("rounds", "parts", "size", "group"),
    [
        (4, 1, 3, 3),
        (3, 1, 2, 6),
        (3, 2, 2, 4),
        (2, 4, 1, 3),
        (5, 3, 1, 2),
        (3, 3, 2, 5),
        (1, 3, 2, 4),
    ],
)
def test_the_law_under_shuffling_is_that_of_all_ways_to_deal_the_items(rounds, parts, size, group):
    places = range(rounds * parts * size)
    count = Counter(hits(x, parts, size, rounds) for x in itertools.combinations(places, group))
    one = {c: n / sum(count.values()) for c, n in count.items()}
    scheme = BatchScheme.mixed(rounds, parts, size)
    assert_same_law(fdp.hit_law(scheme, epochs=1, group=group), one)
    assert_same_law(fdp.hit_law(scheme, epochs=3, group=group), convolve(one, 3))


@pytest.mark.parametrize(
    ("rounds", "parts", "size", "group"), [(3, 1, 2, 3), (2, 2, 2, 3), (2, 3, 1, 4), (1, 2, 2, 2)]
)
def test_the_law_under_subsampling_is_that_of_all_ways_to_draw_a_batch(rounds, parts, size, group):
    population, batch = rounds * parts * size, parts * size
    count = Counter()
    # An ordered batch: who is on which place; items below `group` differ.
    for drawn in itertools.permutations(range(population), batch):
        count[hits([i for i, item in enumerate(drawn) if item < group], parts, size, 1)] += 1
    one = {c: n / sum(count.values()) for c, n in count.items()}
    scheme = BatchScheme.mixed(rounds, parts, size, "subsampling")
    assert_same_law(fdp.hit_law(scheme, epochs=2, group=group), convolve(one, 2 * rounds))


@pytest.mark.parametrize(("rounds", "parts", "group"), [(3, 1, 3), (4, 2, 4), (2, 3, 3)])
def test_the_law_under_poisson_sampling_is_that_of_all_outcomes(rounds, parts, group):
    one, alone = Counter(), Counter()
    for outcome in itertools.product(range(parts + 1), repeat=group):  # 0: not in the batch
        chance = math.prod(1 - 1 / rounds if o == 0 else 1 / rounds / parts for o in outcome)
        one[len(set(outcome) - {0}) ** 2] += chance
        alone[sum(o > 0 for o in outcome) ** 2] += chance
    scheme = BatchScheme.mixed(rounds, parts, 5, "poisson")
    assert_same_law(fdp.hit_law(scheme, epochs=2, group=group), convolve(one, 2 * rounds))
    scheme = BatchScheme.individual(rounds, parts, "poisson")
    assert_same_law(fdp.hit_law(scheme, epochs=2, group=group), convolve(alone, 2 * rounds))


def test_a_simulation_of_shuffled_mixed_clipping_meets_the_law():
    # 20,000 epochs; 6 standard deviations on each of some 12 probabilities: below 1e-6.
    rng = np.random.default_rng(3)
    rounds, parts, size, group, n = 10, 4, 8, 8, 20_000
    law = as_dict(fdp.hit_law(BatchScheme.mixed(rounds, parts, size), epochs=1, group=group))
    count = Counter(
        hits(rng.permutation(rounds * parts * size)[:group], parts, size, rounds) for _ in range(n)
    )
    for c, p in law.items():
        assert abs(count[c] / n - p) <= 6.0 * math.sqrt(p * (1 - p) / n) + 1.0 / n


def test_one_item_is_hit_once_an_epoch_or_binomially():
    assert as_dict(fdp.hit_law(BatchScheme.batch(100, 10), epochs=7)) == {7: 1.0}
    for sampling in ("subsampling", "poisson"):
        law = fdp.hit_law(BatchScheme.mixed(100, 3, 4, sampling), epochs=50)
        expected = stats.binom.pmf(law.values, 5000, 0.01)
        used = expected > 1e-30
        np.testing.assert_allclose(law.probabilities[used], expected[used], rtol=1e-9)
        assert law.mean() == pytest.approx(50.0, rel=1e-9)
        assert law.above(55) == pytest.approx(stats.binom.sf(55, 5000, 0.01), rel=1e-9)
        assert law.below(30) == pytest.approx(stats.binom.cdf(29, 5000, 0.01), rel=1e-9)


def test_a_large_group_has_the_mean_that_linearity_gives():
    rounds, size, group = 500, 40, 200
    law = fdp.hit_law(BatchScheme.batch(rounds, size), epochs=20, group=group)
    missed = stats.hypergeom.pmf(0, rounds * size, group, size)
    assert law.mean() == pytest.approx(20 * rounds * (1.0 - missed), rel=1e-9)
    # Individual clipping: E[k^2] of a hypergeometric k.
    scheme = BatchScheme.individual(50, 20)
    law = fdp.hit_law(scheme, epochs=4, group=12)
    k = stats.hypergeom(1000, 12, 20)
    assert law.mean() == pytest.approx(4 * 50 * (k.var() + k.mean() ** 2), rel=1e-9)


def test_reference_values():
    shuffle = BatchScheme.batch(100, 10)
    for group, epsilon in ((1, 7.511275900744785), (4, 17.856586830107616)):
        curve = fdp.closed_form_curve(shuffle, epochs=10, noise_multiplier=2.0, group=group)
        assert curve.epsilon(1e-5) == pytest.approx(epsilon, rel=1e-9)
    sampled = BatchScheme.batch(100, 10, "subsampling")
    curve = fdp.exact_curve(sampled, epochs=50, noise_multiplier=2.0)
    assert curve.epsilon(1e-5) == pytest.approx(22.452441920220156, rel=1e-9)


def test_delta_of_the_exact_curve_is_the_mean_over_its_law():
    scheme = BatchScheme.mixed(6, 3, 2)
    law = as_dict(fdp.hit_law(scheme, epochs=2, group=5))
    curve = fdp.exact_curve(scheme, epochs=2, noise_multiplier=1.5, group=5)
    for eps in (0.0, 1.0, 4.0):
        expected = sum(p * gaussian_delta(math.sqrt(c) / 1.5, eps) for c, p in law.items())
        assert curve.delta(eps) == pytest.approx(expected, rel=1e-10)
    assert curve.adversary == fdp.ADVERSARY_A1


SCHEMES = [
    BatchScheme.batch(20, 30),
    BatchScheme.batch(20, 30, "subsampling"),
    BatchScheme.mixed(20, 4, 5),
    BatchScheme.mixed(20, 4, 5, "poisson"),
    BatchScheme.individual(20, 15),
    BatchScheme.individual(20, 15, "subsampling"),
    BatchScheme.individual(20, 15, "poisson"),
]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("group", [1, 4])
def test_the_bounds_enclose_the_exact_curve(scheme, group):
    for epochs, tail in itertools.product((1, 5), (0.0, 1e-6, 0.05)):
        args = {"epochs": epochs, "noise_multiplier": 3.0, "group": group}
        exact = fdp.exact_curve(scheme, **args)(ALPHA)
        lower = fdp.lower_curve(scheme, tail=tail, **args)(ALPHA)
        upper = fdp.upper_curve(scheme, tail=tail, **args)(ALPHA)
        assert np.all(lower <= exact + 1e-13)
        assert np.all(exact <= upper + 1e-13)


def test_the_bounds_give_up_no_more_than_the_exact_tail():
    scheme = BatchScheme.batch(100, 10, "subsampling")
    lower = fdp.lower_curve(scheme, epochs=50, noise_multiplier=2.0, tail=1e-6)
    largest = round((lower.mus.max() * 2.0) ** 2)
    assert lower.dropped == pytest.approx(stats.binom.sf(largest, 5000, 0.01), rel=1e-6)
    assert stats.binom.sf(largest, 5000, 0.01) <= 1e-6 < stats.binom.sf(largest - 1, 5000, 0.01)
    assert np.all(lower(ALPHA) >= fdp.gaussian(lower.mus.max())(ALPHA) - lower.dropped - 1e-15)
    upper = fdp.upper_curve(scheme, epochs=50, noise_multiplier=2.0, tail=1e-6)
    smallest = round((upper.mus.max() * 2.0) ** 2)
    assert stats.binom.cdf(smallest - 1, 5000, 0.01) <= 1e-6 < stats.binom.cdf(smallest, 5000, 0.01)
    assert upper.adversary == ""  # not a guarantee


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s.sampling == "shuffling"])
def test_the_closed_form_is_sound_for_every_clipping(scheme):
    for epochs, group in itertools.product((1, 6), (1, 2, 7)):
        args = {"epochs": epochs, "noise_multiplier": 2.0, "group": group}
        closed = fdp.closed_form_curve(scheme, **args)
        exact = fdp.exact_curve(scheme, **args)
        assert np.all(closed(ALPHA) <= exact(ALPHA) + 1e-13)
        assert closed.epsilon(1e-6) >= exact.epsilon(1e-6) * (1.0 - 1e-10)


def test_root_g_e_alone_is_not_sound_for_more_than_one_part():
    scheme = BatchScheme.individual(3, 40)
    exact = fdp.exact_curve(scheme, epochs=5, noise_multiplier=2.0, group=6)
    published = fdp.gaussian(math.sqrt(6 * 5) / 2.0)
    assert published.epsilon(1e-5) < 0.9 * exact.epsilon(1e-5)


@pytest.mark.parametrize("sampling", ["subsampling", "poisson"])
def test_the_usual_adversary_learns_less(sampling):
    scheme = BatchScheme.batch(20, 10, sampling)
    usual = fdp.independent_curve(scheme, epochs=5, noise_multiplier=1.5)
    strong = fdp.exact_curve(scheme, epochs=5, noise_multiplier=1.5)
    assert np.all(usual(ALPHA) >= strong(ALPHA) - usual.error - 1e-12)
    assert usual.epsilon(1e-5) < 0.8 * strong.epsilon(1e-5)
    assert usual.adversary == fdp.ADVERSARY_A0
    whole = BatchScheme.batch(1, 10, sampling)
    curve = fdp.independent_curve(whole, epochs=5, noise_multiplier=1.5)
    assert curve.epsilon(1e-5) == pytest.approx(fdp.gaussian(math.sqrt(5) / 1.5).epsilon(1e-5))


def test_the_published_e1_is_violated_by_the_exact_curve_and_says_so():
    with pytest.warns(PaperRuleWarning, match=r"22\.4524.*0\.214") as caught:
        curve = fdp.paper_e1_curve(rounds=100, epochs=50, noise_multiplier=2.0)
    exact = fdp.exact_curve(
        BatchScheme.batch(100, 10, "subsampling"), epochs=50, noise_multiplier=2.0
    )
    assert curve.epsilon(1e-5) < exact.epsilon(1e-5) - 0.4
    assert curve.dropped == pytest.approx(math.exp(-50))
    assert caught[0].message.honest_epsilon == pytest.approx(22.452441920220156, rel=1e-9)
    assert caught[0].message.stated_epsilon == pytest.approx(float(curve.epsilon(1e-5)))
    assert caught[0].filename == __file__


@pytest.mark.parametrize("size", [40, 50])
def test_the_published_f3_counts_unlabelled_items_and_says_so(size):
    with pytest.warns(PaperRuleWarning, match=r"0\.7403.*0\.85(8|76)") as caught:
        law = fdp.paper_f3_occupancy(20, 3, part_size=size)
    assert round(law[3], 3) == 0.740 and law.sum() == pytest.approx(1.0)
    assert round(caught[0].message.honest, 3) == 0.858
    with pytest.warns(PaperRuleWarning) as caught:
        scheme = BatchScheme.batch(20, size)
        curve = fdp.paper_f3_curve(scheme, epochs=5, noise_multiplier=2.0, group=3)
    exact = fdp.exact_curve(scheme, epochs=5, noise_multiplier=2.0, group=3)
    assert curve.epsilon(1e-5) < exact.epsilon(1e-5)
    assert caught[0].message.honest_epsilon == pytest.approx(float(exact.epsilon(1e-5)))


def test_the_sound_curves_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        args = {"epochs": 2, "noise_multiplier": 2.0}
        fdp.exact_curve(SCHEMES[0], group=3, **args)
        fdp.closed_form_curve(SCHEMES[0], group=3, **args)
        fdp.independent_curve(SCHEMES[1], **args)


def test_more_epochs_items_or_less_noise_cost_privacy():
    for scheme in SCHEMES:

        def epsilon(epochs=2, sigma=2.0, group=2, scheme=scheme):
            args = {"epochs": epochs, "noise_multiplier": sigma, "group": group}
            return float(fdp.exact_curve(scheme, **args).epsilon(1e-6))

        assert epsilon(epochs=3) > epsilon()
        assert epsilon(group=3) > epsilon()
        assert epsilon(sigma=1.9) > epsilon()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BatchScheme.batch(0, 10), "at least 1"),
        (lambda: BatchScheme.batch(10, 10, "sorted"), "sampling"),
        (lambda: fdp.hit_law(SCHEMES[0], epochs=0), "epochs"),
        (lambda: fdp.hit_law(SCHEMES[0], epochs=1, group=601), "at most 600"),
        (
            lambda: fdp.hit_law(BatchScheme.mixed(100, 10, 100), epochs=1, group=500),
            "closed_form_curve",
        ),
        (lambda: fdp.exact_curve(SCHEMES[0], epochs=1, noise_multiplier=0.0), "above 0"),
        (
            lambda: fdp.lower_curve(SCHEMES[0], epochs=1, noise_multiplier=1.0, tail=1.0),
            "below 1",
        ),
        (lambda: fdp.closed_form_curve(SCHEMES[1], epochs=1, noise_multiplier=1.0), "shuffling"),
        (lambda: fdp.independent_curve(SCHEMES[0], epochs=1, noise_multiplier=1.0), "exact_curve"),
        (
            lambda: fdp.independent_curve(SCHEMES[1], epochs=1, noise_multiplier=1.0, group=2),
            "group=1",
        ),
        (
            lambda: fdp.paper_f3_curve(SCHEMES[2], epochs=1, noise_multiplier=1.0, group=2),
            "parts=1",
        ),
    ],
)
def test_what_does_not_hold_is_refused_with_the_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call()
