# SPDX-License-Identifier: Apache-2.0
"""ElementDP: the step against equations (6) and (8), how far an element moves it, and its promises.

The model is linear, so that the gradient of a row IS the row and can be dictated.
"""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_subjectdp as sdp
from tf_subjectdp import accounting
from tf_subjectdp.algorithms import ElementDP, SamplingFacts, SubjectDP, algorithm_from_config
from tf_subjectdp.clipping import clipped_sum

RHO, WIDTH, SIGMA, P, K = 0.7, 4, 3.0, 0.1, 6
WEIGHTS = tf.Variable(np.zeros(WIDTH, np.float32))
PLAIN = ElementDP(RHO)
BOUNDED = ElementDP(RHO, max_elements=4)


def facts(scheme, **changes):
    return SamplingFacts(
        scheme=scheme,
        rate=P,
        n_items=300,
        n_subjects=60,
        batch_size=30.0,
        expected_subjects=6.0,
        max_items=K,
        **changes,
    )


@functools.cache
def _run(strategy):
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, WIDTH], tf.float32),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.bool),
        ]
    )
    def run(rows, subject, element, mask):
        partition = PLAIN.partition(subject, mask, element)
        return clipped_sum(
            lambda r: (tf.linalg.matvec(r, WEIGHTS), ()),
            [WEIGHTS],
            rows,
            partition,
            RHO,
            strategy=strategy,
        ).total[0]

    return run


def total(rows, subject, element, mask=None, strategy="vectorized"):
    mask = np.ones(len(subject), bool) if mask is None else mask
    rows = np.asarray(rows, np.float32).reshape(-1, WIDTH)
    given = (np.asarray(ids, np.int64) for ids in (subject, element))
    return _run(strategy)(rows, *given, mask).numpy().astype(np.float64)


def clip(g):
    return g / max(1.0, np.linalg.norm(g) / RHO)


def oracle(rows, subject, element):
    """Equations (6) and (8): the sum over subjects and their elements of clipped means."""
    result = np.zeros(WIDTH)
    for u in set(subject.tolist()):
        for e in set(element[subject == u].tolist()):
            result += clip(rows[(subject == u) & (element == e)].mean(axis=0))
    return result


@pytest.mark.parametrize("strategy", ["vectorized", "loop"])
def test_the_sum_is_that_of_the_paper(strategy):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, WIDTH)) * rng.choice([0.1, 3.0], size=(40, 1))
    # Names that only a product of both would confuse: element 7 of one subject is not that of another.
    subject, element = rng.choice([3, -5, 2**40], 40), rng.choice([7, 0, -(2**50), 9], 40)
    mask = rng.random(40) < 0.8
    found = total(rows, subject, element, mask, strategy)
    expected = oracle(rows[mask], subject[mask], element[mask])
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_ids_may_be_strings_and_an_empty_batch_is_nothing():
    rows = np.array([[3.0, 0, 0, 0], [0, 4.0, 0, 0], [0, 0, 0.2, 0]], np.float32)
    partition = PLAIN.partition(
        tf.constant(["a", "a", "b"]), tf.constant([True] * 3), tf.constant(["x", "y", "x"])
    )
    assert partition.group.numpy().tolist() == [0, 1, 2]
    assert not total(rows[:0], [], []).any()


def test_one_element_a_subject_is_subject_dp():
    rng = np.random.default_rng(1)
    subject = rng.integers(0, 5, 30)
    ones = tf.ones([30], tf.bool)
    same = SubjectDP(RHO).partition(tf.constant(subject), ones)
    found = PLAIN.partition(tf.constant(subject), ones, tf.zeros([30], tf.int64))
    for part, other in zip(found[:3], same[:3], strict=True):
        np.testing.assert_array_equal(part, other)
    assert found.linear == same.linear
    of = facts("poisson_subjects")
    bounded = dataclasses.replace(PLAIN, max_elements=1)
    assert bounded.subject_guarantee(of, SIGMA).events == (
        SubjectDP(RHO).subject_guarantee(of, SIGMA).events
    )
    assert bounded.divisor(of) == SubjectDP(RHO).divisor(of) == of.expected_subjects


KINDS = st.sampled_from(["random", "aligned", "opposite", "huge", "tiny", "zero", "not finite"])


def gradients(kind, count, rng):
    line = np.zeros((count, WIDTH))
    line[:, 0] = 5.0
    return {
        "random": lambda: rng.normal(size=(count, WIDTH)),
        "aligned": lambda: line,
        "opposite": lambda: -line,
        "huge": lambda: 1e25 * rng.normal(size=(count, WIDTH)),
        "tiny": lambda: 1e-20 * rng.normal(size=(count, WIDTH)),
        "zero": lambda: 0.0 * line,
        "not finite": lambda: np.full((count, WIDTH), np.nan),
    }[kind]()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), KINDS, KINDS, st.integers(0, 5), st.integers(0, 5))
def test_an_element_moves_the_sum_by_two_clip_norms_and_a_subject_by_its_elements(
    seed, before, after, count, other_count
):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(12, WIDTH)) * 3.0
    subject, element = rng.integers(0, 4, 12), rng.integers(0, 3, 12)
    keep = ~((subject == 0) & (element == 0))  # the element that changes
    rows, subject, element = rows[keep], subject[keep], element[keep]

    def with_element(kind, number):
        if number == 0:
            return total(rows, subject, element)
        extra = gradients(kind, number, rng)
        zeros = np.zeros(number, np.int64)
        return total(
            np.concatenate([rows, extra]),
            np.concatenate([subject, zeros]),
            np.concatenate([element, zeros]),
        )

    none = total(rows, subject, element)
    one, two = with_element(before, count), with_element(after, other_count)
    assert np.linalg.norm(one - none) <= RHO * (1 + 1e-5)
    assert np.linalg.norm(one - two) <= 2 * RHO * (1 + 1e-5)
    gone = subject != 1
    elements = len(set(element[~gone].tolist()))
    without = total(rows[gone], subject[gone], element[gone])
    assert np.linalg.norm(none - without) <= elements * RHO * (1 + 1e-5)


# -- promises --------------------------------------------------------------------------------------


def events(guarantee):
    return [accounting.epsilon(event, 10, delta=1e-5) for event in guarantee.events]


def figures(*found):
    return [accounting.epsilon(event, 10, delta=1e-5) for event in found]


PRESENT = 1 - (1 - P) ** K

TABLE = {
    ("poisson_subjects", "element"): [
        accounting.element_event(P, SIGMA),
        accounting.replace_one_event(P, SIGMA / 4),
    ],
    ("poisson_subjects", "subject"): [accounting.element_subject_event(P, SIGMA, 4)],
    ("poisson_elements", "element"): [accounting.replace_one_event(P, SIGMA)],
    ("poisson_elements", "subject"): [accounting.group_event(P, 4, SIGMA)],
    ("poisson_items", "element"): [accounting.replace_one_event(PRESENT, SIGMA)],
    ("poisson_items", "subject"): [
        accounting.group_event(PRESENT, 4, SIGMA),
        accounting.group_event(P, K, SIGMA, 4),
    ],
}


@pytest.mark.parametrize(("scheme", "unit"), TABLE)
def test_every_sampling_has_the_event_of_its_proof(scheme, unit):
    rule = getattr(BOUNDED, f"{unit}_guarantee")
    found = rule(facts(scheme), SIGMA)
    assert found.unit == unit
    assert events(found) == pytest.approx(figures(*TABLE[scheme, unit]), rel=1e-9)


@pytest.mark.parametrize("scheme", ["poisson_subjects", "poisson_elements", "poisson_items"])
def test_an_item_is_protected_as_its_element(scheme):
    of = facts(scheme)
    item = BOUNDED.item_guarantee(of, SIGMA)
    assert item.unit == "item" and "item" in item.adjacency
    assert events(item) == events(BOUNDED.element_guarantee(of, SIGMA))


def test_an_item_that_cannot_displace_an_element_is_amplified_by_its_own_coin():
    found = events(PLAIN.item_guarantee(facts("poisson_items"), SIGMA))
    assert found[0] == pytest.approx(figures(accounting.item_event(P, SIGMA / 2))[0])
    capped = events(
        ElementDP(RHO, max_items_per_element=K).item_guarantee(facts("poisson_items"), SIGMA)
    )
    assert capped[0] == pytest.approx(figures(accounting.replace_one_event(P, SIGMA / 2))[0])


def test_the_items_of_an_element_bound_its_presence():
    for of, algorithm, items in (
        (facts("poisson_items", max_element_items=2), PLAIN, 2),
        (facts("poisson_items"), ElementDP(RHO, max_items_per_element=3), 3),
        (facts("poisson_items", max_element_items=9), PLAIN, K),
    ):
        rate = 1 - (1 - P) ** items
        expected = figures(accounting.replace_one_event(rate, SIGMA))
        assert events(algorithm.element_guarantee(of, SIGMA)) == pytest.approx(expected)


@pytest.mark.parametrize("scheme", ["poisson_subjects", "poisson_elements", "poisson_items"])
def test_without_a_bound_nothing_is_promised_to_a_subject(scheme):
    with pytest.raises(ValueError, match="max_elements=M"):
        PLAIN.subject_guarantee(facts(scheme), SIGMA)


@pytest.mark.parametrize("scheme", ["fixed_size", "shuffle"])
@pytest.mark.parametrize("unit", ["element", "subject", "item"])
def test_batches_of_a_fixed_size_are_refused(scheme, unit):
    with pytest.raises(ValueError, match="no proven guarantee"):
        getattr(BOUNDED, f"{unit}_guarantee")(facts(scheme), SIGMA)


@pytest.mark.parametrize("changes", [{"data_cap": True}, {"step_cap": 3}])
@pytest.mark.parametrize("unit", ["element", "item"])
def test_a_cap_on_a_subjects_items_breaks_the_promise_to_an_element(changes, unit):
    with pytest.raises(ValueError, match="max_items_per_element"):
        getattr(BOUNDED, f"{unit}_guarantee")(facts("poisson_subjects", **changes), SIGMA)
    BOUNDED.subject_guarantee(facts("poisson_subjects", **changes), SIGMA)


def test_a_cap_on_items_really_would_let_one_element_move_others():
    """Why: one more item of element 0 takes the places of other elements' items."""
    rows = np.eye(WIDTH)[[0, 1, 2, 3]] * 5.0
    full = total(rows[:3], [0] * 3, [1, 2, 3])
    displaced = total(rows[[3, 3, 3]], [0] * 3, [0, 0, 0])
    assert np.linalg.norm(full - displaced) == pytest.approx(2 * RHO, rel=1e-6)
    assert np.linalg.norm(total(rows[:3], [0] * 3, [1, 2, 3])) == pytest.approx(3**0.5 * RHO)
    line = np.tile(rows[:1], (3, 1))
    aligned = total(line, [0] * 3, [1, 2, 3])
    assert np.linalg.norm(aligned - total(-line, [0] * 3, [0, 0, 0])) > 3.9 * RHO


def test_sampling_elements_is_cheaper_than_sampling_subjects_at_one_rate():
    by_subject = PLAIN.element_guarantee(facts("poisson_subjects"), SIGMA).epsilon(100, 1e-5)
    by_element = PLAIN.element_guarantee(facts("poisson_elements"), SIGMA).epsilon(100, 1e-5)
    assert by_element < 0.5 * by_subject


def test_arguments_are_checked_and_configs_go_round():
    for bad in (0, -1, 2.5, True):
        with pytest.raises((ValueError, TypeError), match="max_elements"):
            ElementDP(1.0, max_elements=bad)
    with pytest.raises(ValueError, match="element_id"):
        PLAIN.partition(tf.constant([1]), tf.constant([True]))
    full = ElementDP(0.5, max_elements=3, max_items_per_element=2)
    assert algorithm_from_config(full.get_config()) == full
    for other in (SubjectDP(1.0), sdp.HiGradAvg(1.0)):
        with pytest.raises(ValueError, match="knows no elements"):
            other.element_guarantee(facts("poisson_subjects"), SIGMA)
