# SPDX-License-Identifier: Apache-2.0
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tf_subjectdp import accounting
from tf_subjectdp.accounting import paper_rules

_ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = _ROOT / "examples" / "element_level.py"
_NEEDS_MATPLOTLIB = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)

_USERS, _ITEMS, _CLUSTERS, _STEPS, _EPSILON, _DELTA = 20, 12, 8, 2, 8.0, 1e-2
_SHARE = 0.2


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("example_element_level", _SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    sys.path.insert(0, str(_SCRIPT.parent))  # as for a script
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(_SCRIPT.parent))
    return module


def _made_up(rows, seed):
    """Images of ten bright squares, one place a class, and noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 10, rows)
    x = rng.integers(0, 40, (rows, 28, 28))
    for image, label in zip(x, y, strict=True):
        down, right = 2 + 9 * (label // 4), 2 + 6 * (label % 4)
        image[down : down + 5, right : right + 5] += 180
    return x.astype(np.uint8), y.astype(np.uint8)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "made_up.npz"
    x, y = _made_up(700, 0)
    np.savez(path, x=x, y=y)
    return path


@pytest.fixture(scope="module")
def run(file, tmp_path_factory):
    """The script as a user starts it, on few made-up images for two steps."""
    folder = tmp_path_factory.mktemp("run")
    arguments = ["--small", "--data", file, "--users", _USERS, "--items", _ITEMS]
    arguments += ["--clusters", _CLUSTERS, "--elements", 4, "--steps", _STEPS]
    arguments += ["--epsilons", _EPSILON, "--delta", _DELTA, "--output", folder]
    done = subprocess.run(
        [sys.executable, _SCRIPT, *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "CUDA_VISIBLE_DEVICES": "",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, folder


def _rows(folder):
    """Rows of the table of accuracies: model, elements, protects, sampled, and six figures."""
    text = (folder / "table.txt").read_text(encoding="utf-8")
    lines = re.findall(r"^(last layer|cnn) +(\d+) +(\w+) +(\S+) +(.*)$", text, re.MULTILINE)
    return [(model, int(k), level, by, *rest.split()) for model, k, level, by, rest in lines]


@_NEEDS_MATPLOTLIB
@pytest.mark.slow
def test_script_trains_both_models_at_both_levels(run):
    done, folder = run
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {row[:4]: row[4:] for row in _rows(folder)}
    ways = {("element", "elements"), ("subject", "subjects")}
    expected = {(model, 4, *way) for model in ("last layer", "cnn") for way in ways}
    expected |= {(model, 4, "none", "-") for model in ("last layer", "cnn")}
    # The other two samplings are trained once.
    expected |= {("last layer", 4, "element", by) for by in ("subjects", "items")}
    assert set(rows) == expected
    assert all(0.0 <= float(row[-1]) <= 1.0 for row in rows.values())
    assert rows["last layer", 4, "none", "-"][1:5] == ("-", "-", "-", "-")
    # The features tell the classes apart.
    assert float(rows["last layer", 4, "none", "-"][-1]) > 0.8
    assert {path.name for path in folder.iterdir()} >= {
        "table.txt",
        "accuracy.png",
        "statement.txt",
    }


@_NEEDS_MATPLOTLIB
@pytest.mark.slow
def test_honest_epsilons_are_the_accountants_for_the_noise_shown(run):
    for model, elements, level, sampled, noise, element, subject, *_ in _rows(run[1]):
        if level == "none" or sampled == "items":
            continue
        sigma = float(noise)  # two decimals: hence the tolerance
        if level == "subject":
            event, shown = accounting.subject_event(_SHARE, sigma), subject
            assert element == "-"
        elif sampled == "elements":
            event, shown = accounting.replace_one_event(_SHARE, sigma), element
        else:
            known = accounting.element_event(_SHARE, sigma)
            whole = accounting.replace_one_event(_SHARE, sigma / elements)
            figures = [accounting.epsilon(e, _STEPS, delta=_DELTA) for e in (known, whole)]
            assert float(element) == pytest.approx(min(figures), rel=0.05)
            continue
        assert float(shown) <= _EPSILON + 0.011, (model, elements)
        assert float(shown) == pytest.approx(
            accounting.epsilon(event, _STEPS, delta=_DELTA), rel=0.05
        )


@_NEEDS_MATPLOTLIB
@pytest.mark.slow
def test_a_subject_of_more_elements_is_promised_less_and_the_paper_says_less_than_is_true(run):
    rows = [row for row in _rows(run[1]) if row[2] == "element"]
    assert len(rows) == 4
    for _, elements, _, _, noise, element, subject, published, truth, _ in rows:
        assert float(subject) > float(element)
        rule = paper_rules.compare_rule(
            "element_amplification",
            p=_SHARE,
            noise_multiplier=float(noise),
            steps=_STEPS,
            delta=_DELTA,
            elements=elements,
        )
        assert float(published) == pytest.approx(rule.published, rel=0.05, abs=0.02)
        assert float(truth) == pytest.approx(rule.honest, rel=0.05)
        assert float(truth) > float(published)


@_NEEDS_MATPLOTLIB
@pytest.mark.slow
def test_statement_and_output_say_where_the_elements_come_from(run):
    done, folder = run
    statement = " ".join((folder / "statement.txt").read_text(encoding="utf-8").split())
    assert "PRIVACY STATEMENT (ElementDP, 2 of 2 planned steps taken)" in statement
    assert "declared to be public" in statement and "PatchFeatures" in statement
    # Of 600 training images a quarter is public.
    assert "150 public images, 450 for the users, 100 to test with" in done.stdout
    assert re.search(
        r"(cnn|last layer), 4 elements, epsilon 8: (element|subject|no clear)", done.stdout
    )


def _users(example, settings, elements_each=4, rows=600):
    ids = np.random.default_rng(3).integers(0, 10, rows)
    return example.make_users(ids, elements_each, settings)


@pytest.fixture(scope="module")
def settings(example):
    return example.Settings(users=30, items=20, clusters=10)


def test_users_have_their_items_of_no_more_elements_than_asked_for(example, settings):
    users = _users(example, settings)
    assert users.stats.n_subjects == 30 and users.stats.n_items == 600
    for user in range(30):
        mine = users.user == user
        assert mine.sum() == 20 and len(set(users.element[mine])) <= 4
        assert len(set(users.rows[mine])) == 20
    again = _users(example, settings)
    np.testing.assert_array_equal(users.rows, again.rows)


@pytest.mark.parametrize("sampling", ["elements", "items", "subjects"])
def test_expected_averages_are_those_of_the_draws(example, settings, sampling):
    users = _users(example, settings)
    plan = example.make_plan(
        "element", sampling, users, 0.2, settings, steps=400, epsilon=4.0, delta=1e-3
    )
    rows = np.arange(600)[:, None]
    counts = []
    for x, _, extras in plan.dataset(rows, rows, users.user, users.element, seed=0):
        real = x.numpy()[:, 0]
        real = real[extras["mask"].numpy() > 0] if "mask" in extras else real
        counts.append(len(set(zip(users.user[real], users.element[real], strict=True))))
    # 5.2 standard errors: false alarm below 1e-6, were the draws not fixed by the seed.
    error = 5.2 * np.std(counts) / np.sqrt(len(counts))
    assert np.mean(counts) == pytest.approx(example.expected_means(plan, users), abs=error)


def test_sampled_elements_are_cheaper_than_sampled_subjects(example, settings):
    users = _users(example, settings)
    options = example.parse(["--epsilons", "1", "--delta", "1e-3"])
    text = example.sampling_table(users, settings, options, 20)
    found = re.findall(r"^ +1 +(\S+) (\w+) +(\S+) +\S+ +(\S+)(.*)$", text, re.MULTILINE)
    noise = {(share, by): float(each) for share, by, _, each, _ in found}
    assert len(noise) == 9
    assert noise["0.2", "elements"] < 0.6 * noise["0.2", "subjects"]
    # With everything in every step there is nothing to sample.
    assert noise["1", "elements"] == pytest.approx(noise["1", "subjects"], rel=1e-3)
    for share in ("0.05", "0.2"):
        marked = [by for at, by, _, _, mark in found if at == share and "cheapest" in mark]
        assert marked == [
            min((noise[share, by], by) for by in ("elements", "items", "subjects"))[1]
        ]


def test_noise_by_the_papers_rule_breaks_its_promise(example, settings):
    users = _users(example, settings)
    options = example.parse(["--epsilons", "1", "--delta", "1e-3"])
    for target, share, noise, honest in example.paper_rows(users, settings, options, 20):
        event = accounting.subject_event(share, noise / 2.0)
        assert accounting.epsilon(event, 20, delta=1e-3) == pytest.approx(target, rel=0.01)
        assert honest > 1.2 * target


def test_table_rounds_epsilon_up_and_names_the_winner(example):
    def row(level, sampling, accuracy):
        return example.Result("cnn", 5, level, sampling, 1.0, 2.0, 0.991, 7.001, 0.5, 2.0, accuracy)

    rows = [row("element", "elements", 0.70), row("subject", "subjects", 0.75)]
    text = example.table(rows, 1e-4)
    assert text.splitlines()[2].split()[5:7] == ["1.00", "7.01"]
    assert "cnn, 5 elements, epsilon 1: subject level wins (-0.050)" in text
    close = [row("element", "elements", 0.70), row("subject", "subjects", 0.71)]
    assert "no clear winner (-0.010)" in example.table(close, 1e-4)
    # Another sampling's accuracy does not stand for the element level's.
    other = [*rows, row("element", "subjects", 0.95)]
    assert "subject level wins (-0.050)" in example.table(other, 1e-4)


def test_features_are_fixed_and_of_norm_one(example):
    images = (_made_up(120, 1)[0] / 255.0).astype(np.float32)[..., None]
    features = example.PatchFeatures(images[:60], filters=8, width=16)
    found = features(images)
    assert found.shape == (120, 16)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(found[60:], features(images[60:]))


@pytest.mark.parametrize("wrong", [["--users", "0"], ["--elements", "0"], ["--epsilons", "-1"]])
def test_arguments_out_of_range_are_refused(example, wrong, capsys):
    with pytest.raises(SystemExit):
        example.parse(wrong)
    assert wrong[0] in capsys.readouterr().err
