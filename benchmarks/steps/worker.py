# SPDX-License-Identifier: Apache-2.0
"""One contender in a process of its own, so that its peak memory is its own.

`race.py` starts it, then says over standard input how many steps to take: "run 5". The answer is a
line of JSON: the seconds of each step. "stop" ends the process, which then says its peak memory.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import resource
import sys
import time

from workloads import Contender, Workload

MODULES = {
    "keras": ("keras_side", ("tensorflow",)),
    "ours": ("keras_side", ("tensorflow", "tf_subjectdp")),
    "tf_privacy": ("keras_side", ("tensorflow", "tensorflow_privacy")),
    "opacus": ("torch_side", ("torch", "opacus")),
    "jax_privacy": ("jax_side", ("jax", "jax_privacy")),
}


class Stopped(Exception):
    """No more steps are wanted."""


class Clock:
    """Lets a training loop run as many steps as were asked for, and times them.

    From the end of a step to the end of the next: what a loop does in between counts, waiting for
    the next command does not.
    """

    def __init__(self, commands, answer):
        self._commands, self._answer = commands, answer
        self._due, self._seconds, self._last = 0, [], 0.0

    def step_begins(self) -> None:
        """Waits until a step is wanted."""
        if self._due:
            return
        words = self._commands.readline().split()
        if not words or words[0] == "stop":
            raise Stopped
        self._due, self._seconds = int(words[1]), []
        self._last = time.perf_counter()

    def step_ended(self) -> None:
        now = time.perf_counter()
        self._seconds.append(now - self._last)
        self._last = now
        self._due -= 1
        if not self._due:
            self._answer({"seconds": self._seconds})


def versions(names) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name.replace("_", "-"))
        except importlib.metadata.PackageNotFoundError:
            found[name] = getattr(sys.modules.get(name), "__version__", "unknown")
    return found


def main() -> None:
    # What libraries print must not mix with the answers.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(message: dict) -> None:
        channel.write(json.dumps(message) + "\n")

    task = json.loads(sys.argv[1])
    contender, workload = Contender(**task["contender"]), Workload(**task["workload"])
    module, needed = MODULES[contender.library]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        answer({"missing": missing[0]})
        return
    if task["limit_gib"]:
        # Data, not address space: libraries reserve far more of that than they use.
        most = int(task["limit_gib"] * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    train = importlib.import_module(module).prepare(contender, workload)
    answer({"ready": True, "versions": versions(("numpy", *needed))})
    try:
        train(Clock(sys.stdin, answer))
    except Stopped:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer({"peak_gib": peak / (2**30 if sys.platform == "darwin" else 2**20)})
    channel.flush()
    os._exit(0)  # threads of frameworks may take their time


if __name__ == "__main__":
    main()
