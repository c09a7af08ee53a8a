# SPDX-License-Identifier: Apache-2.0
"""A question to the accountant: an algorithm, its holders, the length; answers in numbers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tf_subjectdp import accounting
from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.searching import largest_integer, smallest_factor
from tf_subjectdp.accounting.silos.central import central_group_event, central_higradavg_event
from tf_subjectdp.accounting.silos.horizontal import MOST_ROUNDS, HorizontalPlan, WorstCase
from tf_subjectdp.accounting.silos.silo import Silo
from tf_subjectdp.algorithms import Algorithm, Guarantee
from tf_subjectdp.algorithms.base import ADD_OR_REMOVE_SUBJECT
from tf_subjectdp.algorithms.part_clipping import adversary_curve
from tf_subjectdp.cli import inputs
from tf_subjectdp.cli.arguments import UsageError
from tf_subjectdp.cli.choices import CENTRAL, CLASSES, algorithm_of, noise_words
from tf_subjectdp.cli.holders import Holder
from tf_subjectdp.cli.options import CLIP_PARTS
from tf_subjectdp.sampling import SiloStats, SubjectStats


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked, the noise and the length left open.

    Attributes:
      algorithm: its name on the command line.
      unit: "subject", "item", "element" or "silo".
      holders: the silos, or the one holder.
      delta: of the promise.
      cap: Z, the most items of one person in a step.
      elements: M, the most elements of one person.
      items_per_element: the most items of one element of a person.
      parts: m, clipped parts of a batch.
      most_silos: m, silos that may hold one subject; None without silos.
      view: of `HorizontalPlan`.
      engine: "pld" or "rdp".
      stats: what --ids said.
      m_source: "data" if m was read from the table.
    """

    algorithm: str
    unit: str
    holders: tuple[Holder, ...]
    delta: float
    cap: int | None
    elements: int | None
    items_per_element: int | None
    parts: int | None
    most_silos: int | None
    view: str
    engine: str
    stats: SubjectStats | SiloStats | None
    m_source: str | None

    @property
    def display(self) -> str:
        """The algorithm's name."""
        return CENTRAL.get(self.algorithm) or CLASSES[self.algorithm].__name__

    @property
    def made(self) -> Algorithm:
        """The library's own algorithm, with a clip norm of 1; central ones have none."""
        return algorithm_of(
            self.algorithm,
            cap=self.cap,
            elements=self.elements,
            items_per_element=self.items_per_element,
            parts=self.parts,
        )

    @property
    def composes(self) -> bool:
        """Whether silos compose: for a person, and for their element, which has rows in as many.

        An item is in one silo.
        """
        whose = self.unit in ("subject", "element")
        return len(self.holders) > 1 and whose and self.algorithm not in CENTRAL

    @property
    def composed_view(self) -> str:
        """The view that is accounted for: every update where nothing better is proven."""
        # The event of a shuffled epoch is no step; that the silos' noises add up is proven for units
        # that are added or removed, and an element may be replaced (`federated.costs` does the same).
        return "updates" if self.shuffles or self.unit == "element" else self.view

    @property
    def shuffles(self) -> bool:
        """Whether whole epochs compose, not steps."""
        return any(holder.facts.scheme == "shuffle" for holder in self.holders)

    def guarantee(self, holder: Holder, sigma: float) -> Guarantee:
        """What one step of a holder promises to the unit."""
        facts = holder.facts
        if self.algorithm in CENTRAL:
            return self._central(sigma)
        algorithm = self.made
        if self.unit == "item":
            return algorithm.item_guarantee(facts, sigma)
        if self.unit == "element":
            return algorithm.element_guarantee(facts, sigma)
        if self.unit == "silo":
            # Not the subject's figure: under shuffling one subject touches some batches, a silo all.
            return Guarantee(
                "silo",
                "any change of one silo's data",
                (accounting.user_ldp_event(sigma),),
                "any change of the data moves the clipped batch gradient by at most two clip norms, "
                "at every step",
            )
        return algorithm.subject_guarantee(facts, sigma)

    def _central(self, sigma: float) -> Guarantee:
        pairs = [(holder.facts.rate, holder.facts.max_items) for holder in self.holders]
        most = self.most_silos if self.most_silos and self.most_silos < len(pairs) else None
        if self.algorithm == "centralgroup":
            event = central_group_event(pairs, sigma, self.cap, silos_per_subject=most)
            move = "the items of a subject that are drawn in all silos together, in clip norms"
        else:
            event = central_higradavg_event(pairs, sigma, silos_per_subject=most)
            move = "the number of silos in which an item of the subject is drawn, in clip norms"
        return Guarantee(
            "subject",
            ADD_OR_REMOVE_SUBJECT,
            (event,),
            f"a trusted server adds noise once, to the sum over the silos; a subject moves it by {move} "
            "(mixture of Gaussians)",
        )

    def horizontal(
        self, sigma: float, lengths: list[tuple[int, int]], number: int = 0
    ) -> HorizontalPlan:
        """The silos with (steps a round, rounds) of each; `number` is the event's, each a bound."""
        silos = []
        for holder, (steps, rounds) in zip(self.holders, lengths, strict=True):
            guarantee = self.guarantee(holder, sigma)
            silos.append(
                Silo(
                    guarantee.events[number],
                    guarantee.times(steps),
                    rounds,
                    # the events of UserLDP and of clipped parts count in 2C
                    clip_norm=2.0 if self.algorithm in ("userldp", *CLIP_PARTS) else 1.0,
                    name=holder.name,
                    # One noised sum a step; a shuffled epoch is not one.
                    noised_once=holder.facts.scheme != "shuffle",
                )
            )
        return HorizontalPlan(silos, silos_per_subject=self.most_silos, view=self.composed_view)

    def worst_case(self, sigma: float, lengths: list[tuple[int, int]]) -> WorstCase | None:
        """The costliest subject where silos compose; None where they do not."""
        if not self.composes:
            return None
        found = [
            self.horizontal(sigma, lengths, number).worst_case(delta=self.delta, engine=self.engine)
            for number in self._numbers()
        ]
        return min(found, key=lambda case: case.value)

    def _numbers(self) -> range:
        """The numbers of the events that every holder's guarantee names."""
        return range(min(len(self.guarantee(one, 1.0).events) for one in self.holders))

    def epsilon(self, sigma: float, lengths: list[tuple[int, int]]) -> float:
        """Of the whole run, an upper bound."""
        worst = self.worst_case(sigma, lengths)
        if worst is not None:
            return worst.value
        return max(
            min(
                accounting.epsilon(event, count, delta=self.delta, engine=self.engine)
                for event in guarantee.events
            )
            for guarantee, count in self._distinct(sigma, lengths)
        )

    def epsilon_against_a1(self, sigma: float, lengths: list[tuple[int, int]]) -> float | None:
        """Of clipped parts, against the adversary who knows where the unit's items went.

        None for other algorithms, and for a subject of silos that are not alike: no curve is known
        for those. Of alike silos, every update is taken as seen, whatever the view.
        """
        if self.algorithm not in CLIP_PARTS:
            return None
        if sigma == 0.0:
            return math.inf
        kinds = self._unlike(lengths)
        if self.composes and len(kinds) > 1:
            return None
        silos = (self.most_silos or 1) if self.composes else 1
        found = []
        for holder, (steps, rounds) in kinds:
            facts = holder.facts
            count = steps * rounds
            if facts.scheme == "shuffle":  # a begun epoch counts whole, in every round
                count = -(-steps // facts.steps_per_epoch) * rounds * facts.steps_per_epoch
            group = facts.max_items if self.unit == "subject" else 1
            curve = adversary_curve(
                facts, self.made.number_of_parts, sigma, steps=count * silos, group=group
            )
            found.append(float(curve.epsilon(self.delta)))
        return max(found)

    def noise(self, epsilon: float, lengths: list[tuple[int, int]]) -> float:
        """The smallest noise multiplier that keeps the budget."""
        if self.composes and self.engine == "rdp":
            budget = _checks.target_epsilon(epsilon, allow_zero=False)
            return smallest_factor(lambda sigma: self.epsilon(sigma, lengths), budget)
        if self.composes:
            return min(
                self.horizontal(1.0, lengths, number).noise_for_budget(
                    epsilon=epsilon, delta=self.delta
                )
                for number in self._numbers()
            )
        found = []
        for holder, (steps, rounds) in self._unlike(lengths):
            shape = self.guarantee(holder, 1.0)
            found.append(
                min(
                    accounting.noise_multiplier(
                        lambda sigma, holder=holder, n=n: self.guarantee(holder, sigma).events[n],
                        shape.times(steps) * rounds,
                        epsilon=epsilon,
                        delta=self.delta,
                        engine=self.engine,
                    )
                    for n in range(len(shape.events))
                )
            )
        return max(found)

    def rounds(
        self, sigma: float, epsilon: float, steps: list[int], *, one_run: bool = False
    ) -> int:
        """The largest number of rounds within the budget, 0 if not even one is.

        `one_run`: the steps go on without a break, so that a shuffled epoch spans many of them.
        """
        budget = _checks.target_epsilon(epsilon, allow_zero=False)
        found = largest_integer(
            lambda rounds: self.epsilon(sigma, turns(steps, rounds, one_run)),
            budget,
            MOST_ROUNDS,
        )
        if found >= MOST_ROUNDS:
            raise UsageError(
                f"more than {MOST_ROUNDS:g} rounds keep the budget, and the search ends there: less "
                "noise would do"
            )
        return found

    def alone(self) -> Question:
        """The same for a subject who is in one silo only."""
        return dataclasses.replace(self, most_silos=1)

    def _unlike(self, lengths):
        """Holders that differ, with their lengths; a central algorithm has one for all."""
        pairs = list(zip(self.holders, lengths, strict=True))
        if self.algorithm in CENTRAL:
            # A step sums all silos: as many steps as the longest takes part in, and all in each.
            return [max(pairs, key=lambda pair: pair[1][0] * pair[1][1])]
        return list({(holder.facts, length): (holder, length) for holder, length in pairs}.values())

    def _distinct(self, sigma, lengths):
        for holder, (steps, rounds) in self._unlike(lengths):
            guarantee = self.guarantee(holder, sigma)
            yield guarantee, guarantee.times(steps) * rounds

    def data(self) -> dict[str, Any]:
        """What `--json` says about the question."""
        found: dict[str, Any] = {
            "algorithm": self.display,
            "unit": self.unit,
            "delta": self.delta,
            "max_items_per_subject_in_a_step": self.cap,
        }
        if len(self.holders) == 1:
            found |= self.holders[0].data()
        else:
            found |= {
                "silos": [{"name": holder.name, **holder.data()} for holder in self.holders],
                "silos_per_subject": self.most_silos,
                "view": self.view,
            }
            if self.composes:
                found["accounted_view"] = self.composed_view
        if self.elements is not None:
            found["elements_per_subject"] = self.elements
        if self.items_per_element is not None:
            found["items_per_element"] = self.items_per_element
        if self.algorithm in CLIP_PARTS:
            found["parts"] = self.made.number_of_parts
        found["noise_multiplier_is"] = noise_words(self.algorithm)
        if self.stats is not None:
            found["data"] = inputs.stats_data(self.stats)
        return found


def turns(steps: list[int], rounds: int, one_run: bool) -> list[tuple[int, int]]:
    """(steps a round, rounds) of each holder, or all its steps as one round."""
    return [(count * rounds, 1) if one_run else (count, rounds) for count in steps]
