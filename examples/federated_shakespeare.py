# SPDX-License-Identifier: Apache-2.0
"""Next-character prediction over 16 silos, so that one epsilon protects each role of the plays.

The task and the model of shakespeare.py: 80 characters in, the next one out; an embedding of 8, two
LSTM layers of 256, dense over the vocabulary. What a role says is spread over 16 silos by the power
distribution of the papers on subject-level privacy: with alpha = 1 every silo has some of everybody,
with a large alpha a role crowds into a few silos of its own. Wherever they are, epsilon is for all
silos together: a role may be in every one.

    python examples/federated_shakespeare.py --small                     # 2 minutes on 2 cores
    python examples/federated_shakespeare.py --small --algorithm none    # FedAvg, to compare
    python examples/federated_shakespeare.py --alpha 16                  # the papers' model: 6 hours

It needs TensorFlow Federated: Python 3.11 and requirements/py311.txt. Clip norms and learning rates
were chosen with `--small`, by looking at held-out accuracy, a choice that epsilon does not cover;
for the papers' model nothing was tried.
"""

import argparse
import dataclasses
import math
import time
from pathlib import Path

import numpy as np
import shakespeare
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp import datasets
from tf_subjectdp.federated import partition

SILOS = 16


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `--small` changes.

    Attributes:
      model: LSTM layers, context and strides, as in shakespeare.py.
      max_windows: public bound on a role's windows in ONE silo; further ones are dropped at random.
      role_rate: the share of a silo's roles that a step sees, where roles are drawn; and
      windows_a_role: the most windows that each of them brings to a step, drawn at random.
      window_rate: the share of a silo's windows that a step sees, where windows are drawn.
      rounds, local_steps: R and T.
      rate_scale: factor on the learning rates.
    """

    model: shakespeare.Settings
    max_windows: int = 1000
    role_rate: float = 0.05
    windows_a_role: int = 32
    window_rate: float = 0.01
    rounds: int = 100
    local_steps: int = 2
    rate_scale: float = 0.25


FULL = Settings(dataclasses.replace(shakespeare.Settings(), stride=4, test_stride=64))
SMALL = Settings(
    dataclasses.replace(shakespeare.SMALL, test_stride=80),
    max_windows=200,
    role_rate=0.1,
    windows_a_role=16,
    window_rate=0.02,
    rounds=30,
    rate_scale=1.0,
)


@dataclasses.dataclass(frozen=True)
class Way:
    """A clipping rule, what a step draws, and a learning rate that fits both.

    Attributes:
      algorithm: None for FedAvg without privacy.
      draws: "roles" or "windows".
      learning_rate: of the silos.
      windows: factor on the settings' windows a role.
    """

    algorithm: sdp.Algorithm | None
    draws: str
    learning_rate: float
    windows: float = 1.0


WAYS = {
    # Nothing is clipped, so that larger steps diverge.
    "none": Way(None, "windows", 3.0),
    "subject": Way(sdp.SubjectDP(0.4), "roles", 4.0),
    # Clips every window before it averages: short averages, so more noise in comparison.
    "higradavg": Way(sdp.HiGradAvg(0.5, "expected_subjects"), "roles", 4.0, windows=0.25),
    # Rules of which the noise grows with a role's windows: a role has up to max_windows in a silo.
    "group": Way(sdp.GroupDP(0.5, max_items_per_subject=2), "windows", 0.3),
    "item": Way(sdp.ItemDP(0.5), "windows", 0.1),
    "user": Way(sdp.UserLDP(0.5), "windows", 0.001),
}


def load(settings: Settings, alpha: float, people: int | None, seed: int):
    """The silos' windows, who has how many where, and held-out windows of the same roles."""
    model = settings.model
    train, test = (
        datasets.shakespeare(split, stride=stride, max_subjects=people, seed=seed)
        for split, stride in (("train", model.stride), ("test", model.test_stride))
    )
    x, x_test = (part.x[:, -model.context :] for part in (train, test))
    silo = partition.power(train.subject_id, SILOS, alpha, seed=seed)
    silos = partition.split(x, train.y, train.subject_id, silo, range(SILOS))
    # A plan has no silos without rows, which a few people may leave.
    silos = {name: rows for name, rows in silos.items() if len(rows["y"])}
    stats = sdp.SiloStats.from_ids(train.subject_id, silo)
    return silos, stats, (x_test, test.y)


def plan_of(way: Way, stats: sdp.SiloStats, settings: Settings, epsilon: float, delta: float):
    """A plan in which all silos sample at the same rate, so that they cost alike."""
    bounded = stats.bounded(settings.max_windows)
    windows = max(int(way.windows * settings.windows_a_role), 1)
    sampling = []
    for i in range(stats.n_silos):
        size = bounded.silo(i)
        if way.draws == "roles":
            sampling.append(sdp.PoissonSubjects(settings.role_rate * size.n_subjects, windows))
        else:
            sampling.append(sdp.PoissonItems(settings.window_rate * size.n_items))
    return sdp.federated.plan(
        way.algorithm,
        sampling,
        stats,
        rounds=settings.rounds,
        local_steps=settings.local_steps,
        epsilon=None if way.algorithm is None else epsilon,
        delta=delta,
        max_items_per_subject=settings.max_windows,
    )


def build(way: Way, plan, settings: Settings):
    """The process, and a Keras model that its weights fit, to look at them."""

    def model_fn():
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        x = tf.TensorSpec([None, settings.model.context], tf.uint8)
        y = tf.TensorSpec([None], tf.int32)
        return sdp.federated.KerasSilo(shakespeare.make_model(settings.model), loss, (x, y))

    process = sdp.federated.build_process(
        model_fn,
        plan,
        client_optimizer=tf.keras.optimizers.SGD(way.learning_rate * settings.rate_scale),
        server_optimizer=tf.keras.optimizers.SGD(1.0, momentum=shakespeare.MOMENTUM),
    )
    model = shakespeare.make_model(settings.model)
    model.compile(**shakespeare.compile_arguments())
    return process, model


def train(process, model, silos, test, log):
    """Runs all rounds, says after each what was learnt and what it cost; returns the last state."""

    def show(state, figures) -> None:
        model.set_weights(process.get_model_weights(state).trainable)
        accuracy = shakespeare.accuracy_on(model, *test)
        loss = f"{figures['loss']:.3f}" if "loss" in figures else "-"
        print(
            f"{figures['round']:>5}  accuracy {accuracy:.3f}  training loss {loss}  "
            f"epsilon {shown(figures['epsilon'])}",
            flush=True,
        )

    state = process.initialize()
    return sdp.federated.run(process, state, silos, log=log, on_round=show)


def shown(epsilon: float) -> str:
    """Rounded up: of epsilon the larger figure is the safe one."""
    return f"{math.ceil(epsilon * 100.0 - 1e-6) / 100.0:.2f}" if epsilon < math.inf else "infinite"


def parse(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    small = "one LSTM of 64 on 20 characters, every 8th window, 30 rounds: minutes on 2 cores"
    add("--small", action="store_true", help=small)
    add("--algorithm", choices=list(WAYS), default="subject", help="(default: subject)")
    add("--alpha", type=float, default=4.0, help="of the power distribution, from 1 (default: 4)")
    add("--epsilon", type=float, default=8.0, help="the promise to a role, over all silos")
    add("--delta", type=float, default=1e-4, help="the promise's other number, below 1 / roles")
    add("--rounds", type=int, help="R (100; 30 with --small)")
    add("--local-steps", type=int, help="T, steps of a silo in a round (2)")
    people = "so many roles, drawn at random: all others are left out, and fewer hide one less well"
    add("--people", type=int, help=people)
    seed = "which silo holds which window, and which roles; draws and noise are always fresh"
    add("--seed", type=int, default=0, help=seed)
    add("--output", type=Path, default=Path("out/federated_shakespeare"))
    return parser.parse_args(argv)


def main(argv=None) -> None:
    options = parse(argv)
    began = time.monotonic()
    settings = SMALL if options.small else FULL
    given = {"rounds": options.rounds, "local_steps": options.local_steps}
    settings = dataclasses.replace(settings, **{k: v for k, v in given.items() if v is not None})
    options.output.mkdir(parents=True, exist_ok=True)

    silos, stats, test = load(settings, options.alpha, options.people, options.seed)
    print(f"{stats}\n")
    way = WAYS[options.algorithm]
    plan = plan_of(way, stats, settings, options.epsilon, options.delta)
    print(f"{plan}\n\nmost common character: accuracy {most_common(silos, test):.3f}", flush=True)

    process, model = build(way, plan, settings)
    path = options.output / f"{options.algorithm}.csv"
    path.unlink(missing_ok=True)
    with sdp.federated.RoundLog(process, csv=path, progress=False) as log:
        state = train(process, model, silos, test, log)
    model.save(options.output / f"{options.algorithm}.keras")
    statement = process.statement(state)
    path = options.output / f"{options.algorithm}_statement.txt"
    path.write_text(statement + "\n", encoding="utf-8")
    print(f"\nwrote {options.output}/ (rounds, statement, model)", end="")
    print(f" in {time.monotonic() - began:.0f} s\n\n{statement}")


def most_common(silos, test) -> float:
    """Accuracy of always the same answer."""
    y = np.concatenate([rows["y"] for rows in silos.values()])
    return float(np.mean(test[1] == np.bincount(y).argmax()))


if __name__ == "__main__":
    main()
