# SPDX-License-Identifier: Apache-2.0
"""What one run of the benchmarks found: tables, a figure, and the page docs/performance.md.

python benchmarks/steps/report.py            # renders the page anew from docs/performance.json
python benchmarks/steps/report.py --check    # exit status 1 if the page differs
"""

import argparse
import csv
import json
import statistics
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
OURS = "ours"
_COLOURS = {
    "keras": "#888888",
    OURS: "#1b6ca8",
    "tf_privacy": "#d1742f",
    "opacus": "#b03a48",
    "jax_privacy": "#4b8b3b",
}


def summary(entry, workload_name: str, workload, baseline_peak: float | None) -> dict:
    """One row: a contender of a workload. Ratios are None where no step was timed."""
    ratios = [row["ratio"] for row in entry.rounds]
    times = [row["milliseconds"] for row in entry.rounds]
    low, high = _quartiles(ratios)
    memory = entry.peak_gib
    return {
        "workload": workload_name,
        "title": workload.title,
        "scale": workload.scale,
        "target": workload.target,
        "peak_limit_gib": workload.peak_gib,
        "contender": entry.name,
        "name": entry.contender.title,
        "library": entry.contender.library,
        "rounds": len(ratios),
        "milliseconds": _rounded(statistics.median(times) if times else None),
        "ratio": _rounded(statistics.median(ratios) if ratios else None),
        "ratio_low": _rounded(low),
        "ratio_high": _rounded(high),
        "peak_gib": _rounded(memory),
        "peak_ratio": _rounded(memory / baseline_peak if memory and baseline_peak else None),
        "note": entry.note,
    }


def _quartiles(values: list[float]) -> tuple[float | None, float | None]:
    if len(values) < 2:
        return (values[0], values[0]) if values else (None, None)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def write_csv(path: Path, rows: list[dict]) -> None:
    """The rows with a header; nothing is written for no rows."""
    if not rows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def figure(rows: list[dict], path: Path) -> None:
    """Ratio bars on a log scale, a panel a workload; nothing is drawn where nothing was timed."""
    timed = [row for row in rows if row["ratio"] and not row["scale"]]
    names = list(dict.fromkeys(row["workload"] for row in timed))
    if not names:
        return
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "performance"  # equal figures are equal files
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    counts = [sum(row["workload"] == name for row in timed) for name in names]
    shape = {"figsize": (8, 0.27 * sum(counts) + 0.6 * len(names)), "layout": "constrained"}
    canvas, panels = pyplot.subplots(
        len(names), 1, squeeze=False, sharex=True, height_ratios=counts, **shape
    )
    for name, axes in zip(names, panels[:, 0], strict=True):
        panel = [row for row in timed if row["workload"] == name]
        places = range(len(panel))
        ratios = [row["ratio"] for row in panel]
        spread = [
            [row["ratio"] - row["ratio_low"] for row in panel],
            [row["ratio_high"] - row["ratio"] for row in panel],
        ]
        colours = [_COLOURS.get(row["library"], "#888888") for row in panel]
        axes.barh(places, ratios, xerr=spread, color=colours, height=0.7, ecolor="#333333")
        for place, row in zip(places, panel, strict=True):
            axes.text(row["ratio_high"] * 1.06, place, f"{row['ratio']:.3g}", va="center", size=8)
        axes.set_yticks(list(places), [row["name"].replace("`", "") for row in panel], size=8)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.axvline(1, color="#888888", linewidth=0.8)
        axes.set_title(panel[0]["title"], size=9, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel("time of a step / time of a Keras step without privacy")
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(canvas)


def page(found: dict) -> str:
    """docs/performance.md as text, from what `python benchmarks/steps` has found.

    Args:
      found: "machine" (a dict of facts), "rows" (of `summary`), and "input" (of
        benchmarks/input_pipeline.py, or None).
    """
    parts = [_INTRODUCTION.format(**found["machine"], facts=_facts(found["machine"]))]
    rows = found["rows"]
    for name in dict.fromkeys(row["workload"] for row in rows if not row["scale"]):
        parts.append(_steps([row for row in rows if row["workload"] == name]))
    scale = [row for row in rows if row["scale"]]
    if scale:
        parts.append(_scale(scale))
    if found.get("input"):
        parts.append(_input(found["input"]))
    return "\n".join(parts)


_INTRODUCTION = """\
<!-- Generated by `make bench ARGS=--write-docs`; do not edit. -->
# Performance

One run, on {date}:

```
{command}
```

A step under `fit`, as a ratio to a Keras step without privacy, measured in the same round: the median
over the rounds, with the quartiles. Every contender is a process of its own; all of them take turns.
Peak memory is that of the whole process, of which the framework itself takes about half a GiB.

Ours protect people, who have eight rows each on average, 1 at least; the other private ones
protect single rows. Ours draw every batch from `plan.dataset` (all of a small table, at rate 1);
Opacus and jax_privacy, where they ran, get the same batch again from memory. All clip at 1, add noise
of standard deviation 1 unless said, and train with SGD. The column of milliseconds has medians of its
own, so its ratios differ from the first column, which compares within a round.

{facts}

![Time of a step relative to Keras without privacy](performance.svg)

The ratios of other machines differ; all workloads and contenders take about a quarter of an hour:

```
make bench
```
"""


def _facts(machine: dict) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:.0f} GiB, "
        f"{machine['system']}, Python {machine['python']}; load {machine['load']:.2f} before the run."
        f"\n{versions}."
    )


def _steps(rows: list[dict]) -> str:
    first = rows[0]
    lines = [
        f"## {first['title']}",
        "",
        f"To reach: {first['target']:g} x for HiGradAvg and SubjectDP, and 1.5 x the peak memory.",
        "",
        "| | ratio | quartiles | ms a step | peak GiB | peak ratio | rounds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if row["ratio"] is None:
            lines.append(f"| {row['name']} | {row['note']} | | | | | |")
            continue
        note = f" ({row['note']})" if row["note"] else ""
        lines.append(
            f"| {row['name']}{note} | {row['ratio']:.2f} | {row['ratio_low']:.2f} to "
            f"{row['ratio_high']:.2f} | {row['milliseconds']:.4g} | {_number(row['peak_gib'])} | "
            f"{_number(row['peak_ratio'])} | {row['rounds']} |"
        )
    lines += ["", _verdict(rows)]
    shares = [*_parts(rows), *_noise_shares(rows)]
    return "\n".join([*lines, *([""] if shares else []), *shares, ""])


def _verdict(rows: list[dict]) -> str:
    """Which of ours, with their noise, reach what is to be reached."""
    said = []
    for row in rows:
        if row["library"] != OURS or row["ratio"] is None or row["contender"] in _PARTIAL:
            continue
        missed = []
        if row["ratio"] > row["target"]:
            missed.append(f"the time ({row['ratio']:.2f})")
        if row["peak_ratio"] and row["peak_ratio"] > 1.5:
            missed.append(f"the memory ({row['peak_ratio']:.2f})")
        said.append(
            f"{row['name']} {'misses ' + ' and '.join(missed) if missed else 'reaches both'}"
        )
    return "; ".join(said) + "." if said else "Ours were not timed."


# Steps that leave something out, to tell what it costs.
_PARTIAL = ("higradavg-bare", "higradavg-fed", "subjectdp-bare")


def _parts(rows: list[dict]) -> list[str]:
    """What the steps are made of, in Keras steps; nothing unless all of it was timed."""
    timed = {row["contender"]: row["ratio"] for row in rows if row["ratio"]}
    if not {"higradavg", "higradavg-bare", "higradavg-fed", "subjectdp"} <= set(timed):
        return []
    full, bare, fed = (timed[f"higradavg{part}"] for part in ("", "-bare", "-fed"))
    parts = {
        "clipping": fed - 1.0,
        "sampling by the plan": bare - fed,
        "noise": full - bare,
        "the norms of people's means (SubjectDP)": timed["subjectdp"] - full,
    }
    listed = ", ".join(f"{name} {cost:+.2f}" for name, cost in parts.items())
    return [f"On top of the Keras step, in Keras steps: {listed}.", ""]


def _noise_shares(rows: list[dict]) -> list[str]:
    """The noise's share where it is more than the spread of the two measurements."""
    timed = {row["contender"]: row for row in rows if row["ratio"]}
    said = []
    for name, row in timed.items():
        bare = timed.get(f"{name}-bare")
        if bare is None:
            continue
        share = f"{1 - bare['ratio'] / row['ratio']:.0%}"
        if bare["ratio_high"] > row["ratio_low"]:
            share = "not told apart from the spread of this run"
        said.append(f"The noise's share of the {row['name']} step: {share}.")
    return said


def _scale(rows: list[dict]) -> str:
    lines = [
        "## Size",
        "",
        "| | | seconds a step | peak GiB | to reach |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        limit = f"{row['peak_limit_gib']:g} GiB" if row["peak_limit_gib"] else ""
        if row["library"] != OURS:
            limit = ""
        if row["ratio"] is None:
            lines.append(f"| {row['title']} | {row['name']} | {row['note']} | | {limit} |")
            continue
        lines.append(
            f"| {row['title']} | {row['name']} | {row['milliseconds'] / 1e3:.3g} | "
            f"{_number(row['peak_gib'])} | {limit} |"
        )
    return "\n".join([*lines, ""])


def _input(found: dict) -> str:
    lines = [
        "## Input",
        "",
        f"`plan.dataset` on one core: batches of {found['batch']} of {found['items']:,} rows of "
        f"{found['features']} float32. To reach: 200,000 items a second.",
        "",
        "| sampler | items a second | lowest | highest |",
        "| --- | --- | --- | --- |",
    ]
    for row in found["throughput"]:
        lines.append(
            f"| {row['sampler']} | {row['median']:,.0f} | {row['low']:,.0f} | {row['high']:,.0f} |"
        )
    if found["building"]:
        lines += [
            "",
            f"Building over {found['rows']:,} items, in seconds of one core. To reach: 10.",
            "",
            "| sampler | ids to plan | to the dataset | to the first batch |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| {row['sampler']} | {row['plan']:.1f} | {row['dataset']:.1f} | {row['first']:.1f} |"
            for row in found["building"]
        ]
    return "\n".join([*lines, ""])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def write_docs(found: dict, folder: Path = DOCS) -> None:
    """The page, its figure, and the numbers that both are made of."""
    text = json.dumps(found, indent=1) + "\n"
    (folder / "performance.json").write_text(text, encoding="utf-8")
    (folder / "performance.md").write_text(page(found), encoding="utf-8")
    figure(found["rows"], folder / "performance.svg")


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args(argv)
    found = json.loads((DOCS / "performance.json").read_text(encoding="utf-8"))
    if options.check:
        return int((DOCS / "performance.md").read_text(encoding="utf-8") != page(found))
    write_docs(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
