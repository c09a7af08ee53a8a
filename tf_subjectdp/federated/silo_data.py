# SPDX-License-Identifier: Apache-2.0
"""What leaves a silo's table for its own computation: rows, and numbers for whose they are.

Knows the silos' names and the model's input; TensorFlow and NumPy alone. It runs where the silo's data
are: raw ids go no further.
"""

import collections
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_subjectdp.federated.ids import id_array
from tf_subjectdp.sampling.grouping import encode_typed_ids
from tf_subjectdp.sampling.pairs import encode_typed_elements, pair_codes

_KEYS = ("x", "y", "subject_id")
# All rows of a silo are one batch.
_ALL_ROWS = 2**31 - 1
_ID_ROWS = 2**16
# What TFF sends to a worker in one message ends at 2 GB.
_MOST_BYTES = 1.5 * 2**30

# Rate, divisor, weights and noise are the plan's; the figures that the promise needs are checked, or
# enforced by the silo.
_AS_PLANNED = (
    "the plan's rate and divisor stay as they are: its promise holds, and the utility changes."
)

_log = logging.getLogger("tf_subjectdp")


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
        if len({str(key) for key in given}) < len(given):
            raise ValueError(f"two entries are of one silo: {list(given)}; pass one a silo.")
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
    data: Any,
    input_spec: tuple[Any, Any],
    name: str,
    id_key: Callable | None = None,
    *,
    elements: bool = False,
) -> dict[str, Any]:
    """All rows of a silo.

    Args:
      data: an unbatched `tf.data.Dataset` of dicts with "x", "y", "subject_id" and, where elements are
        needed, "element_id"; or such a dict of arrays, one row an item.
      input_spec: (x, y) of the model, batched.
      name: of the silo, for errors.
      id_key: maps an array of ids to the ids that count, so that 7 and "7", or other spellings of one
        person, are one; None takes them as they are.
      elements: whether the plan's algorithm needs the element of each row.

    Returns:
      "x", "y": nests of tensors [n, ...] as in `input_spec`; "subject": int64 [n], people numbered from
      0 in the order of their first rows; with elements "element": int64 [n], the (subject, element) pairs
      numbered from 0. And "subject_dtype", "element_dtype": what their ids were, "int64" or "string",
      None without rows: for checks, they do not leave the silo.

    Raises:
      ValueError, TypeError: other keys, batched rows, shapes or ids that do not fit.
    """
    keys = (*_KEYS, "element_id") if elements else _KEYS
    if isinstance(data, tf.data.Dataset):
        data = _read(data, input_spec, name, keys)
    elif not isinstance(data, Mapping):
        raise TypeError(
            f"the data of silo {name!r} are of type {type(data).__name__}: pass an unbatched "
            f"tf.data.Dataset of OrderedDict({_named(keys)}), or a dict of arrays."
        )
    _check_keys(data, name, keys)
    x, y, ids = (data[key] for key in _KEYS)
    x, y = (np.asarray(part) if isinstance(part, list) else part for part in (x, y))
    ids = id_array(ids)
    rows = ids.shape[0] if ids.ndim else -1
    _check_size((x, y), name)
    parts = [_fitted(part, spec, rows, name) for part, spec in zip((x, y), input_spec, strict=True)]
    codes, dtype = np.zeros(0, np.int64), None
    if rows:
        try:
            codes, _, dtype = encode_typed_ids(ids if id_key is None else id_array(id_key(ids)))
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"silo {name!r}: {error}") from None
    if codes.size != rows:
        raise ValueError(f"silo {name!r}: id_key returned {codes.size} ids for {rows} rows.")
    found = {"x": parts[0], "y": parts[1], "subject": tf.constant(codes, tf.int64)}
    found["subject_dtype"] = dtype
    if elements:
        pairs, found["element_dtype"] = _pairs(codes, data["element_id"], name)
        found["element"] = tf.constant(pairs, tf.int64)
    return found


def _pairs(codes: np.ndarray, element_id: Any, name: str) -> tuple[np.ndarray, str | None]:
    """The (subject, element) pair of each row, numbered from 0; and what the elements' ids are."""
    if not codes.size and not len(id_array(element_id)):
        return codes, None
    try:
        elements, dtype = encode_typed_elements(id_array(element_id), codes.size)
        return pair_codes(codes, elements)[0], dtype
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"silo {name!r}: {error}") from None


def check_rows(tensors: Mapping[str, Any], plan: Any, silo: int) -> None:
    """Holds a silo's rows against what the plan was made for.

    Args:
      tensors: of `silo_tensors`.
      plan: the `FederatedPlan`.
      silo: number of the silo.

    Raises:
      ValueError: batches of a fixed size with another number of items; more items than an average
        counts on; a subject or an element with more items than the plan, which has no bound that the
        silo could enforce; or a table that is too large to be sent.
      TypeError: elements of another type than those that the plan's stats were made of.
    """
    facts = plan.facts[silo]
    subject = np.asarray(tensors["subject"])
    if plan.needs_elements:
        _check_kind(tensors.get("element_dtype"), plan, silo)
        _check_elements(subject, np.asarray(tensors["element"]), plan, silo)
    items = int(np.minimum(np.bincount(subject), facts.max_items).sum()) if subject.size else 0
    if items == facts.n_items:
        return
    message = (
        f"silo {plan.names[silo]!r} has {items} items (at most {facts.max_items} a subject) and the plan "
        f"was made for {facts.n_items}"
    )
    if facts.scheme == "fixed_size":
        raise ValueError(
            f"{message}: batches of a fixed size depend on that number; plan with its stats."
        )
    if plan.view == "average" and items > facts.n_items:
        raise ValueError(f"{message}: a secure sum could cut off its noise; plan with its stats.")
    # Without the numbers: a log is kept, and they are exact.
    _warn_once(
        f"silo {plan.names[silo]!r} has another number of items than the plan was made for; "
        f"{_AS_PLANNED} Are the silos in the order of the plan's names, {list(plan.names)}?",
        (items, facts.n_items),
    )


@functools.lru_cache(maxsize=1024)
def _warn_once(message: str, numbers: tuple[int, int]) -> None:
    """Logs what is said of these numbers, without them."""
    _log.warning(message)


def _check_kind(dtype: str | None, plan: Any, silo: int) -> None:
    """Elements that are integers here and strings elsewhere are no elements of one map."""
    counted = None if plan.stats is None else plan.stats.element_dtype
    if dtype is None or counted is None or dtype == counted:
        return
    kinds = {"int64": "integer", "string": "string"}
    raise TypeError(
        f"silo {plan.names[silo]!r} has {kinds[dtype]} elements and the plan's stats were made of "
        f"{kinds[counted]} elements: what is meant to be one element would be two. Make them alike, e.g. "
        "tf_subjectdp.federated.as_text(element_id) for the stats and in every silo."
    )


def _check_elements(subject: np.ndarray, pair: np.ndarray, plan: Any, silo: int) -> None:
    """Of constants that were read from the data: to drop a subject's items above one would let one
    element displace the items of another."""
    facts, algorithm = plan.facts[silo], plan.algorithm
    largest = [int(np.bincount(group).max(initial=0)) for group in (subject, pair)]
    if plan.max_items_per_subject is None and largest[0] > facts.max_items:
        raise ValueError(
            f"silo {plan.names[silo]!r} has a subject with {largest[0]} items, above the plan's "
            f"k={facts.max_items}, and the guarantee would not cover them; plan with the stats of these "
            "data, or, for unit='subject', with max_items_per_subject=K."
        )
    most = facts.max_element_items
    if algorithm.max_items_per_element is None and most is not None and largest[1] > most:
        raise ValueError(
            f"silo {plan.names[silo]!r} has an element of a subject with {largest[1]} items, above the "
            f"plan's {most}, and the guarantee would not cover them; plan with the stats of these data, "
            f"or with {type(algorithm).__name__}(..., max_items_per_element=K)."
        )
    counted = None if plan.stats is None else plan.stats.elements
    found = int(pair.max(initial=-1)) + 1
    if counted is not None and found != counted[silo].n_elements:
        _warn_once(
            f"silo {plan.names[silo]!r} has another number of elements than the plan was made for; "
            f"{_AS_PLANNED}",
            (found, counted[silo].n_elements),
        )


def _named(keys: Sequence[str]) -> str:
    return ", ".join(f"{key}=" for key in keys)


def _check_keys(found: Mapping, name: str, keys: Sequence[str]) -> None:
    if set(found) == set(keys):
        return
    needed = "x, y and subject_id (the person of the row)"
    if "element_id" in keys:
        needed = "x, y, subject_id (the person of the row) and element_id (the element of the row)"
    elif "element_id" in found:
        needed += "; the plan's algorithm takes no elements, plan with ElementDP for them"
    raise ValueError(
        f"the rows of silo {name!r} have the keys {sorted(found)}; they must have {needed}."
    )


def id_columns(dataset: tf.data.Dataset, name: str) -> dict[str, np.ndarray]:
    """The "subject_id" and, where there is one, the "element_id" of each row, [n]."""
    spec = dataset.element_spec
    if not isinstance(spec, Mapping) or "subject_id" not in spec:
        raise TypeError(
            f"the dataset of silo {name!r} has elements {spec}; they must be dicts with subject_id, the "
            "person of the row."
        )
    keys = [key for key in ("subject_id", "element_id") if key in spec]
    _check_rows_one_by_one(dataset, name, keys)
    columns = dataset.map(lambda row: {key: row[key] for key in keys})
    # TensorFlow fuses `map` and `batch`, and then hangs over a batch of `_ALL_ROWS`.
    found = [{key: batch[key].numpy() for key in keys} for batch in columns.batch(_ID_ROWS)]
    return {key: np.concatenate([part[key] for part in found] or [[]]) for key in keys}


def _check_rows_one_by_one(dataset: tf.data.Dataset, name: str, keys: Sequence[str]) -> None:
    """ValueError for a dataset without an end, or one whose ids are batched."""
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            f"the dataset of silo {name!r} never ends; leave out repeat(): a silo's rows are read once a "
            "round, and the plan says how often they are drawn."
        )
    for key in keys:
        shape = dataset.element_spec[key].shape
        if shape.rank != 0:
            raise ValueError(
                f"the dataset of silo {name!r} has {key} of shape {shape}: it is batched. Pass it "
                "unbatched (dataset.unbatch()): the plan says who is in a step."
            )


def _read(
    dataset: tf.data.Dataset, input_spec: Any, name: str, keys: Sequence[str]
) -> dict[str, Any]:
    """All rows of a dataset, as a dict with these keys."""
    spec = dataset.element_spec
    if not isinstance(spec, Mapping):
        raise TypeError(
            f"the dataset of silo {name!r} has elements {spec}; they must be "
            f"OrderedDict({_named(keys)})."
        )
    _check_keys(spec, name, keys)
    _check_rows_one_by_one(dataset, name, keys[2:])
    if type(dataset).__name__ == "_TensorSliceDataset" and hasattr(dataset, "_tensors"):
        # Straight from memory: to go through its rows one by one takes longer than a small step.
        found = tf.nest.pack_sequence_as(spec, list(dataset._tensors))
        return {**found, **{key: np.asarray(found[key]) for key in keys[2:]}}
    for batch in dataset.batch(_ALL_ROWS).take(1):
        return {**batch, **{key: batch[key].numpy() for key in keys[2:]}}
    x, y = tf.nest.map_structure(
        lambda s: tf.zeros([0, *[size or 1 for size in s.shape[1:]]], s.dtype), input_spec
    )
    return {"x": x, "y": y, **{key: np.zeros(0, np.int64) for key in keys[2:]}}


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


def _check_size(parts: Any, name: str) -> None:
    size = sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(parts) if hasattr(leaf, "shape"))
    if size > _MOST_BYTES:
        raise ValueError(
            f"silo {name!r} has {size / 2**30:.1f} GiB of rows, which go to its computation in every "
            f"round; at most {_MOST_BYTES / 2**30:g} GiB can. Keep rows small (ids instead of one-hot "
            "columns, float16 or uint8 that the model casts), or bound them with max_items_per_subject."
        )


def _structure(nest: Any) -> str:
    return str(tf.nest.map_structure(lambda _: ".", nest))


def tagged(silo: int, tensors: Mapping[str, Any]) -> collections.OrderedDict:
    """The argument of the silo's computation."""
    keys = ("x", "y", "subject", *(("element",) if "element" in tensors else ()))
    return collections.OrderedDict(silo=np.int32(silo), **{key: tensors[key] for key in keys})
