# SPDX-License-Identifier: Apache-2.0
"""Time and peak memory of releasing a histogram: 10^6 subjects, 10^5 words, 2 * 10^7 counts.

The words follow Zipf's law. Each case runs in a process of its own, since the peak of a process
never falls; the time is that of the release, without making up the counts.

    python benchmarks/histogram.py
    python benchmarks/histogram.py --subjects 100000 --counts 2000000

Exit status 1 if a case takes more than `--seconds` or `--mib`, or fails.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
from scipy import sparse

CASES = ("element", "triple", "blocks of 10 words", "at most 10 elements", "two stages", "user")


def made_up(subjects: int, words: int, counts: int) -> sparse.csr_matrix:
    """About so many counts > 0: a geometric one for random words, of Zipf's law, of each subject."""
    rng = np.random.default_rng(0)
    law = np.cumsum(1.0 / np.arange(1, words + 1))
    blocks = []
    for start in range(0, subjects, 100_000):
        rows = min(100_000, subjects - start)
        # Zipf's head is drawn again and again for one subject: some draws more.
        n = round(1.12 * counts * rows / subjects)
        column = np.searchsorted(law, rng.random(n) * law[-1]).astype(np.int32)
        row = rng.integers(rows, size=n, dtype=np.int32)
        count = rng.geometric(0.5, n).astype(np.int32)
        blocks.append(sparse.csr_matrix((count, (row, column)), shape=(rows, words)))
    return sparse.vstack(blocks, format="csr")


def release_one(case: str, subjects: int, words: int, counts: int) -> dict:
    """What the process of one case does."""
    from tf_subjectdp import release

    matrix = made_up(subjects, words, counts)
    result = {"counts": int(matrix.nnz)}
    table = matrix
    more = {"radius": 5.0}
    if case == "triple":
        triple = matrix.tocoo()
        table = (triple.row, triple.col, triple.data)
        more |= {"n_subjects": subjects, "n_words": words}
        del matrix
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    function = release.histogram
    if case == "blocks of 10 words":
        more["block"] = np.random.default_rng(1).permutation(words) // 10
    elif case == "at most 10 elements":
        more["max_elements"] = 10
    elif case == "two stages":
        function = release.two_stage_histogram
        more = {"items": 40}
    elif case == "user":
        function = release.user_level_histogram
    start = time.perf_counter()
    made = function(table, epsilon=1.0, delta=1e-7, **more)
    result["seconds"] = round(time.perf_counter() - start, 2)
    result["data_mib"] = round(before / 1024)
    result["mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    result["finite"] = bool(np.isfinite(made.estimate).all())
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subjects", type=int, default=1_000_000)
    parser.add_argument("--words", type=int, default=100_000)
    parser.add_argument("--counts", type=int, default=20_000_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="the most a case may take")
    parser.add_argument("--mib", type=float, default=4096.0, help="peak memory a case may take")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size = (arguments.subjects, arguments.words, arguments.counts)
    if arguments.case:
        print(json.dumps(release_one(arguments.case, *size)))
        return 0
    failed = False
    print(f"{size[0]:,} subjects, {size[1]:,} words")
    print(f"{'case':<20} {'counts':>11} {'seconds':>8} {'MiB before':>11} {'peak MiB':>9}")
    for case in CASES:
        command = [sys.executable, __file__, "--case", case]
        for name, value in zip(("--subjects", "--words", "--counts"), size, strict=True):
            command += [name, str(value)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{case:<20} failed: {done.stderr[-300:]}")
            failed = True
            continue
        result = json.loads(done.stdout)
        bad = result["seconds"] > arguments.seconds or result["mib"] > arguments.mib
        failed = failed or bad or not result["finite"]
        print(
            f"{case:<20} {result['counts']:>11,} {result['seconds']:>8.2f} "
            f"{result['data_mib']:>11,} {result['mib']:>9,}{'  over the limit' if bad else ''}"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
