# SPDX-License-Identifier: Apache-2.0
"""Elements that were fitted on the private data: the statement's totals, and events of any unit."""

import json
import re

import numpy as np
import pytest
from scipy import optimize, stats

import tf_subjectdp as sdp
from tf_subjectdp import accounting
from tf_subjectdp.algorithms.base import rounded_up
from tf_subjectdp.elements import HashElements, KMeansElements
from tf_subjectdp.runs import Lineage, PrivateRun
from tf_subjectdp.statement import optimizer_statement, privacy_statement

DELTA, SIGMA, STEPS, FIT_SIGMA, ITERATIONS, M = 1e-5, 12.0, 6, 9.0, 4, 3
SUBJECT = np.arange(120) // 6
ELEMENT = np.arange(120) % 3
STATS = sdp.SubjectStats.from_ids(SUBJECT, ELEMENT)
UNPAID = "the cost of making the elements, if they were made from the data"


def fitted(noise_multiplier=FIT_SIGMA, **options):
    return KMeansElements(3).fit_private(
        np.random.default_rng(0).normal(size=(120, 2)),
        SUBJECT,
        noise_multiplier=noise_multiplier,
        radius=2.0,
        iterations=ITERATIONS,
        **options,
    )


PAID = fitted()


def make(elements=PAID, sampling=None, max_elements=M, **options):
    options = {"steps": STEPS, "noise_multiplier": SIGMA, "delta": DELTA, **options}
    algorithm = sdp.ElementDP(0.5, max_elements=max_elements, elements=elements)
    # Everybody in every step: Gaussians, whose composition is known in closed form.
    return sdp.plan(algorithm, sampling or sdp.PoissonElements(60), STATS, **options)


def flat(text):
    return " ".join(text.split())


def totals(text):
    """{unit: epsilon} of the paragraph with the totals; empty without one."""
    found = re.search("In all, together with the fit of the elements (.*?) at delta", flat(text))
    pairs = re.findall(r"epsilon per (\w+) = (\S+?)(?:,|$)", found.group(1)) if found else []
    return {unit: float("inf" if value == "infinite" else value) for unit, value in pairs}


def gaussian_epsilon(mu):
    def excess(epsilon):
        upper = stats.norm.cdf(mu / 2 - epsilon / mu)
        return upper - np.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu) - DELTA

    return optimize.brentq(excess, 0.0, 100.0)


def test_the_total_is_that_of_all_gaussians_together():
    plan = make()
    moves = {"element": (2.0, 2.0), "item": (2.0, 2.0), "subject": (M, 1.0)}
    for steps in (STEPS, 2):
        found = totals(privacy_statement(plan, steps=steps))
        assert set(found) == set(moves)
        for unit, (of_step, of_fit) in moves.items():
            mu = np.hypot(of_step * steps**0.5 / SIGMA, of_fit * ITERATIONS**0.5 / FIT_SIGMA)
            wanted = gaussian_epsilon(mu)
            assert wanted <= found[unit] <= wanted * 1.001 + 1e-3
            assert found[unit] > plan.epsilon(unit=unit, steps=steps)
            # Exact: not the sum of two epsilons.
            fit = accounting.epsilon(plan.algorithm.event_before(unit), delta=DELTA / 2)
            assert found[unit] < plan.epsilon(DELTA / 2, unit=unit, steps=steps) + fit - 0.1
    text = flat(plan.statement())
    assert "composed exactly. An element is a cluster of the map that the fit released." in text
    assert (
        text.count("It is of the training alone: the fit of the elements, below, is on top.") == 3
    )
    assert PAID.provenance in text and UNPAID not in text


def test_before_the_first_step_the_fit_was_released_already():
    plan = make()
    found = totals(privacy_statement(plan, steps=0))
    assert found["subject"] == float(rounded_up(PAID.epsilon(DELTA)))
    assert plan.epsilon(unit="subject", steps=0) == 0.0


def test_the_total_is_the_smallest_that_any_event_proves():
    plan = make(sampling=sdp.PoissonSubjects(2))
    events = plan.guarantee("element").events
    assert len(events) == 2
    runs = [accounting.compose([(e, STEPS), (PAID.element_event, 1)]) for e in events]
    figures = [accounting.epsilon(run, delta=DELTA) for run in runs]
    assert figures[0] != pytest.approx(figures[1], rel=0.02)
    assert totals(plan.statement())["element"] == float(rounded_up(min(figures)))


def test_a_unit_without_a_promise_has_no_total():
    assert set(totals(make(max_elements=None).statement())) == {"element", "item"}


def test_the_plans_epsilon_and_noise_are_the_trainings_alone():
    plan, public = make(), make(HashElements(3))
    assert plan.epsilon() == public.epsilon()
    assert make(noise_multiplier=None, epsilon=2.0).epsilon() <= 2.0
    assert public.total_epsilon() == public.epsilon() < plan.total_epsilon()
    assert "with the fit" in str(plan) and rounded_up(plan.total_epsilon()) in str(plan)
    assert "with the fit" not in str(public)
    for unknown in (None, "Our own topics."):
        with pytest.raises(ValueError, match="cost of these elements is not known"):
            make(unknown).total_epsilon()
        budget = sdp.PrivacyBudget(make(unknown).epsilon(steps=3) * 1.0001)
        assert spent_by(budget, make(unknown)) == 3


def spent_by(budget, plan):
    """The steps of a plan that a budget allows."""

    class Model:
        optimizer, steps_per_execution = plan.optimizer("sgd"), 1

    budget.set_model(Model())
    budget.on_train_begin()
    return budget._allowed


def test_a_budget_counts_the_fit():
    plan = make(steps=40, sampling=sdp.PoissonElements(30))
    for unit in ("element", "subject", "item"):
        budget = sdp.PrivacyBudget(plan.total_epsilon(unit=unit, steps=9) * 1.0001, unit=unit)
        assert spent_by(budget, plan) == 9
    fit = accounting.epsilon(PAID.element_event, delta=DELTA)
    with pytest.raises(ValueError, match=f"fit of the elements alone has spent {rounded_up(fit)}"):
        spent_by(sdp.PrivacyBudget(fit * 0.999), plan)


def test_a_plan_from_a_config_states_the_same_total():
    plan = make()
    again = sdp.Plan.from_config(json.loads(json.dumps(plan.get_config())))
    assert again == plan and again.identity == plan.identity
    assert again.statement() == plan.statement()


@pytest.mark.parametrize("options", [{"seed": 1}, {"noise_multiplier": 0.0}])
def test_elements_that_were_not_made_privately_leave_no_promise(options):
    text = make(fitted(**options)).statement()
    assert totals(text) == {"element": np.inf, "subject": np.inf, "item": np.inf}
    assert "= infinite" in text and "NOT PRIVATE: the elements are 3 k-means" in flat(text)
    assert "NOT PRIVATE" in flat(text).split("Per element")[0]
    assert "NOT PRIVATE" not in make().statement()


@pytest.mark.parametrize(
    ("elements", "open_cost"),
    [(HashElements(3), False), (None, True), ("Topics of a public list.", True)],
)
def test_without_a_known_cost_there_is_no_total(elements, open_cost):
    text = flat(make(elements).statement())
    assert "the fit of the elements" not in text
    assert (UNPAID in text.split("NOT covered")[1]) == open_cost
    options = {"steps": 2, "noise_multiplier": 2.0, "delta": DELTA}
    items = sdp.plan(sdp.ItemDP(1.0), sdp.PoissonItems(10), STATS, **options)
    assert UNPAID not in flat(items.statement())


def test_an_optimizer_without_a_plan_says_where_its_elements_come_from():
    for elements, told in ((PAID, PAID.provenance), (None, UNPAID)):
        algorithm = sdp.ElementDP(0.5, elements=elements)
        optimizer = sdp.DPOptimizer("sgd", algorithm, noise_multiplier=1.0, divisor=10.0)
        assert told in flat(optimizer_statement(optimizer))


def test_what_another_run_spent_includes_the_fit_of_its_elements():
    plan = make()

    def after(other, now):
        optimizer = now.optimizer("sgd")
        run = PrivateRun(other, other.algorithm, other.noise_multiplier, STEPS)
        optimizer._lineage.absorb(Lineage([("another", run)]))
        return flat(optimizer_statement(optimizer))

    now = make(HashElements(3))
    text = after(plan, now)
    total = rounded_up(plan.guarantee("element").epsilon(STEPS, DELTA, PAID.element_event))
    assert f"spent epsilon {total} at delta = 1e-05 per element, together with the fit" in text
    # The elements of one map are not those of another.
    assert "IN ALL: no figure per element" in text
    unknown = after(make("Old topics."), now)
    assert f"(NOT counted: {UNPAID})" in unknown.split("BESIDE THIS")[1]
    text = after(make(HashElements(3), noise_multiplier=3.0), now)
    assert "together with the fit" not in text and "IN ALL: this run" in text


def test_a_run_is_an_event_for_any_unit():
    plan = make(sampling=sdp.PoissonSubjects(2))
    assert plan.event == plan.event_of("element")
    subject = plan.event_of("subject")
    assert subject == plan.guarantee("subject").total(STEPS)
    assert accounting.epsilon(subject, delta=DELTA) == pytest.approx(
        plan.epsilon(unit="subject"), rel=1e-3
    )
    # Two bounds for an element, of which this is the first.
    first = accounting.epsilon(plan.event_of("item"), delta=DELTA)
    assert first >= plan.epsilon(unit="item")
    both = accounting.compose([(PAID.event, 1), (subject, 1)])
    found = totals(plan.statement())["subject"]
    assert found == pytest.approx(accounting.epsilon(both, delta=DELTA), abs=2e-3)
    with pytest.raises(ValueError, match="unit='person' is unknown"):
        plan.event_of("person")
    with pytest.raises(ValueError, match="promises nothing to a whole subject"):
        make(max_elements=None).event_of("subject")


def test_another_number_of_elements_is_told_with_what_it_changes(caplog):
    """Rate, divisor and noise are the plan's, and its figure for an element depends on these alone."""
    plan = make(sampling=sdp.PoissonElements(6))
    x = np.zeros([120, 1], np.float32)
    other = np.where(SUBJECT < 10, 0, ELEMENT)
    plan_of_capped = sdp.plan(
        sdp.ElementDP(0.5, max_elements=M, max_items_per_element=2),
        sdp.PoissonElements(6),
        STATS,
        steps=STEPS,
        noise_multiplier=SIGMA,
        delta=DELTA,
    )
    with pytest.raises(ValueError, match="above the plan's 2, and the guarantee would not cover"):
        plan.dataset(x, x, SUBJECT, other)
    plan_of_capped.dataset(x, x, SUBJECT, other)
    assert "another number of elements than the plan was made for" in caplog.text
    assert "rate and divisor stay as they are: its promise holds, and the utility" in caplog.text
    caplog.clear()
    plan.dataset(x[:60], x[:60], SUBJECT[:60], ELEMENT[:60])
    assert (
        "the data have other numbers of items" in caplog.text and "its promise holds" in caplog.text
    )
    assert plan.facts.rate == 0.1
