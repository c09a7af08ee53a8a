# SPDX-License-Identifier: Apache-2.0
"""The LSTM and GRU scans against Keras's layers, plain loops under a tape, and finite differences."""

import numpy as np
import pytest
import tensorflow as tf

from tf_subjectdp.clipping.norm_only.scans import gru_inner_gradient, gru_scan, lstm_scan

T, N, U = 6, 5, 4
KINDS = ("lstm", "gru", "gru_before")
GATES = {"lstm": 4, "gru": 3, "gru_before": 3}
# Rows: all real, leading, trailing and middle steps masked, all masked.
MASK = np.array(
    [
        [1, 1, 1, 1, 1, 1],
        [0, 0, 1, 1, 0, 1],
        [1, 1, 1, 0, 0, 0],
        [1, 0, 1, 1, 0, 1],
        [0, 0, 0, 0, 0, 0],
    ],
    bool,
).T


def problem(kind, steps=T, rows=N, units=U, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    width = GATES[kind] * units

    def normal(*shape):
        return rng.normal(size=shape).astype(dtype)

    return {
        "z": normal(steps, rows, width),
        "kernel": normal(units, width),
        "bias": normal(width),
        "h0": normal(rows, units),
        "c0": normal(rows, units),
        "probe": normal(steps, rows, width),
    }


def scanned(kind, p, mask=None, probe=True):
    if kind == "lstm":
        return lstm_scan(p["z"], p["kernel"], p["h0"], p["c0"], mask)
    if kind == "gru":
        extra = p["probe"] if probe else None
        return gru_scan(p["z"], p["kernel"], p["bias"], p["h0"], mask, extra)
    return gru_scan(p["z"], p["kernel"], None, p["h0"], mask, reset_after=False)


def plain(kind, p, mask=None):
    """The recurrences as they are written in books, one Python iteration a step, for any tape."""
    kernel, h, c = p["kernel"], p["h0"], p["c0"]
    units = kernel.shape[0]
    output, outputs, previous, resets, inputs = tf.zeros_like(h), [], [], [], []
    for t in range(p["z"].shape[0]):
        z = p["z"][t]
        part = [slice(k * units, (k + 1) * units) for k in range(GATES[kind])]
        new_c = c
        reset, received = h, h
        if kind == "lstm":
            i, f, g, o = (z[:, s] + tf.matmul(h, kernel[:, s]) for s in part)
            new_c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            new_h = tf.sigmoid(o) * tf.tanh(new_c)
        elif kind == "gru":
            inner = tf.matmul(h, kernel) + p["bias"] + p["probe"][t]
            update = tf.sigmoid((z + inner)[:, part[0]])
            reset = tf.sigmoid((z + inner)[:, part[1]])
            new_h = tf.tanh(z[:, part[2]] + reset * inner[:, part[2]])
            new_h = update * h + (1 - update) * new_h
        else:
            update = tf.sigmoid(z[:, part[0]] + tf.matmul(h, kernel[:, part[0]]))
            reset = tf.sigmoid(z[:, part[1]] + tf.matmul(h, kernel[:, part[1]]))
            received = reset * h
            new_h = tf.tanh(z[:, part[2]] + tf.matmul(received, kernel[:, part[2]]))
            new_h = update * h + (1 - update) * new_h
        previous.append(h)
        resets.append(reset)
        inputs.append(received)
        if mask is None:
            output, h, c = new_h, new_h, new_c
        else:
            real = mask[t][:, None]
            output = tf.where(real, new_h, output)
            h, c = tf.where(real, new_h, h), tf.where(real, new_c, c)
        outputs.append(output)
    named = {
        "h": tf.stack(outputs),
        "h_previous": tf.stack(previous),
        "last_h": h,
        "last_output": output,
    }
    if kind == "lstm":
        return named | {"last_c": c}
    return named | {"reset": tf.stack(resets), "candidate_input": tf.stack(inputs)}


def differentiable(kind):
    return {"lstm": ("z", "h0", "c0"), "gru": ("z", "h0", "probe"), "gru_before": ("z", "h0")}[kind]


def loss_of(states, weights):
    return tf.add_n([tf.reduce_sum(states[k] * tf.cast(w, states[k].dtype)) for k, w in weights])


def loss_weights(kind, steps=T, rows=N, units=U, seed=9):
    rng = np.random.default_rng(seed)
    shapes = {"h": (steps, rows, units), "last_h": (rows, units), "last_output": (rows, units)}
    if kind == "lstm":
        shapes["last_c"] = (rows, units)
    return [(k, rng.normal(size=s)) for k, s in shapes.items()]


def values_and_gradients(function, kind, p, weights):
    p = {k: tf.convert_to_tensor(v) for k, v in p.items()}
    sources = {k: p[k] for k in differentiable(kind)}
    with tf.GradientTape() as tape:
        tape.watch(sources)
        states = function(p)
        states = states if isinstance(states, dict) else states._asdict()
        loss = loss_of(states, weights)
    return states, tape.gradient(loss, sources)


def assert_close(got, expected, tolerance=1e-5):
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        a, b = np.asarray(got[key], np.float64), np.asarray(value, np.float64)
        assert a.shape == b.shape, key
        error = np.linalg.norm(a - b)
        assert error <= tolerance * np.linalg.norm(b) + 1e-30, (key, error)


@pytest.mark.parametrize("mask", [None, MASK], ids=["unmasked", "masked"])
@pytest.mark.parametrize("kind", KINDS)
def test_states_and_gradients_equal_those_of_a_plain_loop(kind, mask):
    p, weights = problem(kind), loss_weights(kind)
    got = values_and_gradients(
        tf.function(lambda p: scanned(kind, p, mask)._asdict()), kind, p, weights
    )
    expected = values_and_gradients(lambda p: plain(kind, p, mask), kind, p, weights)
    for a, b in zip(got, expected, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("mask", [None, MASK], ids=["unmasked", "masked"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_finite_differences(kind, mask):
    p = problem(kind, dtype=np.float64)
    weights = loss_weights(kind)
    _, gradients = values_and_gradients(lambda p: scanned(kind, p, mask), kind, p, weights)
    step = 1e-5

    @tf.function
    def loss(p):
        return loss_of(scanned(kind, p, mask)._asdict(), weights)

    rng = np.random.default_rng(3)
    for name, gradient in gradients.items():
        for _ in range(4):
            direction = rng.normal(size=p[name].shape)
            up, down = (
                float(loss({k: tf.constant(v) for k, v in (p | {name: p[name] + d}).items()}))
                for d in (step * direction, -step * direction)
            )
            slope = float(np.sum(gradient.numpy() * direction))
            assert (up - down) / (2 * step) == pytest.approx(slope, rel=1e-6, abs=1e-8), name


def keras_layer(kind, p, **options):
    units = p["kernel"].shape[0]
    if kind == "lstm":
        layer = tf.keras.layers.LSTM(units, **options)
    else:
        layer = tf.keras.layers.GRU(units, reset_after=kind == "gru", **options)
    rng = np.random.default_rng(4)
    kernel = rng.normal(size=(3, p["z"].shape[2])).astype(np.float32)
    bias = rng.normal(size=p["z"].shape[2]).astype(np.float32)
    layer.build((None, None, 3))
    layer.set_weights([kernel, p["kernel"], np.stack([bias, p["bias"]]) if kind == "gru" else bias])
    return layer, kernel, bias


@pytest.mark.parametrize("start", [False, True], ids=["zero_start", "given_start"])
@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_the_keras_layer(kind, masked, start):
    p = problem(kind)
    layer, kernel, bias = keras_layer(kind, p, return_sequences=True, return_state=True)
    x = np.random.default_rng(5).normal(size=(N, T, 3)).astype(np.float32)
    p["z"] = np.einsum("ntd,dk->tnk", x, kernel) + bias
    p["probe"] = np.zeros_like(p["z"])
    initial = [p["h0"], p["c0"]][: 2 if kind == "lstm" else 1] if start else None
    if not start:
        p["h0"] = p["c0"] = None
    expected = layer(
        tf.constant(x),
        mask=tf.constant(MASK.T) if masked else None,
        initial_state=[tf.constant(v) for v in initial] if start else None,
    )
    got = scanned(kind, p, tf.constant(MASK) if masked else None)
    names = ["h", "last_h", "last_c"] if kind == "lstm" else ["h", "last_h"]
    expected = dict(zip(names, expected, strict=True))
    expected["h"] = tf.transpose(expected["h"], [1, 0, 2])
    assert_close({k: getattr(got, k) for k in names}, expected)
    assert_close({"h": got.last_output}, {"h": expected["h"][-1]})


@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_compiled_scan_equals_the_other(kind, masked):
    p, weights = problem(kind), loss_weights(kind)

    def run(arguments):
        mask = tf.constant(MASK) if masked else None
        return values_and_gradients(lambda p: scanned(kind, p, mask), kind, arguments, weights)

    arguments = {k: tf.constant(v) for k, v in p.items()}
    compiled = tf.function(run, jit_compile=True)(arguments)
    for a, b in zip(compiled, tf.function(run)(arguments), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_one_trace_serves_every_number_of_steps_and_rows(kind):
    fixed = {k: v for k, v in problem(kind).items() if k in ("kernel", "bias")}
    free = ("z", "h0", "c0", "probe")
    spec = {
        k: tf.TensorSpec([None] * (v.ndim - 1) + [v.shape[-1]], tf.float32)
        for k, v in problem(kind).items()
        if k in free
    }
    traces = []

    @tf.function(input_signature=[spec, tf.TensorSpec([None, None], tf.bool)])
    def scan(p, mask):
        traces.append(mask)
        return scanned(kind, p | fixed, mask)._asdict()

    rng = np.random.default_rng(1)
    for steps, rows in ((1, 1), (3, 2), (1, 0), (4, 0), (6, 5)):
        p, weights = problem(kind, steps, rows) | fixed, loss_weights(kind, steps, rows)
        mask = tf.constant(rng.random((steps, rows)) < 0.7)
        got = values_and_gradients(
            lambda p, mask=mask: scan({k: p[k] for k in free}, mask), kind, p, weights
        )
        expected = values_and_gradients(lambda p, mask=mask: plain(kind, p, mask), kind, p, weights)
        for a, b in zip(got, expected, strict=True):
            assert_close(a, b)
    assert len(traces) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_scans_work_inside_loops_branches_and_nested_functions(kind):
    p, weights = problem(kind), loss_weights(kind)
    inner = tf.function(lambda p: scanned(kind, p)._asdict())

    def gradient_of(p, function=inner):
        return values_and_gradients(function, kind, p, weights)[1]

    @tf.function
    def looped(p):
        def body(k, total):
            return k + 1, tf.cond(k < 2, lambda: gradient_of(p), lambda: total)

        start = {k: p[k] for k in differentiable(kind)}
        return tf.while_loop(lambda k, _: k < 3, body, (0, start))[1]

    def either(p):
        return tf.cond(
            tf.reduce_sum(p["z"]) > -1e9,
            lambda: scanned(kind, p)._asdict(),
            lambda: {k: 2 * v for k, v in scanned(kind, p)._asdict().items()},
        )

    arguments = {k: tf.constant(v) for k, v in p.items()}
    expected = gradient_of(arguments)
    assert_close(looped(arguments), expected)
    assert_close(tf.function(gradient_of)(arguments, either), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_runs_in_float32_and_returns_its_own_dtype(kind, dtype):
    p, weights = problem(kind), loss_weights(kind)
    half = {k: tf.cast(v, dtype) for k, v in p.items()}
    rounded = {k: tf.cast(v, tf.float32).numpy() for k, v in half.items()}
    states = scanned(kind, half)
    expected = scanned(kind, rounded)
    for got, want in zip(states, expected, strict=True):
        assert got.dtype == tf.as_dtype(dtype)
        assert np.array_equal(got.numpy(), tf.cast(want, dtype).numpy())
    _, gradients = values_and_gradients(lambda p: scanned(kind, p), kind, half, weights)
    assert all(g.dtype == tf.as_dtype(dtype) for g in gradients.values())


@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
def test_the_inner_gradient_of_a_gru_equals_that_of_its_probe(masked):
    p, weights = problem("gru"), loss_weights("gru")
    p["probe"] = np.zeros_like(p["z"])
    mask = MASK if masked else None
    _, with_probe = values_and_gradients(lambda p: scanned("gru", p, mask), "gru", p, weights)
    z = tf.constant(p["z"])
    with tf.GradientTape() as tape:
        tape.watch(z)
        states = scanned("gru", p | {"z": z}, mask, probe=False)
        loss = loss_of(states._asdict(), weights)
    inner = gru_inner_gradient(tape.gradient(loss, z), states.reset)
    assert_close({"probe": inner}, {"probe": with_probe["probe"]}, 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_at_masked_steps_is_exactly_zero_and_states_are_carried_exactly(kind):
    p, weights = problem(kind), loss_weights(kind)
    states, gradients = values_and_gradients(lambda p: scanned(kind, p, MASK), kind, p, weights)
    assert not np.any(gradients["z"].numpy()[~MASK])
    assert np.array_equal(states["last_h"].numpy()[4], p["h0"][4])
    assert not np.any(states["h"].numpy()[:, 4])
    assert np.array_equal(states["h"].numpy()[5, 2], states["h"].numpy()[2, 2])
    if kind == "lstm":
        assert np.array_equal(states["last_c"].numpy()[4], p["c0"][4])


def test_the_recurrent_kernel_gets_no_gradient():
    p = {k: tf.constant(v) for k, v in problem("lstm").items()}
    kernel = tf.Variable(p["kernel"])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(scanned("lstm", p | {"kernel": kernel}).h)
    assert tape.gradient(loss, kernel) is None


def test_gradients_can_be_asked_for_twice():
    z, kernel = tf.constant(problem("gru")["z"]), problem("gru")["kernel"]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(z)
        states = gru_scan(z, kernel)
        losses = tf.reduce_sum(states.h), tf.reduce_sum(2 * states.last_output)
    first = tape.gradient(losses[0], z)
    second = tape.gradient(losses[1], z)
    both = tape.gradient(losses, z)
    assert_close({"z": first + second}, {"z": both})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"z": np.zeros((T, N, 15), np.float32)}, ValueError, "z has shape"),
        ({"z": np.zeros((T, N, 16), np.int32)}, TypeError, "int32"),
        ({"recurrent_kernel": np.zeros((4, 12), np.float32)}, ValueError, "recurrent_kernel"),
        ({"h0": np.zeros((N, 3), np.float32)}, ValueError, "initial state"),
        ({"mask": np.ones((N, T), bool)}, ValueError, "mask has shape"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(change, error, message):
    good = {"z": np.zeros((T, N, 16), np.float32), "recurrent_kernel": np.zeros((4, 16))}
    with pytest.raises(error, match=message):
        lstm_scan(**(good | change))


@pytest.mark.parametrize("name", ["recurrent_bias", "probe"])
def test_a_gru_with_the_reset_before_the_product_refuses_what_it_has_not(name):
    p = problem("gru")
    with pytest.raises(ValueError, match=name):
        gru_scan(p["z"], p["kernel"], reset_after=False, **{name: p["probe"]})
