# SPDX-License-Identifier: Apache-2.0
"""What a command found, as text or as one JSON object; and the bar while it looks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

_WIDTH = 100


@dataclasses.dataclass
class Result:
    """The answer of a command.

    Attributes:
      data: what `--json` prints. An infinite number becomes null, with `<its name>_infinite`: true
        beside it; JSON has no infinity.
      rows: (name, value) lines of the text.
      table: a header and rows of cells, printed below the lines; empty for none.
      remarks: sentences below.
      text: printed instead of all that, if given.
    """

    data: dict[str, Any]
    rows: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    table: list[Sequence[str]] = dataclasses.field(default_factory=list)
    remarks: list[str] = dataclasses.field(default_factory=list)
    text: str | None = None


def write(stream: TextIO, result: Result, *, as_json: bool) -> None:
    """Writes a result to a stream."""
    if as_json:
        text = json.dumps(jsonable(result.data), indent=2, ensure_ascii=False, allow_nan=False)
    else:
        text = result.text if result.text is not None else _human(result)
    # Names of silos and columns may have letters that the terminal cannot show.
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


@contextlib.contextmanager
def progress_bar(shown: bool | None, what: str) -> Iterator[Callable[[int, float | None], None]]:
    """A bar on standard error that leaves nothing; yields what it is told by: a number, a share.

    Args:
      shown: True, False, or None for "if standard error is a terminal".
      what: what is being done.
    """
    from tqdm import tqdm

    form = "{desc} {percentage:3.0f}%|{bar:30}|{postfix}"
    disable = None if shown is None else not shown
    with tqdm(
        total=1.0, desc=what, disable=disable, leave=False, bar_format=form, miniters=0
    ) as bar:

        def report(number: int, share: float | None) -> None:
            bar.set_postfix_str(f"{number:,}", refresh=False)
            bar.update((share or 0.0) - bar.n)

        yield report


def jsonable(value: Any) -> Any:
    """NumPy numbers to Python's, tuples to lists, infinities to null and a mark."""
    if isinstance(value, dict):
        done: dict[str, Any] = {}
        for key, entry in value.items():
            done[str(key)] = jsonable(entry)
            if isinstance(entry, float) and math.isinf(entry):
                done[f"{key}_infinite"] = True
        return done
    if isinstance(value, (list, tuple)):
        return [jsonable(entry) for entry in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _human(result: Result) -> str:
    parts = []
    if result.rows:
        width = max(len(name) for name, _ in result.rows)
        parts.append("\n".join(_entry(name, value, width) for name, value in result.rows))
    if result.table:
        parts.append(_table(result.table))
    parts += [textwrap.fill(remark, _WIDTH, break_on_hyphens=False) for remark in result.remarks]
    return "\n\n".join(parts)


def _entry(name: str, value: str, width: int) -> str:
    indent = " " * (width + 2)
    filled = textwrap.fill(
        value,
        _WIDTH,
        initial_indent=f"{name:<{width}}  ",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled or name


def _table(rows: list[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
        if number == 0:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join(lines)
