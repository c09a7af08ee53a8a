# SPDX-License-Identifier: Apache-2.0
"""`optimizer.steps_left`: a run that stopped anywhere goes on to the end of its plan, no further."""

import pytest
import tensorflow as tf

import tf_subjectdp as sdp

# 60 rows: four steps an epoch.
SAMPLINGS = {
    "poisson items": sdp.PoissonItems(16),
    "poisson subjects": sdp.PoissonSubjects(3),
    "fixed size": sdp.FixedSize(16),
    "shuffle": sdp.Shuffle(16),
}


def left(model):
    return model.optimizer.steps_left


@pytest.mark.parametrize(
    ("name", "stop"),
    [("shuffle", 1), ("shuffle", 4), ("shuffle", 6), ("shuffle", 11)]
    + [(name, 6) for name in SAMPLINGS if name != "shuffle"],
)
def test_a_stopped_run_takes_what_is_left_and_no_step_more(box, name, stop):
    plan = box.plan(sampling=SAMPLINGS[name], steps=12, noise_multiplier=20.0)
    model = box.fitted(plan, take=stop)
    # A shuffled epoch that was begun is spent: the next pass begins with another.
    spent = -(-stop // 4) * 4 if name == "shuffle" else stop
    assert left(model) == 12 - spent
    with pytest.raises(ValueError, match=f"and {12 - spent} of the plan's 12 are left"):
        model.fit(box.data(plan).take(left(model) + 1), verbose=0)
    if left(model):
        model.fit(box.data(plan).take(left(model)), verbose=0)
    assert left(model) == 0
    assert plan.epsilon(steps=model.optimizer.steps_at_new_pass) == plan.epsilon()


@pytest.mark.parametrize("name", ["poisson items", "shuffle"])
def test_a_saved_run_is_loaded_and_trained_on(box, name, tmp_path):
    plan = box.plan(sampling=SAMPLINGS[name], steps=12, noise_multiplier=20.0)
    path = str(tmp_path / "private.keras")
    box.fitted(plan, take=6).save(path)
    again = tf.keras.models.load_model(path)
    assert left(again) == (4 if name == "shuffle" else 6)
    again.fit(box.data(again.plan).take(left(again)), verbose=0)
    assert left(again) == 0
    again.extend_plan(steps=16)
    assert left(again) == 4
    again.fit(box.data(again.plan).take(left(again)), verbose=0)
    assert left(again) == 0 and again.optimizer.steps_taken == 16


def test_a_finished_plan_says_so_where_nothing_is_left_to_take(box):
    plan = box.plan(steps=4)
    model = box.fitted(plan)
    with pytest.raises(ValueError, match=r"0 of the plan's 4 are left.*extend_plan"):
        model.fit(box.data(plan).take(left(model)), verbose=0)


def test_the_refusal_says_what_was_taken_and_what_the_begun_epoch_counts(box):
    plan = box.plan(sampling=sdp.Shuffle(16), steps=12, noise_multiplier=20.0)
    model = box.fitted(plan, take=5)
    with pytest.raises(ValueError) as refusal:
        model.fit(box.data(plan).take(7), verbose=0)
    text = str(refusal.value)
    assert "4 of the plan's 12 are left (5 taken; its begun epoch counts whole, as 8)" in text
    assert "fit(dataset.take(model.optimizer.steps_left))" in text


def test_a_loop_of_ones_own_ends_with_what_is_left(box):
    plan = box.plan(sampling=sdp.Shuffle(16), steps=8, noise_multiplier=20.0)
    net = box.net()
    optimizer = plan.optimizer("sgd", engine={"strategy": "loop"})

    def loss(rows):
        predictions = net(rows[0])
        return tf.keras.losses.mse(rows[1], predictions), predictions

    for steps in (3, None):
        for x, y, extras in box.data(plan).take(steps or optimizer.steps_left):
            sdp.private_step(optimizer, loss, net.trainable_variables, (x, y), extras, model=net)
    assert optimizer.steps_left == 0 and optimizer.steps_taken == 8


def test_without_a_plan_nothing_says_what_is_left():
    optimizer = sdp.DPOptimizer("sgd", sdp.HiGradAvg(1.0), noise_multiplier=1.0)
    assert optimizer.steps_left is None


def test_a_pass_before_the_last_spends_its_begun_epoch_whole(box):
    plan = box.plan(sampling=SAMPLINGS["shuffle"], steps=12, noise_multiplier=20.0)
    model = box.compiled(plan)
    # Two passes of six: the first spends two epochs of four, and four steps are left for the second.
    with pytest.raises(ValueError, match="fit asks for 14 steps, and 12"):
        model.fit(box.data(plan).take(6), epochs=2, verbose=0)
    assert model.optimizer.steps_taken == 0
    model.fit(box.data(plan).take(4), epochs=3, verbose=0)
    assert model.optimizer.steps_taken == 12
