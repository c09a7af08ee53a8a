# SPDX-License-Identifier: Apache-2.0
"""Arguments of the three questions; foreign events; fixed-size batches; the import."""

import math
import subprocess
import sys

import attr
import dp_accounting
import numpy as np
import pytest
from scipy import integrate, special

from tf_subjectdp import accounting as acc
from tf_subjectdp.accounting.engine.composition import Cumulants, SingleRelease
from tf_subjectdp.accounting.engine.discretise import discretise
from tf_subjectdp.accounting.engine.gaussian import gaussian_delta, gaussian_epsilon
from tf_subjectdp.accounting.engine.ledger import ledger
from tf_subjectdp.accounting.engine.mechanisms import FixedSize, presence
from tf_subjectdp.accounting.engine.renyi import renyi_divergence

ITEM = acc.item_event(0.01, 1.0)
ENGINES = ("pld", "rdp")
each_engine = pytest.mark.parametrize("engine", ENGINES)


def test_the_accountant_and_a_plan_bring_no_tensorflow():
    code = (
        "import sys, tf_subjectdp as sdp, tf_subjectdp.accounting as a\n"
        "a.epsilon(a.item_event(0.1, 1.0), 3, delta=1e-5)\n"
        "stats = sdp.SubjectStats.public(n_items=9000, n_subjects=300, max_items=40)\n"
        "plan = sdp.plan(sdp.HiGradAvg(1.0), sdp.PoissonItems(90), stats, steps=5,\n"
        "                noise_multiplier=3.0, delta=1e-5)\n"
        "plan.statement(), str(plan)\n"
        "loaded = {'tensorflow', 'keras', 'tensorflow_federated'} & set(sys.modules)\n"
        "sys.exit(' '.join(sorted(loaded)) or 0)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


# --- arguments
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-1e-5, 1.0, 2.0, math.nan, math.inf])
def test_delta_out_of_range_is_refused(bad):
    with pytest.raises(ValueError, match="delta"):
        acc.epsilon(ITEM, 10, delta=bad)


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
def test_epsilon_out_of_range_is_refused(bad):
    with pytest.raises(ValueError, match="epsilon"):
        acc.delta(ITEM, 10, epsilon=bad)
    with pytest.raises(ValueError, match="epsilon"):
        acc.noise_multiplier(lambda s: ITEM, 10, epsilon=bad, delta=1e-5)


@pytest.mark.parametrize("bad", [0.0, 1.0])
def test_calibration_needs_a_delta_strictly_between_zero_and_one(bad):
    with pytest.raises(ValueError, match=r"\(0, 1\)"):
        acc.noise_multiplier(lambda s: acc.item_event(0.1, s), 10, epsilon=1.0, delta=bad)


@pytest.mark.parametrize("bad", [10.0, "10", None, True])
def test_steps_must_be_an_integer(bad):
    with pytest.raises(TypeError, match="steps must be an integer"):
        acc.epsilon(ITEM, bad, delta=1e-5)


def test_negative_steps_are_refused():
    with pytest.raises(ValueError, match="steps must be at least 0, got -1"):
        acc.epsilon(ITEM, -1, delta=1e-5)


def test_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="'prv'"):
        acc.epsilon(ITEM, 1, delta=1e-5, engine="prv")


@each_engine
def test_what_is_no_event_is_refused(engine):
    with pytest.raises(TypeError, match="DpEvent"):
        acc.epsilon(0.01, 1, delta=1e-5, engine=engine)


@attr.s(frozen=True)
class StrangeDpEvent(dp_accounting.DpEvent):
    pass


@each_engine
@pytest.mark.parametrize(
    "event",
    [
        StrangeDpEvent(),
        dp_accounting.UnsupportedDpEvent(),
        dp_accounting.PoissonSampledDpEvent(0.1, StrangeDpEvent()),
        dp_accounting.SampledWithReplacementDpEvent(10, 2, dp_accounting.GaussianDpEvent(1.0)),
    ],
)
def test_an_unknown_event_is_named_wherever_it_stands(event, engine):
    name = type(getattr(event, "event", event)).__name__
    for place in (event, acc.compose([(ITEM, 3), (acc.compose([(event, 2)]), 1)])):
        with pytest.raises(ValueError, match=name if "Replacement" not in name else "Replacement"):
            acc.epsilon(place, 1, delta=1e-5, engine=engine)


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.GaussianDpEvent(-1.0),
        dp_accounting.PoissonSampledDpEvent(1.5, dp_accounting.GaussianDpEvent(1.0)),
        dp_accounting.dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, 0.6]),
        dp_accounting.dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0], [0.5, 0.5]),
        dp_accounting.dp_event.MixtureOfGaussiansDpEvent(1.0, [-1.0, 1.0], [0.5, 0.5]),
        dp_accounting.SampledWithoutReplacementDpEvent(5, 9, dp_accounting.GaussianDpEvent(1.0)),
    ],
)
def test_foreign_events_are_checked_too(event):
    with pytest.raises(ValueError):
        acc.epsilon(event, 1, delta=1e-5)


# --- dp_accounting's events
# ---------------------------------------------------------------------------


@each_engine
def test_gaussians_on_one_batch_are_one_gaussian(engine):
    both = dp_accounting.PoissonSampledDpEvent(
        0.1,
        dp_accounting.ComposedDpEvent(
            [
                dp_accounting.GaussianDpEvent(3.0),
                dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(4.0), 2),
            ]
        ),
    )
    one = acc.item_event(0.1, (1 / 9 + 2 / 16) ** -0.5)
    assert acc.epsilon(both, 20, delta=1e-5, engine=engine) == pytest.approx(
        acc.epsilon(one, 20, delta=1e-5, engine=engine), rel=1e-9
    )


@each_engine
def test_infinite_noise_of_a_foreign_event_costs_nothing(engine):
    event = dp_accounting.GaussianDpEvent(math.inf)
    assert acc.epsilon(event, 5, delta=1e-5, engine=engine) == 0.0


@each_engine
def test_one_unprotected_release_makes_the_whole_unprotected(engine):
    event = acc.compose([(ITEM, 5), (acc.nonprivate_event(), 1)])
    assert acc.epsilon(event, delta=1e-5, engine=engine) == math.inf
    assert acc.delta(event, epsilon=5.0, engine=engine) == 1.0
    without = acc.compose([(ITEM, 5), (acc.nonprivate_event(), 0)])
    assert acc.epsilon(without, delta=1e-5, engine=engine) < 10.0


def test_mixture_agrees_with_dp_accounting():
    event = acc.group_event(0.1, 4, 3.0)
    pld = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    reference = pld.compose(event, 20).get_epsilon(1e-5)
    assert acc.epsilon(event, 20, delta=1e-5) == pytest.approx(reference, rel=2e-3)


# --- fixed-size batches
# --------------------------------------------------------------------------------


def amplified(rate, mu, epsilon):
    """Zhu, Dong, Wang (arXiv:2106.08567), Theorem 11: the profile at exp(epsilon), below 1 too."""
    if epsilon < 0.0:
        return -math.expm1(epsilon) + math.exp(epsilon) * amplified(rate, mu, -epsilon)
    return rate * gaussian_delta(mu, math.log1p(math.expm1(epsilon) / rate))


@pytest.mark.parametrize(
    ("population", "batch", "sigma", "steps", "delta", "true", "half"),
    [
        (1_000, 50, 1.0, 100, 1e-5, 19.46, 18.19),
        (60_000, 600, 0.8, 1_000, 1e-6, 34.28, 31.63),
        (13, 5, 1.0, 1, 1e-2, 4.25, 4.25),
    ],
)
def test_fixed_size_composes_both_halves_of_the_profile(
    population, batch, sigma, steps, delta, true, half
):
    event = acc.fixed_size_event(population, batch, sigma)
    value = acc.epsilon(event, steps, delta=delta)
    assert value == pytest.approx(true, abs=5e-3)
    assert acc.delta(event, steps, epsilon=value) == pytest.approx(delta, rel=1e-3)
    # One half of the profile, composed alone, is the Poisson-sampled Gaussian: no upper bound.
    alone = acc.epsilon(acc.item_event(batch / population, sigma / 2), steps, delta=delta)
    assert alone == pytest.approx(half, abs=5e-3)
    assert value < acc.epsilon(event, steps, delta=delta, engine="rdp") < 1.3 * value


@pytest.mark.parametrize("rate", [1e-4, 0.05, 0.5, 0.98])
@pytest.mark.parametrize("mu", [0.02, 0.7, 2.0, 9.0, 60.0])
def test_the_pair_of_a_fixed_size_has_the_profile_of_both_orders(rate, mu):
    (branches,) = FixedSize(rate, mu).directions()
    release = SingleRelease.of(discretise(branches, 1e-3))
    for epsilon in (-8.0, -1.0, -0.1, -1e-3, 0.0, 0.01, 0.3, 2.0, 7.0, 30.0):
        exact = amplified(rate, mu, epsilon)
        found = release.delta_at(epsilon)
        # From above, but for the rounding of the closed form.
        assert found >= exact * (1 - 1e-11) - 1e-15
        assert found <= exact * (1 + 1e-4) + 2e-7
    # The moments by which the engine chooses its grid, against the Renyi engine's own quadrature.
    theta = np.minimum([0.05, 0.9, 6.0], 5.0 / mu)
    cumulants = Cumulants(((branches, 1),))
    for one, found in zip(theta, cumulants(theta), strict=True):
        value = one * renyi_divergence(FixedSize(rate, mu), 1.0 + one)
        assert found == pytest.approx(value, rel=1e-6, abs=1e-13)


@pytest.mark.parametrize(("rate", "mu"), [(0.05, 2.0), (0.4, 1.0), (0.9, 0.5)])
def test_two_fixed_size_steps_are_the_integral_over_the_first_loss(rate, mu):
    # delta_2(e) is the mean over the first loss L, under P, of the profile of one step at e - L.
    x = np.linspace(mu / 2, mu + 13, 6001)
    loss = np.log1p(rate * np.expm1(mu * x - mu * mu / 2))
    weight = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    rest = (1 - rate) * special.erf(mu / math.sqrt(8))
    event = acc.fixed_size_event(10_000, round(rate * 10_000), 2.0 / mu)
    for epsilon in (0.0, 0.2, 1.0, 3.0):
        above = [amplified(rate, mu, epsilon - one) for one in loss]
        below = [amplified(rate, mu, epsilon + one) for one in loss]
        exact = integrate.simpson(weight * (np.exp(loss) * above + np.array(below)), x=x)
        exact += rest * amplified(rate, mu, epsilon)
        assert exact <= acc.delta(event, 2, epsilon=epsilon) * (1 + 1e-8)
        assert acc.delta(event, 2, epsilon=epsilon) <= exact * (1 + 2e-4) + 1e-12


@each_engine
def test_fixed_size_steps_compose_with_others(engine):
    event = acc.fixed_size_event(1000, 10, 2.0)
    both = acc.compose([(ITEM, 30), (event, 50)])
    parts = [acc.epsilon(one, n, delta=5e-6, engine=engine) for one, n in ((ITEM, 30), (event, 50))]
    value = acc.epsilon(both, delta=1e-5, engine=engine)
    assert acc.epsilon(event, 50, delta=1e-5, engine=engine) < value < sum(parts)
    assert acc.epsilon(acc.compose([(event, 50)]), delta=1e-5, engine=engine) == acc.epsilon(
        event, 50, delta=1e-5, engine=engine
    )


@pytest.mark.parametrize(("population", "batch", "rows"), [(9, 3, 4), (40, 7, 1), (60, 50, 11)])
def test_a_unit_of_several_rows_is_drawn_when_any_is(population, batch, rows):
    missed = math.comb(population - rows, batch) / math.comb(population, batch)
    for event in (
        acc.fixed_size_event(population, batch, 3.0, rows),
        acc.fixed_size_event(population, rows, 3.0, batch),
    ):
        ((mechanism, _),) = ledger(event, 1).entries
        assert presence(mechanism) == pytest.approx(1.0 - missed, rel=1e-12)
    with pytest.raises(ValueError, match="rows"):
        acc.fixed_size_event(population, batch, 3.0, population + 1)


def test_a_unit_of_very_many_rows_is_never_drawn_too_rarely():
    ((mechanism, _),) = ledger(acc.fixed_size_event(10**13, 10**7, 3.0, 3 * 10**6), 1).entries
    chance = -math.expm1(-(10**7) * 3 * 10**6 / 1e13)
    assert chance < presence(mechanism) < chance * (1 + 1e-5)
    # So many rows that one is in every batch: the Gaussian of two clip norms.
    assert acc.epsilon(acc.fixed_size_event(9, 4, 3.0, 6), 5, delta=1e-5) == pytest.approx(
        acc.epsilon(acc.user_ldp_event(3.0), 5, delta=1e-5), rel=1e-12
    )


@pytest.mark.parametrize("sigma", [2.0, 4.0])
def test_fixed_size_by_rdp_is_below_dp_accountings_bound_with_the_noise_relative_to_two_c(sigma):
    accountant = dp_accounting.rdp.RdpAccountant(
        list(range(2, 65)), dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    accountant.compose(
        dp_accounting.SampledWithoutReplacementDpEvent(
            10_000, 100, dp_accounting.GaussianDpEvent(sigma / 2)
        ),
        500,
    )
    reference = accountant.get_epsilon(1e-5)
    value = acc.epsilon(acc.fixed_size_event(10_000, 100, sigma), 500, delta=1e-5, engine="rdp")
    # That is a bound on the divergences (arXiv:1808.00087, Theorem 27), which are computed here.
    assert 0.5 * reference <= value <= reference
    plain = acc.epsilon(acc.subject_event(0.01, sigma), 500, delta=1e-5, engine="rdp")
    assert value > plain


def test_fixed_size_batch_of_everybody_is_the_gaussian_of_sensitivity_two():
    event = acc.fixed_size_event(50, 50, 2.0)
    reference = acc.epsilon(dp_accounting.GaussianDpEvent(1.0), 3, delta=1e-5)
    assert acc.epsilon(event, 3, delta=1e-5) == pytest.approx(reference, rel=1e-12)
    # The trap: dp_accounting's own RDP with REPLACE_ONE says 4.73 for one such step; right is 10.0.
    assert acc.epsilon(acc.fixed_size_event(50, 50, 1.0), delta=1e-5) == pytest.approx(
        9.998, rel=1e-3
    )


# --- orders near 1
# ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1.0, 1.0 + 1e-9, 1.001, 0.5, math.nan])
def test_orders_near_one_are_refused(order):
    mechanism = ledger(ITEM, 1).entries[0][0]
    with pytest.raises(ValueError, match="orders must be at least"):
        renyi_divergence(mechanism, order)


def test_large_cost_at_small_orders_is_not_called_zero():
    assert acc.epsilon(acc.item_event(1.0, 0.02), 100, delta=1e-5, engine="rdp") > 1e5


# --- calibration
# -------------------------------------------------------------------------------------------


MAKERS = {
    "item": lambda s: acc.item_event(0.02, s),
    "higradavg": lambda s: acc.higradavg_event(0.005, 12, s),
    "group": lambda s: acc.group_event(0.005, 12, s, 4),
    "user_ldp": acc.user_ldp_event,
    "element": lambda s: acc.element_event(0.01, s),
    "two kinds": lambda s: acc.compose(
        [(acc.item_event(0.02, s), 2), (acc.user_ldp_event(9 * s), 1)]
    ),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("target", [0.3, 8.0])
def test_calibrated_noise_keeps_the_promise_and_less_does_not(name, target):
    make = MAKERS[name]
    sigma = acc.noise_multiplier(make, 300, epsilon=target, delta=1e-5)
    assert acc.epsilon(make(sigma), 300, delta=1e-5) <= target
    assert acc.epsilon(make(sigma * (1 - 2e-4)), 300, delta=1e-5) > target


def test_calibration_by_rdp_asks_for_more_noise():
    pld = acc.noise_multiplier(MAKERS["item"], 300, epsilon=2.0, delta=1e-5)
    rdp = acc.noise_multiplier(MAKERS["item"], 300, epsilon=2.0, delta=1e-5, engine="rdp")
    assert pld < rdp < 1.5 * pld


@each_engine
@pytest.mark.parametrize("steps", [200, 100_000])
def test_calibration_of_fixed_size_batches(engine, steps):
    def make(sigma):
        return acc.fixed_size_event(1000, 20, sigma)

    sigma = acc.noise_multiplier(make, steps, epsilon=3.0, delta=1e-5, engine=engine)
    assert acc.epsilon(make(sigma), steps, delta=1e-5, engine=engine) <= 3.0
    assert acc.epsilon(make(sigma * 0.999), steps, delta=1e-5, engine=engine) > 3.0


def test_calibration_of_no_steps_needs_no_noise():
    assert acc.noise_multiplier(MAKERS["item"], 0, epsilon=1.0, delta=1e-5) == 0.0


def test_calibration_that_noise_cannot_reach_is_refused():
    with pytest.raises(ValueError, match="check that the noise multiplier is used"):
        acc.noise_multiplier(lambda s: ITEM, 10_000, epsilon=0.1, delta=1e-5)
    with pytest.raises(ValueError, match="no noise multiplier"):
        acc.noise_multiplier(lambda s: acc.nonprivate_event(), 1, epsilon=1.0, delta=1e-5)
    with pytest.raises(TypeError, match="make_event"):
        acc.noise_multiplier(3.0, 10, epsilon=0.1, delta=1e-5)


# --- little noise, much noise, many steps


@pytest.mark.parametrize("mu", [1e-16, 1e-9, 1e-4, 0.099, 0.101])
@pytest.mark.parametrize("z", [0.0, 0.5, 3.0, 12.0])
def test_the_gaussian_of_little_mu_is_an_integral_without_cancellation(mu, z):
    # delta = mu * integral over s of exp(-mu s) Phi(-(z - mu/2 + s)), by SciPy's own quadrature.
    shift = z - mu / 2
    integral, _ = integrate.quad(
        lambda s: math.exp(-mu * s) * special.ndtr(-(shift + s)), 0.0, 40.0, epsabs=0, epsrel=1e-12
    )
    assert gaussian_delta(mu, z * mu) == pytest.approx(mu * integral, rel=1e-9)
    if z > 0.0:
        epsilon = gaussian_epsilon(mu, mu * integral)
        assert z * mu * (1 - 1e-9) <= epsilon <= z * mu * (1 + 1e-6)


@pytest.mark.parametrize("exponent", [5, 8, 11])
def test_rounding_of_very_rare_steps_never_pays_off(exponent):
    # n steps of rate q are at least the Gaussian of mu = q sqrt(n) sqrt(exp(1/sigma^2) - 1), the limit
    # of many rare steps; a cumulant of one step is then smaller than the rounding of its quadrature.
    q, steps = 10.0**-exponent, min(10 ** (2 * exponent - 3), 2**53)
    mu = q * math.sqrt(steps) * math.sqrt(math.expm1(1.0))
    value = acc.epsilon(acc.item_event(q, 1.0), steps, delta=1e-6, engine="rdp")
    assert value >= gaussian_epsilon(mu, 1e-6) * (1 - 1e-6)
    assert acc.epsilon(acc.item_event(q, 1.0), steps, delta=1e-6) <= value
