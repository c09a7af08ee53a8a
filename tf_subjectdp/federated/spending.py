# SPDX-License-Identifier: Apache-2.0
"""What a run has released: counted in the server's state, and by the process, which forgets nothing.

Knows the plan and a state's parts. A state may be an old one, from a checkpoint: what
this process released since was released all the same.
"""

import collections
import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_subjectdp.federated.plans import FederatedPlan, Spent

# The fields of a `LearningAlgorithmState`.
_PARTS = ("global_model_weights", "distributor", "client_work", "aggregator", "finalizer")


def spent_in(state: Any) -> Spent:
    """The counts that a server state carries."""
    counts = state.client_work
    return Spent(int(counts["rounds"]), tuple(int(n) for n in np.asarray(counts["of_silos"])))


def plan_of(state: Any) -> FederatedPlan:
    """The plan that a server state was made with, without its stats."""
    return FederatedPlan.from_config(json.loads(_text_of(state)))


def epsilon_of(state: Any, delta: float | None = None, *, unit: str | None = None) -> float:
    """epsilon of the costliest subject, from a server state alone (one that was loaded, say).

    Args:
      state: of a process of this package.
      delta: in (0, 1); None takes the plan's.
      unit: "subject", "element" or "item"; None takes the plan's.
    """
    return plan_of(state).epsilon(delta, unit=unit, spent=spent_in(state))


class Spending:
    """What a process has released in its lifetime; safe to use from several threads.

    Args:
      plan: the plan.
    """

    def __init__(self, plan: FederatedPlan):
        self._plan = plan
        self._released = Spent(0, (0,) * plan.n_silos)
        # The runs (lineages of states) whose rounds are among these.
        self._runs: set[int] = set()
        self._lock = threading.Lock()

    @staticmethod
    def initial(plan: FederatedPlan, run: Any) -> collections.OrderedDict:
        """The counts of a fresh state, the plan itself as JSON, and a random number of the run."""
        return collections.OrderedDict(
            plan=plan.text, run=run, rounds=np.int64(0), of_silos=np.zeros(plan.n_silos, np.int64)
        )

    def total(self, state: Any) -> Spent:
        """All that was released of the people's data: what the state says, and this process's rounds.

        Raises:
          ValueError: a state of another plan.
        """
        if _text_of(state) != self._plan.text:
            raise ValueError(
                "the state was made under another plan, whose noise and sampling are not this one's; "
                "build the process of the plan that it carries: federated.plan_of(state)."
            )
        spent, released = spent_in(state), self._released
        # A run that this process knows counts its own rounds; of another one both are counted.
        known = int(state.client_work["run"]) in self._runs
        join = max if known or not spent.rounds else (lambda pair: sum(pair))
        pairs = zip(spent.of_silos, released.of_silos, strict=True)
        return Spent(
            join((spent.rounds, released.rounds)), tuple(int(join(pair)) for pair in pairs)
        )

    def raise_to(self, state: Any, spent: Spent) -> None:
        """Raises what was released in the run of `state` to at least `spent`.

        Raises:
          ValueError: counts of another number of silos, or negative ones.
        """
        spent = self._plan.checked_spent(spent)
        with self._lock:
            known = self.total(state)
            pairs = zip(spent.of_silos, known.of_silos, strict=True)
            self._released = Spent(
                max(spent.rounds, known.rounds), tuple(max(pair) for pair in pairs)
            )
            self._runs.add(int(state.client_work["run"]))

    def choose(self, present: Sequence[int], state: Any) -> list[int]:
        """The silos of a round: of those that are there, the ones with the fewest rounds so far.

        Raises:
          ValueError: a state of another plan, rounds that are used up, or fewer silos than
            `minimum_silos` that have rounds left.
        """
        plan, spent = self._plan, self.total(state)
        if spent.rounds >= plan.rounds:
            raise ValueError(
                f"the plan's {plan.rounds} rounds are used up; plan more rounds from the start, "
                "epsilon then rises."
            )
        most = plan.rounds_of_a_silo
        able = [i for i in present if spent.of_silos[i] < most]
        chosen = sorted(able, key=lambda i: spent.of_silos[i])[: plan.silos_per_round]
        if len(chosen) < plan.minimum_silos:
            used_up = len(present) - len(able)
            raise ValueError(
                f"{len(chosen)} silos can take part and the plan wants at least {plan.minimum_silos} "
                f"(minimum_silos): {len(present)} are there, {used_up} of them have used up their {most} "
                "planned rounds. Nothing was computed; wait for more silos and call again."
            )
        return sorted(chosen)

    def begin(self, state: Any, chosen: Sequence[int]) -> Any:
        """Notes a round of these silos, before anything is released: one that fails was perhaps seen.

        Returns:
          The state with the counts that the round, which counts itself, has to start from.

        Raises:
          ValueError: as `choose`; another thread may have run a round since.
        """
        with self._lock:
            if self.choose(chosen, state) != list(chosen):
                raise ValueError(
                    f"a round of the silos {list(chosen)} exceeds what is planned for one of them: other "
                    "rounds were begun meanwhile. Nothing was computed; call again."
                )
            spent = self.total(state)
            of_silos = np.asarray(spent.of_silos, np.int64)
            of_silos[list(chosen)] += 1
            self._released = Spent(spent.rounds + 1, tuple(of_silos.tolist()))
            self._runs.add(int(state.client_work["run"]))
            return self._with_counts(state, spent)

    def lifted(self, state: Any) -> Any:
        """The state with counts no lower than what this process released."""
        return self._with_counts(state, self.total(state))

    def _with_counts(self, state: Any, spent: Spent) -> Any:
        counts = collections.OrderedDict(
            plan=self._plan.text,
            run=np.int64(state.client_work["run"]),
            rounds=np.int64(spent.rounds),
            of_silos=np.asarray(spent.of_silos, np.int64),
        )
        parts = {name: getattr(state, name) for name in _PARTS}
        return type(state)(**{**parts, "client_work": counts})


def _text_of(state: Any) -> str:
    text = np.asarray(state.client_work["plan"]).item()
    return text.decode() if isinstance(text, bytes) else text
