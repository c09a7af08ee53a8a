# SPDX-License-Identifier: Apache-2.0
"""What every map from data to elements offers, and the maps of single values: hash buckets, labels.

A datum is in exactly one element, and which one depends on that datum and on public things only:
otherwise a change to one person's datum could move another's into another element, and neighbouring
data would differ in more than one element. TensorFlow is imported where tensors are asked for.
"""

from __future__ import annotations

import abc
import hashlib
import math
import re
import unicodedata
import urllib.parse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tf_subjectdp import _validate

if TYPE_CHECKING:
    import tensorflow as tf

# Whole numbers that TensorFlow and NumPy can hold, so that both take the same.
_LEAST, _MOST = -(2**63), 2**64
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)?//")
# pandas marks a missing value with one of these; asking by name spares us importing pandas.
_PANDAS_MISSING = ("NAType", "NaTType")


class Elements(abc.ABC):
    """A public map from one datum to the element it belongs to.

    A class whose making costs privacy has `event` and `element_event`, as `KMeansElements` has. One with
    neither is free only if it says so by `costs_nothing`; else statements list its cost as unknown.
    """

    #: Whether every map of this class is public: fixed before the private data were seen.
    costs_nothing: ClassVar[bool] = False

    @abc.abstractmethod
    def element_ids(self, values: Any) -> np.ndarray:
        """The element of each row: int64 [rows], or labels (object array [rows] of str)."""

    @property
    @abc.abstractmethod
    def provenance(self) -> str:
        """One sentence for the privacy statement: where the map comes from, and what it cost."""


class TensorElements(Elements):
    """Elements whose ids, int64, can be had inside a `tf.data` pipeline."""

    @abc.abstractmethod
    def tensor_ids(self, values: Any, *, batched: bool = True) -> tf.Tensor:
        """As `element_ids`, for tensors, in graphs too; for use in `tf.data.Dataset.map`.

        Args:
          values: tensor [rows, ...] (`batched`), or of one datum.
          batched: whether the first dimension is rows.

        Returns:
          int64 tensor [rows], or a scalar.
        """

    def map_dataset(
        self,
        dataset: tf.data.Dataset,
        *,
        select: Callable[[Any], Any] | str | int | None = None,
        name: str = "element_id",
        batched: bool = True,
    ) -> tf.data.Dataset:
        """The dataset with the element id of every datum beside it.

        Args:
          dataset: of tensors, tuples or dicts.
          select: where the datum is in one entry of the dataset: a key, a place in the tuple, or a
            function of the entry; None takes the key "x" of a dict, the first of a tuple.
          name: key of the ids in a dict; a tuple gets them at its end, a lone tensor becomes a pair.
          batched: whether the dataset is batched.

        Returns:
          `tf.data.Dataset`, in the same order, of the same cardinality.

        Raises:
          ValueError: a dict that has `name` already, or a `select` that is not there.
        """
        import tensorflow as tf

        def with_ids(*entry: Any) -> Any:
            whole = entry if len(entry) > 1 or isinstance(dataset.element_spec, tuple) else entry[0]
            ids = self.tensor_ids(_selected(whole, select), batched=batched)
            if isinstance(whole, Mapping):
                if name in whole:
                    raise ValueError(f"the dataset has {name!r} already: pass another name=")
                return type(whole)([*whole.items(), (name, ids)])
            return (*whole, ids) if isinstance(whole, tuple) else (whole, ids)

        return dataset.map(with_ids, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _selected(entry: Any, select: Callable[[Any], Any] | str | int | None) -> Any:
    if callable(select):
        return select(entry)
    if select is None:
        if not isinstance(entry, (Mapping, tuple)):
            return entry
        select = "x" if isinstance(entry, Mapping) else 0
    there = entry if isinstance(entry, Mapping) else range(len(entry))
    if select not in there:
        raise ValueError(
            f"select is {select!r}, the dataset's entries have {list(there)}: pass one"
        )
    return entry[select]


class HashElements(TensorElements):
    """The element of a value is a bucket of its hash, the same in every process, machine and version.

    BLAKE2b of the value as text, after the salt and its length, modulo `n_elements`. A whole number is
    hashed as its decimal text and text as UTF-8, so 7, "7" and b"7" are in ONE element: a column that
    one reader calls numbers and another text gets the same ids, and two values in one element only make
    the unit that is protected larger. "07" and "7", "Word" and "word" are apart.

    Args:
      n_elements: number of buckets, at least 1.
      salt: public text; another salt, another map.

    Raises:
      TypeError, ValueError: an argument of another type or out of its range.
    """

    costs_nothing = True

    def __init__(self, n_elements: int, salt: str = ""):
        self.n_elements = _validate.integer("n_elements", n_elements, 1)
        if not isinstance(salt, str):
            raise TypeError(f"salt is {salt!r} ({type(salt).__name__}): pass text")
        self.salt = salt
        head = salt.encode("utf-8", "surrogatepass")
        self._start = hashlib.blake2b(
            b"%d:" % len(head) + head, digest_size=16, person=b"sdp-elements"
        )

    @property
    def provenance(self) -> str:
        return (
            f"The elements are {self.n_elements} buckets of a fixed public hash (BLAKE2b, salt "
            f"{self.salt!r}), which has seen no data."
        )

    def element_ids(self, values: Any) -> np.ndarray:
        """The bucket of each value.

        Args:
          values: one value a row, shape [rows]: strings, bytes or integers, also mixed; no rows are
            fine.

        Returns:
          int64 [rows], in 0..n_elements-1.

        Raises:
          ValueError: a missing value, by row; more than one dimension.
          TypeError: floats (7.0 is not 7), booleans or objects, by row.
        """
        array = value_column(values)
        known: dict[Any, int] = {}
        ids = np.empty(array.size, np.int64)
        for row, value in enumerate(array.tolist()):
            # True equals 1, 1.0 too: the type is a part of the key
            key = (type(value), value)
            try:
                ids[row] = known[key]
            except (KeyError, TypeError):  # TypeError: not hashable, refused by name below
                ids[row] = known[key] = self._bucket(value, row)
        return ids

    def tensor_ids(self, values: Any, *, batched: bool = True) -> tf.Tensor:
        """As `element_ids`, for string and integer tensors, in graphs too; see `TensorElements`.

        The same Python code by way of `tf.numpy_function` (TensorFlow has no BLAKE2b): such a pipeline
        cannot be saved.
        """
        import tensorflow as tf

        values = tf.convert_to_tensor(values)
        if values.dtype != tf.string and not values.dtype.is_integer:
            raise TypeError(f"values are of type {values.dtype.name}: pass strings or integers")
        rows = values if batched else values[None]
        ids = tf.numpy_function(self.element_ids, [rows], tf.int64, stateful=False)
        ids = tf.ensure_shape(ids, rows.shape[:1] if rows.shape.rank is not None else [None])
        return ids if batched else ids[0]

    def _bucket(self, value: Any, row: int) -> int:
        text = value
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            if not _LEAST <= value < _MOST:
                raise ValueError(
                    f"the value of row {row} is {value}: pass integers of at most 64 bits, or text"
                )
            text = b"%d" % int(value)
        elif isinstance(value, str):
            text = value.encode("utf-8", "surrogatepass")
        elif not isinstance(value, bytes):
            raise TypeError(
                f"the value of row {row} is {value!r} ({type(value).__name__}): pass strings, bytes or "
                "integers; floats as text, written in one way"
            )
        one = self._start.copy()
        one.update(text)
        return int.from_bytes(one.digest(), "little") % self.n_elements


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
        listed = value_column(values).tolist()
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
        if _is_missing(label) or (isinstance(label, str) and not label.strip()):
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


def value_column(values: Any, what: str = "value") -> np.ndarray:
    """One value a row as an array [rows], with no value changed on the way.

    Args:
      values: an array, list, tuple, pandas Series or eager tensor. NumPy would make two strings of the
        list ["a", 1], and one of [b"a", b"a\\0"]: lists become object arrays.
      what: what a row holds, for messages: "value", "subject id".

    Raises:
      ValueError: another shape, or a missing row (None, NaN, NA, NaT, masked), which is named.
      TypeError: a single string.
    """
    if values is None or isinstance(values, (str, bytes)):
        raise TypeError(f"{what}s are the single value {values!r}: pass one {what} a row")
    if isinstance(values, (list, tuple)):
        array = np.fromiter(values, dtype=object, count=len(values))
    else:
        array = np.asanyarray(values)
    if array.ndim != 1:
        raise ValueError(f"{what}s have shape {array.shape}: pass one {what} a row, shape [rows]")
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        _refuse_missing(int(np.flatnonzero(np.ma.getmaskarray(values))[0]), "masked", what)
    if array.dtype.kind in "OfcmM":
        for row, value in enumerate(array.tolist()):
            if _is_missing(value):
                _refuse_missing(row, repr(value), what)
    return np.asarray(array)


def _is_missing(value: Any) -> bool:
    """Whether `value` stands for no value: None, NaN, NA, NaT."""
    if value is None or type(value).__name__ in _PANDAS_MISSING:
        return True
    return isinstance(value, float) and math.isnan(value)


def _refuse_missing(row: int, value: str, what: str) -> None:
    raise ValueError(f"row {row} has no {what} ({value}): drop such rows, or give them a {what}")
