# SPDX-License-Identifier: Apache-2.0
"""`plan` and `statement` say what a plan says."""

import json

import pytest

import tf_subjectdp as sdp
from tf_subjectdp import accounting
from tf_subjectdp.cli import main
from tf_subjectdp.runs import Lineage, PrivateRun
from tf_subjectdp.statement import privacy_statement

WORDS = (
    "--algorithm higradavg --batch 20 --items 1000 --subjects 200 --items-per-subject 9 --epochs 2 "
    "--noise 8 --delta 1e-5"
).split()


def expected_plan(**changes):
    options = {"epochs": 2, "noise_multiplier": 8.0, "delta": 1e-5, **changes}
    stats = sdp.SubjectStats.public(n_items=1000, n_subjects=200, max_items=9)
    return sdp.plan(sdp.HiGradAvg(1.0), sdp.PoissonItems(20), stats, **options)


def run(capsys, *words):
    status = main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


def test_plan_prints_the_plans_own_table(capsys):
    assert run(capsys, "plan", *WORDS) == f"{expected_plan()}\n"


def test_plan_in_json_is_its_config_and_its_epsilon(capsys):
    found = json.loads(run(capsys, "plan", *WORDS, "--json"))
    plan = expected_plan()
    assert found.pop("epsilon") == plan.epsilon()
    assert found == json.loads(json.dumps(plan.get_config()))


def test_plan_calibrates_as_the_library_does(capsys):
    words = [word for word in WORDS if word not in ("--noise", "8")]
    found = json.loads(run(capsys, "plan", *words, "--epsilon", 3, "--json"))
    plan = expected_plan(noise_multiplier=None, epsilon=3.0)
    assert found["noise_multiplier"] == plan.noise_multiplier
    assert found["target_epsilon"] == 3.0


@pytest.mark.parametrize(
    ("words", "sampler"),
    [
        ("--sampling poisson-items --batch 20", sdp.PoissonItems(20)),
        ("--expected-subjects 10", sdp.PoissonSubjects(10)),
        ("--expected-subjects 10 --cap 3", sdp.PoissonSubjects(10, 3)),
        ("--sampling fixed-size --batch 20", sdp.FixedSize(20)),
        ("--sampling shuffle --batch 20", sdp.Shuffle(20)),
    ],
)
def test_the_four_samplings(capsys, words, sampler):
    rest = "--items 1000 --subjects 200 --items-per-subject 9 --steps 20 --noise 20 --delta 1e-5"
    out = run(capsys, "plan", "--algorithm", "subjectdp", *words.split(), *rest.split(), "--json")
    stats = sdp.SubjectStats.public(n_items=1000, n_subjects=200, max_items=9)
    plan = sdp.plan(sdp.SubjectDP(1.0), sampler, stats, steps=20, noise_multiplier=20.0, delta=1e-5)
    assert json.loads(out)["epsilon"] == plan.epsilon()


def test_a_table_makes_the_same_plan_as_its_ids(capsys, tmp_path):
    ids = [f"{i % 30:03d}" for i in range(300)] + ["000"] * 20
    path = tmp_path / "t.csv"
    path.write_text("who,x\n" + "".join(f"{one},1\n" for one in ids), encoding="utf-8")
    words = "--algorithm groupdp --cap 2 --batch 16 --epochs 1 --noise 6 --delta 1e-4".split()
    words += ["--ids", path, "--column", "who"]
    for cap in (None, 5):
        plan = sdp.plan(
            sdp.GroupDP(1.0, 2),
            sdp.PoissonItems(16),
            sdp.SubjectStats.from_ids(ids),
            epochs=1,
            noise_multiplier=6.0,
            delta=1e-4,
            max_items_per_subject=cap,
        )
        extra = [] if cap is None else ["--cap-data", cap]
        out = run(capsys, "plan", *words, *extra)
        assert out.startswith(str(plan))
        assert ("k was read from the data" in out) is (cap is None)
        found = json.loads(run(capsys, "plan", *words, *extra, "--json"))
        assert {key: found[key] for key in plan.get_config()} == json.loads(
            json.dumps(plan.get_config())
        )


@pytest.mark.parametrize("way", ["--save", "--json"])
def test_a_saved_plan_gives_the_statement_of_the_plan(capsys, tmp_path, way):
    path = tmp_path / "plan.json"
    if way == "--save":
        run(capsys, "plan", *WORDS, "--save", path)
        assert sdp.Plan.from_config(json.loads(path.read_text())) == expected_plan()
    else:
        path.write_text(run(capsys, "plan", *WORDS, "--json"))
    out = run(capsys, "statement", "--plan", path, "--steps-taken", 60)
    assert out == privacy_statement(expected_plan(), steps=60) + "\n"
    assert run(capsys, "statement", *WORDS) == expected_plan().statement() + "\n"


def test_the_statement_in_json_has_text_and_figures(capsys):
    found = json.loads(run(capsys, "statement", *WORDS, "--steps-taken", 60, "--json"))
    plan = expected_plan()
    assert found["statement"] == privacy_statement(plan, steps=60)
    assert found["epsilon"] == plan.epsilon(steps=60)
    assert (found["steps_taken"], found["steps_planned"]) == (60, plan.steps)


def test_a_ledger_says_the_steps_of_its_plan(capsys, tmp_path):
    plan_file, ledger = tmp_path / "plan.json", tmp_path / "ledger.json"
    run(capsys, "plan", *WORDS, "--save", plan_file)
    # what a PrivacyLedger writes
    ledger.write_text(json.dumps({"steps": 70, "plan": expected_plan().identity}))
    out = run(capsys, "statement", "--plan", plan_file, "--ledger", ledger)
    assert out.startswith(privacy_statement(expected_plan(), steps=70))
    assert "reserved" in out
    other = expected_plan(noise_multiplier=9.0)
    run_of_other = PrivateRun(other, other.algorithm, other.noise_multiplier, 9)
    released = Lineage([("a", run_of_other)], ["WEIGHTS FROM ELSEWHERE"]).get_config()
    config = {"steps": 70, "plan": expected_plan().identity, "releases": released}
    ledger.write_text(json.dumps(config))
    out = run(capsys, "statement", "--plan", plan_file, "--ledger", ledger)
    text = " ".join(out.split())
    assert "70 of 100 planned steps taken) WEIGHTS FROM ELSEWHERE Per subject" in text
    assert "BESIDE THIS: the same weights were trained for 9 steps in another run" in text
    both = accounting.compose([(expected_plan().step_event, 70), (other.step_event, 9)])
    total = accounting.epsilon(both, delta=expected_plan().delta)
    assert (
        f"IN ALL: this run and those beside it, composed: epsilon per subject = {total:.2f}" in text
    )
    ledger.write_text(json.dumps({**config, "releases": {"runs": 3}}))
    assert main(["statement", "--plan", str(plan_file), "--ledger", str(ledger)]) == 2
    assert "is no ledger" in capsys.readouterr().err
    ledger.write_text(json.dumps({"steps": 70, "plan": 123}))
    assert main(["statement", "--plan", str(plan_file), "--ledger", str(ledger)]) == 2
    assert "belongs to another plan" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("facts", "rate"), 0.001),
        (("facts", "max_items"), 1),
        (("facts", "scheme"), "poisson_subjects"),
        (("facts", "n_items"), 10_000),
        (("facts", "data_cap"), True),
        (("facts", "step_cap"), 1),
        (("steps_per_epoch",), 7),
        (("noise_multiplier",), "eight"),
        (("noise_multiplier",), -1),
        (("algorithm",), {"name": "Magic", "clip_norm": 1.0}),
        (("stats", "max_items"), 1),
        (("steps",), 0),
        (("unit",), "silo"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(capsys, tmp_path, where, value):
    config = expected_plan().get_config()
    inner = config
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(config))
    assert main(["statement", "--plan", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert "contradicts itself" in err or "is no plan" in err


def test_without_steps_taken_a_statement_is_one_of_intent(capsys, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(expected_plan().get_config()))
    assert "nothing was trained yet" in run(capsys, "statement", "--plan", path)
    steps = expected_plan().steps + 1
    assert main(["statement", "--plan", str(path), "--steps-taken", str(steps)]) == 0
    out, err = capsys.readouterr()
    assert f"{steps} steps taken, MORE than" in " ".join(out.split())
    assert "its promise does not hold" in err
