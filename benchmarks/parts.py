# SPDX-License-Identifier: Apache-2.0
"""Steps of whole parts against the same work in plain Keras, in turns, as ratios of medians.

    python benchmarks/parts.py [--rounds 7]

* gradients: MixedClipping's mean gradients of m parts, beside Keras's mean gradient of the whole batch;
* inner: an SGD step of momentum on each part, n of them, beside the same n steps of Keras on each part;
* BatchNormalization: as gradients, with the layer inside, beside Keras.
"""

import argparse
import statistics
import time

import numpy as np
import tensorflow as tf

import tf_subjectdp as sdp

ROWS, PARTS, INNER_STEPS, STEPS = 256, 8, 4, 20


def net(normalised: bool) -> tf.keras.Sequential:
    layers = [
        tf.keras.Input([28, 28, 1]),
        tf.keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
    ]
    if normalised:
        layers.append(tf.keras.layers.BatchNormalization())
    layers += [
        tf.keras.layers.Conv2D(32, 4, strides=2, activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10),
    ]
    return tf.keras.Sequential(layers)


def sgd() -> tf.keras.optimizers.Optimizer:
    return tf.keras.optimizers.SGD(0.05, momentum=0.9)


LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def private(x, y, ids, normalised: bool, inner) -> tuple:
    """A call that takes `STEPS` private steps."""
    algorithm = sdp.MixedClipping(1.0, parts=PARTS, inner=inner)
    stats = sdp.SubjectStats.from_ids(ids)
    plan = sdp.plan(
        algorithm, sdp.PoissonItems(ROWS), stats, steps=10**6, noise_multiplier=1.0, delta=1e-5
    )
    model = sdp.PrivateModel(net(normalised))
    model.compile(plan.optimizer(tf.keras.optimizers.SGD(0.1)), loss=LOSS)
    dataset = plan.dataset(x, y, ids).take(STEPS)
    return lambda: model.fit(dataset, verbose=0)


def plain(x, y, normalised: bool, batch: int, steps: int) -> tuple:
    """A call that takes as many steps of Keras's own, on batches of `batch` rows."""
    model = net(normalised)
    model.compile(sgd(), loss=LOSS)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(batch).repeat()
    return lambda: model.fit(data, steps_per_epoch=steps, verbose=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8192, 28, 28, 1)).astype(np.float32)
    y, ids = rng.integers(0, 10, 8192), rng.integers(0, 512, 8192)
    inner = sdp.InnerOptimizer(sgd(), INNER_STEPS)
    pairs = {
        "gradients": (private(x, y, ids, False, None), plain(x, y, False, ROWS, STEPS)),
        "inner": (
            private(x, y, ids, False, inner),
            plain(x, y, False, ROWS // PARTS, STEPS * PARTS * INNER_STEPS),
        ),
        "BatchNormalization": (private(x, y, ids, True, None), plain(x, y, True, ROWS, STEPS)),
    }
    for name, pair in pairs.items():
        times: list[list[float]] = [[], []]
        for number in range(rounds + 1):
            for side, call in enumerate(pair):
                start = time.perf_counter()
                call()
                if number:  # the first one traces
                    times[side].append(time.perf_counter() - start)
        ours, theirs = (1e3 * statistics.median(side) / STEPS for side in times)
        print(
            f"{name:20s} ours {ours:7.1f} ms a step, Keras {theirs:7.1f}, ratio {ours / theirs:.2f}"
        )


if __name__ == "__main__":
    main()
