# SPDX-License-Identifier: Apache-2.0
"""Keras wrappers: `DPOptimizer`, `PrivateModel`, callbacks, and a step for loops of one's own."""

from tf_subjectdp.clipping import EngineOptions
from tf_subjectdp.keras.callbacks import PrivacyBudget, PrivacyLedger, PrivacyScalars
from tf_subjectdp.keras.model import PrivateModel
from tf_subjectdp.keras.optimizer import DPOptimizer
from tf_subjectdp.keras.step import private_step

__all__ = [
    "DPOptimizer",
    "EngineOptions",
    "PrivacyBudget",
    "PrivacyLedger",
    "PrivacyScalars",
    "PrivateModel",
    "private_step",
]
