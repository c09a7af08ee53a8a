# SPDX-License-Identifier: Apache-2.0
"""An element of a person may have rows in several silos: its steps compose, as the library says."""

import json

import pytest

import tf_subjectdp as sdp
from tf_subjectdp import accounting
from tf_subjectdp.cli import main

DELTA = 1e-5


def _answer(capsys, words):
    assert main([*words.split(), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("most", [1, 2, 4])
def test_an_element_composes_over_its_silos(capsys, most):
    words = "epsilon --algorithm elementdp --r 0.05 --noise 2 --steps 50 --silos 4 --delta 1e-5"
    found = _answer(capsys, f"{words} --silos-per-subject {most}")["epsilon"]
    event = accounting.replace_one_event(0.05, 2.0)
    assert found == pytest.approx(accounting.epsilon(event, 50 * most, delta=DELTA), rel=1e-9)


def test_as_a_federated_plan(capsys):
    subject = [i for i in range(20) for _ in range(8)]
    silo, element = [0, 1, 2, 3] * 40, [0, 0, 0, 0, 1, 1, 1, 1] * 20
    stats = sdp.SiloStats.from_ids(subject, silo, element_id=element)
    plan = sdp.federated.plan(
        sdp.ElementDP(1.0),
        sdp.PoissonElements(4),
        stats,
        rounds=20,
        noise_multiplier=2.0,
        delta=DELTA,
    )
    words = "epsilon --algorithm elementdp --r 0.1 --noise 2 --rounds 20 --silos 4 --delta 1e-5"
    assert _answer(capsys, words)["epsilon"] == pytest.approx(plan.epsilon(), rel=1e-6)
    # That noises of silos add up is not proven for a replaced element.
    averaged = _answer(capsys, f"{words} --view average")["epsilon"]
    assert averaged == pytest.approx(plan.epsilon(), rel=1e-6)


def test_noise_and_rounds_compose_too(capsys):
    words = "--algorithm elementdp --p 0.1 --elements 2 --silos 3 --delta 1e-5"
    noise = _answer(capsys, f"noise {words} --steps 10 --epsilon 2")["noise_multiplier"]
    one = sdp.ElementDP(1.0, 2)._element_under_poisson_subjects
    facts = sdp.algorithms.SamplingFacts(
        scheme="poisson_subjects",
        rate=0.1,
        n_items=100,
        n_subjects=100,
        batch_size=10.0,
        expected_subjects=10.0,
        max_items=1,
    )

    def spent(steps):
        return min(
            accounting.epsilon(event, 3 * steps, delta=DELTA) for event in one(facts, noise).events
        )

    assert spent(10) == pytest.approx(2.0, rel=1e-3)
    rounds = _answer(capsys, f"rounds {words} --noise {noise + 1e-6} --epsilon 2")["rounds"]
    assert rounds == 10


def test_an_item_is_in_one_silo(capsys):
    words = "epsilon --algorithm elementdp --unit item --r 0.05 --noise 2 --steps 50 --delta 1e-5"
    assert _answer(capsys, f"{words} --silos 4")["epsilon"] == _answer(capsys, words)["epsilon"]


@pytest.mark.parametrize("algorithm", ["elementdp --elements 3 --p 0.1", "userldp --p 0.1"])
def test_a_change_stays_within_the_silos_that_compose(capsys, algorithm):
    words = f"epsilon --algorithm {algorithm} --silos 5 --noise 8 --steps 20 --delta 1e-5"
    few, all_of_them = _answer(capsys, f"{words} --silos-per-subject 2"), _answer(capsys, words)
    assert "before and after, are among the same 2" in few["composition"]
    assert "among the same" not in all_of_them["composition"]
    assert few["epsilon"] < all_of_them["epsilon"]
    within = "any change of the data of at most 2 of the 5 silos"
    assert (few["adjacency"] == within) == algorithm.startswith("userldp")
    assert few["accounted_view"] == "updates"


def test_elements_are_not_accounted_for_in_the_view_that_was_asked_for(capsys):
    words = "epsilon --algorithm elementdp --r 0.1 --noise 2 --steps 20 --silos 4 --delta 1e-5"
    found = _answer(capsys, f"{words} --view average")
    assert (found["view"], found["accounted_view"]) == ("average", "updates")
