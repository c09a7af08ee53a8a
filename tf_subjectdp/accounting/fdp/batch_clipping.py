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

Two kinds of numbers. A `BatchScheme` is the paper's: N = M m s, a rate of 1/M, parts of s places. The
`*_parts_curve` functions take a plan's own: whatever rate, number of items and size of a batch it has,
the last batch of an epoch may be smaller, and every item joins one of m parts independently, as the
library draws. There the law of c is exact, or never smaller than the exact one, which is sound:
delta_Gauss(eps; sqrt(c)/sigma) grows with c.

Two published statements that do not hold are here so that the paper's figures can be redrawn; each
warns with the honest value. Their formulas were reconstructed from the figures (a tail of exp(-50), a
0.740), which they reproduce; constants may be written differently there.
"""

from __future__ import annotations

import dataclasses
import math
import warnings

import numpy as np
from scipy import special, stats

from tf_subjectdp.accounting import _checks, part_laws
from tf_subjectdp.accounting.clipped_parts import checked_batches, checked_sampling
from tf_subjectdp.accounting.fdp.algebra import power, subsample
from tf_subjectdp.accounting.fdp.curves import GaussianCurve, RevealedGaussians, TradeOff
from tf_subjectdp.accounting.paper_rules import PaperRuleWarning

ADVERSARY_A0 = "A0: sees every noised update and both candidate data sets, not the batches"
ADVERSARY_A1 = "A1: as A0, and knows in which batch and part every differing item was"
SAMPLINGS = ("shuffling", "subsampling", "poisson")
_UNPROVEN = "nobody: the published proof does not hold"
_NEGLIGIBLE = 1e-40
# A plan's law of c holds at most so many values; beyond, they are rounded up.
_MOST_VALUES = 16_384
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
    if scheme.sampling != "shuffling":
        count = _checks.integer("rounds * epochs", scheme.rounds * epochs, 1)
        places = scheme.population if scheme.sampling == "subsampling" else None
        one = part_laws.sampled_round(
            scheme.parts, scheme.part_size, group, places=places, rate=1.0 / scheme.rounds
        )
    elif group == 1:
        count, one = epochs, np.array([0.0, 1.0])
    else:
        count = epochs
        one = part_laws.shuffled_epoch(scheme.rounds, scheme.parts, scheme.part_size, group)
    values, law, dropped = part_laws.sum_law(np.arange(len(one)), one, count)
    return HitLaw(values.astype(np.int64), law, dropped)


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
    law = hit_law(scheme, epochs=epochs, group=group)
    return _mixture((law.values, law.probabilities, law.dropped), sigma)


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
    _checks.integer("epochs", epochs, 1)
    steps = _checks.integer("rounds * epochs", scheme.rounds * epochs, 1)
    step = subsample(GaussianCurve(1.0 / sigma), 1.0 / scheme.rounds)
    return power(step, steps).named(ADVERSARY_A0)


def sampled_parts_curve(
    *, q: float, k: int, parts: int, steps: int, noise_multiplier: float
) -> RevealedGaussians:
    """Poisson-sampled items: c = sum over the steps of u^2, u as in `mixed_clipping_event`.

    Against A1, so without amplification; the unit's k items are replaced in place, added or removed.
    parts = 1 is exact (c is binomial). Otherwise values of c are rounded up where there are more
    than some 16,000: by less than 1e-3 of c for up to 64 parts. Above 100,000 items the parts hit
    are bounded by min(Binomial(k, q), parts).

    Args:
      q: probability that one item is in the batch, in [0, 1].
      k: largest number of items of the unit, in [1, 1e9].
      parts: m, clipped results in a step, >= 1.
      steps: number of steps, >= 1.
      noise_multiplier: sigma = noise standard deviation divided by 2 C, > 0.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    q, k, parts = checked_sampling(q, k, parts)
    return _stepped(part_laws.parts_of_sampled(parts, k, q), steps, noise_multiplier)


def fixed_size_parts_curve(
    *, n_items: int, batch_size: int, k: int, parts: int, steps: int, noise_multiplier: float
) -> RevealedGaussians:
    """Batches of fixed size, each drawn afresh without replacement; k items replaced in place.

    c = sum over the steps of u^2, u as in `mixed_clipping_fixed_size_event`; rounding and large k
    as in `sampled_parts_curve`.

    Args:
      n_items: items in the data, >= 1.
      batch_size: items in a batch, 1 <= batch_size <= n_items.
      k: largest number of items of the unit, 1 <= k <= n_items, k <= 1e9.
      parts: m, clipped results in a step, >= 1.
      steps: number of steps, >= 1.
      noise_multiplier: sigma = noise standard deviation divided by 2 C, > 0.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    n_items, batch_size, k, parts = checked_batches(n_items, batch_size, k, parts)
    law = part_laws.parts_of_batch(parts, k, n_items, batch_size)
    return _stepped(law, steps, noise_multiplier)


def shuffled_parts_curve(
    *, n_items: int, batch_size: int, k: int, parts: int, epochs: int, noise_multiplier: float
) -> RevealedGaussians:
    """Shuffled epochs, the last batch of each smaller if it must be; k items replaced in place.

    c = sum over all epochs' batches of u^2. One item, k = 1, is hit once an epoch: G_(sqrt(E)/sigma).
    Batch clipping (parts = 1) has the exact law of the batches hit; mixed clipping has the exact law
    up to some 40 items, and beyond a law by Chernoff's bound (`part_laws.epoch_tail`), never smaller
    (epsilon some 8 % above at 40 items, a few percent where c is large). Never above
    G_(sqrt(w)/sigma), w = E times the largest possible sum of an epoch, which is at most min(m, k) k
    (Theorem F.1 with its correction for m > 1); that stands in where k times the batches is above
    3e8.

    Args:
      n_items: items in the data, all of them in each epoch, >= 1.
      batch_size: items in a batch, 1 <= batch_size <= n_items.
      k: largest number of items of the unit, 1 <= k <= n_items, k <= 1e9.
      parts: m, clipped results in a step, >= 1.
      epochs: E >= 1.
      noise_multiplier: sigma = noise standard deviation divided by 2 C, > 0.

    Raises:
      ValueError, TypeError: an argument is out of its range; the message names it.
    """
    n_items, batch_size, k, parts = checked_batches(n_items, batch_size, k, parts)
    epochs = _checks.integer("epochs", epochs, 1)
    sigma = _positive(noise_multiplier)
    epoch = part_laws.epoch_law(parts, n_items, batch_size, k)
    if epoch is not None:
        values = np.arange(len(epoch))
        law = part_laws.sum_law(values, epoch, epochs, most_values=_MOST_VALUES)
    elif parts == 1:
        worst = part_laws.worst_epoch(1, n_items, batch_size, k)
        law = (np.array([float(worst) * epochs]), np.ones(1), 0.0)
    else:
        law = part_laws.epoch_tail(parts, n_items, batch_size, k, epochs, _NEGLIGIBLE)
    return _mixture(law, sigma)


def _stepped(
    law: tuple[np.ndarray, np.ndarray], steps: int, noise_multiplier: float
) -> RevealedGaussians:
    """The curve of `steps` steps, in each of which the parts hit have the law given."""
    steps, sigma = _checks.integer("steps", steps, 1), _positive(noise_multiplier)
    u, masses = law
    squares = u.astype(np.int64) ** 2
    return _mixture(part_laws.sum_law(squares, masses, steps, most_values=_MOST_VALUES), sigma)


def paper_e1_curve(
    *, rounds: int, epochs: int, noise_multiplier: float, delta: float = 1e-5
) -> RevealedGaussians:
    """Theorem E.1 as published: subsampling, one item, a closed form without the number of rounds.

    G_(sqrt((1 + 1/sqrt(2 E)) E)/sigma), all lost with probability exp(-E). The exponent is that of
    Hoeffding's inequality without the number of trials M E; the true tail of Binomial(M E, 1/M) is
    far larger (E = 50, M = 100: 0.21, not exp(-50)).

    Args:
      rounds: M >= 2, rounds in an epoch (used for the honest value only).
      epochs: E >= 1.
      noise_multiplier: sigma = sd / (2 C).
      delta: at which the warning states the honest epsilon, in (0, 1).

    Warns:
      PaperRuleWarning: with the epsilon of the curve and of the exact one at `delta`.
    """
    sigma = _positive(noise_multiplier)
    delta = _checks.target_delta(delta, allow_zero=False)
    _checks.integer("rounds", rounds, 2)
    _checks.integer("epochs", epochs, 1)
    largest = (1.0 + 1.0 / math.sqrt(2.0 * epochs)) * epochs
    claimed = math.exp(-epochs)
    curve = RevealedGaussians(
        np.array([math.sqrt(largest) / sigma]), np.array([1.0 - claimed]), claimed
    ).named(_UNPROVEN)
    scheme = BatchScheme.batch(rounds, 1, "subsampling")
    honest = exact_curve(scheme, epochs=epochs, noise_multiplier=sigma)
    true_tail = float(stats.binom.sf(math.floor(largest), rounds * epochs, 1.0 / rounds))
    published, correct = float(curve.epsilon(delta)), float(honest.epsilon(delta))
    warnings.warn(
        PaperRuleWarning(
            f"Theorem E.1 (van Dijk et al.) states epsilon={published:.6g} at delta={delta:g}; the "
            f"exact curve of the same training, Definition 5.2, gives epsilon={correct:.6g}. The "
            f"theorem counts a tail of {claimed:.3g} where it is {true_tail:.3g} ({rounds} rounds, "
            f"{epochs} epochs). Use exact_curve.",
            rule="Theorem E.1, van Dijk et al.",
            published=published,
            honest=correct,
            stated_epsilon=published,
            honest_epsilon=correct,
            reason="Hoeffding's inequality is used without the number of trials",
        ),
        stacklevel=2,
    )
    return curve


def paper_f3_occupancy(rounds: int, group: int, *, part_size: int) -> np.ndarray:
    """q_j of Theorem F.3 as published: unlabelled items, P[a group hits j batches of an epoch].

    C(M, j) C(g - 1, j - 1) / C(M + g - 1, g): every way to write g as a sum of M batch counts is
    given the same weight, but the items are labelled (M = 20, g = 3, j = 3: 0.740, exactly 0.858).

    Args:
      rounds: M, batches in an epoch.
      group: g.
      part_size: s, items in a batch (used for the honest value only).

    Returns:
      float64, shape (g + 1,): the published P[j], j = 0..g.

    Warns:
      PaperRuleWarning: with the published and the exact probability of the largest j.
    """
    _checks.integer("rounds", rounds, 1)
    _checks.integer("part_size", part_size, 1)
    if _checks.integer("group", group, 1) > rounds * part_size:
        raise ValueError(
            f"group={group} is more than the {rounds * part_size} items of an epoch of {rounds} "
            f"batches of {part_size}."
        )
    published = _unlabelled(rounds, group)
    scheme = BatchScheme.batch(rounds, part_size)
    honest = hit_law(scheme, epochs=1, group=group)
    most = min(rounds, group)
    warnings.warn(
        PaperRuleWarning(
            f"Theorem F.3 (van Dijk et al.) gives a group of {group} the probability "
            f"{published[most]:.4g} of hitting {most} of {rounds} batches; the exact value is "
            f"{honest.probability(most):.4g}. The formula counts unlabelled items. Use hit_law.",
            rule="Theorem F.3, van Dijk et al.",
            published=float(published[most]),
            honest=honest.probability(most),
            reason="the count treats the items of the group as indistinguishable",
        ),
        stacklevel=2,
    )
    return published


def paper_f3_curve(
    scheme: BatchScheme,
    *,
    epochs: int,
    noise_multiplier: float,
    group: int,
    delta: float = 1e-5,
) -> RevealedGaussians:
    """The curve that follows from the published q_j of Theorem F.3: too high, so marked.

    Args:
      scheme: batch clipping (m = 1) with shuffling.
      epochs, noise_multiplier, group: as for `exact_curve`.
      delta: at which the warning states the honest epsilon, in (0, 1).

    Warns:
      PaperRuleWarning: with the epsilon of the curve and of the exact one at `delta`.

    Raises:
      ValueError: the scheme is another one.
    """
    if scheme.sampling != "shuffling" or scheme.parts != 1:
        raise ValueError(
            f'paper_f3_curve is stated for sampling="shuffling" and parts=1, got {scheme!r}.'
        )
    sigma = _positive(noise_multiplier)
    delta = _checks.target_delta(delta, allow_zero=False)
    _checks.integer("epochs", epochs, 1)
    honest = exact_curve(scheme, epochs=epochs, noise_multiplier=sigma, group=group)
    law = part_laws.sum_law(np.arange(group + 1), _unlabelled(scheme.rounds, group), epochs)
    curve = _mixture(law, sigma).named(_UNPROVEN)
    published, correct = float(curve.epsilon(delta)), float(honest.epsilon(delta))
    warnings.warn(
        PaperRuleWarning(
            f"Theorem F.3 (van Dijk et al.) leads to epsilon={published:.6g} at delta={delta:g}; "
            f"with the exact count of batches epsilon={correct:.6g}. Use exact_curve.",
            rule="Theorem F.3, van Dijk et al.",
            published=published,
            honest=correct,
            stated_epsilon=published,
            honest_epsilon=correct,
            reason="the count treats the items of the group as indistinguishable",
        ),
        stacklevel=2,
    )
    return curve


def _unlabelled(rounds: int, group: int) -> np.ndarray:
    _checks.integer("rounds", rounds, 1)
    _checks.integer("group", group, 1)
    j = np.arange(group + 1, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        logs = (
            _log_choose(rounds, j)
            + _log_choose(group - 1.0, j - 1.0)
            - _log_choose(rounds + group - 1.0, float(group))
        )
    law = np.where((j >= 1) & (j <= rounds), np.exp(logs), 0.0)
    return law / law.sum()


def _log_choose(n: float, k: np.ndarray | float) -> np.ndarray:
    return special.gammaln(n + 1.0) - special.gammaln(k + 1.0) - special.gammaln(n - k + 1.0)


def _mixture(law: tuple[np.ndarray, np.ndarray, float], sigma: float) -> RevealedGaussians:
    """f of Definition 5.2 for a law of c: values, masses, and the mass cut above."""
    values, masses, dropped = law
    mus = np.sqrt(values.astype(np.float64)) / sigma
    return RevealedGaussians(mus, masses, dropped, adversary=ADVERSARY_A1)


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
