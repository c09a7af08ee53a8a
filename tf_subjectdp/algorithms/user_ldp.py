# SPDX-License-Identifier: Apache-2.0
"""UserLDP: the whole batch gradient of a data holder is clipped (Marathe et al., both texts).

    g    <-  (sum over all items i of the batch of g_i) / (number of items),   g / max(1, |g| / C)
    step <-  g + N(0, sigma^2 C^2 I)

Any change of the holder's data can move the clipped vector from one side of the ball to the other:
2 C at every step, whatever was sampled. (The texts count C, and a condition on sigma whose proof
bounds a difference of norms; neither carries the promise.) The number of items inside the clipped
mean is harmless: the result stays within the ball. With batches of a fixed size the promise is for one
subject's items replaced in place, and the subject's presence in the batch amplifies it.
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
class UserLDP(base.Algorithm):
    """Clips the mean gradient of the whole batch.

    Attributes:
      clip_norm: C, bound of the L2 norm of the batch's mean gradient.
    """

    kind: ClassVar[str] = "grouped"
    one_term: ClassVar[bool] = True

    def partition(
        self, subject: tf.Tensor, mask: tf.Tensor, element: tf.Tensor | None = None
    ) -> clipping.BatchPartition:
        del subject  # The unit is everybody in the batch.
        return clipping.batch_mean_term(mask)

    def divisor(self, facts: base.SamplingFacts) -> float:
        return 1.0

    def notes(self, facts, noise_multiplier, steps, delta):
        if facts.scheme != "fixed_size" or noise_multiplier == 0.0 or steps == 0:
            return []
        anything = accounting.user_ldp_event(noise_multiplier)
        epsilon = accounting.epsilon(anything, steps, delta=delta)
        return [
            f"For {base.CHANGE_ANYTHING}, not only of one subject's items, at delta = {delta:g}: epsilon "
            f"{base.rounded_up(epsilon)}."
        ]

    def _subject(self, facts, sigma):
        return base.Guarantee(
            "subject",
            base.CHANGE_ANYTHING,
            (accounting.user_ldp_event(sigma),),
            "any change of the data moves the clipped batch gradient by at most two clip norms, at "
            "every step",
        )

    _subject_under_poisson_items = _subject
    _subject_under_poisson_subjects = _subject

    def _subject_under_fixed_size(self, facts, sigma):
        found = item_dp.fixed_size_vector(facts, sigma)
        # Never smaller, but a plain Gaussian: where only an average is seen, the silos' noises add up.
        return dataclasses.replace(found, events=(*found.events, accounting.user_ldp_event(sigma)))

    def _subject_under_shuffle(self, facts, sigma):
        return higradavg.shuffled_average(facts, sigma)

    def _item_under_poisson_items(self, facts, sigma):
        one_place = accounting.replace_one_event if facts.data_cap else accounting.item_event
        return base.Guarantee(
            "item",
            base.ADD_OR_REMOVE_ITEM,
            (one_place(facts.rate, sigma / 2.0), accounting.user_ldp_event(sigma)),
            "items are sampled independently; one of them moves the clipped batch gradient by up to "
            "two clip norms",
        )

    def _item_under_poisson_subjects(self, facts, sigma):
        return dataclasses.replace(self._subject(facts, sigma), unit="item")

    def _item_under_fixed_size(self, facts, sigma):
        return item_dp.fixed_size_item(facts, sigma)

    def _item_under_shuffle(self, facts, sigma):
        return item_dp.shuffled_item(facts, sigma)
