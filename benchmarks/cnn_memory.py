# SPDX-License-Identifier: Apache-2.0
"""Peak memory and time of a private step of LEAF's FEMNIST CNN: 6.6 M weights, a batch of 512.

Item gradients of such a batch would take 13 GB at once; the engine holds a chunk of them. Every
case runs in a process of its own, since the peak of a process never falls, through
`PrivateModel.fit` on random images, eight a person.

    python benchmarks/cnn_memory.py                                  # the engine's own choice
    python benchmarks/cnn_memory.py --strategies loop vectorized --budgets 64 256 1024

Exit status 1 if a case needs more than `--limit` GiB or fails.
"""

import argparse
import dataclasses
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time

CLASSES, ITEMS_A_PERSON = 62, 8


@dataclasses.dataclass(frozen=True)
class Case:
    """One process: what it trains with.

    Attributes:
      algorithm: "HiGradAvg", "SubjectDP", or "none" for plain Keras.
      strategy: the engine's.
      budget: MiB that the item gradients of a chunk may take; 0 for the engine's default.
    """

    algorithm: str
    strategy: str = "auto"
    budget: int = 0


def cnn():
    """LEAF's CNN for FEMNIST (Caldas et al. 2018): 6,603,710 weights."""
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input([28, 28, 1]),
            layers.Conv2D(32, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(2048, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )


def measure(case: Case, batch: int, steps: int) -> dict:
    """Trains in this process. Returns seconds, CPU seconds (medians) and peak GiB."""
    import numpy as np
    import tensorflow as tf

    import tf_subjectdp as sdp

    class Clock(tf.keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.ticks = []

        def on_train_begin(self, logs=None):
            self.ticks.append((time.monotonic(), time.process_time()))

        def on_train_batch_end(self, number, logs=None):
            self.on_train_begin()

    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, 28, 28, 1)).astype(np.float32)
    y = rng.integers(0, CLASSES, batch)
    person = np.arange(batch) // ITEMS_A_PERSON
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    clock = Clock()
    sgd = tf.keras.optimizers.SGD(0.01)
    if case.algorithm == "none":
        model = cnn()
        model.compile(optimizer=sgd, loss=loss)
        data = tf.data.Dataset.from_tensors((x, y)).repeat(steps + 1)
        began = time.monotonic()
        model.fit(data, callbacks=[clock], verbose=0)
    else:
        # A batch that is all of the data: every step has exactly `batch` items, of everybody.
        plan = sdp.plan(
            getattr(sdp, case.algorithm)(clip_norm=1.0),
            sdp.PoissonItems(batch),
            sdp.SubjectStats.from_ids(person),
            steps=steps + 1,
            noise_multiplier=1.0,
        )
        engine = {"strategy": case.strategy}
        if case.budget:
            engine["memory_budget"] = case.budget * 2**20
        model = sdp.PrivateModel(cnn())
        model.compile(optimizer=plan.optimizer(sgd, engine=engine), loss=loss)
        data = plan.dataset(x, y, person)
        began = time.monotonic()
        model.fit(data, callbacks=[clock], verbose=0)
    wall, cpu = zip(*clock.ticks, strict=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        # The first step traces.
        "step": statistics.median(b - a for a, b in itertools.pairwise(wall[1:])),
        "cpu": statistics.median(b - a for a, b in itertools.pairwise(cpu[1:])),
        "first": wall[1] - began,
        "peak": peak / (2**30 if sys.platform == "darwin" else 2**20),
    }


def run(case: Case, batch: int, steps: int) -> dict:
    """`measure` in a fresh process; {"error": ...} if it dies."""
    arguments = ["--case", json.dumps(dataclasses.asdict(case))]
    arguments += ["--batch", str(batch), "--steps", str(steps)]
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [""]
        return {"error": f"exit status {done.returncode}: {lines[-1][:100]}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--algorithms", nargs="+", default=["none", "HiGradAvg", "SubjectDP"])
    add("--strategies", nargs="+", default=["auto"], help="auto, loop, vectorized")
    budgets = "MiB for a chunk's item gradients; 0 for the engine's default"
    add("--budgets", nargs="+", type=int, default=[0], help=budgets)
    add("--batch", type=int, default=512)
    add("--steps", type=int, default=3, help="timed steps, after one that traces")
    add("--limit", type=float, default=6.0, help="GiB")
    add("--case", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.case:
        found = measure(Case(**json.loads(options.case)), options.batch, options.steps)
        print(json.dumps(found))
        return 0
    cases = []
    for algorithm in options.algorithms:
        if algorithm == "none":
            cases.append(Case("none"))
            continue
        for strategy in options.strategies:
            # One item gradient at a time has no chunk to bound.
            budgets = [0] if strategy == "loop" else options.budgets
            cases += [Case(algorithm, strategy, budget) for budget in budgets]
    print(f"batch {options.batch}, {ITEMS_A_PERSON} items a person, limit {options.limit:g} GiB")
    print(
        f"{'algorithm':<10} {'strategy':<11} {'budget MiB':>10} {'s a step':>9} "
        f"{'CPU s':>7} {'first s':>8} {'peak GiB':>9}"
    )
    failed = False
    for case in cases:
        found = run(case, options.batch, options.steps)
        budget = case.budget or "-"
        start = f"{case.algorithm:<10} {case.strategy:<11} {budget:>10} "
        if "error" in found:
            print(f"{start} {found['error']}", flush=True)
            failed = True
            continue
        over = found["peak"] > options.limit
        failed |= over
        note = f"  over {options.limit:g} GiB" if over else ""
        print(
            f"{start}{found['step']:>9.2f} {found['cpu']:>7.1f} {found['first']:>8.1f} "
            f"{found['peak']:>9.2f}{note}",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
