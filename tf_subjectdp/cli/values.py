# SPDX-License-Identifier: Apache-2.0
"""From a word of the command line to a number or a name."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole(text: str) -> int:
    """A whole number; 1e6 is one."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
        if number == int(number) and abs(number) <= 2**53:
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")


def real(text: str) -> float:
    """A finite number."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return number


# What people call it elsewhere.
_OTHER_WORDS = {"dpsgd": "itemdp", "person": "subject", "patient": "subject", "record": "item"}


def one_of(*names: str) -> Callable[[str], str]:
    """One of the names, however it is spelled: HiGradAvg, higradavg, hi-grad-avg."""
    plain = {_plain(name): name for name in names}
    for common, name in _OTHER_WORDS.items():
        if name in names:
            plain.setdefault(common, name)

    def parse(text: str) -> str:
        if _plain(text) not in plain:
            raise argparse.ArgumentTypeError(
                f"{text!r} is unknown; choose one of {', '.join(names)}"
            )
        return plain[_plain(text)]

    return parse


def _plain(text: str) -> str:
    return text.lower().replace("-", "").replace("_", "")
