# SPDX-License-Identifier: Apache-2.0
"""Contenders of one workload against plain Keras, in turns, each in its own process.

A round gives everyone a few steps, in an order drawn anew; a contender's time is divided by the
baseline's of the same round, so that a machine which slows down slows both. What holds item
gradients, or is slow, races against the baseline alone. Nothing that fails stops the others.
"""

import dataclasses
import json
import os
import queue
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from workloads import BASELINE, Contender, Workload

HERE = Path(__file__).parent
_AT_ONCE = os.cpu_count() or 1
_OUT_OF_MEMORY = re.compile(
    r"OOM|RESOURCE_EXHAUSTED|ResourceExhausted|MemoryError|bad_alloc|[Cc]annot allocate memory"
    r"|can't allocate memory|[Oo]ut of memory|DefaultCPUAllocator"
)


class Failed(Exception):
    """A contender that cannot go on; the message is for its row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """How long and how large.

    Attributes:
      rounds: the most rounds of a heat.
      slice_s: seconds that a contender gets in a round, one step at least.
      each_s: seconds after which a contender has had its turns.
      start_s: the longest that a process may take to import its libraries and build the model.
      step_s: the longest that a step may take, the first one with its tracing included.
      memory_gib: what a process may allocate.
      warm_up: steps of each contender that do not count; 2 at least let `fit` settle.
    """

    rounds: int = 15
    slice_s: float = 0.5
    each_s: float = 10.0
    start_s: float = 240.0
    step_s: float = 75.0
    memory_gib: float = 12.0
    warm_up: int = 3


class Worker:
    """A contender's process."""

    def __init__(self, contender: Contender, workload: Workload, python: str, limits: Limits):
        self._limits = limits
        task = {
            "contender": contender.config(),
            "workload": dataclasses.asdict(workload),
            "limit_gib": limits.memory_gib,
        }
        # torch's threads would spin while others are measured
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_WAIT_POLICY": "passive", **os.environ}
        environment["CUDA_VISIBLE_DEVICES"] = ""
        paths = [str(HERE.parents[1]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        # open as long as the process, and gone with it
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, str(HERE / "worker.py"), json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        self._answers: queue.Queue = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.versions: dict[str, str] = {}

    def _read(self) -> None:
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def send(self, command: str) -> None:
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` says why

    def answer(self, seconds: float, what: str = "step") -> dict:
        """The next answer; `Failed` if there is none within so many seconds."""
        try:
            found = self._answers.get(timeout=seconds)
        except queue.Empty:
            self.kill()
            raise Failed(f"too slow: no {what} within {seconds:g} s") from None
        if found is None:
            raise Failed(self._why())
        if "missing" in found:
            raise Failed(f"{found['missing']} is not installed")
        return found

    def warmed(self) -> None:
        """Waits for the process to be ready, and for the steps that do not count."""
        self.versions = self.answer(self._limits.start_s, "model")["versions"]
        for _ in range(self._limits.warm_up):
            self.steps(1)

    def steps(self, number: int) -> list[float]:
        """Seconds of each of so many steps."""
        self.send(f"run {number}")
        return self.answer(self._limits.step_s * min(number, 2))["seconds"]

    def peak(self) -> float:
        """Ends the process; its peak memory in GiB."""
        self.send("stop")
        return self.answer(60)["peak_gib"]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _why(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        text = self._errors.read()[-20_000:]
        if _OUT_OF_MEMORY.search(text) or status == -9:
            return f"out of memory: more than {self._limits.memory_gib:g} GiB"
        raised = re.findall(r"^\s*((?:\w+\.)*\w*(?:Error|Exception)): *(.*)$", text, re.MULTILINE)
        if raised:
            name, message = raised[-1]
            return f"fails: {name.split('.')[-1]}: {message}"[:140].strip()
        return f"fails: exit status {status}"


@dataclasses.dataclass
class Entry:
    """A contender in a race, and what it has shown.

    `rounds` has one dict a round: "round", "heat", "steps", "milliseconds" (median), "ratio".
    """

    name: str
    contender: Contender
    rounds: list[dict] = dataclasses.field(default_factory=list)
    peak_gib: float | None = None
    note: str = ""
    spent: float = 0.0
    worker: Worker | None = None
    number: int = 1


class Race:
    """One workload."""

    def __init__(self, workload: Workload, python: dict[str, str], limits: Limits, say=print):
        self.workload, self.limits = workload, limits
        self.versions: dict[str, str] = {}
        self._python, self._say = python, say
        self._order = random.Random(0)
        self._heats = 0

    def run(self, contenders: dict[str, Contender], deadline: float) -> list[Entry]:
        """Everybody, the baseline first; no heat starts after `deadline` (monotonic seconds)."""
        entries = [Entry(name, contender) for name, contender in contenders.items()]
        baseline = next(entry for entry in entries if entry.name == BASELINE)
        together = [entry for entry in entries if not entry.contender.alone]
        try:
            self._heat(together, baseline, deadline)
            for entry in entries:
                if entry.contender.alone:
                    if time.monotonic() > deadline or baseline.worker is None:
                        entry.note = "not run: the time was up"
                        continue
                    self._heat([baseline, entry], baseline, deadline)
            if baseline.worker is not None:
                self._finish(baseline)
        finally:
            for entry in entries:
                if entry.worker is not None:
                    entry.worker.kill()
        return entries

    def _heat(self, entries: list[Entry], baseline: Entry, deadline: float) -> None:
        """Everybody starts; then rounds until everybody has had its time. The baseline stays."""
        self._heats += 1
        starting = [entry for entry in entries if entry.worker is None]
        # As many at once as there are cores: more of them would only wait for one another.
        for at in range(0, len(starting), _AT_ONCE):
            for entry in starting[at : at + _AT_ONCE]:
                python = self._python.get(entry.contender.library, sys.executable)
                entry.worker = Worker(entry.contender, self.workload, python, self.limits)
            for entry in starting[at : at + _AT_ONCE]:
                self._try(entry, lambda entry: entry.worker.warmed())
                if entry.worker is not None:
                    # the baseline's NumPy, should another interpreter have another
                    self.versions = {**entry.worker.versions, **self.versions}
            if baseline.worker is None:
                break
        for entry in starting:
            self._try(entry, self._choose_number)
        if baseline.worker is None:
            for entry in entries:
                entry.note = entry.note or "not run: the baseline failed"
        else:
            self._rounds(entries, baseline, deadline)
        for entry in entries:
            if entry.worker is not None and entry is not baseline:
                self._finish(entry)

    def _choose_number(self, entry: Entry) -> None:
        seconds = entry.worker.steps(1)[0]
        entry.number = max(1, min(200, round(self.limits.slice_s / seconds)))

    def _rounds(self, entries: list[Entry], baseline: Entry, deadline: float) -> None:
        others = [entry for entry in entries if entry is not baseline]
        for number in range(self.limits.rounds):
            each_s = self.limits.each_s
            if time.monotonic() > deadline:  # a spread still, from those that are quick
                each_s = min(each_s, 2.0) if number < 3 else 0.0
            running = [
                entry
                for entry in others
                if entry.worker is not None and (not entry.rounds or entry.spent < each_s)
            ]
            if not running and (others or number >= 3):
                return
            turns = [baseline, *running]
            self._order.shuffle(turns)
            found = {}
            for entry in turns:
                seconds = self._try(entry, lambda entry: entry.worker.steps(entry.number))
                if seconds:
                    found[entry.name] = seconds
                    entry.spent += sum(seconds)
            if baseline.name not in found:
                return
            unit = statistics.median(found[baseline.name])
            for entry in turns:
                if entry.name in found:
                    median = statistics.median(found[entry.name])
                    entry.rounds.append(
                        {
                            "heat": self._heats,
                            "round": number,
                            "steps": entry.number,
                            "milliseconds": 1e3 * median,
                            "ratio": median / unit,
                        }
                    )

    def _try(self, entry: Entry, action):
        """What the action gives; None, with a note, if the contender fails."""
        if entry.worker is None:
            return None
        try:
            return action(entry)
        except Failed as failure:
            entry.note = str(failure)
            entry.worker.kill()
            entry.worker = None
            self._say(f"  {entry.contender.title}: {entry.note}")
            return None

    def _finish(self, entry: Entry) -> None:
        entry.peak_gib = self._try(entry, lambda entry: entry.worker.peak())
        if entry.worker is not None:
            entry.worker.kill()
            entry.worker = None
        if entry.rounds:
            median = statistics.median(row["ratio"] for row in entry.rounds)
            self._say(f"  {entry.contender.title}: {median:.2f} x, {entry.peak_gib or 0:.2f} GiB")
