# SPDX-License-Identifier: Apache-2.0
"""The histogram of equation 5 of Asi, Duchi and Javidi, and its user-level sibling.

Knows counts (`counting`), projections and what they cost (`guarantees`). Sum, then noise, then the
division by the public number of subjects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np

from tf_subjectdp.accounting import _checks
from tf_subjectdp.noise_numpy import draws
from tf_subjectdp.release import guarantees
from tf_subjectdp.release.counting import as_blocks, as_table, int_like
from tf_subjectdp.release.projection import keep_elements, projected_sum
from tf_subjectdp.release.results import HistogramRelease


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
    matrix, n = as_table(counts, n_subjects, n_words)
    block, n_elements = as_blocks(block, matrix.shape[1])
    max_elements = check_max_elements(max_elements, n_elements)
    one_word = block is None or bool(np.bincount(block).max() == 1)
    guarantees.check_sensitivity(sensitivity, one_word=one_word, max_elements=max_elements)
    radius = guarantees.check_radius("radius", radius)
    make_element, make_subject = event_makers(sensitivity, max_elements)
    guarantees.check_unit(unit, max_elements)
    sigma = guarantees.solve_noise(
        make_element if unit == "element" else make_subject, epsilon, delta, noise_multiplier
    )
    rng = draws(seed)
    if max_elements is not None:
        matrix = keep_elements(matrix, block, n_elements, max_elements, rng)
    noised = projected_sum(matrix, block, n_elements, radius)
    noised += sigma * radius * rng.standard_normal(noised.size)
    return HistogramRelease(
        estimate=noised / n,
        radius=radius,
        noise_multiplier=sigma,
        noise_stddev=sigma * radius / n,
        event=make_element(sigma),
        subject_event=None if max_elements is None else make_subject(sigma),
        unit=unit,
        sensitivity=sensitivity,
        level="element",
        n_subjects=n,
        n_counted=n_subjects is None,
        n_elements=n_elements,
        max_elements=max_elements,
        seeded=seed is not None,
        delta=delta,
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
    guarantees.check_sensitivity(sensitivity, one_word=False, max_elements=1)
    radius = guarantees.check_radius("radius", radius)
    make_element, make_subject = event_makers(sensitivity, 1)
    guarantees.check_unit(unit, 1)
    sigma = guarantees.solve_noise(
        make_element if unit == "element" else make_subject, epsilon, delta, noise_multiplier
    )
    noised = projected_sum(matrix, np.zeros(matrix.shape[1], np.int64), 1, radius)
    noised += sigma * radius * draws(seed).standard_normal(noised.size)
    return HistogramRelease(
        estimate=noised / n,
        radius=radius,
        noise_multiplier=sigma,
        noise_stddev=sigma * radius / n,
        event=make_element(sigma),
        subject_event=make_subject(sigma),
        unit=unit,
        sensitivity=sensitivity,
        level="user",
        n_subjects=n,
        n_counted=n_subjects is None,
        n_elements=1,
        max_elements=None,
        seeded=seed is not None,
        delta=delta,
    )


def event_makers(
    sensitivity: str, max_elements: int | None
) -> tuple[
    Callable[[float], dp_accounting.DpEvent], Callable[[float], dp_accounting.DpEvent] | None
]:
    """From a noise multiplier to the event of an element, and of a subject where it is bounded."""

    def element(sigma: float) -> dp_accounting.DpEvent:
        return guarantees.element_event(sensitivity, sigma)

    def subject(sigma: float) -> dp_accounting.DpEvent:
        return guarantees.subject_event(max_elements, sigma)

    return element, (None if max_elements is None else subject)


def check_max_elements(max_elements: Any, n_elements: int) -> int | None:
    """None, or the bound, which is never above the number of elements there are."""
    if max_elements is None:
        return None
    return min(_checks.integer("max_elements", int_like(max_elements), 1), n_elements)
