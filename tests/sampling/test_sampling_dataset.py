# SPDX-License-Identifier: Apache-2.0
"""to_dataset: one element a step, padded with a mask, drawn afresh at every pass."""

from collections import namedtuple

import numpy as np
import pytest

from tf_subjectdp.sampling import PoissonItems, Shuffle, SubjectTable, fresh_rng, to_dataset

tf = pytest.importorskip("tensorflow")

from tf_subjectdp.sampling.dataset import blocks  # noqa: E402

N = 40
SUBJECT = np.arange(N) % 7


def features(**changes):
    """Row i has x = i and y = 10 i, so that an element tells which rows it holds."""
    base = {
        "x": np.arange(N, dtype=np.float32)[:, None],
        "y": 10 * np.arange(N),
        "subject": SUBJECT,
        "weight": None,
    }
    return {**base, **changes}


def batches_of(*rows):
    return lambda: iter([np.array(batch, np.int64) for batch in rows])


def make(*rows, pad_to=None, **changes):
    return to_dataset(
        features(**changes), batches_of(*rows), len(rows), pad_to=pad_to, fingerprint=99
    )


def sampled(steps, seed=None, sampler=None, rate=0.2):
    sampler = sampler or PoissonItems(8)
    table, new_rng = SubjectTable.from_ids(SUBJECT), fresh_rng(seed)
    return to_dataset(
        features(),
        lambda: sampler.batches(table, rate, new_rng()),
        steps,
        fingerprint=1,
    )


def rows_of(dataset):
    return [
        tuple(np.asarray(x)[np.asarray(extras["mask"]), 0].astype(int).tolist())
        for x, _, extras in dataset
    ]


def test_an_element_holds_the_rows_drawn_in_every_leaf():
    weight = np.linspace(0, 2, N)
    dataset = make([3, 1, 39], [7], weight=weight)
    x, y, extras = next(iter(dataset))
    np.testing.assert_array_equal(x, [[3], [1], [39]])
    np.testing.assert_array_equal(y, [30, 10, 390])
    np.testing.assert_array_equal(extras["subject"], SUBJECT[[3, 1, 39]])
    np.testing.assert_allclose(extras["weight"], weight[[3, 1, 39]], rtol=1e-6)
    np.testing.assert_array_equal(extras["mask"], [True] * 3)
    assert int(extras["plan"]) == 99


def test_spec_has_the_promised_dtypes_and_an_unknown_batch_dimension():
    for pad_to in (None, 4):
        x, y, extras = make([1], pad_to=pad_to).element_spec
        assert x.shape.as_list() == [None, 1] and x.dtype == tf.float32
        assert y.shape.as_list() == [None] and y.dtype == tf.int64
        assert {name: (spec.dtype, spec.shape.as_list()) for name, spec in extras.items()} == {
            "subject": (tf.int64, [None]),
            "weight": (tf.float32, [None]),
            "mask": (tf.bool, [None]),
            "plan": (tf.int64, []),
            "pass": (tf.int64, []),
            "step": (tf.int64, []),
            "seeded": (tf.bool, []),
        }


def test_cardinality_is_the_number_of_steps_at_every_pass():
    dataset = sampled(13)
    assert int(dataset.cardinality()) == 13
    assert len(dataset) == 13
    assert [len(rows_of(dataset)) for _ in range(3)] == [13] * 3


def test_no_tuner_delays_the_end_of_a_pass():
    """tf.data's tuner misses its cancellation now and then and sleeps on: `fit` then ended up to
    five seconds after its last step."""
    assert sampled(2).take(1).options().autotune.enabled is False


@pytest.mark.parametrize("pad_to", [None, 4])
def test_steps_keep_their_order_rows_and_pass_number_over_many_blocks(pad_to):
    rng = np.random.default_rng(1)
    drawn = [rng.integers(0, N, rng.integers(0, 9)) for _ in range(500)]
    dataset = make(*drawn, pad_to=pad_to)
    passes = []
    for _ in range(2):
        elements = list(dataset)
        assert [int(extras["step"]) for _, _, extras in elements] == list(range(500))
        for rows, (x, _, extras) in zip(drawn, elements, strict=True):
            assert np.asarray(x)[np.asarray(extras["mask"]), 0].tolist() == rows.tolist()
            # Padding of the step itself, none that comes from its neighbours in a block.
            assert x.shape[0] == max(-(-rows.size // (pad_to or 1)), 1) * (pad_to or 1)
        (number,) = {int(extras["pass"]) for _, _, extras in elements}
        assert number >= 0
        passes.append(number)
    assert passes[0] != passes[1]


def test_blocks_hold_every_draw_once_in_order_and_stay_small():
    rng = np.random.default_rng(2)
    lengths = [*rng.integers(0, 5000, 400), 300_000, *rng.integers(0, 50, 400), 300_000]
    draws = [np.full(length, number) for number, length in enumerate(lengths)]
    runs = list(blocks(iter(draws)))
    assert [draw.tolist() for block in runs for draw in block] == [d.tolist() for d in draws]
    assert len(runs[0]) == 1 and 32 <= max(map(len, runs)) <= 64
    for block in runs:
        assert len(block) == 1 or len(block) * max(map(len, block)) <= 65_536
    assert list(blocks(iter([]))) == []


def test_the_first_step_waits_for_few_draws_however_long_the_plan():
    drawn = []

    def endless():
        while True:
            drawn.append(1)
            yield np.arange(3)

    iterator = iter(to_dataset(features(), endless, 10**9, fingerprint=0))
    next(iterator)
    assert len(drawn) < 64


def test_a_sampler_that_stops_early_is_an_error():
    dataset = to_dataset(features(), batches_of([1], [2]), 3, fingerprint=0)
    with pytest.raises(tf.errors.FailedPreconditionError, match="3 elements"):
        list(dataset)


@pytest.mark.parametrize(
    "size, pad_to, rows", [(3, None, 3), (3, 4, 4), (4, 4, 4), (5, 4, 8), (9, 4, 12), (0, 4, 4)]
)
def test_padding_fills_up_to_the_next_multiple_and_drops_no_row(size, pad_to, rows):
    x, y, extras = next(iter(make(range(size), pad_to=pad_to)))
    mask = np.asarray(extras["mask"])
    assert mask.tolist() == [True] * size + [False] * (rows - size)
    assert x.shape[0] == y.shape[0] == rows
    assert np.asarray(x)[mask, 0].tolist() == list(range(size))
    assert np.all(np.asarray(extras["subject"])[~mask] == -1)
    assert np.all(np.asarray(extras["weight"])[~mask] == 0)
    assert np.all(np.asarray(extras["weight"])[mask] == 1)


def test_an_empty_batch_is_one_row_of_padding_with_the_features_of_row_zero():
    x, y, extras = next(iter(make([], weight=np.full(N, 3.0))))
    np.testing.assert_array_equal(x, [[0.0]])
    np.testing.assert_array_equal(y, [0])
    assert np.asarray(extras["mask"]).tolist() == [False]
    assert np.asarray(extras["weight"]).tolist() == [0.0]
    assert np.asarray(extras["subject"]).tolist() == [-1]


def test_a_real_weight_of_zero_keeps_its_place_in_the_mask():
    _, _, extras = next(iter(make([0, 1], pad_to=3, weight=np.zeros(N))))
    assert np.asarray(extras["mask"]).tolist() == [True, True, False]
    assert np.asarray(extras["subject"]).tolist() == [0, 1, -1]


def test_nests_of_dicts_tuples_lists_and_strings_keep_their_structure():
    Pair = namedtuple("Pair", ["left", "right"])
    x = {
        "image": tf.reshape(tf.range(N * 4), [N, 2, 2]),
        "words": np.array([f"w{i}" for i in range(N)]),
        "more": [np.arange(N, dtype=np.uint8), (np.arange(N) > 3,)],
    }
    dataset = make([5, 2], x=x, y=Pair(np.arange(N), np.arange(N) * 2.0))
    x, y, _ = next(iter(dataset))
    assert x["image"].shape == (2, 2, 2)
    assert x["words"].numpy().tolist() == [b"w5", b"w2"]
    assert x["more"][0].dtype == tf.uint8 and x["more"][0].numpy().tolist() == [5, 2]
    assert x["more"][1][0].numpy().tolist() == [True, False]
    assert isinstance(y, Pair)
    assert y.left.numpy().tolist() == [5, 2] and y.right.dtype == tf.float32


def test_targets_may_be_absent():
    x, y, _ = next(iter(make([5, 2], y=None)))
    assert y is None and x.shape == (2, 1)


def test_every_pass_draws_afresh_with_a_seed_or_without():
    for seed in (None, 3):
        dataset = sampled(20, seed)
        first, second, third = (rows_of(dataset) for _ in range(3))
        assert first != second != third != first
        assert len(set(first + second + third)) > 50
    assert rows_of(sampled(20, 3)) == rows_of(sampled(20, 3))


def test_two_fits_and_their_epochs_never_replay_a_batch():
    class Recorder(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.seen = []

        def train_step(self, data):
            x, _, extras = data
            self.seen.append(tuple(x.numpy()[extras["mask"].numpy(), 0].tolist()))
            return {"rows": tf.reduce_sum(tf.cast(extras["mask"], tf.float32))}

    model = Recorder()
    model.compile(run_eagerly=True)
    dataset = sampled(12, seed=5)
    model.fit(dataset, epochs=2, verbose=0)
    model.fit(dataset, epochs=3, steps_per_epoch=4, verbose=0)
    assert len(model.seen) == 36
    assert len(set(model.seen)) == 36


def test_shuffled_epochs_of_one_pass_each_hold_every_row_once():
    rows = rows_of(sampled(6, seed=2, sampler=Shuffle(15), rate=15 / N))
    assert [len(batch) for batch in rows] == [15, 15, 10] * 2
    first, second = sum(rows[:3], ()), sum(rows[3:], ())
    assert sorted(first) == sorted(second) == list(range(N)) and first != second


def test_a_step_is_traced_once_whatever_the_batch_size():
    traces = []

    @tf.function
    def step(iterator):
        traces.append(1)
        x, _, extras = next(iterator)
        return tf.reduce_sum(tf.boolean_mask(x, extras["mask"]))

    iterator = iter(make([1, 2], [], [3], range(9)))
    assert [float(step(iterator)) for _ in range(4)] == [3, 0, 3, 36]
    assert len(traces) == 1


def test_features_are_no_constants_of_the_graph():
    big = np.random.default_rng(0).random((50_000, 50), np.float32)
    subject = np.arange(50_000)
    node = to_dataset(
        {"x": big, "y": None, "subject": subject}, batches_of([49_999]), 1, fingerprint=0
    )
    np.testing.assert_array_equal(next(iter(node))[0], big[[49_999]])
    seen, nodes = 0, [node]
    while nodes:
        node = nodes.pop()
        for wrapper in node._functions():
            seen += 1
            assert wrapper.function.graph.as_graph_def().ByteSize() < 100_000
        nodes += node._inputs()
    assert seen >= 1


def test_float64_arrays_become_the_float_type_of_keras_and_integers_stay():
    x, y, _ = next(iter(make([1], x=np.arange(N, dtype=np.float64)[:, None])))
    assert x.dtype == tf.float32 and y.dtype == tf.int64


def test_unequal_lengths_name_every_leaf_and_its_length():
    x = {"a": np.zeros((N - 1, 2)), "b": (np.zeros(N), np.zeros(3))}
    with pytest.raises(ValueError, match=r"x\['a'\] has 39, x\['b'\]\[1\] has 3, and there are 40"):
        make([1], x=x)
    with pytest.raises(ValueError, match="y has 5"):
        make([1], y=np.zeros(5))
    with pytest.raises(ValueError, match="weight has 39"):
        make([1], weight=np.zeros(N - 1))


@pytest.mark.parametrize(
    "x, message",
    [
        (lambda: tf.ragged.constant([[1], [2, 3]]), "x is a RaggedTensor.*to_tensor"),
        (lambda: tf.sparse.from_dense(np.eye(N)), "x is a SparseTensor.*to_dense"),
        (lambda: {"a": tf.data.Dataset.range(N)}, r"x\['a'\] is a .*RangeDataset"),
        (lambda: list(range(N)), r"x is a list of plain values.*np\.asarray"),
        (lambda: (np.zeros(N), None), "x is a tuple of plain values"),
        (lambda: None, "x is None"),
        (lambda: np.float32(3), "x is a single value"),
        (lambda: np.array([object()] * N), "x has a type that TensorFlow cannot hold"),
    ],
)
def test_leaves_that_are_no_arrays_of_rows_are_refused(x, message):
    with pytest.raises(TypeError, match=message):
        make([1], x=x())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"weight": np.where(np.arange(N) == 3, -1.0, 1)}, "weight of row 3 is -1"),
        ({"weight": np.where(np.arange(N) == 4, np.nan, 1)}, "weight of row 4 is nan"),
        ({"weight": np.ones((N, 1))}, r"weight has shape \(40, 1\)"),
        ({"subject": np.zeros((N, 1), int)}, r"subject has shape \(40, 1\)"),
        ({"subject": np.zeros(0, int)}, r"subject has shape \(0,\)"),
        ({"subject": SUBJECT - 1}, "subject has the code -1"),
        ({"elements": SUBJECT}, r"unknown keys \['elements'\]"),
    ],
)
def test_wrong_features_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make([1], **changes)


def test_codes_and_weights_of_a_wrong_type_are_refused():
    with pytest.raises(TypeError, match="subject has type float32: make codes with encode_ids"):
        make([1], subject=SUBJECT * 1.0)
    with pytest.raises(TypeError, match="weight has type string"):
        make([1], weight=np.array(["1"] * N))


def test_wrong_numbers_are_refused():
    for steps in (0, -2):
        with pytest.raises(ValueError, match=f"steps is {steps}"):
            to_dataset(features(), batches_of([1]), steps, fingerprint=0)
    with pytest.raises(ValueError, match="pad_to is 0"):
        make([1], pad_to=0)
    with pytest.raises(TypeError, match="fingerprint is 'plan'"):
        to_dataset(features(), batches_of([1]), 1, fingerprint="plan")
    with pytest.raises(ValueError, match="must fit into 64 bits"):
        to_dataset(features(), batches_of([1]), 1, fingerprint=2**63)


def test_rows_outside_the_table_are_errors_not_padding():
    for row in (-1, N):
        with pytest.raises(tf.errors.OpError):
            list(make([row]))
