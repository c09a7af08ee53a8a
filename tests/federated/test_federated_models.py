# SPDX-License-Identifier: Apache-2.0
"""Models of other kinds in silos: each trains as it does under `PrivateModel`; specs that are refused."""

import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp.federated.silo_model import KerasSilo, split_spec

ROWS = 24
LAYERS = tf.keras.layers


def convolution():
    rng = np.random.default_rng(0)
    net = [LAYERS.Input([6, 6, 1]), LAYERS.Conv2D(3, 3, activation="relu"), LAYERS.Flatten()]
    return tf.keras.Sequential([*net, LAYERS.Dense(2)]), rng.normal(size=(ROWS, 6, 6, 1))


def recurrent():
    ids = np.random.default_rng(1).integers(0, 5, (ROWS, 7))
    net = [LAYERS.Input([7], dtype="int32"), LAYERS.Embedding(5, 3), LAYERS.LSTM(4)]
    return tf.keras.Sequential([*net, LAYERS.Dense(2)]), ids.astype(np.int32)


def attention():
    words = LAYERS.Input([5, 4])
    mixed = LAYERS.MultiHeadAttention(2, 2)(words, words)
    mean = LAYERS.GlobalAveragePooling1D()(LAYERS.LayerNormalization()(mixed))
    rows = np.random.default_rng(2).normal(size=(ROWS, 5, 4))
    return tf.keras.Model(words, LAYERS.Dense(2)(mean)), rows


def several_inputs():
    inputs = {
        "age": LAYERS.Input([1], name="age"),
        "code": LAYERS.Input([], dtype="int32", name="code"),
    }
    code = LAYERS.Embedding(4, 3)(inputs["code"])
    joined = LAYERS.Concatenate()([inputs["age"], code])
    rng = np.random.default_rng(3)
    x = {"age": rng.normal(size=(ROWS, 1)), "code": rng.integers(0, 4, ROWS).astype(np.int32)}
    return tf.keras.Model(inputs, LAYERS.Dense(2)(joined)), x


@pytest.mark.parametrize(
    "algorithm", [sdp.HiGradAvg(0.3), sdp.SubjectDP(0.1)], ids=["item", "mean"]
)
@pytest.mark.parametrize("make", [convolution, recurrent, attention, several_inputs])
def test_a_silo_trains_as_the_private_model_does(make, algorithm):
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model, x = make()
    start = model.get_weights()
    x = tf.nest.map_structure(lambda a: a.astype(np.float32) if a.dtype == np.float64 else a, x)
    y = np.random.default_rng(4).integers(0, 2, ROWS)
    people = np.random.default_rng(5).integers(0, 6, ROWS)
    stats = sdp.SubjectStats.from_ids(people)
    plan = sdp.plan(algorithm, sdp.PoissonItems(ROWS), stats, steps=2, noise_multiplier=0.0)
    private = sdp.PrivateModel(model)
    private.compile(plan.optimizer(tf.keras.optimizers.SGD(0.5)), loss)
    private.fit(plan.dataset(x, y, people), verbose=0)

    silos = sdp.SiloStats.from_ids(people, np.zeros(ROWS, int))
    plan = sdp.federated.plan(
        algorithm, sdp.PoissonItems(ROWS), silos, rounds=1, local_steps=2, noise_multiplier=0.0
    )
    spec = tf.nest.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), (x, y))
    process = sdp.federated.build_process(
        lambda: KerasSilo(make()[0], loss, spec),
        plan,
        client_optimizer=tf.keras.optimizers.SGD(0.5),
    )
    state = process.initialize()
    weights = process.get_model_weights(state)
    state = process.set_model_weights(state, type(weights)(start, weights.non_trainable))
    data = tf.data.Dataset.from_tensor_slices({"x": x, "y": y, "subject_id": people})
    state, metrics = process.next(state, [data.map(lambda row: row)])
    found = process.get_model_weights(state).trainable
    for a, b in zip(found, model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert metrics["silos"]["items"] == 2 * ROWS and metrics["silos"]["predicted"] == 2 * ROWS


def test_what_is_no_input_spec_is_named():
    row = tf.TensorSpec([None, 3], tf.float32)
    assert split_spec({"x": row, "y": row}) == split_spec((row, row)) == (row, row)
    for spec, match in (
        ({"x": row, "y": row, "subject_id": row}, "the subject of a row is no input"),
        ((row,), "must be a pair"),
        ((row, tf.TensorSpec([8], tf.int64)), "the first axis is the batch"),
        ((row, tf.TensorSpec([], tf.int64)), "the first axis is the batch"),
    ):
        with pytest.raises(ValueError, match=match):
            split_spec(spec)
    with pytest.raises(TypeError, match="pass tf.TensorSpec"):
        split_spec((row, np.zeros(3)))


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (3, "pass a function without arguments"),
        (lambda: 3, "return a KerasSilo or a tff.learning.models.VariableModel"),
    ],
)
def test_what_makes_no_model_is_named(made, match):
    stats = sdp.SiloStats.from_counts(np.full((5, 2), 2))
    plan = sdp.federated.plan(
        sdp.ItemDP(1.0), sdp.PoissonItems(2), stats, rounds=1, noise_multiplier=1.0
    )
    with pytest.raises(TypeError, match=match):
        sdp.federated.build_process(made, plan)
    with pytest.raises(TypeError, match="pass what federated.plan"):
        sdp.federated.build_process(made, stats)


def _nets(how, path):
    """A model's weights, and a function that makes a model of such weights."""

    def fresh():
        return tf.keras.Sequential([LAYERS.Input([3]), LAYERS.Dense(2), LAYERS.Dense(1)])

    net = fresh()
    weights = net.get_weights()
    net.save(path / "net.keras")
    net.save_weights(path / "net.weights.h5")

    def make():
        if how == "load_model":
            return tf.keras.models.load_model(path / "net.keras", compile=False)
        made = fresh()
        if how == "set_weights":
            made.set_weights(weights)
        elif how == "another model":
            made.set_weights(net.get_weights())
        elif how == "assign":
            for variable, value in zip(made.weights, weights, strict=True):
                variable.assign(value)
        elif how == "load_weights":
            made.load_weights(path / "net.weights.h5")
        return made

    return weights, make


@pytest.mark.parametrize(
    "how", ["set_weights", "assign", "load_weights", "load_model", "another model"]
)
def test_weights_that_model_fn_gives_are_those_that_a_run_starts_from(tmp_path, how):
    weights, make = _nets(how, tmp_path)
    spec = (tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None, 1], tf.float32))
    stats = sdp.SiloStats.from_counts(np.full((5, 2), 2))
    plan = sdp.federated.plan(
        sdp.ItemDP(1.0), sdp.PoissonItems(2), stats, rounds=1, noise_multiplier=1.0
    )

    def model_fn():
        made = make()
        made.layers[-1].trainable = False
        return KerasSilo(made, "mse", spec)

    if how == "another model":
        with pytest.raises(ValueError, match="take what is needed of it outside"):
            sdp.federated.build_process(model_fn, plan)
        return
    process = sdp.federated.build_process(model_fn, plan)
    starts = [process.get_model_weights(process.initialize()) for _ in range(2)]
    found = [np.concatenate([np.ravel(w) for w in tf.nest.flatten(list(s))]) for s in starts]
    given = np.concatenate([np.ravel(w) for w in weights])
    assert all(np.array_equal(one, given) for one in found)
