# SPDX-License-Identifier: Apache-2.0
"""The page on performance is what its numbers render to; the benchmark's bookkeeping is right."""

import csv
import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
STEPS = ROOT / "benchmarks" / "steps"
DOCS = ROOT / "docs"


def module(name, monkeypatch):
    """A module of the benchmark, which runs as a folder, with the siblings that it imports."""
    monkeypatch.syspath_prepend(str(STEPS))
    spec = importlib.util.spec_from_file_location(f"bench_{name}", STEPS / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, made)
    spec.loader.exec_module(made)
    monkeypatch.delitem(sys.modules, "workloads", raising=False)
    return made


@pytest.fixture
def report(monkeypatch):
    return module("report", monkeypatch)


@pytest.fixture
def race(monkeypatch):
    return module("race", monkeypatch)


def entries(race, workloads):
    """A baseline, one of ours with and without noise, and one that failed."""
    made = []
    for name, ratios in (
        ("keras", [1, 1, 1, 1, 1]),
        ("higradavg", [2.0, 1.0, 3.0, 4.0, 50.0]),
        ("higradavg-bare", [1.5, 1.5, 1.5, 1.5, 1.5]),
    ):
        entry = race.Entry(name, workloads.CONTENDERS[name], peak_gib=0.5 * ratios[0])
        entry.rounds = [{"ratio": ratio, "milliseconds": 10 * ratio} for ratio in ratios]
        made.append(entry)
    note = "tensorflow_privacy is not installed"
    made.append(race.Entry("tfp-fast", workloads.CONTENDERS["tfp-fast"], note=note))
    return made


@pytest.fixture
def found(report, race, monkeypatch):
    workloads = module("workloads", monkeypatch)
    rows = []
    for name in ("mlp-256", "cnn-4096"):
        workload = workloads.WORKLOADS[name]
        rows += [report.summary(entry, name, workload, 0.5) for entry in entries(race, workloads)]
    machine = {
        "command": "python benchmarks/steps",
        "date": "2026-01-01",
        "cpu": "A processor",
        "cores": 2,
        "memory_gib": 24.0,
        "system": "Linux x86_64",
        "python": "3.11.0",
        "load": 0.1,
        "versions": {"tensorflow": "2.14.1"},
    }
    throughput = [{"sampler": "PoissonItems", "median": 5e5, "low": 4e5, "high": 6e5}]
    building = [{"sampler": "PoissonItems", "plan": 2.0, "dataset": 3.0, "first": 0.1}]
    speed = {"batch": 256, "items": 60_000, "features": 784, "rows": 10**7}
    speed |= {"throughput": throughput, "building": building}
    return {"machine": machine, "rows": rows, "input": speed}


def test_the_page_is_what_its_numbers_render_to(report):
    numbers = json.loads((DOCS / "performance.json").read_text(encoding="utf-8"))
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    assert text == report.page(numbers)
    assert all(f"| {row['name']}" in text for row in numbers["rows"])
    assert (DOCS / "performance.svg").stat().st_size < 200_000
    # Of the machine what ratios depend on, and nothing that leads to it.
    assert not re.search(r"/(home|root|tmp|work|usr)/|https?://", json.dumps(numbers))


def test_a_row_has_the_median_and_the_quartiles_over_the_rounds(found):
    row = next(row for row in found["rows"] if row["contender"] == "higradavg")
    assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == (3, 2, 4)
    assert (row["milliseconds"], row["rounds"], row["peak_ratio"]) == (30, 5, 2)


def test_the_page_has_every_row_the_machine_and_why_a_row_is_empty(report, found):
    text = report.page(found)
    assert "| HiGradAvg | 3.00 | 2.00 to 4.00 | 30 | 1.00 | 2.00 | 5 |" in text
    assert "| TF-Privacy fast clipping | tensorflow_privacy is not installed |" in text
    assert "The noise's share of the HiGradAvg step: 50%." in text
    assert "A processor, 2 cores, 24 GiB" in text and "tensorflow 2.14.1" in text
    assert "| the CNN, batch 4,096 | HiGradAvg | 0.03 | 1.00 | 8 GiB |" in text
    assert "| PoissonItems | 500,000 | 400,000 | 600,000 |" in text


def test_the_table_on_disk_has_every_row(report, found, tmp_path):
    report.write_csv(tmp_path / "new" / "summary.csv", found["rows"])
    with open(tmp_path / "new" / "summary.csv", newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert [(row["workload"], row["contender"]) for row in read] == [
        (row["workload"], row["contender"]) for row in found["rows"]
    ]


def test_the_figure_is_drawn_from_rows_with_a_ratio_alone(report, found, tmp_path):
    pytest.importorskip("matplotlib")
    report.figure(found["rows"], tmp_path / "ratios.svg")
    text = (tmp_path / "ratios.svg").read_text(encoding="utf-8")
    assert "HiGradAvg without noise" in text and "TF-Privacy" not in text
    report.figure([row for row in found["rows"] if not row["ratio"]], tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


def test_every_workload_has_its_rows_and_people_of_uneven_size(monkeypatch):
    workloads = module("workloads", monkeypatch)
    for workload in workloads.WORKLOADS.values():
        x, y, person = workloads.data(workload)
        assert len(x) == len(y) == len(person) == workload.batch
        counts = np.bincount(person)
        assert counts.size == workload.batch // 8
        assert counts.min() >= 1 and counts.max() > counts.min()


class FakeWorker:
    """Answers at once, with times of its own; fails where a contender is told to."""

    versions = {"fake": "1"}

    def __init__(self, contender, workload, python, limits):
        self.seconds = {"keras": 0.1, "ours": 0.2}.get(contender.library, 0.4)
        self.broken, self.rounds = contender.library == "opacus", 0

    def send(self, command):
        pass

    def warmed(self):
        pass

    def steps(self, number):
        self.rounds += 1
        # A machine that slows down slows everybody.
        return [self.seconds * self.rounds] * number

    def peak(self):
        return 1.0

    def kill(self):
        pass


def test_a_contender_that_fails_stops_nobody_and_ratios_are_of_one_round(race, monkeypatch):
    workloads = module("workloads", monkeypatch)

    class Worker(FakeWorker):
        def steps(self, number):
            if self.broken:
                raise race.Failed("out of memory: more than 1 GiB")
            return super().steps(number)

    monkeypatch.setattr(race, "Worker", Worker)
    said = []
    limits = race.Limits(rounds=4, slice_s=0.0, each_s=1e9)
    runner = race.Race(workloads.WORKLOADS["mlp-256"], {}, limits, said.append)
    by_name = {entry.name: entry for entry in runner.run(workloads.CONTENDERS, float("inf"))}
    for name, entry in by_name.items():
        if name.startswith("opacus"):
            assert not entry.rounds and entry.note == "out of memory: more than 1 GiB"
        else:
            assert len(entry.rounds) >= 4 and entry.peak_gib == 1.0 and not entry.note
    assert [row["ratio"] for row in by_name["higradavg"].rounds] == pytest.approx([2] * 4)
    # One heat for those that fit together, one for each of the others, the baseline in all.
    assert len({row["heat"] for row in by_name["keras"].rounds}) == 4


def test_a_deadline_that_has_passed_is_said_in_the_rows_that_it_cost(race, monkeypatch):
    workloads = module("workloads", monkeypatch)
    monkeypatch.setattr(race, "Worker", FakeWorker)
    limits = race.Limits(slice_s=0.0)
    runner = race.Race(workloads.WORKLOADS["mlp-256"], {}, limits, lambda text: None)
    by_name = {entry.name: entry for entry in runner.run(workloads.CONTENDERS, 0.0)}
    assert len(by_name["higradavg"].rounds) == 3
    assert by_name["tfp-keras"].note == "not run: the time was up"
