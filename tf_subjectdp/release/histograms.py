# SPDX-License-Identifier: Apache-2.0
"""The histogram of equation 5 of Asi, Duchi and Javidi, its user-level sibling, and its two-stage form.

Sum, then noise, then the division by the public number of subjects. The two stages are after their
two-stage estimator; the first stage's compression and the rule for the radii are this module's own.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
from scipy import sparse

from tf_subjectdp import _validate
from tf_subjectdp.noise_numpy import draws
from tf_subjectdp.release.counting import as_blocks, as_table
from tf_subjectdp.release.guarantees import Movement, Release
from tf_subjectdp.release.projection import compressed_totals, keep_elements, projected_sum


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HistogramRelease(Release):
    """A released histogram and the promise that goes with it.

    Attributes, beside those of `Release`:
      estimate: float64 [n_words], the average over subjects of their (projected) counts, with noise;
        entries can be negative.
      radius: of the L2 ball of each element's counts; a float, or float64 [n_elements] for the
        two-stage estimator.
      noise_stddev: standard deviation of the noise in `estimate`; a float, or float64 [n_words].
      level: "element", or "user" if a subject's whole vector was projected as one block.
      n_elements: the public number of elements.
      first_stage: float64 [n_elements], the rough element probabilities of a two-stage release;
        as public as the estimate. Otherwise None.
      first_noise_multiplier: the noise multiplier of that first stage, or None.
    """

    estimate: np.ndarray
    radius: float | np.ndarray
    noise_stddev: float | np.ndarray
    level: str
    n_elements: int
    first_stage: np.ndarray | None = None
    first_noise_multiplier: float | None = None

    def event_of(self, unit: str | None = None) -> dp_accounting.DpEvent:
        """The event for a unit (None: the release's own), to compose with others of that unit."""
        return self._event_of(self.unit if unit is None else unit)

    def frequencies(self) -> np.ndarray:
        """The estimate as shares of all words: negative entries set to 0, then scaled to sum 1.

        Returns:
          float64 [n_words], >= 0; all equal if no entry of the estimate is positive.
        """
        positive = np.maximum(self.estimate, 0.0)
        total = positive.sum()
        return positive / total if total > 0.0 else np.full(positive.size, 1.0 / positive.size)

    def _words(self) -> tuple[str, str, str]:
        public = f"the list of {self.estimate.size} words"
        if self.level == "user":
            what = "whole vector of counts was"
        else:
            what = "counts of each element were"
            public += f", their map to {self.n_elements} elements"
        how, title = "", f"histogram, {self.level} level"
        if self.first_stage is None:
            ball = f"the L2 ball of radius {self.radius:g}"
            public += ", the radius"
        else:
            title += ", two stages"
            how = (
                f"A first release (noise multiplier {self.first_noise_multiplier:g}) gave rough "
                f"element probabilities and from them a radius for each element; the figures above are "
                f"those of both releases together. "
            )
            ball = "the L2 ball of the element's radius"
            public += ", the items that radii are made for, the split, the slack"
        done = (
            f"{how}Each subject's {what} scaled into {ball}, summed over the subjects, given Gaussian "
            f"noise of {self.noise_multiplier:g} radii in every coordinate, and divided by "
            f"{self.n_subjects}."
        )
        return title, done, f"{public}{self._bound} and"


def histogram(
    counts: Any,
    *,
    radius: float,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    block: Any = None,
    max_elements: int | None = None,
    sensitivity: str = "paper",
    unit: str = "element",
    n_subjects: int | None = None,
    n_words: int | None = None,
    seed: int | None = None,
) -> HistogramRelease:
    """Releases the average counts of all words, so that each ELEMENT of a subject is protected.

    Equation 5: each element's counts of a subject are projected onto the L2 ball of radius rho,
    summed over subjects, given N(0, sigma^2 rho^2 I), and divided by n. The proofs are at the head
    of `guarantees`. Do not scale a subject's counts to a fixed total, or cut its text, before this:
    one element would then move all the others.

    Args:
      counts: `ElementCounts`, a sparse or dense matrix [subjects, words], or a triple of arrays
        (subject codes, word ids, counts). At least 0.
      radius: rho > 0, in counts; public, so not to be chosen by looking at these data.
      epsilon, delta: the target for `unit`; the noise follows. Or:
      noise_multiplier: sigma >= 0; with 0 nothing is private, and the statement says so.
      block: the element of each word, whole numbers [n_words] >= 0, public; None makes each word an
        element.
      max_elements: keep so many elements of each subject, chosen at random; needed for a subject's
        epsilon.
      sensitivity: how far a replaced element moves the sum: "paper" 2 rho, "counts" sqrt(2) rho,
        "in_place" rho (one word an element, which keeps its name; no max_elements).
      unit: "element" or "subject", for whom epsilon is meant.
      n_subjects: public number of subjects n, at least the rows; None counts the rows, which is
        information about them that nothing here protects (the statement says so).
      n_words: number of columns; needed for a triple.
      seed: for tests only: the release is then not private, and says so.

    Returns:
      The release.

    Raises:
      ValueError, TypeError: an argument is out of its range, or a guarantee is not proven for it.
    """
    table = _checked(counts, n_subjects, n_words, block, sensitivity, unit, max_elements)
    radius = _validate.length("radius", radius)
    sigma = table.movement.noise(epsilon, delta, noise_multiplier)
    rng = draws(seed)
    matrix = table.kept(rng)
    noised = projected_sum(matrix, table.block, table.n_elements, radius)
    noised += sigma * radius * rng.standard_normal(noised.size)
    return HistogramRelease(
        estimate=noised / table.n,
        radius=radius,
        noise_multiplier=sigma,
        noise_stddev=sigma * radius / table.n,
        level="element",
        n_subjects=table.n,
        n_counted=n_subjects is None,
        n_elements=table.n_elements,
        seeded=seed is not None,
        delta=delta,
        **table.movement.promise(sigma),
    )


def user_level_histogram(
    counts: Any,
    *,
    radius: float,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    sensitivity: str = "paper",
    unit: str = "subject",
    n_subjects: int | None = None,
    n_words: int | None = None,
    seed: int | None = None,
) -> HistogramRelease:
    """The same at USER level: a subject's whole vector of counts is projected onto one ball.

    Adding or removing a subject moves the sum by at most rho. An element is then no better off than
    in equation 5: replacing one can turn the whole vector, by 2 rho, or sqrt(2) rho for counts. (It
    is `histogram` with all words in one block, of which a subject has at most one.)

    Args:
      counts, epsilon, delta, noise_multiplier, n_subjects, n_words, seed: as in `histogram`.
      radius: rho > 0, of the whole vector.
      sensitivity: "paper" or "counts", for the element's figure only.
      unit: "subject" (default) or "element", for whom epsilon is meant.

    Returns:
      The release, of level "user".

    Raises:
      ValueError, TypeError: as `histogram`.
    """
    matrix, n = as_table(counts, n_subjects, n_words)
    release = histogram(
        matrix,
        radius=radius,
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        block=np.zeros(matrix.shape[1], np.int64),
        max_elements=1,
        sensitivity=sensitivity,
        unit=unit,
        n_subjects=n,
        seed=seed,
    )
    return dataclasses.replace(
        release, level="user", max_elements=None, n_counted=n_subjects is None
    )


def two_stage_histogram(
    counts: Any,
    *,
    items: float,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    split: float = 0.2,
    slack: float = 2.0,
    smallest_radius: float = 1.0,
    block: Any = None,
    max_elements: int | None = None,
    sensitivity: str = "paper",
    unit: str = "element",
    n_subjects: int | None = None,
    n_words: int | None = None,
    seed: int | None = None,
) -> HistogramRelease:
    """Releases the average counts with a radius of its own for each element, learnt privately.

    A rare word needs a small radius (little noise), a frequent one a large radius (little bias).

    Stage 1. Subject u, with N items of element e, adds min(log(1 + N) / log(1 + m), 1) to element
    e's sum; noise N(0, sigma_1^2) each. The logarithm keeps one element's part within a radius of 1
    for words of every frequency, and turns noise into a relative error. The average t_e gives
    c_e = exp(t_e log(1 + m)) - 1, and p_e = c_e / max(1, sum of c), cut to [0, 1].
    Stage 2. rho_e = min(m, max(smallest_radius, m p_e + slack sqrt(m p_e))); the histogram of
    equation 5 with these radii, and noise sigma_2 rho_e in the coordinates of e.

    Proof. Let c rho be the proven distance for a replaced element (2, sqrt(2) or 1; see
    `guarantees`). Stage 1: a part in an element is a number in [0, 1], a vector of one coordinate in
    the unit ball, not negative; so c holds, and sqrt(M) for a subject. Stage 2, given ANY output of
    stage 1: the radii are constants, and dividing coordinate by rho_e turns every block into the
    unit ball and the noise into sigma_2; so c and sqrt(M) hold again, also when an element turns
    into another one with another radius. The two are therefore an adaptive composition of Gaussians
    of those ratios, and `event` is that composition. Radii, and what is computed from them, are
    post-processing. With `max_elements` the kept elements are drawn once, for both stages; the
    coupling of `guarantees` fixes them for a pair of neighbours, for which the composition holds.

    Shares: 1/sigma_1^2 = split/sigma^2 and 1/sigma_2^2 = (1 - split)/sigma^2, so that the
    composition of the two costs what one Gaussian of `noise_multiplier` sigma costs; with `epsilon`
    sigma is solved for the composed event.

    Args:
      counts, epsilon, delta, block, max_elements, sensitivity, unit, n_subjects, n_words, seed: as
        in `histogram`. epsilon is that of both stages together.
      items: m > 0, a public number of items of a subject that radii are made for. Where subjects
        differ much, take a large one: counts far above m p_e are clipped.
      noise_multiplier: sigma of both stages together, instead of epsilon.
      split: share of the first stage, in (0, 1).
      slack: standard deviations, >= 0, of a Poisson count that a radius leaves above its mean.
      smallest_radius: > 0, at most m.

    Returns:
      The release; `noise_multiplier` is that of the second stage, `radius` has one entry an element.

    Raises:
      ValueError, TypeError: as `histogram`.
    """
    split = _validate.fraction("split", split)
    # Shares of the precision, 1 / sigma^2.
    stages = (1.0 / math.sqrt(split), 1.0 / math.sqrt(1.0 - split))
    table = _checked(counts, n_subjects, n_words, block, sensitivity, unit, max_elements, stages)
    items = _validate.length("items", items)
    smallest = _validate.length("smallest_radius", smallest_radius)
    if smallest > items:
        raise ValueError(f"smallest_radius must be at most items={items:g}, got {smallest:g}.")
    slack = _validate.between("slack", slack, 0.0, _validate.LARGEST_LENGTH)
    sigma = table.movement.noise(epsilon, delta, noise_multiplier)
    first_sigma, second_sigma = (sigma * stage for stage in stages)

    n, block, n_elements = table.n, table.block, table.n_elements
    rng = draws(seed)
    matrix = table.kept(rng)
    rough = compressed_totals(matrix, block, n_elements, items)
    rough += first_sigma * rng.standard_normal(n_elements)
    probabilities = _probabilities(rough / n, items)
    radius = element_radii(probabilities, items, slack=slack, smallest=smallest)

    noised = projected_sum(matrix, block, n_elements, radius)
    scale = second_sigma * (radius if block is None else radius[block])
    noised += scale * rng.standard_normal(noised.size)
    return HistogramRelease(
        estimate=noised / n,
        radius=radius,
        noise_multiplier=second_sigma,
        noise_stddev=scale / n,
        level="element",
        n_subjects=n,
        n_counted=n_subjects is None,
        n_elements=n_elements,
        seeded=seed is not None,
        delta=delta,
        first_stage=probabilities,
        first_noise_multiplier=first_sigma,
        **table.movement.promise(sigma),
    )


def element_radii(
    probabilities: np.ndarray, items: float, *, slack: float, smallest: float
) -> np.ndarray:
    """rho_e = m p_e + slack sqrt(m p_e), at least `smallest` and at most m.

    Args:
      probabilities: p_e in [0, 1], float64 [n_elements].
      items: m > 0.
      slack: >= 0.
      smallest: the least radius, > 0.

    Returns:
      float64 [n_elements].
    """
    mean = items * np.asarray(probabilities, np.float64)
    return np.clip(mean + slack * np.sqrt(mean), smallest, items)


def _probabilities(average: np.ndarray, items: float) -> np.ndarray:
    """p_e from the averages of the compressed counts, by post-processing."""
    rough = np.expm1(np.clip(average, -1.0, 1.0) * math.log1p(items))
    return np.clip(rough / max(1.0, float(rough.sum())), 0.0, 1.0)


class _Table(NamedTuple):
    """Counts of n subjects, as they were checked, and how far they can move."""

    matrix: sparse.csr_matrix
    n: int
    block: np.ndarray | None
    n_elements: int
    movement: Movement

    def kept(self, rng: Any) -> sparse.csr_matrix:
        """The counts of the elements that the bound leaves each subject."""
        most = self.movement.max_elements
        if most is None:
            return self.matrix
        return keep_elements(self.matrix, self.block, self.n_elements, most, rng)


def _checked(
    counts: Any,
    n_subjects: int | None,
    n_words: int | None,
    block: Any,
    sensitivity: str,
    unit: str,
    max_elements: int | None,
    stages: tuple[float, ...] = (1.0,),
) -> _Table:
    matrix, n = as_table(counts, n_subjects, n_words)
    block, n_elements = as_blocks(block, matrix.shape[1])
    movement = Movement.of(
        sensitivity,
        unit,
        max_elements,
        one_word=block is None or bool(np.bincount(block).max() == 1),
        n_elements=n_elements,
        stages=stages,
    )
    return _Table(matrix, n, block, n_elements, movement)
