# SPDX-License-Identifier: Apache-2.0
"""The plan of a federation: algorithm, sampling, silos, rounds and promise, chosen together.

Knows algorithms, samplers, silo statistics and the accountant's horizontal composition; loads neither
TensorFlow nor TFF. The process builder reads the same frozen object as the accountant, so that what a
silo does and what is stated about it cannot differ.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_subjectdp import accounting
from tf_subjectdp.algorithms import Algorithm, SamplingFacts, algorithm_from_config
from tf_subjectdp.algorithms.base import rounded_up
from tf_subjectdp.federated import costs
from tf_subjectdp.plans import check_delta, check_unit
from tf_subjectdp.sampling import Sampler, SiloStats, sampler_from_config


class Spent(NamedTuple):
    """What a run has released so far.

    Attributes:
      rounds: rounds in all.
      of_silos: rounds that each silo took part in.
    """

    rounds: int
    of_silos: tuple[int, ...]


NOISE_AT = ("silo", "server")
VIEWS = ("updates", "average")
WEIGHTINGS = ("uniform", "items")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FederatedPlan:
    """What was decided before the first round. Made by `federated.plan(...)`.

    All fields are public constants: neighbouring data are compared under the same ones.

    Attributes:
      algorithm: the clipping rule; None for FedAvg without privacy.
      samplings: one sampler a silo.
      names: what the silos are called.
      facts: for each silo rate, k and sizes, what the accountant needs.
      rounds: R, the rounds that may be run.
      silos_per_round: s, how many silos a round is planned for.
      local_steps: T, the steps that a silo takes in a round.
      noise_multipliers: sigma of each silo's steps; where the server adds the noise, all are that of
        the server.
      noise_at: "silo" (local algorithms: every silo noises its own steps) or "server" (central ones:
        a trusted server noises the sum over the silos, once).
      view: "updates" (whoever runs the server sees each silo's update) or "average" (secure
        aggregation: only the sum is seen).
      weighting: "uniform" or "items" (planned numbers of items) in the average over silos.
      silos_per_subject: m, a promise that nobody is in more than m silos; None for every silo. See
        `costs.horizontal` for what neighbouring data then are.
      minimum_silos: a round of fewer silos is refused; in the averaged view, the accountant counts
        on the noise of no more than these.
      delta: the delta of the promise; None if none was given.
      target_epsilon: the epsilon that the noise was chosen for; None if the noise was given.
      max_items_per_subject: the public bound on a subject's items in ONE silo, which every silo
        enforces; None if each k was read from the data.
      unit: "subject", "element" (of a subject) or "item", whose epsilon the promise is.
      stats: who has how many items where; None in a plan that was read from a state.
    """

    algorithm: Algorithm | None
    samplings: tuple[Sampler, ...]
    names: tuple[str, ...]
    facts: tuple[SamplingFacts, ...]
    rounds: int
    silos_per_round: int
    local_steps: int
    noise_multipliers: tuple[float, ...]
    noise_at: str = "silo"
    view: str = "updates"
    weighting: str = "uniform"
    silos_per_subject: int | None = None
    minimum_silos: int = 1
    delta: float | None = None
    target_epsilon: float | None = None
    max_items_per_subject: int | None = None
    unit: str = "subject"
    stats: SiloStats | None = dataclasses.field(default=None, repr=False, compare=False)

    # -- what a silo does --------------------------------------------------------------------------

    @property
    def n_silos(self) -> int:
        """How many silos there are."""
        return len(self.names)

    @property
    def rounds_of_a_silo(self) -> int:
        """The most rounds that one silo takes part in: rounds * silos_per_round / silos, rounded up.

        The process refuses more, so that any order of participation keeps the promise.
        """
        return -(-self.rounds * self.silos_per_round // self.n_silos)

    @property
    def needs_elements(self) -> bool:
        """Whether the silos' rows have an element each."""
        return self.algorithm is not None and self.algorithm.needs_elements

    @property
    def divisors(self) -> tuple[float, ...]:
        """The constant by which each silo's sum of a step is divided."""
        if self.algorithm is None:
            return tuple(facts.batch_size for facts in self.facts)
        return tuple(self.algorithm.divisor(facts) for facts in self.facts)

    @property
    def weights(self) -> tuple[float, ...]:
        """Each silo's weight in the average, public; they average to 1."""
        if self.weighting == "uniform":
            return (1.0,) * self.n_silos
        mean = sum(facts.n_items for facts in self.facts) / self.n_silos
        return tuple(facts.n_items / mean for facts in self.facts)

    @property
    def planned_weight(self) -> float:
        """What the weighted sum over a round's silos is divided by, whoever takes part."""
        return float(self.silos_per_round)

    @property
    def server_divisor(self) -> float:
        """Central algorithms: the planned divisor of the sum over a round's silos."""
        return math.fsum(self.divisors) * self.silos_per_round / self.n_silos

    @property
    def is_private(self) -> bool:
        """Whether there is an algorithm, and noise in every silo."""
        return self.algorithm is not None and min(self.noise_multipliers) > 0.0

    # -- what it costs -----------------------------------------------------------------------------

    def horizontal(
        self, spent: Spent | None = None, *, unit: str | None = None
    ) -> accounting.HorizontalPlan:
        """The `accounting.HorizontalPlan` of what the silos release; see `costs.horizontal`."""
        return costs.horizontal(self, self.checked_spent(spent), unit=self._checked_unit(unit))

    def epsilon(
        self,
        delta: float | None = None,
        *,
        unit: str | None = None,
        spent: Spent | None = None,
    ) -> float:
        """epsilon of the costliest subject, element of a subject or item, from above.

        Of the rounds alone: what elements fitted on the private data cost is on top, see `statement()`.

        Args:
          delta: in (0, 1); None takes the plan's.
          unit: "subject", "element" or "item"; None takes the plan's.
          spent: what was released; None for all that is planned.

        Raises:
          ValueError: no delta, or one outside (0, 1); a unit for which nothing is proven.
        """
        spent, unit = self.checked_spent(spent), self._checked_unit(unit)
        if self.algorithm is None:
            return math.inf if spent.rounds else 0.0
        return costs.epsilon(self, spent, self.checked_delta(delta), unit)

    def per_subject_epsilon(
        self, *, delta: float | None = None, spent: Spent | None = None
    ) -> accounting.SubjectEpsilons:
        """epsilon of every person of the table, by the silos they are really in.

        Such figures depend on the data: for those who hold the table, never for release.

        Raises:
          ValueError: a plan without its stats or its privacy.
        """
        if self.stats is None:
            raise ValueError(
                "this plan was read from a state and has no stats; use the plan that the process was "
                "built with."
            )
        if self.algorithm is None:
            raise ValueError("algorithm=None is not private: everybody's epsilon is infinite.")
        return costs.of_every_subject(self, self.checked_spent(spent), self.checked_delta(delta))

    def _checked_unit(self, unit: str | None) -> str:
        if unit is None:
            return self.unit
        check_unit(unit)
        return unit

    def checked_spent(self, spent: Spent | None) -> Spent:
        """Counts of this plan's silos as plain numbers; None stands for all that is planned.

        Raises:
          ValueError: counts of another number of silos, or negative ones.
        """
        if spent is None:
            return Spent(self.rounds, (self.rounds_of_a_silo,) * self.n_silos)
        counts = np.asarray([spent.rounds, *spent.of_silos])
        if counts.shape != (self.n_silos + 1,) or counts.dtype.kind not in "iu" or counts.min() < 0:
            raise ValueError(
                f"spent={spent!r} must have the rounds of {self.n_silos} silos: whole numbers of at "
                "least 0."
            )
        return Spent(int(counts[0]), tuple(counts[1:].tolist()))

    def checked_delta(self, delta: float | None) -> float:
        """The delta, or the plan's; ValueError if there is none."""
        if delta is None and self.delta is None:
            raise ValueError("delta is missing: the plan has none; pass delta=, e.g. delta=1e-5.")
        return check_delta(self.delta if delta is None else delta)

    # -- how it is kept ----------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """JSON-able figures, without the stats; `FederatedPlan.from_config` is the inverse."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del fields["stats"]
        fields["algorithm"] = None if self.algorithm is None else self.algorithm.get_config()
        fields["samplings"] = [sampling.get_config() for sampling in self.samplings]
        fields["facts"] = [dataclasses.asdict(facts) for facts in self.facts]
        return json.loads(json.dumps(fields))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "FederatedPlan":
        """Rebuilds a plan; its epsilon is computed anew, never read from the config.

        Raises:
          TypeError, ValueError: it is no config of a plan.
        """
        if not isinstance(config, Mapping):
            raise TypeError(f"config={config!r} must be a dict made by get_config().")
        fields = dict(config)
        # States of earlier releases name no unit: theirs was the subject.
        missing = {f.name for f in dataclasses.fields(cls)} - set(fields) - {"stats", "unit"}
        if missing:
            raise ValueError(
                f"this is no config of a FederatedPlan: {sorted(missing)} are missing."
            )
        if fields["algorithm"] is not None:
            fields["algorithm"] = algorithm_from_config(fields["algorithm"])
        fields["samplings"] = tuple(sampler_from_config(one) for one in fields["samplings"])
        fields["facts"] = tuple(SamplingFacts(**one) for one in fields["facts"])
        for name in ("names", "noise_multipliers"):
            fields[name] = tuple(fields[name])
        return cls(**fields)

    @functools.cached_property
    def text(self) -> str:
        """The config as one line of JSON: what a process's state carries."""
        return json.dumps(self.get_config(), sort_keys=True)

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that tell plans apart."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:32]

    def statement(
        self, *, delta: float | None = None, spent: Spent | None = None, counts: bool = True
    ) -> str:
        """Plain sentences on what the run protects, from whom, and what it does not."""
        from tf_subjectdp.federated.statement import federated_statement

        return federated_statement(self, delta=delta, spent=spent, counts=counts)

    def __str__(self) -> str:
        rates = sorted(facts.rate for facts in self.facts)
        sigmas = sorted(self.noise_multipliers)
        kind = "FedAvg, not private" if self.algorithm is None else type(self.algorithm).__name__
        rows = [
            ("algorithm", kind),
            ("noise added by", f"the {self.noise_at}" + ("s" if self.noise_at == "silo" else "")),
            ("silos", f"{self.n_silos}, {self.silos_per_round} a round"),
            ("rounds", f"{self.rounds} of {self.local_steps} local steps"),
            ("rounds of a silo", f"at most {self.rounds_of_a_silo}"),
            ("sampling rate", _span(rates)),
            (
                "items a subject",
                f"at most {max(facts.max_items for facts in self.facts)} in a silo",
            ),
            ("silos a subject", f"at most {self.silos_per_subject or self.n_silos}"),
            ("noise multiplier", _span(sigmas)),
            *self._of_elements(),
        ]
        if self.delta is not None:
            rows += [*self._epsilons(), ("delta", f"{self.delta:g}")]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    @property
    def units(self) -> tuple[str, ...]:
        """The units that figures are given for: the plan's own first."""
        known = [self.unit, *(("element",) if self.needs_elements else ()), "subject"]
        return tuple(dict.fromkeys(known))

    def _of_elements(self) -> list[tuple[str, str]]:
        if self.unit == "subject" and len(self.units) == 1:
            return []
        most = getattr(self.algorithm, "max_elements", None)
        rows = [("elements a subject", f"at most {most} in a silo")] if most is not None else []
        named = "one element of a subject" if self.unit == "element" else f"one {self.unit}"
        return [*rows, ("protects", named)]

    def _epsilons(self) -> list[tuple[str, str]]:
        if len(self.units) == 1:
            return [("epsilon", rounded_up(self.epsilon()))]
        rows = [(f"epsilon per {unit}", self._figure(unit)) for unit in self.units]
        if self.algorithm.event_before(self.unit) is not None:
            rows.append(("fit of the elements", "on top of these, see statement()"))
        return rows

    def _figure(self, unit: str) -> str:
        try:
            costs.check_proven(self, unit)
        except ValueError:
            return "none is proven, see statement()"
        return rounded_up(self.epsilon(unit=unit))


def _span(values: Sequence[float]) -> str:
    low, high = f"{values[0]:.6g}", f"{values[-1]:.6g}"
    return low if low == high else f"{low} to {high}"
