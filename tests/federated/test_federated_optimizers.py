# SPDX-License-Identifier: Apache-2.0
"""Keras optimizers as TFF's: the same updates, or a refusal."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tf_subjectdp.federated.optimizers import as_tff_optimizer, is_plain_sgd

keras = tf.keras.optimizers


def updates_of_keras(optimizer, gradients):
    variable = tf.Variable(tf.ones([4]))
    for gradient in gradients:
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
    return variable.numpy()


def updates_of_tff(optimizer, gradients):
    weights = tf.ones([4])
    state = optimizer.initialize(tf.TensorSpec([4], tf.float32))
    for gradient in gradients:
        state, weights = optimizer.next(state, weights, tf.constant(gradient))
    return np.asarray(weights)


SCHEDULE = keras.schedules.PiecewiseConstantDecay([2], [0.5, 0.05])


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.SGD(0.3),
        lambda: keras.SGD(0.3, momentum=0.8),
        lambda: keras.SGD(SCHEDULE),
        lambda: keras.Adam(0.1, beta_1=0.8, beta_2=0.95),
        lambda: keras.Adam(SCHEDULE),
        lambda: keras.Adagrad(0.2),
        lambda: keras.RMSprop(0.05, rho=0.8),
    ],
)
def test_the_functional_one_makes_the_same_updates(make):
    gradients = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    found = updates_of_tff(as_tff_optimizer(make(), "client_optimizer"), gradients)
    np.testing.assert_allclose(found, updates_of_keras(make(), gradients), rtol=1e-4, atol=1e-5)


def test_names_functions_and_tffs_own_are_taken():
    assert as_tff_optimizer("sgd", "o").next is not None
    made = as_tff_optimizer(lambda: keras.SGD(0.5), "o")
    assert updates_of_tff(made, np.ones([1, 4], np.float32)) == pytest.approx(np.full(4, 0.5))
    own = tff.learning.optimizers.build_yogi(0.1)
    assert as_tff_optimizer(own, "o") is own


@pytest.mark.parametrize(
    ("optimizer", "match"),
    [
        (keras.SGD(0.1, momentum=0.5, nesterov=True), "nesterov=True"),
        (keras.Adam(0.1, amsgrad=True), "amsgrad=True"),
        (keras.SGD(0.1, clipnorm=1.0), "clipnorm=1.0"),
        (keras.SGD(0.1, weight_decay=0.01), "weight_decay=0.01"),
        (keras.RMSprop(0.1, momentum=0.5), "momentum has no equivalent"),
    ],
)
def test_what_the_functional_one_does_not_know_is_refused(optimizer, match):
    with pytest.raises(ValueError, match=match):
        as_tff_optimizer(optimizer, "server_optimizer")


@pytest.mark.parametrize("optimizer", [keras.Nadam(0.1), 3, keras.legacy.SGD(0.1)])
def test_other_optimizers_are_refused(optimizer):
    with pytest.raises(TypeError, match="server_optimizer is of type"):
        as_tff_optimizer(optimizer, "server_optimizer")


def test_plain_sgd_is_told_apart():
    for optimizer in (keras.SGD(0.1), keras.SGD(3.0, momentum=0.9), keras.SGD(SCHEDULE)):
        assert is_plain_sgd(as_tff_optimizer(optimizer, "o"))  # in one step from a fresh state
    for optimizer in (keras.Adam(0.1), keras.Adagrad(0.1), keras.RMSprop(0.1)):
        assert not is_plain_sgd(as_tff_optimizer(optimizer, "o"))
