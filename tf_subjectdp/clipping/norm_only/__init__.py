# SPDX-License-Identifier: Apache-2.0
"""Norms of gradients that are never formed: the fast engine."""

from tf_subjectdp.clipping.norm_only import layers, recurrent  # noqa: F401 - register their rules
from tf_subjectdp.clipping.norm_only.passes import why_not
from tf_subjectdp.clipping.norm_only.record import NoRule, Record
from tf_subjectdp.clipping.norm_only.rules import register_norm_rule, registered
from tf_subjectdp.clipping.norm_only.strategy import clipped_sum

__all__ = ["NoRule", "Record", "clipped_sum", "register_norm_rule", "registered", "why_not"]
