# SPDX-License-Identifier: Apache-2.0
"""Known sensitivities of many sizes: exact for one step, and quick for the law of a large subject."""

import numpy as np
import pytest
from scipy import stats

from tf_subjectdp import accounting
from tf_subjectdp.accounting.engine.gaussian import gaussian_delta


@pytest.mark.parametrize("items", [5, 145, 4484])
def test_one_step_is_the_mean_of_the_gaussian_deltas(items):
    counts = np.arange(1, items + 1)
    law = stats.hypergeom(100 * items, items, 20 * items // 4 + 1).pmf(counts)
    law /= max(1.0, law.sum() * (1.0 + 1e-12))
    sigma = 0.05 * items + 2.0
    event = accounting.revealed_event(2.0 * counts, law, sigma)
    exact = sum(p * gaussian_delta(2.0 * j / sigma, 1.5) for j, p in zip(counts, law, strict=True))
    found = accounting.delta(event, 1, epsilon=1.5)
    assert exact * (1.0 - 1e-9) <= found <= exact * 1.001 + 1e-18


def test_atoms_that_are_dropped_only_ever_raise_epsilon():
    law = np.array([0.2, 0.1, 1e-24])
    pruned = accounting.epsilon(
        accounting.revealed_event([1.0, 2.0, 3.0], law, 3.0), 50, delta=1e-6
    )
    without = accounting.epsilon(
        accounting.revealed_event([1.0, 2.0], law[:2], 3.0), 50, delta=1e-6
    )
    assert without * (1 - 1e-12) <= pruned <= without * 1.001
