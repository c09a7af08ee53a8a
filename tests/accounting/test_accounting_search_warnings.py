# SPDX-License-Identifier: Apache-2.0
"""A search for noise warns of the figure that it ends with, not of every trial."""

import logging

from tf_subjectdp import accounting
from tf_subjectdp.accounting.engine import pld
from tf_subjectdp.accounting.engine.composition import ComposedDirection


def test_only_the_noise_that_was_found_is_warned_about(monkeypatch, caplog):
    exact = ComposedDirection.epsilon

    def coarse(self, delta, relative_error):
        value, excess = exact(self, delta, relative_error)
        return value, max(excess, 0.01 * value)

    monkeypatch.setattr(ComposedDirection, "epsilon", coarse)
    pld.pld_bound.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, logger="tf_subjectdp"):
            sigma = accounting.noise_multiplier(
                lambda s: accounting.item_event(0.01, s), 100, epsilon=2.0, delta=1e-5
            )
            found = [r.getMessage() for r in caplog.records if "discretised" in r.getMessage()]
            assert len(found) == 1
            value = accounting.epsilon(accounting.item_event(0.01, sigma), 100, delta=1e-5)
    finally:
        pld.pld_bound.cache_clear()
    assert value <= 2.0 and f"epsilon {value:.6g} " in found[0]
