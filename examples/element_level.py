# SPDX-License-Identifier: Apache-2.0
"""Element level against subject level on digits, in the shape of Figures 2 and 3 of Asi, Duchi, Javidi.

"Element Level Differential Privacy" (arXiv:1912.04042): every image belongs to one of K = 100 elements,
k-means clusters of features; a user has images of 5, 30 or 100 of them; one epsilon protects one element
of a user (all of its images replaced), or the whole user. Two models: the last layer on fixed features,
and a small CNN. The users are made of a data set without any (`elements.pseudo_users`).

    python examples/element_level.py --small                   # minutes on 2 cores
    python examples/element_level.py --dataset fashion_mnist
    python examples/element_level.py --data digits.npz         # without a download

What is public: a quarter of the training images, drawn at random and used without their labels, from
which filters, features and clusters are made; and K, the users' number, items and elements. Users get
images of the other three quarters. Where the images of a user's elements run out they are dealt anew:
then several users have a copy, each an item of its own.

Epsilons are honest, which changes the paper's picture. Its Proposition 2 (i) lets the sampling of
subjects amplify the promise to an element; it does not, as the subject's other elements show the coin.
So the elements are sampled here, each with a coin of its own, in few and large steps. The tables have
what the other samplings would cost, and the paper's figure beside. Clip norms and the rule of the
learning rates were chosen by hand, with --small on 11,728 digits and test accuracies in sight: a choice
that no epsilon covers, made for both levels alike.
"""

import argparse
import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
from digit_images import CLASSES, load

import tf_subjectdp as sdp
from tf_subjectdp import accounting, elements
from tf_subjectdp.accounting import paper_rules

PUBLIC_PART = 0.25


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `--small` changes: users, their items, clusters, share of the data in a step, widths."""

    users: int = 500
    items: int = 100
    clusters: int = 100
    share: float = 0.2
    steps: int = 30
    cnn_steps: int = 45
    convolutions: tuple[int, int] = (16, 32)
    most_rows: int = 10**9


SMALL = Settings(users=200, steps=20, cnn_steps=15, convolutions=(8, 16), most_rows=20_000)


@dataclasses.dataclass(frozen=True)
class Task:
    """A model, its data, and what each level's clip norm and learning rate come from.

    Attributes:
      reach: how far a step goes at most, where all clipped averages point one way.
      noise_limit: reach times noise per clipped average stays below it: shorter steps in much noise.
    """

    name: str
    make_model: Callable[[], tf.keras.Model]
    x: np.ndarray
    x_test: np.ndarray
    steps: int
    clip_norms: dict[str, float]
    reach: dict[str, float]
    noise_limit: float


@dataclasses.dataclass(frozen=True)
class Users:
    """Pseudo-users: rows of the private images, whose they are, and of which element."""

    elements_each: int
    rows: np.ndarray
    user: np.ndarray
    element: np.ndarray
    stats: sdp.SubjectStats

    @property
    def mean_elements(self) -> float:
        return self.stats.elements.n_elements / self.stats.n_subjects


@dataclasses.dataclass(frozen=True)
class Result:
    """One row of the table of accuracies; `published` and `really` suppose that subjects are sampled."""

    task: str
    elements_each: int
    level: str
    sampling: str
    target: float
    noise: float
    epsilon_element: float | None
    epsilon_subject: float | None
    published: float | None
    really: float | None
    accuracy: float


class PatchFeatures:
    """Fixed features of images: public patches as filters, pooled, their principal components.

    Args:
      images: PUBLIC images, float32 [n, 28, 28, 1] in [0, 1]; labels are not needed.
      filters: how many patches of 5 x 5.
      width: most features of an image; each image's have norm 1.
    """

    def __init__(self, images: np.ndarray, filters: int = 32, width: int = 64):
        rng = np.random.default_rng(1)
        patches = []
        while len(patches) < filters:
            down, right = rng.integers(0, images.shape[1] - 4, 2)
            patch = images[rng.integers(len(images)), down : down + 5, right : right + 5]
            patch = patch - patch.mean()
            if np.linalg.norm(patch) > 0.5:  # most patches of a digit are black
                patches.append(patch / np.linalg.norm(patch))
        self.kernel = np.stack(patches, axis=-1).astype(np.float32)
        pooled = self._pooled(images)
        self.mean = pooled.mean(axis=0)
        _, sizes, axes = np.linalg.svd(pooled - self.mean, full_matrices=False)
        width = min(width, int(np.sum(sizes > 1e-3 * sizes[0])))
        # Half-way to white: strong components stay stronger.
        scales = np.sqrt(sizes[:width] / math.sqrt(len(images)))
        self.projection = (axes[:width] / scales[:, None]).T.astype(np.float32)

    def __call__(self, images) -> np.ndarray:
        features = (self._pooled(np.asarray(images)) - self.mean) @ self.projection
        return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-6)

    def _pooled(self, images: np.ndarray) -> np.ndarray:
        parts = []
        for low in range(0, len(images), 1000):
            flow = tf.nn.conv2d(images[low : low + 1000], self.kernel, 1, "VALID")
            flow = tf.nn.avg_pool2d(tf.nn.relu(flow - 0.2), 6, 6, "VALID")
            parts.append(tf.reshape(flow, [flow.shape[0], -1]).numpy())
        return np.concatenate(parts)


def make_last_layer(width: int) -> tf.keras.Model:
    inputs = tf.keras.Input([width])
    return tf.keras.Model(inputs, tf.keras.layers.Dense(CLASSES)(inputs), name="last_layer")


def make_cnn(convolutions: tuple[int, int]) -> tf.keras.Model:
    """Two convolutions and a dense layer; tanh, whose gradients are bounded, suits clipping."""
    inputs = tf.keras.Input([28, 28, 1])
    flow = inputs
    for filters, size in zip(convolutions, (5, 3), strict=True):
        flow = tf.keras.layers.Conv2D(filters, size, strides=2, activation="tanh")(flow)
    flow = tf.keras.layers.Flatten()(flow)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(CLASSES)(flow), name="cnn")


def compile_arguments() -> dict:
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return {"loss": loss, "metrics": ["accuracy"]}


def accuracy_of(model, x: np.ndarray, y: np.ndarray) -> float:
    return float(model.evaluate(x, y, batch_size=2048, verbose=0, return_dict=True)["accuracy"])


def make_users(element_id: np.ndarray, elements_each: int, settings: Settings) -> Users:
    """Users with items of at most `elements_each` elements; the same ones for both levels."""
    dealt = elements.pseudo_users(
        element_id,
        n_users=settings.users,
        items_per_user=settings.items,
        elements_per_user=min(elements_each, len(np.unique(element_id))),
        when_empty="copy",
        seed=elements_each,
    )
    stats = sdp.SubjectStats.from_ids(dealt.users, dealt.elements)
    return Users(elements_each, dealt.rows, dealt.users, dealt.elements, stats)


def most_elements(users: Users, settings: Settings) -> int:
    """M: a public bound, since a user has `items` items of `elements_each` elements."""
    return min(users.elements_each, settings.items)


def make_plan(level, sampling, users, share, settings, *, clip_norm=1.0, **promise):
    """A plan that promises epsilon to an element (by one of three samplings), or to a user.

    An item's coin amplifies an element of up to k items less, so there k is bounded: twice the mean.
    """
    stats, most = users.stats, most_elements(users, settings)
    cap = 2 * math.ceil(settings.items / most) if sampling == "items" else None
    sampler = {
        "elements": sdp.PoissonElements(share * stats.elements.n_elements),
        "items": sdp.PoissonItems(share * stats.n_items),
        "subjects": sdp.PoissonSubjects(share * stats.n_subjects),
    }[sampling]
    if level == "element":
        algorithm = sdp.ElementDP(clip_norm, max_elements=most, max_items_per_element=cap)
    else:
        algorithm = sdp.SubjectDP(clip_norm)
    return sdp.plan(algorithm, sampler, stats, unit=level, **promise)


def by_the_paper(users, share, noise, settings, promise):
    """The paper's epsilon per element of this noise where subjects are sampled, and the honest one."""
    return paper_rules.compare_rule(
        "element_amplification",
        p=share,
        noise_multiplier=noise,
        steps=promise["steps"],
        delta=promise["delta"],
        elements=most_elements(users, settings),
    )


def train_without_privacy(task: Task, users: Users, y, y_test, verbose: int) -> Result:
    """Plain Keras and Adam on the same images: what the model can learn."""
    model = task.make_model()
    model.compile(optimizer=tf.keras.optimizers.Adam(0.005), **compile_arguments())
    data = tf.data.Dataset.from_tensor_slices((task.x[users.rows], y[users.rows]))
    data = data.shuffle(len(users.rows)).repeat().batch(128).take(800)
    model.fit(data, verbose=verbose)
    score = accuracy_of(model, task.x_test, y_test)
    nothing = (None, None, None, None)
    return Result(task.name, users.elements_each, "none", "-", np.inf, 0.0, *nothing, score)


def train_privately(task, level, sampling, users, labels, epsilon, settings, options):
    """Plans, compiles, fits and evaluates one way of one task; the paper's figure beside."""
    y, y_test = labels
    clip_norm = task.clip_norms[level]
    promise = {"steps": task.steps, "epsilon": epsilon, "delta": options.delta}
    plan = make_plan(
        level, sampling, users, settings.share, settings, clip_norm=clip_norm, **promise
    )
    ids, shown = [users.user], (None, None)
    if level == "element":
        ids.append(users.element)
        rule = by_the_paper(users, settings.share, plan.noise_multiplier, settings, promise)
        shown = rule.published, rule.honest
    # A step is `reach` long if all clipped averages point one way; less where noise would rule it.
    means = expected_means(plan, users) if level == "element" else plan.facts.expected_subjects
    reach = min(task.reach[level], task.noise_limit * means / plan.noise_multiplier)
    rate = reach * plan.facts.expected_subjects / (means * clip_norm)
    model = sdp.PrivateModel(task.make_model())
    model.compile(optimizer=plan.optimizer(tf.keras.optimizers.SGD(rate)), **compile_arguments())
    data = plan.dataset(task.x[users.rows], y[users.rows], *ids)
    model.fit(data, verbose=options.verbose)
    result = Result(
        task.name,
        users.elements_each,
        level,
        sampling,
        epsilon,
        plan.noise_multiplier,
        plan.epsilon(unit="element") if level == "element" else None,
        plan.epsilon(unit="subject"),
        *shown,
        accuracy_of(model, task.x_test, y_test),
    )
    print(
        f"{task.name}: {users.elements_each} elements a user, epsilon {epsilon:g} per {level}, "
        f"{sampling} sampled: accuracy {result.accuracy:.3f}",
        flush=True,
    )
    return result, model


def expected_means(plan, users: Users) -> float:
    """Clipped averages in a step, on average: what the noise is spread over."""
    if not isinstance(plan.sampling, sdp.PoissonItems):
        return plan.facts.rate * users.stats.elements.n_elements
    _, sizes = np.unique(np.stack([users.user, users.element]), axis=1, return_counts=True)
    sizes = np.minimum(sizes, plan.algorithm.max_items_per_element)
    return float(-np.expm1(sizes * np.log1p(-min(plan.facts.rate, 1.0 - 1e-12))).sum())


def sampling_table(users: Users, settings: Settings, options, steps: int) -> str:
    """What one honest epsilon per element costs by each sampling, at the same share of data a step."""
    head = (
        f"{'epsilon':>7} {'share':>6} {'sampled':<9} {'noise':>8} {'averages a step':>16} "
        f"{'noise per average':>18}"
    )
    lines = [head, "-" * len(head)]
    for epsilon in options.epsilons:
        for share in sorted({settings.share / 4, settings.share, 1.0}):
            rows = []
            for sampling in ("subjects", "elements", "items"):
                promise = {"steps": steps, "epsilon": epsilon, "delta": options.delta}
                plan = make_plan("element", sampling, users, share, settings, **promise)
                means = expected_means(plan, users)
                rows.append((plan.noise_multiplier / means, sampling, plan.noise_multiplier, means))
            least = min(rows)[0]
            all_same = max(rows)[0] < 1.001 * least
            for each, sampling, noise, means in rows:
                mark = "  cheapest" if each == least and not all_same else ""
                lines.append(
                    f"{epsilon:>7g} {share:>6.3g} {sampling:<9} {noise:>8.2f} {means:>16.1f} "
                    f"{each:>18.5f}{mark}"
                )
    lines.append(
        f"ElementDP, {users.elements_each} elements a user, {steps} steps, delta = {options.delta:g}; "
        "noise in clip norms.\nAn average of sampled items is over fewer items, so that it is noisier "
        "itself, and items above\ntwice an element's mean are dropped there. At share 1 all are one."
    )
    return "\n".join(lines)


def paper_rows(users, settings, options, steps):
    """(target, share, the paper's noise, its honest epsilon) where SUBJECTS are sampled."""
    rows = []
    for target in options.epsilons:
        for share in sorted({settings.share / 4, settings.share / 2, settings.share, 0.5}):
            noise = accounting.noise_multiplier(
                lambda sigma, share=share: accounting.subject_event(share, sigma / 2.0),
                steps,
                epsilon=target,
                delta=options.delta,
            )
            promise = {"steps": steps, "delta": options.delta}
            rule = by_the_paper(users, share, noise, settings, promise)
            rows.append((target, share, noise, rule.honest))
    return rows


def paper_table(rows) -> str:
    head = f"{'epsilon by the paper':>20} {'share':>6} {'its noise':>10} {'honest epsilon':>15}"
    lines = [head, "-" * len(head)]
    for target, share, noise, honest in rows:
        lines.append(f"{target:>20g} {share:>6.3g} {noise:>10.2f} {_shown(honest):>15}")
    lines.append("subjects sampled; noise set by the paper's Proposition 2 (i), per element")
    return "\n".join(lines)


def table(results, delta: float) -> str:
    """Accuracies and epsilons, as text; epsilons are rounded up."""
    head = (
        f"{'model':<11} {'elements':>8} {'protects':<9} {'sampled':<9} {'noise':>7} "
        f"{'eps element':>11} {'eps subject':>11} {'paper':>8} {'in truth':>8} {'accuracy':>8}"
    )
    lines = [head, "-" * len(head)]
    for r in results:
        lines.append(
            f"{r.task:<11} {r.elements_each:>8} {r.level:<9} {r.sampling:<9} {r.noise:>7.2f} "
            f"{_shown(r.epsilon_element):>11} {_shown(r.epsilon_subject):>11} "
            f"{_shown(r.published):>8} {_shown(r.really):>8} {r.accuracy:>8.3f}"
        )
    lines += [
        f"delta = {delta:g}; one run each: differences of 0.02 are noise. eps element: one element of a",
        "user replaced; eps subject: a user added or removed (of ElementDP: with its bound on a user's",
        "elements). paper: what Proposition 2 (i) says of this noise where SUBJECTS are sampled at the",
        "same share; in truth: what holds per element then.",
        *_verdicts(results),
    ]
    return "\n".join(lines)


def _verdicts(results) -> list[str]:
    """Where one level beats the other by more than the noise of one run."""
    found = {
        (r.task, r.elements_each, r.target, r.level): r.accuracy
        for r in results
        if r.sampling == "elements" or r.level == "subject"
    }
    lines = []
    for (task, each, target, level), accuracy in found.items():
        other = found.get((task, each, target, "subject"))
        if level != "element" or other is None:
            continue
        gap = accuracy - other
        word = "element level wins" if gap > 0.02 else "subject level wins"
        word = "no clear winner" if abs(gap) <= 0.02 else word
        lines.append(f"{task}, {each} elements, epsilon {target:g}: {word} ({gap:+.3f})")
    return lines


def _shown(epsilon: float | None) -> str:
    if epsilon is None:
        return "-"
    return f"{np.ceil(epsilon * 100.0 - 1e-6) / 100.0:.2f}" if np.isfinite(epsilon) else "infinite"


def draw(results, of_paper, path: Path) -> None:
    """Accuracy by elements a user, a panel a model; then the honest epsilon of the paper's noise."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = list(dict.fromkeys(r.task for r in results))
    figure, axes = pyplot.subplots(
        1, len(tasks) + 1, figsize=(4.6 * (len(tasks) + 1), 4.2), layout="constrained"
    )
    targets = sorted({r.target for r in results if np.isfinite(r.target)})
    for ax, task in zip(axes, tasks, strict=False):
        ticks = sorted({r.elements_each for r in results})
        for number, target in enumerate(targets):
            for level, style in (("element", "-"), ("subject", "--")):
                sampling = "elements" if level == "element" else "subjects"
                wanted = (task, target, level, sampling)
                points = sorted(
                    (r.elements_each, r.accuracy)
                    for r in results
                    if (r.task, r.target, r.level, r.sampling) == wanted
                )
                label = f"epsilon {target:g} per {level}"
                if points:
                    ax.plot(
                        *zip(*points, strict=True),
                        style,
                        marker="o",
                        color=f"C{number}",
                        label=label,
                    )
        for r in results:
            if r.task == task and r.level == "none":
                ax.axhline(r.accuracy, color="black", linewidth=1, label="without privacy")
        ax.set_xscale("log")
        ax.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
        ax.set_xticks([], minor=True)
        ax.set(xlabel="elements a user", ylabel="test accuracy", title=task)
        ax.legend(fontsize="small")
    for number, target in enumerate(targets):
        points = sorted((share, honest) for at, share, _, honest in of_paper if at == target)
        axes[-1].plot(*zip(*points, strict=True), marker="o", color=f"C{number}", label="honest")
        axes[-1].axhline(
            target, color=f"C{number}", linestyle=":", label=f"by the paper: {target:g}"
        )
    axes[-1].set_yscale("log")
    axes[-1].set(xlabel="share of the subjects in a step", ylabel="epsilon per element")
    axes[-1].set_title("noise by the paper's rule, subjects sampled")
    axes[-1].legend(fontsize="small")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def parse(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--small", action="store_true", help="200 users, a smaller CNN, fewer steps and images")
    add("--dataset", choices=("mnist", "fashion_mnist"), default="mnist")
    add(
        "--data",
        type=Path,
        help="a local copy: .npz with x_train, y_train, x_test, y_test; or x, y",
    )
    add("--tasks", nargs="+", choices=("last-layer", "cnn"), default=["last-layer", "cnn"])
    add("--epsilons", type=float, nargs="+", default=[1.0, 3.0], help="honest, per unit")
    add("--delta", type=float, default=1e-4, help="the promise's other number, below 1 / users")
    add("--elements", type=int, nargs="+", default=[5, 30, 100], help="elements a user, at most")
    for name in ("users", "items", "clusters", "steps"):
        add(f"--{name}", type=int, help=f"other than {getattr(Settings(), name)}")
    add("--output", type=Path, default=Path("out/element_level"))
    add("--verbose", type=int, default=0, help="as in Keras's fit")
    options = parser.parse_args(argv)
    for name in ("users", "items", "clusters", "steps"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} {value} must be at least 1")
    if min(options.elements) < 1:
        parser.error(f"--elements {min(options.elements)} must be at least 1")
    if min(options.epsilons) <= 0:
        parser.error(f"--epsilons {min(options.epsilons):g} must be above 0")
    options.elements = sorted(set(options.elements))
    return options


def make_tasks(names, x, x_test, features: PatchFeatures, settings: Settings) -> list[Task]:
    made = []
    if "last-layer" in names:
        flat, flat_test = features(x), features(x_test)
        made.append(
            Task(
                "last layer",
                lambda: make_last_layer(flat.shape[1]),
                flat,
                flat_test,
                settings.steps,
                {"element": 0.3, "subject": 0.1},
                {"element": 10.0, "subject": 3.0},
                0.25,
            )
        )
    if "cnn" in names:
        made.append(
            Task(
                "cnn",
                lambda: make_cnn(settings.convolutions),
                x,
                x_test,
                settings.cnn_steps,
                {"element": 0.3, "subject": 0.1},
                {"element": 3.0, "subject": 3.0},
                0.02,
            )
        )
    return made


def main(argv=None) -> None:
    options = parse(argv)
    began = time.monotonic()
    settings = SMALL if options.small else Settings()
    given = {name: getattr(options, name) for name in ("users", "items", "clusters", "steps")}
    given = {name: value for name, value in given.items() if value is not None}
    if "steps" in given:
        given["cnn_steps"] = given["steps"]
    settings = dataclasses.replace(settings, **given)
    options.output.mkdir(parents=True, exist_ok=True)

    (x, y), (x_test, y_test) = load(options.dataset, options.data)
    order = np.random.default_rng(2).permutation(len(x))[: settings.most_rows]
    public, private = np.split(order, [round(PUBLIC_PART * len(order))])
    x_test, y_test = x_test[: settings.most_rows // 4], y_test[: settings.most_rows // 4]
    features = PatchFeatures(x[public])
    clusters = elements.KMeansElements(settings.clusters, feature_extractor=features)
    clusters.fit(x[public], public=True, seed=0)
    x, y = x[private], y[private]
    element_id = clusters.element_ids(x)
    print(f"{len(public)} public images, {len(x)} for the users, {len(x_test)} to test with")
    print(clusters.provenance)

    everybody = {each: make_users(element_id, each, settings) for each in options.elements}
    middle = everybody[options.elements[len(options.elements) // 2]]
    for users in everybody.values():
        print(f"\n{users.stats}\non average      {users.mean_elements:.1f} elements a user")
    costs = sampling_table(middle, settings, options, settings.steps)
    of_paper = paper_rows(middle, settings, options, settings.steps)
    print(f"\n{costs}\n\n{paper_table(of_paper)}\n", flush=True)

    results, model = [], None
    tasks = make_tasks(options.tasks, x, x_test, features, settings)
    for task in tasks:
        results.append(train_without_privacy(task, middle, y, y_test, options.verbose))
        for users in everybody.values():
            for epsilon in options.epsilons:
                ways = [("element", "elements"), ("subject", "subjects")]
                if task is tasks[0] and users is middle and epsilon == min(options.epsilons):
                    ways[1:1] = [("element", "subjects"), ("element", "items")]
                for level, sampling in ways:
                    result, trained = train_privately(
                        task, level, sampling, users, (y, y_test), epsilon, settings, options
                    )
                    results.append(result)
                    if level == "element":
                        model = trained
    text = "\n\n".join([table(results, options.delta), costs, paper_table(of_paper)])
    (options.output / "table.txt").write_text(text + "\n", encoding="utf-8")
    statement = f"{model.privacy_statement()}\n{clusters.provenance}\n"
    (options.output / "statement.txt").write_text(statement, encoding="utf-8")
    draw(results, of_paper, options.output / "accuracy.png")
    print(f"\n{table(results, options.delta)}\n\nof the last run at element level:\n\n{statement}")
    print(f"wrote {options.output}/ (tables, figure, statement) in ", end="")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
