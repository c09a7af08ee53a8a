# SPDX-License-Identifier: Apache-2.0
"""A step without noise against the papers' lines, written here with one gradient a row and loops.

Nothing of the package's grouping, clipping or summing is used by the oracle.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tf_subjectdp as sdp
from tf_subjectdp.algorithms import (
    GroupDP,
    HiGradAvg,
    ItemDP,
    SamplingFacts,
    SubjectDP,
    UserLDP,
)
from tf_subjectdp.clipping import BatchPartition, EngineOptions, clipped_sum
from tf_subjectdp.keras import compat

FALSE_ALARM = 1e-6
SIZES = (1, 2, 5, 20)
MASKED = 2
B, S = 24.0, 3.5
FACTS = SamplingFacts(
    scheme="poisson_items", rate=0.1, n_items=240, n_subjects=30, batch_size=B,
    expected_subjects=S, max_items=20,
)  # fmt: skip


# -- the papers' lines -----------------------------------------------------------------------------


def clip(g, c):
    return g / max(1.0, np.linalg.norm(g) / c)


def groups(gradients, subject):
    for a in sorted(set(subject)):
        yield [g for g, owner in zip(gradients, subject, strict=True) if owner == a]


def item_dp(gradients, subject, c):
    """Abadi et al. 2016, Algorithm 1: (sum_i clip(g_i)) / B."""
    return sum(clip(g, c) for g in gradients) / B


def hi_grad_avg(gradients, subject, c):
    """Marathe et al. 2022, Algorithm 1, lines 8, 10, 12: the mean of clipped items a subject, / B."""
    total = 0.0
    for items in groups(gradients, subject):
        total = total + sum(clip(g, c) for g in items) / len(items)
    return total / B


def hi_grad_avg_2023(gradients, subject, c):
    """2023 text, Algorithm 2, line 14, with the expected number of subjects."""
    return hi_grad_avg(gradients, subject, c) * B / S


def subject_dp(gradients, subject, c):
    """Average a subject's gradients, clip the average, sum, divide by S."""
    return sum(clip(sum(items) / len(items), c) for items in groups(gradients, subject)) / S


def user_ldp(gradients, subject, c):
    """Clip the mean gradient of the whole batch."""
    return clip(sum(gradients) / len(gradients), c)


RULES = {
    "ItemDP": (ItemDP, {}, item_dp),
    "HiGradAvg": (HiGradAvg, {}, hi_grad_avg),
    "HiGradAvg, 2023": (HiGradAvg, {"normalization": "expected_subjects"}, hi_grad_avg_2023),
    "GroupDP": (GroupDP, {}, item_dp),
    "GroupDP, cap of the largest": (GroupDP, {"max_items_per_subject": 20}, item_dp),
    "SubjectDP": (SubjectDP, {}, subject_dp),
    "UserLDP": (UserLDP, {}, user_ldp),
}


# -- models ----------------------------------------------------------------------------------------

LAYERS = tf.keras.layers


def dense():
    return [LAYERS.Dense(5, "tanh"), LAYERS.Dense(3)]


def conv():
    return [LAYERS.Conv2D(2, 3, activation="relu"), LAYERS.Flatten(), LAYERS.Dense(3)]


def embedding():
    return [LAYERS.Embedding(7, 3), LAYERS.Flatten(), LAYERS.Dense(3)]


def recurrent(layer):
    return [LAYERS.Embedding(7, 3), layer, LAYERS.Dense(3)]


MODELS = {
    "Dense": (dense, (6,)),
    "Conv2D": (conv, (6, 6, 1)),
    "Embedding": (embedding, (4,)),
    "LSTM, unrolled": (lambda: recurrent(LAYERS.LSTM(3, unroll=True)), (4,)),
    "LSTM": (lambda: recurrent(LAYERS.LSTM(3)), (4,)),
    "GRU": (lambda: recurrent(LAYERS.GRU(3)), (4,)),
}


class Setting:
    """A model, a batch of subjects of all sizes in mixed order, and one gradient a row."""

    def __init__(self, name):
        layers, shape = MODELS[name]
        tf.keras.utils.set_random_seed(3)
        rng = np.random.default_rng(4)
        count = sum(SIZES) + MASKED
        self.subject = rng.permutation(np.repeat([11, -5, 7, 2**33, 99], (*SIZES, MASKED)))
        self.mask = self.subject != 99
        if len(shape) == 1 and name != "Dense":
            self.x = rng.integers(0, 7, (count, *shape)).astype(np.int32)
            self.x[:, 1] = self.x[:, 0]  # an id that repeats inside one row
        else:
            self.x = rng.normal(size=(count, *shape)).astype(np.float32)
        self.y = rng.integers(0, 3, count).astype(np.int32)
        start = tf.keras.Input(shape, dtype=self.x.dtype.name)
        self.model = tf.keras.Sequential([start, *layers()])
        self.variables = [compat.raw(v) for v in self.model.trainable_variables]
        for variable in self.variables:  # no bias at zero, no gradient too small to compare
            variable.assign(rng.normal(size=variable.shape).astype(np.float32))
        self.spec = (
            tf.TensorSpec([None, *shape], self.x.dtype),
            tf.TensorSpec([None], tf.int32),
        )
        self.gradients = self._one_gradient_a_row()

    def row_function(self, rows):
        x, y = rows
        logits = self.model(x, training=True)
        loss = tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        return loss, logits

    def _one_gradient_a_row(self):
        @tf.function
        def of_row(x, y):
            with tf.GradientTape() as tape:
                loss = self.row_function((x, y))[0][0]
            return [tf.convert_to_tensor(g) for g in tape.gradient(loss, self.variables)]

        return [
            flat(of_row(self.x[i : i + 1], self.y[i : i + 1])) for i in np.flatnonzero(self.mask)
        ]

    def expected(self, rule, c):
        return rule(self.gradients, self.subject[self.mask].tolist(), c)

    def clip_norm(self):
        """Half of the rows are clipped."""
        return float(np.median([np.linalg.norm(g) for g in self.gradients]))

    @functools.cache  # noqa: B019 - one trace for all algorithms of a kind; dies with the module
    def engine(self, strategy, linear, max_rows):
        vector = tf.TensorSpec([None], tf.float32)
        groups = tf.TensorSpec([None], tf.int32)

        @tf.function(
            input_signature=[*self.spec, groups, vector, vector, tf.TensorSpec([], tf.float32)]
        )
        def run(x, y, group, item_scale, group_scale, c):
            return clipped_sum(
                self.row_function,
                self.variables,
                (x, y),
                BatchPartition(group, item_scale, group_scale, linear),
                c,
                strategy=strategy,
                options=EngineOptions(max_rows=max_rows),
            ).total

        return run


def flat(tensors):
    return np.concatenate([np.ravel(t).astype(np.float64) for t in tensors])


def assert_close(found, expected):
    assert np.linalg.norm(expected) > 1e-3
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.linalg.norm(expected), rtol=0)


_settings = functools.cache(Setting)


@pytest.fixture(scope="module", autouse=True)
def traces():
    yield
    Setting.engine.cache_clear()
    _settings.cache_clear()


CASES = [
    ("Dense", "vectorized", 1024),
    ("Dense", "vectorized", 3),
    ("Dense", "loop", 3),
    ("Conv2D", "vectorized", 1024),
    ("Conv2D", "loop", 1024),
    ("Embedding", "vectorized", 3),
    ("Embedding", "loop", 3),
    ("LSTM, unrolled", "vectorized", 1024),
    ("LSTM", "loop", 1024),
    ("GRU", "loop", 3),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["linear", "grouped"])
@pytest.mark.parametrize(("name", "strategy", "max_rows"), CASES)
def test_the_sum_over_its_divisor_equals_the_papers_lines(name, strategy, max_rows, kind):
    setting = _settings(name)
    for algorithm_type, options, rule in RULES.values():
        if algorithm_type.kind != kind:
            continue
        clip_norms = [setting.clip_norm()]
        if kind == "grouped":
            clip_norms = [0.3 * clip_norms[0], 1e3]
        for c in clip_norms:
            algorithm = algorithm_type(c, **options)
            partition = algorithm.partition(tf.constant(setting.subject), tf.constant(setting.mask))
            assert partition.linear == (kind == "linear")
            run = setting.engine(strategy, partition.linear, max_rows)
            total = run(setting.x, setting.y, *partition[:3], algorithm.clip_norm)
            found = flat(total) / algorithm.divisor(FACTS)
            assert_close(found, setting.expected(rule, c))


@pytest.mark.parametrize("name", RULES)
def test_a_step_of_the_optimizer_without_noise_moves_the_weights_by_the_papers_lines(name):
    algorithm_type, options, rule = RULES[name]
    setting = _settings("Dense")
    algorithm = algorithm_type(0.5 * setting.clip_norm(), **options)
    optimizer = sdp.DPOptimizer(
        tf.keras.optimizers.SGD(1.0),
        algorithm,
        noise_multiplier=0.0,
        divisor=algorithm.divisor(FACTS),
    )
    before = [v.numpy() for v in setting.variables]
    sdp.private_step(
        optimizer,
        setting.row_function,
        setting.model.trainable_variables,
        (setting.x, setting.y),
        {"subject": setting.subject, "mask": setting.mask},
        strategy="vectorized",
    )
    moved = flat(before) - flat([v.numpy() for v in setting.variables])
    for variable, value in zip(setting.variables, before, strict=True):
        variable.assign(value)
    assert optimizer.steps_taken == 1
    assert_close(moved, setting.expected(rule, algorithm.clip_norm))


@pytest.mark.parametrize("strategy", ["vectorized", "loop"])
@pytest.mark.parametrize("cap", [1, 3, 7])
def test_a_cap_in_the_batch_keeps_z_items_of_a_subject_when_all_of_them_are_equal(cap, strategy):
    setting = _settings("Dense")
    first = {a: int(np.flatnonzero(setting.subject == a)[0]) for a in set(setting.subject)}
    same = np.array([first[a] for a in setting.subject])
    place = {int(row): at for at, row in enumerate(np.flatnonzero(setting.mask))}
    c = setting.clip_norm()
    expected = sum(
        min(size, cap) * clip(setting.gradients[place[first[a]]], c)
        for a, size in zip((11, -5, 7, 2**33), SIZES, strict=True)
    )
    algorithm = GroupDP(c, max_items_per_subject=cap)
    partition = algorithm.partition(tf.constant(setting.subject), tf.constant(setting.mask))
    run = setting.engine(strategy, True, 3)
    total = run(setting.x[same], setting.y[same], *partition[:3], c)
    assert_close(flat(total), expected)


# -- models of several inputs or outputs, through Keras's fit ----------------------------------------


def two_inputs():
    a, b = tf.keras.Input((4,), name="a"), tf.keras.Input((3,), name="b")
    joined = LAYERS.Concatenate()([LAYERS.Dense(3, "tanh")(a), b])
    return tf.keras.Model({"a": a, "b": b}, LAYERS.Dense(3)(joined))


def two_outputs():
    a = tf.keras.Input((4,), name="a")
    hidden = LAYERS.Dense(4, "tanh")(a)
    outputs = [LAYERS.Dense(1, name="value")(hidden), LAYERS.Dense(3, name="label")(hidden)]
    return tf.keras.Model(a, outputs)


def category(y, logits):
    return tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)


@pytest.mark.parametrize(
    ("build", "by_fit"), [(two_inputs, "HiGradAvg"), (two_outputs, "SubjectDP")]
)
def test_steps_and_fit_of_a_model_of_two_inputs_or_outputs_are_the_papers_lines(build, by_fit):
    rng = np.random.default_rng(6)
    subject = rng.permutation(np.repeat([1, 2, 3], (1, 4, 7)))
    count = len(subject)
    a, b = (rng.normal(size=(count, width)).astype(np.float32) for width in (4, 3))
    label, value = rng.integers(0, 3, count), rng.normal(size=(count, 1)).astype(np.float32)
    tf.keras.utils.set_random_seed(8)
    model = build()
    if build is two_inputs:
        x, y, loss = {"a": a, "b": b}, label, category
    else:
        x, y = a, (value, label)
        loss = ["mse", category]
    gradients = []
    for i in range(count):
        with tf.GradientTape() as tape:
            found = model(tf.nest.map_structure(lambda t, i=i: t[i : i + 1], x), training=True)
            if build is two_inputs:
                row_loss = category(label[i : i + 1], found)[0]
            else:
                row_loss = (found[0][0, 0] - value[i, 0]) ** 2
                row_loss += category(label[i : i + 1], found[1])[0]
        gradients.append(flat(tape.gradient(row_loss, model.trainable_variables)))
    c = 0.7 * float(np.median([np.linalg.norm(g) for g in gradients]))

    def row_function(rows):
        x, y = rows
        found = model(x, training=True)
        if build is two_inputs:
            return category(y, found), found
        return (found[0][:, 0] - y[0][:, 0]) ** 2 + category(y[1], found[1]), found

    start = model.get_weights()
    for name, (algorithm_type, options, rule) in RULES.items():
        algorithm = algorithm_type(c, **options)
        optimizer = sdp.DPOptimizer(
            tf.keras.optimizers.SGD(1.0),
            algorithm,
            noise_multiplier=0.0,
            divisor=algorithm.divisor(FACTS),
        )
        expected = rule(gradients, subject.tolist(), c)
        model.set_weights(start)
        sdp.private_step(
            optimizer,
            row_function,
            model.trainable_variables,
            (x, y),
            {"subject": subject},
            strategy="loop",
        )
        assert_close(flat(start) - flat(model.trainable_variables), expected)
        if name == by_fit:
            private = sdp.PrivateModel(model)
            private.compile(optimizer=optimizer, loss=loss)
            model.set_weights(start)
            batch = (x, y, {"subject": subject})
            private.fit(tf.data.Dataset.from_tensor_slices(batch).batch(count), verbose=0)
            assert_close(flat(start) - flat(model.trainable_variables), expected)


# -- the scale of the noise, and batches without rows --------------------------------------------------


@pytest.mark.parametrize("max_rows", [1024, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_one_update_has_noise_sigma_c_over_b_however_the_batch_is_cut_or_empty(masked, max_rows):
    sigma, c, rows = 1.7, 0.6, 10
    optimizer = sdp.DPOptimizer(
        tf.keras.optimizers.SGD(1.0),
        HiGradAvg(c),
        noise_multiplier=sigma,
        divisor=B,
        engine={"max_rows": max_rows},
    )
    layer = LAYERS.Dense(2000, use_bias=False, kernel_initializer="zeros")
    layer.build((None, 2))

    def zero_gradient(rows):
        return 0.0 * tf.reduce_sum(layer(rows), axis=1), ()

    sdp.private_step(
        optimizer,
        zero_gradient,
        [layer.kernel],
        tf.ones([rows, 2]),
        {"subject": tf.range(rows) // 4, "mask": tf.fill([rows], not masked)},
        strategy="vectorized",
    )
    moved = flat([layer.kernel])
    low, high = stats.chi2(moved.size).ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2])
    assert low < np.sum((moved * B / (sigma * c)) ** 2) < high
    assert optimizer.steps_taken == 1


@pytest.mark.parametrize("kind", ["linear", "grouped"])
def test_a_batch_of_no_rows_at_all_adds_nothing(kind):
    setting = _settings("Dense")
    for algorithm_type, options, _ in RULES.values():
        if algorithm_type.kind == kind:
            partition = algorithm_type(1.0, **options).partition(
                tf.zeros([0], tf.int64), tf.zeros([0], tf.bool)
            )
            run = setting.engine("vectorized", partition.linear, 3)
            total = run(setting.x[:0], setting.y[:0], *partition[:3], 1.0)
            assert not np.any(flat(total))
