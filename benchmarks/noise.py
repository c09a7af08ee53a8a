# SPDX-License-Identifier: Apache-2.0
"""Time of a step's noise, against TensorFlow's own normal draws and against its bare Philox words.

    python benchmarks/noise.py                          # the CNN's 6,603,710 weights and the MLP's
    python benchmarks/noise.py --weights 100000000      # one table of that size, 3 turns

The rows of a size take turns, so that a busy machine slows all of them alike. Wall and CPU time are
medians; with a second core free the wall time is about half the CPU time.
"""

import argparse
import statistics
import time

import tensorflow as tf

from tf_subjectdp.noise import add_gaussian_noise, fresh_seed

CNN = [[5, 5, 1, 32], [32], [5, 5, 32, 64], [64], [3136, 2048], [2048], [2048, 62], [62]]
MLP = [[784, 128], [128], [128, 10], [10]]


def ours(sums):
    return add_gaussian_noise(sums, 1.1, divisor=512.0)


def tensorflow_normals(dtype):
    """float64: whole tail, slow. float32: cut near 5.7 standard deviations, not safe."""

    def step(sums):
        stddev = tf.constant(1.1, dtype)
        noise = [
            stddev * tf.random.stateless_normal(t.shape, fresh_seed(), dtype=dtype, alg="philox")
            for t in sums
        ]
        return [(t + tf.cast(n, tf.float32)) / 512.0 for t, n in zip(sums, noise, strict=True)]

    return step


def bare_words(sums):
    count = sum(t.shape.num_elements() for t in sums)
    words = 3 * ((count + 1) // 2)
    return tf.random.stateless_uniform(
        [words], fresh_seed(), None, None, dtype=tf.int32, alg="philox"
    )


ROWS = {
    "ours": ours,
    "TensorFlow, Philox words only": bare_words,
    "TensorFlow, float32 (unsafe tail)": tensorflow_normals(tf.float32),
    "TensorFlow, float64": tensorflow_normals(tf.float64),
}


def measure(shapes, turns):
    sums = [tf.random.stateless_normal(shape, [1, 2]) for shape in shapes]
    steps = {name: tf.function(function, autograph=False) for name, function in ROWS.items()}
    times = {name: [] for name in ROWS}
    for turn in range(turns + 2):
        for name, step in steps.items():
            wall, cpu = time.perf_counter(), time.process_time()
            result = step(sums)
            tf.nest.map_structure(lambda t: t.shape, result)
            if turn >= 2:  # tracing, compiling, first pages
                times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
            del result
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weights", type=int, help="measure one tensor of this size instead")
    parser.add_argument("--turns", type=int, help="turns of each row (default 21, or 3)")
    arguments = parser.parse_args()
    if arguments.weights:
        cases = {f"{arguments.weights:,} weights": [[arguments.weights]]}
    else:
        cases = {"CNN, 6,603,710 weights": CNN, "MLP, 101,770 weights": MLP}
    for name, shapes in cases.items():
        print(f"{name:36}{'wall ms':>9}{'CPU ms':>9}{'least ms':>10}")
        for row, found in measure(
            shapes, arguments.turns or (3 if arguments.weights else 21)
        ).items():
            wall, cpu = ([1e3 * pair[i] for pair in found] for i in (0, 1))
            print(
                f"  {row:34}{statistics.median(wall):9.2f}{statistics.median(cpu):9.2f}{min(wall):10.2f}"
            )


if __name__ == "__main__":
    main()
