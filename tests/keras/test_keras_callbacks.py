# SPDX-License-Identifier: Apache-2.0
"""Callbacks: a budget is never overspent, epsilon is never shown too low, a crash never lowers it."""

import dataclasses
import json
import math
import subprocess
import sys

import pytest
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp.keras.callbacks import uncovered


@pytest.fixture(scope="module")
def long_plan(box):
    return box.plan(sampling=sdp.PoissonItems(15), steps=12)


@pytest.mark.parametrize("per_execution, taken", [(1, 5), (2, 4), (4, 4)])
def test_a_budget_stops_before_the_step_that_would_overspend_it(
    box, long_plan, per_execution, taken, caplog
):
    budget = long_plan.epsilon(steps=5) * 1.0001
    assert budget < long_plan.epsilon(steps=6)
    model = box.compiled(long_plan, steps_per_execution=per_execution)
    callback = sdp.PrivacyBudget(budget)
    model.fit(box.data(long_plan), verbose=0, callbacks=[callback])
    assert model.optimizer.steps_taken == taken
    said = f"allows 5 steps of the plan's 12, and {taken} are counted"
    assert said in callback.stopped and callback.stopped in caplog.messages
    with pytest.raises(
        ValueError, match=f"{taken} steps are taken, and a budget of epsilon=.*Raise"
    ):
        model.fit(box.data(long_plan).take(4), verbose=0, callbacks=[sdp.PrivacyBudget(budget)])
    assert model.optimizer.steps_taken == taken


@pytest.mark.parametrize("verbose", [1, 2])
def test_the_progress_bar_ends_where_a_budget_stops(box, long_plan, verbose, capsys):
    model = box.compiled(long_plan)
    budget = sdp.PrivacyBudget(long_plan.epsilon(steps=5) * 1.0001)
    model.fit(box.data(long_plan), verbose=verbose, callbacks=[budget])
    said = capsys.readouterr().out
    assert "5/5" in said and "12/12" not in said


def test_a_budget_per_item_allows_more_steps(box, long_plan):
    budget = long_plan.epsilon(steps=3)
    model = box.compiled(long_plan)
    model.fit(box.data(long_plan), verbose=0, callbacks=[sdp.PrivacyBudget(budget, unit="item")])
    assert model.optimizer.steps_taken > 3
    assert long_plan.epsilon(unit="item", steps=model.optimizer.steps_taken) <= budget


def test_a_budget_counts_a_begun_shuffled_epoch_whole(box):
    """Two of four steps taken; a new pass would begin the second epoch, for which there is nothing."""
    plan = box.plan(sampling=sdp.Shuffle(16), steps=12, noise_multiplier=20.0)
    budget = plan.epsilon(steps=4)
    model = box.fitted(plan, take=2)
    with pytest.raises(ValueError, match="4 steps are taken, and a budget"):
        model.fit(box.data(plan).take(2), verbose=0, callbacks=[sdp.PrivacyBudget(budget)])
    other = box.compiled(plan)
    other.fit(box.data(plan).take(2), epochs=2, verbose=0, callbacks=[sdp.PrivacyBudget(budget)])
    assert other.optimizer.steps_taken == 2
    assert plan.epsilon(steps=other.optimizer.steps_at_new_pass) <= budget


@pytest.mark.parametrize("epsilon", [0, -1.0, math.nan, math.inf, "4"])
def test_a_budget_out_of_range_is_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon=.* must be a finite number above 0"):
        sdp.PrivacyBudget(epsilon)


def test_a_budget_with_a_delta_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"delta=1\.0 must be a number strictly"):
        sdp.PrivacyBudget(1.0, delta=1.0)


def test_epsilon_in_the_history_is_never_too_low(box):
    plan = box.plan(sampling=sdp.PoissonItems(20), steps=50)
    model = box.compiled(plan)
    history = model.fit(
        box.data(plan),
        steps_per_epoch=10,
        epochs=5,
        verbose=0,
        callbacks=[sdp.PrivacyScalars()],
    ).history
    for epoch, shown in enumerate(history["epsilon"]):
        assert shown >= plan.epsilon(steps=10 * (epoch + 1))
        assert shown <= plan.epsilon(steps=min(10 * (epoch + 1) + 3, 50)) * (1 + 1e-5)
    assert history["epsilon"] == sorted(history["epsilon"])
    assert {"clipped", "signal_to_noise"} <= set(history)
    # Only where the callback is: no key, and no stale one, without it.
    longer = model.extend_plan(steps=52)
    assert "epsilon" not in model.fit(box.data(longer).take(1), verbose=0).history


def test_epsilon_alone_reaches_tensorboard(box, long_plan, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    scalars = [sdp.PrivacyScalars(str(tmp_path)), tf.keras.callbacks.TensorBoard(str(tmp_path))]
    box.fitted(long_plan, callbacks=scalars)
    (file,) = (tmp_path / "privacy").glob("events*")
    tags = {
        value.tag
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    }
    assert {tag for tag in tags if tag.startswith("privacy")} == {"privacy/epsilon"}


@pytest.mark.parametrize(
    "callback", [sdp.PrivacyBudget(1.0), sdp.PrivacyScalars(), sdp.PrivacyLedger("unused.json")]
)
def test_a_callback_without_a_plan_says_what_it_needs(box, callback):
    model = sdp.PrivateModel(box.net())
    optimizer = sdp.DPOptimizer("sgd", sdp.HiGradAvg(1.0), noise_multiplier=1.0)
    model.compile(optimizer=optimizer, loss="mse")
    data = tf.data.Dataset.from_tensors((box.x, box.y, {"subject": box.ids}))
    with pytest.raises(ValueError, match="needs a model whose optimizer has a plan"):
        model.fit(data, verbose=0, callbacks=[callback])


@pytest.mark.parametrize("reserve, per_execution", [(1, 1), (3, 1), (50, 1), (1, 2)])
def test_a_crash_never_lowers_epsilon_and_costs_at_most_the_reserve(
    box, long_plan, tmp_path, reserve, per_execution
):
    path = tmp_path / "ledger.json"
    model = box.compiled(long_plan, steps_per_execution=per_execution)
    crash = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: model.optimizer.steps_taken >= 5 and 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        model.fit(
            box.data(long_plan), verbose=0,
            callbacks=[sdp.PrivacyLedger(path, reserve=reserve), crash],
        )  # fmt: skip
    taken = model.optimizer.steps_taken
    counted = json.loads(path.read_text())["steps"]
    assert taken <= counted <= taken + max(reserve, per_execution)
    fresh = box.compiled(long_plan.extended(steps=70))
    fresh.fit(box.data(long_plan).take(1), verbose=0, callbacks=[sdp.PrivacyLedger(path)])
    assert fresh.optimizer.steps_taken == counted + 1
    assert json.loads(path.read_text())["steps"] == counted + 1
    assert f"{counted + 1} of 70" in " ".join(fresh.privacy_statement().split())


@pytest.mark.parametrize("length", [{}, {"steps_per_epoch": 4, "epochs": 3}, {"take": 12}])
def test_a_resumed_run_takes_what_the_ledger_leaves_and_ends_quietly(
    box, long_plan, tmp_path, length, recwarn, capfd
):
    ledger = sdp.PrivacyLedger(tmp_path / "ledger.json", reserve=1)
    box.fitted(long_plan, take=7, callbacks=[ledger])
    fresh, data = box.compiled(long_plan), box.data(long_plan)
    data = data.take(length.pop("take")) if "take" in length else data
    fresh.fit(data, verbose=0, callbacks=[ledger], **length)
    assert fresh.optimizer.steps_taken == 12
    assert not [w for w in recwarn if "ran out of data" in str(w.message)]
    assert "ran out of data" not in capfd.readouterr().err
    with pytest.raises(ValueError, match="by its ledger all 12 steps of the plan are taken"):
        box.fitted(long_plan, callbacks=[sdp.PrivacyLedger(ledger.path)])


def test_a_ledger_does_not_let_fit_ask_for_more_than_the_plan(box, long_plan, tmp_path):
    callbacks = [sdp.PrivacyLedger(tmp_path / "ledger.json")]
    with pytest.raises(ValueError, match="fit asks for 24 steps, and 12 of the plan's 12 are left"):
        box.compiled(long_plan).fit(box.data(long_plan), epochs=2, callbacks=callbacks)


def test_a_ledger_has_one_writer(box, long_plan, tmp_path):
    pytest.importorskip("fcntl", reason="another system's lock")
    path = tmp_path / "ledger.json"
    second = box.compiled(long_plan)
    found = []

    def fit_again(ledger):
        with pytest.raises(ValueError, match="ledger.json is in use by another training"):
            second.fit(box.data(long_plan), verbose=0, callbacks=[ledger])
        found.append(second.optimizer.steps_taken)

    first, other = sdp.PrivacyLedger(path), sdp.PrivacyLedger(path)
    meanwhile = tf.keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: [fit_again(ledger) for ledger in (first, other)]
    )
    box.fitted(long_plan, take=1, callbacks=[first, meanwhile])
    assert found == [0, 0]
    lock = path.with_name("ledger.json.lock")
    script = (
        f"import fcntl, time; f = open({str(lock)!r}); fcntl.flock(f, fcntl.LOCK_EX); "
        "print(flush=True); time.sleep(99)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        fit_again(first)
        process.kill()
    second.fit(box.data(long_plan).take(1), verbose=0, callbacks=[first])
    assert second.optimizer.steps_taken == 2


def test_callbacks_in_a_nest_are_callbacks_of_fit(box, long_plan, tmp_path):
    """A ledger is opened, and what decides is named, wherever it stands."""
    ledger, model = sdp.PrivacyLedger(tmp_path / "ledger.json"), box.compiled(long_plan)
    mine = type("Mine", (K.Callback,), {"callbacks": [], "on_train_end": lambda self, _: None})()
    nest = [K.CallbackList([K.TerminateOnNaN()]), {"a": [ledger], "b": (mine,)}]
    model.fit(box.data(long_plan).take(1), verbose=0, callbacks=nest)
    stop, own = first_paragraphs(model)
    assert "TerminateOnNaN saw loss" in stop and "Mine saw losses" in own
    assert ledger.path.with_name("ledger.json.lock").exists()


K, K_METRICS = tf.keras.callbacks, tf.keras.metrics


def seeing(callback, **methods):
    """A callback with methods put in by hand."""
    vars(callback).update(methods)
    return callback


@pytest.mark.parametrize(
    "callback, said, said_if_public",
    [
        (K.EarlyStopping("loss"), "EarlyStopping saw loss,", "EarlyStopping saw loss,"),
        (K.EarlyStopping("val_loss"), "EarlyStopping saw val_loss", "ON THE USER'S WORD"),
        (K.ReduceLROnPlateau(), "ReduceLROnPlateau saw val_loss", "ON THE USER'S WORD"),
        (K.EarlyStopping("epsilon", mode="min"), None, None),
        (K.TerminateOnNaN(), "TerminateOnNaN saw loss", "TerminateOnNaN saw loss"),
        (K.ModelCheckpoint("a.keras"), None, None),
        (K.ModelCheckpoint("{epoch:02d}.keras", save_freq=3), None, None),
        (K.ModelCheckpoint("{mae:.2f}.keras"), "wrote mae", "wrote mae"),
        (K.ModelCheckpoint("{val_mae:.2f}.keras"), "wrote val_mae", None),
        (K.ModelCheckpoint("a.keras", save_best_only=True), "saw val_loss", "USER'S WORD"),
        (K.CSVLogger("a.csv"), "CSVLogger wrote losses", "CSVLogger wrote losses"),
        (K.TensorBoard("logs"), "TensorBoard wrote losses", "TensorBoard wrote losses"),
        (K.LambdaCallback(), "LambdaCallback saw losses", "LambdaCallback saw losses"),
        (type("Mine", (K.EarlyStopping,), {})("val_a"), "Mine saw losses", "Mine saw losses"),
        (seeing(K.Callback(), on_epoch_end=print), "Callback saw losses", "Callback saw losses"),
        (
            seeing(sdp.PrivacyScalars(), set_params=print),
            "Scalars saw losses",
            "Scalars saw losses",
        ),
        (K.LearningRateScheduler(lambda epoch: 0.1), "ASSUMED, not looked", "ASSUMED, not looked"),
        (K.ModelCheckpoint("{lr:{val_mae}}.keras"), "wrote val_mae", None),
        (K.BackupAndRestore("backup"), None, None),
        (sdp.PrivacyBudget(1.0), None, None),
    ],
)
def test_callbacks_that_see_the_data_are_named(callback, said, said_if_public):
    for public, wanted in ((False, said), (True, said_if_public)):
        found = " ".join(uncovered([callback], public))
        assert wanted in found if wanted else found == ""


def test_the_statement_begins_with_the_callbacks_that_no_figure_covers(box, long_plan, tmp_path):
    model, path = box.compiled(long_plan), str(tmp_path / "kept.keras")
    options = {"steps_per_epoch": 2, "verbose": 0, "validation_data": (box.x, box.y)}
    stop = K.EarlyStopping("val_loss", patience=9)
    with pytest.raises(ValueError, match="allows 0"):
        model.fit(box.data(long_plan), callbacks=[stop, sdp.PrivacyBudget(1e-9)], **options)
    assert first_paragraphs(model) == []  # nothing was decided
    keep = K.ModelCheckpoint(path)
    model.fit(box.data(long_plan), callbacks=[stop, keep], public_validation=True, **options)
    (paragraph,) = first_paragraphs(model)
    assert "EarlyStopping decided by val_loss" in paragraph and paragraph.startswith(
        "ON THE USER'S WORD"
    )
    model.fit(box.data(long_plan), callbacks=K.CallbackList([stop, keep]), **options)
    model.fit(box.data(long_plan), callbacks=[K.TerminateOnNaN()], **options)
    for each in (model, tf.keras.models.load_model(path)):
        found = first_paragraphs(each)
        assert "EarlyStopping saw val_loss, which nobody noised" in found[1]
    assert "TerminateOnNaN saw loss" in first_paragraphs(model)[2]


def test_a_monitor_that_changes_during_fit_is_named_as_well(box, long_plan):
    model, stop = box.compiled(long_plan), K.EarlyStopping("val_loss", patience=9)
    others = iter(["loss", "epsilon", "val_loss"])

    def schedule(epoch, rate):
        stop.monitor = next(others)
        return rate

    model.fit(
        box.data(long_plan), steps_per_epoch=1, epochs=3, verbose=0, public_validation=True,
        validation_data=(box.x, box.y), callbacks=[K.LearningRateScheduler(schedule), stop],
    )  # fmt: skip
    assumed, word, saw = first_paragraphs(model)
    assert "the learning rates that the callback LearningRateScheduler set depend on" in assumed
    assert "EarlyStopping decided by val_loss, which then costs nothing" in word
    assert "EarlyStopping saw loss, which nobody noised" in saw


def test_a_comparison_of_ones_own_decides_by_anything(box, long_plan):
    model, stop = box.compiled(long_plan), K.EarlyStopping("val_loss", patience=9)
    stop.monitor_op = lambda now, best: now < best  # it could look at anything
    model.fit(
        box.data(long_plan), steps_per_epoch=1, epochs=2, verbose=0, public_validation=True,
        validation_data=(box.x, box.y), callbacks=[stop],
    )  # fmt: skip
    assert "NOT COVERED" in first_paragraphs(model)[0]


@pytest.mark.parametrize("name", ["lr", "epoch", "epsilon", "val_error"])
def test_no_figure_of_the_training_data_has_a_name_of_others(box, long_plan, name):
    model = box.compiled(long_plan, metrics=[K_METRICS.MeanSquaredError(name=name)])
    with pytest.raises(ValueError, match=f"is called '{name}', .*Give the metric .*another name"):
        model.fit(
            box.data(long_plan), verbose=0, callbacks=[sdp.PrivacyScalars(), K.EarlyStopping(name)]
        )
    assert model.optimizer.steps_taken == 0


def test_no_output_is_called_as_a_figure_of_the_validation_data(box, long_plan):
    layer = tf.keras.layers.Dense(1, name="val_a")
    given = tf.keras.Input([3])
    model = box.compiled(
        long_plan, tf.keras.Model(given, [layer(given), tf.keras.layers.Dense(1)(given)])
    )
    data = long_plan.dataset(box.x, (box.y, box.y), box.ids)
    with pytest.raises(ValueError, match="is called 'val_a_loss', .*the output another name"):
        model.fit(data, verbose=0)


def first_paragraphs(model):
    """What a statement says between its title and its first figure."""
    paragraphs = [" ".join(p.split()) for p in model.privacy_statement().split("\n\n")]
    figures = [number for number, text in enumerate(paragraphs) if text.startswith("Per ")]
    return paragraphs[1 : figures[0]]


def test_keras_gives_no_advice_that_is_refused(box, long_plan, recwarn, capfd):
    """To shuffle or to repeat the data would change the sampling."""
    model = box.compiled(long_plan)
    model.fit(box.data(long_plan), steps_per_epoch=5, epochs=3, verbose=0)
    assert model.optimizer.steps_taken == 12
    said = " ".join(str(w.message) for w in recwarn) + capfd.readouterr().err
    assert "shuffle" not in said and "repeat" not in said


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", '{"steps": "many", "plan": 1}', '{"steps": 3}'),
        '{"steps": 3, "plan": 1, "releases": {"runs": []}}',
    ],
)
def test_a_corrupted_ledger_is_refused_and_left_alone(box, long_plan, tmp_path, text):
    path = tmp_path / "ledger.json"
    path.write_text(text)
    model = box.compiled(long_plan)
    for _ in range(2):  # the first try keeps no lock
        with pytest.raises(ValueError, match="not a ledger of this library.*name another file"):
            model.fit(box.data(long_plan), verbose=0, callbacks=[sdp.PrivacyLedger(path)])
    assert path.read_text() == text and model.optimizer.steps_taken == 0


def test_a_ledger_of_another_plan_is_refused(box, long_plan, tmp_path):
    path = tmp_path / "ledger.json"
    for other in (
        box.plan(sampling=sdp.PoissonItems(16)),
        dataclasses.replace(long_plan, noise_multiplier=9.0),
    ):
        path.write_text(json.dumps({"steps": 3, "plan": other.identity}))
        with pytest.raises(ValueError, match="belongs to another plan"):
            box.compiled(long_plan).fit(
                box.data(long_plan), verbose=0, callbacks=[sdp.PrivacyLedger(path)]
            )


@pytest.mark.parametrize("reserve", [0, -1, 2.5, True])
def test_a_reserve_out_of_range_is_refused(reserve):
    with pytest.raises(ValueError, match="reserve=.* must be an integer of at least 1"):
        sdp.PrivacyLedger("ledger.json", reserve=reserve)
