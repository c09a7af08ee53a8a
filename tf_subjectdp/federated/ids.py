# SPDX-License-Identifier: Apache-2.0
"""One person, one id in all silos: ids that mean the same everywhere, and counts over them.

Knows ids alone, no rows and no model; standard library, NumPy and `tf_subjectdp.sampling`. A person
who goes by two ids is counted, and protected, as two people, so ids that might be one person's are
never quietly told apart: they are refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tf_subjectdp.sampling import SiloStats, encode_ids
from tf_subjectdp.sampling.pairs import ElementStats, encode_typed_elements

# blake2b takes no longer key; a shorter one could be guessed.
_KEY_BYTES = (16, 64)
_DIGEST_BYTES = 16
_MAKE_A_KEY = "make one with secrets.token_bytes(32), once, and give the same to all silos"


def hashed_ids(
    ids: Any, key: bytes, *, id_key: Callable[[np.ndarray], Any] | None = None
) -> np.ndarray:
    """The ids under a keyed hash, so that silos can count people together without raw ids travelling.

    Silos that share the key get the same text for the same person: BLAKE2b with the key, 16 bytes
    long, personalised for this package, of the id as text with its type before it. So 7 and "7"
    differ, unless `id_key=as_text` makes them one; bytes are as the string they encode in UTF-8.

    This is pseudonymisation, not anonymity: a hashed id is still one person's, still links that
    person's rows, and remains personal data. The silos may have the key. Whoever receives the
    hashed ids (who runs the server, who counts, who publishes) must not: there are few patient
    numbers, postcodes or names, and whoever has the key can hash all of them and look each person
    up. Lose the key and the ids cannot be matched again; leak it and they are as good as raw.

    Args:
      ids: one id a row, shape [rows]; integers, strings or bytes, see `encode_ids`.
      key: 16 to 64 secret bytes, the same in all silos: `secrets.token_bytes(32)`.
      id_key: maps the array of ids to the ids that count, shape [rows], before they are hashed;
        None takes them as they are.

    Returns:
      `U32` array [rows]: 32 hexadecimal digits a row, equal exactly where the ids are equal (but for
      a chance below rows**2 / 2**129).

    Raises:
      ValueError: a key that is too short or too long, missing ids, or an `id_key` that returns
        another number of ids.
      TypeError: a key that is not bytes, ids of a type that `encode_ids` refuses, or an `id_key` that
        is no function.
    """
    key = _checked_key(key)
    rows = _mapped(id_array(ids), id_key)
    return _hashed(rows, key)


def as_text(ids: Any) -> np.ndarray:
    """The ids as text: the `id_key` under which 7, "7" and b"7" are one person.

    Nothing else is made one: "07" and "7", "Ann" and "ann" remain two people.

    Args:
      ids: one id a row, shape [rows]; integers, strings or UTF-8 bytes, also mixed.

    Returns:
      Object array [rows] of `str`.

    Raises:
      TypeError: floats, even whole ones (7.0 would become "7.0", another person than "7", and a
        column becomes floats when an id is missing), booleans or other objects.
      ValueError: more than one dimension, masked ids, or bytes that are not UTF-8.
    """
    array = id_array(ids)
    if array.ndim != 1:
        raise ValueError(f"subject ids have shape {array.shape}, not [rows]: pass one id a row")
    if array.dtype.kind == "f":
        raise TypeError(
            f"subject ids are {array.dtype} numbers: 7.0 would become '7.0', another person than '7', "
            "and NaN is nobody. Drop rows without an id, then pass ids.astype('int64')"
        )
    masked = np.flatnonzero(np.ma.getmaskarray(array)) if np.ma.isMaskedArray(array) else ()
    if len(masked):
        raise ValueError(f"row {masked[0]} has no subject id (masked): drop such rows first")
    if array.dtype.kind not in "iuUSOT":
        raise TypeError(
            f"subject ids have type {array.dtype}: pass integers, strings or bytes "
            "(ids.astype(str) makes texts of dates)"
        )
    texts = np.empty(array.size, dtype=object)
    for row, value in enumerate(array.tolist()):
        texts[row] = _text(value, row)
    return texts


def silo_stats(
    ids_by_silo: Mapping[Any, Any] | Sequence[Any],
    *,
    id_key: Callable[[np.ndarray], Any] | None = None,
    key: bytes | None = None,
    elements_by_silo: Mapping[Any, Any] | None = None,
) -> SiloStats:
    """Counts people over silos whose ids are in separate columns, or in the data of each silo.

    Where ids must not leave a silo, every silo calls `hashed_ids` with the key they share, and
    whoever has the hashed columns, but not the key, calls this without one.

    Args:
      ids_by_silo: name of a silo -> its ids, one a row, shape [rows of the silo]; names are strings
        or integers. A person has equal ids in all silos. Or what `process.next` takes: a dict or a list
        (whose silos are called 0, 1, ...) of datasets, or of dicts of arrays, with "subject_id" and,
        where it is there, "element_id".
      id_key: maps an array of ids to the ids that count, for instance `as_text`; None takes them as
        they are. Pass the same to `build_process`.
      key: counts `hashed_ids(ids, key)`. The numbers are the same; the ids count as strings, of which
        bytes are one kind.
      elements_by_silo: name of a silo -> the element of each of its rows, for `ElementDP`; None if there
        are none, or in the data.

    Returns:
      `SiloStats`, the silos in the order of the mapping.

    Raises:
      ValueError: no silos, a silo without rows, missing ids; all by name of the silo. A key as in
        `hashed_ids`.
      TypeError: silos whose ids, after `id_key`, are of unlike types (integers here, strings there):
        one person would be counted as two. A key does not help: it hashes 7 and "7" apart. Likewise
        elements, to which `id_key` does not apply.
    """
    ids_by_silo, of_tables, decoded = _columns_of(ids_by_silo)
    elements_by_silo = of_tables if elements_by_silo is None else elements_by_silo
    key = None if key is None else _checked_key(key)
    columns, kinds = [], {}
    for name, ids in ids_by_silo.items():
        array = id_array(ids)
        if array.ndim == 1 and not array.size:
            raise ValueError(
                f"silo {name!r} has no rows, and a silo without items takes no part: leave it out, "
                "{name: ids for name, ids in ids_by_silo.items() if len(ids)}"
            )
        try:
            rows = _mapped(array, id_key)
            encode_ids(rows)
            kind = _kind(rows)
            if kind == "bytes" and name in decoded:
                rows, kind = _decoded(rows), "string"
            columns.append(rows if key is None else _hashed(rows, key))
        except (TypeError, ValueError) as error:
            # a subclass, such as UnicodeDecodeError, may not be made from a text alone
            kind_of_error = TypeError if isinstance(error, TypeError) else ValueError
            raise kind_of_error(f"silo {name!r}: {error}") from error
        # under the hash bytes and strings are one
        kinds[name] = "string" if key is not None and kind == "bytes" else kind
    check_alike_ids(kinds)
    silos = np.empty(len(kinds), dtype=object)
    silos[:] = list(kinds)
    stats = SiloStats.from_ids(
        _joined(columns), np.repeat(silos, [column.size for column in columns])
    )
    if elements_by_silo is None:
        return stats
    found, element_dtype = _elements(dict(zip(kinds, columns, strict=True)), elements_by_silo)
    return dataclasses.replace(
        stats,
        elements=tuple(found[name] for name in stats.names),
        element_dtype=element_dtype,
    )


def _columns_of(
    given: Any,
) -> tuple[dict[Any, Any], dict[Any, Any] | None, set[Any]]:
    """The ids of each silo; the elements, where the silos' data have them; whose ids TensorFlow holds."""
    if isinstance(given, Sequence) and given and all(map(_is_table, given)):
        given = dict(enumerate(given))
    if not isinstance(given, Mapping) or "subject_id" in given:
        raise TypeError(
            f"ids_by_silo is of type {type(given).__name__}: pass a dict {{silo: ids}}, or what "
            "process.next takes; for one column of ids and one of silos there is SiloStats.from_ids"
        )
    if not given:
        raise ValueError("ids_by_silo has no silos: pass a dict {silo: ids} of at least one")
    ids, elements, decoded = {}, {}, set()
    for name, data in given.items():
        ids[name] = data
        if not _is_table(data):
            continue
        if not isinstance(data, Mapping):
            from tf_subjectdp.federated.silo_data import id_columns

            data = id_columns(data, str(name))
            decoded.add(name)
        ids[name] = data["subject_id"]
        if "element_id" in data:
            column = id_array(data["element_id"])
            bytes_of_strings = name in decoded and column.size and _kind(column) == "bytes"
            elements[name] = _decoded(column) if bytes_of_strings else column
    return ids, elements if set(elements) == set(ids) else None, decoded


def _is_table(data: Any) -> bool:
    return hasattr(data, "element_spec") or (isinstance(data, Mapping) and "subject_id" in data)


def _decoded(rows: np.ndarray) -> np.ndarray:
    """Strings again, of which TensorFlow makes bytes; undecodable bytes are kept apart as they are."""
    texts = np.empty(len(rows), dtype=object)
    texts[:] = [value.decode("utf-8", "surrogateescape") for value in np.asarray(rows).tolist()]
    return texts


def _elements(
    people: Mapping[Any, np.ndarray], elements_by_silo: Mapping[Any, Any]
) -> tuple[dict[Any, ElementStats], str]:
    """The elements of each silo's subjects; and what their ids are, alike in all silos."""
    if not isinstance(elements_by_silo, Mapping) or set(elements_by_silo) != set(people):
        raise ValueError(
            f"elements_by_silo must be a dict of the same silos as ids_by_silo, {list(people)}."
        )
    found, kinds, dtype = {}, {}, ""
    for name, ids in people.items():
        column = id_array(elements_by_silo[name])
        try:
            elements, dtype = encode_typed_elements(column, ids.size)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"silo {name!r}: {error}") from None
        found[name] = ElementStats.from_codes(encode_ids(ids)[0], elements)
        kinds[name] = _kind(column)
    check_alike_elements(kinds)
    return found, dtype


def id_array(ids: Any) -> np.ndarray:
    """The ids as an array, with none of them changed.

    NumPy would make two strings of the list ["a", 1], one of [b"a", b"a\\0"], and none of a masked
    array's gaps.
    """
    if isinstance(ids, (list, tuple)) and not (ids and np.ndim(ids[0])):
        return np.fromiter(ids, dtype=object, count=len(ids))
    return np.asanyarray(ids)


def _checked_key(key: Any) -> bytes:
    # the key itself must never be in a message, which ends up in logs
    if not isinstance(key, (bytes, bytearray)):
        raise TypeError(f"key is a {type(key).__name__}: pass secret bytes; {_MAKE_A_KEY}")
    least, most = _KEY_BYTES
    if not least <= len(key) <= most:
        raise ValueError(
            f"key is {len(key)} bytes long: it must have {least} to {most}; {_MAKE_A_KEY}"
        )
    return bytes(key)


def _mapped(array: np.ndarray, id_key: Callable | None) -> np.ndarray:
    if id_key is None:
        return array
    if not callable(id_key):
        raise TypeError(
            f"id_key is {id_key!r} ({type(id_key).__name__}): pass a function from an array of ids to "
            "an array of ids, such as tf_subjectdp.federated.as_text"
        )
    mapped = id_array(id_key(array))
    if mapped.shape[:1] != array.shape[:1]:
        raise ValueError(
            f"id_key returned ids of shape {mapped.shape} for {array.shape[0]} rows: it must return "
            "one a row"
        )
    return mapped


def _hashed(rows: np.ndarray, key: bytes) -> np.ndarray:
    codes, n_ids = encode_ids(rows)
    first = np.empty(n_ids, np.int64)
    first[codes[::-1]] = np.arange(codes.size)[::-1]
    start = hashlib.blake2b(key=key, digest_size=_DIGEST_BYTES, person=b"tf_subjectdp")
    digests = np.empty(n_ids, dtype=f"U{2 * _DIGEST_BYTES}")
    for code, value in enumerate(np.asarray(rows)[first].tolist()):
        one = start.copy()  # to start anew would hash the key once more for every id
        one.update(_tagged(value))
        digests[code] = one.hexdigest()
    return digests[codes]


def _tagged(value: Any) -> bytes:
    if isinstance(value, str):
        # strings read from files of unknown encoding may hold lone surrogates
        return b"s:" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return b"s:" + value
    return b"i:%d" % int(value)


def _text(value: Any, row: int) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(
                f"the subject id of row {row} is {value!r}, which is not UTF-8: decode the bytes with "
                "the encoding that wrote them"
            ) from None
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))
    raise TypeError(
        f"the subject id of row {row} is {value!r} ({type(value).__name__}): pass integers, strings "
        "or bytes, and drop rows without a person"
    )


def _kind(rows: np.ndarray) -> str:
    """What ids that `encode_ids` took are."""
    value = np.asarray(rows)[:1].tolist()[0]
    return (
        "string" if isinstance(value, str) else "bytes" if isinstance(value, bytes) else "integer"
    )


def check_alike_ids(kinds: Mapping[Any, str]) -> None:
    """TypeError unless the ids of all silos, by name, are of one kind."""
    unlike = _unlike(kinds)
    if unlike:
        one, other = unlike
        raise TypeError(
            f"silo {one!r} has {kinds[one]} ids and silo {other!r} has {kinds[other]} ids: a person in "
            "both would be counted, and protected, as two. Pass "
            "id_key=tf_subjectdp.federated.as_text if 7 and '7' are one person, or convert the "
            "ids of one silo"
        )


def check_alike_elements(kinds: Mapping[Any, str]) -> None:
    """TypeError unless the elements of all silos, by name, are of one kind."""
    unlike = _unlike(kinds)
    if unlike:
        one, other = unlike
        raise TypeError(
            f"silo {one!r} has {kinds[one]} elements and silo {other!r} has {kinds[other]} elements: "
            "what is meant to be one element of a person would be two. Convert those of every silo with "
            "tf_subjectdp.federated.as_text(element_id) if 7 and '7' are one, or those of one silo"
        )


def _unlike(kinds: Mapping[Any, str]) -> tuple[Any, Any] | None:
    """The first silo, and the first one of another kind; None if all are alike."""
    if not kinds:
        return None
    (one, kind), *others = kinds.items()
    return next(((one, other) for other, found in others if found != kind), None)


def _joined(columns: list[np.ndarray]) -> np.ndarray:
    common = np.result_type(*(column.dtype for column in columns))
    # int64 beside uint64 would become floats, and the widest string would pad all others
    if common.kind not in "iu":
        columns = [column.astype(object) for column in columns]
    return np.concatenate(columns)
