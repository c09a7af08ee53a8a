# SPDX-License-Identifier: Apache-2.0
"""The privacy statement of a federation, in plain sentences.

Knows the plan and what was spent; pure text.
"""

from tf_subjectdp import accounting
from tf_subjectdp.algorithms.base import ADD_OR_REMOVE_SUBJECT, rounded_up, within_silos
from tf_subjectdp.federated import costs
from tf_subjectdp.federated.plans import FederatedPlan, Spent
from tf_subjectdp.plans import divisor_of_counts, guarantee_of
from tf_subjectdp.statement import fit_not_private, layout, not_covered

_VIEWS = {
    ("silo", "updates"): (
        "anyone who sees every silo's update of every round (so whoever runs the server), and all other "
        "data, but neither the data of the protected person nor the silos' random draws"
    ),
    ("silo", "average"): (
        "anyone who sees the sum over the silos of every round, which secure aggregation must enforce, "
        "but no silo's own update; silos that pool what they know of their own noise see more"
    ),
    ("server", "updates"): (
        "anyone who sees the global model of every round. The SERVER is trusted: it sees the silos' "
        "clipped sums without noise, unless they are added up securely"
    ),
}

_COUNTS = (
    " NOT as far as metrics go: silos report counts beside their updates (items, people, loss, clipped "
    "terms, norms) to the server, without noise; build_process(..., counts=False) leaves them out."
)


def federated_statement(
    plan: FederatedPlan,
    *,
    delta: float | None = None,
    spent: Spent | None = None,
    counts: bool = True,
) -> str:
    """The statement for a run of a plan.

    Args:
      plan: the plan.
      delta: None takes the plan's.
      spent: what was released; None for all that is planned: a statement of intent, not of a run.
      counts: whether silos report counts beside their updates.

    Returns:
      Text of several paragraphs.
    """
    delta = None if plan.algorithm is None else plan.checked_delta(delta)
    name = "FedAvg" if plan.algorithm is None else type(plan.algorithm).__name__
    length = f"{plan.rounds} planned rounds; nothing was trained yet"
    if spent is not None:
        length = f"{spent.rounds} of {plan.rounds} planned rounds run"
    paragraphs = [f"PRIVACY STATEMENT ({name} over {plan.n_silos} silos, {length})"]
    if not plan.is_private:
        paragraphs.append(
            "NOT PRIVATE: there is no noise, or none in one of the silos; whoever is in such a silo "
            "that took part is not protected, and the figure below is infinite."
        )
    if plan.algorithm is not None:
        paragraphs += fit_not_private(plan.algorithm, "rounds")
    paragraphs += [_promise(plan, unit, delta, spent) for unit in plan.units]
    if plan.algorithm is not None:
        # Not its `notes`: those are figures of one holder's run.
        paragraphs += plan.algorithm.sources() + _total(plan, delta, spent)
    paragraphs += [
        f"From whom: {_VIEWS[plan.noise_at, plan.view if plan.noise_at == 'silo' else 'updates']}."
        + (_COUNTS if counts else ""),
        _silos(plan, spent),
        _noise(plan),
        _constants(plan),
        not_covered(
            plan.max_items_per_subject is None,
            True,
            plan.needs_elements and any(f.max_element_items is not None for f in plan.facts),
            [] if plan.algorithm is None else plan.algorithm.unpaid(),
            any(divisor_of_counts(plan.algorithm, facts, None) for facts in plan.facts),
        )[:-1]
        + "; other runs on the same people's data, whose epsilons add up.",
    ]
    return layout(paragraphs)


def _promise(plan: FederatedPlan, unit: str, delta: float, spent: Spent | None) -> str:
    if plan.algorithm is not None:
        try:
            costs.check_proven(plan, unit)
        except ValueError as error:
            return f"Per {unit}: no figure, since nothing is proven: {error}"
    epsilon = rounded_up(plan.epsilon(delta, unit=unit, spent=spent))
    if plan.algorithm is None:
        return f"Per subject: epsilon = {epsilon}."
    guarantee = guarantee_of(plan.algorithm, plan.facts[0], 1.0, unit)
    adjacency = within_silos(guarantee.adjacency, plan.silos_per_subject, plan.n_silos)
    text = f"Per {unit}: epsilon = {epsilon} at delta = {delta:g}, for {adjacency}, "
    if unit == "item":
        text += "in the one silo that holds it (one that moves to another silo is two changes)."
    else:
        text += f"in ALL silos together: {_where(plan, unit)}."
        if plan.silos_per_subject is not None and guarantee.adjacency != ADD_OR_REMOVE_SUBJECT:
            text += (
                " In neighbouring data all silos with data of that person, in both, are among the "
                f"same {plan.silos_per_subject}."
            )
    if len(plan.units) > 1 and unit == plan.unit:
        text += " This is what the plan is about."
    if plan.algorithm.event_before(unit) is not None:
        text += " It is of the rounds alone: the fit of the elements, below, is on top."
    if unit != "subject":
        text += f" It says nothing about a person's other {unit}s."
        if plan.view == "average":
            text += (
                " It is that of someone who sees every silo's update: that the silos' noises add up in "
                f"the average is not proven for one {unit}."
            )
        text += _above_subject(plan, unit, delta, spent)
    return text


def _total(plan: FederatedPlan, delta: float, spent: Spent | None) -> list[str]:
    """What the rounds and an earlier release of the same data (elements that were paid for) cost."""
    figures = []
    for unit in plan.units:
        before = plan.algorithm.event_before(unit)
        if before is None:
            continue
        try:
            costs.check_proven(plan, unit)
        except ValueError:  # said above
            continue
        epsilon = plan.epsilon(delta / 2, unit=unit, spent=spent)
        epsilon += accounting.epsilon(before, delta=delta / 2)
        figures.append(f"epsilon per {unit} = {rounded_up(epsilon)}")
    if not figures:
        return []
    return [
        "In all, together with the fit of the elements on the private data: "
        f"{', '.join(figures)} at delta = {delta:g}, by basic composition (each epsilon at half of "
        "delta, added up: an upper bound, exact composition would be smaller). An element is a cluster "
        "of the map that the fit released. Whoever ran the fit saw the rows that it was made of, and is "
        "not among those that the promise is against."
    ]


def _above_subject(plan: FederatedPlan, unit: str, delta: float, spent: Spent | None) -> str:
    """Why the figure per element or item is above that per subject; empty where it is not."""
    try:
        costs.check_proven(plan, "subject")
    except ValueError:
        return ""
    of_unit, of_subject = (plan.epsilon(delta, unit=one, spent=spent) for one in (unit, "subject"))
    if of_unit <= of_subject:
        return ""
    return (
        f" It is above the figure per subject because one {unit} may replace what a subject adds to a "
        "step, and replacing is more than adding or removing."
    )


def _where(plan: FederatedPlan, unit: str) -> str:
    most = plan.silos_per_subject
    where = "in every silo" if most is None else f"in at most {most} of {plan.n_silos} silos"
    promised = (
        ""
        if most is None
        else (" (a promise about the data: a person in more silos is protected less)")
    )
    what = "a person" if unit == "subject" else "a person, and each of their elements,"
    return f"{what} may be {where}{promised}"


def _silos(plan: FederatedPlan, spent: Spent | None) -> str:
    text = (
        f"Silos: {plan.silos_per_round} of {plan.n_silos} a round, {plan.local_steps} local steps "
        "each; "
    )
    if plan.noise_at == "server":
        text += "every round is counted in full, whoever takes part."
    elif plan.view == "average":
        text += (
            "every round is counted for every silo, with the noise of the "
            f"{plan.minimum_silos} silos that add least; a round of fewer is refused."
        )
    elif spent is None:
        text += f"no silo takes part in more than {plan.rounds_of_a_silo} rounds."
    else:
        low, high = min(spent.of_silos), max(spent.of_silos)
        times = f"{low}" if low == high else f"{low} to {high}"
        text += f"each took part in {times} rounds, and what it took part in is counted."
    return text


def _noise(plan: FederatedPlan) -> str:
    if plan.algorithm is None:
        return "Noise: none."
    low, high = min(plan.noise_multipliers), max(plan.noise_multipliers)
    sigma = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
    who = (
        "by every silo at every step" if plan.noise_at == "silo" else "by the server, once a round"
    )
    unit = plan.algorithm.noise_stddev(1.0)
    return (
        f"Noise: Gaussian, standard deviation {sigma} x {unit:g} (noise multiplier x "
        f"clip norm) on every coordinate of the clipped sum, added {who}, drawn afresh with entropy of "
        "the operating system of the machine that adds it."
    )


def _of_elements(plan: FederatedPlan) -> str:
    if not plan.needs_elements:
        return ""
    elements, items = plan.algorithm.max_elements, plan.algorithm.max_items_per_element
    counted = [facts.max_element_items for facts in plan.facts]
    text = f"; at most {elements} elements a subject in a silo" if elements is not None else ""
    if items is not None:
        text += f"; at most {items} items an element in a silo"
    if text:
        text += " (further ones are dropped at random, afresh in each round)"
    if items is None and None not in counted:
        text += f"; at most {max(counted)} items an element in a silo (read from the data)"
    return text


def _constants(plan: FederatedPlan) -> str:
    kinds = ", ".join(sorted({type(one).__name__ for one in plan.samplings}))
    most = max(facts.max_items for facts in plan.facts)
    source = (
        "read from the data, and itself information about them"
        if plan.max_items_per_subject is None
        else "a public bound; every silo drops further items at random"
    )
    return (
        f"Public constants: sampling by {kinds}, at rates {min(f.rate for f in plan.facts):.6g} to "
        f"{max(f.rate for f in plan.facts):.6g} a step; at most {most} items a subject in a silo "
        f"({source}){_of_elements(plan)}; divisors and weights, which do not change when a silo is "
        "missing. Neighbouring data are compared under the same ones."
    )
