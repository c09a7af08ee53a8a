# SPDX-License-Identifier: Apache-2.0
"""The fast engine on whole models: equal to the general one, or not used, with the reason."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tf_subjectdp import clipping
from tf_subjectdp.clipping import EngineOptions, norm_only, partition
from tf_subjectdp.keras import compat

L = tf.keras.layers
K = tf.keras


def rng(seed=0):
    return np.random.default_rng(seed)


def numbers(rows, *shape, seed=0):
    return tf.constant(rng(seed).normal(size=(rows, *shape)).astype(np.float32))


def row_loss(model):
    def row_function(rows):
        outputs = tf.nest.flatten(model(rows, training=True))
        losses = [
            tf.reduce_sum(
                tf.reshape(tf.sin(o) + tf.square(o), [tf.shape(o)[0], o.shape[1:].num_elements()]),
                1,
            )
            for o in outputs
        ]
        return tf.add_n(losses), outputs[0]

    return row_function


def specs(rows):
    return tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), rows)


def why_not(model, rows, row_function=None, variables=None):
    """The chooser's sentence if it does not take the fast engine, else ''."""
    row_function = row_function or row_loss(model)
    if variables is None:
        variables = [compat.raw(v) for v in model.trainable_variables]
    name, sentence = clipping.choose_strategy(
        row_function,
        variables,
        specs(rows),
        linear=True,
        options=EngineOptions(),
        layers=compat.all_layers(model),
    )
    return "" if name == "norm_only" else sentence


def sums(model, rows, terms, bound, options=None, engines=("norm_only", "loop")):
    variables = [compat.raw(v) for v in model.trainable_variables]
    row_function = row_loss(model)

    @tf.function(autograph=False)
    def all_sums():
        return [
            clipping.clipped_sum(
                row_function,
                variables,
                rows,
                terms,
                bound,
                strategy=engine,
                options=options or EngineOptions(),
                layers=compat.all_layers(model),
            )
            for engine in engines
        ]

    return all_sums()


def assert_same(fast, general, tolerance=1e-5):
    scale = max(float(tf.linalg.global_norm(general.total)), 1e-20)
    apart = tf.linalg.global_norm([a - b for a, b in zip(fast.total, general.total, strict=True)])
    assert float(apart) / scale < tolerance
    np.testing.assert_array_equal(fast.rows, general.rows)
    np.testing.assert_allclose(fast.losses, general.losses, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(fast.predictions, general.predictions, rtol=1e-4, atol=1e-5)
    for name in ("clipped", "groups", "non_finite"):
        assert float(getattr(fast, name)) == float(getattr(general, name)), name


def people(*ids):
    mask = tf.constant([i is not None for i in ids], tf.bool)
    return partition.subject_mean_terms(tf.constant([i or 0 for i in ids], tf.int32), mask)


def small():
    return K.Sequential([K.Input([3]), L.Dense(4, "tanh"), L.LayerNormalization(), L.Dense(2)])


# -- random models -----------------------------------------------------------------------------------


SHAPES = {"table": [3], "sequence": [4, 3], "image": [5, 4, 2], "text": [4]}
STEPS = {
    "table": ["dense", "norm", "twice", "skip"],
    "image": ["conv", "norm", "depthwise", "dense"],
    "sequence": ["dense", "norm", "lstm", "gru", "conv", "attention"],
    "text": ["dense", "norm", "lstm", "gru", "conv", "attention"],
}


@st.composite
def recipes(draw):
    """What a model is made of: its kind, width and steps, each with an activation and a stride."""
    kind = draw(st.sampled_from(list(SHAPES)))
    step = st.tuples(
        st.sampled_from(STEPS[kind]), st.sampled_from([None, "relu", "tanh"]), st.integers(1, 2)
    )
    steps = draw(st.lists(step, min_size=1, max_size=3))
    return kind, draw(st.integers(1, 4)), draw(st.booleans()), steps


def model_of(kind, width, masked, steps):
    given = K.Input(SHAPES[kind], dtype="int32" if kind == "text" else "float32")
    x = L.Embedding(5, width + 1, mask_zero=masked)(given) if kind == "text" else given
    for step, activation, stride in steps:
        size = int(x.shape[-1])
        if step == "dense":
            x = L.Dense(width + 1, activation=activation)(x)
        elif step == "norm":
            x = L.LayerNormalization()(x)
        elif step == "twice":
            layer = L.Dense(size, activation)
            x = layer(layer(x))
        elif step == "skip":
            x = L.Add()([x, L.Dense(size)(x)])
        elif step == "lstm":
            x = L.LSTM(width, return_sequences=True)(x)
        elif step == "gru":
            x = L.GRU(width, return_sequences=True)(x)
        elif step == "attention":
            x = L.MultiHeadAttention(2, 2)(x, x)
        elif step == "depthwise":
            x = L.DepthwiseConv2D(2, padding="same")(x)
        else:
            conv = L.Conv2D if kind == "image" else L.Conv1D
            x = conv(width, 2, padding="same", strides=stride)(x)
    if kind != "table":
        x = L.Flatten()(x)
    return K.Model(given, L.Dense(2)(x))


@pytest.mark.slow
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    recipe=recipes(),
    ids=st.lists(st.sampled_from([0, 1, 2, None]), min_size=1, max_size=7),
    factor=st.sampled_from([0.05, 0.7, 100.0]),
    grouped=st.booleans(),
    seed=st.integers(0, 99),
)
def test_random_models_give_the_same_sum_by_both_engines(recipe, ids, factor, grouped, seed):
    model, kind = model_of(*recipe), recipe[0]
    count = len(ids)
    rows = numbers(count, *SHAPES[kind], seed=seed)
    if kind == "text":
        rows = tf.constant(rng(seed).integers(0, 5, (count, *SHAPES[kind])), tf.int32)
    assert why_not(model, rows) == ""
    terms = people(*ids)
    if not grouped:
        terms = partition.item_terms(tf.constant([i is not None for i in ids]))
    assert_same(*sums(model, rows, terms, factor))
    K.backend.clear_session()


# -- batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [(), (None,), (None, None, None), (7,), (7, 7, 7), (1, 2, 3), (2, None, 1, 2, None, 1, 2)],
)
@pytest.mark.parametrize("kind", ["linear", "grouped"])
def test_empty_batches_single_groups_and_padding(ids, kind):
    terms = people(*ids)
    if kind == "linear":
        terms = partition.item_terms(tf.constant([i is not None for i in ids], tf.bool))
    assert_same(*sums(small(), numbers(len(ids), 3), terms, 0.4))


@pytest.mark.parametrize("kind", ["linear", "grouped"])
def test_chunks_of_whole_groups_add_up_to_the_same_sum(kind):
    ids = [0, 1, 1, 2, 2, 2, 3, 4, 4, 0, 5, 5, 6]
    terms = people(*ids)
    if kind == "linear":
        terms = partition.item_terms(tf.ones([len(ids)], tf.bool))
    rows = numbers(len(ids), 3)
    for size in (3, 4, 5, 12, 13):
        assert_same(*sums(small(), rows, terms, 0.4, EngineOptions(max_rows=size)))


LARGE_GROUPS = {
    "table": ("table", 3, False, [("dense", "tanh", 1), ("norm", None, 1)]),
    "image": ("image", 3, False, [("conv", None, 1), ("depthwise", None, 1)]),
    "text": ("text", 2, True, [("dense", None, 1), ("lstm", None, 1)]),
}


@pytest.mark.parametrize("model", list(LARGE_GROUPS))
def test_groups_larger_than_a_chunk_and_few_large_groups_are_summed_before_they_are_clipped(model):
    made = model_of(*LARGE_GROUPS[model])
    shape = made.input_shape[1:]
    rows = numbers(130, *shape)
    if model == "text":
        rows = tf.constant(rng(3).integers(0, 5, (130, *shape)), tf.int32)
    for bound in (0.1, 1e3):
        assert_same(*sums(made, rows, people(*[0] * 65, *[1] * 65), bound))
        options = EngineOptions(max_rows=5)
        assert_same(*sums(made, rows[:9], people(*[0] * 7, 1, 2), bound, options))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["linear", "grouped"])
def test_a_row_that_is_not_finite_counts_as_zero_and_is_counted(bad, kind):
    rows = numbers(6, 3).numpy()
    rows[2, 1] = bad
    terms = people(0, 1, 0, 1, 2, 2)
    if kind == "linear":
        terms = partition.item_terms(tf.ones([6], tf.bool))
    model = K.Sequential([K.Input([3]), L.Dense(4, "tanh"), L.Dense(2)])
    fast, general = sums(model, tf.constant(rows), terms, 0.4)
    assert float(fast.non_finite) == 1.0
    scale = float(tf.linalg.global_norm(general.total))
    for a, b in zip(fast.total, general.total, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * scale)
    if kind == "grouped":
        # A group of more rows than a chunk.
        whole = people(0, 0, 0, 0, 2, 2)
        fast, general = sums(model, tf.constant(rows), whole, 0.4, EngineOptions(max_rows=3))
        assert_same(fast, general)
        assert float(fast.non_finite) == 1.0


@pytest.mark.parametrize("size", [1e3, 2.0**25])
@pytest.mark.parametrize("kind", ["positions", "positions of a person", "rows of a person", "ids"])
def test_a_term_of_opposites_adds_no_more_than_the_bound(kind, size):
    """Its norm is next to 0, but float32 loses more than the bound in the sum of its parts."""
    random = rng(5)
    steps, people_of_rows = (2, [0, 1, 2, 3]) if kind != "rows of a person" else (1, [0, 1, 2, 2])
    x = random.normal(size=(4, 16, 64)).astype(np.float32)
    w = random.normal(size=(4, 16, 64)).astype(np.float32)
    x[:, steps:] = 0.0
    a, b = (random.normal(size=64) * size for _ in range(2))
    a, b = (np.round(v).astype(np.float32) for v in (a, b))
    if kind == "rows of a person":
        x[2, 0], x[3, 0], w[2, 0], w[3, 0] = a, a, b, -b
    else:
        x[3, :2], w[3, 0], w[3, 1] = a, b, -b
    model = K.Sequential([K.Input([16, 64]), L.Dense(64, use_bias=False)])
    rows = (tf.constant(x), tf.constant(w))
    if kind == "rows of a person":
        model = K.Sequential([K.Input([64]), L.Dense(64, use_bias=False)])
        rows = (tf.constant(x[:, 0]), tf.constant(w[:, 0]))
    elif kind == "ids":
        model = K.Sequential([K.Input([16], dtype="int32"), L.Embedding(9, 64)])
        ids = random.integers(0, 9, (4, 16))
        ids[3, :2] = 4
        rows = (tf.constant(ids, tf.int32), tf.constant(w))

    def row_function(rows):
        outputs = model(rows[0]) * rows[1]
        losses = tf.reduce_sum(tf.reshape(outputs, [tf.shape(outputs)[0], -1]), 1)
        return losses, losses

    def total(ids):
        terms = people(*ids)
        if kind in ("positions", "ids"):
            terms = partition.item_terms(tf.constant([i is not None for i in ids]))

        @tf.function(autograph=False)
        def step():
            return clipping.clipped_sum(
                row_function,
                [compat.raw(v) for v in model.trainable_variables],
                rows,
                terms._replace(item_scale=tf.ones_like(terms.item_scale)),
                1.0,
                strategy="norm_only",
                layers=compat.all_layers(model),
            ).total[0]

        return step().numpy().astype(np.float64)

    without = [None if i == people_of_rows[3] else i for i in people_of_rows]
    added = np.linalg.norm(total(people_of_rows) - total(without))
    assert added <= 1.01


# -- structures ---------------------------------------------------------------------------------------


def check(model, rows, ids=(0, 0, 1, 2, 2, 2)):
    assert why_not(model, rows) == ""
    for terms in (partition.item_terms(tf.ones([len(ids)], tf.bool)), people(*ids)):
        for bound in (0.1, 1e3):
            assert_same(*sums(model, rows, terms, bound))


def test_nested_models_with_several_inputs_and_outputs():
    inner = K.Sequential([K.Input([3]), L.Dense(4, "relu")])
    left, right = K.Input([3], name="left"), K.Input([4, 2], name="right")
    joined = L.Concatenate()([inner(left), L.LSTM(3)(right), inner(left)])
    model = K.Model(
        {"left": left, "right": right}, [L.Dense(2)(joined), L.Dense(1, "sigmoid")(joined)]
    )
    check(model, {"left": numbers(6, 3), "right": numbers(6, 4, 2, seed=1)})


def test_frozen_layers_and_frozen_batch_normalization():
    model = K.Sequential(
        [K.Input([5, 3]), L.LSTM(4, return_sequences=True), L.BatchNormalization(), L.Dense(2)]
    )
    model.layers[0].trainable = False
    model.layers[1].trainable = False
    check(model, numbers(6, 5, 3))


class Tied(K.Model):
    """A table that is looked up and, turned, multiplied; and a weight outside all layers."""

    def __init__(self, stray=False):
        super().__init__()
        self.table = L.Embedding(6, 4)
        self.middle = L.Dense(4, "tanh")
        self.stray = tf.Variable(tf.ones([4])) if stray else None

    def call(self, inputs, training=None):
        x = self.middle(self.table(inputs))
        if self.stray is not None:
            x = x * self.stray
        return tf.reduce_mean(x, axis=1)


def test_a_subclassed_model_is_served():
    model = Tied()
    ids = tf.constant(rng().integers(0, 6, (6, 3)), tf.int32)
    model(ids)
    check(model, ids)


def test_a_scale_outside_all_layers_is_served():
    if compat.KERAS_3:
        pytest.skip("Keras 3 does not train a plain variable of a subclassed model")
    model = Tied(stray=True)
    ids = tf.constant(rng().integers(0, 6, (6, 3)), tf.int32)
    model(ids)
    check(model, ids)


class Alike(L.Layer):
    """Weights that meet every row alike, in many ways."""

    def build(self, shape):
        length, width = shape[1:]
        for name, size in {
            "table": [length, width],
            "token": [1, 1, width],
            "factor": [],
            "bias": [length + 1, length + 1],
        }.items():
            setattr(self, name, self.add_weight(name=name, shape=size, initializer="ones"))
        self.place = L.Embedding(length + 3, width)
        self.dense = L.Dense(width)
        self.dense.build([length, width])

    def call(self, x):
        length, count = tf.shape(x)[1], tf.shape(x)[0]
        places = self.place(tf.range(length))
        x = x + places[None] + tf.nn.softmax(self.table) + self.dense(places)
        flat = tf.reshape(x, [-1, x.shape[-1]]) * tf.exp(-self.factor) + self.table[0]
        x = tf.where(x > 0.0, tf.reshape(flat, tf.shape(x)), self.table / 3.0)
        x = tf.maximum(x, 0.1 * self.table)
        x = tf.concat([tf.tile(self.token, [count, 1, 1]), x], 1)
        x += tf.broadcast_to(self.token, [count, 1, x.shape[-1]])
        scores = tf.matmul(x, x, transpose_b=True) + self.bias
        return tf.matmul(tf.nn.softmax(scores), x)


def test_weights_that_every_row_uses_alike_are_served():
    model = K.Sequential([K.Input([4, 3]), L.Dense(2), Alike(), L.Dense(2)])
    assert why_not(model, numbers(6, 4, 3)) == ""
    values = rng(4)
    model.set_weights([values.normal(size=w.shape) for w in model.get_weights()])
    check(model, numbers(6, 4, 3))


class Multiplies(L.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=[shape[-1], 2])

    def call(self, inputs):
        return tf.matmul(inputs, self.kernel)


def test_a_weight_that_meets_the_rows_in_another_way_is_named_with_the_remedy():
    model = K.Sequential([K.Input([3]), L.Dense(4), Multiplies(name="own")])
    sentence = why_not(model, numbers(4, 3))
    assert "(MatMul" in sentence
    assert "meets it with the rows): register_norm_rule gives a layer one" in sentence


def test_one_weight_in_two_layers_is_served_as_one():
    first, second = L.Dense(3, "tanh"), L.Dense(3)
    model = K.Sequential([K.Input([3]), first, second])
    if compat.KERAS_3:
        pytest.skip("Keras 3 locks a built layer's weights")
    second.kernel = first.kernel
    second._trainable_weights = [first.kernel, second.bias]
    check(model, numbers(6, 3))


def test_a_weight_that_a_layer_and_a_plain_operation_share_is_found():
    model = small()
    kernel = model.layers[0].kernel

    def row_function(rows):
        outputs = model(rows)
        return tf.reduce_sum(outputs, 1) + tf.reduce_sum(tf.matmul(rows, kernel), 1), outputs

    assert "no rule covers the use of" in why_not(model, numbers(4, 3), row_function)


class Centred(L.Layer):
    def call(self, inputs):
        return inputs - tf.reduce_mean(inputs, axis=0)


@pytest.mark.parametrize(
    "layer",
    [
        Centred(),
        L.Lambda(lambda x: x / tf.cast(tf.shape(x)[0], tf.float32)),
        L.Lambda(lambda x: tf.reverse(x, [0])),
        L.Lambda(lambda x: tf.matmul(tf.matmul(x, x, transpose_b=True), x)),
    ],
)
def test_a_model_that_lets_rows_meet_goes_to_the_general_engine(layer):
    model = K.Sequential([K.Input([3]), L.Dense(4), layer, L.Dense(2)])
    assert "not norm_only" in why_not(model, numbers(4, 3))


@pytest.mark.parametrize("behind", [L.Dense(4), Multiplies()])
def test_a_layer_that_takes_a_mean_over_the_batch_is_a_warning_that_names_it(behind, caplog):
    model = K.Sequential([K.Input([3]), behind, Centred(name="centred"), L.Dense(2)])
    with caplog.at_level("INFO", "tf_subjectdp"):
        sentence = why_not(model, numbers(4, 3))
    assert "Rows of a batch meet in layer 'centred' (Centred, by Mean" in sentence
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("WARNING", sentence)]
    model = K.Sequential([K.Input([3]), Multiplies(), L.LayerNormalization(), L.Dense(2)])
    assert "meet in" not in why_not(model, numbers(4, 3))


def test_a_loss_that_lets_rows_meet_goes_to_the_general_engine():
    model = small()

    def row_function(rows):
        outputs = model(rows)
        losses = tf.reduce_sum(outputs, 1)
        return losses / tf.reduce_max(losses), outputs

    assert "not norm_only" in why_not(model, numbers(4, 3), row_function)


class Unknown(L.Dense):
    def call(self, inputs):
        return 2.0 * super().call(inputs)


def test_a_layer_without_a_rule_is_named_in_the_one_log_line(caplog):
    model = K.Sequential([K.Input([3]), Unknown(4, name="own"), L.Dense(2)])
    with caplog.at_level("INFO", "tf_subjectdp"):
        sentence = why_not(model, numbers(4, 3))
    assert "no rule covers the use of own/kernel" in sentence or "kernel" in sentence
    assert [r.getMessage() for r in caplog.records] == [sentence]


def test_a_layer_whose_rule_declines_says_why():
    model = K.Sequential([K.Input([4, 3]), L.LSTM(4, dropout=0.5, name="wet"), L.Dense(2)])
    assert "layer 'wet' (LSTM): dropout=0.5" in why_not(model, numbers(4, 4, 3))


def test_a_layer_called_once_a_time_step_goes_to_the_general_engine():
    model = K.Sequential([K.Input([4, 3]), L.TimeDistributed(L.Dense(2)), L.Flatten(), L.Dense(1)])
    assert "not norm_only" in why_not(model, numbers(4, 4, 3))


def test_the_fast_engine_that_was_asked_for_and_is_impossible_is_refused_with_the_reason():
    model = K.Sequential([K.Input([3]), Unknown(4, name="own"), L.Dense(2)])
    variables = [compat.raw(v) for v in model.trainable_variables]
    for options in ({"strategy": "norm_only"}, {"jit_compile": True}):
        with pytest.raises(ValueError, match="was asked for, but no rule.*register_norm_rule"):
            clipping.choose_strategy(
                row_loss(model),
                variables,
                specs(numbers(2, 3)),
                linear=True,
                options=EngineOptions(**options),
                layers=compat.all_layers(model),
            )


def test_dropout_acts_on_every_row_by_itself():
    model = K.Sequential([K.Input([30]), L.Dropout(0.5), L.Dense(2, use_bias=False)])
    rows = tf.ones([400, 30])
    assert why_not(model, rows) == ""
    terms = partition.item_terms(tf.ones([400], tf.bool))
    (fast,) = sums(model, rows, terms, 1e6, engines=("norm_only",))
    # 400 rows of one mask would make a column's sum 0 or 800 times the output's gradient.
    assert len(set(np.round(fast.total[0].numpy()[:, 0], 3))) > 10


# -- compiled -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear", "grouped"])
@pytest.mark.parametrize("model", ["table", "image", "many channels", "volume", "text"])
def test_one_compiled_program_gives_the_same_sum(kind, model):
    ids = (0, 1, None, 0, 2, None)
    terms = people(*ids)
    if kind == "linear":
        terms = partition.item_terms(tf.constant([i is not None for i in ids]))
    net, rows = {
        "table": lambda: (small(), numbers(6, 3)),
        "image": lambda: (
            K.Sequential([K.Input([6, 6, 2]), L.Conv2D(3, 3, activation="relu"), L.MaxPooling2D(),
                          L.Flatten(), L.Dense(2)]),
            numbers(6, 6, 6, 2),
        ),
        "many channels": lambda: (
            K.Sequential([K.Input([2, 2, 16]), L.Conv2D(16, 3, padding="same"), L.Flatten(),
                          L.Dense(2)]),
            numbers(6, 2, 2, 16),
        ),
        "volume": lambda: (
            K.Sequential([K.Input([2, 2, 2, 8]), L.Conv3D(12, 2), L.Flatten(), L.Dense(2)]),
            numbers(6, 2, 2, 2, 8),
        ),
        "text": lambda: (
            K.Sequential([K.Input([4], dtype="int32"), L.Embedding(5, 3),
                          L.LSTM(4, return_sequences=True), L.GRU(3), L.Dense(2)]),
            tf.constant(rng().integers(0, 5, (6, 4)), tf.int32),
        ),
    }[model]()  # fmt: skip
    (fast,) = sums(net, rows, terms, 0.3, EngineOptions(jit_compile=True), ("norm_only",))
    (general,) = sums(net, rows, terms, 0.3, engines=("loop",))
    order = np.argsort(general.rows.numpy())
    general = general._replace(
        rows=tf.gather(general.rows, order),
        losses=tf.gather(general.losses, order),
        predictions=tf.gather(general.predictions, order),
    )
    assert_same(fast, general)


def test_a_row_that_is_not_finite_counts_as_zero_in_the_compiled_program_too():
    rows = numbers(4, 3).numpy()
    rows[1, 0] = np.nan
    terms = people(0, 0, 1, 1)
    model = K.Sequential([K.Input([3]), L.Dense(4, "tanh"), L.Dense(2)])
    options = EngineOptions(jit_compile=True)
    (fast,) = sums(model, tf.constant(rows), terms, 0.4, options, ("norm_only",))
    (general,) = sums(model, tf.constant(rows), terms, 0.4, engines=("loop",))
    assert float(fast.non_finite) == 1.0
    for a, b in zip(fast.total, general.total, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_an_empty_batch_of_the_compiled_program_adds_nothing():
    (fast,) = sums(
        small(), numbers(0, 3), people(), 0.4, EngineOptions(jit_compile=True), ("norm_only",)
    )
    assert float(tf.linalg.global_norm(fast.total)) == 0.0
    assert (fast.losses.shape[0], float(fast.groups)) == (0, 0.0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"jit_compile": 1}, TypeError, "jit_compile=1 must be True or False"),
        ({"jit_compile": True, "strategy": "loop"}, ValueError, "'norm_only' alone, not 'loop'"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        EngineOptions(**options)


# -- what a hostile reader found ------------------------------------------------------------------------


def sum_of_items(row_function, variables, rows, model, *, jit_compile):
    """The sum of all rows' gradients, each clipped at 1."""
    count = len(tf.nest.flatten(rows)[0])
    return tf.function(
        lambda: clipping.clipped_sum(
            row_function,
            variables,
            rows,
            partition.item_terms(tf.ones([count], tf.bool)),
            1.0,
            strategy="norm_only",
            options=EngineOptions(jit_compile=jit_compile),
            layers=compat.all_layers(model),
        ),
        autograph=False,
    )()


def test_a_term_whose_squares_overflow_only_in_sum_is_clipped_as_any_other():
    given = K.Input([1])
    heads = [L.Dense(1, use_bias=False, kernel_initializer="ones")(given) for _ in range(2)]
    model = K.Model(given, L.Add()(heads))
    variables = [compat.raw(v) for v in model.trainable_variables]
    rows = tf.constant([[1.6e19], [1.0]])

    def row_function(rows):
        return model(rows)[:, 0], ()

    for jit in (False, True):
        found = sum_of_items(row_function, variables, rows, model, jit_compile=jit)
        assert 0.9999 < float(tf.linalg.global_norm(found.total)) <= 2.0
        assert (float(found.clipped), float(found.non_finite)) == (2.0, 0.0)


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("kind", ["positions", "people"])
def test_terms_that_nearly_cancel_are_clipped_all_the_same(scale, kind):
    """In float32 the squares of such a norm come out negative."""
    width = 1024
    a, b = np.float32(1.9985723), np.float32(2.0025694)
    layer = L.Dense(width, use_bias=False)
    if kind == "positions":
        rows, sign, shape = np.full((1, 2, width), a, np.float32), [[[1.0], [-1.0]]], [2, width]
        rows[:, 1] = b
        terms = partition.item_terms(tf.ones([1], tf.bool))
    else:
        rows, sign, shape = np.full((2, width), a, np.float32), [[1.0], [-1.0]], [width]
        rows[1] = b
        terms = people(0, 0)
    model = K.Sequential([K.Input(shape), layer])
    weights = tf.constant(np.array(sign, np.float32) * scale)

    def row_function(rows):
        values, sign = rows
        return tf.reduce_sum(tf.reshape(model(values) * sign, [tf.shape(sign)[0], -1]), 1), ()

    variables = [compat.raw(layer.kernel)]
    given = (tf.constant(rows), weights)
    found = tf.function(
        lambda: clipping.clipped_sum(
            row_function,
            variables,
            given,
            terms,
            0.01,
            strategy="norm_only",
            layers=compat.all_layers(model),
        ),
        autograph=False,
    )()
    # The parts, a thousand times as long, may be 128 clip norms together.
    assert 0.001 < float(tf.linalg.global_norm(found.total)) <= 0.01 * (1 + 1e-3)


@pytest.mark.parametrize("ids", [[[4], [0], [1]], [[3], [-1], [1]]])
def test_ids_out_of_range_do_not_reach_into_another_row(ids):
    model = K.Sequential([K.Input([1], dtype="int32"), L.Embedding(4, 1), L.Flatten()])
    weights = tf.constant([-1e3, 1e3, 1.0])
    table = [compat.raw(v) for v in model.trainable_variables]

    def row_function(rows):
        looked_up, weight = rows
        return model(looked_up)[:, 0] * weight, ()

    rows = (tf.constant(ids, tf.int32), weights)
    found = sum_of_items(row_function, table, rows, model, jit_compile=True)
    assert float(tf.reduce_max(tf.abs(found.total[0]))) <= 1.0 + 1e-6


@tf.custom_gradient
def bounded_backward(x):
    return tf.identity(x), lambda d: tf.clip_by_norm(d, 1.0)


class Same(L.Layer):
    """Draws the same numbers at every call."""

    def __init__(self):
        super().__init__()
        self.generator = tf.random.Generator.from_seed(3)

    def call(self, inputs):
        self.generator.reset_from_seed(3)
        return inputs + self.generator.normal(tf.shape(inputs))


@pytest.mark.parametrize("layer", [L.Lambda(bounded_backward), Same()])
def test_gradients_of_their_own_and_draws_that_repeat_go_to_the_general_engine(layer):
    model = K.Sequential([K.Input([3]), L.Dense(4), layer, L.Dense(2)])
    variables = [compat.raw(v) for v in model.trainable_variables]
    reason = norm_only.why_not(
        row_loss(model), variables, specs(numbers(4, 3)), compat.all_layers(model)
    )
    assert reason


def test_a_gradient_within_the_model_goes_to_the_general_engine():
    model = K.Sequential([K.Input([3]), L.Dense(2, use_bias=False)])

    def row_function(rows):
        with tf.GradientTape() as tape:
            tape.watch(rows)
            outputs = tf.reduce_sum(model(rows), 1)
        penalty = tf.reduce_sum(tf.square(tape.gradient(outputs, rows)), 1)
        return outputs + penalty, ()

    assert "looks inside layer" in why_not(model, numbers(4, 3), row_function)


def tanh(x):
    return 1.7159 * tf.tanh(2.0 * x / 3.0)


def test_an_activation_of_a_known_name_is_not_taken_for_the_known_one():
    model = K.Sequential([K.Input([4, 3]), L.LSTM(4, activation=tanh), L.Dense(2)])
    assert "activation=" in why_not(model, numbers(4, 4, 3))


def test_a_last_output_that_is_masked_may_be_zero():
    model = K.Sequential(
        [
            K.Input([5], dtype="int32"),
            L.Embedding(6, 3, mask_zero=True),
            L.LSTM(4, zero_output_for_mask=True),
        ]
    )
    ids = tf.constant([[1, 2, 3, 0, 0], [1, 2, 3, 4, 5], [0, 0, 0, 0, 0], [2, 0, 3, 0, 1]])
    check(model, ids, (0, 0, 1, 2))


def test_a_replaced_method_and_a_replaced_weight_leave_the_layer_without_a_rule():
    model = K.Sequential([K.Input([6, 6, 2]), L.Conv2D(3, 3), L.Flatten(), L.Dense(2)])
    conv = model.layers[0]
    object.__setattr__(conv, "convolution_op", lambda x, k: tf.nn.conv2d(x, 2.0 * k, 1, "VALID"))
    assert "not norm_only" in why_not(model, numbers(4, 6, 6, 2))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(L.Conv1D(64, 3), [4, 32]), (L.LayerNormalization(axis=[2, 1]), [4, 3])],
)
def test_unusual_shapes_are_served_or_left_to_the_general_engine(layer, shape):
    model = K.Sequential([K.Input(shape), layer, L.Flatten(), L.Dense(2)])
    rows = numbers(4, *shape)
    if why_not(model, rows) == "":
        check(model, rows, (0, 1, 1, 2))


def test_a_frozen_layer_within_a_function_of_its_own_is_no_error():
    frozen = L.Dense(3)
    frozen(tf.zeros([1, 3]))
    frozen.trainable = False
    model = K.Sequential([K.Input([3]), L.Dense(3)])
    inner = tf.function(lambda x: frozen(x))

    def row_function(rows):
        return tf.reduce_sum(inner(model(rows)), 1), ()

    variables = [compat.raw(v) for v in model.trainable_variables]
    layers = [*compat.all_layers(model), frozen]
    assert isinstance(norm_only.why_not(row_function, variables, specs(numbers(4, 3)), layers), str)


def test_a_loss_that_depends_on_no_weight_adds_nothing():
    model = small()
    variables = [compat.raw(v) for v in model.trainable_variables]
    terms = {"linear": partition.item_terms(tf.ones([3], tf.bool)), "grouped": people(0, 0, 1)}
    for kind, rule in terms.items():
        for jit in (False, True):

            @tf.function(autograph=False)
            def total(rule=rule, jit=jit):
                return clipping.clipped_sum(
                    lambda rows: (tf.reduce_sum(tf.stop_gradient(model(rows)), 1), ()),
                    variables,
                    numbers(3, 3),
                    rule,
                    1.0,
                    strategy="norm_only",
                    options=EngineOptions(jit_compile=jit),
                    layers=compat.all_layers(model),
                )

            found = total()
            assert float(tf.linalg.global_norm(found.total)) == 0.0, kind
            assert float(found.non_finite) == 0.0


def test_swish_as_a_layer_s_activation_is_served():
    model = K.Sequential([K.Input([3]), L.Dense(4, "swish"), L.Dense(2)])
    check(model, numbers(6, 3))
