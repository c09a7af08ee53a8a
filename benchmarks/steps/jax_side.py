# SPDX-License-Identifier: Apache-2.0
"""jax_privacy: item gradients by `vmap`, a micro-batch at a time, one compiled step."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import clipping, noise_addition
from workloads import CLIP_NORM, LEARNING_RATE, NOISE_MULTIPLIER, Contender, Workload, data

# Rows of a micro-batch, the fastest of several sizes on a CPU; None for the whole batch.
MICROBATCH = {"mlp": 16, "cnn": 32, "lstm": None}


def _dense(rng, rows: int, columns: int):
    limit = np.sqrt(6 / (rows + columns))
    weights = rng.uniform(-limit, limit, (rows, columns)).astype(np.float32)
    return jnp.asarray(weights), jnp.zeros(columns, jnp.float32)


def _filters(rng, size: int, inputs: int, outputs: int):
    kernel, bias = _dense(rng, size * size * inputs, outputs)
    return kernel.reshape(size, size, inputs, outputs), bias


def _lstm_weights(rng, inputs: int, units: int):
    return _dense(rng, inputs, 4 * units)[0], _dense(rng, units, 4 * units)


def parameters(model: str):
    rng = np.random.default_rng(0)
    if model == "mlp":
        return [_dense(rng, 784, 128), _dense(rng, 128, 10)]
    if model == "cnn":
        filters = [_filters(rng, 5, 1, 32), _filters(rng, 5, 32, 64)]
        return [*filters, _dense(rng, 3136, 2048), _dense(rng, 2048, 62)]
    if model == "lstm":
        embedding = jnp.asarray(rng.uniform(-0.05, 0.05, (80, 8)).astype(np.float32))
        cells = [_lstm_weights(rng, 8, 256), _lstm_weights(rng, 256, 256)]
        return [embedding, *cells, _dense(rng, 256, 80)]
    raise NotImplementedError(f"no {model} for JAX")


def _affine(x, layer):
    return x @ layer[0] + layer[1]


def _convolved(x, layer):
    dimensions = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, layer[0], (1, 1), "SAME", dimension_numbers=dimensions)
    window = (1, 2, 2, 1)
    y = jax.nn.relu(y + layer[1])
    return jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, window, window, "VALID")


def _recurrent(x, cell):
    """States [steps, batch, units] of inputs [steps, batch, n]; the input products in one go."""
    kernel, (recurrent, bias) = cell
    units = recurrent.shape[0]

    def step(carry, product):
        state, memory = carry
        gates = product + state @ recurrent + bias
        keep, forget, candidate, out = jnp.split(gates, 4, axis=-1)
        memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(keep) * jnp.tanh(candidate)
        state = jax.nn.sigmoid(out) * jnp.tanh(memory)
        return (state, memory), state

    zeros = jnp.zeros((x.shape[1], units), x.dtype)
    return jax.lax.scan(step, (zeros, zeros), x @ kernel)[1]


def logits(model: str, weights, x):
    if model == "mlp":
        return _affine(jax.nn.relu(_affine(x, weights[0])), weights[1])
    if model == "cnn":
        x = _convolved(_convolved(x, weights[0]), weights[1])
        x = jax.nn.relu(_affine(x.reshape(x.shape[0], -1), weights[2]))
        return _affine(x, weights[3])
    x = jnp.swapaxes(weights[0][x], 0, 1)
    return _affine(_recurrent(_recurrent(x, weights[1]), weights[2])[-1], weights[3])


def prepare(contender: Contender, workload: Workload) -> Callable:
    """A function that trains under a `Clock` until that stops it."""
    x, y, _ = data(workload)
    x, y = jnp.asarray(x), jnp.asarray(y)
    weights = parameters(workload.model)

    def loss(weights, x, y):
        scores = logits(workload.model, weights, x)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

    gradient = clipping.clipped_grad(
        loss,
        l2_clip_norm=CLIP_NORM,
        batch_argnums=(1, 2),
        normalize_by=workload.batch,
        microbatch_size=int(contender.variant or 0) or MICROBATCH[workload.model],
    )
    stddev = NOISE_MULTIPLIER * CLIP_NORM / workload.batch
    privatizer = noise_addition.gaussian_privatizer(stddev=stddev)
    optimizer = optax.sgd(LEARNING_RATE)

    @jax.jit
    def step(weights, noise, state):
        noised, noise = privatizer.update(gradient(weights, x, y), noise)
        updates, state = optimizer.update(noised, state)
        return optax.apply_updates(weights, updates), noise, state

    def train(clock) -> None:
        trained = (weights, privatizer.init(weights), optimizer.init(weights))
        while True:
            clock.step_begins()
            trained = jax.block_until_ready(step(*trained))
            clock.step_ended()

    return train
