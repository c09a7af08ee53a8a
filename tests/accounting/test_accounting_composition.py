# SPDX-License-Identifier: Apache-2.0
"""The Fourier side of a composition: shortcuts change nothing."""

import tracemalloc

import numpy as np
import pytest
from scipy import fft

from tf_subjectdp import accounting as acc
from tf_subjectdp.accounting.engine.composition import Spectrum, TiltedMasses

SIZE = 4096


def masses(seed, length, first, sharpness=1.0):
    weight = np.random.default_rng(seed).random(length) ** sharpness
    return TiltedMasses(first + np.arange(length), weight / weight.sum())


@pytest.mark.parametrize("length, first", [(1, 0), (2, -1), (37, -20), (1000, 400), (9000, -5000)])
def test_a_transform_at_some_frequencies_is_that_part_of_the_whole(length, first):
    of = masses(3, length, first)
    frequency = np.array([0, 1, 2, 17, 500, 2047, 2048])
    whole = fft.rfft(of.wrapped(SIZE))[frequency]
    np.testing.assert_allclose(of.at_frequencies(frequency, SIZE), whole, atol=1e-14)


def test_phases_keep_their_digits_at_large_indices():
    size = (1 << 22) - 3
    of = TiltedMasses(size - 2 + np.arange(2), np.array([0.25, 0.75]))
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
    spectrum.multiply_power(TiltedMasses(np.array([0, 3]), np.array([0.5, 0.5])), 3)
    composed, _ = spectrum.invert()
    np.testing.assert_allclose(composed[[0, 3, 6, 9]], [0.125, 0.375, 0.375, 0.125], atol=1e-14)


def test_nothing_composed_is_a_loss_of_zero():
    composed, _ = Spectrum(SIZE).invert()
    np.testing.assert_allclose(composed, np.eye(1, SIZE)[0], atol=1e-15)


def test_far_losses_cost_no_memory():
    # q = 1e-6, one loss of 85/0.15 in a million million: a table of all losses between would not fit.
    for q, sigma, delta in ((1e-5, 0.3, 1e-6), (1e-6, 0.5, 1e-8), (1e-5, 0.15, 1e-8)):
        tracemalloc.start()
        acc.epsilon(acc.item_event(q, sigma), 3, delta=delta)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1.2e9


# --- one release, which is not composed


@pytest.mark.parametrize(
    "q, sigma, delta, exact",
    [  # by 60 digits
        (1e-4, 1.5, 1e-15, 0.00846),
        (1.84e-5, 1.217, 1.55e-12, 0.0013681),
        (2e-5, 1.4, 3.8e-18, 0.00362),
    ],
)
def test_one_release_at_a_tiny_delta_is_not_loose(q, sigma, delta, exact):
    value = acc.epsilon(acc.item_event(q, sigma), delta=delta)
    assert value == pytest.approx(exact, rel=1.5e-3)


@pytest.mark.parametrize("q, sigma", [(1e-3, 0.7), (0.2, 2.0), (0.9, 0.3)])
def test_epsilon_and_delta_of_one_release_are_inverse(q, sigma):
    event = acc.item_event(q, sigma)
    for delta in (1e-3, 1e-6, 1e-12):
        if delta < q:
            epsilon = acc.epsilon(event, delta=delta)
            assert acc.delta(event, epsilon=epsilon) == pytest.approx(delta, rel=2e-3)


@pytest.mark.parametrize("engine", ["pld", "rdp"])
def test_rare_presence_alone_protects(engine):
    # A unit that takes part with probability 3e-6 in all moves nothing by more than that.
    event = acc.item_event(1e-6, 0.01)
    assert acc.epsilon(event, 3, delta=3e-6, engine=engine) == 0.0
    assert acc.delta(event, 3, epsilon=0.0, engine=engine) <= 3e-6
    assert acc.epsilon(event, 3, delta=2.9e-6, engine=engine) > 0.0
