# SPDX-License-Identifier: Apache-2.0
"""Saving and loading a `PrivateModel` so that the step count is never lost.

A count that is lost makes every later epsilon too small.
"""

from typing import Any

import tensorflow as tf

from tf_subjectdp.keras import compat
from tf_subjectdp.keras.lineage import recorded_initialisers, register_file
from tf_subjectdp.keras.optimizer import DPOptimizer

_TO_SERVE = (
    "Use save('....keras') to go on training; to serve, model.export(folder), or "
    "model.inner_model.save('....keras'): these need this library no more."
)
_NO_SAVED_MODEL = (
    f"a SavedModel of a PrivateModel loses the step count that epsilon depends on. {_TO_SERVE}"
)


def _has_metrics(value: Any) -> bool:
    """Whether an attribute is a metric, or a list or dict with one."""
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(parts, (list, tuple, set)) or isinstance(value, dict):
        return any(_has_metrics(part) for part in parts)
    return isinstance(value, tf.keras.metrics.Metric)


class SavesPrivacyState:
    """The part of `PrivateModel` that saves; mixed in before `tf.keras.Model`.

    Metrics look at the data un-noised, so they are no part of what is saved: Keras's files are made of
    the attributes that `dir` names, TensorFlow's checkpoints of `_trackable_children`.
    """

    def __dir__(self) -> list[str]:
        own = self.__dict__
        return [
            name
            for name in super().__dir__()
            if name != "metrics" and not _has_metrics(own.get(name))
        ]

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        if save_type == "savedmodel":
            raise ValueError(_NO_SAVED_MODEL)
        self._forget_inner_metrics()
        children = super()._trackable_children(save_type, **kwargs)
        return {name: child for name, child in children.items() if not _has_metrics(child)}

    def save_own_variables(self, store: Any) -> None:
        # Keras comes here before it goes on to the layers.
        self._forget_inner_metrics()
        super().save_own_variables(store)

    def _forget_inner_metrics(self) -> None:
        """Sets to zero what the wrapped model or its layers keep in metrics of their own."""
        for metric in self.inner_model.metrics:
            metric.reset_state()

    def make_optimizer_variables(self) -> None:
        """Makes what a saved state fills, where the model is ready; Keras waits for the first step."""
        if self.inner_model.built and isinstance(getattr(self, "optimizer", None), DPOptimizer):
            self.built = True
            self.optimizer.build(self.trainable_variables)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, in the `.keras` format, which holds the plan and the step count.

        Raises:
          ValueError: Keras 2's older formats (HDF5, SavedModel), which lose them.
        """
        if not str(filepath).endswith(".keras"):
            raise ValueError(
                f"{filepath} is not a '.keras' file: the older formats lose the step count that epsilon "
                f"depends on. {_TO_SERVE}"
            )
        if kwargs.get("save_format") not in (None, "keras"):
            raise ValueError(
                f"save_format={kwargs['save_format']!r}: only 'keras' keeps the step count."
            )
        self.make_optimizer_variables()
        return super().save(filepath, *args, **kwargs)

    def export(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """As in Keras: the inner model, to be served where this library is not installed."""
        return self.inner_model.export(filepath, *args, **kwargs)

    def save_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, except that a file without the step count is refused.

        Raises:
          ValueError: an `.h5` file of Keras 2, which holds the weights alone.
        """
        name = str(filepath)
        if not compat.KERAS_3 and name.endswith((".h5", ".hdf5", ".keras")):
            if not name.endswith(".weights.h5"):
                raise ValueError(
                    f"{name} would hold the weights without the step count that epsilon depends on; "
                    "use save('....keras') or a name that ends in '.weights.h5'."
                )
        self.make_optimizer_variables()
        return super().save_weights(filepath, *args, **kwargs)

    def load_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """As in Keras; a compiled model gets the step count back.

        Raises:
          ValueError: the file has no step count for the compiled optimizer.
        """
        if not isinstance(getattr(self, "optimizer", None), DPOptimizer):
            raise ValueError(
                "compile this PrivateModel before load_weights: the file's step count, which epsilon "
                "depends on, belongs to its optimizer."
            )
        self.make_optimizer_variables()
        # The first two of the optimizer's count steps.
        variables = [compat.raw(v) for v in (*self.weights, *self.optimizer.variables[2:])]
        with self._lineage.loading(variables):
            return super().load_weights(filepath, *args, **kwargs)

    def get_weights(self) -> list[Any]:
        """As in Keras; if they are set again, they are known to be this model's."""
        self._lineage.look()
        return super().get_weights()

    def get_compile_config(self) -> dict[str, Any] | None:
        """What `compile` was given, as Keras records it."""
        return super().get_compile_config()

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a loaded model, with its optimizer's variables made so that they can be loaded."""
        self.compile(**tf.keras.utils.deserialize_keras_object(config))
        self.make_optimizer_variables()

    def get_config(self) -> dict[str, Any]:
        return {
            "keras_model": tf.keras.utils.serialize_keras_object(self.inner_model),
            "name": self.name,
            "initial_weights": self._lineage.initial_weights,
            "releases": self._lineage.file(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        config = dict(config)
        inner = config.pop("keras_model")
        with recorded_initialisers() as drawn:
            if not isinstance(inner, tf.keras.Model):
                inner = tf.keras.utils.deserialize_keras_object(
                    inner, custom_objects=custom_objects
                )
        # The weights come later, and are then recognised.
        register_file(config.pop("releases", None))
        made = cls(inner, **config)
        made._lineage.look(drawn)
        return made
