# SPDX-License-Identifier: Apache-2.0
"""Against A1: which changes of a unit the figure is about, as the sampling allows."""

import pytest

import tf_subjectdp as sdp
from tf_subjectdp.algorithms.part_clipping import changes_against_a1
from tf_subjectdp.cli import main

STATS = sdp.SubjectStats.public(n_items=1000, n_subjects=200, max_items=7)
SAMPLINGS = {
    "--batch 50": sdp.PoissonItems(50),
    "--sampling fixed-size --batch 50": sdp.FixedSize(50),
    "--sampling shuffle --batch 50": sdp.Shuffle(50),
}


@pytest.mark.parametrize("words", SAMPLINGS)
@pytest.mark.parametrize("algorithm", [sdp.BatchClipping(1.0), sdp.MixedClipping(1.0, parts=3)])
def test_statement_and_command_say_what_a1_compares(capsys, algorithm, words):
    sampling = SAMPLINGS[words]
    plan = sdp.plan(algorithm, sampling, STATS, steps=20, noise_multiplier=6.0, delta=1e-5)
    changes = changes_against_a1(plan.facts)
    # Only where rows have coins of their own does one more of them leave the others as they are.
    assert ("added or removed" in changes) and ("not added" in changes) != sampling.poisson
    assert ("not added" in changes) == ("in place" in plan.guarantee("subject").adjacency)
    assert f"for {changes}, at delta = 1e-05" in " ".join(plan.statement().split())
    name = type(algorithm).__name__.lower() + (" --parts 3" if plan.divisor == 3 else "")
    command = f"epsilon --algorithm {name} {words} --items 1000 --items-per-subject 7 "
    assert main(f"{command} --noise 6 --steps 20 --delta 1e-5".split()) == 0
    assert f"for {changes}." in " ".join(capsys.readouterr().out.split())
