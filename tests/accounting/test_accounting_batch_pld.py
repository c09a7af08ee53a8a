# SPDX-License-Identifier: Apache-2.0
"""Very many compositions at once: each as the engine alone would say, and never below."""

import dp_accounting
import numpy as np
import pytest

from tf_subjectdp import accounting as acc
from tf_subjectdp.accounting.engine.ledger import ledger
from tf_subjectdp.accounting.engine.pld import batch_deltas, batch_epsilons, can_batch, pld_delta

ALIKE = [(acc.higradavg_event(0.005 + i / 2e3, 5 + i, 20.0 + i), 1500) for i in range(8)]
UNLIKE = [
    (acc.group_event(0.02, 9, 9.0), 300),
    (acc.item_event(0.01, 1.5), 400),
    (acc.element_event(0.02, 8.0), 200),
    (dp_accounting.GaussianDpEvent(6.0), 9),
    (dp_accounting.LaplaceDpEvent(60.0), 20),
    (acc.replace_one_event(0.01, 2.0), 500),
]


def _rows(number, types, seed):
    rng = np.random.default_rng(seed)
    rows = (rng.random((number, types)) < 0.5).astype(float)
    rows[:, 0] += ~rows.any(axis=1)
    rows[: number // 4] *= rng.integers(1, 3, (number // 4, types))
    return rows


def _event(parts, row):
    return acc.compose([(acc.compose([part]), int(n)) for part, n in zip(parts, row, strict=True)])


@pytest.mark.parametrize("parts", [ALIKE, UNLIKE], ids=["alike", "unlike"])
def test_deltas_are_the_engines_and_not_below(parts):
    rows = _rows(12, len(parts), 1)
    ledgers = [ledger(*part) for part in parts]
    dearest = max(acc.epsilon(_event(parts, row), delta=1e-5) for row in rows)
    epsilons = dearest * np.array([0.6, 0.8, 1.0])
    values = batch_deltas(ledgers, rows, epsilons, 1e-5)
    for row, some in zip(rows, values, strict=True):
        for epsilon, value in zip(epsilons, some, strict=True):
            # The engine, on a grid ten times as fine as its own choice needs.
            exact = pld_delta(ledger(_event(parts, row), 1), float(epsilon), 1e-6)
            assert exact * (1 - 1e-5) - 1e-18 <= value
            if exact > 1e-8:
                assert value <= exact * 1.01


@pytest.mark.parametrize("parts", [ALIKE, UNLIKE], ids=["alike", "unlike"])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_epsilons_are_the_engines_within_a_thousandth_and_not_below(parts, delta):
    rows = _rows(12, len(parts), 2)
    exact = np.array([acc.epsilon(_event(parts, row), delta=delta) for row in rows])
    rows, exact = rows[exact > 0.0], exact[exact > 0.0]
    bounds = exact * np.random.default_rng(3).uniform(1.0, 1.5, len(exact))
    ledgers = [ledger(*part) for part in parts]
    values = batch_epsilons(ledgers, rows, bounds, delta)
    assert np.all(values >= exact * (1 - 1e-6))
    assert np.all(values <= np.minimum(exact * (1 + 2e-3), bounds))


def test_a_bound_that_is_the_answer_itself_stays():
    ledgers = [ledger(*part) for part in ALIKE]
    rows = np.eye(8)
    exact = np.array([acc.epsilon(event, n, delta=1e-6) for event, n in ALIKE])
    assert np.all(batch_epsilons(ledgers, rows, exact, 1e-6) <= exact)


def test_types_without_a_loss_distribution_are_not_batched():
    assert can_batch([ledger(*part) for part in UNLIKE])
    assert can_batch([ledger(acc.fixed_size_event(100, 5, 2.0), 3)])
    assert not can_batch([ledger(dp_accounting.dp_event.ZCDpEvent(0.1, 0.0), 3)])
    assert not can_batch([ledger(acc.nonprivate_event(), 1)])


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_worst_of_many_choices_is_exact_and_bounds_all(size):
    from itertools import combinations

    silos = [acc.Silo(event, n) for event, n in ALIKE]
    found = acc.HorizontalPlan(silos, silos_per_subject=size).worst_case(delta=1e-5)
    brute = max(
        acc.epsilon(acc.compose(list(chosen)), delta=1e-5) for chosen in combinations(ALIKE, size)
    )
    assert found.exact
    assert brute * (1 - 1e-9) <= found.value <= brute * (1 + 5e-4)


def test_every_person_of_a_table_has_the_figure_of_their_own_silos():
    rng = np.random.default_rng(5)
    table = (rng.random((400, 8)) < 0.5).astype(int)
    result = acc.HorizontalPlan([acc.Silo(event, n) for event, n in ALIKE]).per_subject_epsilon(
        table, delta=1e-5
    )
    assert result.exact.all() and len(result.patterns) > 100
    for i in rng.integers(0, 400, 12):
        parts = [part for part, there in zip(ALIKE, table[i], strict=True) if there]
        exact = acc.epsilon(acc.compose(parts), delta=1e-5) if parts else 0.0
        assert exact * (1 - 1e-6) <= result.epsilon[i] <= exact * (1 + 2e-3)


def test_a_loss_without_spread_gives_no_bound_instead_of_nothing():
    # Pure mechanisms at a tiny delta: the tilted loss sits on its largest value.
    ledgers = [ledger(dp_accounting.LaplaceDpEvent(2.0), n) for n in (1, 2)]
    values = batch_deltas(ledgers, np.eye(2), np.array([0.4]), 1e-300)
    exact = [acc.delta(dp_accounting.LaplaceDpEvent(2.0), n, epsilon=0.4) for n in (1, 2)]
    assert np.all(values[:, 0] >= np.array(exact) * (1 - 1e-5))
