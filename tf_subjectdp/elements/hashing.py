# SPDX-License-Identifier: Apache-2.0
"""Elements that are buckets of a hash: for data whose natural element (a word, a domain) has too many.

Knows strings, bytes and integers; BLAKE2b of the standard library. TensorFlow is imported by
`tensor_ids` and `map_dataset` alone.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_subjectdp.elements import _checks
from tf_subjectdp.elements.base import TensorElements

if TYPE_CHECKING:
    import tensorflow as tf

_DIGEST_BYTES = 16
# Whole numbers that TensorFlow and NumPy can hold, so that both take the same.
_LEAST, _MOST = -(2**63), 2**64


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
        self.n_elements = _checks.whole("n_elements", n_elements)
        if not isinstance(salt, str):
            raise TypeError(f"salt is {salt!r} ({type(salt).__name__}): pass text")
        self.salt = salt
        head = salt.encode("utf-8", "surrogatepass")
        self._start = hashlib.blake2b(
            b"%d:" % len(head) + head, digest_size=_DIGEST_BYTES, person=b"sdp-elements"
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
        array = _checks.column(values, "value")
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
