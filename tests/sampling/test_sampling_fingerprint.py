# SPDX-License-Identifier: Apache-2.0
"""The plan's mark survives what leaves the sampling alone, and tells on everything else."""

import numpy as np
import pytest

from tf_subjectdp.sampling import dataset_fingerprint, to_dataset

tf = pytest.importorskip("tensorflow")

MARK = 2**62 + 5


@pytest.fixture(scope="module")
def dataset():
    features = {"x": np.zeros((6, 2), np.float32), "y": np.zeros(6), "subject": np.arange(6)}
    return to_dataset(features, lambda: iter([np.arange(3)] * 4), 4, fingerprint=MARK)


def test_the_dataset_carries_its_mark(dataset):
    assert dataset.subjectdp_fingerprint == MARK
    assert dataset_fingerprint(dataset) == MARK


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.prefetch(2),
        lambda d: d.prefetch(tf.data.AUTOTUNE).prefetch(1),
        lambda d: d.with_options(tf.data.Options()),
        lambda d: d.take(2),
        lambda d: d.apply(tf.data.experimental.assert_cardinality(4)),
        lambda d: d.take(3).with_options(tf.data.Options()).prefetch(1),
    ],
)
def test_the_mark_survives_what_leaves_the_sampling_alone(dataset, change):
    assert dataset_fingerprint(change(dataset)) == MARK


@pytest.mark.parametrize(
    "name, change",
    [
        ("cache", lambda d: d.cache()),
        ("repeat", lambda d: d.repeat(2)),
        ("shuffle", lambda d: d.shuffle(4)),
        ("batch", lambda d: d.batch(2)),
        ("batch", lambda d: d.batch(2, num_parallel_calls=2)),
        ("map", lambda d: d.map(lambda *e: e)),
        ("map", lambda d: d.map(lambda *e: e, num_parallel_calls=2)),
        ("filter", lambda d: d.filter(lambda *e: True)),
        ("skip", lambda d: d.skip(1)),
        ("concatenate", lambda d: d.concatenate(d)),
        ("zip", lambda d: tf.data.Dataset.zip((d, tf.data.Dataset.range(4)))),
        ("shard", lambda d: d.shard(2, 0)),
        ("zip", lambda d: d.enumerate()),
        ("cache", lambda d: d.cache().prefetch(1).take(1)),
    ],
)
def test_whatever_changes_the_sampling_is_named(dataset, name, change):
    with pytest.raises(ValueError, match=f"went through `{name}`: .*Pass the dataset as the plan"):
        dataset_fingerprint(change(dataset))


def test_a_step_cannot_be_taken_apart(dataset):
    for change in (dataset.unbatch, lambda: dataset.rebatch(2)):
        with pytest.raises(ValueError, match="scalar"):
            change()


def test_the_changed_dataset_is_named_however_deep_the_mark_lies(dataset):
    with pytest.raises(ValueError, match="went through `repeat`"):
        dataset_fingerprint(dataset.prefetch(1).cache().repeat().prefetch(1))


def test_datasets_of_other_origin_have_no_fingerprint():
    plain = tf.data.Dataset.range(10)
    for other in (plain, plain.batch(2).cache().prefetch(1), plain.take(3), np.zeros(3), None):
        assert dataset_fingerprint(other) is None
