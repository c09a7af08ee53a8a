# SPDX-License-Identifier: Apache-2.0
"""Figures of rounds against NumPy, and what is found in the CSV file, in TensorBoard and in the bar."""

import collections
import csv
import dataclasses
import io
import itertools
import math
import sys
import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp.federated import rounds

SIGMAS = (2.0, 3.0, 4.0, 5.0)
# What silos 0, 1 and 3 might report of two steps each.
COUNTS = {
    "silos": 3.0,
    "steps": 6.0,
    "items": 40.0,
    "subjects": 25.0,
    "loss": 28.0,
    "correct": 30.0,
    "predicted": 40.0,
    "clipped": 8.0,
    "terms": 25.0,
    "non_finite": 2.0,
    "dropped": 5.0,
    "empty": 1.0,
    "signal": 12.0,
    "squared_update": 27.0,
    "diverged": 1.0,
    "sizes": [15.0, 6.0, 0.0, 4.0] + [0.0] * 12,
}


def metrics_of(**changed):
    counts = {name: np.asarray(n, np.float32) for name, n in {**COUNTS, **changed}.items()}
    return collections.OrderedDict(silos=counts, took_part=np.array([1, 1, 0, 1]))


@pytest.fixture(scope="module")
def built(federation, model_fn):
    """Batches are all rows of a silo, so that the counts are known."""
    plan = sdp.federated.plan(
        sdp.HiGradAvg(clip_norm=0.5),
        federation.full_batches(),
        federation.stats,
        rounds=12,
        silos_per_round=3,
        local_steps=2,
        minimum_silos=2,
        noise_multiplier=SIGMAS,
        delta=1e-3,
    )
    process = sdp.federated.build_process(
        model_fn, plan, client_optimizer=tf.keras.optimizers.SGD(0.1)
    )
    return process, process.initialize()


def again(built, **changed):
    """A process that has released nothing yet, with the same computations, and its first state."""
    old, state = built
    process = sdp.federated.FederatedProcess(
        dataclasses.replace(old.plan, **changed),
        old.parts,
        None,
        old.initialize,
        old.next.computation,
        old.get_model_weights,
        old.set_model_weights,
    )
    counts = {**state.client_work, "plan": process.plan.text}
    parts = ("global_model_weights", "distributor", "aggregator", "finalizer")
    state = type(state)(client_work=counts, **{part: getattr(state, part) for part in parts})
    return process, state


def state_after(state, number, of_silos=None):
    """The state, with other counts."""
    of_silos = (number, number, 0, number) if of_silos is None else of_silos
    return types.SimpleNamespace(
        client_work={**state.client_work, "rounds": number, "of_silos": np.array(of_silos)},
        global_model_weights=state.global_model_weights,
    )


def lines_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def events_of(folder):
    """(step, tag) -> what was written."""
    files = sorted(str(path) for path in folder.iterdir())
    found = {}
    for record in tf.data.TFRecordDataset(files):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            found[event.step, value.tag] = (
                tf.make_ndarray(value.tensor),
                value.metadata.plugin_data.plugin_name,
            )
    return found


# -- figures --------------------------------------------------------------------------------------


def test_figures_are_the_counts_over_what_they_are_counts_of(built):
    process, state = again(built)
    state = state_after(state, 4)
    figures = rounds.round_metrics(process, state, metrics_of())
    spent = sdp.federated.Spent(4, (4, 4, 0, 4))
    expected = {
        "round": 4,
        "silos": 3,
        "loss": 0.7,
        "accuracy": 0.75,
        "clipped": 0.32,
        "items": 40 / 6,
        "subjects": 25 / 6,
        "empty": 1 / 6,
        # Silos 0, 1 and 3; a dense layer from 3 to 2 has 8 weights.
        "signal_to_noise": 2.0 / (np.mean([2.0, 3.0, 5.0]) * 0.5 * math.sqrt(8)),
        "update_norm": 3.0,
        "non_finite": 2,
        "dropped": 5,
        "diverged": 1,
        "epsilon": process.plan.epsilon(spent=spent),
    }
    assert figures.pop("group_sizes") == COUNTS["sizes"]
    assert figures == pytest.approx(expected, rel=1e-12)
    assert "epsilon" not in rounds.round_metrics(process, state, metrics_of(), epsilon=False)
    other = rounds.round_metrics(process, state, metrics_of(), delta=1e-5)["epsilon"]
    assert other == process.plan.epsilon(1e-5, spent=spent) > expected["epsilon"]


def test_what_has_no_value_is_left_out(built):
    process, state = again(built)
    nothing = metrics_of(
        items=0, subjects=0, loss=0, correct=0, predicted=0, clipped=0, terms=0, empty=6, signal=0
    )
    figures = rounds.round_metrics(process, state, nothing, epsilon=False)
    assert not {"loss", "accuracy", "clipped"} & set(figures)
    assert (figures["items"], figures["empty"], figures["signal_to_noise"]) == (0.0, 1.0, 0.0)
    regression = rounds.round_metrics(process, state, metrics_of(predicted=0), epsilon=False)
    assert "accuracy" not in regression and "loss" in regression


def test_without_noise_there_is_no_ratio_and_without_privacy_epsilon_is_infinite(built):
    process, state = again(built, noise_multipliers=(0.0,) * 4)
    figures = rounds.round_metrics(process, state_after(state, 1), metrics_of())
    assert "signal_to_noise" not in figures and figures["epsilon"] == math.inf
    process, state = again(built, algorithm=None, noise_multipliers=(0.0,) * 4, delta=None)
    figures = rounds.round_metrics(process, state_after(state, 1), metrics_of())
    assert "signal_to_noise" not in figures and figures["epsilon"] == math.inf


def test_other_metrics_are_refused(built):
    process, state = built
    with pytest.raises(ValueError, match="dict have no 'silos' and 'took_part'.*output.metrics"):
        rounds.round_metrics(process, state, {"client_work": {}})


def test_subject_epsilons_are_quantiles_over_the_table(built):
    process, state = again(built)
    spent = sdp.federated.Spent(6, (1, 5, 0, 6))
    found = rounds.subject_epsilons(process, state_after(state, *spent))
    table = process.plan.per_subject_epsilon(spent=spent)
    ordered = np.sort(table.epsilon)
    assert len(ordered) == 12 and ordered[5] < ordered[10] <= ordered[11]
    assert found == {
        "subject_epsilon_50": ordered[5],
        "subject_epsilon_90": ordered[10],
        "subject_epsilon_100": ordered[11],
        "subject_epsilon_note": table.note,
    }


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"stats": None}, "no stats"),
        ({"algorithm": None}, "algorithm=None"),
    ],
)
def test_subject_epsilons_need_the_table_and_an_algorithm(built, changed, said):
    process, state = again(built, **changed)
    with pytest.raises(ValueError, match=f"{said}.*distribution_every=0"):
        rounds.subject_epsilons(process, state)
    with pytest.raises(ValueError, match=f"{said}.*distribution_every=0"):
        rounds.RoundLog(process, progress=False, distribution_every=5)


# -- the CSV file ---------------------------------------------------------------------------------


def test_a_run_leaves_a_line_a_round_of_what_really_happened(built, federation, tmp_path):
    process, state = again(built)
    epsilons = []
    with rounds.RoundLog(process, csv=tmp_path / "run.csv", progress=False) as log:
        last = rounds.run(
            process,
            state,
            federation.datasets(),
            rounds=2,
            log=log,
            on_round=lambda state, figures: epsilons.append(process.epsilon(state)),
        )
    assert log.state is last and process.spent(last).rounds == 2
    lines = lines_of(tmp_path / "run.csv")
    assert tuple(lines[0]) == rounds.COLUMNS
    assert [float(line["epsilon"]) for line in lines] == epsilons
    assert 0.0 < epsilons[0] < epsilons[1]
    # Silos with the fewest rounds take part: 0, 1, 2 and then 3, 0, 1.
    for line, silos in zip(lines, ((0, 1, 2), (0, 1, 3)), strict=True):
        held = [
            np.unique(federation.subject[federation.rows_of(i)], return_counts=True)[1]
            for i in silos
        ]
        sizes = np.concatenate(held)
        assert (line["silos"], line["dropped"], line["empty"]) == ("3", "0", "0.0")
        assert float(line["items"]) == pytest.approx(sizes.sum() / 3)
        assert float(line["subjects"]) == pytest.approx(sizes.size / 3)
        for name in rounds.COLUMNS[-16:-1]:
            ends = [int(n) for n in name.split("_")[1:]]
            assert int(line[name]) == 2 * np.sum((ends[0] <= sizes) & (sizes <= ends[-1])), name
        assert line["sizes_over_16384"] == "0"
        assert line["subject_epsilon_50"] == line["subject_epsilon_note"] == ""
    assert [line["round"] for line in lines] == ["1", "2"]


def test_size_columns_are_the_bins_of_the_silos_counts():
    names = rounds.COLUMNS[-16:]
    assert names[:4] == ("sizes_1", "sizes_2", "sizes_3_4", "sizes_5_8")
    assert names[-2:] == ("sizes_8193_16384", "sizes_over_16384")
    ends = tf.constant([2.0**power for power in range(15)])
    for i, name in enumerate(names[:-1]):
        numbers = [float(n) for n in name.split("_")[1:]]
        assert tf.searchsorted(ends, numbers).numpy().tolist() == [i] * len(numbers)


def test_a_resumed_run_appends_under_the_same_header(built, tmp_path):
    process, state = again(built)
    path = tmp_path / "run.csv"
    for first in (1, 3):
        # The second log is another one, of other options.
        options = {"distribution_every": 3} if first == 3 else {}
        with (
            warnings.catch_warnings(),
            rounds.RoundLog(process, csv=path, progress=False, **options) as log,
        ):
            warnings.simplefilter("error")
            for number in (first, first + 1):
                log.write(state_after(state, number), metrics_of(loss=number * 40))
    lines = lines_of(path)
    assert [(line["round"], float(line["loss"])) for line in lines] == [
        (str(number), float(number)) for number in (1, 2, 3, 4)
    ]
    table = process.plan.per_subject_epsilon(spent=sdp.federated.Spent(3, (3, 3, 0, 3)))
    assert float(lines[2]["subject_epsilon_100"]) == table.worst
    assert lines[2]["subject_epsilon_note"] == table.note
    assert [line["subject_epsilon_100"] == "" for line in lines] == [True, True, False, True]
    assert path.read_text(encoding="utf-8").count("round,") == 1


def test_a_line_cut_short_by_a_crash_spoils_no_other(built, tmp_path):
    process, state = again(built)
    path = tmp_path / "run.csv"
    path.write_text(",".join(rounds.COLUMNS) + "\n1,3,0.", encoding="utf-8")
    log = rounds.RoundLog(process, csv=path, progress=False)
    log.write(state_after(state, 2), metrics_of())
    assert [line["round"] for line in lines_of(path)] == ["1", "2"]
    assert float(lines_of(path)[1]["loss"]) == pytest.approx(0.7)


@pytest.mark.parametrize("text", ["epoch,loss\n1,0.5\n", "\n"])
def test_a_file_with_another_header_is_left_alone(built, tmp_path, text):
    path = tmp_path / "other.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="other.csv begins with another header.*another file"):
        rounds.RoundLog(built[0], csv=path, progress=False)
    assert path.read_text(encoding="utf-8") == text


def test_going_back_to_an_older_state_is_told(built, tmp_path):
    process, state = again(built)
    path = tmp_path / "run.csv"
    rounds.RoundLog(process, csv=path, progress=False).write(state_after(state, 5), metrics_of())
    log = rounds.RoundLog(process, csv=path, progress=False)
    with pytest.warns(UserWarning, match="run.csv has round 5 already, and this is round 3.*lacks"):
        log.write(state_after(state, 3), metrics_of())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log.write(state_after(state, 4), metrics_of())
    assert [line["round"] for line in lines_of(path)] == ["5", "3", "4"]


def test_epsilon_is_computed_every_so_often_and_at_the_end(built, tmp_path):
    process, state = again(built, rounds=5)
    path = tmp_path / "run.csv"
    log = rounds.RoundLog(process, csv=path, progress=False, epsilon_every=2, delta=1e-4)
    for number in range(1, 6):
        log.write(state_after(state, number), metrics_of())
    epsilons = [line["epsilon"] for line in lines_of(path)]
    assert epsilons[0] == epsilons[2] == ""
    for number in (2, 4, 5):
        spent = sdp.federated.Spent(number, (number, number, 0, number))
        assert float(epsilons[number - 1]) == process.plan.epsilon(1e-4, spent=spent)


# -- TensorBoard ----------------------------------------------------------------------------------


def test_tensorboard_gets_scalars_and_the_histogram(built, tmp_path, monkeypatch):
    process, state = again(built)
    # The nearest float32 is below 0.7.
    monkeypatch.setattr(process, "epsilon", lambda state, delta: 0.7)
    with rounds.RoundLog(
        process, tensorboard=tmp_path / "logs", progress=False, distribution_every=2
    ) as log:
        written = [log.write(state_after(state, n), metrics_of(loss=n)) for n in (1, 2)]
    found = events_of(tmp_path / "logs")
    for figures in written:
        for name in set(figures) - {"round", "group_sizes", "subject_epsilon_note"}:
            value, plugin = found[figures["round"], f"federated/{name}"]
            assert plugin == "scalars"
            assert float(value) == pytest.approx(figures[name], rel=2e-7), name
            assert "epsilon" not in name or float(value) >= figures[name]
    assert {tag for step, tag in found if step == 2} - {
        tag for step, tag in found if step == 1
    } == {
        "federated/subject_epsilon_50",
        "federated/subject_epsilon_90",
        "federated/subject_epsilon_100",
        "federated/subject_epsilon_note",
    }
    assert b"not for release" in found[2, "federated/subject_epsilon_note"][0].item()
    histogram, plugin = found[1, "federated/group_sizes"]
    assert plugin == "histograms"
    # Size 1, size 2, sizes 3 and 4, sizes 5 to 8.
    assert histogram.tolist() == [[1, 2, 15], [2, 3, 6], [3, 5, 0], [5, 9, 4]]


def test_no_histogram_of_nobody(built, tmp_path):
    process, state = again(built)
    with rounds.RoundLog(process, tensorboard=tmp_path, progress=False, epsilon_every=0) as log:
        log.write(state_after(state, 1), metrics_of(sizes=[0.0] * 16))
        log.write(state_after(state, 2), metrics_of(sizes=[0.0] * 15 + [7.0]))
    found = events_of(tmp_path)
    assert (1, "federated/silos") in found and (1, "federated/group_sizes") not in found
    assert found[2, "federated/group_sizes"][0][-1].tolist() == [16385, 32769, 7]
    assert (1, "federated/epsilon") not in found


# -- the bar --------------------------------------------------------------------------------------


def drawn(text):
    return [line for line in text.getvalue().replace("\n", "\r").split("\r") if line.strip()]


def test_the_bar_starts_at_what_was_spent_and_shows_three_figures(built, federation):
    process, state = again(built)
    state = rounds.run(process, state, federation.datasets(), rounds=3)
    text, figures = io.StringIO(), []
    with rounds.RoundLog(process, file=text) as log:
        rounds.run(
            process,
            state,
            federation.datasets(),
            rounds=1,
            log=log,
            on_round=lambda state, found: figures.append(found),
        )
    first, last = drawn(text)[0], drawn(text)[-1]
    assert " 3/12 " in first and " 4/12 " in last
    assert f"accuracy={figures[0]['accuracy']:.4g}" in last
    assert f"loss={figures[0]['loss']:.4g}" in last
    shown = float(last.split("epsilon=")[1].rstrip("]"))
    assert 0.0 <= shown - process.epsilon(log.state) < 1e-3


def test_the_bar_never_shows_an_old_epsilon_as_a_new_one(built):
    process, state = again(built)
    text = io.StringIO()
    with rounds.RoundLog(process, file=text, epsilon_every=2) as log:
        log.write(state_after(state, 1), metrics_of())
        assert "epsilon" not in drawn(text)[-1] and " 1/12 " in drawn(text)[-1]
        epsilon = log.write(state_after(state, 2), metrics_of())["epsilon"]
        assert "(round" not in drawn(text)[-1]
        log.write(state_after(state, 3), metrics_of())
        shown = drawn(text)[-1].split("epsilon=")[1]
    assert shown.endswith(" (round 2)]") and 0.0 <= float(shown.split()[0]) - epsilon < 1e-3


def test_without_tqdm_the_error_says_what_to_do(built, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match="needs tqdm.*pip install tqdm, or progress=False"):
        rounds.RoundLog(built[0])
    rounds.RoundLog(built[0], progress=False)


# -- the loop -------------------------------------------------------------------------------------


def test_a_function_gives_each_round_its_silos_and_all_rounds_are_run(built, federation):
    process, state = again(built)
    data, asked, seen = federation.datasets(), [], []
    names = process.plan.names

    def silos_of(number):
        asked.append(number)
        return {names[number % 4]: data[number % 4], names[-1 - number % 3]: data[-1 - number % 3]}

    state = rounds.run(process, state, silos_of, rounds=2)
    # With what was asked for: round 1 has silos 1 and 2, round 2 silos 2 and 1.
    assert process.spent(state).of_silos == (0, 2, 2, 0)
    state = rounds.run(
        process,
        state,
        lambda number: asked.append(number) or data,
        on_round=lambda state, figures: seen.append(figures),
    )
    assert asked == list(range(1, 13))
    assert [figures["round"] for figures in seen] == list(range(3, 13))
    assert all("epsilon" not in figures and figures["silos"] == 3 for figures in seen)
    assert process.spent(state).rounds == 12
    # Nothing is left, and nothing is run.
    assert rounds.run(process, state, lambda number: pytest.fail("a round too many")) is state


def test_a_refused_round_loses_nothing(built, federation, tmp_path):
    process, state = again(built)
    data = federation.datasets()

    def silos_of(number):
        return data if number != 3 else [data[0], None, None, None]

    log = rounds.RoundLog(process, csv=tmp_path / "run.csv", progress=False)
    with pytest.raises(ValueError, match="1 silos can take part.*at least 2") as caught:
        rounds.run(process, state, silos_of, log=log)
    kept = caught.value.state
    assert kept is log.state and sdp.federated.spent_in(kept).rounds == 2
    state = rounds.run(process, kept, data, rounds=1, log=log)
    assert [line["round"] for line in lines_of(tmp_path / "run.csv")] == ["1", "2", "3"]
    assert sdp.federated.spent_in(state).rounds == 3


def test_an_interrupted_loop_hands_out_the_state_of_the_last_whole_round(built, federation):
    process, state = again(built)
    calls = itertools.count(1)

    def stop(state, figures):
        if next(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        rounds.run(process, state, federation.datasets(), on_round=stop)
    assert sdp.federated.spent_in(caught.value.state).rounds == 2


@pytest.mark.parametrize("asked", [0, -1, 2.5, True, "3"])
def test_a_number_of_rounds_is_whole_and_positive(built, asked):
    with pytest.raises(ValueError, match="rounds=.* must be a whole number of at least 1"):
        rounds.run(*again(built), [], rounds=asked)


def test_more_rounds_than_the_plan_has_are_refused_before_the_first(built):
    process, state = again(built)
    with pytest.raises(ValueError, match="rounds=6, but 7 of the plan's 12 .* and 5 are left"):
        rounds.run(process, state_after(state, 7), pytest.fail, rounds=6)


@pytest.mark.parametrize("name", ["epsilon_every", "distribution_every"])
@pytest.mark.parametrize("value", [-1, 1.5, True, None])
def test_a_log_refuses_steps_that_are_none(built, name, value):
    with pytest.raises(ValueError, match=f"{name}={value} must be a whole number of at least 0"):
        rounds.RoundLog(built[0], progress=False, **{name: value})


def test_a_log_asks_for_delta_before_the_first_round(built):
    process, _ = again(built, delta=None)
    with pytest.raises(ValueError, match="delta is missing"):
        rounds.RoundLog(process, progress=False)
    with pytest.raises(ValueError, match="delta"):
        rounds.RoundLog(process, progress=False, delta=1.0)
    rounds.RoundLog(process, progress=False, delta=1e-5)
    rounds.RoundLog(process, progress=False, epsilon_every=0)
