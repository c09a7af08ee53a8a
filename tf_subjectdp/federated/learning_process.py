# SPDX-License-Identifier: Apache-2.0
"""A TFF learning process that knows its plan, its silos' data, and what it has spent.

Knows TFF, the plan, what was spent and how silos' data look; `process` builds it.
"""

import atexit
import dataclasses
import inspect
import subprocess
from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff

from tf_subjectdp.federated import silo_data
from tf_subjectdp.federated.ids import check_alike_elements, check_alike_ids
from tf_subjectdp.federated.plans import FederatedPlan, Spent
from tf_subjectdp.federated.spending import Spending

_KINDS = {"int64": "integer", "string": "string"}
# A worker ends at once when it is told to.
_STOP_S = 5.0


class _Ended(tff.framework.SyncContext):
    """Takes the place of TFF's context when the interpreter ends."""

    def invoke(self, comp, arg):
        raise RuntimeError("the interpreter is ending")


def end_local_worker(context: Any) -> None:
    """Ends the worker process that TFF started for a context, if there is one.

    TFF does so when the context is dropped: at the interpreter's end that is too late, and the worker
    lives on and holds whatever its output goes to; and it waits without end where interrupts are ignored,
    as they are under `nohup` and in jobs that a shell runs in the background.
    """
    factory = getattr(context, "_executor_factory", None)
    made_by = getattr(factory, "_executor_stack_fn", None)
    for cell in getattr(made_by, "__closure__", None) or ():
        manager = cell.cell_contents
        process = getattr(manager, "_process", None)
        if not isinstance(process, subprocess.Popen):
            continue
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        manager._process = manager._stub = None


def _end() -> None:
    end_local_worker(tff.framework.get_context_stack().current)
    tff.framework.set_default_context(_Ended())


atexit.register(_end)


@dataclasses.dataclass(frozen=True)
class Parts:
    """The computations a process is made of; a silo's and the server's may run on unlike machines.

    Attributes:
      silo_round: (weights, silo's data) -> what the silo reports; unplaced.
      finish: (state@SERVER, {reports}@CLIENTS) -> LearningProcessOutput.
      input_spec: (x, y) of the model.
      silo_work: makes the function inside `silo_round`, with a model of its own, where it is called.
    """

    silo_round: tff.Computation
    finish: tff.Computation
    input_spec: Any
    silo_work: Callable[[], Any]


class FederatedProcess(tff.learning.templates.LearningProcess):
    """A learning process over silos; made by `build_process`.

        state = process.initialize()
        for _ in range(plan.rounds):
            state, metrics = process.next(state, silo_datasets)
        process.epsilon(state)

    Attributes:
      plan: the plan.
      parts: the computations that it is made of.
      id_key, counts: see `build_process`.
    """

    def __init__(
        self,
        plan: FederatedPlan,
        parts: Parts,
        id_key: Callable | None,
        *computations: tff.Computation,
        counts: bool = True,
    ):
        super().__init__(*computations)
        self.plan = plan
        self.parts = parts
        self.id_key = id_key
        self.counts = counts
        self.spending = Spending(plan)
        self._next = NextRound(self, super().next)

    @property
    def next(self) -> "NextRound":
        """(state, silos' data) -> (state, metrics): one round; see `NextRound`."""
        return self._next

    def epsilon(self, state: Any, delta: float | None = None, *, unit: str | None = None) -> float:
        """epsilon of the plan's unit (the costliest subject, say), or of another one, after the rounds
        that led to `state`, from above."""
        return self.plan.epsilon(delta, unit=unit, spent=self.spent(state))

    def spent(self, state: Any) -> Spent:
        """What was released: what the state says, and no less than what this process did."""
        return self.spending.total(state)

    def count_lost_rounds(self, state: Any, spent: Spent) -> None:
        """Counts rounds that were run and whose state was lost, in a crash say; never lowers a count.

        Args:
          state: what is left of the run, an older checkpoint say.
          spent: all that was released since the run began, e.g. from the last line of a log.
        """
        self.spending.raise_to(state, spent)

    def statement(self, state: Any, delta: float | None = None) -> str:
        """Plain sentences on what the run so far protects, and what it does not."""
        return self.plan.statement(delta=delta, spent=self.spent(state), counts=self.counts)


class NextRound:
    """One round of a `FederatedProcess`, called like the TFF computation that it wraps.

    Attributes:
      computation: the TFF computation, whose second argument has one entry a silo: its number, its
        rows, a number for the person of each row and, for `ElementDP`, one for its element.
    """

    def __init__(self, process: FederatedProcess, computation: tff.Computation):
        self._process = process
        self._kinds_of_ids: dict[str, str] = {}
        self.computation = computation

    @property
    def type_signature(self) -> Any:
        """That of the computation."""
        return self.computation.type_signature

    def __call__(self, state: Any, silo_datasets: Any) -> Any:
        """Runs a round.

        Args:
          state: from `initialize`, the last round, or a checkpoint.
          silo_datasets: one entry a silo in the order of the plan's names (None where a silo is
            absent), or a dict by name of the silos that take part. Each an unbatched `tf.data.Dataset` of
            OrderedDict(x=, y=, subject_id=), or such a dict of arrays; with element_id= as well for
            `ElementDP`. Of more silos than the plan has a
            round, those with the fewest rounds so far take part.

        Returns:
          `LearningProcessOutput(state, metrics)`. The metrics look at the data and are not private.

        Raises:
          ValueError, TypeError: fewer silos than `minimum_silos`, planned rounds that are used up, data
            or a state that do not fit, or ids that are integers in one silo and strings in another.
            Nothing was computed then, and nothing is spent.
        """
        return self.run(state, silo_datasets, self.computation)

    def run(self, state: Any, silo_datasets: Any, compute: Callable[[Any, list], Any]) -> Any:
        """`__call__` with another way of computing: (state, entries of silos) -> output."""
        process = self._process
        spending = process.spending
        entries = self._entries(state, silo_datasets)
        # Counted before anything is released: a round that fails half-way was perhaps seen.
        state = spending.begin(state, [int(entry["silo"]) for entry in entries])
        output = compute(state, entries)
        if inspect.isawaitable(output):  # under an asynchronous context of TFF
            return _finished(output, spending)
        # A silo that was asked and did not report is counted too.
        return output._replace(state=spending.lifted(output.state))

    def _entries(self, state: Any, silo_datasets: Any) -> list[Any]:
        """The data of the silos that are to take part, checked."""
        process, plan = self._process, self._process.plan
        present = silo_data.present_silos(silo_datasets, plan.names)
        entries, kinds, ids = [], {}, dict(self._kinds_of_ids)
        for i in process.spending.choose(sorted(present), state):
            tensors = silo_data.silo_tensors(
                present[i],
                process.parts.input_spec,
                plan.names[i],
                process.id_key,
                elements=plan.needs_elements,
            )
            silo_data.check_rows(tensors, plan, i)
            kinds[plan.names[i]] = tensors.get("element_dtype")
            if tensors["subject_dtype"] is not None:
                ids[plan.names[i]] = _KINDS[tensors["subject_dtype"]]
            entries.append(silo_data.tagged(i, tensors))
        check_alike_elements({name: kind for name, kind in kinds.items() if kind is not None})
        check_alike_ids(ids)  # of earlier rounds, too
        self._kinds_of_ids = ids
        return entries


async def _finished(output: Any, spending: Spending) -> Any:
    output = await output
    return output._replace(state=spending.lifted(output.state))
