# SPDX-License-Identifier: Apache-2.0
"""Layers that mix people or store them are refused by name; all others are allowed."""

import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp

L = tf.keras.layers


@tf.keras.utils.register_keras_serializable("tests")
class RunningMean(L.Layer):
    """Keeps a running mean of its inputs: data in a variable, without noise."""

    def build(self, shape):
        self.mean = self.add_weight(
            name="running_mean", shape=[shape[-1]], initializer="zeros", trainable=False
        )

    def call(self, inputs, training=None):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(inputs, 0))
        return inputs - self.mean


class AddsLoss(L.Layer):
    def __init__(self, of_weights):
        super().__init__()
        self.of_weights = of_weights

    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=[shape[-1]], initializer="ones")

    def call(self, inputs):
        self.add_loss(tf.reduce_sum(tf.square(self.scale if self.of_weights else inputs)))
        return inputs * self.scale


def stack(*layers, shape=(3,), **options):
    return tf.keras.Sequential([L.Input(list(shape), **options), *layers, L.Dense(1)])


def test_a_trainable_batch_normalization_is_refused_by_name_with_the_replacement(box, plan):
    """O27"""
    with pytest.raises(ValueError, match="layer 'norm1'.*LayerNormalization or GroupNorm.*freeze"):
        box.compiled(plan, stack(L.BatchNormalization(name="norm1")))


def test_a_nested_batch_normalization_is_found(box, plan):
    inner = stack(L.BatchNormalization(name="deep"))
    with pytest.raises(ValueError, match="layer 'deep'.*BatchClipping or MixedClipping"):
        box.compiled(plan, stack(inner))


def test_a_batch_normalization_is_refused_in_a_loop_of_ones_own(box, plan):
    net = stack(L.BatchNormalization(name="norm1"))
    x, _, extras = next(iter(box.data(plan)))
    with pytest.raises(ValueError, match="layer 'norm1'"):
        sdp.private_step(
            plan.optimizer("sgd"),
            lambda rows: (net(rows)[:, 0], ()),
            net.trainable_variables,
            x,
            extras,
            model=net,
        )


def test_a_frozen_batch_normalization_is_allowed_and_keeps_its_statistics(box, plan):
    """O27"""
    net = stack(L.BatchNormalization(name="norm1"))
    norm = net.get_layer("norm1")
    norm.trainable = False
    norm.set_weights([w + 0.5 for w in norm.get_weights()])
    before = norm.get_weights()
    dense = net.layers[-1].get_weights()[0]
    box.fitted(plan, net)
    for left, right in zip(before, norm.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)
    assert (net.layers[-1].get_weights()[0] != dense).all()


def test_a_batch_normalization_that_thaws_after_compile_is_refused_by_fit(box, plan):
    net = stack(L.BatchNormalization(name="norm1", center=False, scale=False))
    net.get_layer("norm1").trainable = False
    model = box.fitted(plan, net, take=1)
    net.get_layer("norm1").trainable = True
    with pytest.raises(ValueError, match="layer 'norm1'"):
        model.fit(box.data(plan).take(1), verbose=0)


def test_a_layer_that_stores_data_is_refused_with_the_variables_name(box, plan):
    model = box.compiled(plan, stack(RunningMean()))
    with pytest.raises(ValueError, match="writes to .*running_mean.*without noise"):
        model.fit(box.data(plan), verbose=0)
    assert model.optimizer.steps_taken == 0


@pytest.mark.parametrize("of_weights", [True, False])
def test_a_layer_that_adds_a_loss_is_refused_with_the_remedy(box, plan, of_weights):
    model = box.compiled(plan, stack(AddsLoss(of_weights)))
    with pytest.raises(ValueError, match="calls add_loss.*loss function.*regularizer"):
        model.fit(box.data(plan), verbose=0)
    assert model.optimizer.steps_taken == 0


class AddsFunction(L.Layer):
    """Hands `add_loss` a function, when it is made or (of data or weights) at every call."""

    def __init__(self, of):
        super().__init__(name="curious")
        self.of, self.weight = of, tf.Variable([1.0])
        if of == "what it received":
            self.add_loss(lambda: tf.reduce_mean(self.received))

    def call(self, inputs):
        self.received = 1.0 * inputs
        if self.of == "data":
            self.add_loss(lambda: tf.reduce_mean(inputs))
        if self.of == "weights":
            self.add_loss(lambda: tf.reduce_mean(self.weight))
        return inputs


def with_loss_of_output(function):
    net = stack(L.Dense(2, name="busy"))
    output = net.get_layer("busy").output
    net.add_loss(lambda: tf.reduce_mean(output)) if function else net.add_loss(
        tf.reduce_mean(output)
    )
    return net


@pytest.mark.skipif(int(tf.__version__.split(".")[1]) >= 16, reason="Keras 3 takes tensors alone")
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: stack(AddsFunction("what it received")), "curious"),
        (lambda: stack(AddsFunction("data")), "curious"),
        (lambda: stack(AddsFunction("weights")), "curious"),
        (lambda: with_loss_of_output(function=True), "sequential"),
        (lambda: with_loss_of_output(function=False), "add_loss"),
    ],
)
def test_a_loss_by_a_function_of_data_or_of_each_call_is_refused_as_a_loss_is(
    box, plan, make, name
):
    model = box.compiled(plan, make())
    with pytest.raises(ValueError, match=rf"'{name}.*calls add_loss.*loss function.*regularizer"):
        model.fit(box.data(plan), verbose=0)
    assert model.optimizer.steps_taken == 0


@pytest.mark.skipif(int(tf.__version__.split(".")[1]) >= 16, reason="Keras 3 takes tensors alone")
def test_a_loss_by_a_function_of_weights_is_a_regulariser(box):
    plan = box.exact_plan(steps=1)
    net = box.net(1)
    before = net.get_weights()[0]
    net.add_loss(lambda: tf.reduce_sum(tf.square(net.layers[0].kernel)))
    model = box.compiled(
        plan, net, tf.keras.optimizers.SGD(0.1), loss=lambda y, p: tf.zeros_like(p[:, 0])
    )
    model.fit(box.data(plan), verbose=0)
    np.testing.assert_allclose(net.get_weights()[0], 0.8 * before, rtol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        L.Dense(2, name="busy", activity_regularizer="l2"),
        L.ActivityRegularization(0.1, name="busy"),
    ],
)
def test_an_activity_regulariser_is_refused_by_name(layer):
    with pytest.raises(ValueError, match="layer 'busy'.*activity_regularizer"):
        sdp.PrivateModel(stack(layer))


def test_a_float8_policy_is_refused_by_name_with_the_replacement(box, plan):
    if not box.keras_3:
        pytest.skip("Keras 2 has no float8 policies")
    layer = L.Dense(2, name="tiny", dtype="float8_from_float32")
    with pytest.raises(ValueError, match="tiny/inputs_scale.*float8.*mixed_bfloat16"):
        sdp.PrivateModel(stack(layer))
    layer(np.zeros([2, 3], np.float32))
    with pytest.raises(ValueError, match="tiny/inputs_scale.*float8.*mixed_bfloat16"):
        sdp.private_step(
            plan.optimizer("sgd"), lambda rows: None, layer.trainable_variables, box.x, {}
        )


def test_a_stateful_recurrent_layer_is_refused_by_name():
    net = tf.keras.Sequential(
        [L.Input(batch_shape=(4, 3, 2)), L.SimpleRNN(2, stateful=True, name="memory")]
    )
    with pytest.raises(ValueError, match="layer 'memory'.*stateful=False"):
        sdp.PrivateModel(net)


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [L.Dense(4), L.Dropout(0.5), L.LayerNormalization()],
        lambda: [L.GaussianNoise(0.1), L.Dense(4, activation="relu")],
        lambda: [L.Reshape([3, 1]), L.SimpleRNN(2, dropout=0.2, unroll=True)],
        lambda: [L.Reshape([3, 1]), L.LSTM(2, dropout=0.2, recurrent_dropout=0.2)],
    ],
)
def test_random_layers_and_layer_normalization_are_allowed(box, plan, layers):
    model = box.fitted(plan, stack(*layers()))
    assert model.optimizer.steps_taken == plan.steps
    assert all(np.isfinite(w).all() for w in model.get_weights())


def test_a_model_without_trainable_weights_is_refused(box, plan):
    net = box.net()
    net.trainable = False
    with pytest.raises(ValueError, match="no trainable weights"):
        box.compiled(plan, net).fit(box.data(plan), verbose=0)
