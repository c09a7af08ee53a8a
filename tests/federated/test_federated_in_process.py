# SPDX-License-Identifier: Apache-2.0
"""Silos in the Python process: the same rounds as those of TFF's worker."""

import numpy as np
import pytest

import tf_subjectdp as sdp


def build(federation, model_fn, sampling, counts=True, **options):
    plan = sdp.federated.plan(
        sdp.SubjectDP(0.7), sampling, federation.stats, rounds=6, delta=1e-3, **options
    )
    return sdp.federated.build_process(model_fn, plan, counts=counts)


def weights_of(process, state):
    return [np.asarray(w) for w in process.get_model_weights(state).trainable]


@pytest.mark.parametrize("noise_at", ["silo", "server"])
def test_without_noise_a_round_is_that_of_the_process(federation, model_fn, noise_at):
    where = {"noise_at": noise_at, "local_steps": 2 if noise_at == "silo" else 1}
    process = build(federation, model_fn, federation.full_batches(), noise_multiplier=0.0, **where)
    silos = sdp.federated.InProcessSilos(process)
    start = silos.initialize()
    data = federation.datasets()
    data[1] = None
    wanted, counts = process.next(start, data)
    found, same = silos.next(start, data)
    for a, b in zip(weights_of(process, found), weights_of(process, wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert not np.array_equal(weights_of(process, found)[0], weights_of(process, start)[0])
    for name, value in counts["silos"].items():
        np.testing.assert_allclose(same["silos"][name], value, rtol=1e-5)
    assert process.spent(found) == (2, (2, 0, 2, 2))


def test_silos_of_any_size_are_traced_once_and_draw_afresh(federation, model_fn):
    process = build(federation, model_fn, sdp.PoissonItems(5), counts=False, noise_multiplier=5.0)
    silos = sdp.federated.InProcessSilos(process)
    state = silos.initialize()
    seen = [weights_of(process, state)[0]]
    for _ in range(3):
        state, metrics = silos.next(state, federation.datasets())
        seen.append(weights_of(process, state)[0])
        assert metrics["silos"]["items"] == 0 and metrics["took_part"].sum() == 4
    assert silos._round.experimental_get_tracing_count() == 1
    steps = np.diff(seen, axis=0).reshape(3, -1)
    # Rounded alike by chance: one pair in some 1e-4 of runs, three in 1e-12; a repeated draw repeats all.
    assert np.unique(np.round(steps, 6)).size > steps.size - 3
    assert process.epsilon(state) > 0.0


def test_only_a_federated_process_is_taken():
    with pytest.raises(TypeError, match="pass what build_process returned"):
        sdp.federated.InProcessSilos(3)
