# SPDX-License-Identifier: Apache-2.0
"""What a release says of itself."""

import numpy as np
import pytest

from tf_subjectdp import release


def test_epsilon_without_a_delta_is_the_promise():
    made = release.histogram(np.ones((50, 3)), radius=1.0, epsilon=1.5, delta=1e-6)
    assert made.epsilon() == made.epsilon(1e-6) == pytest.approx(1.5, rel=1e-3)
    chosen = release.frequent_elements(made, top=2)
    assert chosen.epsilon() == made.epsilon()
    by_noise = release.histogram(np.ones((50, 3)), radius=1.0, noise_multiplier=2.0)
    with pytest.raises(ValueError, match="made without a delta"):
        by_noise.epsilon()
