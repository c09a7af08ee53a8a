# SPDX-License-Identifier: Apache-2.0
"""GroupDP: LocalGroupDP (2023 text) and LocalSubDP (2022 text) of Marathe, Kanani, Peterson, Steele.

The papers clip every item, sum, and raise the noise to the largest group Z of one subject's items
in the batch (2023 text, Algorithm 1). A noise scale that follows the batch reveals the batch, so
here sigma is constant and the group's size enters through the accountant:

    g_i  <-  g_i / max(1, |g_i| / C)
    step <-  (sum_i g_i + N(0, sigma^2 C^2 I)) / B

A subject with j items in the batch moves the sum by j C, j ~ Binomial(k, q): a mixture of Gaussians.
`max_items_per_subject` = Z keeps at most Z of a subject's items in a batch, drawn at random, so that
the tail of the mixture sits at Z.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from tf_subjectdp import accounting, clipping
from tf_subjectdp.algorithms import base, item_dp

if TYPE_CHECKING:
    import tensorflow as tf


@base.register_algorithm
@dataclasses.dataclass(frozen=True)
class GroupDP(base.Algorithm):
    """Clips every item and bounds how many items of one subject a step may hold.

    Attributes:
      clip_norm: C, bound of the L2 norm of one item's gradient.
      max_items_per_subject: Z, the most items of one subject that count in a step; None for no cap.
    """

    max_items_per_subject: int | None = None

    kind: ClassVar[str] = "linear"

    def __post_init__(self):
        super().__post_init__()
        cap = base.check_cap("max_items_per_subject", self.max_items_per_subject)
        object.__setattr__(self, "max_items_per_subject", cap)

    def partition(
        self, subject: tf.Tensor, mask: tf.Tensor, element: tf.Tensor | None = None
    ) -> clipping.BatchPartition:
        if self.max_items_per_subject is not None:
            index = clipping.subject_index(subject, mask)
            mask = clipping.random_subset(index, self.max_items_per_subject) >= 0
        return clipping.item_terms(mask)

    def _most(self, items: int) -> int:
        cap = self.max_items_per_subject
        return items if cap is None else min(items, cap)

    def _subject_under_poisson_items(self, facts, sigma):
        cap = self.max_items_per_subject
        capped = "" if cap is None else f", at most {cap} of them count"
        return base.Guarantee(
            "subject",
            base.ADD_OR_REMOVE_SUBJECT,
            (accounting.group_event(facts.rate, facts.max_items, sigma, cap),),
            f"the {facts.max_items} items of a subject are sampled one by one{capped}; j of them "
            "move the sum by j clip norms (mixture of Gaussians over the binomial law of j)",
        )

    def _subject_under_poisson_subjects(self, facts, sigma):
        most = self._most(facts.items_in_step)
        return base.Guarantee(
            "subject",
            base.ADD_OR_REMOVE_SUBJECT,
            (accounting.subject_event(facts.rate, sigma / most),),
            f"a sampled subject moves the sum by up to {most} clip norms (Poisson-sampled "
            "Gaussian)",
        )

    def _subject_under_fixed_size(self, facts, sigma):
        return item_dp.fixed_size_subject(facts, sigma, cap=self.max_items_per_subject)

    def _subject_under_shuffle(self, facts, sigma):
        return item_dp.shuffled_subject(facts, sigma, cap=self.max_items_per_subject)

    def _item_under_poisson_items(self, facts, sigma):
        if self._most(facts.max_items) == facts.max_items:
            return item_dp.poisson_item(facts, sigma)
        # Within a batch the cap lets one item displace another: two clip norms from the sum
        # without it. With a cap on the data as well, the item's place is never empty.
        event = accounting.replace_one_event if facts.data_cap else accounting.item_event
        return base.Guarantee(
            "item",
            base.ADD_OR_REMOVE_ITEM,
            (event(facts.rate, sigma / 2.0),),
            "items are sampled independently; the cap on a subject's items in a batch lets one item "
            "displace another, two clip norms",
        )

    def _item_under_poisson_subjects(self, facts, sigma):
        most = self._most(facts.items_in_step)
        capped = dataclasses.replace(facts, step_cap=most) if most < facts.max_items else facts
        return item_dp.item_of_sampled_subject(capped, sigma, subject_norm=most)

    def _item_under_fixed_size(self, facts, sigma):
        if self._most(facts.max_items) == facts.max_items:
            return item_dp.fixed_size_item(facts, sigma)
        # Another item in this one's place may displace one of its own subject's as well: 4 C in all.
        return item_dp.item_of_known_presence(facts, sigma)

    def _item_under_shuffle(self, facts, sigma):
        return item_dp.shuffled_item(facts, sigma)
