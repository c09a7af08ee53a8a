# SPDX-License-Identifier: Apache-2.0
"""Keras optimizers as TFF's functional ones, which carry their state where TFF can see it.

Knows Keras and `tff.learning.optimizers`; imports `keras` to recognise its `DPOptimizer`.
"""

from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tf_subjectdp.keras import DPOptimizer

# What Keras optimizers may be told that TFF's equivalents do not know, and what is as if not told.
_UNSUPPORTED = {
    "weight_decay": (None, 0, 0.0, False),
    "clipnorm": (None,),
    "clipvalue": (None,),
    "global_clipnorm": (None,),
    "use_ema": (False,),
    "nesterov": (False,),
    "amsgrad": (False,),
    "centered": (False,),
}


def as_tff_optimizer(optimizer: Any, name: str) -> tff.learning.optimizers.Optimizer:
    """A functional optimizer that does what `optimizer` says.

    Args:
      optimizer: a `tff.learning.optimizers.Optimizer`; a Keras SGD, Adam, Adagrad or RMSprop (or a name
        of one, or a function that makes it), whose learning rate may be a schedule of Keras.
      name: of the argument, for errors.

    Raises:
      TypeError, ValueError: another object, or an option that the functional one does not have.
    """
    if isinstance(optimizer, tff.learning.optimizers.Optimizer):
        return optimizer
    if isinstance(optimizer, str):
        optimizer = tf.keras.optimizers.get(optimizer)
    elif callable(optimizer) and not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        return as_tff_optimizer(optimizer(), name)
    if isinstance(optimizer, DPOptimizer):
        raise TypeError(
            f"{name} is a DPOptimizer. In a federation the plan says how silos clip and add noise: pass "
            f"the plain optimizer, {name}={type(optimizer.inner).__name__}(...), and the algorithm to "
            "federated.plan(...)."
        )
    known = {
        tf.keras.optimizers.SGD: _sgd,
        tf.keras.optimizers.Adam: _adam,
        tf.keras.optimizers.Adagrad: _adagrad,
        tf.keras.optimizers.RMSprop: _rmsprop,
    }
    make = known.get(type(optimizer))
    if make is None:
        kinds = ", ".join(kind.__name__ for kind in known)
        raise TypeError(
            f"{name} is of type {type(optimizer).__name__}: pass {kinds} of tf.keras.optimizers, or one "
            "of tff.learning.optimizers."
        )
    config = optimizer.get_config()
    for option, neutral in _UNSUPPORTED.items():
        if config.get(option) not in neutral and option in config:
            raise ValueError(
                f"{name} has {option}={config[option]!r}, which TFF's {type(optimizer).__name__} does "
                "not know; leave it out, or pass an optimizer of tff.learning.optimizers."
            )
    rate = optimizer._learning_rate
    if isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule):
        inner = make(config, float(rate(0)))
        return tff.learning.optimizers.schedule_learning_rate(
            inner, lambda step: tf.cast(rate(step), tf.float32)
        )
    return make(config, float(tf.convert_to_tensor(rate)))


def is_plain_sgd(optimizer: Any) -> bool:
    """Whether an update is minus a constant times the gradient: what noises that add need."""
    state = optimizer.initialize(tf.TensorSpec([2], tf.float32))
    zero = tf.zeros([2])
    for gradient in (tf.constant([1.0, -3.0]), tf.constant([100.0, 0.0])):
        _, moved = optimizer.next(state, zero, gradient)
        _, doubled = optimizer.next(state, zero, 2.0 * gradient)
        rate = -moved / tf.where(gradient == 0.0, 1.0, gradient)
        same = tf.reduce_all(tf.abs(doubled - 2.0 * moved) <= 1e-6 * tf.abs(doubled))
        zeros = tf.reduce_all(tf.where(gradient == 0.0, moved, 0.0) == 0.0)
        if not bool(same & zeros) or (gradient[1] != 0 and abs(float(rate[0] - rate[1])) > 1e-6):
            return False
    return True


def _sgd(config: dict, rate: float):
    return tff.learning.optimizers.build_sgdm(rate, momentum=config["momentum"] or None)


def _adam(config: dict, rate: float):
    return tff.learning.optimizers.build_adam(
        rate, beta_1=config["beta_1"], beta_2=config["beta_2"], epsilon=config["epsilon"]
    )


def _adagrad(config: dict, rate: float):
    return tff.learning.optimizers.build_adagrad(
        rate,
        initial_preconditioner_value=config["initial_accumulator_value"],
        epsilon=config["epsilon"],
    )


def _rmsprop(config: dict, rate: float):
    if config["momentum"]:
        raise ValueError("RMSprop with momentum has no equivalent in TFF; leave it out.")
    return tff.learning.optimizers.build_rmsprop(
        rate, decay=config["rho"], epsilon=config["epsilon"]
    )
