# SPDX-License-Identifier: Apache-2.0
"""SubjectDP: sample subjects, average each one's gradients, then clip the average.

User-level DP-SGD (McMahan et al. 2018, with one local gradient), in the terms of Marathe et al.; S is
the expected number of subjects, j_a the items of subject a in the batch:

    g_a  <-  (sum over the items i of a of g_i) / j_a,   g_a / max(1, |g_a| / C)
    step <-  (sum_a g_a + N(0, sigma^2 C^2 I)) / S

Averages of many gradients are small, so a good clip norm is far below that of the item-wise rules.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from tf_subjectdp import accounting, clipping
from tf_subjectdp.algorithms import base, higradavg, item_dp

if TYPE_CHECKING:
    import tensorflow as tf


@base.register_algorithm
@dataclasses.dataclass(frozen=True)
class SubjectDP(base.Algorithm):
    """Averages a subject's gradients of the batch, clips the average, and sums.

    Attributes:
      clip_norm: C, bound of the L2 norm of a subject's average gradient.
    """

    kind: ClassVar[str] = "grouped"
    rows_lie_together: ClassVar[bool] = True

    def partition(
        self, subject: tf.Tensor, mask: tf.Tensor, element: tf.Tensor | None = None
    ) -> clipping.BatchPartition:
        return clipping.subject_mean_terms(subject, mask)

    def divisor(self, facts: base.SamplingFacts) -> float:
        return facts.expected_subjects

    def _subject_under_poisson_subjects(self, facts, sigma):
        return higradavg.sampled_subject(facts, sigma)

    def _subject_under_poisson_items(self, facts, sigma):
        return base.Guarantee(
            "subject",
            base.ADD_OR_REMOVE_SUBJECT,
            (accounting.subject_event(facts.subject_rate, sigma),),
            f"a subject with {facts.max_items} items is in the batch with probability "
            f"1-(1-q)^k = {facts.subject_rate:.6g} and then moves the sum by one clip norm",
        )

    def _subject_under_fixed_size(self, facts, sigma):
        return higradavg.replaced_subject(facts, sigma)

    def _subject_under_shuffle(self, facts, sigma):
        return higradavg.shuffled_average(facts, sigma)

    def _item_under_poisson_subjects(self, facts, sigma):
        # A clipped average moves by up to 2C when one of its items comes or goes.
        return base.Guarantee(
            "item",
            base.ADD_OR_REMOVE_ITEM,
            (
                accounting.replace_one_event(facts.rate, sigma),
                accounting.revealed_event([2.0], [facts.rate], sigma),
            ),
            "a clipped average may turn round when one item changes: the smaller of the figure for "
            "replacing the subject and that for a known presence",
        )

    def _item_under_poisson_items(self, facts, sigma):
        one_place = accounting.replace_one_event if facts.data_cap else accounting.item_event
        return base.Guarantee(
            "item",
            base.ADD_OR_REMOVE_ITEM,
            (
                one_place(facts.rate, sigma / 2.0),
                accounting.replace_one_event(facts.subject_rate, sigma),
            ),
            "a clipped average may turn round when one item changes, two clip norms: the smaller of "
            "the figure for the item's own sampling and that for replacing the subject",
        )

    def _item_under_fixed_size(self, facts, sigma):
        if facts.max_items == 1:
            return item_dp.fixed_size_item(facts, sigma)
        # Another item in this one's place may turn round a second clipped average, 4 C in all.
        return item_dp.item_of_known_presence(facts, sigma)

    def _item_under_shuffle(self, facts, sigma):
        return item_dp.shuffled_item(facts, sigma)
