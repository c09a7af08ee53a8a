# SPDX-License-Identifier: Apache-2.0
"""Ids to codes and codes to groups: every id type, every refusal, and the memory of a big table."""

import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_subjectdp as sdp
from tf_subjectdp.sampling import SubjectTable, count_items, encode_ids, rows_by_subject
from tf_subjectdp.sampling.grouping import encode_typed_ids

NAMES = ["ann", "bob", "ann", "carl", "bob", "ann"]
SAME_AS = [0, 1, 0, 2, 1, 0]


def as_partition(codes):
    """First-appearance numbering, so that two numberings of one grouping compare equal."""
    seen = {}
    return [seen.setdefault(int(code), len(seen)) for code in codes]


@pytest.mark.parametrize(
    "ids, id_dtype",
    [
        (NAMES, "string"),
        (tuple(NAMES), "string"),
        (np.array(NAMES), "string"),
        (np.array(NAMES, dtype=object), "string"),
        (np.array(NAMES, dtype="S"), "string"),
        ([name.encode() for name in NAMES], "string"),
        (np.array(SAME_AS), "int64"),
        (np.array(SAME_AS, np.int8), "int64"),
        (np.array(SAME_AS, np.uint64) + np.uint64(2**63), "int64"),
        (SAME_AS, "int64"),
        ([10**30 + code for code in SAME_AS], "int64"),
        (np.array(SAME_AS, dtype=object), "int64"),
        ([np.int32(code) if code else code for code in SAME_AS], "int64"),
    ],
)
def test_rows_of_one_id_get_one_code_whatever_the_type(ids, id_dtype):
    codes, n_subjects, found = encode_typed_ids(ids)
    assert codes.dtype == np.int64 and codes.shape == (6,)
    assert n_subjects == 3 and sorted(set(codes.tolist())) == [0, 1, 2]
    assert codes.tolist() == SAME_AS
    assert found == id_dtype


def test_pandas_series_of_every_type_are_encoded():
    pd = pytest.importorskip("pandas")
    for series in (
        pd.Series(NAMES),
        pd.Series(NAMES, dtype="string"),
        pd.Series(NAMES, dtype="category"),
        pd.Series(SAME_AS, dtype="Int64"),
        pd.Series(SAME_AS, index=list("zyxwvu")),
    ):
        assert as_partition(encode_ids(series)[0]) == SAME_AS


def test_eager_tensors_are_encoded():
    tf = pytest.importorskip("tensorflow")
    for tensor in (tf.constant(NAMES), tf.constant(SAME_AS, tf.int32)):
        assert as_partition(encode_ids(tensor)[0]) == SAME_AS


@pytest.mark.parametrize(
    "ids, row",
    [
        (["a", "b", None, None], 2),
        (["a", "", "b"], 1),
        (["a", " \t", "b"], 1),
        ([b"a", b"b", b"  "], 2),
        (np.array(["a", "b", ""]), 2),
        (np.array([b"a", b"", b"b"]), 1),
        ([1, 2, None], 2),
        ([1, float("nan"), None], 1),
        (["a", np.nan], 1),
        (np.array([1.0, 2.0, np.nan]), 2),
        (np.array(["2020-01-01", "NaT"], "datetime64[D]"), 1),
        (np.ma.masked_array([1, 2, 3], [False, False, True]), 2),
        ([1.5, None], 1),
        (["a", 1, None], 2),
    ],
)
def test_missing_id_names_the_first_row_and_the_remedy(ids, row):
    with pytest.raises(ValueError, match=rf"^row {row} has no subject id .*drop such rows"):
        encode_ids(ids)


def test_missing_id_in_pandas_names_the_first_row():
    pd = pytest.importorskip("pandas")
    for series in (
        pd.Series(["a", None, "b"], dtype="string"),
        pd.Series(["a", None, "b"]),
        pd.Series(["a", None, "b"], dtype="category"),
        pd.Series([1, None, 3], dtype="Int64"),
        pd.Series([1, None, 3]),
        pd.to_datetime(pd.Series(["2020-01-01", None, "2020-01-02"])),
    ):
        with pytest.raises(ValueError, match="^row 1 has no subject id"):
            encode_ids(series)


def test_first_missing_row_is_found_past_the_first_chunk():
    ids = np.arange(200_000).astype(object)
    ids[[150_000, 170_000]] = None
    with pytest.raises(ValueError, match=r"^row 150000 has no subject id \(None\) \(and 1 more"):
        encode_ids(ids)


@pytest.mark.parametrize(
    "ids, message",
    [
        (np.array([1.0, 2.0]), r"float64 numbers.*astype\('int64'\)"),
        (np.array([True, False]), "type bool: pass integers or strings"),
        ([True, False], r"row 0 is a bool \(True\)"),
        ([1, 2, True], r"row 2 is a bool"),
        ([1, 2.5], r"row 1 is a float \(2.5\)"),
        (["a", 1], r"row 0 is 'a' \(string\), row 1 is 1 \(integer\)"),
        (["a", b"a"], r"row 1 is b'a' \(bytes\)"),
        (np.array(["2020-01-01"], "datetime64[D]"), "datetime64"),
        (np.array([1j]), "complex128"),
        ([object()], "row 0 is a object"),
        ("patient", "a single str"),
    ],
)
def test_ids_of_a_wrong_type_are_refused(ids, message):
    with pytest.raises(TypeError, match=message):
        encode_ids(ids)


@pytest.mark.parametrize(
    "ids, message",
    [
        (np.zeros((3, 2), int), r"shape \(3, 2\).*ids\[:, 0\]"),
        ([[1, 2], [3, 4]], r"shape \(2, 2\)"),
        (np.array(5), r"shape \(\)"),
        ([], "no rows"),
        (np.array([], dtype=np.int64), "no rows"),
        (None, "None"),
    ],
)
def test_ids_of_a_wrong_shape_are_refused(ids, message):
    with pytest.raises(ValueError, match=message):
        encode_ids(ids)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=60), st.booleans())
def test_groups_hold_exactly_the_rows_of_each_subject(ids, as_text):
    values = [f"p{value}" for value in ids] if as_text else ids
    table = SubjectTable.from_ids(values)
    assert table.n_items == len(ids) and table.n_subjects == len(set(ids))
    assert as_partition(table.codes) == as_partition(np.unique(ids, return_inverse=True)[1])
    for subject in range(table.n_subjects):
        rows = table.order[table.starts[subject] : table.starts[subject + 1]]
        assert rows.tolist() == np.flatnonzero(table.codes == subject).tolist()
    assert table.counts.tolist() == count_items(table.codes, table.n_subjects).tolist()


@pytest.mark.parametrize("n_subjects", [1, 65_536, 65_537, 200_000])
def test_grouping_of_many_subjects_equals_a_stable_sort(n_subjects):
    codes = np.random.default_rng(1).integers(0, n_subjects, 100_000)
    order, starts = rows_by_subject(codes, n_subjects)
    assert order.dtype == starts.dtype == np.int64
    np.testing.assert_array_equal(order, np.argsort(codes, kind="stable"))
    np.testing.assert_array_equal(np.diff(starts), np.bincount(codes, minlength=n_subjects))


def test_codes_out_of_range_are_refused():
    for codes in ([0, 3], [-1, 0]):
        with pytest.raises(ValueError, match=r"outside 0\.\.2"):
            count_items(np.array(codes), 3)


@pytest.mark.parametrize("kind", ["integers", "strings", "object strings", "list"])
def test_a_million_rows_are_grouped_within_200_mb(kind):
    numbers = np.random.default_rng(2).integers(0, 100_000, 1_000_000)
    ids = numbers
    if kind != "integers":
        ids = np.char.add("patient-", numbers.astype("U6"))
    if kind in ("object strings", "list"):
        ids = ids.astype(object)
    if kind == "list":
        ids = ids.tolist()
    tracemalloc.start()
    try:
        table = SubjectTable.from_ids(ids)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert table.n_items == 1_000_000 and table.n_subjects == np.unique(numbers).size
    assert peak < 200e6


_FLOATS = pd.Series([1.0, 2.0, np.nan, 1.0])
_NAMES = pd.Series(["ann", "bob", None, "ann"])


@pytest.mark.parametrize(
    "ids, shown",
    [
        (_FLOATS.to_numpy().astype(str), "'nan'"),
        (list(map(str, _FLOATS.astype("Int64"))), "'<NA>'"),
        (list(map(str, ["ann", None, "bob"])), "'None'"),
        (np.array(["a", "NULL", "b", "a"]), "'NULL'"),
        ([b"a", b"n/a", b"b", b"a"], "b'n/a'"),
        (np.array(["2020-01-01", "NaT", "2021-01-01"], "M8[D]").astype(str), "'NaT'"),
        (_NAMES.astype("category").cat.codes, "-1"),
        (_NAMES.astype("category").cat.codes.tolist(), "-1"),
        (_NAMES.astype("category").cat.codes.astype(str), "'-1'"),
        (np.array([1, 2, np.iinfo(np.int64).min]), "-9223372036854775808"),
    ],
)
def test_ids_that_read_missing_are_noted_wherever_ids_are_taken(ids, shown):
    rows = len(ids)
    plan = sdp.plan(
        sdp.HiGradAvg(1.0),
        sdp.PoissonItems(1),
        sdp.SubjectStats.public(n_items=rows, n_subjects=rows, max_items=rows),
        steps=1,
        noise_multiplier=1.0,
    )
    x = np.zeros(rows)
    for of, take in (
        ("subject", lambda: encode_ids(ids)),
        ("subject", lambda: sdp.SubjectStats.from_ids(ids)),
        ("subject", lambda: sdp.SiloStats.from_ids(ids, np.arange(rows))),
        ("silo", lambda: sdp.SiloStats.from_ids(np.arange(rows), ids)),
        ("element", lambda: sdp.SubjectStats.from_ids(np.arange(rows), ids)),
        ("subject", lambda: plan.dataset(x, x, ids)),
    ):
        with pytest.warns(UserWarning, match=f"the {of} ids have {shown}, which reads like a miss"):
            take()


def test_ids_that_are_all_there_are_not_noted():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for ids in (np.arange(-3, 9), ["Nana", "Noneman", "a", "b"], [7, 8], np.uint8([255, 1])):
            encode_ids(ids)
