# SPDX-License-Identifier: Apache-2.0
"""The server's side of a round: the sum over silos, a trusted server's noise, and the division.

Knows the plan and TFF's aggregators; imports `algorithms`' noise. The divisors are the plan's constants:
a silo that is missing makes the average smaller, never another number to divide by.
"""

import numbers
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tf_subjectdp.algorithms import add_gaussian_noise
from tf_subjectdp.federated import silo_model
from tf_subjectdp.federated.plans import FederatedPlan
from tf_subjectdp.federated.randomness import silo_seed

# A float32 normal is never larger, see `algorithms.normals`.
_MOST_SIGMAS = 9.5


def check_sum_factory(plan: FederatedPlan, factory: Any, client: Any) -> None:
    """Refuses what would make of the silos' sum something else than the accountant counts on.

    A secure sum cuts every coordinate to its thresholds. That moves no two sums apart; but noise that is
    cut off protects nobody, and where noises add up, all of it is counted on.

    Args:
      plan: the plan.
      factory: what adds up.
      client: the silos' optimizer.

    Raises:
      TypeError: the factory makes no sum without weights.
      ValueError: it is not known to add up, or its threshold is too small, where that matters.
    """
    if not isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
        raise TypeError(
            f"sum_factory is of type {type(factory).__name__}; pass e.g. tff.aggregators.SumFactory() or "
            "tff.aggregators.SecureSumFactory(...): a sum, without weights of its own."
        )
    if type(factory) is tff.aggregators.SumFactory:
        return
    if type(factory) is tff.aggregators.UnweightedMeanFactory:
        raise TypeError(
            "sum_factory=UnweightedMeanFactory divides by the number of silos that are there; the plan's "
            "constant does that. Pass tff.aggregators.SumFactory()."
        )
    if plan.noise_at == "silo" and plan.view == "updates":
        return  # every silo's update is noised already
    threshold = _constant_threshold(factory)
    if threshold is None:
        raise ValueError(
            f"sum_factory={type(factory).__name__} is not known to add up what silos send as it is, "
            f"which noise_at={plan.noise_at!r} with view={plan.view!r} counts on; pass SumFactory(), or "
            "SecureSumFactory(upper_bound_threshold=) with a number."
        )
    if plan.noise_at == "silo":
        needed = _largest_coordinate(plan, client)
        if threshold < needed:
            raise ValueError(
                f"SecureSumFactory(upper_bound_threshold={threshold:g}) may cut off a silo's noise, "
                f"which view='average' counts on; use at least {needed:.6g}."
            )


def _constant_threshold(factory: Any) -> float | None:
    """The bound to which a secure sum cuts either side; None if it adapts, or is no secure sum."""
    if type(factory) is not tff.aggregators.SecureSumFactory:
        return None
    upper = getattr(factory, "_upper_bound_threshold", None)
    lower = getattr(factory, "_lower_bound_threshold", None)
    lower = -upper if lower is None and isinstance(upper, numbers.Real) else lower
    if not all(isinstance(bound, numbers.Real) for bound in (upper, lower)):
        return None
    return float(min(upper, -lower))


def _largest_coordinate(plan: FederatedPlan, client: Any) -> float:
    """The most that a coordinate of a silo's update can be: all terms one way, and noise on top."""
    state = client.initialize(tf.TensorSpec([], tf.float32))
    rate = abs(float(client.next(state, tf.constant(0.0), tf.constant(1.0))[1]))
    algorithm = plan.algorithm
    most = [
        weight
        * (facts.n_items * algorithm.clip_norm + _MOST_SIGMAS * algorithm.noise_stddev(sigma))
        / divisor
        for weight, facts, sigma, divisor in zip(
            plan.weights, plan.facts, plan.noise_multipliers, plan.divisors, strict=True
        )
    ]
    return rate * max(most)


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
    """
    update_type = weights_type.trainable
    added = sum_factory.create(tff.types.to_type(list(update_type)))
    central = plan.noise_at == "server"

    @tff.tensorflow.computation(added.next.type_signature.result.result.member, weights_type)
    def released(total, weights):
        total = [tf.cast(part, tf.float32) for part in total]
        if not central:
            return [part / plan.planned_weight for part in total]
        stddev = plan.algorithm.noise_stddev(plan.noise_multipliers[0])
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
