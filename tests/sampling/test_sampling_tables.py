# SPDX-License-Identifier: Apache-2.0
"""Counting people in files: both readers say what `from_ids` says of the same ids."""

import codecs
import csv
import gzip
import importlib.util
import io
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_subjectdp.sampling import (
    SiloStats,
    SubjectStats,
    stats_from_table,
    tables,
)

HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None
needs_pyarrow = pytest.mark.skipif(not HAS_PYARROW, reason="pyarrow is an extra of this package")
READERS = ["python", pytest.param("pyarrow", marks=needs_pyarrow)]


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def same_counts(found, ids):
    expected = SubjectStats.from_ids(ids)
    assert found == expected
    assert found.counts.tolist() == expected.counts.tolist()


FILES = {
    "plain": ("id,x\na,1\nb,2\na,3\n", ["a", "b", "a"]),
    "no end of line": ("id,x\na,1\nb,2", ["a", "b"]),
    "crlf": ("id,x\r\na,1\r\nb,2\r\n", ["a", "b"]),
    "cr": ("id,x\ra,1\rb,2\r", ["a", "b"]),
    "byte order mark": ("\ufeffid,x\na,1\n", ["a"]),
    "another column": ("x,id\n1,a\n2,a\n", ["a", "a"]),
    "quoted": ('id,x\n"a",1\na,2\n"b ""c""",3\n', ["a", "a", 'b "c"']),
    "delimiter within quotes": ('x,id\n"1,2","a,b"\n3,"a,b"\n', ["a,b", "a,b"]),
    "end of line within quotes": ('id,x\n"a\nb",1\n"a\nb",2\n', ["a\nb", "a\nb"]),
    "quote within a field": ('id,x\na"b,1\nc,2\n', ['a"b', "c"]),
    "quotes within a field": ('id,x\n5" or 6",1\n5,2\n', ['5" or 6"', "5"]),
    "a text of several lines": ('id,x\na,"Dear\n\nann, bob\nand all"\nb,2\n', ["a", "b"]),
    "lines within quotes are not rows": ('id,x,y\n"a\nb","1\r\n2",3\nb,2,4\n', ["a\nb", "b"]),
    "a byte of zero": ("id,x\na\0,1\na,2\n", ["a\0", "a"]),
    "a mark in the middle": ("id,x\n\ufeffa,1\na,2\n", ["\ufeffa", "a"]),
    "leading zeros": ("id,x\n007,1\n7,2\n07,3\n", ["007", "7", "07"]),
    "numbers and words": ("id,x\n1.0,1\n1,2\n1e0,3\ntrue,4\n", ["1.0", "1", "1e0", "true"]),
    "blanks around": ("id,x\nann,1\nann ,2\n ann,3\n", ["ann", "ann ", " ann"]),
    "utf-8": ("id,x\nŁukasz,1\n患者,2\nŁukasz,3\n", ["Łukasz", "患者", "Łukasz"]),
    "two forms of an accent": ("id,x\ne\u0301,1\n\u00e9,2\n", ["e\u0301", "\u00e9"]),
    "lines without a character": ("id,x\n\na,1\n\n\nb,2\n\n", ["a", "b"]),
    "lines before the header": ("\n\nid,x\na,1\n", ["a"]),
    "one column": ("id\na\nb\na\n", ["a", "b", "a"]),
    "bytes elsewhere": (b"id,x\na,\xff\nb,2\n", ["a", "b"]),
    "names twice elsewhere": ("id,x,x\na,1,2\n", ["a"]),
    "empty elsewhere": ("id,x\na,\nb,\n", ["a", "b"]),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", FILES)
def test_a_csv_counts_as_its_ids_do(tmp_path, name, reader):
    text, ids = FILES[name]
    same_counts(stats_from_table(write(tmp_path / "t.csv", text), "id", reader=reader), ids)


_STRAYS = {
    # what a file holds below its header, and the line where the row at fault begins
    "to the end": ('1,"a\n2,b\n3,c\n', 2),
    "to the end, without a last end of line": ('0,\n1,"a\n2,b\n3,c', 3),
    "in the last row": ('1,a\n2,"', 3),
    "in the id": ('"1,a\n2,b\n', 2),
    "after a doubled quote": ('1,"a""\n2,b\n', 2),
    "after rows of several lines": ('1,"a\nb"\n\n2,"c\nd\n\ne"\n3,"f\n4,g\n', 9),
    "after many rows": ("1,a\n" * 1000 + '2,"b\n' + "3,c\n" * 1000, 1002),
    "closed by another stray": ('1,"a\n2,"b\n3,c\n', 2),
    "text behind it": ('0,\n"a"b,1\nab,2\n', 3),
    "a blank behind it": ('"a" ,1\na,2\n', 2),
}


@pytest.mark.parametrize("reader", [*READERS, "handle", "standard input"])
@pytest.mark.parametrize("name", _STRAYS)
def test_a_quote_that_would_hide_rows_is_refused(tmp_path, monkeypatch, name, reader):
    text, line = _STRAYS[name]
    for end in ("\n", "\r\n"):
        for mark in (b"", codecs.BOM_UTF8):
            data = mark + f"id,t\n{text}".replace("\n", end).encode()
            for packed in (data, gzip.compress(data)):
                words = f"row that begins in line {line} of the table .* mend its quotes"
                with pytest.raises(ValueError, match=words):
                    if reader == "handle":
                        stats_from_table(io.BytesIO(packed), "id")
                    elif reader == "standard input":
                        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
                        stats_from_table("-", "id")
                    else:
                        path = write(tmp_path / "t.csv", packed)
                        stats_from_table(path, "id", reader=reader)


@pytest.mark.parametrize("reader", READERS)
def test_quotes_that_may_be_strays_are_counted_as_written_and_told(tmp_path, reader):
    # ditto marks: the quotes of the second row and the third make one field of them
    path = write(tmp_path / "t.csv", 'id,t\n1,a\n2,"\n\n3,"\n4,"b, c\nd"\n5,e\n')
    with pytest.warns(UserWarning, match=r"that read like rows, 1 times \(first in line 3\)"):
        same_counts(stats_from_table(path, "id", reader=reader), ["1", "2", "4", "5"])
    # a comment within, which is no row itself
    path = write(tmp_path / "t.csv", 'id,t\na,"x\nb,1\n# again\nc,2\nd,5"\ne,q\n')
    with pytest.warns(UserWarning, match=r"that read like rows, 1 times \(first in line 2\)"):
        same_counts(stats_from_table(path, "id", reader=reader), ["a", "e"])


def _read_by_hand(text):
    """The fields of each row; None where quotes would hide rows. One letter at a time."""
    rows, row, field, quoted, at = [], [], "", False, 0
    text = text.replace("\r\n", "\n").replace("\r", "\n") + ("" if text.endswith("\n") else "\n")
    while at < len(text):
        one, behind = text[at], text[at + 1 : at + 2]
        at += 1
        if quoted and one == '"' and behind == '"':
            field, at = field + one, at + 1
        elif quoted and one == '"':
            quoted = False
            if behind not in (",", "\n"):
                return None
        elif quoted:
            field += one
        elif one == '"' and text[at - 2 : at - 1] in ("", ",", "\n") and not field:
            quoted = True
        elif one == ",":
            row, field = [*row, field], ""
        elif one == "\n":
            rows += [[*row, field]] if row or field or text[at - 2 : at - 1] == '"' else []
            row, field = [], ""
        else:
            field += one
    return None if quoted else rows


@settings(deadline=None, max_examples=300, derandomize=True)
@given(
    text=st.text(st.sampled_from(list("ab,,\n\n\r") + ['"'] * 3), max_size=16),
    last=st.sampled_from(["", "\n"]),
)
@pytest.mark.filterwarnings("ignore:.*that read like rows")
@pytest.mark.parametrize("reader", READERS)
def test_any_text_is_read_as_by_hand_or_refused(tmp_path_factory, text, last, reader):
    text = f"{text}{last}"
    path = write(tmp_path_factory.getbasetemp() / f"{reader}.csv", "id,x\n" + text)
    rows = _read_by_hand(text)
    try:
        found = stats_from_table(path, "id", reader=reader)
    except ValueError:
        assert not rows or any(len(row) != 2 or not row[0].strip() for row in rows)
    else:
        same_counts(found, [row[0] for row in rows])
        assert all(len(row) == 2 for row in rows)


@needs_pyarrow
@pytest.mark.parametrize("block", [30, 1 << 20])
@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1 << 20])
def test_pyarrow_reads_quoted_rows_itself_in_pieces_of_any_size(
    tmp_path, monkeypatch, block, piece
):
    monkeypatch.setattr(tables, "_BLOCK_BYTES", block)
    monkeypatch.setattr(tables, "_PIECE_BYTES", piece)
    rows = ['"a","1 ""2"", 3"', "", '"b",""', 'c,""""', 'd,"""5"""', '"b","1"', ""]
    for end in ("\n", "\r\n"):
        path = write(tmp_path / "t.csv", end.join(["", '"id",x', *rows]))
        with monkeypatch.context() as only_pyarrow:
            only_pyarrow.setattr(tables, "_csv_chunks", None)
            same_counts(stats_from_table(path, "id", reader="pyarrow"), ["a", "b", "c", "d", "b"])
        for bad in ('e,"', 'e,"5', 'e,"5" ', 'e,"5"6"', 'e,"5""', '"e"f,5'):
            path = write(tmp_path / "t.csv", end.join(['"id",x', *rows, bad, *rows]))
            with pytest.raises(ValueError, match="row that begins in line 9 .* mend its quotes"):
                stats_from_table(path, "id", reader="pyarrow")


_CELLS = st.text(st.sampled_from('ab,"\n\r 0é;'), min_size=1, max_size=4).filter(str.strip)


@settings(deadline=None, max_examples=80, derandomize=True)
@given(rows=st.lists(st.tuples(_CELLS, _CELLS), min_size=1, max_size=30))
@pytest.mark.filterwarnings("ignore:.*that read like rows")
@pytest.mark.parametrize("reader", READERS)
def test_whatever_a_csv_writer_writes_is_counted_as_written(tmp_path_factory, rows, reader):
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerows([("id", "silo"), *rows])
    path = write(tmp_path_factory.mktemp("csv") / "t.csv", text.getvalue())
    ids, silos = map(list, zip(*rows, strict=True))
    found = stats_from_table(path, "id", silo_column="silo", reader=reader)
    expected = SiloStats.from_ids(ids, silos)
    assert found.names == expected.names
    assert found.counts.toarray().tolist() == expected.counts.toarray().tolist()
    same_counts(stats_from_table(path, "id", reader=reader), ids)


@pytest.mark.parametrize("reader", READERS)
def test_pieces_add_up_over_many_chunks(tmp_path, reader, monkeypatch):
    monkeypatch.setattr(tables, "_MERGE_AT", 5_000)
    rng = np.random.default_rng(1)
    ids = rng.integers(700, size=40_000)
    silos = rng.integers(30, size=40_000)
    lines = [f"p{one},h{two},{'x' * 200}" for one, two in zip(ids, silos, strict=True)]
    path = write(tmp_path / "t.csv", "id,silo,x\n" + "\n".join(lines) + "\n")
    expected = SiloStats.from_ids([f"p{i}" for i in ids], [f"h{i}" for i in silos])
    seen = []
    found = stats_from_table(
        path, "id", silo_column="silo", reader=reader, progress=lambda *args: seen.append(args)
    )
    assert found.names == expected.names
    assert (found.counts != expected.counts).nnz == 0
    assert found.id_dtype == "string"
    rows, shares = zip(*seen, strict=True)
    assert list(rows) == sorted(rows) and rows[-1] == 40_000
    assert all(0 <= share <= 1 for share in shares)
    same_counts(stats_from_table(path, "id", reader=reader), [f"p{i}" for i in ids])


@pytest.mark.parametrize("reader", READERS)
def test_gzip_and_another_delimiter(tmp_path, reader):
    path = write(tmp_path / "t.csv.gz", gzip.compress(b"x;id\n1;a\n2;b\n3;a\n"))
    same_counts(stats_from_table(path, "id", delimiter=";", reader=reader), ["a", "b", "a"])
    path = write(tmp_path / "t.csv", "x§id\n1§a\n2§b\n")
    same_counts(stats_from_table(path, "id", delimiter="§", reader=reader), ["a", "b"])


def test_standard_input_and_open_files(tmp_path, monkeypatch):
    text = b"id,x\na,1\na,2\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    same_counts(stats_from_table("-", "id"), ["a", "a"])
    path = write(tmp_path / "t.csv.gz", gzip.compress(text))
    options = ({"mode": "rb"}, {"mode": "rb", "buffering": 0}, {"encoding": "utf-8"})
    files = [open(path, **one) for one in options]  # noqa: SIM115
    for handle in (io.BytesIO(text), io.BytesIO(gzip.compress(text)), *files):
        with handle:
            same_counts(stats_from_table(handle, "id"), ["a", "a"])
            assert not handle.closed
    with pytest.raises(TypeError, match="open it with mode 'rb'"):
        stats_from_table(io.StringIO("id,x\na,1\n"), "id")


def test_long_texts_beside_the_ids_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    # 800 texts of 140,000 characters, above the limit of Python's `csv`, and one above pyarrow's block.
    rows = [f'p{i % 50},"{"word, " * 23_333}"' for i in range(800)] + [f"p7,{'x' * 5_000_000}"]
    path = write(tmp_path / "t.csv", "\n".join(["id,note", *rows, ""]))
    ids = [f"p{i % 50}" for i in range(800)] + ["p7"]
    before = csv.field_size_limit()
    for reader in ["python", "pyarrow"] if HAS_PYARROW else ["python"]:
        same_counts(stats_from_table(path, "id", reader=reader), ids)
    tracemalloc.start()
    with open(path, "rb") as handle:
        same_counts(stats_from_table(handle, "id"), ids)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 70e6  # the texts are 117 MB
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    same_counts(stats_from_table("-", "id"), ids)
    assert csv.field_size_limit() == before


def test_a_quote_without_its_end_is_not_read_to_the_end_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_LONGEST_FIELD", 10_000)
    path = write(tmp_path / "t.csv", 'id,note\na,1\nb,"2\n' + "c,3\n" * 5_000)
    with pytest.raises(ValueError, match="line .* cannot be read: field larger .* mend its quotes"):
        stats_from_table(path, "id", reader="python")


BAD = {
    "missing id": ("id,x\na,1\n,2\n", r"row 2 .* no id in column 'id' \(''\)"),
    "blank id": ("id,x\na,1\nb,2\n   ,2\n", r"row 3 .* no id in column 'id' \('   '\)"),
    "quoted empty id": ('id,x\n"",1\n', "row 1 .* no id"),
    "missing id late": ("id,x\n" + "a,1\n" * 70_000 + ",2\n", "row 70001 .* no id"),
    "missing id in one column": ("id\na\n\nb\n", "row 2 .* no id"),
    "too few fields": ("id,x\na,1\nb\n", "row 2 .* has 1 fields, the header 2"),
    "too many fields": ("id,x\na,1\nb,2,3\n", "row 2 .* has 3 fields, the header 2"),
    "no such column": ("name,x\na,1\n", "no column 'id'; the columns are 'name', 'x'$"),
    "blank in the column's name": (" id,x\na,1\n", "no column 'id'; the columns are ' id', 'x'"),
    "wrong delimiter": ("id;x\na;1\n", "is the delimiter right"),
    "column twice": ("id,id\na,b\n", "column 'id' is there 2 times"),
    "no rows": ("id,x\n", "no rows"),
    "empty file": ("", "is empty"),
    "not UTF-8": (b"id,x\na,1\n\xff\xfe\xfa,2\n", "row 2 .* is not UTF-8"),
    "utf-16": ("id,x\na,1\n".encode("utf-16"), "is UTF-16 text: save"),
    "utf-32": ("id,x\na,1\n".encode("utf-32"), "is UTF-32 text: save"),
    **{
        f"{code} without a mark": (
            "ид,id\na,1\n".encode(code),
            f"is {code[:6].upper()} text without",
        )
        for code in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
    },
    "utf-16 with quotes, without a mark": (
        '"id","x"\n"a","1"\n'.encode("utf-16-le"),
        "is UTF-16 text without",
    ),
    "damaged gzip": (gzip.compress(b"id,x\n" + b"a,1\n" * 99)[:-20], "cut off or damaged"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_refused_by_row_and_column(tmp_path, name, reader):
    text, words = BAD[name]
    with pytest.raises(ValueError, match=words):
        stats_from_table(write(tmp_path / "t.csv", text), "id", reader=reader)


@pytest.mark.parametrize("reader", READERS)
def test_a_missing_silo_is_refused_in_its_own_words(tmp_path, reader):
    path = write(tmp_path / "t.csv", "id,silo\na,x\nb,\n")
    with pytest.raises(ValueError, match="row 2 .* no id in column 'silo'"):
        stats_from_table(path, "id", silo_column="silo", reader=reader)
    with pytest.raises(ValueError, match="name two columns"):
        stats_from_table(path, "id", silo_column="id", reader=reader)


def test_at_most_twenty_columns_are_listed(tmp_path):
    path = write(tmp_path / "t.csv", ",".join(f"c{i}" for i in range(300)) + "\n")
    with pytest.raises(ValueError, match="'c19' and 280 more$"):
        stats_from_table(path, "id")


@pytest.mark.parametrize("reader", READERS)
def test_an_id_that_reads_like_a_missing_value_counts_and_is_noted(tmp_path, reader):
    path = write(tmp_path / "t.csv", "id,x\nNA,1\nNA,2\nnull,3\n")
    with pytest.warns(UserWarning, match="'NA', 'null', which reads like a missing value"):
        same_counts(stats_from_table(path, "id", reader=reader), ["NA", "NA", "null"])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"delimiter": ""}, ValueError),
        ({"delimiter": ";;"}, ValueError),
        ({"delimiter": '"'}, ValueError),
        ({"delimiter": "\0"}, ValueError),
        ({"reader": "pandas"}, ValueError),
        ({"column": 3}, TypeError),
    ],
)
def test_arguments_out_of_range_are_refused(tmp_path, arguments, error):
    path = write(tmp_path / "t.csv", "id\na\n")
    with pytest.raises(error):
        stats_from_table(path, **{"column": "id", **arguments})


def test_without_pyarrow_a_csv_is_read_and_parquet_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_has_pyarrow", lambda: False)
    same_counts(stats_from_table(write(tmp_path / "t.csv", "id,x\na,1\n"), "id"), ["a"])
    path = write(tmp_path / "t.parquet", b"PAR1 and so on")
    with pytest.raises(ImportError, match=r"tf-subjectdp\[tables\]"):
        stats_from_table(path, "id")


def parquet(path, columns, **options):
    import pyarrow as pa
    from pyarrow import parquet as pq

    pq.write_table(pa.table(columns), path, **options)
    return path


@needs_pyarrow
@pytest.mark.parametrize(
    "kind", ["int64", "int8", "uint64", "string", "large_string", "dictionary"]
)
def test_parquet_columns_count_as_their_ids_do(tmp_path, kind):
    import pyarrow as pa

    rng = np.random.default_rng(2)
    ids = rng.integers(100, size=150_000)
    silos = rng.integers(5, size=150_000)
    values = ids.tolist() if "int" in kind else [f"{i:03d}" for i in ids.tolist()]
    if kind == "dictionary":
        # a word that no row has must not become a person
        words = pa.array(["nobody", *[f"{i:03d}" for i in range(100)]])
        column = pa.DictionaryArray.from_arrays(pa.array(ids + 1), words)
    else:
        column = pa.array(values, getattr(pa, kind)())
    path = parquet(
        tmp_path / "t.parquet", {"x": silos, "id": column, "silo": silos}, row_group_size=40_000
    )
    same_counts(stats_from_table(path, "id"), values)
    found = stats_from_table(path, "id", silo_column="silo")
    expected = SiloStats.from_ids(values, silos)
    assert found.names == expected.names and (found.counts != expected.counts).nnz == 0
    assert found.id_dtype == ("int64" if "int" in kind else "string")


@needs_pyarrow
def test_bad_parquet_columns_are_refused(tmp_path):
    import pyarrow as pa

    path = parquet(
        tmp_path / "t.parquet",
        {
            "null": pa.array(["a"] * 70_000 + [None, "b"]),
            "float": np.ones(70_002),
            "day": pa.array(np.zeros(70_002, "M8[D]")),
            "blank": pa.array(["a", " "] * 35_001),
            "word": pa.array(["a", None] * 35_001).dictionary_encode(),
        },
    )
    with pytest.raises(ValueError, match=r"row 70001 has no id in column 'null' \(null\)"):
        stats_from_table(path, "null")
    with pytest.raises(ValueError, match=r"row 2 has no id in column 'word' \(null\)"):
        stats_from_table(path, "word")
    with pytest.raises(ValueError, match="row 2 .* no id in column 'blank'"):
        stats_from_table(path, "blank")
    with pytest.raises(TypeError, match="'float' holds double numbers"):
        stats_from_table(path, "float")
    with pytest.raises(TypeError, match="'day' has type date32"):
        stats_from_table(path, "day")
    with pytest.raises(ValueError, match="no column 'id'; the columns are 'null', 'float'"):
        stats_from_table(path, "id")


@needs_pyarrow
def test_a_file_that_is_no_parquet_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be read as a Parquet file"):
        stats_from_table(write(tmp_path / "t.parquet", b"id,x\na,1\n"), "id")
    good = parquet(tmp_path / "g.parquet", {"id": ["a"] * 10_000}).read_bytes()
    with pytest.raises(ValueError, match="cannot be read as a Parquet file"):
        stats_from_table(write(tmp_path / "cut.parquet", good[:-30]), "id")


def test_a_file_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        stats_from_table(tmp_path / "none.csv", "id")
    with pytest.raises(OSError):
        stats_from_table(tmp_path, "id")


def test_an_excel_workbook_is_named_as_one(tmp_path):
    path = tmp_path / "visits.xlsx"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ValueError, match="Excel workbook.*save it as CSV"):
        stats_from_table(path, "id")


def test_a_pipe_is_told_to_come_by_standard_input(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = subprocess.Popen(["sh", "-c", f"printf 'id\\na\\n' > '{path}'"])
    with pytest.raises(ValueError, match="being a pipe: pass it as '-'"):
        stats_from_table(path, "id")
    writer.wait(timeout=20)


def test_an_empty_path_is_refused():
    with pytest.raises(ValueError, match="path of the table is empty"):
        stats_from_table("", "id")
