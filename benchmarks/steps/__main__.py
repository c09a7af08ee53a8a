# SPDX-License-Identifier: Apache-2.0
"""A private step against an ordinary one: ours, TF-Privacy and, where installed, Opacus and jax_privacy.

    python benchmarks/steps                                      # everything, within 15 minutes
    python benchmarks/steps --quick                              # ours and the fast ones, 3 rounds
    python benchmarks/steps --workloads cnn-512 --contenders keras higradavg --engines loop
    python benchmarks/steps --write-docs                         # docs/performance.md, .json, .svg

Writes out/bench/: measurements.csv (a row a contender and round), summary.csv, ratios.svg and .png.
Opacus and jax_privacy may live in another environment: --python opacus=/path/to/python.
"""

import argparse
import dataclasses
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report
from race import Limits, Race
from workloads import BASELINE, CONTENDERS, SCALE_CONTENDERS, WORKLOADS, engine_contenders

OUT = Path(__file__).parents[2] / "out" / "bench"
INPUT = Path(__file__).parents[1] / "input_pipeline.py"
QUICK_WORKLOADS = ("mlp-256", "cnn-128", "lstm-32")
# Two warm-up steps and two timed ones tell memory, which is what these are for.
SCALE = {"rounds": 2, "slice_s": 0.0, "each_s": 20.0, "warm_up": 1, "step_s": 150.0}


def memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def machine(command: str) -> dict:
    """What the ratios hold for."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "command": command,
        "date": datetime.date.today().isoformat(),
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_gib": memory_gib(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "versions": {},
    }


def chosen(options, workload) -> dict:
    """The contenders of a workload; the baseline always, and first."""
    everybody = {**CONTENDERS, **engine_contenders(options.engines)}
    names = options.contenders or list(everybody)
    if workload.scale:
        names = [name for name in names if name in SCALE_CONTENDERS]
    elif options.quick and not options.contenders:
        names = [name for name in names if not everybody[name].alone]
    names += [name for name in everybody if name not in CONTENDERS and name not in names]
    return {name: everybody[name] for name in dict.fromkeys([BASELINE, *names])}


def input_speed(seconds: float) -> dict | None:
    """benchmarks/input_pipeline.py in a process of its own, on one core."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.json"
        command = [sys.executable, str(INPUT), "--seconds", str(seconds), "--json", str(path)]
        root = str(INPUT.parents[1])
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, env=environment, check=False)
        if done.returncode:
            print(f"input: exit status {done.returncode}")
            return None
        return json.loads(path.read_text(encoding="utf-8"))


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--workloads", nargs="+", choices=list(WORKLOADS), help="default: all")
    add("--contenders", nargs="+", choices=list(CONTENDERS), help="default: all")
    add(
        "--engines",
        nargs="+",
        default=[],
        help="ours with these engines too: norm_only, vectorized, loop, vectorized:64 (MiB)",
    )
    add("--quick", action="store_true", help="three short rounds, none of the slow ones")
    add("--minutes", type=float, default=14.0, help="no heat starts after its share of these")
    add("--rounds", type=int, default=15, help="the most rounds of a heat")
    add("--memory", type=float, help="GiB that one process may take; default half of the machine")
    add("--python", nargs="+", default=[], metavar="LIBRARY=PATH", help="another interpreter")
    add("--no-input", action="store_true", help="leave input_pipeline.py out")
    add("--write-docs", action="store_true", help="write docs/performance.md, .json and .svg")
    options = parser.parse_args(argv)
    libraries = {contender.library for contender in CONTENDERS.values()}
    for pair in options.python:
        if pair.partition("=")[0] not in libraries or not pair.partition("=")[2]:
            parser.error(f"--python {pair}: write LIBRARY=PATH, a library of {sorted(libraries)}")
    return options


def limits_of(options, workload, seconds: float, contenders: int) -> Limits:
    memory = options.memory or round(memory_gib() / 2, 1)
    limits = Limits(rounds=options.rounds, memory_gib=memory)
    if workload.scale:
        return dataclasses.replace(limits, **SCALE)
    if options.quick:
        return dataclasses.replace(limits, rounds=3, slice_s=0.2, each_s=3.0)
    # A good part of the time goes into starting, so what is timed gets about a third of it.
    return dataclasses.replace(limits, each_s=max(2.0, min(10.0, seconds / contenders / 3)))


def main(argv=None) -> int:
    options = arguments(argv)
    began = time.monotonic()
    words = ["python benchmarks/steps", *(sys.argv[1:] if argv is None else argv)]
    # A path of this machine is nobody else's.
    command = re.sub(r"=\S*/", "=.../", " ".join(words))
    found = {"machine": machine(command), "rows": [], "input": None}
    names = options.workloads or list(QUICK_WORKLOADS if options.quick else WORKLOADS)
    measurements = []
    # What has a fixed cost comes first, so that the rest can share what is left.
    for at, name in enumerate(sorted(names, key=lambda name: not WORKLOADS[name].scale)):
        workload = WORKLOADS[name]
        if at == 0 and not (options.no_input or options.quick):
            found["input"] = input_speed(1.5)
        contenders = chosen(options, workload)
        left = began + 60 * options.minutes - time.monotonic()
        seconds = left / (len(names) - at)
        print(f"{workload.title} ({seconds:.0f} s)", flush=True)
        race = Race(
            workload,
            dict(pair.split("=", 1) for pair in options.python),
            limits_of(options, workload, seconds, len(contenders)),
            say=lambda text: print(text, flush=True),
        )
        entries = race.run(contenders, time.monotonic() + seconds)
        found["machine"]["versions"] = {**race.versions, **found["machine"]["versions"]}
        peak = next(entry.peak_gib for entry in entries if entry.name == BASELINE)
        found["rows"] += [report.summary(entry, name, workload, peak) for entry in entries]
        measurements += [
            {"workload": name, "contender": entry.name, **row}
            for entry in entries
            for row in entry.rounds
        ]
    found["rows"].sort(key=lambda row: list(WORKLOADS).index(row["workload"]))
    report.write_csv(OUT / "measurements.csv", measurements)
    report.write_csv(OUT / "summary.csv", found["rows"])
    for suffix in ("svg", "png"):
        report.figure(found["rows"], OUT / f"ratios.{suffix}")
    if options.write_docs:
        report.write_docs(found)
    print_table(found["rows"])
    print(f"{(time.monotonic() - began) / 60:.1f} minutes; {OUT}")
    return int(any(row["library"] == report.OURS and row["ratio"] is None for row in found["rows"]))


def print_table(rows: list[dict]) -> None:
    print(f"{'workload':<10} {'contender':<34} {'ratio':>7} {'ms':>9} {'GiB':>6}")
    for row in rows:
        start = f"{row['workload']:<10} {row['name']:<34}"
        if row["ratio"] is None:
            print(f"{start} {row['note']}")
        else:
            print(
                f"{start} {row['ratio']:>7.2f} {row['milliseconds']:>9.4g} "
                f"{row['peak_gib'] or 0:>6.2f} {row['note']}"
            )


if __name__ == "__main__":
    sys.exit(main())
