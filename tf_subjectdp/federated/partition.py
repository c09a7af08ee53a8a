# SPDX-License-Identifier: Apache-2.0
"""Who holds which row in a simulated federation.

    silo = partition.power(patient_id, n_silos=16, alpha=4.0, seed=0)
    silos = partition.split(x, y, patient_id, silo, names=range(16))
    silos = {name: rows for name, rows in silos.items() if len(rows["subject_id"])}
    stats = silo_stats({name: rows["subject_id"] for name, rows in silos.items()})

The third line is needed where a silo may be left without rows, which few people, few rows or a large
alpha make likely: silos may be empty here, but `SiloStats`, and so a plan, refuses them. Or draw again
with another seed, or into fewer silos.

Knows ids and silo numbers, rows as arrays; NumPy and `tf_subjectdp.sampling` alone.
"""

from __future__ import annotations

import numbers
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_subjectdp.federated.ids import id_array
from tf_subjectdp.sampling import encode_ids, fresh_rng, rows_by_subject
from tf_subjectdp.sampling._checks import LARGEST, positive_int

# Orders of silos are drawn for as many subjects at once as fit into about 32 MB.
_MOST_CELLS = 2**22


def uniform(
    subject_ids: Any, n_silos: int, *, seed: np.random.Generator | int | None = None
) -> np.ndarray:
    """Every row goes to a silo of its own choice, all equally likely.

    A person's rows are spread over all silos, the worst case of horizontal composition (arXiv:2206.03617,
    the uniform distribution of its experiments).

    Args:
      subject_ids: one id a row, see `encode_ids`.
      n_silos: at least 1.
      seed: a whole number gives the same silos again; a `Generator` is drawn from; None is fresh.

    Returns:
      int64 array [n_rows]: the silo of each row, 0..n_silos-1. Silos may be empty.

    Raises:
      ValueError, TypeError: ids that are missing or of a wrong type, `n_silos` that is not a whole
        number of at least 1, or a seed that is not one of the above.
    """
    n_silos = positive_int("n_silos", n_silos)
    rng = _generator(seed)
    codes, _ = encode_ids(subject_ids)
    return rng.integers(n_silos, size=codes.size, dtype=np.int64)


def power(
    subject_ids: Any,
    n_silos: int,
    alpha: float,
    *,
    seed: np.random.Generator | int | None = None,
) -> np.ndarray:
    """Every person's rows crowd into a few silos of their own, the more so the larger alpha.

    The power distribution of the experiments of Marathe, Kanani, Peterson and Steele
    (arXiv:2206.03617) has the density P(x; alpha) = alpha x**(alpha - 1) on 0 <= x <= 1. The paper
    leaves open how x becomes a silo of one person; here it is done so:

    1. For every row an x is drawn from P(.; alpha), as u**(1 / alpha) with u uniform in [0, 1), in
       the order of the rows, independently of all others.
    2. [0, 1] is cut into `n_silos` equal bins; x falls into bin j = floor(n_silos x), x = 1 into the
       last. So bin j has the probability ((j + 1) / n_silos)**alpha - (j / n_silos)**alpha.
    3. For every subject an order (permutation) of the silos is drawn, all equally likely and
       independent of all others, subjects in the order in which they first appear. A row in bin j
       goes to the j-th silo of its subject's order.

    Bins are the same for all, orders are not: no silo is larger than another in expectation. With
    alpha = 1 the rows are as in `uniform` (by law, not draw for draw). With alpha = 16 and 16 silos,
    64 % of a person's rows are expected in one silo and 99 % in four.

    Args:
      subject_ids: one id a row, see `encode_ids`.
      n_silos: at least 1.
      alpha: a number from 1 to 2**53; the papers take 1 to 16.
      seed: a whole number gives the same silos again; a `Generator` is drawn from; None is fresh.

    Returns:
      int64 array [n_rows]: the silo of each row, 0..n_silos-1. Silos may be empty.

    Raises:
      ValueError, TypeError: as `uniform`, and an alpha that is not a number in that range.
    """
    n_silos = positive_int("n_silos", n_silos)
    alpha = _checked_alpha(alpha)
    rng = _generator(seed)
    codes, n_subjects = encode_ids(subject_ids)
    x = rng.random(codes.size) ** (1.0 / alpha)
    # a u just below 1 has a root that rounds to 1
    bins = np.minimum((x * n_silos).astype(np.int64), n_silos - 1)
    order, starts = rows_by_subject(codes, n_subjects)
    silo = np.empty(codes.size, np.int64)
    at_once = max(1, _MOST_CELLS // n_silos)
    for low in range(0, n_subjects, at_once):
        high = min(low + at_once, n_subjects)
        orders = np.tile(np.arange(n_silos), (high - low, 1))
        rng.permuted(orders, axis=1, out=orders)
        rows = order[starts[low] : starts[high]]
        silo[rows] = orders[codes[rows] - low, bins[rows]]
    return silo


def natural(silo_column: Any) -> tuple[np.ndarray, tuple[Any, ...]]:
    """The silos that the data name themselves, for instance hospitals.

    Args:
      silo_column: the silo of each row, shape [n_rows]; integers, strings or bytes.

    Returns:
      `(codes, names)`: int64 array [n_rows] with the silo of each row, 0..len(names)-1, and what the
      silos are called, in ascending order, as in `SiloStats.from_ids`. None is empty.

    Raises:
      ValueError, TypeError: no rows, or silos that are missing or of a wrong type, by the rules of
        `encode_ids`.
    """
    column = id_array(silo_column)
    try:
        codes, n_silos = encode_ids(column)
    except (ValueError, TypeError) as error:
        message = str(error).replace("subject id", "silo id").replace("person", "silo")
        raise type(error)(message.replace("people", "silos")) from None
    first = np.empty(n_silos, np.int64)
    first[codes[::-1]] = np.arange(codes.size)[::-1]
    names = np.asarray(column)[first]
    order = np.argsort(names, kind="stable")
    return np.argsort(order)[codes], tuple(_plain(name) for name in names[order].tolist())


def small(subject_ids: Any, n_subjects: int = 350) -> np.ndarray:
    """The rows of the first so many subjects: the Small variants of the papers' data sets.

    Args:
      subject_ids: one id a row, see `encode_ids`.
      n_subjects: how many subjects, in the order in which they first appear; the papers take 350.

    Returns:
      bool array [n_rows], True for the rows of those subjects, of whom no row is left out.

    Raises:
      ValueError: fewer subjects than asked for; ids that are missing.
      TypeError: ids of a wrong type, or `n_subjects` that is not a whole number.
    """
    n_subjects = positive_int("n_subjects", n_subjects)
    codes, found = encode_ids(subject_ids)
    if found < n_subjects:
        raise ValueError(
            f"n_subjects is {n_subjects}, and the rows are of {found} subjects: pass at most {found}"
        )
    return codes < n_subjects


def split(
    x: Any, y: Any, subject_id: Any, silo: Any, names: Sequence[Any] | None = None
) -> dict[Any, OrderedDict]:
    """Gives each silo its rows, ready for `process.next` and `tf.data.Dataset.from_tensor_slices`.

    Args:
      x, y: arrays [n_rows, ...], or nests (dicts, tuples) of such; a list is one array, its entries
        are rows.
      subject_id: one id a row, see `encode_ids`.
      silo: integers [n_rows], the silo of each row, from this module.
      names: what the silos are called, one each: strings or integers that differ as text, since plans
        name silos by text; None numbers them from 0 up to the largest that has rows. So pass
        `range(n_silos)` to hear of empty silos at the end too.

    Returns:
      {name: OrderedDict(x=, y=, subject_id=)}, in the order of the numbers, rows in the order in which
      they were; copies. Every silo is named, an empty one has arrays of no rows.

    Raises:
      ValueError: another number of rows, silos outside 0..len(names)-1, or names that are not
        different; ids that are missing.
      TypeError: silos that are not integers, names or ids of a wrong type.
    """
    n_rows = encode_ids(subject_id)[0].size
    ids = id_array(subject_id)
    if isinstance(subject_id, (list, tuple)) and not isinstance(ids[0], (str, bytes)):
        ids = np.asarray(subject_id)  # integers, which need no objects
    codes, called = numbered_silos(silo, n_rows, names)
    parts = OrderedDict(
        x=_arrays(x, n_rows, "x"), y=_arrays(y, n_rows, "y"), subject_id=np.asarray(ids)
    )
    order, starts = rows_by_subject(codes, len(called))
    return {
        name: OrderedDict(
            (key, _taken(part, order[starts[i] : starts[i + 1]])) for key, part in parts.items()
        )
        for i, name in enumerate(called)
    }


def numbered_silos(
    silo: Any, n_rows: int, names: Sequence[Any] | None
) -> tuple[np.ndarray, tuple[Any, ...]]:
    """The silo of each row as int64 [n_rows], and what the silos are called; raises as `split`."""
    codes = np.asarray(silo)
    if codes.dtype.kind not in "iu":
        raise TypeError(
            f"silo has type {codes.dtype}: pass the number of each row's silo; a column of names "
            "becomes numbers and names with partition.natural"
        )
    if codes.shape != (n_rows,):
        raise ValueError(
            f"silo has shape {codes.shape} and there are {n_rows} subject ids: pass one silo a row"
        )
    largest = int(codes.max())
    if isinstance(names, (str, bytes)):
        raise TypeError(f"names is the single {type(names).__name__} {names!r}: pass one a silo")
    called = tuple(_plain(name) for name in (range(largest + 1) if names is None else names))
    if codes.min() < 0 or largest >= len(called):
        raise ValueError(
            f"silo runs from {codes.min()} to {largest}, outside 0..{len(called) - 1}: number the "
            "silos from 0, and pass one name for each"
        )
    for name in called:
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise TypeError(
                f"a silo is called {name!r} ({type(name).__name__}): pass strings or integers"
            )
    if len({str(name) for name in called}) != len(called):
        raise ValueError(f"names are {list(called)!r}: pass names that differ as text, one a silo")
    return codes.astype(np.int64), called


def _generator(seed: Any) -> np.random.Generator:
    return seed if isinstance(seed, np.random.Generator) else fresh_rng(seed)()


def _checked_alpha(alpha: Any) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, numbers.Real):
        raise TypeError(f"alpha is {alpha!r} ({type(alpha).__name__}): pass a number of at least 1")
    if not 1 <= alpha <= LARGEST:
        raise ValueError(
            f"alpha is {alpha}: it must be at least 1 (which is uniform; the papers take 1 to 16) and at "
            f"most {LARGEST} (2**53)"
        )
    return float(alpha)


def _plain(name: Any) -> Any:
    return name.item() if isinstance(name, np.generic) else name


def _arrays(part: Any, n_rows: int, path: str) -> Any:
    """The nest with arrays for leaves, each of `n_rows` rows."""
    if isinstance(part, Mapping):
        pairs = ((key, _arrays(value, n_rows, f"{path}[{key!r}]")) for key, value in part.items())
        return OrderedDict(pairs) if isinstance(part, OrderedDict) else dict(pairs)
    if isinstance(part, tuple):
        leaves = [_arrays(value, n_rows, f"{path}[{i}]") for i, value in enumerate(part)]
        return type(part)(*leaves) if hasattr(part, "_fields") else tuple(leaves)
    try:
        leaf = np.asarray(part)
    except ValueError as error:
        raise ValueError(f"{path} is no array, rows differ in shape: pad them ({error})") from None
    if leaf.ndim == 0 or leaf.shape[0] != n_rows:
        raise ValueError(
            f"{path} has shape {leaf.shape} and there are {n_rows} subject ids: pass one row for each; "
            "several arrays go in a dict or a tuple"
        )
    return leaf


def _taken(part: Any, rows: np.ndarray) -> Any:
    if isinstance(part, Mapping):
        return type(part)((key, _taken(value, rows)) for key, value in part.items())
    if isinstance(part, tuple):
        leaves = [_taken(value, rows) for value in part]
        return type(part)(*leaves) if hasattr(part, "_fields") else tuple(leaves)
    return part[rows]
