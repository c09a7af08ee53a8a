# SPDX-License-Identifier: Apache-2.0
"""Federated plans: what they promise against the accountant by hand, and what they refuse."""

import dataclasses
import json
import subprocess
import sys

import dp_accounting
import numpy as np
import pytest

import tf_subjectdp as sdp
from tf_subjectdp import accounting
from tf_subjectdp.federated import FederatedPlan, Spent

DELTA = 1e-4
# Five unlike silos; rows are people.
COUNTS = np.array(
    [
        [3, 1, 0, 2, 0],
        [1, 0, 4, 0, 0],
        [0, 2, 2, 1, 1],
        [5, 0, 0, 0, 2],
        [2, 3, 1, 4, 1],
        [1, 1, 1, 1, 1],
    ]
)
STATS = sdp.SiloStats.from_counts(COUNTS, list("abcde"))
ITEMS, PEOPLE = COUNTS.sum(0), (COUNTS > 0).sum(0)


def make(algorithm=None, sampling=None, **options):
    options = {"rounds": 8, "noise_multiplier": 2.0, "delta": DELTA, **options}
    return sdp.federated.plan(
        algorithm or sdp.HiGradAvg(1.0), sampling or sdp.PoissonItems(2), STATS, **options
    )


def composed(events_and_counts):
    return accounting.epsilon(accounting.compose(events_and_counts), delta=DELTA)


def rates(size=2):
    return size / ITEMS


EVENTS = {
    "ItemDP": lambda q, k, sigma: accounting.group_event(q, k, sigma),
    "GroupDP": lambda q, k, sigma: accounting.group_event(q, k, sigma),
    "HiGradAvg": lambda q, k, sigma: accounting.higradavg_event(q, k, sigma),
    "UserLDP": lambda q, k, sigma: accounting.user_ldp_event(sigma),
}


@pytest.mark.parametrize("name", EVENTS)
def test_epsilon_composes_every_silos_own_steps(name):
    plan = make(getattr(sdp, name)(1.0), local_steps=3)
    events = [
        (EVENTS[name](q, int(k), 2.0), 24) for q, k in zip(rates(), COUNTS.max(0), strict=True)
    ]
    assert plan.epsilon() == pytest.approx(composed(events), rel=2e-3)
    spent = Spent(5, (5, 0, 2, 1, 5))
    some = [(event, 3 * n) for (event, _), n in zip(events, spent.of_silos, strict=True) if n]
    assert plan.epsilon(spent=spent) == pytest.approx(composed(some), rel=2e-3)
    assert plan.epsilon(spent=Spent(0, (0,) * 5)) == 0.0


def test_people_are_sampled_at_their_own_rate_of_each_silo():
    """q is expected participants over all: 1 of 4 to 6 people, not of the federation's 6."""
    plan = make(sdp.SubjectDP(1.0), sdp.PoissonSubjects(1))
    events = [(accounting.subject_event(1 / n, 2.0), 8) for n in PEOPLE]
    assert [facts.rate for facts in plan.facts] == pytest.approx((1 / PEOPLE).tolist())
    assert plan.epsilon() == pytest.approx(composed(events), rel=2e-3)


def test_a_promise_about_silos_takes_the_costliest_ones():
    plan = make(silos_per_subject=5)
    assert plan.epsilon() == make().epsilon()
    unlike = sdp.SiloStats.from_counts(np.array([[1, 3, 0], [0, 2, 1], [2, 0, 1]]))
    plan = sdp.federated.plan(
        sdp.HiGradAvg(1.0),
        sdp.PoissonItems(1),
        unlike,
        rounds=4,
        noise_multiplier=2.0,
        delta=DELTA,
        silos_per_subject=2,
    )
    event = [accounting.higradavg_event(1 / n, k, 2.0) for n, k in ((3, 2), (5, 3), (2, 1))]
    pairs = [composed([(event[i], 4), (event[j], 4)]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert plan.epsilon() == pytest.approx(max(pairs), rel=2e-3)
    with pytest.raises(ValueError, match="silos_per_subject=3, but the stats have a subject in 5"):
        make(silos_per_subject=3)


@pytest.mark.parametrize("noise_at", ["silo", "server"])
def test_the_smallest_noise_that_keeps_the_promise(noise_at):
    plan = make(noise_multiplier=None, epsilon=2.0, noise_at=noise_at)
    sigma = plan.noise_multipliers[0]
    assert len(set(plan.noise_multipliers)) == 1 and plan.epsilon() <= 2.0
    less = dataclasses.replace(plan, noise_multipliers=(0.999 * sigma,) * 5)
    assert less.epsilon() > 2.0


def test_fewer_silos_a_round_cost_fewer_rounds_of_each():
    plan = make(silos_per_round=2)
    assert plan.rounds_of_a_silo == 4  # ceil(8 * 2 / 5)
    events = [
        (accounting.higradavg_event(q, int(k), 2.0), 4)
        for q, k in zip(rates(), COUNTS.max(0), strict=True)
    ]
    assert plan.epsilon() == pytest.approx(composed(events), rel=2e-3)
    assert plan.planned_weight == 2.0


@pytest.mark.parametrize("cap", [None, 2])
def test_central_noise_is_added_once_to_the_sum_over_all_silos(cap):
    algorithm = sdp.GroupDP(1.0, max_items_per_subject=cap)
    plan = make(algorithm, noise_at="server")
    silos = [(q, int(k)) for q, k in zip(rates(), COUNTS.max(0), strict=True)]
    event = accounting.central_group_event(silos, 2.0, cap)
    assert plan.epsilon() == pytest.approx(accounting.epsilon(event, 8, delta=DELTA), rel=1e-3)
    three = plan.epsilon(spent=Spent(3, (1, 1, 1, 0, 0)))
    assert three == pytest.approx(accounting.epsilon(event, 3, delta=DELTA), rel=1e-3)
    higradavg = accounting.central_higradavg_event(silos, 2.0)
    wanted = accounting.epsilon(higradavg, 8, delta=DELTA)
    assert make(noise_at="server").epsilon() == pytest.approx(wanted, rel=1e-3)
    assert plan.server_divisor == pytest.approx(10.0)


def test_central_events_of_silos_that_sample_people():
    plan = make(sdp.SubjectDP(1.0), sdp.PoissonSubjects(1), noise_at="server", silos_per_round=2)
    # Of 2 silos a round, the two of the largest rates are the worst.
    worst = np.sort(1 / PEOPLE)[-2:]
    law = [(1 - worst[0]) * (1 - worst[1]), worst[0] + worst[1] - 2 * worst.prod(), worst.prod()]
    mixture = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(2.0, [0.0, 1.0, 2.0], law)
    wanted = accounting.epsilon(mixture, 8, delta=DELTA)
    assert plan.epsilon() == pytest.approx(wanted, rel=1e-3)


def test_in_an_average_the_noises_add_and_missing_ones_do_not():
    alike = sdp.SiloStats.from_counts(np.full((6, 4), 2))
    options = {"rounds": 5, "noise_multiplier": 1.5, "delta": DELTA, "view": "average"}
    arguments = (sdp.HiGradAvg(1.0), sdp.PoissonItems(3), alike)
    plan = sdp.federated.plan(*arguments, **options)
    assert plan.minimum_silos == 4
    # All four silos: a binomial number of presences against the noise of four.
    present = 1 - (1 - 3 / 12) ** 2
    law = [
        float(n)
        for n in np.convolve(
            np.convolve([1 - present, present], [1 - present, present]),
            np.convolve([1 - present, present], [1 - present, present]),
        )
    ]

    def epsilon_of(noise):
        event = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
            noise, [0.0, 1.0, 2.0, 3.0, 4.0], law
        )
        return accounting.epsilon(event, 5, delta=DELTA)

    assert plan.epsilon() == pytest.approx(epsilon_of(1.5 * 2.0), rel=2e-3)
    fewer = sdp.federated.plan(*arguments, minimum_silos=2, **options)
    assert fewer.epsilon() == pytest.approx(epsilon_of(1.5 * 2**0.5), rel=2e-3)
    assert (
        plan.epsilon() < sdp.federated.plan(*arguments, **{**options, "view": "updates"}).epsilon()
    )
    # A silo that missed rounds is counted as if it had not, since its noise was missing.
    assert plan.epsilon(spent=Spent(5, (5, 5, 5, 1))) == plan.epsilon()


def test_the_silo_with_the_least_noise_is_what_a_minimum_counts_on():
    plan = make(view="average", minimum_silos=2, noise_multiplier=[1.0, 5.0, 2.0, 9.0, 3.0])
    known = plan.horizontal().known_noise
    assert sorted(known) == [1, 3, 4]


def test_weights_and_divisors_are_constants_of_the_plan():
    plan = make(weighting="items")
    assert plan.weights == pytest.approx((ITEMS / ITEMS.mean()).tolist())
    assert make().weights == (1.0,) * 5 and plan.divisors == (2.0,) * 5
    subjects = make(sdp.HiGradAvg(1.0, normalization="expected_subjects"))
    wanted = [
        (1 - (1 - 2 / n) ** column[column > 0]).sum()
        for n, column in zip(ITEMS, COUNTS.T, strict=True)
    ]
    assert subjects.divisors == pytest.approx(wanted)


def test_a_public_bound_becomes_every_silos_k():
    plan = make(max_items_per_subject=3)
    assert [facts.max_items for facts in plan.facts] == [3] * 5
    assert [facts.n_items for facts in plan.facts] == np.minimum(COUNTS, 3).sum(0).tolist()
    assert "a public bound; every silo drops further items" in " ".join(plan.statement().split())
    assert "read from the data" in " ".join(make().statement().split())


def test_every_persons_own_epsilon():
    plan = make()
    found = plan.per_subject_epsilon()
    for person in range(len(COUNTS)):
        events = [
            (accounting.higradavg_event(q, int(k), 2.0), 8)
            for q, k in zip(rates(), COUNTS[person], strict=True)
            if k
        ]
        assert found.epsilon[person] >= composed(events) * (1 - 1e-3)
        assert found.epsilon[person] == pytest.approx(composed(events), rel=2e-2)
    assert found.worst <= plan.epsilon() * (1 + 1e-3)
    with pytest.raises(ValueError, match="read from a state and has no stats"):
        FederatedPlan.from_config(plan.get_config()).per_subject_epsilon()


def test_a_plan_survives_json_but_for_its_stats():
    for plan in (
        make(epsilon=3.0, noise_multiplier=None),
        make(sdp.GroupDP(2.0, max_items_per_subject=2), noise_at="server"),
        make(sampling=[sdp.PoissonItems(2)] * 4 + [sdp.PoissonSubjects(1)]),
        sdp.federated.plan(None, sdp.PoissonItems(2), STATS, rounds=2),
    ):
        again = FederatedPlan.from_config(json.loads(json.dumps(plan.get_config())))
        assert again == plan and again.fingerprint == plan.fingerprint and again.stats is None
        if plan.algorithm is not None:
            assert again.epsilon(DELTA) == plan.epsilon(DELTA)
    assert make().fingerprint != make(noise_multiplier=2.1).fingerprint
    with pytest.raises(ValueError, match="is no config of a FederatedPlan"):
        FederatedPlan.from_config({"rounds": 3})


def test_silos_sample_in_ways_of_their_own_by_name():
    own = {name: sdp.PoissonItems(1 + i) for i, name in enumerate("abcde")}
    plan = make(sampling=own)
    assert [s.expected_batch_size for s in plan.samplings] == [1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match=r"unknown silos \['f'\] and lacks \['a'\]"):
        make(sampling={**{k: v for k, v in own.items() if k != "a"}, "f": own["a"]})
    with pytest.raises(
        ValueError, match="silo 'e': batch above the data.*Silos may sample differently"
    ):
        make(sampling=sdp.PoissonItems(6))
    with pytest.raises(ValueError, match="one for each of the 5 silos"):
        make(sampling=[sdp.PoissonItems(1)] * 4)
    with pytest.raises(ValueError, match="shuffled epochs do not end with a round"):
        make(sdp.SubjectDP(1.0), sdp.Shuffle(2))


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("give exactly one of epsilon", {"epsilon": 2.0}),
        ("epsilon needs delta=", {"epsilon": 2.0, "noise_multiplier": None, "delta": None}),
        ("noise_at='moon' is unknown", {"noise_at": "moon"}),
        ("view='mine' is unknown", {"view": "mine"}),
        ("rounds=0 must be at least 1", {"rounds": 0}),
        ("silos_per_round=6 must be from 1 to 5", {"silos_per_round": 6}),
        ("minimum_silos=3 must be from 1 to 2", {"silos_per_round": 2, "minimum_silos": 3}),
        ("view='average' needs local_steps=1, not 2", {"view": "average", "local_steps": 2}),
        ("noise_at='server' needs local_steps=1, not 2", {"noise_at": "server", "local_steps": 2}),
        ("adds one noise", {"noise_at": "server", "noise_multiplier": [1.0, 2.0, 1.0, 1.0, 1.0]}),
        ("leave out weighting= and view=", {"noise_at": "server", "weighting": "items"}),
        ("has 2 values for 5 silos", {"noise_multiplier": [1.0, 2.0]}),
        ("with UserLDP", {"algorithm": sdp.UserLDP(1.0), "noise_at": "server"}),
        (
            "is not proven",
            {"algorithm": sdp.SubjectDP(1.0), "sampling": sdp.FixedSize(2), "noise_at": "server"},
        ),
        (
            "do not compose",
            {
                "algorithm": sdp.SubjectDP(1.0),
                "sampling": [sdp.FixedSize(2)] * 4 + [sdp.PoissonItems(2)],
            },
        ),
    ],
)
def test_what_is_wrong_or_not_proven_is_refused(match, options):
    with pytest.raises(ValueError, match=match):
        make(**options)


def test_wrong_types_are_named():
    with pytest.raises(TypeError, match="pass SiloStats.from_ids"):
        sdp.federated.plan(sdp.HiGradAvg(1.0), sdp.PoissonItems(2), STATS.total, rounds=2)
    with pytest.raises(TypeError, match="None for FedAvg without privacy"):
        sdp.federated.plan("higradavg", sdp.PoissonItems(2), STATS, rounds=2)
    with pytest.raises(TypeError, match="rounds=2.5 must be a whole number"):
        make(rounds=2.5)
    with pytest.raises(ValueError, match="leave out epsilon="):
        sdp.federated.plan(None, sdp.PoissonItems(2), STATS, rounds=2, epsilon=1.0)
    with pytest.warns(UserWarning, match="not below 1 / subjects") as said:
        make(delta=0.3)
    assert said[0].filename == __file__  # not a file of the library
    with pytest.warns(UserWarning, match=f"not below 1 / items = {1 / STATS.n_items:g}"):
        make(sdp.ItemDP(1.0), unit="item", delta=1.0 / STATS.n_items)


def test_a_fixed_size_composes_replacements():
    plan = make(sdp.SubjectDP(1.0), sdp.FixedSize(2), rounds=2)
    facts = plan.facts[0]
    guarantee = sdp.SubjectDP(1.0).subject_guarantee(facts, 2.0)
    one = plan.epsilon(spent=Spent(2, (2, 0, 0, 0, 0)))
    assert one == pytest.approx(guarantee.epsilon(2, DELTA), rel=2e-3)
    assert one < plan.epsilon() < np.inf
    assert "replacing the contents" in " ".join(plan.statement().split())
    calibrated = make(
        sdp.SubjectDP(1.0), sdp.FixedSize(2), rounds=2, noise_multiplier=None, epsilon=5.0
    )
    assert 4.99 < calibrated.epsilon() <= 5.0


@pytest.mark.parametrize("algorithm", [sdp.ItemDP(1.0), sdp.HiGradAvg(1.0), sdp.SubjectDP(1.0)])
def test_silos_of_one_item_a_person_compose_with_silos_of_more(algorithm):
    # The fifth and sixth person have as few items as their own; the others of silo a have more.
    counts = np.array([[3, 1], [2, 0], [4, 1], [3, 1], [1, 0], [1, 1]])
    stats = sdp.SiloStats.from_counts(counts, ["many", "one"])
    plan = sdp.federated.plan(
        algorithm, sdp.FixedSize(2), stats, rounds=4, noise_multiplier=3.0, delta=DELTA
    )
    many, one = (algorithm.subject_guarantee(facts, 3.0).events[0] for facts in plan.facts)
    assert isinstance(many, accounting.RevealedSensitivityDpEvent)
    assert one == accounting.fixed_size_event(4, 2, 3.0)
    assert plan.epsilon() == pytest.approx(composed([(many, 4), (one, 4)]), rel=2e-3)
    # A person of one item is not amplified among others of more: their averages move as well.
    own = plan.per_subject_epsilon(delta=DELTA).epsilon
    assert own[4] == own[1] == pytest.approx(composed([(many, 4)]), rel=2e-3)
    assert own[5] == own[0] == pytest.approx(plan.epsilon(), rel=2e-3)


def test_plans_are_made_without_tensorflow():
    code = (
        "import sys, numpy as np, tf_subjectdp as sdp;"
        "stats = sdp.SiloStats.from_counts(np.full((9, 3), 2));"
        "plan = sdp.federated.plan(sdp.HiGradAvg(1.0), sdp.PoissonItems(4), stats, rounds=3,"
        " noise_multiplier=2.0, delta=1e-3);"
        "print(plan); plan.statement();"
        "found = {'tensorflow', 'tensorflow_federated'} & set(sys.modules); sys.exit(len(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "noise added by" in done.stdout


@pytest.mark.parametrize("view", ["updates", "average"])
@pytest.mark.parametrize(
    ("algorithm", "sampling"),
    [
        (sdp.ItemDP(1.0), sdp.FixedSize(2)),
        (sdp.GroupDP(1.0, 2), sdp.FixedSize(2)),
        (sdp.ItemDP(1.0), sdp.PoissonSubjects(1)),
        (sdp.SubjectDP(1.0), sdp.PoissonItems(2)),
        (sdp.UserLDP(1.0), sdp.PoissonItems(2)),
    ],
)
def test_nobodys_own_epsilon_is_above_the_plans(algorithm, sampling, view):
    plan = make(algorithm, sampling, view=view, noise_multiplier=6.0)
    for spent in (None, Spent(3, (3, 3, 3, 3, 3))):
        found = plan.per_subject_epsilon(spent=spent)
        assert 0 < found.epsilon.min() and found.worst <= plan.epsilon(spent=spent) * 1.001


def test_without_privacy_no_delta_is_needed():
    plan = sdp.federated.plan(None, sdp.PoissonItems(2), STATS, rounds=2)
    assert plan.epsilon() == np.inf and plan.epsilon(spent=Spent(0, (0,) * 5)) == 0.0
    assert "NOT PRIVATE" in plan.statement()
    with pytest.raises(ValueError, match="everybody's epsilon is infinite"):
        plan.per_subject_epsilon(delta=1e-5)


def test_sampled_people_move_an_average_by_as_many_clip_norms_as_they_have_items():
    """Silos of unlike k: the event of a step counts in units of k clip norms."""
    stats = sdp.SiloStats.from_counts(np.array([[1, 6]] * 4))
    plan = sdp.federated.plan(
        sdp.ItemDP(0.5),
        sdp.PoissonSubjects(2),
        stats,
        rounds=4,
        noise_multiplier=8.0,
        delta=DELTA,
        view="average",
    )
    # In units of the average: silo 0 moves by 0.5 / 2 a batch, silo 1 by 3 / 12, each half of the time.
    moves = [0.5 / plan.divisors[0], 3.0 / plan.divisors[1]]
    noise = np.hypot(4.0 / plan.divisors[0], 4.0 / plan.divisors[1])
    law = {0.0: 0.25, moves[0]: 0.25, moves[1]: 0.25, sum(moves): 0.25}
    if moves[0] == moves[1]:
        law = {0.0: 0.25, moves[0]: 0.5, sum(moves): 0.25}
    event = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(noise, list(law), list(law.values()))
    wanted = accounting.epsilon(event, 4, delta=DELTA)
    assert plan.epsilon() == pytest.approx(wanted, rel=2e-3)


def test_a_central_sum_of_sampled_people_counts_their_items():
    stats = sdp.SiloStats.from_counts(np.array([[1, 3]] * 4))
    plan = sdp.federated.plan(
        sdp.GroupDP(1.0, max_items_per_subject=2),
        sdp.PoissonSubjects(1),
        stats,
        rounds=4,
        noise_multiplier=5.0,
        delta=DELTA,
        noise_at="server",
    )
    law = np.outer([0.75, 0.25], [0.75, 0.25]).ravel()
    event = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(5.0, [0.0, 2.0, 1.0, 3.0], law)
    assert plan.epsilon() == pytest.approx(accounting.epsilon(event, 4, delta=DELTA), rel=2e-3)


def test_silos_are_in_ascending_order_and_none_has_the_name_of_another():
    assert sdp.SiloStats.from_ids([1, 2, 3, 4], ["c", "a", "b", "a"]).names == ("a", "b", "c")
    assert sdp.SiloStats.from_ids([1, 2, 1, 4], [9, 10, 2, 2]).silo(0).n_items == 2
    twins = sdp.SiloStats.from_counts(np.ones((4, 2), int), [1, "1"])
    with pytest.raises(ValueError, match="equal as text"):
        sdp.federated.plan(
            sdp.ItemDP(1.0), sdp.PoissonItems(1), twins, rounds=1, noise_multiplier=1.0
        )


@pytest.mark.parametrize("algorithm", [sdp.GroupDP(1.0), sdp.HiGradAvg(1.0)])
def test_every_persons_own_epsilon_where_the_server_adds_the_noise(algorithm):
    plan = make(algorithm, noise_at="server", noise_multiplier=4.0)
    found = plan.per_subject_epsilon()
    event = accounting.central_group_event
    if isinstance(algorithm, sdp.HiGradAvg):
        event = accounting.central_higradavg_event
    for person in range(len(COUNTS)):
        silos = [(q, int(k)) for q, k in zip(rates(), COUNTS[person], strict=True) if k]
        exact = accounting.epsilon(event(silos, 4.0), 8, delta=DELTA)
        assert exact * (1 - 1e-3) <= found.epsilon[person] <= exact * 1.5
    assert found.worst <= plan.epsilon() * (1 + 1e-3)
