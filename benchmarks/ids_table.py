# SPDX-License-Identifier: Apache-2.0
"""Time and peak memory of counting people in a table: 10^7 rows, three columns, a CSV and a Parquet.

Each case runs in a process of its own, since the peak of a process never falls.

    python benchmarks/ids_table.py                            # 10^7 rows of a million people
    python benchmarks/ids_table.py --rows 1000000 --people 50000

Exit status 1 if a case takes more than `--seconds` or `--mib`, or fails.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CASES = [
    ("csv", "pyarrow", False),
    ("csv", "pyarrow", True),
    ("csv", "python", False),
    ("csv", "python", True),
    ("parquet", "auto", False),
    ("parquet", "auto", True),
]


def write_tables(folder: Path, rows: int, people: int, silos: int) -> dict[str, Path]:
    """Ids such as "p0012345" in random order, a silo that depends on the row, and a value."""
    rng = np.random.default_rng(0)
    paths = {"csv": folder / "rows.csv"}
    writer = None
    with open(paths["csv"], "w", encoding="utf-8") as file:
        file.write("patient_id,hospital,value\n")
        for start in range(0, rows, 1_000_000):
            n = min(1_000_000, rows - start)
            ids = [f"p{person:07d}" for person in rng.integers(people, size=n).tolist()]
            names = [f"hospital {silo}" for silo in rng.integers(silos, size=n).tolist()]
            values = rng.standard_normal(n).tolist()
            file.writelines(
                f"{who},{where},{value:.6f}\n"
                for who, where, value in zip(ids, names, values, strict=True)
            )
            writer = write_parquet(folder, writer, ids, names, values, paths)
    if writer is not None:
        writer.close()
    return paths


def write_parquet(folder, writer, ids, names, values, paths):
    """One row group more; None where pyarrow is not installed."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        return None
    table = pa.table({"patient_id": ids, "hospital": names, "value": values})
    if writer is None:
        paths["parquet"] = folder / "rows.parquet"
        writer = parquet.ParquetWriter(paths["parquet"], table.schema)
    writer.write_table(table)
    return writer


def count(path: str, reader: str, with_silos: bool) -> dict:
    """What the process of one case does."""
    from tf_subjectdp.sampling import stats_from_table

    start, cpu = time.perf_counter(), time.process_time()
    stats = stats_from_table(
        path, "patient_id", silo_column="hospital" if with_silos else None, reader=reader
    )
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "cpu": round(time.process_time() - cpu, 2),
        "mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "items": stats.n_items,
        "subjects": stats.n_subjects,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--people", type=int, default=1_000_000)
    parser.add_argument("--silos", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=30.0, help="the most a case may take")
    parser.add_argument("--mib", type=float, default=1024.0, help="peak memory a case may take")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        path, reader, with_silos = arguments.case
        print(json.dumps(count(path, reader, with_silos == "True")))
        return 0
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        paths = write_tables(Path(folder), arguments.rows, arguments.people, arguments.silos)
        print(f"{arguments.rows:,} rows of {arguments.people:,} people in {arguments.silos} silos")
        print(f"{'file':<8} {'reader':<8} {'silos':<6} {'seconds':>8} {'CPU s':>8} {'peak MiB':>9}")
        for kind, reader, with_silos in CASES:
            if kind not in paths:
                print(f"{kind:<8} needs pyarrow")
                continue
            done = subprocess.run(
                [sys.executable, __file__, "--case", str(paths[kind]), reader, str(with_silos)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                print(f"{kind:<8} {reader:<8} {with_silos!s:<6} failed: {done.stderr[-300:]}")
                failed = True
                continue
            result = json.loads(done.stdout)
            bad = result["seconds"] > arguments.seconds or result["mib"] > arguments.mib
            failed = failed or bad
            print(
                f"{kind:<8} {reader:<8} {with_silos!s:<6} {result['seconds']:>8.2f} "
                f"{result['cpu']:>8.2f} {result['mib']:>9}{'  over the limit' if bad else ''}"
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
