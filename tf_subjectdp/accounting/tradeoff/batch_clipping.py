# SPDX-License-Identifier: Apache-2.0
"""f-DP of batch, mixed and individual clipping (van Dijk et al., arXiv:2212.05796).

An epoch has M rounds; a round has m parts of s items each; every part's result is clipped to norm
C, the m results are summed and N(0, (2 C sigma)^2 I) is added. `noise_multiplier` is the paper's
sigma = (noise standard deviation) / (2 C): the library's own convention for BatchClipping and
MixedClipping, the same number. Adjacency: g items replaced (or zeroed) in place.

A part that holds a differing item moves by at most 2 C. If k_b parts of round b do, the sum moves by
2 C k_b, and all E M rounds together are one Gaussian of mu = sqrt(c) / sigma, c = sum_b k_b^2. The
adversary A1 knows where the differing items went, hence c; with q_E(c), the probability of c, the
curve is the mixture f of Definition 5.2, and delta(eps) = sum_c q_E(c) delta_Gauss(eps;
sqrt(c)/sigma). For m = 1 (batch clipping) c counts the rounds hit; for s = 1 (individual clipping)
k_b counts the differing items of the round; (m, s) is mixed clipping.

The usual adversary A0 sees the same outputs without the positions, so every curve against A1 holds
against A0 too. C_p(G)^T holds against A0 alone: for g = 1 and independent subsampling.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.engine.binomial import binomial_window
from tf_subjectdp.accounting.tradeoff import occupancy
from tf_subjectdp.accounting.tradeoff.curves import Subsampled, TradeOff
from tf_subjectdp.accounting.tradeoff.gaussians import GaussianCurve, RevealedGaussians
from tf_subjectdp.accounting.tradeoff.tensor_product import composition_interval, convolve

ADVERSARY_A0 = "A0: sees every noised update and both candidate data sets, not the batches"
ADVERSARY_A1 = "A1: as A0, and knows in which batch and part every differing item was"
SAMPLINGS = ("shuffling", "subsampling", "poisson")
_NEGLIGIBLE = 1e-40
# Tail of q_E that the bounds of Definitions 5.3 and 5.4 give up, unless told.
_BOUND_TAIL = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchScheme:
    """Who is clipped with whom, and how batches are drawn.

    Attributes:
      rounds: M, rounds in an epoch.
      parts: m, clipped results in a round.
      part_size: s, items in a part; 1 is individual clipping.
      sampling: "shuffling" (an epoch deals every item to one place), "subsampling" (each round draws
        m s of the N = M m s items without replacement, independently), or "poisson" (each item takes
        part with probability 1/M, in a part of its own choice: what the library's Poisson sampler
        does; s then is the expected size).

    Raises:
      TypeError, ValueError: a number is not an integer >= 1, or the sampling is unknown.
    """

    rounds: int
    parts: int = 1
    part_size: int
    sampling: str = "shuffling"

    def __post_init__(self) -> None:
        for name in ("rounds", "parts", "part_size"):
            _checks.integer(name, getattr(self, name), 1)
        _checks.integer("rounds * parts * part_size", self.population, 1)
        if self.sampling not in SAMPLINGS:
            raise ValueError(f"sampling must be one of {SAMPLINGS}, got {self.sampling!r}.")

    @property
    def population(self) -> int:
        """N = M m s."""
        return self.rounds * self.parts * self.part_size

    @classmethod
    def individual(cls, rounds: int, batch_size: int, sampling: str = "shuffling") -> BatchScheme:
        """Individual clipping: m = batch_size parts of one item."""
        return cls(rounds=rounds, parts=batch_size, part_size=1, sampling=sampling)

    @classmethod
    def batch(cls, rounds: int, batch_size: int, sampling: str = "shuffling") -> BatchScheme:
        """Batch clipping: one part of batch_size items."""
        return cls(rounds=rounds, parts=1, part_size=batch_size, sampling=sampling)

    @classmethod
    def mixed(
        cls, rounds: int, parts: int, part_size: int, sampling: str = "shuffling"
    ) -> BatchScheme:
        """Mixed clipping (m, s)."""
        return cls(rounds=rounds, parts=parts, part_size=part_size, sampling=sampling)


@dataclasses.dataclass(frozen=True, eq=False)
class HitLaw:
    """q_E(c): probabilities[i] of c = values[i]; `dropped` is the (negligible) mass cut above.

    values int64 and increasing, probabilities float64, both of shape (n,).
    """

    values: np.ndarray
    probabilities: np.ndarray
    dropped: float

    def probability(self, c: int) -> float:
        """q_E(c)."""
        return float(self.probabilities[self.values == c].sum())

    def above(self, c: int) -> float:
        """P[more than c], the cut mass included."""
        return float(self.probabilities[self.values > c].sum()) + self.dropped

    def below(self, c: int) -> float:
        """P[less than c]."""
        return float(self.probabilities[self.values < c].sum())

    def mean(self) -> float:
        """E[c]."""
        return float(self.values @ self.probabilities)


def hit_law(scheme: BatchScheme, *, epochs: int, group: int = 1) -> HitLaw:
    """The exact q_E(c) of a group of `group` items over `epochs` epochs.

    Args:
      scheme: clipping and sampling.
      epochs: E >= 1.
      group: g >= 1, at most the size of the data; under shuffling with m > 1 parts up to about 30.

    Returns:
      The law of c = sum over all rounds of (parts hit)^2. Probabilities are accurate to about
      1e-16 * rounds * epochs, relative (1e-12 for g = 1); mass below 1e-40 above is cut into
      `dropped`, below is moved up.

    Raises:
      TypeError, ValueError: an argument is out of its range, or the law would be too costly.
    """
    _checks.integer("epochs", epochs, 1)
    _checks.integer("group", group, 1, scheme.population)
    if scheme.sampling == "shuffling":
        if group == 1:
            return HitLaw(np.array([epochs]), np.ones(1), 0.0)
        epoch = occupancy.shuffled_epoch(scheme.rounds, scheme.parts, scheme.part_size, group)
        law, first, dropped = occupancy.fold(epoch, epochs)
    else:
        steps = _checks.integer("rounds * epochs", scheme.rounds * epochs, 1)
        places = scheme.population if scheme.sampling == "subsampling" else None
        one = occupancy.sampled_round(
            scheme.parts, scheme.part_size, group, places=places, rate=1.0 / scheme.rounds
        )
        if len(one) == 2:
            law, first, dropped = _binomial(steps, one[1])
        else:
            law, first, dropped = occupancy.fold(one, steps)
    law = law * ((1.0 - dropped) / law.sum())
    used = law > 0.0
    return HitLaw((first + np.arange(len(law), dtype=np.int64))[used], law[used], dropped)


def _binomial(steps: int, hit: float) -> tuple[np.ndarray, int, float]:
    if hit == 1.0:
        return np.ones(1), steps, 0.0
    low, law = binomial_window(steps, hit, _NEGLIGIBLE)
    high = low + len(law) - 1
    return occupancy.trim(law, low, _NEGLIGIBLE if high < steps else 0.0)


def exact_curve(
    scheme: BatchScheme, *, epochs: int, noise_multiplier: float, group: int = 1
) -> RevealedGaussians:
    """f of Definition 5.2 with the exact q_E, against A1.

    f(alpha) = inf{sum_c q_E(c) G_(sqrt(c)/sigma)(alpha_c): sum_c q_E(c) alpha_c = alpha}.

    Args:
      scheme: clipping and sampling.
      epochs: E.
      noise_multiplier: sigma = sd / (2 C), > 0.
      group: g, items replaced.
    """
    sigma = _positive(noise_multiplier)
    return _mixture(hit_law(scheme, epochs=epochs, group=group), sigma)


def lower_curve(
    scheme: BatchScheme,
    *,
    epochs: int,
    noise_multiplier: float,
    group: int = 1,
    tail: float = _BOUND_TAIL,
) -> RevealedGaussians:
    """The lower bound of Definition 5.3 from the exact tail, against A1: sound.

    With c_U the smallest c of P[more than c] <= tail, and that probability d: everything is lost with
    probability d, otherwise the curve is G_(sqrt(c_U)/sigma): (1 - d) G(alpha / (1 - d)), which is
    never below the form G(alpha) - d.

    Args:
      scheme, epochs, noise_multiplier, group: as for `exact_curve`.
      tail: probability that may be given up, in [0, 1).
    """
    law, sigma, tail = _bound(scheme, epochs, noise_multiplier, group, tail)
    sums = np.cumsum(law.probabilities[::-1])[::-1]
    above = np.concatenate([sums[1:], [0.0]]) + law.dropped
    index = min(int(np.sum(above > tail)), len(law.values) - 1)
    return _two_part(float(law.values[index]), sigma, lost=float(above[index]))


def upper_curve(
    scheme: BatchScheme,
    *,
    epochs: int,
    noise_multiplier: float,
    group: int = 1,
    tail: float = _BOUND_TAIL,
) -> RevealedGaussians:
    """The upper bound of Definition 5.4 from the exact tail: no proof against A1 can beat it.

    With c_L the largest c of P[less than c] <= tail, and that probability d: nothing is released with
    probability d, otherwise the curve is G_(sqrt(c_L)/sigma). NOT a guarantee.

    Args:
      scheme, epochs, noise_multiplier, group: as for `exact_curve`.
      tail: probability that may be given up, in [0, 1).
    """
    law, sigma, tail = _bound(scheme, epochs, noise_multiplier, group, tail)
    below = np.concatenate([[0.0], np.cumsum(law.probabilities)[:-1]])
    index = int(np.sum(below <= tail)) - 1
    curve = _two_part(float(law.values[index]), sigma, idle=float(below[index]))
    return curve.named("")


def closed_form_curve(
    scheme: BatchScheme, *, epochs: int, noise_multiplier: float, group: int = 1
) -> GaussianCurve:
    """G_(sqrt(min(m, g) g E)/sigma) for shuffling (Theorem F.1 at m = 1), against A1: sound.

    In an epoch sum_b k_b^2 <= min(m, g) sum_b k_b <= min(m, g) g. The published G_(sqrt(g E)/sigma)
    holds for batch clipping, m = 1, only.

    Raises:
      ValueError: the sampling is not "shuffling" (c has no bound there: use `exact_curve`).
    """
    if scheme.sampling != "shuffling":
        raise ValueError(
            f'closed_form_curve holds for sampling="shuffling", got {scheme.sampling!r}, where an '
            f"item may be drawn any number of times; use exact_curve, the binomial mixture."
        )
    sigma = _positive(noise_multiplier)
    _checks.integer("epochs", epochs, 1)
    _checks.integer("group", group, 1, scheme.population)
    mu = math.sqrt(float(min(scheme.parts, group)) * group * epochs) / sigma
    return GaussianCurve(mu, adversary=ADVERSARY_A1)


def independent_curve(
    scheme: BatchScheme, *, epochs: int, noise_multiplier: float, group: int = 1
) -> TradeOff:
    """C_(1/M)(G_(1/sigma))^((x) M E) against A0 (Dong, Roth & Su, Theorem 9): sound.

    For one replaced item and independent subsampling (of fixed size or Poisson), whatever is
    clipped. Numerical: below the true curve, see its `resolution`.

    Raises:
      ValueError: the group is larger than one, or the sampling is "shuffling".
    """
    if scheme.sampling == "shuffling":
        raise ValueError(
            'independent_curve needs rounds that draw independently, got sampling="shuffling"; '
            "use exact_curve, which holds against A1 and so against A0."
        )
    if _checks.integer("group", group, 1) != 1:
        raise ValueError(
            f"independent_curve holds for group=1, got {group}; use exact_curve for a group."
        )
    sigma = _positive(noise_multiplier)
    steps = _checks.integer(
        "rounds * epochs", scheme.rounds * _checks.integer("epochs", epochs, 1), 1
    )
    step = GaussianCurve(1.0 / sigma)
    if scheme.rounds == 1:
        return GaussianCurve(math.sqrt(steps) / sigma, adversary=ADVERSARY_A0)
    sampled = Subsampled(step, 1.0 / scheme.rounds)
    return convolve([(sampled, steps)], composition_interval(steps)).named(ADVERSARY_A0)


def _mixture(law: HitLaw, sigma: float) -> RevealedGaussians:
    return RevealedGaussians(
        np.sqrt(law.values.astype(np.float64)) / sigma,
        law.probabilities,
        law.dropped,
        adversary=ADVERSARY_A1,
    )


def _bound(
    scheme: BatchScheme, epochs: int, noise_multiplier: float, group: int, tail: float
) -> tuple[HitLaw, float, float]:
    sigma = _positive(noise_multiplier)
    if _checks.probability("tail", tail) == 1.0:
        raise ValueError("tail must be below 1, got 1.0: nothing would be left to bound.")
    return hit_law(scheme, epochs=epochs, group=group), sigma, float(tail)


def _two_part(c: float, sigma: float, *, lost: float = 0.0, idle: float = 0.0) -> RevealedGaussians:
    mus = np.array([0.0, math.sqrt(c) / sigma])
    weights = np.array([idle, 1.0 - idle - lost])
    return RevealedGaussians(mus, weights, lost, adversary=ADVERSARY_A1)


def _positive(noise_multiplier: float) -> float:
    sigma = _checks.noise("noise_multiplier", noise_multiplier)
    if sigma == 0.0:
        raise ValueError(
            "noise_multiplier must be above 0 (standard deviation of the noise over 2 C), got 0: "
            "without noise there is no curve but beta = 0."
        )
    return sigma
