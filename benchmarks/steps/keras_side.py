# SPDX-License-Identifier: Apache-2.0
"""Keras, ours and TF-Privacy, each under `fit`."""

from collections.abc import Callable

import tensorflow as tf
from workloads import (
    CLIP_NORM,
    LEARNING_RATE,
    NOISE_MULTIPLIER,
    Contender,
    Workload,
    data,
)

# Longer than any race; `fit` is stopped from within.
STEPS = 10**6


def layers_of(model: str) -> list:
    """The layers, an Input first."""
    layers = tf.keras.layers
    if model == "mlp":
        return [tf.keras.Input([784]), layers.Dense(128, activation="relu"), layers.Dense(10)]
    if model == "cnn":  # LEAF's for FEMNIST (Caldas et al. 2018)
        return [
            tf.keras.Input([28, 28, 1]),
            layers.Conv2D(32, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(2048, activation="relu"),
            layers.Dense(62),
        ]
    if model == "lstm":  # LEAF's for Shakespeare
        return [
            tf.keras.Input([80], dtype="int32"),
            layers.Embedding(80, 8),
            layers.LSTM(256, return_sequences=True),
            layers.LSTM(256),
            layers.Dense(80),
        ]
    return [
        tf.keras.Input([20], dtype="int32"),
        layers.Embedding(1_000_000, 100),
        layers.GlobalAveragePooling1D(),
        layers.Dense(10),
    ]


class FitClock(tf.keras.callbacks.Callback):
    """Hands the steps of `fit` to a `Clock`."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def on_train_batch_begin(self, batch, logs=None):
        self.clock.step_begins()

    def on_train_batch_end(self, batch, logs=None):
        self.clock.step_ended()


def prepare(contender: Contender, workload: Workload) -> Callable:
    """A function that trains under a `Clock` until that stops it."""
    makers = {"keras": _keras, "ours": _ours, "tf_privacy": _tf_privacy}
    model, dataset = makers[contender.library](contender, workload)
    return lambda clock: model.fit(dataset, callbacks=[FitClock(clock)], verbose=0)


def _loss(reduction="sum_over_batch_size"):
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


def _batches(workload: Workload) -> tf.data.Dataset:
    x, y, _ = data(workload)
    return tf.data.Dataset.from_tensors((x, y)).repeat(STEPS)


def _keras(contender: Contender, workload: Workload):
    model = tf.keras.Sequential(layers_of(workload.model))
    model.compile(optimizer=tf.keras.optimizers.SGD(LEARNING_RATE), loss=_loss())
    return model, _batches(workload)


def _ours(contender: Contender, workload: Workload):
    import tf_subjectdp as sdp

    rule, _, engine = contender.variant.partition("@")
    strategy, _, mebibytes = engine.partition(":")
    options = {"strategy": strategy or "auto"}
    if mebibytes:
        options["memory_budget"] = int(mebibytes) * 2**20
    x, y, person = data(workload)
    algorithm = getattr(sdp, rule)(clip_norm=CLIP_NORM)
    noise = NOISE_MULTIPLIER if contender.noise else 0.0
    model = sdp.PrivateModel(tf.keras.Sequential(layers_of(workload.model)))
    sgd = tf.keras.optimizers.SGD(LEARNING_RATE)
    if not contender.sampled:
        given = {"noise_multiplier": noise, "divisor": workload.batch, "engine": options}
        model.compile(optimizer=sdp.DPOptimizer(sgd, algorithm, **given), loss=_loss())
        batch = (x, y, {"subject": person})
        return model, tf.data.Dataset.from_tensors(batch).repeat(STEPS)
    # A batch that is all of the data: every step has exactly `batch` items, of everybody.
    plan = sdp.plan(
        algorithm,
        sdp.PoissonItems(workload.batch),
        sdp.SubjectStats.from_ids(person),
        steps=STEPS,
        noise_multiplier=noise,
    )
    model.compile(optimizer=plan.optimizer(sgd, engine=options), loss=_loss())
    return model, plan.dataset(x, y, person)


def _tf_privacy(contender: Contender, workload: Workload):
    """Item by item: its unit of privacy is a row, not a person."""
    import tensorflow_privacy as tfp
    from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry

    layers = layers_of(workload.model)
    private = {"l2_norm_clip": CLIP_NORM, "noise_multiplier": NOISE_MULTIPLIER}
    if contender.variant in ("keras", "vectorized"):
        classes = {
            "keras": tfp.DPKerasSGDOptimizer,
            "vectorized": tfp.VectorizedDPKerasSGDOptimizer,
        }
        model = tf.keras.Sequential(layers)
        optimizer = classes[contender.variant](**private, learning_rate=LEARNING_RATE)
        model.compile(optimizer=optimizer, loss=_loss("none"))
        return model, _batches(workload)
    registry = None
    if contender.variant == "fast":
        registry = layer_registry.make_default_layer_registry()
    # No XLA: on a CPU it is slower.
    model = tfp.DPSequential(**private, use_xla=False, layer_registry=registry, layers=layers)
    if registry is not None and not model._enable_fast_peg_computation:
        # It would fall back to the slow path without a word.
        unknown = sorted(
            {
                type(layer).__name__
                for layer in model.layers
                if layer.trainable_variables and not registry.is_elem(layer)
            }
        )
        raise NotImplementedError(f"no fast clipping for the layers {', '.join(unknown)}")
    model.compile(optimizer=tf.keras.optimizers.SGD(LEARNING_RATE), loss=_loss())
    return model, _batches(workload)
