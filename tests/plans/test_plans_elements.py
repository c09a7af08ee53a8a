# SPDX-License-Identifier: Apache-2.0
"""Plans and data sets of elements: bounds, draws, refusals, and both promises."""

import json

import numpy as np
import pytest

import tf_subjectdp as sdp
from tf_subjectdp import accounting
from tf_subjectdp.sampling import ElementStats
from tf_subjectdp.sampling.pairs import bound_elements, pair_codes

FALSE_ALARM = 1e-6
RNG = np.random.default_rng(5)
N = 400
SUBJECT = RNG.integers(0, 20, N)
ELEMENT = RNG.choice(["tea", "rum", "ale", "gin", "mead"], N, p=[0.4, 0.3, 0.15, 0.1, 0.05])
PAIRS = {(s, e) for s, e in zip(SUBJECT.tolist(), ELEMENT.tolist(), strict=True)}
STATS = sdp.SubjectStats.from_ids(SUBJECT, ELEMENT)
ROWS = np.arange(N, dtype=np.float32)[:, None]


def make(algorithm=None, sampling=None, stats=STATS, **options):
    options = {"steps": 30, "noise_multiplier": 2.0, "delta": 1e-5, **options}
    sampling = sampling or sdp.PoissonElements(20)
    return sdp.plan(algorithm or sdp.ElementDP(0.5), sampling, stats, **options)


def batches(plan, element=ELEMENT):
    for x, _, extras in plan.dataset(ROWS, ROWS, SUBJECT, element):
        rows = x.numpy()[:, 0].astype(int)[extras["mask"].numpy()]
        yield rows, {key: value.numpy() for key, value in extras.items()}


def test_stats_count_the_elements_of_each_subject():
    by_subject = [sum(s == a for a, _ in PAIRS) for s in range(20)]
    of_pair = [((SUBJECT == s) & (ELEMENT == e)).sum() for s, e in PAIRS]
    assert STATS.elements == ElementStats(len(PAIRS), max(by_subject), max(of_pair))
    assert "elements" in str(STATS)
    assert sdp.SubjectStats.from_ids(SUBJECT).elements is None
    again = sdp.SubjectStats.from_config(json.loads(json.dumps(STATS.get_config())))
    assert again == STATS


def test_sampled_elements_come_whole_and_at_their_rate():
    """Presence of each of the ~100 elements over 300 steps: chi^2 of all, false alarm 1e-6."""
    plan = make(steps=300)
    rate = 20 / len(PAIRS)
    assert plan.facts.rate == rate
    seen = dict.fromkeys(PAIRS, 0)
    for rows, extras in batches(plan):
        present = {(SUBJECT[r], ELEMENT[r]) for r in rows}
        expected = [r for r in range(N) if (SUBJECT[r], ELEMENT[r]) in present]
        assert sorted(rows.tolist()) == expected
        codes = extras["element"][extras["mask"]]
        assert (np.sort(codes) == codes).all()  # what is clipped together lies together
        assert len(set(codes.tolist())) == len(present)
        for pair in present:
            seen[pair] += 1
    from scipy import stats

    counts = np.array(list(seen.values()))
    square = ((counts - 300 * rate) ** 2).sum() / (300 * rate * (1 - rate))
    low, high = stats.chi2(len(PAIRS)).ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2])
    assert low < square < high


def test_bounds_on_elements_and_their_items_are_enforced():
    plan = make(
        sdp.ElementDP(0.5, max_elements=2, max_items_per_element=3),
        sdp.PoissonSubjects(20),
        steps=2,
    )
    first, second = (rows for rows, _ in batches(plan))
    np.testing.assert_array_equal(np.sort(first), np.sort(second))  # one choice a data set
    for s in range(20):
        mine = first[SUBJECT[first] == s]
        names, sizes = np.unique(ELEMENT[mine], return_counts=True)
        assert len(names) == 2 and sizes.max() <= 3
        whole = {e: ((SUBJECT == s) & (ELEMENT == e)).sum() for e in names}
        assert all(size == min(3, whole[e]) for e, size in zip(names, sizes, strict=True))
    other = next(batches(plan))[0]
    assert sorted(other.tolist()) != sorted(first.tolist())


def test_which_elements_stay_does_not_depend_on_their_sizes():
    """One subject with 5 elements of 1 to 500 items, bound 2: each stays in 2 of 5 of 4,000 draws.

    Binomial deviation 0.0077; the bound of 0.041 is 5.3 of these: false alarm 1e-6 for all five.
    """
    elements = np.repeat(np.arange(5), [1, 3, 10, 50, 500])
    pairs, owners = pair_codes(np.zeros(len(elements), np.int64), elements)
    stays, rng = np.zeros(5), np.random.default_rng(0)
    for _ in range(4000):
        kept = bound_elements(pairs, owners, 2, None, rng)
        names = np.unique(elements[kept])
        assert len(names) == 2 and len(kept) == np.isin(elements, names).sum()
        stays[names] += 1
    assert np.abs(stays / 4000 - 0.4).max() < 0.041
    assert bound_elements(pairs, owners, 5, 500, rng) is None


def test_one_run_promises_to_elements_and_to_subjects():
    plan = make(sdp.ElementDP(0.5, max_elements=4))
    rate = plan.facts.rate
    assert plan.unit == "element" and "one element of a subject" in str(plan)
    element = accounting.epsilon(accounting.replace_one_event(rate, 2.0), 30, delta=1e-5)
    subject = accounting.epsilon(accounting.group_event(rate, 4, 2.0), 30, delta=1e-5)
    assert plan.epsilon() == plan.epsilon(unit="element") == pytest.approx(element, rel=1e-6)
    assert plan.epsilon(unit="subject") == pytest.approx(subject, rel=1e-6)
    text = plan.statement().replace("\n", " ")
    for unit in ("element", "subject", "item"):
        assert f"Per {unit}: epsilon = " in text
    assert "Elements a subject: at most 4" in text and "an element's rate r =" in text
    again = sdp.Plan.from_config(json.loads(json.dumps(plan.get_config())))
    assert again == plan


def test_noise_is_found_for_either_unit():
    of_element = make(noise_multiplier=None, epsilon=2.0)
    assert 1.99 < of_element.epsilon(unit="element") <= 2.0
    bounded = sdp.ElementDP(0.5, max_elements=4)
    of_subject = make(bounded, noise_multiplier=None, epsilon=2.0, unit="subject")
    assert 1.99 < of_subject.epsilon() <= 2.0
    assert of_subject.noise_multiplier > of_element.noise_multiplier


def test_the_divisor_makes_every_sampling_the_same_step_on_average():
    by_element = make(sampling=sdp.PoissonElements(0.5 * len(PAIRS)))
    by_subject = make(sampling=sdp.PoissonSubjects(10))
    assert by_element.divisor == by_subject.divisor == 10.0


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: make().dataset(ROWS, ROWS, SUBJECT), "element_id is missing"),
        (lambda: make().dataset(ROWS, ROWS, SUBJECT, ELEMENT[:-1]), "element_id has 399 rows"),
        (
            lambda: make().dataset(ROWS, ROWS, SUBJECT, ["tea", None] * 200),
            "element_id: row 1 has no element id",
        ),
        (
            lambda: make(sdp.SubjectDP(1.0), sdp.PoissonSubjects(5)).dataset(
                ROWS, ROWS, SUBJECT, ELEMENT
            ),
            "plan with ElementDP",
        ),
        (
            lambda: make(stats=sdp.SubjectStats.from_ids(SUBJECT)),
            "from_ids\\(subject_id, element_id",
        ),
        (lambda: make(sdp.HiGradAvg(1.0)), "no proven guarantee"),
        (lambda: make(sdp.HiGradAvg(1.0), unit="element"), "knows no elements"),
        (lambda: make(unit="word"), "unit='word' is unknown"),
        (lambda: make(max_items_per_subject=3), "max_items_per_element"),
        (lambda: make(unit="subject"), "max_elements=M"),
        (lambda: make(sampling=sdp.PoissonElements(10**6)), "batch above the data"),
        (
            lambda: make(sampling=sdp.PoissonItems(50)).dataset(
                ROWS, ROWS, SUBJECT, np.repeat("tea", N)
            ),
            "an element has .* items of one subject",
        ),
    ],
)
def test_what_would_break_the_promise_is_refused(call, match):
    with pytest.raises((ValueError, TypeError), match=match):
        call()


def test_a_filtered_shuffle_deals_each_row_at_most_once_an_epoch_in_a_fixed_number_of_steps():
    """Kept rows of 40 epochs: binomial(16000, 0.5), 5.3 deviations, false alarm 1e-7."""
    stats = sdp.SubjectStats.from_ids(SUBJECT)
    sampling = sdp.Shuffle(32, keep_probability=0.5)
    plan = sdp.plan(
        sdp.BatchClipping(1.0), sampling, stats, epochs=40, noise_multiplier=2.0, delta=1e-5
    )
    assert plan.steps_per_epoch == 7 and plan.steps == 280
    drawn = [
        x.numpy()[extras["mask"].numpy(), 0].astype(int)
        for x, _, extras in plan.dataset(ROWS, ROWS, SUBJECT)
    ]
    kept = 0
    for epoch in range(40):
        rows = np.concatenate(drawn[7 * epoch : 7 * epoch + 7])
        assert len(set(rows.tolist())) == len(rows) and max(map(len, drawn)) <= 32
        kept += len(rows)
    assert abs(kept - 8000) < 5.3 * (16000 / 4) ** 0.5
    # What is counted is an item in one batch an epoch, and no gain from the filter.
    whole = sdp.plan(
        sdp.BatchClipping(1.0), sdp.Shuffle(32), stats, epochs=40, noise_multiplier=2.0, delta=1e-5
    )
    assert plan.epsilon(unit="item") == pytest.approx(whole.epsilon(unit="item"), rel=1e-9)
    for bad in (0.0, 1.5, -1.0):
        with pytest.raises(ValueError, match="keep_probability"):
            sdp.Shuffle(32, keep_probability=bad)


def test_data_drawn_without_a_bound_do_not_serve_a_plan_that_has_one():
    """Everything but the bounds on elements is the same: the batches still are not."""
    free, bounded = (make(sdp.ElementDP(0.5, **bounds)) for bounds in ({}, {"max_elements": 1}))
    items = make(sdp.ElementDP(0.5, max_items_per_element=2))
    assert len({plan.fingerprint for plan in (free, bounded, items)}) == 3
    again = make(sdp.ElementDP(0.7, max_elements=1))
    assert again.fingerprint == bounded.fingerprint


def test_a_bound_above_the_largest_counted_element_counts_as_what_it_allows():
    stats = sdp.SubjectStats.public(
        n_items=N, n_subjects=20, max_items=40, elements=ElementStats(100, 5, 1)
    )
    plan = make(
        sdp.ElementDP(0.5, max_elements=4, max_items_per_element=10), sdp.PoissonItems(40), stats
    )
    rate = 1 - (1 - plan.facts.rate) ** 10
    expected = accounting.epsilon(accounting.replace_one_event(rate, 2.0), 30, delta=1e-5)
    assert plan.epsilon() == pytest.approx(expected, rel=1e-9)


def test_pandas_columns_of_unlike_index_are_refused_when_counted():
    pd = pytest.importorskip("pandas")
    subject, element = pd.Series(SUBJECT), pd.Series(ELEMENT, index=np.arange(N)[::-1])
    with pytest.raises(ValueError, match="unlike indexes"):
        sdp.SubjectStats.from_ids(subject, element)


def test_the_statement_recommends_bounds_that_an_elements_promise_allows():
    text = make().statement().replace("\n", " ")
    assert "(max_elements, max_items_per_element) would not be" in text
    assert "number of elements and items an element" in text
    assert "the user's word: it must be public, or be paid for" in text
    from tf_subjectdp.elements import HashElements

    named = make(sdp.ElementDP(0.5, elements=HashElements(7)))
    assert HashElements(7).provenance in named.statement().replace("\n", " ")
    assert sdp.Plan.from_config(json.loads(json.dumps(named.get_config()))) == named
