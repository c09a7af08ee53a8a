# SPDX-License-Identifier: Apache-2.0
"""What leaves a silo's table for its own computation: rows, and a number for each person.

Knows the silos' names and the model's input; TensorFlow and NumPy alone. It runs where the silo's data
are: raw ids go no further.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_subjectdp.federated.ids import id_array
from tf_subjectdp.sampling import encode_ids

_KEYS = ("x", "y", "subject_id")
# All rows of a silo are one batch.
_ALL_ROWS = 2**31 - 1


def present_silos(given: Any, names: Sequence[str]) -> dict[int, Any]:
    """The silos that showed up: their number -> their data.

    Args:
      given: a mapping from a silo's name to its data, of those silos that take part; or a sequence with
        one entry a silo, in the order of `names`, None for one that is absent.
      names: the plan's silos.

    Raises:
      ValueError, TypeError: unknown names, or a sequence of another length.
    """
    if isinstance(given, Mapping):
        number = {name: i for i, name in enumerate(names)}
        unknown = [key for key in given if str(key) not in number]
        if unknown:
            raise ValueError(f"there are no silos {unknown}; the plan has {list(names)}.")
        found = {number[str(key)]: data for key, data in given.items()}
    elif isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        if len(given) != len(names):
            raise ValueError(
                f"data of {len(given)} silos were passed, and the plan has {len(names)}: which are they? "
                "Pass a dict {name: dataset} of those that take part, or one entry a silo, None for an "
                "absent one."
            )
        found = dict(enumerate(given))
    else:
        raise TypeError(
            f"silo_datasets is of type {type(given).__name__}; pass a list with one dataset a silo, or a "
            "dict {name: dataset}."
        )
    return {i: data for i, data in sorted(found.items()) if data is not None}


def silo_tensors(
    data: Any, input_spec: tuple[Any, Any], name: str, id_key: Callable | None = None
) -> dict[str, Any]:
    """All rows of a silo.

    Args:
      data: an unbatched `tf.data.Dataset` of dicts with "x", "y" and "subject_id"; or such a dict of
        arrays, one row an item.
      input_spec: (x, y) of the model, batched.
      name: of the silo, for errors.
      id_key: maps an array of ids to the ids that count, so that 7 and "7", or other spellings of one
        person, are one; None takes them as they are.

    Returns:
      "x", "y": nests of tensors [n, ...] as in `input_spec`; "subject": int64 [n], people numbered from
      0 in the order of their first rows.

    Raises:
      ValueError, TypeError: other keys, batched rows, shapes or ids that do not fit.
    """
    if isinstance(data, tf.data.Dataset):
        x, y, ids = _read(data, input_spec, name)
    elif isinstance(data, Mapping):
        _check_keys(data, name)
        x, y, ids = (data[key] for key in _KEYS)
    else:
        raise TypeError(
            f"the data of silo {name!r} are of type {type(data).__name__}: pass an unbatched "
            "tf.data.Dataset of OrderedDict(x=, y=, subject_id=), or a dict of arrays."
        )
    ids = id_array(ids)
    rows = ids.shape[0] if ids.ndim else -1
    parts = [_fitted(part, spec, rows, name) for part, spec in zip((x, y), input_spec, strict=True)]
    codes = np.zeros(0, np.int64)
    if rows:
        try:
            codes, _ = encode_ids(ids if id_key is None else id_array(id_key(ids)))
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"silo {name!r}: {error}") from None
    if codes.size != rows:
        raise ValueError(f"silo {name!r}: id_key returned {codes.size} ids for {rows} rows.")
    return {"x": parts[0], "y": parts[1], "subject": tf.constant(codes, tf.int64)}


def _check_keys(found: Mapping, name: str) -> None:
    if set(found) != set(_KEYS):
        raise ValueError(
            f"the rows of silo {name!r} have the keys {sorted(found)}; they must have x, y and "
            "subject_id (the person of the row)."
        )


def _read(dataset: tf.data.Dataset, input_spec: Any, name: str) -> tuple[Any, Any, np.ndarray]:
    spec = dataset.element_spec
    if not isinstance(spec, Mapping):
        raise TypeError(
            f"the dataset of silo {name!r} has elements {spec}; they must be OrderedDict(x=, y=, "
            "subject_id=)."
        )
    _check_keys(spec, name)
    if spec["subject_id"].shape.rank != 0:
        raise ValueError(
            f"the dataset of silo {name!r} has subject_id of shape {spec['subject_id'].shape}: it is "
            "batched. Pass it unbatched (dataset.unbatch()): the plan says who is in a step."
        )
    if type(dataset).__name__ == "_TensorSliceDataset" and hasattr(dataset, "_tensors"):
        # Straight from memory: to go through its rows one by one takes longer than a small step.
        found = tf.nest.pack_sequence_as(spec, list(dataset._tensors))
        return found["x"], found["y"], np.asarray(found["subject_id"])
    for batch in dataset.batch(_ALL_ROWS).take(1):
        return batch["x"], batch["y"], batch["subject_id"].numpy()
    x, y = tf.nest.map_structure(
        lambda s: tf.zeros([0, *[size or 1 for size in s.shape[1:]]], s.dtype), input_spec
    )
    return x, y, np.zeros(0, np.int64)


def _fitted(part: Any, spec: Any, rows: int, name: str) -> Any:
    """The nest as tensors of the types and shapes of the model's input."""
    try:
        tf.nest.assert_same_structure(part, spec, check_types=False)
    except (TypeError, ValueError):
        raise ValueError(
            f"the rows of silo {name!r} are structured as {_structure(part)}, the model's input as "
            f"{_structure(spec)}."
        ) from None
    leaves = []
    for leaf, wanted in zip(tf.nest.flatten(part), tf.nest.flatten(spec), strict=True):
        tensor = tf.convert_to_tensor(leaf)
        if tensor.dtype != wanted.dtype:
            if tensor.dtype.is_floating != wanted.dtype.is_floating or tensor.dtype == tf.string:
                raise TypeError(
                    f"silo {name!r} has {tensor.dtype.name} where the model takes {wanted.dtype.name}; "
                    "cast it in the dataset."
                )
            tensor = tf.cast(tensor, wanted.dtype)
        if not wanted.shape.is_compatible_with(tensor.shape) or tensor.shape[0] != rows:
            raise ValueError(
                f"silo {name!r} has rows of shape {tuple(tensor.shape)} with {rows} subject ids; the "
                f"model takes {tuple(wanted.shape)}."
            )
        leaves.append(tensor)
    return tf.nest.pack_sequence_as(spec, leaves)


def _structure(nest: Any) -> str:
    return str(tf.nest.map_structure(lambda _: ".", nest))


def tagged(silo: int, tensors: Mapping[str, Any]) -> collections.OrderedDict:
    """The argument of the silo's computation."""
    return collections.OrderedDict(
        silo=np.int32(silo), x=tensors["x"], y=tensors["y"], subject=tensors["subject"]
    )
