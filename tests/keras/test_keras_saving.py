# SPDX-License-Identifier: Apache-2.0
"""The step count that epsilon depends on survives every way of saving, or the way is refused."""

import os
import pathlib
import subprocess
import sys
import textwrap

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
def test_two_halves_with_a_new_process_between_cost_as_much_as_one_run(box, tmp_path):
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
        import tf_subjectdp.keras
        model = tf.keras.models.load_model({path!r})
        assert model.optimizer.steps_taken == 500
        x = np.ones((1000, 3), np.float32)
        model.fit(model.plan.dataset(x, x[:, :1], np.arange(1000)).take(500), verbose=0)
        model.save({path!r})
    """
    root = str(pathlib.Path(sdp.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
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
