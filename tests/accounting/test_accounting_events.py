# SPDX-License-Identifier: Apache-2.0
"""What the event functions return, and what they refuse."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from tf_subjectdp import accounting as acc
from tf_subjectdp.accounting.engine.binomial import binomial_window

MAKERS = {
    "item": lambda s: acc.item_event(0.1, s),
    "higradavg": lambda s: acc.higradavg_event(0.1, 3, s),
    "group": lambda s: acc.group_event(0.1, 3, s),
    "group capped": lambda s: acc.group_event(0.1, 3, s, 2),
    "subject": lambda s: acc.subject_event(0.1, s),
    "user_ldp": acc.user_ldp_event,
    "element": lambda s: acc.element_event(0.1, s),
    "element_subject": lambda s: acc.element_subject_event(0.1, s, 3),
    "replace_one": lambda s: acc.replace_one_event(0.1, s),
    "revealed": lambda s: acc.revealed_event([1.0, 2.0], [0.1, 0.2], s),
    "fixed_size": lambda s: acc.fixed_size_event(1000, 10, s),
    "shuffled_epoch": lambda s: acc.shuffled_epoch_event(5, 20, s),
    "shuffled_epoch of sums": lambda s: acc.shuffled_epoch_event(5, 20, s, 4),
    "histogram": acc.histogram_event,
    "silo": lambda s: acc.silo_event(0.1, s),
    "mixed_clipping": lambda s: acc.mixed_clipping_event(0.1, 5, 3, s),
    "mixed_clipping_fixed_size": lambda s: acc.mixed_clipping_fixed_size_event(100, 20, 5, 3, s),
    "mixed_clipping_shuffled": lambda s: acc.mixed_clipping_shuffled_event(100, 20, 5, 3, s),
    "truncated_poisson": lambda s: acc.truncated_poisson_event(0.1, 500, 60, s),
}


@pytest.mark.parametrize("name", MAKERS)
def test_event_is_a_frozen_hashable_dp_event_that_survives_the_named_tuple(name):
    event = MAKERS[name](2.0)
    assert isinstance(event, dp_accounting.DpEvent)
    assert hash(event) == hash(MAKERS[name](2.0))
    assert event == MAKERS[name](2.0)
    with pytest.raises(AttributeError):
        event.noise_multiplier = 3.0
    assert type(event).from_named_tuple(event.to_named_tuple()) == event


@pytest.mark.parametrize("name", MAKERS)
def test_zero_noise_is_accepted_and_not_private(name):
    event = MAKERS[name](0.0)
    assert event == dp_accounting.NonPrivateDpEvent()
    for engine in ("pld", "rdp"):
        assert acc.epsilon(event, 3, delta=1e-5, engine=engine) == math.inf
        assert acc.delta(event, 3, epsilon=100.0, engine=engine) == 1.0
        assert acc.epsilon(event, 0, delta=1e-5, engine=engine) == 0.0


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_noise_out_of_range_is_refused(name, bad):
    with pytest.raises(ValueError, match="noise_multiplier"):
        MAKERS[name](bad)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("bad", ["1.0", None, True, [1.0]])
def test_noise_of_another_type_is_refused(name, bad):
    with pytest.raises(TypeError, match="noise_multiplier"):
        MAKERS[name](bad)


@pytest.mark.parametrize("bad", [-0.1, 1.5, math.nan, math.inf])
@pytest.mark.parametrize(
    "make",
    [
        lambda q: acc.item_event(q, 1.0),
        lambda q: acc.higradavg_event(q, 2, 1.0),
        lambda q: acc.group_event(q, 2, 1.0),
        lambda q: acc.subject_event(q, 1.0),
        lambda q: acc.element_event(q, 1.0),
        lambda q: acc.element_subject_event(q, 1.0, 2),
        lambda q: acc.replace_one_event(q, 1.0),
        lambda q: acc.revealed_event([1.0], [q], 1.0),
    ],
)
def test_rate_outside_zero_and_one_is_refused(make, bad):
    with pytest.raises(ValueError, match=r"\[0, 1\]|NaN"):
        make(bad)


def test_error_for_a_rate_above_one_gives_the_value_and_the_bound():
    with pytest.raises(ValueError, match=r"q must be a probability in \[0, 1\], got q=1.5"):
        acc.item_event(1.5, 1.0)


def test_error_for_a_batch_above_the_population_gives_both_numbers():
    with pytest.raises(ValueError, match="batch_size=20 and population=10"):
        acc.fixed_size_event(10, 20, 1.0)


@pytest.mark.parametrize("bad", [2.0, "2", None, True])
def test_k_must_be_an_integer(bad):
    for make in (acc.higradavg_event, acc.group_event):
        with pytest.raises(TypeError, match="k must be an integer"):
            make(0.1, bad, 1.0)


@pytest.mark.parametrize("bad", [0, -3])
def test_counts_below_one_are_refused(bad):
    with pytest.raises(ValueError, match="k must be at least 1"):
        acc.group_event(0.1, bad, 1.0)
    with pytest.raises(ValueError, match="max_items_per_subject must be at least 1"):
        acc.group_event(0.1, 2, 1.0, bad)
    with pytest.raises(ValueError, match="elements must be at least 1"):
        acc.element_subject_event(0.1, 1.0, bad)


def test_numpy_scalars_are_accepted():
    event = acc.group_event(np.float32(0.5), np.int64(3), np.float64(2.0), np.int32(2))
    assert event == acc.group_event(0.5, 3, 2.0, 2)


def test_higradavg_rate_is_one_minus_the_probability_of_no_item():
    assert acc.higradavg_event(0.2, 3, 1.0).sampling_probability == pytest.approx(1 - 0.8**3)
    tiny = acc.higradavg_event(1e-18, 1000, 1.0).sampling_probability
    assert tiny == pytest.approx(1e-15, rel=1e-12)
    # k q = 2.4 exceeds 1; the rate does not.
    assert 0.9 < acc.higradavg_event(0.0005406, 4484, 1.0).sampling_probability < 1.0


@pytest.mark.parametrize(
    ("q", "k", "cap"), [(0.3, 7, None), (0.01, 4484, None), (0.01, 4484, 5), (0.5, 5000, 2400)]
)
def test_group_event_has_the_capped_binomial_distribution(q, k, cap):
    event = acc.group_event(q, k, 1.0, cap)
    j = np.array(event.sensitivities)
    probabilities = np.array(event.sampling_probs)
    top = cap or k
    exact = stats.binom.pmf(np.arange(k + 1), k, q)
    exact[top] += exact[top + 1 :].sum()
    assert j.max() <= top
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(probabilities, exact[j.astype(int)], rtol=1e-8, atol=1e-50)


def test_group_event_of_a_million_items_is_small():
    event = acc.group_event(1e-5, 1_000_000, 20.0)
    assert len(event.sensitivities) < 400
    assert acc.epsilon(event, 10, delta=1e-5) > 0.0


def test_cap_of_k_or_more_is_no_cap():
    assert acc.group_event(0.1, 4, 2.0, 4) == acc.group_event(0.1, 4, 2.0)
    assert acc.group_event(0.1, 4, 2.0, 9) == acc.group_event(0.1, 4, 2.0)


def test_element_event_is_the_revealed_event_of_sensitivity_two():
    assert acc.element_event(0.1, 3.0) == acc.revealed_event([2], [0.1], 3)


def test_revealed_event_refuses_what_is_not_a_distribution():
    with pytest.raises(ValueError, match="sum to at most 1, got 1.1"):
        acc.revealed_event([1.0, 2.0], [0.5, 0.6], 1.0)
    with pytest.raises(ValueError, match="one length, got 2 and 1"):
        acc.revealed_event([1.0, 2.0], [0.5], 1.0)
    with pytest.raises(ValueError, match="sensitivities must be finite"):
        acc.revealed_event([-1.0], [0.5], 1.0)


def test_compose_refuses_what_is_not_a_list_of_events_and_counts():
    with pytest.raises(TypeError, match="pairs"):
        acc.compose([acc.item_event(0.1, 1.0)])
    with pytest.raises(TypeError, match="DpEvent first"):
        acc.compose([(0.1, 3)])
    with pytest.raises(TypeError, match="count must be an integer"):
        acc.compose([(acc.item_event(0.1, 1.0), 2.0)])
    with pytest.raises(ValueError, match="count must be at least 0"):
        acc.compose([(acc.item_event(0.1, 1.0), -1)])


def test_group_event_of_very_many_items_is_exact_or_refused():
    event = acc.group_event(1e-8, 10**9, 20.0)
    j = np.array(event.sensitivities)
    exact = stats.poisson.pmf(j[:30], 10.0)
    np.testing.assert_allclose(event.sampling_probs[:30], exact, rtol=1e-5)
    for k in (10**9 + 1, 10**12, 10**400):
        with pytest.raises(ValueError, match="k must be at most 1000000000"):
            acc.group_event(1e-9, k, 20.0)


@pytest.mark.parametrize("noise", [10**400, 1e-200, 1e200])
def test_noise_beyond_the_arithmetic_is_refused(noise):
    with pytest.raises(ValueError, match="noise_multiplier"):
        acc.item_event(0.1, noise)


def test_a_number_of_steps_beyond_the_arithmetic_is_refused():
    event = acc.item_event(0.1, 5.0)
    with pytest.raises(ValueError, match="steps must be at most"):
        acc.epsilon(event, 10**400, delta=1e-5)
    with pytest.raises(ValueError, match="steps must be at most"):
        acc.epsilon(acc.compose([(event, 2**50)]), 2**50, delta=1e-5)


def test_what_is_no_list_and_no_engine_is_named():
    with pytest.raises(TypeError, match="compose takes a list"):
        acc.compose(None)
    with pytest.raises(TypeError, match="sensitivities must be a list"):
        acc.revealed_event(None, None, 1.0)
    with pytest.raises(ValueError, match="engine must be"):
        acc.epsilon(acc.item_event(0.1, 1.0), delta=1e-5, engine=np.array(["pld", "rdp"]))


def test_a_fixed_size_step_with_very_much_noise_has_a_small_epsilon():
    event = acc.fixed_size_event(100, 10, 1e30)
    assert 0.0 <= acc.epsilon(event, delta=1e-5, engine="rdp") < 1e-2


# --- replaced units, releases and cut batches


def test_a_shuffled_epoch_moves_two_clip_norms_in_every_batch_touched():
    assert acc.shuffled_epoch_event(9, 100, 30.0) == acc.revealed_event([6.0], [1.0], 30.0)
    assert acc.shuffled_epoch_event(400, 100, 30.0) == acc.revealed_event([20.0], [1.0], 30.0)
    assert acc.shuffled_epoch_event(1, 100, 30.0) == acc.shuffled_epoch_event(1, 100, 30.0, 8)


def test_a_shuffled_epoch_of_sums_fills_as_few_batches_as_it_can():
    # 10 items in batches of 4: 4 + 4 + 2, squares 36; ItemDP, sigma 20, ten epochs: 17.86, not 1.20.
    assert acc.shuffled_epoch_event(10, 25, 12.0, 4) == acc.revealed_event([12.0], [1.0], 12.0)
    one_batch = acc.shuffled_epoch_event(10, 1, 20.0, 10)
    assert acc.epsilon(one_batch, 10, delta=1e-5) == pytest.approx(17.8566, rel=1e-5)
    mean = acc.shuffled_epoch_event(10, 1, 20.0)
    assert acc.epsilon(mean, 10, delta=1e-5) == pytest.approx(1.20, abs=0.005)


def test_more_items_than_an_epoch_holds_are_refused():
    with pytest.raises(ValueError, match="k=41 items do not fit.*at most 40"):
        acc.shuffled_epoch_event(41, 10, 1.0, 4)


def test_a_histogram_moves_by_two_radii_an_element():
    gaussian = acc.epsilon(dp_accounting.GaussianDpEvent(3.0), 4, delta=1e-6)
    assert acc.epsilon(acc.histogram_event(6.0), 4, delta=1e-6) == pytest.approx(gaussian, rel=1e-9)


def test_a_roomy_truncated_batch_is_the_item_event():
    roomy = acc.truncated_poisson_event(0.05, 1000, 400, 1.2)
    plain = acc.epsilon(acc.item_event(0.05, 1.2), 100, delta=1e-5)
    assert acc.epsilon(roomy, 100, delta=1e-5) == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("engine", ["pld", "rdp"])
def test_epsilon_grows_as_the_batch_is_cut_shorter(engine):
    values = [
        acc.epsilon(acc.truncated_poisson_event(0.05, 1000, b, 1.2), 50, delta=1e-5, engine=engine)
        for b in (200, 70, 60, 50)
    ]
    assert values == sorted(values)
    assert values[-1] > 1.02 * values[0]


@pytest.mark.parametrize("q, n, most", [(0.3, 6, 2), (0.5, 5, 1), (0.2, 8, 8)])
def test_a_cut_batch_is_never_worse_than_accounted_for_one_coordinate(q, n, most):
    # Everybody else contributes -1 and the protected item +1: enumerate the number of others drawn,
    # and the law of the kept sum in both worlds; the hockey-stick divergence is a 1-d integral.
    sigma = 1.3
    x = np.linspace(-most - 12 * sigma, most + 12 * sigma, 200_001)

    def density(centres, weights):
        terms = [w * stats.norm.pdf(x, c, sigma) for c, w in zip(centres, weights, strict=True)]
        return np.sum(terms, axis=0)

    others = np.arange(n)
    law = stats.binom.pmf(others, n - 1, q)
    without = density(-np.minimum(others, most), law)
    kept = np.minimum(1.0, most / (others + 1.0))
    present = density(-np.minimum(others, most - 1) + 1.0, law * kept)
    absent = density(-np.minimum(others, most), law * ((1 - q) / q + 1 - kept))
    with_item = q * (present + absent)
    dx = x[1] - x[0]
    assert (with_item.sum() * dx, without.sum() * dx) == pytest.approx((1.0, 1.0), abs=1e-9)
    for eps in (0.0, 0.3, 1.0):
        exact = max(
            np.maximum(with_item - math.exp(eps) * without, 0).sum() * dx,
            np.maximum(without - math.exp(eps) * with_item, 0).sum() * dx,
        )
        stated = acc.delta(acc.truncated_poisson_event(q, n, most, sigma), epsilon=eps)
        assert stated >= exact * (1 - 1e-6)


def test_a_truncated_event_needs_items_and_room():
    with pytest.raises(ValueError, match="n_items"):
        acc.truncated_poisson_event(0.1, 0, 5, 1.0)
    with pytest.raises(ValueError, match="max_batch_size"):
        acc.truncated_poisson_event(0.1, 10, 0, 1.0)


@pytest.mark.parametrize("n, p", [(5, 0.3), (1000, 0.02), (10**6, 1e-3), (10**9, 1e-9)])
def test_the_binomial_window_is_the_law_and_misses_next_to_nothing(n, p):
    first, law = binomial_window(n, p, 1e-40)
    j = first + np.arange(len(law))
    # SciPy's own law is off by its logarithms of factorials in many trials.
    np.testing.assert_allclose(law, stats.binom.pmf(j, n, p), rtol=1e-6, atol=1e-30)
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    assert stats.binom.cdf(first - 1, n, p) + stats.binom.sf(j[-1], n, p) < 1e-30
