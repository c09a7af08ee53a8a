# SPDX-License-Identifier: Apache-2.0
"""Elements of single values: hash buckets, and labels of a user's function.

Statistical tests have a fixed seed and a false-alarm rate of 1e-6 or less each.
"""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tf_subjectdp.elements import Elements, FunctionElements, HashElements, lower_word, url_domain

FALSE_ALARM = 1e-6


def bucket(value, n, salt=""):
    text = value if isinstance(value, bytes) else str(value).encode()
    head = salt.encode()
    digest = hashlib.blake2b(
        b"%d:" % len(head) + head + text, digest_size=16, person=b"sdp-elements"
    ).digest()
    return int.from_bytes(digest, "little") % n


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    values=st.lists(
        st.text(st.characters(blacklist_categories=["Cs"]))
        | st.binary()
        | st.integers(-(2**63), 2**64 - 1)
    ),
    n=st.integers(1, 2**53),
    salt=st.text(st.characters(blacklist_categories=["Cs"]), max_size=80),
)
def test_buckets_are_the_hashs_whatever_stands_beside(values, n, salt):
    ids = HashElements(n, salt).element_ids(values)
    assert ids.dtype == np.int64 and ids.tolist() == [bucket(value, n, salt) for value in values]


def test_buckets_never_change():
    # written down once; another answer would move data between elements of saved plans
    assert HashElements(1000).element_ids(["word", "7", "é", ""]).tolist() == [123, 736, 42, 12]
    assert HashElements(1000, "s").element_ids(["word"]).tolist() == [507]


def test_buckets_are_the_same_in_another_process():
    code = (
        "from tf_subjectdp.elements import HashElements\n"
        "print(HashElements(10**9).element_ids(['a', b'b', 7]).tolist())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert found == {str([bucket(value, 10**9) for value in ("a", b"b", 7)])}


def test_a_number_its_decimal_text_and_bytes_are_one_element():
    elements = HashElements(2**40)
    columns = (
        [7, -3],
        ["7", "-3"],
        [b"7", b"-3"],
        np.array([7, -3], np.int8),
        np.array(["7", "-3"]),
        np.array([b"7", b"-3"]),
        np.array([7, "-3"], dtype=object),
        (np.int64(7), "-3"),
    )
    assert len({tuple(elements.element_ids(column).tolist()) for column in columns}) == 1
    others = elements.element_ids(["7", "07", "7 ", "7.0", "Word", "word", ""])
    assert len(set(others.tolist())) == 7
    assert HashElements(2**40, "1").element_ids(["7"]) != elements.element_ids(["7"])
    # a salt does not run into the value
    assert HashElements(2**40, "a").element_ids(["bc"]) != HashElements(2**40, "ab").element_ids(
        ["c"]
    )


def test_buckets_are_evenly_filled():
    ids = HashElements(50).element_ids(np.arange(20_000))
    p = stats.chisquare(np.bincount(ids, minlength=50)).pvalue
    assert min(p, 1 - p) > FALSE_ALARM / 2


@pytest.mark.parametrize(
    "values, kind, text",
    [
        (["a", None], ValueError, "row 1 has no value"),
        (["a", float("nan")], ValueError, "row 1 has no value"),
        (np.array([1.0, np.nan]), ValueError, "row 1 has no value"),
        (np.ma.masked_equal([1, 2], 2), ValueError, "row 1 has no value"),
        ([1, 7.0], TypeError, "row 1 is 7.0"),
        ([1, True], TypeError, "row 1 is True"),
        ([1, [2]], TypeError, r"row 1 is \[2\]"),
        ([2**64], ValueError, "64 bits"),
        ("word", TypeError, "single value"),
        (None, TypeError, "single value"),
        (np.zeros((2, 2), int), ValueError, "one value a row"),
    ],
)
def test_bad_values_are_refused_by_row(values, kind, text):
    with pytest.raises(kind, match=text):
        HashElements(5).element_ids(values)


def test_bad_hashes_are_refused():
    for bad, kind in ((0, ValueError), (1.0, TypeError), (None, TypeError)):
        with pytest.raises(kind, match="n_elements"):
            HashElements(bad)
    with pytest.raises(TypeError, match="salt"):
        HashElements(5, b"s")
    assert HashElements(5).element_ids([]).shape == (0,)
    assert (
        "5 buckets" in HashElements(5, "x").provenance and "'x'" in HashElements(5, "x").provenance
    )


def test_labels_of_a_function_are_ids():
    elements = FunctionElements(url_domain)
    labels = elements.element_ids(["https://a.example/1", "A.example", "http://b.example"])
    assert labels.tolist() == ["a.example", "a.example", "b.example"] and labels.dtype == object
    numbers = FunctionElements(lambda value: np.int32(value // 10), name="decade")
    ids = numbers.element_ids(np.array([5, 15, 19]))
    assert ids.tolist() == [0, 1, 1] and ids.dtype == np.int64
    assert "'decade'" in numbers.provenance and "'url_domain'" in elements.provenance
    assert all(isinstance(one, Elements) for one in (elements, numbers, HashElements(2)))
    assert elements.element_ids([]).shape == (0,)
    rows = FunctionElements(lambda row: row["page"]).element_ids([{"page": "a"}, {"page": "b"}])
    assert rows.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    "labels, kind, text",
    [
        (["a", None], ValueError, "row 1 has no element"),
        ([1, float("nan")], ValueError, "row 1 has no element"),
        (["a", "  "], ValueError, "row 1 has no element"),
        (["a", ""], ValueError, "row 1 has no element"),
        (["a", 1], TypeError, "row 0 the label 'a' and row 1 1"),
        ([1.5, 2.5], TypeError, "row 0 the label 1.5"),
        ([1, True], TypeError, "row 1 the label True"),
        ([b"a"], TypeError, "row 0 the label b'a'"),
        ([1, 2**70], ValueError, "row 1 has the label"),
    ],
)
def test_bad_labels_are_refused_by_row(labels, kind, text):
    with pytest.raises(kind, match=text):
        FunctionElements(labels.__getitem__, "given").element_ids(range(len(labels)))


def test_what_the_function_raises_names_the_row():
    with pytest.raises(ValueError, match="no host") as caught:
        FunctionElements(url_domain).element_ids(["a.example", "http:///x"])
    assert "in row 1, value 'http:///x'" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="row 1 has no value"):
        FunctionElements(url_domain).element_ids(["a.example", None])
    for bad in ({"function": 3}, {"function": len, "name": 3}):
        with pytest.raises(TypeError):
            FunctionElements(**bad)


@pytest.mark.parametrize(
    "url, host",
    [
        ("https://www.Example.org/a?b=http://c.example#d", "example.org"),
        ("http://user:word@sub.example.org:8080/", "sub.example.org"),
        ("example.org/a//b", "example.org"),
        ("example.org?next=https://other.example", "example.org"),
        ("//example.org./x", "example.org"),
        ("localhost:80", "localhost"),
        ("www.com", "com"),
        (" https://[2001:DB8::1]:443/ ", "2001:db8::1"),
        (b"https://example.org", "example.org"),
    ],
)
def test_domains(url, host):
    assert url_domain(url) == host


@pytest.mark.parametrize("url", ["", "/path", "https://", "http:///x", "no host here"])
def test_no_domain(url):
    with pytest.raises(ValueError):
        url_domain(url)


@pytest.mark.parametrize(
    "word, lower",
    [
        ("Word,", "word"),
        ('"Don\'t!"', "don't"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("cafe\u0301", "caf\u00e9"),
        ("(3rd)", "3rd"),
        ("की", "की"),
        (b"Word", "word"),
    ],
)
def test_words(word, lower):
    assert lower_word(word) == lower


@settings(deadline=None, max_examples=200, derandomize=True)
@given(word=st.text())
def test_a_word_has_one_spelling(word):
    try:
        once = lower_word(word)
    except ValueError:
        assert not any(letter.isalnum() for letter in word)
    else:
        assert once and lower_word(once) == once and lower_word(f" {word}.") == once


def test_words_and_urls_must_be_text():
    for function in (lower_word, url_domain):
        with pytest.raises(TypeError, match="pass text"):
            function(7)
    with pytest.raises(ValueError, match="no letter"):
        lower_word("--")
