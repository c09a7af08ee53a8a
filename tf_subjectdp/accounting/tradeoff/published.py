# SPDX-License-Identifier: Apache-2.0
"""Two published statements of van Dijk et al. (arXiv:2212.05796) that do not hold, so marked.

They are here so that the paper's figures can be redrawn; each warns with the honest value. The
formulas were reconstructed from the paper's figures (its tail of exp(-50), its 0.740), which they
reproduce; constants may be written differently there.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from scipy import special, stats

from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.paper_rules import PaperRuleWarning
from tf_subjectdp.accounting.tradeoff.batch_clipping import (
    BatchScheme,
    _positive,
    exact_curve,
    hit_law,
)
from tf_subjectdp.accounting.tradeoff.gaussians import RevealedGaussians
from tf_subjectdp.accounting.tradeoff.occupancy import fold

_UNPROVEN = "nobody: the published proof does not hold"


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
    law, first, dropped = fold(_unlabelled(scheme.rounds, group), epochs)
    mus = np.sqrt(first + np.arange(len(law), dtype=np.float64)) / sigma
    curve = RevealedGaussians(mus, law * ((1.0 - dropped) / law.sum()), dropped).named(_UNPROVEN)
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
