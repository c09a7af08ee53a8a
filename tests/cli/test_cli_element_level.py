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


BAD = {
    "": "the sampling is missing: say --p, --r, --q",
    "--q 0.1": "--items-per-element K is missing",
    "--batch 5 --items 100": "--items-per-element K is missing",
    "--r 0.1 --items-per-element 5": "--items-per-element has no meaning for elementdp here",
    "--p 0.1 --items-per-element 5": "--items-per-element has no meaning for elementdp here",
    "--q 0.1 --items-per-element 0": "--items-per-element is 0",
    "--q 0.1 --items-per-element 1.5": "'1.5' is not a whole number",
    "--r 0.1 --elements 0": "--elements is 0",
    "--r 0.1 --unit subject": "--elements M is missing",
    "--r 0": "--r is 0: a probability",
    "--r 1.5": "--r is 1.5: a probability",
    "--r nan": "not a finite number",
    "--r 0.1 --q 0.1": "--q and --r contradict",
    "--r 0.1 --p 0.1": "--p and --r contradict",
    "--r 0.1 --expected-elements 5": "--r and --expected-elements contradict",
    "--r 0.1 --elements-in-all 5": "--r is a rate already: leave out --elements-in-all",
    "--p 0.1 --elements-in-all 5": "--elements-in-all needs --expected-elements",
    "--expected-elements 5": "--expected-elements needs --elements-in-all N",
    "--expected-elements 5 --elements-in-all 2": "batch above the data",
    "--expected-elements 5 --elements-in-all 0": "--elements-in-all is 0",
    "--expected-elements 0 --elements-in-all 5": "--expected-elements is 0",
    "--expected-elements -1 --elements-in-all 5": "--expected-elements is -1",
    "--sampling poisson-elements --q 0.1": "poisson-elements needs --r or .* not --q",
    "--sampling poisson-elements": "poisson-elements needs --r",
    "--sampling poisson-items --r 0.1": "poisson-items needs --q",
    "--sampling shuffle --batch 5 --items 100": "nothing is proven for elementdp with sampling shuffle",
    "--sampling fixed-size --batch 5 --items 100": "nothing is proven for elementdp",
    "--p 0.1 --cap-data 4": "a cap on a person's rows lets one element displace rows",
    "--q 0.1 --cap-data 4 --unit item": "a cap on a person's rows lets one element displace rows",
    "--p 0.1 --cap 4": "--cap has no meaning for elementdp",
    "--p 0.1 --unit silo": "promises nothing to one silo",
    "--p 0.1 --parts 3": "--parts is for mixedclipping, not for elementdp",
    "--expected-elements 5 --ids x.csv --column id": "No such file",
}


def refused(capsys, words):
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == "" and line.startswith("subjectdp: error: ")
    return line


@pytest.mark.parametrize("words", BAD, ids=lambda words: words or "nothing")
def test_bad_input_is_one_clear_line(capsys, words):
    line = refused(
        capsys, f"epsilon --algorithm elementdp --noise 3 --steps 5 --delta 1e-5 {words}"
    )
    assert re.search(BAD[words], line)


def test_elements_of_a_table_are_not_counted(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id\n" + "a\nb\n" * 20, encoding="utf-8")
    words = (
        f"epsilon --algorithm elementdp --noise 3 --steps 5 --delta 1e-5 --ids {path} --column id"
    )
    assert "--ids counts people and rows, no elements" in refused(capsys, f"{words} --r 0.1")


def test_only_elementdp_samples_elements(capsys):
    words = "--noise 3 --steps 5 --delta 1e-5"
    for name in ("itemdp", "higradavg", "groupdp", "subjectdp", "userldp", "centralgroup"):
        line = refused(capsys, f"epsilon --algorithm {name} --r 0.1 {words}")
        assert f"sampling poisson-elements is for elementdp, not for {name}" in line
    line = refused(capsys, f"epsilon --algorithm itemdp --q 0.1 --items-per-element 3 {words}")
    assert "--items-per-element is for elementdp, not for itemdp" in line


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


BAD_PLAN = {
    "--unit subject": "--elements M is missing",
    "--elements 0": "max_elements=0 must be at least 1",
    "--cap 3": "--cap has no meaning for elementdp",
    "--sampling poisson-elements": "a plan for sampled elements is made in Python",
    "--sampling shuffle": "nothing is proven for elementdp with sampling shuffle",
    "--parts 3": "--parts is for mixedclipping",
}


@pytest.mark.parametrize("words", BAD_PLAN)
def test_a_bad_plan_is_one_clear_line(capsys, words):
    assert BAD_PLAN[words] in refused(
        capsys, f"plan --algorithm elementdp {PLAN} --noise 3 {words}"
    )


def test_what_a_plan_cannot_be_made_of_here(capsys):
    words = PLAN.replace("--expected-subjects", "--batch")
    line = refused(capsys, f"plan --algorithm elementdp {words} --noise 3")
    assert "a plan of elementdp samples subjects here" in line and "tf_subjectdp.plan" in line
    words = PLAN.replace("--items-per-subject", "--cap-data")
    assert "contradict" in refused(capsys, f"plan --algorithm elementdp {words} --noise 3")
    line = refused(capsys, f"plan --algorithm subjectdp {PLAN} --noise 3 --elements 3")
    assert "--elements is for elementdp, not for subjectdp" in line
    line = refused(capsys, f"plan --algorithm subjectdp {PLAN} --noise 3 --unit element")
    assert "SubjectDP knows no elements" in line


def test_compare_promises_nothing_to_an_element_under_a_cap(capsys):
    words = "compare --items 60 --subjects 60 --cap-data 2 --batch 60 --steps 1 --epsilon 2 --delta 1e-3"
    found = answer(capsys, f"{words} --elements 2")["algorithms"]
    assert [row["noise_for"] for row in found if row["algorithm"] == "ElementDP"] == ["subject"]
    assert "No row promises anything to one element" in said(capsys, f"{words} --elements 2")


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
