# SPDX-License-Identifier: Apache-2.0
"""dp_accounting's mechanisms without Gaussian noise, as discrete privacy loss distributions.

Knows `mechanisms`. A continuous loss (Laplace) is cut into cells whose mass under both P and Q is
kept ("connect the dots", arXiv:2207.04380), so that the discrete pair dominates the true one; what
holds for the discrete pair, sampling included, holds for the mechanism.
"""

from __future__ import annotations

import math

import numpy as np

from tf_subjectdp.accounting.engine.mechanisms import Atoms, LossAtoms

_LAPLACE_CELLS = 4000
# A loss above this is as good as infinite (exp(-700) is the smallest float64 but for denormals).
_LARGEST_LOSS = 700.0
_LARGEST_SENSITIVITY = 10**6


def laplace(scale: float) -> Atoms | None:
    """The Laplace mechanism of L1 sensitivity 1 and noise scale `scale`; None if it says nothing.

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


def discrete_laplace(parameter: float, sensitivity: int) -> Atoms | None:
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


def randomized_response(parameter: float, buckets: int) -> Atoms | None:
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


def sampled(mechanism: Atoms, rate: float) -> Atoms:
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
