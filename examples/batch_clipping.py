# SPDX-License-Identifier: Apache-2.0
"""What is clipped, the items, the batch, or parts of it: accuracy and epsilon of LeNet-5 on digits.

In the shape of Table 3 of van Dijk, Nguyen, Nguyen and Nguyen (arXiv:2212.05796): individual clipping
(`ItemDP`), batch clipping and mixed clipping; batches of a fixed size, of Poisson-sampled items, and of
shuffled epochs; 64 to 1024 items; sigma 2. Every row has the same number of epochs, and says what it
promises to one item and to a group of g items, a person's, against two adversaries: A0, the usual one,
who sees every noised update; and the paper's A1, who also knows in which batches the items were.

    python examples/batch_clipping.py --small       # half-size images: minutes on 2 cores
    python examples/batch_clipping.py               # the whole table: hours on 2 cores
    python examples/batch_clipping.py --small --data digits.npz      # no download
    python examples/batch_clipping.py --small --batch-sizes 64 --clipping batch --sampling shuffle

The paper's sigma is the noise's deviation over 2 C, and so is `noise_multiplier` of `BatchClipping` and
`MixedClipping`. ItemDP's counts in C: here it is given 2 sigma, which is the same noise.

Four more rows, all of batch clipping with shuffling, have what only a clipped part or batch allows, or
what the paper adds: momentum SGD inside the batch, BatchNormalization, a falling clip norm, and epochs
of half of the items (the paper claims a factor of two for the last; none is proven, none is counted).

Clip norms and learning rates were chosen with `--small`, with held-out accuracies in sight; epsilon
does not cover that choice. In the 4 epochs of `--small` (six minutes on two cores) individual clipping
reaches 0.74 to 0.88, mixed 0.68 to 0.70, batch clipping 0.15 to 0.35: it needs far more steps. The
full network, with the same clip norms and rates, comes in 5 shuffled epochs to 0.92 to 0.93 (individual),
0.85 to 0.86 (mixed), 0.20 to 0.26 (batch), and 0.97 without privacy, in a minute a row.
"""

import argparse
import dataclasses
import math
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from digit_images import CLASSES, load

import tf_subjectdp as sdp
from tf_subjectdp.accounting import fdp
from tf_subjectdp.algorithms.part_clipping import adversary_curve

SAMPLINGS = {"fixed": sdp.FixedSize, "poisson": sdp.PoissonItems, "shuffle": sdp.Shuffle}
CLIPPINGS = ("individual", "batch", "mixed")
# What else a row may have, and how the table calls it.
VARIANTS = {
    "inner": "momentum inside",
    "batchnorm": "BatchNormalization",
    "schedule": "falling clip norm",
    "filter": "half an epoch",
}
KEEP = 0.5
# As fdp calls the ways to draw a batch.
_SCHEMES = {"fixed": "subsampling", "poisson": "poisson", "shuffle": "shuffling"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `--small` changes.

    Attributes:
      epochs: E, of every row.
      samplings: how batches are made.
      batch_sizes: items in a step; the last must be a multiple of the others.
      parts: m of mixed clipping.
      halved: whether images are averaged to half their height and width.
      filters, dense: of the convolutions and of the layers behind them.
      inner_steps: optimizer steps on one batch, in the row that has some.
    """

    epochs: int = 10
    samplings: tuple[str, ...] = tuple(SAMPLINGS)
    batch_sizes: tuple[int, ...] = (64, 128, 256, 512, 1024)
    parts: int = 16
    halved: bool = False
    filters: tuple[int, int] = (6, 16)
    dense: tuple[int, ...] = (120, 84)
    inner_steps: int | str = "one an item"


SMALL = Settings(
    epochs=4,
    # Fixed sizes learn as Poisson's do, and cost more.
    samplings=("poisson", "shuffle"),
    batch_sizes=(64, 1024),
    halved=True,
    filters=(4, 8),
    dense=(32,),
    inner_steps=3,
)


@dataclasses.dataclass(frozen=True)
class Way:
    """One row to train.

    Attributes:
      clipping: one of `CLIPPINGS`; "none" for plain Keras.
      sampling: one of `SAMPLINGS`.
      batch_size: items in a step.
      variant: one of `VARIANTS`, or None.
    """

    clipping: str
    sampling: str
    batch_size: int
    variant: str | None = None

    @property
    def name(self) -> str:
        """For files."""
        return "_".join(
            [self.clipping, self.sampling, str(self.batch_size), *filter(None, [self.variant])]
        )


@dataclasses.dataclass(frozen=True)
class Result:
    """One row of the table; epsilons by unit ("item", "group") and adversary ("A0", "A1")."""

    way: Way
    steps: int
    epsilon: dict[tuple[str, str], float]
    accuracy: float


# -- data ------------------------------------------------------------------------------------------


def halved(x: np.ndarray) -> np.ndarray:
    """Means of 2 x 2 pixels."""
    return x.reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2, 1).mean(axis=(2, 4))


# -- models and ways ---------------------------------------------------------------------------------


def make_model(settings: Settings, *, normalised: bool = False) -> tf.keras.Model:
    """LeNet-5 (LeCun et al. 1998), with average pooling and tanh; or with BatchNormalization."""
    layers = tf.keras.layers
    side = 14 if settings.halved else 28
    flow = inputs = tf.keras.Input([side, side, 1])
    for number, filters in enumerate(settings.filters):
        padding = "valid" if number and not settings.halved else "same"
        # The bias, which a normalisation takes away again, keeps the two apart: on some processors
        # TensorFlow 2.14 makes one operation of both and tanh, and then says that there is none.
        flow = layers.Conv2D(filters, 5, padding=padding)(flow)
        if normalised:
            flow = layers.BatchNormalization()(flow)
        flow = layers.AveragePooling2D()(layers.Activation("tanh")(flow))
    flow = layers.Flatten()(flow)
    for units in settings.dense:
        flow = layers.Dense(units, activation="tanh")(flow)
    return tf.keras.Model(inputs, layers.Dense(CLASSES)(flow), name="lenet")


def compile_arguments() -> dict:
    return {
        "loss": tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }


def ways(clippings, samplings, batch_sizes, variants) -> list[Way]:
    """The rows, in the table's order; variants are of batch clipping with shuffled small batches."""
    rows = [
        Way(clipping, sampling, size)
        for clipping in clippings
        for sampling in samplings
        for size in batch_sizes
    ]
    return rows + [Way("batch", "shuffle", batch_sizes[0], variant) for variant in variants]


def plan_of(way: Way, stats: sdp.SubjectStats, settings: Settings, sigma: float, delta: float):
    """The plan: E epochs at the paper's sigma.

    Nothing is dropped and no `max_items_per_subject` given: with one, an item's promise would be for
    replacing it, since another one might take its place.
    """
    if way.variant == "filter":
        sampling = sdp.Shuffle(way.batch_size, keep_probability=KEEP)
    else:
        sampling = SAMPLINGS[way.sampling](way.batch_size)
    steps_per_epoch = -(-stats.n_items // way.batch_size)
    algorithm = algorithm_of(way, settings, settings.epochs * steps_per_epoch)
    # ItemDP counts noise in C, the other two in 2 C, as the paper does.
    multiplier = 2.0 * sigma if way.clipping == "individual" else sigma
    return sdp.plan(
        algorithm, sampling, stats, epochs=settings.epochs, noise_multiplier=multiplier, delta=delta
    )


def algorithm_of(way: Way, settings: Settings, steps: int) -> sdp.Algorithm:
    """The clipping rule. What is clipped is far longer than C, so that its length tells nothing."""
    if way.clipping == "individual":
        return sdp.ItemDP(1.0)
    if way.clipping == "mixed":
        return sdp.MixedClipping(0.1, settings.parts)
    if way.variant == "inner":
        sgd = tf.keras.optimizers.SGD(0.02, momentum=0.9)
        return sdp.BatchClipping(0.01, inner=sdp.InnerOptimizer(sgd, steps=settings.inner_steps))
    if way.variant == "schedule":
        falls = sdp.ClipSchedule.inverse_power(20, 0.5, max(1, steps // 20))
        return sdp.BatchClipping(0.1, clip_schedule=falls)
    # The moving averages of BatchNormalization are clipped and noised together with the gradient, and
    # no learning rate makes their noise smaller: a small C does.
    return sdp.BatchClipping(0.001 if way.variant == "batchnorm" else 0.1)


# How far the noise of all steps together may move a weight, about.
DRIFT = {"individual": 0.15, "batch": 0.3, "mixed": 0.2}
# Of a step without noise, where everything is clipped.
LONGEST_STEP = 4.0


def optimizer(way: Way, plan: sdp.Plan, sigma: float) -> tf.keras.optimizers.Optimizer:
    """SGD; the learning rate falls to 0 unless the clip norm falls: the last steps average the noise.

    A step is a mean over the batch's parts, whose noise has the deviation 2 sigma C / parts. T steps
    add sqrt(T) as much. So the learning rate grows with the parts, up to where steps without noise
    would be too long.
    """
    clip_norm = plan.algorithm.clip_norm
    noise = 2.0 * sigma * clip_norm / plan.divisor
    rate = DRIFT[way.clipping] / (noise * math.sqrt(plan.steps))
    rate = min(rate, LONGEST_STEP / clip_norm)
    if way.variant != "schedule":
        rate = tf.keras.optimizers.schedules.CosineDecay(rate, plan.steps)
    return tf.keras.optimizers.SGD(rate)


# -- training ----------------------------------------------------------------------------------------


def train_without_privacy(train, test, settings: Settings, verbose: int) -> Result:
    """Plain Keras and Adam: what the network can learn in as many epochs."""
    size = settings.batch_sizes[0]
    model = make_model(settings)
    model.compile(optimizer=tf.keras.optimizers.Adam(0.002), **compile_arguments())
    model.fit(*train, batch_size=size, epochs=settings.epochs, verbose=verbose)
    steps = settings.epochs * -(-len(train[0]) // size)
    return Result(Way("none", "shuffle", size), steps, {}, accuracy_on(model, test))


def accuracy_on(model: tf.keras.Model, test) -> float:
    x, y = test
    return float(model.evaluate(x, y, batch_size=1024, verbose=0, return_dict=True)["accuracy"])


def train_privately(way: Way, train, test, person, settings: Settings, options):
    """Plans, compiles, fits and evaluates one row."""
    x, y = train
    stats = sdp.SubjectStats.from_ids(person)
    plan = plan_of(way, stats, settings, options.sigma, options.delta)
    model = sdp.PrivateModel(make_model(settings, normalised=way.variant == "batchnorm"))
    # One backward pass for a batch that is clipped as a whole; "auto" would ask for its norm first.
    engine = {"strategy": "loop" if way.clipping == "batch" else "auto"}
    inner = optimizer(way, plan, options.sigma)
    model.compile(optimizer=plan.optimizer(inner, engine=engine), **compile_arguments())
    model.fit(plan.dataset(x, y, person), verbose=options.verbose)
    accuracy = accuracy_on(model, test)
    epsilon = epsilons(way, plan, options.sigma, options.group, options.delta)
    return Result(way, plan.steps, epsilon, accuracy), model.privacy_statement()


def epsilons(way: Way, plan: sdp.Plan, sigma: float, group: int, delta: float):
    """Epsilon by unit and adversary; a person is a group of `group` items.

    Against A0: the plan's figure, or the one against A1 where that is smaller, since who cannot break a
    promise with more knowledge cannot with less. Shuffled, the plan's is for the worst shuffle, known to
    whoever attacks, so that it holds against A1 as well; mostly the mixture over all shuffles is less.
    """
    figures = {}
    for unit, items in (("item", 1), ("group", group)):
        known = against_a1(way, plan, sigma, items).epsilon(delta)
        planned = plan.epsilon(unit="item" if unit == "item" else "subject")
        least = min(planned, known)
        figures[unit, "A0"] = least
        figures[unit, "A1"] = least if way.sampling == "shuffle" else known
    return figures


def against_a1(way: Way, plan: sdp.Plan, sigma: float, items: int) -> fdp.TradeOff:
    """The trade-off curve for `items` replaced items, against the paper's adversary."""
    if way.clipping == "individual":
        rounds = plan.facts.n_items // way.batch_size  # a whole number: see `whole_batches`
        scheme = fdp.BatchScheme.individual(rounds, way.batch_size, _SCHEMES[way.sampling])
        return fdp.exact_curve(
            scheme, epochs=plan.steps // rounds, noise_multiplier=sigma, group=items
        )
    parts = plan.algorithm.number_of_parts
    return adversary_curve(plan.facts, parts, sigma, steps=plan.steps, group=items)


def whole_batches(train, size: int):
    """The first rows, as many as fill batches of `size`: the paper's N = M m s."""
    x, y = train
    kept = len(x) // size * size
    if not kept:
        raise SystemExit(
            f"{len(x)} images do not fill a batch of {size}; use smaller --batch-sizes."
        )
    return x[:kept], y[:kept]


# -- table and figure ----------------------------------------------------------------------------------

_COLUMNS = (("item", "A0"), ("item", "A1"), ("group", "A0"), ("group", "A1"))


def table(results, settings: Settings, options) -> str:
    """The table, as text; epsilons are rounded up."""
    names = {"item": "item", "group": f"group of {options.group}"}
    titles = [f"{names[unit]}, {adversary}" for unit, adversary in _COLUMNS]
    head = f"{'clipping':<25} {'batches':<8} {'size':>5} {'steps':>6} "
    head += " ".join(f"{title:>15}" for title in titles) + f" {'accuracy':>9}"
    lines = [f"{'':<48}epsilon per", head, "-" * len(head)]
    for r in results:
        what = r.way.clipping
        if r.way.variant:
            what += f", {VARIANTS[r.way.variant]}"
        shown = " ".join(f"{_shown(r.epsilon.get(column)):>15}" for column in _COLUMNS)
        lines.append(
            f"{what:<25} {r.way.sampling:<8} {r.way.batch_size:>5} {r.steps:>6} {shown} "
            f"{r.accuracy:>9.3f}"
        )
    return "\n".join([*lines, *_notes(results, settings, options)])


def _notes(results, settings: Settings, options) -> list[str]:
    lines = [
        f"delta = {options.delta:g}, sigma = {options.sigma:g} (noise deviation over 2 C; ItemDP's "
        f"noise_multiplier counts in C: {2 * options.sigma:g}), {settings.epochs} epochs;",
        "A0 sees every noised update, A1 also knows in which batches the items were. poisson, A0: for",
        "adding or removing items; all others: for replacing them. Accuracy on held-out images, one run",
        "each: where it is low, differences of 0.1 are noise. A clipped batch moves by at most C,",
        "and gets the noise that individual clipping gets for a whole batch of items: it needs",
        "far more steps.",
    ]
    found = {r.way.clipping for r in results} | {r.way.variant for r in results}
    if "mixed" in found:
        lines.append(f"mixed: {settings.parts} parts of a batch are clipped.")
    if "inner" in found:
        steps = settings.inner_steps
        lines.append(
            f"{VARIANTS['inner']}: SGD with momentum 0.9 in the batch, "
            f"{steps if isinstance(steps, str) else f'{steps} steps'}; its update is clipped."
        )
    if "filter" in found:
        lines.append(
            f"{VARIANTS['filter']}: a fresh coin of {KEEP:g} for every item; an epoch has half of "
            "the steps and counts as a whole one."
        )
    return lines


def _shown(epsilon: float | None) -> str:
    if epsilon is None or not np.isfinite(epsilon):
        return "infinite"
    return f"{math.ceil(epsilon * 100.0 - 1e-6) / 100.0:.2f}"


def draw(results, group: int, path: Path) -> None:
    """Accuracy, and epsilon of a group against both adversaries, by the size of the batches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(13, 4.5), layout="constrained")
    colours = dict(zip(CLIPPINGS, ("tab:blue", "tab:orange", "tab:green"), strict=True))
    styles = dict(zip(SAMPLINGS, ("--", ":", "-"), strict=True))
    markers = dict(zip(VARIANTS, "x+*1", strict=True))
    values = (
        ("accuracy on held-out images", lambda r: r.accuracy),
        (f"epsilon of a group of {group}, A0", lambda r: r.epsilon["group", "A0"]),
        (f"epsilon of a group of {group}, A1", lambda r: r.epsilon["group", "A1"]),
    )
    for axes, (title, value) in zip(panels, values, strict=True):
        lines: dict[tuple[str, str], list] = {}
        for r in results:
            if r.way.clipping != "none" and not r.way.variant:
                key = r.way.clipping, r.way.sampling
                lines.setdefault(key, []).append((r.way.batch_size, value(r)))
        for (clipping, sampling), points in lines.items():
            axes.plot(
                *zip(*sorted(points), strict=True),
                styles[sampling],
                color=colours[clipping],
                marker="o",
                label=f"{clipping}, {sampling}",
            )
        sizes = sorted({r.way.batch_size for r in results})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set(xlabel="items in a step", title=title)
    for r in results:
        if r.way.clipping == "none":
            panels[0].axhline(r.accuracy, color="black", linewidth=1, label="without privacy")
        elif r.way.variant:
            marker, label = markers[r.way.variant], f"batch, {VARIANTS[r.way.variant]}"
            panels[0].plot(r.way.batch_size, r.accuracy, marker, color="black", label=label)
    for axes in panels[1:]:
        axes.set_yscale("log")
    panels[0].legend(fontsize="x-small")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


# -- the command -----------------------------------------------------------------------------------------


def parse(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    small = (
        "shrink the task to minutes on 2 cores: images of half the size, 4 and 8 filters and one dense "
        "layer of 32, 4 epochs, batches of 64 and 1024, Poisson or shuffled; still all images"
    )
    add("--small", action="store_true", help=small)
    add("--dataset", choices=("mnist", "fashion_mnist"), default="mnist")
    copy = "a local copy: x_train, y_train, x_test, y_test as in Keras's mnist.npz, or x and y"
    add("--data", type=Path, metavar="FILE.npz", help=copy)
    add("--clipping", nargs="+", choices=CLIPPINGS, default=list(CLIPPINGS))
    drawn = "how batches are made (default: all three; poisson shuffle with --small)"
    add("--sampling", nargs="+", choices=tuple(SAMPLINGS), dest="samplings", help=drawn)
    add("--batch-sizes", type=int, nargs="+", metavar="B", help="the largest must be a multiple")
    further = "further rows of batch clipping (default: all); without a name, none"
    add("--variants", nargs="*", choices=tuple(VARIANTS), default=list(VARIANTS), help=further)
    add("--epochs", type=int, help="of every row (10; 4 with --small)")
    add("--parts", type=int, help="m of mixed clipping (16)")
    add("--sigma", type=float, default=2.0, help="deviation of the noise over 2 C, as in the paper")
    person = "g: so many images, drawn at random, are a person's (up to 32)"
    add("--group", type=int, default=8, help=person)
    add("--delta", type=float, default=1e-5)
    add("--output", type=Path, default=Path("out/batch_clipping"))
    add("--verbose", type=int, default=0, help="as in Keras's fit")
    options = parser.parse_args(argv)
    sizes = options.batch_sizes
    for name in ("epochs", "parts"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} {value} must be at least 1")
    if sizes is not None:
        options.batch_sizes = sizes = sorted(set(sizes))
        if sizes[0] < 1 or any(sizes[-1] % size for size in sizes):
            parser.error(f"--batch-sizes {sizes}: the largest must be a multiple of each other one")
    if not 1 <= options.group <= 32:
        parser.error(f"--group {options.group} must lie in 1..32")
    if not options.sigma > 0.0:
        parser.error(f"--sigma {options.sigma} must be above 0")
    return options


_GIVEN = ("epochs", "samplings", "batch_sizes", "parts")


def main(argv=None) -> None:
    options = parse(argv)
    began = time.monotonic()
    settings = SMALL if options.small else Settings()
    given = {name: getattr(options, name) for name in _GIVEN}
    settings = dataclasses.replace(settings, **{k: v for k, v in given.items() if v is not None})

    train, test = load(options.dataset, options.data)
    train = whole_batches(train, settings.batch_sizes[-1])
    if settings.halved:
        train, test = ((halved(x), y) for x, y in (train, test))
    # Whose an image is: g each, at random; the data of a real task would say.
    person = np.random.default_rng(0).permutation(len(train[0])) // options.group
    options.output.mkdir(parents=True, exist_ok=True)
    print(f"{len(train[0])} images to train on, {len(test[0])} held out; {options.group} a person")

    results = [train_without_privacy(train, test, settings, options.verbose)]
    rows = ways(options.clipping, settings.samplings, settings.batch_sizes, options.variants)
    for way in rows:
        started = time.monotonic()
        result, statement = train_privately(way, train, test, person, settings, options)
        results.append(result)
        path = options.output / f"{way.name}_statement.txt"
        path.write_text(statement + "\n", encoding="utf-8")
        took = time.monotonic() - started
        print(
            f"{way.name}: accuracy {result.accuracy:.3f}, {result.steps} steps, {took:.0f} s",
            flush=True,
        )
    text = table(results, settings, options)
    (options.output / "table.txt").write_text(text + "\n", encoding="utf-8")
    draw(results, options.group, options.output / "accuracy.png")
    print(f"\n{text}\n\nwrote {options.output}/ (table, figure, statements)", end="")
    print(f" in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
