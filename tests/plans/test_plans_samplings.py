# SPDX-License-Identifier: Apache-2.0
"""Which algorithm goes with which sampling: refusals name what works, the page has all pairs."""

import importlib.util
from pathlib import Path

import pytest

import tf_subjectdp as sdp
from tf_subjectdp import plans
from tf_subjectdp.algorithms import base, pairs

DOCS = Path(__file__).parents[2] / "docs"


def _tables():
    spec = importlib.util.spec_from_file_location("make_tables_of_pairs", DOCS / "make_tables.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


TABLES = _tables()
ALGORITHMS, SAMPLERS, STATS = TABLES.ALGORITHMS, TABLES.SAMPLERS, TABLES.STATS


def name(thing):
    return type(thing).__name__


def planned(algorithm, sampler, unit):
    return sdp.plan(algorithm, sampler, STATS, steps=10, noise_multiplier=5.0, unit=unit)


def works(algorithm, sampler, unit):
    try:
        planned(algorithm, sampler, unit)
    except ValueError:
        return False
    return True


def test_samplings_and_their_names_are_those_of_the_planner():
    known = {scheme: kind.__name__ for kind, scheme in plans._SCHEMES.items()}
    assert known == pairs.SAMPLERS
    assert [name(sampler) for sampler in SAMPLERS] == list(pairs.SAMPLERS.values())
    assert {name(algorithm) for algorithm in ALGORITHMS} == set(base._ALGORITHMS)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=name)
def test_a_refusal_names_the_samplings_that_work_and_the_page(algorithm):
    for unit in algorithm.units:
        working = [name(one) for one in SAMPLERS if works(algorithm, one, unit)]
        assert working == pairs.samplers_of(algorithm, unit) and working
        for sampler in SAMPLERS:
            if name(sampler) in working:
                continue
            with pytest.raises(ValueError) as refusal:
                planned(algorithm, sampler, unit)
            text = str(refusal.value)
            assert f"{name(algorithm)} with {name(sampler)} has no proven guarantee" in text
            assert f"for one {unit}; with {', '.join(working)} it has" in text
            assert "docs/guarantees.md" in text


def test_an_algorithm_without_any_rule_is_refused_in_words():
    class Bare(sdp.UserLDP):
        units = ("subject", "silo")

    assert pairs.samplers_of(Bare(1.0), "silo") == []
    with pytest.raises(ValueError, match="has no proven guarantee for one silo under any sampling"):
        pairs.proven_rule(Bare(1.0), "silo", "shuffle")


def test_the_pages_table_of_pairs_is_what_can_be_planned():
    page = (DOCS / "guarantees.md").read_text("utf-8")
    assert TABLES.filled(page, {"pairs": TABLES.pairs}) == page
    lines = TABLES.pairs().splitlines()[2:]
    for algorithm, line in zip(ALGORITHMS, lines, strict=True):
        cells = line.strip("| ").split(" | ")[1:]
        for sampler, text in zip(SAMPLERS, cells, strict=True):
            working = [unit for unit in algorithm.units if works(algorithm, sampler, unit)]
            assert text == (", ".join(working) or "refused")


@pytest.mark.parametrize("algorithm", [sdp.BatchClipping(1.0), sdp.MixedClipping(1.0, parts=4)])
def test_silos_say_what_serves_instead_of_clipped_parts(algorithm):
    stats = sdp.SiloStats.from_ids([1, 2, 3, 4], ["a", "a", "b", "b"])
    with pytest.raises(ValueError, match=r"not offered in silos.*use UserLDP.*local_steps="):
        sdp.federated.plan(algorithm, sdp.PoissonItems(1), stats, rounds=2, noise_multiplier=5.0)
