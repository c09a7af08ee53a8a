# SPDX-License-Identifier: Apache-2.0
"""Processes over silos against NumPy, TFF's own FedAvg, and `PrivateModel`."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tf_subjectdp as sdp

C = 0.7


def make(federation, algorithm, sampling=None, **options):
    options = {"rounds": 6, "noise_multiplier": 0.0, **options}
    sampling = federation.full_batches() if sampling is None else sampling
    return sdp.federated.plan(algorithm, sampling, federation.stats, **options)


def weights_of(process, state):
    return [np.asarray(w) for w in process.get_model_weights(state).trainable]


def item_gradients(federation, rows, weights):
    """Softmax cross-entropy of a dense layer: [rows, inputs, classes] and [rows, classes]."""
    kernel, bias = weights
    x, y = federation.x[rows], federation.y[rows]
    logits = x @ kernel + bias
    p = np.exp(logits - logits.max(1, keepdims=True))
    d = p / p.sum(1, keepdims=True) - np.eye(2)[y]
    return x[:, :, None] * d[:, None], d


def flat(gradients):
    return np.concatenate([g.reshape(len(g), -1) for g in gradients], 1)


def clip(rows, bound=C):
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, bound / np.maximum(norms, 1e-30))


def clipped_sum(algorithm, federation, rows, weights):
    """The papers' sums in NumPy, of all rows of a silo."""
    each, people = flat(item_gradients(federation, rows, weights)), federation.subject[rows]
    groups = [people == person for person in np.unique(people)]
    if isinstance(algorithm, (sdp.ItemDP, sdp.GroupDP)):
        return clip(each).sum(0)
    if isinstance(algorithm, sdp.HiGradAvg):
        return sum(clip(each[group]).mean(0) for group in groups)
    if isinstance(algorithm, sdp.SubjectDP):
        return clip(np.stack([each[group].mean(0) for group in groups])).sum(0)
    return clip(each.mean(0)[None])[0]


ALGORITHMS = [
    sdp.ItemDP(C),
    sdp.GroupDP(C),
    sdp.HiGradAvg(C),
    sdp.HiGradAvg(C, normalization="expected_subjects"),
    sdp.SubjectDP(C),
    sdp.UserLDP(C),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_a_round_without_noise_is_the_papers_update(federation, model_fn, algorithm):
    plan = make(federation, algorithm, local_steps=2)
    process = sdp.federated.build_process(
        model_fn, plan, client_optimizer=tf.keras.optimizers.SGD(0.5)
    )
    state = process.initialize()
    start = weights_of(process, state)
    moved = []
    for i in range(4):
        weights = [w.astype(np.float64) for w in start]
        for _ in range(2):
            total = clipped_sum(algorithm, federation, federation.rows_of(i), weights)
            step = 0.5 * total / plan.divisors[i]
            weights = [weights[0] - step[:6].reshape(3, 2), weights[1] - step[6:]]
        moved.append([w - s for w, s in zip(weights, start, strict=True)])
    state, metrics = process.next(state, federation.datasets())
    for at, (found, first) in enumerate(zip(weights_of(process, state), start, strict=True)):
        wanted = first + sum(delta[at] for delta in moved) / 4
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert metrics["silos"]["items"] == 2 * 96 and metrics["took_part"].tolist() == [1] * 4


@pytest.mark.parametrize(
    "algorithm",
    [sdp.GroupDP(C), sdp.HiGradAvg(C), sdp.SubjectDP(C)],
    ids=lambda a: type(a).__name__,
)
def test_a_central_round_sums_over_silos_and_divides_once(federation, model_fn, algorithm):
    plan = make(federation, algorithm, noise_at="server")
    process = sdp.federated.build_process(
        model_fn, plan, server_optimizer=tf.keras.optimizers.SGD(0.5)
    )
    state = process.initialize()
    start = weights_of(process, state)
    total = sum(clipped_sum(algorithm, federation, federation.rows_of(i), start) for i in range(4))
    step = 0.5 * total / sum(plan.divisors)
    state, _ = process.next(state, federation.datasets())
    found = np.concatenate([w.ravel() for w in weights_of(process, state)])
    wanted = np.concatenate([w.ravel() for w in start]) - step
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def tff_model(make_keras, spec, regularizer=None):
    def model_fn():
        return tff.learning.models.from_keras_model(
            make_keras(regularizer),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            collections.OrderedDict(x=spec[0], y=spec[1]),
        )

    return model_fn


@pytest.mark.parametrize("algorithm", [sdp.ItemDP(1e6), None], ids=["ItemDP", "FedAvg"])
def test_without_noise_and_clipping_it_is_tffs_fedavg(federation, make_keras, spec, algorithm):
    theirs_fn = tff_model(make_keras, spec)
    options = {} if algorithm else {"noise_multiplier": None}
    plan = make(federation, algorithm, local_steps=3, **options)
    ours = sdp.federated.build_process(
        theirs_fn, plan, client_optimizer=tf.keras.optimizers.SGD(0.3)
    )
    theirs = tff.learning.algorithms.build_unweighted_fed_avg(
        theirs_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.3),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    )
    batches = [
        tf.data.Dataset.from_tensor_slices(
            collections.OrderedDict(x=federation.x[rows], y=federation.y[rows])
        )
        .batch(96)
        .repeat(3)
        for rows in map(federation.rows_of, range(4))
    ]
    state, their_state = ours.initialize(), theirs.initialize()
    for _ in range(2):
        state, _ = ours.next(state, federation.datasets())
        their_state, _ = theirs.next(their_state, batches)
    wanted = theirs.get_model_weights(their_state).trainable
    for a, b in zip(weights_of(ours, state), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    if algorithm is None:
        assert ours.epsilon(state, 1e-5) == np.inf and "NOT PRIVATE" in plan.statement(delta=1e-5)


def test_a_variable_model_gives_what_the_fast_way_gives(federation, model_fn, make_keras, spec):
    plan = make(federation, sdp.SubjectDP(C), local_steps=2)
    found = []
    for silo in (model_fn, tff_model(make_keras, spec)):
        process = sdp.federated.build_process(silo, plan)
        state, _ = process.next(process.initialize(), federation.datasets())
        found.append(weights_of(process, state))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("noise_at", ["silo", "server"])
def test_with_one_silo_it_is_the_private_model(make_keras, spec, noise_at):
    """With a regulariser, and two rounds of one step each."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((30, 3)).astype(np.float32), rng.integers(0, 2, 30)
    people = rng.integers(0, 9, 30)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    penalty = tf.keras.regularizers.L2(0.05)

    model = sdp.PrivateModel(make_keras(penalty))
    plan = sdp.plan(
        sdp.HiGradAvg(C),
        sdp.PoissonItems(30),
        sdp.SubjectStats.from_ids(people),
        steps=2,
        noise_multiplier=0.0,
    )
    model.compile(plan.optimizer(tf.keras.optimizers.SGD(0.4)), loss)
    model.fit(plan.dataset(x, y, people), verbose=0)

    stats = sdp.SiloStats.from_ids(people, np.zeros(30, int))
    plan = sdp.federated.plan(
        sdp.HiGradAvg(C),
        sdp.PoissonItems(30),
        stats,
        rounds=2,
        noise_multiplier=0.0,
        noise_at=noise_at,
    )
    sgd = tf.keras.optimizers.SGD(0.4)
    where = {"client_optimizer" if noise_at == "silo" else "server_optimizer": sgd}
    process = sdp.federated.build_process(
        lambda: sdp.federated.KerasSilo(make_keras(penalty), loss, spec), plan, **where
    )
    state = process.initialize()
    for _ in range(2):
        state, _ = process.next(state, [{"x": x, "y": y, "subject_id": people}])
    for a, b in zip(weights_of(process, state), model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS[:-1], ids=lambda a: type(a).__name__)
def test_no_person_moves_the_servers_model_by_more_than_stated(federation, model_fn, algorithm):
    """One subject is removed from ALL silos; the coins are fixed (rate 1), there is one step."""
    plan = make(federation, algorithm)
    process = sdp.federated.build_process(model_fn, plan)
    whole, _ = process.next(process.initialize(), federation.datasets())
    whole = weights_of(process, whole)
    largest = 0.0
    for person in range(3):
        keep = federation.subject != person
        process = sdp.federated.build_process(model_fn, plan) if person == 0 else process
        without, _ = process.next(process.initialize(), federation.datasets(keep))
        moved = np.sqrt(
            sum(
                ((a - b) ** 2).sum()
                for a, b in zip(whole, weights_of(process, without), strict=True)
            )
        )
        bound = 0.0
        for i in range(4):
            items = int((federation.rows_of(i) & ~keep).sum())
            each = items if isinstance(algorithm, (sdp.ItemDP, sdp.GroupDP)) else min(items, 1)
            bound += C * each / plan.divisors[i] / 4
        assert moved <= bound * (1 + 1e-5)
        largest = max(largest, moved / bound)
    assert largest > 0.2  # the bound is of the right size


def test_models_that_were_made_before_stay_what_they_were(federation, model_fn, make_keras):
    """Keras 2 exchanges the bases of its classes in the graphs that TFF traces."""
    model = make_keras()
    before = {kind: kind.__mro__ for kind in (type(model), tf.keras.layers.Dense, tf.keras.Model)}
    sdp.federated.build_process(model_fn, make(federation, sdp.ItemDP(C)))
    assert all(kind.__mro__ == mro for kind, mro in before.items())
    assert len(model.get_weights()) == 2
    model.compile("sgd", "mse")
    model.fit(federation.x, federation.x[:, :2], verbose=0)
