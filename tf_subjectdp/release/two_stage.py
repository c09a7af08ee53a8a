# SPDX-License-Identifier: Apache-2.0
"""The two-stage histogram: first rough probabilities, then a radius for each element.

Knows counts, projections and events. After the two-stage estimator of Asi, Duchi and Javidi; the first
stage's compression and the rule for the radii are this module's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np

from tf_subjectdp import accounting
from tf_subjectdp.noise_numpy import draws
from tf_subjectdp.release import guarantees
from tf_subjectdp.release.counting import as_blocks, as_table
from tf_subjectdp.release.histograms import check_max_elements, event_makers
from tf_subjectdp.release.projection import compressed_totals, keep_elements, projected_sum
from tf_subjectdp.release.results import HistogramRelease


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
    matrix, n = as_table(counts, n_subjects, n_words)
    block, n_elements = as_blocks(block, matrix.shape[1])
    max_elements = check_max_elements(max_elements, n_elements)
    one_word = block is None or bool(np.bincount(block).max() == 1)
    guarantees.check_sensitivity(sensitivity, one_word=one_word, max_elements=max_elements)
    items = guarantees.check_radius("items", items)
    smallest = guarantees.check_radius("smallest_radius", smallest_radius)
    if smallest > items:
        raise ValueError(f"smallest_radius must be at most items={items:g}, got {smallest:g}.")
    split, slack = _check_split(split), guarantees.check_slack(slack)
    guarantees.check_unit(unit, max_elements)
    make_element, make_subject = (
        None if make is None else _both_stages(make, split)
        for make in event_makers(sensitivity, max_elements)
    )
    sigma = guarantees.solve_noise(
        make_element if unit == "element" else make_subject, epsilon, delta, noise_multiplier
    )
    first_sigma, second_sigma = _stages(sigma, split)

    rng = draws(seed)
    if max_elements is not None:
        matrix = keep_elements(matrix, block, n_elements, max_elements, rng)
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
        event=make_element(sigma),
        subject_event=None if make_subject is None else make_subject(sigma),
        unit=unit,
        sensitivity=sensitivity,
        level="element",
        n_subjects=n,
        n_counted=n_subjects is None,
        n_elements=n_elements,
        max_elements=max_elements,
        seeded=seed is not None,
        delta=delta,
        first_stage=probabilities,
        first_noise_multiplier=first_sigma,
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


def _stages(sigma: float, split: float) -> tuple[float, float]:
    return sigma / math.sqrt(split), sigma / math.sqrt(1.0 - split)


def _both_stages(
    make: Callable[[float], dp_accounting.DpEvent], split: float
) -> Callable[[float], dp_accounting.DpEvent]:
    """From sigma of both stages to their composition."""

    def both(sigma: float) -> dp_accounting.DpEvent:
        return accounting.compose([(make(part), 1) for part in _stages(sigma, split)])

    return both


def _check_split(split: float) -> float:
    number = guarantees.check_radius("split", split)
    if number >= 1.0:
        raise ValueError(
            f"split must lie between 0 and 1 (the share of the first stage), got {number:g}."
        )
    return number
