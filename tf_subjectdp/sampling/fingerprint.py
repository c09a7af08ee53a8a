# SPDX-License-Identifier: Apache-2.0
"""Telling whether a dataset still samples as its plan said.

`to_dataset` puts a mark on the dataset it returns. The mark does not survive a transformation, so
a changed dataset is found out by walking back to the mark and looking at what lies between.
"""

from __future__ import annotations

from typing import Any

MARK = "subjectdp_fingerprint"

# These hand the elements on one by one, in order, and draw nothing twice.
_HARMLESS = frozenset({"Prefetch", "Options", "AssertCardinality", "Model", "Take"})

_REASONS = {
    "Batch": "it merges the batches of several steps",
    "Cache": "it replays the draws of the first pass, and the steps must be independent",
    "Concatenate": "it adds steps that no plan accounts for",
    "Filter": "which steps are taken would depend on the data",
    "Map": "it may change the rows of a step, or let one row see another",
    "ParallelMap": "it may change the rows of a step, or let one row see another",
    "Rebatch": "it cuts a step's batch apart",
    "Repeat": "it takes more steps than planned",
    "Shard": "it leaves steps out",
    "Shuffle": "it changes the order of the draws",
    "Skip": "it leaves steps out",
    "Unbatch": "it takes a step's batch apart",
}


def dataset_fingerprint(dataset: Any) -> int | None:
    """The fingerprint of the plan whose sampling a dataset carries.

    Args:
      dataset: anything that `fit` was given. `prefetch`, `with_options`, `take` and
        `assert_cardinality` after `to_dataset` leave the sampling as it is.

    Returns:
      The fingerprint given to `to_dataset`; None for a dataset of other origin, and for anything
      that is no `tf.data.Dataset`.

    Raises:
      ValueError: the dataset came from `to_dataset` and something changed its sampling since; the
        transformation is named.
    """
    node = dataset
    while not _is_marked(node):
        name, inputs = _transformation(node), _inputs(node)
        if len(inputs) == 1 and name in _HARMLESS:
            node = inputs[0]
        elif any(_descends_from_marked(parent) for parent in inputs):
            reason = _REASONS.get(name, "it may change the sampling")
            raise ValueError(
                f"the plan's dataset went through {_method(name)}: {reason}, so the plan's "
                "guarantee would not hold. Pass the dataset as the plan made it (prefetch, take "
                "and with_options are fine), and prepare x and y before, or in the model's layers"
            )
        else:
            return None
    return getattr(node, MARK)


def _is_marked(dataset: Any) -> bool:
    return getattr(dataset, MARK, None) is not None


def _descends_from_marked(dataset: Any) -> bool:
    return _is_marked(dataset) or any(map(_descends_from_marked, _inputs(dataset)))


def _inputs(dataset: Any) -> list[Any]:
    inputs = getattr(dataset, "_inputs", None)
    return list(inputs()) if callable(inputs) else []


def _transformation(dataset: Any) -> str:
    """ "Prefetch" for `PrefetchDataset` and for `_PrefetchDataset`, as TensorFlow versions have."""
    name = type(dataset).__name__.lstrip("_")
    for ending in ("V1Adapter", "V1", "V2", "Dataset"):
        name = name.removesuffix(ending)
    return name


def _method(name: str) -> str:
    """The method's name as users write it: "ParallelMap" is `map`, "GroupByWindow" is snake."""
    name = name.removeprefix("Parallel")
    snake = "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)
    return f"`{snake.lstrip('_')}`"
