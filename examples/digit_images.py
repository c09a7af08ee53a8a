# SPDX-License-Identifier: Apache-2.0
"""MNIST or Fashion-MNIST for the examples: through Keras, or from a local copy. No people in them."""

from pathlib import Path

import numpy as np
import tensorflow as tf

CLASSES = 10


def load(dataset: str, path: Path | None):
    """((x, y), (x_test, y_test)): float32 images in [0, 1] [n, 28, 28, 1] and digits, int32.

    Raises:
      SystemExit: no download, or a file of another kind; says what to do.
    """
    if path is not None:
        arrays = _read(path)
    else:
        source = getattr(tf.keras.datasets, dataset)
        try:
            (x, y), (x_test, y_test) = source.load_data()
        except Exception as error:  # Keras raises Exception itself where a download fails
            raise SystemExit(
                f"{dataset} could not be downloaded ({error}); pass a copy of it with --data FILE.npz, "
                "which has x_train, y_train, x_test, y_test as Keras's mnist.npz, or x and y."
            ) from None
        arrays = x, y, x_test, y_test
    x, y, x_test, y_test = arrays
    return (images(x), labels(y, x)), (images(x_test), labels(y_test, x_test))


def _read(path: Path) -> tuple[np.ndarray, ...]:
    names = ("x_train", "y_train", "x_test", "y_test")
    try:
        with np.load(path) as file:
            if set(names) <= set(file.files):
                return tuple(file[name] for name in names)
            if not {"x", "y"} <= set(file.files):
                raise SystemExit(
                    f"--data {path} has {sorted(file.files)}; it needs {', '.join(names)}, or x and y."
                )
            x, y = file["x"], file["y"]
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"--data {path} cannot be read as a file of NumPy arrays: {error}"
        ) from None
    # No split in the file: a seventh is held out, as in MNIST, the same one in every run.
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[len(x) // 7 :], order[: len(x) // 7]
    return x[train], y[train], x[test], y[test]


def images(x: np.ndarray) -> np.ndarray:
    """float32 [n, 28, 28, 1] in [0, 1], of whole numbers up to 255 or floats up to 1 [n, 28, 28]."""
    x = np.asarray(x)
    if x.ndim == 4 and x.shape[-1] == 1:
        x = x[..., 0]
    if x.shape[1:] != (28, 28):
        raise SystemExit(f"images of shape {x.shape[1:]} are no digits of MNIST, 28 x 28.")
    scale = 255.0 if x.dtype.kind in "ui" else 1.0
    return (x.astype(np.float32) / np.float32(scale))[..., None]


def labels(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """int32 [n], one in 0..9 for each image."""
    y = np.asarray(y).astype(np.int32).ravel()
    if len(y) != len(x) or not len(y) or y.min() < 0 or y.max() >= CLASSES:
        raise SystemExit(f"{len(y)} labels for {len(x)} images; one each is needed, in 0..9.")
    return y
