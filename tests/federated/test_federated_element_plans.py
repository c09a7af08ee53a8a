# SPDX-License-Identifier: Apache-2.0
"""Federated plans of elements: figures against compositions by hand, and what is refused."""

import dataclasses
import json

import numpy as np
import pytest

import tf_subjectdp as sdp
from tf_subjectdp import accounting
from tf_subjectdp.federated import FederatedPlan, Spent

DELTA, SIGMA, ROUNDS, M = 1e-4, 4.0, 6, 2
rng = np.random.default_rng(3)
ROWS = 400
SUBJECT, SILO = rng.integers(0, 20, ROWS), rng.integers(0, 3, ROWS)
ELEMENT = rng.integers(0, 4, ROWS)
STATS = sdp.SiloStats.from_ids(SUBJECT, SILO, element_id=ELEMENT)
SUBJECTS, ITEMS, ELEMENTS = sdp.PoissonSubjects(2), sdp.PoissonItems(9), sdp.PoissonElements(7)
SAMPLINGS = {"subjects": SUBJECTS, "items": ITEMS, "elements": ELEMENTS}


def make(sampling=SUBJECTS, max_elements=None, algorithm=None, stats=STATS, **options):
    options = {"rounds": ROUNDS, "noise_multiplier": SIGMA, "delta": DELTA, **options}
    algorithm = algorithm or sdp.ElementDP(0.5, max_elements=max_elements)
    return sdp.federated.plan(algorithm, sampling, stats, **options)


def composed(events, count=ROUNDS):
    pairs = [(event, count) for event in events]
    return accounting.epsilon(accounting.compose(pairs), delta=DELTA)


def silo(i):
    """Subjects, items, elements and the largest element of a silo, counted anew."""
    rows = SILO == i
    pairs, sizes = np.unique(np.stack([SUBJECT[rows], ELEMENT[rows]]), axis=1, return_counts=True)
    people, items = np.unique(SUBJECT[rows], return_counts=True)
    return people.size, int(rows.sum()), pairs.shape[1], int(sizes.max()), int(items.max())


def presence(q, k):
    return 1.0 - (1.0 - q) ** k


def element_events(name, i):
    people, items, elements, largest, _ = silo(i)
    if name == "subjects":
        return accounting.element_event(2 / people, SIGMA)
    if name == "elements":
        return accounting.replace_one_event(7 / elements, SIGMA)
    return accounting.replace_one_event(presence(9 / items, largest), SIGMA)


# -- figures ---------------------------------------------------------------------------------------


def test_stats_count_each_silos_own_elements():
    for i in range(3):
        rows = SILO == i
        wanted = sdp.SubjectStats.from_ids(SUBJECT[rows], ELEMENT[rows])
        assert STATS.silo(i).elements == wanted.elements and STATS.silo(i) == wanted
        assert STATS.bounded(3).silo(i).elements == wanted.elements
    # In the order of the names, not of the rows.
    named = sdp.SiloStats.from_ids([1, 1, 1, 2], ["b", "b", "a", "a"], element_id=list("xyxx"))
    assert [one.n_elements for one in named.elements] == [2, 2]
    assert [one.max_elements for one in named.elements] == [1, 2]
    assert sdp.SiloStats.from_ids(SUBJECT, SILO).silo(0).elements is None
    with pytest.raises(ValueError, match="element_id has 3 rows, and there are 4 subject ids"):
        sdp.SiloStats.from_ids([1, 1, 1, 2], list("aabb"), element_id=[1, 2, 3])
    with pytest.raises(ValueError, match="one ElementStats a silo"):
        dataclasses.replace(STATS, elements=STATS.elements[:2])


def test_columns_of_each_silo_are_counted_as_one_table():
    parts = {i: (SUBJECT[SILO == i], ELEMENT[SILO == i]) for i in (2, 0, 1)}
    found = sdp.federated.silo_stats(
        {i: ids for i, (ids, _) in parts.items()},
        elements_by_silo={i: elements.astype(str) for i, (_, elements) in parts.items()},
        key=b"0123456789abcdef",
    )
    by_name = dict(zip(found.names, found.elements, strict=True))
    assert [by_name[i] for i in STATS.names] == list(STATS.elements)
    with pytest.raises(ValueError, match="a dict of the same silos"):
        sdp.federated.silo_stats({0: [1], 1: [1]}, elements_by_silo={0: [1]})
    with pytest.raises(ValueError, match="silo 0: element_id has 2 rows"):
        sdp.federated.silo_stats({0: [1]}, elements_by_silo={0: [1, 2]})


@pytest.mark.parametrize("name", SAMPLINGS)
def test_an_element_composes_over_all_silos(name):
    plan = make(SAMPLINGS[name], local_steps=2)
    assert plan.unit == "element"
    events = [element_events(name, i) for i in range(3)]
    assert plan.epsilon() == pytest.approx(composed(events, 2 * ROUNDS), rel=2e-3)
    assert plan.epsilon() == plan.epsilon(unit="element")
    some = plan.epsilon(spent=Spent(3, (3, 0, 0)))
    assert some == pytest.approx(composed(events[:1], 6), rel=2e-3)
    with pytest.raises(ValueError, match="promises nothing to a whole subject"):
        plan.epsilon(unit="subject")


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_subject_of_few_elements_composes_over_all_silos(name):
    plan = make(SAMPLINGS[name], M)
    events = [[], []]
    for i in range(3):
        people, items, elements, largest, k = silo(i)
        if name == "subjects":
            events[0].append(accounting.subject_event(2 / people, SIGMA / M))
        elif name == "elements":
            events[0].append(accounting.group_event(7 / elements, M, SIGMA))
        else:
            rate = presence(9 / items, largest)
            events[0].append(accounting.group_event(rate, M, SIGMA))
            events[1].append(accounting.group_event(9 / items, k, SIGMA, M))
    wanted = min(composed(one) for one in events if one)
    assert plan.epsilon(unit="subject") == pytest.approx(wanted, rel=2e-3)
    persons = plan.per_subject_epsilon()
    assert 0.0 < persons.worst <= plan.epsilon(unit="subject") * 1.001


def test_the_replacement_of_the_whole_subject_bounds_an_element_too():
    known = [accounting.element_event(2 / silo(i)[0], SIGMA) for i in range(3)]
    whole = [accounting.replace_one_event(2 / silo(i)[0], SIGMA / M) for i in range(3)]
    wanted = min(composed(known), composed(whole))
    assert make(SUBJECTS, M).epsilon() == pytest.approx(wanted, rel=2e-3)
    assert composed(whole) < composed(known)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_promise_about_silos_holds_for_elements_alike(name):
    plan = make(SAMPLINGS[name], stats=few_silos(), silos_per_subject=2)
    events = [
        guarantee.events[0]
        for guarantee in (plan.algorithm.element_guarantee(facts, SIGMA) for facts in plan.facts)
    ]
    pairs = [composed([events[i], events[j]]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert plan.epsilon() == pytest.approx(max(pairs), rel=2e-3)
    assert plan.epsilon() < make(SAMPLINGS[name], stats=few_silos()).epsilon()


def few_silos():
    """Nobody is in more than two silos."""
    keep = SUBJECT % 3 != SILO
    return sdp.SiloStats.from_ids(SUBJECT[keep], SILO[keep], element_id=ELEMENT[keep])


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("unit", ["element", "subject"])
def test_the_smallest_noise_that_keeps_the_promise(name, unit):
    plan = make(SAMPLINGS[name], M, unit=unit, noise_multiplier=None, epsilon=2.0)
    assert plan.unit == unit and plan.epsilon() <= 2.0
    less = dataclasses.replace(
        plan, noise_multipliers=tuple(0.999 * s for s in plan.noise_multipliers)
    )
    assert less.epsilon() > 2.0


def test_in_an_average_a_subject_has_all_noises_and_an_element_its_silos_own():
    updates, average = (make(SUBJECTS, M, view=view) for view in ("updates", "average"))
    assert average.epsilon() == updates.epsilon()
    assert average.epsilon(unit="subject") < updates.epsilon(unit="subject")
    # A round of fewer silos takes noise away that no element counts on.
    fewer = make(SUBJECTS, M, view="average", minimum_silos=1)
    assert fewer.epsilon() == updates.epsilon() < np.inf
    assert fewer.epsilon(unit="subject") >= average.epsilon(unit="subject")
    text = " ".join(average.statement().split())
    assert "noises add up in the average is not proven for one element" in text


def test_a_servers_noise_protects_subjects_and_nothing_is_said_of_elements():
    with pytest.raises(ValueError, match="unit='element' with noise_at='server' is not proven"):
        make(SUBJECTS, M, noise_at="server")
    for sampling in SAMPLINGS.values():
        plan = make(sampling, M, noise_at="server", unit="subject")
        events = [plan.algorithm.subject_guarantee(facts, 1.0).events[0] for facts in plan.facts]
        event = accounting.central_event(events, SIGMA)
        wanted = accounting.epsilon(event, ROUNDS, delta=DELTA)
        assert plan.epsilon() == pytest.approx(wanted, rel=1e-3)
        with pytest.raises(ValueError, match="let the silos add the noise"):
            plan.epsilon(unit="element")
        text = " ".join(plan.statement().split())
        assert "Per element: no figure, since nothing is proven" in text
        assert "none is proven" in str(plan)
    # By hand: two elements of each silo, whose coins are the subject's.
    plan = make(SUBJECTS, M, noise_at="server", unit="subject")
    law = {0.0: 1.0}
    for i in range(3):
        p = 2 / silo(i)[0]
        law = _sum(law, {0.0: 1 - p, float(M): p})
    event = accounting.central_event(
        [accounting.subject_event(2 / silo(i)[0], 1.0 / M) for i in range(3)], SIGMA
    )
    assert dict(zip(event.sensitivities, event.sampling_probs, strict=True)) == pytest.approx(law)
    wanted = accounting.epsilon(event, ROUNDS, delta=DELTA)
    assert plan.epsilon() == pytest.approx(wanted, rel=1e-3)


def _sum(first, second):
    found = {}
    for a, p in first.items():
        for b, q in second.items():
            found[a + b] = found.get(a + b, 0.0) + p * q
    return found


@pytest.mark.parametrize("algorithm", [sdp.ItemDP(1.0), sdp.HiGradAvg(1.0)])
def test_one_item_is_in_one_silo_and_may_displace_another(algorithm):
    plan = make(ITEMS, algorithm=algorithm, unit="item", local_steps=2)
    each = [
        composed([accounting.replace_one_event(9 / silo(i)[1], SIGMA)], 2 * ROUNDS)
        for i in range(3)
    ]
    assert plan.epsilon() == pytest.approx(max(each), rel=2e-3)
    assert plan.epsilon() < plan.epsilon(unit="subject")
    assert "in the one silo that holds it" in " ".join(plan.statement().split())
    with pytest.raises(ValueError, match="unit='item' with noise_at='server' is not proven"):
        make(ITEMS, algorithm=algorithm, unit="item", noise_at="server")


# -- text and configs ------------------------------------------------------------------------------


def test_both_guarantees_are_stated():
    text = " ".join(make(ELEMENTS, M).statement().split())
    plan = make(ELEMENTS, M)
    for unit in ("element", "subject"):
        shown = text.split(f"Per {unit}: epsilon = ")[1].split(" at delta")[0]
        assert 0.0 <= float(shown) - plan.epsilon(unit=unit) < 1.001e-3
    assert text.count("This is what the plan is about.") == 1
    assert "each of their elements, may be in every silo" in text
    assert f"at most {M} elements a subject in a silo" in text
    printed = str(plan)
    assert "one element of a subject" in printed
    assert "epsilon per element" in printed and "epsilon per subject" in printed
    without = make(ELEMENTS)
    text = " ".join(without.statement().split())
    assert "Per subject: no figure, since nothing is proven: ElementDP without max_elements" in text
    assert "epsilon per subject  none is proven" in str(without)
    capped = sdp.ElementDP(0.5, max_elements=M, max_items_per_element=3)
    text = " ".join(make(ITEMS, algorithm=capped).statement().split())
    assert "at most 3 items an element in a silo (further ones are dropped" in text


def test_an_element_that_costs_more_than_a_subject_says_why():
    plan = make(ELEMENTS, 1)
    assert plan.epsilon() > plan.epsilon(unit="subject")
    text = " ".join(plan.statement().split())
    assert "above the figure per subject because one element may replace" in text
    assert "above the figure per subject" not in " ".join(make(ITEMS, 4).statement().split())


def test_a_plan_survives_json_with_its_unit():
    for plan in (
        make(ELEMENTS, M),
        make(SUBJECTS, M, unit="subject"),
        make([SUBJECTS, ITEMS, ELEMENTS], M, noise_multiplier=None, epsilon=2.0),
    ):
        again = FederatedPlan.from_config(json.loads(json.dumps(plan.get_config())))
        assert again == plan and again.fingerprint == plan.fingerprint
        for unit in ("element", "subject"):
            assert again.epsilon(unit=unit) == plan.epsilon(unit=unit)
    assert make(SUBJECTS, M).fingerprint != make(SUBJECTS, M, unit="subject").fingerprint
    # A state from before there were units.
    older = make(SUBJECTS, M, unit="subject").get_config()
    del older["unit"]
    assert FederatedPlan.from_config(older).unit == "subject"


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("unit='person' is unknown", {"unit": "person"}),
        ("without max_elements promises nothing", {"unit": "subject"}),
        ("HiGradAvg knows no elements", {"algorithm": sdp.HiGradAvg(1.0), "unit": "element"}),
        ("cap on the items of a subject", {"max_items_per_subject": 3}),
        (
            "cap on the items of a subject",
            {"sampling": sdp.PoissonSubjects(2, max_items_per_subject=2)},
        ),
        ("no proven guarantee", {"sampling": sdp.FixedSize(9)}),
        ("no proven guarantee", {"algorithm": sdp.HiGradAvg(1.0), "sampling": ELEMENTS}),
        (
            r"silo 0: .*SiloStats.from_ids\(subject_id, silo_id, element_id=",
            {"sampling": ELEMENTS, "stats": sdp.SiloStats.from_ids(SUBJECT, SILO)},
        ),
        ("UserLDP, which clips.*local_steps=", {"algorithm": sdp.BatchClipping(1.0)}),
        ("MixedClipping is not offered", {"algorithm": sdp.MixedClipping(1.0, parts=4)}),
    ],
)
def test_what_is_not_proven_or_not_offered_is_refused(match, options):
    with pytest.raises(ValueError, match=match):
        make(**options)


def test_without_an_algorithm_there_are_no_elements():
    for options in ({"unit": "element"}, {"sampling": ELEMENTS}):
        sampling = options.pop("sampling", ITEMS)
        with pytest.raises(ValueError, match="algorithm=None knows neither elements nor a unit"):
            sdp.federated.plan(None, sampling, STATS, rounds=2, **options)


def test_a_cap_on_a_subjects_items_serves_the_subject():
    plan = make(ITEMS, M, unit="subject", max_items_per_subject=3)
    assert all(facts.data_cap and facts.max_items == 3 for facts in plan.facts)
    assert plan.epsilon() <= make(ITEMS, M).epsilon(unit="subject")
    text = " ".join(plan.statement().split())
    assert "Per element: no figure, since nothing is proven: a cap on the items" in text
    # Elements without stats of theirs have a subject's items at most.
    bare = make(ITEMS, M, stats=sdp.SiloStats.from_ids(SUBJECT, SILO))
    events = [
        accounting.replace_one_event(presence(9 / silo(i)[1], silo(i)[4]), SIGMA) for i in range(3)
    ]
    assert bare.epsilon() == pytest.approx(composed(events), rel=2e-3)


def test_noise_and_its_units_follow_the_algorithm():
    """The noise is the algorithm's, in whatever units its multiplier counts."""

    class Twice(sdp.SubjectDP):
        clip_norms_of_noise = 2.0

    plan = make(SUBJECTS, algorithm=sdp.SubjectDP(0.5), view="average")
    twice = dataclasses.replace(plan, algorithm=Twice(0.5))
    assert [silo.clip_norm for silo in plan.horizontal().silos] == pytest.approx([0.5] * 3)
    assert [silo.clip_norm for silo in twice.horizontal().silos] == pytest.approx([1.0] * 3)
    assert "4 x 1 (noise multiplier" in " ".join(twice.statement().split())
