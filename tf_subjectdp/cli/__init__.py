# SPDX-License-Identifier: Apache-2.0
"""The command `subjectdp`: the accountant for somebody who never trains a model.

    subjectdp epsilon --algorithm higradavg --batch 512 --items 31700 --items-per-subject 145 \\
        --noise 60 --epochs 100 --delta 1e-5

Exit status 0, or 2 and one line on standard error for anything that was asked wrongly; 130 after
Ctrl-C. TensorFlow is never imported, and SciPy not before a command needs it.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from collections.abc import Sequence

from tf_subjectdp.cli import options, output

__all__ = ["main"]

_BAD_INPUT = 2
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
      argv: the words after `subjectdp`; None takes those of the process.

    Returns:
      The exit status: 0, 2 for bad input (one line on standard error says what), 130 if interrupted.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started the command
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    notes = _Notes()
    logger = logging.getLogger("tf_subjectdp")
    logger.addHandler(notes)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            status = _run(argv)
        for warning in caught:
            if issubclass(warning.category, UserWarning):
                notes.add(str(warning.message))
        if status == 0:
            notes.print()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader has seen enough. Python flushes standard output once more at exit.
        _silence_stdout()
        return 0
    finally:
        logger.removeHandler(notes)


def _run(argv: Sequence[str] | None) -> int:
    arguments = None
    try:
        arguments = options.parse(argv)
        module = options.COMMANDS[arguments.command][0]
        answer = getattr(importlib.import_module(f"tf_subjectdp.cli.{module}"), arguments.command)
        output.write(sys.stdout, answer(arguments), as_json=arguments.json)
    except SystemExit as stop:  # --help, --version
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        raise
    except (options.UsageError, OSError) as error:
        return _refuse(_words(error))
    except (ValueError, TypeError, ImportError, OverflowError) as error:
        said = _words(error)
        return _refuse(said if arguments is None else options.in_options(said, arguments))
    except MemoryError:
        return _refuse("there is not enough memory for this; try smaller numbers")
    return 0


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename is not None else ""
        return f"{name}{error.strerror}"
    return str(error) or type(error).__name__


def _refuse(message: str) -> int:
    sys.stderr.write(f"subjectdp: error: {' '.join(message.split())}\n")
    return _BAD_INPUT


def _silence_stdout() -> None:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return  # a stream that is no file has no descriptor, and nothing to flush either


class _Notes(logging.Handler):
    """Warnings of the library, each once, as lines on standard error after the answer."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.add(record.getMessage())

    def add(self, message: str) -> None:
        self._lines[" ".join(message.split())] = None

    def print(self) -> None:
        for line in self._lines:
            sys.stderr.write(f"subjectdp: note: {line}\n")
