# SPDX-License-Identifier: Apache-2.0
"""The step count that epsilon depends on survives every way of saving, or the way is refused."""

import io
import pickle
import re
import zipfile

import h5py
import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp

ADAM = tf.keras.optimizers.Adam


@tf.keras.utils.register_keras_serializable("tests")
class Small(tf.keras.Model):
    """A subclassed model."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = tf.keras.layers.Dense(1)

    def build(self, shape):
        self.dense.build(shape)
        self.built = True

    def call(self, inputs):
        return self.dense(inputs)

    def get_config(self):
        return {}


def same_weights(left, right):
    pairs = zip(left.get_weights(), right.get_weights(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def same_optimizer_state(left, right):
    values = [[np.asarray(v) for v in m.optimizer.variables] for m in (left, right)]
    return len(values[0]) == len(values[1]) and all(
        np.array_equal(a, b) for a, b in zip(*values, strict=True)
    )


def numbers(folder):
    """Every array in the files of a folder, by file and name."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.suffix == ".index":
            reader = tf.train.load_checkpoint(str(file.with_suffix("")))
            for key in reader.get_variable_to_shape_map():
                if key != "_CHECKPOINTABLE_OBJECT_GRAPH":
                    found[name, key] = np.asarray(reader.get_tensor(key))
        if file.suffix in (".h5", ".keras"):
            weights = file
            if file.suffix == ".keras":
                weights = io.BytesIO(zipfile.ZipFile(file).read("model.weights.h5"))
            with h5py.File(weights) as opened:
                opened.visititems(
                    lambda key, value, name=name: (
                        found.__setitem__((name, key), np.asarray(value[()]))
                        if isinstance(value, h5py.Dataset)
                        else None
                    )
                )
    return {place: without_random_names(value) for place, value in found.items()}


def without_random_names(value):
    """The record of releases names runs and weights by random numbers; the rest of it stays."""
    text = bytes(value) if value.dtype == np.uint8 else value.item() if value.ndim == 0 else b""
    if not isinstance(text, bytes) or not text.startswith(b"{"):
        return value
    return np.array(re.sub(rb'"[0-9a-f]{16,20}"', b'"#"', text))


@tf.keras.utils.register_keras_serializable("tests")
class Counts(tf.keras.layers.Layer):
    """Counts the rows that it is evaluated on."""

    def __init__(self, **options):
        super().__init__(**options)
        self.rows = tf.keras.metrics.Sum()

    def call(self, inputs, training=None):
        if not training:
            self.rows.update_state(tf.ones_like(inputs))
        return inputs


def test_no_saved_file_holds_metrics(tmp_path):
    """The weights stay, at a learning rate of 0, so 100 and 99 rows leave the same numbers."""
    stats = sdp.SubjectStats.public(n_items=100, n_subjects=100, max_items=1)
    plan = sdp.plan(
        sdp.HiGradAvg(1.0), sdp.PoissonItems(100), stats,
        steps=2, noise_multiplier=200.0, delta=1e-5,
    )  # fmt: skip
    found = {}
    for rows in (100, 99):
        folder = tmp_path / str(rows)
        folder.mkdir()
        x, y = np.ones((rows, 1), np.float32), np.arange(rows, dtype=np.float32)[:, np.newaxis]
        net = tf.keras.Sequential(
            [
                tf.keras.layers.Input([1]),
                Counts(),
                tf.keras.layers.Dense(1, kernel_initializer="ones"),
            ]
        )
        net.compile("sgd", "mse", metrics=["mae"])
        net.evaluate(x, y, verbose=0)
        model = sdp.PrivateModel(net)
        optimizer = plan.optimizer(tf.keras.optimizers.SGD(0.0), engine={"strategy": "loop"})
        model.compile(
            optimizer=optimizer, loss="mse", metrics=["mae"], weighted_metrics=["mse"]
        )  # fmt: skip
        callbacks = [
            tf.keras.callbacks.ModelCheckpoint(str(folder / "kept.keras")),
            tf.keras.callbacks.ModelCheckpoint(
                str(folder / "kept.weights.h5"), save_weights_only=True, save_freq=1
            ),
            tf.keras.callbacks.BackupAndRestore(str(folder / "backup"), delete_checkpoint=False),
        ]
        model.fit(
            plan.dataset(x, y, np.arange(rows)), steps_per_epoch=1, epochs=2, verbose=0,
            callbacks=callbacks, validation_data=(x, y),
        )  # fmt: skip
        model.evaluate(x[:1], y[:1] + rows, verbose=0)
        assert float(model.metrics[-1].result()) != 0.0
        model.save(str(folder / "model.keras"))
        tf.keras.models.save_model(model, str(folder / "function.keras"))
        (folder / "pickle.keras").write_bytes(pickle.dumps(model))
        model.save_weights(str(folder / "model.weights.h5"))
        if tf.__version__ < "2.16":
            model.save_weights(str(folder / "weights"))
        tf.train.Checkpoint(model=model).save(str(folder / "saved"))
        tf.train.Checkpoint(model).write(str(folder / "written"))
        model.export(str(folder / "exported"))
        with pytest.raises(ValueError, match="SavedModel of a PrivateModel loses the step count"):
            tf.saved_model.save(model, str(folder / "savedmodel"))
        found[rows] = numbers(folder)
    assert found[100].keys() == found[99].keys() and len(found[100]) > 40
    different = [k for k, value in found[100].items() if not np.array_equal(value, found[99][k])]
    assert not different


def test_a_saved_model_loads_without_custom_objects_and_goes_on(box, plan, tmp_path):
    """O7"""
    path = str(tmp_path / "model.keras")
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model = box.fitted(plan, None, ADAM(schedule), take=3, metrics=["mae"])
    model.save(path)
    loaded = tf.keras.models.load_model(path)
    assert type(loaded) is sdp.PrivateModel and loaded.plan == plan
    assert loaded.optimizer.steps_taken == 3 and int(loaded.optimizer.iterations.numpy()) == 3
    assert same_weights(model, loaded) and same_optimizer_state(model, loaded)
    assert "3 of 4 planned steps taken" in " ".join(loaded.privacy_statement().split())
    with pytest.raises(ValueError, match="1 of the plan's 4 are left"):
        loaded.fit(box.data(plan), verbose=0)
    loaded.fit(box.data(plan).take(1), verbose=0)
    assert loaded.optimizer.steps_taken == 4
    assert {"loss", "mae"} <= set(loaded.evaluate(box.x, box.y, verbose=0, return_dict=True))


def test_a_model_saved_before_its_first_step_loads_and_trains(box, plan, tmp_path):
    path = str(tmp_path / "model.keras")
    model = box.compiled(plan, None, ADAM())
    model(box.x)
    model.save(path)
    loaded = tf.keras.models.load_model(path)
    assert loaded.optimizer.steps_taken == 0
    loaded.fit(box.data(plan), verbose=0)
    assert loaded.optimizer.steps_taken == 4


def test_a_subclassed_model_saves_and_loads(box, plan, tmp_path):
    """O38"""
    path = str(tmp_path / "model.keras")
    model = box.fitted(plan, Small(), ADAM(), take=2)
    model.save(path)
    loaded = tf.keras.models.load_model(path)
    assert same_weights(model, loaded) and loaded.optimizer.steps_taken == 2
    loaded.fit(box.data(plan).take(2), verbose=0)


@pytest.mark.slow
def test_two_halves_with_a_new_process_between_cost_as_much_as_one_run(
    box, tmp_path, in_a_new_process
):
    """O15: 500 + 500 steps at q 0.01, sigma 1 and delta 1e-5: 1.8282, as for 1,000 steps."""
    path = str(tmp_path / "model.keras")
    ids = np.arange(1000)
    x = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    plan = sdp.plan(
        sdp.ItemDP(1.0),
        sdp.PoissonItems(10),
        sdp.SubjectStats.from_ids(ids),
        steps=1000,
        noise_multiplier=1.0,
        delta=1e-5,
    )
    model = box.compiled(plan, engine="vectorized")
    model.fit(plan.dataset(x, x[:, :1], ids).take(500), verbose=0)
    model.save(path)
    script = f"""
        import numpy as np, tensorflow as tf, tf_subjectdp as sdp
        model = tf.keras.models.load_model({path!r})
        assert model.optimizer.steps_taken == 500
        x = np.ones((1000, 3), np.float32)
        model.fit(model.plan.dataset(x, x[:, :1], np.arange(1000)).take(500), verbose=0)
        model.save({path!r})
    """
    in_a_new_process(script)
    resumed = tf.keras.models.load_model(path)
    assert resumed.optimizer.steps_taken == 1000
    epsilon = resumed.plan.epsilon(steps=resumed.optimizer.steps_taken)
    assert epsilon == plan.epsilon() == pytest.approx(1.8282, rel=1e-3)


def test_weights_files_hold_the_step_count(box, plan, tmp_path):
    path = str(tmp_path / "run.weights.h5")
    model = box.fitted(plan, None, ADAM(), take=2)
    model.save_weights(path)
    fresh = box.compiled(plan, None, ADAM())
    fresh.load_weights(path)
    assert fresh.optimizer.steps_taken == 2
    assert same_weights(model, fresh) and same_optimizer_state(model, fresh)


def test_tensorflow_checkpoints_hold_the_step_count(box, plan, tmp_path):
    path = str(tmp_path / "checkpoint")
    model = box.fitted(plan, None, ADAM(), take=2)
    tf.train.Checkpoint(model=model).write(path)
    fresh = box.compiled(plan, None, ADAM())
    fresh(box.x)
    tf.train.Checkpoint(model=fresh).read(path)
    assert fresh.optimizer.steps_taken == 2
    assert same_weights(model, fresh)
    if not box.keras_3:
        model.save_weights(path + "2")
        fresh = box.compiled(plan, None, ADAM())
        fresh.load_weights(path + "2")
        assert fresh.optimizer.steps_taken == 2


@pytest.mark.parametrize("name", ["model", "model.h5", "model.tf"])
def test_formats_that_lose_the_step_count_are_refused(box, plan, tmp_path, name):
    """O7: say which format holds it."""
    model = box.fitted(plan, take=1)
    with pytest.raises(ValueError, match=r"not a '.keras' file: .*lose the step count"):
        model.save(str(tmp_path / name))
    assert not list(tmp_path.iterdir())


def test_a_bare_h5_of_weights_is_refused(box, plan, tmp_path):
    model = box.fitted(plan, take=1)
    with pytest.raises(ValueError, match="weights.h5"):
        model.save_weights(str(tmp_path / "weights_only.h5"))


def test_a_state_without_the_step_count_is_refused(box, plan, tmp_path):
    path = str(tmp_path / "plain.weights.h5")
    plain = sdp.PrivateModel(box.net())
    plain(box.x)
    tf.keras.Model.save_weights(plain, path)
    fresh = box.compiled(plan, None, ADAM())
    with pytest.raises(ValueError, match="step count that privacy depends on cannot be restored"):
        fresh.load_weights(path)
    with pytest.raises(ValueError, match="the saved optimizer has 1 variables"):
        fresh.optimizer.set_weights([0])


def test_the_inner_model_serves_alone(box, plan, tmp_path):
    path = str(tmp_path / "serve.keras")
    net = box.net()
    model = box.fitted(plan, net)
    model.inner_model.save(path)
    served = tf.keras.models.load_model(path)
    np.testing.assert_allclose(
        served.predict(box.x, verbose=0), model.predict(box.x, verbose=0), rtol=1e-6
    )


@pytest.mark.slow
def test_a_saved_model_is_served_by_new_processes_with_the_library_and_without(
    box, plan, tmp_path, in_a_new_process
):
    model = box.fitted(plan)
    model.save(str(tmp_path / "private.keras"))
    model.inner_model.save(str(tmp_path / "inner.keras"))
    np.save(tmp_path / "x.npy", box.x)
    np.save(tmp_path / "served.npy", model.predict(box.x, verbose=0))
    in_a_new_process(f"""
        import tf_subjectdp
        import tensorflow as tf
        model = tf.keras.models.load_model({str(tmp_path / "private.keras")!r})
        assert type(model) is tf_subjectdp.PrivateModel and model.optimizer.steps_taken == 4
        model.export({str(tmp_path / "exported")!r})
    """)
    in_a_new_process(f"""
        import sys
        sys.modules["tf_subjectdp"] = None
        import numpy as np, tensorflow as tf
        x, wanted = np.load({str(tmp_path / "x.npy")!r}), np.load({str(tmp_path / "served.npy")!r})
        inner = tf.keras.models.load_model({str(tmp_path / "inner.keras")!r})
        np.testing.assert_allclose(inner.predict(x, verbose=0), wanted, rtol=1e-6)
        exported = tf.saved_model.load({str(tmp_path / "exported")!r})
        np.testing.assert_allclose(exported.serve(x), wanted, rtol=1e-6)
    """)


@pytest.mark.parametrize("name", ["best.keras", "epoch.weights.h5"])
def test_model_checkpoints_hold_the_step_count(box, tmp_path, name):
    plan = box.plan(sampling=sdp.PoissonItems(30), steps=4)
    path = str(tmp_path / name)
    model = box.compiled(plan, None, ADAM())
    keeper = tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=name.endswith("h5"))
    model.fit(box.data(plan), steps_per_epoch=2, epochs=1, verbose=0, callbacks=[keeper])
    if name.endswith("h5"):
        loaded = box.compiled(plan, None, ADAM())
        loaded.load_weights(path)
    else:
        loaded = tf.keras.models.load_model(path)
    assert loaded.optimizer.steps_taken == 2


class Crash(tf.keras.callbacks.Callback):
    """Raises in the middle of an epoch, after `after` batches."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise OSError("power cut")


def test_backup_and_restore_goes_on_with_the_step_count(box, tmp_path):
    plan = box.plan(sampling=sdp.PoissonItems(30), steps=6)
    options = {"steps_per_epoch": 2, "epochs": 3, "verbose": 0}

    def backup():
        return tf.keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))

    model = box.compiled(plan, None, ADAM())
    with pytest.raises(OSError, match="power cut"):
        model.fit(box.data(plan), callbacks=[backup(), Crash(5)], **options)
    again = box.compiled(plan, None, ADAM())
    history = again.fit(box.data(plan), callbacks=[backup()], **options)
    assert history.epoch == [2]
    assert again.optimizer.steps_taken == 6


@pytest.mark.parametrize("ledger_first", [True, False])
def test_a_ledger_counts_the_steps_that_a_backup_forgot(box, tmp_path, ledger_first):
    """Steps 5 and 6 were released and lost; whatever the callbacks' order, they stay counted."""
    plan = box.plan(sampling=sdp.PoissonItems(15), steps=12)
    options = {"steps_per_epoch": 4, "verbose": 0}

    def callbacks(*more):
        found = [
            sdp.PrivacyLedger(tmp_path / "ledger.json", reserve=1),
            tf.keras.callbacks.BackupAndRestore(str(tmp_path / "backup")),
        ]
        return [*(found if ledger_first else found[::-1]), *more]

    model = box.compiled(plan, None, ADAM())
    with pytest.raises(OSError, match="power cut"):
        model.fit(box.data(plan), callbacks=callbacks(Crash(6)), epochs=3, **options)
    spent = model.optimizer.steps_taken
    assert spent == 6
    again = box.compiled(plan, None, ADAM())
    again.fit(box.data(plan), callbacks=callbacks(), epochs=2, **options)
    # The second epoch runs anew, four steps beside the two that were lost.
    assert again.optimizer.steps_taken == spent + 4
    assert plan.epsilon(steps=again.optimizer.steps_taken) >= plan.epsilon(steps=10)
