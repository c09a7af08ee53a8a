# SPDX-License-Identifier: Apache-2.0
"""The Fourier side of a composition: shortcuts change nothing."""

import numpy as np
import pytest
from scipy import fft

from tf_subjectdp.accounting.composition import Spectrum, TiltedMasses

SIZE = 4096


def masses(seed, length, first, sharpness=1.0):
    weight = np.random.default_rng(seed).random(length) ** sharpness
    return TiltedMasses(weight / weight.sum(), first)


@pytest.mark.parametrize("length, first", [(1, 0), (2, -1), (37, -20), (1000, 400), (9000, -5000)])
def test_a_transform_at_some_frequencies_is_that_part_of_the_whole(length, first):
    of = masses(3, length, first)
    frequency = np.array([0, 1, 2, 17, 500, 2047, 2048])
    whole = fft.rfft(of.wrapped(SIZE))[frequency]
    np.testing.assert_allclose(of.at_frequencies(frequency, SIZE), whole, atol=1e-14)


def test_phases_keep_their_digits_at_large_indices():
    size = (1 << 22) - 3
    of = TiltedMasses(np.array([0.25, 0.75]), size - 2)
    frequency = np.array([1, size // 2 - 1])
    exact = 0.25 * np.exp(4j * np.pi * frequency / size) + 0.75 * np.exp(
        2j * np.pi * frequency / size
    )
    np.testing.assert_allclose(of.at_frequencies(frequency, size), exact, atol=1e-9)


@pytest.mark.parametrize("counts", [(1, 1, 1), (400, 3, 50), (5, 20_000, 1)])
def test_a_composition_is_the_product_of_the_powers_of_the_transforms(counts):
    parts = [masses(1, 21, -10), masses(2, 3, -1, 4.0), masses(4, 90, -45)]
    spectrum = Spectrum(SIZE)
    expected = np.ones(SIZE // 2 + 1, complex)
    for part, count in zip(parts, counts, strict=True):
        spectrum.multiply_power(part, count)
        expected = expected * fft.rfft(part.wrapped(SIZE)) ** count
    composed, moduli = spectrum.invert()
    np.testing.assert_allclose(composed, fft.irfft(expected, SIZE), atol=1e-11)
    assert composed.sum() == pytest.approx(1.0, abs=1e-10)
    assert moduli == pytest.approx((2 * np.abs(expected).sum() + 1) / SIZE, abs=1e-12)


def test_a_loss_that_does_not_spread_keeps_all_its_frequencies():
    # Half of the mass on each of two far losses: the transform does not fall with the frequency.
    spectrum = Spectrum(SIZE)
    spectrum.multiply_power(TiltedMasses(np.array([0.5, 0.0, 0.0, 0.5]), 0), 3)
    composed, _ = spectrum.invert()
    np.testing.assert_allclose(composed[[0, 3, 6, 9]], [0.125, 0.375, 0.375, 0.125], atol=1e-14)


def test_nothing_composed_is_a_loss_of_zero():
    composed, _ = Spectrum(SIZE).invert()
    np.testing.assert_allclose(composed, np.eye(1, SIZE)[0], atol=1e-15)
