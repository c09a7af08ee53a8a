# SPDX-License-Identifier: Apache-2.0
"""What a hostile or hasty user did to get an epsilon that the steps do not keep."""

import concurrent.futures
import itertools

import numpy as np
import pytest
import tensorflow as tf

import tf_subjectdp as sdp
from tf_subjectdp.sampling.dataset import new_pass


def test_a_batch_is_trained_on_once(box, plan):
    model = box.compiled(plan)
    batch = next(iter(box.data(plan)))
    model.train_on_batch(*batch)
    with pytest.raises(tf.errors.InvalidArgumentError, match="was trained on before"):
        model.train_on_batch(*batch)
    assert model.optimizer.steps_taken == 1


def test_a_list_of_batches_is_not_gone_through_twice(box):
    plan = box.plan(steps=8)
    model = box.compiled(plan)
    batches = list(box.data(plan).take(3))
    for batch in batches:
        model.train_on_batch(*batch)
    with pytest.raises(tf.errors.InvalidArgumentError, match="was trained on before"):
        model.train_on_batch(*batches[0])
    assert model.optimizer.steps_taken == 3


def test_two_caches_in_turn_are_found_out(box):
    plan = box.plan(steps=50)
    model = box.compiled(plan)
    first, second = (list(box.data(plan).take(2)) for _ in range(2))
    for batch in (first[0], second[0], first[1], second[1]):
        model.train_on_batch(*batch)
    for batch in (first[0], second[1]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="was trained on before"):
            model.train_on_batch(*batch)
    assert model.optimizer.steps_taken == 4


def test_a_batch_is_not_forgotten_however_many_passes_begin(box):
    plan = box.plan(steps=50)
    model = box.compiled(plan)
    held = next(iter(box.data(plan)))
    model.train_on_batch(*held)
    first = int(held[2]["pass"])
    for later in (1023, 1024, 1025, 4096):
        while new_pass() < first + later - 1:
            pass
        model.train_on_batch(*next(iter(box.data(plan))))
        with pytest.raises(tf.errors.InvalidArgumentError, match="was trained on before"):
            model.train_on_batch(*held)
    assert model.optimizer.steps_taken == 5


def test_two_passes_may_take_turns(box):
    plan = box.plan(steps=8)
    model = box.compiled(plan)
    for pair in zip(box.data(plan).take(3), box.data(plan).take(3), strict=True):
        for batch in pair:
            model.train_on_batch(*batch)
    assert model.optimizer.steps_taken == 6


def test_a_batch_of_an_earlier_optimizer_or_another_process_is_refused(box, plan):
    """What was trained on there is not known here."""
    x, y, extras = next(iter(box.data(plan)))
    model = box.compiled(plan)
    far = {**extras, "pass": extras["pass"] + 2**33}
    for batch in ((x, y, extras), (x, y, far)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="comes from another process"):
            model.train_on_batch(*batch)
    assert model.optimizer.steps_taken == 0


def test_steps_of_several_threads_are_all_counted(box):
    optimizer = sdp.DPOptimizer(tf.keras.optimizers.SGD(0.1), sdp.ItemDP(1.0), noise_multiplier=1.0)
    weight = tf.Variable([1.0])
    optimizer.build([weight])

    @tf.function
    def step():
        sdp.private_step(
            optimizer,
            lambda rows: (rows * weight[0], rows),
            [weight],
            tf.ones([4]),
            {"subject": tf.range(4)},
            strategy="loop",
        )

    step()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(step) for _ in range(200)]:
            done.result()
    assert optimizer.steps_taken == 201


@pytest.mark.parametrize("what", ["model", "optimizer"])
def test_a_checkpoint_that_is_restored_lowers_no_count(box, what, tmp_path):
    plan = box.plan(steps=20)
    model = box.compiled(plan)
    tracked = {what: model if what == "model" else model.optimizer}
    model.fit(box.data(plan).take(2), verbose=0)
    checkpoint = tf.train.Checkpoint(**tracked)
    path = checkpoint.save(tmp_path / "early")
    batches = list(box.data(plan).take(5))
    for batch in batches:
        model.train_on_batch(*batch)
    checkpoint.restore(path)
    assert model.optimizer.steps_taken == 7
    assert "7 of 20 planned steps" in " ".join(model.privacy_statement().split())
    # Saved before the next step.
    for save in (checkpoint.save, model.save_weights):
        checkpoint.restore(path)
        saved = save(tmp_path / "again.weights.h5") or tmp_path / "again.weights.h5"
        fresh = box.compiled(plan)
        if save == model.save_weights:
            fresh.load_weights(saved)
        else:
            followed = fresh if what == "model" else fresh.optimizer
            fresh.make_optimizer_variables()
            tf.train.Checkpoint(**{what: followed}).restore(saved)
        assert fresh.optimizer.steps_taken == 7
    with pytest.raises(tf.errors.InvalidArgumentError, match="was trained on before"):
        model.train_on_batch(*batches[2])
    model.fit(box.data(plan).take(3), verbose=0)
    assert model.optimizer.steps_taken == 10
    later = checkpoint.save(tmp_path / "later")
    again = box.compiled(plan)
    again.fit(box.data(plan).take(1), verbose=0)
    tf.train.Checkpoint(**{what: again if what == "model" else again.optimizer}).restore(later)
    # Its own step, and ten of another run of the plan, whose weights it has now.
    assert again.optimizer.steps_taken == 11


def test_every_new_permutation_counts_as_a_begun_epoch(box):
    """Fifteen rows a batch, four batches an epoch; the passes begin with their second batch."""
    plan = box.plan(sampling=sdp.Shuffle(15), steps=12, noise_multiplier=3.0)
    model = box.compiled(plan)
    for _ in range(3):
        for batch in itertools.islice(box.data(plan), 1, 2):
            model.train_on_batch(*batch)
    assert model.optimizer.steps_taken == 9


def test_compiling_again_keeps_the_count(box, plan):
    model = box.compiled(plan)
    model.fit(box.data(plan).take(3), verbose=0)
    model.compile(optimizer=plan.optimizer("adam"), loss="mse")
    assert model.optimizer.steps_taken == 3
    with pytest.raises(ValueError, match="1 of the plan's 4 are left"):
        model.fit(box.data(plan), verbose=0)


def test_another_plan_for_the_same_model_is_stated_beside_the_first(box, plan):
    model = box.compiled(plan)
    model.fit(box.data(plan), verbose=0)
    other = box.plan(noise_multiplier=2.0)
    model.compile(optimizer=other.optimizer("sgd"), loss="mse")
    assert model.optimizer.steps_taken == 0
    assert "BESIDE THIS" in model.privacy_statement()
    again = sdp.PrivateModel(model.inner_model)
    again.compile(optimizer=other.optimizer("sgd"), loss="mse")
    assert "BESIDE THIS" in again.privacy_statement()
    again.compile(optimizer=plan.optimizer("sgd"), loss="mse")
    assert again.optimizer.steps_taken == 4


def test_single_batches_too_are_stated_beside_a_second_wrapper(box, plan):
    model = box.compiled(plan)
    model.train_on_batch(*next(iter(box.data(plan))))
    again = box.compiled(plan, model.inner_model)
    assert "1 of 4 planned steps taken" in again.privacy_statement()
    again = box.compiled(box.plan(noise_multiplier=2.0), model.inner_model)
    assert "same weights were trained for 1 steps" in " ".join(again.privacy_statement().split())


def test_a_model_loaded_without_compiling_keeps_the_count(box, plan, tmp_path):
    model = box.compiled(plan)
    model.fit(box.data(plan).take(3), verbose=0)
    model.save(tmp_path / "m.keras")
    again = tf.keras.models.load_model(tmp_path / "m.keras", compile=False)
    again.compile(optimizer=plan.optimizer("sgd"), loss="mse")
    assert again.optimizer.steps_taken == 3


def test_loading_older_weights_does_not_lower_the_count(box, plan, tmp_path):
    model = box.compiled(plan)
    model.fit(box.data(plan).take(1), verbose=0)
    path = str(tmp_path / "old.weights.h5")
    model.save_weights(path)
    model.fit(box.data(plan).take(2), verbose=0)
    model.load_weights(path)
    assert model.optimizer.steps_taken == 3
    model.optimizer.set_weights([np.zeros(v.shape) for v in model.optimizer.variables])
    assert model.optimizer.steps_taken == 3
    with pytest.raises(ValueError, match="compile this PrivateModel before load_weights"):
        sdp.PrivateModel(box.net()).load_weights(path)


@pytest.mark.parametrize("name", ["noise_multiplier", "algorithm", "divisor", "plan"])
def test_what_the_statement_says_cannot_be_changed_behind_its_back(box, plan, name):
    optimizer = plan.optimizer("sgd")
    with pytest.raises(AttributeError):
        setattr(optimizer, name, 0.0)


def test_people_without_a_plan_need_ids_and_equal_lengths(box):
    optimizer = sdp.DPOptimizer("sgd", sdp.HiGradAvg(1.0), noise_multiplier=1.0)
    weight = tf.Variable(tf.zeros([1]))
    rows = tf.ones([8, 1])

    def step(extras):
        loss = lambda r: (tf.reduce_sum(r * weight, -1), ())  # noqa: E731
        sdp.private_step(optimizer, loss, [weight], rows, extras, strategy="loop")

    for extras, words in (
        ({"subject": tf.range(5)}, "the same length"),
        ({"subject": tf.range(8.0)}, "pass one integer or string a row"),
        ({"subject": tf.zeros([8, 1], tf.int32)}, "pass one integer or string a row"),
        ({"subject": tf.range(8), "mask": tf.ones([8])}, "pass one bool a row"),
        ({"person": tf.range(8)}, "no 'subject'"),
    ):
        with pytest.raises(ValueError, match=words):
            step(extras)
    assert optimizer.steps_taken == 0


def test_the_progress_bar_shows_the_epsilon_of_now_not_its_mean(box, capsys):
    plan = box.plan(steps=6)
    model = box.compiled(plan)
    model.fit(box.data(plan), verbose=1, callbacks=[sdp.PrivacyScalars()])
    shown = capsys.readouterr().out.split("epsilon: ")[-1].split()[0]
    assert float(shown) == pytest.approx(plan.epsilon(), rel=1e-3)
