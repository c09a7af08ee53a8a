# SPDX-License-Identifier: Apache-2.0
"""`compare`: every row is the library's plan for the same data and budget."""

import io
import json
import math

import numpy as np
import pytest

import tf_subjectdp as sdp
from tf_subjectdp import accounting
from tf_subjectdp.accounting.silos.horizontal import HorizontalPlan
from tf_subjectdp.accounting.silos.silo import Silo
from tf_subjectdp.cli import ask, main, output
from tf_subjectdp.cli.options import parse
from tf_subjectdp.sampling import SiloStats

BUDGET = ("--epsilon", "3", "--delta", "1e-5", "--batch", "40", "--epochs", "1")


def rows(capsys, *words):
    status = main(["compare", *map(str, words), *BUDGET, "--json"])
    out, err = capsys.readouterr()
    assert status == 0, err
    found = json.loads(out)
    return found, by_key(found)


def by_key(found):
    return {(row["algorithm"], row["noise_for"], row["cap"]): row for row in found["algorithms"]}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(3)
    ids = rng.zipf(1.6, size=900) % 150
    silos = (ids + (rng.random(900) < 0.15)) % 2
    path = tmp_path_factory.mktemp("compare") / "t.csv"
    lines = [f"{one},s{two}\n" for one, two in zip(ids, silos, strict=True)]
    path.write_text("id,silo\n" + "".join(lines), encoding="utf-8")
    names = [f"s{two}" for two in silos]
    return path, SiloStats.from_ids([str(one) for one in ids], names)


@pytest.fixture(scope="module")
def one_holder(table):
    """The command's two outputs for the table without silos."""
    words = ["compare", "--ids", str(table[0]), "--column", "id", "--cap", "2", *BUDGET]
    result = ask.compare(parse(words))
    outputs = []
    for as_json in (False, True):
        stream = io.StringIO()
        output.write(stream, result, as_json=as_json)
        outputs.append(stream.getvalue())
    return outputs[0], by_key(json.loads(outputs[1]))


def test_every_row_is_the_plan_of_the_same_choices(one_holder, table):
    found, silos = one_holder[1], table[1]
    expected = {
        ("ItemDP", "item", None): (sdp.ItemDP(1.0), sdp.PoissonItems(40)),
        ("HiGradAvg", "subject", None): (sdp.HiGradAvg(1.0), sdp.PoissonItems(40)),
        ("GroupDP", "subject", 2): (sdp.GroupDP(1.0, 2), sdp.PoissonItems(40)),
        ("SubjectDP", "subject", None): (
            sdp.SubjectDP(1.0),
            sdp.PoissonSubjects(40 / 900 * silos.n_subjects),
        ),
        ("UserLDP", "subject", None): (sdp.UserLDP(1.0), sdp.PoissonItems(40)),
    }
    for key, (algorithm, sampling) in expected.items():
        plan = sdp.plan(
            algorithm, sampling, silos.total, epochs=1, epsilon=3.0, delta=1e-5, unit=key[1]
        )
        row = found[key]
        assert row["noise_multiplier"] == plan.noise_multiplier
        assert row["relative_noise"] == pytest.approx(plan.noise_multiplier / plan.divisor)
        assert row["epsilon_per_subject"] == plan.epsilon(unit="subject")
        assert (row["steps"], row["rate"], row["k"]) == (
            plan.steps,
            plan.facts.rate,
            plan.facts.max_items,
        )
    assert set(found) == {*expected, ("ItemDP", "subject", None), ("GroupDP", "subject", None)}


def test_noise_for_items_breaks_the_promise_to_subjects_and_the_table_says_so(one_holder):
    out, found = one_holder
    wrong = found[("ItemDP", "item", None)]["epsilon_per_subject"]
    assert wrong > 3.0
    shown = f"{math.ceil(wrong * 1000) / 1000:.3f}"
    assert f"epsilon 3 to one item, and {shown} to a subject" in " ".join(out.split())
    assert all(
        row["epsilon_per_subject"] <= 3.0 for key, row in found.items() if key[1] == "subject"
    )


def test_silos_have_their_own_rates_and_compose(capsys, table):
    path, silos = table
    found, by_name = rows(capsys, "--ids", path, "--column", "id", "--silo-column", "silo")
    assert found["silos_per_subject"] == silos.silos_per_subject
    sizes = [silos.silo(i) for i in range(2)]
    plan = HorizontalPlan(
        [
            Silo(
                accounting.higradavg_event(40 / one.n_items, one.max_items, 1.0),
                math.ceil(one.n_items / 40),
                1,
            )
            for one in sizes
        ],
        silos_per_subject=silos.silos_per_subject,
    )
    row = by_name[("HiGradAvg", "subject", None)]
    assert row["noise_multiplier"] == pytest.approx(
        plan.noise_for_budget(epsilon=3.0, delta=1e-5), rel=1e-9
    )
    assert [(one["k"], one["steps"]) for one in row["silos"]] == [
        (one.max_items, math.ceil(one.n_items / 40)) for one in sizes
    ]
    single = by_name[("ItemDP", "item", None)]
    needed = [
        accounting.noise_multiplier(
            lambda sigma, q=40 / one.n_items: accounting.item_event(q, sigma),
            math.ceil(one.n_items / 40),
            epsilon=3.0,
            delta=1e-5,
        )
        for one in sizes
    ]
    assert single["noise_multiplier"] == max(needed)
    assert "number of silos" in found["read_from_data"]


def test_figures_do_without_a_table_and_are_not_called_data(capsys):
    found, by_name = rows(
        capsys,
        *("--items", 900, "--subjects", 100, "--items-per-subject", 12, "--elements", 2),
    )
    assert "read_from_data" not in found
    element = by_name[("ElementDP", "element", None)]
    subject = by_name[("ElementDP", "subject", None)]
    assert subject["epsilon_per_subject"] <= 3.0
    event = accounting.element_subject_event(40 / 900, element["noise_multiplier"], 2)
    assert element["epsilon_per_subject"] == accounting.epsilon(event, element["steps"], delta=1e-5)
