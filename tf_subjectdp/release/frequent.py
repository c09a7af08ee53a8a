# SPDX-License-Identifier: Apache-2.0
"""Frequent elements: of a public list by post-processing, of an unknown one by a threshold.

Unknown domain: words met in the data. W(D) is the set of words that somebody in D has, S_w the sum
over subjects of min(count, rho) for w in W(D). Each w in W(D) appears, with its value S_w + sigma rho
Z_w, if that is above tau. A word outside W(D) cannot appear. With

    tau = rho + sigma rho Q(b),   Q the upper quantile of the standard normal law,

a word that one subject alone holds (S_w <= rho) appears with a probability of at most b.

Theorem. Let neighbours D, D' have at most k words in W(D) but not in W(D'), and at most k the other
way round, and let the sums over the words of both be (eps, delta) under the Gaussian. Then the
release is (eps - log(1 - k b), delta + k b)-private.

Proof. Words in W(D) outside W(D') are held by the replaced subject alone; the probability a that one
of them appears is at most k b (union). Likewise a' for D'. G are the outputs that name only words of
both; M~ is the release of those words alone. The noises of different words are independent, so for
every set T of outputs P(M(D) in T) <= a + (1 - a) P(M~(D) in T & G) and P(M(D') in T & G) = (1 - a')
P(M~(D') in T & G). M~ is post-processing of the Gaussian: P(M~(D) in T & G) <= e^eps P(M~(D') in T &
G) + delta. Together P(M(D) in T) <= k b + delta + e^eps / (1 - k b) P(M(D') in T).

Element: one word of one subject replaced leaves at most its old name on one side and its new name on
the other, k = 1, also where max_elements displaces a word (one slot changes; W is taken after
dropping). Subject with at most M words, added
or removed: k = M. The movement of the sums is that of `guarantees`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from tf_subjectdp import _validate
from tf_subjectdp.noise_numpy import draws
from tf_subjectdp.release.counting import ElementCounts, as_table
from tf_subjectdp.release.guarantees import Movement, Release
from tf_subjectdp.release.histograms import HistogramRelease
from tf_subjectdp.release.projection import keep_elements, projected_sum


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class FrequentElements(Release):
    """Elements that were found frequent, most frequent first.

    Attributes, beside those of `Release`:
      names: of the elements, or their column numbers, [found].
      estimate: float64 [found], average over subjects of their (projected) counts, with noise.
      threshold: what an estimate had to exceed, in counts a subject; None if the top were taken.
      appear_probability: b, with which a word of one subject alone may appear; 0 for a public list.

    Where the list was not public, the events are those of the Gaussian part, which is not all: compose
    them at delta - loss(unit) and add -log(1 - loss(unit)) to the epsilon, as `epsilon` does.
    """

    names: np.ndarray
    estimate: np.ndarray
    threshold: float | None
    appear_probability: float

    def loss(self, unit: str) -> float:
        """The share of delta that the threshold takes: b for an element, M b for a subject."""
        if unit == "subject" and self.appear_probability > 0.0:
            return self.appear_probability * self.max_elements
        return self.appear_probability

    def _words(self) -> tuple[str, str, str]:
        done = "The list of elements was public; choosing from the histogram costs nothing."
        if self.appear_probability > 0.0:
            done = (
                f"The list of elements was not public: an element that is met in the data appears if its "
                f"noised average exceeds {self.threshold:g}. An element that one subject alone holds "
                f"appears with a probability of at most {self.appear_probability:g}, which the figures "
                f"include."
            )
        public = "the radius, the threshold or the number of elements asked for"
        return "frequent elements", done, f"{public}{self._bound}, and"


def frequent_elements(
    release: HistogramRelease,
    *,
    top: int | None = None,
    threshold: float | None = None,
    names: Any = None,
) -> FrequentElements:
    """The frequent elements of a histogram over a PUBLIC list: post-processing, at no further cost.

    Args:
      release: from `histogram`, `two_stage_histogram` or `user_level_histogram`.
      top: take the so many largest estimates; or
      threshold: take the estimates above it, in counts a subject.
      names: what the words are called [n_words]; None gives column numbers.

    Raises:
      ValueError, TypeError: not a release, both or neither of `top` and `threshold`, or names that
        do not fit.
    """
    if not isinstance(release, HistogramRelease):
        raise TypeError(
            f"frequent_elements takes a histogram's release, got {type(release).__name__}; words "
            f"that are met in the data only are for discover_elements."
        )
    if (top is None) == (threshold is None):
        raise ValueError("pass either top= or threshold=.")
    estimate = release.estimate
    names = np.arange(estimate.size) if names is None else np.asarray(names)
    if names.shape != estimate.shape:
        raise ValueError(
            f"names must be one a word ({estimate.size}), got shape {names.shape}; the release has no "
            f"names of its own."
        )
    order = np.argsort(-estimate, kind="stable")
    if top is not None:
        chosen = order[: _validate.integer("top", top, 1)]
    else:
        threshold = _validate.real("threshold", threshold)
        chosen = order[estimate[order] > threshold]
    return FrequentElements(
        names=names[chosen],
        estimate=estimate[chosen],
        threshold=threshold,
        appear_probability=0.0,
        **{field.name: getattr(release, field.name) for field in dataclasses.fields(Release)},
    )


def discover_elements(
    counts: ElementCounts,
    *,
    radius: float = 1.0,
    epsilon: float | None = None,
    delta: float | None = None,
    threshold_share: float = 0.1,
    noise_multiplier: float | None = None,
    appear_probability: float | None = None,
    max_elements: int | None = None,
    sensitivity: str = "paper",
    unit: str = "element",
    n_subjects: int | None = None,
    seed: int | None = None,
) -> FrequentElements:
    """The frequent elements where no public list exists: those met in the data, above a threshold.

    The rule and its proof are at the head of this module. Every element is one word.

    Args:
      counts: from `count_elements` without a vocabulary (with one it is allowed, but wasteful).
      radius: rho > 0; with 1 each subject counts once for a word that it has.
      epsilon, delta: the target for `unit`, of noise and threshold together. Or:
      noise_multiplier, appear_probability: sigma >= 0 and b in (0, 1/2).
      threshold_share: share of delta that the threshold takes, in (0, 1): b = share delta, or
        share delta / M for a subject.
      max_elements: M, keep so many words of each subject, at random; needed for a subject's epsilon.
      sensitivity, unit, n_subjects, seed: as in `histogram`.

    Returns:
      Words, their estimates, and the promise.

    Raises:
      ValueError, TypeError: an argument is out of its range.
    """
    if not isinstance(counts, ElementCounts):
        raise TypeError(
            f"discover_elements needs names: pass what count_elements returns, got "
            f"{type(counts).__name__}."
        )
    matrix, n = as_table(counts, n_subjects, None, public=False)
    movement = Movement.of(sensitivity, unit, max_elements, one_word=True)
    radius = _validate.length("radius", radius)
    if epsilon is not None:
        if appear_probability is not None:
            raise ValueError("appear_probability goes with noise_multiplier; use threshold_share.")
        if delta is None:
            raise ValueError("epsilon needs a delta, well below one over the number of subjects.")
        delta = _validate.target_delta(delta, allow_zero=False)
        share = _validate.fraction("threshold_share", threshold_share)
        loss = min(share * delta, 0.25)
        appear = loss / (movement.max_elements if unit == "subject" else 1)
        rest = _validate.target_epsilon(epsilon, allow_zero=False) + math.log1p(-loss)
        if rest <= 0.0:
            raise ValueError(
                f"epsilon is {epsilon:g}, and the threshold alone takes {-math.log1p(-loss):.3g} of it "
                f"(threshold_share * delta = {loss:.3g}); raise epsilon, or lower delta or "
                f"threshold_share."
            )
        sigma = movement.noise(rest, delta - loss, noise_multiplier)
    else:
        if appear_probability is None:
            raise ValueError("noise_multiplier needs appear_probability, for instance 1e-8.")
        appear = _validate.fraction("appear_probability", appear_probability, 0.5)
        sigma = movement.noise(None, delta, noise_multiplier)

    rng = draws(seed)
    if movement.max_elements is not None:
        matrix = keep_elements(matrix, None, matrix.shape[1], movement.max_elements, rng)
    total = projected_sum(matrix, None, matrix.shape[1], radius)
    met = np.flatnonzero(np.bincount(matrix.indices, minlength=matrix.shape[1]))
    threshold = radius * (1.0 - sigma * float(special.ndtri(appear)))
    noised = total[met] + sigma * radius * rng.standard_normal(met.size)
    above = noised > threshold
    # In the order of the noised values: the columns' order could depend on words that do not appear.
    met, noised = met[above], noised[above]
    order = np.argsort(-noised, kind="stable")
    return FrequentElements(
        names=_released_names(counts.elements[met[order]]),
        estimate=noised[order] / n,
        threshold=threshold / n,
        noise_multiplier=sigma,
        n_subjects=n,
        n_counted=n_subjects is None,
        appear_probability=appear,
        seeded=seed is not None,
        delta=delta,
        **movement.promise(sigma),
    )


def _released_names(names: np.ndarray) -> np.ndarray:
    """As objects: the type of an array (<U25, or objects for numbers above 63 bits) tells of names that
    were MET, released or not. Integers that all fit are int64."""
    listed = names.tolist()
    if listed and all(isinstance(name, int) and -(2**63) <= name < 2**63 for name in listed):
        return np.array(listed, np.int64)
    made = np.empty(len(listed), object)
    made[:] = listed
    return made
