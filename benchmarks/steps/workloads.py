# SPDX-License-Identifier: Apache-2.0
"""What is trained, and who trains it: names and NumPy data, no framework.

Every contender of a workload trains the same network on the same rows with SGD; the private ones
clip at 1 and add noise of standard deviation 1.
"""

import dataclasses

import numpy as np

LEARNING_RATE, CLIP_NORM, NOISE_MULTIPLIER = 0.01, 1.0, 1.0
ITEMS_A_PERSON = 8  # on average


@dataclasses.dataclass(frozen=True)
class Workload:
    """One network and one batch size.

    Attributes:
      model: "mlp", "cnn", "lstm" or "embedding".
      batch: rows of every step.
      title: for the page.
      target: the most that a private step shall cost, as a ratio; None where only memory counts.
      peak_gib: the most memory that training shall take; None for 1.5 times the non-private.
      scale: few steps, ours and plain Keras only: a question of memory.
    """

    model: str
    batch: int
    title: str
    target: float | None = None
    peak_gib: float | None = None
    scale: bool = False


WORKLOADS = {
    "mlp-256": Workload("mlp", 256, "MLP 784-128-10, batch 256", 1.5),
    "cnn-128": Workload("cnn", 128, "LEAF FEMNIST CNN (6.6 M weights), batch 128", 2.0),
    "cnn-512": Workload("cnn", 512, "LEAF FEMNIST CNN (6.6 M weights), batch 512", 1.5),
    "lstm-32": Workload("lstm", 32, "LEAF Shakespeare LSTM (2 x 256, 80 steps), batch 32", 1.1),
    "lstm-100": Workload("lstm", 100, "LEAF Shakespeare LSTM (2 x 256, 80 steps), batch 100", 1.1),
    "cnn-4096": Workload("cnn", 4096, "the CNN, batch 4,096", peak_gib=8.0, scale=True),
    "embedding": Workload(
        "embedding", 64, "100 M weights: Embedding(1,000,000 x 100), mean, Dense", scale=True
    ),
}


@dataclasses.dataclass(frozen=True)
class Contender:
    """One way to train.

    Attributes:
      title: for the page.
      library: "keras", "ours", "tf_privacy", "opacus" or "jax_privacy".
      variant: what its module understands.
      noise: whether noise is added.
      sampled: whether ours take their batches from `plan.dataset`; else the same batch again from memory.
      alone: it holds item gradients, or is slow: it races against the baseline alone.
    """

    title: str
    library: str
    variant: str = ""
    noise: bool = True
    sampled: bool = True
    alone: bool = False

    def config(self) -> dict:
        return dataclasses.asdict(self)


BASELINE = "keras"
CONTENDERS = {
    BASELINE: Contender("Keras `fit`, not private", "keras", noise=False),
    "higradavg": Contender("HiGradAvg", "ours", "HiGradAvg"),
    "subjectdp": Contender("SubjectDP", "ours", "SubjectDP"),
    "higradavg-bare": Contender("HiGradAvg without noise", "ours", "HiGradAvg", noise=False),
    "higradavg-fed": Contender(
        "HiGradAvg without noise and sampling", "ours", "HiGradAvg", noise=False, sampled=False
    ),
    "subjectdp-bare": Contender("SubjectDP without noise", "ours", "SubjectDP", noise=False),
    "tfp-fast": Contender("TF-Privacy fast clipping", "tf_privacy", "fast"),
    "opacus-ghost": Contender("Opacus ghost", "opacus", "ghost"),
    "jax-privacy": Contender("jax_privacy", "jax_privacy"),
    "opacus-hooks": Contender("Opacus hooks", "opacus", "hooks", alone=True),
    "tfp-model": Contender("TF-Privacy DPModel", "tf_privacy", "model", alone=True),
    "tfp-keras": Contender("TF-Privacy DPKerasSGD", "tf_privacy", "keras", alone=True),
    "tfp-vectorized": Contender(
        "TF-Privacy VectorizedDPKerasSGD", "tf_privacy", "vectorized", alone=True
    ),
}
SCALE_CONTENDERS = (BASELINE, "higradavg", "subjectdp")


def engine_contenders(engines: list[str]) -> dict[str, Contender]:
    """Ours with an engine that is named, such as "loop" or "vectorized:64" (MiB a chunk)."""
    return {
        f"{rule.lower()}-{engine}": Contender(
            f"{rule}, engine {engine}", "ours", f"{rule}@{engine}", alone=True
        )
        for engine in engines
        for rule in ("HiGradAvg", "SubjectDP")
    }


def data(workload: Workload) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, y, person), `batch` rows of each; people have uneven numbers of rows, 1 at least."""
    rng = np.random.default_rng(0)
    rows = workload.batch
    if workload.model == "mlp":
        x, classes = rng.standard_normal((rows, 784), np.float32), 10
    elif workload.model == "cnn":
        x, classes = rng.standard_normal((rows, 28, 28, 1), np.float32), 62
    elif workload.model == "lstm":
        x, classes = rng.integers(0, 80, (rows, 80)).astype(np.int32), 80
    elif workload.model == "embedding":
        x, classes = rng.integers(0, 1_000_000, (rows, 20)).astype(np.int32), 10
    else:
        raise ValueError(f"model={workload.model!r} is unknown; use mlp, cnn, lstm or embedding")
    people = rows // ITEMS_A_PERSON
    ranks = np.arange(1, people + 1)
    more = rng.choice(people, rows - people, p=ranks / ranks.sum())
    person = np.concatenate([np.arange(people), more])
    return x, rng.integers(0, classes, rows), person
