# SPDX-License-Identifier: Apache-2.0
"""The same federated plan in one process and over several TFF workers, and a worker that is killed.

A made-up table of people who have records in several silos (say, patients in hospitals); one epsilon
protects a person in all of them. The plan is run twice: by TFF in this process, and with the silos dealt
to worker processes on loopback ports. Then a worker is killed in the middle of a round: the round fails
with an error that says what it cost, the state before it is intact, and the next does without the worker.

    python examples/remote_silos.py            # about a minute on 2 cores
    python examples/remote_silos.py --small    # a quick look
"""

import argparse
import collections
import logging
import textwrap
import threading
import time

import numpy as np
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp.federated.remote import RemoteSiloError, RemoteSilos
from tf_subjectdp.federated.workers import LocalWorkers

FEATURES, CLASSES = 16, 3
DELTA = 1e-4
# A public bound on a person's records in one silo.
MAX_RECORDS = 8


class Table:
    """Records (x, y) of people who go to one, two or three silos."""

    def __init__(self, people: int, silos: int, seed: int = 0):
        rng = np.random.default_rng(seed)
        visits = [
            (person, silo)
            for person in range(people)
            for silo in rng.choice(silos, size=rng.integers(1, min(3, silos) + 1), replace=False)
        ]
        counts = rng.integers(1, MAX_RECORDS + 1, len(visits))
        self.person, self.silo = np.repeat(visits, counts, axis=0).T
        rule = rng.standard_normal((FEATURES, CLASSES))
        self.x, self.y = self._records(rng, rule, len(self.person))
        self.x_test, self.y_test = self._records(rng, rule, 4000)
        self.stats = sdp.SiloStats.from_ids(self.person, self.silo)

    @staticmethod
    def _records(rng, rule, n: int):
        x = rng.standard_normal((n, FEATURES)).astype(np.float32)
        return x, np.argmax(x @ rule + 0.5 * rng.standard_normal((n, CLASSES)), axis=1)

    def datasets(self) -> dict[str, dict]:
        """Each silo's own rows."""
        return {
            str(silo): collections.OrderedDict(
                x=self.x[self.silo == silo],
                y=self.y[self.silo == silo],
                subject_id=self.person[self.silo == silo],
            )
            for silo in self.stats.names
        }


def make_model() -> tf.keras.Model:
    start = tf.keras.initializers.GlorotUniform
    return tf.keras.Sequential(
        [
            tf.keras.Input([FEATURES]),
            tf.keras.layers.Dense(32, activation="relu", kernel_initializer=start(seed=1)),
            tf.keras.layers.Dense(CLASSES, kernel_initializer=start(seed=2)),
        ]
    )


def make_silo() -> sdp.federated.KerasSilo:
    return sdp.federated.KerasSilo(
        make_model(),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        (tf.TensorSpec([None, FEATURES], tf.float32), tf.TensorSpec([None], tf.int64)),
    )


def make_process(table: Table, rounds: int, local_steps: int):
    """A fresh process: each counts what it releases itself."""
    plan = sdp.federated.plan(
        sdp.HiGradAvg(clip_norm=1.0),
        sdp.PoissonItems(128),
        table.stats,
        rounds=rounds,
        local_steps=local_steps,
        epsilon=8.0,
        delta=DELTA,
        silos_per_subject=min(3, table.stats.n_silos),
        minimum_silos=max(1, table.stats.n_silos // 2),
        max_items_per_subject=MAX_RECORDS,
    )
    process = sdp.federated.build_process(
        make_silo, plan, client_optimizer=tf.keras.optimizers.SGD(0.5)
    )
    return plan, process


def accuracy(process, state, table: Table) -> float:
    """On records of people who are in no silo."""
    model = make_model()
    process.get_model_weights(state).assign_weights_to(model)
    scores = model(table.x_test).numpy()
    return float(np.mean(np.argmax(scores, axis=1) == table.y_test))


def train(process, next_round, state, table: Table, rounds: int):
    """The last state, and (accuracy, epsilon, seconds) of each round."""
    datasets, rows = table.datasets(), []
    for _ in range(rounds):
        began = time.monotonic()
        state, _ = next_round(state, datasets)
        seconds = time.monotonic() - began
        rows.append((accuracy(process, state, table), process.epsilon(state), seconds))
    return state, rows


def comparison(local, remote, workers: int) -> str:
    """The table, as text."""
    head = f"{'':>5}  {'in one process':^26}  {f'on {workers} workers':^26}"
    names = f"{'accuracy':>9} {'epsilon':>8} {'s':>7}"
    lines = [head, f"{'round':>5}  {names}  {names}"]
    lines.append("-" * len(lines[-1]))
    for number, (here, there) in enumerate(zip(local, remote, strict=True), start=1):
        columns = [f"{a:>9.3f} {epsilon:>8.3f} {s:>7.2f}" for a, epsilon, s in (here, there)]
        lines.append(f"{number:>5}  {columns[0]}  {columns[1]}")
    notes = [
        "Both start from the same weights and draw batches and noise of their own, so that accuracies",
        "are alike and not the same. In the first round of each, TFF prepares its computations. The",
        "workers share this machine's cores: more of them are not faster here.",
    ]
    return "\n".join([*lines, *notes])


def kill_in_a_round(process, remote, workers, victim: int, state, table: Table, after: float):
    """Runs a round in which a worker dies; True if that failed, as it should."""
    before = process.get_model_weights(state).trainable
    epsilon = process.epsilon(state)
    timer = threading.Timer(after, workers.kill, [victim])
    timer.start()
    try:
        remote.next(state, table.datasets())
    except RemoteSiloError as error:
        print(textwrap.fill(f"RemoteSiloError: {error}", 96, break_long_words=False))
        after_it = process.get_model_weights(state).trainable
        same = all(np.array_equal(a, b) for a, b in zip(before, after_it, strict=True))
        print(f"\nweights of the state before the round unchanged: {same}")
        print(
            f"epsilon {epsilon:.3f} before the round, {process.epsilon(state):.3f} after it failed"
        )
        return True
    finally:
        timer.join()
    print("the round was over before the worker was killed; try again with more --local-steps")
    return False


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=3, help="worker processes")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each run")
    parser.add_argument("--silos", type=int, default=8)
    parser.add_argument("--local-steps", type=int, default=100, help="steps of a silo in a round")
    parser.add_argument("--small", action="store_true", help="fewer people, for a quick look")
    options = parser.parse_args(argv)
    # Who is left out of a round is in the log.
    logging.basicConfig()
    began = time.monotonic()

    table = Table(300 if options.small else 3000, options.silos)
    # Two further rounds: one that fails, and counts, and one without a worker.
    arguments = (table, options.rounds + 2, options.local_steps)
    plan, process = make_process(*arguments)
    print(f"{table.stats}\n\n{plan}\n")
    _, local = train(process, process.next, process.initialize(), table, options.rounds)

    plan, process = make_process(*arguments)
    with LocalWorkers(options.workers) as workers:
        print(f"workers: {', '.join(workers.targets)}\n")
        with RemoteSilos(process, workers.targets) as remote:
            state, far = train(process, remote.next, remote.initialize(), table, options.rounds)
            print(comparison(local, far, options.workers))
            victim = options.workers - 1
            print(f"\nworker {workers.targets[victim]} is killed in the middle of a round\n")
            failed = kill_in_a_round(
                process, remote, workers, victim, state, table, after=0.5 * far[-1][2]
            )
        if failed and options.workers > 1:
            print("\nthe next round, with on_failure='leave_out'\n", flush=True)
            with RemoteSilos(process, workers.targets, on_failure="leave_out") as remote:
                state, metrics = remote.next(state, table.datasets())
            print(f"\nsilos that took part: {int(metrics['took_part'].sum())} of {plan.n_silos}")
            print(f"accuracy {accuracy(process, state, table):.3f}")
            print(f"epsilon {process.epsilon(state):.3f} of {plan.epsilon():.3f}")
            print(f"rounds of each silo: {process.spent(state).of_silos}")
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
