# SPDX-License-Identifier: Apache-2.0
"""Both accountants keep dp_accounting's contract, know its events, and save what they were told."""

import json
import math
import subprocess
import sys

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation, dp_event, privacy_accountant_test
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from tf_subjectdp import accounting as acc
from tf_subjectdp.accounting import SubjectPLDAccountant, SubjectRdpAccountant, event_json

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
GAUSS = dp_accounting.GaussianDpEvent
POISSON = dp_accounting.PoissonSampledDpEvent
BOTH = (SubjectPLDAccountant, SubjectRdpAccountant)
each = pytest.mark.parametrize("kind", BOTH)

OURS = {
    "item": acc.item_event(0.05, 1.3),
    "higradavg": acc.higradavg_event(0.01, 9, 2.0),
    "group": acc.group_event(0.05, 6, 5.0),
    "group capped": acc.group_event(0.05, 6, 4.0, 2),
    "user_ldp": acc.user_ldp_event(8.0),
    "silo": acc.silo_event(0.2, 3.0),
    "element": acc.element_event(0.05, 4.0),
    "element subject": acc.element_subject_event(0.05, 6.0, 3),
    "histogram": acc.histogram_event(9.0),
    "shuffled": acc.shuffled_epoch_event(7, 20, 30.0),
    "replace_one": acc.replace_one_event(0.05, 1.5),
    "truncated": acc.truncated_poisson_event(0.05, 400, 30, 1.5),
}
THEIRS = {
    "gaussian": GAUSS(6.0),
    "laplace": dp_accounting.LaplaceDpEvent(9.0),
    "discrete laplace": dp_event.DiscreteLaplaceDpEvent(0.05, 2),
    "sampled laplace": POISSON(0.1, dp_accounting.LaplaceDpEvent(2.0)),
    "sampled gaussians": POISSON(0.1, dp_event.ComposedDpEvent([GAUSS(3.0), GAUSS(4.0)])),
}


class _Contract:
    def _make_test_accountants(self):
        return [self.kind(neighboring_relation=relation) for relation in NeighboringRelation]


class PldContract(_Contract, privacy_accountant_test.PrivacyAccountantTest):
    """dp_accounting's own contract test."""

    kind = SubjectPLDAccountant


class RdpContract(_Contract, privacy_accountant_test.PrivacyAccountantTest):
    """dp_accounting's own contract test."""

    kind = SubjectRdpAccountant


# --- agreement with dp_accounting, which composes the same events in its own way


_SHARED = [
    (GAUSS(2.0), 3),
    (dp_accounting.LaplaceDpEvent(5.0), 10),
    (POISSON(0.1, GAUSS(1.0)), 50),
    (POISSON(0.1, dp_accounting.LaplaceDpEvent(1.0)), 50),
    (dp_event.DiscreteLaplaceDpEvent(0.1, 3), 10),
    (dp_event.RandomizedResponseDpEvent(0.8, 4), 1),
    (dp_event.TruncatedSubsampledGaussianDpEvent(1000, 0.01, 12, 1.0), 100),
    (acc.group_event(0.02, 4, 3.0), 40),
]


@pytest.mark.parametrize(
    "event, count, relation",
    [
        (event, count, relation)
        for event, count in _SHARED
        for relation in NeighboringRelation
        if PLDAccountant(relation).supports(event)
    ],
    ids=lambda value: getattr(value, "name", type(value).__name__),
)
def test_pld_agrees_with_dp_accounting_wherever_that_supports_the_event(event, count, relation):
    reference = PLDAccountant(relation, 2e-4).compose(event, count).get_epsilon(1e-5)
    value = SubjectPLDAccountant(relation).compose(event, count).get_epsilon(1e-5)
    if isinstance(event, dp_event.RandomizedResponseDpEvent) and relation is SPECIAL:
        assert reference <= value <= math.log(0.4 / 0.2)  # bounded by the replaced answer
    else:
        assert value == pytest.approx(reference, rel=1e-3)


@pytest.mark.parametrize("event", THEIRS.values(), ids=THEIRS.keys())
def test_rdp_is_never_below_pld_and_near_it_for_foreign_events(event):
    pld = SubjectPLDAccountant().compose(event, 20).get_epsilon(1e-6)
    rdp = SubjectRdpAccountant().compose(event, 20).get_epsilon(1e-6)
    assert pld <= rdp * (1 + 1e-6) <= 1.5 * pld


@pytest.mark.parametrize("order", [2.0, 8.0, 32.0])
def test_laplace_renyi_divergence_is_its_closed_form(order):
    scale = 1.7
    exact = math.log(
        order / (2 * order - 1) * math.exp((order - 1) / scale)
        + (order - 1) / (2 * order - 1) * math.exp(-order / scale)
    ) / (order - 1)
    accountant = SubjectRdpAccountant([order]).compose(dp_accounting.LaplaceDpEvent(scale))
    assert accountant.rdp[0] == pytest.approx(exact, rel=1e-5)
    assert accountant.rdp[0] >= exact * (1 - 1e-12)


def test_composed_randomized_responses_count_each_time():
    # dp_accounting's loss distributions forget the count of this event: 0.69 for five.
    event = dp_event.RandomizedResponseDpEvent(0.8, 4)
    one = math.log((0.2 + 0.8 / 4) / (0.8 / 4))
    for kind in BOTH:
        accountant = kind(neighboring_relation=REPLACE).compose(event, 5)
        assert 4.5 * one < accountant.get_epsilon(1e-9) <= 5 * one * (1 + 1e-9)


def test_tree_aggregation_is_the_gaussian_of_the_nodes_a_record_is_in():
    event = dp_accounting.SingleEpochTreeAggregationDpEvent(3.0, [9, 4])
    value = SubjectPLDAccountant(SPECIAL).compose(event, 2).get_epsilon(1e-5)
    assert value == pytest.approx(acc.epsilon(GAUSS(3.0), 8, delta=1e-5), rel=1e-9)
    bound = RdpAccountant(neighboring_relation=SPECIAL).compose(event, 2).get_epsilon(1e-5)
    assert value < bound < 1.2 * value


def test_replacing_moves_a_sum_twice_as_far_as_adding():
    # dp_accounting's RDP gives the add-or-remove value, 4.73; right is 10.0.
    for kind in BOTH:
        value = kind(neighboring_relation=REPLACE).compose(GAUSS(1.0)).get_epsilon(1e-5)
        assert 9.99 < value < 11.0
    assert SubjectPLDAccountant(REPLACE).compose(GAUSS(1.0)).get_epsilon(1e-5) == pytest.approx(
        9.998, rel=1e-3
    )


def test_without_replacement_counts_the_factor_two():
    event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, GAUSS(4.0))
    half = dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, GAUSS(2.0))
    orders = list(range(2, 65))
    reference = RdpAccountant(orders, REPLACE).compose(half, 100).get_epsilon(1e-5)
    values = []
    for kind in (SubjectPLDAccountant, SubjectRdpAccountant):
        ours = kind(neighboring_relation=REPLACE).compose(event, 100).get_epsilon(1e-5)
        same = kind().compose(acc.fixed_size_event(1000, 10, 4.0), 100)
        assert same.get_epsilon(1e-5) == ours
        values.append(ours)
    # Loss distributions; their own Renyi divergences; a bound on these (arXiv:1808.00087).
    assert values[0] < values[1] < reference


def test_a_saved_step_without_replacement_is_replayed(tmp_path):
    events = (acc.fixed_size_event(90, 9, 3.0), acc.fixed_size_event(90, 9, 3.0, rows=4))
    accountant = SubjectPLDAccountant()
    for event in events:
        accountant.compose(event, 7)
    accountant.save(tmp_path / "ledger.json")
    again = SubjectPLDAccountant.load(tmp_path / "ledger.json")
    assert again.get_epsilon(1e-5) == accountant.get_epsilon(1e-5)
    # As saved before the event knew of more than one row.
    old = event_json.encode(events[0])
    del old["rows"]
    assert event_json.decode(old) == events[0]


def test_a_mixture_replaced_in_place_is_a_known_gaussian_of_twice_the_distance():
    event = acc.group_event(0.1, 3, 6.0)
    known = acc.revealed_event(
        [2 * c for c in event.sensitivities], list(event.sampling_probs), 6.0
    )
    value = SubjectPLDAccountant(REPLACE).compose(event, 30).get_epsilon(1e-5)
    assert value == pytest.approx(acc.epsilon(known, 30, delta=1e-5), rel=1e-9)


@each
def test_what_has_no_meaning_under_a_relation_is_refused_with_the_remedy(kind):
    with pytest.raises(dp_accounting.UnsupportedEventError, match="REPLACE_ONE"):
        kind().compose(dp_event.RandomizedResponseDpEvent(0.5, 3))
    with pytest.raises(dp_accounting.UnsupportedEventError, match="REPLACE_SPECIAL"):
        kind().compose(dp_accounting.SingleEpochTreeAggregationDpEvent(1.0, 3))
    assert not kind().supports(dp_event.RandomizedResponseDpEvent(0.5, 3))


# --- our events anywhere


@each
@pytest.mark.parametrize("event", OURS.values(), ids=OURS.keys())
def test_our_events_compose_wherever_an_event_stands(kind, event):
    engine = "pld" if kind is SubjectPLDAccountant else "rdp"
    ways = [
        kind().compose(event, 12),
        kind().compose(event, 5).compose(event, 7),
        kind().compose(dp_event.SelfComposedDpEvent(event, 4), 3),
        kind().compose(dp_event.ComposedDpEvent([event, dp_event.SelfComposedDpEvent(event, 11)])),
        kind().compose(acc.compose([(acc.compose([(event, 2)]), 6)])),
    ]
    reference = acc.epsilon(event, 12, delta=1e-6, engine=engine)
    for accountant in ways:
        assert accountant.get_epsilon(1e-6) == pytest.approx(reference, rel=1e-12)
        assert accountant.get_delta(reference) == pytest.approx(1e-6, rel=1e-2)


@each
def test_a_sampled_mixture_is_the_mixture_with_more_absence(kind):
    rate, sigma = 0.3, 3.0
    sampled = POISSON(rate, acc.group_event(0.2, 2, sigma))
    whole = dp_event.MixtureOfGaussiansDpEvent(
        sigma, [0.0, 1.0, 2.0], [1 - rate + rate * 0.64, rate * 0.32, rate * 0.04]
    )
    value = kind().compose(sampled, 50).get_epsilon(1e-6)
    assert value == pytest.approx(kind().compose(whole, 50).get_epsilon(1e-6), rel=1e-6)


@each
def test_sampling_twice_is_sampling_with_the_product(kind):
    twice = kind().compose(POISSON(0.3, acc.item_event(0.1, 1.5)), 50).get_epsilon(1e-6)
    assert twice == pytest.approx(
        kind().compose(acc.item_event(0.03, 1.5), 50).get_epsilon(1e-6), rel=1e-6
    )
    replaced = kind().compose(POISSON(0.3, acc.replace_one_event(0.1, 1.5)), 50)
    assert replaced.get_epsilon(1e-6) == pytest.approx(
        kind().compose(acc.replace_one_event(0.03, 1.5), 50).get_epsilon(1e-6), rel=1e-6
    )


@each
def test_sampling_does_not_amplify_a_known_presence(kind):
    once = kind().compose(POISSON(0.2, acc.element_event(0.25, 4.0)), 40).get_epsilon(1e-6)
    assert once == pytest.approx(
        kind().compose(acc.element_event(0.05, 4.0), 40).get_epsilon(1e-6), rel=1e-9
    )


@each
def test_unlike_events_on_one_sample_are_refused(kind):
    both = dp_event.ComposedDpEvent([acc.group_event(0.1, 3, 4.0), GAUSS(2.0)])
    with pytest.raises(dp_accounting.UnsupportedEventError, match="state what runs on one sample"):
        kind().compose(POISSON(0.1, both))


@each
def test_ours_and_theirs_compose_in_one_ledger(kind):
    accountant = kind()
    parts = [*OURS.values(), *THEIRS.values()]
    for event in parts:
        accountant.compose(event, 3)
    together = accountant.get_epsilon(1e-5)
    singles = [kind().compose(event, 3).get_epsilon(1e-5 / len(parts)) for event in parts]
    dearest = max(kind().compose(event, 3).get_epsilon(1e-5) for event in parts)
    assert dearest < together < sum(singles)
    backwards = kind().compose(dp_event.ComposedDpEvent([accountant.ledger]))
    assert backwards.get_epsilon(1e-5) == pytest.approx(together, rel=1e-12)


def test_what_only_dp_accounting_knows_joins_the_renyi_ledger():
    selection = dp_event.RepeatAndSelectDpEvent(acc.group_event(0.05, 4, 8.0), 3.0, 1.0)
    replaced = dp_event.SampledWithReplacementDpEvent(1000, 10, GAUSS(2.0))
    for foreign in (selection, replaced):
        accountant = SubjectRdpAccountant()
        if not accountant.supports(foreign):
            continue
        alone = accountant.compose(foreign).get_epsilon(1e-5)
        both = accountant.compose(acc.item_event(0.1, 1.5), 30).get_epsilon(1e-5)
        other = acc.epsilon(acc.item_event(0.1, 1.5), 30, delta=1e-5, engine="rdp")
        assert max(alone, other) < both < alone + other
        assert accountant.get_delta(both) == pytest.approx(1e-5, rel=1e-6)
        assert not SubjectPLDAccountant().supports(foreign)
    assert SubjectRdpAccountant().supports(selection)
    plain = dp_event.RepeatAndSelectDpEvent(GAUSS(5.0), 3.0, 1.0)
    assert SubjectRdpAccountant().compose(plain).get_epsilon(1e-5) == pytest.approx(
        RdpAccountant().compose(plain).get_epsilon(1e-5), rel=1e-9
    )


def test_a_selection_within_a_selection_passes_through_both_rules():
    select = dp_event.RepeatAndSelectDpEvent
    inner = select(GAUSS(10.0), 2.0, 1.0)
    for parts in ([inner, GAUSS(2.0)], [GAUSS(2.0), inner]):
        event = select(dp_event.ComposedDpEvent(parts), 20.0, 1.0)
        reference = RdpAccountant().compose(event).get_epsilon(1e-5)
        value = SubjectRdpAccountant().compose(event).get_epsilon(1e-5)
        assert value == pytest.approx(reference, rel=1e-9)


@each
@pytest.mark.parametrize("relation", ["REPLACE_ONE", 2, None])
def test_a_relation_that_is_no_relation_is_refused(kind, relation):
    with pytest.raises(TypeError, match="neighboring_relation must be"):
        kind(neighboring_relation=relation)


def test_the_error_of_the_pld_accountant_is_named_and_bounded():
    with pytest.raises(TypeError):
        SubjectPLDAccountant(ADD, 1e-4)  # dp_accounting's second argument is an interval
    for bad in (0.0, 0.5, 1e-9):
        with pytest.raises(ValueError, match="relative_error must be in"):
            SubjectPLDAccountant(relative_error=bad)


@each
@pytest.mark.parametrize("steps", [1, 300])
def test_a_certain_event_of_a_replaced_unit_is_not_amplified_either(kind, steps):
    # p = 1 is no other kind of event than p next to 1.
    for event in (acc.element_event, acc.replace_one_event):
        at = [kind().compose(POISSON(0.01, event(p, 1.0)), steps) for p in (1.0, 1.0 - 1e-9)]
        certain, nearly = (accountant.get_epsilon(1e-6) for accountant in at)
        assert certain == pytest.approx(nearly, rel=1e-5)
    known = kind().compose(acc.revealed_event([2.0], [0.01], 9.0), steps).get_epsilon(1e-6)
    histogram = kind().compose(POISSON(0.01, acc.histogram_event(9.0)), steps).get_epsilon(1e-6)
    assert histogram == pytest.approx(known, rel=1e-9)


@each
def test_one_item_a_subject_is_the_item_level_when_replaced_too(kind):
    values = [
        kind(neighboring_relation=REPLACE).compose(event, 100).get_epsilon(1e-5)
        for event in (acc.group_event(0.01, 1, 1.0), acc.item_event(0.01, 1.0))
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-9)


@each
def test_what_draws_its_own_batch_is_not_sampled_again(kind):
    for event in (acc.fixed_size_event(50, 50, 2.0), acc.fixed_size_event(50, 5, 2.0)):
        with pytest.raises(dp_accounting.UnsupportedEventError, match="draws its batch itself"):
            kind().compose(POISSON(0.1, event))


def test_epsilon_of_pure_mechanisms_is_monotone_down_to_delta_zero():
    accountant = SubjectPLDAccountant().compose(dp_accounting.LaplaceDpEvent(2.0), 3)
    values = [accountant.get_epsilon(delta) for delta in (0.0, 1e-20, 1e-15, 1e-9, 1e-3)]
    assert values[0] == pytest.approx(1.5, rel=1e-12)
    assert values == sorted(values, reverse=True)
    assert math.copysign(1.0, accountant.get_delta(1.5)) == 1.0
    sampled = SubjectPLDAccountant(REPLACE).compose(POISSON(0.1, dp_accounting.LaplaceDpEvent(2.0)))
    assert sampled.get_epsilon(0.0) == pytest.approx(1.0, rel=1e-12)


def test_mixtures_of_many_sensitivities_reach_tiny_deltas():
    # By an exact convolution of the squared number of items.
    accountant = SubjectPLDAccountant(REPLACE).compose(acc.group_event(0.01, 50, 5.0), 1000)
    assert accountant.get_epsilon(1e-20) == pytest.approx(180.38, rel=2e-3)


def test_renyi_divergences_add_up_at_every_order():
    accountant = SubjectRdpAccountant([2.0, 4.5, 16.0])
    accountant.compose(acc.group_event(0.05, 6, 5.0), 3).compose(GAUSS(4.0), 2)
    one = SubjectRdpAccountant([2.0, 4.5, 16.0]).compose(acc.group_event(0.05, 6, 5.0)).rdp
    assert accountant.rdp == pytest.approx(3 * one + 2 * accountant.orders / (2 * 16.0))
    epsilon, order = accountant.get_epsilon_and_optimal_order(1e-6)
    assert order in accountant.orders
    assert epsilon >= accountant.get_epsilon(1e-6)
    delta, order = accountant.get_delta_and_optimal_order(epsilon)
    assert delta == pytest.approx(1e-6, rel=1e-9)


@pytest.mark.parametrize("orders", [[1.0], [1.0 + 1e-9], [2.0, 0.5], [math.inf], [math.nan], []])
def test_orders_near_one_are_refused(orders):
    with pytest.raises(ValueError, match="orders must be finite and at least 1.02"):
        SubjectRdpAccountant(orders)


@each
@pytest.mark.parametrize("count", [-1, 1.5, True, "3"])
def test_a_count_that_is_no_whole_number_is_refused(kind, count):
    with pytest.raises((TypeError, ValueError), match="count"):
        kind().compose(GAUSS(1.0), count)


@each
@pytest.mark.parametrize("delta", [-1e-9, 1.5, math.nan, "small"])
def test_a_delta_that_is_no_probability_is_refused(kind, delta):
    with pytest.raises((TypeError, ValueError), match="delta"):
        kind().compose(GAUSS(1.0)).get_epsilon(delta)


# --- used by others


def test_dp_accountings_calibration_takes_our_accountants_and_events():
    sigma = dp_accounting.calibrate_dp_mechanism(
        SubjectPLDAccountant,
        lambda value: acc.compose([(acc.group_event(0.01, 20, value), 200)]),
        target_epsilon=2.0,
        target_delta=1e-6,
        bracket_interval=dp_accounting.LowerEndpointAndGuess(1.0, 5.0),
        tol=1e-3,
    )
    ours = acc.noise_multiplier(
        lambda value: acc.group_event(0.01, 20, value), 200, epsilon=2.0, delta=1e-6
    )
    assert sigma == pytest.approx(ours, rel=2e-3)


@pytest.mark.slow
def test_queries_of_tensorflow_privacy_compose_with_our_events():
    pytest.importorskip("tensorflow_privacy", reason="TF-Privacy is on the Python 3.11 stack only")
    script = """
import tensorflow as tf, tensorflow_privacy as tfp
from tf_subjectdp import accounting as acc
query = tfp.NormalizedQuery(tfp.GaussianSumQuery(l2_norm_clip=2.0, stddev=6.0), denominator=10)
state = query.initial_global_state()
sample = query.initial_sample_state(tf.zeros([3]))
_, _, event = query.get_noised_result(sample, state)
for kind in (acc.SubjectPLDAccountant, acc.SubjectRdpAccountant):
    both = kind().compose(event, 4).compose(acc.group_event(0.05, 6, 5.0), 30)
    same = kind().compose(acc.item_event(1.0, 3.0), 4).compose(acc.group_event(0.05, 6, 5.0), 30)
    assert abs(both.get_epsilon(1e-6) / same.get_epsilon(1e-6) - 1) < 1e-9
print("agreed")
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert run.stdout.strip().endswith("agreed"), run.stderr[-2000:]


# --- saving


@each
def test_a_saved_ledger_replays_to_the_same_epsilon(kind, tmp_path):
    accountant = kind(neighboring_relation=ADD)
    for event in [*OURS.values(), *THEIRS.values(), acc.nonprivate_event()][:-1]:
        accountant.compose(event, 2)
    path = tmp_path / "ledger.json"
    accountant.save(path)
    again = kind.load(path)
    assert event_json.encode(again.ledger) == event_json.encode(accountant.ledger)
    assert again.get_epsilon(1e-6) == accountant.get_epsilon(1e-6)
    again.compose(GAUSS(3.0)).save(path)
    assert kind.load(path).get_epsilon(1e-6) > accountant.get_epsilon(1e-6)
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.json"]


def test_a_ledger_keeps_the_permissions_of_its_file(tmp_path):
    path = tmp_path / "ledger.json"
    SubjectPLDAccountant().save(path)
    plain = tmp_path / "plain"
    plain.write_text("", encoding="utf-8")
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o640)
    SubjectPLDAccountant().compose(GAUSS(1.0)).save(path)
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_relation_and_either_accountant_survive_the_file(tmp_path):
    path = tmp_path / "ledger.json"
    SubjectPLDAccountant(REPLACE).compose(GAUSS(2.0), 3).save(path)
    again = SubjectRdpAccountant.load(path, orders=[2.0, 3.0])
    assert again.neighboring_relation is REPLACE
    assert list(again.orders) == [2.0, 3.0]
    assert again.get_epsilon(1e-5) > SubjectPLDAccountant.load(path).get_epsilon(1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"relation": "ADD_OR_REMOVE_ONE"}',
        '{"relation": "SIDEWAYS", "event": {"kind": "NoOpDpEvent"}}',
        '{"relation": 3, "event": {"kind": "NoOpDpEvent"}}',
        '{"relation": "REPLACE_ONE", "event": {"kind": "Popen", "args": "ls"}}',
        '{"relation": "REPLACE_ONE", "event": {"kind": "GaussianDpEvent", "sigma": 1}}',
        '{"relation": "REPLACE_ONE", "event": {"kind": "GaussianDpEvent"}}',
        '{"relation": "REPLACE_ONE", "event": 5}',
        '{"relation": "REPLACE_ONE", "event": {"kind": "ComposedDpEvent", "events": 3}}',
        '{"relation": "REPLACE_ONE", "event": {"kind": "SelfComposedDpEvent", "count": 1.5, "event":'
        ' {"kind": "NoOpDpEvent"}}}',
        '{"relation": "REPLACE_ONE", "event": {"kind": "MixtureOfGaussiansDpEvent",'
        ' "standard_deviation": 1, "sensitivities": 3, "sampling_probs": [1]}}',
        '{"relation": "REPLACE_ONE", "event": {"kind": "GaussianDpEvent", "noise_multiplier": -1}}',
        '{"relation": "REPLACE_ONE", "event": ' + '{"kind": "SelfComposedDpEvent", "event": ' * 300,
    ],
)
@each
def test_a_file_that_is_no_ledger_is_refused(kind, text, tmp_path):
    path = tmp_path / "ledger.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError):
        kind.load(path)


@pytest.mark.parametrize("event", [*OURS.values(), *THEIRS.values(), GAUSS(math.inf)])
def test_events_survive_json(event):
    text = json.dumps(event_json.encode(event), allow_nan=False)
    again = event_json.decode(json.loads(text))
    assert again == event or acc.delta(again, epsilon=0.1) == acc.delta(event, epsilon=0.1)
    assert type(again) is type(event)


def test_minus_infinity_is_not_saved_as_infinity():
    with pytest.raises(ValueError, match="cannot be saved"):
        event_json.encode(GAUSS(-math.inf))


def test_an_event_of_a_stranger_is_not_saved(tmp_path):
    class StrangeDpEvent(dp_event.DpEvent):
        pass

    with pytest.raises(ValueError, match="StrangeDpEvent cannot be saved"):
        event_json.encode(acc.compose([(StrangeDpEvent(), 2)]))
