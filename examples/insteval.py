# SPDX-License-Identifier: Apache-2.0
"""Course ratings by students, trained so that one epsilon protects each student.

InstEval: 73,421 ratings by 2,972 students. The task is `rating >= 4`, on students who were not seen in
training. Three ways: without privacy; with `ItemDP`, whose epsilon covers one rating; and with
`HiGradAvg`, `GroupDP` and `SubjectDP`, whose epsilon covers all ratings of a student. The table then says
for each run what it promises to a rating AND to a student.

    python examples/insteval.py                # everything, under 4 minutes on 2 cores
    python examples/insteval.py --steps 30     # a quick look
"""

import argparse
import dataclasses
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp import datasets

# A public bound on the ratings of one student: further ones are dropped at random, before training.
MAX_RATINGS = 50


@dataclasses.dataclass(frozen=True)
class Way:
    """One way of training: a rule, who is in a step, and an optimizer that suits both."""

    algorithm: object
    sampling: object
    unit: str
    learning_rate: float


@dataclasses.dataclass(frozen=True)
class Result:
    """One row of the table; epsilons of 0 steps of privacy are infinite."""

    name: str
    unit: str
    epsilon_item: float
    epsilon_student: float
    accuracy: float
    auc: float
    target: float | None = None


def load():
    """Training and test ratings; no student is in both."""
    data = datasets.insteval()
    x = datasets.insteval_one_hot(data)
    y = datasets.insteval_binary(data.y)
    train, test = datasets.split_subjects(data.subject_id)
    return (x[train], y[train], data.subject_id[train]), (x[test], y[test])


def make_model(features: int) -> tf.keras.Model:
    """Logistic regression on lecturer and department, which is what these data support."""
    inputs = tf.keras.Input([features])
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(inputs))


def compile_arguments() -> dict:
    return {
        "loss": "binary_crossentropy",
        "metrics": [tf.keras.metrics.BinaryAccuracy("accuracy"), tf.keras.metrics.AUC(name="auc")],
    }


def ways(stats: sdp.SubjectStats) -> dict[str, Way]:
    """The private ways. Averages over a student's ratings are small, so their clip norms are too."""
    students = sdp.PoissonSubjects(0.1 * stats.n_subjects)
    ratings = sdp.PoissonItems(2048)
    return {
        "ItemDP": Way(sdp.ItemDP(clip_norm=1.0), ratings, "item", 4.0),
        "GroupDP": Way(
            sdp.GroupDP(clip_norm=0.5, max_items_per_subject=4), ratings, "subject", 1.0
        ),
        "HiGradAvg": Way(
            sdp.HiGradAvg(clip_norm=0.3, normalization="expected_subjects"),
            students,
            "subject",
            4.0,
        ),
        "SubjectDP": Way(sdp.SubjectDP(clip_norm=0.1), students, "subject", 4.0),
    }


def train_without_privacy(train, test, epochs: int, verbose: int) -> Result:
    (x, y, _), (x_test, y_test) = train, test
    model = make_model(x.shape[1])
    model.compile(optimizer=tf.keras.optimizers.Adam(0.01), **compile_arguments())
    model.fit(x, y, batch_size=512, epochs=epochs, verbose=verbose)
    scores = model.evaluate(x_test, y_test, batch_size=4096, verbose=0, return_dict=True)
    return Result("none", "-", np.inf, np.inf, scores["accuracy"], scores["auc"])


def train_privately(name, way, train, test, stats, arguments):
    """Plans, compiles, fits and evaluates one way at one epsilon."""
    epsilon, delta, steps, verbose = arguments
    (x, y, student), (x_test, y_test) = train, test
    plan = sdp.plan(
        way.algorithm,
        way.sampling,
        stats,
        steps=steps,
        epsilon=epsilon,
        delta=delta,
        unit=way.unit,
        max_items_per_subject=MAX_RATINGS,
    )
    print(f"\n{name}, epsilon {epsilon:g} per {'rating' if way.unit == 'item' else 'student'}")
    model = sdp.PrivateModel(make_model(x.shape[1]))
    inner = tf.keras.optimizers.SGD(way.learning_rate, momentum=0.9)
    model.compile(optimizer=plan.optimizer(inner), **compile_arguments())
    model.fit(plan.dataset(x, y, student), callbacks=[sdp.PrivacyScalars()], verbose=verbose)
    scores = model.evaluate(x_test, y_test, batch_size=4096, verbose=0, return_dict=True)
    spent = {unit: plan.epsilon(unit=unit) for unit in ("item", "subject")}
    unit = "student" if way.unit == "subject" else "rating"
    result = Result(
        name, unit, spent["item"], spent["subject"], scores["accuracy"], scores["auc"], epsilon
    )
    return result, model


def table(results, delta: float) -> str:
    """The table, as text."""
    head = (
        f"{'algorithm':<10} {'protects':<9} {'epsilon per rating':>19} {'epsilon per student':>20} "
        f"{'accuracy':>9} {'AUC':>6}"
    )
    lines = [head, "-" * len(head)]
    for r in results:
        item, student = (
            f"{value:.2f}" if np.isfinite(value) else "infinite"
            for value in (r.epsilon_item, r.epsilon_student)
        )
        lines.append(
            f"{r.name:<10} {r.unit:<9} {item:>19} {student:>20} {r.accuracy:>9.3f} {r.auc:>6.3f}"
        )
    notes = [
        f"delta = {delta:g}; accuracy and AUC on students not seen in training; one run each, so that",
        "differences of about 0.01 are noise. Clip norms and learning rates were chosen by hand, with",
        "these accuracies in sight. An epsilon per rating above the one per student is no error: it is",
        "for one rating of a student who stays, counted as replacing the student, which is more than",
        "adding or removing one.",
    ]
    return "\n".join([*lines, *notes])


def draw(results, majority: float, path: Path) -> None:
    """Accuracy against epsilon, each way at the epsilon that it promises."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name in dict.fromkeys(r.name for r in results if r.target):
        points = sorted((r.target, r.accuracy) for r in results if r.name == name)
        unit = next(r.unit for r in results if r.name == name)
        style = "--" if unit == "rating" else "-"
        axes.plot(*zip(*points, strict=True), style, marker="o", label=f"{name} (per {unit})")
    for r in results:
        if not r.target:
            axes.axhline(r.accuracy, color="black", linewidth=1, label="without privacy")
    axes.axhline(majority, color="grey", linestyle=":", label="most common answer")
    axes.set_xscale("log", base=2)
    ticks = sorted({r.target for r in results if r.target})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set(xlabel="epsilon promised to the unit", ylabel="accuracy on unseen students")
    axes.set_title("InstEval: what one epsilon buys, per rating and per student")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[8.0, 4.0, 2.0])
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--steps", type=int, default=150, help="steps of each private run")
    parser.add_argument(
        "--algorithms", nargs="+", help="a part of ItemDP GroupDP HiGradAvg SubjectDP"
    )
    parser.add_argument("--output", type=Path, default=Path("out/insteval"))
    parser.add_argument("--verbose", type=int, default=1, help="as in Keras's fit")
    options = parser.parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    train, test = load()
    stats = sdp.SubjectStats.from_ids(train[2])
    print(stats)
    print("\nwithout privacy")
    results = [train_without_privacy(train, test, epochs=5, verbose=options.verbose)]
    model = None
    for name, way in ways(stats).items():
        if options.algorithms and name not in options.algorithms:
            continue
        for epsilon in options.epsilons:
            arguments = (epsilon, options.delta, options.steps, options.verbose)
            result, model = train_privately(name, way, train, test, stats, arguments)
            results.append(result)

    majority = max(np.mean(test[1]), 1.0 - np.mean(test[1]))
    text = table(results, options.delta)
    (options.output / "table.txt").write_text(text + "\n", encoding="utf-8")
    if model is not None:
        model.save(options.output / "model.keras")
        statement = model.privacy_statement()
        (options.output / "statement.txt").write_text(statement + "\n", encoding="utf-8")
        print(f"\nof the last run, whose model is saved:\n\n{statement}")
    print(f"\n{text}\n\nmost common answer: accuracy {majority:.3f}")
    draw(results, float(majority), options.output / "accuracy.png")
    print(f"wrote {options.output}/ (table, figure, statement, model) in ", end="")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
