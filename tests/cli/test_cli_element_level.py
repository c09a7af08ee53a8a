# SPDX-License-Identifier: Apache-2.0
"""ElementDP on the command line: subjects, elements or items sampled; the library's own figures."""

import json
import re
from pathlib import Path

import pytest

import tf_subjectdp as sdp
from tf_subjectdp import accounting
from tf_subjectdp.algorithms import SamplingFacts
from tf_subjectdp.algorithms.base import rounded_up
from tf_subjectdp.cli import main

DELTA = 1e-5
SIGMA = 3.0


def said(capsys, words):
    """The text of a command that succeeds."""
    status = main(words.split())
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


def answer(capsys, words):
    return json.loads(said(capsys, f"{words} --json"))


def epsilon(capsys, words, steps=40):
    words = f"epsilon --algorithm elementdp --noise {SIGMA} --steps {steps} --delta {DELTA} {words}"
    return answer(capsys, words)["epsilon"]


def facts(scheme, rate, max_items=10**6):
    """Constants of which only scheme, rate and the items of a subject matter."""
    return SamplingFacts(
        scheme=scheme,
        rate=rate,
        n_items=10**7,
        n_subjects=1000,
        batch_size=1.0,
        expected_subjects=1.0,
        max_items=max_items,
    )


# words: (unit, algorithm, facts)
CASES = {
    "--p 0.1": ("element", sdp.ElementDP(1.0), facts("poisson_subjects", 0.1)),
    "--p 0.1 --elements 2": ("element", sdp.ElementDP(1.0, 2), facts("poisson_subjects", 0.1)),
    "--p 0.1 --elements 3 --unit subject": (
        "subject",
        sdp.ElementDP(1.0, 3),
        facts("poisson_subjects", 0.1),
    ),
    "--p 0.1 --unit item": ("item", sdp.ElementDP(1.0), facts("poisson_subjects", 0.1)),
    "--r 0.05": ("element", sdp.ElementDP(1.0), facts("poisson_elements", 0.05)),
    "--sampling poisson-elements --r 0.05 --elements 4": (
        "element",
        sdp.ElementDP(1.0, 4),
        facts("poisson_elements", 0.05),
    ),
    "--expected-elements 50 --elements-in-all 1000": (
        "element",
        sdp.ElementDP(1.0),
        facts("poisson_elements", 0.05),
    ),
    "--r 0.05 --elements 4 --unit subject": (
        "subject",
        sdp.ElementDP(1.0, 4),
        facts("poisson_elements", 0.05),
    ),
    "--q 0.02 --items-per-element 5": (
        "element",
        sdp.ElementDP(1.0, None, 5),
        facts("poisson_items", 0.02),
    ),
    "--batch 20 --items 1000 --items-per-element 5": (
        "element",
        sdp.ElementDP(1.0, None, 5),
        facts("poisson_items", 0.02),
    ),
    "--q 0.02 --items-per-subject 9": (
        "element",
        sdp.ElementDP(1.0),
        facts("poisson_items", 0.02, 9),
    ),
    "--q 0.02 --items-per-element 5 --elements 3": (
        "element",
        sdp.ElementDP(1.0, 3, 5),
        facts("poisson_items", 0.02),
    ),
    "--q 0.02 --items-per-element 5 --elements 3 --unit subject": (
        "subject",
        sdp.ElementDP(1.0, 3, 5),
        facts("poisson_items", 0.02, 15),
    ),
    "--q 0.02 --items-per-element 5 --items-per-subject 8 --elements 3 --unit subject": (
        "subject",
        sdp.ElementDP(1.0, 3, 5),
        facts("poisson_items", 0.02, 8),
    ),
    "--q 0.02 --cap-data 8 --elements 3 --unit subject": (
        "subject",
        sdp.ElementDP(1.0, 3),
        facts("poisson_items", 0.02, 8),
    ),
    "--q 0.02 --items-per-element 5 --unit item": (
        "item",
        sdp.ElementDP(1.0, None, 5),
        facts("poisson_items", 0.02),
    ),
}


@pytest.mark.parametrize("words", CASES)
def test_epsilon_is_that_of_the_algorithm(capsys, words):
    unit, algorithm, constants = CASES[words]
    guarantee = getattr(algorithm, f"{unit}_guarantee")(constants, SIGMA)
    assert epsilon(capsys, words) == guarantee.epsilon(40, DELTA)


def test_the_coin_of_the_subject_does_not_amplify_and_that_of_the_element_does(capsys):
    subject = epsilon(capsys, "--p 0.01", steps=400)
    element = epsilon(capsys, "--r 0.01", steps=400)
    assert subject > 4 * element
    event = accounting.replace_one_event(0.01, SIGMA)
    assert element == accounting.epsilon(event, 400, delta=DELTA)


def test_element_subject_is_the_figure_for_a_subject(capsys):
    for sampling in ("--p 0.1", "--r 0.1", "--q 0.02 --items-per-element 4"):
        words = f"--noise 3 --steps 20 --delta 1e-5 --elements 3 {sampling}"
        alias = answer(capsys, f"epsilon --algorithm element-subject {words}")
        named = answer(capsys, f"epsilon --algorithm elementdp --unit subject {words}")
        assert alias == named


def test_a_table_gives_the_items_of_a_subject_where_items_are_sampled(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id\n" + "a\n" * 6 + "b\nc\n" * 47, encoding="utf-8")
    found = epsilon(capsys, f"--batch 10 --ids {path} --column id")
    guarantee = sdp.ElementDP(1.0).element_guarantee(facts("poisson_items", 0.1, 47), SIGMA)
    assert found == guarantee.epsilon(40, DELTA)


def test_noise_and_rounds_of_sampled_elements(capsys):
    noise = answer(
        capsys,
        "noise --algorithm elementdp --expected-elements 50 --elements-in-all 1000 --epochs 2 "
        "--epsilon 1 --delta 1e-5",
    )
    assert noise["steps"] == 40
    expected = accounting.noise_multiplier(
        lambda sigma: accounting.replace_one_event(0.05, sigma), 40, epsilon=1, delta=DELTA
    )
    assert noise["noise_multiplier"] == expected
    assert noise["noise_multiplier_is"] == "noise standard deviation / clip norm"
    words = "rounds --algorithm elementdp --q 0.01 --items-per-element 5 --noise 3 --epsilon 1"
    found = answer(capsys, f"{words} --delta 1e-5")["rounds"]
    guarantee = sdp.ElementDP(1.0, None, 5).element_guarantee(facts("poisson_items", 0.01), SIGMA)
    assert guarantee.epsilon(found, DELTA) <= 1 < guarantee.epsilon(found + 1, DELTA)


def test_the_text_names_what_is_sampled_and_the_bounds(capsys):
    words = "epsilon --algorithm elementdp --noise 3 --steps 9 --delta 1e-5"
    text = said(capsys, f"{words} --r 0.1 --elements 4 --unit subject")
    assert "Poisson, elements of a subject, r = 0.1" in text
    assert "elements a subject  at most 4" in text
    assert "items an element  at most 5" in said(capsys, f"{words} --q 0.1 --items-per-element 5")
    assert "replacing, adding or removing one element" in " ".join(
        said(capsys, f"{words} --p 0.1").split()
    )


PLAN = "--expected-subjects 20 --items 4000 --subjects 200 --items-per-subject 40 --steps 20"


@pytest.mark.parametrize(
    ("words", "bound", "unit"),
    [("", None, None), ("--elements 4", 4, None), ("--elements 4 --unit subject", 4, "subject")],
)
def test_plan_and_statement_of_sampled_subjects(capsys, words, bound, unit):
    stats = sdp.SubjectStats.public(n_items=4000, n_subjects=200, max_items=40)
    plan = sdp.plan(
        *(sdp.ElementDP(0.5, bound), sdp.PoissonSubjects(20), stats),
        **{"steps": 20, "epsilon": 3.0, "delta": DELTA, "unit": unit},
    )
    asked = f"--algorithm elementdp --clip-norm 0.5 {PLAN} {words} --epsilon 3 --delta 1e-5"
    found = answer(capsys, f"plan {asked}")
    assert found["unit"] == (unit or "element")
    assert found.pop("epsilon") == plan.epsilon()
    assert found == json.loads(json.dumps(plan.get_config()))
    assert said(capsys, f"statement {asked}") == plan.statement() + "\n"


def test_compare_promises_nothing_to_an_element_under_a_cap(capsys):
    words = "compare --items 60 --subjects 60 --cap-data 2 --batch 60 --steps 1 --epsilon 2 --delta 1e-3"
    found = answer(capsys, f"{words} --elements 2")["algorithms"]
    assert [row["noise_for"] for row in found if row["algorithm"] == "ElementDP"] == ["subject"]
    assert "No row promises anything to one element" in said(capsys, f"{words} --elements 2")


# -- silos: an element of a person may have rows in several, and its steps compose ------------------


@pytest.mark.parametrize("most", [1, 2, 4])
def test_an_element_composes_over_its_silos(capsys, most):
    words = "epsilon --algorithm elementdp --r 0.05 --noise 2 --steps 50 --silos 4 --delta 1e-5"
    found = answer(capsys, f"{words} --silos-per-subject {most}")["epsilon"]
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
    assert answer(capsys, words)["epsilon"] == pytest.approx(plan.epsilon(), rel=1e-6)
    # That noises of silos add up is not proven for a replaced element.
    averaged = answer(capsys, f"{words} --view average")["epsilon"]
    assert averaged == pytest.approx(plan.epsilon(), rel=1e-6)


def test_noise_and_rounds_compose_too(capsys):
    words = "--algorithm elementdp --p 0.1 --elements 2 --silos 3 --delta 1e-5"
    noise = answer(capsys, f"noise {words} --steps 10 --epsilon 2")["noise_multiplier"]
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
    rounds = answer(capsys, f"rounds {words} --noise {noise + 1e-6} --epsilon 2")["rounds"]
    assert rounds == 10


def test_an_item_is_in_one_silo(capsys):
    words = "epsilon --algorithm elementdp --unit item --r 0.05 --noise 2 --steps 50 --delta 1e-5"
    assert answer(capsys, f"{words} --silos 4")["epsilon"] == answer(capsys, words)["epsilon"]


@pytest.mark.parametrize("algorithm", ["elementdp --elements 3 --p 0.1", "userldp --p 0.1"])
def test_a_change_stays_within_the_silos_that_compose(capsys, algorithm):
    words = f"epsilon --algorithm {algorithm} --silos 5 --noise 8 --steps 20 --delta 1e-5"
    few, all_of_them = answer(capsys, f"{words} --silos-per-subject 2"), answer(capsys, words)
    assert "before and after, are among the same 2" in few["composition"]
    assert "among the same" not in all_of_them["composition"]
    assert few["epsilon"] < all_of_them["epsilon"]
    within = "any change of the data of at most 2 of the 5 silos"
    assert (few["adjacency"] == within) == algorithm.startswith("userldp")
    assert few["accounted_view"] == "updates"


def test_elements_are_not_accounted_for_in_the_view_that_was_asked_for(capsys):
    words = "epsilon --algorithm elementdp --r 0.1 --noise 2 --steps 20 --silos 4 --delta 1e-5"
    found = answer(capsys, f"{words} --view average")
    assert (found["view"], found["accounted_view"]) == ("average", "updates")


def test_the_privacy_officers_page_has_the_figures_of_its_commands(capsys):
    page = Path(__file__).parents[2] / "docs" / "privacy_officer.md"
    section = page.read_text(encoding="utf-8").split("## Elements, whole batches, releases")[1]
    section = section.split("\n## ")[0]
    commands = [line for line in section.splitlines() if line.startswith("subjectdp epsilon ")]
    assert len(commands) == 6
    for line in commands:
        found = answer(capsys, line.removeprefix("subjectdp "))
        for name in ("epsilon", "epsilon_against_A1"):
            if name in found:
                value = rounded_up(found[name])
                assert re.search(rf"(?<![\d.]){re.escape(value)}(?!\d)", section), (line, value)
