# SPDX-License-Identifier: Apache-2.0
"""A plan's figures are the accountant's, its noise keeps the promise, and it survives JSON."""

import inspect
import json
import math

import numpy as np
import pytest

import tf_subjectdp as sdp
from tf_subjectdp import accounting

IDS = np.arange(1000) % 200
STATS = sdp.SubjectStats.from_ids(IDS)
Q, K, DELTA = 0.02, 5, 1e-5


def make(algorithm=None, sampling=None, stats=STATS, **options):
    options = {"steps": 50, "noise_multiplier": 1.5, "delta": DELTA, **options}
    return sdp.plan(
        algorithm or sdp.HiGradAvg(1.0), sampling or sdp.PoissonItems(20), stats, **options
    )


@pytest.fixture(scope="module")
def calibrated():
    return make(noise_multiplier=None, epsilon=2.0)


def test_calibrated_noise_keeps_the_promise_and_is_nearly_tight(calibrated):
    assert calibrated.epsilon() <= 2.0
    event = accounting.higradavg_event(Q, K, calibrated.noise_multiplier * 0.995)
    assert accounting.epsilon(event, 50, delta=DELTA) > 2.0


@pytest.mark.parametrize(
    "algorithm, sampling, event",
    [
        (sdp.HiGradAvg(1.0), sdp.PoissonItems(20), accounting.higradavg_event(Q, K, 1.5)),
        (sdp.GroupDP(1.0), sdp.PoissonItems(20), accounting.group_event(Q, K, 1.5)),
        (sdp.SubjectDP(1.0), sdp.PoissonSubjects(4), accounting.subject_event(0.02, 1.5)),
        (sdp.UserLDP(1.0), sdp.PoissonItems(20), accounting.user_ldp_event(1.5)),
    ],
)
def test_epsilon_is_what_the_accountant_says_of_the_event(algorithm, sampling, event):
    expected = accounting.epsilon(event, 50, delta=DELTA)
    plan = make(algorithm, sampling)
    assert plan.epsilon() == pytest.approx(expected, rel=1e-9)
    assert accounting.epsilon(plan.event, delta=DELTA) == pytest.approx(expected, rel=1e-6)
    assert accounting.epsilon(plan.step_event, 50, delta=DELTA) == pytest.approx(expected)


def test_epsilon_grows_with_steps_and_is_zero_before_the_first():
    plan = make()
    values = [plan.epsilon(steps=steps) for steps in (0, 1, 25, 50)]
    assert values[0] == 0.0 and values == sorted(values) and values[-1] == plan.epsilon()


def test_epsilon_of_a_run_that_was_cut_in_two_is_that_of_one_run():
    """O15: the public reference, q 0.01, sigma 1, 1,000 steps at delta 1e-5: 1.8282."""
    stats = sdp.SubjectStats.from_ids(np.arange(1000))
    plan = make(
        sdp.ItemDP(1.0), sdp.PoissonItems(10), stats, steps=500, noise_multiplier=1.0
    ).extended(steps=1000)
    assert plan.epsilon() == pytest.approx(1.8282, rel=1e-3)


def test_an_item_plan_says_far_more_per_subject_than_per_item():
    plan = make(sdp.ItemDP(1.0), unit="item")
    assert plan.epsilon() == plan.epsilon(unit="item")
    assert plan.epsilon(unit="subject") > 1.5 * plan.epsilon()


def test_no_noise_is_allowed_and_its_epsilon_is_infinite():
    plan = make(noise_multiplier=0.0)
    assert plan.epsilon() == math.inf
    assert "infinite" in str(plan)


def test_three_samplers_give_three_different_events_and_epsilons():
    """O19: the epsilon is tied to the sampler that is used."""
    samplers = (sdp.PoissonItems(20), sdp.FixedSize(20), sdp.Shuffle(20))
    plans = [make(sdp.ItemDP(1.0), sampling, noise_multiplier=20.0) for sampling in samplers]
    assert len({repr(plan.event) for plan in plans}) == 3
    assert len({round(plan.epsilon(), 6) for plan in plans}) == 3
    assert len({plan.fingerprint for plan in plans}) == 3
    assert plans[0].epsilon() == min(plan.epsilon() for plan in plans)


def test_a_fixed_size_item_plan_is_accounted_by_loss_distributions():
    plan = make(sdp.ItemDP(1.0), sdp.FixedSize(20), unit="item", noise_multiplier=2.0)
    assert plan.epsilon() == accounting.epsilon(plan.event, delta=DELTA)
    assert plan.epsilon() < 0.95 * accounting.epsilon(plan.event, delta=DELTA, engine="rdp")
    assert "Accountant: privacy loss distributions" in plan.statement()
    wanted = make(
        sdp.ItemDP(1.0), sdp.FixedSize(20), unit="item", epsilon=2.0, noise_multiplier=None
    )
    assert 1.999 < wanted.epsilon() <= 2.0


def test_a_person_of_a_fixed_size_plan_of_whole_batches_is_amplified_by_their_presence():
    plan = make(sdp.UserLDP(1.0), sdp.FixedSize(20), noise_multiplier=4.0)
    anything = accounting.epsilon(accounting.user_ldp_event(4.0), plan.steps, delta=DELTA)
    assert plan.epsilon() < 0.9 * anything
    statement = " ".join(plan.statement().split())
    assert "replacing the contents of all items of one subject, in place" in statement
    assert (
        f"For any change of the data, not only of one subject's items, at delta = {DELTA:g}: "
        in (statement)
    )
    assert f"epsilon {math.ceil(1e3 * anything) / 1e3:.3f}" in statement


def test_the_rate_comes_from_the_two_sizes_that_were_given():
    """O16: a loader's length says nothing; data and batch are both said."""
    stats = sdp.SubjectStats.public(n_items=100_000, n_subjects=50_000, max_items=4)
    plan = make(sampling=sdp.PoissonItems(16), stats=stats)
    assert plan.facts.rate == 16 / 100_000
    assert plan.steps_per_epoch == 6250


def test_the_divisor_is_the_expected_size_of_a_step():
    """O14: never the size of the batch that happened to be drawn."""
    assert make().divisor == pytest.approx(20.0)
    assert make(sdp.SubjectDP(1.0), sdp.PoissonSubjects(4)).divisor == pytest.approx(4.0)


@pytest.mark.parametrize("epochs, steps", [(1, 50), (0.5, 25), (2, 100), (0.001, 1)])
def test_epochs_become_steps(epochs, steps):
    plan = make(steps=None, epochs=epochs)
    assert plan.steps == steps
    assert plan.epochs == -(-steps // plan.steps_per_epoch)


@pytest.mark.parametrize(
    "algorithm, sampling",
    [
        (sdp.HiGradAvg(0.5, normalization="expected_subjects"), sdp.PoissonItems(20)),
        (sdp.GroupDP(1.0, max_items_per_subject=2), sdp.Shuffle(20)),
        (sdp.SubjectDP(1.0), sdp.PoissonSubjects(4, max_items_per_subject=3)),
        (sdp.ItemDP(1.0), sdp.FixedSize(20)),
    ],
)
def test_a_plan_survives_json(algorithm, sampling):
    plan = make(algorithm, sampling, max_items_per_subject=4)
    again = sdp.Plan.from_config(json.loads(json.dumps(plan.get_config())))
    assert again == plan
    assert again.fingerprint == plan.fingerprint
    assert again.epsilon() == plan.epsilon()


def test_every_argument_of_plan_is_kept_by_the_plan():
    """O34: no option that one entry point takes and another drops."""
    arguments = set(inspect.signature(sdp.plan).parameters) - {"epsilon", "epochs"}
    config = make(max_items_per_subject=4).get_config()
    assert arguments <= set(config)
    assert set(config) >= {"target_epsilon", "steps_per_epoch"}


def test_a_longer_plan_has_the_same_noise_and_costs_more(calibrated):
    longer = calibrated.extended(epochs=3)
    assert longer.steps == 150
    assert longer.noise_multiplier == calibrated.noise_multiplier
    assert longer.fingerprint == calibrated.fingerprint
    assert longer.epsilon() > calibrated.epsilon()


def test_a_plan_is_frozen():
    with pytest.raises(AttributeError):
        make().steps = 10


def test_a_plan_prints_its_choices(calibrated):
    text = str(calibrated)
    for part in (
        "HiGradAvg, clip norm 1",
        "one subject",
        "adding or removing one subject",
        "rate 0.02",
        "at most 5",
        f"{calibrated.noise_multiplier:.6g}",
        "50 (50 an epoch)",
        "1e-05",
    ):
        assert part in text
    printed = float(text.split("epsilon")[1].split()[0])
    assert calibrated.epsilon() <= printed <= calibrated.epsilon() + 1e-3


def test_a_larger_k_never_costs_less():
    values = [
        make(stats=sdp.SubjectStats.public(n_items=1000, n_subjects=200, max_items=k)).epsilon()
        for k in (5, 10, 50)
    ]
    assert values == sorted(set(values))
