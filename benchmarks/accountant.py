# SPDX-License-Identifier: Apache-2.0
"""How long the accountant takes, cold: median CPU seconds of one core over interleaved runs.

    python benchmarks/accountant.py [--runs 3]

Every call starts with empty caches. The limits are the library's promise: 3 s a call with k up to
5,000 items, 16 unlike silos and a million steps; 10 s a calibration.
"""

import argparse
import os
import statistics
import time

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

from tf_subjectdp import accounting as acc  # noqa: E402
from tf_subjectdp.accounting.engine import discretise, pld, renyi  # noqa: E402

_CACHED = (
    discretise.loss_table,
    pld.pld_bound,
    pld.pld_delta,
    renyi.rdp_epsilon,
    renyi.rdp_delta,
)

SILOS = [(0.0005 + i * 4e-5, 2000 + 200 * i, 500.0 + 10 * i, 62_500) for i in range(16)]
SMALL = [(0.005 + i / 2e3, 5 + i, 20.0 + i, 62_500) for i in range(16)]


def group_silos(silos, scale=1.0):
    return acc.compose([(acc.group_event(q, k, s * scale), n) for q, k, s, n in silos])


def mean_silos(silos, scale=1.0):
    return acc.compose([(acc.higradavg_event(q, k, s * scale), n) for q, k, s, n in silos])


CASES = {
    "GroupDP, k 5,000, 10^6 steps": (
        3,
        lambda: acc.epsilon(acc.group_event(0.0005, 5000, 900.0), 10**6, delta=1e-5),
    ),
    "GroupDP, k 5,000, q 0.3, 1,850 steps": (
        3,
        lambda: acc.epsilon(acc.group_event(0.3, 5000, 9000.0), 1850, delta=1e-5),
    ),
    "HiGradAvg, k 4,484, 10^6 steps": (
        3,
        lambda: acc.epsilon(acc.higradavg_event(0.00054, 4484, 900.0), 10**6, delta=1e-5),
    ),
    "16 unlike silos, GroupDP, k to 5,000, 10^6 steps": (
        3,
        lambda: acc.epsilon(group_silos(SILOS), delta=1e-5),
    ),
    "16 unlike silos, HiGradAvg, 10^6 steps": (
        3,
        lambda: acc.epsilon(mean_silos(SMALL, 10.0), delta=1e-5),
    ),
    "16 unlike silos, GroupDP, k to 20, 10^6 steps": (
        3,
        lambda: acc.epsilon(group_silos(SMALL, 10.0), delta=1e-5),
    ),
    "the same with Renyi": (3, lambda: acc.epsilon(group_silos(SILOS), delta=1e-5, engine="rdp")),
    "noise for GroupDP, k 5,000, 10^6 steps": (
        10,
        lambda: acc.noise_multiplier(
            lambda s: acc.group_event(0.0005, 5000, s), 10**6, epsilon=4.0, delta=1e-5
        ),
    ),
    "noise for HiGradAvg, k 145, 10^6 steps": (
        10,
        lambda: acc.noise_multiplier(
            lambda s: acc.higradavg_event(0.016, 145, s), 10**6, epsilon=4.0, delta=1e-5
        ),
    ),
    "noise for 16 unlike silos, GroupDP, k to 5,000": (
        10,
        lambda: acc.noise_multiplier(lambda s: group_silos(SILOS, s), epsilon=4.0, delta=1e-5),
    ),
    "noise for 16 unlike silos, HiGradAvg": (
        10,
        lambda: acc.noise_multiplier(lambda s: mean_silos(SMALL, s), epsilon=4.0, delta=1e-5),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="run the cases whose name holds this")
    arguments = parser.parse_args()
    cases = {name: case for name, case in CASES.items() if arguments.only in name}
    seconds = {name: [] for name in cases}
    values = {}
    for _ in range(arguments.runs):
        for name, (_, call) in cases.items():
            for cached in _CACHED:
                cached.cache_clear()
            start = time.process_time()
            values[name] = call()
            seconds[name].append(time.process_time() - start)
    print(f"{'call':<50} {'value':>9} {'CPU s':>7} {'limit':>6}")
    for name, (limit, _) in cases.items():
        print(
            f"{name:<50} {values[name]:>9.4g} {statistics.median(seconds[name]):>7.2f} {limit:>6}"
        )


if __name__ == "__main__":
    main()
