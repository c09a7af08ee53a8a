# SPDX-License-Identifier: Apache-2.0
"""Saving and loading a `PrivateModel` so that the step count is never lost.

Knows Keras's file formats. A count that is lost makes every later epsilon too small.
"""

from typing import Any

import tensorflow as tf

from tf_subjectdp.keras import compat
from tf_subjectdp.keras.optimizer import DPOptimizer
from tf_subjectdp.keras.releases import register_file


class SavesPrivacyState:
    """The part of `PrivateModel` that saves; mixed in before `tf.keras.Model`."""

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
                "depends on. Use save('....keras') to go on training, or "
                "model.inner_model.save(...) / tf.saved_model.save(model.inner_model, ...) to serve."
            )
        if kwargs.get("save_format") not in (None, "keras"):
            raise ValueError(
                f"save_format={kwargs['save_format']!r}: only 'keras' keeps the step count."
            )
        self.make_optimizer_variables()
        return super().save(filepath, *args, **kwargs)

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
        self._releases.look()
        return super().load_weights(filepath, *args, **kwargs)

    def get_weights(self) -> list[Any]:
        """As in Keras; if they are set again, they are known to be this model's."""
        self._releases.look()
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
            "initial_weights": self._releases.initial_weights,
            "releases": self._releases.file(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        config = dict(config)
        inner = config.pop("keras_model")
        if not isinstance(inner, tf.keras.Model):
            inner = tf.keras.utils.deserialize_keras_object(inner, custom_objects=custom_objects)
        # The weights come later, and are then recognised.
        register_file(config.pop("releases", None))
        return cls(inner, **config)
