# SPDX-License-Identifier: Apache-2.0
"""BatchClipping and MixedClipping on the command line: the library's figures, both adversaries."""

import json

import pytest

import tf_subjectdp as sdp
from tf_subjectdp import accounting
from tf_subjectdp.algorithms.base import rounded_up
from tf_subjectdp.algorithms.part_clipping import adversary_curve
from tf_subjectdp.cli import main

DELTA = 1e-5
SIGMA = 6.0
STATS = sdp.SubjectStats.public(n_items=1000, n_subjects=200, max_items=7)
DATA = "--items 1000 --items-per-subject 7"
ALGORITHMS = {
    "batchclipping": sdp.BatchClipping(1.0),
    "mixedclipping --parts 3": sdp.MixedClipping(1.0, parts=3),
}
SAMPLERS = {
    "--batch 50": sdp.PoissonItems(50),
    "--sampling fixed-size --batch 50": sdp.FixedSize(50),
    "--sampling shuffle --batch 50": sdp.Shuffle(50),
    "--sampling shuffle --batch 50 --keep-probability 0.3": sdp.Shuffle(50, 0.3),
}


def said(capsys, words):
    """The text of a command that succeeds."""
    status = main(words.split())
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


def answer(capsys, words):
    return json.loads(said(capsys, f"{words} --json"))


def planned(algorithm, sampler, unit="subject", **length):
    noise = {} if "epsilon" in length else {"noise_multiplier": SIGMA}
    length = length or {"steps": 40}
    return sdp.plan(
        ALGORITHMS[algorithm], SAMPLERS[sampler], STATS, delta=DELTA, unit=unit, **noise, **length
    )


@pytest.mark.parametrize("unit", ["subject", "item"])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_epsilon_is_the_plans_and_names_the_figure_against_a1(capsys, algorithm, sampler, unit):
    words = f"epsilon --algorithm {algorithm} {sampler} {DATA} --unit {unit} --noise {SIGMA}"
    words += f" --steps 40 --delta {DELTA}"
    found = answer(capsys, words)
    plan = planned(algorithm, sampler, unit)
    curve = adversary_curve(
        plan.facts,
        plan.algorithm.number_of_parts,
        SIGMA,
        steps=40,
        group=7 if unit == "subject" else 1,
    )
    a1 = float(curve.epsilon(DELTA))
    assert found["epsilon"] == plan.epsilon()
    assert found["epsilon_against_A1"] == a1 and found["adversary"] == "A0"
    assert found["noise_multiplier_is"] == "noise standard deviation / (2 x clip norm)"
    assert found["parts"] == plan.algorithm.number_of_parts
    assert found.get("keep_probability", 1.0) == getattr(plan.sampling, "keep_probability", 1.0)
    text = said(capsys, words)
    lines = text.splitlines()
    assert lines[0].split() == ["epsilon", rounded_up(plan.epsilon())]
    assert lines[1].split() == ["epsilon,", "A1", rounded_up(a1)]
    assert float(lines[1].split()[-1]) >= a1
    assert "6 (noise standard deviation / (2 x clip norm))" in text
    words = " ".join(text.split())
    assert "usual one (A0)" in words and "stronger one (A1)" in words


def test_epochs_of_the_filter_are_shorter(capsys):
    words = f"epsilon --algorithm batchclipping {DATA} --noise {SIGMA} --delta {DELTA} --epochs 2 "
    words += "--sampling shuffle --batch 50"
    whole, part = answer(capsys, words), answer(capsys, f"{words} --keep-probability 0.3")
    assert (whole["steps"], part["steps"]) == (40, 12)
    sampler = "--sampling shuffle --batch 50 --keep-probability 0.3"
    assert part["epsilon"] == planned("batchclipping", sampler, epochs=2).epsilon()


def test_a1_counts_a_begun_epoch_whole_and_every_silo(capsys):
    words = f"epsilon --algorithm mixedclipping --parts 3 {DATA} --noise {SIGMA} --delta {DELTA} "
    words += "--sampling shuffle --batch 50 "
    begun = answer(capsys, words + "--rounds 3 --steps-per-round 5")["epsilon_against_A1"]
    assert begun == answer(capsys, words + "--epochs 3")["epsilon_against_A1"]
    both = answer(capsys, words + "--rounds 3 --steps-per-round 20 --silos 2")
    assert both["epsilon_against_A1"] == answer(capsys, words + "--epochs 6")["epsilon_against_A1"]
    assert both["epsilon_against_A1"] > begun
    item = answer(capsys, words + "--epochs 3 --unit item")["epsilon_against_A1"]
    assert answer(capsys, words + "--epochs 3 --unit item --silos 4")["epsilon_against_A1"] == item


def test_silos_that_are_not_alike_have_no_figure_against_a1(capsys, tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"p{i % 50},a" for i in range(100)] + [f"p{i % 50},b" for i in range(150)]
    path.write_text("id,h\n" + "\n".join(rows) + "\n", encoding="utf-8")
    words = (
        f"epsilon --algorithm batchclipping --ids {path} --column id --silo-column h --batch 20 "
    )
    words += f"--noise {SIGMA} --delta 1e-3 --steps 5"
    found = answer(capsys, words)
    assert found["epsilon"] > 0 and found["epsilon_against_A1"] is None
    assert "no figure is given for silos that are not alike" in " ".join(
        said(capsys, words).split()
    )
    assert answer(capsys, f"{words} --unit item")["epsilon_against_A1"] > 0


def test_silos_of_clipped_parts_compose(capsys):
    event = accounting.mixed_clipping_event(0.05, 7, 3, SIGMA)
    words = f"epsilon --algorithm mixedclipping --parts 3 --batch 50 {DATA} --noise {SIGMA} "
    words += f"--delta {DELTA} --silos 2 --rounds 20"
    found = answer(capsys, words)["epsilon"]
    assert found == pytest.approx(accounting.epsilon(event, 40, delta=DELTA), rel=1e-9)
    averaged = answer(capsys, f"{words} --view average")["epsilon"]
    assert 0 < averaged < found


def test_no_noise_is_infinite_against_both(capsys):
    words = f"epsilon --algorithm batchclipping --batch 50 {DATA} --noise 0 --steps 3 --delta 1e-5"
    found = answer(capsys, words)
    assert found["epsilon_infinite"] and found["epsilon_against_A1_infinite"]
    text = said(capsys, words)
    assert "epsilon, A1       infinite" in text and "NOT PRIVATE" in text


@pytest.mark.parametrize("sampler", ["--batch 50", "--sampling shuffle --batch 50"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_noise_is_the_plans(capsys, algorithm, sampler):
    words = f"noise --algorithm {algorithm} {sampler} {DATA} --epsilon 2 --steps 40 --delta {DELTA}"
    found = answer(capsys, words)
    expected = planned(algorithm, sampler, steps=40, epsilon=2.0)
    assert found["noise_multiplier"] == expected.noise_multiplier
    assert found["adversary"] == "A0"
    words = f"epsilon --algorithm {algorithm} {sampler} {DATA} --steps 40 --delta {DELTA}"
    asked = answer(capsys, f"{words} --noise {found['noise_multiplier']}")
    assert found["epsilon_against_A1"] == asked["epsilon_against_A1"]


def test_rounds_are_the_largest_within_the_budget(capsys):
    words = f"rounds --algorithm mixedclipping --parts 3 --batch 50 {DATA} --noise {SIGMA} "
    found = answer(capsys, f"{words} --epsilon 1 --delta {DELTA}")
    event = accounting.mixed_clipping_event(0.05, 7, 3, SIGMA)
    assert accounting.epsilon(event, found["rounds"], delta=DELTA) <= 1
    assert accounting.epsilon(event, found["rounds"] + 1, delta=DELTA) > 1


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_plan_and_statement_are_the_plans_own(capsys, algorithm, sampler):
    words = f"--algorithm {algorithm} {sampler} {DATA} --subjects 200 --noise {SIGMA} --steps 40"
    plan = planned(algorithm, sampler)
    assert said(capsys, f"plan {words} --delta {DELTA}") == f"{plan}\n"
    text = said(capsys, f"statement {words} --delta {DELTA}")
    assert text == plan.statement() + "\n"
    assert "adversary (A1)" in " ".join(text.split())


@pytest.mark.parametrize("command", ["epsilon", "noise", "rounds", "plan"])
def test_help_says_what_the_noise_counts(capsys, command):
    text = said(capsys, f"{command} --help")
    assert "noise standard deviation / (2 x clip norm)" in text
    assert "arXiv:2212.05796" in text and "--keep-probability" in text


def test_a_budget_says_against_whom_it_is_kept(capsys):
    words = "--algorithm mixedclipping --parts 4 --q 0.01 --items-per-subject 10 --delta 1e-5"
    for command in ("noise --epsilon 4 --steps 50", "rounds --epsilon 4 --noise 3"):
        assert main([*f"{command} {words}".split(), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        run = (
            f"epsilon {words} --noise {found['noise_multiplier']} --steps {found.get('steps', 50)}"
        )
        assert main([*run.split(), "--json"]) == 0
        asked = json.loads(capsys.readouterr().out)
        assert found["adversary"] == "A0" and found["epsilon_against_A1"] > 4.0
        assert found["epsilon_against_A1"] == pytest.approx(asked["epsilon_against_A1"], rel=1e-4)
