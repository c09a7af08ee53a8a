# SPDX-License-Identifier: Apache-2.0
"""ItemDP: DP-SGD, called LocalItemDP by Marathe, Kanani, Peterson and Steele.

The step (Abadi et al. 2016, Algorithm 1), with B the expected number of items:

    g_i  <-  gradient of item i,   g_i / max(1, |g_i| / C)
    step <-  (sum_i g_i + N(0, sigma^2 C^2 I)) / B

A subject with j items in the batch moves the sum by up to j C. So the promise to an item is the
familiar one, and the promise to a person is that of a group whose size is random.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from tf_subjectdp import accounting, clipping
from tf_subjectdp.algorithms import base

if TYPE_CHECKING:
    import tensorflow as tf


@base.register_algorithm
@dataclasses.dataclass(frozen=True)
class ItemDP(base.Algorithm):
    """Clips the gradient of every item to `clip_norm` and sums.

    Attributes:
      clip_norm: C, bound of the L2 norm of one item's gradient.
    """

    kind: ClassVar[str] = "linear"

    def partition(
        self, subject: tf.Tensor, mask: tf.Tensor, element: tf.Tensor | None = None
    ) -> clipping.BatchPartition:
        return clipping.item_terms(mask)

    def _subject_under_poisson_items(self, facts, sigma):
        return base.Guarantee(
            "subject",
            base.ADD_OR_REMOVE_SUBJECT,
            (accounting.group_event(facts.rate, facts.max_items, sigma),),
            f"the {facts.max_items} items of a subject are sampled one by one; j of them move the "
            "sum by j clip norms (mixture of Gaussians over the binomial law of j)",
        )

    def _subject_under_poisson_subjects(self, facts, sigma):
        return base.Guarantee(
            "subject",
            base.ADD_OR_REMOVE_SUBJECT,
            (accounting.subject_event(facts.rate, sigma / facts.items_in_step),),
            f"a sampled subject brings up to {facts.items_in_step} items and moves the sum by as "
            "many clip norms (Poisson-sampled Gaussian)",
        )

    def _subject_under_fixed_size(self, facts, sigma):
        return fixed_size_subject(facts, sigma, cap=None)

    def _subject_under_shuffle(self, facts, sigma):
        return shuffled_subject(facts, sigma, cap=None)

    def _item_under_poisson_items(self, facts, sigma):
        return poisson_item(facts, sigma)

    def _item_under_poisson_subjects(self, facts, sigma):
        return item_of_sampled_subject(facts, sigma, subject_norm=facts.items_in_step)

    def _item_under_fixed_size(self, facts, sigma):
        return fixed_size_item(facts, sigma)

    def _item_under_shuffle(self, facts, sigma):
        return shuffled_item(facts, sigma)


def poisson_item(facts: base.SamplingFacts, sigma: float) -> base.Guarantee:
    """Items sampled independently, each moving the sum by at most C."""
    if facts.data_cap:
        return base.Guarantee(
            "item",
            base.ADD_OR_REMOVE_ITEM,
            (accounting.replace_one_event(facts.rate, sigma),),
            "items are sampled independently; because the cap on a subject's items may let one item "
            "displace another, an added item is counted as a replaced one",
        )
    return base.Guarantee(
        "item",
        base.ADD_OR_REMOVE_ITEM,
        (accounting.item_event(facts.rate, sigma),),
        "items are sampled independently (Poisson-sampled Gaussian)",
    )


def item_of_sampled_subject(
    facts: base.SamplingFacts, sigma: float, *, subject_norm: float
) -> base.Guarantee:
    """An item whose subject is sampled as a whole.

    The sampling of subjects does not amplify the promise to an item: the subject's other items show
    that the subject was sampled. So the step is a Gaussian that runs with probability `rate`, and
    whether it ran is known; or it is bounded by the replacement of the whole subject.

    Args:
      facts: the sampling.
      sigma: noise multiplier.
      subject_norm: bound of the subject's whole contribution, in clip norms.
    """
    displaces = facts.data_cap or facts.items_in_step < facts.max_items
    move = 2.0 if displaces else 1.0
    return base.Guarantee(
        "item",
        base.ADD_OR_REMOVE_ITEM,
        (
            accounting.revealed_event([move], [facts.rate], sigma),
            accounting.replace_one_event(facts.rate, sigma / subject_norm),
        ),
        "subjects are sampled, which does not amplify the promise to an item: the smaller of the "
        "figure for a known presence and that for replacing the whole subject",
    )


def fixed_size_item(facts: base.SamplingFacts, sigma: float) -> base.Guarantee:
    """One item in batches of a fixed size, where any other item in its place moves the sum by 2 C.

    So its presence, B / N, amplifies (`accounting.fixed_size_event`): replaced, a clipped item moves
    a sum by 2 C, and so does another item in its place, which then joins or leaves other items. For
    sums that is all; for a sum of averages of clipped items (`HiGradAvg`) one average gains an item,
    (g - mean) / (j + 1), and another loses one, C each; a part of a batch (`MixedClipping`) keeps its
    number of items, the other one being dealt to the same part.
    """
    return base.Guarantee(
        "item",
        base.REPLACE_ITEM,
        (accounting.fixed_size_event(facts.n_items, facts.rows_in_batch, sigma),),
        "batches of a fixed size without replacement; a replaced item moves the sum by two clip "
        "norms",
    )


def item_of_known_presence(facts: base.SamplingFacts, sigma: float) -> base.Guarantee:
    """One item in batches of a fixed size, where another item in its place may move more than 2 C."""
    return base.Guarantee(
        "item",
        base.REPLACE_ITEM,
        (accounting.revealed_event([2.0], [facts.batch_size / facts.n_items], sigma),),
        "batches of a fixed size; whether the item is in the batch is taken as known",
    )


def fixed_size_only_item(facts: base.SamplingFacts, sigma: float) -> base.Guarantee:
    """A subject of one item, as every subject of the data is: `fixed_size_item`."""
    found = fixed_size_item(facts, sigma)
    return dataclasses.replace(found, unit="subject", adjacency=base.REPLACE_SUBJECT)


def fixed_size_vector(facts: base.SamplingFacts, sigma: float) -> base.Guarantee:
    """A subject of k items where the whole batch of a fixed size becomes ONE vector of norm C.

    Whatever two batches hold, their vectors lie within 2 C. So the subject's presence, by any of their
    items, amplifies: 1 - C(N-k, B) / C(N, B).
    """
    items = min(facts.max_items, facts.n_items)
    return base.Guarantee(
        "subject",
        base.REPLACE_SUBJECT,
        (accounting.fixed_size_event(facts.n_items, facts.rows_in_batch, sigma, items),),
        f"batches of a fixed size without replacement; with any of the subject's {facts.max_items} "
        "items in it, the batch's one clipped vector moves by two clip norms",
    )


def fixed_size_subject(
    facts: base.SamplingFacts, sigma: float, *, cap: int | None
) -> base.Guarantee:
    """Sums of clipped items in batches of a fixed size, for all items of a subject.

    Replacing contents in place leaves the law of the batches' rows as it is, so these may be taken
    as known: the subject then has j rows, j hypergeometric, and moves the sum by 2 min(j, cap) C.
    A subject of one item is an item.
    """
    if facts.max_items == 1:
        return fixed_size_only_item(facts, sigma)
    counts, law = facts.items_law()
    moves = counts if cap is None else counts.clip(max=cap)
    present = counts > 0
    return base.Guarantee(
        "subject",
        base.REPLACE_SUBJECT,
        (accounting.revealed_event(list(2.0 * moves[present]), list(law[present]), sigma),),
        f"batches of a fixed size; how many of the subject's {facts.max_items} items a batch holds "
        "is taken as known (hypergeometric law), each moves the sum by two clip norms",
    )


def shuffled_subject(facts: base.SamplingFacts, sigma: float, *, cap: int | None) -> base.Guarantee:
    """Sums of clipped items over a shuffled epoch, for all items of a subject."""
    move = 2.0 * facts.most_square_items(cap) ** 0.5
    return shuffled(
        "subject",
        base.REPLACE_SUBJECT,
        facts,
        sigma / move,
        f"in the worst shuffle a subject's {facts.max_items} items meet in as few batches as they "
        "fit into; each moves its batch's sum by two clip norms",
    )


def shuffled_item(facts: base.SamplingFacts, sigma: float) -> base.Guarantee:
    """One item in a shuffled epoch: it is in exactly one batch."""
    return shuffled(
        "item",
        base.REPLACE_ITEM,
        facts,
        sigma / 2.0,
        "an item is in one batch an epoch and moves its sum by two clip norms",
    )


def shuffled(
    unit: str, adjacency: str, facts: base.SamplingFacts, effective_sigma: float, reason: str
) -> base.Guarantee:
    """A shuffled epoch as one Gaussian, without amplification."""
    return base.Guarantee(
        unit,
        adjacency,
        (accounting.subject_event(1.0, effective_sigma),),
        "shuffled epochs: " + reason,
        steps_per_event=facts.steps_per_epoch,
    )
