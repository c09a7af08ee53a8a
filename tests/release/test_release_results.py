# SPDX-License-Identifier: Apache-2.0
"""What a release says of itself."""

import math

import numpy as np
import pytest

from tf_subjectdp import accounting, release


def test_epsilon_without_a_delta_is_the_promise():
    made = release.histogram(np.ones((50, 3)), radius=1.0, epsilon=1.5, delta=1e-6)
    assert made.epsilon() == made.epsilon(1e-6) == pytest.approx(1.5, rel=1e-3)
    chosen = release.frequent_elements(made, top=2)
    assert chosen.epsilon() == made.epsilon()
    by_noise = release.histogram(np.ones((50, 3)), radius=1.0, noise_multiplier=2.0)
    with pytest.raises(ValueError, match="made without a delta"):
        by_noise.epsilon()


@pytest.mark.parametrize("make", ["histogram", "two_stage_histogram", "user_level_histogram"])
def test_a_counted_number_of_subjects_is_said_to_be_information(make):
    more = {"items": 3} if make == "two_stage_histogram" else {"radius": 2.0}
    for n, counted in ((None, True), (50, False), (60, False)):
        made = getattr(release, make)(
            np.ones((50, 3)), epsilon=1.0, delta=1e-6, n_subjects=n, **more
        )
        found = release.frequent_elements(made, top=1)
        assert made.n_counted is found.n_counted is counted
        for text in (made.statement(), found.statement()):
            assert ("counted from the rows" in " ".join(text.split())) is counted
    counts = release.count_elements([*range(60)], ["a"] * 60)
    for n, counted in ((None, True), (60, False)):
        found = release.discover_elements(counts, epsilon=1.0, delta=1e-6, n_subjects=n)
        assert ("counted from the rows" in " ".join(found.statement().split())) is counted


def test_the_event_of_found_elements_is_composed_as_its_docstring_says():
    counts = release.count_elements([*range(60)], ["a"] * 60)
    found = release.discover_elements(counts, epsilon=1.0, delta=1e-6)
    loss = found.loss("element")
    own = accounting.epsilon(found.event, delta=1e-6 - loss) - math.log1p(-loss)
    assert own == pytest.approx(found.epsilon()) and own <= 1.0
