# SPDX-License-Identifier: Apache-2.0
"""Federations of elements: where these come from, their cost, adjacency of few silos, alike ids."""

import json
import logging
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp import accounting
from tf_subjectdp.algorithms.base import rounded_up
from tf_subjectdp.elements import HashElements, KMeansElements
from tf_subjectdp.federated import FederatedPlan, Spent, silo_data

DELTA, SIGMA, ROUNDS, M = 1e-4, 4.0, 5, 2
rng = np.random.default_rng(3)
ROWS = 300
SUBJECT, SILO, ELEMENT = (rng.integers(0, n, ROWS) for n in (20, 3, 4))
KEEP = SUBJECT % 3 != SILO
# Nobody is in more than two silos.
STATS = sdp.SiloStats.from_ids(SUBJECT[KEEP], SILO[KEEP], element_id=ELEMENT[KEEP])
UNPAID = "the cost of making the elements, if they were made from the data"
AMONG = "In neighbouring data all silos with data of that person, in both, are among the same 2."
PAID = KMeansElements(3).fit_private(
    rng.normal(size=(ROWS, 2)), SUBJECT, noise_multiplier=9.0, radius=2.0, iterations=4
)


def make(elements=PAID, algorithm=None, sampling=None, **options):
    options = {"rounds": ROUNDS, "noise_multiplier": SIGMA, "delta": DELTA, **options}
    algorithm = algorithm or sdp.ElementDP(0.5, max_elements=M, elements=elements)
    sampling = sampling or sdp.PoissonElements(7)
    return sdp.federated.plan(algorithm, sampling, options.pop("stats", STATS), **options)


def flat(text):
    return " ".join(text.split())


def totals(text):
    found = re.search("In all, together with the fit of the elements (.*?) at delta", flat(text))
    return dict(re.findall(r"epsilon per (\w+) = (\S+?)(?:,|$)", found.group(1))) if found else {}


# -- where elements come from, and what that cost --------------------------------------------------


def test_the_total_is_each_epsilon_at_half_of_delta_added_up():
    plan = make()
    for one in (plan, FederatedPlan.from_config(json.loads(plan.text))):
        for spent in (None, Spent(2, (2, 2, 1)), Spent(0, (0, 0, 0))):
            text = one.statement(spent=spent)
            fit = {"element": PAID.element_event, "subject": PAID.event}
            wanted = {
                unit: rounded_up(
                    plan.epsilon(DELTA / 2, unit=unit, spent=spent)
                    + accounting.epsilon(event, delta=DELTA / 2)
                )
                for unit, event in fit.items()
            }
            assert totals(text) == wanted
            assert (
                "by basic composition (each epsilon at half of delta, added up: an upper bound"
                in flat(text)
            )
    assert flat(plan.statement()).count("It is of the rounds alone: the fit") == 2
    assert PAID.provenance in flat(plan.statement()) and UNPAID not in flat(plan.statement())
    assert plan.epsilon() == make(HashElements(3)).epsilon()


def test_a_server_that_adds_the_noise_states_the_total_of_subjects_alone():
    plan = make(noise_at="server", unit="subject")
    assert set(totals(plan.statement())) == {"subject"}


def test_elements_that_were_not_made_privately_leave_no_promise():
    elements = KMeansElements(3).fit_private(
        np.zeros([ROWS, 2]), SUBJECT, noise_multiplier=9.0, radius=2.0, seed=1
    )
    assert set(totals(make(elements).statement()).values()) == {"infinite"}


@pytest.mark.parametrize(
    ("elements", "told", "open_cost"),
    [
        (HashElements(3), HashElements(3).provenance, False),
        ("Topics of a public list.", "Topics of a public list.", True),
        (None, "The map from items to elements is the user's word", True),
    ],
)
def test_the_statement_says_where_elements_come_from(elements, told, open_cost):
    text = flat(make(elements).statement())
    assert f"Elements: every item is in exactly one. {told}" in text
    assert "together with the fit" not in text
    missing = text.split("NOT covered")[1]
    assert (UNPAID in missing) == open_cost
    assert "number of elements and items an element" in missing


def test_other_algorithms_say_nothing_of_elements():
    for algorithm in (sdp.HiGradAvg(1.0), sdp.UserLDP(1.0), None):
        given = {} if algorithm else {"noise_multiplier": None}
        options = {"rounds": 2, "noise_multiplier": 2.0, "delta": DELTA, **given}
        plan = sdp.federated.plan(algorithm, sdp.PoissonItems(9), STATS, **options)
        text = flat(plan.statement())
        assert "every item is in exactly one" not in text and UNPAID not in text
        assert "number of elements" not in text


# -- few silos a subject ---------------------------------------------------------------------------


def test_of_few_silos_each_sees_a_replacement_and_the_statement_says_which_neighbours():
    plan = make(silos_per_subject=2)
    rates = [7 / one.n_elements for one in STATS.elements]
    events = [accounting.replace_one_event(rate, SIGMA) for rate in rates]
    pairs = [
        accounting.epsilon(
            accounting.compose([(events[i], ROUNDS), (events[j], ROUNDS)]), delta=DELTA
        )
        for i, j in ((0, 1), (0, 2), (1, 2))
    ]
    assert plan.epsilon() == pytest.approx(max(pairs), rel=2e-3)
    text = flat(plan.statement())
    # Once: a subject that is added or removed is in one of the two data sets only.
    assert text.count(AMONG) == 1 and AMONG in text.split("Per subject")[0]
    assert "In neighbouring data" not in flat(make().statement())


@pytest.mark.parametrize(
    ("algorithm", "sampling", "event"),
    [
        (sdp.UserLDP(1.0), sdp.PoissonItems(9), accounting.user_ldp_event(SIGMA)),
        (sdp.SubjectDP(1.0), sdp.FixedSize(9), None),
    ],
)
def test_any_change_and_replacement_are_within_the_few_silos_too(algorithm, sampling, event):
    plan = make(algorithm=algorithm, sampling=sampling, silos_per_subject=2)
    assert AMONG in flat(plan.statement())
    if event is not None:
        two = accounting.epsilon(accounting.compose([(event, 2 * ROUNDS)]), delta=DELTA)
        assert plan.epsilon() == pytest.approx(two, rel=2e-3)
        # Not any change of everybody's data: of two silos the figure is the cost.
        assert "for any change of the data of at most 2 of the 3 silos," in flat(plan.statement())
        everywhere = flat(make(algorithm=algorithm, sampling=sampling).statement())
        assert "for any change of the data, in ALL silos" in everywhere
    added = make(algorithm=sdp.SubjectDP(1.0), sampling=sdp.PoissonItems(9), silos_per_subject=2)
    assert "In neighbouring data" not in flat(added.statement())


def test_an_item_is_in_one_silo_and_moving_it_is_two_changes():
    plan = make(unit="item", silos_per_subject=2)
    assert plan.epsilon() == pytest.approx(
        max(
            accounting.epsilon(accounting.replace_one_event(7 / n, SIGMA), ROUNDS, delta=DELTA)
            for n in (one.n_elements for one in STATS.elements)
        ),
        rel=2e-3,
    )
    wanted = "in the one silo that holds it (one that moves to another silo is two changes)"
    assert wanted in flat(plan.statement())


# -- elements are of one kind everywhere -----------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "match"),
    [
        ([3, 4], ["3", "4"], "silo 'a' has integer elements and silo 'b' has string elements"),
        (["3", "4"], [b"3", b"4"], "'a' has string elements and silo 'b' has bytes elements"),
    ],
)
def test_unlike_elements_of_two_silos_are_refused_by_name_with_the_remedy(first, second, match):
    ids = {"a": [1, 2], "b": [1, 2]}
    with pytest.raises(TypeError, match=match + ".*as_text"):
        sdp.federated.silo_stats(ids, elements_by_silo={"a": first, "b": second})
    as_text = sdp.federated.as_text
    alike = {"a": as_text(first), "b": as_text(second)}
    stats = sdp.federated.silo_stats(ids, elements_by_silo=alike)
    assert stats.element_dtype == "string" and [e.n_elements for e in stats.elements] == [2, 2]


def test_stats_know_what_their_elements_were():
    assert STATS.element_dtype == STATS.bounded(2).element_dtype == "int64"
    ids = {"a": [1], "b": [1]}
    one = sdp.federated.silo_stats(ids, elements_by_silo={"a": [3], "b": [4]})
    assert one.element_dtype == "int64"
    assert sdp.federated.silo_stats(ids).element_dtype is None


def test_a_silos_elements_are_of_the_kind_that_the_plans_stats_were_made_of():
    x, y = input_spec()
    own = SILO[KEEP] == 0
    columns = {
        "x": np.zeros([own.sum(), 1], np.float32),
        "y": np.zeros(own.sum(), np.int64),
        "subject_id": SUBJECT[KEEP][own],
    }
    numbers = ELEMENT[KEEP][own]
    texts = numbers.astype(str)
    named = sdp.SiloStats.from_ids(SUBJECT[KEEP], SILO[KEEP], element_id=ELEMENT[KEEP].astype(str))
    unknown = sdp.SiloStats.from_ids(SUBJECT[KEEP], SILO[KEEP])
    by_items = {"sampling": sdp.PoissonItems(9)}
    for plan, element, match in (
        (make(), numbers, None),
        (make(), texts, "silo '0' has string elements and the plan's stats.* integer elements"),
        (make(stats=named), numbers, "has integer elements and the plan's stats.* string"),
        (make(stats=named), texts, None),
        # As tf.data gives strings.
        (make(stats=named), texts.astype("S"), None),
        (make(stats=unknown, **by_items), texts, None),
        (FederatedPlan.from_config(json.loads(make().text)), texts, None),
    ):
        rows = {**columns, "element_id": element}
        tensors = silo_data.silo_tensors(rows, (x, y), "0", elements=True)
        assert "element_dtype" not in silo_data.tagged(0, tensors)
        if match is None:
            silo_data.check_rows(tensors, plan, 0)
        else:
            with pytest.raises(TypeError, match=match + ".*as_text"):
                silo_data.check_rows(tensors, plan, 0)
    nobody = {key: value[:0] for key, value in {**columns, "element_id": texts}.items()}
    tensors = silo_data.silo_tensors(nobody, (x, y), "0", elements=True)
    assert tensors["element_dtype"] is None


def input_spec():
    return tf.TensorSpec([None, 1], tf.float32), tf.TensorSpec([None], tf.int64)


def test_other_sizes_than_the_plans_are_told_with_what_they_change(caplog):
    own = SILO[KEEP] == 0
    subject = SUBJECT[KEEP][own][:-3]
    tensors = {"subject": tf.constant(subject), "element": tf.constant(np.arange(subject.size))}
    plan = make()
    with caplog.at_level(logging.WARNING, "tf_subjectdp"):
        silo_data.check_rows(tensors, plan, 0)
    assert "has another number of elements than the plan was made for" in caplog.text
    assert "has another number of items than the plan was made for" in caplog.text
    assert caplog.text.count("its promise holds, and the utility changes.") == 2
