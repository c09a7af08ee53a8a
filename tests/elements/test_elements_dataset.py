# SPDX-License-Identifier: Apache-2.0
"""Element ids in `tf.data`: the same as NumPy's, in every shape that a dataset comes in."""

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf

from tf_subjectdp.elements import HashElements, KMeansElements


@pytest.fixture(scope="module", name="images")
def images_of():
    return np.random.default_rng(0).integers(0, 256, size=(60, 4, 3), dtype=np.uint8)


@pytest.fixture(scope="module", name="elements")
def elements_of(images):
    return KMeansElements(7).fit(images, public=True, seed=0)


def ids_of(dataset, place=-1):
    return np.concatenate([np.atleast_1d(entry[place].numpy()) for entry in dataset])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_ids_in_a_graph_are_numpys(images, elements, dtype):
    x = images.astype(dtype)
    ids = elements.element_ids(x)
    assert len(set(ids.tolist())) == 7
    unbatched = tf.data.Dataset.from_tensor_slices(x)
    made = elements.map_dataset(unbatched, batched=False)
    assert made.element_spec[1] == tf.TensorSpec([], tf.int64)
    assert np.array_equal(ids_of(made), ids)
    batched = elements.map_dataset(unbatched.batch(7))
    assert batched.element_spec[1].dtype == tf.int64
    assert np.array_equal(ids_of(batched), ids)
    assert np.array_equal(elements.tensor_ids(x).numpy(), ids), "eagerly too"


def test_ids_are_added_to_tuples_dicts_and_lone_tensors(images, elements):
    ids = elements.element_ids(images)
    y, who = np.arange(60), [f"p{i % 9}" for i in range(60)]
    three = tf.data.Dataset.from_tensor_slices((images, y, who)).batch(8)
    made = elements.map_dataset(three)
    assert len(made.element_spec) == 4 and made.cardinality() == three.cardinality()
    assert np.array_equal(ids_of(made), ids) and np.array_equal(ids_of(made, 1), y)
    named = tf.data.Dataset.from_tensor_slices(OrderedDict(x=images, y=y, subject_id=who))
    made = elements.map_dataset(named, batched=False)
    assert list(made.element_spec) == ["x", "y", "subject_id", "element_id"]
    assert ids_of(made, "element_id").tolist() == ids.tolist()
    one = tf.data.Dataset.from_tensor_slices((images,)).batch(8)
    assert np.array_equal(ids_of(elements.map_dataset(one)), ids)
    late = tf.data.Dataset.from_tensor_slices({"label": y, "picture": images}).batch(8)
    for select in ("picture", lambda entry: entry["picture"]):
        made = elements.map_dataset(late, select=select, name="cluster")
        assert np.array_equal(ids_of(made, "cluster"), ids)
    swapped = tf.data.Dataset.from_tensor_slices((y, images)).batch(8)
    assert np.array_equal(ids_of(elements.map_dataset(swapped, select=1)), ids)
    for bad, text in ((2, "select is 2"), ("x", "select is 'x'")):
        with pytest.raises(ValueError, match=text):
            elements.map_dataset(swapped, select=bad)
    with pytest.raises(ValueError, match="has 'y' already"):
        elements.map_dataset(named, name="y", batched=False)


def test_exact_ties_and_ties_up_to_rounding_go_to_the_lowest_number_in_both():
    elements = KMeansElements(4).fit(np.array([[0.0], [2.0], [5.0], [9.0]]), public=True, seed=0)
    centres = np.array([[0.3, 1.0], [0.1, 1.0], [0.3, 1.0], [-7.0, 1.0]])
    elements._centres = centres
    x = np.array([[0.2, 1.0], [0.3, 1.0], [0.1, 1.0], [-3.4, 1.0], [-3.45, 1.0], [0.2, 5.0]])
    expected = [0, 0, 1, 1, 1, 0]
    assert elements.element_ids(x).tolist() == expected
    assert elements.tensor_ids(x).numpy().tolist() == expected
    assert tf.function(elements.tensor_ids)(tf.constant(x)).numpy().tolist() == expected


def test_many_integer_rows_halfway_between_centres_agree():
    rng = np.random.default_rng(1)
    elements = KMeansElements(6).fit(rng.integers(0, 4, size=(80, 3)), public=True, seed=0)
    grid = np.stack(np.meshgrid(*[np.arange(-1, 5, 0.5)] * 3), axis=-1).reshape(-1, 3)
    ids = elements.element_ids(grid)
    assert np.array_equal(ids, elements.tensor_ids(grid).numpy())


def test_unknown_shapes_and_empty_batches(images, elements):
    flat = images.reshape(60, 12).astype(np.float32)
    for spec in ([None, 12], [None, None], None):
        traced = tf.function(elements.tensor_ids, input_signature=[tf.TensorSpec(spec, tf.float32)])
        assert np.array_equal(traced(flat).numpy(), elements.element_ids(flat))
        assert traced(flat[:0]).shape == (0,)


def test_bad_tensors_are_refused(images, elements):
    flat = images.reshape(60, 12).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices(flat)
    with pytest.raises(ValueError, match="11 features and the centres have 12"):
        elements.map_dataset(tf.data.Dataset.from_tensor_slices(flat[:, :11]).batch(2))
    with pytest.raises(ValueError, match="batched=False"):
        elements.map_dataset(dataset)
    with pytest.raises(TypeError, match="must be numbers"):
        elements.tensor_ids([["a", "b"]])
    for bad in (np.nan, np.inf):
        flat[4, 3] = bad
        with pytest.raises(tf.errors.InvalidArgumentError, match="NaN, infinite"):
            ids_of(elements.map_dataset(tf.data.Dataset.from_tensor_slices(flat).batch(9)))
    wide = tf.function(elements.tensor_ids, input_signature=[tf.TensorSpec([None, None])])
    with pytest.raises(tf.errors.InvalidArgumentError):
        wide(flat[:, :11])


def test_a_keras_model_as_features(images, tmp_path):
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential([
        tf.keras.layers.Input((4, 3)),
        tf.keras.layers.Rescaling(1 / 255),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(5, activation="relu"),
        tf.keras.layers.BatchNormalization(),
        tf.keras.layers.Dropout(0.9),
    ])  # fmt: skip
    elements = KMeansElements(4, model, batch_size=16).fit(images, public=True, seed=0)
    ids = elements.element_ids(images)
    assert len(set(ids.tolist())) == 4
    assert np.array_equal(ids, elements.element_ids(images)), "no dropout, no batch statistics"
    assert np.array_equal(ids, np.concatenate([elements.element_ids(row[None]) for row in images]))
    dataset = tf.data.Dataset.from_tensor_slices(images)
    assert np.array_equal(ids_of(elements.map_dataset(dataset.batch(9))), ids)
    assert np.array_equal(ids_of(elements.map_dataset(dataset, batched=False)), ids)
    assert model.name in elements.provenance
    elements.save(tmp_path / "e.npz")
    with pytest.raises(ValueError, match=model.name):
        KMeansElements.load(tmp_path / "e.npz")
    again = KMeansElements.load(tmp_path / "e.npz", model)
    assert np.array_equal(again.element_ids(images), ids)


def test_a_numpy_function_and_a_tensor_function_as_features(images):
    for extractor in (lambda batch: batch.mean(axis=1), lambda batch: tf.cast(batch, tf.float32)):
        elements = KMeansElements(3, extractor).fit(images, public=True, seed=0)
        made = elements.map_dataset(tf.data.Dataset.from_tensor_slices(images).batch(9))
        assert np.array_equal(ids_of(made), elements.element_ids(images))
        assert elements.tensor_ids(images[:0]).shape == (0,)


def test_hash_ids_in_a_graph_are_numpys():
    elements = HashElements(50, salt="s")
    words = [f"wörd {i}" for i in range(40)]
    strings = tf.data.Dataset.from_tensor_slices({"word": words, "y": np.arange(40)})
    expected = elements.element_ids(words)
    for dataset, batched in ((strings.batch(7), True), (strings, False)):
        made = elements.map_dataset(dataset, select="word", batched=batched)
        assert made.element_spec["element_id"].shape.rank == int(batched)
        assert np.array_equal(ids_of(made, "element_id"), expected)
    for dtype in (np.int64, np.int32, np.uint8, np.uint64):
        numbers = np.arange(40).astype(dtype)
        made = elements.map_dataset(tf.data.Dataset.from_tensor_slices(numbers).batch(7))
        assert np.array_equal(ids_of(made), elements.element_ids(numbers))
    assert elements.tensor_ids(tf.constant([], tf.string)).shape == (0,)
    for bad in (tf.constant([1.0]), tf.constant([True])):
        with pytest.raises(TypeError, match="strings or integers"):
            elements.tensor_ids(bad)
