# SPDX-License-Identifier: Apache-2.0
"""What BatchClipping and MixedClipping share: parts, inner algorithm, schedule and guarantees.

Van Dijk, Nguyen, Nguyen, Nguyen (arXiv:2212.05796), Algorithm 1, with m parts a step:

    a_h  <-  A(w, part h of the batch)        A: the mean gradient, or several steps of an optimizer
    U    <-  sum_h a_h / max(1, |a_h| / C)  +  N(0, (2 C sigma)^2 I)
    step <-  U / m

`noise_multiplier` is the paper's sigma, the noise's deviation over 2 C: a changed item moves the
result of its part from one side of the ball to the other. Every item joins a part with a draw of its
own, so that an item more or less does not move the others between parts. (Slicing a Poisson batch by
position would; for batches of a fixed size the paper slices, and what is proven for it holds here: with
u parts hit by t items, slices of s are hit anew with probability (m-u)s / (ms-t), which is at least
(m-u)/m, the probability here.)

A unit with j items in the batch hits u <= min(j, m) parts and moves the sum by 2 C u. `accounting`'s
figures are against the usual adversary (A0: sees every noised update). The paper's own adversary A1
also knows where the unit's items went; those figures are in `notes`, for the changes of
`changes_against_a1`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from tf_subjectdp import accounting, clipping
from tf_subjectdp.algorithms import base, item_dp
from tf_subjectdp.algorithms.clip_schedule import ClipSchedule
from tf_subjectdp.algorithms.inner_optimizer import InnerOptimizer

if TYPE_CHECKING:
    import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class PartClipping(base.Algorithm):
    """Clips the results of m parts of the batch; `BatchClipping` and `MixedClipping`.

    Attributes:
      clip_norm: C, bound of the L2 norm of one part's result.
      inner: None for the mean gradient of the part, or an `InnerOptimizer`.
      clip_schedule: None, or a `ClipSchedule` of factors of `clip_norm` by step.
    """

    _: dataclasses.KW_ONLY
    inner: InnerOptimizer | None = None
    clip_schedule: ClipSchedule | None = None

    kind: ClassVar[str] = "grouped"
    clip_norms_of_noise: ClassVar[float] = 2.0

    def __post_init__(self):
        super().__post_init__()
        for name, kind in (("inner", InnerOptimizer), ("clip_schedule", ClipSchedule)):
            value = getattr(self, name)
            if isinstance(value, dict):  # from a config
                value = kind(**value)
                object.__setattr__(self, name, value)
            if value is not None and not isinstance(value, kind):
                article = "an" if kind is InnerOptimizer else "a"
                raise TypeError(f"{name}={value!r} must be {article} {kind.__name__} or None.")

    @property
    def number_of_parts(self) -> int:
        """m."""
        raise NotImplementedError

    def partition(
        self, subject: tf.Tensor, mask: tf.Tensor, element: tf.Tensor | None = None
    ) -> clipping.BatchPartition:
        del subject, element  # Whoever is in the batch may be in any part.
        return clipping.random_part_mean_terms(mask, self.number_of_parts)

    def divisor(self, facts: base.SamplingFacts) -> float:
        return float(self.number_of_parts)

    # -- a subject --------------------------------------------------------------------------------

    def _subject_under_poisson_items(self, facts, sigma):
        m = self.number_of_parts
        return base.Guarantee(
            "subject",
            base.ADD_OR_REMOVE_SUBJECT,
            (accounting.mixed_clipping_event(facts.rate, facts.max_items, m, sigma),),
            f"the {facts.max_items} items of a subject are sampled one by one and hit u of the {m} "
            "clipped parts; each of these moves by two clip norms (mixture of Gaussians over the law "
            "of u)",
        )

    def _subject_under_fixed_size(self, facts, sigma):
        m = self.number_of_parts
        # The event counts in clip norms, of which the noise has 2 sigma.
        if m == 1:
            return item_dp.fixed_size_vector(facts, 2.0 * sigma)
        if facts.max_items == 1:
            return item_dp.fixed_size_only_item(facts, 2.0 * sigma)
        return base.Guarantee(
            "subject",
            base.REPLACE_SUBJECT,
            (
                accounting.mixed_clipping_fixed_size_event(
                    facts.n_items, facts.rows_in_batch, facts.max_items, m, sigma
                ),
            ),
            f"batches of a fixed size; how many of the {m} parts the subject's items hit is taken as "
            "known, each moves by two clip norms",
        )

    def _subject_under_shuffle(self, facts, sigma):
        m = self.number_of_parts
        move = facts.most_square_items(m) ** 0.5
        worst = item_dp.shuffled(
            "subject",
            base.REPLACE_SUBJECT,
            facts,
            sigma / move,
            f"which batches and parts ({m} a batch) a subject's {facts.max_items} items are in is taken "
            "as known, each part hit moves by two clip norms: the smaller of the figures for the law of "
            "the parts hit and for the worst shuffle",
        )
        # A filter deals fewer items into fewer batches: never more parts hit than without it.
        known = accounting.mixed_clipping_shuffled_event(
            facts.n_items, facts.rows_in_batch, facts.max_items, m, sigma
        )
        return dataclasses.replace(worst, events=(known, *worst.events))

    # -- an item ----------------------------------------------------------------------------------

    def _item_under_poisson_items(self, facts, sigma):
        one_place = accounting.replace_one_event if facts.data_cap else accounting.item_event
        return base.Guarantee(
            "item",
            base.ADD_OR_REMOVE_ITEM,
            (one_place(facts.rate, sigma),),
            "items are sampled independently; one of them moves its part's clipped result by up to two "
            "clip norms",
        )

    def _item_under_fixed_size(self, facts, sigma):
        return item_dp.fixed_size_item(facts, 2.0 * sigma)

    def _item_under_shuffle(self, facts, sigma):
        return item_dp.shuffled_item(facts, 2.0 * sigma)

    # -- the paper's adversary ----------------------------------------------------------------------

    def notes(self, facts, noise_multiplier, steps, delta):
        if noise_multiplier == 0.0 or steps == 0:
            return []
        figures = []
        for unit, k in (("subject", facts.max_items), ("item", 1)):
            curve = adversary_curve(
                facts, self.number_of_parts, noise_multiplier, steps=steps, group=k
            )
            text = base.rounded_up(float(curve.epsilon(delta)))
            figures.append(f"per {unit} ({k} item{'s' if k > 1 else ''}) {text}")
        return [
            "Adversaries: the figures above hold against the usual adversary (A0), who sees every noised "
            "update and both candidate data sets, but not the batches. Against the paper's stronger "
            "adversary (A1), who also knows in which batch and part each of the unit's items was, the "
            f"f-DP mixture over these places gives, for {changes_against_a1(facts)}, at delta = "
            f"{delta:g}: epsilon {', '.join(figures)}. A figure against A1 holds against A0 too."
        ]


def changes_against_a1(facts: base.SamplingFacts) -> str:
    """The changes of a unit that `adversary_curve` is about, in words.

    Rows sampled one by one have coins and parts of their own, which fall alike whether the unit is there
    or not: adding or removing it moves each part that it hits by up to 2 C, as replacing does, and no
    other. Batches of a fixed size and shuffled epochs are drawn otherwise from more or fewer rows.
    """
    if facts.scheme == "poisson_items":
        return "items replaced in place, added or removed"
    return "items replaced in place (not added or removed)"


def adversary_curve(
    facts: base.SamplingFacts, parts: int, noise_multiplier: float, *, steps: int, group: int
) -> accounting.fdp.TradeOff:
    """The trade-off curve of a run for a group of items, against adversary A1.

    Of items replaced in place; of items sampled one by one also added or removed.

    Args:
      facts: the sampling: items (Poisson), a fixed size, or shuffled epochs.
      parts: m.
      noise_multiplier: sigma, noise deviation over 2 C, above 0.
      steps: steps taken; a begun epoch of shuffled data counts whole.
      group: g, items of the unit.

    Raises:
      ValueError: subjects or elements are what is sampled.
    """
    fdp = accounting.fdp
    if facts.scheme == "poisson_items":
        return fdp.sampled_parts_curve(
            q=facts.rate, k=group, parts=parts, steps=steps, noise_multiplier=noise_multiplier
        )
    sizes = {"n_items": facts.n_items, "batch_size": facts.rows_in_batch, "k": group}
    if facts.scheme == "fixed_size":
        return fdp.fixed_size_parts_curve(
            **sizes, parts=parts, steps=steps, noise_multiplier=noise_multiplier
        )
    if facts.scheme == "shuffle":
        epochs = -(-steps // facts.steps_per_epoch)
        return fdp.shuffled_parts_curve(
            **sizes, parts=parts, epochs=epochs, noise_multiplier=noise_multiplier
        )
    raise ValueError(
        f"sampling {facts.scheme!r}: parts of batches of whole subjects are not proven."
    )
