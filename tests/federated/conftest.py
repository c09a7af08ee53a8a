# SPDX-License-Identifier: Apache-2.0
"""A small federation, and models for its silos."""

import collections
import contextlib
import importlib.util

import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp

FEATURES, CLASSES = 3, 2

# TFF has releases for Python 3.11 only: elsewhere the tests of what needs it are not collected.
if importlib.util.find_spec("tensorflow_federated") is None:
    collect_ignore = [
        f"test_federated_{name}.py"
        for name in (
            "elements",
            "in_process",
            "models",
            "noise",
            "optimizers",
            "process",
            "remote",
            "rounds",
            "runs",
        )
    ]


class Federation:
    """People spread over silos, with labels; `silos` is how many."""

    def __init__(self, silos: int = 4, people: int = 12, rows: int = 96, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.silo = np.concatenate([np.arange(silos), rng.integers(0, silos, rows - silos)])
        self.subject = rng.integers(0, people, rows)
        self.x = rng.standard_normal((rows, FEATURES)).astype(np.float32)
        self.y = (self.x[:, 0] + 0.3 * rng.standard_normal(rows) > 0).astype(np.int64)
        self.stats = sdp.SiloStats.from_ids(self.subject, self.silo)

    def rows_of(self, silo, keep=None):
        found = self.silo == silo
        return found if keep is None else found & keep

    def arrays(self, silo, keep=None):
        rows = self.rows_of(silo, keep)
        return collections.OrderedDict(
            x=self.x[rows], y=self.y[rows], subject_id=self.subject[rows]
        )

    def datasets(self, keep=None):
        return [tf.data.Dataset.from_tensor_slices(self.arrays(i, keep)) for i in self.stats.names]

    def full_batches(self):
        """One sampler a silo whose batches are all of the silo's rows: no coins are tossed."""
        return [sdp.PoissonItems(self.stats.silo(i).n_items) for i in range(self.stats.n_silos)]


@pytest.fixture(scope="session")
def federation():
    return Federation()


SPEC = (tf.TensorSpec([None, FEATURES], tf.float32), tf.TensorSpec([None], tf.int64))


def keras_model(regularizer=None):
    """A model whose first weights are the same at every call."""
    start = tf.keras.initializers.Constant
    weights = np.linspace(-0.5, 0.5, FEATURES * CLASSES).reshape(FEATURES, CLASSES)
    return tf.keras.Sequential(
        [
            tf.keras.Input([FEATURES]),
            tf.keras.layers.Dense(
                CLASSES, kernel_initializer=start(weights), kernel_regularizer=regularizer
            ),
        ]
    )


def keras_silo():
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return sdp.federated.KerasSilo(keras_model(), loss, SPEC)


@pytest.fixture(scope="session")
def model_fn():
    return keras_silo


@pytest.fixture(scope="session")
def make_keras():
    return keras_model


@pytest.fixture(scope="session")
def spec():
    return SPEC


@pytest.fixture(scope="session")
def installed():
    """Installs one of TFF's contexts in a `with`, and ends its worker behind it."""
    import tensorflow_federated as tff

    from tf_subjectdp.federated.learning_process import end_local_worker

    @contextlib.contextmanager
    def install(context):
        with tff.framework.get_context_stack().install(context):
            yield
        end_local_worker(context)

    return install
