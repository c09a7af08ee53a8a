# SPDX-License-Identifier: Apache-2.0
"""Parts of a batch that go through the model as a whole: inner optimizers and BatchNormalization."""

import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp.clipping import PartUpdates

L = tf.keras.layers
LARGE = 1e6


def linear_net(units=1):
    return tf.keras.Sequential([L.Input([3]), L.Dense(units, use_bias=False)])


def normalised_net():
    return tf.keras.Sequential(
        [
            L.Input([3]),
            L.Dense(4),
            L.BatchNormalization(momentum=0.9, name="norm"),
            L.Dense(1, name="last"),
        ]
    )


def private(box, algorithm, net, outer=None, sampling=None, **options):
    plan = box.plan(
        algorithm,
        sampling or sdp.PoissonItems(60),
        **{"noise_multiplier": 0.0, "steps": 1, **options},
    )
    model = sdp.PrivateModel(net)
    model.compile(plan.optimizer(outer or tf.keras.optimizers.SGD(1.0)), loss="mse")
    return plan, model


def inner(optimizer, steps):
    return sdp.InnerOptimizer(optimizer, steps)


def sgd_with_momentum(w, x, y, steps, rate=0.005, momentum=0.9):
    """Keras's SGD on the mean squared error of a linear model, by hand: (start - end)."""
    start, velocity = w.copy(), np.zeros_like(w)
    for rows in steps:
        gradient = 2.0 * x[rows].T @ (x[rows] @ w - y[rows]) / len(rows)
        velocity = momentum * velocity - rate * gradient
        w = w + velocity
    return start - w


@pytest.mark.parametrize("steps", [1, 4, "one an item"])
def test_an_update_is_what_the_optimizer_does_from_the_steps_weights(box, steps):
    """One part, everybody in it, no noise: the NumPy oracle of Algorithm A; twice, from scratch."""
    net = linear_net()
    optimizer = tf.keras.optimizers.SGD(0.005, momentum=0.9)
    algorithm = sdp.BatchClipping(LARGE, inner=inner(optimizer, steps))
    plan, model = private(box, algorithm, net, steps=2)
    rows = list(range(60))
    order = [[i] for i in rows] if steps == "one an item" else [rows] * steps
    w = net.get_weights()[0].astype(np.float64)
    people = []
    for batch in box.data(plan):  # the second step starts with no momentum of the first
        x, y, extras = batch
        people.append(extras["subject"].numpy().tolist())
        w = w - sgd_with_momentum(w, x.numpy(), y.numpy(), order)
        model.train_on_batch(*batch)
    np.testing.assert_allclose(net.get_weights()[0], w, rtol=2e-5, atol=1e-6)
    # Nobody comes first because of their place in the table.
    assert people[0] != people[1] and people[0] != sorted(people[0])


def test_an_update_is_clipped(box):
    net = linear_net()
    algorithm = sdp.BatchClipping(0.01, inner=inner(tf.keras.optimizers.SGD(0.5), 3))
    plan, model = private(box, algorithm, net)
    before = net.get_weights()[0]
    model.fit(box.data(plan), verbose=0)
    assert np.linalg.norm(before - net.get_weights()[0]) == pytest.approx(0.01, rel=1e-4)


def test_parts_are_run_one_by_one_each_from_the_same_weights_and_a_new_optimizer():
    """PartUpdates itself: known parts, Adam, against plain Keras on each part alone."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(11, 3)).astype("f4"), rng.normal(size=(11, 1)).astype("f4")
    group = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2])
    net = linear_net()
    start = net.get_weights()[0]

    def losses(rows):
        return tf.reduce_sum(tf.square(net(rows[0], training=True) - rows[1]), 1), ()

    expected = []
    for part in range(3):
        net.set_weights([start])
        adam = tf.keras.optimizers.Adam(0.1)
        for _ in range(5):
            with tf.GradientTape() as tape:
                rows = group == part
                loss = tf.reduce_mean(losses((x[rows], y[rows]))[0])
            adam.apply_gradients(
                zip(
                    tape.gradient(loss, net.trainable_variables),
                    net.trainable_variables,
                    strict=True,
                )
            )
        update = start - net.get_weights()[0]
        expected.append(update / max(1.0, np.linalg.norm(update) / 0.6))
    net.set_weights([start])
    updates = PartUpdates(net.trainable_variables, optimizer=tf.keras.optimizers.Adam(0.1), steps=5)
    sizes = np.bincount(group)[group].astype(np.float32)
    from tf_subjectdp.clipping import BatchPartition, clipped_sum
    from tf_subjectdp.keras import compat

    variables = [compat.raw(v) for v in net.trainable_variables]

    @tf.function
    def run():
        partition = BatchPartition(
            tf.constant(group, tf.int32), tf.constant(1 / sizes), tf.ones([11]), False
        )
        return clipped_sum(
            losses, variables, (x, y), partition, 0.6, strategy="loop", updates=updates
        )

    for _ in range(2):
        summed = run()
        np.testing.assert_allclose(summed.total[0], sum(expected), atol=2e-5)
        assert float(summed.groups) == 3.0
        np.testing.assert_array_equal(net.get_weights()[0], start)
    assert float(summed.clipped) == sum(np.linalg.norm(e) > 0.5999 for e in expected)


@pytest.mark.parametrize(
    ("steps", "eager"), [(None, True), (2, True), (2, False), ("one an item", True)]
)
def test_statistics_of_a_batch_leave_it_clipped_and_noised_only(box, steps, eager):
    """The update has weights and moving statistics in one vector of norm at most C."""
    algorithm = sdp.BatchClipping(
        0.02, inner=None if steps is None else inner(tf.keras.optimizers.SGD(0.1), steps)
    )
    net = normalised_net()
    plan, model = private(box, algorithm, net, steps=1)
    if eager:
        model.compile(plan.optimizer(tf.keras.optimizers.SGD(1.0)), loss="mse", run_eagerly=True)
    before = net.get_weights()
    model.fit(box.data(plan), verbose=0)
    moved = [b - a for b, a in zip(before, net.get_weights(), strict=True)]
    norm = np.sqrt(sum((m.astype(np.float64) ** 2).sum() for m in moved))
    assert norm == pytest.approx(0.02, rel=1e-3)
    names = [w.name for w in net.weights]
    statistics = [m for m, name in zip(moved, names, strict=True) if "moving" in name]
    assert len(statistics) == 2 and all(np.any(m != 0) for m in statistics)


def test_unclipped_statistics_are_those_of_keras(box):
    net, plain = normalised_net(), normalised_net()
    plain.set_weights(net.get_weights())
    plan, model = private(box, sdp.BatchClipping(LARGE), net)
    model.fit(box.data(plan), verbose=0)
    plain.compile(tf.keras.optimizers.SGD(1.0), loss="mse")
    plain.fit(box.x, box.y, batch_size=60, shuffle=False, verbose=0)
    for found, expected in zip(net.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def test_a_moving_variance_never_falls_below_zero_and_is_noised(box):
    net = normalised_net()
    plan, model = private(box, sdp.BatchClipping(1.0), net, noise_multiplier=50.0, steps=3)
    model.fit(box.data(plan), verbose=0)
    norm = net.get_layer("norm")
    variance, mean = norm.moving_variance.numpy(), norm.moving_mean.numpy()
    assert (variance >= 0).all() and np.abs(mean).max() > 5.0
    assert np.isfinite(model.predict(box.x, verbose=0)).all()


def test_an_empty_batch_takes_a_step_and_moves_nothing(box):
    net = normalised_net()
    plan, model = private(
        box, sdp.BatchClipping(1.0), net, sampling=sdp.PoissonItems(1e-9), steps=2
    )
    before = net.get_weights()
    model.fit(box.data(plan), verbose=0)
    assert model.optimizer.steps_taken == 2
    for left, right in zip(before, net.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_part_with_a_gradient_that_is_not_finite_counts_as_zero(box):
    net = linear_net()
    algorithm = sdp.BatchClipping(1.0, inner=inner(tf.keras.optimizers.SGD(0.1), 2))
    plan, model = private(box, algorithm, net)
    x = box.x.copy()
    x[3] = np.nan
    before = net.get_weights()[0]
    with pytest.warns(RuntimeWarning, match="NaN or infinite"):
        model.fit(plan.dataset(x, box.y, box.ids), verbose=0)
    np.testing.assert_array_equal(before, net.get_weights()[0])


def test_a_mixed_run_trains_counts_and_reports(box):
    net = normalised_net()
    algorithm = sdp.MixedClipping(
        1.0, parts=3, inner=inner(tf.keras.optimizers.Adam(0.05), "one an item")
    )
    plan, model = private(
        box, algorithm, net, sampling=sdp.Shuffle(20), noise_multiplier=0.1, steps=6
    )
    history = model.fit(box.data(plan), verbose=0).history
    assert np.isfinite(history["loss"]).all() and model.optimizer.steps_taken == 6
    text = model.privacy_statement().replace("\n", " ")
    assert "one part at a time" in text and "(A1)" in text


def test_the_optimizer_goes_round_with_its_inner_one(box):
    algorithm = sdp.MixedClipping(
        1.0,
        parts=2,
        inner=inner(tf.keras.optimizers.SGD(0.1, momentum=0.5), 2),
        clip_schedule=sdp.ClipSchedule([1.0, 0.5], 3),
    )
    plan = box.plan(algorithm)
    optimizer = plan.optimizer("sgd", weight_radius=2.0)
    again = sdp.DPOptimizer.from_config(optimizer.get_config())
    assert again.algorithm == algorithm and again.get_config() == optimizer.get_config()


def test_a_model_with_statistics_is_saved_and_loaded_with_its_steps(box, tmp_path):
    net = normalised_net()
    algorithm = sdp.BatchClipping(1.0, inner=inner(tf.keras.optimizers.SGD(0.1), 2))
    plan, model = private(box, algorithm, net, noise_multiplier=0.5, steps=3)
    model.fit(box.data(plan).take(2), verbose=0)
    model.save(tmp_path / "parts.keras")
    again = tf.keras.models.load_model(tmp_path / "parts.keras")
    assert again.optimizer.steps_taken == 2 and again.plan == plan
    for left, right in zip(net.get_weights(), again.inner_model.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)
    again.fit(again.plan.dataset(box.x, box.y, box.ids).take(1), verbose=0)
    assert again.optimizer.steps_taken == 3


def test_weights_go_back_into_their_ball(box):
    net = linear_net()
    net.set_weights([np.full((3, 1), 4.0, np.float32)])
    plan = box.plan(sdp.ItemDP(1.0), noise_multiplier=0.0)
    model = sdp.PrivateModel(net)
    model.compile(plan.optimizer(tf.keras.optimizers.SGD(0.0), weight_radius=0.5), loss="mse")
    model.fit(box.data(plan).take(1), verbose=0)
    assert np.linalg.norm(net.get_weights()[0]) == pytest.approx(0.5, rel=1e-5)
    inside = sdp.PrivateModel(linear_net())
    inside.compile(plan.optimizer(tf.keras.optimizers.SGD(0.0), weight_radius=100.0), loss="mse")
    before = inside.inner_model.get_weights()[0]
    inside.fit(box.data(plan), verbose=0)
    np.testing.assert_array_equal(before, inside.inner_model.get_weights()[0])
    for bad in (0.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="weight_radius"):
            plan.optimizer("sgd", weight_radius=bad)


# -- nothing of a part stays -----------------------------------------------------------------------


def test_an_optimizer_with_a_variable_of_its_own_starts_anew_in_every_part(box):
    """Keras 2's Nadam keeps a product that its `variables` does not tell of."""
    net = linear_net()
    updates = PartUpdates(
        net.trainable_variables, optimizer=tf.keras.optimizers.Nadam(0.1), steps=None
    )
    start = net.get_weights()[0]

    def total():
        from tf_subjectdp.clipping import BatchPartition, clipped_sum
        from tf_subjectdp.keras import compat

        terms = BatchPartition(tf.zeros([5], tf.int32), tf.fill([5], 0.2), tf.ones([5]), False)
        return clipped_sum(
            lambda rows: (tf.square(net(rows, training=True))[:, 0], ()),
            [compat.raw(v) for v in net.trainable_variables],
            box.x[:5],
            terms,
            1e6,
            strategy="loop",
            updates=updates,
        ).total[0]

    first, second = total().numpy(), total().numpy()
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(net.get_weights()[0], start)


def broken_batches(box, plan):
    """A loss that fails on a label of its second step, in the middle of a part."""
    y = np.zeros((60, 1), np.int32)
    y[7] = 9
    return plan.dataset(box.x, y, box.ids)


@pytest.mark.parametrize("eager", [False, True])
def test_an_error_inside_a_part_leaves_no_weights_of_it(box, eager):
    net = linear_net(units=3)
    algorithm = sdp.BatchClipping(0.1, inner=inner(tf.keras.optimizers.SGD(5.0), "one an item"))
    plan = box.plan(algorithm, sdp.PoissonItems(60), steps=2)
    model = sdp.PrivateModel(net)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(plan.optimizer("sgd"), loss=loss, run_eagerly=eager)
    before = net.get_weights()[0]
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.fit(broken_batches(box, plan), verbose=0)
    np.testing.assert_array_equal(net.get_weights()[0], before)
    assert model.optimizer.steps_taken == 1  # counted before anything was trained


def test_a_refused_step_leaves_the_weights_as_they_are(box):
    """Spent steps, in a graph of one's own: the refusal comes before the parts."""
    net = linear_net()
    algorithm = sdp.BatchClipping(0.1, inner=inner(tf.keras.optimizers.SGD(0.5), 30))
    plan = box.plan(algorithm, sdp.PoissonItems(60), steps=1)
    optimizer = plan.optimizer(tf.keras.optimizers.SGD(1.0))
    dataset = box.data(plan)

    @tf.function(input_signature=dataset.element_spec)
    def train(x, y, extras):
        sdp.private_step(
            optimizer,
            lambda rows: (tf.square(net(rows[0]) - rows[1])[:, 0], ()),
            net.trainable_variables,
            (x, y),
            extras,
            model=net,
        )

    for batch in dataset:
        train(*batch)
    before = net.get_weights()[0]
    for batch in box.data(plan):
        for _ in range(5):
            with pytest.raises(tf.errors.InvalidArgumentError, match="used up"):
                train(*batch)
            np.testing.assert_array_equal(net.get_weights()[0], before)


def test_two_threads_cannot_train_parts_of_one_model_at_once_and_an_error_can_be_healed(box):
    net = linear_net()
    updates = PartUpdates(net.trainable_variables)
    before = net.get_weights()[0]
    updates._begin()
    net.set_weights([before + 1.0])  # inside a part
    with pytest.raises(tf.errors.InvalidArgumentError, match="restore_weights"):
        updates._begin()
    updates.restore()
    np.testing.assert_array_equal(net.get_weights()[0], before)
    updates.restore()
    updates._begin()


@pytest.mark.parametrize("algorithm", [sdp.BatchClipping(1.0), sdp.ItemDP(1.0)])
def test_a_loop_of_ones_own_cannot_store_statistics_behind_the_steps_back(box, algorithm):
    """Without model= nobody knows of the BatchNormalization; a metric is found as well."""
    net = normalised_net()
    plan = box.plan(algorithm)
    x, y, extras = next(iter(box.data(plan)))
    mean = tf.keras.metrics.Mean()

    def losses(rows):
        return tf.square(net(rows[0], training=True) - rows[1])[:, 0], ()

    def losses_and_metric(rows):
        value = tf.square(net(rows[0], training=False) - rows[1])[:, 0]
        mean.update_state(value)
        return value, ()

    before = net.get_weights()
    for function, model in ((losses, None), (losses_and_metric, net)):
        if model is net and isinstance(algorithm, sdp.ItemDP):
            continue  # refused for its BatchNormalization, by name
        with pytest.raises(ValueError, match="row_function writes to"):
            sdp.private_step(
                plan.optimizer("sgd"),
                function,
                net.trainable_variables,
                (x, y),
                extras,
                model=model,
            )
    for left, right in zip(before, net.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_statistics_that_a_pass_does_not_write_to_get_no_noise(box):
    class Fixed(tf.keras.layers.BatchNormalization):
        def call(self, inputs, training=None):
            return super().call(inputs, training=False)

    net = tf.keras.Sequential([L.Input([3]), Fixed(name="fixed"), L.Dense(1)])
    plan, model = private(box, sdp.BatchClipping(1.0), net, noise_multiplier=50.0, steps=3)
    model.fit(box.data(plan), verbose=0)
    np.testing.assert_array_equal(net.get_layer("fixed").moving_mean, np.zeros(3))
    np.testing.assert_array_equal(net.get_layer("fixed").moving_variance, np.ones(3))


def test_engines_of_other_statistics_are_other_engines(box):
    """Two layers without weights: first the one is frozen, then the other."""
    layers = [L.BatchNormalization(center=False, scale=False, name=f"norm{i}") for i in (1, 2)]
    net = tf.keras.Sequential([L.Input([3]), *layers, L.Dense(1, use_bias=False)])
    plan = box.plan(sdp.BatchClipping(1e-6), sdp.PoissonItems(60), steps=2, noise_multiplier=0.0)
    optimizer = plan.optimizer(tf.keras.optimizers.SGD(0.0))
    for frozen in (0, 1):
        layers[frozen].trainable, layers[1 - frozen].trainable = False, True
        model = sdp.PrivateModel(net)
        model.compile(optimizer, loss="mse")
        model.fit(box.data(plan).take(1), verbose=0)
        for layer in layers:
            assert np.abs(layer.moving_mean.numpy()).max() < 3e-6
