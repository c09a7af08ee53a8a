# SPDX-License-Identifier: Apache-2.0
"""The figures of the privacy officer's page on elements and whole batches are what its commands say."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tf_subjectdp import cli

PAGE = (Path(__file__).parents[2] / "docs" / "privacy_officer.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## Elements, whole batches, releases")[1].split("\n## ")[0]


def answers(capsys, algorithms):
    """The JSON of the section's commands on these algorithms, in their order."""
    lines = [line for line in SECTION.splitlines() if line.startswith("subjectdp ")]
    found = []
    for line in lines:
        if any(f"--algorithm {name} " in line for name in algorithms):
            assert cli.main([*shlex.split(line)[1:], "--json"]) == 0, line
            found.append(json.loads(capsys.readouterr().out))
    return found


def printed(sentence):
    """The numbers of a sentence of the page that are given to two decimals or more."""
    assert sentence in " ".join(SECTION.split())
    return [float(number) for number in re.findall(r"\d+\.\d\d+", sentence)]


def test_the_figures_of_elements(capsys):
    *epsilons, noise, plan = answers(capsys, ["elementdp"])
    found = [answer["epsilon"] for answer in epsilons]
    assert found == pytest.approx(
        printed(
            "23.392 per element where people are drawn, 1.206 where elements are, and then 8.446 for"
        ),
        rel=1e-3,
    )
    figures = printed("2.364 is that noise, and the plan promises 2.844 to an element.")
    assert [noise["noise_multiplier"], plan["epsilon"]] == pytest.approx(figures, rel=1e-3)
    assert noise["unit"] == plan["unit"] == "element"


def test_the_figures_of_whole_batches_and_parts(capsys):
    poisson, shuffled, parts, noise = answers(capsys, ["batchclipping", "mixedclipping"])
    both = [(one["epsilon"], one["epsilon_against_A1"]) for one in (poisson, shuffled, parts)]
    a0, a1, same = printed(
        "With Poisson sampling 2.574 (A0) and 6.068 (A1); shuffled 6.031 against both,"
    )
    of_parts = printed(
        "Four parts, Poisson-sampled: 2.858 (A0) and 7.111 (A1), and a noise of 11.94 for "
        "epsilon 4 against A0, which is 10.161 against A1."
    )
    assert both[0] == pytest.approx((a0, a1), rel=1e-3)
    assert both[1] == pytest.approx((same, same), rel=1e-3)
    of_noise = (noise["noise_multiplier"], noise["epsilon_against_A1"])
    assert (*both[2], *of_noise) == pytest.approx(tuple(of_parts), rel=1e-3)
    assert parts["parts"] == 4
