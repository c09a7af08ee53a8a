# SPDX-License-Identifier: Apache-2.0
"""Silos computed by the TensorFlow of this Python process, on its GPU where there is one.

Knows a process and its parts; imports `learning_process`. The worker of TFF's wheel has no GPU in it, and
gets every silo's rows anew in each round. Here the silos' work is the same function, run one silo after
the other without leaving the process; the server's computation is TFF's.
"""

from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tf_subjectdp.federated.learning_process import FederatedProcess


class InProcessSilos:
    """Runs the rounds of a process with its silos in this Python process.

        silos = sdp.federated.InProcessSilos(process)
        state = process.initialize()
        for _ in range(plan.rounds):
            state, metrics = silos.next(state, silo_datasets)

    Args:
      process: from `build_process`; what is spent is counted there.

    Raises:
      TypeError: another object.
    """

    def __init__(self, process: FederatedProcess):
        if not isinstance(process, FederatedProcess):
            raise TypeError(
                f"process is of type {type(process).__name__}; pass what build_process returned."
            )
        self._process = process
        # Its weights are made here, outside any function, and set at the beginning of each silo's round.
        self._work = process.parts.silo_work()
        self._round = tf.function(
            self._work, input_signature=self._work.input_signature(), autograph=False
        )

    @property
    def initialize(self) -> tff.Computation:
        """That of the process."""
        return self._process.initialize

    def next(self, state: Any, silo_datasets: Any) -> Any:
        """One round; arguments, result and errors as those of the process's own `next`."""
        return self._process.next.run(state, silo_datasets, self._compute)

    def _compute(self, state: Any, entries: list[Any]) -> Any:
        weights = state.global_model_weights
        reports = [self._report(weights, entry) for entry in entries]
        return self._process.parts.finish(state, reports)

    def _report(self, weights: Any, entry: Any) -> Any:
        given = tf.nest.map_structure(tf.convert_to_tensor, dict(entry))
        report = self._round(
            [tf.convert_to_tensor(w) for w in weights.trainable],
            [tf.convert_to_tensor(w) for w in weights.non_trainable],
            given,
        )
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), report)
