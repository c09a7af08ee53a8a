# SPDX-License-Identifier: Apache-2.0
"""What `InnerOptimizer` and the algorithms that take one say about wrong values."""

import pytest
import tensorflow as tf

import tf_subjectdp as sdp


def test_an_unknown_name_is_named_with_the_remedy():
    with pytest.raises(ValueError) as refusal:
        sdp.InnerOptimizer("adamm")
    text = str(refusal.value)
    assert "optimizer='adamm'" in text and "tf.keras.optimizers.SGD(0.1)" in text
    assert '"sgd"' in text and '"adam"' in text
    assert "deserialize" not in text.lower() and "custom object" not in text.lower()


@pytest.mark.parametrize("name", ["sgd", "adam", "rmsprop"])
def test_the_names_that_the_refusal_offers_are_known(name):
    assert isinstance(sdp.InnerOptimizer(name).make(), tf.keras.optimizers.Optimizer)


def test_another_inner_is_refused_in_english():
    with pytest.raises(TypeError, match="inner='sgd' must be an InnerOptimizer or None"):
        sdp.BatchClipping(1.0, inner="sgd")
    with pytest.raises(TypeError, match="clip_schedule=3 must be a ClipSchedule or None"):
        sdp.MixedClipping(1.0, parts=2, clip_schedule=3)


def test_accumulated_gradients_are_refused_with_what_to_do_instead(plan):
    """Keras 3 has the argument; every small step would be noised and counted in full."""
    inner = tf.keras.optimizers.SGD(0.1)
    inner.gradient_accumulation_steps = 4
    with pytest.raises(ValueError, match="steps=4: .* Plan with a batch so many times as large"):
        plan.optimizer(inner)
