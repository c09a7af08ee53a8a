# SPDX-License-Identifier: Apache-2.0
"""`statement --plan` of plans that were made in Python, for every algorithm; nothing is trusted."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tf_subjectdp as sdp
from tf_subjectdp.cli import main
from tf_subjectdp.runs import PrivateRun
from tf_subjectdp.statement import privacy_statement

ROOT = Path(__file__).resolve().parents[2]
SUBJECTS = [i % 60 for i in range(900)]
ELEMENTS = [(i // 60) % 4 for i in range(900)]
STATS = sdp.SubjectStats.from_ids(SUBJECTS, ELEMENTS)
# What `InnerOptimizer` keeps of tf.keras.optimizers.SGD(0.1).
INNER = {
    "optimizer": json.dumps({"class_name": "SGD", "config": {"learning_rate": 0.1}}),
    "steps": "one an item",
}
CHOICES = {
    "elements sampled": (
        sdp.ElementDP(0.5, 3, 4, elements="Topics of a public list."),
        sdp.PoissonElements(40),
        {},
    ),
    "elements sampled, whole subjects": (
        sdp.ElementDP(0.5, 3),
        sdp.PoissonElements(40),
        {"unit": "subject"},
    ),
    "subjects sampled": (sdp.ElementDP(0.5, 2), sdp.PoissonSubjects(10), {}),
    "items sampled": (sdp.ElementDP(0.5, None, 4), sdp.PoissonItems(50), {}),
    "batch clipping": (
        sdp.BatchClipping(
            0.5,
            inner=sdp.InnerOptimizer(**INNER),
            clip_schedule=sdp.ClipSchedule.inverse_power(5, steps_per_factor=2),
        ),
        sdp.Shuffle(50, 0.5),
        {"max_items_per_subject": 10},
    ),
    "mixed clipping": (sdp.MixedClipping(0.5, parts=4), sdp.FixedSize(50), {}),
    "mixed clipping of items": (
        sdp.MixedClipping(0.5, parts=4, clip_schedule=sdp.ClipSchedule([1.0, 0.5])),
        sdp.PoissonItems(50),
        {"unit": "item"},
    ),
}


def made(name):
    algorithm, sampler, options = CHOICES[name]
    return sdp.plan(
        algorithm, sampler, STATS, steps=12, noise_multiplier=4.0, delta=1e-3, **options
    )


def saved(path, plan, *changes):
    config = json.loads(json.dumps(plan.get_config()))
    for (*outer, last), value in changes:
        inner = config
        for key in outer:
            inner = inner[key]
        inner[last] = value
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", CHOICES)
def test_a_plan_from_python_has_its_own_statement(capsys, tmp_path, name):
    plan = made(name)
    path = saved(tmp_path / "plan.json", plan)
    assert main(["statement", "--plan", str(path)]) == 0
    assert capsys.readouterr() == (plan.statement() + "\n", "")
    assert main(["statement", "--plan", str(path), "--steps-taken", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["statement"] == privacy_statement(plan, steps=5)
    assert found["epsilon"] == plan.epsilon(steps=5) and found["unit"] == plan.unit


_WITHOUT = """
import sys
from tf_subjectdp.cli import main
status = main(sys.argv[1:])
assert "tensorflow" not in sys.modules and "keras" not in sys.modules
sys.exit(status)
"""


def test_no_statement_imports_tensorflow(tmp_path):
    for name in ("elements sampled", "batch clipping"):
        path = saved(tmp_path / "plan.json", made(name))
        done = subprocess.run(
            [sys.executable, "-c", _WITHOUT, "statement", "--plan", str(path)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == made(name).statement() + "\n"


LIES = {
    "elements sampled": [
        (("facts", "rate"), 0.001),
        (("facts", "scheme"), "poisson_items"),
        (("facts", "max_element_items"), 1),
        (("facts", "max_element_items"), None),
        (("stats", "elements", "n_elements"), 10**6),
        (("stats", "elements", "max_items"), 1),
        (("stats", "elements"), None),
        (("stats", "elements"), {"n_elements": 5}),
        (("sampling", "expected_elements"), 1),
        (("algorithm", "max_elements"), 0),
        (("algorithm", "elements"), 5),
        (("unit",), "silo"),
    ],
    "items sampled": [
        (("algorithm", "max_items_per_element"), "few"),
        (("facts", "data_cap"), True),
    ],
    "batch clipping": [
        (("algorithm", "inner"), {"steps": 1}),
        (("algorithm", "inner"), 7),
        (("algorithm", "inner", "steps"), 0),
        (("algorithm", "clip_schedule"), {"factors": []}),
        (("algorithm", "clip_schedule"), {"factors": [0.0]}),
        (("algorithm", "parts"), 3),
        (("sampling", "keep_probability"), 1.0),
        (("sampling", "keep_probability"), 0),
        (("facts", "batch_size"), 5.0),
        (("steps_per_epoch",), 1),
    ],
    "mixed clipping": [
        (("algorithm", "parts"), 0),
        (("algorithm", "parts"), None),
        (("facts", "batch_size"), 5.0),
        (("facts", "max_items"), 1),
    ],
}


@pytest.mark.parametrize(
    ("name", "where", "value"), [(name, *lie) for name, lies in LIES.items() for lie in lies]
)
def test_a_plan_that_contradicts_itself_is_refused(capsys, tmp_path, name, where, value):
    path = saved(tmp_path / "plan.json", made(name), (where, value))
    assert main(["statement", "--plan", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert "contradicts itself" in err or "is no plan" in err


def test_choices_beside_a_plan_are_refused(capsys):
    for option in ("--elements", "--parts", "--keep-probability"):
        assert main(["statement", "--plan", "x.json", option, "1"]) == 2
        assert f"--plan and {option} contradict" in capsys.readouterr().err


# -- models -------------------------------------------------------------------------------------------

_TWO = [
    sdp.plan(algorithm, sampling, STATS, steps=4, noise_multiplier=1.5, delta=1e-4)
    for algorithm, sampling in (
        (sdp.SubjectDP(1.0), sdp.PoissonSubjects(8)),
        (sdp.HiGradAvg(1.0), sdp.PoissonItems(20)),
    )
]


@pytest.mark.slow  # two traces of a step
def test_a_saved_model_has_its_own_statement(capsys, tmp_path):
    import numpy as np
    import tensorflow as tf

    model = sdp.PrivateModel(tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)]))
    x = np.ones([900, 1], np.float32)
    for plan in _TWO:
        model.compile(optimizer=plan.optimizer("sgd"), loss="mse")
        model.fit(plan.dataset(x, x, SUBJECTS), steps_per_epoch=2, epochs=1, verbose=0)
    model.save(tmp_path / "private.keras")
    model.inner_model.save(tmp_path / "inner.keras")
    loaded = tf.keras.models.load_model(tmp_path / "private.keras")
    for delta in (None, 1e-6):
        words = [] if delta is None else ["--delta", delta]
        words = list(map(str, ["statement", "--model", tmp_path / "private.keras", *words]))
        assert main(words) == 0
        assert capsys.readouterr().out == loaded.privacy_statement(delta=delta) + "\n"
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["steps_taken"], told["runs_beside"]) == (2, 1)
    assert told["epsilon"] == _TWO[1].epsilon(1e-6, steps=2)
    assert main(["statement", "--model", str(tmp_path / "inner.keras")]) == 2
    assert "not a PrivateModel" in capsys.readouterr().err


_LIE = _TWO[0].get_config()
_LIE["facts"] = {**_LIE["facts"], "rate": 1e-6}


def _run(plan, steps=0):
    return PrivateRun(plan, plan.algorithm, plan.noise_multiplier, steps).get_config()


def _saved(path, **releases):
    releases = {"own": _run(_TWO[0]), "divisor": _TWO[0].divisor, **releases}
    config = {"class_name": "PrivateModel", "config": {"releases": releases}}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(config))
    return ["statement", "--model", str(path)]


def test_runs_of_one_plan_add_up_and_remarks_come_first(capsys, tmp_path):
    run = _run(_TWO[0], steps=1)
    runs = {"a": run, "b": {**run, "steps": 2, "seeded": 1}}
    assert (
        main(_saved(tmp_path / "m.keras", record={"runs": runs, "remarks": ["FIRST OF ALL."]})) == 0
    )
    out, err = capsys.readouterr()
    assert "3 of 4 planned steps taken" in out and "the batches of 1 steps were drawn with" in out
    assert out.split("\n\n")[1] == "FIRST OF ALL." and err == ""


@pytest.mark.parametrize(
    "releases, words",
    [
        ({}, "does not say what was released"),
        ({"record": {"runs": {}}}, "does not say what was released"),
        ({"record": {"runs": {"a": {"steps": -1}}, "remarks": []}}, "its steps are -1"),
        ({"record": {"runs": {"a": {"steps": 1, "plan": {}}}, "remarks": []}}, "a plan in"),
        (
            {"record": {"runs": {"a": {"steps": 1, "plan": _LIE}}, "remarks": []}},
            "contradicts itself: its rate",
        ),
    ],
)
def test_a_model_that_does_not_say_what_was_released_is_refused(capsys, tmp_path, releases, words):
    words_given = _saved(tmp_path / "m.keras", **releases)
    assert main(words_given) == 2
    assert words in capsys.readouterr().err
    assert main([*words_given, "--steps-taken", "3"]) == 2
    assert "--model and --steps-taken contradict" in capsys.readouterr().err
    (tmp_path / "m.keras").write_bytes(b"no archive")
    assert main(words_given) == 2
    assert "no model saved as '.keras'" in capsys.readouterr().err
