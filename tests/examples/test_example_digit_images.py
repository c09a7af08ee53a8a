# SPDX-License-Identifier: Apache-2.0
"""examples/digit_images.py: copies with and without a split, and what cannot be loaded."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

_SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "digit_images.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("example_digit_images", _SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _made_up(rows, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (rows, 28, 28)).astype(np.uint8)
    return x, rng.integers(0, 10, rows).astype(np.uint8)


@pytest.fixture
def file(tmp_path):
    x, y = _made_up(700, 0)
    np.savez(tmp_path / "made_up.npz", x=x, y=y)
    return tmp_path / "made_up.npz"


def test_keras_files_keep_their_split_and_others_get_one(example, tmp_path, file):
    x, y = _made_up(30, 2)
    path = tmp_path / "mnist.npz"
    np.savez(path, x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    (x_train, y_train), (x_test, y_test) = example.load("mnist", path)
    np.testing.assert_allclose(x_train[..., 0], x[:20] / 255.0, rtol=1e-6)
    np.testing.assert_array_equal(y_test, y[20:])
    assert x_test.shape == (10, 28, 28, 1) and y_train.dtype == np.int32
    assert [len(part[1]) for part in example.load("mnist", file)] == [600, 100]


def test_a_failed_download_says_to_pass_data(example, monkeypatch):
    def fails():
        raise Exception("URL fetch failure")

    monkeypatch.setattr(tf.keras.datasets.mnist, "load_data", fails)
    with pytest.raises(SystemExit, match="URL fetch failure.*--data FILE.npz"):
        example.load("mnist", None)


def test_files_of_something_else_are_refused(example, tmp_path):
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, images=np.zeros(3))
    with pytest.raises(SystemExit, match="it needs x_train"):
        example.load("mnist", wrong)
    np.savez(wrong, x=np.zeros((4, 32, 32)), y=np.zeros(4, int))
    with pytest.raises(SystemExit, match="28 x 28"):
        example.load("mnist", wrong)
    np.savez(wrong, x=np.zeros((4, 28, 28)), y=np.full(4, 10))
    with pytest.raises(SystemExit, match=r"0\.\.9"):
        example.load("mnist", wrong)
    wrong.write_text("no arrays")
    with pytest.raises(SystemExit, match="cannot be read"):
        example.load("mnist", wrong)
