# SPDX-License-Identifier: Apache-2.0
"""Every Keras layer with weights, through its usual arguments: the engine that is chosen agrees with one
tape a row."""

import inspect
import re

import numpy as np
import pytest
import tensorflow as tf

from tf_subjectdp import clipping
from tf_subjectdp.clipping import partition
from tf_subjectdp.keras import compat

L = tf.keras.layers
ROWS = 3


def both(*layers):
    """The same layers at two places of one model."""

    def made(x):
        for layer in layers * 2:
            x = layer(x)
        return x

    return made


def stated(cell, **options):
    """A recurrent layer that begins with the states of another."""

    def made(x):
        _, *states = L.RNN(cell(2), return_state=True)(x) if cell else (None,)
        return L.RNN(cell(2), **options)(x, initial_state=states)

    return made


def masked(layer):
    return lambda x: layer(L.Masking(0.0)(x))


def attention(layer, **call):
    return lambda x: layer(x, x, **call)


SEQUENCE, IMAGE, VOLUME = (5, 4), (5, 4, 4), (4, 4, 4, 2)
FIRST = {"data_format": "channels_first"}
# Name -> what is made of an input of this shape, by calls of new layers.
CASES = {
    "Dense": ((4,), lambda: L.Dense(2, "relu")),
    "Dense shared": ((4,), lambda: both(L.Dense(4, "tanh"))),
    "Dense half": ((4,), lambda: L.Dense(2, dtype="mixed_bfloat16")),
    "Dense double": ((4,), lambda: L.Dense(2, dtype="float64")),
    "EinsumDense": (SEQUENCE, lambda: L.EinsumDense("abc,cd->abd", (5, 3), bias_axes="d")),
    "EinsumDense ellipsis": (SEQUENCE, lambda: L.EinsumDense("...c,cd->...d", 3)),
    "Embedding": ((4,), lambda: L.Embedding(3, 2, mask_zero=True)),
    "Conv1D": (SEQUENCE, lambda: L.Conv1D(2, 2, strides=2, padding="same")),
    "Conv1D dilated": (SEQUENCE, lambda: L.Conv1D(2, 2, dilation_rate=2)),
    "Conv1D causal": (SEQUENCE, lambda: L.Conv1D(2, 2, dilation_rate=2, padding="causal")),
    "Conv1D groups": (SEQUENCE, lambda: L.Conv1D(4, 2, groups=2)),
    "Conv1D groups dilated": (SEQUENCE, lambda: L.Conv1D(4, 2, groups=2, dilation_rate=2)),
    "Conv1D first": (SEQUENCE, lambda: L.Conv1D(2, 2, **FIRST)),
    "Conv1D shared": (SEQUENCE, lambda: both(L.Conv1D(4, 2, padding="same"))),
    "Conv2D": (IMAGE, lambda: L.Conv2D(2, 2, strides=2, padding="same")),
    "Conv2D dilated": (IMAGE, lambda: L.Conv2D(2, 2, dilation_rate=(2, 1))),
    "Conv2D groups": (IMAGE, lambda: L.Conv2D(4, (2, 1), groups=2)),
    "Conv2D first": (IMAGE, lambda: L.Conv2D(2, 2, **FIRST)),
    "Conv2D half": (IMAGE, lambda: L.Conv2D(2, 2, dtype="mixed_bfloat16")),
    "Conv3D": (VOLUME, lambda: L.Conv3D(2, 2, strides=2, padding="same")),
    "Conv3D dilated": (VOLUME, lambda: L.Conv3D(2, 2, dilation_rate=2)),
    "Conv3D groups": (VOLUME, lambda: L.Conv3D(4, 2, groups=2)),
    "Conv3D first": (VOLUME, lambda: L.Conv3D(2, 2, **FIRST)),
    "Conv1DTranspose": (SEQUENCE, lambda: L.Conv1DTranspose(2, 2, strides=2, padding="same")),
    "Conv1DTranspose dilated": (SEQUENCE, lambda: L.Conv1DTranspose(2, 2, dilation_rate=2)),
    "Conv2DTranspose": (IMAGE, lambda: L.Conv2DTranspose(2, 2, strides=2, padding="same")),
    "Conv2DTranspose dilated": (IMAGE, lambda: L.Conv2DTranspose(2, 2, dilation_rate=2)),
    "Conv3DTranspose": (VOLUME, lambda: L.Conv3DTranspose(2, 2, strides=2)),
    "DepthwiseConv1D": (SEQUENCE, lambda: L.DepthwiseConv1D(2, strides=2, padding="same")),
    "DepthwiseConv1D dilated": (SEQUENCE, lambda: L.DepthwiseConv1D(2, dilation_rate=2)),
    "DepthwiseConv2D": (IMAGE, lambda: L.DepthwiseConv2D(2, strides=2, depth_multiplier=2)),
    "DepthwiseConv2D dilated": (IMAGE, lambda: L.DepthwiseConv2D(2, dilation_rate=2)),
    "DepthwiseConv2D first": (IMAGE, lambda: L.DepthwiseConv2D(2, **FIRST)),
    "SeparableConv1D": (SEQUENCE, lambda: L.SeparableConv1D(2, 2, strides=2)),
    "SeparableConv1D dilated": (SEQUENCE, lambda: L.SeparableConv1D(2, 2, dilation_rate=2)),
    "SeparableConv2D": (IMAGE, lambda: L.SeparableConv2D(2, 2, padding="same")),
    "SeparableConv2D dilated": (IMAGE, lambda: L.SeparableConv2D(2, 2, dilation_rate=2)),
    "LocallyConnected1D": (SEQUENCE, lambda: L.LocallyConnected1D(2, 2)),
    "LocallyConnected2D": (IMAGE, lambda: L.LocallyConnected2D(2, 2, strides=2)),
    "LayerNormalization": (SEQUENCE, lambda: L.LayerNormalization(axis=[1, 2])),
    "LayerNormalization first": (SEQUENCE, lambda: L.LayerNormalization(axis=1)),
    "GroupNormalization": (IMAGE, lambda: L.GroupNormalization(2)),
    "GroupNormalization first": (IMAGE, lambda: L.GroupNormalization(1, axis=1)),
    "PReLU": (SEQUENCE, lambda: both(L.PReLU("ones", shared_axes=[1]))),
    "SimpleRNN": (SEQUENCE, lambda: masked(L.SimpleRNN(2, return_sequences=True))),
    "LSTM": (SEQUENCE, lambda: masked(L.LSTM(2, go_backwards=True))),
    "LSTM unrolled": (SEQUENCE, lambda: L.LSTM(2, unroll=True)),
    "LSTM cells": (SEQUENCE, lambda: L.RNN([L.LSTMCell(2), L.GRUCell(2)])),
    "LSTM states": (SEQUENCE, lambda: stated(L.LSTMCell, return_sequences=True)),
    "GRU": (SEQUENCE, lambda: masked(L.GRU(2, return_sequences=True))),
    "GRU before": (SEQUENCE, lambda: L.GRU(2, reset_after=False)),
    "GRU half": (SEQUENCE, lambda: L.GRU(2, dtype="mixed_bfloat16")),
    "Bidirectional": (SEQUENCE, lambda: L.Bidirectional(L.GRU(2), merge_mode="sum")),
    "TimeDistributed": (SEQUENCE, lambda: masked(L.TimeDistributed(L.Dense(2)))),
    "ConvLSTM1D": ((3, 4, 2), lambda: L.ConvLSTM1D(2, 2, padding="same")),
    "ConvLSTM2D": ((2, 3, 3, 2), lambda: L.ConvLSTM2D(2, 2)),
    "ConvLSTM3D": ((2, 2, 3, 2, 2), lambda: L.ConvLSTM3D(2, 2)),
    "MultiHeadAttention": (SEQUENCE, lambda: attention(L.MultiHeadAttention(2, 2))),
    "MultiHeadAttention causal": (
        SEQUENCE,
        lambda: attention(L.MultiHeadAttention(2, 2, value_dim=3), use_causal_mask=True),
    ),
    "GroupQueryAttention": (SEQUENCE, lambda: attention(L.GroupQueryAttention(2, 2, 1))),
    "Attention": (SEQUENCE, lambda: lambda x: L.Attention(use_scale=True)([x, x])),
    "AdditiveAttention": (SEQUENCE, lambda: lambda x: L.AdditiveAttention()([x, x])),
    "RMSNormalization": (SEQUENCE, lambda: L.RMSNormalization()),
    "ReversibleEmbedding": ((4,), lambda: L.ReversibleEmbedding(3, 2)),
}
# The rest are slow together.
QUICK = ("Conv1D causal", "Conv2D groups", "Conv3D dilated", "DepthwiseConv1D dilated", "Attention")
# No trainable weights of their own, refused, or what others are made of.
_WITHOUT = {
    *("BatchNormalization", "SyncBatchNormalization", "SpectralNormalization", "Normalization"),
    *("RNN", "LSTMCell", "GRUCell", "SimpleRNNCell", "AbstractRNNCell", "StackedRNNCells"),
    *(
        "Layer",
        "Wrapper",
        "FlaxLayer",
        "JaxLayer",
        "TorchModuleWrapper",
        "TFSMLayer",
        "STFTSpectrogram",
    ),
}


def model_of(name):
    shape, make = CASES[name]
    dtype = "int32" if "Embedding" in name else "float32"
    given = tf.keras.Input(shape, dtype=dtype)
    # Something to be trained in front, so that a gradient has to come through the layer.
    x = given if dtype == "int32" else L.Lambda(lambda x: x)(L.Dense(shape[-1])(given))
    x = L.Flatten(dtype="float32")(make()(x))
    model = tf.keras.Model(given, L.Dense(2)(x))
    values = np.random.default_rng(1)
    model.set_weights([values.normal(size=w.shape) * 0.5 for w in model.get_weights()])
    if dtype == "int32":
        return model, tf.constant(values.integers(0, 3, (ROWS, *shape)), tf.int32)
    rows = values.normal(size=(ROWS, *shape)).astype(np.float32)
    if len(shape) == 2:
        rows[0, 3:] = 0.0  # what `Masking` hides
    return model, tf.constant(rows)


def loss_of(model):
    def row_function(rows):
        outputs = tf.cast(model(rows), tf.float32)
        return tf.reduce_sum(tf.sin(outputs) + tf.square(outputs), 1), ()

    return row_function


def gradients_of_rows(row_function, variables, rows):
    @tf.function(autograph=False, reduce_retracing=True)
    def gradient(row):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(row_function(row)[0])
        found = tape.gradient(loss, variables, unconnected_gradients="zero")
        return [tf.reshape(tf.cast(tf.convert_to_tensor(g), tf.float32), [-1]) for g in found]

    each = [np.concatenate(gradient(rows[i : i + 1])) for i in range(ROWS)]
    return np.stack(each).astype(np.float64)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_the_chosen_engine_agrees_with_one_tape_a_row(name):
    if not hasattr(L, name.split()[0]):
        pytest.skip(f"this Keras has no {name}")
    model, rows = model_of(name)
    variables = [compat.raw(v) for v in model.trainable_variables]
    row_function = loss_of(model)
    try:
        gradients = gradients_of_rows(row_function, variables, rows)
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        pytest.skip(f"plain Keras fails here too: {type(error).__name__}")
    layers = compat.all_layers(model)
    spec = tf.TensorSpec([None, *rows.shape[1:]], rows.dtype)
    engine, _ = clipping.choose_strategy(row_function, variables, spec, linear=True, layers=layers)
    if re.match(r"(Depthwise|Separable)?Conv\dD\b", name) and "first" not in name:
        assert engine == "norm_only"
    terms = partition.item_terms(tf.ones([ROWS], tf.bool))
    norms = np.linalg.norm(gradients, axis=1)
    bound = float(np.median(norms))

    @tf.function(autograph=False)
    def total():
        given = (row_function, variables, rows, terms, bound)
        found = clipping.clipped_sum(*given, strategy=engine, layers=layers).total
        return tf.concat([tf.reshape(t, [-1]) for t in found], 0)

    expected = np.minimum(1.0, bound / norms) @ gradients
    apart = np.linalg.norm(total().numpy() - expected) / np.linalg.norm(expected)
    assert apart < (3e-2 if "half" in name else 1e-4), engine


def test_every_layer_with_weights_is_among_the_cases():
    tried = {name.split()[0] for name in CASES}
    for name, layer in inspect.getmembers(L, inspect.isclass):
        bases = [base for base in layer.__mro__ if base.__module__ == layer.__module__]
        text = "".join(inspect.getsource(base) for base in bases)
        named = layer.__name__ == name and "preprocessing" not in layer.__module__
        if issubclass(layer, L.Layer) and named and "add_weight(" in text:
            assert name in tried | _WITHOUT, f"{name} has weights and no case"
