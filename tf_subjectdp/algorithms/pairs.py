# SPDX-License-Identifier: Apache-2.0
"""Which samplings an algorithm has a proven figure for: read from the rules that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: From a scheme of `SamplingFacts` to the sampler that draws by it, in the order of the documentation.
SAMPLERS = {
    "poisson_items": "PoissonItems",
    "poisson_subjects": "PoissonSubjects",
    "poisson_elements": "PoissonElements",
    "fixed_size": "FixedSize",
    "shuffle": "Shuffle",
}


def samplers_of(algorithm: Any, unit: str) -> list[str]:
    """The names of the samplers under which an algorithm promises something to a unit.

    A figure may need a bound besides (`max_elements`, `max_items_per_subject`), which errors name.

    Args:
      algorithm: an `Algorithm`, or its class.
      unit: "subject", "element" or "item".
    """
    known = {} if unit not in algorithm.units else SAMPLERS
    return [name for scheme, name in known.items() if _rule(algorithm, unit, scheme) is not None]


def proven_rule(algorithm: Any, unit: str, scheme: str) -> Callable[..., Any]:
    """The rule that gives the guarantee for a unit under a scheme of sampling.

    Raises:
      ValueError: the algorithm promises nothing to the unit, or not under this sampling.
    """
    name = type(algorithm).__name__
    if unit not in algorithm.units:
        raise ValueError(
            f"{name} knows no {unit}s, only {', '.join(algorithm.units)}; elements are what ElementDP "
            "protects."
        )
    rule = _rule(algorithm, unit, scheme)
    if rule is None:
        found = ", ".join(samplers_of(algorithm, unit))
        instead = f"; with {found} it has" if found else " under any sampling"
        raise ValueError(
            f"{name} with {SAMPLERS.get(scheme, repr(scheme))} has no proven guarantee for one {unit}"
            f"{instead} (docs/guarantees.md has all pairs)."
        )
    return rule


def _rule(algorithm: Any, unit: str, scheme: str) -> Callable[..., Any] | None:
    return getattr(algorithm, f"_{unit}_under_{scheme}", None)
