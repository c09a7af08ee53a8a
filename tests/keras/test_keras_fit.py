# SPDX-License-Identifier: Apache-2.0
"""`PrivateModel.fit`: it takes the plan's steps, no more, from the plan's data alone."""

import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp


def test_fit_on_the_dataset_alone_spends_the_whole_plan(box, plan):
    model = box.compiled(plan)
    before = [w.copy() for w in model.inner_model.get_weights()]
    history = model.fit(box.data(plan), verbose=0, validation_data=(box.x, box.y)).history
    assert model.optimizer.steps_taken == plan.steps
    assert int(model.optimizer.iterations.numpy()) == plan.steps
    after = model.inner_model.get_weights()
    assert all((a != b).all() for a, b in zip(before, after, strict=True))
    assert {"loss", "clipped", "signal_to_noise", "val_loss"} <= set(history)
    assert not {"val_clipped", "val_signal_to_noise"} & set(history)
    assert np.isfinite(history["loss"]).all()


def test_the_first_step_is_traced_once(box, plan, monkeypatch):
    traces = []
    release = sdp.DPOptimizer._release
    monkeypatch.setattr(
        sdp.DPOptimizer, "_release", lambda *a, **k: traces.append(1) or release(*a, **k)
    )
    box.compiled(plan).fit(box.data(plan), verbose=0)
    # Variables that are made inside a trace would make TensorFlow begin it anew.
    assert len(traces) == 1


def test_evaluate_and_predict_are_keras_own(box, plan):
    model = box.compiled(plan, metrics=["mae"])
    result = model.evaluate(box.x, box.y, verbose=0, return_dict=True)
    predictions = model.predict(box.x, verbose=0)
    assert set(result) == {"loss", "mae"}
    assert result["mae"] == pytest.approx(np.abs(predictions - box.y).mean(), rel=1e-5)
    np.testing.assert_allclose(predictions, box.x @ model.get_weights()[0], rtol=1e-5, atol=1e-6)


def test_padding_does_not_enter_an_evaluation(box, plan):
    model = box.compiled(plan)
    padded = model.evaluate(
        box.data(box.plan(sampling=sdp.PoissonItems(60)), pad=True).take(1), verbose=0
    )
    whole = model.evaluate(box.x, box.y, batch_size=60, verbose=0)
    assert padded == pytest.approx(whole, rel=1e-5)


def test_steps_per_epoch_and_epochs_of_the_plan_spend_it(box):
    plan = box.plan(sampling=sdp.PoissonItems(30), steps=None, epochs=2.5)
    assert (plan.steps, plan.steps_per_epoch, plan.epochs) == (5, 2, 3)
    model = box.compiled(plan)
    history = model.fit(
        box.data(plan), steps_per_epoch=plan.steps_per_epoch, epochs=plan.epochs, verbose=0
    )
    assert model.optimizer.steps_taken == 5
    assert len(history.epoch) == 3


def test_initial_epoch_counts_the_remaining_epochs_only(box):
    plan = box.plan(sampling=sdp.PoissonItems(30), steps=None, epochs=2)
    model = box.compiled(plan)
    model.fit(box.data(plan), steps_per_epoch=2, epochs=1, verbose=0)
    model.fit(box.data(plan), steps_per_epoch=2, epochs=2, initial_epoch=1, verbose=0)
    assert model.optimizer.steps_taken == 4


def test_fit_beyond_the_plan_is_refused_until_it_is_extended(box, plan):
    model = box.compiled(plan)
    with pytest.raises(ValueError, match="fit asks for 8 steps, and 4 of the plan's 4 are left"):
        model.fit(box.data(plan), epochs=2, verbose=0)
    model.fit(box.data(plan).take(3), verbose=0)
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"1 of the plan's 4 are left \(3 taken\).*extend_plan"):
        model.fit(box.data(plan), verbose=0)
    for left, right in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)
    longer = model.extend_plan(steps=7)
    assert longer.epsilon() > plan.epsilon()
    model.fit(box.data(model.plan).take(4), verbose=0)
    assert model.optimizer.steps_taken == 7


def test_a_step_beyond_the_plan_is_refused_inside_the_step_too(box, plan):
    model = box.fitted(plan)
    batch = next(iter(box.data(plan)))
    before = model.get_weights()
    with pytest.raises(tf.errors.InvalidArgumentError, match="steps are used up"):
        model.train_on_batch(*batch)
    assert model.optimizer.steps_taken == 4
    for left, right in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_dataset_of_another_sampling_is_refused(box, plan):
    model = box.compiled(plan)
    other = box.plan(sampling=sdp.PoissonItems(17))
    hand_made = tf.data.Dataset.from_tensors((box.x, box.y, {"subject": box.ids}))
    for dataset in (box.data(other), hand_made):
        with pytest.raises(ValueError, match="sampling is not the plan's"):
            model.fit(dataset, verbose=0)
    for changed in (box.data(plan).shuffle(4), box.data(plan).repeat(2), box.data(plan).cache()):
        with pytest.raises(ValueError, match="plan's dataset went through"):
            model.fit(changed, verbose=0)
    assert model.optimizer.steps_taken == 0


def test_a_batch_of_another_sampling_is_refused_by_train_on_batch(box, plan):
    """O16, O19: no entry point takes batches that the plan did not draw."""
    model = box.compiled(plan)
    with pytest.raises(ValueError, match="was not drawn by the plan"):
        model.train_on_batch(box.x, box.y, {"subject": box.ids})
    with pytest.raises(ValueError, match="train_on_batch.x, y, extras. needs the extras"):
        model.train_on_batch(box.x, box.y)
    other = next(iter(box.data(box.plan(sampling=sdp.PoissonItems(17)))))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="The sampling of this batch is not that"
    ):
        model.train_on_batch(*other)
    assert model.optimizer.steps_taken == 0


def test_a_batch_of_arrays_or_numbers_in_lists_trains_as_its_tensors_do(box):
    x, y, names = box.x[:8], box.y[:8], [f"p{i}" for i in box.ids[:8]]
    kinds = {
        "tensors": tf.constant,
        "arrays of float64": lambda v: np.asarray(np.asarray(v).tolist()),
        "lists": lambda v: np.asarray(v).tolist(),
    }
    found = {}
    for kind, make in kinds.items():
        net = box.net()
        net.set_weights([np.full(w.shape, 0.3, np.float32) for w in net.get_weights()])
        model = sdp.PrivateModel(net)
        engine = {"strategy": "loop"}
        model.compile(
            sdp.DPOptimizer("sgd", sdp.SubjectDP(0.1), noise_multiplier=0.0, engine=engine), "mse"
        )
        batch = (make(x), make(y), {"subject": make(names)})
        logs = model.train_on_batch(*batch, return_dict=True)
        tested = model.test_on_batch(*batch)
        assert tested == pytest.approx(model.test_on_batch(x, y), rel=1e-6)
        found[kind] = [*net.get_weights(), logs["loss"], tested]
    for kind in kinds:
        for ours, theirs in zip(found[kind], found["tensors"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, err_msg=kind)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"class_weight": {0: 1.0, 1: 2.0}}, "class_weight belongs into plan.dataset"),
        ({"sample_weight": np.ones(60)}, "sample_weight belongs into plan.dataset"),
        ({"batch_size": 8}, "batch_size and validation_split change who"),
        ({"validation_split": 0.2}, "batch_size and validation_split change who"),
    ],
)
def test_options_that_change_who_is_in_a_step_are_refused(box, plan, options, message):
    with pytest.raises(ValueError, match=message):
        box.compiled(plan).fit(box.data(plan), verbose=0, **options)


def test_arrays_without_people_are_refused(box, plan):
    with pytest.raises(ValueError, match=r"takes plan\.dataset\(x, y, subject_id\)"):
        box.compiled(plan).fit(box.x, box.y, verbose=0)


def test_fit_before_compile_says_so(box, plan):
    with pytest.raises(RuntimeError, match="compile the model first"):
        sdp.PrivateModel(box.net()).fit(box.data(plan))


@pytest.mark.parametrize("optimizer", ["adam", tf.keras.optimizers.SGD(0.1), None])
def test_an_optimizer_that_is_not_private_is_refused(box, optimizer):
    """O9: nothing trains without noise unless somebody asked for noise 0."""
    with pytest.raises(TypeError, match=r"is not private. Use compile\(optimizer=plan.optimizer"):
        sdp.PrivateModel(box.net()).compile(optimizer=optimizer, loss="mse")


@pytest.mark.parametrize("algorithm", [sdp.ItemDP(1.0), sdp.SubjectDP(1.0)])
@pytest.mark.parametrize("size", [7, 32])
def test_any_batch_size_works_for_two_epochs(box, algorithm, size):
    """O1: 60 rows in batches of 32 or 7, the last one smaller, two epochs."""
    plan = box.plan(algorithm, sdp.Shuffle(size), steps=None, epochs=2, noise_multiplier=20.0)
    model = box.fitted(plan, engine="auto")
    assert model.optimizer.steps_taken == 2 * -(-60 // size)
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.parametrize("algorithm", [sdp.HiGradAvg(1.0), sdp.SubjectDP(1.0)])
def test_empty_poisson_batches_take_noisy_steps_that_count(box, algorithm):
    """O13: rate 0.02 on 20 rows, 200 steps; two thirds of the batches are empty."""
    ids = np.arange(20)
    plan = sdp.plan(
        algorithm,
        sdp.PoissonItems(0.4),
        sdp.SubjectStats.from_ids(ids),
        steps=200,
        noise_multiplier=1.0,
    )
    model = box.compiled(plan, engine="auto")
    seen = []
    watch = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: seen.append(model.inner_model.get_weights()[0].sum())
    )
    model.fit(plan.dataset(box.x[:20], box.y[:20], ids), verbose=0, callbacks=[watch])
    assert model.optimizer.steps_taken == 200
    assert np.isfinite(seen).all()
    assert len(set(seen)) == 200


def test_a_batch_is_divided_by_the_expected_size_whatever_was_drawn(box):
    """O14: batches of 14, 10, 17 with 16 expected: the step is their number over 16."""
    optimizer = sdp.DPOptimizer(
        tf.keras.optimizers.SGD(1.0), sdp.ItemDP(10.0), noise_multiplier=0.0, divisor=16
    )
    weight = tf.Variable([0.0])
    for size in (14, 10, 17):
        weight.assign([0.0])
        ones = tf.ones([size])
        sdp.private_step(
            optimizer,
            lambda r: (r * weight, r),
            [weight],
            ones,
            {"subject": tf.range(size)},
            strategy="loop",
        )
        assert weight.numpy()[0] == pytest.approx(-size / 16, rel=1e-6)


def test_a_new_pass_over_shuffled_data_counts_the_begun_epoch_whole(box):
    plan = box.plan(sampling=sdp.Shuffle(16), steps=12, noise_multiplier=20.0)
    model = box.fitted(plan, take=2)
    assert model.optimizer.steps_taken == 2
    assert model.optimizer.steps_at_new_pass == 4
    model.fit(box.data(plan).take(4), verbose=0)
    assert model.optimizer.steps_taken == 8
    with pytest.raises(ValueError, match="fit asks for 5 steps, and 4 of the plan's 12 are left"):
        model.fit(box.data(plan).take(5), verbose=0)


def test_the_last_begun_epoch_is_not_begun_twice_under_shuffling(box):
    """Refused before the first step, not in the middle of the pass."""
    plan = box.plan(sampling=sdp.Shuffle(16), steps=8, noise_multiplier=20.0)
    model = box.fitted(plan, take=5)
    with pytest.raises(ValueError, match="0 of the plan's 8 are left"):
        model.fit(box.data(plan).take(3), verbose=0)
    batch = next(iter(box.data(plan)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="steps are used up"):
        model.train_on_batch(*batch)
    assert model.optimizer.steps_taken == 5


def test_a_non_finite_item_is_reported_and_never_reaches_the_weights(box):
    plan = box.plan(sampling=sdp.PoissonItems(60))
    x = box.x.copy()
    x[3, 0], x[5, 1] = np.nan, np.inf
    model = box.compiled(plan, engine="auto")
    with pytest.warns(RuntimeWarning, match="^item gradients were NaN or infinite"):
        model.fit(plan.dataset(x, box.y, box.ids), verbose=0)
    assert all(np.isfinite(w).all() for w in model.get_weights())


def test_without_a_plan_the_users_own_batches_train(box):
    model = sdp.PrivateModel(box.net())
    optimizer = sdp.DPOptimizer("sgd", sdp.HiGradAvg(1.0), noise_multiplier=1.0, divisor=20)
    model.compile(optimizer=optimizer, loss="mse")
    names = np.array([f"p{i}" for i in box.ids])
    data = tf.data.Dataset.from_tensor_slices((box.x, box.y, {"subject": names})).batch(25)
    model.fit(data, epochs=2, verbose=0)
    assert optimizer.steps_taken == 6
    text = " ".join(model.privacy_statement().split())
    assert "No epsilon can be stated" in text and "is the user's word" in text


def test_the_models_statement_follows_the_run(box, plan):
    model = box.fitted(plan, take=2)
    text = " ".join(model.privacy_statement().split())
    assert "2 of 4 planned steps taken" in text
    assert "Technical: clipping engine" in text


def test_sample_weights_act_before_the_clipping_and_a_real_zero_is_an_item(box):
    """One person, two items, weights 3 and 0: clip(3 g) / 2, not clip(3 g), not 3 clip(g)."""
    plan = sdp.plan(
        sdp.HiGradAvg(1.0),
        sdp.PoissonItems(2),
        sdp.SubjectStats.from_ids([1, 1]),
        steps=1,
        noise_multiplier=0.0,
    )
    net = tf.keras.Sequential(
        [tf.keras.layers.Input([1]), tf.keras.layers.Dense(1, use_bias=False)]
    )
    x = np.array([[0.25], [5.0]], np.float32)
    for weights, expected in (([1.0, 0.0], 0.25 / 2), ([3.0, 0.0], 0.75 / 2), ([9.0, 0.0], 1 / 2)):
        net.set_weights([np.zeros((1, 1))])
        model = box.compiled(plan, net, tf.keras.optimizers.SGD(1.0), loss=lambda y, p: p[:, 0])
        model.fit(
            plan.dataset(x, np.zeros(2, np.float32), [1, 1], sample_weight=weights), verbose=0
        )
        assert net.get_weights()[0].item() == pytest.approx(-expected / 2, rel=1e-6)


def test_steps_drawn_with_a_seed_are_counted_and_stated_as_not_private(box, plan, tmp_path):
    model = box.compiled(plan)
    model.fit(box.data(plan).take(1), verbose=0)
    assert "NOT PRIVATE" not in model.privacy_statement()
    model.fit(box.data(plan, seed=1).take(2), verbose=0)
    assert model.optimizer.steps_drawn_with_seed == 2
    model.save(tmp_path / "seeded.keras")
    again = tf.keras.models.load_model(tmp_path / "seeded.keras")
    statement = " ".join(again.privacy_statement().split())
    assert "NOT PRIVATE: the batches of 2 steps were drawn with a seed" in statement


def test_a_step_of_ones_own_refuses_a_batch_that_the_plan_did_not_draw(box, plan):
    model = box.compiled(plan)
    model.fit(box.data(plan).take(1), verbose=0)
    rows = (tf.constant(box.x), tf.constant(box.y))
    with pytest.raises(ValueError, match="was not drawn by the plan"):
        sdp.private_step(
            model.optimizer,
            lambda r: (tf.reduce_sum(model(r[0]) - r[1], -1), r[1]),
            model.trainable_variables,
            rows,
            {"subject": tf.constant(box.ids)},
        )
    assert model.optimizer.steps_taken == 1
