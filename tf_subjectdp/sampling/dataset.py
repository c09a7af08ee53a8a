# SPDX-License-Identifier: Apache-2.0
"""From draws of rows to a `tf.data.Dataset` whose every element is one step.

Only row numbers pass through Python; the features are gathered by TensorFlow from tensors that the
dataset holds once. A batch is padded, never reshaped: padding rows carry mask False, weight 0 and
subject -1, so that what counts them can tell them from a real row of weight 0.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_subjectdp.sampling._checks import positive_int
from tf_subjectdp.sampling.fingerprint import MARK

# Python and TensorFlow take turns once a block of steps: a turn costs more time than gathering a
# small batch. Row numbers are small, so a block may be drawn ahead of its time; of the features
# themselves only the next batches are held ready.
_BLOCK_STEPS = 64
_BLOCK_NUMBERS = 65_536
_BATCHES_AHEAD = 2


def to_dataset(
    features: Mapping[str, Any],
    indices_factory: Callable[[], Iterable[np.ndarray]],
    steps: int,
    *,
    pad_to: int | None = None,
    seeded: bool = False,
    fingerprint: int,
) -> tf.data.Dataset:
    """A dataset of `steps` elements that draws afresh at every pass.

    Args:
      features: `"x"` and `"y"`, each an array, a tensor, or a nest of them (dict, tuple, list) of
        equal first dimension n, y possibly None; `"subject"`, int64 codes of shape [n];
        `"element"`, the same, or None; and `"weight"`, numbers of shape [n], or None for weight 1.
        float64 NumPy arrays become Keras's float type, as in `fit`; lists become tuples, as tf.data
        has no lists.
      indices_factory: called at the start of every pass; returns a NEW iterator of int64 arrays
        of rows, one a step, at least `steps` of them. The iterator must not repeat that of another
        pass: give it a fresh generator (`fresh_rng`).
      steps: number of elements, the dataset's cardinality.
      pad_to: None leaves batches as they come; a capacity pads them to the smallest multiple of it
        that holds the batch. A batch over capacity grows to twice the capacity: no row is dropped.
      seeded: whether the draws come from a seed, which makes them no secret; every step says so.
      fingerprint: the plan's mark, an int64 number; see `dataset_fingerprint`.

    Returns:
      A dataset of `(x, y, extras)`, the batch dimension unknown in its spec. `extras` has
      `"subject"` and, if given, `"element"` (int64 [b], -1 for padding), `"weight"` (float32 [b], 0
      for padding), `"mask"` (bool [b], False for padding), `"seeded"` (bool scalar), and the int64
      scalars `"plan"` (the fingerprint), `"pass"` (of `new_pass`) and `"step"` (the number of the step in
      its pass), by which a replay is found out. Every element of the
      dataset has at least one row: an empty batch is one row of padding, with the features of row 0.

    Raises:
      ValueError: leaves of unequal length, no rows, a weight that is negative or not finite, steps
        or pad_to below 1, unknown features.
      TypeError: leaves that are ragged, sparse, datasets, scalars or of no TensorFlow type.
    """
    steps = positive_int("steps", steps)
    pad_to = 1 if pad_to is None else positive_int("pad_to", pad_to)
    if isinstance(fingerprint, bool) or not isinstance(fingerprint, (int, np.integer)):
        raise TypeError(f"fingerprint is {fingerprint!r}: pass a whole number")
    if not -(2**63) <= fingerprint < 2**63:
        raise ValueError(f"fingerprint is {fingerprint}: it must fit into 64 bits")
    # captured eager tensors reach the map function by reference; constants would be copied into
    # its graph, which must stay under 2 GB
    with tf.device("CPU:0"):
        x, y, subject, element, weight = _to_tensors(features)
        plan = tf.constant(int(fingerprint), tf.int64)
        drawn_by_seed = tf.constant(bool(seeded))

    def draws() -> Iterator[np.ndarray]:
        this_pass = new_pass()
        step = 0
        for rows in blocks(itertools.islice(indices_factory(), steps)):
            yield pack([pad_rows(drawn, pad_to) for drawn in rows], this_pass, step)
            step += len(rows)

    @tf.autograph.experimental.do_not_convert
    def gather(packed: tf.Tensor) -> tuple[Any, Any, dict[str, tf.Tensor]]:
        this_pass, step, length = tf.unstack(packed[:3], num=3)
        padded = packed[3 : 3 + length]
        mask = padded >= 0
        rows = tf.maximum(padded, 0)

        def take(leaf: tf.Tensor) -> tf.Tensor:
            return tf.gather(leaf, rows)

        none = tf.constant(-1, tf.int64)
        of_row = {} if element is None else {"element": tf.where(mask, take(element), none)}
        extras = {
            "subject": tf.where(mask, take(subject), none),
            **of_row,
            "weight": tf.cast(mask, tf.float32) if weight is None else _zero(take(weight), mask),
            "mask": mask,
            "seeded": drawn_by_seed,
            "plan": plan,
            "pass": this_pass,
            "step": step,
        }
        return _map_leaves(take, x), _map_leaves(take, y), extras

    # one array a block: every further one would cost a turn of its own
    signature = tf.TensorSpec([None, None], tf.int64)
    dataset = tf.data.Dataset.from_generator(draws, output_signature=signature).prefetch(1)
    dataset = dataset.unbatch().map(gather).prefetch(_BATCHES_AHEAD)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    # tf.data's graph rewrites have nothing to improve here and would copy the features once more
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    # nothing here is tuned, and tf.data's tuner may sleep on for seconds when an iterator is deleted
    options.autotune.enabled = False
    dataset = dataset.with_options(options)
    setattr(dataset, MARK, int(fingerprint))
    return dataset


# Passes are numbered in the order in which they begin. A process has 2^32 numbers, from a random one on,
# so that those of another process, which say nothing about an order, are told apart.
_FIRST_PASS = int.from_bytes(os.urandom(4), "big") >> 1 << 32
LAST_PASS = _FIRST_PASS + 2**32 - 1
_passes = itertools.count(_FIRST_PASS)
_numbering = threading.Lock()


def new_pass() -> int:
    """The number of a pass that begins now: above those of all passes that began before in this process,
    and at most `LAST_PASS`."""
    with _numbering:
        return next(_passes)


def blocks(draws: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Runs of consecutive draws that `pack` makes one array of bounded size.

    The first run is one draw, so that the first step waits for nothing more; then they double.
    A draw that is larger than the bound is a run of its own.
    """
    block: list[np.ndarray] = []
    longest, most = 0, 1
    for rows in draws:
        longest = max(longest, len(rows))
        if block and (len(block) + 1) * longest > _BLOCK_NUMBERS:
            yield block
            block, longest = [], len(rows)
        block.append(rows)
        if len(block) == most:
            yield block
            block, longest, most = [], 0, min(2 * most, _BLOCK_STEPS)
    if block:
        yield block


def pack(draws: Sequence[np.ndarray], number: int, first: int) -> np.ndarray:
    """One int64 row a draw: the number of the pass, of the step, the draw's length, the draw, zeros."""
    packed = np.zeros((len(draws), 3 + max(map(len, draws))), np.int64)
    packed[:, 0] = number
    packed[:, 1] = np.arange(first, first + len(draws))
    for line, drawn in zip(packed, draws, strict=True):
        line[2] = drawn.size
        line[3 : 3 + drawn.size] = drawn
    return packed


def pad_rows(rows: np.ndarray, multiple: int) -> np.ndarray:
    """Rows followed by -1, as many as the smallest positive multiple of `multiple` that holds them.

    Raises:
      ValueError: rows that are negative, which would pass for padding.
    """
    rows = np.asarray(rows, np.int64)
    if rows.size and rows.min() < 0:
        raise ValueError(f"row {rows.min()} was drawn: rows are numbered from 0")
    padded = np.full(max(-(-rows.size // multiple), 1) * multiple, -1, np.int64)
    padded[: rows.size] = rows
    return padded


def _zero(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    return tf.where(mask, values, tf.zeros_like(values))


def _to_tensors(features: Mapping[str, Any]) -> tuple[Any, Any, tf.Tensor, Any, Any]:
    """x, y, subject, element, weight: every leaf a tensor of n rows, as many as subjects' codes."""
    unknown = sorted(set(features) - {"x", "y", "subject", "element", "weight"})
    missing = sorted({"x", "subject"} - set(features))
    if unknown or missing:
        raise ValueError(
            f"features has the unknown keys {unknown} and lacks {missing}: "
            "pass x, y, subject, element and weight"
        )
    subject = _leaf(features["subject"], "subject")
    lengths = {"subject": _length(subject, "subject")}
    if lengths["subject"] == 0 or subject.shape.rank != 1:
        raise ValueError(f"subject has shape {subject.shape}: pass one code a row")
    if not subject.dtype.is_integer:
        raise TypeError(f"subject has type {subject.dtype.name}: make codes with encode_ids")
    subject = tf.cast(subject, tf.int64)
    if tf.reduce_min(subject) < 0:  # would pass for padding
        raise ValueError(f"subject has the code {tf.reduce_min(subject)}: codes start at 0")
    x = _convert(features["x"], "x", lengths)
    y = features.get("y")
    y = None if y is None else _convert(y, "y", lengths)
    optional = {}
    for name in ("element", "weight"):
        optional[name] = features.get(name)
        if optional[name] is not None:
            optional[name] = _leaf(optional[name], name)
            lengths[name] = _length(optional[name], name)
    element, weight = optional["element"], optional["weight"]
    unequal = {name: n for name, n in lengths.items() if n != lengths["subject"]}
    if unequal:
        listed = ", ".join(f"{name} has {n}" for name, n in unequal.items())
        raise ValueError(
            f"unequal numbers of rows: {listed}, and there are {lengths['subject']} subject ids. "
            "Pass one row of each a subject id"
        )
    if element is not None:
        element = tf.cast(element, tf.int64)
    return x, y, subject, element, None if weight is None else _checked_weights(weight)


def _checked_weights(weight: tf.Tensor) -> tf.Tensor:
    if not (weight.dtype.is_floating or weight.dtype.is_integer or weight.dtype.is_bool):
        raise TypeError(f"weight has type {weight.dtype.name}: pass numbers")
    weight = tf.cast(weight, tf.float32)
    if weight.shape.rank != 1:
        raise ValueError(f"weight has shape {weight.shape}: pass one number a row")
    values = weight.numpy()
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"the weight of row {row} is {values[row]}: weights are finite, >= 0")
    return weight


def _convert(node: Any, path: str, lengths: dict[str, int]) -> Any:
    """The nest with tensors for leaves; notes the number of rows of every leaf by its path."""
    if isinstance(node, Mapping):
        return {key: _convert(value, f"{path}[{key!r}]", lengths) for key, value in node.items()}
    if isinstance(node, (tuple, list)):
        if any(np.isscalar(value) or value is None for value in node):
            raise TypeError(
                f"{path} is a {type(node).__name__} of plain values: make it an array "
                "(np.asarray); a list or tuple stands for several inputs"
            )
        tensors = [_convert(value, f"{path}[{at}]", lengths) for at, value in enumerate(node)]
        return type(node)(*tensors) if hasattr(node, "_fields") else tuple(tensors)
    tensor = _leaf(node, path)
    lengths[path] = _length(tensor, path)
    return tensor


def _leaf(value: Any, path: str) -> tf.Tensor:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
        raise TypeError(
            f"{path} is a {type(value).__name__}: rows must have one shape; convert it with "
            ".to_tensor() or tf.sparse.to_dense"
        )
    if isinstance(value, tf.data.Dataset) or hasattr(value, "tocsr"):
        raise TypeError(f"{path} is a {type(value).__name__}: pass arrays of n rows")
    if value is None:
        raise TypeError(f"{path} is None: pass an array of n rows")
    if not tf.is_tensor(value):
        columns = getattr(value, "dtypes", None)
        value = np.asarray(value)
        if value.dtype == object and value.ndim == 2 and hasattr(columns, "items"):
            wrong = [
                f"{name} ({kind})" for name, kind in columns.items() if kind.kind not in "iufb"
            ]
            raise TypeError(
                f"{path} has columns that are not plain numbers: {', '.join(wrong) or 'mixed types'}. "
                "Encode them, e.g. with .astype('float32'), or pass a dict of one array a column."
            )
        if value.dtype == np.float64:
            value = value.astype(tf.keras.backend.floatx())
    try:
        # identity: a tensor that lives on an accelerator is copied to the host once, here
        return tf.identity(tf.convert_to_tensor(value))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{path} has a type that TensorFlow cannot hold: {error}") from error


def _length(tensor: tf.Tensor, path: str) -> int:
    if tensor.shape.rank == 0:
        raise TypeError(f"{path} is a single value: pass an array of n rows")
    return int(tensor.shape[0])


def _map_leaves(function: Callable[[tf.Tensor], tf.Tensor], nest: Any) -> Any:
    return None if nest is None else tf.nest.map_structure(function, nest)
