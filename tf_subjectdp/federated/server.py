# SPDX-License-Identifier: Apache-2.0
"""The server's side of a round: the sum over silos, a trusted server's noise, and the division.

Knows the plan and TFF's aggregators; imports `algorithms`' noise. The divisors are the plan's constants:
a silo that is missing makes the average smaller, never another number to divide by.
"""

from collections.abc import Callable

import tensorflow as tf
import tensorflow_federated as tff

from tf_subjectdp.algorithms import add_gaussian_noise
from tf_subjectdp.federated import silo_model
from tf_subjectdp.federated.plans import FederatedPlan
from tf_subjectdp.federated.randomness import silo_seed


def averaging(
    plan: FederatedPlan,
    sum_factory: tff.aggregators.UnweightedAggregationFactory,
    weights_type: tff.StructType,
    model_fn: Callable | None,
    *,
    kernel: bool,
) -> tff.templates.AggregationProcess:
    """From the silos' updates to what the server's optimizer takes as a gradient.

    Args:
      plan: the plan.
      sum_factory: adds up.
      weights_type: of the model, trainable and not.
      model_fn: makes the model, where its regularisers have to be added at the server; else None.
      kernel: as for `silo_seed`.

    Returns:
      A process whose `next` takes (state, {update}@CLIENTS, weights@SERVER).

    Raises:
      TypeError: `sum_factory` makes no unweighted aggregation.
    """
    if not isinstance(sum_factory, tff.aggregators.UnweightedAggregationFactory):
        raise TypeError(
            f"sum_factory is of type {type(sum_factory).__name__}; pass e.g. "
            "tff.aggregators.SumFactory() or tff.aggregators.SecureSumFactory(...): a sum, without "
            "weights of its own."
        )
    update_type = weights_type.trainable
    added = sum_factory.create(tff.types.to_type(list(update_type)))
    central = plan.noise_at == "server"

    @tff.tensorflow.computation(added.next.type_signature.result.result.member, weights_type)
    def released(total, weights):
        total = [tf.cast(part, tf.float32) for part in total]
        if not central:
            return [part / plan.planned_weight for part in total]
        stddev = plan.noise_multipliers[0] * plan.algorithm.clip_norm
        gradients = add_gaussian_noise(
            total,
            stddev,
            divisor=plan.server_divisor,
            seed=silo_seed(kernel),
            compiled=False,
        )
        if model_fn is None:
            return gradients
        model = silo_model.made_by(model_fn)

        # A function, in which the weights are read after they were assigned.
        @tf.function(autograph=False)
        def with_penalties(trainable):
            for variable, value in zip(model.trainable_variables, trainable, strict=True):
                variable.assign(value)
            return silo_model.with_penalties(model, gradients)

        return with_penalties(list(weights.trainable))

    @tff.federated_computation(
        added.initialize.type_signature.result,
        added.next.type_signature.parameter[1],
        tff.FederatedType(weights_type, tff.SERVER),
    )
    def next_fn(state, updates, weights):
        summed = added.next(state, updates)
        result = tff.federated_map(released, (summed.result, weights))
        return tff.templates.MeasuredProcessOutput(summed.state, result, summed.measurements)

    return tff.templates.MeasuredProcess(added.initialize, next_fn)
