# SPDX-License-Identifier: Apache-2.0
"""Course ratings in 14 departments: one epsilon for each student, over all departments together.

InstEval again (see insteval.py: `rating >= 4`, logistic regression on lecturer and department), and
now no department shows its ratings to another: the departments are the silos of a federation. A
student rates courses in 5.5 of them on average, so what each department releases adds up.

Every algorithm is run twice: with the noise that keeps epsilon 4 for a student, and with the noise
that the papers' own rules choose for "epsilon 4", whose true epsilon the table then says.

    python examples/federated_insteval.py              # everything, 4 minutes on 2 cores
    python examples/federated_insteval.py --small      # three algorithms, 4 rounds: a minute

It needs TensorFlow Federated: Python 3.11 and requirements/py311.txt.
"""

import argparse
import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
from insteval import make_model

import tf_subjectdp as sdp
from tf_subjectdp import accounting, datasets
from tf_subjectdp.accounting import paper_rules
from tf_subjectdp.federated import partition

# A public bound on the ratings of one student in one department: further ones are dropped at random.
MAX_RATINGS = 10
# Every step sees this share of a department's ratings, or of its students.
RATE = 0.25
# Z: so many ratings of one student count in a step of LocalGroupDP and CentralSubDP.
GROUP = 2
LECTURERS, DEPARTMENTS = 1128, 14


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all runs share.

    Attributes:
      rounds: R.
      local_steps: T, where the departments add the noise; with noise at the server it is one.
      epsilon, delta: the promise to a student.
    """

    rounds: int
    local_steps: int
    epsilon: float
    delta: float


@dataclasses.dataclass(frozen=True)
class Way:
    """One algorithm in the federation.

    Attributes:
      algorithm: the clipping rule; None for FedAvg without privacy.
      learning_rate: the departments', or the server's where the server adds the noise.
      rule: by what the papers choose the noise, in words; and
      noise: the noise multiplier that it gives for a setting.
      by_student: whether a step draws students with all their ratings, or single ratings.
      noise_at: "silo" or "server".
    """

    algorithm: sdp.Algorithm | None
    learning_rate: float
    rule: str = ""
    noise: Callable[[Setting], float] | None = None
    by_student: bool = False
    noise_at: str = "silo"


@dataclasses.dataclass(frozen=True)
class Result:
    """One row of the table and one line of the figure.

    Attributes:
      name: of the algorithm.
      chosen_by: what the noise was chosen by.
      honest: whether the plan kept the promise.
      sigma: the noise multiplier.
      accuracy: on the test ratings, at the end; auc: after every round.
      epsilon: of a student, after every round, as the plan promises it.
      membership: by the departments that the students are really in: the largest, the median, and
        whether the median is exact. Looks at the data.
      seconds: of the training.
    """

    name: str
    chosen_by: str
    honest: bool
    sigma: float
    accuracy: float
    auc: list[float]
    epsilon: list[float]
    membership: tuple[float, float, bool] | None
    seconds: float


# -- the papers' noise -----------------------------------------------------------------------------


def published(rule: str, **arguments) -> float:
    """What a published rule gives. (`paper_rules.paper_*` gives the same, with a warning.)"""
    return paper_rules.compare_rule(rule, **arguments).published


def counted_rounds(setting: Setting) -> int:
    """The rounds of ONE silo for which the papers choose the noise.

    They cut them to R = floor(rounds / sqrt(silos)) where a person may be in all silos.
    """
    return next(
        rounds
        for rounds in itertools.count(setting.rounds)
        if published("rounds", rounds=rounds, silos=DEPARTMENTS) >= setting.rounds
    )


def rate_noise(rate: float, central: bool = False) -> Callable[[Setting], float]:
    """The noise for a step that sees a student with this probability."""

    def noise(setting: Setting) -> float:
        return accounting.noise_multiplier(
            lambda sigma: accounting.subject_event(min(rate, 1.0), sigma),
            counted_steps(setting, central),
            epsilon=setting.epsilon,
            delta=setting.delta,
        )

    return noise


def group_noise(central: bool = False) -> Callable[[Setting], float]:
    """The noise of a group of Z ratings that is sampled like ONE rating."""

    def noise(setting: Setting) -> float:
        return published(
            "local_group_noise",
            group=GROUP,
            k=MAX_RATINGS,
            q=RATE,
            steps=counted_steps(setting, central),
            epsilon=setting.epsilon,
            delta=setting.delta,
        )

    return noise


def user_noise(setting: Setting) -> float:
    """UserLDP's condition, which is for one step and does not ask how many there are."""
    return published("userldp_condition", epsilon=setting.epsilon, delta=setting.delta)


def counted_steps(setting: Setting, central: bool) -> int:
    """With noise at the server there is one release a round, and no cut."""
    return setting.rounds if central else counted_rounds(setting) * setting.local_steps


def higradavg_rate(text: int) -> float:
    """The rate at which a text takes a student to be sampled."""
    return published("higradavg_rate", q=RATE, k=MAX_RATINGS, text=text)


WAYS = {
    "FedAvg": Way(None, 4.0),
    "LocalItemDP": Way(sdp.ItemDP(0.5), 1.5, "item rate q", rate_noise(RATE)),
    "LocalGroupDP": Way(
        sdp.GroupDP(0.5, max_items_per_subject=GROUP), 1.5, f"group Z = {GROUP}", group_noise()
    ),
    "HiGradAvgDP 2022": Way(
        sdp.HiGradAvg(0.5), 4.0, "rate q (2022)", rate_noise(higradavg_rate(2022))
    ),
    "HiGradAvgDP 2023": Way(
        sdp.HiGradAvg(0.5, normalization="expected_subjects"),
        1.5,
        "rate k q (2023)",
        rate_noise(higradavg_rate(2023)),
    ),
    "SubjectDP": Way(sdp.SubjectDP(0.5), 1.5, "R / sqrt(s)", rate_noise(RATE), by_student=True),
    "UserLDP": Way(sdp.UserLDP(0.1), 0.02, "condition", user_noise),
    "CentralSubDP": Way(
        sdp.GroupDP(0.5, max_items_per_subject=GROUP),
        8.0,
        f"group Z = {GROUP}",
        group_noise(central=True),
        noise_at="server",
    ),
    "central HiGradAvg": Way(
        sdp.HiGradAvg(0.5),
        15.0,
        "rate q (2022)",
        rate_noise(higradavg_rate(2022), central=True),
        noise_at="server",
    ),
}
SMALL = ("FedAvg", "HiGradAvgDP 2022", "CentralSubDP")


# -- training --------------------------------------------------------------------------------------


def load(seed: int):
    """The departments' ratings, and test ratings by students whom no department has seen."""
    data = datasets.insteval()
    # Where the two ones of insteval_one_hot are: small enough to go to the silos every round.
    x = np.stack([data.x["lecturer"], LECTURERS + data.x["department"]], axis=1)
    y = datasets.insteval_binary(data.y)
    train, test = datasets.split_subjects(data.subject_id, seed=seed)
    silo, names = partition.natural(data.silo_id[train])
    silos = partition.split(x[train], y[train], data.subject_id[train], silo, names)
    stats = sdp.SiloStats.from_ids(data.subject_id[train], data.silo_id[train])
    return silos, stats, (x[test], y[test])


def model_fn() -> sdp.federated.KerasSilo:
    """insteval.py's logistic regression, with the one-hot encoding inside."""
    features = LECTURERS + DEPARTMENTS
    inputs = tf.keras.Input([2], dtype="int32")
    one_hot = tf.reduce_sum(tf.one_hot(inputs, features), axis=1)
    model = tf.keras.Model(inputs, make_model(features)(one_hot))
    spec = (tf.TensorSpec([None, 2], tf.int32), tf.TensorSpec([None], tf.float32))
    return sdp.federated.KerasSilo(model, "binary_crossentropy", spec)


def scores(weights, test) -> tuple[float, float]:
    """Accuracy and AUC of the logistic regression."""
    (kernel, bias), (x, y) = weights, test
    logits = kernel[:, 0][x].sum(axis=1) + bias[0]
    positive = y > 0.5
    _, place, times = np.unique(logits, return_inverse=True, return_counts=True)
    rank = (np.cumsum(times) - 0.5 * (times - 1))[place]
    n = int(positive.sum())
    auc = (rank[positive].sum() - 0.5 * n * (n + 1)) / (n * (len(y) - n))
    return float(np.mean((logits > 0.0) == positive)), float(auc)


def plan_of(way: Way, stats: sdp.SiloStats, setting: Setting, **promise):
    """A plan in which all departments sample at the same rate, so that they cost alike."""
    bounded = stats.bounded(MAX_RATINGS)
    sizes = [bounded.silo(i) for i in range(stats.n_silos)]
    if way.by_student:
        sampling = [sdp.PoissonSubjects(RATE * size.n_subjects) for size in sizes]
    else:
        sampling = [sdp.PoissonItems(RATE * size.n_items) for size in sizes]
    return sdp.federated.plan(
        way.algorithm,
        sampling,
        stats,
        rounds=setting.rounds,
        local_steps=1 if way.noise_at == "server" else setting.local_steps,
        delta=setting.delta,
        noise_at=way.noise_at,
        max_items_per_subject=MAX_RATINGS,
        **promise,
    )


def train(plan, way: Way, silos, test):
    """Runs all rounds; returns the accuracy at the end, and AUC and epsilon after every round."""
    if way.noise_at == "server":
        optimizers = {"server_optimizer": tf.keras.optimizers.SGD(way.learning_rate, momentum=0.9)}
    else:
        optimizers = {
            "client_optimizer": tf.keras.optimizers.SGD(way.learning_rate),
            "server_optimizer": tf.keras.optimizers.SGD(2.0, momentum=0.9),
        }
    process = sdp.federated.build_process(model_fn, plan, **optimizers)
    state = process.initialize()
    found, epsilon = [], []
    for _ in range(plan.rounds):
        state, _ = process.next(state, silos)
        found.append(scores(process.get_model_weights(state).trainable, test))
        epsilon.append(process.epsilon(state))
    return found[-1][0], [auc for _, auc in found], epsilon


def membership(plan, stats: sdp.SiloStats) -> tuple[float, float, bool]:
    """epsilon by the departments that students are really in: largest, median, whether it is exact.

    Computed from the data: for those who hold them, not for release.
    """
    if plan.noise_at == "server":
        # One noise on the sum is as good as a share of it from each of the silos.
        share = plan.noise_multipliers[0] / math.sqrt(plan.n_silos)

        def event_of(ratings: int):
            if isinstance(plan.algorithm, sdp.HiGradAvg):
                return accounting.higradavg_event(RATE, ratings, share)
            return accounting.group_event(RATE, ratings, share, GROUP)

        silo = accounting.Silo(
            event_of(MAX_RATINGS), rounds=plan.rounds, noised_once=True, event_of_items=event_of
        )
        together = accounting.HorizontalPlan([silo] * plan.n_silos, view="average")
        counts = stats.bounded(MAX_RATINGS).counts
        found = together.per_subject_epsilon(counts, delta=plan.delta)
    else:
        found = plan.per_subject_epsilon()
    return found.worst, found.quantile(0.5), bool(found.exact.all())


def run(name: str, way: Way, setting: Setting, data, *, honest: bool) -> Result:
    """One row: with the noise that keeps the promise, or with that of the papers."""
    silos, stats, test = data
    if way.algorithm is None:
        chosen_by, promise = "-", {}
    elif honest:
        chosen_by, promise = f"epsilon {setting.epsilon:g}", {"epsilon": setting.epsilon}
    else:
        chosen_by, promise = f"paper: {way.rule}", {"noise_multiplier": way.noise(setting)}
    plan = plan_of(way, stats, setting, **promise)
    began = time.monotonic()
    accuracy, auc, epsilon = train(plan, way, silos, test)
    seconds = time.monotonic() - began
    known = None if way.algorithm is None else membership(plan, stats)
    sigma = plan.noise_multipliers[0]
    result = Result(name, chosen_by, honest, sigma, accuracy, auc, epsilon, known, seconds)
    print(
        f"{name:<18} {chosen_by:<22} noise {sigma:8.2f}   AUC {auc[-1]:.3f}   "
        f"epsilon {shown(epsilon[-1])}",
        flush=True,
    )
    return result


# -- what comes out --------------------------------------------------------------------------------


def shown(epsilon: float) -> str:
    """Rounded up: of epsilon the larger figure is the safe one."""
    return f"{math.ceil(epsilon * 100.0 - 1e-6) / 100.0:.2f}" if epsilon < math.inf else "infinite"


def table(results, setting: Setting) -> str:
    """The table, as text."""
    head = (
        f"{'algorithm':<18} {'noise chosen by':<22} {'noise':>8} {'accuracy':>9} {'AUC':>6} "
        f"{'epsilon':>9} {'worst':>8} {'median':>8} {'seconds':>8}"
    )
    lines = [head, "-" * len(head)]
    for r in results:
        worst = median = "-"
        if r.membership is not None:
            worst, median = shown(r.membership[0]), shown(r.membership[1])
            median += "" if r.membership[2] else "*"
        lines.append(
            f"{r.name:<18} {r.chosen_by:<22} {r.sigma:>8.2f} {r.accuracy:>9.3f} {r.auc[-1]:>6.3f} "
            f"{shown(r.epsilon[-1]):>9} {worst:>8} {median:>8} {r.seconds:>8.0f}"
        )
    epsilon = f"{setting.epsilon:g}"
    notes = [
        f"epsilon: what the plan promises to a student, who may be in every department; delta = "
        f"{setting.delta:g}.",
        "worst, median: the same run for the students in the table, by the departments and the numbers",
        "of ratings that they really have. Computed from the data: NOT FOR RELEASE. (*: an upper bound.)",
        f"paper: noise that the papers' rules choose for epsilon {epsilon} of a student (LocalItemDP: of",
        "one rating; SubjectDP: only the cut of the rounds is theirs). Where the departments add the",
        f"noise, it is for {counted_rounds(setting)} rounds of one department, of which R / sqrt(s) "
        f"leaves {setting.rounds}.",
        "noise: noise multiplier, standard deviation / clip norm, in every department or at the server.",
        "accuracy, AUC: of ratings by students not seen in training; one run each, so that differences",
        "of up to 0.03 are noise. Clip norms and learning rates were chosen by hand, with these in",
        "sight: each pair of rows shares them.",
    ]
    return "\n".join([*lines, *notes])


def draw(results, setting: Setting, path: Path) -> None:
    """AUC over the rounds, and what the papers' noise really costs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (quality, cost) = pyplot.subplots(1, 2, figsize=(13, 5), layout="constrained")
    names = list(dict.fromkeys(r.name for r in results))
    colour = {name: "black" if name == "FedAvg" else f"C{i}" for i, name in enumerate(names)}
    for r in results:
        rounds = np.arange(1, len(r.auc) + 1)
        if r.honest:
            quality.plot(rounds, r.auc, color=colour[r.name], label=r.name)
        else:
            quality.plot(rounds, r.auc, ":", color=colour[r.name])
            cost.plot(rounds, r.epsilon, ":", color=colour[r.name])
    epsilon = f"{setting.epsilon:g}"
    quality.set(xlabel="round", ylabel="AUC on unseen students")
    quality.set_title(f"solid: true epsilon {epsilon}; dotted: the papers' noise for it")
    cost.axhline(setting.epsilon, color="black", linewidth=1)
    at = {"xytext": (0, -12), "textcoords": "offset points", "ha": "right"}
    cost.annotate("what the papers state", (setting.rounds, setting.epsilon), **at)
    cost.set(xlabel="round", ylabel="true epsilon of a student", yscale="log")
    cost.set_title(f"what the papers' noise for epsilon {epsilon} costs")
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rounds", type=int, help="R (30; 4 with --small)")
    add("--local-steps", type=int, default=2, help="T, steps of a department in a round")
    add("--epsilon", type=float, default=4.0, help="the promise to a student")
    add("--delta", type=float, default=1e-4)
    add("--algorithms", nargs="+", choices=list(WAYS), metavar="NAME", help=", ".join(WAYS))
    add("--small", action="store_true", help="a minute: " + ", ".join(SMALL) + ", 4 rounds")
    split = "which students are held out for the test; draws and noise are always fresh"
    add("--seed", type=int, default=0, help=split)
    add("--output", type=Path, default=Path("out/federated_insteval"))
    options = parser.parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    rounds = options.rounds or (4 if options.small else 30)
    setting = Setting(rounds, options.local_steps, options.epsilon, options.delta)
    data = load(options.seed)
    print(data[1], end="\n\n")
    results = []
    for name in options.algorithms or (SMALL if options.small else WAYS):
        way = WAYS[name]
        results.append(run(name, way, setting, data, honest=True))
        if way.noise is not None:
            results.append(run(name, way, setting, data, honest=False))

    text = table(results, setting)
    (options.output / "table.txt").write_text(text + "\n", encoding="utf-8")
    draw(results, setting, options.output / "rounds.png")
    positive = float(np.mean(data[2][1]))
    print(f"\n{text}\n\nmost common answer: accuracy {max(positive, 1.0 - positive):.3f}")
    print(f"wrote {options.output}/ (table, figure) in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
