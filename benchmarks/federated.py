# SPDX-License-Identifier: Apache-2.0
"""A federated round beside the same local steps under `PrivateModel`, and whether memory grows.

InstEval over 16 silos: an embedding of lecturer and department, and a small network on top. In turns, in
one process: a round of `FederatedProcess.next`, and the steps of all its silos by `PrivateModel.fit` of
one silo's plan, without the time that `fit` takes to begin. The last lines tell memory over many rounds.

    python benchmarks/federated.py                     # a minute and a half
    python benchmarks/federated.py --steps 20 --batch 256 --memory-rounds 100
"""

import argparse
import collections
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp import datasets

SILOS, LECTURERS, DEPARTMENTS = 16, 1128, 14
SPEC = (tf.TensorSpec([None, 2], tf.int32), tf.TensorSpec([None], tf.int64))
# The first steps of a fit wait for data, and are traced.
WARM_UP = 20


def table():
    """(x, y, students, silo of each row)."""
    data = datasets.insteval()
    columns = [data.x["lecturer"], LECTURERS + data.x["department"]]
    x = np.stack(columns, axis=1).astype(np.int32)
    y = datasets.insteval_binary(data.y).astype(np.int64)
    silo = sdp.federated.partition.uniform(data.subject_id, SILOS, seed=0)
    return x, y, data.subject_id, silo


def network():
    return tf.keras.Sequential(
        [
            tf.keras.Input([2], dtype="int32"),
            tf.keras.layers.Embedding(LECTURERS + DEPARTMENTS, 32),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(2),
        ]
    )


def loss():
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class StepTimes(tf.keras.callbacks.Callback):
    """Seconds of each step of a `fit`."""

    def __init__(self):
        super().__init__()
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())


def central(algorithm, options, rows):
    """A function: seconds of a step of `PrivateModel` on one silo's rows, the median of many."""
    x, y, students = rows
    plan = sdp.plan(
        algorithm,
        sdp.PoissonItems(options.batch),
        sdp.SubjectStats.from_ids(students),
        steps=10**6,
        noise_multiplier=1.0,
    )
    model = sdp.PrivateModel(network())
    model.compile(plan.optimizer(tf.keras.optimizers.SGD(0.1)), loss())
    dataset = plan.dataset(x, y, students)

    def measure() -> float:
        clock = StepTimes()
        steps = WARM_UP + max(50, options.steps)
        model.fit(dataset, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[clock])
        return statistics.median(np.diff(clock.ends)[WARM_UP:])

    return measure


def federated(algorithm, options, rows_of):
    """A process, and its silos' data as arrays and as data sets."""
    x, y, students, silo = rows_of
    plan = sdp.federated.plan(
        algorithm,
        sdp.PoissonItems(options.batch),
        sdp.SiloStats.from_ids(students, silo),
        rounds=10**6,
        local_steps=options.steps,
        noise_multiplier=1.0,
    )
    process = sdp.federated.build_process(
        lambda: sdp.federated.KerasSilo(network(), loss(), SPEC),
        plan,
        client_optimizer=tf.keras.optimizers.SGD(0.1),
    )
    tables = [
        collections.OrderedDict(x=x[silo == i], y=y[silo == i], subject_id=students[silo == i])
        for i in plan.stats.names
    ]
    return process, tables, [tf.data.Dataset.from_tensor_slices(table) for table in tables]


def resident_mib() -> dict[str, float]:
    """Memory of this process, and of TFF's worker."""
    pids = {"python": "self"}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, name, _, parent = path.read_text(encoding="utf-8").split()[:4]
        except OSError:
            continue
        if name.startswith("(worker_binary") and int(parent) == os.getpid():
            pids["worker"] = pid
    found = {}
    for name, pid in pids.items():
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmRSS"):
                found[name] = int(line.split()[1]) / 1024
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="+", default=["HiGradAvg", "SubjectDP"])
    parser.add_argument("--steps", type=int, default=10, help="local steps of a round")
    parser.add_argument("--batch", type=int, default=64, help="expected items of a step")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--memory-rounds", type=int, default=100)
    options = parser.parse_args()
    rows = table()
    first = rows[3] == 0
    print(f"16 silos, {options.steps} local steps of {options.batch} items expected; seconds")
    print(
        f"{'':<12}{'first round':>12}{'round':>9}{'steps alone':>13}{'ratio':>7}{'data sets':>11}"
    )
    for name in options.algorithms:
        algorithm = getattr(sdp, name)(1.0)
        process, tables, sets = federated(algorithm, options, rows)
        step = central(algorithm, options, [part[first] for part in rows[:3]])
        state = process.initialize()
        times = collections.defaultdict(list)
        for number in range(options.rounds + 1):
            for kind, data in (("round", tables), ("data sets", sets)):
                began = time.perf_counter()
                state, _ = process.next(state, data)
                times["first" if number == 0 else kind].append(time.perf_counter() - began)
            if number:
                times["alone"].append(step() * options.steps * SILOS)
        ratios = [a / b for a, b in zip(times["round"], times["alone"], strict=True)]
        of_sets = [a / b for a, b in zip(times["data sets"], times["alone"], strict=True)]
        print(
            f"{name:<12}{times['first'][0]:>12.2f}{statistics.median(times['round']):>9.3f}"
            f"{statistics.median(times['alone']):>13.3f}{statistics.median(ratios):>7.2f}"
            f"{statistics.median(of_sets):>11.2f}",
            flush=True,
        )
        if name == options.algorithms[0] and options.memory_rounds:
            before = resident_mib()
            began = time.perf_counter()
            for _ in range(options.memory_rounds):
                state, _ = process.next(state, tables)
            seconds = time.perf_counter() - began
            after = resident_mib()
            for part in before:
                print(
                    f"  {part}: {before[part]:.0f} MiB, {after[part]:.0f} after {options.memory_rounds} "
                    f"more rounds ({seconds / options.memory_rounds:.3f} s each)"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
