# SPDX-License-Identifier: Apache-2.0
"""Peak memory of a step does not follow the batch."""

import os
import subprocess
import sys

import pytest

_STEP = """
import resource
import numpy as np
import tensorflow as tf
from tf_subjectdp.algorithms import HiGradAvg
from tf_subjectdp.clipping import EngineOptions, choose_strategy, clipped_sum
from tf_subjectdp.keras import compat

model = tf.keras.Sequential([tf.keras.layers.Dense(1000, "relu"), tf.keras.layers.Dense(10)])
model.build((None, 1000))
options = EngineOptions(memory_budget=64 * 2**20)

def row_function(rows):
    x, y = rows
    return tf.keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True), ()

spec = (tf.TensorSpec([None, 1000], tf.float32), tf.TensorSpec([None], tf.int32))
variables = [compat.raw(v) for v in model.trainable_variables]
strategy, _ = choose_strategy(row_function, variables, spec, linear=True, options=options)

@tf.function(input_signature=[*spec, tf.TensorSpec([None], tf.int64)])
def step(x, y, subject):
    rule = HiGradAvg(1.0)
    partition = rule.partition(subject, tf.ones_like(subject, tf.bool))
    return clipped_sum(row_function, variables, (x, y), partition, 1.0, strategy=strategy,
                       options=options).total[0]

for batch in (256, 2048):
    x = np.random.default_rng(0).normal(size=(batch, 1000)).astype(np.float32)
    step(x, np.zeros(batch, np.int32), np.arange(batch) // 8).numpy()
    print(strategy, batch, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_peak_memory_of_a_step_grows_by_less_than_a_quarter_from_batch_256_to_2048():
    # All item gradients of 2,048 rows of this model are 8 GiB.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", _STEP],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines] == [["vectorized", "256"], ["vectorized", "2048"]]
    small, large = (int(line[2]) for line in lines)
    assert large < 1.25 * small
