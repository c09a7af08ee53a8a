# SPDX-License-Identifier: Apache-2.0
"""What releases and private k-means draw: the law of the noise, and that it is the operating system's."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from tf_subjectdp import noise_numpy
from tf_subjectdp.noise_numpy import FreshDraws, draws

FALSE_ALARM = 1e-6


def test_normals_are_the_systems_entropy_and_normal_and_independent(monkeypatch):
    source = np.random.default_rng(11)
    asked = []

    def urandom(size):
        asked.append(size)
        return source.bytes(size)

    fresh = draws(None)
    assert isinstance(fresh, FreshDraws)
    monkeypatch.setattr(noise_numpy.os, "urandom", urandom)
    drawn = fresh.standard_normal((1000, 200))
    assert asked == [8 * 200_000] and drawn.shape == (1000, 200)
    assert stats.kstest(drawn.ravel(), "norm").pvalue > FALSE_ALARM / 3
    low, high = stats.chi2.ppf([FALSE_ALARM / 6, 1 - FALSE_ALARM / 6], drawn.size)
    assert low < (drawn**2).sum() < high
    beside = (drawn[:, 1:] * drawn[:, :-1]).mean() * np.sqrt(1000 * 199)
    assert abs(beside) < stats.norm.isf(FALSE_ALARM / 6) * 1.01


@pytest.mark.parametrize("byte", [b"\x00", b"\xff", b"\x01"])
def test_normals_are_finite_at_the_ends_of_the_range(monkeypatch, byte):
    fresh = FreshDraws()
    monkeypatch.setattr(noise_numpy.os, "urandom", lambda size: byte * size)
    drawn = fresh.standard_normal(2)
    assert np.isfinite(drawn).all() and np.abs(drawn).max() < 9.3


def test_other_draws_are_fresh_too():
    first, second = FreshDraws(), FreshDraws()
    assert not np.isin(first.random((50, 2)), second.random((50, 2))).any()
    assert sorted(first.permutation(np.arange(50)).tolist()) == list(range(50))


def test_a_seed_repeats_the_draws():
    assert draws(3).standard_normal(4).tolist() == draws(3).standard_normal(4).tolist()


def test_it_needs_no_tensorflow():
    code = "import sys, tf_subjectdp.noise_numpy; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
