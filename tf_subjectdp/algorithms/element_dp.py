# SPDX-License-Identifier: Apache-2.0
"""ElementDP: element-level differential privacy (Asi, Duchi, Javidi, arXiv:1912.04042).

A subject's items belong to elements (clusters: topics, words, domains), each item to exactly one. Two
data sets are neighbours if one subject differs arbitrarily on ONE element. Algorithm 1 with the
updates of equations (6) and (8); G_(u,e) is the mean gradient of the items of element e that subject
u has in the batch, n the subjects, p the rate of subjects:

    g_u  <-  sum over the elements e of u of  G_(u,e) / max(1, |G_(u,e)| / rho)
    step <-  (sum over the sampled subjects u of g_u + N(0, sigma^2 rho^2 I)) / (p n)

What a step promises to an element, with |contribution| <= rho in both worlds (2 rho apart):

* Subjects sampled (as published). The coin of the subject does NOT amplify: the subject's other
  elements show how it fell. With probability p a Gaussian of sensitivity 2 rho runs, and that it ran
  is known. (Their Proposition 2 (i) amplifies: `accounting.paper_rules` has it.)
* Elements sampled, each (subject, element) pair with a coin of its own, of probability r. The other
  coins and contributions have the same law in both worlds and are independent of this one; given them
  a step is (1-r) N(x, s^2) + r N(x + u, s^2) against (1-r) N(x, s^2) + r N(x + v, s^2), |u|, |v| <=
  rho. So r DOES amplify: the Poisson-sampled replacement, `accounting.replace_one_event(r, sigma)`.
* Items sampled, each with a coin q. An element of at most k items is present with probability at
  most r = 1-(1-q)^k. Given everything else, its contribution is 0 with probability at least 1-r and
  otherwise some vector of the ball: a mixture of the case above over u and v, and the divergence is
  jointly convex, so `replace_one_event(r, sigma)` bounds it as well.

Honest element guarantees are therefore cheapest with few, large steps of sampled elements.

A subject moves the sum by at most rho for each of their M elements. M needs a bound that is enforced:
`max_elements` drops elements above it at random; then an element more may displace another one, which
is again one contribution replaced. A cap on the items of a SUBJECT would let one element displace
items of many others and is refused; `max_items_per_element` is the cap that keeps the promise.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

from tf_subjectdp import accounting, clipping
from tf_subjectdp.algorithms import base
from tf_subjectdp.algorithms.element_source import ElementSource, source_of

if TYPE_CHECKING:
    import tensorflow as tf

# As far as the accountant's binomial laws go.
_LARGEST_CAP = 10**9


@base.register_algorithm
@dataclasses.dataclass(frozen=True)
class ElementDP(base.Algorithm):
    """Averages the gradients of each element of a subject, clips the averages, and sums.

    Attributes:
      clip_norm: rho, bound of the L2 norm of an element's average gradient.
      max_elements: M, the most elements of one subject, enforced by dropping elements at random; None
        for no bound, and then no promise to whole subjects.
      max_items_per_element: the most items of one element of a subject, enforced by dropping items at
        random; None for no bound.
      elements: where the elements come from, for the statement: an object of `tf_subjectdp.elements`,
        of which an `ElementSource` is kept (its `provenance`, and what it cost); or a sentence, or None
        for the user's word, and then the statement does not know what making them cost.
    """

    max_elements: int | None = None
    max_items_per_element: int | None = None
    elements: Any = None

    kind: ClassVar[str] = "grouped"
    rows_lie_together: ClassVar[bool] = True
    default_unit: ClassVar[str] = "element"
    units: ClassVar[tuple[str, ...]] = ("element", "subject", "item")
    needs_elements: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        for name in ("max_elements", "max_items_per_element"):
            cap = base.check_cap(name, getattr(self, name))
            if cap is not None and cap > _LARGEST_CAP:
                raise ValueError(
                    f"{name}={cap} must be at most {_LARGEST_CAP}; use None for no cap."
                )
            object.__setattr__(self, name, cap)
        object.__setattr__(self, "elements", source_of(self.elements))

    def partition(
        self, subject: tf.Tensor, mask: tf.Tensor, element: tf.Tensor | None = None
    ) -> clipping.BatchPartition:
        if element is None:
            raise ValueError(
                "ElementDP needs the element of each row: pass plan.dataset(x, y, subject_id, "
                "element_id), or extras with 'element'."
            )
        return clipping.element_mean_terms(subject, element, mask)

    def data_bounds(self):
        return {
            "max_elements": self.max_elements,
            "max_items_per_element": self.max_items_per_element,
        }

    def divisor(self, facts: base.SamplingFacts) -> float:
        return facts.expected_subjects

    def sources(self):
        source = getattr(self.elements, "provenance", self.elements) or (
            "The map from items to elements is the user's word: it must be public, or be paid for."
        )
        return [f"Elements: every item is in exactly one. {source}"]

    def event_before(self, unit):
        return self.elements.cost(unit) if isinstance(self.elements, ElementSource) else None

    def unpaid(self):
        if isinstance(self.elements, ElementSource):
            return []
        return ["the cost of making the elements, if they were made from the data"]

    def get_config(self):
        config = super().get_config()
        if isinstance(self.elements, ElementSource):  # events are no plain fields
            config["elements"] = self.elements.get_config()
        return config

    # -- one element ------------------------------------------------------------------------------

    def _element_under_poisson_subjects(self, facts, sigma):
        _check_caps(facts)
        events = [accounting.element_event(facts.rate, sigma)]
        if self.max_elements is not None:
            events.append(accounting.replace_one_event(facts.rate, sigma / self.max_elements))
        return base.Guarantee(
            "element",
            base.REPLACE_ELEMENT,
            tuple(events),
            "subjects are sampled, which does not amplify the promise to an element, whose subject's "
            "other elements show the coin: a known presence and two clip norms"
            + ("" if len(events) == 1 else ", or the replacement of the whole subject"),
        )

    def _element_under_poisson_elements(self, facts, sigma):
        _check_caps(facts)
        return self._independent_element(
            facts.rate, sigma, "every element of a subject is sampled with a coin of its own"
        )

    def _element_under_poisson_items(self, facts, sigma):
        _check_caps(facts)
        items = self._items_of_element(facts)
        rate = _presence(facts.rate, items)
        return self._independent_element(
            rate,
            sigma,
            f"items are sampled one by one, so an element of {items} items is in the batch with "
            f"probability at most 1-(1-q)^{items} = {rate:.6g}, whatever the others do",
        )

    def _independent_element(self, rate, sigma, how):
        return base.Guarantee(
            "element",
            base.REPLACE_ELEMENT,
            (accounting.replace_one_event(rate, sigma),),
            f"{how}; it then moves the sum by up to two clip norms when replaced",
        )

    # -- one subject ------------------------------------------------------------------------------

    def _subject_under_poisson_subjects(self, facts, sigma):
        bound = self._bound()
        return base.Guarantee(
            "subject",
            base.ADD_OR_REMOVE_SUBJECT,
            (accounting.element_subject_event(facts.rate, sigma, bound),),
            f"a sampled subject has up to {bound} elements and moves the sum by as many clip norms "
            "(Poisson-sampled Gaussian)",
        )

    def _subject_under_poisson_elements(self, facts, sigma):
        bound = self._bound()
        return base.Guarantee(
            "subject",
            base.ADD_OR_REMOVE_SUBJECT,
            (accounting.group_event(facts.rate, bound, sigma),),
            f"the up to {bound} elements of a subject are sampled one by one; j of them move the sum "
            "by j clip norms (mixture of Gaussians over the binomial law of j)",
        )

    def _subject_under_poisson_items(self, facts, sigma):
        bound = self._bound()
        rate = _presence(facts.rate, self._items_of_element(facts))
        return base.Guarantee(
            "subject",
            base.ADD_OR_REMOVE_SUBJECT,
            (
                accounting.group_event(rate, bound, sigma),
                accounting.group_event(facts.rate, facts.max_items, sigma, bound),
            ),
            f"each of the up to {bound} elements of a subject is in the batch with probability at most "
            f"{rate:.6g}, and there are no more of them than items; j elements move the sum by j "
            "clip norms (mixture of Gaussians)",
        )

    # -- one item ---------------------------------------------------------------------------------

    def _item_under_poisson_subjects(self, facts, sigma):
        return self._as_element(self._element_under_poisson_subjects(facts, sigma))

    def _item_under_poisson_elements(self, facts, sigma):
        return self._as_element(self._element_under_poisson_elements(facts, sigma))

    def _item_under_poisson_items(self, facts, sigma):
        of_element = self._as_element(self._element_under_poisson_items(facts, sigma))
        if self.max_elements is not None:
            # An item that opens an element may displace another one with all of its items.
            return of_element
        capped = self.max_items_per_element is not None
        one_place = accounting.replace_one_event if capped else accounting.item_event
        return dataclasses.replace(
            of_element,
            events=(one_place(facts.rate, sigma / 2.0), *of_element.events),
            reason="items are sampled independently; one of them moves its element's clipped average "
            "by up to two clip norms",
        )

    def _as_element(self, guarantee):
        return dataclasses.replace(
            guarantee,
            unit="item",
            adjacency=base.ADD_OR_REMOVE_ITEM,
            reason="an item changes one element: " + guarantee.reason,
        )

    def _items_of_element(self, facts: base.SamplingFacts) -> int:
        # With a bound, the largest element of the data is not looked at: it is not what is enforced.
        counted = None if self.max_items_per_element is not None else facts.max_element_items
        bounds = (self.max_items_per_element, counted, facts.max_items)
        return min(bound for bound in bounds if bound is not None)

    def _bound(self) -> int:
        if self.max_elements is None:
            raise ValueError(
                "ElementDP without max_elements promises nothing to a whole subject, who may have any "
                "number of elements; pass ElementDP(clip_norm, max_elements=M), which drops elements "
                "above M at random."
            )
        return self.max_elements


def _presence(rate: float, items: int) -> float:
    return 1.0 if rate >= 1.0 else -math.expm1(items * math.log1p(-rate))


def _check_caps(facts: base.SamplingFacts) -> None:
    """A cap on a subject's items lets one element displace items of many others."""
    if facts.data_cap or facts.step_cap is not None:
        raise ValueError(
            "a cap on the items of a subject lets a change of one element displace items of the "
            "others, and nothing is proven for one element then; leave out max_items_per_subject and "
            "use ElementDP(clip_norm, max_elements=..., max_items_per_element=...)."
        )
