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
from tf_subjectdp.cli.inputs import figures, flag, note_cap_of_figures, refuse_both
from tf_subjectdp.planning import plan as make_plan
from tf_subjectdp.sampling import (
    FixedSize,
    PoissonItems,
    PoissonSubjects,
    Sampler,
    Shuffle,
    SiloStats,
    SubjectStats,
)

_DIRECT = ("q", "p")


@dataclasses.dataclass(frozen=True)
class Holder:
    """One silo, or the only holder of the data.

    Attributes:
      name: of the silo; None for the only one.
      facts: the public constants of its sampling.
      sampled: whether the sampling was said; the promise does not depend on it otherwise.
      k_known: whether k was said; the promise does not depend on it otherwise.
    """

    name: str | None
    facts: SamplingFacts
    sampled: bool = True
    k_known: bool = True

    def data(self) -> dict[str, Any]:
        """What is known of it, for `--json`."""
        return {
            "sampling": self.facts.scheme if self.sampled else "any",
            "rate": self.facts.rate if self.sampled else None,
            "k": self.facts.max_items if self.k_known else None,
        }


def scheme_of(arguments: argparse.Namespace, *, subjects_only: bool, anything: bool) -> str:
    """The sampling asked for, as `SamplingFacts.scheme`; UsageError for options that disagree.

    Args:
      arguments: q, p, batch, expected_subjects, sampling.
      subjects_only: whether the algorithm knows no sampling but that of subjects.
      anything: whether the promise does not depend on the sampling.
    """
    for name in ("q", "batch"):
        refuse_both(arguments, name, ("p", "expected_subjects"))
    refuse_both(arguments, "q", ("batch",))
    refuse_both(arguments, "p", ("expected_subjects",))
    by_items = _given(arguments, "q", "batch")
    by_subjects = _given(arguments, "p", "expected_subjects")
    sampling = getattr(arguments, "sampling", None)
    if sampling is None and by_items is None and by_subjects is None:
        if anything:
            return "any"
        options = (
            "--p, or --expected-subjects with --subjects"
            if subjects_only
            else ("--q, --p, --batch with --items, or --expected-subjects with --subjects")
        )
        raise UsageError(f"the sampling is missing: say {options}")
    if sampling is None:
        sampling = "poisson-subjects" if by_items is None else "poisson-items"
    if sampling == "poisson-subjects" and by_subjects is None:
        raise UsageError(
            "sampling poisson-subjects needs --p, or --expected-subjects with --subjects"
            + (f", not --{by_items}" if by_items else "")
        )
    if sampling != "poisson-subjects" and (by_items is None or by_subjects is not None):
        needed = (
            "--batch" if sampling in ("fixed-size", "shuffle") else "--q, or --batch with --items"
        )
        raise UsageError(
            f"sampling {sampling} needs {needed}"
            + (f", not {flag(by_subjects)}" if by_subjects else "")
        )
    if sampling in ("fixed-size", "shuffle") and getattr(arguments, "q", None) is not None:
        raise UsageError(f"sampling {sampling} has no rate of its own: say --batch and --items")
    if subjects_only and sampling != "poisson-subjects":
        raise UsageError(
            "this algorithm samples subjects: say --p, or --expected-subjects with --subjects"
        )
    return sampling.replace("-", "_")


def _given(arguments: argparse.Namespace, *names: str) -> str | None:
    found = [name for name in names if getattr(arguments, name, None) is not None]
    return found[0] if found else None


def sampler_of(arguments: argparse.Namespace, scheme: str, cap: int | None) -> Sampler:
    """The sampler of --batch or --expected-subjects; the cap is the subjects' sampler's."""
    if scheme == "poisson_subjects":
        return PoissonSubjects(_plain(arguments.expected_subjects), max_items_per_subject=cap)
    if scheme == "poisson_items":
        return PoissonItems(_plain(arguments.batch))
    size = _plain(arguments.batch)
    if not isinstance(size, int):
        raise UsageError(f"--batch is {size}: a batch of a fixed size is a whole number of items")
    return FixedSize(size) if scheme == "fixed_size" else Shuffle(size)


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
    if stats is None:
        facts = _facts_of_figures(arguments, scheme, cap, needs_k)
        silos = arguments.silos or 1
        known = arguments.items_per_subject is not None or arguments.cap_data is not None
        return [
            Holder(str(i + 1) if silos > 1 else None, facts, scheme != "any", known)
            for i in range(silos)
        ]
    for name in _DIRECT:
        if getattr(arguments, name, None) is not None:
            size = "batch" if name == "q" else "expected_subjects"
            raise UsageError(f"--{name} and --ids contradict each other: say {flag(size)} instead")
    if scheme == "any":
        return [
            Holder(name, _facts("poisson_items", 1.0, silo.max_items, None, silo.n_items), False)
            for name, silo in each_silo(stats)
        ]
    holders = []
    for name, silo in each_silo(stats):
        try:
            holders.append(Holder(name, planned_facts(sampler_of(arguments, scheme, cap), silo)))
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


def planned_facts(sampler: Sampler, stats: SubjectStats) -> SamplingFacts:
    """The constants as a plan freezes them."""
    # Which algorithm and noise is of no account for the constants; UserLDP is proven everywhere.
    from tf_subjectdp.algorithms import UserLDP

    return make_plan(UserLDP(1.0), sampler, stats, steps=1, noise_multiplier=1.0).facts


def _facts_of_figures(
    arguments: argparse.Namespace, scheme: str, cap: int | None, needs_k: bool
) -> SamplingFacts:
    refuse_both(arguments, "items_per_subject", ("cap_data",))
    k = arguments.items_per_subject if arguments.cap_data is None else arguments.cap_data
    for name in ("items_per_subject", "cap_data", "items", "subjects"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"{flag(name)} is {value}: it must be at least 1")
    if k is None and (needs_k or cap is not None):
        raise UsageError(
            "--items-per-subject K (or --cap-data K, or --ids) is missing: the promise depends on "
            "the most items that one subject has"
        )
    if scheme == "any":
        return _facts("poisson_items", 1.0, k or 1, cap, k or 1, arguments)
    direct = _given(arguments, *_DIRECT)
    if direct is not None:
        counted = "items" if direct == "q" else "subjects"
        if getattr(arguments, counted) is not None:
            raise UsageError(
                f"--{direct} is a rate already: leave out --{counted}, or say --batch or "
                "--expected-subjects instead"
            )
        rate = getattr(arguments, direct)
        if not 0 < rate <= 1:
            raise UsageError(f"--{direct} is {rate:g}: a probability is above 0 and at most 1")
        return _facts(scheme, rate, k or 1, cap, k or 1, arguments)
    if arguments.subjects is not None and arguments.items is not None and k is not None:
        stats = figures(arguments)
        return planned_facts(sampler_of(arguments, scheme, cap), stats)
    note_cap_of_figures(arguments)
    counted = "subjects" if scheme == "poisson_subjects" else "items"
    number = getattr(arguments, counted)
    if number is None:
        size = "--expected-subjects" if counted == "subjects" else "--batch"
        raise UsageError(f"{size} needs --{counted} N, how many there are")
    if counted == "items" and k is not None and k > number:
        raise UsageError(f"--items-per-subject is {k}, above --items {number}")
    sampler = sampler_of(arguments, scheme, cap)
    facts = _facts(scheme, sampler.rate(number, number), k or 1, cap, number, arguments)
    return dataclasses.replace(facts, steps_per_epoch=sampler.steps_per_epoch(number, number))


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
