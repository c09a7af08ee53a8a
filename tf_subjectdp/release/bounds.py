# SPDX-License-Identifier: Apache-2.0
"""How far a histogram is from the truth, expected: sampling, noise and projection bias.

In the form of Proposition 1 of Asi, Duchi and Javidi; the constants are derived
here.

Setting: n subjects, each with m items drawn independently from the probabilities p on d words, so
that x ~ Multinomial(m, p). y is x with each block projected onto the L2 ball of radius rho_e, and the
estimate of p is a = (sum of the y + noise) / (n m). Bias and variance, the noise being independent of
the data:

    E|a - p|^2 = |E y - E x|^2 / m^2  +  tr Cov(y) / (n m^2)  +  sigma^2 sum_e d_e rho_e^2 / (n m)^2.

* Noise (third term): exact; d_e words in element e.
* Sampling (second), block by block. A projection onto a convex set is 1-Lipschitz, and with x' an
  independent copy tr Cov(y) = E|y - y'|^2 / 2 <= E|x - x'|^2 / 2 = tr Cov(x) = m sum_j p_j (1 - p_j).
  Also tr Cov(y) <= E|y|^2 <= rho^2 P(y is not 0). The smaller is taken.
* Bias (first), block by block: |E y - E x| <= E|x - y| = E(|x| - rho)+. One coordinate: x is
  Binomial(m, p), and E(x - rho)+ = m p P(B(m - 1, p) >= f) - rho P(B(m, p) >= f + 1), f = floor(rho),
  with equality. Several: the smallest of three bounds:
  1. |x| <= N, the items of the block, Binomial(m, P) with P = sum p_j: E(N - rho)+ as above.
  2. (t - rho)+ <= t^2 / (4 rho), as (t - 2 rho)^2 >= 0: E|x|^2 / (4 rho), with
     E|x|^2 = v + |Ex|^2, v = m sum p_j (1 - p_j), |Ex| = m |p|.
  3. |x| - rho <= r - c with r = |x - Ex|, c = rho - |Ex|, and E r^2 = v: E(r - c)+ is at most
     v / (4 c) if c > 0 (as in 2), and at most sqrt(v) - min(c, 0) (Jensen).

User level is one block of all d words. All subjects have the same law here: where they do not, the
bias is that of the average subject.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy import special

from tf_subjectdp import _validate
from tf_subjectdp.release.counting import as_blocks

# The binomial formula takes a difference of nearby numbers; so much of its terms covers the rounding.
_ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True)
class ErrorBound:
    """Bound on E|estimate / m - p|^2, the squared L2 error of the probabilities.

    Attributes:
      sampling: because n subjects are a sample.
      noise: because of privacy.
      bias: because of the projection.
    """

    sampling: float
    noise: float
    bias: float

    @property
    def total(self) -> float:
        return self.sampling + self.noise + self.bias


def error_bound(
    probabilities: Any,
    *,
    n_subjects: int,
    items: int,
    radius: Any,
    noise_multiplier: float,
    block: Any = None,
    level: str = "element",
) -> ErrorBound:
    """Bounds E|estimate / items - probabilities|_2^2 of a histogram's release.

    In the form of Proposition 1 of Asi, Duchi and Javidi; constants and proof at the head of this
    module. Dropping elements (`max_elements`) is not covered.

    Args:
      probabilities: p [n_words], >= 0, of sum 1.
      n_subjects: n >= 1.
      items: m >= 1, items of each subject.
      radius: rho > 0, or one an element [n_elements] (a two-stage release's second stage, with its
        `noise_multiplier`).
      noise_multiplier: sigma >= 0.
      block: element of each word, or None for each word its own.
      level: "element", or "user" (one block of all words; `block` is then None).

    Returns:
      The three terms.

    Raises:
      ValueError, TypeError: an argument is out of its range.
    """
    p = np.asarray(probabilities, np.float64)
    if p.ndim != 1 or not p.size or not np.all(p >= 0.0) or abs(p.sum() - 1.0) > 1e-6:
        raise ValueError(
            f"probabilities must be a vector of numbers >= 0 of sum 1, got shape {p.shape} and sum "
            f"{p.sum():g}; divide by the sum."
        )
    p = np.minimum(p, 1.0)
    n = _validate.integer("n_subjects", n_subjects, 1)
    m = _validate.integer("items", items, 1)
    sigma = _validate.noise("noise_multiplier", noise_multiplier)
    if level not in ("element", "user"):
        raise ValueError(f'level must be "element" or "user", got {level!r}.')
    if level == "user":
        if block is not None:
            raise ValueError('level="user" is one block of all words; leave block out.')
        block = np.zeros(p.size, np.int64)
    block, n_elements = as_blocks(block, p.size)
    rho = _radii(radius, n_elements)

    def of_blocks(values: np.ndarray) -> np.ndarray:
        return values if block is None else np.bincount(block, values, minlength=n_elements)

    words = of_blocks(np.ones(p.size))
    share = np.minimum(of_blocks(p), 1.0)
    variance = m * of_blocks(p * (1.0 - p))
    square = m * m * of_blocks(p * p)
    present = -np.expm1(m * np.log1p(-np.minimum(share, 1.0 - 1e-16)))
    sampling = np.minimum(variance, rho**2 * present)
    bias = _binomial_excess(m, share, rho)
    several = words > 1
    if several.any():
        wide = np.minimum(
            (variance + square) / (4.0 * rho), _excess(variance, rho - np.sqrt(square))
        )
        bias = np.where(several, np.minimum(bias, wide), bias)
    return ErrorBound(
        sampling=float(sampling.sum()) / (n * m**2),
        noise=float((words * rho**2).sum()) * (sigma / (n * m)) ** 2,
        bias=float(np.square(bias).sum()) / m**2,
    )


def _binomial_excess(m: int, p: np.ndarray, rho: np.ndarray) -> np.ndarray:
    """E(B - rho)+ for B ~ Binomial(m, p), from above."""
    floor = np.floor(np.minimum(rho, m))
    # bdtrc(k, n, p) = P(B(n, p) > k); P(B >= 0) = 1 is not in its domain.
    with_one_less = np.where(
        floor == 0, 1.0, special.betainc(np.maximum(floor, 1.0), np.maximum(m - floor, 1e-300), p)
    )
    with_one_less = np.where((floor > 0) & (floor > m - 1), 0.0, with_one_less)
    beyond = np.where(
        floor >= m, 0.0, special.betainc(floor + 1.0, np.maximum(m - floor, 1e-300), p)
    )
    first, second = m * p * with_one_less, rho * beyond
    return np.maximum(first - second, 0.0) + _ROUNDING * first


def _excess(variance: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Bound on E(r - room)+ for r >= 0 with E r^2 = variance."""
    positive = np.where(room > 0.0, room, 1.0)
    jensen = np.sqrt(variance) - np.minimum(room, 0.0)
    return np.where(room > 0.0, np.minimum(variance / (4.0 * positive), jensen), jensen)


def _radii(radius: Any, n_elements: int) -> np.ndarray:
    if np.ndim(radius) == 0:
        return np.full(n_elements, _validate.length("radius", radius))
    rho = np.asarray(radius, np.float64)
    if rho.shape != (n_elements,) or not np.all(rho > 0.0) or not np.all(np.isfinite(rho)):
        raise ValueError(
            f"radius must be above 0 and finite, one number or one for each of the {n_elements} "
            f"elements, got shape {rho.shape}."
        )
    return rho
