# SPDX-License-Identifier: Apache-2.0
"""What happens in the course of a run: silos that are absent, used-up rounds, checkpoints, bad data."""

import collections
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tf_subjectdp as sdp
from tf_subjectdp import accounting
from tf_subjectdp.federated import silo_data

DELTA = 1e-3


@pytest.fixture(scope="module")
def make(federation, model_fn):
    """A process; the plans of one module share what they can."""

    def build(
        algorithm=None, sampling=None, silo=model_fn, optimizers=None, counts=True, **options
    ):
        options = {"rounds": 6, "noise_multiplier": 0.0, "delta": DELTA, **options}
        algorithm = algorithm or sdp.HiGradAvg(0.7)
        sampling = federation.full_batches() if sampling is None else sampling
        plan = sdp.federated.plan(algorithm, sampling, federation.stats, **options)
        return sdp.federated.build_process(silo, plan, counts=counts, **(optimizers or {}))

    return build


@pytest.fixture(scope="module")
def quiet(make):
    """Without noise, at rate 1: deterministic."""
    return make(rounds=1000)


@pytest.fixture(scope="module")
def noisy(federation, model_fn):
    def build():
        plan = sdp.federated.plan(
            sdp.HiGradAvg(0.7),
            sdp.PoissonItems(8),
            federation.stats,
            rounds=4,
            local_steps=2,
            epsilon=3.0,
            delta=DELTA,
            minimum_silos=2,
        )
        return sdp.federated.build_process(model_fn, plan)

    return build


def moved(process, before, after):
    weights = [process.get_model_weights(state).trainable for state in (before, after)]
    return [np.asarray(b) - np.asarray(a) for a, b in zip(*weights, strict=True)]


def test_it_is_a_learning_process_with_the_types_of_one(quiet):
    assert isinstance(quiet, tff.learning.templates.LearningProcess)
    state = quiet.initialize.type_signature.result
    assert state.placement is tff.SERVER
    given, data = quiet.next.type_signature.parameter
    assert given.is_assignable_from(state) and data.placement is tff.CLIENTS
    result = quiet.next.type_signature.result
    assert result.python_container is tff.learning.templates.LearningProcessOutput
    assert given.is_assignable_from(result.state)
    weights = quiet.get_model_weights.type_signature.result
    assert weights.python_container is tff.learning.models.ModelWeights
    assert [t.shape for t in weights.trainable] == [(3, 2), (2,)]
    start = quiet.initialize()
    other = tff.learning.models.ModelWeights(
        [np.ones([3, 2], np.float32), np.ones([2], np.float32)], []
    )
    changed = quiet.set_model_weights(start, other)
    assert np.all(quiet.get_model_weights(changed).trainable[0] == 1.0)


def test_an_absent_silo_makes_the_average_smaller_and_is_not_counted(quiet, federation):
    state = quiet.initialize()
    data = federation.datasets()
    alone = []
    for i in range(4):
        output = quiet.next(state, {str(i): data[i]})
        assert output.metrics["took_part"].tolist() == [int(i == j) for j in range(4)]
        alone.append(moved(quiet, state, output.state))
    before = quiet.spent(state).of_silos
    three = [data[0], None, data[2], data[3]]
    output = quiet.next(state, three)
    for at, found in enumerate(moved(quiet, state, output.state)):
        np.testing.assert_allclose(
            found, sum(alone[i][at] for i in (0, 2, 3)), rtol=1e-5, atol=1e-7
        )
    counted = np.subtract(quiet.spent(output.state).of_silos, before)
    assert counted.tolist() == [1, 0, 1, 1]


def test_empty_silos_and_silos_of_one_person_go_on(noisy, federation):
    process = noisy()
    rows = np.flatnonzero(federation.silo == 1)[:1]
    one = {"x": federation.x[rows], "y": federation.y[rows], "subject_id": federation.subject[rows]}
    nobody = tf.data.Dataset.from_tensor_slices(federation.arrays(0)).take(0)
    state, metrics = process.next(process.initialize(), {"0": nobody, "1": one})
    assert metrics["took_part"].tolist() == [1, 1, 0, 0]
    assert metrics["silos"]["items"] <= 2 and metrics["silos"]["steps"] == 4
    # Noise is added all the same: who is in a silo does not show.
    assert all(np.abs(delta).max() > 0 for delta in moved(process, process.initialize(), state))


def test_ids_of_any_type_and_dicts_of_arrays_give_the_same(quiet, federation):
    state = quiet.initialize()
    wanted = moved(quiet, state, quiet.next(state, federation.datasets()).state)
    for change in (str, lambda v: f"person {v}".encode(), int):
        data = []
        for i in range(4):
            table = dict(federation.arrays(i))
            table["subject_id"] = np.array([change(v) for v in table["subject_id"]])
            data.append(table)
        found = moved(quiet, state, quiet.next(state, data).state)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


def test_spellings_of_one_person_are_one_if_the_user_says_so(federation, model_fn):
    stats = federation.stats
    plan = sdp.federated.plan(
        sdp.SubjectDP(0.7), federation.full_batches(), stats, rounds=9, noise_multiplier=0.0
    )
    process = sdp.federated.build_process(
        model_fn, plan, id_key=lambda ids: np.char.lower(np.char.strip(ids.astype(str)))
    )
    state = process.initialize()
    plain, shouted = [], []
    for i in range(4):
        table = dict(federation.arrays(i))
        names = np.array([f"p{v}" for v in table["subject_id"]])
        plain.append({**table, "subject_id": names})
        upper = np.where(np.arange(names.size) % 2, np.char.upper(names), np.char.add(" ", names))
        shouted.append({**table, "subject_id": upper})
    found = [moved(process, state, process.next(state, data).state) for data in (plain, shouted)]
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


def test_too_few_silos_or_used_up_rounds_are_refused_and_nothing_is_lost(noisy, federation):
    process = noisy()
    data = {str(i): table for i, table in enumerate(federation.datasets())}
    state = process.initialize()
    with pytest.raises(ValueError, match="1 silos can take part and the plan wants at least 2"):
        process.next(state, {"3": data["3"]})
    assert process.spent(state) == (0, (0, 0, 0, 0))
    for _ in range(4):
        state, _ = process.next(state, {name: data[name] for name in ("0", "1")})
    assert process.spent(state) == (4, (4, 4, 0, 0))
    with pytest.raises(ValueError, match="4 rounds are used up"):
        process.next(state, data)


def test_of_more_silos_than_a_round_has_those_with_the_fewest_rounds_take_part(make, federation):
    process = make(rounds=6, silos_per_round=2)
    assert process.plan.rounds_of_a_silo == 3
    state = process.initialize()
    for number in range(6):
        state, metrics = process.next(state, federation.datasets())
        assert metrics["took_part"].sum() == 2
        if number == 1:
            assert process.spent(state).of_silos == (1, 1, 1, 1)
    assert process.spent(state).of_silos == (3, 3, 3, 3)


def test_no_silo_exceeds_its_planned_rounds(make, federation):
    process = make(rounds=6, silos_per_round=2)
    state, data = process.initialize(), federation.datasets()
    for _ in range(3):
        state, _ = process.next(state, [data[0], None, None, None])
    with pytest.raises(ValueError, match="1 of them have used up their 3 planned rounds"):
        process.next(state, [data[0], None, None, None])


def test_epsilon_is_that_of_the_silos_that_took_part(noisy, federation):
    process = noisy()
    plan = process.plan
    state, data = process.initialize(), federation.datasets()
    state, _ = process.next(state, data)
    state, _ = process.next(state, [data[0], data[1], None, None])
    state, _ = process.next(state, [data[0], None, None, data[3]])
    events = [
        (accounting.higradavg_event(f.rate, f.max_items, s), 2 * taken)
        for f, s, taken in zip(plan.facts, plan.noise_multipliers, (3, 2, 1, 2), strict=True)
    ]
    wanted = accounting.epsilon(accounting.compose(events), delta=DELTA)
    assert process.epsilon(state) == pytest.approx(wanted, rel=1e-3)
    assert process.epsilon(state) < plan.epsilon() <= 3.0
    assert "3 of 4 planned rounds run" in process.statement(state)
    assert "took part in 1 to 3 rounds" in " ".join(process.statement(state).split())


def test_a_resume_in_the_middle_counts_as_an_uninterrupted_run(noisy, federation, tmp_path):
    data = federation.datasets()
    process = noisy()
    state = process.initialize()
    for _ in range(4):
        state, _ = process.next(state, data)
    whole = process.epsilon(state)

    process = noisy()
    manager = tff.program.FileProgramStateManager(tmp_path, prefix="round_")
    state = process.initialize()
    for number in range(2):
        state, _ = process.next(state, data)
        run(manager.save(state, number))
    del process, state
    fresh = noisy()
    state = run(manager.load(1, structure=fresh.initialize()))
    assert fresh.spent(state).rounds == 2
    assert sdp.federated.epsilon_of(state) == fresh.epsilon(state)
    assert sdp.federated.plan_of(state) == fresh.plan
    for _ in range(2):
        state, _ = fresh.next(state, data)
    assert fresh.epsilon(state) == whole


def test_going_back_to_an_older_state_forgets_no_round(noisy, federation):
    process = noisy()
    data, start = federation.datasets(), process.initialize()
    first, _ = process.next(start, data)
    process.next(first, data)
    again, _ = process.next(first, data)  # the third round of this process
    assert process.spent(again).rounds == 3 and sdp.federated.spent_in(again).rounds == 3
    assert process.epsilon(start) == process.epsilon(again)


def test_rounds_that_were_lost_in_a_crash_are_counted(noisy, federation):
    process = noisy()
    data, start = federation.datasets(), process.initialize()
    kept, _ = process.next(start, data)
    fresh = noisy()  # after a crash in the third round; `kept` is the last checkpoint
    fresh.count_lost_rounds(kept, sdp.federated.Spent(3, (3, 2, 3, 3)))
    fresh.count_lost_rounds(kept, sdp.federated.Spent(1, (1, 1, 1, 1)))
    assert fresh.spent(kept) == (3, (3, 2, 3, 3))
    state, _ = fresh.next(kept, data)
    assert sdp.federated.spent_in(state) == (4, (4, 3, 4, 4))
    with pytest.raises(ValueError, match="the rounds of 4 silos"):
        process.count_lost_rounds(start, sdp.federated.Spent(2, (2, 1)))


def test_a_state_of_another_plan_is_refused(noisy, quiet, federation):
    with pytest.raises(ValueError, match="made under another plan"):
        noisy().next(quiet.initialize(), federation.datasets())


def test_a_round_that_fails_half_way_is_counted(noisy, federation):
    process = noisy()
    state = process.initialize()

    def fails(state, entries):
        raise RuntimeError("the network is gone")

    with pytest.raises(RuntimeError, match="network"):
        process.next.run(state, federation.datasets(), fails)
    assert process.spent(state) == (1, (1, 1, 1, 1))
    after, _ = process.next(state, federation.datasets())
    assert sdp.federated.spent_in(after).rounds == 2


def test_rows_above_the_bound_are_dropped_and_counted(make, federation):
    bound = {"max_items_per_subject": 1}
    stats = federation.stats.bounded(1)
    process = make(sampling=[sdp.PoissonItems(stats.silo(i).n_items) for i in range(4)], **bound)
    _, metrics = process.next(process.initialize(), federation.datasets())
    assert metrics["silos"]["items"] == stats.n_items
    assert metrics["silos"]["dropped"] == 96 - stats.n_items
    assert metrics["silos"]["sizes"].tolist() == [stats.n_items] + [0] * 15


def test_a_fixed_size_needs_the_planned_number_of_items(make, federation):
    process = make(sdp.SubjectDP(0.7), sdp.FixedSize(4), noise_multiplier=2.0)
    _, metrics = process.next(process.initialize(), federation.datasets())
    assert metrics["silos"]["items"] == 16
    keep = np.arange(96) != 5
    before = process.spent(process.initialize())
    with pytest.raises(ValueError, match="batches of a fixed size depend on that number"):
        process.next(process.initialize(), federation.datasets(keep))
    assert process.spent(process.initialize()) == before


def test_each_silo_may_sample_in_its_own_way(make, federation):
    kinds = [
        sdp.PoissonItems(3),
        sdp.PoissonSubjects(2),
        sdp.PoissonItems(5),
        sdp.PoissonSubjects(1),
    ]
    process = make(sampling=kinds, noise_multiplier=[1.0, 2.0, 3.0, 4.0])
    _, metrics = process.next(process.initialize(), federation.datasets())
    assert metrics["silos"]["steps"] == 4 and 0 < metrics["silos"]["items"] < 96


def test_momentum_in_silos_and_adam_at_the_server(make, federation):
    process = make(
        optimizers={
            "server_optimizer": tf.keras.optimizers.Adam(0.1),
            "client_optimizer": tf.keras.optimizers.SGD(0.2, momentum=0.9),
        }
    )
    state = process.initialize()
    after, _ = process.next(state, federation.datasets())
    # Adam's first step is the learning rate in every coordinate whose gradient is not tiny.
    first = np.concatenate([np.ravel(delta) for delta in moved(process, state, after)])
    assert np.abs(np.abs(first) - 0.1).max() < 1e-3


def test_a_secure_sum_is_a_choice(make, quiet, federation, installed):
    plain, secure = (
        quiet,
        make(
            optimizers={"sum_factory": tff.aggregators.SecureSumFactory(upper_bound_threshold=4.0)}
        ),
    )
    found = [quiet.next(quiet.initialize(), federation.datasets()).state]
    # TFF's own executor has no secure sums; the one for tests adds up in the clear.
    with installed(tff.backends.test.create_sync_test_cpp_execution_context()):
        state, metrics = secure.next(secure.initialize(), federation.datasets())
    found.append(state)
    first, second = (
        process.get_model_weights(s) for process, s in zip((plain, secure), found, strict=True)
    )
    for a, b in zip(first.trainable, second.trainable, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)  # what the sum is rounded to
    assert len(metrics["aggregator"]) > 0


def refused(match, kind, function, *arguments, **options):
    with pytest.raises(kind, match=match):
        function(*arguments, **options)


def test_what_builds_no_process_is_refused_with_a_pointer(
    make, quiet, federation, make_keras, spec
):
    wrapped = sdp.DPOptimizer("sgd", sdp.HiGradAvg(1.0), noise_multiplier=1.0)
    for name in ("client_optimizer", "server_optimizer"):
        refused(
            "is a DPOptimizer. In a federation the plan says",
            TypeError,
            make,
            optimizers={name: wrapped},
        )
    nesterov = tf.keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
    refused("nesterov=True", ValueError, make, optimizers={"client_optimizer": nesterov})
    refused(
        "take no step of their own",
        ValueError,
        make,
        noise_at="server",
        optimizers={"client_optimizer": tf.keras.optimizers.SGD(0.1)},
    )
    refused(
        "noises that add up",
        ValueError,
        make,
        view="average",
        optimizers={"client_optimizer": tf.keras.optimizers.Adam(0.1)},
    )
    refused("return tf_subjectdp.federated.KerasSilo", TypeError, make, silo=make_keras)
    made_before = sdp.federated.KerasSilo(make_keras(), "sparse_categorical_crossentropy", spec)
    refused("made before", ValueError, make, silo=lambda: made_before)
    mean = tff.aggregators.MeanFactory()
    refused("without weights of its own", TypeError, make, optimizers={"sum_factory": mean})

    def regularised():
        return tff.learning.models.from_keras_model(
            make_keras(tf.keras.regularizers.L2(0.1)),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            collections.OrderedDict(x=spec[0], y=spec[1]),
        )

    refused("has regularisers", ValueError, make, silo=regularised)
    refused("must be a function from an array", TypeError, make, optimizers={"id_key": "as_text"})

    def double():
        net = [tf.keras.Input([3]), tf.keras.layers.Dense(2, dtype="float64")]
        return sdp.federated.KerasSilo(tf.keras.Sequential(net), "mse", spec)

    refused("silos train float32 weights", ValueError, make, silo=double)

    def batch_norm():
        model = tf.keras.Sequential(
            [tf.keras.Input([3]), tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(2)]
        )
        return sdp.federated.KerasSilo(model, "mse", spec)

    refused("normalises over the items of a batch", ValueError, make, silo=batch_norm)

    def batch_norm_of_tff():
        net = [tf.keras.Input([3]), tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(2)]
        return tff.learning.models.from_keras_model(
            tf.keras.Sequential(net),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            collections.OrderedDict(x=spec[0], y=spec[1]),
        )

    refused("normalises over the items of a batch", ValueError, make, silo=batch_norm_of_tff)


class KeepsAMean(tff.learning.models.VariableModel):
    """Its loss looks at a mean of all rows that came before."""

    def __init__(self):
        self._weights = tf.Variable(tf.zeros([3]))
        self._mean = tf.Variable(0.0, trainable=False)

    def forward_pass(self, batch_input, training=True):
        rows = batch_input["x"]
        self._mean.assign(0.5 * self._mean + 100.0 * tf.reduce_mean(rows))
        output = tf.linalg.matvec(rows, self._weights) * self._mean
        wanted = tf.cast(batch_input["y"], tf.float32)
        loss = tf.reduce_mean(tf.square(output - wanted))
        return tff.learning.models.BatchOutput(loss=loss, predictions=output, num_examples=1)

    predict_on_batch = report_local_unfinalized_metrics = reset_metrics = None
    metric_finalizers = None
    trainable_variables = property(lambda self: [self._weights])
    non_trainable_variables = property(lambda self: [])
    local_variables = property(lambda self: [])
    input_spec = property(
        lambda self: collections.OrderedDict(
            x=tf.TensorSpec([None, 3], tf.float32), y=tf.TensorSpec([None], tf.int64)
        )
    )


def test_what_a_model_keeps_of_one_row_does_not_meet_the_next(make, federation):
    process = make(silo=KeepsAMean, sampling=federation.full_batches())
    keep = federation.subject != 3
    start = process.initialize()
    found = [
        moved(process, start, process.next(start, data).state)[0]
        for data in (federation.datasets(), federation.datasets(keep))
    ]
    # Every other person adds the same as before.
    bound = sum(
        0.7 / process.plan.divisors[i] / 4 for i in range(4) if federation.rows_of(i, ~keep).any()
    )
    assert 0 < np.linalg.norm(found[0] - found[1]) <= bound * (1 + 1e-5)


def test_a_layer_with_a_running_statistic_is_refused(make, spec):
    class Running(tf.keras.layers.Layer):
        def build(self, shape):
            self.kept = self.add_weight("kept", [], trainable=False)

        def call(self, inputs):
            self.kept.assign_add(tf.reduce_mean(inputs))
            return inputs

    def silo():
        layers = [tf.keras.Input([3]), Running(), tf.keras.layers.Dense(2)]
        return sdp.federated.KerasSilo(tf.keras.Sequential(layers), "mse", spec)

    refused("in training the model writes to", ValueError, make, silo=silo)


def test_only_sums_that_add_up_where_noises_must(make, federation):
    def secure(bound):
        factory = tff.aggregators.SecureSumFactory(upper_bound_threshold=bound)
        return {"optimizers": {"sum_factory": factory}}

    sigma = {"noise_multiplier": 4.0}
    needed = max((f.n_items + 9.5 * 4.0) * 0.7 / f.batch_size for f in make(**sigma).plan.facts)
    make(view="average", **sigma, **secure(needed * 1.001))
    refused(
        "may cut off a silo's noise",
        ValueError,
        make,
        view="average",
        **sigma,
        **secure(needed * 0.999),
    )
    make(view="updates", **sigma, **secure(0.01))
    make(noise_at="server", **sigma, **secure(0.01))
    zeroing = {"sum_factory": tff.aggregators.zeroing_factory(9.0, tff.aggregators.SumFactory())}
    for where in ({"noise_at": "server"}, {"view": "average"}):
        refused("not known to add up", ValueError, make, optimizers=zeroing, **sigma, **where)
    mean = {"sum_factory": tff.aggregators.UnweightedMeanFactory()}
    refused("the plan's constant does that", TypeError, make, optimizers=mean)


def test_counts_can_be_left_out_and_the_statement_says_what_the_server_sees(make, federation):
    process = make(counts=False)
    assert "without noise" not in process.statement(process.initialize())
    output = process.next(process.initialize(), federation.datasets())
    assert output.metrics["took_part"].tolist() == [1] * 4
    assert all(np.all(np.asarray(v) == 0) for v in output.metrics["silos"].values())
    loud = make()
    assert "without noise" in " ".join(loud.statement(loud.initialize()).split())


def test_rounds_of_several_threads_are_all_counted(noisy, federation):
    process = noisy()
    state, data = process.initialize(), federation.datasets()
    together = threading.Barrier(6)

    def round_(errors):
        together.wait()
        try:
            process.next.run(state, data, lambda s, e: Output(s))
        except ValueError as error:
            errors.append(str(error))

    errors = []
    threads = [threading.Thread(target=round_, args=(errors,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert process.spent(state).rounds == 4 and len(errors) == 2
    assert all("used up" in error for error in errors)


class Output(collections.namedtuple("Output", ["state"])):
    """What a round returns, of which the state alone matters here."""


def test_another_run_on_the_same_people_is_counted_beside(noisy, federation):
    data = federation.datasets()
    first, second = noisy(), noisy()
    one, other = first.initialize(), second.initialize()
    for _ in range(2):
        one, _ = first.next(one, data)
    other, _ = second.next(other, data)
    assert second.spent(one).rounds == 3 and first.spent(one).rounds == 2
    joined, _ = second.next(one, data)
    assert second.spent(joined).rounds == sdp.federated.spent_in(joined).rounds == 4
    assert second.spent(one).rounds == 4  # known by now


def test_a_state_of_another_plan_has_no_epsilon_here(noisy, quiet):
    for asked in (quiet.epsilon, quiet.statement, quiet.spent):
        with pytest.raises(ValueError, match="made under another plan"):
            asked(noisy().initialize())


def test_whoever_calls_the_computation_itself_is_held_to_the_plan(noisy, federation):
    process = noisy()
    spec = process.parts.input_spec
    entry = silo_data.tagged(0, silo_data.silo_tensors(federation.arrays(0), spec, "0"))
    state = process.initialize()
    with pytest.raises(Exception, match="not one of the plan"):
        process.next.computation(state, [entry, entry])
    for _ in range(4):
        state, _ = process.next.computation(state, [entry])
    assert process.spent(state) == (4, (4, 0, 0, 0))
    with pytest.raises(Exception, match="not one of the plan"):
        process.next.computation(state, [entry])


def test_an_asynchronous_context_of_tff_serves_as_well(noisy, federation, installed):
    process = noisy()
    state = process.initialize()
    with installed(tff.backends.native.create_async_local_cpp_execution_context()):
        output = run(process.next(state, federation.datasets()))
    assert sdp.federated.spent_in(output.state).rounds == 1


@pytest.mark.parametrize("ignored", [False, True])
def test_tffs_worker_ends_with_python_also_where_interrupts_are_ignored(tmp_path, ignored):
    """As under nohup, and in the background jobs of a shell."""
    code = (
        "import signal, tf_subjectdp as sdp, tensorflow_federated as tff\n"
        f"{'signal.signal(signal.SIGINT, signal.SIG_IGN)' if ignored else ''}\n"
        "sdp.federated.build_process\n"
        "assert tff.tensorflow.computation(lambda: 3)() == 3\n"
        "stack = tff.framework.get_context_stack().current.executor_factory._executor_stack_fn\n"
        "found = [getattr(c.cell_contents, '_process', None) for c in stack.__closure__]\n"
        "print(*[process.pid for process in found if process])\n"
        "del stack, found\n"
    )
    output = tmp_path / "output"
    with output.open("w") as file:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=file, stderr=file, check=False, timeout=120
        )
    text = output.read_text()
    assert done.returncode == 0 and "Exception" not in text, text
    pid = int(text.split()[-1])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_bad_data_are_refused_before_anything_is_spent(quiet, federation):
    state, good = quiet.initialize(), federation.arrays(0)
    before = quiet.spent(state)
    batched = tf.data.Dataset.from_tensor_slices(good).batch(4)
    for data, match in (
        ([good] * 3, "data of 3 silos were passed, and the plan has 4"),
        ({"9": good}, r"there are no silos \['9'\]"),
        ({"0": batched}, "it is batched"),
        ({"0": {"x": good["x"], "y": good["y"]}}, "must have x, y and subject_id"),
        ({"0": {**good, "x": good["x"][:, :2]}}, "the model takes"),
        ({"0": {**good, "x": good["x"].astype(int)}}, "cast it in the dataset"),
        ({"0": {**good, "subject_id": good["subject_id"][1:]}}, "subject ids"),
        ({"0": {**good, "subject_id": [None] * len(good["y"])}}, "silo '0'"),
        ({"0": 3}, "of type int"),
        ({"0": good, 0: good}, "two entries are of one silo"),
        ({"0": tf.data.Dataset.from_tensor_slices(good).repeat()}, "never ends"),
        (good["x"], "pass a list with one dataset a silo"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            quiet.next(state, data)
    assert quiet.spent(state) == before


def run(coroutine):
    import asyncio

    return asyncio.new_event_loop().run_until_complete(coroutine)


def test_ids_of_unlike_types_are_refused_in_this_and_later_rounds(make, federation):
    process = make(rounds=6, silos_per_round=2, minimum_silos=1)
    state = process.initialize()
    data = {str(i): federation.arrays(i) for i in range(4)}
    texts = {
        name: {**one, "subject_id": one["subject_id"].astype(str)} for name, one in data.items()
    }
    mixed = {"0": data["0"], "1": texts["1"]}
    refused("'0' has integer ids and silo '1' has string", TypeError, process.next, state, mixed)
    state, _ = process.next(state, {"0": data["0"]})
    refused("'0' has integer", TypeError, process.next, state, {"2": texts["2"]})
    nan = {**texts["0"], "subject_id": np.where(data["0"]["subject_id"] == 3, "nan", "a")}
    with pytest.warns(UserWarning, match="the subject ids have 'nan', which reads like a missing"):
        refused("'1' has integer", TypeError, process.next, state, {"0": nan, "1": data["1"]})
    state, _ = process.next(state, {"1": data["1"]})
    assert process.spent(state).rounds == 2
