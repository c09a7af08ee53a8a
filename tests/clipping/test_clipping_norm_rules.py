# SPDX-License-Identifier: Apache-2.0
"""Every registered layer: the fast engine, the general one, and NumPy on gradients of single rows."""

import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp import clipping
from tf_subjectdp.clipping import norm_only, partition
from tf_subjectdp.keras import compat

L = tf.keras.layers
ROWS = 6
PEOPLE = np.array([0, 0, 1, 2, 2, 2])


def numbers(*shape):
    return np.random.default_rng(3).normal(size=(ROWS, *shape)).astype(np.float32)


def ids(*shape):
    return np.random.default_rng(3).integers(0, 5, (ROWS, *shape)).astype(np.int32)


def attention(**call):
    given = tf.keras.Input([4, 6])
    return tf.keras.Model(given, L.MultiHeadAttention(2, 3)(given, given, **call))


def encoder_decoder():
    given = tf.keras.Input([4, 3])
    _, h, c = L.LSTM(5, return_state=True)(given)
    return tf.keras.Model(given, L.LSTM(5, return_sequences=True)(given, initial_state=[h, c]))


def masked(*layers):
    return tf.keras.Sequential(
        [tf.keras.Input([5], dtype="int32"), L.Embedding(5, 3, mask_zero=True), *layers]
    )


CASES = {
    "Dense": (lambda: L.Dense(4, activation="tanh"), numbers(3)),
    "Dense, no bias": (lambda: L.Dense(4, use_bias=False), numbers(3)),
    "Dense on sequences": (lambda: L.Dense(4), numbers(5, 3)),
    "Dense on images": (lambda: L.Dense(4), numbers(3, 2, 5)),
    "EinsumDense": (
        lambda: L.EinsumDense("abc,cde->abde", [4, 2, 3], bias_axes="de"),
        numbers(4, 3),
    ),
    "EinsumDense, two sums": (lambda: L.EinsumDense("abcd,cde->abe", [4, 5]), numbers(4, 2, 3)),
    "EinsumDense, place in kernel": (lambda: L.EinsumDense("abc,bcd->abd", [4, 5]), numbers(4, 3)),
    "EinsumDense, turned": (lambda: L.EinsumDense("abc,dc->abd", [4, 5]), numbers(4, 3)),
    "Conv1D": (lambda: L.Conv1D(4, 3, strides=2, padding="same"), numbers(7, 3)),
    "Conv1D, causal": (lambda: L.Conv1D(4, 2, dilation_rate=2, padding="causal"), numbers(7, 3)),
    "Conv2D": (lambda: L.Conv2D(4, 3, activation="relu"), numbers(6, 5, 2)),
    "Conv2D, strided": (lambda: L.Conv2D(4, (3, 2), strides=2, padding="same"), numbers(7, 6, 2)),
    "Conv2D, dilated": (lambda: L.Conv2D(4, 2, dilation_rate=2), numbers(6, 6, 2)),
    "Conv2D, many channels": (lambda: L.Conv2D(30, 3), numbers(4, 4, 40)),
    "Conv1D, dilated": (lambda: L.Conv1D(4, 2, dilation_rate=2), numbers(7, 3)),
    "Conv1D, in groups": (lambda: L.Conv1D(4, 2, groups=2, strides=2), numbers(7, 4)),
    "Conv2D, in groups": (lambda: L.Conv2D(6, (3, 2), groups=3, padding="same"), numbers(4, 5, 6)),
    "DepthwiseConv1D": (lambda: L.DepthwiseConv1D(3, strides=2, depth_multiplier=2), numbers(7, 3)),
    "DepthwiseConv1D, dilated": (lambda: L.DepthwiseConv1D(2, dilation_rate=2), numbers(7, 3)),
    "SeparableConv1D": (lambda: L.SeparableConv1D(4, 3, padding="same"), numbers(7, 3)),
    "Conv3D": (lambda: L.Conv3D(4, 2, padding="same"), numbers(3, 4, 3, 2)),
    "DepthwiseConv2D": (lambda: L.DepthwiseConv2D(3, depth_multiplier=2), numbers(6, 6, 3)),
    "SeparableConv2D": (lambda: L.SeparableConv2D(4, 3, padding="same"), numbers(6, 6, 3)),
    "Embedding": (lambda: L.Embedding(5, 4), ids(7)),
    "Embedding, one id": (lambda: L.Embedding(5, 4), ids()),
    "Embedding, two axes": (lambda: L.Embedding(5, 4), ids(3, 2)),
    "LayerNormalization": (lambda: L.LayerNormalization(), numbers(4, 5)),
    "LayerNormalization, two axes": (lambda: L.LayerNormalization(axis=[1, 2]), numbers(4, 5)),
    "LayerNormalization, scale alone": (lambda: L.LayerNormalization(center=False), numbers(5)),
    "GroupNormalization": (lambda: L.GroupNormalization(2), numbers(3, 2, 4)),
    "GroupNormalization, channels": (lambda: L.GroupNormalization(-1), numbers(5, 4)),
    "PReLU": (lambda: L.PReLU(alpha_initializer="ones"), numbers(4, 3)),
    "PReLU, shared": (lambda: L.PReLU(shared_axes=[1], alpha_initializer="ones"), numbers(4, 3)),
    "LSTM": (lambda: L.LSTM(4), numbers(5, 3)),
    "LSTM, sequences": (lambda: L.LSTM(4, return_sequences=True, use_bias=False), numbers(5, 3)),
    "LSTM, backwards": (lambda: L.LSTM(4, go_backwards=True, return_state=True), numbers(5, 3)),
    "LSTM, masked": (lambda: masked(L.LSTM(4, return_sequences=True), L.LSTM(3)), ids(5)),
    "LSTM, states given": (encoder_decoder, numbers(4, 3)),
    "GRU": (lambda: L.GRU(4), numbers(5, 3)),
    "GRU, sequences": (lambda: L.GRU(4, return_sequences=True, use_bias=False), numbers(5, 3)),
    "GRU, masked": (lambda: masked(L.GRU(4, return_sequences=True), L.GRU(3)), ids(5)),
    "Bidirectional": (lambda: masked(L.Bidirectional(L.LSTM(3, return_sequences=True))), ids(5)),
    "MultiHeadAttention": (attention, numbers(4, 6)),
    "MultiHeadAttention, causal": (lambda: attention(use_causal_mask=True), numbers(4, 6)),
}


def built(name, dtype=None):
    """The layer with weights that are neither 0 nor 1 anywhere."""
    make, inputs = CASES[name]
    layer = make()
    if dtype is not None:
        layer = type(layer).from_config({**layer.get_config(), "dtype": dtype})
    layer(tf.constant(inputs))
    rng = np.random.default_rng(5)
    layer.set_weights([rng.normal(size=w.shape) * 0.5 for w in layer.get_weights()])
    return layer, tf.constant(inputs)


def row_loss(layer):
    def row_function(rows):
        outputs = [o for o in tf.nest.flatten(layer(rows)) if o.dtype.is_floating]
        flat = [
            tf.reshape(tf.cast(o, tf.float32), [tf.shape(o)[0], o.shape[1:].num_elements()])
            for o in outputs
        ]
        flat = tf.concat(flat, 1)
        places = tf.constant(np.cos(np.arange(flat.shape[1])), tf.float32)
        return tf.reduce_sum(flat * places + 0.5 * tf.square(flat), 1), ()

    return row_function


def item_gradients(row_function, variables, inputs):
    """float64 [rows, weights]: an ordinary backward pass a row."""

    @tf.function(reduce_retracing=True, autograph=False)
    def gradient(row):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = tf.reduce_sum(row_function(row)[0])
        found = tape.gradient(loss, variables, unconnected_gradients="zero")
        return [tf.reshape(tf.cast(tf.convert_to_tensor(g), tf.float32), [-1]) for g in found]

    rows = [np.concatenate([g.numpy() for g in gradient(inputs[i : i + 1])]) for i in range(ROWS)]
    return np.stack(rows).astype(np.float64)


def clip(vector, bound):
    return vector * min(1.0, bound / max(np.linalg.norm(vector), 1e-300))


def oracle(gradients, kind, bound):
    if kind == "linear":
        return sum(clip(g, bound) for g in gradients)
    return sum(clip(gradients[PEOPLE == a].mean(axis=0), bound) for a in set(PEOPLE))


def engine_sums(layer, inputs, *wanted):
    """A function clip norm -> {(engine, kind): flat sum}, traced once; and the item gradients."""
    variables = [compat.raw(v) for v in layer.trainable_variables]
    row_function = row_loss(layer)
    mask = tf.ones([ROWS], tf.bool)
    terms = {
        "linear": partition.item_terms(mask),
        "grouped": partition.subject_mean_terms(tf.constant(PEOPLE), mask),
    }

    @tf.function(autograph=False)
    def sums(bound):
        found = []
        for engine, kind in wanted:
            total = clipping.clipped_sum(
                row_function,
                variables,
                inputs,
                terms[kind],
                bound,
                strategy=engine,
                layers=compat.all_layers(layer),
            ).total
            found.append(tf.concat([tf.reshape(t, [-1]) for t in total], 0))
        return found

    return sums, item_gradients(row_function, variables, inputs)


@pytest.mark.parametrize("name", list(CASES))
def test_fast_equals_slow_equals_numpy(name):
    layer, inputs = built(name)
    wanted = ("norm_only", "linear"), ("norm_only", "grouped"), ("loop", "linear")
    sums, gradients = engine_sums(layer, inputs, *wanted)
    norms = np.linalg.norm(gradients, axis=1)
    for bound in (0.1 * norms.min(), np.median(norms), 10.0 * norms.max()):
        all_found = sums(tf.constant(bound, tf.float32))
        for (engine, kind), found in zip(wanted, all_found, strict=True):
            expected = oracle(gradients, kind, bound)
            apart = np.linalg.norm(found.numpy() - expected) / np.linalg.norm(expected)
            # Norms that are rounded up.
            assert apart < 3e-5, (engine, kind)


@pytest.mark.parametrize(
    "name", ["Dense", "Conv2D", "Embedding", "LayerNormalization", "LSTM", "MultiHeadAttention"]
)
def test_mixed_precision_differs_by_half_precision_only(name):
    policy = tf.keras.mixed_precision.Policy("mixed_bfloat16")
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        layer, inputs = built(name)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    if inputs.dtype.is_floating:
        inputs = tf.cast(inputs, tf.bfloat16)
    sums, gradients = engine_sums(layer, inputs, ("norm_only", "linear"))
    bound = float(np.median(np.linalg.norm(gradients, axis=1)))
    expected = oracle(gradients, "linear", bound)
    found = sums(tf.constant(bound))[0].numpy()
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 3e-2


def test_every_registered_class_is_among_the_cases():
    tried = set()
    for make, _ in CASES.values():
        tried |= {type(layer) for layer in compat.all_layers(make())}
    assert set(norm_only.registered()) - tried <= {Doubling, Forgetful, Wrong}


@pytest.mark.parametrize("name", ["Dense on sequences", "Conv2D, strided"])
def test_check_norm_rule_passes_a_right_rule(name):
    layer, inputs = built(name)
    found = sdp.check_norm_rule(layer, inputs)
    assert max(found) < 1e-5


# -- rules of a user's own ---------------------------------------------------------------------------


class Doubling(L.Layer):
    """x W + 2 b."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=[shape[-1], 3])
        self.offset = self.add_weight(name="offset", shape=[3])

    def call(self, inputs):
        return tf.matmul(inputs, self.kernel) + 2.0 * self.offset


class Forgetful(Doubling):
    pass


class Wrong(Doubling):
    pass


@sdp.register_norm_rule(Doubling)
def doubling(layer, record, inputs):
    outputs = record.matmul(inputs, layer.kernel)
    return outputs + 2.0 * record.bias(tf.zeros_like(outputs), layer.offset)


@sdp.register_norm_rule(Forgetful)
def forgetful(layer, record, inputs):
    return record.bias(tf.matmul(inputs, layer.kernel), layer.offset) + layer.offset


@sdp.register_norm_rule(Wrong)
def wrong(layer, record, inputs):
    return record.bias(record.matmul(inputs, layer.kernel), layer.offset)


def test_a_rule_of_the_user_s_own_is_used():
    layer = Doubling()
    assert max(sdp.check_norm_rule(layer, tf.constant(numbers(4)))) < 1e-5


def test_a_rule_that_leaves_a_weight_out_is_found():
    with pytest.raises(ValueError, match="no rule covers the use of .*kernel"):
        sdp.check_norm_rule(Forgetful(), tf.constant(numbers(4)))


def test_a_rule_that_computes_something_else_is_found():
    layer = Wrong()
    layer(tf.constant(numbers(4)))
    layer.offset.assign([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="rule of Wrong differs"):
        sdp.check_norm_rule(layer, tf.constant(numbers(4)))


def test_a_layer_without_a_rule_or_weights_says_so():
    class Unknown(Doubling):
        pass

    with pytest.raises(ValueError, match=r"\(Unknown\) has no rule; register one"):
        sdp.check_norm_rule(Unknown(), tf.constant(numbers(4)))
    with pytest.raises(ValueError, match="all gradients of layer .* are 0"):
        sdp.check_norm_rule(L.Dense(2, use_bias=False), tf.zeros([4, 3]))
    with pytest.raises(ValueError, match="has no trainable weights"):
        sdp.check_norm_rule(L.ReLU(), tf.constant(numbers(4)))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda layer, record, x: layer(x), "its rule calls the layer itself"),
        (lambda layer, record, x: None, "its rule returned None"),
        (
            lambda layer, record, x: record.matmul(x, layer.kernel * 1.0),
            "must hand the layer's own weights to the record",
        ),
    ],
)
def test_a_rule_that_is_no_rule_is_told_what_is_wrong(rule, message):
    class Wrong(L.Dense):
        pass

    sdp.register_norm_rule(Wrong, rule)
    with pytest.raises(ValueError, match=message):
        sdp.check_norm_rule(Wrong(2, use_bias=False), tf.constant(numbers(4, 3)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((int, lambda: None), "must be a class of tf.keras layers"),
        ((L.Dense, 7), "must be a function"),
    ],
)
def test_what_cannot_be_registered_is_refused(arguments, message):
    with pytest.raises(TypeError, match=message):
        sdp.register_norm_rule(*arguments)


def test_a_layer_computes_as_ever_after_it_was_traced():
    layer, inputs = built("Dense")
    before = layer(inputs).numpy()
    sdp.check_norm_rule(layer, inputs)
    assert "call" not in vars(layer)
    np.testing.assert_array_equal(layer(inputs), before)
