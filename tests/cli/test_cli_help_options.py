# SPDX-License-Identifier: Apache-2.0
"""Help and refusals name only what a command takes; a search for noise notes its answer only."""

import argparse
import re

import pytest

from tf_subjectdp.accounting.engine import pld
from tf_subjectdp.accounting.engine.composition import ComposedDirection
from tf_subjectdp.cli import main
from tf_subjectdp.cli.arguments import COMMANDS, make_parser
from tf_subjectdp.cli.options import PLANNED, SAMPLINGS

_OPTION = re.compile(r"--[a-z][a-z-]*")
# Other commands, quoted with an option of theirs.
_QUOTED = re.compile(r"'(?:subjectdp )?(?:plan|statement) [^']*'")


def known(command):
    (sub,) = (a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return set(sub.choices[command]._option_string_actions)


def named(text):
    return set(_OPTION.findall(_QUOTED.sub("", " ".join(text.split()))))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_names_only_options_of_its_command(capsys, command):
    assert main([command, "--help"]) == 0
    assert named(capsys.readouterr().out) <= known(command)


def test_the_help_of_plan_lists_the_samplings_that_a_plan_takes(capsys):
    main(["plan", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    (listed,) = re.findall(r"--sampling NAME ([a-z, -]+?) \(default", words)
    data = "--items 1000 --subjects 100 --items-per-subject 20 --steps 3 --noise 2"
    for sampling in SAMPLINGS:
        size = "--expected-subjects" if sampling == "poisson-subjects" else "--batch"
        made = main(f"plan --algorithm itemdp --sampling {sampling} {size} 10 {data}".split()) == 0
        assert made == (sampling in listed.split(", ")), sampling


@pytest.mark.parametrize("sampling", [None, *SAMPLINGS])
@pytest.mark.parametrize("algorithm", PLANNED)
def test_what_plan_refuses_it_refuses_in_its_own_options(capsys, algorithm, sampling):
    words = f"plan --algorithm {algorithm} --steps 3 --noise 2".split()
    words += ["--parts", "2"] if algorithm == "mixedclipping" else []
    words += [] if sampling is None else ["--sampling", sampling]
    assert main(words) == 2
    assert named(capsys.readouterr().err) - {"--help"} <= known("plan")


@pytest.mark.parametrize("sampling", ["poisson-items", "shuffle"])
def test_a_plan_for_an_epsilon_notes_the_noise_it_found_and_no_trial(capsys, monkeypatch, sampling):
    exact = ComposedDirection.epsilon

    def coarse(self, delta, relative_error):
        value, excess = exact(self, delta, relative_error)
        return value, max(excess, 0.01 * value)

    monkeypatch.setattr(ComposedDirection, "epsilon", coarse)
    pld.pld_bound.cache_clear()
    words = (
        f"plan --algorithm mixedclipping --parts 3 --sampling {sampling} --batch 50 --items 1000 "
    )
    words += "--subjects 100 --items-per-subject 12 --steps 20 --epsilon 2 --delta 1e-5"
    try:
        assert main(words.split()) == 0
    finally:
        pld.pld_bound.cache_clear()
    out, err = capsys.readouterr()
    notes = [line for line in err.splitlines() if "discretised" in line]
    assert len(notes) == 1 and "epsilon           2.000" in out
    assert re.search(r"epsilon (1\.99\d*|2) at delta 1e-05", notes[0])
