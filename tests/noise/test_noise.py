# SPDX-License-Identifier: Apache-2.0
"""The noise: its law, its freshness, its reach.

It takes no seed, on purpose; statistical tests therefore have a false-alarm rate of 1e-6 each.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tf_subjectdp import noise
from tf_subjectdp.algorithms import HiGradAvg
from tf_subjectdp.clipping import clipped_sum
from tf_subjectdp.noise import add_gaussian_noise, fresh_seed, normals, threefry

FALSE_ALARM = 1e-6
STDDEV = 3.25


@tf.function
def noise_step(size):
    return add_gaussian_noise([tf.zeros([size])], STDDEV)[0]


def test_2000_draws_have_the_planned_standard_deviation():
    draws = np.concatenate([noise_step(5).numpy() for _ in range(400)]).astype(np.float64)
    assert draws.size == 2000
    statistic = np.sum((draws / STDDEV) ** 2)
    low, high = stats.chi2(2000).ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2])
    assert low < statistic < high
    assert stats.norm.sf(abs(draws.mean()) / STDDEV * 2000**0.5) * 2 > FALSE_ALARM


def test_draws_are_normal_and_independent_between_tensors_entries_and_steps():
    @tf.function
    def three():
        return add_gaussian_noise([tf.zeros([2000]), tf.zeros([2000]), tf.zeros([2, 1000])], 1.0)

    streams = [t.numpy().ravel() for _ in range(2) for t in three()]
    for stream in streams:
        assert stats.kstest(stream, "norm").pvalue > FALSE_ALARM
        assert abs(np.corrcoef(stream[:-1], stream[1:])[0, 1]) < 5.0 / 2000**0.5
    # 15 pairs at 5.5 standard deviations: 6e-7 together.
    correlations = np.corrcoef(streams)[np.triu_indices(6, 1)]
    assert np.all(np.abs(correlations) < 5.5 / 2000**0.5)


def test_a_multiplier_handed_over_as_a_tensor_scales_the_noise():
    noised = add_gaussian_noise([tf.zeros([2000])], tf.constant(1e-3))[0].numpy()
    assert 0.5e-3 < noised.std() < 2e-3  # more than 20 standard errors either way


def test_noise_zero_adds_nothing():
    sums = [tf.constant([1.5, -2.0]), tf.zeros([2, 2])]
    for given, noised in zip(sums, add_gaussian_noise(sums, 0.0), strict=True):
        np.testing.assert_array_equal(given, noised)


@pytest.mark.parametrize("compiled", [False, True])
def test_noise_differs_at_every_step_although_the_seed_is_set_to_the_same(compiled):
    draws = []
    for _ in range(2):
        tf.random.set_seed(7)
        function = (
            tf.function(noise_step.python_function) if compiled else (noise_step.python_function)
        )
        draws += [function(4).numpy() for _ in range(3)]
    # One repeat of float32 by chance in 5e-6 of runs, two in 1e-11.
    assert len({value for draw in draws for value in draw}) >= 23


def test_noise_is_drawn_anew_in_every_pass_of_a_loop_inside_one_function():
    @tf.function
    def loop():
        total = tf.TensorArray(tf.float32, 4)
        for i in tf.range(4):
            total = total.write(i, add_gaussian_noise([tf.zeros([2])], 1.0)[0])
        return total.stack()

    assert len(np.unique(loop().numpy())) == 8


_OTHER = """
import tensorflow as tf
from tf_subjectdp.noise import add_gaussian_noise
tf.random.set_seed(7)
print(*add_gaussian_noise([tf.zeros([4])], 1.0)[0].numpy().tolist())
"""


def test_noise_differs_between_two_processes_with_one_seed():
    tf.random.set_seed(7)
    here = add_gaussian_noise([tf.zeros([4])], 1.0)[0].numpy().tolist()
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", _OTHER],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    there = [float(word) for word in done.stdout.split()]
    assert len(there) == 4
    assert not set(here) & set(there)


def operations(graph):
    for op in graph.get_operations():
        yield op.type, op.node_def
    for function in graph.as_graph_def().library.function:
        for node in function.node_def:
            yield node.op, node


def test_noise_is_one_draw_of_a_counter_based_generator_for_all_tensors():
    @tf.function
    def step():
        return add_gaussian_noise([tf.zeros([3]), tf.zeros([70_000]), tf.zeros([2, 2])], 1.0)

    kinds = [kind for kind, _ in operations(step.get_concrete_function().graph)]
    # The generator counts pairs once for all tensors.
    assert kinds.count("Range") == 1
    assert kinds.count("NonDeterministicInts") == 1
    stateful = [kind for kind in kinds if kind.startswith(("Random", "Stateful"))]
    assert stateful == []


def test_the_draw_gets_the_whole_fresh_seed_and_no_number_serves_two_entries(monkeypatch):
    seed = tf.constant([1 << 62, -5], tf.int64)
    monkeypatch.setattr(noise, "fresh_seed", lambda: seed)
    shapes = [[3], [130], [], [0], [5, 7], [16], [64]]
    found = add_gaussian_noise([tf.zeros(shape) for shape in shapes], 1.0)
    flat = np.concatenate([t.numpy().ravel() for t in found])
    assert len(np.unique(flat)) == flat.size == 249
    assert np.isin(flat, normals(seed, 304)).all()


def test_a_seed_drawn_earlier_is_the_draw_s_own():
    seed = fresh_seed()
    found = [add_gaussian_noise([tf.zeros([40])], 2.0, seed=s)[0] for s in (seed, fresh_seed())]
    np.testing.assert_array_equal(found[0], normals(seed, 48, 2.0)[:40])
    # Equal float32 by chance: two in 1e-9 of runs.
    assert np.isin(found[0], found[1]).sum() < 2


def test_tensors_of_unknown_shape_get_noise_of_their_own():
    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec(None)])
    def step(first, second):
        return add_gaussian_noise([first, second, first], 1.0)

    found = step(tf.zeros([500, 3]), tf.zeros([0, 4]))
    assert [t.shape for t in found] == [[500, 3], [0, 4], [500, 3]]
    flat = np.concatenate([t.numpy().ravel() for t in found])
    # Two float32 normals are equal with some 2e-8: twenty repeats of 3,000 by chance in 1e-45 of runs.
    assert len(np.unique(flat)) > 2980
    assert stats.kstest(flat, "norm").pvalue > FALSE_ALARM


def test_the_divisor_divides_the_sum_and_the_noise(monkeypatch):
    monkeypatch.setattr(noise, "fresh_seed", lambda: tf.constant([3, 4], tf.int64))
    sums = [tf.fill([20_000], 100.0), tf.constant(-7.0)]
    for divided, plain in zip(
        add_gaussian_noise(sums, 2.0, divisor=256.0), add_gaussian_noise(sums, 2.0), strict=True
    ):
        np.testing.assert_array_equal(divided, plain / 256.0)


@pytest.mark.parametrize("stddev", [1e-10, 1e30])
@pytest.mark.parametrize("size", [2000, 20_000])
def test_very_small_and_very_large_noise_has_its_size(stddev, size):
    noised = add_gaussian_noise([tf.zeros([size])], stddev)[0].numpy().astype(np.float64)
    assert stats.kstest(noised / stddev, "norm").pvalue > FALSE_ALARM


@pytest.mark.parametrize("stddev", [-1.0, np.nan, np.inf, 1e-40, 1e38])
def test_a_standard_deviation_that_float32_noise_cannot_have_is_refused(stddev):
    with pytest.raises(ValueError, match="stddev=.*must be 0 or between"):
        add_gaussian_noise([tf.zeros([2])], stddev)


def test_a_standard_deviation_of_0_draws_nothing():
    graph = tf.function(lambda: add_gaussian_noise([tf.ones([9])], 0.0, divisor=2.0))
    kinds = [kind for kind, _ in operations(graph.get_concrete_function().graph)]
    assert "NonDeterministicInts" not in kinds
    np.testing.assert_array_equal(graph()[0], np.full(9, 0.5))


def test_no_tensors_need_no_noise():
    assert add_gaussian_noise([], 1.0) == []


def test_noise_covers_every_weight_the_untouched_rows_of_an_embedding_too():
    table = tf.Variable(np.ones((50, 3), np.float32))

    def row_function(ids):
        return tf.reduce_sum(tf.gather(table, ids), axis=[1, 2]), ()

    ids, subject = tf.constant([[1, 2], [2, 2]]), tf.constant([1, 2])
    algorithm = HiGradAvg(1.0)
    partition = algorithm.partition(subject, tf.ones([2], tf.bool))
    total = clipped_sum(row_function, [table], ids, partition, 1.0, strategy="loop").total
    assert np.count_nonzero(total[0].numpy().any(axis=1)) == 2
    noised = add_gaussian_noise(total, 1.0)[0].numpy()
    assert np.all(noised != total[0].numpy())
    untouched = np.delete(noised, [1, 2], axis=0).ravel().astype(np.float64)
    low, high = stats.chi2(untouched.size).ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2])
    assert low < np.sum(untouched**2) < high


def test_noise_has_the_shapes_and_type_of_the_sums():
    sums = [tf.zeros([]), tf.zeros([2, 3]), tf.zeros([0]), tf.zeros([4, 1, 2])]
    noised = add_gaussian_noise(sums, 2.0)
    assert [t.shape for t in noised] == [t.shape for t in sums]
    assert {t.dtype for t in noised} == {tf.float32}


def test_no_key_is_cut_to_32_bits():
    """With 32 bits a run of 2^17 draws would repeat twice on average; here it never does."""

    @tf.function
    def draws():
        def body(i, out):
            seed = tf.reshape(tf.bitcast(fresh_seed(), tf.uint32), [4])
            words = threefry(seed, tf.zeros([1], tf.uint32))
            return i + 1, out.write(i, tf.concat(words, 0))

        out = tf.TensorArray(tf.uint32, 1 << 17)
        return tf.while_loop(lambda i, _: i < 1 << 17, body, (0, out))[1].stack()

    found = draws().numpy()
    # Chance of a repeat of four words: below 1e-28 (128 bits, 2^33 pairs).
    assert len(np.unique(found, axis=0)) == len(found)


def seeds(function, calls=3):
    return {tuple(function().numpy()) for _ in range(calls)}


@pytest.mark.parametrize("compiled", [False, True])
def test_fresh_seeds_never_repeat_under_set_seed(compiled):
    found = set()
    for _ in range(3):
        tf.random.set_seed(12)
        found |= seeds(tf.function(fresh_seed) if compiled else fresh_seed)
    assert len(found) == 9


def test_fresh_seeds_hold_more_entropy_than_tensorflow_gives_them(monkeypatch):
    # TensorFlow seeds its non-deterministic numbers with 32 bits a process.
    constant = tf.constant([1, 2], tf.int64)
    monkeypatch.setattr(tf.raw_ops, "NonDeterministicInts", lambda **_: constant)
    traces = [tf.function(fresh_seed) for _ in range(3)]
    assert len({tuple(trace().numpy()) for trace in traces}) == 3
    assert len(seeds(fresh_seed)) == 3


def test_fresh_seeds_differ_between_the_calls_of_one_trace(monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda size: bytes(size))
    assert len(seeds(tf.function(fresh_seed))) == 3
