# SPDX-License-Identifier: Apache-2.0
"""A progress bar on standard error: one line that writes over itself and leaves nothing behind."""

from __future__ import annotations

import sys
import time
from types import TracebackType

_WIDTH = 30
_SECONDS_BETWEEN = 0.1


class ProgressBar:
    """Rows read, and the share of the file; a context manager.

    Args:
      shown: True, False, or None for "if standard error is a terminal".
      what: what is being read.
    """

    def __init__(self, shown: bool | None, what: str) -> None:
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._what = what
        self._start = time.monotonic()
        self._next = self._start
        self._length = 0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._length:
            self._write("")
            sys.stderr.write("\r")
            sys.stderr.flush()

    def __call__(self, rows: int, share: float | None) -> None:
        """Shows `rows` rows and the share read, at most ten times a second."""
        now = time.monotonic()
        if not self._shown or now < self._next:
            return
        self._next = now + _SECONDS_BETWEEN
        bar = ""
        if share is not None:
            full = round(share * _WIDTH)
            bar = f" [{'#' * full}{'.' * (_WIDTH - full)}] {share:4.0%}"
        speed = rows / max(now - self._start, 1e-6)
        self._write(f"{self._what}{bar} {rows:,} rows, {speed:,.0f} a second")

    def say(self, what: str) -> None:
        """Shows what is being done."""
        if self._shown:
            self._write(what)

    def _write(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self._length))
        sys.stderr.flush()
        self._length = len(line)
