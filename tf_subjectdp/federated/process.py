# SPDX-License-Identifier: Apache-2.0
"""From a model and a plan to a `tff.learning.templates.LearningProcess` that counts what it spends.

Knows TFF, the plan and the silo's work; imports the rest of `federated`. TFF's distributor is its
broadcast, its aggregators add up, its finaliser applies the server's optimizer.
"""

import atexit
import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tf_subjectdp.federated import randomness, server, silo_data, silo_model
from tf_subjectdp.federated.client_work import SiloWork
from tf_subjectdp.federated.optimizers import as_tff_optimizer, is_plain_sgd
from tf_subjectdp.federated.plans import FederatedPlan, Spent
from tf_subjectdp.federated.spending import Spending, spent_in


class _Ended(tff.framework.SyncContext):
    """Takes the place of TFF's context when the interpreter ends."""

    def invoke(self, comp, arg):
        raise RuntimeError("the interpreter is ending")


# TFF ends its local worker when its context is dropped, which is too late at the interpreter's end: a
# worker then lives on, and holds whatever its output goes to.
atexit.register(lambda: tff.framework.set_default_context(_Ended()))

_State = tff.learning.templates.LearningAlgorithmState


@dataclasses.dataclass(frozen=True)
class Parts:
    """The computations a process is made of; a silo's and the server's may run on unlike machines.

    Attributes:
      silo_round: (weights, silo's data) -> what the silo reports; unplaced.
      finish: (state@SERVER, {reports}@CLIENTS) -> LearningProcessOutput.
      input_spec: (x, y) of the model.
    """

    silo_round: tff.Computation
    finish: tff.Computation
    input_spec: Any


class FederatedProcess(tff.learning.templates.LearningProcess):
    """A learning process over silos; made by `build_process`.

        state = process.initialize()
        for _ in range(plan.rounds):
            state, metrics = process.next(state, silo_datasets)
        process.epsilon(state)

    Attributes:
      plan: the plan.
      parts: the computations that it is made of.
      id_key: see `build_process`.
    """

    def __init__(self, plan: FederatedPlan, parts: Parts, id_key: Callable | None, *computations):
        super().__init__(*computations)
        self.plan = plan
        self.parts = parts
        self.id_key = id_key
        self.spending = Spending(plan)
        self._next = NextRound(self, super().next)

    @property
    def next(self) -> "NextRound":
        """(state, silos' data) -> (state, metrics): one round; see `NextRound`."""
        return self._next

    def epsilon(self, state: Any, delta: float | None = None) -> float:
        """epsilon of the costliest subject after the rounds that led to `state`, from above."""
        return self.plan.epsilon(delta, spent=self.spent(state))

    def spent(self, state: Any) -> Spent:
        """What was released: what the state says, and no less than what this process did."""
        return self.spending.at_least(spent_in(state))

    def count_lost_rounds(self, spent: Spent) -> None:
        """Counts rounds that were run and whose state was lost, in a crash say; never lowers a count.

        Args:
          spent: all that was released since the run began, e.g. from the last line of a log.
        """
        self.spending.raise_to(spent)

    def statement(self, state: Any, delta: float | None = None) -> str:
        """Plain sentences on what the run so far protects, and what it does not."""
        return self.plan.statement(delta=delta, spent=self.spent(state))


class NextRound:
    """One round of a `FederatedProcess`, called like the TFF computation that it wraps.

    Attributes:
      computation: the TFF computation, whose second argument has one entry a silo: its number, its
        rows, and a number for the person of each row.
    """

    def __init__(self, process: FederatedProcess, computation: tff.Computation):
        self._process = process
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
            OrderedDict(x=, y=, subject_id=), or such a dict of arrays. Of more silos than the plan has a
            round, those with the fewest rounds so far take part.

        Returns:
          `LearningProcessOutput(state, metrics)`. The metrics look at the data and are not private.

        Raises:
          ValueError: fewer silos than `minimum_silos`, planned rounds that are used up, or data or a
            state that do not fit. Nothing was computed then, and nothing is spent.
        """
        return self.run(state, silo_datasets, self.computation)

    def run(self, state: Any, silo_datasets: Any, compute: Callable[[Any, list], Any]) -> Any:
        """`__call__` with another way of computing: (state, entries of silos) -> output."""
        process = self._process
        plan = process.plan
        present = silo_data.present_silos(silo_datasets, plan.names)
        spent = process.spending.check(state)
        chosen = process.spending.choose(sorted(present), spent)
        entries = [
            silo_data.tagged(
                i,
                silo_data.silo_tensors(
                    present[i], process.parts.input_spec, plan.names[i], process.id_key
                ),
            )
            for i in chosen
        ]
        # Counted before anything is released: a round that fails half-way was perhaps seen.
        state = process.spending.begin(state, spent, chosen)
        output = compute(state, entries)
        # A silo that was asked and did not report is counted too.
        return output._replace(state=process.spending.lifted(output.state))


def build_process(
    model_fn: Callable[[], Any],
    plan: FederatedPlan,
    *,
    client_optimizer: Any = None,
    server_optimizer: Any = None,
    sum_factory: tff.aggregators.UnweightedAggregationFactory | None = None,
    id_key: Callable[[np.ndarray], np.ndarray] | None = None,
) -> FederatedProcess:
    """Builds the process of a plan.

    Args:
      model_fn: makes a `KerasSilo` (fast) or a `tff.learning.models.VariableModel` (item by item), anew
        at every call; its input has x and y only.
      plan: from `federated.plan(...)`.
      client_optimizer: takes the silo's noised steps; SGD(1.0) by default. Keras's SGD, Adam, Adagrad or
        RMSprop, or one of `tff.learning.optimizers`. Its state does not outlive a round.
      server_optimizer: takes the averaged update as a gradient; SGD(1.0), plain averaging, by default.
      sum_factory: adds up the silos' updates; `tff.aggregators.SumFactory()` by default, or e.g.
        `tff.aggregators.SecureSumFactory(upper_bound_threshold=8.0)`.
      id_key: maps an array of a silo's ids to the ids that count; see `silo_data.silo_tensors`.

    Returns:
      A `FederatedProcess`, which is a `tff.learning.templates.LearningProcess`.

    Raises:
      TypeError, ValueError: an argument that is none, a `DPOptimizer`, or what the plan does not allow.
    """
    if not isinstance(plan, FederatedPlan):
        raise TypeError(
            f"plan is of type {type(plan).__name__}; pass what federated.plan(...) returned."
        )
    default = tff.learning.optimizers.build_sgdm(1.0)
    in_silos = as_tff_optimizer(
        default if client_optimizer is None else client_optimizer, "client_optimizer"
    )
    at_server = as_tff_optimizer(
        default if server_optimizer is None else server_optimizer, "server_optimizer"
    )
    if plan.noise_at == "server" and client_optimizer is not None:
        raise ValueError(
            "noise_at='server': silos send clipped sums and take no step of their own; leave out "
            "client_optimizer and give the learning rate to server_optimizer."
        )
    if plan.view == "average" and plan.noise_at == "silo" and not is_plain_sgd(in_silos):
        raise ValueError(
            "view='average' counts on noises that add up, which holds for plain SGD in the silos only; "
            "use client_optimizer=SGD(...), and momentum or Adam at the server."
        )
    with silo_model.kept_keras_classes(), tf.Graph().as_default():
        model = silo_model.made_by(model_fn)
        penalised = bool(model.penalties())
        input_spec = model.input_spec
        specs = [
            [tf.TensorSpec(v.shape, v.dtype) for v in group]
            for group in (model.trainable_variables, model.non_trainable_variables)
        ]
    weights_type = tff.types.to_type(
        tff.learning.models.ModelWeights(*([_type_of(spec) for spec in group] for group in specs))
    )
    with silo_model.kept_keras_classes():
        parts, computations = _computations(
            model_fn,
            plan,
            client=in_silos,
            server_optimizer=at_server,
            sum_factory=sum_factory or tff.aggregators.SumFactory(),
            weights_type=weights_type,
            input_spec=input_spec,
            penalised=penalised,
        )
    return FederatedProcess(plan, parts, id_key, *computations)


def _type_of(spec: tf.TensorSpec) -> tff.TensorType:
    dtype = np.str_ if spec.dtype == tf.string else spec.dtype.as_numpy_dtype
    return tff.TensorType(dtype, spec.shape.as_list())


def _computations(
    model_fn, plan, *, client, server_optimizer, sum_factory, weights_type, input_spec, penalised
) -> tuple[Parts, Sequence[tff.Computation]]:
    kernel = randomness.kernel_entropy_is_there()
    x_type, y_type = tf.nest.map_structure(_type_of, input_spec)
    data_type = tff.types.to_type(
        collections.OrderedDict(
            silo=tff.TensorType(np.int32),
            x=x_type,
            y=y_type,
            subject=tff.TensorType(np.int64, [None]),
        )
    )

    @tff.tensorflow.computation(weights_type, data_type)
    def silo_round(weights, data):
        model = silo_model.made_by(model_fn)
        work = SiloWork(plan, client, model, kernel=kernel)

        @tf.function(autograph=False)
        def run(trainable, frozen, data):
            return work(trainable, frozen, data)

        update, counts = run(list(weights.trainable), list(weights.non_trainable), data)
        took_part = tf.one_hot(data["silo"], plan.n_silos, dtype=tf.int64)
        return collections.OrderedDict(update=list(update), counts=counts, took_part=took_part)

    @tff.tensorflow.computation
    def initial_weights():
        model = silo_model.made_by(model_fn)
        return tff.learning.models.ModelWeights(
            [tf.identity(v) for v in model.trainable_variables],
            [tf.identity(v) for v in model.non_trainable_variables],
        )

    average = server.averaging(
        plan, sum_factory, weights_type, model_fn if penalised else None, kernel=kernel
    )
    finalizer = tff.learning.templates.build_apply_optimizer_finalizer(
        server_optimizer, weights_type
    )
    spending_type = Spending.state_type(plan)

    @tff.federated_computation()
    def initialize():
        return tff.federated_zip(
            _State(
                tff.federated_eval(initial_weights, tff.SERVER),
                tff.federated_value((), tff.SERVER),
                tff.federated_value(Spending.initial(plan), tff.SERVER),
                average.initialize(),
                finalizer.initialize(),
            )
        )

    state_type = initialize.type_signature.result
    reports_type = tff.FederatedType(silo_round.type_signature.result, tff.CLIENTS)

    @tff.tensorflow.computation(spending_type, spending_type["of_silos"])
    def counted(spending, took_part):
        return collections.OrderedDict(
            plan=spending["plan"],
            rounds=spending["rounds"] + 1,
            of_silos=spending["of_silos"] + took_part,
        )

    @tff.federated_computation(state_type, reports_type)
    def finish(state, reports):
        took_part = tff.federated_sum(reports.took_part)
        spending = tff.federated_map(counted, (state.client_work, took_part))
        averaged = average.next(state.aggregator, reports.update, state.global_model_weights)
        applied = finalizer.next(state.finalizer, state.global_model_weights, averaged.result)
        new_state = tff.federated_zip(
            _State(applied.result, state.distributor, spending, averaged.state, applied.state)
        )
        metrics = tff.federated_zip(
            collections.OrderedDict(
                silos=tff.federated_sum(reports.counts),
                took_part=took_part,
                aggregator=averaged.measurements,
                finalizer=applied.measurements,
            )
        )
        return tff.learning.templates.LearningProcessOutput(new_state, metrics)

    @tff.federated_computation(state_type, tff.FederatedType(data_type, tff.CLIENTS))
    def next_round(state, data):
        weights = tff.federated_broadcast(state.global_model_weights)
        reports = tff.federated_map(silo_round, (weights, data))
        return finish(state, reports)

    member = state_type.member

    @tff.tensorflow.computation(member)
    def get_model_weights(state):
        return state.global_model_weights

    @tff.tensorflow.computation(member, weights_type)
    def set_model_weights(state, weights):
        return _State(
            weights, state.distributor, state.client_work, state.aggregator, state.finalizer
        )

    parts = Parts(silo_round, finish, input_spec)
    return parts, (initialize, next_round, get_model_weights, set_model_weights)
