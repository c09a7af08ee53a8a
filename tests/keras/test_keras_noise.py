# SPDX-License-Identifier: Apache-2.0
"""The noise is in every update, on every way of training, with the planned size, and never twice."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tf_subjectdp as sdp


def by_fit(box, plan, model):
    model.fit(box.data(plan), verbose=0)


def by_train_on_batch(box, plan, model):
    for batch in box.data(plan):
        model.train_on_batch(*batch)


def by_private_step(box, plan, model):
    def row_function(rows):
        x, y = rows
        predictions = model(x, training=True)
        return tf.reduce_mean(tf.square(predictions - y), -1), predictions

    for x, y, extras in box.data(plan):
        sdp.private_step(
            model.optimizer,
            row_function,
            model.trainable_variables,
            (x, y),
            extras,
        )


@pytest.mark.parametrize(
    "train, options",
    [
        (by_fit, {}),
        (by_fit, {"run_eagerly": True}),
        (by_fit, {"steps_per_execution": 2}),
        (by_train_on_batch, {}),
        (by_train_on_batch, {"run_eagerly": True}),
        (by_private_step, {}),
    ],
)
def test_no_way_of_training_leaves_the_noise_out(box, train, options):
    """O9: noise 1e3 moves the weights by that scale.

    16 weights, two steps of standard deviation 1e3 / 16: below 80 with probability under 1e-9, while
    two clipped sums move by at most 2 * 60 / 16.
    """
    plan = box.plan(steps=2, noise_multiplier=1e3)
    model = box.compiled(plan, box.net(4), tf.keras.optimizers.SGD(1.0), **options)
    before = np.concatenate([w.ravel() for w in model.inner_model.get_weights()])
    train(box, plan, model)
    after = np.concatenate([w.ravel() for w in model.inner_model.get_weights()])
    assert model.optimizer.steps_taken == 2
    scale = 1e3 / 16 * 2**0.5
    squares = np.sum((after - before) ** 2) / scale**2
    assert stats.chi2.ppf(1e-9, 16) / 2 < squares < stats.chi2.isf(1e-9, 16) * 2


@pytest.mark.parametrize("algorithm", [sdp.ItemDP(0.5), sdp.SubjectDP(0.5), sdp.UserLDP(0.5)])
def test_the_update_has_the_planned_standard_deviation(box, algorithm):
    """O35: sigma C / divisor on every coordinate, at every step afresh.

    400 coordinates, 25 steps, data gradients of zero: the scaled sum of squares is chi-square with
    10,000 degrees of freedom; false alarms below 1e-6, both sides together.
    """
    plan = box.plan(algorithm, steps=25, noise_multiplier=3.0)
    model = box.compiled(
        plan, box.net(100), tf.keras.optimizers.SGD(1.0), loss=lambda y, p: 0.0 * p[:, 0]
    )
    seen = [np.concatenate([w.ravel() for w in model.get_weights()])]
    watch = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: seen.append(
            np.concatenate([w.ravel() for w in model.get_weights()])
        )
    )
    model.fit(box.data(plan), verbose=0, callbacks=[watch])
    draws = np.diff(np.asarray(seen, np.float64), axis=0) / (3.0 * 0.5 / plan.divisor)
    assert draws.shape == (25, 400)
    square = np.sum(draws**2)
    assert stats.chi2.ppf(4e-7, draws.size) < square < stats.chi2.isf(4e-7, draws.size)
    # No step repeats another, no coordinate another: correlations are below 6 / sqrt(400).
    correlations = np.corrcoef(draws)[np.triu_indices(25, 1)]
    assert np.abs(correlations).max() < 6 / 400**0.5


def test_a_seed_of_tensorflow_does_not_repeat_the_noise(box, plan):
    results = []
    for _ in range(2):
        tf.keras.utils.set_random_seed(1)
        net = box.net()
        net.set_weights([np.zeros((3, 1)), np.zeros(1)])
        box.fitted(plan, net)
        results.append(net.get_weights()[0])
    assert (results[0] != results[1]).all()


def test_rows_of_an_embedding_that_nobody_touched_get_their_noise(box):
    plan = box.plan(steps=1)
    net = tf.keras.Sequential(
        [
            tf.keras.layers.Input([2], dtype="int32"),
            tf.keras.layers.Embedding(50, 2),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(1),
        ]
    )
    before = net.get_weights()[0]
    model = box.compiled(plan, net)
    model.fit(plan.dataset(np.zeros((60, 2), np.int32), box.y, box.ids), verbose=0)
    assert (net.get_weights()[0] != before).all()


def test_mixed_precision_trains_with_float32_noise(box):
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        plan = box.plan(steps=3, noise_multiplier=1e5)
        net = tf.keras.Sequential(
            [
                tf.keras.layers.Input([3]),
                tf.keras.layers.Dense(4, activation="relu"),
                tf.keras.layers.Dense(1, dtype="float32"),
            ]
        )
        model = box.compiled(plan, net, tf.keras.optimizers.SGD(1.0))
        assert isinstance(model.optimizer, sdp.DPOptimizer)
        model.fit(box.data(plan), verbose=0)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    weights = np.concatenate([w.ravel() for w in net.get_weights()])
    assert weights.dtype == np.float32
    # float16 would end at 65,504 on the sum already.
    assert np.isfinite(weights).all() and np.abs(weights).max() > 1e3


def test_a_custom_loop_of_two_models_is_private(box, caplog):
    """O5: a GAN-like loop; the discriminator sees people, the generator sees the discriminator."""
    discriminator, generator = (
        box.net(),
        tf.keras.Sequential([tf.keras.layers.Input([2]), tf.keras.layers.Dense(3)]),
    )
    plan = box.plan(steps=3)
    optimizer = plan.optimizer(tf.keras.optimizers.Adam(0.1), engine={"strategy": "loop"})
    plain = tf.keras.optimizers.SGD(0.1)
    cross = tf.keras.losses.binary_crossentropy

    def row_function(rows):
        real, fake = rows
        on_real, on_fake = discriminator(real), discriminator(fake)
        ones, zeros = tf.ones_like(on_real), tf.zeros_like(on_fake)
        return cross(ones, on_real, True) + cross(zeros, on_fake, True), on_real

    @tf.function
    def step(x, extras):
        noise = tf.random.normal([tf.shape(x)[0], 2])
        sdp.private_step(
            optimizer,
            row_function,
            discriminator.trainable_variables,
            (x, generator(noise)),
            extras,
        )
        with tf.GradientTape() as tape:
            judged = discriminator(generator(noise))
            loss = tf.reduce_mean(cross(tf.ones_like(judged), judged, True))
        variables = generator.trainable_variables
        plain.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    optimizer.build(discriminator.trainable_variables)
    plain.build(generator.trainable_variables)
    before = [w.copy() for w in (*discriminator.get_weights(), *generator.get_weights())]
    with caplog.at_level("INFO", "tf_subjectdp"):
        for x, _, extras in box.data(plan):
            step(x, extras)
    # TensorFlow traces a function that makes variables twice.
    assert sum("clipping engine" in record.message for record in caplog.records) == 1
    after = [*discriminator.get_weights(), *generator.get_weights()]
    assert optimizer.steps_taken == 3
    assert all((a != b).any() and np.isfinite(a).all() for a, b in zip(after, before, strict=True))
    x, _, extras = next(iter(box.data(plan)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="steps are used up"):
        step(x, extras)


def test_gradients_that_were_not_clipped_are_refused_with_instructions(box, plan):
    """O5: apply_gradients, apply and minimize say what to call instead."""
    net = box.net()
    optimizer = plan.optimizer("sgd")
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(net(box.x))
    gradients = tape.gradient(loss, net.trainable_variables)
    pairs = list(zip(gradients, net.trainable_variables, strict=True))
    for call in (
        lambda: optimizer.apply_gradients(pairs),
        lambda: optimizer.apply(gradients, net.trainable_variables),
        lambda: optimizer.minimize(loss, net.trainable_variables, tape=tape),
    ):
        with pytest.raises(ValueError, match="does not take gradients.*private_step"):
            call()


def test_a_plain_keras_model_with_the_optimizer_cannot_train(box, plan):
    net = box.net()
    net.compile(optimizer=plan.optimizer("sgd"), loss="mse")
    before = net.get_weights()[0]
    with pytest.raises(ValueError, match="does not take gradients"):
        net.fit(box.x, box.y, verbose=0)
    np.testing.assert_array_equal(net.get_weights()[0], before)
