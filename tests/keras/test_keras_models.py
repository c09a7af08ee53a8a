# SPDX-License-Identifier: Apache-2.0
"""Models and losses of every kind: a step without noise and clipping is Keras's own full-batch step."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp

L = tf.keras.layers


class Twice(tf.keras.Model):
    """A subclassed model."""

    def __init__(self):
        super().__init__()
        self.first, self.second = L.Dense(4, activation="tanh"), L.Dense(1)

    def call(self, inputs, training=None):
        return self.second(self.first(inputs))


class Two(tf.keras.Model):
    """A subclassed model of two outputs, in a dict or a list."""

    def __init__(self, kind=list):
        super().__init__()
        self.left, self.right, self.kind = L.Dense(1), L.Dense(2), kind

    def call(self, inputs, training=None):
        outputs = {"left": self.left(inputs), "right": self.right(inputs)}
        return outputs if self.kind is dict else list(outputs.values())


def two_inputs():
    a, b = L.Input([2], name="a"), L.Input([1], name="b")
    return a, b, L.Concatenate()([a, b])


def dict_inputs():
    a, b, joined = two_inputs()
    return tf.keras.Model({"a": a, "b": b}, L.Dense(1)(joined))


def tuple_inputs():
    a, b, joined = two_inputs()
    return tf.keras.Model([a, b], L.Dense(1)(joined))


def list_outputs():
    x = L.Input([3])
    return tf.keras.Model(x, [L.Dense(1, name="left")(x), L.Dense(2, name="right")(x)])


def dict_outputs():
    x = L.Input([3])
    outputs = {"left": L.Dense(1, name="left")(x), "right": L.Dense(2, name="right")(x)}
    return tf.keras.Model(x, outputs)


def subclassed(make=Twice, *args):
    model = make(*args)
    model(tf.zeros([1, 3]))
    return model


def single():
    return tf.keras.Sequential([L.Input([3]), L.Dense(1)])


def regularised():
    return tf.keras.Sequential(
        [
            L.Input([3]),
            L.Dense(4, kernel_regularizer=tf.keras.regularizers.L1L2(0.01, 0.1)),
            L.Dense(1, bias_regularizer="l2"),
        ]
    )


def vector_loss(y, p):
    return tf.reduce_sum(tf.square(y - p), -1)


def two_targets(box):
    return box.y, np.concatenate([box.y, 1 - box.y], 1)


def named_targets(box):
    return dict(zip(("left", "right"), two_targets(box), strict=True))


BOTH = {"loss": {"left": "mse", "right": "mae"}, "loss_weights": {"left": 2.0, "right": 0.3}}

CASES = {
    "string loss": (
        single, None, None, {"loss": "mse", "metrics": ["mae"], "weighted_metrics": ["mae"]},
    ),
    "loss object with the mean": (single, None, None, {"loss": tf.keras.losses.Huber(0.3)}),
    "function of a vector": (single, None, None, {"loss": vector_loss}),
    "subclassed": (subclassed, None, None, {"loss": "mae"}),
    "dict inputs": (dict_inputs, lambda x: {"a": x[:, :2], "b": x[:, 2:]}, None, {"loss": "mse"}),
    "tuple inputs": (tuple_inputs, lambda x: (x[:, :2], x[:, 2:]), None, {"loss": "mse"}),
    "list outputs, list of losses": (
        list_outputs, None, two_targets,
        {"loss": ["mse", "mae"], "loss_weights": [1.0, 0.3], "metrics": [["mae"], ["mse", "mae"]]},
    ),
    "list outputs, dict of losses": (
        list_outputs, None, two_targets, {**BOTH, "metrics": {"right": ["mae", "mse"]}},
    ),
    "list outputs, one without a loss": (
        list_outputs, None, lambda box: box.y, {"loss": ["mse", None], "metrics": [["mae"], None]},
    ),
    "dict outputs, dict of losses": (
        dict_outputs, None, named_targets,
        {**BOTH, "metrics": {"left": ["mae"]}, "weighted_metrics": {"left": ["mae"]}},
    ),
    "subclassed, list outputs": (
        lambda: subclassed(Two), None, two_targets, {"loss": ["mse", "mae"]},
    ),
    "subclassed, list outputs, one loss": (
        lambda: subclassed(Two), None, two_targets, {"loss": tf.keras.losses.Huber()},
    ),
    "subclassed, dict outputs": (
        lambda: subclassed(Two, dict), None, named_targets, {**BOTH, "metrics": {"left": ["mae"]}},
    ),
    # O23, O24: a penalty on weights enters exactly once, outside the clipping.
    "regularised": (regularised, None, None, {"loss": "mse"}),
}  # fmt: skip


SHOWN_TOO = {"clipped", "signal_to_noise"}


@pytest.mark.parametrize("case", CASES)
def test_noiseless_unclipped_steps_and_their_history_are_keras_own(box, case):
    """Weights, and the names and values in `history` and `evaluate`."""
    make, to_x, to_y, options = CASES[case]
    x = box.x if to_x is None else to_x(box.x)
    y = box.y if to_y is None else to_y(box)
    net, plain = make(), make()
    plain.set_weights(net.get_weights())
    plain.compile(optimizer=tf.keras.optimizers.SGD(0.5), **options)
    weights = np.linspace(0.5, 1.5, 60).astype(np.float32)
    shown = {"verbose": 0, "validation_data": (x, y), "validation_batch_size": 60, "epochs": 2}
    history = plain.fit(x, y, batch_size=60, sample_weight=weights, **shown).history
    plan = box.exact_plan(steps=2)
    model = sdp.PrivateModel(net)
    optimizer = plan.optimizer(tf.keras.optimizers.SGD(0.5), engine={"strategy": "loop"})
    model.compile(optimizer=optimizer, **options)
    data = plan.dataset(x, y, box.ids, sample_weight=weights)
    found = model.fit(data, steps_per_epoch=1, **shown).history
    for ours, keras in zip(net.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, keras, rtol=2e-5, atol=2e-6)
    assert set(found) - SHOWN_TOO == set(history)
    for name, values in history.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, err_msg=name)
    ours, keras = (m.evaluate(x, y, verbose=0, return_dict=True) for m in (model, plain))
    assert ours == pytest.approx(keras, rel=1e-4)


@pytest.mark.parametrize(
    ("make", "targets"),
    [(list_outputs, "one"), (dict_outputs, "both"), (lambda: subclassed(Two, dict), "one")],
    ids=["list outputs", "dict outputs", "subclassed"],
)
def test_an_output_without_a_loss_needs_no_target(box, make, targets):
    """Also where Keras 3 itself would have a loss for every output."""
    net, plan = make(), box.exact_plan(steps=2)
    y = named_targets(box)
    if targets == "one":
        del y["right"]
    before = net.get_weights()
    losses = {"loss": {"left": "mse"}, "loss_weights": {"left": 0.5}, "metrics": {"left": ["mae"]}}
    model = box.compiled(plan, net, **losses)
    data = plan.dataset(box.x, y, box.ids)
    history = model.fit(data, validation_data=(box.x, y), verbose=0).history
    alone = {"left_loss", "val_left_loss"} if not box.keras_3 else set()
    assert set(history) - SHOWN_TOO == {"loss", "val_loss", "left_mae", "val_left_mae"} | alone
    moved = [(a != b).any() for a, b in zip(before, net.get_weights(), strict=True)]
    assert moved == [True, True, False, False]


def test_the_losses_of_the_outputs_add_up_also_over_empty_batches(box, capsys):
    plan = box.plan(sampling=sdp.PoissonItems(1), steps=8)
    model = box.compiled(plan, list_outputs(), **BOTH)
    data = plan.dataset(box.x, two_targets(box), box.ids)
    history = model.fit(data, verbose=1).history
    shown = capsys.readouterr().out.split("left_loss: ")[-1].split()[0]
    assert float(shown) == pytest.approx(history["left_loss"][0], abs=1e-4)
    total = 2.0 * history["left_loss"][0] + 0.3 * history["right_loss"][0]
    assert history["loss"][0] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ({"left": 0}, r"no targets for the outputs \['right'\]"),
        ({"left": 0, "right": 1, "middle": 0}, r"has targets \['middle'\], but"),
        ((0,), r"y has 1 targets for the 2 outputs"),
    ],
)
def test_targets_that_fit_no_output_are_refused(box, plan, y, message):
    y = tf.nest.map_structure(lambda number: two_targets(box)[number], y)
    model = box.compiled(plan, list_outputs(), **BOTH)
    with pytest.raises(ValueError, match=message):
        model.fit(plan.dataset(box.x, y, box.ids), verbose=0)
    assert model.optimizer.steps_taken == 0


@pytest.mark.parametrize("name", ["train_step", "test_step", "compute_loss", "compute_metrics"])
def test_a_method_that_would_not_be_called_is_refused_by_name(box, name):
    own = type("Own", (Twice,), {name: lambda self, *args, **kwargs: None})
    functional = type("Own", (tf.keras.Model,), {name: lambda self, *args, **kwargs: None})
    x = L.Input([3])
    patched = box.net()
    object.__setattr__(patched, name, lambda *args: None)
    for model in (own(), functional(x, L.Dense(1)(x)), patched):
        with pytest.raises(ValueError, match=rf"has its own {name}, which .* Leave it out, and"):
            sdp.PrivateModel(model)


def test_the_models_own_predict_step_is_used(box):
    class Classes(Twice):
        def predict_step(self, data):
            return tf.cast(super().predict_step(data) > 0, tf.int32)

    model = sdp.PrivateModel(Classes())
    expected = (model(box.x).numpy() > 0).astype(np.int32)
    np.testing.assert_array_equal(model.predict(box.x, verbose=0), expected)
    np.testing.assert_array_equal(model.predict_on_batch(box.x), expected)


def test_layers_by_name_and_the_summary_are_the_models_own(box, capsys):
    net = box.net(2, name="wide")
    model = sdp.PrivateModel(net)
    assert model.get_layer("wide") is model.get_layer(index=0) is net.get_layer("wide")
    model.summary()
    shown = capsys.readouterr().out
    net.summary()
    assert shown == capsys.readouterr().out
    assert "wide" in shown and "Total params: 8" in shown


@pytest.mark.parametrize("strength", [0.0, 0.01])
@pytest.mark.parametrize("algorithm", [sdp.ItemDP(1e-3), sdp.SubjectDP(1e-3)])
def test_a_regulariser_is_added_once_and_is_not_clipped(box, strength, algorithm):
    """O23: l1 and l2 against the analytic gradient, also with strength 0."""
    plan = box.exact_plan(algorithm, steps=1)
    net = box.net(2, kernel_regularizer=tf.keras.regularizers.L1L2(strength, strength))
    kernel = net.get_weights()[0]
    model = box.compiled(
        plan, net, tf.keras.optimizers.SGD(1.0), loss=lambda y, p: tf.zeros_like(p[:, 0])
    )
    history = model.fit(box.data(plan), verbose=0).history
    expected = kernel - strength * (np.sign(kernel) + 2 * kernel)
    np.testing.assert_allclose(net.get_weights()[0], expected, rtol=1e-5, atol=1e-7)
    penalty = strength * (np.abs(kernel).sum() + (kernel**2).sum())
    assert history["loss"][0] == pytest.approx(penalty, abs=1e-6)


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, p: tf.reduce_mean(tf.square(y - p)),
        type(
            "Averaged", (tf.keras.losses.Loss,), {"call": lambda self, y, p: tf.reduce_mean(y - p)}
        )(),
    ],
)
def test_a_loss_that_is_already_averaged_is_refused_with_the_remedy(box, plan, loss):
    """O2: a clear error that says which argument to set, before any step."""
    model = box.compiled(plan, loss=loss)
    with pytest.raises(ValueError, match="already averaged.*reduction='none'"):
        model.fit(box.data(plan), verbose=0)
    assert model.optimizer.steps_taken == 0


@pytest.mark.parametrize("loss", ["mse", tf.keras.losses.MeanSquaredError(), "MeanSquaredError"])
def test_a_reduced_keras_loss_is_used_in_its_unreduced_form(box, plan, loss):
    """O2: 16 groups, a string or a mean-reduced loss."""
    model = box.fitted(plan, loss=loss)
    assert model.optimizer.steps_taken == plan.steps


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"loss": None}, ValueError, "loss is missing"),
        ({"loss": {"nobody": "mse"}}, ValueError, r"loss names \['nobody'\], but"),
        ({"loss": ["mse", "mse"]}, ValueError, "loss has 2 entries for the outputs"),
        ({"loss": "mse", "loss_weights": {"nobody": 1.0}}, ValueError, "loss_weights names"),
        ({"loss": 3}, TypeError, "loss=3 must be a name, a Keras loss or a function"),
    ],
)
def test_a_loss_that_fits_no_output_is_refused(box, plan, options, error, message):
    model = sdp.PrivateModel(box.net())
    with pytest.raises(error, match=message):
        model.compile(optimizer=plan.optimizer("sgd"), **options)
        model.fit(box.data(plan), verbose=0)


def test_a_model_that_was_never_built_is_built_from_the_data(box, plan):
    """O38: a subclassed model, made outside of everything, without an input shape."""
    net = Twice()
    assert not net.built
    model = box.fitted(plan, net)
    assert model.optimizer.steps_taken == plan.steps
    assert len(net.get_weights()) == 4


@pytest.mark.parametrize("thing", [3, "model", tf.keras.layers.Dense(1), Twice])
def test_what_is_no_model_is_refused(thing):
    """O38"""
    with pytest.raises(TypeError, match="keras_model is a .*: pass a tf.keras.Model"):
        sdp.PrivateModel(thing)


@pytest.mark.parametrize("module", ["keras.src.models.model", "tf_keras.src.engine.training"])
def test_a_model_of_another_keras_is_refused_by_name(module):
    """O12"""
    foreign = type("Model", (), {"__module__": module})()
    with pytest.raises(TypeError, match="belongs to another Keras than the one of this TensorFlow"):
        sdp.PrivateModel(foreign)


def test_a_private_model_is_not_wrapped_twice(box):
    with pytest.raises(TypeError, match="PrivateModel already"):
        sdp.PrivateModel(sdp.PrivateModel(box.net()))


def test_texts_are_better_vectorised_before_the_plans_dataset(box, plan, caplog):
    layer = tf.keras.layers.TextVectorization(output_sequence_length=3, vocabulary=["a", "b"])
    texts, given = np.array(["a b", "b", "a"] * 20), tf.keras.Input([], dtype="string")
    for inside in (True, False):
        words = given if inside else tf.keras.Input([3], dtype="int64")
        vectors = tf.keras.layers.Embedding(4, 2)(layer(given) if inside else words)
        pooled = tf.keras.layers.GlobalAveragePooling1D()(vectors)
        net = tf.keras.Model(words, tf.keras.layers.Dense(1)(pooled))
        model = box.compiled(plan, net, engine="auto")
        data = plan.dataset(texts if inside else layer(texts), box.y, box.ids)
        caplog.clear()
        model._prepare(data.element_spec)
        assert ("takes texts: turn them into numbers before plan.dataset" in caplog.text) == inside


def test_an_embedding_and_lstm_train_as_row_by_row_and_say_how_in_one_line(box, caplog):
    """O3: TensorFlow cannot vectorise it; the loop gives what a Python loop over rows gives."""
    net = tf.keras.Sequential(
        [L.Input([3], dtype="int32"), L.Embedding(6, 2), L.LSTM(2), L.Dense(1)]
    )
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 6, (4, 3)), rng.normal(size=(4, 1)).astype(np.float32)
    ids = np.arange(4)
    plan = sdp.plan(
        sdp.ItemDP(0.1),
        sdp.PoissonItems(4),
        sdp.SubjectStats.from_ids(ids),
        steps=1,
        noise_multiplier=0.0,
    )
    expected = [w.astype(np.float64) for w in net.get_weights()]
    for row in range(4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(net(x[row : row + 1]) - y[row : row + 1]))
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, net.trainable_variables)]
        norm = max(float(tf.linalg.global_norm(gradients)) / 0.1, 1.0)
        expected = [w - g.numpy() / norm / 4 for w, g in zip(expected, gradients, strict=True)]
    model = box.compiled(plan, net, tf.keras.optimizers.SGD(1.0), engine="auto")
    with caplog.at_level("INFO", "tf_subjectdp"):
        model.fit(plan.dataset(x, y, ids), verbose=0)
    for ours, oracle in zip(net.get_weights(), expected, strict=True):
        np.testing.assert_allclose(ours, oracle, rtol=1e-4, atol=1e-6)
    assert sum("clipping engine" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("algorithm", [sdp.ItemDP(0.1), sdp.SubjectDP(0.1)])
def test_steps_in_chunks_run_eagerly_too(box, algorithm):
    plan = box.plan(algorithm, sdp.PoissonItems(60), noise_multiplier=0.0)
    weights = []
    for eagerly in (False, True):
        net = box.net()
        net.set_weights([np.full(w.shape, 0.3, np.float32) for w in net.get_weights()])
        model = sdp.PrivateModel(net)
        # Fewer rows than a person has.
        optimizer = plan.optimizer(tf.keras.optimizers.SGD(0.1), engine={"max_rows": 3})
        model.compile(optimizer=optimizer, loss="mse", run_eagerly=eagerly)
        model.fit(box.data(plan).take(2), verbose=0)
        weights.append(net.get_weights())
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_compiled_run_gives_the_same_weights(box):
    plan = box.exact_plan()
    weights = []
    for options in ({"engine": "loop"}, {"engine": "auto", "jit_compile": True}):
        net = box.net()
        net.set_weights([np.full(w.shape, 0.3, np.float32) for w in net.get_weights()])
        model = box.compiled(plan, net, **options)
        model.fit(box.data(plan, pad=True), verbose=0)
        weights.append(net.get_weights())
    assert "compiled by XLA" in " ".join(model.privacy_statement().split())
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_compiling_the_model_again_without_xla_turns_it_off(box, plan):
    model = box.compiled(plan, engine="auto", jit_compile=True)
    assert model.optimizer.engine.jit_compile
    model.compile(model.optimizer, loss="mse")
    assert model.optimizer.engine.jit_compile
    model.compile(model.optimizer, loss="mse", jit_compile=False)
    assert not model.optimizer.engine.jit_compile


def test_a_model_that_cannot_be_compiled_says_why(box, plan):
    layers = tf.keras.layers
    net = tf.keras.Sequential(
        [layers.Input([3]), layers.Lambda(lambda x: x - tf.reduce_mean(x, 0)), layers.Dense(1)]
    )
    model = box.compiled(plan, net, engine="auto", jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=True was asked for, but"):
        model.fit(box.data(plan), verbose=0)


def test_the_fast_engine_is_the_default_and_the_statement_says_so(box, plan):
    model = box.fitted(plan, engine="auto")
    assert "Technical: clipping engine: norms of each item's gradient" in model.privacy_statement()


@pytest.mark.parametrize(
    ("units", "activation", "loss"),
    [
        (1, "sigmoid", "binary_crossentropy"),
        (2, "softmax", "sparse_categorical_crossentropy"),
        (2, "softmax", tf.keras.losses.SparseCategoricalCrossentropy()),
        (2, None, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
        (1, None, "mse"),
    ],
)
def test_the_ordinary_classifiers_of_keras_are_served_by_the_fast_engine(
    box, units, activation, loss
):
    """Keras's losses look behind the softmax for its logits, inside the layer."""
    plan, weights = box.exact_plan(), []
    for engine in ("auto", "loop"):
        net = box.net(units, activation=activation)
        net.set_weights([np.full(w.shape, 0.3, np.float32) for w in net.get_weights()])
        model = box.fitted(plan, net, engine=engine, loss=loss, take=2)
        weights.append(net.get_weights())
        if engine == "auto":
            assert "norms of each item's gradient" in model.privacy_statement()
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


REPLICAS = """
import tensorflow as tf
import tf_subjectdp as sdp

cpu, two = tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
x, extras = tf.ones([4, 3]), {"subject": tf.range(4)}
data = tf.data.Dataset.from_tensors((x, x, extras))


def net():
    return tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(3)])


def optimizer():
    return sdp.DPOptimizer("adam", sdp.ItemDP(1.0), noise_multiplier=1.0)


def compiled():
    model = sdp.PrivateModel(net())
    model.compile(optimizer(), "mse")
    return model


def step(weight):
    row_function = lambda rows: (tf.reduce_sum(rows @ weight, -1), rows)
    sdp.private_step(optimizer(), row_function, [weight], x, extras, strategy="loop")


with strategy.scope():
    mirrored, variable = net(), tf.Variable(tf.ones([3, 1]))
outside, plain = compiled(), sdp.PrivateModel(net())


def within(function):
    def called():
        with strategy.scope():
            function()

    return called


ways = {
    "a wrapper made in the scope": within(lambda: sdp.PrivateModel(net())),
    "compile in the scope": within(lambda: plain.compile(optimizer(), "mse")),
    "fit in the scope": within(lambda: outside.fit(data, verbose=0)),
    "train_on_batch in the scope": within(lambda: outside.train_on_batch(x, x, extras)),
    "a model made in the scope": lambda: sdp.PrivateModel(mirrored),
    "a variable made in the scope": lambda: step(variable),
    "a step on the replicas": lambda: strategy.run(step, [tf.Variable(tf.ones([3, 1]))]),
}
for way, function in ways.items():
    try:
        function()
        print(way, "was not refused")
    except ValueError as error:
        if "2 replicas" not in str(error) or "one device" not in str(error):
            print(way, error)
print(outside.optimizer.steps_taken, "steps")
"""


def test_several_replicas_are_refused_however_they_come_in():
    """In a process of its own, of two logical devices."""
    done = subprocess.run([sys.executable, "-c", REPLICAS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "0 steps\n"
