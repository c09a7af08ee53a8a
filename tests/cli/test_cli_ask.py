# SPDX-License-Identifier: Apache-2.0
"""`epsilon`, `noise` and `rounds` say the library's numbers."""

import json
import math

import pytest

from tf_subjectdp import accounting, algorithms, plans, sampling
from tf_subjectdp.accounting.silos import central
from tf_subjectdp.accounting.silos.horizontal import HorizontalPlan
from tf_subjectdp.accounting.silos.silo import Silo
from tf_subjectdp.cli import main

DELTA = 1e-5


def answer(capsys, *words):
    """The JSON of a command that succeeds; nothing but notes on standard error."""
    status = main([*map(str, words), "--json"])
    out, err = capsys.readouterr()
    assert status == 0, err
    assert "error" not in err
    return json.loads(out)


def epsilon(capsys, algorithm, *words, steps=40, noise=3.0):
    found = answer(
        capsys,
        *("epsilon", "--algorithm", algorithm, "--noise", noise, "--delta", DELTA),
        *(("--steps", steps) if steps else ()),
        *words,
    )
    return found["epsilon"]


EVENTS = {
    ("itemdp", "--q", 0.02, "--unit", "item"): accounting.item_event(0.02, 3.0),
    ("itemdp", "--q", 0.02, "--items-per-subject", 7): accounting.group_event(0.02, 7, 3.0),
    ("HiGradAvg", "--q", 0.02, "--items-per-subject", 7): accounting.higradavg_event(0.02, 7, 3.0),
    ("higradavg", "--p", 0.1): accounting.subject_event(0.1, 3.0),
    ("hi-grad-avg", "--q", 0.02, "--unit", "item"): accounting.item_event(0.02, 3.0),
    ("groupdp", "--q", 0.02, "--items-per-subject", 7, "--cap", 2): accounting.group_event(
        0.02, 7, 3.0, 2
    ),
    ("groupdp", "--p", 0.1, "--items-per-subject", 7, "--cap", 2): accounting.subject_event(
        0.1, 1.5
    ),
    ("groupdp", "--q", 0.02, "--items-per-subject", 7, "--cap", 2, "--unit", "item"): (
        accounting.item_event(0.02, 1.5)
    ),
    ("itemdp", "--q", 0.02, "--cap-data", 7, "--unit", "item"): accounting.replace_one_event(
        0.02, 3.0
    ),
    ("subjectdp", "--p", 0.1): accounting.subject_event(0.1, 3.0),
    ("subjectdp", "--q", 0.02, "--items-per-subject", 7): accounting.higradavg_event(0.02, 7, 3.0),
    ("userldp",): accounting.user_ldp_event(3.0),
    ("userldp", "--unit", "silo"): accounting.user_ldp_event(3.0),
    ("userldp", "--unit", "silo", "--sampling", "shuffle", "--batch", 5, "--items", 100): (
        accounting.user_ldp_event(3.0)
    ),
    ("elementdp", "--p", 0.1): accounting.element_event(0.1, 3.0),
    ("elementdp", "--p", 0.1, "--elements", 3, "--unit", "subject"): (
        accounting.element_subject_event(0.1, 3.0, 3)
    ),
    ("element-subject", "--p", 0.1, "--elements", 3): accounting.element_subject_event(0.1, 3.0, 3),
    ("higradavg", "--batch", 20, "--items", 1000, "--items-per-subject", 7): (
        accounting.higradavg_event(0.02, 7, 3.0)
    ),
    ("subjectdp", "--expected-subjects", 20, "--subjects", 200): accounting.subject_event(0.1, 3.0),
}


@pytest.mark.parametrize("words", EVENTS, ids=lambda words: " ".join(map(str, words)))
def test_epsilon_is_that_of_the_event(capsys, words):
    expected = accounting.epsilon(EVENTS[words], 40, delta=DELTA)
    assert epsilon(capsys, *words) == expected


def test_an_elements_epsilon_is_the_smaller_of_two_figures(capsys):
    with_bound = epsilon(capsys, "elementdp", "--p", 0.01, "--elements", 1, steps=500)
    replaced = accounting.epsilon(accounting.replace_one_event(0.01, 3.0), 500, delta=DELTA)
    known = accounting.epsilon(accounting.element_event(0.01, 3.0), 500, delta=DELTA)
    assert with_bound == min(replaced, known) == replaced
    assert epsilon(capsys, "elementdp", "--p", 0.01, steps=500) == known


@pytest.mark.parametrize("sampling_name", ["fixed-size", "shuffle"])
@pytest.mark.parametrize("unit", ["subject", "item"])
def test_batches_of_a_fixed_size_are_accounted_as_in_a_plan(capsys, sampling_name, unit):
    found = epsilon(
        capsys,
        *("higradavg", "--sampling", sampling_name, "--batch", 50, "--items", 1000),
        *("--items-per-subject", 7, "--unit", unit),
    )
    sampler = {"fixed-size": sampling.FixedSize, "shuffle": sampling.Shuffle}[sampling_name](50)
    plan = plans.plan(
        algorithms.HiGradAvg(1.0),
        sampler,
        sampling.SubjectStats.public(n_items=1000, n_subjects=200, max_items=7),
        steps=40,
        noise_multiplier=3.0,
        unit=unit,
    )
    assert found == plan.epsilon(DELTA)


def test_the_rdp_engine_is_the_librarys(capsys):
    found = epsilon(capsys, "subjectdp", "--p", 0.1, "--engine", "rdp")
    event = accounting.subject_event(0.1, 3.0)
    assert found == accounting.epsilon(event, 40, delta=DELTA, engine="rdp")


def test_epochs_are_steps_of_the_sampler(capsys):
    words = ("higradavg", "--batch", 30, "--items", 1000, "--items-per-subject", 7)
    found = epsilon(capsys, *words, "--epochs", 2.5, steps=None)
    assert found == epsilon(capsys, *words, steps=math.ceil(2.5 * 34))


@pytest.mark.parametrize("view", ["updates", "average", "final_model"])
@pytest.mark.parametrize("most", [2, 4])
def test_silos_compose_as_in_a_horizontal_plan(capsys, view, most):
    event = accounting.group_event(0.02, 7, 3.0)
    plan = HorizontalPlan([Silo(event, 1, 30)] * 4, silos_per_subject=most, view=view)
    words = ("--q", 0.02, "--items-per-subject", 7, "--rounds", 30, "--silos", 4, "--view", view)
    found = epsilon(capsys, "groupdp", *words, "--silos-per-subject", most, steps=None)
    assert found == pytest.approx(plan.epsilon(DELTA), rel=1e-12)


def test_the_averaged_view_never_takes_a_shuffled_epoch_for_one_step(capsys):
    words = ("--sampling", "shuffle", "--batch", 50, "--items", 1000, "--items-per-subject", 7)
    # of four equal Gaussians the average tells as much as all updates, of two in four less
    words += ("--silos", 4, "--silos-per-subject", 2, "--steps-per-round", 20, "--rounds", 2)
    updates = epsilon(capsys, "higradavg", *words, steps=None)
    assert epsilon(capsys, "higradavg", *words, "--view", "average", steps=None) == updates


def test_userldp_in_the_average_counts_in_twice_the_clip_norm(capsys):
    plan = HorizontalPlan(
        [Silo(accounting.user_ldp_event(3.0), 1, 40, clip_norm=2.0)] * 4, view="average"
    )
    found = epsilon(
        capsys, "userldp", "--silos", 4, "--view", "average", "--rounds", 40, steps=None
    )
    assert found == pytest.approx(plan.epsilon(DELTA), rel=1e-12)


def test_one_item_is_in_one_silo(capsys):
    one = epsilon(capsys, "itemdp", "--q", 0.02, "--unit", "item")
    assert epsilon(capsys, "itemdp", "--q", 0.02, "--unit", "item", "--silos", 9) == one


def test_central_algorithms_add_noise_once(capsys):
    words = ("--q", 0.02, "--items-per-subject", 7, "--silos", 3)
    pairs = [(0.02, 7)] * 3
    grouped = central.central_group_event(pairs, 3.0, 2)
    found = epsilon(capsys, "centralgroup", *words, "--cap", 2)
    assert found == accounting.epsilon(grouped, 40, delta=DELTA)
    averaged = central.central_higradavg_event(pairs, 3.0, silos_per_subject=2)
    found = epsilon(capsys, "centralhigradavg", *words, "--silos-per-subject", 2)
    assert found == accounting.epsilon(averaged, 40, delta=DELTA)


def test_no_noise_is_an_infinite_epsilon_and_null_in_json(capsys):
    found = answer(
        capsys,
        *("epsilon", "--algorithm", "subjectdp", "--p", 0.1, "--noise", 0, "--steps", 1),
        *("--delta", DELTA),
    )
    assert found["epsilon"] is None and found["epsilon_infinite"] is True
    words = ["epsilon", "--algorithm", "subjectdp", "--p", "0.1", "--noise", "0", "--steps", "1"]
    assert main([*words, "--delta", "1e-5"]) == 0
    out = capsys.readouterr().out
    assert "epsilon           infinite" in out and "NOT PRIVATE" in out


def noise(capsys, algorithm, *words):
    budget = ("--epsilon", 2, "--delta", DELTA)
    return answer(capsys, "noise", "--algorithm", algorithm, *budget, *words)["noise_multiplier"]


def test_noise_is_the_librarys_and_keeps_the_budget(capsys):
    words = ("--q", 0.02, "--items-per-subject", 7, "--steps", 40)
    expected = accounting.noise_multiplier(
        lambda sigma: accounting.higradavg_event(0.02, 7, sigma), 40, epsilon=2, delta=DELTA
    )
    assert noise(capsys, "higradavg", *words) == expected
    spent = epsilon(
        capsys, "higradavg", *("--q", 0.02, "--items-per-subject", 7), noise=expected, steps=40
    )
    assert 1.99 < spent <= 2


def test_noise_of_an_item_is_the_least_of_the_proofs(capsys):
    words = ("--p", 0.05, "--items-per-subject", 2, "--unit", "item", "--steps", 40)
    expected = min(
        accounting.noise_multiplier(make, 40, epsilon=2, delta=DELTA)
        for make in (
            lambda sigma: accounting.revealed_event([1.0], [0.05], sigma),
            lambda sigma: accounting.replace_one_event(0.05, sigma / 2.0),
        )
    )
    assert noise(capsys, "itemdp", *words) == expected


def test_noise_of_silos_is_the_horizontal_plans(capsys):
    event = accounting.subject_event(0.1, 1.0)
    plan = HorizontalPlan([Silo(event, 5, 2)] * 3, silos_per_subject=2)
    words = ("--p", 0.1, "--silos", 3, "--silos-per-subject", 2, "--rounds", 2)
    found = noise(capsys, "subjectdp", *words, "--steps-per-round", 5)
    assert found == pytest.approx(plan.noise_for_budget(epsilon=2, delta=DELTA), rel=1e-4)


def test_rounds_are_the_largest_within_the_budget(capsys):
    words = ("rounds", "--algorithm", "groupdp", "--q", 0.02, "--items-per-subject", 7)
    words += ("--noise", 3, "--epsilon", 1.5, "--delta", DELTA)
    found = answer(capsys, *words)
    event = accounting.group_event(0.02, 7, 3.0)
    assert accounting.epsilon(event, found["steps"], delta=DELTA) <= 1.5
    assert accounting.epsilon(event, found["steps"] + 1, delta=DELTA) > 1.5
    in_rounds = answer(capsys, *words, "--steps-per-round", 10)
    assert in_rounds["rounds"] == found["steps"] // 10


def test_rounds_show_the_published_rule_beside_the_honest_figure(capsys):
    words = ("rounds", "--algorithm", "subjectdp", "--p", 0.1, "--noise", 3, "--epsilon", 2)
    words += ("--delta", DELTA, "--silos", 4, "--steps-per-round", 5)
    found = answer(capsys, *words)
    event = accounting.subject_event(0.1, 3.0)
    alone = found["rounds_of_one_silo"]
    assert accounting.epsilon(event, 5 * alone, delta=DELTA) <= 2
    assert accounting.epsilon(event, 5 * alone + 5, delta=DELTA) > 2
    assert found["published_rounds"] == math.floor(alone / 2)
    honest = accounting.epsilon(event, 4 * 5 * found["published_rounds"], delta=DELTA)
    assert found["epsilon_of_published_rounds"] == pytest.approx(honest, rel=1e-12)
    assert honest > 2 >= found["epsilon"]
    assert found["rounds"] == alone // 4
    assert main([*map(str, words)]) == 0
    assert "The published rule R/sqrt(s)" in capsys.readouterr().out


@pytest.mark.parametrize("silos", [1, 3])
def test_the_rdp_engine_answers_all_three_questions(capsys, silos):
    words = ("--algorithm", "subjectdp", "--p", 0.1, "--silos", silos, "--engine", "rdp")
    words += ("--delta", DELTA, "--epsilon", 2)
    event = accounting.subject_event(0.1, 3.0)
    found = answer(capsys, "rounds", *words, "--noise", 3)["rounds"]
    spent = [
        accounting.epsilon(event, silos * rounds, delta=DELTA, engine="rdp")
        for rounds in (found, found + 1)
    ]
    assert spent[0] <= 2 < spent[1]
    sigma = answer(capsys, "noise", *words, "--steps", 50)["noise_multiplier"]
    event = accounting.subject_event(0.1, sigma)
    assert 1.99 < accounting.epsilon(event, 50 * silos, delta=DELTA, engine="rdp") <= 2


def test_batches_of_a_fixed_size_have_rounds_too(capsys):
    words = ("--unit", "item", "--sampling", "fixed-size", "--batch", 20, "--items", 1000)
    found = answer(
        capsys,
        *("rounds", "--algorithm", "itemdp", *words, "--noise", 4),
        *("--epsilon", 1, "--delta", DELTA),
    )
    event = accounting.fixed_size_event(1000, 20, 4.0)
    spent = [
        accounting.epsilon(event, rounds, delta=DELTA)
        for rounds in (found["rounds"], found["rounds"] + 1)
    ]
    assert spent[0] <= 1 < spent[1]


def test_userldp_with_a_fixed_size_asks_for_k(capsys):
    words = ("userldp", "--sampling", "fixed-size", "--batch", 5, "--items", 100)
    assert (
        main(["epsilon", "--algorithm", *map(str, words), "--delta", "1e-5", "--noise", "3"]) == 2
    )
    assert "--items-per-subject K" in capsys.readouterr().err
    one, some = (epsilon(capsys, *words, "--items-per-subject", k) for k in (1, 20))
    event = accounting.fixed_size_event(100, 5, 3.0, 20)
    assert one < some == accounting.epsilon(event, 40, delta=DELTA)


def test_what_the_promise_does_not_depend_on_is_not_made_up(capsys):
    words = ("--noise", 3, "--delta", DELTA, "--steps", 4)
    found = answer(capsys, "epsilon", "--algorithm", "userldp", *words)
    assert (found["sampling"], found["rate"], found["k"]) == ("any", None, None)
    found = answer(capsys, "epsilon", "--algorithm", "subjectdp", "--p", 0.1, *words)
    assert (found["rate"], found["k"]) == (0.1, None)


def test_a_table_gives_k_and_rates_of_each_silo(capsys, tmp_path):
    path = tmp_path / "t.csv"
    rows = [(f"p{i % 7}", "ab"[i % 3 == 0]) for i in range(200)]
    path.write_text("id,silo\n" + "".join(f"{a},{b}\n" for a, b in rows), encoding="utf-8")
    stats = sampling.SiloStats.from_ids(*map(list, zip(*rows, strict=True)))
    plan = HorizontalPlan(
        [
            Silo(
                accounting.higradavg_event(20 / one.n_items, one.max_items, 30.0),
                math.ceil(one.n_items / 20),
                3,
            )
            for one in (stats.silo(0), stats.silo(1))
        ],
        silos_per_subject=2,
    )
    words = ("--ids", path, "--column", "id", "--silo-column", "silo", "--batch", 20)
    found = answer(
        capsys,
        *("epsilon", "--algorithm", "higradavg", "--noise", 30, "--delta", DELTA, "--epochs", 3),
        *words,
    )
    assert found["epsilon"] == pytest.approx(plan.epsilon(DELTA), rel=1e-12)
    assert found["silos_per_subject"] == 2
    assert found["exact"] is True and sorted(found["costliest_silos"]) == ["a", "b"]
    assert "worst_case" not in found["composition"]
    assert [silo["k"] for silo in found["silos"]] == [
        stats.silo(0).max_items,
        stats.silo(1).max_items,
    ]
    assert "k was read from the data" in found["read_from_data"]
    assert "--cap-data" in found["read_from_data"]


def test_a_bound_on_the_data_is_not_called_read_from_it(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id\n" + "a\n" * 30 + "b\nc\n" * 10, encoding="utf-8")
    words = ("epsilon", "--algorithm", "itemdp", "--noise", 5, "--steps", 9, "--delta", DELTA)
    words += ("--ids", path, "--column", "id", "--batch", 10)
    bounded = answer(capsys, *words, "--cap-data", 4)
    event = accounting.group_event(10 / 12, 4, 5.0)
    assert bounded["epsilon"] == accounting.epsilon(event, 9, delta=DELTA)
    assert "k was read" not in bounded["read_from_data"]
    read = answer(capsys, *words)
    event = accounting.group_event(10 / 50, 30, 5.0)
    assert read["epsilon"] == accounting.epsilon(event, 9, delta=DELTA)
    assert "k was read from the data" in read["read_from_data"]


def test_the_text_names_the_promise_and_its_words(capsys):
    words = "epsilon --algorithm higradavg --batch 512 --items 31700 --items-per-subject 145"
    assert main([*words.split(), "--noise", "60", "--epochs", "100", "--delta", "1e-5"]) == 0
    out = capsys.readouterr().out
    expected = accounting.epsilon(
        accounting.higradavg_event(512 / 31700, 145, 60.0), 6200, delta=DELTA
    )
    assert f"epsilon           {math.ceil(expected * 1000) / 1000:.3f}" in out
    assert "one subject: adding or removing one subject with all of their items" in out
    assert "noise standard deviation / clip norm" in out
    assert "6,200 steps" in out and "at most 145" in out


def notes(capsys, *words):
    assert main([*map(str, words)]) == 0
    return capsys.readouterr().err


CHECK = ("epsilon", "--algorithm", "higradavg", "--batch", 50, "--noise", 9, "--steps", 10)


def test_a_cap_on_figures_says_that_the_rows_left_are_meant(capsys):
    capped = (*CHECK, "--items", 5000, "--cap-data", 20, "--delta", 1e-5)
    assert "LEFT after --cap-data" in notes(capsys, *capped)
    left = answer(capsys, *capped, "--subjects", 100)  # at most 20 rows of each
    assert (left["rate"], left["k"]) == (50 / 2000, 20)
    plain = (*CHECK, "--items", 5000, "--items-per-subject", 20, "--delta", 1e-5)
    assert notes(capsys, *plain) == ""


@pytest.mark.parametrize("delta, warned", [(1e-2, True), (1e-3, False)])
def test_a_delta_above_one_over_the_people_is_noted(capsys, delta, warned):
    words = (*CHECK, "--items", 5000, "--subjects", 500, "--items-per-subject", 20)
    assert ("1 / subjects" in notes(capsys, *words, "--delta", delta)) == warned


def test_epochs_are_not_called_rounds(capsys):
    words = [str(w) for w in CHECK if w not in ("--steps", 10)]
    rest = ["--items", "5000", "--items-per-subject", "20", "--delta", "1e-5", "--epochs", "3"]
    assert main(words + rest) == 0
    out = capsys.readouterr().out
    assert "3 epochs of 100 steps, 300 steps in all" in out and "rounds" not in out


def test_what_people_call_it_elsewhere_is_understood(capsys):
    for words in (("DP-SGD", "record"), ("itemdp", "item")):
        found = epsilon(capsys, words[0], "--q", 0.02, "--unit", words[1])
        assert found == accounting.epsilon(accounting.item_event(0.02, 3.0), 40, delta=DELTA)
    whole = epsilon(capsys, "dpsgd", "--q", 0.02, "--unit", "person", "--items-per-subject", 7)
    assert whole == accounting.epsilon(accounting.group_event(0.02, 7, 3.0), 40, delta=DELTA)


def test_central_steps_of_unlike_silos_are_those_of_the_longest_whatever_the_order(
    capsys, tmp_path
):
    small = [f"p{i},small" for i in range(100)]
    big = [f"p{i % 500},vast" for i in range(2000)]
    found = []
    for rows in (small + big, big + small):
        path = tmp_path / "t.csv"
        path.write_text("id,h\n" + "\n".join(rows) + "\n", encoding="utf-8")
        table = ("--ids", path, "--column", "id", "--silo-column", "h", "--batch", 10)
        found.append(
            epsilon(capsys, "centralhigradavg", *table, "--epochs", 5, steps=None, noise=4)
        )
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    both = central.central_higradavg_event([(0.1, 1), (0.005, 4)], 4.0)
    assert found[0] == pytest.approx(accounting.epsilon(both, 1000, delta=DELTA), rel=1e-6)


def test_rounds_of_shuffled_steps_fill_their_epochs(capsys):
    words = ("--algorithm", "subjectdp", "--sampling", "shuffle", "--batch", 100, "--items", 1000)
    words += ("--items-per-subject", 2, "--noise", 20, "--delta", DELTA)
    found = answer(capsys, "rounds", *words, "--epsilon", 4)
    steps = found["steps"]
    assert steps % 10 == 0 and steps >= 400
    for more, within in ((0, True), (1, False)):
        spent = answer(capsys, "epsilon", *words, "--steps", steps + more)["epsilon"]
        assert (spent <= 4) == within


def test_silos_of_unlike_k_compose_in_any_order(capsys, tmp_path):
    rows = [f"a{i},one" for i in range(200)] + [f"b{i % 100},two" for i in range(300)]
    found = []
    for order in (rows, rows[::-1]):
        path = tmp_path / "t.csv"
        path.write_text("id,h\n" + "\n".join(order) + "\n", encoding="utf-8")
        table = ("--ids", path, "--column", "id", "--silo-column", "h", "--batch", 10)
        found.append(
            epsilon(capsys, "itemdp", *table, "--sampling", "fixed-size", noise=20, steps=50)
        )
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    needed = answer(
        capsys,
        *("noise", "--algorithm", "itemdp", "--sampling", "fixed-size", "--batch", 10),
        *("--items", 1000, "--items-per-subject", 1, "--silos", 2, "--steps", 20),
        *("--epsilon", 4, "--delta", DELTA),
    )
    assert needed["noise_multiplier"] > 0
