# SPDX-License-Identifier: Apache-2.0
"""A process whose silos compute on other TFF workers, over TFF's own remote executor.

Knows workers, their failures and what a failed round costs; imports `process`, TFF and TFF's gRPC.
TFF 0.87 has an executor for ONE remote worker and none that joins several: so each worker has a context
in which silos compute, and the server's computation runs in the local one.

This is TFF's simulation beyond one process. A silo's rows travel from here to its worker, nothing is
encrypted or authenticated, a worker listens on all interfaces, and whoever runs this process sees every
report: trusted machines on a trusted network.
"""

import asyncio
import collections
import concurrent.futures
import functools
import inspect
import logging
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import grpc
import numpy as np
import tensorflow_federated as tff

# What TFF gives to the context that it makes for its local worker, and has no public name for.
from tensorflow_federated.python.core.backends.native import compiler
from tensorflow_federated.python.core.environments.tensorflow_frontend.tensorflow_computation import (
    transform_args,
    transform_result,
)

from tf_subjectdp.federated import silo_data
from tf_subjectdp.federated.process import FederatedProcess

_log = logging.getLogger("tf_subjectdp")

ON_FAILURE = ("error", "leave_out")
# The longest wait for a worker's first answer in a round, and the shortest limit for any.
_FIRST_S, _LEAST_S = 5.0, 1.0
# As TFF's own; and a channel to a worker that was started again does not wait as long as the old one.
_MOST_BYTES = 2 * 1000**3
_CHANNEL_OPTIONS = (
    ("grpc.max_message_length", _MOST_BYTES),
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.max_send_message_length", _MOST_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
)
# gRPC's words for a worker that is not there, is too late, or has forgotten us: it was started again.
_LOST = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.CANCELLED,
)
# Once for all workers.
_compiled = functools.lru_cache(maxsize=8)(compiler.desugar_and_transform_to_native)

_ASKED = (
    "The round counts as spent for all silos that it began with, since they may have sent something: "
    "process.spent(state) says so, and the `state` of this error, which is the one to save."
)
_NOT_ASKED = "No silo was asked for anything, and nothing is spent."


class RemoteSiloError(RuntimeError):
    """A round that did not come about, since workers failed.

    Attributes:
      silos: names of the silos whose reports are missing.
      state: the state from before the round, with the same weights. Its counts have the failed round in
        them where silos were asked: the one to save.
    """

    def __init__(self, message: str, silos: Sequence[str], state: Any):
        super().__init__(message)
        self.silos = tuple(silos)
        self.state = state


class RemoteSilos:
    """Rounds of a `FederatedProcess` with the silos' work on TFF workers.

        with LocalWorkers(3) as workers, RemoteSilos(process, workers.targets) as remote:
            state = remote.initialize()
            for _ in range(plan.rounds):
                state, metrics = remote.next(state, silo_datasets)
        process.epsilon(state)

    Args:
      process: from `build_process`; it counts what is spent.
      targets: "host:port" of running workers, to which the plan's silos are dealt in turn; or a dict from
        a silo's name to its worker's.
      on_failure: "error" ends a round in which a worker fails; "leave_out" goes on with the reports that
        came, as long as the plan's `minimum_silos` did.
      timeout_s: the longest that a silo's work in a round may take, its rows' way included; None waits
        for ever, should a worker hang.

    Raises:
      ValueError, TypeError: targets that name no workers, other silos than the plan's, or values out of
        range.
    """

    def __init__(
        self,
        process: FederatedProcess,
        targets: Sequence[str] | Mapping[str, str],
        *,
        on_failure: str = "error",
        timeout_s: float | None = 600.0,
    ):
        if on_failure not in ON_FAILURE:
            raise ValueError(f"on_failure={on_failure!r} is unknown; use one of {ON_FAILURE}.")
        if timeout_s is not None and not timeout_s > 0.0:
            raise ValueError(f"timeout_s={timeout_s} must be above 0, or None for no limit.")
        if process.plan.view == "average":
            warnings.warn(
                "view='average' promises nothing towards whoever runs this process, to whom the workers "
                "send every single report; plan with view='updates' unless that is a trusted party.",
                stacklevel=2,
            )
        self.process = process
        self.target_of = _dealt(targets, process.plan.names)
        self.on_failure = on_failure
        self.timeout_s = timeout_s
        self._workers = {}
        _compiled(process.parts.silo_round)

    def __enter__(self) -> "RemoteSilos":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes the channels; the workers go on."""
        while self._workers:
            self._workers.popitem()[1].close()

    @property
    def initialize(self) -> tff.Computation:
        """() -> the first state, that of the process."""
        return self.process.initialize

    def next(self, state: Any, silo_datasets: Any) -> Any:
        """One round, like `process.next`.

        All workers are called before anything is spent: a silo whose worker is not there then is absent
        from the round. One whose worker fails later was asked, and may have sent something: it counts.

        Raises:
          RemoteSiloError: workers that fail, unless they may be left out; or too few silos without them;
            or a silo's computation that fails on its worker.
          ValueError: as `process.next`.
        """
        names = self.process.plan.names
        present = {
            names[i]: data for i, data in silo_data.present_silos(silo_datasets, names).items()
        }
        targets = {self.target_of[name] for name in present}
        for target in targets - set(self._workers):
            self._workers[target] = _Worker(target, self.timeout_s)
        failed = self._each(targets, lambda target: self._workers[target].call())
        if failed:
            there = {n: data for n, data in present.items() if self.target_of[n] not in failed}
            self._leave_out(failed, set(present) - set(there), len(there), state, asked=False)
            present = there
        return self.process.next.run(state, present, self._compute)

    def _compute(self, state: Any, entries: Sequence[Any]) -> Any:
        """The silos' part on their workers, the server's here."""
        plan, parts = self.process.plan, self.process.parts
        entries_of = collections.defaultdict(list)
        for entry in entries:
            entries_of[self.target_of[plan.names[entry["silo"]]]].append(entry)
        reports, stop = {}, threading.Event()

        def work(target):
            weights = state.global_model_weights
            try:
                self._workers[target].work(
                    parts.silo_round, weights, entries_of[target], reports, stop
                )
            except grpc.RpcError:
                if self.on_failure == "error":
                    stop.set()
                raise

        failed = self._each(entries_of, work)
        if failed:
            missing = {plan.names[e["silo"]] for e in entries if int(e["silo"]) not in reports}
            lifted = self.process.spending.lifted(state)
            self._leave_out(failed, missing, len(reports), lifted, asked=True)
        # In the order of a local round, so that sums are rounded alike.
        return parts.finish(state, [reports[silo] for silo in sorted(reports)])

    def _leave_out(self, failed: dict, missing: set, left: int, state: Any, *, asked: bool) -> None:
        """Logs who is left out, or raises."""
        minimum = self.process.plan.minimum_silos
        broken = asked and any(error.code() not in _LOST for error in failed.values())
        silos = [name for name in self.target_of if name in missing]
        silos_of = {t: [n for n in silos if self.target_of[n] == t] for t in failed}
        what = "; ".join(
            f"worker {target}, silos {silos_of[target]}: {error.code().name}, {error.details()}"
            for target, error in sorted(failed.items())
        )
        what = f"workers failed {'in the middle of' if asked else 'before'} a round: {what}"
        if self.on_failure == "leave_out" and left >= minimum and not broken:
            _log.warning("%s. They are left out, and the round goes on with %d silos.", what, left)
            return
        if broken:
            remedy = "A computation failed there, not a worker: look at the data of its silo."
        elif self.on_failure == "leave_out":
            remedy = f"{left} silos are left and the plan wants {minimum} (minimum_silos)."
        else:
            remedy = "Start the workers again, or go on without them: on_failure='leave_out'."
        limit = "none" if self.timeout_s is None else f"{self.timeout_s:g} s"
        raise RemoteSiloError(
            f"{what} (timeout_s: {limit}). {remedy} The state before the round is intact: pass it to "
            f"next again. {_ASKED if asked else _NOT_ASKED}",
            [name for target in failed for name in silos_of[target]],
            state,
        ) from next(iter(failed.values()))

    def _each(
        self, targets: Collection[str], function: Callable[[str], None]
    ) -> dict[str, grpc.RpcError]:
        """Calls the function for all workers at once; gives up those that fail, and returns why."""
        failed = {}

        def run(target):
            try:
                function(target)
            except grpc.RpcError as error:
                failed[target] = error

        with concurrent.futures.ThreadPoolExecutor(max(len(targets), 1)) as pool:
            # list: any other error is raised here.
            list(pool.map(run, targets))
        for target in failed:
            self._workers.pop(target).close()
        return failed


def _dealt(targets: Any, names: Sequence[str]) -> dict[str, str]:
    """Silo -> its worker."""
    if isinstance(targets, Mapping):
        found = {str(name): target for name, target in targets.items()}
        unknown, missing = sorted(set(found) - set(names)), sorted(set(names) - set(found))
        if unknown or missing:
            raise ValueError(
                f"targets has the unknown silos {unknown} and lacks {missing}; the silos are "
                f"{list(names)}."
            )
    elif isinstance(targets, Sequence) and not isinstance(targets, str) and targets:
        found = {name: targets[i % len(targets)] for i, name in enumerate(names)}
    else:
        raise TypeError(
            f'targets={targets!r} must be a list such as ["localhost:8001", "localhost:8002"], or a dict '
            "from each silo's name to its worker."
        )
    for target in found.values():
        if not isinstance(target, str) or not target.rpartition(":")[2].isdecimal():
            raise ValueError(f'the worker {target!r} must be "host:port", e.g. "localhost:8001".')
    return found


class _Once(tff.framework.AsyncExecutionContext):
    """TFF's context repeats a call for ever while a worker is away; a silo's work is done once, since
    each time releases something."""

    invoke = inspect.unwrap(tff.framework.AsyncExecutionContext.invoke)


class _Limit(grpc.UnaryUnaryClientInterceptor):
    """Gives every call a deadline, where TFF sets none."""

    def allow(self, seconds: float | None) -> None:
        """From now on; later calls, which tidy up, are given a moment."""
        self._end = None if seconds is None else time.monotonic() + seconds
        self._least = min(seconds or _LEAST_S, _LEAST_S)

    def intercept_unary_unary(self, continuation, client_call_details, request):
        """See gRPC."""
        left = None if self._end is None else max(self._end - time.monotonic(), self._least)
        return continuation(client_call_details._replace(timeout=left), request)


class _Worker:
    """A channel to a worker, and a context that computes there."""

    def __init__(self, target: str, timeout_s: float | None):
        self._timeout_s = timeout_s
        self._limit = _Limit()
        self._channel = grpc.insecure_channel(target, _CHANNEL_OPTIONS)
        self._limit.allow(_FIRST_S)
        self._stub = tff.framework.RemoteExecutorGrpcStub(
            grpc.intercept_channel(self._channel, self._limit)
        )
        self._factory = tff.framework.ResourceManagingExecutorFactory(self._executor)
        self._context = _Once(
            self._factory,
            _compiled,
            transform_args=transform_args,
            transform_result=transform_result,
        )

    def _executor(self, cardinalities: Mapping) -> tff.framework.RemoteExecutor:
        made = tff.framework.RemoteExecutor(self._stub)
        # The computation has no clients; TFF's worker wants to be told so.
        made.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
        return made

    def call(self) -> None:
        """Raises a `grpc.RpcError` unless the worker answers."""
        self._limit.allow(min(_FIRST_S, self._timeout_s or _FIRST_S))
        try:
            executor = self._factory.create_executor({})
            asyncio.run(executor.create_value(np.int32(0), tff.TensorType(np.int32)))
        except grpc.RpcError:
            # A worker that was started again knows nothing of us.
            self._factory.clean_up_executor({})
            self._factory.create_executor({})

    def work(self, computation, weights, entries, reports: dict, stop: threading.Event) -> None:
        """The work of silos, one after the other; fills `reports`, by number of the silo."""

        async def work():
            for entry in entries:
                if stop.is_set():
                    return
                self._limit.allow(self._timeout_s)
                reports[int(entry["silo"])] = await computation(weights, entry)

        with tff.framework.get_context_stack().install(self._context):
            asyncio.run(work())

    def close(self) -> None:
        self._channel.close()
