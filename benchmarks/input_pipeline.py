# SPDX-License-Identifier: Apache-2.0
"""How fast `plan.dataset` hands over batches, on one core, and how long a sampler takes to build.

    python benchmarks/input_pipeline.py                        # every sampler
    python benchmarks/input_pipeline.py --only PoissonItems --seconds 5

First the items that reach, in a second of one core, a compiled step which does nothing but take them:
batches of 256 out of 60,000 rows of 784 float32. Then the CPU seconds from ten million ids to the
first batch.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from pathlib import Path

ITEMS, FEATURES, BATCH, ITEMS_A_PERSON = 60_000, 784, 256, 8


def on_one_core() -> None:
    """Before TensorFlow is imported, so that its thread pools see one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["TF_NUM_INTEROP_THREADS"] = os.environ["TF_NUM_INTRAOP_THREADS"] = "1"


def samplers():
    import tf_subjectdp as sdp

    return {
        "PoissonItems": sdp.PoissonItems(BATCH),
        "PoissonSubjects": sdp.PoissonSubjects(BATCH // ITEMS_A_PERSON),
        "PoissonSubjects, at most 4 items": sdp.PoissonSubjects(BATCH // 4, 4),
        "FixedSize": sdp.FixedSize(BATCH),
        "Shuffle": sdp.Shuffle(BATCH),
    }


def plan_for(sampler, stats, steps: int):
    import tf_subjectdp as sdp

    return sdp.plan(sdp.SubjectDP(1.0), sampler, stats, steps=steps, noise_multiplier=1.0)


def throughput(sampler, seconds: float) -> list[float]:
    """Items a core second, in windows of a quarter of a second; the first two do not count.

    CPU time of the whole process: on one core that is what a quiet machine's clock says.
    """
    import numpy as np
    import tensorflow as tf

    import tf_subjectdp as sdp

    rng = np.random.default_rng(0)
    x = rng.standard_normal((ITEMS, FEATURES), np.float32)
    y = rng.integers(0, 10, ITEMS)
    person = np.arange(ITEMS) // ITEMS_A_PERSON
    plan = plan_for(sampler, sdp.SubjectStats.from_ids(person), 10**9)
    iterator = iter(plan.dataset(x, y, person))

    @tf.function
    def take():
        return tf.shape(next(iterator)[0])[0]

    def window(length: float) -> float:
        items, began = 0, time.process_time()
        while (now := time.process_time()) < began + length:
            items += int(take())
        return items / (now - began)

    window(0.5)
    return [window(0.25) for _ in range(max(1, round(seconds / 0.25)))]


def building(sampler, rows: int) -> dict[str, float]:
    """CPU seconds from ids to a plan, and from there to a dataset's first batch."""
    import numpy as np

    import tf_subjectdp as sdp

    rng = np.random.default_rng(0)
    person = rng.integers(0, max(1, rows // ITEMS_A_PERSON), rows)
    x, y = np.zeros((rows, 1), np.float32), np.zeros(rows, np.int32)
    ticks = [time.process_time()]
    plan = plan_for(sampler, sdp.SubjectStats.from_ids(person), 10)
    ticks.append(time.process_time())
    dataset = plan.dataset(x, y, person)
    ticks.append(time.process_time())
    next(iter(dataset))
    ticks.append(time.process_time())
    plan_s, dataset_s, first_s = (b - a for a, b in itertools.pairwise(ticks))
    return {"plan": plan_s, "dataset": dataset_s, "first": first_s}


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="samplers whose name holds this")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each sampler")
    parser.add_argument("--rows", type=int, default=10_000_000, help="0 leaves building out")
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args(argv)
    on_one_core()
    chosen = {name: sampler for name, sampler in samplers().items() if options.only in name}
    found = {"batch": BATCH, "items": ITEMS, "features": FEATURES, "rows": options.rows}
    found |= {"throughput": [], "building": []}
    print(f"{'sampler':<34} {'items/s':>10} {'lowest':>10} {'highest':>10}")
    for name, sampler in chosen.items():
        rates = throughput(sampler, options.seconds)
        middle = statistics.median(rates)
        row = {"sampler": name, "median": middle, "low": min(rates), "high": max(rates)}
        found["throughput"].append(row)
        print(
            f"{name:<34} {row['median']:>10,.0f} {row['low']:>10,.0f} {row['high']:>10,.0f}",
            flush=True,
        )
    if options.rows:
        title = f"building, {options.rows:,} items"
        print(f"{title:<34} {'plan s':>10} {'dataset s':>10} {'first s':>10}")
        for unit in ("item", "subject"):
            # What is built depends on what is drawn alone.
            sampler = next((s for s in chosen.values() if s.unit == unit), None)
            if sampler is not None:
                row = {"sampler": type(sampler).__name__, **building(sampler, options.rows)}
                found["building"].append(row)
                print(
                    f"{row['sampler']:<34} {row['plan']:>10.2f} {row['dataset']:>10.2f} "
                    f"{row['first']:>10.2f}",
                    flush=True,
                )
    if options.json:
        Path(options.json).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
