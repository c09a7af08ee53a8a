# SPDX-License-Identifier: Apache-2.0
"""The server's side of a round: the sum over silos, a trusted server's noise, and the division.

Knows the plan and TFF's aggregators. The divisors are the plan's constants:
a silo that is missing makes the average smaller, never another number to divide by.
"""

import math
import numbers
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tf_subjectdp.federated import silo_model
from tf_subjectdp.federated.plans import FederatedPlan
from tf_subjectdp.noise import add_gaussian_noise, silo_seed

# A float32 normal is never larger, see `noise`.
_MOST_SIGMAS = 9.5
# A secure sum of TFF adds whole numbers from 0 to this one (`aggregators.primitives`), whatever its
# thresholds are: they are its ends.
_LARGEST_INTEGER = 2**32 - 1
# The coarsest integers, in standard deviations of the least noise that is rounded to them.
_MOST_OF_NOISE = 1 / 16
# What the rounding may add to the sensitivity of a sum without noise, in clip norms: it is paid in noise.
_MOST_OF_CLIP_NORM = 0.01


def rounding_factor(plan: FederatedPlan, factory: Any, client: Any, weights: int) -> float:
    """What the server's noise is multiplied by; refuses sums that are not what the accountant counts on.

    A secure sum cuts every coordinate to its thresholds and rounds it to the nearest whole multiple of a
    step s = (upper - lower) / (2^32 - 1). To cut moves no two sums apart; but noise that is cut off
    protects nobody. What the rounding does depends on where the noise is:

    * *Every silo's noised update is seen:* it is rounded after its noise, which costs nothing.
    * *At the server* the sums are rounded before the noise. Two of them, rounded, lie at most s further
      apart in a coordinate, so sqrt(d) s further in d of them, for every silo in which the person was
      drawn; and such a silo moves the sum by at least one clip norm C. So 1 + sqrt(d) s / C is the most
      that any distance grows by, and the noise is multiplied by it: the plan's epsilon holds as it is.
    * *In the averaged view* the silos' noises have to add up. Let v_j = x_j + n_j be a coordinate of silo
      j's update, n_j of standard deviation t_j, and v_j = s K_j + f_j with the remainder f_j in
      [-s/2, s/2): the sum that is seen, s (K_1 + ... + K_n), is a function of the exact sum W of the v_j
      and of the remainders. Their joint density is a sum over all whole numbers K_j with the given
      total of products of Gaussians. Two Gaussians, the square completed, leave the Gaussian of their
      sum times a sum over Z of a Gaussian of deviation r = t_1 t_2 / sqrt(t_1^2 + t_2^2), which by
      Poisson's summation is the same for every shift up to a factor 1 + e, with
      |e| <= 3 exp(-2 pi^2 (r/s)^2); so one silo after the other. Hence the density is, within
      (1 + e)^(n-1), that of the exact Gaussian sum times that of remainders that are uniform and know
      nothing of the data. With s <= t_j / 16 and so (r/s)^2 >= 128, |e| is below 10^-1000: epsilon is the
      exact sum's, for any d, silos and rounds.

    Args:
      plan: the plan.
      factory: what adds up.
      client: the silos' optimizer.
      weights: d, how many numbers an update has.

    Returns:
      At least 1.0; 1.0 where the silos add the noise.

    Raises:
      TypeError: the factory makes no sum without weights.
      ValueError: it is not known to add up, its threshold is too small, or its integers are too coarse,
        where that matters.
    """
    if not isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
        raise TypeError(
            f"sum_factory is of type {type(factory).__name__}; pass e.g. tff.aggregators.SumFactory() or "
            "tff.aggregators.SecureSumFactory(...): a sum, without weights of its own."
        )
    if type(factory) is tff.aggregators.SumFactory:
        return 1.0
    if type(factory) is tff.aggregators.UnweightedMeanFactory:
        raise TypeError(
            "sum_factory=UnweightedMeanFactory divides by the number of silos that are there; the plan's "
            "constant does that. Pass tff.aggregators.SumFactory()."
        )
    if plan.noise_at == "silo" and plan.view == "updates":
        return 1.0
    thresholds = _constant_thresholds(factory)
    if thresholds is None:
        raise ValueError(
            f"sum_factory={type(factory).__name__} is not known to add up what silos send as it is, "
            f"which noise_at={plan.noise_at!r} with view={plan.view!r} counts on; pass SumFactory(), or "
            "SecureSumFactory(upper_bound_threshold=) with a number."
        )
    lower, upper = thresholds
    step = (upper - lower) / _LARGEST_INTEGER
    if plan.noise_at == "server":
        return _paid_rounding(plan, step, weights)
    if max(plan.noise_multipliers) > 0.0:
        _check_silos_sum(plan, client, min(upper, -lower), step)
    return 1.0


def _constant_thresholds(factory: Any) -> tuple[float, float] | None:
    """The bounds to which a secure sum cuts; None if they adapt, or it is no secure sum."""
    if type(factory) is not tff.aggregators.SecureSumFactory:
        return None
    upper = getattr(factory, "_upper_bound_threshold", None)
    lower = getattr(factory, "_lower_bound_threshold", None)
    lower = -upper if lower is None and isinstance(upper, numbers.Real) else lower
    if not all(isinstance(bound, numbers.Real) for bound in (upper, lower)):
        return None
    return float(lower), float(upper)


def _paid_rounding(plan: FederatedPlan, step: float, weights: int) -> float:
    clip_norm = plan.algorithm.clip_norm
    added = math.sqrt(weights) * step / clip_norm
    if added > _MOST_OF_CLIP_NORM:
        most = _MOST_OF_CLIP_NORM * clip_norm / math.sqrt(weights)
        raise ValueError(
            f"the integers of the secure sum are {step:.3g} apart, which adds {added:.3g} clip norms to "
            f"what a person may move the sum of {weights} numbers by, above {_MOST_OF_CLIP_NORM:g}: the "
            f"step must be at most {most:.3g}. Use SecureSumFactory(upper_bound_threshold="
            f"{_rounded_down(most * _LARGEST_INTEGER / 2)}) or less."
        )
    return 1.0 + added


def _check_silos_sum(plan: FederatedPlan, client: Any, threshold: float, step: float) -> None:
    """ValueError unless a secure sum keeps the silos' noises whole."""
    rate = _learning_rate(client)
    noises = [
        rate * weight * plan.algorithm.noise_stddev(sigma) / divisor
        for weight, sigma, divisor in zip(
            plan.weights, plan.noise_multipliers, plan.divisors, strict=True
        )
    ]
    needed = rate * _largest_coordinate(plan)
    if threshold < needed:
        raise ValueError(
            f"SecureSumFactory(upper_bound_threshold={threshold:g}) may cut off a silo's noise, "
            f"which view='average' counts on; use at least {needed:.6g}."
        )
    coarsest = _MOST_OF_NOISE * min(noises)
    if step <= coarsest:
        return
    most = coarsest * _LARGEST_INTEGER / 2
    remedy = f"use SecureSumFactory(upper_bound_threshold={_rounded_down(most)}) or less"
    if most < needed:
        remedy = (
            "no threshold holds the updates and is fine enough: use more noise, or view='updates'"
        )
    raise ValueError(
        f"the integers of the secure sum are {step:.3g} apart, and the least noise of a silo's update "
        f"has standard deviation {min(noises):.3g}: coarser than {coarsest:.3g}, a sixteenth of it, they "
        f"round away the noises that view='average' counts on; {remedy}."
    )


def _rounded_down(value: float) -> str:
    return f"{value * 0.995:.3g}"


def _learning_rate(client: Any) -> float:
    """Of plain SGD: what a gradient is multiplied by."""
    state = client.initialize(tf.TensorSpec([], tf.float32))
    return abs(float(client.next(state, tf.constant(0.0), tf.constant(1.0))[1]))


def _largest_coordinate(plan: FederatedPlan) -> float:
    """The most that a coordinate of a silo's step can be: all terms one way, and noise on top."""
    algorithm = plan.algorithm
    return max(
        weight
        * (facts.n_items * algorithm.clip_norm + _MOST_SIGMAS * algorithm.noise_stddev(sigma))
        / divisor
        for weight, facts, sigma, divisor in zip(
            plan.weights, plan.facts, plan.noise_multipliers, plan.divisors, strict=True
        )
    )


def averaging(
    plan: FederatedPlan,
    sum_factory: tff.aggregators.UnweightedAggregationFactory,
    weights_type: tff.StructType,
    model_fn: Callable | None,
    *,
    kernel: bool,
    noise_factor: float = 1.0,
) -> tff.templates.AggregationProcess:
    """From the silos' updates to what the server's optimizer takes as a gradient.

    Args:
      plan: the plan.
      sum_factory: adds up.
      weights_type: of the model, trainable and not.
      model_fn: makes the model, where its regularisers have to be added at the server; else None.
      kernel: as for `silo_seed`.
      noise_factor: what the server's noise is multiplied by, see `rounding_factor`.

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
        stddev = noise_factor * plan.algorithm.noise_stddev(plan.noise_multipliers[0])
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
