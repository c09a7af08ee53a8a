# SPDX-License-Identifier: Apache-2.0
"""TFF worker processes on this machine, for trying out what `remote` does with those of others.

Knows the worker binary of TFF's wheel; imports TFF for its place, and TFF's gRPC.
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import grpc
import portpicker
import tensorflow_federated as tff

# A worker of TFF is up after about a second.
_START_S = 60.0
_STOP_S = 5.0


class LocalWorkers:
    """TFF workers on this machine, for trying things out; they stop when the `with` ends.

    Args:
      n: how many.
      output: a file to which they write what they have to say; None for nowhere.

    Attributes:
      targets: "localhost:port" of each.
    """

    def __init__(self, n: int, *, output: Any = None):
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"n={n!r} workers: it must be a whole number of at least 1.")
        self._n, self._output = n, output
        self._processes = []
        self.targets = []

    def __enter__(self) -> "LocalWorkers":
        try:
            for _ in range(self._n):
                self.targets.append(f"localhost:{portpicker.pick_unused_port()}")
                self._processes.append(self._started(self.targets[-1]))
            for process, target in zip(self._processes, self.targets, strict=True):
                _wait_until_ready(process, target)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def kill(self, i: int) -> None:
        """Kills one, at once."""
        self._processes[i].kill()
        self._processes[i].wait()

    def restart(self, i: int) -> None:
        """Starts one again, at its port."""
        # Two may listen at one port, and share what comes.
        self.kill(i)
        self._processes[i] = self._started(self.targets[i])
        _wait_until_ready(self._processes[i], self.targets[i])

    def stop(self) -> None:
        """Stops those that still run."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _started(self, target: str) -> subprocess.Popen:
        binary = Path(tff.__file__).parent / "data" / "worker_binary"
        command = [str(binary), f"--port={target.rpartition(':')[2]}"]
        # Never a pipe of ours: it stays open as long as a worker lives, and whoever reads it waits.
        where = os.devnull if self._output is None else self._output
        with open(where, "ab") as file:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )


def _wait_until_ready(process: subprocess.Popen, target: str) -> None:
    end = time.monotonic() + _START_S
    with grpc.insecure_channel(target) as channel:
        ready = grpc.channel_ready_future(channel)
        while process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(grpc.FutureTimeoutError):
                return ready.result(timeout=0.2)
        ready.cancel()
    raise RuntimeError(
        f"the TFF worker for {target} was not up within {_START_S:g} s, or ended (exit status "
        f"{process.poll()}); LocalWorkers(n, output=path) keeps what it says."
    )
