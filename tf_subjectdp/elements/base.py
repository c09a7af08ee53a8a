# SPDX-License-Identifier: Apache-2.0
"""What every map from data to elements offers. TensorFlow is imported inside the functions using it.

A datum is in exactly one element, and which one depends on that datum and on public things only:
otherwise a change to one person's datum could move another's into another element, and neighbouring
data would differ in more than one element.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf


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
