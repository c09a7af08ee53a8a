# SPDX-License-Identifier: Apache-2.0
"""Who samples what: the public constants of each silo, from rates, figures or a table."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from tf_subjectdp.algorithms import SamplingFacts
from tf_subjectdp.cli.arguments import UsageError
from tf_subjectdp.cli.choices import check_sampling
from tf_subjectdp.cli.inputs import figures, flag, note_cap_of_figures, refuse_both
from tf_subjectdp.cli.options import CLIP_ELEMENTS, CLIP_PARTS
from tf_subjectdp.plans import facts_of
from tf_subjectdp.sampling import (
    FixedSize,
    PoissonElements,
    PoissonItems,
    PoissonSubjects,
    Sampler,
    Shuffle,
    SiloStats,
    SubjectStats,
)

# What is drawn: its rate, and its number.
_SIZES = {
    "items": ("q", "batch"),
    "subjects": ("p", "expected_subjects"),
    "elements": ("r", "expected_elements"),
}
# The option that says how many there are of what a rate is of.
_COUNTED = {"q": "items", "p": "subjects", "r": "elements_in_all"}
_COUNTS = {
    "poisson_subjects": ("subjects", "--expected-subjects"),
    "poisson_elements": ("elements_in_all", "--expected-elements"),
}


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


def scheme_of(arguments: argparse.Namespace, *, anything: bool) -> str:
    """The sampling asked for, as `SamplingFacts.scheme`; UsageError for options that disagree.

    Args:
      arguments: algorithm, q, p, r, batch, expected_subjects, expected_elements, sampling.
      anything: whether the promise does not depend on the sampling.
    """
    for drawn, sizes in _SIZES.items():
        others = [name for other, names in _SIZES.items() if other != drawn for name in names]
        for name in sizes:
            refuse_both(arguments, name, tuple(others))
        refuse_both(arguments, sizes[0], sizes[1:])
    given = {drawn: _given(arguments, *sizes) for drawn, sizes in _SIZES.items()}
    said = [drawn for drawn, size in given.items() if size is not None]
    sampling = getattr(arguments, "sampling", None)
    keep = getattr(arguments, "keep_probability", None)
    rates = hasattr(arguments, "q")  # 'plan' takes numbers only
    if sampling is None and not said:
        if keep is not None:
            raise UsageError("--keep-probability needs --sampling shuffle")
        if anything:
            return "any"
        raise UsageError(f"the sampling is missing: say {_ways(arguments.algorithm, rates)}")
    named = sampling is not None
    if sampling is None:
        sampling = f"poisson-{said[0]}"
    check_sampling(arguments.algorithm, sampling, rates=rates, named=named)
    drawn = sampling.removeprefix("poisson-") if sampling.startswith("poisson") else "items"
    if given[drawn] is None:
        with_rate = rates and sampling not in ("fixed-size", "shuffle")
        needed = " or ".join(map(flag, _SIZES[drawn] if with_rate else _SIZES[drawn][1:]))
        raise UsageError(
            f"sampling {sampling} needs {needed}"
            + (f", not {flag(given[said[0]])}" if said else "")
        )
    if sampling in ("fixed-size", "shuffle") and getattr(arguments, "q", None) is not None:
        raise UsageError(f"sampling {sampling} has no rate of its own: say --batch")
    if keep is not None and sampling != "shuffle":
        raise UsageError(f"--keep-probability is for sampling shuffle, not for {sampling}")
    if keep is not None and not 0 < keep <= 1:
        raise UsageError(f"--keep-probability is {keep:g}: a probability is above 0 and at most 1")
    return sampling.replace("-", "_")


def _ways(name: str, rates: bool) -> str:
    if not rates:
        ways = {"items": "--batch", "subjects": "--expected-subjects"}
        unproven = {**dict.fromkeys(CLIP_PARTS, "subjects"), "elementdp": "items"}.get(name)
        return " or ".join(way for drawn, way in ways.items() if drawn != unproven)
    if name in CLIP_PARTS:
        return "--q or --batch"
    if name in CLIP_ELEMENTS:
        return "--p, --r, --q or --expected-subjects"
    return "--q, --p, --batch or --expected-subjects"


def _given(arguments: argparse.Namespace, *names: str) -> str | None:
    found = [name for name in names if getattr(arguments, name, None) is not None]
    return found[0] if found else None


def sampler_of(arguments: argparse.Namespace, scheme: str, cap: int | None) -> Sampler:
    """The sampler of the sizes given; the cap is the subjects' sampler's."""
    if scheme == "poisson_subjects":
        return PoissonSubjects(_plain(arguments.expected_subjects), max_items_per_subject=cap)
    if scheme == "poisson_elements":
        return PoissonElements(_plain(arguments.expected_elements))
    if scheme == "poisson_items":
        return PoissonItems(_plain(arguments.batch))
    size = _plain(arguments.batch)
    if not isinstance(size, int):
        raise UsageError(f"--batch is {size}: a batch of a fixed size is a whole number of items")
    return FixedSize(size) if scheme == "fixed_size" else Shuffle(size, _keep(arguments))


def _keep(arguments: argparse.Namespace) -> float:
    keep = getattr(arguments, "keep_probability", None)
    return 1.0 if keep is None else keep


def _plain(number: float) -> int | float:
    return int(number) if number == int(number) else number


def holders_of(
    arguments: argparse.Namespace,
    stats: SubjectStats | SiloStats | None,
    scheme: str,
    cap: int | None,
    *,
    needs_k: bool,
) -> list[Holder]:
    """The silos of the question, or the one holder.

    Args:
      arguments: the options.
      stats: what --ids said.
      scheme: of `scheme_of`.
      cap: a cap on the items that a sampled subject brings to a step, or None.
      needs_k: whether the promise depends on k.
    """
    keep = _keep(arguments)
    if stats is None:
        facts = _facts_of_figures(arguments, scheme, cap, needs_k)
        silos = arguments.silos or 1
        known = arguments.items_per_subject is not None or arguments.cap_data is not None
        return [
            Holder(str(i + 1) if silos > 1 else None, facts, scheme != "any", known, keep)
            for i in range(silos)
        ]
    if scheme == "poisson_elements":
        raise UsageError(
            "--ids counts people and rows, no elements: for sampled elements leave it out"
        )
    for name, size in _SIZES["items"], _SIZES["subjects"]:
        if getattr(arguments, name, None) is not None:
            raise UsageError(f"--{name} and --ids contradict each other: say {flag(size)} instead")
    if scheme == "any":
        return [
            Holder(name, _facts("poisson_items", 1.0, silo.max_items, None, silo.n_items), False)
            for name, silo in each_silo(stats)
        ]
    holders = []
    for name, silo in each_silo(stats):
        try:
            facts = facts_of(sampler_of(arguments, scheme, cap), silo, None)
            holders.append(Holder(name, facts, keep=keep))
        except ValueError as error:
            raise UsageError(f"silo {name!r}: {error}" if name else str(error)) from None
    return holders


def each_silo(stats: SubjectStats | SiloStats) -> Iterator[tuple[str | None, SubjectStats]]:
    """Names and stats of the silos; (None, stats) without silos."""
    if isinstance(stats, SubjectStats):
        yield None, stats
        return
    for i, name in enumerate(stats.names):
        yield str(name), stats.silo(i)


def _facts_of_figures(
    arguments: argparse.Namespace, scheme: str, cap: int | None, needs_k: bool
) -> SamplingFacts:
    refuse_both(arguments, "items_per_subject", ("cap_data",))
    said = arguments.items_per_subject if arguments.cap_data is None else arguments.cap_data
    for name in ("items_per_subject", "cap_data", "items", "subjects", "elements_in_all"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"{flag(name)} is {value}: it must be at least 1")
    k = _most_items(arguments, scheme) if said is None else said
    if k is None and (needs_k or cap is not None):
        raise UsageError(
            "--items-per-subject K (or --cap-data K, or --ids) is missing: the promise depends on "
            "the most items that one subject has"
        )
    if scheme == "any":
        return _facts("poisson_items", 1.0, k or 1, cap, k or 1, arguments)
    direct = _given(arguments, *_COUNTED)
    if direct is not None:
        counted = _COUNTED[direct]
        if getattr(arguments, counted) is not None:
            sizes = dict(_SIZES.values())
            raise UsageError(
                f"--{direct} is a rate already: leave out {flag(counted)}, or say "
                f"{flag(sizes[direct])} instead"
            )
        rate = getattr(arguments, direct)
        if not 0 < rate <= 1:
            raise UsageError(f"--{direct} is {rate:g}: a probability is above 0 and at most 1")
        return _facts(scheme, rate, k or 1, cap, k or 1, arguments)
    sampler = sampler_of(arguments, scheme, cap)
    known = None not in (arguments.subjects, arguments.items, said)
    if known and scheme != "poisson_elements":
        return facts_of(sampler, figures(arguments), None)
    note_cap_of_figures(arguments)
    counted, size = _COUNTS.get(scheme, ("items", "--batch"))
    number = getattr(arguments, counted)
    if number is None:
        raise UsageError(f"{size} needs {flag(counted)} N, how many there are")
    if counted == "items" and said is not None and said > number:
        raise UsageError(f"--items-per-subject is {said}, above --items {number}")
    numbers = (number, number, number)
    facts = _facts(scheme, sampler.rate(*numbers), k or 1, cap, number, arguments)
    return dataclasses.replace(facts, steps_per_epoch=sampler.steps_per_epoch(*numbers))


def _most_items(arguments: argparse.Namespace, scheme: str) -> int | None:
    """k where it was not said, from elements of at most so many items; None if it stays unknown.

    Without --elements the question is about one element, and its own items are all that counts.
    """
    of_element = getattr(arguments, "items_per_element", None)
    if of_element is None or scheme != "poisson_items":
        return None
    most = of_element * (arguments.elements or 1)
    return most if arguments.items is None else min(most, arguments.items)


def _facts(
    scheme: str,
    rate: float,
    k: int,
    cap: int | None,
    n_items: int,
    arguments: argparse.Namespace | None = None,
) -> SamplingFacts:
    """Constants where some figures are unknown, because the promise does not depend on them."""
    return SamplingFacts(
        scheme=scheme,
        rate=rate,
        n_items=n_items,
        n_subjects=1,
        batch_size=rate * n_items,
        expected_subjects=1.0,
        max_items=k,
        step_cap=cap,
        data_cap=arguments is not None and arguments.cap_data is not None,
        steps_per_epoch=math.ceil(1.0 / rate - 1e-9),
    )
