# SPDX-License-Identifier: Apache-2.0
"""A small table, small plans and small models for the Keras tests."""

import os
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp

KERAS_3 = int(tf.__version__.split(".")[1]) >= 16


class Toolbox:
    """60 rows of 12 people, five each, and what is made of them."""

    keras_3 = KERAS_3

    def __init__(self):
        rng = np.random.default_rng(7)
        self.x = rng.normal(size=(60, 3)).astype(np.float32)
        self.y = (self.x.sum(axis=1, keepdims=True) > 0).astype(np.float32)
        self.ids = np.arange(60) % 12
        self.stats = sdp.SubjectStats.from_ids(self.ids)

    def plan(self, algorithm=None, sampling=None, **options):
        options = {"steps": 4, "noise_multiplier": 1.0, "delta": 1e-3, **options}
        return sdp.plan(
            algorithm or sdp.HiGradAvg(clip_norm=1.0),
            sampling or sdp.PoissonItems(expected_batch_size=16),
            self.stats,
            **options,
        )

    def exact_plan(self, algorithm=None, **options):
        """Everybody in every step, no noise, hardly a clip: what an ordinary full batch does."""
        return self.plan(
            algorithm or sdp.ItemDP(clip_norm=1e6),
            sdp.PoissonItems(60),
            noise_multiplier=0.0,
            **options,
        )

    def data(self, plan, **options):
        return plan.dataset(self.x, self.y, self.ids, **options)

    def net(self, units=1, **options):
        layers = [tf.keras.layers.Input([3]), tf.keras.layers.Dense(units, **options)]
        return tf.keras.Sequential(layers)

    def compiled(self, plan, net=None, inner=None, *, engine="loop", loss="mse", **options):
        inner = tf.keras.optimizers.SGD(0.1) if inner is None else inner
        model = sdp.PrivateModel(self.net() if net is None else net)
        optimizer = plan.optimizer(inner, engine={"strategy": engine})
        model.compile(optimizer=optimizer, loss=loss, **options)
        return model

    def fitted(self, plan, *args, take=None, callbacks=None, **options):
        model = self.compiled(plan, *args, **options)
        data = self.data(plan) if take is None else self.data(plan).take(take)
        model.fit(data, verbose=0, callbacks=callbacks)
        return model


@pytest.fixture(scope="session")
def box():
    return Toolbox()


@pytest.fixture(scope="session")
def plan(box):
    """Four Poisson steps with noise 1."""
    return box.plan()


@pytest.fixture(autouse=True)
def clean_keras():
    yield
    tf.keras.backend.clear_session()


@pytest.fixture
def in_a_new_process():
    """Runs a script in a process of its own, where only this library is found."""
    root = str(pathlib.Path(sdp.__file__).parents[1])

    def run(script):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env={**os.environ, "PYTHONPATH": root, "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]

    return run
