# SPDX-License-Identifier: Apache-2.0
"""The few canonical mechanisms that both engines understand, as dominating pairs in one dimension.

All lengths are in units of the noise's standard deviation. A `Pair` (P, Q) is two mixtures of
unit-variance Gaussians whose log-ratio increases with the outcome. A mechanism has one or two
DIRECTIONS (remove and add a unit); a direction is a list of BRANCHES (probability, pair) of which
the adversary sees which one runs. The probabilities sum to at most 1; with the rest nothing is
released (privacy loss 0).
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

# Upper binomial atoms of joint probability below this are dropped and their mass is put into delta;
# lower atoms below it are moved up to the next sensitivity, which is worse for privacy (dominance).
DROPPED_MASS = 1e-36
# The same for known sensitivities, each of which costs a loss distribution of its own.
NEGLIGIBLE_MASS = 1e-32
_LAPLACE_CELLS = 4000
# A loss above this is as good as infinite (exp(-700) is the smallest float64 but for denormals).
_LARGEST_LOSS = 700.0
_LARGEST_SENSITIVITY = 10**6


@dataclasses.dataclass(frozen=True)
class Pair:
    """P = sum_j p_weights[j] N(p_locations[j], 1) against Q likewise; log P/Q increases.

    `dropped` is the mass missing from the mixture (from P or Q): it counts as infinite privacy
    loss.

    `symmetric` stands for the pair that has the losses of this one above 0, the same below 0 with P
    and Q exchanged, and what mass is left at 0 (see `FixedSize`). Its Q is N(0, 1).
    """

    p_locations: tuple[float, ...]
    p_weights: tuple[float, ...]
    q_locations: tuple[float, ...]
    q_weights: tuple[float, ...]
    dropped: float = 0.0
    symmetric: bool = False


@dataclasses.dataclass(frozen=True)
class LossAtoms:
    """A discrete pair: mass `masses[i]` of P on the privacy loss `losses[i]` (log P/Q), ascending.

    Q has mass masses[i] * exp(-losses[i]) there. Both sum to 1: no loss is infinite.
    """

    losses: tuple[float, ...] = dataclasses.field(repr=False)
    masses: tuple[float, ...] = dataclasses.field(repr=False)


Branches = tuple[tuple[float, Pair | LossAtoms], ...]


@dataclasses.dataclass(frozen=True)
class Mechanism(abc.ABC):
    """Base class: what one step is; equal mechanisms compose into one (value, count)."""

    #: Why the PLD engine cannot do it; None if it can.
    pld_refusal: ClassVar[str | None] = None

    @abc.abstractmethod
    def directions(self) -> tuple[Branches, ...]:
        """One or two lists of branches; the guarantee is the worst of them."""

    @property
    def is_gaussian(self) -> bool:
        return False


@dataclasses.dataclass(frozen=True)
class Gaussian(Mechanism):
    """N(mu, 1) against N(0, 1); mu = sensitivity / noise standard deviation."""

    mu: float

    def directions(self) -> tuple[Branches, ...]:
        return (((1.0, gaussian_pair(self.mu)),),)

    @property
    def is_gaussian(self) -> bool:
        return True


@dataclasses.dataclass(frozen=True)
class Mixture(Mechanism):
    """sum_j weights[j] N(locations[j], 1) against N(0, 1), in both directions (add or remove)."""

    locations: tuple[float, ...]
    weights: tuple[float, ...]
    dropped: float

    def directions(self) -> tuple[Branches, ...]:
        remove = Pair(self.locations, self.weights, (0.0,), (1.0,), self.dropped)
        # Adding: N(0, 1) against the mixture, mirrored so that the loss increases with the outcome.
        mirrored = tuple(-c for c in self.locations)
        add = Pair((0.0,), (1.0,), mirrored, self.weights, self.dropped)
        return (((1.0, remove),), ((1.0, add),))


@dataclasses.dataclass(frozen=True)
class ReplaceOne(Mechanism):
    """(1-p) N(0, 1) + p N(mu, 1) against (1-p) N(0, 1) + p N(-mu, 1); symmetric."""

    probability: float
    mu: float

    def directions(self) -> tuple[Branches, ...]:
        weights = (1.0 - self.probability, self.probability)
        pair = Pair((0.0, self.mu), weights, (0.0, -self.mu), weights)
        return (((1.0, pair),),)


@dataclasses.dataclass(frozen=True)
class Revealed(Mechanism):
    """With probability probabilities[i], known to the adversary, N(mus[i], 1) against N(0, 1)."""

    mus: tuple[float, ...]
    probabilities: tuple[float, ...]

    def directions(self) -> tuple[Branches, ...]:
        mass = np.asarray(self.probabilities)
        # As in `make_mixture`: rare low sensitivities are moved up, rare high ones count as
        # infinite loss. (The Renyi engine has a closed form and keeps all of them.)
        upper = np.cumsum(mass[::-1])[::-1]
        high = max(int(np.sum(upper > NEGLIGIBLE_MASS)), 1)
        low = min(int(np.sum(np.cumsum(mass) <= NEGLIGIBLE_MASS)), high - 1)
        weights = mass[low:high].copy()
        weights[0] += mass[:low].sum()
        dropped = float(mass[high:].sum()) / float(weights[-1])
        pairs = [gaussian_pair(mu) for mu in self.mus[low:high]]
        pairs[-1] = dataclasses.replace(pairs[-1], dropped=dropped)
        return (tuple(zip(map(float, weights), pairs, strict=True)),)


@dataclasses.dataclass(frozen=True)
class Atoms(Mechanism):
    """A mechanism that is not Gaussian, by its discrete loss distributions of both directions."""

    remove: LossAtoms
    add: LossAtoms

    def directions(self) -> tuple[Branches, ...]:
        first, second = ((1.0, self.remove),), ((1.0, self.add),)
        return (first,) if self.remove == self.add else (first, second)


@dataclasses.dataclass(frozen=True)
class Known(Mechanism):
    """One of `parts` (probability, mechanism) runs and the adversary learns which.

    The probabilities sum to at most 1; with the rest nothing is released. A part is no `Known`
    itself, nor one without a loss distribution.
    """

    parts: tuple[tuple[float, Mechanism], ...]

    def directions(self) -> tuple[Branches, ...]:
        per_part = [(weight, part.directions()) for weight, part in self.parts]
        sides = max(len(directions) for _, directions in per_part)
        return tuple(
            tuple(
                (weight * probability, pair)
                for weight, directions in per_part
                for probability, pair in directions[min(side, len(directions) - 1)]
            )
            for side in range(sides)
        )


@dataclasses.dataclass(frozen=True)
class ZeroConcentrated(Mechanism):
    """(xi, rho)-zCDP: Renyi divergence of every order alpha at most xi + rho * alpha."""

    pld_refusal: ClassVar[str | None] = (
        "a zCDP bound has no privacy loss distribution; "
        'use engine="rdp" for a composition that contains it'
    )

    rho: float
    xi: float

    def directions(self) -> tuple[Branches, ...]:
        raise ValueError(f"{self!r}: {self.pld_refusal}.")


@dataclasses.dataclass(frozen=True)
class FixedSize(Mechanism):
    """A batch drawn without replacement, one unit replaced that is in it with `probability`; symmetric.

    Zhu, Dong, Wang (arXiv:2106.08567), Theorem 11. Let P1 and Q1 be what a step releases before and
    after the replacement if the unit is drawn, P0 (alike in both) if it is not, g the probability,
    and let H(a) bound the hockey-stick divergence of order a >= 1 of P1 against Q1 AND against P0
    (what the unit's places hold when it is drawn, other units hold when it is not): here that of
    N(mu, 1) against N(0, 1). Then for a' = 1 + g (a - 1)

        (g P1 + (1-g) P0) - a' (g Q1 + (1-g) P0) = g (P1 - (1-b) a P0 - b a Q1),   b = a' / a,

    whose positive part is at most g H(a), by convexity: the profile of g N(mu, 1) + (1-g) N(0, 1)
    against N(0, 1). The replacement the other way round is one too, so the same bounds the divergence
    with P and Q exchanged; and D_a(P, Q) = 1 - a + a D_{1/a}(Q, P) carries that to orders below 1.
    Both halves are one convex profile: the pair that has the losses of the mixture against N(0, 1)
    above 0, the mirror images of these below 0, and the mass (1-g) (1 - 2 Phi(-mu/2)) at 0.
    Dominating pairs compose; a pair that has one half right only (the mixture itself) is none.
    """

    probability: float
    mu: float

    def directions(self) -> tuple[Branches, ...]:
        weights = (1.0 - self.probability, self.probability)
        return (((1.0, Pair((0.0, self.mu), weights, (0.0,), (1.0,), symmetric=True)),),)


def gaussian_pair(mu: float) -> Pair:
    """The pair of the Gaussian mechanism, N(mu, 1) against N(0, 1)."""
    return Pair((mu,), (1.0,), (0.0,), (1.0,))


def make_mixture(locations: Sequence[float], weights: Sequence[float]) -> Mechanism | None:
    """Canonical mechanism of a mixture: sorted, merged, tails cut pessimistically; None if void.

    Args:
      locations: sensitivities over noise, >= 0.
      weights: their probabilities, of sum 1.
    """
    values, inverse = np.unique(np.asarray(locations, dtype=np.float64), return_inverse=True)
    mass = np.bincount(inverse.ravel(), weights=np.asarray(weights, dtype=np.float64))
    keep = mass > 0.0
    values, mass = values[keep], mass[keep]
    mass = mass / math.fsum(mass)
    upper = np.cumsum(mass[::-1])[::-1]
    high = max(int(np.sum(upper > DROPPED_MASS)), 1)
    dropped = float(upper[high]) if high < len(mass) else 0.0
    values, mass = values[:high], mass[:high]
    low = int(np.sum(np.cumsum(mass) <= DROPPED_MASS))
    mass[low] += mass[:low].sum()
    values, mass = values[low:], mass[low:]
    if len(values) == 1 and dropped == 0.0:
        return Gaussian(float(values[0])) if values[0] > 0.0 else None
    return Mixture(tuple(map(float, values)), tuple(map(float, mass)), dropped)


def make_revealed(mus: Sequence[float], probabilities: Sequence[float]) -> Mechanism | None:
    """Canonical mechanism of known sensitivities; None if nothing is ever released."""
    merged: dict[float, float] = {}
    for mu, weight in zip(mus, probabilities, strict=True):
        if mu > 0.0 and weight > 0.0:
            merged[float(mu)] = merged.get(float(mu), 0.0) + float(weight)
    if not merged:
        return None
    items = sorted(merged.items())
    if len(items) == 1 and items[0][1] >= 1.0:
        return Gaussian(items[0][0])
    total = max(math.fsum(merged.values()), 1.0)
    return Revealed(tuple(mu for mu, _ in items), tuple(weight / total for _, weight in items))


def presence(mechanism: Mechanism) -> float:
    """Probability that one step of `mechanism` depends on the unit at all, at most."""
    if isinstance(mechanism, Mixture) and mechanism.locations[0] == 0.0:
        return math.fsum(mechanism.weights[1:]) + mechanism.dropped
    if isinstance(mechanism, (FixedSize, ReplaceOne)):
        return mechanism.probability
    if isinstance(mechanism, Revealed):
        return math.fsum(mechanism.probabilities)
    if isinstance(mechanism, Known):
        return math.fsum(weight * presence(part) for weight, part in mechanism.parts)
    return 1.0


def dropped(mechanism: Mechanism) -> float:
    """Mass of one step that mixtures in `mechanism` lack, at most; it is to be put into delta."""
    if isinstance(mechanism, Known):
        return max(dropped(part) for _, part in mechanism.parts)
    return mechanism.dropped if isinstance(mechanism, Mixture) else 0.0


def laplace_atoms(scale: float) -> Atoms | None:
    """The Laplace mechanism of L1 sensitivity 1 and noise scale `scale`; None if it says nothing.

    Its continuous loss is cut into cells whose mass under both P and Q is kept ("connect the dots",
    arXiv:2207.04380), so that the discrete pair dominates the true one; what holds for the discrete
    pair, sampling included, holds for the mechanism.

    Raises:
      ValueError: so little noise that the loss leaves the range of float64.
    """
    top = 1.0 / scale
    if top == 0.0:
        return None
    if top > _LARGEST_LOSS:
        raise ValueError(
            f"noise of LaplaceDpEvent is {scale:g}: epsilon {top:g} of a single release protects "
            f"nobody; use noise of at least {1.0 / _LARGEST_LOSS:g}, or NonPrivateDpEvent."
        )
    edges = np.linspace(-top, top, _LAPLACE_CELLS + 1)
    # Between the two centres the loss falls linearly in the outcome from `top` to -`top`.
    p_mass = 0.5 * np.diff(np.exp(0.5 * (edges - top)))
    q_mass = 0.5 * np.diff(-np.exp(-0.5 * (edges + top)))
    atoms = _connect(edges, p_mass, q_mass)
    atoms[-1] += 0.5
    atoms[0] += 0.5 * math.exp(-top)
    side = _atoms(edges, atoms)
    return Atoms(side, side)


def discrete_laplace_atoms(parameter: float, sensitivity: int) -> Atoms | None:
    """The discrete Laplace mechanism: noise x has mass tanh(a/2) exp(-a |x|), a = `parameter`."""
    if parameter * sensitivity == 0.0:
        return None
    if parameter * sensitivity > _LARGEST_LOSS:
        raise ValueError(
            f"DiscreteLaplaceDpEvent has epsilon {parameter * sensitivity:g} in a single release, "
            f"which protects nobody; use noise_parameter * sensitivity <= {_LARGEST_LOSS:g}."
        )
    if sensitivity > _LARGEST_SENSITIVITY:
        raise ValueError(
            f"sensitivity of DiscreteLaplaceDpEvent is {sensitivity}, above {_LARGEST_SENSITIVITY}; "
            f"state it as LaplaceDpEvent, which it is next to at so fine a grid."
        )
    # P is centred at 0, Q at the sensitivity; outside of both the loss is constant.
    inside = np.arange(1, sensitivity)
    scale = math.tanh(parameter / 2.0)
    outside = 1.0 / (1.0 + math.exp(-parameter))
    losses = parameter * np.concatenate(([sensitivity], sensitivity - 2.0 * inside, [-sensitivity]))
    masses = np.concatenate(
        (
            [outside],
            scale * np.exp(-parameter * inside),
            [outside * math.exp(-parameter * sensitivity)],
        )
    )
    side = _atoms(losses[::-1], masses[::-1])
    return Atoms(side, side)


def randomized_response_atoms(parameter: float, buckets: int) -> Atoms | None:
    """Randomized response, the answer of one person replaced: true with probability 1 - parameter.

    Against a special record, whose answer is uniform, this is an upper bound (quasi-convexity).
    """
    other = parameter / buckets
    true = 1.0 - parameter + other
    if true == other:
        return None
    top = math.log(true / other)
    side = _atoms(np.array([-top, 0.0, top]), np.array([other, (buckets - 2) * other, true]))
    return Atoms(side, side)


def sampled_atoms(mechanism: Atoms, rate: float) -> Atoms:
    """`mechanism` on a unit that is present with probability `rate` (add or remove one unit)."""
    removed = np.asarray(mechanism.remove.losses)
    masses = np.asarray(mechanism.remove.masses)
    absent = masses * np.exp(-removed)
    remove = _atoms(np.log1p(rate * np.expm1(removed)), (1.0 - rate) * absent + rate * masses)
    # Adding: P is the mechanism without the unit, Q the sampled one.
    losses = np.asarray(mechanism.add.losses)
    masses = np.asarray(mechanism.add.masses)
    add = _atoms(-np.log1p(rate * np.expm1(-losses)), masses)
    return Atoms(remove, add)


def _connect(edges: np.ndarray, p_mass: np.ndarray, q_mass: np.ndarray) -> np.ndarray:
    """Masses on `edges` that keep each cell's mass under P and under Q."""
    low, high = np.exp(-edges[:-1]), np.exp(-edges[1:])
    share = np.clip((low - q_mass / p_mass) / (low - high), 0.0, 1.0)
    atoms = np.zeros(len(edges))
    atoms[:-1] += p_mass * (1.0 - share)
    atoms[1:] += p_mass * share
    return atoms


def _atoms(losses: np.ndarray, masses: np.ndarray) -> LossAtoms:
    kept = masses > 0.0
    total = math.fsum(masses[kept])
    return LossAtoms(tuple(map(float, losses[kept])), tuple(map(float, masses[kept] / total)))
