# SPDX-License-Identifier: Apache-2.0
"""Features of data, and the nearest centre of each row: the same answer in NumPy and TensorFlow.

Knows arrays, centres and a feature function. A row's answer does not depend on the rows beside it:
distances are sums of squared differences (no |x|^2 - 2 x c + |c|^2, which cancels and whose rounding
follows the size of the batch), and distances that agree to 2^-30 count as tied, the lowest number
wins. The rounding of either library is below 2^-31 up to a width of two million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial import distance

if TYPE_CHECKING:
    import tensorflow as tf

#: Squared distances within this factor of the smallest are tied.
TIE = 1.0 + 2.0**-30
#: Larger features would overflow when squared.
LARGEST = 1e100
# Cells of float64 at once, 32 MB.
_CELLS = 2**22


def extractor_name(extractor: Callable[[Any], Any] | None) -> str | None:
    """What a feature function is called, None for none."""
    if extractor is None:
        return None
    for attribute in ("name", "__qualname__"):
        found = getattr(extractor, attribute, None)
        if isinstance(found, str) and found:
            return found
    return type(extractor).__name__


def feature_batches(
    x: Any, extractor: Callable[[Any], Any] | None, batch_size: int, width: int | None = None
) -> Iterator[np.ndarray]:
    """The features of the rows of `x`, a piece at a time.

    Args:
      x: array [rows, ...]; numbers, unless there is an extractor.
      extractor: from a batch [b, ...] to features [b, ...] (array or eager tensor); a Keras model is
        called with training=False. None flattens each row.
      batch_size: rows that the extractor gets at once.
      width: features a row must have, None for any.

    Yields:
      float64 [b, width], all finite.

    Raises:
      TypeError: features that are no numbers.
      ValueError: another width or number of rows; a feature that is not finite, by its row.
    """
    rows = np.asarray(x)
    if rows.ndim == 0 or (extractor is None and rows.ndim == 1):
        raise ValueError(
            f"x has shape {rows.shape}: pass rows of features, shape [rows, ...]; x[:, None] for one "
            "number a row, x[None] for one row"
        )
    size = batch_size
    if extractor is None:
        size = max(1, _CELLS // max(1, int(np.prod(rows.shape[1:]))))
    for low in range(0, len(rows), size):
        yield _checked(
            _called(extractor, rows[low : low + size]), rows[low : low + size], low, width
        )


def features(
    x: Any, extractor: Callable[[Any], Any] | None, batch_size: int, width: int | None = None
) -> np.ndarray:
    """As `feature_batches`, all at once: float64 [rows, width]; ValueError for no rows."""
    pieces: list[np.ndarray] = []
    for piece in feature_batches(x, extractor, batch_size, width):
        pieces.append(piece)
        width = piece.shape[1]
    if not pieces:
        raise ValueError("x has no rows: k-means needs at least one row for each cluster")
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]


def nearest(rows: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest centre of each row, in bounded memory.

    Args:
      rows: float64 [rows, width], finite.
      centres: float64 [clusters, width].

    Returns:
      `(ids, squares)`: int64 [rows], ties to the lowest number; float64 [rows], the smallest squared
      distance.
    """
    ids = np.empty(len(rows), np.int64)
    squares = np.empty(len(rows))
    size = max(1, _CELLS // max(len(centres), centres.shape[1]))
    for low in range(0, len(rows), size):
        piece = distance.cdist(rows[low : low + size], centres, "sqeuclidean")
        least = piece.min(axis=1)
        squares[low : low + size] = least
        ids[low : low + size] = np.argmax(piece <= least[:, None] * TIE, axis=1)
    return ids, squares


def tensor_features(
    values: Any, extractor: Callable[[Any], Any] | None, batch_size: int, width: int
) -> tf.Tensor:
    """As `features`, for a tensor [rows, ...], in graphs too: float64 [rows, width]."""
    import tensorflow as tf

    values = tf.convert_to_tensor(values)
    if extractor is None:
        if values.shape.rank is not None and values.shape.rank < 2:
            raise ValueError(
                f"the data have shape {values.shape}: pass rows of features, shape [rows, ...], or "
                "batched=False for a dataset of single data"
            )
        if values.dtype.is_complex or not (
            values.dtype.is_floating or values.dtype.is_integer or values.dtype.is_bool
        ):
            raise TypeError(f"the data are of type {values.dtype.name}: features must be numbers")
        static = values.shape[1:].num_elements() if values.shape.rank is not None else None
        if static is not None and static != width:
            raise ValueError(f"a row has {static} features and the centres have {width}")
        columns = tf.reduce_prod(tf.shape(values)[1:]) if static is None else static
        flat = tf.reshape(tf.cast(values, tf.float64), [tf.shape(values)[0], columns])
    else:

        def extracted(batch: np.ndarray) -> np.ndarray:
            pieces = list(feature_batches(batch, extractor, batch_size, width))
            return np.concatenate(pieces) if pieces else np.empty((0, width))

        # Called eagerly, not traced: its variables may be on an accelerator, out of a pipeline's
        # reach, and the features are those that the centres were fitted on.
        flat = tf.numpy_function(extracted, [values], tf.float64, stateful=False)
    flat = tf.ensure_shape(flat, [None, width])
    fine = tf.debugging.assert_less_equal(
        tf.abs(flat), tf.constant(LARGEST, tf.float64), "a feature is NaN, infinite or above 1e100"
    )
    with tf.control_dependencies([fine] if fine is not None else []):
        return tf.identity(flat)


def tensor_nearest(rows: tf.Tensor, centres: np.ndarray) -> tf.Tensor:
    """As the ids of `nearest`, for a float64 tensor [rows, width]: int64 [rows]."""
    import tensorflow as tf

    squares = tf.map_fn(
        lambda centre: tf.reduce_sum(tf.math.squared_difference(rows, centre), axis=1),
        tf.constant(centres),
        fn_output_signature=tf.TensorSpec([None], tf.float64),
    )
    tied = squares <= tf.reduce_min(squares, axis=0) * TIE
    numbers = tf.range(len(centres), dtype=tf.int64)[:, None]
    # tf.argmax does not say which of several maxima it takes
    return tf.reduce_min(tf.where(tied, numbers, tf.constant(len(centres), tf.int64)), axis=0)


def _called(extractor: Callable[[Any], Any] | None, batch: np.ndarray) -> np.ndarray:
    if extractor is None:
        return batch
    is_keras = any(
        kind.__name__ == "Layer" and "keras" in kind.__module__ for kind in type(extractor).__mro__
    )
    return np.asarray(extractor(batch, training=False) if is_keras else extractor(batch))


def _checked(made: np.ndarray, batch: np.ndarray, low: int, width: int | None) -> np.ndarray:
    if made.dtype.kind not in "biuf":
        raise TypeError(
            f"features are of type {made.dtype}: they must be numbers; pass numeric rows, or a "
            "feature_extractor that makes numbers of them"
        )
    if made.ndim == 0 or len(made) != len(batch):
        raise ValueError(
            f"feature_extractor returned shape {made.shape} for {len(batch)} rows: it must return one "
            "row of features for each"
        )
    flat = np.ascontiguousarray(made.reshape(len(made), -1), dtype=np.float64)
    if not flat.shape[1]:
        raise ValueError(f"x has shape [rows, {', '.join(map(str, made.shape[1:]))}]: no features")
    if width is not None and flat.shape[1] != width:
        raise ValueError(
            f"a row has {flat.shape[1]} features and the centres have {width}: pass rows as those that "
            "the centres were fitted on, and the same feature_extractor"
        )
    bad = ~(np.abs(flat) <= LARGEST)
    if bad.any():
        row, place = np.argwhere(bad)[0]
        raise ValueError(
            f"feature {place} of row {low + row} is {flat[row, place]}: features must be finite and at "
            f"most {LARGEST:g}; drop or repair such rows"
        )
    return flat
