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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import dp_accounting
import numpy as np

from tf_subjectdp import accounting
from tf_subjectdp.algorithms import Algorithm, SamplingFacts, algorithm_from_config
from tf_subjectdp.plans import check_delta, guarantee_of, rounded_up
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
      silos_per_subject: m, a promise that nobody is in more than m silos; None for every silo.
      minimum_silos: a round of fewer silos is refused; in the averaged view, the accountant counts
        on the noise of no more than these.
      delta: the delta of the promise; None if none was given.
      target_epsilon: the epsilon that the noise was chosen for; None if the noise was given.
      max_items_per_subject: the public bound on a subject's items in ONE silo, which every silo
        enforces; None if each k was read from the data.
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

    def silo_event(self, silo: int, number: int = 0) -> dp_accounting.DpEvent:
        """One step of a silo, for the subject unit: the accountant's event.

        Args:
          silo: number of the silo.
          number: which of the events that the guarantee names, each of which alone is a bound.
        """
        if self.algorithm is None:
            return dp_accounting.NonPrivateDpEvent()
        sigma = self.noise_multipliers[silo]
        return guarantee_of(self.algorithm, self.facts[silo], sigma, "subject").events[number]

    def round_event(self) -> dp_accounting.DpEvent:
        """Central algorithms: one round, whoever takes part in it."""
        events = [
            guarantee_of(self.algorithm, facts, 1.0, "subject").events[0] for facts in self.facts
        ]
        most = min(self.silos_per_round, self.silos_per_subject or self.n_silos)
        return accounting.central_event(events, self.noise_multipliers[0], silos_per_subject=most)

    def horizontal(self, spent: Spent | None = None, *, number: int = 0) -> Any:
        """The `accounting.HorizontalPlan` of what the silos release.

        In the averaged view every silo is taken to be in every round that was run, and each round to
        have no more noise than that of the `minimum_silos` silos that add least.

        Args:
          spent: what was released; None for all that is planned.
          number: as in `silo_event`.

        Raises:
          ValueError: the server adds the noise, and the silos release nothing of their own.
        """
        if self.noise_at == "server":
            raise ValueError(
                "noise_at='server': the silos release nothing of their own, and what composes are "
                "rounds; use epsilon() or round_event()."
            )
        spent = self.checked_spent(spent)
        together = self.view == "average"
        silos = [
            accounting.Silo(
                self.silo_event(i, number),
                steps_per_round=self.local_steps,
                rounds=spent.rounds if together else spent.of_silos[i],
                weight=self.weights[i] / self.divisors[i],
                clip_norm=self._unit_of_sensitivity,
                name=self.names[i],
                noised_once=self.local_steps == 1,
                event_of_items=self._event_of_items(i, number),
            )
            for i in range(self.n_silos)
        ]
        return accounting.HorizontalPlan(
            silos,
            silos_per_subject=self.silos_per_subject,
            view=self.view,
            known_noise=self._uncounted_noise() if together else (),
        )

    def epsilon(self, delta: float | None = None, *, spent: Spent | None = None) -> float:
        """epsilon of the costliest subject, from above.

        Args:
          delta: in (0, 1); None takes the plan's.
          spent: what was released; None for all that is planned.

        Raises:
          ValueError: no delta, or one outside (0, 1).
        """
        spent = self.checked_spent(spent)
        if self.algorithm is None:
            return math.inf if spent.rounds else 0.0
        delta = self._delta(delta)
        if self.noise_at == "server":
            return _central_epsilon(self.round_event(), spent.rounds, delta)
        return min(_local_epsilon(self, spent, number, delta) for number in self._numbers)

    def per_subject_epsilon(
        self, *, delta: float | None = None, spent: Spent | None = None
    ) -> accounting.SubjectEpsilons:
        """epsilon of every person of the table, by the silos they are really in.

        Such figures depend on the data: for those who hold the table, never for release.

        Raises:
          ValueError: a plan without its stats or its privacy, or one whose server adds the noise.
        """
        if self.stats is None:
            raise ValueError(
                "this plan was read from a state and has no stats; use the plan that the process was "
                "built with."
            )
        if self.algorithm is None:
            raise ValueError("algorithm=None is not private: everybody's epsilon is infinite.")
        delta, spent = self._delta(delta), self.checked_spent(spent)
        number = min(self._numbers, key=lambda n: _local_epsilon(self, spent, n, delta))
        return self.horizontal(spent, number=number).per_subject_epsilon(
            self.stats, delta=delta, engine=self.engine
        )

    @property
    def _numbers(self) -> range:
        counts = [
            len(guarantee_of(self.algorithm, facts, sigma, "subject").events)
            for facts, sigma in zip(self.facts, self.noise_multipliers, strict=True)
        ]
        return range(min(counts))

    @property
    def engine(self) -> str:
        """The accountant's engine: "rdp" where one of the events needs it."""
        if self.algorithm is None:
            return "pld"
        engines = {
            guarantee_of(self.algorithm, facts, 1.0, "subject").engine for facts in self.facts
        }
        return "rdp" if "rdp" in engines else "pld"

    @property
    def _unit_of_sensitivity(self) -> float:
        if self.algorithm is None:
            return 1.0
        twice = type(self.algorithm).__name__ == "UserLDP"
        return (2.0 if twice else 1.0) * self.algorithm.clip_norm

    def _event_of_items(self, silo: int, number: int) -> Callable | None:
        """From a subject's items in a silo to the event; None where it would be of another kind."""
        facts, sigma = self.facts[silo], self.noise_multipliers[silo]
        by_items = facts.scheme == "poisson_items"
        by_items |= facts.scheme == "poisson_subjects" and self.view == "updates"
        if self.algorithm is None or not by_items:
            return None

        def event(items: int) -> dp_accounting.DpEvent:
            fewer = dataclasses.replace(facts, max_items=items)
            return guarantee_of(self.algorithm, fewer, sigma, "subject").events[number]

        return event

    def _uncounted_noise(self) -> list[int]:
        """Averaged view: the silos whose noise may be missing, those of the most noise."""
        noise = [
            weight * sigma / divisor
            for weight, sigma, divisor in zip(
                self.weights, self.noise_multipliers, self.divisors, strict=True
            )
        ]
        return np.argsort(noise, kind="stable")[self.minimum_silos :].tolist()

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

    def _delta(self, delta: float | None) -> float:
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
        missing = {f.name for f in dataclasses.fields(cls)} - set(fields) - {"stats"}
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

    def statement(self, *, delta: float | None = None, spent: Spent | None = None) -> str:
        """Plain sentences on what the run protects, from whom, and what it does not."""
        from tf_subjectdp.federated.statement import federated_statement

        return federated_statement(self, delta=delta, spent=spent)

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
        ]
        if self.delta is not None:
            rows += [("epsilon", rounded_up(self.epsilon())), ("delta", f"{self.delta:g}")]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _span(values: Sequence[float]) -> str:
    low, high = f"{values[0]:.6g}", f"{values[-1]:.6g}"
    return low if low == high else f"{low} to {high}"


@functools.lru_cache(maxsize=256)
def _central_epsilon(event: dp_accounting.DpEvent, rounds: int, delta: float) -> float:
    return accounting.epsilon(event, rounds, delta=delta)


@functools.lru_cache(maxsize=256)
def _local_epsilon(plan: FederatedPlan, spent: Spent, number: int, delta: float) -> float:
    return plan.horizontal(spent, number=number).epsilon(delta, plan.engine)
