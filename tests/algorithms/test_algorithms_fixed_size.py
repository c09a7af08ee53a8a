# SPDX-License-Identifier: Apache-2.0
"""Batches of a fixed size by brute force: every batch of small tables, everybody at both extremes.

One coordinate is enough to reach the worst case: gradients are numbers, an algorithm's rule makes one
number of a batch, and a step releases it with Gaussian noise. Given the table it is a mixture of
Gaussians, one for each batch (and each dealing of its rows into parts); its hockey-stick divergences,
from every table to every neighbouring one and back, must not exceed the guarantee's delta.
"""

import functools
import itertools
import math

import numpy as np
import pytest

from tf_subjectdp import accounting
from tf_subjectdp.accounting import FixedSizeReplaceOneDpEvent, RevealedSensitivityDpEvent
from tf_subjectdp.algorithms import (
    BatchClipping,
    GroupDP,
    HiGradAvg,
    ItemDP,
    MixedClipping,
    SamplingFacts,
    SubjectDP,
    UserLDP,
)

SIGMA = 0.9
CLIPPED = (-1.0, 1.0)  # a row is clipped before anything else happens to it
RAW = (-10.0, -1.0, 1.0, 10.0)  # a mean of rows is clipped
EPSILONS = np.array([0.0, 0.05, 0.2, 0.6, 1.2, 2.0, 3.5, 5.0, 8.0])


def clip(value):
    return max(-1.0, min(1.0, value))


def sums(rows):
    return [sum(clip(g) for _, g in rows)]


def of_subjects(rows, combine):
    return [sum(combine([g for s, g in rows if s == one]) for one in {s for s, _ in rows})]


def averages(rows):
    return of_subjects(rows, lambda part: np.mean([clip(g) for g in part]))


def clipped_averages(rows):
    return of_subjects(rows, lambda part: clip(np.mean(part)))


def batches(rows):
    return [clip(np.mean([g for _, g in rows]))]


def two_parts(rows):
    return [
        sum(clip(np.mean(part)) for part in parts if part)
        for dealt in itertools.product((0, 1), repeat=len(rows))
        for parts in [
            [[g for (_, g), p in zip(rows, dealt, strict=True) if p == i] for i in (0, 1)]
        ]
    ]


@functools.lru_cache
def neighbours(subjects, batch, rule, unit, levels):
    """Pairs of laws, before and after the rows `unit` are replaced: equally likely means."""

    def law(values):
        draws = itertools.combinations(zip(subjects, values, strict=True), batch)
        return np.concatenate([rule(rows) for rows in draws])

    rest = [i for i in range(len(subjects)) if i not in unit]
    order = np.argsort([*unit, *rest])
    found = set()
    for others in itertools.product(levels, repeat=len(rest)):
        laws = [
            law([(*mine, *others)[i] for i in order])
            for mine in itertools.product(levels, repeat=len(unit))
        ]
        for p, q in itertools.permutations(laws, 2):
            # Neither where the means lie nor the order of the batches matters.
            low = min(p.min(), q.min())
            found.add(tuple(tuple(np.sort(np.round(one - low, 9))) for one in (p, q)))
    return sorted(pair for pair in found if pair[0] != pair[1])


def densities(pair, noise, points):
    """P and Q on a grid of outcomes, times its spacing."""
    x = np.linspace(min(map(min, pair)) - 9 * noise, max(map(max, pair)) + 9 * noise, points)
    scale = (x[1] - x[0]) / (noise * math.sqrt(2 * math.pi))
    return [
        scale * np.exp(-0.5 * ((x[:, None] - np.array(means)) / noise) ** 2).mean(axis=1)
        for means in pair
    ]


def worst_of_one(pairs, noise):
    """The largest divergence of any pair, at every epsilon."""
    worst = np.zeros(len(EPSILONS))
    for pair in pairs:
        p, q = densities(pair, noise, 3001)
        gain = p[:, None] - np.exp(EPSILONS) * q[:, None]
        worst = np.maximum(worst, np.maximum(gain, 0.0).sum(axis=0))
    return worst


def worst_of_two(pairs, noise):
    """The same for two steps, any pair after any: the others' rows may change from step to step."""
    tables = [densities(pair, noise, 241) for pair in pairs]
    worst = np.zeros(len(EPSILONS))
    for (p, q), (r, s) in itertools.combinations_with_replacement(tables, 2):
        both, other = np.multiply.outer(p, r), np.multiply.outer(q, s)
        for i, epsilon in enumerate(EPSILONS):
            worst[i] = max(worst[i], np.maximum(both - math.exp(epsilon) * other, 0.0).sum())
    return worst


def facts(subjects, batch):
    counts = np.bincount(subjects)
    return SamplingFacts(
        scheme="fixed_size",
        rate=batch / len(subjects),
        n_items=len(subjects),
        n_subjects=len(counts),
        batch_size=float(batch),
        expected_subjects=1.0,
        max_items=int(counts.max()),
    )


def deltas(event, steps=1):
    return np.array([accounting.delta(event, steps, epsilon=e) for e in EPSILONS])


ALONE = (0, 1, 2, 3, 4, 5)
# name: (algorithm, its rule, levels of a row, whose the rows are, batch, unit, is it reached)
AMPLIFIED = {
    "ItemDP, item": (ItemDP(1.0), sums, CLIPPED, (0, 0, 1, 1, 2, 2), 2, "item", True),
    "ItemDP, large batch": (ItemDP(1.0), sums, CLIPPED, ALONE, 5, "item", True),
    "ItemDP, subject of one": (ItemDP(1.0), sums, CLIPPED, ALONE, 3, "subject", True),
    "GroupDP, item": (GroupDP(1.0), sums, CLIPPED, (0, 0, 1, 1, 2, 2), 2, "item", True),
    "GroupDP, subject of one": (GroupDP(1.0), sums, CLIPPED, ALONE, 2, "subject", True),
    "HiGradAvg, item of three": (
        HiGradAvg(1.0),
        averages,
        CLIPPED,
        (0, 0, 0, 1, 1, 2),
        3,
        "item",
        False,
    ),
    "HiGradAvg, others' items": (
        HiGradAvg(1.0),
        averages,
        CLIPPED,
        (0, 1, 1, 1, 2, 2),
        2,
        "item",
        False,
    ),
    "HiGradAvg, subject of one": (HiGradAvg(1.0), averages, CLIPPED, ALONE, 2, "subject", True),
    "SubjectDP, item of one": (
        SubjectDP(1.0),
        clipped_averages,
        RAW,
        ALONE[:5],
        2,
        "item",
        True,
    ),
    "SubjectDP, subject of one": (
        SubjectDP(1.0),
        clipped_averages,
        RAW,
        ALONE[:4],
        3,
        "subject",
        True,
    ),
    "UserLDP, item": (UserLDP(1.0), batches, RAW, (0, 0, 1, 1, 2), 2, "item", True),
    "UserLDP, subject of two": (UserLDP(1.0), batches, RAW, (0, 0, 1, 1, 2), 2, "subject", True),
    "UserLDP, subject of three": (
        UserLDP(1.0),
        batches,
        RAW,
        (0, 0, 0, 1, 1),
        2,
        "subject",
        True,
    ),
    "BatchClipping, subject of two": (
        BatchClipping(1.0),
        batches,
        RAW,
        (0, 0, 1, 2, 2),
        2,
        "subject",
        True,
    ),
    "MixedClipping, one part": (
        MixedClipping(1.0, parts=1),
        batches,
        RAW,
        (0, 0, 1, 1, 1),
        3,
        "item",
        True,
    ),
    "MixedClipping, item": (
        MixedClipping(1.0, parts=2),
        two_parts,
        RAW,
        (0, 0, 1, 1),
        2,
        "item",
        False,
    ),
    "MixedClipping, subject of one": (
        MixedClipping(1.0, parts=2),
        two_parts,
        RAW,
        ALONE[:4],
        3,
        "subject",
        False,
    ),
}


@pytest.mark.parametrize("name", AMPLIFIED)
def test_no_table_of_the_amplified_cases_is_less_private_than_stated(name):
    algorithm, rule, levels, subjects, batch, unit, reached = AMPLIFIED[name]
    of = facts(subjects, batch)
    promise = getattr(algorithm, f"{unit}_guarantee")(of, SIGMA)
    event = promise.events[0]
    assert isinstance(event, FixedSizeReplaceOneDpEvent)
    assert unit in promise.adjacency and promise.adjacency.startswith("replacing")
    rows = (0,) if unit == "item" else tuple(i for i, s in enumerate(subjects) if s == 0)
    assert event.rows == len(rows)
    pairs = neighbours(subjects, batch, rule, rows, levels)
    noise = algorithm.noise_stddev(SIGMA)
    stated, true = deltas(event), worst_of_one(pairs, noise)
    assert np.all(true <= stated + 2e-6)
    if reached:  # by others who all stand at the other end
        assert np.all(true >= 0.995 * stated - 1e-8)
    if len(pairs) <= 12:
        assert np.all(worst_of_two(pairs, noise) <= deltas(event, 2) + 1e-6)


@pytest.mark.parametrize(
    ("algorithm", "rule", "levels", "subjects", "batch", "unit", "rows", "sigma"),
    [
        # Another's clipped average turns round when a row of theirs takes this one's place.
        (SubjectDP(1.0), clipped_averages, RAW, (0, 1, 1, 1, 1), 2, "item", 1, 1.5),
        # Two rows in a batch move its sum by 4 C.
        (ItemDP(1.0), sums, CLIPPED, (0, 0, 1, 1, 2), 2, "subject", 2, SIGMA),
        (GroupDP(1.0), sums, CLIPPED, (0, 0, 1, 1, 2), 2, "subject", 2, SIGMA),
        (SubjectDP(1.0), clipped_averages, RAW, (0, 0, 1, 1, 1), 2, "subject", 2, 2.0),
        (MixedClipping(1.0, parts=2), two_parts, RAW, (0, 0, 1, 1), 2, "subject", 2, SIGMA),
    ],
)
def test_where_presence_does_not_amplify_it_is_taken_as_known(
    algorithm, rule, levels, subjects, batch, unit, rows, sigma
):
    promise = getattr(algorithm, f"{unit}_guarantee")(facts(subjects, batch), sigma)
    (event,) = promise.events
    assert isinstance(event, RevealedSensitivityDpEvent)
    noise = algorithm.noise_stddev(sigma)
    true = worst_of_one(neighbours(subjects, batch, rule, tuple(range(rows)), levels), noise)
    assert np.all(true <= deltas(event) + 2e-6)
    wrong = deltas(accounting.fixed_size_event(len(subjects), batch, noise, rows))
    assert np.any(true > 1.2 * wrong + 1e-9)


def test_a_cap_within_a_batch_takes_presence_as_known():
    of = facts((0, 0, 1, 1, 2), 3)
    promise = GroupDP(1.0, max_items_per_subject=1).item_guarantee(of, SIGMA)
    assert isinstance(promise.events[0], RevealedSensitivityDpEvent)
