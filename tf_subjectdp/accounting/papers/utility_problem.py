# SPDX-License-Identifier: Apache-2.0
"""The problem, the data and the shape of the bounds of `utility`, which states what they mean."""

from __future__ import annotations

import dataclasses
import math

from tf_subjectdp.accounting import _checks


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvexProblem:
    """A convex, L-Lipschitz, beta-smooth loss on a closed convex set.

    Attributes:
      diameter: D, largest distance of two points of the set, > 0.
      lipschitz: L, bound on the norm of an item's gradient, > 0.
      smoothness: beta, bound on how fast that gradient turns, >= 0 (0 for a linear loss).
      dimension: d, number of parameters, >= 1.

    Raises:
      ValueError, TypeError: an attribute is out of its range.
    """

    diameter: float
    lipschitz: float
    smoothness: float
    dimension: int

    def __post_init__(self) -> None:
        for name in ("diameter", "lipschitz", "smoothness"):
            value = _checks.sensitivity(name, getattr(self, name))
            if value == 0.0 and name != "smoothness":
                raise ValueError(f"{name} must be above 0, got 0: such a problem has no loss.")
        _checks.integer("dimension", self.dimension, 1)

    @property
    def trivial(self) -> float:
        """L D: no two points of the set differ by more in loss."""
        return self.lipschitz * self.diameter


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubjectData:
    """Who holds what, evenly spread.

    Attributes:
      subjects: N, subjects in each silo, >= 1.
      items: k, items of one subject in one silo, >= 1.
      silos: s, silos in every round, >= 1.
      silos_per_subject: m, silos that hold the same subject, in [1, silos].

    Raises:
      ValueError, TypeError: an attribute is out of its range.
    """

    subjects: int
    items: int = 1
    silos: int = 1
    silos_per_subject: int = 1

    def __post_init__(self) -> None:
        for name in ("subjects", "items", "silos", "silos_per_subject"):
            _checks.integer(name, getattr(self, name), 1)
        if self.silos_per_subject > self.silos:
            raise ValueError(
                f"silos_per_subject must be at most silos, got {self.silos_per_subject} of "
                f"{self.silos}."
            )

    @property
    def distinct_subjects(self) -> float:
        """s N / m: the independent draws from the population."""
        return self.silos * self.subjects / self.silos_per_subject


@dataclasses.dataclass(frozen=True)
class ExcessLoss:
    """A bound on the expected excess population loss, in its parts (all in units of the loss).

    Attributes:
      optimisation: what finitely many steps leave, and the gradients' own second moment.
      noise: what the privacy noise adds.
      generalisation: what is lost from the sample to the population.
      trivial: L D.
      learning_rate: eta, the step size of the bound.
      noise_multiplier: sigma.
    """

    optimisation: float
    noise: float
    generalisation: float
    trivial: float
    learning_rate: float
    noise_multiplier: float

    @property
    def total(self) -> float:
        """The bound: the sum of the parts, and never more than `trivial`."""
        return min(self.optimisation + self.noise + self.generalisation, self.trivial)


def assemble(
    problem: ConvexProblem,
    data: SubjectData,
    *,
    scale: float,
    second_moment: float,
    deviation: float,
    smoothness: float,
    steps: int,
    learning_rate: float | None,
    noise_multiplier: float,
) -> ExcessLoss:
    """The bound of `utility`, term by term.

    Args:
      problem: the loss.
      data: who holds what.
      scale: kappa, what the expected step is of the gradient.
      second_moment: V, bound on the second moment of a step without noise.
      deviation: tau, standard deviation of the noise in a step, in each coordinate.
      smoothness: of the step taken on the fullest batch.
      steps: T, >= 1.
      learning_rate: eta, or None for the best.
      noise_multiplier: sigma, for the record.

    Raises:
      ValueError, TypeError: an argument is out of its range.
    """
    steps = _checks.integer("steps", steps, 1)
    distance = problem.diameter**2 / (2.0 * scale * steps)
    gradient = second_moment / (2.0 * scale)
    noise = problem.dimension * deviation**2 / (2.0 * scale)
    stability = scale * problem.lipschitz**2 * (steps - 1) / data.distinct_subjects
    largest = 2.0 / smoothness if smoothness else math.inf
    if learning_rate is None:
        eta = min(math.sqrt(distance / (gradient + noise + stability)), largest)
    else:
        eta = _checks.sensitivity("learning_rate", learning_rate)
        if not 0.0 < eta <= largest:
            raise ValueError(
                f"learning_rate must be in (0, {largest:g}] (2 over the smoothness of the fullest "
                f"batch), got {eta:g}; above it a step may push two runs apart."
            )
    return ExcessLoss(
        optimisation=distance / eta + gradient * eta,
        noise=noise * eta,
        generalisation=stability * eta,
        trivial=problem.trivial,
        learning_rate=eta,
        noise_multiplier=noise_multiplier,
    )
