# SPDX-License-Identifier: Apache-2.0
"""Elements that a function of one value names: a domain from a URL, a word. Two such functions.

Knows Python values; the standard library and NumPy.
"""

from __future__ import annotations

import re
import unicodedata
import urllib.parse
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_subjectdp.elements import _checks
from tf_subjectdp.elements.base import Elements

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)?//")


class FunctionElements(Elements):
    """The element of a value is the label that a function gives it.

        FunctionElements(url_domain).element_ids(["https://www.example.org/a"])   # ["example.org"]

    The function must be public, fixed before the data are seen, and give equal values equal labels.

    Args:
      function: from one value to its label, a string or a whole number.
      name: what the statement calls the function; None takes its own name.

    Raises:
      TypeError: `function` that is no function, or a name that is no text.
    """

    costs_nothing = True

    def __init__(self, function: Callable[[Any], Any], name: str | None = None):
        if not callable(function):
            raise TypeError(f"function is {function!r}: pass a function from a value to its label")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name is {name!r} ({type(name).__name__}): pass text")
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)

    @property
    def provenance(self) -> str:
        return (
            f"The elements are the values of the function {self.name!r} of one datum, which the user "
            "declared to be public and fixed before the data were seen."
        )

    def element_ids(self, values: Any) -> np.ndarray:
        """The label of each value.

        Args:
          values: one value a row, shape [rows]; what the function takes. No rows are fine.

        Returns:
          int64 [rows] where labels are whole numbers, object array [rows] of str where they are text;
          int64 without rows.

        Raises:
          ValueError: a missing value or label (None, NaN, an empty or blank text), by row.
          TypeError: labels that are neither, or of both kinds, by row. What the function raises is
            passed on, with a note of the row.
        """
        listed = _checks.column(values, "value").tolist()
        labels: list[Any] = []
        for row, value in enumerate(listed):
            try:
                labels.append(self.function(value))
            except Exception as error:
                error.add_note(f"in row {row}, value {value!r}, of the elements {self.name!r}")
                raise
        if not labels:
            return np.empty(0, np.int64)
        kinds = [self._kind(label, row) for row, label in enumerate(labels)]
        if len(set(kinds)) > 1:
            row = next(row for row, kind in enumerate(kinds) if kind != kinds[0])
            raise TypeError(
                f"{self.name!r} gives row 0 the label {labels[0]!r} and row {row} {labels[row]!r}: it "
                "must give strings, or whole numbers, to all, so that equal elements are equal"
            )
        if kinds[0] is int:
            return np.array([int(label) for label in labels], np.int64)
        made = np.empty(len(labels), dtype=object)
        made[:] = [str(label) for label in labels]
        return made

    def _kind(self, label: Any, row: int) -> type:
        if _checks.is_missing(label) or (isinstance(label, str) and not label.strip()):
            raise ValueError(
                f"row {row} has no element: {self.name!r} gives it {label!r}; give such rows a label of "
                "their own, or drop them"
            )
        if isinstance(label, str):
            return str
        if isinstance(label, (int, np.integer)) and not isinstance(label, bool):
            if not -(2**63) <= label < 2**63:
                raise ValueError(
                    f"row {row} has the label {label}: pass numbers of 64 bits, or text"
                )
            return int
        raise TypeError(
            f"{self.name!r} gives row {row} the label {label!r} ({type(label).__name__}): it must give "
            "strings or whole numbers"
        )


def url_domain(url: str | bytes) -> str:
    """The host of a URL, in lower case, without port, user and a leading "www.".

    Sub-domains stay: which part of a host is one owner's is known to a list alone that changes.

    Args:
      url: with or without a scheme ("example.org/a"); bytes are UTF-8.

    Raises:
      ValueError: no host in it.
      TypeError: no text.
    """
    text = _text("url", url).strip()
    if not _SCHEME.match(text):
        text = f"//{text}"
    host = (urllib.parse.urlsplit(text).hostname or "").rstrip(".")
    host = host.removeprefix("www.") or host
    if not host or any(letter.isspace() for letter in host):
        raise ValueError(f"{url!r} has no host: pass URLs such as 'https://example.org/page'")
    return host


def lower_word(word: str | bytes) -> str:
    """The word in one spelling: no punctuation or space around it, one case, one Unicode form.

    Args:
      word: one word; bytes are UTF-8. Signs inside ("don't") stay.

    Raises:
      ValueError: no letter or digit in it.
      TypeError: no text.
    """
    text = unicodedata.normalize("NFC", _text("word", word))
    text = unicodedata.normalize("NFC", text.casefold())
    kinds = [unicodedata.category(letter)[0] for letter in text]
    if not {"L", "N"} & set(kinds):
        raise ValueError(f"{word!r} has no letter or digit: drop such rows before asking for words")
    # marks belong to letters: a word may end with one
    places = [place for place, kind in enumerate(kinds) if kind in "LMN"]
    return text[places[0] : places[-1] + 1]


def _text(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}): pass text")
    return value
