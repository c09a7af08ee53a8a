# SPDX-License-Identifier: Apache-2.0
"""`DPOptimizer` passes everything but gradients through to the optimizer inside it."""

import copy
import inspect
import json
import math

import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp

OPT = tf.keras.optimizers
WRAPPERS = {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}
NAMES = sorted(
    name
    for name, value in vars(OPT).items()
    if inspect.isclass(value) and issubclass(value, OPT.Optimizer) and name not in WRAPPERS
)


def wrap(inner, **options):
    return sdp.DPOptimizer(inner, sdp.HiGradAvg(0.5), noise_multiplier=1.1, divisor=16, **options)


def round_trip(optimizer):
    config = json.loads(json.dumps(optimizer.get_config()))
    return sdp.DPOptimizer.from_config(config), config


def same(left, right):
    """Equal configs, floats to float32, which Keras 2 keeps the learning rate in."""
    if isinstance(left, dict):
        return set(left) == set(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, float) and isinstance(right, (int, float)):
        return math.isclose(left, right, rel_tol=1e-6)
    return left == right


def test_the_list_of_keras_optimizers_is_not_empty():
    assert {"Adam", "AdamW", "SGD", "RMSprop", "Lion", "Adafactor"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_keras_optimizer_passes_its_own_arguments_through_json(name):
    """O8, O37: built from its full config, none of which is lost."""
    inner = getattr(OPT, name)(learning_rate=0.0123, clipnorm=2.5)
    full = inner.get_config()
    optimizer = wrap(
        getattr(OPT, name).from_config(full), engine={"strategy": "loop", "max_rows": 7}
    )
    again, config = round_trip(optimizer)
    assert type(again.inner) is type(inner)
    assert same(again.inner.get_config(), full)
    assert again.get_config() == optimizer.get_config()
    assert (again.algorithm, again.noise_multiplier) == (sdp.HiGradAvg(0.5), 1.1)
    assert (again.divisor, again.engine) == (16.0, optimizer.engine)
    assert config["divisor"] == 16


@pytest.mark.parametrize("name", NAMES)
def test_every_keras_optimizer_takes_a_noised_step(box, name):
    optimizer = wrap(getattr(OPT, name)(learning_rate=0.1))
    variables = [tf.Variable(tf.ones([3, 2])), tf.Variable(tf.ones([2]))]
    if box.keras_3:
        variables = [tf.keras.Variable(v.numpy()) for v in variables]
    nothing = {"subject": tf.zeros([0], tf.int32)}
    rows = tf.zeros([0, 3])
    sdp.private_step(
        optimizer,
        lambda x: (tf.reduce_sum(tf.matmul(x, variables[0]) + variables[1], -1), ()),
        variables,
        rows,
        nothing,
        strategy="loop",
    )
    assert optimizer.steps_taken == 1 and int(optimizer.iterations.numpy()) == 1
    for variable in variables:
        values = np.asarray(variable)
        assert np.isfinite(values).all() and (values != 1.0).any()


def test_a_schedule_survives_json_and_reaches_the_inner_optimizer(box, plan):
    """O8, O33"""
    schedule = OPT.schedules.ExponentialDecay(0.1, decay_steps=1, decay_rate=0.5)
    again, _ = round_trip(wrap(OPT.Adam(schedule, beta_1=0.8)))
    assert again.inner.get_config()["beta_1"] == 0.8
    assert type(again.inner._learning_rate) is type(schedule)
    model = box.fitted(plan, None, OPT.SGD(schedule))
    rate = float(np.asarray(model.optimizer.learning_rate))
    # Keras 2 says what the last step used, Keras 3 what the next one will use.
    assert rate == pytest.approx(0.1 * 0.5 ** (4 if box.keras_3 else 3))
    assert rate == float(np.asarray(model.optimizer.inner.learning_rate))


def test_a_learning_rate_scheduler_reaches_the_inner_optimizer(box):
    """O33"""
    plan = box.plan(sampling=sdp.PoissonItems(30), steps=4)
    model = box.compiled(plan)
    model.fit(
        box.data(plan),
        steps_per_epoch=2,
        epochs=2,
        verbose=0,
        callbacks=[tf.keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr / 10)],
    )
    assert float(np.asarray(model.optimizer.inner.learning_rate)) == pytest.approx(0.001)
    assert float(np.asarray(model.optimizer.learning_rate)) == pytest.approx(0.001)


def test_reduce_on_plateau_reaches_the_inner_optimizer_and_its_steps(box):
    """O33: a rate of 0 set from outside stops the weights, noise and all."""
    plan = box.plan(sampling=sdp.PoissonItems(30), steps=6)
    model = box.compiled(plan)
    plateau = tf.keras.callbacks.ReduceLROnPlateau(
        monitor="loss", factor=0.1, patience=1, min_delta=1e9
    )
    model.fit(box.data(plan), steps_per_epoch=2, epochs=2, verbose=0, callbacks=[plateau])
    assert float(np.asarray(model.optimizer.inner.learning_rate)) == pytest.approx(0.01)
    model.optimizer.learning_rate = 0.0
    before = model.get_weights()
    model.fit(box.data(plan).take(2), verbose=0)
    for left, right in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_planned_optimizer_survives_json(plan):
    optimizer = plan.optimizer(OPT.Adam(0.01), name="mine")
    again, config = round_trip(optimizer)
    assert again.plan == plan and again.name == "mine"
    assert again.plan.epsilon() == plan.epsilon()
    assert "noise_multiplier" not in config and "epsilon" not in config["plan"]


def test_a_copy_counts_its_own_steps_and_those_that_its_weights_bring(box, plan):
    """Keras 2 copies none of its own optimizers."""
    own = plan.optimizer(
        tf.keras.optimizers.Adam(0.25), engine={"strategy": "loop"}, weight_radius=9.0,
        initial_weights="public",
    )  # fmt: skip
    assert copy.deepcopy(own).get_config() == own.get_config()
    first, data = sdp.PrivateModel(box.net()), box.data(plan)
    first.compile(own, loss="mse")
    first.fit(data.take(2), verbose=0)
    other, beside = copy.deepcopy([own, own])
    assert other is beside and other.plan is plan and other.inner is not own.inner
    assert other.get_config() == {**own.get_config(), "initial_weights": None}
    assert other.steps_taken == int(other.inner.iterations) == 0 and own.steps_taken == 2
    trained = first.inner_model.get_weights()
    fresh, again = sdp.PrivateModel(box.net()), sdp.PrivateModel(box.net())
    again.inner_model.set_weights(trained)
    fresh.compile(other, loss="mse")
    again.compile(copy.deepcopy(own), loss="mse")
    for model, before in ((fresh, 0), (again, 2)):
        assert model.optimizer.steps_taken == before
        model.fit(data.take(1), verbose=0)
        assert model.optimizer.steps_taken == before + 1
        assert "FROM ELSEWHERE" not in model.privacy_statement()
    assert own.steps_taken == 2
    alone = sdp.DPOptimizer("sgd", sdp.HiGradAvg(1.0), noise_multiplier=2.0, divisor=3.0)
    assert copy.deepcopy(alone).get_config() == alone.get_config()
    # The learning rate that a callback decided goes with the settings, and so does what is said of it.
    alone._lineage.remark("NOT COVERED: the rate")
    for copied in (copy.deepcopy(alone), type(alone).from_config(alone.get_config())):
        assert copied._lineage.remarks == ("NOT COVERED: the rate",)


def test_copies_make_their_own_noise(box, plan):
    """Nobody is in the steps: what moves the weights is noise alone."""
    own = sdp.DPOptimizer("sgd", sdp.HiGradAvg(1.0), noise_multiplier=1.0)
    variables = [tf.Variable(tf.zeros([9])) for _ in range(2)]
    rows, extras = tf.zeros([0, 1]), {"subject": tf.zeros([0], tf.int64)}
    for optimizer, variable in zip((own, copy.deepcopy(own)), variables, strict=True):
        sdp.private_step(
            optimizer, lambda x, v=variable: (x[:, 0] * v[0], x), [variable], rows, extras,
            strategy="loop",
        )  # fmt: skip
    assert not set(variables[0].numpy()) & set(variables[1].numpy())


@pytest.mark.skipif(not hasattr(tf.keras.callbacks, "SwapEMAWeights"), reason="of Keras 3 alone")
def test_averages_are_swapped_in_as_by_keras_and_cost_nothing_more(box, tmp_path):
    """Without noise and clipping: what Keras's own full batches and callback give."""
    plan, swap = box.exact_plan(steps=6), tf.keras.callbacks.SwapEMAWeights
    nets, seen, scores = (box.net(), box.net()), ([], []), []
    nets[0].set_weights(nets[1].get_weights())
    kept = tmp_path / "kept.keras"
    for net, found in zip(nets, seen, strict=True):
        inner = tf.keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.6)
        end = tf.keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *_, net=net, found=found: found.append(net.get_weights())
        )
        options = {"epochs": 3, "verbose": 0, "validation_data": (box.x, box.y)}
        if net is nets[0]:
            net.compile(inner, "mse")
            rows = tf.data.Dataset.from_tensors((box.x, box.y)).repeat(2)
            history = net.fit(rows, callbacks=[swap(True), end], **options).history
            scores.append(net.evaluate(box.x, box.y, verbose=0, callbacks=[swap()]))
        else:
            model, save = box.compiled(plan, net, inner), tf.keras.callbacks.ModelCheckpoint(kept)
            options["steps_per_epoch"] = 2
            callbacks = [swap(True), save, end]
            of_ours = model.fit(box.data(plan), callbacks=callbacks, **options).history
            scores.append(model.evaluate(box.x, box.y, verbose=0, callbacks=[swap()]))
            model.predict(box.x, verbose=0, callbacks=[swap()])
    np.testing.assert_allclose(history["val_loss"], of_ours["val_loss"], rtol=1e-5)
    np.testing.assert_allclose(*scores, rtol=1e-5)
    seen = [[*found, net.get_weights()] for net, found in zip(nets, seen, strict=True)]
    for left, right in zip(*map(tf.nest.flatten, seen), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
    for each in (model, tf.keras.models.load_model(kept)):
        said = each.privacy_statement()
        assert "6 of 6 planned" in said and "FROM ELSEWHERE" not in said


def test_averages_that_are_not_kept_are_asked_for(box, plan):
    if box.keras_3:
        model = box.compiled(plan)
        with pytest.raises(ValueError, match=r"SGD keeps no averages.*use_ema=True"):
            model.evaluate(box.x, box.y, callbacks=[tf.keras.callbacks.SwapEMAWeights()])


def test_an_optimizer_may_be_named(plan):
    assert type(plan.optimizer("adam").inner) is OPT.Adam


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"inner": "nonsense"}, ValueError, "nonsense"),
        ({"beta_1": 0.5}, TypeError, r"no arguments \['beta_1'\].*belong to the inner one"),
        ({"algorithm": None}, TypeError, "algorithm=None must be an algorithm such as HiGradAvg"),
        ({"noise_multiplier": None}, ValueError, "noise_multiplier is missing"),
        ({"noise_multiplier": -1.0}, ValueError, r"noise_multiplier=-1\.0 must be finite and at"),
        ({"noise_multiplier": math.inf}, ValueError, "noise_multiplier=inf must be finite"),
        ({"divisor": 0}, ValueError, r"divisor=0 must be finite and above 0"),
        ({"divisor": math.nan}, ValueError, "divisor=nan must be finite"),
        ({"engine": {"strategy": "magic"}}, ValueError, "strategy='magic' is unknown; use one of"),
        ({"engine": {"max_rows": 0}}, ValueError, "max_rows=0 must be an integer of at least 1"),
    ],
)
def test_bad_arguments_are_refused_with_value_bound_and_remedy(arguments, error, message):
    given = {"inner": "sgd", "algorithm": sdp.HiGradAvg(1.0), "noise_multiplier": 1.0, **arguments}
    with pytest.raises(error, match=message):
        sdp.DPOptimizer(given.pop("inner"), given.pop("algorithm"), **given)


def test_what_the_plan_says_is_not_said_twice(plan):
    """O34"""
    with pytest.raises(ValueError, match=r"\['divisor', 'noise_multiplier'\] come from the plan"):
        plan.optimizer("sgd", noise_multiplier=1.0, divisor=3)


def test_no_optimizer_is_wrapped_twice(plan):
    with pytest.raises(ValueError, match="DPOptimizer already; wrap the plain optimizer once"):
        plan.optimizer(plan.optimizer("sgd"))


def test_a_loss_scale_optimizer_is_refused(plan):
    """It would divide the noised step by a scale that nobody applied: a step of almost nothing."""
    with pytest.raises(TypeError, match="LossScaleOptimizer.*pass the optimizer inside it"):
        plan.optimizer(tf.keras.mixed_precision.LossScaleOptimizer(OPT.SGD(0.1)))


def test_a_legacy_optimizer_is_refused_when_it_is_given(box, plan):
    if box.keras_3:
        pytest.skip("Keras 3 has no legacy optimizers; making one raises by itself")
    with pytest.raises(TypeError, match="legacy.*not supported"):
        plan.optimizer(OPT.legacy.Adam())


def test_only_a_longer_run_of_the_same_plan_may_follow(box, plan):
    optimizer = plan.optimizer("sgd")
    for other, field in (
        (box.plan(noise_multiplier=0.5, steps=8), "noise_multiplier"),
        (box.plan(sampling=sdp.PoissonItems(8), steps=8), "sampling"),
        (box.plan(steps=3), "fewer"),
    ):
        with pytest.raises(ValueError, match=f"new plan differs in .*{field}"):
            optimizer.extend_plan(other)
    with pytest.raises(ValueError, match="no plan to extend"):
        wrap("sgd").extend_plan(plan)
    optimizer.extend_plan(plan.extended(steps=9))
    assert optimizer.plan.steps == 9


def test_lost_steps_raise_the_count_and_never_lower_it(plan):
    optimizer = plan.optimizer("sgd")
    optimizer.count_lost_steps(3)
    optimizer.count_lost_steps(1)
    assert optimizer.steps_taken == 3
