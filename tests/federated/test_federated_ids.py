# SPDX-License-Identifier: Apache-2.0
"""Ids that mean the same person in all silos."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_subjectdp.federated.ids import as_text, hashed_ids, silo_stats
from tf_subjectdp.sampling import SiloStats, SubjectStats

KEY = bytes(range(32))
_TEXTS = st.text(min_size=1, max_size=5).filter(lambda text: text.strip())
_IDS = st.one_of(
    st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=20),
    st.lists(_TEXTS, min_size=1, max_size=20),
)


def oracle(value, key=KEY):
    text = b"i:" + str(value).encode() if isinstance(value, int) else b"s:" + value.encode("utf-8")
    return hashlib.blake2b(text, key=key, digest_size=16, person=b"tf_subjectdp").hexdigest()


@settings(deadline=None, max_examples=60, derandomize=True)
@given(_IDS)
def test_hashes_are_keyed_blake2b_of_the_tagged_text(ids):
    hashed = hashed_ids(ids, KEY)
    assert hashed.dtype == np.dtype("U32")
    assert hashed.tolist() == [oracle(value) for value in ids]


def test_strings_that_have_no_utf_8_are_ids_all_the_same():
    lone = ["\ud800", "\udcff", "ÿ"]
    assert len(set(hashed_ids(lone, KEY).tolist())) == 3


def test_a_known_hash_which_must_never_change():
    # other silos may run another version of this package
    assert hashed_ids([7], KEY).tolist() == ["d6af9473120b0d2cbeb2ab4a5af5b9d6"]
    assert hashed_ids(["7"], KEY).tolist() == ["286f1674877e284718668077acf74813"]


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.uint64, object])
def test_integers_of_any_width_are_one_person(dtype):
    assert hashed_ids(np.array([7, 100, 7], dtype), KEY).tolist() == [
        oracle(i) for i in (7, 100, 7)
    ]


def test_bytes_are_as_the_string_they_encode_and_integers_are_not():
    names = ["ann", "Zoë", "7"]
    assert np.array_equal(hashed_ids([n.encode() for n in names], KEY), hashed_ids(names, KEY))
    assert np.array_equal(hashed_ids(np.array(names), KEY), hashed_ids(names, KEY))
    assert hashed_ids([7], KEY)[0] != hashed_ids(["7"], KEY)[0]
    assert hashed_ids([7], KEY, id_key=as_text) == hashed_ids([b"7"], KEY, id_key=as_text)
    assert hashed_ids(["a", "a\0"], KEY)[0] != hashed_ids(["a", "a\0"], KEY)[1]


def test_another_key_gives_other_hashes():
    ids = np.arange(50)
    assert not set(hashed_ids(ids, KEY)) & set(hashed_ids(ids, KEY[::-1]))
    assert np.array_equal(hashed_ids(ids, KEY), hashed_ids(ids, bytearray(KEY)))


@settings(deadline=None, max_examples=50, derandomize=True)
@given(_IDS)
def test_counts_are_those_of_the_raw_ids(ids):
    raw, hashed = SubjectStats.from_ids(ids), SubjectStats.from_ids(hashed_ids(ids, KEY))
    assert sorted(raw.counts) == sorted(hashed.counts)
    assert hashed.id_dtype == "string"


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        (b"too short secret"[:15], ValueError, "key is 15 bytes long: it must have 16 to 64"),
        (bytes(65), ValueError, "key is 65 bytes long"),
        ("0123456789abcdef0123456789abcdef", TypeError, "key is a str"),
        (None, TypeError, "key is a NoneType"),
    ],
)
def test_a_key_that_is_none_is_refused_and_never_shown(key, error, words):
    with pytest.raises(error, match=words) as caught:
        hashed_ids([1], key)
    assert "secrets.token_bytes(32)" in str(caught.value)
    assert "0123456789" not in str(caught.value) and "too short" not in str(caught.value)


def test_keys_of_16_to_64_bytes_are_taken():
    assert hashed_ids([1], bytes(16))[0] != hashed_ids([1], bytes(64))[0]
    with pytest.raises(ValueError, match="key is 3 bytes long"):
        silo_stats({"a": [1]}, key=b"abc")


def test_missing_and_float_ids_are_refused():
    with pytest.raises(ValueError, match="row 1 has no subject id"):
        hashed_ids(["a", None], KEY)
    with pytest.raises(ValueError, match="masked"):
        hashed_ids(np.ma.array([1, 2], mask=[False, True]), KEY)
    with pytest.raises(TypeError, match="float64"):
        hashed_ids(np.array([1.0, 2.0]), KEY)
    with pytest.raises(TypeError, match="more than one kind"):
        hashed_ids(["a", 1], KEY)


def test_an_id_key_that_is_no_function_of_rows_is_refused():
    with pytest.raises(TypeError, match="id_key is 'text'"):
        hashed_ids([1, 2], KEY, id_key="text")
    with pytest.raises(ValueError, match="id_key returned ids of shape .1,. for 2 rows"):
        hashed_ids([1, 2], KEY, id_key=lambda ids: ids[:1])


def test_as_text_makes_7_and_its_spellings_one():
    mixed = [7, "7", b"7", np.int32(7), np.str_("7"), 10**30, "07"]
    texts = as_text(mixed)
    assert texts.dtype == object and set(map(type, texts)) == {str}
    assert texts.tolist() == ["7", "7", "7", "7", "7", str(10**30), "07"]
    assert as_text(np.array([3, 2**64 - 1], np.uint64)).tolist() == ["3", str(2**64 - 1)]
    assert as_text(np.array([b"x", "é".encode()])).tolist() == ["x", "é"]
    assert as_text(["a", "a\0"]).tolist() == ["a", "a\0"]
    assert as_text(np.zeros(0, int)).shape == as_text([]).shape == (0,)


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        (np.array([7.0, 8.0]), TypeError, r"float64 .* '7.0', another person than '7'"),
        (np.array([7.0, np.nan]), TypeError, "float64"),
        ([7, 7.0], TypeError, r"row 1 is 7.0 \(float\)"),
        (["a", None], TypeError, "row 1 is None"),
        ([True, 7], TypeError, r"row 0 is True \(bool\)"),
        (np.array([True]), TypeError, "type bool"),
        (np.array(["2020-01-01"], "M8[D]"), TypeError, "datetime64"),
        ([b"\xff"], ValueError, "row 0 .* not UTF-8"),
        (np.ma.array([1, 2], mask=[False, True]), ValueError, r"row 1 .* \(masked\)"),
        (np.zeros((2, 2), int), ValueError, r"shape \(2, 2\)"),
    ],
)
def test_as_text_refuses(ids, error, words):
    with pytest.raises(error, match=words):
        as_text(ids)


_FEDERATIONS = st.dictionaries(
    st.sampled_from(["north", "south", "east"]),
    st.lists(st.integers(0, 9), min_size=1, max_size=20),
    min_size=1,
)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(_FEDERATIONS)
def test_silo_stats_count_people_over_silos(silos):
    people = list(dict.fromkeys(one for ids in silos.values() for one in ids))
    expected = [[ids.count(one) for _, ids in sorted(silos.items())] for one in people]
    hashed = {name: hashed_ids(ids, KEY) for name, ids in silos.items()}
    texts = {name: [b"%d" % one for one in ids] for name, ids in silos.items()}
    for found in (
        silo_stats(silos),
        silo_stats(hashed),
        silo_stats(silos, key=KEY),
        silo_stats({**texts, list(silos)[0]: list(silos.values())[0]}, id_key=as_text),
    ):
        assert isinstance(found, SiloStats)
        assert found.names == tuple(sorted(silos))
        assert found.counts.toarray().tolist() == expected


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("strings", [["7", "8"], [b"7", b"8"], np.array(["7"])])
def test_unlike_ids_are_refused_by_name_and_id_key_makes_them_alike(strings, key):
    silos = {"north": np.array([7, 9]), "middle": [7], "south": strings}
    with pytest.raises(
        TypeError, match="'north' has integer .*'south' has (string|bytes)"
    ) as caught:
        silo_stats(silos, key=key)
    assert "id_key=tf_subjectdp.federated.as_text" in str(caught.value)
    with pytest.raises(TypeError, match="'north'.*'south'"):
        silo_stats(silos, id_key=lambda ids: ids, key=key)
    found = silo_stats(silos, id_key=as_text, key=key)
    assert found.counts.toarray()[0].tolist() == [1, 1, 1]


def test_bytes_beside_strings_are_alike_under_the_hash_alone():
    silos = {"a": ["7", "x"], "b": [b"7"]}
    with pytest.raises(TypeError, match="'a' has string ids and silo 'b' has bytes"):
        silo_stats(silos)
    assert silo_stats(silos, key=KEY).counts.toarray().tolist() == [[1, 1], [1, 0]]


def test_integers_that_share_no_type_are_not_rounded():
    # NumPy joins int64 and uint64 to float64, where these two are equal
    silos = {"a": np.array([2**53], np.int64), "b": np.array([2**53 + 1, 2**53], np.uint64)}
    found = silo_stats(silos)
    assert found.counts.toarray().tolist() == [[1, 1], [0, 1]]
    assert found.id_dtype == "int64"


def test_silos_are_called_by_strings_or_numbers():
    assert silo_stats({3: [1], 1: [1, 2]}).names == (1, 3)
    with pytest.raises(TypeError, match="silo id"):
        silo_stats({3: [1], "b": [1, 2]})


@pytest.mark.parametrize(
    ("silos", "error", "words"),
    [
        ({"a": [1], "b": []}, ValueError, "silo 'b' has no rows.*leave it out"),
        ({}, ValueError, "no silos"),
        ([[1], [2]], TypeError, "type list: pass a dict"),
        ({"a": [1], "b": [1, None]}, ValueError, "silo 'b': row 1 has no subject id"),
        ({"a": [1], "b": np.array([1.0])}, TypeError, "silo 'b': subject ids are float64"),
        ({"a": [1], "b": 5}, ValueError, "silo 'b': .*shape"),
    ],
)
def test_silo_stats_refuses(silos, error, words):
    with pytest.raises(error, match=words):
        silo_stats(silos)


def test_what_id_key_cannot_read_is_told_with_the_silo():
    def decoded(ids):
        return np.array([value.decode("ascii") for value in ids])

    with pytest.raises(ValueError, match="silo 'b': 'ascii' codec"):
        silo_stats({"a": [b"x"], "b": ["é".encode()]}, id_key=decoded)


def _tables(ids, as_dataset):
    """Data of three silos as `process.next` takes them."""
    data = [
        {"x": np.zeros([len(own), 2], np.float32), "y": np.zeros(len(own)), "subject_id": own}
        for own in ids
    ]
    return [
        tf.data.Dataset.from_tensor_slices(one) if as_dataset[i] else one
        for i, one in enumerate(data)
    ]


@pytest.mark.parametrize("as_dataset", [(0, 0, 0), (1, 1, 1), (1, 0, 1)])
@pytest.mark.parametrize("key", [None, KEY])
def test_silo_stats_take_what_a_round_takes(as_dataset, key):
    for ids in ([["é", "b"], ["b", "b"], ["c"]], [[7, 8], [8, 8], [9]]):
        data = _tables([np.array(own) for own in ids], as_dataset)
        expected = silo_stats(dict(enumerate(ids)), key=key)
        named = dict(zip("xyz", data, strict=True))
        for found in (silo_stats(data, key=key), silo_stats(named, key=key)):
            assert found.id_dtype == expected.id_dtype
            assert found.counts.toarray().tolist() == expected.counts.toarray().tolist()
        assert silo_stats(named).names == ("x", "y", "z")
    mixed = _tables([np.array([7, 8]), np.array(["7"]), np.array(["9"])], as_dataset)
    with pytest.raises(TypeError, match="silo 0 has integer ids and silo 1 has string ids"):
        silo_stats(mixed, key=key)
    assert silo_stats(mixed, id_key=as_text, key=key).counts.toarray()[0].tolist() == [1, 1, 0]


@pytest.mark.parametrize("as_dataset", [(0, 0, 0), (1, 0, 1)])
def test_silo_stats_find_the_elements_in_the_data(as_dataset):
    data = _tables([np.array([1, 2, 2]), np.array([2]), np.array([1, 1])], [0, 0, 0])
    topics = [np.array(list("aab")), np.array(["b"]), np.array(["a", "b"])]
    tables = [{**one, "element_id": own} for one, own in zip(data, topics, strict=True)]
    given = [
        tf.data.Dataset.from_tensor_slices(one) if as_dataset[i] else one
        for i, one in enumerate(tables)
    ]
    found = silo_stats(given)
    assert [one.n_elements for one in found.elements] == [3, 1, 2]
    assert found.element_dtype == "string"


def test_what_holds_no_ids_is_refused():
    rows = _tables([np.array([1, 2])], [True])[0]
    for data, error, words in (
        ([rows.batch(2)], ValueError, "subject_id of shape .* batched"),
        ([rows.repeat()], ValueError, "never ends"),
        ([rows.map(lambda row: row["x"])], TypeError, "dicts with subject_id"),
        ([rows, None], TypeError, "type list: pass a dict"),
        ({"x": rows, "y": None}, ValueError, "silo 'y': .*shape"),
        ({"subject_id": [1, 2]}, TypeError, "or what process.next takes"),
    ):
        with pytest.raises(error, match=words):
            silo_stats(data)
