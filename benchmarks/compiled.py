# SPDX-License-Identifier: Apache-2.0
"""The private step as one XLA program: its size, its operations, and whether the host is needed.

Forward and backward pass, norms, clipped sum, noise from a seed, division and the update of plain SGD
in one `tf.function(jit_compile=True)`, for the MLP, the CNN and the LSTM of `benchmarks/steps`.

    python benchmarks/compiled.py            # all three, HiGradAvg and SubjectDP
    python benchmarks/compiled.py mlp
"""

import argparse
import collections
import re
import sys

import numpy as np
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp import clipping
from tf_subjectdp.keras import compat
from tf_subjectdp.noise import pairs_of_normals

_LAYERS = tf.keras.layers
# What would send data to the host and wait for it.
_HOST = {"outfeed", "infeed", "send", "recv"}


def mlp():
    """784-128-10, batch 1,024."""
    net = [_LAYERS.Input([784]), _LAYERS.Dense(128, "relu"), _LAYERS.Dense(10)]
    return tf.keras.Sequential(net), tf.zeros([1024, 784]), 10


def cnn():
    """LEAF's FEMNIST CNN, batch 512."""
    net = [
        _LAYERS.Input([28, 28, 1]),
        _LAYERS.Conv2D(32, 5, padding="same", activation="relu"),
        _LAYERS.MaxPooling2D(),
        _LAYERS.Conv2D(64, 5, padding="same", activation="relu"),
        _LAYERS.MaxPooling2D(),
        _LAYERS.Flatten(),
        _LAYERS.Dense(2048, "relu"),
        _LAYERS.Dense(62),
    ]
    return tf.keras.Sequential(net), tf.zeros([512, 28, 28, 1]), 62


def lstm():
    """LEAF's Shakespeare LSTM, batch 100."""
    net = [
        _LAYERS.Input([80], dtype="int32"),
        _LAYERS.Embedding(80, 8),
        _LAYERS.LSTM(256, return_sequences=True),
        _LAYERS.LSTM(256),
        _LAYERS.Dense(80),
    ]
    return tf.keras.Sequential(net), tf.zeros([100, 80], tf.int32), 80


def step_of(model, algorithm):
    """(x, y, subject, seed) -> the private gradients, for batches without padding."""
    variables = [compat.raw(v) for v in model.trainable_variables]
    sizes = [v.shape.num_elements() for v in variables]

    def row_function(rows):
        x, y = rows
        logits = model(x, training=True)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits), ()

    def step(x, y, group, item_scale, group_scale, seed):
        terms = clipping.BatchPartition(group, item_scale, group_scale, algorithm.kind == "linear")
        total = clipping.clipped_sum(
            row_function,
            variables,
            (x, y),
            terms,
            algorithm.clip_norm,
            strategy="norm_only",
            options=clipping.EngineOptions(jit_compile=True),
            layers=compat.all_layers(model),
        ).total
        pairs = pairs_of_normals(seed, (sum(sizes) + 1) // 2, tf.constant(1.0))
        drawn = tf.reshape(tf.stack([tf.math.real(pairs), tf.math.imag(pairs)]), [-1])
        noise = tf.split(drawn[: sum(sizes)], sizes)
        for variable, t, z in zip(variables, total, noise, strict=True):
            variable.assign_sub(0.01 * (t + tf.reshape(z, t.shape)) / 512.0)

    return step


def report(name, algorithm) -> str:
    """One line on the compiled step."""
    model, x, classes = {"mlp": mlp, "cnn": cnn, "lstm": lstm}[name]()
    rows = int(x.shape[0])
    y = tf.constant(np.arange(rows) % classes)
    subject = tf.constant(np.arange(rows) // 8)
    terms = algorithm.partition(subject, tf.ones([rows], tf.bool))
    step = tf.function(step_of(model, algorithm), jit_compile=True, autograph=False)
    given = (x, y, *terms[:3], tf.constant([1, 2, 3, 4], tf.uint32))
    step(*given)  # runs compiled, or raises
    text = step.experimental_get_compiler_ir(*given)(stage="optimized_hlo")
    operations = collections.Counter(re.findall(r"= [^ ]+ ([a-z][a-z0-9-]*)\(", text))
    host = sorted(_HOST & set(operations))
    common = ", ".join(f"{op} {n}" for op, n in operations.most_common(5))
    return (
        f"{name:<5} {type(algorithm).__name__:<10} {len(text) / 1024:>8.0f} KiB of HLO text, "
        f"{sum(operations.values()):>6} operations ({common}); host: {host or 'none'}"
    )


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["mlp", "cnn", "lstm"])
    options = parser.parse_args(argv)
    for name in options.models:
        for algorithm in (sdp.HiGradAvg(clip_norm=1.0), sdp.SubjectDP(clip_norm=1.0)):
            print(report(name, algorithm), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
