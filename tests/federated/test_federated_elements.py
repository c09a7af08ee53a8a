# SPDX-License-Identifier: Apache-2.0
"""ElementDP in silos against NumPy: sums, draws, bounds, what an element can move, and what is refused.

Statistical tests: n coins are off their rate by 6 sigma but for 2e-9 each.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp.federated import LocalWorkers, RemoteSilos, draws, silo_data, silo_rows
from tf_subjectdp.sampling.pairs import pair_codes

RHO, SILOS = 0.9, 2


class Table:
    """Two silos; people have up to three elements in each, most of them in both."""

    def __init__(self):
        rng = np.random.default_rng(5)
        rows = 60
        self.silo = np.arange(rows) % SILOS
        self.subject = rng.integers(0, 6, rows)
        self.element = rng.integers(0, 3, rows)
        self.x = rng.standard_normal((rows, 3)).astype(np.float32)
        self.y = rng.integers(0, 2, rows)
        self.stats = sdp.SiloStats.from_ids(self.subject, self.silo, element_id=self.element)

    def arrays(self, **changed):
        """A dict of arrays for each silo; whole columns may be exchanged, or rows left out."""
        keep = changed.pop("keep", np.ones(self.silo.size, bool))
        columns = {"x": self.x, "y": self.y, "element": self.element, **changed}
        return [
            collections.OrderedDict(
                x=columns["x"][rows],
                y=columns["y"][rows],
                subject_id=self.subject[rows],
                element_id=columns["element"][rows],
            )
            for rows in (keep & (self.silo == i) for i in range(SILOS))
        ]

    def groups(self, silo, subject=True, element=True):
        """The rows of each pair of a silo."""
        keys = [self.silo == silo]
        keys += [self.subject] if subject else []
        keys += [self.element] if element else []
        found = collections.defaultdict(list)
        for row, key in enumerate(zip(*keys, strict=True)):
            if key[0]:
                found[key].append(row)
        return list(found.values())

    def full(self, kind):
        """One sampler a silo at rate 1: no coins are tossed."""
        stats = [self.stats.silo(i) for i in range(SILOS)]
        size = {
            sdp.PoissonItems: lambda one: one.n_items,
            sdp.PoissonSubjects: lambda one: one.n_subjects,
            sdp.PoissonElements: lambda one: one.elements.n_elements,
        }[kind]
        return [kind(size(one)) for one in stats]


TABLE = Table()
KINDS = [sdp.PoissonSubjects, sdp.PoissonItems, sdp.PoissonElements]


def build(model_fn, sampling, algorithm=None, **options):
    options = {"rounds": 50, "noise_multiplier": 0.0, "delta": 1e-3, **options}
    plan = sdp.federated.plan(
        algorithm or sdp.ElementDP(RHO), sampling, options.pop("stats", TABLE.stats), **options
    )
    return sdp.federated.build_process(model_fn, plan)


def weights_of(process, state):
    return [np.asarray(w) for w in process.get_model_weights(state).trainable]


def flat(process, state):
    return np.concatenate([w.ravel() for w in weights_of(process, state)]).astype(np.float64)


def gradients(weights):
    """Softmax cross-entropy of a dense layer, row by row: [rows, weights]."""
    kernel, bias = (w.astype(np.float64) for w in weights)
    logits = TABLE.x @ kernel + bias
    p = np.exp(logits - logits.max(1, keepdims=True))
    d = p / p.sum(1, keepdims=True) - np.eye(2)[TABLE.y]
    return np.concatenate([(TABLE.x[:, :, None] * d[:, None]).reshape(len(d), -1), d], axis=1)


def element_sum(silo, weights):
    """Equation (8) of the paper, of all rows of a silo."""
    each, total = gradients(weights), 0.0
    for rows in TABLE.groups(silo):
        mean = each[rows].mean(axis=0)
        total = total + mean / max(1.0, np.linalg.norm(mean) / RHO)
    return total


def same(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)


@pytest.fixture(scope="module")
def items(model_fn):
    """Every silo's whole table is its batch, in two steps a round."""
    return build(model_fn, TABLE.full(sdp.PoissonItems), local_steps=2, rounds=500)


# -- the formula -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def full(request, model_fn):
    """Without noise, at rate 1: the process, and its silos in this one."""
    process = build(model_fn, TABLE.full(request.param), rounds=500)
    return process, sdp.federated.InProcessSilos(process)


def test_a_round_without_noise_is_the_papers_update(full):
    """In this process, and, of sampled elements (items: below), by TFF: both are the sum in NumPy."""
    process, silos = full
    ways = full if type(process.plan.samplings[0]) is sdp.PoissonElements else (silos,)
    assert [facts.rate for facts in process.plan.facts] == [1.0] * SILOS
    # The expected number of subjects: all of them.
    people = [len(TABLE.groups(i, element=False)) for i in range(SILOS)]
    assert process.plan.divisors == pytest.approx(people)
    start = process.initialize()
    weights = weights_of(process, start)
    step = sum(element_sum(i, weights) / people[i] for i in range(SILOS)) / SILOS
    means = [gradients(weights)[rows].mean(0) for i in range(SILOS) for rows in TABLE.groups(i)]
    clipped = np.linalg.norm(means, axis=1) > RHO
    assert 0.2 < clipped.mean() < 0.8
    for way in ways:
        state, metrics = way.next(start, TABLE.arrays())
        same(flat(process, state), flat(process, start) - step)
        assert metrics["silos"]["terms"] == clipped.size
        assert metrics["silos"]["clipped"] == clipped.sum()
        assert metrics["silos"]["items"] == 60 and metrics["silos"]["dropped"] == 0


def test_the_steps_of_a_round_follow_each_other_and_datasets_serve_as_well(items):
    start = items.initialize()
    moved = []
    for i in range(SILOS):
        weights = [w.astype(np.float64) for w in weights_of(items, start)]
        for _ in range(2):
            step = element_sum(i, weights) / items.plan.divisors[i]
            weights = [weights[0] - step[:6].reshape(3, 2), weights[1] - step[6:]]
        moved.append(np.concatenate([w.ravel() for w in weights]) - flat(items, start))
    wanted = flat(items, start) + sum(moved) / SILOS
    named = [
        {**one, "element_id": [f"topic {e}" for e in one["element_id"]]} for one in TABLE.arrays()
    ]
    datasets = [tf.data.Dataset.from_tensor_slices(one) for one in TABLE.arrays()]
    shuffled = [one.shuffle(60, seed=1) for one in datasets]
    for data in (TABLE.arrays(), datasets, shuffled):
        same(flat(items, items.next(start, data).state), wanted)
    # What elements are called does not matter, but it must be what the stats call them.
    spec = items.parts.input_spec
    for one, other in zip(named, TABLE.arrays(), strict=True):
        found = [silo_data.silo_tensors(rows, spec, "0", elements=True) for rows in (one, other)]
        assert len({tuple(tensors["element"].numpy()) for tensors in found}) == 1
        assert [tensors["element_dtype"] for tensors in found] == ["string", "int64"]
    before = items.spent(start)
    with pytest.raises(TypeError, match="silo '0' has string elements.*integer.*as_text"):
        items.next(start, named)
    assert items.spent(start) == before


def test_a_central_round_sums_and_divides_once(model_fn):
    process = build(
        model_fn,
        TABLE.full(sdp.PoissonElements),
        sdp.ElementDP(RHO, max_elements=3),
        noise_at="server",
        unit="subject",
    )
    start = process.initialize()
    total = sum(element_sum(i, weights_of(process, start)) for i in range(SILOS))
    state, _ = sdp.federated.InProcessSilos(process).next(start, TABLE.arrays())
    same(flat(process, state), flat(process, start) - total / sum(process.plan.divisors))


def test_an_absent_or_empty_silo_goes_on(items):
    start, data = items.initialize(), TABLE.arrays()
    both = flat(items, items.next(start, data).state) - flat(items, start)
    empty = {key: value[:0] for key, value in data[0].items()}
    for first in (None, empty, tf.data.Dataset.from_tensor_slices(data[0]).take(0)):
        alone = flat(items, items.next(start, [first, data[1]]).state) - flat(items, start)
        other = flat(items, items.next(start, [data[0], None]).state) - flat(items, start)
        same(alone + other, both)


def test_workers_of_their_own_get_the_elements(items):
    start = items.initialize()
    wanted, _ = items.next(start, TABLE.arrays())
    with LocalWorkers(1) as workers, RemoteSilos(items, workers.targets) as remote:
        found, _ = remote.next(start, TABLE.arrays())
    same(flat(items, found), flat(items, wanted))


# -- what an element can move ----------------------------------------------------------------------


def test_no_element_moves_the_servers_model_by_more_than_stated(full):
    """An element of one subject changes in ALL silos; coins are fixed (rate 1), there is one step."""
    process, silos = full
    start = process.initialize()
    whole = flat(process, silos.next(start, TABLE.arrays()).state)
    largest = 0.0
    for subject, element in ((0, 0), (1, 2), (4, 1)):
        own = (TABLE.subject == subject) & (TABLE.element == element)
        away = np.where(own[:, None], -30.0 * TABLE.x, TABLE.x).astype(np.float32)
        other = np.where(own, 1 - TABLE.y, TABLE.y)
        for clips, changed in (
            (2, {"x": away}),
            (2, {"x": away, "y": other}),
            (1, {"keep": ~own}),
            # Under another name, that nobody has.
            (2, {"x": away, "y": other, "element": np.where(own, 7, TABLE.element)}),
        ):
            after = flat(process, silos.next(start, TABLE.arrays(**changed)).state)
            there = [i for i in range(SILOS) if own[TABLE.silo == i].any()]
            bound = sum(clips * RHO / process.plan.divisors[i] / SILOS for i in there)
            moved = np.linalg.norm(after - whole)
            assert 0.0 < moved <= bound * (1 + 1e-5)
            largest = max(largest, moved / bound)
    assert largest > 0.5  # the bound is of the right size


# -- draws and bounds ------------------------------------------------------------------------------


def test_every_element_of_a_subject_has_a_coin_of_its_own():
    # 20 people with two elements of 2 and 3 rows.
    subject = tf.constant(np.repeat(np.arange(20), 5), tf.int64)
    pair = tf.constant(np.repeat(np.arange(40), np.tile([2, 3], 20)), tf.int64)
    rate, size, cap = tf.constant(0.3, tf.float64), tf.constant(0, tf.int64), tf.constant(1)

    @tf.function
    def rows(seed):
        return draws.rows_of_step(sdp.PoissonElements, rate, size, cap, subject, seed, pair)

    rng = np.random.default_rng(0)
    drawn = np.zeros([2000, 40])
    for at, seed in enumerate(rng.integers(-(2**62), 2**62, [2000, 2])):
        found = rows(tf.constant(seed, tf.int64)).numpy()
        assert (np.diff(found) > 0).all()
        drawn[at] = np.bincount(pair.numpy()[found], minlength=40) / np.tile([2, 3], 20)
    assert set(np.unique(drawn)) == {0.0, 1.0}  # all rows of an element, or none
    assert np.abs(drawn.mean(0) - 0.3).max() < 6 * np.sqrt(0.21 / 2000)
    # 780 pairs of coins, those of one subject among them.
    correlations = np.corrcoef(drawn.T)[np.triu_indices(40, 1)]
    assert np.abs(correlations).max() < 6.5 / np.sqrt(2000)
    with pytest.raises(ValueError, match="PoissonElements is not drawn"):
        draws.rows_of_step(
            sdp.PoissonElements, rate, size, cap, subject, tf.constant([1, 2], tf.int64)
        )


def test_bounds_on_elements_drop_whole_elements_and_rows_at_random():
    subject = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 2])
    pair = np.array([0, 0, 1, 2, 2, 2, 3, 3, 3, 4])
    arguments = tf.constant(subject, tf.int64), tf.constant(pair, tf.int64)

    def seen(max_elements, max_items):
        @tf.function
        def kept_rows():
            return draws.bound_elements(*arguments, max_elements, max_items)

        found = collections.Counter()
        for _ in range(600):
            kept = kept_rows().numpy()
            assert (np.diff(kept) > 0).all()
            for group, most in ((pair, max_items), (subject, None)):
                assert most is None or np.bincount(group[kept]).max() <= most
            if max_elements is not None:
                elements = {(s, p) for s, p in zip(subject[kept], pair[kept], strict=True)}
                owners = np.bincount([s for s, _ in elements], minlength=3)
                assert owners.tolist() == np.minimum([3, 1, 1], max_elements).tolist()
            if max_items is None:  # what stays stays whole
                assert set(pair[np.setdiff1d(np.arange(10), kept)]).isdisjoint(pair[kept])
            found.update(kept.tolist())
        return np.array([found[row] / 600 for row in range(10)])

    assert seen(None, None).tolist() == [1.0] * 10
    assert seen(3, 3).tolist() == [1.0] * 10
    # Two of the three elements of subject 0, whatever their sizes; sigma is at most 0.5 / sqrt(600).
    shares = seen(2, None)
    assert np.abs(shares[:6] - 2 / 3).max() < 6 * np.sqrt(2 / 9 / 600)
    assert shares[6:].tolist() == [1.0] * 4
    # Two of three rows of elements 2 and 3.
    shares = seen(None, 2)
    assert np.abs(shares[[3, 4, 5, 6, 7, 8]] - 2 / 3).max() < 6 * np.sqrt(2 / 9 / 600)
    assert shares[[0, 1, 2, 9]].tolist() == [1.0] * 4
    both = seen(1, 1)
    wanted = np.array([1 / 6, 1 / 6, 1 / 3, 1 / 9, 1 / 9, 1 / 9, 1 / 3, 1 / 3, 1 / 3, 1.0])
    assert np.all(np.abs(both - wanted) <= 6 * np.sqrt(wanted * (1 - wanted) / 600))
    nobody = tf.zeros([0], tf.int64)
    assert draws.bound_elements(nobody, nobody, 2, 2).numpy().size == 0


def test_pairs_are_numbered_whatever_the_elements_are_called():
    rng = np.random.default_rng(1)
    subject, element = (
        rng.integers(0, 5, 40),
        rng.integers(-(2**62), 2**62, 4)[rng.integers(0, 4, 40)],
    )
    found = draws.number_pairs(tf.constant(subject), tf.constant(element)).numpy()
    _, wanted = np.unique(np.stack([subject, element]), axis=1, return_inverse=True)
    assert len(set(zip(found, wanted.ravel(), strict=True))) == found.max() + 1 == wanted.max() + 1
    assert draws.largest_group(tf.constant(found)).numpy() == np.bincount(found).max()
    assert draws.largest_group(tf.zeros([0], tf.int64)).numpy() == 0


def test_silos_enforce_the_bounds_afresh_in_each_round(model_fn):
    algorithm = sdp.ElementDP(RHO, max_elements=2, max_items_per_element=1)
    process = build(model_fn, TABLE.full(sdp.PoissonSubjects), algorithm)
    silos = sdp.federated.InProcessSilos(process)
    start = process.initialize()
    people = [TABLE.groups(i, element=False) for i in range(SILOS)]
    wanted = sum(min(len(set(TABLE.element[rows])), 2) for one in people for rows in one)
    moved = []
    for _ in range(3):
        state, metrics = silos.next(start, TABLE.arrays())
        counts = metrics["silos"]
        assert counts["terms"] == counts["items"] == wanted and counts["dropped"] == 60 - wanted
        moved.append(flat(process, state))
    assert np.abs(np.diff(moved, axis=0)).max(axis=1).min() > 1e-4


def test_a_subjects_items_are_bounded_where_that_is_promised():
    plan = sdp.federated.plan(
        sdp.ElementDP(RHO, max_elements=3),
        sdp.PoissonSubjects(4),
        TABLE.stats,
        rounds=2,
        unit="subject",
        max_items_per_subject=2,
        noise_multiplier=1.0,
    )
    own = TABLE.silo == 0
    subject, element = TABLE.subject[own], TABLE.element[own]
    data = {"x": TABLE.x[own], "y": TABLE.y[own]}
    data.update(subject=tf.constant(subject), element=tf.constant(element))
    most = tf.constant(plan.facts[0].max_items), tf.constant(1, tf.int64)
    # Elements have more than one item, but that is what a bound was read from the data for.
    with pytest.raises(tf.errors.InvalidArgumentError, match="an element of a subject"):
        silo_rows.rows_that_stay(plan, data, *most)
    rows = silo_rows.rows_that_stay(plan, data, most[0], tf.constant(99, tf.int64))
    held = np.bincount(subject, minlength=6)
    assert np.bincount(rows.subject, minlength=6).tolist() == np.minimum(held, 2).tolist()
    assert rows.subject.numpy().tolist() == subject[rows.kept.numpy()].tolist()
    named = list(zip(rows.subject.numpy(), element[rows.kept.numpy()], strict=True))
    assert len(set(named)) == len(set(rows.pair.numpy())) == rows.pair.numpy().max() + 1
    assert len(set(zip(named, rows.pair.numpy(), strict=True))) == len(set(named))


def test_sampled_elements_with_noise_are_counted(model_fn):
    process = build(
        model_fn,
        sdp.PoissonElements(5),
        sdp.ElementDP(RHO, max_elements=2),
        epsilon=4.0,
        noise_multiplier=None,
        rounds=3,
        local_steps=2,
    )
    state = process.initialize()
    assert process.epsilon(state) == 0.0
    for way in (process, sdp.federated.InProcessSilos(process)):
        before = flat(process, state)
        state, metrics = way.next(state, TABLE.arrays())
        assert np.abs(flat(process, state) - before).min() > 0.0
        assert metrics["silos"]["steps"] == 4 and metrics["silos"]["terms"] < 40
    spent = sdp.federated.Spent(2, (2, 2))
    for unit in ("element", "subject"):
        wanted = process.plan.epsilon(unit=unit, spent=spent)
        assert process.epsilon(state, unit=unit) == wanted > 0.0
        # From the state alone, as after a restart.
        assert sdp.federated.epsilon_of(state, unit=unit) == wanted
    assert process.epsilon(state) == process.plan.epsilon(spent=spent) < process.plan.epsilon()
    assert sdp.federated.plan_of(state) == process.plan
    text = " ".join(process.statement(state).split())
    assert "2 of 3 planned rounds run" in text
    assert "Per element: epsilon = " in text and "Per subject: epsilon = " in text
    figures = sdp.federated.round_metrics(process, state, metrics)
    assert figures["epsilon"] == process.epsilon(state)
    sigma = process.plan.noise_multipliers[0]
    wanted = metrics["silos"]["signal"] / 4 / (sigma * RHO * np.sqrt(8))
    assert figures["signal_to_noise"] == pytest.approx(wanted)
    shown = sdp.federated.subject_epsilons(process, state)
    assert 0.0 < shown["subject_epsilon_100"] <= process.epsilon(state, unit="subject") * 1.001


# -- what is refused -------------------------------------------------------------------------------


def test_rows_need_an_element_exactly_where_it_counts(items):
    state, data = items.initialize(), TABLE.arrays()
    before = items.spent(state)
    without = [{k: v for k, v in one.items() if k != "element_id"} for one in data]
    rows = tf.data.Dataset.from_tensor_slices(data[0])
    paired = rows.map(lambda row: {**row, "element_id": tf.stack([row["element_id"]] * 2)})
    for wrong, match in (
        (without, "x, y, subject_id .* and element_id"),
        ([tf.data.Dataset.from_tensor_slices(one) for one in without], "and element_id"),
        ([rows.batch(4), None], "it is batched"),
        ([paired, None], r"has element_id of shape \(2,\): it is batched"),
        ([{**data[0], "element_id": data[0]["element_id"][1:]}, None], "silo '0': element_id has"),
        ([{**data[0], "element_id": [None] * 30}, None], "silo '0': element_id: "),
        ([{**data[0], "element_id": np.full(30, 0.5)}, None], "silo '0': element_id: "),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            items.next(state, wrong)
    assert items.spent(state) == before
    with pytest.raises(ValueError, match="takes no elements, plan with ElementDP"):
        silo_data.silo_tensors(data[0], items.parts.input_spec, "0")


def test_data_that_break_counted_figures_are_refused_also_by_the_computation(items):
    state, data = items.initialize(), TABLE.arrays()
    rows = TABLE.groups(0)
    largest = max(rows, key=len)
    own = np.flatnonzero(TABLE.silo == 0).tolist().index(largest[0])
    repeated = {
        key: np.concatenate([v, np.repeat(v[own : own + 1], 9, 0)]) for key, v in data[0].items()
    }
    spread = {**repeated, "element_id": np.arange(39) % 20}
    spec = items.parts.input_spec
    for wrong, match in (
        (repeated, "has a subject with .* above the plan's k="),
        (spread, "has a subject with .* above the plan's k="),
        ({**data[0], "element_id": np.zeros(30, int)}, "has an element of a subject with"),
    ):
        with pytest.raises(ValueError, match=f"{match}.*the guarantee would not cover them"):
            items.next(state, [wrong, None])
        tensors = silo_data.silo_tensors(wrong, spec, "0", elements=True)
        with pytest.raises(Exception, match="and the plan was made for at most"):
            items.next.computation(state, [silo_data.tagged(0, tensors)])


def test_another_number_of_elements_is_told(caplog):
    plan = sdp.federated.plan(
        sdp.ElementDP(RHO, max_items_per_element=9),
        sdp.PoissonElements(5),
        TABLE.stats,
        rounds=2,
        noise_multiplier=1.0,
    )
    subject, element = TABLE.subject[TABLE.silo == 0], TABLE.element[TABLE.silo == 0]
    for elements, told in ((element, False), (np.zeros_like(element), True)):
        pairs, _ = pair_codes(subject, elements)
        tensors = {"subject": tf.constant(subject), "element": tf.constant(pairs)}
        silo_data.check_rows(tensors, plan, 0)
        wanted = "has another number of elements than the plan was made for"
        assert (wanted in caplog.text) == told


def test_what_leaves_a_silo_are_numbers_of_pairs(items):
    spec = items.parts.input_spec
    table = {
        "x": np.zeros([5, 3], np.float32),
        "y": [0, 1, 0, 1, 1],
        "subject_id": ["Ann", "Bo", "ann ", "bo", "Bo"],
        "element_id": ["sea", "sea", "hill", "hill", "sea"],
    }
    plain = silo_data.silo_tensors(table, spec, "a", elements=True)
    assert plain["element"].dtype == tf.int64
    assert len(set(plain["element"].numpy())) == 4
    key = lambda ids: np.char.lower(np.char.strip(ids.astype(str)))  # noqa: E731
    merged = silo_data.silo_tensors(table, spec, "a", key, elements=True)
    wanted, _ = pair_codes(np.array([0, 1, 0, 1, 1]), np.array([0, 0, 1, 1, 0]))
    assert merged["subject"].numpy().tolist() == [0, 1, 0, 1, 1]
    assert merged["element"].numpy().tolist() == wanted.tolist()
    assert list(silo_data.tagged(0, merged)) == ["silo", "x", "y", "subject", "element"]


def test_single_subjects_need_a_bound_on_their_elements(items):
    with pytest.raises(ValueError, match="max_elements.*distribution_every=0"):
        sdp.federated.subject_epsilons(items, items.initialize())


def test_silos_whose_elements_are_unlike_are_refused_where_the_stats_know_none(model_fn):
    stats = sdp.SiloStats.from_ids(TABLE.subject, TABLE.silo)
    process = build(model_fn, sdp.PoissonSubjects(3), sdp.ElementDP(RHO, 2), stats=stats)
    start = process.initialize()
    data = TABLE.arrays()
    data[1]["element_id"] = data[1]["element_id"].astype(str)
    with pytest.raises(TypeError, match="silo '0' has int64 elements and silo '1' has string"):
        process.next(start, data)
    assert process.spent(start).rounds == 0
