# SPDX-License-Identifier: Apache-2.0
"""Draws and noise of silos, on TFF's own executor: new in every silo, round, step and process.

Statistical tests: correlations of n independent normals are within 6 / sqrt(n) of 0 but for 2e-9 each.
"""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from scipy import special
from tensorflow_federated.python.aggregators import primitives

import tf_subjectdp as sdp
from tf_subjectdp import noise
from tf_subjectdp.federated import draws, server, silo_data
from tf_subjectdp.federated.optimizers import as_tff_optimizer

SILOS, WIDTH, SIGMA = 8, 2000, 50.0


@pytest.fixture(scope="module")
def reports():
    """Updates of 8 silos in 3 rounds, [round, silo, weights]: noise but for a thousandth."""
    people = np.arange(40) % 20
    silo = np.arange(40) % SILOS
    x = np.eye(WIDTH, dtype=np.float32)[:40]
    stats = sdp.SiloStats.from_ids(people, silo)
    plan = sdp.federated.plan(
        sdp.HiGradAvg(1.0), sdp.PoissonItems(3), stats, rounds=3, noise_multiplier=SIGMA
    )

    def model_fn():
        layers = [tf.keras.Input([WIDTH]), tf.keras.layers.Dense(1, use_bias=False)]
        spec = (tf.TensorSpec([None, WIDTH], tf.float32), tf.TensorSpec([None, 1], tf.float32))
        return sdp.federated.KerasSilo(tf.keras.Sequential(layers), "mse", spec)

    process = sdp.federated.build_process(model_fn, plan)
    round_ = process.parts.silo_round
    weights_type, data_type = round_.type_signature.parameter

    @tff.federated_computation(
        tff.FederatedType(weights_type, tff.SERVER), tff.FederatedType(data_type, tff.CLIENTS)
    )
    def all_reports(weights, data):
        return tff.federated_map(round_, (tff.federated_broadcast(weights), data))

    entries = []
    for i in range(SILOS):
        rows = silo == i
        table = {"x": x[rows], "y": np.zeros([5, 1], np.float32), "subject_id": people[rows]}
        spec = process.parts.input_spec
        entries.append(silo_data.tagged(i, silo_data.silo_tensors(table, spec, str(i))))
    weights = process.get_model_weights(process.initialize())
    found = []
    for _ in range(3):
        answers = all_reports(weights, entries)
        found.append([np.ravel(answer["update"][0]) for answer in answers])
    return np.array(found) * plan.divisors[0] / SIGMA


def test_the_noise_has_its_size_in_every_silo_and_round(reports):
    # The mean square of 2,000 normals is within 6 sqrt(2 / 2000) of 1 but for 2e-8 each.
    squares = np.square(reports).mean(axis=2)
    assert np.abs(squares - 1.0).max() < 6 * np.sqrt(2 / WIDTH)


def test_no_two_silos_or_rounds_share_noise(reports):
    every = reports.reshape(-1, WIDTH)
    correlations = np.corrcoef(every)[np.triu_indices(len(every), 1)]
    assert np.abs(correlations).max() < 6 / np.sqrt(WIDTH)
    for a, b in itertools.combinations(every, 2):
        assert np.intersect1d(a, b).size < WIDTH / 100


def test_seeds_in_a_loop_differ_at_each_step_call_and_restart(installed):
    @tff.tensorflow.computation
    def seeds():
        def step(number, kept):
            words = tf.concat([kept, [noise.silo_seed(True)]], 0)
            return number + 1, tf.ensure_shape(words, [None, 2])

        shapes = (tf.TensorShape([]), tf.TensorShape([None, 2]))
        start = (tf.constant(0), tf.zeros([0, 2], tf.int64))
        _, found = tf.while_loop(lambda n, _: n < 16, step, start, shape_invariants=shapes)
        return found

    one = [np.asarray(seeds()) for _ in range(2)]
    # Another worker process: what a restart draws.
    with installed(tff.backends.native.create_sync_local_cpp_execution_context()):
        one += [np.asarray(seeds()) for _ in range(2)]
    words = np.concatenate(one).ravel()
    assert np.unique(words).size == words.size == 128
    # Each of the 64 places is set about half of the time: off by 6 sigma but for 1.3e-7 in all.
    bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert np.abs(bits - 0.5).max() < 6 * 0.5 / np.sqrt(words.size)


def test_the_kernels_words_are_the_digits_of_its_uuid(tmp_path, monkeypatch):
    path = tmp_path / "uuid"
    path.write_text("01234567-89ab-4cde-8f01-23456789abcd\n")
    monkeypatch.setattr(noise, "KERNEL_UUID", str(path))
    digits = "0123456789ab4cde8f0123456789abcd"
    wanted = [int(part[::-1], 16) for part in (digits[:16], digits[16:])]
    found = noise._kernel_words().numpy().astype(np.uint64).tolist()
    assert found == wanted


def test_poisson_draws_have_their_rate_and_independent_coins():
    subject = tf.constant(np.repeat(np.arange(50), 4), tf.int64)
    cap, size = tf.constant(3), tf.constant(0, tf.int64)
    rng = np.random.default_rng(0)
    seeds = rng.integers(-(2**62), 2**62, [3000, 2])

    @tf.function
    def rows(kind_is_items, seed):
        rate = tf.constant(0.3, tf.float64)
        if kind_is_items:
            return draws.rows_of_step(sdp.PoissonItems, rate, size, cap, subject, seed)
        return draws.rows_of_step(sdp.PoissonSubjects, rate, size, cap, subject, seed)

    items = np.zeros([3000, 200], bool)
    for at, seed in enumerate(seeds):
        items[at, rows(True, tf.constant(seed, tf.int64)).numpy()] = True
    # Of 3,000 coins of rate 0.3: 6 sigma, 2e-9 each, 200 coins and 19,900 pairs.
    assert np.abs(items.mean(0) - 0.3).max() < 6 * np.sqrt(0.21 / 3000)
    pairs = np.corrcoef(items.T)[np.triu_indices(200, 1)]
    assert np.abs(pairs).max() < 6.5 / np.sqrt(3000)

    drawn = np.zeros([1000, 50], int)
    for at, seed in enumerate(seeds[:1000]):
        found = rows(False, tf.constant(seed, tf.int64)).numpy()
        assert (np.diff(found) > 0).all()
        drawn[at] = np.bincount(found // 4, minlength=50)
    assert set(np.unique(drawn)) == {0, 3}  # all of a person or nothing, and no more than the cap
    assert np.abs((drawn > 0).mean(0) - 0.3).max() < 6 * np.sqrt(0.21 / 1000)


def test_fixed_batches_and_the_ends_of_the_rates():
    subject = tf.constant([0, 1, 2, 3], tf.int64)
    given = {"size": tf.constant(3, tf.int64), "step_cap": tf.constant(9), "subject": subject}
    seed = tf.constant([1, 2], tf.int64)
    rate = lambda value: tf.constant(value, tf.float64)  # noqa: E731
    fixed = draws.rows_of_step(sdp.FixedSize, rate(0.75), seed=seed, **given).numpy()
    assert len(set(fixed)) == 3
    counts = collections.Counter()
    for number in range(2000):
        seed = tf.constant([number, 5], tf.int64)
        found = draws.rows_of_step(sdp.FixedSize, rate(0.75), seed=seed, **given).numpy()
        counts.update(found.tolist())
    # Each row is in three quarters of the batches: 6 sigma of 2,000 coins.
    assert np.abs(np.array(list(counts.values())) / 2000 - 0.75).max() < 6 * np.sqrt(0.1875 / 2000)
    for kind in (sdp.PoissonItems, sdp.PoissonSubjects):
        assert draws.rows_of_step(kind, rate(1.0), seed=seed, **given).numpy().size == 4
        assert draws.rows_of_step(kind, rate(1e-300), seed=seed, **given).numpy().size == 0
        empty = {**given, "subject": tf.zeros([0], tf.int64)}
        assert draws.rows_of_step(kind, rate(0.5), seed=seed, **empty).numpy().size == 0


def test_rows_above_the_bound_are_dropped_at_random():
    subject = tf.constant([0, 0, 0, 1, 0, 2, 2], tf.int64)
    seen = collections.Counter()
    for _ in range(400):
        kept = draws.bound_items(subject, tf.constant(2)).numpy()
        assert (np.diff(kept) > 0).all()
        assert np.bincount(subject.numpy()[kept]).tolist() == [2, 1, 2]
        seen.update(kept.tolist())
    # Each of the four rows stays half of the time: 6 sigma of 400 coins.
    assert all(abs(seen[row] / 400 - 0.5) < 6 * 0.5 / 20 for row in (0, 1, 2, 4))


# -- secure sums: whole numbers, before the noise of a server and after that of the silos ---------


def _law_of_rounded_sum(means, deviations, step):
    """Of the sum over silos of the nearest integers to (mean + noise) / step."""
    law = np.ones(1)
    for mean, deviation in zip(means, deviations, strict=True):
        reach = int(np.ceil(12 * deviation / step)) + 3
        edges = (np.arange(-reach, reach + 2) - 0.5) * step
        law = np.convolve(law, np.diff(special.ndtr((edges - mean) / deviation)))
    return law


@pytest.mark.parametrize("deviations", [(1.0, 1.0), (0.7, 1.0, 2.0)])
def test_noises_that_are_rounded_finely_add_up_as_if_they_were_not(deviations):
    means, shift, deviation = [0.3, -1.7, 0.05], 1.3, np.linalg.norm(deviations)
    for step, exact in ((min(deviations) / 16, True), (16 * min(deviations), False)):
        # The person moves the first silo's update to just where it is rounded the other way.
        first = np.array(means[: len(deviations)])
        first[0] = 0.5 * step - shift / 2
        other = first + np.eye(len(first))[0] * shift
        laws = [_law_of_rounded_sum(centre, deviations, step) for centre in (first, other)]
        mu, above = shift / deviation, []
        for epsilon in (0.1, 0.5, 1.5):
            excess = [np.maximum(a - np.exp(epsilon) * b, 0).sum() for a, b in (laws, laws[::-1])]
            of_gaussians = special.ndtr(mu / 2 - epsilon / mu)
            of_gaussians -= np.exp(epsilon) * special.ndtr(-mu / 2 - epsilon / mu)
            above.append(max(excess) > of_gaussians + 1e-12)
        assert any(above) != exact


def test_the_step_of_a_secure_sum_is_that_of_tff():
    upper, lower = 6.0, -3.0
    step = (upper - lower) / server._LARGEST_INTEGER
    values = tf.constant(np.array([0.0, 0.6, 1.4, 1000.0]) * step, tf.float32)
    bounds = (tf.constant(bound, tf.float32) for bound in (lower, upper))
    found = primitives._client_tensor_shift_for_secure_sum(values, *bounds).numpy()
    assert (found - found[0]).tolist() == [0, 1, 1, 1000]


def _plan_of_sums(**options):
    stats_of_silos = sdp.SiloStats.from_ids(np.arange(40), np.arange(40) % 4)
    return sdp.federated.plan(
        sdp.HiGradAvg(0.5),
        sdp.PoissonItems(5),
        stats_of_silos,
        rounds=1,
        noise_multiplier=2.0,
        **options,
    )


def test_integers_that_are_coarse_beside_the_silos_noise_are_refused():
    plan = _plan_of_sums(view="average")
    client = as_tff_optimizer(tf.keras.optimizers.SGD(0.5), "client_optimizer")
    deviation = 0.5 * 2.0 * 0.5 / 5
    finest = deviation / 16 * (2**32 - 1) / 2

    def factor(upper, lower=None):
        sum_factory = tff.aggregators.SecureSumFactory(upper, lower)
        return server.rounding_factor(plan, sum_factory, client, 10**9)

    assert factor(0.999 * finest) == 1.0 and factor(10.0, -1.99 * finest + 10) == 1.0
    with pytest.raises(ValueError, match="round away the noises .* use SecureSumFactory") as error:
        factor(1.001 * finest)
    remedy = float(str(error.value).split("upper_bound_threshold=")[-1].split(")")[0])
    assert factor(remedy) == 1.0 and remedy > 0.99 * finest
    with pytest.raises(ValueError, match="round away"):
        factor(10.0, -2.01 * finest)


def test_what_rounding_adds_to_a_trusted_servers_sum_is_paid_in_noise(monkeypatch):
    plan = _plan_of_sums(noise_at="server")
    weights, most = 400, 0.01 * 0.5 / 20 * (2**32 - 1) / 2
    heard = []

    def noised(total, stddev, **options):
        heard.append(stddev)
        return [part / options["divisor"] for part in total]

    def model_fn():
        layers = [tf.keras.Input([weights]), tf.keras.layers.Dense(1, use_bias=False)]
        spec = (tf.TensorSpec([None, weights], tf.float32), tf.TensorSpec([None, 1], tf.float32))
        return sdp.federated.KerasSilo(tf.keras.Sequential(layers), "mse", spec)

    monkeypatch.setattr(server, "add_gaussian_noise", noised)
    for threshold, factor in ((None, 1.0), (0.5 * most, 1.005)):
        sums = None if threshold is None else tff.aggregators.SecureSumFactory(threshold)
        sdp.federated.build_process(model_fn, plan, sum_factory=sums)
        # A silo's sum moves by at most half a step to either side, in each of the weights.
        assert heard[-1] == pytest.approx(factor * 2.0 * 0.5, rel=1e-9)
    with pytest.raises(ValueError, match="clip norms to what a person may move"):
        sums = tff.aggregators.SecureSumFactory(1.01 * most)
        sdp.federated.build_process(model_fn, plan, sum_factory=sums)
