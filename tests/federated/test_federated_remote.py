# SPDX-License-Identifier: Apache-2.0
"""Silos on TFF workers of their own against the same process here; and workers that die."""

import contextlib
import copy
import dataclasses
import itertools
import logging
import signal
import threading
import time

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp.federated.remote import RemoteSiloError, RemoteSilos
from tf_subjectdp.federated.spending import spent_in
from tf_subjectdp.federated.workers import LocalWorkers


def build(federation, model_fn, **options):
    options = {"rounds": 60, "noise_multiplier": 0.0, "minimum_silos": 3, **options}
    plan = sdp.federated.plan(
        sdp.HiGradAvg(0.7), federation.full_batches(), federation.stats, **options
    )
    return sdp.federated.build_process(
        model_fn, plan, client_optimizer=tf.keras.optimizers.SGD(0.5)
    )


@pytest.fixture(scope="module")
def built(federation, model_fn):
    return build(federation, model_fn, local_steps=2)


@pytest.fixture
def process(built):
    """As new: nothing spent. What is computed is built once."""
    made = copy.copy(built)
    made.spending = type(built.spending)(built.plan)
    made._next = type(built.next)(made, built.next.computation)
    return made


@pytest.fixture(scope="module")
def both_workers():
    with LocalWorkers(2) as workers:
        yield workers


@pytest.fixture
def workers(both_workers):
    """Two that run, also after a test that killed one."""
    yield both_workers
    for i, worker in enumerate(both_workers._processes):
        if worker.poll() is not None:
            both_workers.restart(i)


def last_alone(process, workers):
    """The last silo has the second worker for itself."""
    *others, last = process.plan.names
    return {**dict.fromkeys(others, workers.targets[0]), last: workers.targets[1]}


@contextlib.contextmanager
def when_asked(process, silo, act):
    """Does something the moment before a silo is asked, in the middle of a round."""
    parts = process.parts

    def silo_round(weights, entry):
        if int(entry["silo"]) == silo:
            entry = act(entry) or entry
        return parts.silo_round(weights, entry)

    process.parts = dataclasses.replace(parts, silo_round=silo_round)
    try:
        yield
    finally:
        process.parts = parts


def weights_of(process, state):
    return [np.asarray(w) for w in process.get_model_weights(state).trainable]


def assert_same(found, wanted, atol):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=atol)


# -- what is computed ------------------------------------------------------------------------------


def test_rounds_on_workers_are_the_local_rounds(federation, process, workers):
    data, here = federation.datasets(), process.initialize()
    start = weights_of(process, here)
    with RemoteSilos(process, workers.targets) as remote:
        there = remote.initialize()
        for number in (1, 2):
            here, wanted = process.next(here, data)
            there, found = remote.next(there, data)
            assert_same(weights_of(process, there), weights_of(process, here), 1e-6)
            # Twice as many were run as either state led to, and no state forgets them.
            assert process.spent(there).rounds == spent_in(there).rounds == 2 * number
            for name, value in wanted["silos"].items():
                np.testing.assert_allclose(found["silos"][name], value, rtol=1e-5, err_msg=name)
    moved = max(np.abs(a - b).max() for a, b in zip(weights_of(process, here), start, strict=True))
    assert moved > 1e-2


def test_a_round_of_some_silos_by_name(federation, process, workers):
    data = dict(zip(process.plan.names, federation.datasets(), strict=True))
    some = {name: data[name] for name in process.plan.names[1:]}
    here, _ = process.next(process.initialize(), some)
    with RemoteSilos(process, last_alone(process, workers)) as remote:
        there, metrics = remote.next(remote.initialize(), some)
    assert_same(weights_of(process, there), weights_of(process, here), 1e-6)
    assert metrics["took_part"].tolist() == [0, 1, 1, 1]


def test_draws_and_noise_are_each_silos_own(workers):
    # Four silos with the same rows: 0 and 1, on two workers, add no noise, so that their updates differ
    # by their draws; 2 and 3 add so much that nothing else is seen.
    rows, units, sigma = 100, 300, 1000.0
    rng = np.random.default_rng(3)
    x = rng.standard_normal((rows, 2)).astype(np.float32)
    y, person = rng.integers(0, units, rows), np.arange(rows) % 20
    stats = sdp.SiloStats.from_ids(np.tile(person, 4), np.repeat(np.arange(4), rows))
    plan = sdp.federated.plan(
        sdp.HiGradAvg(1.0),
        sdp.PoissonItems(50),
        stats,
        rounds=2,
        noise_multiplier=[0.0, 0.0, sigma, sigma],
    )

    def model_fn():
        layers = [tf.keras.Input([2]), tf.keras.layers.Dense(units)]
        return sdp.federated.KerasSilo(
            tf.keras.Sequential(layers),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            (tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.int64)),
        )

    process = sdp.federated.build_process(model_fn, plan)
    reported = []
    finish = process.parts.finish

    def look_at(state, reports):
        reported.append([np.concatenate([np.ravel(w) for w in r["update"]]) for r in reports])
        return finish(state, reports)

    process.parts = dataclasses.replace(process.parts, finish=look_at)
    with RemoteSilos(process, workers.targets) as remote:
        assert len({remote.target_of[name] for name in plan.names[:2]}) == 2
        state = remote.initialize()
        for _ in range(2):
            state, _ = remote.next(state, [{"x": x, "y": y, "subject_id": person}] * 4)
    quiet = [update for updates in reported for update in updates[:2]]
    # 100 coins each: the same draws in 1 of 2^100 cases. The weights differ between the rounds.
    for first, second in (quiet[:2], quiet[2:]):
        assert np.abs(first - second).max() > 1e-4
    loud = [update for updates in reported for update in updates[2:]]
    # False alarms: 6 correlations and 4 variances, each at 5e-8 from both sides, so below 1e-6.
    n, pairs = loud[0].size, itertools.combinations(loud, 2)
    t = scipy.stats.t.isf(2.5e-8, n - 2)
    for first, second in pairs:
        assert abs(np.corrcoef(first, second)[0, 1]) < t / np.hypot(t, np.sqrt(n - 2))
    low, high = scipy.stats.chi2.ppf([2.5e-8, 1 - 2.5e-8], n)
    for update in loud:
        # The clipped sum, of norm at most 20, is 2e-5 of the noise's square.
        squares = np.sum(np.square(update.astype(np.float64))) * (plan.divisors[2] / sigma) ** 2
        assert 0.999 * low < squares < 1.001 * high


# -- workers that die ------------------------------------------------------------------------------


def test_a_worker_killed_in_a_round_is_an_error_and_the_state_is_intact(
    federation, process, workers
):
    data = federation.datasets()
    with RemoteSilos(process, last_alone(process, workers)) as remote:
        state, _ = remote.next(remote.initialize(), data)
        before, spent = weights_of(process, state), spent_in(state)
        with when_asked(process, 3, lambda _: workers.kill(1)), pytest.raises(RuntimeError) as e:
            remote.next(state, data)
        error = e.value
        assert isinstance(error, RemoteSiloError) and error.silos == process.plan.names[3:]
        for part in (workers.targets[1], repr(process.plan.names[3]), "UNAVAILABLE", "is intact"):
            assert part in str(error)
        assert "counts as spent for all silos" in str(error)
        assert_same(weights_of(process, state), before, 0.0)
        assert_same(weights_of(process, error.state), before, 0.0)
        assert spent == spent_in(state) == sdp.federated.Spent(1, (1,) * 4)
        assert process.spent(state) == spent_in(error.state) == sdp.federated.Spent(2, (2,) * 4)
        workers.restart(1)
        state, metrics = remote.next(state, data)
        assert metrics["took_part"].tolist() == [1] * 4
        assert spent_in(state) == sdp.federated.Spent(3, (3,) * 4)
    # Two rounds came about; the failed one left no trace in the weights.
    wanted = process.initialize()
    for _ in range(2):
        wanted, _ = process.next(wanted, data)
    assert_same(weights_of(process, state), weights_of(process, wanted), 1e-6)


def test_a_worker_that_was_started_again_between_rounds_is_there(federation, process, workers):
    data = federation.datasets()
    with RemoteSilos(process, workers.targets) as remote:
        state, _ = remote.next(remote.initialize(), data)
        workers.kill(0)
        workers.restart(0)
        state, metrics = remote.next(state, data)
    assert metrics["took_part"].tolist() == [1] * 4
    assert spent_in(state) == process.spent(state) == sdp.federated.Spent(2, (2,) * 4)


def test_a_worker_killed_while_it_computes_is_noticed_at_once(federation, model_fn, workers):
    process = build(federation, model_fn, local_steps=20000, minimum_silos=1)
    only = {process.plan.names[1]: federation.datasets()[1]}

    def soon(_):
        threading.Timer(0.7, workers.kill, [1]).start()

    with RemoteSilos(process, workers.targets) as remote:
        state = remote.initialize()
        with when_asked(process, 1, soon), pytest.raises(RemoteSiloError, match="UNAVAILABLE"):
            remote.next(state, only)
    assert process.spent(state).of_silos == (0, 1, 0, 0)


def test_a_worker_that_hangs_is_given_up(federation, process, workers):
    hung = workers._processes[1]
    data = federation.datasets()
    try:
        with RemoteSilos(process, last_alone(process, workers), timeout_s=2.0) as remote:
            state, _ = remote.next(remote.initialize(), data)
            began = time.monotonic()
            stop = when_asked(process, 3, lambda _: hung.send_signal(signal.SIGSTOP))
            with stop, pytest.raises(RemoteSiloError, match=r"DEADLINE.*timeout_s: 2 s.*spent for"):
                remote.next(state, data)
            assert 1.9 < time.monotonic() - began < 15.0
            # In the next round it does not answer at all.
            with pytest.raises(RemoteSiloError, match="nothing is spent"):
                remote.next(state, data)
            assert process.spent(state).rounds == 2
    finally:
        hung.send_signal(signal.SIGCONT)
        workers.kill(1)


def test_the_round_goes_on_without_a_killed_worker(federation, process, workers, caplog):
    data = federation.datasets()
    start = process.initialize()
    wanted, _ = process.next(start, [*data[:3], None])
    spent = process.spent(start).of_silos
    options = {"on_failure": "leave_out"}
    with RemoteSilos(process, last_alone(process, workers), **options) as remote:
        killed = when_asked(process, 3, lambda _: workers.kill(1))
        with killed, caplog.at_level(logging.WARNING, "tf_subjectdp"):
            state, metrics = remote.next(start, data)
        (line,) = [r.getMessage() for r in caplog.records if r.name == "tf_subjectdp"]
        assert workers.targets[1] in line and repr(process.plan.names[3]) in line
        assert "goes on with 3 silos" in line
        # The average is the planned one: over four, whoever came.
        assert_same(weights_of(process, state), weights_of(process, wanted), 1e-6)
        assert metrics["took_part"].tolist() == [1, 1, 1, 0]
        # Asked is spent, in the process and in the state that is saved.
        assert process.spent(state).of_silos == spent_in(state).of_silos == (2, 2, 2, 1)
        assert spent == (1, 1, 1, 0)
        # From now on the worker is known to be away, and its silo is not asked.
        state, metrics = remote.next(state, data)
        assert process.spent(state).of_silos == spent_in(state).of_silos == (3, 3, 3, 1)


def test_no_round_of_fewer_silos_than_the_plan_wants(federation, process, workers):
    data = federation.datasets()
    with RemoteSilos(process, workers.targets, on_failure="leave_out") as remote:
        state, _ = remote.next(remote.initialize(), data)
        killed = when_asked(process, 1, lambda _: workers.kill(1))
        with killed, pytest.raises(RemoteSiloError, match=r"2 silos are left.*minimum_silos") as e:
            remote.next(state, data)
        assert e.value.silos == process.plan.names[1::2]
        assert process.spent(state).of_silos == (2,) * 4
        with pytest.raises(RemoteSiloError, match=r"plan wants 3.*nothing is spent") as e:
            remote.next(state, data)
        assert process.spent(state).of_silos == (2,) * 4
        assert spent_in(e.value.state) == spent_in(state)


def test_a_computation_that_fails_is_not_a_worker_that_is_left_out(federation, process, workers):
    def shortened(entry):
        return {**entry, "x": entry["x"][:1]}

    with RemoteSilos(process, workers.targets, on_failure="leave_out") as remote:
        state = remote.initialize()
        broken = when_asked(process, 3, shortened)
        with broken, pytest.raises(RemoteSiloError, match="A computation failed there") as e:
            remote.next(state, federation.datasets())
        assert process.plan.names[3] in e.value.silos
        remote.next(state, federation.datasets())


def test_a_worker_that_was_never_there(federation, process):
    with LocalWorkers(1) as gone:
        pass
    began = time.monotonic()
    with RemoteSilos(process, gone.targets) as remote:
        state = remote.initialize()
        with pytest.raises(RemoteSiloError, match=r"refused.*nothing is spent") as e:
            remote.next(state, federation.datasets())
    assert time.monotonic() - began < 20.0
    assert e.value.silos == process.plan.names
    assert process.spent(state) == sdp.federated.Spent(0, (0,) * 4)


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "options", "message"),
    [
        ([], {}, "must be a list"),
        ("localhost:8001", {}, "must be a list"),
        (["localhost"], {}, 'must be "host:port"'),
        ({"0": "localhost:8001"}, {}, "lacks"),
        (["localhost:8001"], {"on_failure": "ignore"}, "'ignore' is unknown"),
        (["localhost:8001"], {"timeout_s": 0.0}, "timeout_s=0.0 must be above 0"),
    ],
)
def test_arguments_that_are_refused(process, targets, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        RemoteSilos(process, targets, **options)


def test_whoever_runs_the_averaged_view_over_workers_is_warned(process):
    process.plan = dataclasses.replace(process.plan, view="average")
    with pytest.warns(UserWarning, match="every single report"):
        RemoteSilos(process, ["localhost:8001"])


def test_workers_stop_with_the_block_and_write_where_they_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    output = tmp_path / "workers.txt"
    with pytest.raises(ZeroDivisionError), LocalWorkers(1, output=output) as workers:
        (worker,) = workers._processes
        assert worker.poll() is None and worker.stdout is None
        raise ZeroDivisionError
    assert worker.poll() is not None
    assert workers.targets[0].rpartition(":")[2] in output.read_text()


@pytest.mark.parametrize("n", [0, -1, 1.5, True])
def test_a_number_of_workers_that_is_none(n):
    with pytest.raises(ValueError, match="at least 1"):
        LocalWorkers(n)
