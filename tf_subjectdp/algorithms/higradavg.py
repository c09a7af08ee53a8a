# SPDX-License-Identifier: Apache-2.0
"""HiGradAvg: HiGradAvgDP, hierarchical gradient averaging (Marathe, Kanani, Peterson, Steele).

2022 text, Algorithm 1; B is the expected number of items, j_a the items of subject a in the batch:

    line  8:  g_i  <-  gradient of item i,  g_i / max(1, |g_i| / C)
    line 10:  g_a  <-  (sum over the items i of a of g_i) / j_a          for every subject a
    line 12:  step <-  (sum_a g_a + N(0, sigma^2 C^2 I)) / B

A subject moves the sum by at most C however many items they have in the batch, and is in the batch
with probability 1 - (1-q)^k. Published rates: q (2022, too small), k q (2023, an upper bound). The
2023 text (Algorithm 2, line 14) divides by the number of subjects in the batch, which is itself a
function of the data; `normalization="expected_subjects"` divides by its expectation instead.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from tf_subjectdp import accounting, clipping
from tf_subjectdp.algorithms import base, item_dp

if TYPE_CHECKING:
    import tensorflow as tf

_NORMALIZATIONS = ("expected_items", "expected_subjects")


@base.register_algorithm
@dataclasses.dataclass(frozen=True)
class HiGradAvg(base.Algorithm):
    """Clips every item, averages a subject's items of the batch, and sums the averages.

    Attributes:
      clip_norm: C, bound of the L2 norm of one item's gradient, so of a subject's average.
      normalization: "expected_items" divides by the expected number of items of a batch (2022 text);
        "expected_subjects" by the expected number of subjects (2023 text, made constant).
    """

    normalization: str = "expected_items"

    kind: ClassVar[str] = "linear"

    def __post_init__(self):
        super().__post_init__()
        if self.normalization not in _NORMALIZATIONS:
            raise ValueError(
                f"normalization={self.normalization!r} is unknown; use one of {_NORMALIZATIONS}."
            )

    def partition(
        self, subject: tf.Tensor, mask: tf.Tensor, element: tf.Tensor | None = None
    ) -> clipping.BatchPartition:
        sizes = clipping.sizes_of_rows(clipping.subject_index(subject, mask))
        return clipping.item_terms(mask)._replace(group_scale=1.0 / sizes)

    def divisor(self, facts: base.SamplingFacts) -> float:
        if self.normalization == "expected_subjects":
            return facts.expected_subjects
        return facts.batch_size

    def _subject_under_poisson_items(self, facts, sigma):
        return base.Guarantee(
            "subject",
            base.ADD_OR_REMOVE_SUBJECT,
            (accounting.higradavg_event(facts.rate, facts.max_items, sigma),),
            f"a subject with {facts.max_items} items is in the batch with probability "
            f"1-(1-q)^k = {facts.subject_rate:.6g} and then moves the sum by one clip norm",
        )

    def _subject_under_poisson_subjects(self, facts, sigma):
        return sampled_subject(facts, sigma)

    def _subject_under_fixed_size(self, facts, sigma):
        return replaced_subject(facts, sigma)

    def _subject_under_shuffle(self, facts, sigma):
        return shuffled_average(facts, sigma)

    def _item_under_poisson_items(self, facts, sigma):
        # One item more moves an average of clipped gradients by 2C/(j+1) <= C, or by C from nothing.
        return item_dp.poisson_item(facts, sigma)

    def _item_under_poisson_subjects(self, facts, sigma):
        return item_dp.item_of_sampled_subject(facts, sigma, subject_norm=1.0)

    def _item_under_fixed_size(self, facts, sigma):
        return item_dp.fixed_size_item(facts, sigma)

    def _item_under_shuffle(self, facts, sigma):
        return item_dp.shuffled_item(facts, sigma)


def sampled_subject(facts: base.SamplingFacts, sigma: float) -> base.Guarantee:
    """One clip norm a subject, subjects sampled independently."""
    return base.Guarantee(
        "subject",
        base.ADD_OR_REMOVE_SUBJECT,
        (accounting.subject_event(facts.rate, sigma),),
        "subjects are sampled independently and each moves the sum by one clip norm "
        "(Poisson-sampled Gaussian)",
    )


def replaced_subject(facts: base.SamplingFacts, sigma: float) -> base.Guarantee:
    """One average a subject, batches of a fixed size.

    Contents are replaced in place, so the rows of the batches have the same law and may be taken as
    known: the subject is present with a known probability, and then moves the sum by 2 C. (Taking
    the subject away would give their places to others and move those as well.) Where all subjects
    have one item, an average is that item.
    """
    if facts.max_items == 1:
        return item_dp.fixed_size_only_item(facts, sigma)
    return base.Guarantee(
        "subject",
        base.REPLACE_SUBJECT,
        (accounting.revealed_event([2.0], [facts.subject_rate], sigma),),
        "batches of a fixed size; whether the subject is in the batch is taken as known, and their "
        "average then moves by two clip norms",
    )


def shuffled_average(facts: base.SamplingFacts, sigma: float) -> base.Guarantee:
    """One average a subject and batch, shuffled epochs: at most min(k, batches) batches."""
    touched = min(facts.max_items, facts.steps_per_epoch)
    return item_dp.shuffled(
        "subject",
        base.REPLACE_SUBJECT,
        facts,
        sigma / (2.0 * touched**0.5),
        f"a subject touches at most {touched} batches an epoch and moves each by two clip norms",
    )
