# SPDX-License-Identifier: Apache-2.0
"""Weights bring what they cost with them, however they came in; where they cannot, the statement leads
with that."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp import accounting, runs
from tf_subjectdp.algorithms.base import rounded_up
from tf_subjectdp.cli.plans import read_model
from tf_subjectdp.keras import lineage
from tf_subjectdp.statement import optimizer_statement, weights_statement

UNKNOWN = "WEIGHTS FROM ELSEWHERE, whose cost is not known"


@pytest.fixture(scope="module")
def loud(box):
    return box.plan(noise_multiplier=0.5)


@pytest.fixture(scope="module")
def quiet(box):
    return box.plan(noise_multiplier=20.0)


@pytest.fixture(scope="module")
def giver(box, loud):
    """Three loud steps."""
    return box.fitted(loud, take=3)


def said(model):
    return " ".join(model.privacy_statement().split())


def leads_with_unknown(model):
    return said(model).split(" taken) ")[1].startswith(UNKNOWN)


def by_set_weights(box, giver, path, wrap):
    model = wrap(box.net())
    model(box.x)
    model.set_weights(giver.get_weights())
    return model


def by_inner_set_weights(box, giver, path, wrap):
    model = wrap(box.net())
    model.inner_model.set_weights(giver.inner_model.get_weights())
    return model


def by_assign(box, giver, path, wrap):
    model = wrap(box.net())
    for old, new in zip(model.inner_model.weights, giver.inner_model.weights, strict=True):
        old.assign(new)
    return model


def by_weights_file(box, giver, path, wrap):
    giver.save_weights(path / "a.weights.h5")
    model = wrap(box.net())
    model.load_weights(path / "a.weights.h5")
    return model


def by_checkpoint(box, giver, path, wrap):
    saved = tf.train.Checkpoint(model=giver).save(path / "a")
    model = wrap(box.net())
    model.make_optimizer_variables()
    tf.train.Checkpoint(model=model).restore(saved)
    return model


def by_checkpoint_of_the_inner_model(box, giver, path, wrap):
    saved = tf.train.Checkpoint(net=giver.inner_model).save(path / "a")
    model = wrap(box.net())
    tf.train.Checkpoint(net=model.inner_model).restore(saved)
    return model


def by_saved_inner_model(box, giver, path, wrap):
    giver.inner_model.save(path / "a.keras")
    return wrap(tf.keras.models.load_model(path / "a.keras"))


def by_inner_weights_file(box, giver, path, wrap):
    giver.inner_model.save_weights(path / "a.weights.h5")
    model = wrap(box.net())
    model.inner_model.load_weights(path / "a.weights.h5")
    return model


def by_saved_model(box, giver, path, wrap):
    giver.save(path / "a.keras")
    return wrap(tf.keras.models.load_model(path / "a.keras", compile=False))


def by_wrapping_again(box, giver, path, wrap):
    return wrap(giver.inner_model)


def by_layers(box, giver, path, wrap):
    return wrap(tf.keras.Sequential([tf.keras.layers.Input([3]), *giver.inner_model.layers]))


def as_a_part(box, giver, path, wrap):
    layers = [tf.keras.layers.Input([3]), giver.inner_model, tf.keras.layers.Dense(1)]
    return wrap(tf.keras.Sequential(layers))


def by_clone(box, giver, path, wrap):
    net = tf.keras.models.clone_model(giver.inner_model)
    net.set_weights(giver.inner_model.get_weights())
    return wrap(net)


def by_pickle(box, giver, path, wrap):
    return wrap(pickle.loads(pickle.dumps(giver.inner_model)))


def by_deepcopy(box, giver, path, wrap):
    return wrap(copy.deepcopy(giver.inner_model))


def by_pickled_wrapper(box, giver, path, wrap):
    return wrap(pickle.loads(pickle.dumps(giver)).inner_model)


WAYS_IN = [
    by_set_weights, by_inner_set_weights, by_assign, by_weights_file, by_checkpoint,
    by_checkpoint_of_the_inner_model, by_saved_inner_model, by_inner_weights_file, by_saved_model,
    by_wrapping_again, by_layers, as_a_part, by_clone, by_pickle, by_deepcopy, by_pickled_wrapper,
]  # fmt: skip


def compiled(model, plan):
    wrapped = model if isinstance(model, sdp.PrivateModel) else sdp.PrivateModel(model)
    wrapped.compile(optimizer=plan.optimizer("sgd", engine={"strategy": "loop"}), loss="mse")
    return wrapped


@pytest.mark.parametrize("way", WAYS_IN, ids=lambda way: way.__name__)
def test_weights_bring_their_cost_with_them(box, giver, loud, quiet, tmp_path, way):
    """The contract of all ways in: another plan's cost is stated beside, the same plan's counts."""
    model = way(box, giver, tmp_path, lambda net: compiled(net, quiet))
    text = said(model)
    assert UNKNOWN not in text and "0 of 4 planned steps taken" in text
    assert "the same weights were trained for 3 steps in another run" in text
    assert f"which spent epsilon {rounded_up(loud.epsilon(steps=3))} at" in text
    again = way(box, giver, tmp_path, lambda net: compiled(net, loud))
    text = said(again)
    assert UNKNOWN not in text and "BESIDE THIS" not in text
    assert "3 of 4 planned steps taken" in text and again.optimizer.steps_taken == 3
    assert "Of these 3 steps 3 were taken before" in text


def test_costs_compose_over_several_runs_and_never_twice(box, giver, loud, quiet, tmp_path):
    model = box.fitted(quiet, take=2)
    assert leads_with_unknown(model) is False and "BESIDE" not in said(model)
    early = str(tmp_path / "early.weights.h5")
    model.save_weights(early)
    weights = model.get_weights()
    model.fit(box.data(quiet).take(1), verbose=0)
    # One's own older weights add nothing, and take nothing away.
    for back in (lambda: model.load_weights(early), lambda: model.set_weights(weights)):
        back()
        assert model.optimizer.steps_taken == 3 and "BESIDE" not in said(model)
    model.set_weights(giver.get_weights())
    for _ in range(2):
        text = said(model)
        assert "3 of 4 planned steps taken" in text and text.count("BESIDE THIS") == 1
    events = [(loud.step_event, 3), (quiet.step_event, 3)]
    total = accounting.epsilon(accounting.compose(events), delta=1e-3)
    assert (
        f"IN ALL: this run and those beside it, composed: epsilon per subject = {rounded_up(total)}"
        in text
    )
    # A third model gets both.
    third = compiled(box.net(), box.plan(noise_multiplier=7.0))
    third.inner_model.set_weights(model.inner_model.get_weights())
    assert said(third).count("BESIDE THIS") == 1  # the giver's weights: the last ones
    model.fit(box.data(quiet).take(1), verbose=0)
    third.inner_model.set_weights(model.inner_model.get_weights())
    assert said(third).count("BESIDE THIS") == 2 and UNKNOWN not in said(third)
    # An untrained model's weights cost nothing.
    fresh = compiled(box.net(), loud)
    assert "0 of 4 planned steps taken" in said(fresh) and UNKNOWN not in said(fresh)
    # Two runs of one plan are two runs.
    twin = box.fitted(quiet, take=2)
    twin.set_weights(model.get_weights())
    assert f"epsilon = {rounded_up(quiet.epsilon(steps=6))} at" in said(twin)
    assert twin.optimizer.steps_taken == 6


def test_only_promises_about_the_same_change_of_the_data_compose(box):
    def run(plan):
        return runs.PrivateRun(plan, plan.algorithm, plan.noise_multiplier, plan.steps)

    def total(plan, *others, unit="subject"):
        return runs.epsilon_in_all(plan, 4, [run(o) for o in others], delta=1e-3, unit=unit)

    plan, anything = box.plan(), box.plan(sdp.UserLDP(1.0), noise_multiplier=9.0)
    fixed = [box.plan(a(1.0), sdp.FixedSize(15)) for a in (sdp.HiGradAvg, sdp.ItemDP)]
    both = accounting.compose([(plan.event, 1), (anything.event, 1)])
    assert total(plan, anything) == pytest.approx(accounting.epsilon(both, delta=1e-3), rel=1e-3)
    # Adding a person is not replacing one; without noise, or without a plan, there is no figure.
    assert total(plan, fixed[0]) == total(anything, plan) == np.inf
    assert total(plan, box.plan(noise_multiplier=0.0)) == np.inf
    unplanned = runs.PrivateRun(None, plan.algorithm, 1.0, 3)
    assert runs.epsilon_in_all(plan, 4, [unplanned], delta=1e-3) == np.inf
    both = accounting.compose([(p.event_of("item"), 1) for p in fixed])
    assert total(*fixed, unit="item") == pytest.approx(
        accounting.epsilon(both, delta=1e-3), rel=1e-3
    )


def test_budgets_scalars_and_ledgers_count_what_weights_brought(box, giver, loud, quiet, tmp_path):
    def receiver():
        model = compiled(box.net(), quiet)
        model.set_weights(giver.get_weights())
        return model

    spent = loud.epsilon(steps=3)
    model = receiver()
    fit = {"verbose": 0, "epochs": 1}
    with pytest.raises(ValueError, match="allows 0: .* other runs .*3 steps of HiG"):
        model.fit(box.data(quiet), callbacks=[sdp.PrivacyBudget(spent)], **fit)
    ledger = sdp.PrivacyLedger(tmp_path / "ledger.json", reserve=1)
    callbacks = [sdp.PrivacyBudget(spent + 1.0), sdp.PrivacyScalars(), ledger]
    history = model.fit(box.data(quiet).take(2), callbacks=callbacks, **fit).history
    assert spent < history["epsilon"][0] < spent + 1.0
    # After a crash the ledger alone knows.
    after = compiled(box.net(), quiet)
    ledger.recover(after.optimizer)
    assert after.optimizer.steps_taken == 2 and said(after).count("BESIDE THIS") == 1
    model.set_weights([weight + 1.0 for weight in model.get_weights()])
    with pytest.raises(ValueError, match="come from elsewhere, .*initial_weights='public'"):
        model.fit(box.data(quiet).take(1), callbacks=[sdp.PrivacyBudget(1e6)], **fit)
    found = model.fit(box.data(quiet).take(1), callbacks=[sdp.PrivacyScalars()], **fit)
    assert np.isinf(found.history["epsilon"][0])


class Swap(tf.keras.callbacks.Callback):
    """Writes into one layer in the middle of an epoch, as no step ever did."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            kernel = self.model.inner_model.layers[-1].kernel
            kernel.assign(kernel + 1.0)


def plain_fit(box, model, plan):
    model.inner_model.compile("sgd", "mse")
    model.inner_model.fit(box.x, box.y, verbose=0)


def one_layer(box, model, plan):
    layer = model.inner_model.layers[-1]
    layer.set_weights([weight + 1.0 for weight in layer.get_weights()])


def inside_an_epoch(box, model, plan):
    model.fit(box.data(plan).take(2), verbose=0, callbacks=[Swap()])


def before_single_steps(box, model, plan):
    one_layer(box, model, plan)
    model.train_on_batch(*next(iter(box.data(plan))))


@pytest.mark.parametrize("write", [plain_fit, one_layer, inside_an_epoch, before_single_steps])
def test_what_is_written_from_outside_leads_the_statement(box, plan, tmp_path, write):
    model = box.fitted(plan, take=1)
    assert not leads_with_unknown(model)
    write(box, model, plan)
    assert leads_with_unknown(model)
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    assert leads_with_unknown(loaded) and said(loaded).count(UNKNOWN) == 1


def test_a_loop_of_ones_own_tells_too(box, plan):
    data, net = box.data(plan), box.net()
    optimizer = plan.optimizer("sgd", engine={"strategy": "loop"})

    @tf.function(input_signature=data.element_spec)
    def train(x, y, extras):
        def row_function(rows):
            predictions = net(rows[0], training=True)
            return tf.reduce_sum((predictions - rows[1]) ** 2, -1), predictions

        sdp.private_step(
            optimizer, row_function, net.trainable_variables, (x, y), extras, model=net
        )

    batches = iter(data)
    train(*next(batches))
    train(*next(batches))
    assert UNKNOWN not in optimizer_statement(optimizer)
    weights = net.get_weights()  # what two steps left: own, though nobody was asked
    assert compiled(net, plan).optimizer.steps_taken == 2
    net.set_weights([weight + 1.0 for weight in weights])
    train(*next(batches))
    text = " ".join(optimizer_statement(optimizer).split())
    assert f"3 of 4 planned steps taken) {UNKNOWN}" in text


def test_frozen_weights_of_a_loop_of_ones_own_count_too(box, plan, giver):
    """They were released, or are not known, though no step writes them."""
    layers = [tf.keras.layers.Input([3]), tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)]
    elsewhere = tf.keras.Sequential(layers)
    elsewhere.compile("sgd", "mse")
    elsewhere.fit(box.x, box.y, verbose=0)
    for backbone, words in (
        (giver.inner_model, "trained for 3 steps in another run"),
        (elsewhere, UNKNOWN),
    ):
        backbone.trainable = False
        head = tf.keras.Sequential([tf.keras.layers.Input([1]), tf.keras.layers.Dense(1)])
        optimizer = plan.optimizer("sgd", engine={"strategy": "loop"})

        def row_function(rows, backbone=backbone, head=head):
            predictions = head(backbone(rows[0]), training=True)
            return tf.reduce_sum((predictions - rows[1]) ** 2, -1), predictions

        x, y, extras = next(iter(box.data(plan)))
        sdp.private_step(
            optimizer,
            row_function,
            head.trainable_variables,
            (x, y),
            extras,
            model=[backbone, head],
        )
        assert words in " ".join(optimizer_statement(optimizer).split())
        backbone.trainable = True


def test_models_that_share_weights_and_train_in_turn_know_each_other(box):
    net, plans = box.net(), [box.plan(steps=50), box.plan(steps=50, noise_multiplier=3.0)]
    models = [compiled(net, plan) for plan in plans]
    for batches in zip(*(box.data(plan).take(3) for plan in plans), strict=True):
        for model, batch in zip(models, batches, strict=True):
            model.train_on_batch(*batch)
    for model in models:
        assert UNKNOWN not in said(model) and said(model).count("BESIDE THIS") == 1


def test_some_columns_or_few_numbers_from_elsewhere_are_noticed(box, plan):
    model = compiled(
        tf.keras.Sequential([tf.keras.layers.Input([16]), tf.keras.layers.Dense(11)]), plan
    )
    assert UNKNOWN not in said(model)
    kernel = model.inner_model.layers[-1].kernel
    values = np.array(kernel)
    values[:, 1:] = np.random.default_rng(3).normal(size=(16, 10))
    kernel.assign(values)
    assert leads_with_unknown(model)
    sparse = np.zeros((16, 8), np.float32)
    sparse[3, 5] = 1.7
    layers = [tf.keras.layers.Input([16]), tf.keras.layers.Dense(8)]
    net = tf.keras.Sequential(layers)
    net.set_weights([sparse, np.zeros(8)])
    assert leads_with_unknown(compiled(net, plan))


class Scale(tf.keras.layers.Layer):
    """A layer that keeps its initialiser to itself."""

    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=[shape[-1]], initializer="uniform")

    def call(self, inputs):
        return tf.reduce_sum(inputs * self.scale, -1, keepdims=True)


def test_weights_that_are_given_are_fresh_known_or_the_users_word(box, plan, tmp_path):
    fresh = compiled(box.net(), plan)
    assert "FROM ELSEWHERE" not in said(fresh) and "user's word" not in said(fresh)
    trained = box.net()
    trained.compile("sgd", "mse")
    trained.fit(box.x, box.y, verbose=0)
    assert leads_with_unknown(compiled(trained, plan))
    assert UNKNOWN not in said(compiled(box.net(use_bias=False), plan))
    # Where no initialiser tells: given weights are not known, what the library builds is fresh.
    layers = [tf.keras.layers.Input([3]), Scale()]
    assert leads_with_unknown(compiled(tf.keras.Sequential(layers), plan))
    layers = [tf.keras.layers.Input([3]), Scale(), tf.keras.layers.Dense(1)]
    assert leads_with_unknown(compiled(tf.keras.Sequential(layers), plan))
    assert UNKNOWN not in said(box.fitted(plan, tf.keras.Sequential([Scale()]), take=1))
    # Fresh weights of another wrapper are known to be fresh.
    other = compiled(box.net(), plan)
    other(box.x), fresh(box.x)
    fresh.set_weights(other.get_weights())
    assert UNKNOWN not in said(fresh)
    # A matrix that an initialiser brings is from somewhere.
    matrix, kinds = np.arange(3.0, dtype=np.float32)[:, np.newaxis], tf.keras.initializers
    for initializer in (kinds.Constant(matrix), kinds.RandomNormal(matrix, 0.0, seed=1)):
        assert leads_with_unknown(compiled(box.net(kernel_initializer=initializer), plan))
    public = sdp.PrivateModel(trained, initial_weights="public")
    public = compiled(public, plan)
    assert "WEIGHTS FROM" not in said(public)
    assert 'this is the user\'s word (initial_weights="public")' in said(public)
    public.save(tmp_path / "public.keras")
    loaded = tf.keras.models.load_model(tmp_path / "public.keras")
    assert "user's word" in said(loaded) and "WEIGHTS FROM" not in said(loaded)
    with pytest.raises(ValueError, match="initial_weights='mine' must be None, or 'public'"):
        sdp.PrivateModel(box.net(), initial_weights="mine")


def test_a_change_of_few_numbers_of_a_weight_is_told(quiet):
    """Without noise Keras trains the rows of a table that it looks up, and what meets no zeros."""

    def table():
        layers = [
            tf.keras.Input([2]),
            tf.keras.layers.Embedding(5000, 4),
            tf.keras.layers.Flatten(),
        ]
        return tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)])

    def sparse():
        dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        return tf.keras.Sequential([tf.keras.Input([900]), dense])

    for make in (table, sparse):
        model = compiled(make(), quiet)
        assert not leads_with_unknown(model)
        value = model.inner_model.get_weights()[0]
        looked_at = set(lineage._coordinates(value.shape)[:, 0])
        value[[row for row in range(300) if row not in looked_at]] += 1.0
        beside = make()
        for net in (beside, model.inner_model):
            net.set_weights([value, *net.get_weights()[1:]])
            assert leads_with_unknown(compiled(net, quiet) if net is beside else model)


LAYERS = [
    lambda: tf.keras.layers.LSTM(2),
    lambda: tf.keras.layers.GRU(2),
    lambda: tf.keras.layers.Bidirectional(tf.keras.layers.LSTM(2)),
    lambda: tf.keras.layers.LayerNormalization(),
    lambda: tf.keras.layers.BatchNormalization(),
    lambda: tf.keras.layers.Conv1D(2, 2, use_bias=False),
    lambda: tf.keras.layers.SeparableConv1D(2, 2, use_bias=False),
    lambda: tf.keras.layers.Dense(2, bias_initializer=tf.keras.initializers.Constant(0.1)),
    lambda: tf.keras.layers.Dense(2, kernel_initializer="orthogonal"),
    lambda: tf.keras.layers.Dense(2, kernel_initializer="he_normal", use_bias=False),
    lambda: tf.keras.layers.EinsumDense("abc,cde->abde", (4, 2, 3)),
]


@pytest.mark.parametrize("layer", LAYERS)
def test_initialisers_tell_whether_weights_are_fresh(layer):
    net = tf.keras.Sequential([tf.keras.layers.Input([4, 3]), layer()])
    assert not lineage.LineageTracker().watch(net).look().unknown
    moved = [
        value + np.linspace(0.1, 0.2, value.size).reshape(value.shape)
        for value in net.get_weights()
    ]
    net.set_weights(moved)
    assert lineage.LineageTracker().watch(net).look().unknown
    again = tf.keras.models.clone_model(net)
    assert not lineage.LineageTracker().watch(again).look().unknown


class Brings(tf.keras.layers.Layer):
    """A layer whose own `build` writes what it has from somewhere."""

    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=[shape[-1]], initializer="uniform")
        self.scale.assign(tf.range(1.0, 1.0 + shape[-1]))

    call = Scale.call


class Holds(Brings):
    """One that makes a variable of it."""

    def build(self, shape):
        self.scale = tf.Variable(tf.range(2.0, 2.0 + shape[-1]))


def plainly_trained(net, box, optimizer="sgd"):
    net.compile(optimizer, "mse")
    net.fit(box.x, box.y, verbose=0)
    return net


def unbuilt(*layers):
    return tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)])


def prepared(model, box, plan):
    model._prepare(box.data(plan).element_spec)
    return model


@pytest.mark.parametrize("layer", [Brings, Holds])
def test_what_a_layers_own_build_brings_is_not_fresh(box, plan, layer):
    net = unbuilt(layer())
    model = prepared(compiled(net, plan), box, plan)
    # Keras 3 builds a wrapped model without its values, and drops what a layer assigns meanwhile; a
    # variable of TensorFlow's own is no weight to it.
    brought = net.weights[0].shape == (3,) and bool(np.all(np.diff(net.weights[0]) == 1.0))
    assert leads_with_unknown(model) == brought and (brought or box.keras_3)
    public = sdp.PrivateModel(unbuilt(layer()), initial_weights="public")
    assert UNKNOWN not in said(prepared(compiled(public, plan), box, plan))


def test_a_checkpoint_that_waits_for_weights_brings_them(box, plan, giver, loud, quiet, tmp_path):
    waiting = {"trained": plainly_trained(unbuilt(), box), "private": giver.inner_model}
    for name, net in waiting.items():
        saved = tf.train.Checkpoint(layer=net.layers[-1]).save(tmp_path / name)
        taker = unbuilt()
        tf.train.Checkpoint(layer=taker.layers[-1]).restore(saved)
        model = prepared(compiled(taker, quiet), box, quiet)
        if not np.array_equal(taker.get_weights()[0], net.get_weights()[0]):
            assert box.keras_3  # which forgets what waited
        elif name == "trained":
            assert leads_with_unknown(model)
        else:
            text = said(model)
            assert UNKNOWN not in text and "trained for 3 steps in another run" in text
    assert UNKNOWN not in said(prepared(compiled(unbuilt(), quiet), box, quiet))


def test_weights_of_a_layer_without_an_initialiser_stay_fresh_in_a_file(box, plan, tmp_path):
    model = prepared(compiled(unbuilt(Scale()), plan), box, plan)
    model.save(tmp_path / "m.keras")
    assert UNKNOWN not in said(model)
    loaded = tf.keras.models.load_model(tmp_path / "m.keras", {"Scale": Scale})
    assert UNKNOWN not in said(loaded)
    assert weights_statement(read_model(tmp_path / "m.keras")) == loaded.privacy_statement()


def test_large_weights_are_told_too():
    """As large as it was once drawn, it is drawn again."""
    net = tf.keras.Sequential([tf.keras.layers.Input([1]), tf.keras.layers.Embedding(2**24 + 1, 1)])
    assert not lineage.LineageTracker().watch(net).look().unknown
    net.layers[-1].embeddings.assign(net.layers[-1].embeddings + 1.0)
    assert lineage.LineageTracker().watch(net).look().unknown


def test_the_state_of_the_inner_optimizer_counts(box, plan, giver):
    """Moments go into the weights with every step: those of plain training cost what is not known."""

    def state(optimizer):
        found = optimizer.variables
        return list(found() if callable(found) else found)

    adam = tf.keras.optimizers.Adam()
    plainly_trained(box.net(), box, adam)
    moments = [np.array(value) for value in state(adam)]
    model = box.compiled(plan, inner=tf.keras.optimizers.Adam())
    model.make_optimizer_variables()
    for variable, value in zip(state(model.optimizer.inner), moments, strict=True):
        variable.assign(value)
    model.fit(box.data(plan).take(1), verbose=0)
    assert leads_with_unknown(model)
    # Its own are known, in another optimizer too.
    model = box.fitted(plan, inner=tf.keras.optimizers.Adam(), take=1)
    model.optimizer.learning_rate = 0.01
    model.fit(box.data(plan).take(1), verbose=0)
    assert UNKNOWN not in said(model)
    quiet = box.plan(noise_multiplier=20.0)
    taker = box.compiled(quiet, inner=tf.keras.optimizers.Adam())
    taker.make_optimizer_variables()
    for variable, value in zip(
        state(taker.optimizer.inner), state(model.optimizer.inner), strict=True
    ):
        variable.assign(np.array(value))
    taker.fit(box.data(quiet).take(1), verbose=0)
    assert UNKNOWN not in said(taker) and "trained for 2 steps in another run" in said(taker)


def test_moving_statistics_from_elsewhere_are_told(box):
    layers = [tf.keras.layers.Input([3]), tf.keras.layers.BatchNormalization(trainable=False)]
    net = tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)])
    assert UNKNOWN not in said(compiled(tf.keras.models.clone_model(net), box.plan()))
    model = compiled(net, box.plan())
    net.layers[-2].moving_mean.assign([0.1, 0.2, 0.3])
    assert leads_with_unknown(model)
    assert leads_with_unknown(
        compiled(tf.keras.Sequential([*layers, *net.layers[-1:]]), box.plan())
    )


def test_a_run_outlives_its_optimizer(box, quiet, loud):
    """The weights that it left bring it, whoever looks at them first."""
    net, data = box.net(), box.data(loud)
    optimizer = loud.optimizer("sgd", engine={"strategy": "loop"})

    def row_function(rows):
        predictions = net(rows[0], training=True)
        return tf.reduce_sum((predictions - rows[1]) ** 2, -1), predictions

    x, y, extras = next(iter(data))
    sdp.private_step(optimizer, row_function, net.trainable_variables, (x, y), extras, model=net)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    text = said(compiled(net, quiet))
    assert UNKNOWN not in text and "trained for 1 steps in another run" in text


def test_a_load_that_failed_leaves_what_is_known(box, plan, tmp_path):
    def net(units):
        layers = [tf.keras.layers.Input([3]), tf.keras.layers.Dense(1)]
        return tf.keras.Sequential([*layers, tf.keras.layers.Dense(units)])

    model = box.fitted(plan, net(1), take=1)
    path = str(tmp_path / "other.weights.h5")
    other = compiled(net(2), box.plan(steps=30))
    other.inner_model.layers[-2].set_weights([box.x[:3, :1], np.array([1.5])])
    other.save_weights(path)
    before, text = model.get_weights(), said(model)
    with pytest.raises(Exception, match="(?i)layer|variable|shape|weight"):
        model.load_weights(path)
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    assert said(model) == text


def test_what_is_known_of_a_value_stays_known(box, plan):
    """Another layer's weights from elsewhere, or a file that knows less, do not make it unknown."""
    model = box.fitted(plan, box.net(2), take=1)
    weights = model.inner_model.get_weights()
    model.inner_model.layers[-1].bias.assign([3.0, 4.0])
    assert leads_with_unknown(model)
    released = model._lineage.file()
    record = {**released["record"], "remarks": [runs.UNKNOWN]}
    released["weights"] = [[prints, record] for prints, _ in released["weights"]]
    lineage.register_file(released)
    taker = compiled(box.net(2), plan)
    taker.inner_model.set_weights(weights)
    assert UNKNOWN not in said(taker) and taker.optimizer.steps_taken == 1


def test_what_is_known_is_bounded(box, giver, quiet, monkeypatch):
    """The oldest values are forgotten, on the safe side: never as fresh."""
    monkeypatch.setattr(lineage, "_KNOWN", type(lineage._KNOWN)())
    monkeypatch.setattr(lineage, "_MOST_KNOWN", 100)
    taker = compiled(box.net(), quiet)
    giver._lineage.look()
    taker.set_weights(giver.get_weights())
    assert "trained for 3 steps in another run" in said(taker)
    for number in range(200):
        lineage._register([(str(number), None)], runs.Lineage())
    assert len(lineage._KNOWN) == 100
    kept = taker._lineage.file()["weights"]
    assert kept and all(len(record["runs"]) == 1 for _, record in kept)
    assert leads_with_unknown(compiled(giver.inner_model, quiet)) is False  # who trains is asked


@pytest.mark.slow
def test_two_continuations_of_one_file_are_two_runs(box, plan, tmp_path):
    path = str(tmp_path / "m.keras")
    box.fitted(plan, take=1).save(path)
    left, right = (tf.keras.models.load_model(path) for _ in range(2))
    left.fit(box.data(plan).take(2), verbose=0)
    right.fit(box.data(plan).take(1), verbose=0)
    left.save_weights(str(tmp_path / "left.weights.h5"))
    right.load_weights(str(tmp_path / "left.weights.h5"))
    assert left.optimizer.steps_taken == 3 and right.optimizer.steps_taken == 4


def test_ones_own_record_adds_no_steps(box):
    """Not even the rest of an epoch that was begun."""
    plan = box.plan(sampling=sdp.Shuffle(batch_size=15), steps=8)
    optimizer = plan.optimizer("sgd")
    optimizer.count_lost_steps(3)
    optimizer._lineage.absorb(optimizer._lineage.record)
    assert (optimizer.steps_taken, optimizer.steps_at_new_pass) == (3, 4)


@pytest.mark.parametrize("counter_first", [True, False])
def test_a_checkpoints_record_counts_once_whatever_is_restored_first(box, plan, counter_first):
    giver, taker = (box.plan(steps=20).optimizer("sgd") for _ in range(2))
    giver.count_lost_steps(10)
    taker.count_lost_steps(1)
    text = giver._seen.serialize()

    def counter():
        taker.privacy_steps.assign(10)

    def record():
        taker._seen.deserialize(text)

    for part in (counter, record) if counter_first else (record, counter):
        part()
    assert taker.steps_taken == 11  # ten of the other run, and its own


def test_a_copy_is_a_run_of_its_own(box, giver, plan):
    own = giver.optimizer._lineage
    for copied in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert copied.name != own.name and copied.record.runs[own.name].steps == 3
    assert plan.optimizer("sgd")._lineage.name != plan.optimizer("sgd")._lineage.name


@pytest.mark.slow
def test_files_bring_the_cost_into_a_new_process(box, giver, loud, tmp_path, in_a_new_process):
    giver.save(tmp_path / "a.keras")
    giver.save_weights(tmp_path / "a.weights.h5")
    giver.inner_model.save(tmp_path / "inner.keras")
    tf.train.Checkpoint(model=giver).save(tmp_path / "checkpoint")
    script = f"""
        import tensorflow as tf, tf_subjectdp as sdp, tf_subjectdp.keras
        def said(model): return " ".join(model.privacy_statement().split())
        path = {str(tmp_path)!r}
        def net(): return tf.keras.Sequential([tf.keras.layers.Input([3]), tf.keras.layers.Dense(1)])
        def compiled(net):
            stats = sdp.SubjectStats.public(n_items=60, n_subjects=12, max_items=5)
            plan = sdp.plan(
                sdp.HiGradAvg(1.0), sdp.PoissonItems(16), stats, steps=4, noise_multiplier=20.0,
                delta=1e-3,
            )
            model = sdp.PrivateModel(net)
            model.compile(optimizer=plan.optimizer("sgd"), loss="mse")
            model.make_optimizer_variables()
            return model
        inner = compiled(tf.keras.models.load_model(path + "/inner.keras"))
        assert {UNKNOWN!r} in said(inner), said(inner)
        weights, checkpoint = compiled(net()), compiled(net())
        weights.load_weights(path + "/a.weights.h5")
        tf.train.Checkpoint(model=checkpoint).restore(path + "/checkpoint-1")
        for model in (weights, checkpoint):
            text = said(model)
            assert "0 of 4 planned" in text and "trained for 3 steps in another run" in text, text
            assert {UNKNOWN!r} not in text and {rounded_up(loud.epsilon(steps=3))!r} in text, text
        again = tf.keras.models.load_model(path + "/a.keras")
        assert "3 of 4 planned" in said(again) and {UNKNOWN!r} not in said(again)
        from tf_subjectdp.cli.plans import read_model
        from tf_subjectdp.statement import weights_statement
        assert weights_statement(read_model(path + "/a.keras")) == again.privacy_statement()
    """
    in_a_new_process(script)
