# SPDX-License-Identifier: Apache-2.0
"""From a model and a plan to a `tff.learning.templates.LearningProcess` that counts what it spends.

Knows TFF, the plan and the silo's work; imports the rest of `federated`. TFF's distributor is its
broadcast, its aggregators add up, its finaliser applies the server's optimizer.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tf_subjectdp.federated import server, silo_model
from tf_subjectdp.federated.client_work import SiloWork
from tf_subjectdp.federated.learning_process import FederatedProcess, NextRound, Parts
from tf_subjectdp.federated.optimizers import as_tff_optimizer, is_plain_sgd
from tf_subjectdp.federated.plans import FederatedPlan
from tf_subjectdp.federated.spending import Spending
from tf_subjectdp.noise import kernel_entropy_is_there, silo_seed

__all__ = ["FederatedProcess", "NextRound", "Parts", "build_process"]

_State = tff.learning.templates.LearningAlgorithmState


def build_process(
    model_fn: Callable[[], Any],
    plan: FederatedPlan,
    *,
    client_optimizer: Any = None,
    server_optimizer: Any = None,
    sum_factory: tff.aggregators.UnweightedAggregationFactory | None = None,
    id_key: Callable[[np.ndarray], np.ndarray] | None = None,
    counts: bool = True,
) -> FederatedProcess:
    """Builds the process of a plan.

    Args:
      model_fn: makes a `KerasSilo` (fast) or a `tff.learning.models.VariableModel` (item by item), anew
        at every call; its input has x and y only. Every run starts from the weights that it gives now,
        drawn, set or loaded.
      plan: from `federated.plan(...)`.
      client_optimizer: takes the silo's noised steps; SGD(1.0) by default. Keras's SGD, Adam, Adagrad or
        RMSprop, or one of `tff.learning.optimizers`. Its state does not outlive a round.
      server_optimizer: takes the averaged update as a gradient; SGD(1.0), plain averaging, by default.
      sum_factory: adds up the silos' updates; `tff.aggregators.SumFactory()` by default, or e.g.
        `tff.aggregators.SecureSumFactory(upper_bound_threshold=8.0)`.
      id_key: maps an array of a silo's ids to the ids that count; see `silo_data.silo_tensors`.
      counts: whether silos report counts beside their update (items, loss, clipped terms, ...), which
        go to the server without noise; False where the server may not see them.

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
    if id_key is not None and not callable(id_key):
        raise TypeError(
            f"id_key={id_key!r} must be a function from an array of ids to an array of ids, e.g. "
            "tf_subjectdp.federated.as_text."
        )
    # Outside of any graph: in one, weights that are set or loaded never arrive at the variables.
    model = silo_model.made_by(model_fn)
    start = [
        [v.numpy() for v in group]
        for group in (model.trainable_variables, model.non_trainable_variables)
    ]
    factory = sum_factory or tff.aggregators.SumFactory()
    size = sum(value.size for value in start[0])
    noise_factor = server.rounding_factor(plan, factory, in_silos, size)
    weights_type = tff.types.to_type(
        tff.learning.models.ModelWeights(*([_type_of(tf.constant(v)) for v in g] for g in start))
    )
    with silo_model.kept_keras_classes():
        parts, computations = _computations(
            model_fn,
            plan,
            client=in_silos,
            server_optimizer=at_server,
            sum_factory=factory,
            noise_factor=noise_factor,
            start=start,
            weights_type=weights_type,
            input_spec=model.input_spec,
            penalised=bool(model.penalties()),
            counts=counts,
        )
    return FederatedProcess(plan, parts, id_key, *computations, counts=counts)


def _type_of(spec: tf.TensorSpec | tf.Tensor) -> tff.TensorType:
    dtype = np.str_ if spec.dtype == tf.string else spec.dtype.as_numpy_dtype
    return tff.TensorType(dtype, spec.shape.as_list())


def _computations(
    model_fn,
    plan,
    *,
    client,
    server_optimizer,
    sum_factory,
    noise_factor,
    start,
    weights_type,
    input_spec,
    penalised,
    counts,
) -> tuple[Parts, Sequence[tff.Computation]]:
    kernel = kernel_entropy_is_there()
    x_type, y_type = tf.nest.map_structure(_type_of, input_spec)
    number_of_row = tff.TensorType(np.int64, [None])
    given = collections.OrderedDict(
        silo=tff.TensorType(np.int32), x=x_type, y=y_type, subject=number_of_row
    )
    if plan.needs_elements:
        given["element"] = number_of_row
    data_type = tff.types.to_type(given)

    def silo_work():
        model = silo_model.made_by(model_fn)
        return SiloWork(plan, client, model, kernel=kernel, counts=counts)

    @tff.tensorflow.computation(weights_type, data_type)
    def silo_round(weights, data):
        work = silo_work()

        @tf.function(autograph=False)
        def run(trainable, frozen, data):
            return work(trainable, frozen, data)

        return run(list(weights.trainable), list(weights.non_trainable), data)

    @tff.tensorflow.computation
    def initial_weights():
        return tff.learning.models.ModelWeights(*([tf.constant(v) for v in g] for g in start))

    average = server.averaging(
        plan,
        sum_factory,
        weights_type,
        model_fn if penalised else None,
        kernel=kernel,
        noise_factor=noise_factor,
    )
    finalizer = tff.learning.templates.build_apply_optimizer_finalizer(
        server_optimizer, weights_type
    )

    @tff.tensorflow.computation
    def initial_spending():
        return Spending.initial(plan, silo_seed(kernel)[0])

    spending_type = initial_spending.type_signature.result

    @tff.federated_computation()
    def initialize():
        return tff.federated_zip(
            _State(
                tff.federated_eval(initial_weights, tff.SERVER),
                tff.federated_value((), tff.SERVER),
                tff.federated_eval(initial_spending, tff.SERVER),
                average.initialize(),
                finalizer.initialize(),
            )
        )

    state_type = initialize.type_signature.result
    reports_type = tff.FederatedType(silo_round.type_signature.result, tff.CLIENTS)

    @tff.tensorflow.computation(spending_type, spending_type["of_silos"])
    def counted(spending, took_part):
        rounds, of_silos = spending["rounds"] + 1, spending["of_silos"] + took_part
        # Whoever calls the computation itself is held to the plan, too.
        planned = (
            (tf.reduce_max(took_part) <= 1)
            & (tf.reduce_sum(took_part) <= plan.silos_per_round)
            & (rounds <= plan.rounds)
            & (tf.reduce_max(of_silos) <= plan.rounds_of_a_silo)
        )
        check = tf.debugging.Assert(
            planned, ["This round is not one of the plan: silos", took_part, "rounds", rounds]
        )
        with tf.control_dependencies([check]):
            return collections.OrderedDict(
                plan=spending["plan"],
                run=spending["run"],
                rounds=tf.identity(rounds),
                of_silos=tf.identity(of_silos),
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

    parts = Parts(silo_round, finish, input_spec, silo_work)
    return parts, (initialize, next_round, get_model_weights, set_model_weights)
