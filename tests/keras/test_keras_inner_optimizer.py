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
