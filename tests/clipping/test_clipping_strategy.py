# SPDX-License-Identifier: Apache-2.0
"""How the engine chooses its strategy, what it says, and what it refuses."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from tf_subjectdp.clipping import BatchPartition, EngineOptions, choose_strategy, clipped_sum
from tf_subjectdp.keras import compat

SPEC = (tf.TensorSpec([None, 5], tf.int32), tf.TensorSpec([None], tf.float32))


def text_model(recurrent):
    model = tf.keras.Sequential(
        [tf.keras.layers.Embedding(6, 3), recurrent, tf.keras.layers.Dense(1)]
    )
    model.build((None, 5))
    return model


def variables_of(model):
    return [compat.raw(v) for v in model.trainable_variables]


def row_function_of(model):
    def row_function(rows):
        x, y = rows
        predictions = model(x, training=True)
        return tf.square(predictions[:, 0] - y), predictions

    return row_function


def dense_rows(rows):
    return tf.reduce_sum(rows * WEIGHTS, axis=1), rows


WEIGHTS = tf.Variable(np.ones(4, np.float32))
DENSE_SPEC = tf.TensorSpec([None, 4], tf.float32)


class Listener(logging.Handler):
    """What TensorFlow says; its logger has a handler of its own, so caplog alone may miss some."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def tensorflow_says():
    listener = Listener()
    tf.get_logger().addHandler(listener)
    yield listener.lines
    tf.get_logger().removeHandler(listener)


@pytest.mark.parametrize(
    ("layer", "linear"), [(tf.keras.layers.LSTM, True), (tf.keras.layers.GRU, False)]
)
def test_recurrent_layers_go_to_the_loop_with_one_log_line_and_no_error_of_tensorflow(
    layer, linear, caplog, capfd, tensorflow_says
):
    model = text_model(layer(4))
    with caplog.at_level(logging.INFO):
        name, sentence = choose_strategy(
            row_function_of(model), variables_of(model), SPEC, linear=linear
        )
    assert name == "loop"
    ours = [r.getMessage() for r in caplog.records if r.name == "tf_subjectdp"]
    assert ours == [sentence]
    assert "cannot vectorise" in sentence and "\n" not in sentence
    assert tensorflow_says == []
    assert capfd.readouterr().err == ""


def test_dense_layers_are_vectorised_with_one_log_line(caplog):
    with caplog.at_level(logging.INFO, "tf_subjectdp"):
        name, sentence = choose_strategy(dense_rows, [WEIGHTS], DENSE_SPEC, linear=True)
    assert name == "vectorized"
    assert [r.getMessage() for r in caplog.records if r.name == "tf_subjectdp"] == [sentence]


def test_auto_takes_the_loop_when_one_gradient_fills_the_budget():
    options = EngineOptions(memory_budget=16)
    assert choose_strategy(dense_rows, [WEIGHTS], DENSE_SPEC, linear=True, options=options)[0] == (
        "loop"
    )


def test_a_strategy_that_was_asked_for_is_taken():
    options = EngineOptions(strategy="loop")
    assert choose_strategy(dense_rows, [WEIGHTS], DENSE_SPEC, linear=True, options=options)[0] == (
        "loop"
    )


def test_vectorisation_that_was_asked_for_and_is_impossible_is_refused_with_the_reason():
    model = text_model(tf.keras.layers.LSTM(4))
    options = EngineOptions(strategy="vectorized")
    with pytest.raises(ValueError, match="cannot vectorise.*'auto' or 'loop'"):
        choose_strategy(
            row_function_of(model), variables_of(model), SPEC, linear=True, options=options
        )


def averaged(rows):
    return tf.reduce_mean(rows * WEIGHTS), rows


def averaged_with_axis(rows):
    return tf.reduce_mean(rows * WEIGHTS, keepdims=True)[0], rows


def column(rows):
    return tf.reduce_sum(rows * WEIGHTS, axis=1, keepdims=True), rows


def with_a_scalar_prediction(rows):
    return tf.reduce_sum(rows * WEIGHTS, axis=1), tf.reduce_mean(rows)


def loss_alone(rows):
    return tf.reduce_sum(rows * WEIGHTS, axis=1)


@pytest.mark.parametrize(
    ("row_function", "message"),
    [
        (averaged, r"shape \(\).*one number a row.*reduction='none'"),
        (averaged_with_axis, r"shape \(1,\).*one number a row"),
        (column, r"shape \(None, 1\).*one number a row.*squeeze"),
        (with_a_scalar_prediction, "prediction that is a single number"),
        (loss_alone, "must return a pair"),
    ],
)
def test_losses_that_are_not_one_number_a_row_are_refused_by_chooser_and_engine(
    row_function, message
):
    with pytest.raises(ValueError, match=message):
        choose_strategy(row_function, [WEIGHTS], DENSE_SPEC, linear=True)
    ones = tf.ones([3])
    partition = BatchPartition(tf.constant([0, 0, 1]), ones, ones, linear=False)
    with pytest.raises(ValueError, match=message):
        clipped_sum(row_function, [WEIGHTS], tf.ones([3, 4]), partition, 1.0, strategy="loop")


def broken(rows):
    raise RuntimeError("the model's own mistake")


def test_a_mistake_in_the_model_surfaces_as_itself():
    with pytest.raises(RuntimeError, match="the model's own mistake"):
        choose_strategy(broken, [WEIGHTS], DENSE_SPEC, linear=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "fast"}, "strategy='fast'.*'auto', 'norm_only', 'vectorized', 'loop'"),
        ({"memory_budget": 0}, "memory_budget=0 .*at least 1"),
        ({"memory_budget": 1.5}, "memory_budget=1.5"),
        ({"max_rows": -1}, "max_rows=-1"),
        ({"max_rows": True}, "max_rows=True"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        EngineOptions(**options)


def test_chunks_follow_the_number_of_parameters_and_the_bounds():
    big = tf.Variable(np.zeros((1000, 25), np.float32))
    assert EngineOptions(memory_budget=10**6).chunk_rows([big]) == 10
    assert EngineOptions(memory_budget=10**6, max_rows=3).chunk_rows([big]) == 3
    assert EngineOptions(memory_budget=1).chunk_rows([big]) == 1
