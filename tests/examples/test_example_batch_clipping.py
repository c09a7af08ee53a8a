# SPDX-License-Identifier: Apache-2.0
"""examples/batch_clipping.py: a whole tiny run, and the parts that decide its figures."""

import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tf_subjectdp as sdp
from tf_subjectdp import accounting

_ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = _ROOT / "examples" / "batch_clipping.py"

# 70 images, of which a seventh is held out; the 12 that do not fill a batch of 16 are left out.
_IMAGES, _KEPT, _SIZE, _GROUP, _EPOCHS, _DELTA = 70, 48, 16, 4, 2, 1e-3
_SIGMA = 2.0


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("example_batch_clipping", _SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    sys.path.insert(0, str(_SCRIPT.parent))  # as for a script
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(_SCRIPT.parent))
    return module


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Noise, in the format of a copy without a split."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    x = rng.integers(0, 256, (_IMAGES, 28, 28)).astype(np.uint8)
    np.savez(path, x=x, y=rng.integers(0, 10, _IMAGES).astype(np.uint8))
    return path


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    """The script as a user starts it, on few images."""
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("not installed: matplotlib")
    folder = tmp_path_factory.mktemp("run")
    arguments = ["--small", "--data", digits, "--batch-sizes", _SIZE, "--epochs", _EPOCHS]
    arguments += ["--parts", 2, "--group", _GROUP, "--delta", _DELTA, "--output", folder]
    # Few rows: each takes TensorFlow some eight seconds to build.
    arguments += [
        "--sampling",
        "poisson",
        "--clipping",
        "batch",
        "--variants",
        "batchnorm",
        "filter",
    ]
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


def _row(text, clipping, sampling):
    """(size, steps, four epsilons, accuracy) of a row of the table."""
    rows = [row for row in text.splitlines() if re.match(rf"{clipping} +{sampling} ", row)]
    return [float(value) for value in rows[-1].split()[-7:]]


@pytest.mark.slow
def test_script_ends_well_with_all_rows_statements_and_a_figure(run):
    done, folder = run
    assert done.returncode == 0, done.stderr[-2000:]
    table = (folder / "table.txt").read_text(encoding="utf-8")
    assert f"{_KEPT} images to train on, 10 held out" in done.stdout
    size, steps, *_, accuracy = _row(table, "batch", "poisson")
    assert (size, steps) == (_SIZE, _EPOCHS * _KEPT // _SIZE)
    assert 0.0 <= accuracy <= 1.0
    assert re.search(r"^none .* infinite +infinite +infinite", table, re.MULTILINE)
    # An epoch of half of the items: 2 steps instead of 3, and not a bit less epsilon per item.
    half = _row(table, "batch, half an epoch", "shuffle")
    whole = _row(table, "batch, BatchNormalization", "shuffle")
    assert (half[1], whole[1]) == (_EPOCHS * 2, _EPOCHS * 3)
    assert half[2:4] == whole[2:4]
    # All four items of a person cannot hit more than two batches an epoch.
    two = accounting.fdp.gaussian(math.sqrt(2 * _EPOCHS) / _SIGMA).epsilon(_DELTA)
    assert half[4:6] == pytest.approx([two, two], abs=0.011)
    assert half[4] < whole[4]
    assert (folder / "accuracy.png").stat().st_size > 10_000
    assert len(list(folder.glob("*_statement.txt"))) == 3


@pytest.mark.slow
def test_statement_says_what_the_table_says(run):
    folder = run[1]
    table = (folder / "table.txt").read_text(encoding="utf-8")
    statement = " ".join((folder / "batch_poisson_16_statement.txt").read_text("utf-8").split())
    row = _row(table, "batch", "poisson")
    item = float(re.search(r"Per item: epsilon = (\S+) at", statement).group(1))
    group = float(re.search(r"Per subject: epsilon = (\S+) at", statement).group(1))
    known = re.search(r"per subject \(4 items\) (\S+), per item \(1 item\) (\d+\.\d+)", statement)
    assert row[2] == pytest.approx(item, abs=0.011)
    assert row[4] == pytest.approx(group, abs=0.011)
    assert row[3] == pytest.approx(float(known.group(2)), abs=0.011)
    assert row[5] == pytest.approx(float(known.group(1)), abs=0.011)


def _epsilons(example, clipping, sampling):
    stats = sdp.SubjectStats.from_ids(np.arange(_KEPT) // _GROUP)
    settings = example.dataclasses.replace(example.SMALL, epochs=_EPOCHS, parts=2)
    way = example.Way(clipping, sampling, _SIZE)
    plan = example.plan_of(way, stats, settings, _SIGMA, _DELTA)
    return example.epsilons(way, plan, _SIGMA, _GROUP, _DELTA)


def test_epsilons_of_an_item_are_those_of_the_textbook_events(example):
    rate, steps = _SIZE / _KEPT, _EPOCHS * _KEPT // _SIZE
    # Poisson, A0: an item moves individual clipping by C, a clipped batch or part by 2 C.
    for clipping, noise in (("individual", 2 * _SIGMA), ("batch", _SIGMA), ("mixed", _SIGMA)):
        expected = accounting.epsilon(accounting.item_event(rate, noise), steps, delta=_DELTA)
        found = _epsilons(example, clipping, "poisson")
        assert found["item", "A0"] == pytest.approx(expected, rel=1e-6)
    # Shuffled: a Gaussian of sqrt(E) / sigma, whatever is clipped, against both.
    expected = accounting.fdp.gaussian(math.sqrt(_EPOCHS) / _SIGMA).epsilon(_DELTA)
    for clipping in example.CLIPPINGS:
        found = _epsilons(example, clipping, "shuffle")
        for adversary in ("A0", "A1"):
            assert found["item", adversary] == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("sampling", ["fixed", "poisson", "shuffle"])
def test_epsilon_of_a_group_is_smallest_where_the_batch_is_clipped(example, sampling):
    found = {c: _epsilons(example, c, sampling) for c in ("batch", "mixed", "individual")}
    against_a1 = [epsilon["group", "A1"] for epsilon in found.values()]
    assert against_a1 == sorted(against_a1)
    assert against_a1[0] < 0.9 * against_a1[2]
    for epsilon in found.values():
        for unit in ("item", "group"):
            assert 0.0 < epsilon[unit, "A0"] <= epsilon[unit, "A1"]
        assert epsilon["item", "A1"] < epsilon["group", "A1"]
    if sampling == "shuffle":  # the paper's sqrt(g E), which holds for batch clipping alone
        bound = accounting.fdp.gaussian(math.sqrt(_GROUP * _EPOCHS) / _SIGMA).epsilon(_DELTA)
        assert against_a1[0] <= bound < against_a1[2]


@pytest.mark.parametrize("sampling", ["fixed", "poisson", "shuffle"])
def test_all_ways_of_clipping_have_the_same_noise(example, sampling):
    stats = sdp.SubjectStats.from_ids(np.arange(64) // 2)
    for clipping in example.CLIPPINGS:
        way = example.Way(clipping, sampling, 16)
        plan = example.plan_of(way, stats, example.SMALL, 3.0, 1e-3)
        deviation = plan.algorithm.noise_stddev(plan.noise_multiplier)
        assert deviation == pytest.approx(2.0 * 3.0 * plan.algorithm.clip_norm)


def test_group_of_individually_clipped_items_is_the_mixture_over_their_meetings(example):
    # Two items of four, batches of two: they meet with chance 1/3 in each of the two epochs.
    stats = sdp.SubjectStats.from_ids(np.array([0, 0, 1, 1]))
    settings = example.dataclasses.replace(example.SMALL, epochs=2)
    way = example.Way("individual", "shuffle", 2)
    plan = example.plan_of(way, stats, settings, 2.0, 1e-2)
    curve = example.against_a1(way, plan, 2.0, 2)
    chances = {4: 4 / 9, 6: 4 / 9, 8: 1 / 9}
    for epsilon in (0.5, 2.0, 4.0):
        expected = sum(
            chance * accounting.fdp.gaussian(math.sqrt(c) / 2.0).delta(epsilon)
            for c, chance in chances.items()
        )
        assert curve.delta(epsilon) == pytest.approx(expected, rel=1e-6)


def test_full_network_is_lenet_5(example):
    model = example.make_model(example.Settings())
    convolutions = (25 + 1) * 6 + (6 * 25 + 1) * 16
    dense = (400 + 1) * 120 + (120 + 1) * 84 + (84 + 1) * 10
    assert model.count_params() == convolutions + dense
    normalised = example.make_model(example.SMALL, normalised=True)
    kinds = [type(layer).__name__ for layer in normalised.layers]
    assert kinds.count("BatchNormalization") == 2


def test_table_rounds_epsilon_up(example):
    epsilon = dict.fromkeys(example._COLUMNS, 1.231)
    way = example.Way("batch", "shuffle", 64)
    options = example.parse([])
    text = example.table([example.Result(way, 8, epsilon, 0.5)], example.SMALL, options)
    assert _row(text, "batch", "shuffle") == [64, 8, 1.24, 1.24, 1.24, 1.24, 0.5]


def test_halved_images_are_means(example):
    x = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
    assert example.halved(x)[0, :, :, 0].tolist() == [[2.5, 4.5], [10.5, 12.5]]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--batch-sizes", "64", "96"], "the largest must be a multiple"),
        (["--group", "33"], "--group 33 must lie in 1..32"),
        (["--sigma", "0"], "--sigma 0.0 must be above 0"),
        (["--epochs", "0"], "--epochs 0 must be at least 1"),
        (["--clipping", "magic"], "magic"),
    ],
)
def test_bad_arguments_are_refused_by_name(example, capsys, arguments, named):
    with pytest.raises(SystemExit) as refused:
        example.parse(arguments)
    assert refused.value.code == 2
    assert named in capsys.readouterr().err
