# SPDX-License-Identifier: Apache-2.0
"""What `epsilon`, `noise`, `rounds` and `compare` ask: an algorithm and who samples what in each silo.

A thin face over the algorithms' guarantees and `HorizontalPlan`, which one holder is a case of. It asks
less than a `Plan`: rates without the numbers that they come from, k only where a promise depends on it.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import warnings
from collections.abc import Iterator
from typing import Any

from tf_subjectdp import accounting, algorithms, sampling
from tf_subjectdp.accounting import _checks
from tf_subjectdp.accounting.searching import largest_integer, smallest_factor
from tf_subjectdp.accounting.silos import central
from tf_subjectdp.accounting.silos.horizontal import MOST_ROUNDS, HorizontalPlan, WorstCase
from tf_subjectdp.accounting.silos.silo import Silo
from tf_subjectdp.algorithms import Algorithm, Guarantee, SamplingFacts
from tf_subjectdp.algorithms.base import ADD_OR_REMOVE_SUBJECT
from tf_subjectdp.algorithms.pairs import samplers_of
from tf_subjectdp.algorithms.part_clipping import adversary_curve
from tf_subjectdp.cli.options import (
    ALGORITHMS,
    CENTRAL,
    CLIP_PARTS,
    PLANNED,
    SAMPLINGS,
    UsageError,
    flag,
    takes,
    ways,
)
from tf_subjectdp.cli.output import progress_bar
from tf_subjectdp.plans import facts_of, guarantee_of, number_protected, warn_of_delta
from tf_subjectdp.sampling import Sampler, SiloStats, SubjectStats, stats_from_table

# -- algorithm and sampling --------------------------------------------------------------------------


def algorithm_of(name: str, chosen: Any, clip_norm: float = 1.0) -> Algorithm:
    """The library's algorithm of a name; its bounds are attributes of `chosen`."""
    kind, bounds = ALGORITHMS[name]
    given = {argument: getattr(chosen, option) for option, argument in bounds.items()}
    return getattr(algorithms, kind)(clip_norm, **given)


def sampling_of(arguments: argparse.Namespace, unit: str | None) -> str | None:
    """The name of the sampling; UsageError where options disagree, or are for other algorithms.

    None for none, where the algorithm promises the same to the unit whatever is sampled.
    """
    name, planned = arguments.sampling, arguments.command in ("plan", "statement")
    sizes = {one: _sizes(one, rates=not planned and arguments.ids is None) for one in SAMPLINGS}
    every = dict.fromkeys(size for one in SAMPLINGS for size in _sizes(one, rates=True))
    said = next((size for size in every if getattr(arguments, size) is not None), None)
    if name is None and said is not None:
        name = next(one for one in SAMPLINGS if said in _sizes(one, rates=True))
    elif name is not None and said not in _sizes(name, rates=True):
        needed = " or ".join(map(flag, sizes[name]))
        raise UsageError(
            f"sampling {name} needs {needed}" + (f", not {flag(said)}" if said else "")
        )
    elif name is None and (planned or arguments.algorithm != "userldp" or unit == "item"):
        proven = dict.fromkeys(size for one in _proven(arguments, unit) for size in sizes[one])
        raise UsageError(f"the sampling is missing: say {ways(proven)}")
    takers = [(one, one, ALGORITHMS[one][1]) for one in (PLANNED if planned else ALGORITHMS)] + [
        (one, f"sampling {one}", drawn.arguments) for one, drawn in SAMPLINGS.items()
    ]
    for option in dict.fromkeys(option for *_, bounds in takers for option in bounds):
        owners = {one: words for one, words, bounds in takers if option in bounds}
        unused = owners.keys().isdisjoint((arguments.algorithm, name))
        if option not in every and getattr(arguments, option) is not None and unused:
            drawn = "" if name is None else f" with sampling {name}"
            raise UsageError(
                f"{flag(option)} is for {' or '.join(owners.values())}, not for "
                f"{arguments.algorithm}{drawn}"
            )
    return name


def _size(name: str) -> str:
    return next(iter(SAMPLINGS[name].arguments))


def _sizes(name: str, *, rates: bool) -> list[str]:
    """The options that say how large a step of a sampling is."""
    rate = SAMPLINGS[name].rate
    return [rate, _size(name)] if rates and rate is not None else [_size(name)]


def _proven(arguments: argparse.Namespace, unit: str | None) -> list[str]:
    """The samplings under which the algorithm promises something to the unit."""
    if arguments.algorithm in CENTRAL:
        return ["poisson-items"]
    kind = getattr(algorithms, ALGORITHMS[arguments.algorithm][0])
    if kind.needs_elements and not takes(arguments.command, "elements_in_all"):
        return ["poisson-subjects"]  # in a plan elements would have to be counted
    known = samplers_of(kind, unit or kind.default_unit)
    return [
        name
        for name, drawn in SAMPLINGS.items()
        if drawn.kind in known and takes(arguments.command, _size(name))
    ]


def sampler_of(arguments: argparse.Namespace, name: str) -> Sampler:
    """The sampler of the sizes given; a cap that the algorithm takes is not the sampler's."""
    kind, own, *_ = SAMPLINGS[name]
    taken = ALGORITHMS[arguments.algorithm][1]
    given = {own[one]: getattr(arguments, one) for one in own if one not in taken}
    given = {argument: value for argument, value in given.items() if value is not None}
    size = given[own[_size(name)]]
    given[own[_size(name)]] = int(size) if size == int(size) else size
    return getattr(sampling, kind)(**given)


# -- the data ----------------------------------------------------------------------------------------

# A tabulator is hard to type; a shell passes on what was typed for it.
_DELIMITERS = {None: ",", "tab": "\t", "\\t": "\t"}


def read_table(arguments: argparse.Namespace) -> SubjectStats | SiloStats | None:
    """The counts of the table of --ids, bounded by --cap-data; None without a table."""
    if arguments.ids is None:
        return None
    with progress_bar(arguments.progress, f"reading {arguments.ids}") as bar:
        stats = stats_from_table(
            arguments.ids,
            arguments.column,
            silo_column=arguments.silo_column,
            delimiter=_DELIMITERS.get(arguments.delimiter, arguments.delimiter),
            progress=bar,
        )
    return stats if arguments.cap_data is None else stats.bounded(arguments.cap_data)


def figures(arguments: argparse.Namespace) -> SubjectStats:
    """The stats of --items, --subjects and --items-per-subject or --cap-data; all are needed."""
    missing = [flag(one) for one in ("items", "subjects") if getattr(arguments, one) is None]
    k = arguments.cap_data or arguments.items_per_subject
    missing += [] if k else ["--items-per-subject"]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: say how many "
            "items and subjects there are and the most items of one subject, or --ids FILE --column "
            "NAME"
        )
    most = arguments.items if arguments.cap_data else k
    stats = SubjectStats.public(
        n_items=arguments.items, n_subjects=arguments.subjects, max_items=most
    )
    if arguments.cap_data is None:
        return stats
    _note_cap_of_figures(arguments)
    # Of the rows that were counted, no more than K a subject stay.
    kept = min(stats.n_items, k * stats.n_subjects)
    return dataclasses.replace(stats, n_items=kept, max_items=k, k_source="bound")


def _note_cap_of_figures(arguments: argparse.Namespace) -> None:
    """Warns that --items cannot tell how many rows a cap leaves."""
    if arguments.cap_data is not None and arguments.items is not None:
        warnings.warn(
            "--items is taken as the rows that are LEFT after --cap-data: the rate is batch / items. "
            "Where the cap drops rows and batches keep their size, the rate and epsilon are larger; "
            "--ids FILE counts what is left.",
            stacklevel=2,
        )


def note_delta(
    arguments: argparse.Namespace, unit: str, stats: SubjectStats | SiloStats | None
) -> None:
    """Warns, as `plan` does, where delta is not below one over the number of what is protected."""
    if unit == "silo":
        return
    if stats is None:
        of_all = arguments.elements_in_all
        stats = argparse.Namespace(
            n_items=arguments.items or 0,
            n_subjects=arguments.subjects or 0,
            elements=None if of_all is None else argparse.Namespace(n_elements=of_all),
        )
    number = number_protected(unit, stats)
    if number:
        warn_of_delta(arguments.delta, unit, number)


def silos_per_subject(arguments: argparse.Namespace, stats: SiloStats) -> tuple[int, str]:
    """m and where it came from: counted in the table, or promised and checked against it."""
    counted, promised = stats.silos_per_subject, arguments.silos_per_subject
    if promised is None:
        return counted, "data"
    if promised < counted:
        raise UsageError(
            f"--silos-per-subject is {promised}, and a subject of the table is in {counted} silos: "
            f"say at least {counted}"
        )
    return min(promised, stats.n_silos), "public"


def read_from_data(stats: SubjectStats | SiloStats | None, m_source: str | None = None) -> str:
    """What the figures tell about the people in the table; empty if nothing was read."""
    if stats is None:
        return ""
    k_read = stats.cap is None if isinstance(stats, SiloStats) else stats.k_source == "data"
    parts = []
    if k_read:
        parts.append(
            "k was read from the data and is itself information about the people in them; a public "
            "bound, --cap-data K, would not be."
        )
    if m_source == "data":
        parts.append(
            "So was the number of silos that hold one subject; --silos-per-subject M is a bound."
            if k_read
            else "The number of silos that hold one subject was read from the data and is itself "
            "information about the people in them; --silos-per-subject M is a bound."
        )
    if not (isinstance(stats, SubjectStats) and stats.sizes_public):
        parts.append("The numbers of items and subjects, and the rates, follow from the data too.")
    return " ".join(parts)


def stats_data(stats: SubjectStats | SiloStats) -> dict[str, Any]:
    """The figures for `--json`."""
    if isinstance(stats, SubjectStats):
        return {
            "items": stats.n_items,
            "subjects": stats.n_subjects,
            "items_per_subject": stats.max_items,
            "k_source": stats.k_source,
        }
    total = stats.total
    return {
        "items": total.n_items,
        "subjects": total.n_subjects,
        "items_per_subject_over_all_silos": total.max_items,
        "k_source": "data" if stats.cap is None else "bound",
        "silos_per_subject_in_the_table": stats.silos_per_subject,
    }


# -- holders -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Holder:
    """One silo, or the only holder of the data.

    Attributes:
      name: of the silo; None for the only one.
      facts: the public constants of its sampling.
      sampled: whether the sampling was said; the promise does not depend on it otherwise.
      k_known: whether k was said; the promise does not depend on it otherwise.
      keep: probability that a row takes part in a shuffled epoch.
    """

    name: str | None
    facts: SamplingFacts
    sampled: bool = True
    k_known: bool = True
    keep: float = 1.0

    def data(self) -> dict[str, Any]:
        """What is known of it, for `--json`."""
        found = {
            "sampling": self.facts.scheme if self.sampled else "any",
            "rate": self.facts.rate if self.sampled else None,
            "k": self.facts.max_items if self.k_known else None,
        }
        return found if self.keep == 1.0 else found | {"keep_probability": self.keep}


def holders_of_stats(stats: SubjectStats | SiloStats, sampler: Any) -> tuple[Holder, ...]:
    """The silos of a table; `sampler` is a function from a silo's stats to its sampler."""
    if isinstance(stats, SubjectStats):
        silos: Iterator = iter([(None, stats)])
    else:
        silos = ((str(name), stats.silo(i)) for i, name in enumerate(stats.names))
    holders = []
    for name, silo in silos:
        try:
            drawn = sampler(silo)
            keep = getattr(drawn, "keep_probability", 1.0)
            holders.append(Holder(name, facts_of(drawn, silo, None), keep=keep))
        except ValueError as error:
            if name is None:
                raise
            raise ValueError(f"silo {name!r}: {error}") from None
    return tuple(holders)


def _holders(
    arguments: argparse.Namespace, drawn: str | None, stats: SubjectStats | SiloStats | None
) -> tuple[Holder, ...]:
    if stats is None:
        facts = _facts_of_figures(arguments, drawn)
        known = arguments.items_per_subject is not None or arguments.cap_data is not None
        keep = arguments.keep_probability or 1.0
        silos = arguments.silos or 1
        return tuple(
            Holder(str(i + 1) if silos > 1 else None, facts, drawn is not None, known, keep)
            for i in range(silos)
        )
    if drawn is None:
        every = holders_of_stats(stats, lambda silo: sampling.PoissonItems(silo.n_items))
        return tuple(dataclasses.replace(one, sampled=False) for one in every)
    if drawn == "poisson-elements":
        raise UsageError(
            "--ids counts people and rows, no elements: for sampled elements leave it out"
        )
    return holders_of_stats(stats, lambda silo: sampler_of(arguments, drawn))


def _facts_of_figures(arguments: argparse.Namespace, drawn: str | None) -> SamplingFacts:
    said = arguments.cap_data or arguments.items_per_subject
    k = said or _most_items(arguments, drawn) or 1
    cap = None if "cap" in ALGORITHMS[arguments.algorithm][1] else arguments.cap

    def facts(scheme: str, rate: float, number: int, steps: int) -> SamplingFacts:
        """Constants where some figures are unknown, because the promise does not depend on them."""
        return SamplingFacts(
            scheme=scheme,
            rate=rate,
            n_items=number,
            n_subjects=1,
            batch_size=rate * number,
            expected_subjects=1.0,
            max_items=k,
            step_cap=cap if scheme == "poisson_subjects" else None,
            data_cap=arguments.cap_data is not None,
            steps_per_epoch=steps,
        )

    if drawn is None:
        return facts("poisson_items", 1.0, k, 1)
    known, scheme = SAMPLINGS[drawn], drawn.replace("-", "_")
    rate = None if known.rate is None else getattr(arguments, known.rate)
    number = getattr(arguments, known.counted)
    if rate is not None:
        if number is not None:
            raise UsageError(
                f"{flag(known.rate)} is a rate already: leave out {flag(known.counted)}, or say "
                f"{flag(_size(drawn))} instead"
            )
        # Without the numbers that a rate came from an epoch can but be told from it: up.
        return facts(scheme, rate, k, math.ceil((1.0 - 1e-12) / rate))
    sampler = sampler_of(arguments, drawn)
    if None not in (arguments.subjects, arguments.items, said) and drawn != "poisson-elements":
        return facts_of(sampler, figures(arguments), None)
    _note_cap_of_figures(arguments)
    if number is None:
        raise UsageError(f"{flag(_size(drawn))} needs {flag(known.counted)} N, how many there are")
    if known.counted == "items" and said is not None and said > number:
        raise UsageError(f"--items-per-subject is {said}, above --items {number}")
    numbers = (number, number, number)
    return facts(scheme, sampler.rate(*numbers), number, sampler.steps_per_epoch(*numbers))


def _most_items(arguments: argparse.Namespace, drawn: str | None) -> int | None:
    """k where it was not said, from elements of at most so many items; None if it stays unknown.

    Without --elements the question is about one element, and its own items are all that counts.
    """
    if arguments.items_per_element is None or drawn != "poisson-items":
        return None
    most = arguments.items_per_element * (arguments.elements or 1)
    return most if arguments.items is None else min(most, arguments.items)


# -- the question ------------------------------------------------------------------------------------

_UNITS = {
    "elementdp": ("element", "subject", "item"),
    "element-subject": ("subject",),
    "centralgroup": ("subject",),
    "centralhigradavg": ("subject",),
    "userldp": ("subject", "item", "silo"),
}


def ask(arguments: argparse.Namespace) -> Question:
    """The question of the options; UsageError where they contradict each other."""
    name = arguments.algorithm
    allowed = _UNITS.get(name, ("subject", "item"))
    unit = arguments.unit or allowed[0]
    if unit not in allowed:
        raise UsageError(
            f"{name} promises nothing to one {unit}: choose --unit {' or '.join(allowed)}"
        )
    drawn = sampling_of(arguments, unit)
    if name in CENTRAL:
        _check_central(arguments, drawn)
    stats = read_table(arguments)
    most, source = arguments.silos and (arguments.silos_per_subject or arguments.silos), None
    if isinstance(stats, SiloStats):
        most, source = silos_per_subject(arguments, stats)
    elif most is not None and most > arguments.silos:
        raise UsageError(f"--silos-per-subject is {most}, above --silos {arguments.silos}")
    question = Question(
        algorithm=name,
        unit=unit,
        holders=_holders(arguments, drawn, stats),
        delta=arguments.delta,
        cap=arguments.cap,
        elements=arguments.elements,
        items_per_element=arguments.items_per_element,
        parts=arguments.parts,
        most_silos=most,
        view=arguments.view or ("average" if name in CENTRAL else "updates"),
        engine=arguments.engine or "pld",
        stats=stats,
        m_source=source,
    )
    note_delta(arguments, unit, stats)
    known = question.holders[0].k_known or _most_items(arguments, drawn) is not None
    if not known and question.depends_on_k():
        remedy = "--items-per-subject K (or --cap-data K, or --ids)"
        if question.display == "ElementDP":
            remedy = "--items-per-element K (or --items-per-subject K, or --ids)"
        raise UsageError(
            f"{remedy} is missing: the promise depends on how many items there are of one subject"
        )
    return question


def _check_central(arguments: argparse.Namespace, drawn: str | None) -> None:
    if drawn != "poisson-items":
        said = arguments.sampling
        remedy = "say --q or --batch" if said is None else f"leave out --sampling {said}"
        raise UsageError(f"{arguments.algorithm} samples items: {remedy}")
    if arguments.view == "updates":
        raise UsageError(
            f"{arguments.algorithm} releases the average only: --view updates contradicts it"
        )
    if arguments.silos is None and arguments.silo_column is None:
        raise UsageError(
            f"{arguments.algorithm} needs --silos S (or --silo-column NAME): how many silos sum up"
        )


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
    cap: int | None = None
    elements: int | None = None
    items_per_element: int | None = None
    parts: int | None = None
    most_silos: int | None = None
    view: str = "updates"
    engine: str = "pld"
    stats: SubjectStats | SiloStats | None = None
    m_source: str | None = None

    @property
    def display(self) -> str:
        """The algorithm's name."""
        return ALGORITHMS[self.algorithm][0]

    @property
    def made(self) -> Algorithm:
        """The library's own algorithm, with a clip norm of 1; central ones have none."""
        return algorithm_of(self.algorithm, self)

    @property
    def noise_words(self) -> str:
        """What the noise multiplier counts."""
        one = "(2 x clip norm)" if self.algorithm in CLIP_PARTS else "clip norm"
        return f"noise standard deviation / {one}"

    @property
    def composes(self) -> bool:
        """Whether silos compose: for a person, and for their element, which has rows in as many.

        An item is in one silo.
        """
        whose = self.unit in ("subject", "element")
        return len(self.holders) > 1 and whose and self.algorithm not in CENTRAL

    @property
    def shuffles(self) -> bool:
        """Whether whole epochs compose, not steps."""
        return any(holder.facts.scheme == "shuffle" for holder in self.holders)

    @property
    def composed_view(self) -> str:
        """The view that is accounted for: every update where nothing better is proven."""
        # The event of a shuffled epoch is no step; that the silos' noises add up is proven for units
        # that are added or removed, and an element may be replaced (`federated.costs` does the same).
        known = self.composes and not self.shuffles and self.unit != "element"
        return self.view if known else "updates"

    def guarantee(self, holder: Holder, sigma: float) -> Guarantee:
        """What one step of a holder promises to the unit."""
        if self.algorithm in CENTRAL:
            return self._central(sigma)
        if self.unit == "silo":
            # Not the subject's figure: under shuffling one subject touches some batches, a silo all.
            return Guarantee(
                "silo",
                "any change of one silo's data",
                (accounting.user_ldp_event(sigma),),
                "any change of the data moves the clipped batch gradient by at most two clip norms, "
                "at every step",
            )
        return guarantee_of(self.made, holder.facts, sigma, self.unit)

    def _central(self, sigma: float) -> Guarantee:
        pairs = [(holder.facts.rate, holder.facts.max_items) for holder in self.holders]
        most = self.most_silos if self.most_silos and self.most_silos < len(pairs) else None
        if self.algorithm == "centralgroup":
            event = central.central_group_event(pairs, sigma, self.cap, silos_per_subject=most)
            move = "the items of a subject that are drawn in all silos together, in clip norms"
        else:
            event = central.central_higradavg_event(pairs, sigma, silos_per_subject=most)
            move = "the number of silos in which an item of the subject is drawn, in clip norms"
        return Guarantee(
            "subject",
            ADD_OR_REMOVE_SUBJECT,
            (event,),
            f"a trusted server adds noise once, to the sum over the silos; a subject moves it by {move} "
            "(mixture of Gaussians)",
        )

    def depends_on_k(self) -> bool:
        """Whether the promise is another one for people of more items."""

        def promise(k: int) -> Any:
            holders = tuple(
                dataclasses.replace(one, facts=dataclasses.replace(one.facts, max_items=k))
                for one in self.holders
            )
            found = dataclasses.replace(self, holders=holders).guarantee(holders[0], 1.0)
            return found.events, found.adjacency

        return any(promise(k) != promise(1) for k in (2, (self.cap or 1) + 1))

    def horizontal(
        self, sigma: float, lengths: list[tuple[int, int]], number: int = 0
    ) -> HorizontalPlan:
        """The accountant's own plan: one silo for one holder, or for a server that adds the noise."""
        pairs = list(zip(self.holders, lengths, strict=True))
        if self.algorithm in CENTRAL:
            # A step sums all silos: as many steps as the longest takes part in, and all in each.
            pairs = [max(pairs, key=lambda pair: pair[1][0] * pair[1][1])]
        silos = []
        for holder, (steps, rounds) in pairs:
            guarantee = self.guarantee(holder, sigma)
            silos.append(
                Silo(
                    guarantee.events[number],
                    guarantee.times(steps),
                    rounds,
                    name=holder.name,
                    # One noised sum a step; a shuffled epoch is not one.
                    noised_once=holder.facts.scheme != "shuffle",
                )
            )
        most = self.most_silos if self.composes else 1
        return HorizontalPlan(silos, silos_per_subject=most, view=self.composed_view)

    def _all(self, sigma: float, lengths: list[tuple[int, int]]) -> list[HorizontalPlan]:
        """A plan for each number of the events that every holder's guarantee names."""
        known = min(len(self.guarantee(one, 1.0).events) for one in set(self.holders))
        return [self.horizontal(sigma, lengths, number) for number in range(known)]

    def worst_case(self, sigma: float, lengths: list[tuple[int, int]]) -> WorstCase:
        """The costliest subject (item, element, silo); its value is an upper bound."""
        found = [
            one.worst_case(delta=self.delta, engine=self.engine)
            for one in self._all(sigma, lengths)
        ]
        return min(found, key=lambda case: case.value)

    def epsilon(self, sigma: float, lengths: list[tuple[int, int]]) -> float:
        """Of the whole run, an upper bound."""
        return self.worst_case(sigma, lengths).value

    def epsilon_against_a1(self, sigma: float, lengths: list[tuple[int, int]]) -> float | None:
        """Of clipped parts, against the adversary who knows where the unit's items went.

        None for other algorithms, and for a subject of silos that are not alike: no curve is known
        for those. Of alike silos, every update is taken as seen, whatever the view.
        """
        if self.algorithm not in CLIP_PARTS:
            return None
        if sigma == 0.0:
            return math.inf
        kinds = {(one.facts, length) for one, length in zip(self.holders, lengths, strict=True)}
        if self.composes and len(kinds) > 1:
            return None
        silos = (self.most_silos or 1) if self.composes else 1
        found = []
        for facts, (steps, rounds) in kinds:
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
        if self.engine == "rdp":
            budget = _checks.target_epsilon(epsilon, allow_zero=False)
            return smallest_factor(lambda sigma: self.epsilon(sigma, lengths), budget)
        return min(
            one.noise_for_budget(epsilon=epsilon, delta=self.delta)
            for one in self._all(1.0, lengths)
        )

    def rounds(self, sigma: float, epsilon: float, steps: int, *, one_run: bool = False) -> int:
        """The largest number of rounds within the budget, 0 if not even one is.

        `one_run`: the steps go on without a break, so that a shuffled epoch spans many of them.
        """
        found = largest_integer(
            lambda rounds: self.epsilon(sigma, self.turns(steps, rounds, one_run)),
            _checks.target_epsilon(epsilon, allow_zero=False),
            MOST_ROUNDS,
        )
        if found >= MOST_ROUNDS:
            raise UsageError(
                f"more than {MOST_ROUNDS:g} rounds keep the budget, and the search ends there: less "
                "noise would do"
            )
        return found

    def turns(self, steps: int, rounds: int, one_run: bool = False) -> list[tuple[int, int]]:
        """(steps a round, rounds) of each holder, or all its steps as one round."""
        return [(steps * rounds, 1) if one_run else (steps, rounds)] * len(self.holders)

    def lengths(self, arguments: argparse.Namespace) -> list[tuple[int, int]]:
        """(steps a round, rounds) of every holder, from the options on the length."""
        if arguments.steps is not None:
            return self.turns(arguments.steps, 1)
        if arguments.epochs is None:
            if arguments.rounds is None:
                raise UsageError("the length is missing: say --steps, --epochs, or --rounds")
            return self.turns(arguments.steps_per_round or 1, arguments.rounds)
        if not self.holders[0].sampled:
            raise UsageError(
                "without a sampling an epoch has no length: say --steps, or --batch too"
            )
        epochs = arguments.epochs
        steps = [holder.facts.steps_per_epoch for holder in self.holders]
        if epochs == int(epochs):  # an epoch a round, or one long round for broken numbers
            return [(one, int(epochs)) for one in steps]
        return [(max(1, math.ceil(epochs * one - 1e-9)), 1) for one in steps]

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
        found["noise_multiplier_is"] = self.noise_words
        if self.stats is not None:
            found["data"] = stats_data(self.stats)
        return found
