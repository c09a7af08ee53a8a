# SPDX-License-Identifier: Apache-2.0
"""The normal sampler against a float64 oracle, its words against Threefry as published, and its law.

Seeds are fixed, so nothing here is random. As tests of a fresh seed, the statistical ones would raise
a false alarm with probability 1e-6 or less each.
"""

import logging

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tf_subjectdp import noise
from tf_subjectdp.noise import normals, normals_uncompiled, threefry, transform

FALSE_ALARM = 1e-6
SEED = np.array([0x0123456789ABCDEF, -0x7EDCBA9876543211], np.int64)
ONE = tf.constant(1.0)
LEAST, MOST = -(2**31), 2**31 - 1


def stacked(words, scale):
    return tf.stack(transform(words[0], words[1], words[2], scale))


WAYS = {
    "eager": stacked,
    "graph": tf.function(stacked),
    "compiled": tf.function(stacked, jit_compile=True),
}


def oracle(given):
    """Box-Muller of the same words in float64; float64 keeps 52 bits of u on either side."""
    high, low, turn = np.asarray(given, np.int64)
    v = ((high & 0x7FFFFFFF) * 2.0**32 + (low & 0xFFFFFFFF) + 0.5) * 2.0**-64
    radius = np.sqrt(-2 * np.where(high < 0, np.log1p(-v), np.log(v)))
    angle = ((turn >> 2) + 0.5) * (np.pi / 2 * 2.0**-30) + (turn & 3) * (np.pi / 2)
    return radius * np.array([np.sin(angle), np.cos(angle)])


def rotations():
    """How Threefry-4x32 rotates, after table 2 of Salmon et al."""
    return [(10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20)]


def oracle_blocks(key, counters):
    """Threefry-4x32-20 of [n, 4] counters and a key of four words, in 64-bit integers."""
    low = 0xFFFFFFFF
    parts = [int(k) for k in key]
    parts.append(0x1BD11BDA ^ parts[0] ^ parts[1] ^ parts[2] ^ parts[3])
    x = [(np.asarray(counters, np.uint64)[:, i] + parts[i]) & low for i in range(4)]
    for number in range(20):
        one, other = rotations()[number % 8]
        second, fourth = (1, 3) if number % 2 == 0 else (3, 1)
        for to, by, bits in ((0, second, one), (2, fourth, other)):
            x[to] = (x[to] + x[by]) & low
            x[by] = (((x[by] << bits) | (x[by] >> (32 - bits))) & low) ^ x[to]
        if number % 4 == 3:
            turn = number // 4 + 1
            for place in range(4):
                x[place] = (x[place] + parts[(turn + place) % 5]) & low
            x[3] = (x[3] + turn) & low
    return np.stack(x, 1).astype(np.uint32)


EXTREMES = [0, 1, -1, 2, 3, -2, LEAST, LEAST + 1, MOST, MOST - 1, 0xFFFF, 0x10000, -0x10000, 5, -77]


def some_words():
    grid = np.array(np.meshgrid(EXTREMES, EXTREMES, EXTREMES)).reshape(3, -1)
    drawn = np.random.default_rng(0).integers(LEAST, MOST, (3, 100_000), endpoint=True)
    # u near 0 and near 1, at every scale.
    small = drawn[0, :4000] & ((1 << (np.arange(4000) % 32)) - 1)
    edge = np.stack([np.concatenate([small, small | LEAST]), drawn[1, :8000], drawn[2, :8000]])
    return np.concatenate([grid, drawn, edge], 1).astype(np.int32)


@pytest.mark.parametrize("way", WAYS)
def test_the_transform_agrees_with_float64_to_1e_6_relative_on_all_words(way):
    given = some_words()
    found = WAYS[way](tf.constant(given), ONE).numpy()
    assert found.dtype == np.float32 and np.isfinite(found).all() and (found != 0).all()
    np.testing.assert_allclose(found, oracle(given), rtol=1e-6, atol=0)


@pytest.mark.parametrize("way", WAYS)
def test_the_tail_reaches_9_4_and_both_ends_of_u_keep_their_precision(way):
    # The least u, then the largest, at an angle of nearly nothing: (sin, cos) = (0+, 1).
    given = np.array([[0, LEAST, 0, 1 << 9], [0, 0, 1 << 20, 0], [0, 0, 0, 0]], np.int32)
    radius = WAYS[way](tf.constant(given), ONE).numpy()[1].astype(float)
    u = np.array([2.0**-65, 1.0, (2.0**20 + 0.5) * 2.0**-64, 2.0**-23])
    u_left = 2.0**-65  # 1 - u of the second
    wanted = np.sqrt(2 * np.array([-np.log(u[0]), u_left, -np.log(u[2]), -np.log(u[3])]))
    np.testing.assert_allclose(radius, wanted, rtol=1e-6)
    assert radius[0] > 9.4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("zeros", [1, 12, 24, 31])
def test_the_radius_has_its_law_however_far_out_the_draws_are(way, zeros):
    """u below 2^-(zeros + 1): the excess of r^2 / 2 is exponential. A KS test each."""
    drawn = np.random.default_rng(1).integers(LEAST, MOST, (3, 20_000), endpoint=True)
    drawn[0] &= (1 << (31 - zeros)) - 1
    z = WAYS[way](tf.constant(drawn.astype(np.int32)), ONE).numpy().astype(float)
    excess = (z**2).sum(0) / 2 - (zeros + 1) * np.log(2)
    assert stats.kstest(excess, "expon").pvalue > FALSE_ALARM


@pytest.mark.parametrize("scale", [1e-15, 1e-10, 1e10, 1e30])
def test_a_scale_multiplies(scale):
    given = tf.constant(some_words()[:, :5000])
    found = WAYS["compiled"](given, tf.constant(scale)).numpy() / scale
    np.testing.assert_allclose(found, stacked(given, ONE), rtol=1e-6)


def test_the_oracle_of_threefry_gives_the_published_answers():
    """The known answers that come with the authors' library, Random123."""
    digits_of_pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    more_digits = [0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89]
    for counter, key, answer in [
        ([0] * 4, [0] * 4, [0x9C6CA96A, 0xE17EAE66, 0xFC10ECD4, 0x5256A7D8]),
        ([2**32 - 1] * 4, [2**32 - 1] * 4, [0x2A881696, 0x57012287, 0xF6C7446E, 0xA16A6732]),
        (digits_of_pi, more_digits, [0x59CD1DBB, 0xB8879579, 0x86B5D00C, 0xAC8B6D84]),
    ]:
        assert oracle_blocks(key, [counter])[0].tolist() == answer


@pytest.mark.parametrize("compiled", [False, True])
def test_the_words_are_threefry_with_the_whole_key_and_a_counter_of_their_own(compiled):
    blocks = tf.function(threefry, jit_compile=compiled)
    key = SEED.view(np.uint32)
    counters = np.array([0, 1, 2, 1000, 2**31, 2**32 - 1], np.uint32)
    found = np.stack(blocks(tf.constant(key), tf.constant(counters)), 1)
    np.testing.assert_array_equal(found, oracle_blocks(key, [[c, 0, 0, 0] for c in counters]))


def test_pair_p_is_made_of_the_words_of_counter_p():
    words = oracle_blocks(SEED.view(np.uint32), [[c, 0, 0, 0] for c in range(50)])
    wanted = oracle(words[:, :3].view(np.int32).T).T.ravel()
    np.testing.assert_allclose(normals(tf.constant(SEED), 100), wanted, rtol=1e-6)


def test_each_of_the_128_bits_of_a_seed_changes_the_draw():
    bit = np.uint64(1) << np.arange(64, dtype=np.uint64)
    flips = np.zeros((129, 2), np.uint64)
    flips[:64, 0], flips[64:128, 1] = bit, bit
    seeds = (flips ^ SEED.view(np.uint64)).view(np.int64)
    drawn = np.stack([normals(tf.constant(seed), 4).numpy() for seed in seeds])
    assert len(np.unique(drawn)) == drawn.size


@pytest.mark.parametrize("draw", [normals, normals_uncompiled])
def test_no_number_of_two_seeds_that_share_a_half_is_the_same(draw):
    other = [SEED ^ np.array([flip, 0]) for flip in (1, 2**62)]
    other += [SEED ^ np.array([0, flip]) for flip in (1, 2**62)]
    drawn = np.stack([draw(tf.constant(seed), 1001).numpy() for seed in (SEED, *other)])
    assert drawn.shape == (5, 1001)
    shared = [np.intersect1d(a, b).size for i, a in enumerate(drawn) for b in drawn[:i]]
    assert max(shared) < 5  # a float32 has few enough values that one may come twice


@pytest.fixture(scope="module", params=[normals, normals_uncompiled])
def many(request):
    return request.param(tf.constant(SEED), 10_000_000).numpy()


def test_ten_million_draws_are_normal(many):
    assert many.shape == (10_000_000,) and many.dtype == np.float32
    z = np.sort(many).astype(float)
    grid = np.arange(1, z.size + 1) / z.size
    cdf = stats.norm.cdf(z)
    distance = max((grid - cdf).max(), (cdf - grid).max() + 1 / z.size)
    assert stats.kstwobign.sf(distance * z.size**0.5) > FALSE_ALARM
    # Moments of a normal and the standard deviations of their means; 5.5 of these: 4e-8 each.
    for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10_170)]:
        assert abs(np.mean(z**power) - mean) < 5.5 * (variance / z.size) ** 0.5


@pytest.mark.parametrize("beyond", [3.0, 4.0, 4.5, 5.0])
def test_the_tails_have_their_mass_on_either_side(many, beyond):
    for count in (np.sum(many > beyond), np.sum(many < -beyond)):
        law = stats.binom(many.size, stats.norm.sf(beyond))
        assert min(law.cdf(count), law.sf(count - 1)) > FALSE_ALARM / 4


def test_members_of_a_pair_and_neighbours_are_independent(many):
    """Correlations, also of squares and of absolute values; 5.7 standard errors: 1.2e-8 each."""
    half = many.size // 2
    for function in (lambda z: z, np.square, np.abs, np.sign):
        y = function(many[: 2 * half].astype(np.float32)).astype(float)
        y = (y - y.mean()) / y.std()
        for lag in (1, 2, 3, 4, 8, half):
            assert abs(np.mean(y[lag:] * y[:-lag])) < 5.7 / (y.size - lag) ** 0.5
    # The angle of a pair: uniform over 64 sectors, and independent of the radius.
    first, second = many[::2].astype(float), many[1::2].astype(float)
    sector = ((np.arctan2(first, second) / (2 * np.pi) + 0.5) * 64).astype(int) % 64
    ring = np.minimum((np.exp(-(first**2 + second**2) / 2) * 8).astype(int), 7)
    cells = np.bincount(sector * 8 + ring, minlength=512)
    assert stats.chisquare(cells).pvalue > FALSE_ALARM


def test_a_draw_depends_on_its_arguments_alone_in_every_context():
    seed = tf.constant(SEED)
    for count in (0, 1, 7, 8191, 50_001):
        eager = normals(seed, count).numpy()
        assert eager.shape == (count,) and eager.dtype == np.float32
        graph = tf.function(lambda s, n=count: normals(s, n))(seed)
        np.testing.assert_array_equal(eager, graph)
        if count:
            unknown = tf.function(lambda s, n: normals(s, n))(seed, tf.constant(count))
            np.testing.assert_allclose(eager, unknown, rtol=1e-6)


class Broken:
    def __init__(self, result):
        self.result = result

    def __call__(self, *args):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    "result", [tf.errors.UnimplementedError(None, None, "no XLA"), tf.zeros([64], tf.complex64)]
)
def test_without_a_working_xla_the_same_numbers_come_uncompiled_with_one_log_line(
    monkeypatch, caplog, result
):
    wanted = normals(tf.constant(SEED), 20_000).numpy()
    monkeypatch.setattr(noise, "_compiled", lambda pairs: Broken(result))
    noise._compiles.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, "tf_subjectdp"):
            for _ in range(2):
                np.testing.assert_allclose(normals(tf.constant(SEED), 20_000), wanted, rtol=1e-6)
        assert len(caplog.records) == 1 and "uncompiled" in caplog.text
    finally:
        noise._compiles.cache_clear()


def test_a_version_1_graph_draws_the_same_numbers():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        found = session.run(normals(tf.constant(SEED), 10_000))
    np.testing.assert_allclose(found, normals(tf.constant(SEED), 10_000), rtol=1e-6)


@pytest.mark.parametrize("count", [-1, 2**32])
def test_a_count_out_of_range_is_refused(count):
    with pytest.raises(ValueError, match=f"count={count}"):
        normals(tf.constant(SEED), count)
