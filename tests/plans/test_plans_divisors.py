# SPDX-License-Identifier: Apache-2.0
"""What a noised sum is divided by, as the README says it for each algorithm and sampling."""

import numpy as np
import pytest

import tf_subjectdp as sdp

SIZES = np.array([1, 2, 5, 9, 3])
IDS = np.repeat(np.arange(5), SIZES)
ELEMENTS = np.concatenate([np.arange(n) % 4 for n in SIZES])
STATS = sdp.SubjectStats.from_ids(IDS, ELEMENTS)
PAIRS = len(set(zip(IDS.tolist(), ELEMENTS.tolist(), strict=True)))


def people(rate):
    """How many have a row in a batch on average, rows drawn at this rate."""
    return float((1.0 - (1.0 - rate) ** SIZES).sum())


# sampling -> (rows, people) of a step.
STEPS = {
    sdp.PoissonItems(8): (8.0, people(8 / 20)),
    sdp.FixedSize(8): (8.0, people(8 / 20)),
    sdp.Shuffle(8): (8.0, people(8 / 20)),  # 8, 8 and 4 rows
    sdp.Shuffle(8, keep_probability=0.5): (8.0, people(8 / 20)),
    sdp.PoissonSubjects(2): (2 * SIZES.mean(), 2.0),
    sdp.PoissonSubjects(2, max_items_per_subject=3): (2 * np.minimum(SIZES, 3).mean(), 2.0),
}
BY_ROWS = (sdp.HiGradAvg(1.0), sdp.GroupDP(1.0, max_items_per_subject=2), sdp.ItemDP(1.0))
BY_PEOPLE = (sdp.HiGradAvg(1.0, normalization="expected_subjects"), sdp.SubjectDP(1.0))


def divisor(algorithm, sampling):
    return sdp.plan(algorithm, sampling, STATS, steps=2, noise_multiplier=1.0).divisor


@pytest.mark.parametrize("sampling", STEPS, ids=str)
def test_rows_and_people_of_a_step(sampling):
    rows, subjects = STEPS[sampling]
    for algorithm in BY_ROWS:
        assert divisor(algorithm, sampling) == pytest.approx(rows, rel=1e-9)
    for algorithm in BY_PEOPLE:
        assert divisor(algorithm, sampling) == pytest.approx(subjects, rel=1e-9)
    assert divisor(sdp.UserLDP(1.0), sampling) == 1.0


def test_elements_are_divided_by_people():
    element = sdp.ElementDP(1.0, max_elements=4)
    assert divisor(element, sdp.PoissonElements(6)) == pytest.approx(5 * 6 / PAIRS)
    assert divisor(element, sdp.PoissonSubjects(2)) == pytest.approx(2)
    assert divisor(element, sdp.PoissonItems(8)) == pytest.approx(people(8 / 20))


def test_clipped_parts_are_divided_by_their_number():
    for sampling in (sdp.PoissonItems(8), sdp.FixedSize(8), sdp.Shuffle(8)):
        assert divisor(sdp.BatchClipping(1.0), sampling) == 1.0
        assert divisor(sdp.MixedClipping(1.0, parts=3), sampling) == 3.0


_EVEN, _UNEVEN = (sdp.SubjectStats.from_counts(c) for c in ([4, 2, 2, 2, 2], [4, 4, 2, 1, 1]))


@pytest.mark.parametrize(
    "algorithm, sampling, divides",
    [
        (sdp.ItemDP(1.0), sdp.PoissonItems(3), False),
        (sdp.HiGradAvg(1.0), sdp.PoissonItems(3), False),
        (sdp.HiGradAvg(1.0), sdp.FixedSize(3), False),
        (sdp.UserLDP(1.0), sdp.Shuffle(3), False),
        (sdp.SubjectDP(1.0), sdp.PoissonSubjects(2, max_items_per_subject=3), False),
        (sdp.SubjectDP(1.0), sdp.PoissonItems(3), True),
        (sdp.HiGradAvg(1.0, normalization="expected_subjects"), sdp.PoissonItems(3), True),
        (sdp.HiGradAvg(1.0), sdp.PoissonSubjects(2, max_items_per_subject=3), True),
    ],
)
def test_sums_over_everybodys_counts_are_saved_and_named_only_where_they_divide(
    algorithm, sampling, divides
):
    options = {"steps": 2, "noise_multiplier": 1.0, "delta": 1e-2}
    plans = [sdp.plan(algorithm, sampling, stats, **options) for stats in (_EVEN, _UNEVEN)]
    assert (plans[0].get_config() != plans[1].get_config()) is divides
    silos = [
        sdp.federated.plan(
            algorithm,
            sampling,
            sdp.SiloStats.from_counts(stats.counts[:, None]),
            rounds=2,
            noise_multiplier=1.0,
            delta=1e-2,
        )
        for stats in (_EVEN, _UNEVEN)
        if not isinstance(sampling, sdp.Shuffle)
    ]
    if silos:
        assert (silos[0].text != silos[1].text) is divides
    for plan in [*plans, *silos]:
        text = " ".join(plan.statement().split())
        assert ("the divisor, a sum over everybody's counts of rows" in text) is divides
    public = sdp.SubjectStats.public(n_items=12, n_subjects=5, max_items=4)
    text = " ".join(sdp.plan(algorithm, sampling, public, **options).statement().split())
    assert "everybody's counts" not in text
