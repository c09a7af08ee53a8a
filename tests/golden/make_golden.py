# SPDX-License-Identifier: Apache-2.0
"""The golden file: what the package says and does, so that a redesign can show that no figure moved.

    python tests/golden/make_golden.py --check            # what moved beyond the tolerances
    python tests/golden/make_golden.py --check --exact    # what moved at all, beyond 1e-9
    python tests/golden/make_golden.py --check accounting command   # some sections only
    python tests/golden/make_golden.py --write training   # made anew: read below first

`golden.json` lies beside this file; `test_golden.py` holds it. Everything goes through doors that stay:
what the README and docs/ show, `accounting`, `plan`, `federated.plan`, `release`, `elements`, the
command, `private_step`. Nothing here imports what lies behind them.

TOLERANCES. A section names its own, relative, either way:
* `COMPOSED` 1e-3: epsilons and noise that come from a numerical composition or a search for a root.
  (An engine may be exchanged within that. `tests/accounting/test_accounting_reference.py` holds
  the floors below which no figure may ever lie; a change never touches both.)
* `DELTA` 1e-2: deltas at a given epsilon, of which the same shift of a loss moves many times as much.
* `CLOSED` 1e-9: closed forms, constants of plans, configs, draws and noise from test seeds.
* `TRAINED` 1e-5: sums of float32 gradients, relative to the largest entry.
Of a text the words must be the same, and its numbers within the tolerance of the section and one unit
of the last printed place. Booleans, whole numbers, None and names are compared exactly:
rounds that a budget pays for, too, since one more or less of them wants a look.

WHEN MAKING IT ANEW IS RIGHT. Never to make a red test green. A figure that rose, or one that fell with a
proof, in a commit of its own that changes nothing else and says why; a text whose words were meant
to change; a random stream that draws in another order (`draws`, `releases`, `element_maps`), after
its law was shown to be the same; a case added (`--write` leaves what did not move as it is).
The old figures stand in the diff: a reviewer reads each of them.

Only the sections `steps`, `draws` and `training` need TensorFlow; a step's sum does not depend on draws,
as every row is in every step. All figures are the same on Python 3.11 (TensorFlow 2.14, Keras 2.14) and
3.13 (TensorFlow 2.21, Keras 3): one file serves both. TensorFlow Federated is not needed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import math
import os
import pathlib
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

import tf_subjectdp as sdp
from tf_subjectdp import accounting as acc
from tf_subjectdp import cli, elements, release

GOLDEN = pathlib.Path(__file__).with_name("golden.json")

COMPOSED, DELTA, CLOSED, TRAINED = 1e-3, 1e-2, 1e-9, 1e-5
EXACT = 1e-9


class Section(NamedTuple):
    """Cases of one kind: `make()` gives them by name, `tolerance` is of their figures."""

    make: Callable[[], dict[str, Any]]
    tolerance: float


SECTIONS: dict[str, Section] = {}


def section(tolerance: float) -> Callable[[Callable[[], dict[str, Any]]], Any]:
    def add(make):
        SECTIONS[make.__name__] = Section(make, tolerance)
        return make

    return add


# -- the data of all cases: arithmetic, so that they depend on no random generator -------------------

#: 292 rows of 30 people in 4 silos, with 6 elements; a person has between 1 and 20 rows.
IDS = np.array([i for i in range(30) for _ in range(1 + (7 * i) % 20 if i < 29 else 1)])
ROWS = len(IDS)
SILOS = (IDS + np.arange(ROWS) % 3 * (IDS % 2)) % 4
TOPICS = (IDS + np.arange(ROWS) // 2) % 6
#: What plans are about: larger, in public figures.
LARGE = sdp.SubjectStats.public(n_items=50_000, n_subjects=2_400, max_items=60)
LARGE_ELEMENTS = sdp.SubjectStats.public(
    n_items=50_000, n_subjects=2_400, max_items=60,
    elements=sdp.sampling.ElementStats(n_elements=12_000, max_elements=10, max_items=25),
)  # fmt: skip


def digest(values: Any) -> str:
    """A short name of whole numbers, for draws too long to be written down."""
    return hashlib.sha256(np.ascontiguousarray(values, np.int64).tobytes()).hexdigest()[:16]


# -- accounting --------------------------------------------------------------------------------------


def events() -> dict[str, tuple[Any, int]]:
    """Every kind of event, and how many compose."""
    return {
        "item": (acc.item_event(0.01, 1.0), 1000),
        "item, all in": (acc.item_event(1.0, 5.0), 50),
        "higradavg": (acc.higradavg_event(0.016, 10, 4.0), 620),
        "higradavg, many items": (acc.higradavg_event(0.0005, 4484, 20.0), 1850),
        "group": (acc.group_event(0.016, 10, 4.0), 620),
        "group, capped": (acc.group_event(0.01, 50, 10.0, 2), 200),
        "subject": (acc.subject_event(0.02, 1.0), 500),
        "user_ldp": (acc.user_ldp_event(10.0), 20),
        "element": (acc.element_event(0.01, 4.0), 1000),
        "element, of a subject": (acc.element_subject_event(0.01, 6.0, 4), 1000),
        "replace one": (acc.replace_one_event(0.02, 2.0), 300),
        "silo": (acc.silo_event(0.5, 3.0), 40),
        "histogram": (acc.histogram_event(3.0), 1),
        "fixed size": (acc.fixed_size_event(1000, 50, 2.0), 100),
        "fixed size, three rows": (acc.fixed_size_event(1000, 50, 4.0, 3), 100),
        "shuffled epoch": (acc.shuffled_epoch_event(5, 20, 6.0), 10),
        "shuffled epoch, batch of 3": (acc.shuffled_epoch_event(5, 20, 6.0, 3), 10),
        "revealed": (acc.revealed_event([0.0, 1.0, 2.0], [0.9, 0.08, 0.02], 3.0), 60),
        "truncated Poisson": (acc.truncated_poisson_event(0.01, 5000, 80, 1.0), 200),
        "mixed clipping": (acc.mixed_clipping_event(0.01, 5, 4, 2.0), 100),
        "mixed clipping, fixed size": (acc.mixed_clipping_fixed_size_event(1000, 40, 5, 4, 2.0), 50),
        "mixed clipping, shuffled": (acc.mixed_clipping_shuffled_event(1000, 40, 5, 4, 4.0), 4),
        "central": (
            acc.central_event([acc.subject_event(0.1, 2.0), acc.item_event(0.2, 1.0)], 4.0), 50,
        ),
        "central group": (acc.central_group_event([(0.02, 5), (0.05, 3)], 6.0), 100),
        "central group, capped": (acc.central_group_event([(0.02, 5), (0.05, 3)], 6.0, 2), 100),
        "central higradavg": (acc.central_higradavg_event([(0.02, 5), (0.05, 3)], 6.0), 100),
        "central higradavg, one silo": (
            acc.central_higradavg_event([(0.02, 5), (0.05, 3)], 6.0, silos_per_subject=1), 100,
        ),
        "unlike ones composed": (
            acc.compose(
                [(acc.item_event(0.01, 1.2), 1000), (acc.higradavg_event(0.03, 4, 3.0), 400)]
            ),
            2,
        ),
        "not private": (acc.nonprivate_event(), 1),
        "nothing": (acc.item_event(0.01, 1.0), 0),
    }  # fmt: skip


@section(COMPOSED)
def accounting() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (event, steps) in events().items():
        for engine in ("pld", "rdp"):
            with refused(found, f"{name}, {engine}") as put:
                put(
                    {
                        d: acc.epsilon(event, steps, delta=float(d), engine=engine)
                        for d in ("1e-05",)
                    }
                )
    long = acc.higradavg_event(0.0001, 20, 3.0)
    found["5,900,000 steps"] = acc.epsilon(long, 5_900_000, delta=1e-6)
    for name, make, steps in (
        ("item", lambda s: acc.item_event(0.01, s), 1000),
        ("higradavg", lambda s: acc.higradavg_event(0.016, 10, s), 620),
        ("group", lambda s: acc.group_event(0.016, 10, s), 620),
        ("user_ldp", acc.user_ldp_event, 20),
        ("element", lambda s: acc.element_event(0.01, s), 100),
    ):
        for engine in ("pld", "rdp"):
            found[f"noise for epsilon 4, {name}, {engine}"] = acc.noise_multiplier(
                make, steps, epsilon=4.0, delta=1e-5, engine=engine
            )
    for kind in (acc.SubjectPLDAccountant, acc.SubjectRdpAccountant):
        ledger = kind()
        for name in ("item", "higradavg", "group", "subject"):
            ledger.compose(*events()[name])
        with tempfile.TemporaryDirectory() as folder:
            ledger.save(os.path.join(folder, "ledger.json"))
            again = kind.load(os.path.join(folder, "ledger.json"))
            text = json.loads(pathlib.Path(folder, "ledger.json").read_text(encoding="utf-8"))
        found[kind.__name__] = {
            "epsilon": ledger.get_epsilon(1e-5),
            "epsilon of the saved": again.get_epsilon(1e-5),
            "saved": text,
        }
    return found


@section(DELTA)
def deltas() -> dict[str, Any]:
    found = {}
    for name in ("item", "higradavg", "group", "user_ldp", "fixed size", "mixed clipping"):
        event, steps = events()[name]
        for engine in ("pld", "rdp"):
            found[f"{name}, {engine}"] = acc.delta(event, steps, epsilon=3.0, engine=engine)
    silos = unlike_silos()
    for view in ("updates", "average"):
        found[f"silos, {view}"] = acc.HorizontalPlan(silos, view=view).delta(2.0)
    ledger = acc.SubjectPLDAccountant().compose(*events()["subject"])
    found["SubjectPLDAccountant"] = ledger.get_delta(2.0)
    curve = acc.fdp.exact_curve(
        acc.fdp.BatchScheme.batch(100, 64), epochs=10, noise_multiplier=6.0, group=4
    )
    found["f-DP"] = curve.delta(np.array([0.1, 0.5, 1.0])).tolist()
    return found


def unlike_silos() -> list[acc.Silo]:
    return [
        acc.Silo(acc.higradavg_event(0.02, 8, 6.0), 1, 200),
        acc.Silo(acc.higradavg_event(0.01, 3, 4.0), 1, 100, name="second"),
        acc.Silo(acc.group_event(0.05, 3, 9.0), 1, 200, weight=2.0),
        acc.Silo(acc.item_event(0.02, 3.0), 1, 150, clip_norm=0.5),
    ]


@section(COMPOSED)
def silos() -> dict[str, Any]:
    found: dict[str, Any] = {}
    kinds = {
        "equal": [acc.Silo(acc.higradavg_event(0.01, 5, 4.0), 1, 100)] * 4,
        "equal, several steps": [acc.Silo(acc.group_event(0.01, 5, 8.0), 20, 10)] * 4,
        "user_ldp": [acc.Silo(acc.user_ldp_event(20.0), 1, 40, clip_norm=2.0)] * 3,
        "unlike": unlike_silos(),
    }
    for (name, members), view, most in itertools.product(
        kinds.items(), ("updates", "average", "final_model"), (None, 2)
    ):
        label = f"{name}, {view}" + ("" if most is None else f", in {most}")
        with refused(found, label) as put:
            plan = acc.HorizontalPlan(members, silos_per_subject=most, view=view)
            worst = plan.worst_case(delta=1e-5)
            put(
                {
                    "epsilon": plan.epsilon(1e-5),
                    "rdp": plan.epsilon(1e-5, engine="rdp"),
                    "worst": list(worst.silos),
                    "exact": worst.exact,
                    "describe": plan.describe(),
                }
            )
    for most in (None, 2):
        plan = acc.HorizontalPlan(unlike_silos(), silos_per_subject=most)
        found[f"budget, {most}"] = {
            "rounds": plan.rounds_within_budget(epsilon=4.0, delta=1e-5),
            "noise": plan.noise_for_budget(epsilon=2.0, delta=1e-5),
        }
    known = acc.HorizontalPlan(kinds["equal"], view="average", known_noise=[0])
    found["known noise"] = known.epsilon(1e-5)
    people = acc.HorizontalPlan(kinds["equal"]).per_subject_epsilon(
        (["ann", "ann", "bob", "cem", "cem", "cem"], [0, 1, 1, 2, 2, 3]), delta=1e-6
    )
    found["per subject"] = {
        "epsilon": dict(zip(people.subjects.tolist(), people.epsilon.tolist(), strict=True)),
        "note": people.note,
    }
    return found


@section(CLOSED)
def conversions() -> dict[str, Any]:
    """Group conversions and utility bounds: closed forms."""
    from tf_subjectdp.accounting import group_privacy, utility

    problem = utility.ConvexProblem(diameter=2.0, lipschitz=1.0, smoothness=0.5, dimension=50)
    data = utility.SubjectData(subjects=1000, items=20, silos=4, silos_per_subject=2)
    how = {"q": 0.05, "noise_multiplier": 3.0, "steps": 200}
    budget = {"epsilon": 2.0, "delta": 1e-6}
    return {
        "group_loose": list(group_privacy.group_loose(0.5, 1e-8, 4)),
        "group_tight": list(group_privacy.group_tight(0.5, 1e-8, 4)),
        "group_mu": group_privacy.group_mu(0.3, 5),
        "group_rdp": list(group_privacy.group_rdp(16.0, 0.1, 2)),
        "group_zcdp": group_privacy.group_zcdp(0.02, 3),
        "ungroup_loose": list(group_privacy.ungroup_loose(2.0, 1e-6, 4)),
        "ungroup_tight": list(group_privacy.ungroup_tight(2.0, 1e-6, 4)),
        "ungroup_mu": group_privacy.ungroup_mu(1.5, 5),
        "ungroup_rdp": list(group_privacy.ungroup_rdp(16.0, 0.1, 2)),
        "ungroup_zcdp": group_privacy.ungroup_zcdp(0.18, 3),
        "zcdp_epsilon": group_privacy.zcdp_epsilon(0.1, 1e-6),
        "local_group_dp_excess_loss": figures_of(
            utility.local_group_dp_excess_loss(problem, data, **how)
        ),
        "user_ldp_excess_loss": figures_of(utility.user_ldp_excess_loss(problem, data, **how)),
        "higradavg_excess_loss": figures_of(utility.higradavg_excess_loss(problem, data, **how)),
        "bassily_excess_loss": utility.bassily_excess_loss(problem, units=1000, **budget),
        "local_group_dp_rate": utility.local_group_dp_rate(
            problem, items=20_000, group=4, **budget
        ),
        "higradavg_rate": utility.higradavg_rate(problem, subjects=1000, **budget),
        "user_ldp_rate": utility.user_ldp_rate(problem, subjects=1000, silos=4, **budget),
    }


@section(COMPOSED)
def papers() -> dict[str, Any]:
    """The papers' rules against the honest figures, group privacy of events, the study, utility."""
    from tf_subjectdp.accounting import group_privacy, paper_rules, study, utility

    found: dict[str, Any] = {}
    rules = {
        "rounds": {"rounds": 100, "silos": 16, "event": acc.item_event(0.01, 1.5), "delta": 1e-5},
        "higradavg_rate": {
            "q": 0.0064, "k": 20, "text": 2022, "noise_multiplier": 12.0, "steps": 1000,
            "delta": 1e-6,
        },
        "local_group_noise": {
            "group": 3, "k": 10, "q": 0.01, "steps": 200, "epsilon": 4.0, "delta": 1e-5,
        },
        "userldp_condition": {"epsilon": 4.0, "delta": 1e-5, "steps": 20},
        "element_amplification": {
            "p": 0.01, "noise_multiplier": 4.0, "steps": 100, "delta": 1e-5, "elements": 4,
        },
        "abadi_bound": {"q": 0.01, "steps": 1000, "epsilon": 1.0, "delta": 1e-5, "c2": 1.5},
    }  # fmt: skip
    for name, arguments in rules.items():
        said = paper_rules.compare_rule(name, **arguments)
        fields = ("published", "honest", "stated_epsilon", "honest_epsilon", "reason")
        found[f"rule {name}"] = {field: getattr(said, field) for field in fields}
        found[f"rule {name}"]["text"] = str(said)
    published = {
        "paper_rounds": lambda: paper_rules.paper_rounds(100, 16),
        "paper_higradavg_rate, 2023": lambda: paper_rules.paper_higradavg_rate(
            0.0064, 20, text=2023
        ),
        "paper_userldp_condition": lambda: paper_rules.paper_userldp_condition(4.0, 1e-5),
    }
    for name, rule in published.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = rule()
        found[name] = {"value": value, "warning": [str(one.message) for one in caught]}
    item = acc.item_event(0.01, 2.0)
    for rule, engine in (("tight", "pld"), ("loose", "pld"), ("rdp", "rdp"), ("fdp", "pld")):
        with refused(found, f"group_epsilon, {rule}, {engine}") as put:
            put(
                group_privacy.group_epsilon(item, 100, size=3, delta=1e-5, rule=rule, engine=engine)
            )
    found["group_noise_multiplier"] = group_privacy.group_noise_multiplier(
        lambda s: acc.item_event(0.01, s), 100, size=3, epsilon=2.0, delta=1e-5
    )
    small = study.StudySetting(name="small", subjects=200, items=20, batch=100, rounds=20, silos=4)
    found["study"] = {row.key: list(row.values) for row in study.study_rows([small])}
    problem = utility.ConvexProblem(diameter=2.0, lipschitz=1.0, smoothness=0.5, dimension=50)
    data = utility.SubjectData(subjects=1000, items=20, silos=4, silos_per_subject=2)
    for name in ("local_group_dp", "user_ldp", "higradavg"):
        loss = utility.excess_loss_at_budget(
            name, problem, data, q=0.05, steps=50, epsilon=2.0, delta=1e-6
        )
        found[f"utility at a budget, {name}"] = figures_of(loss)
    return found


@section(COMPOSED)
def fdp() -> dict[str, Any]:
    """Trade-off curves: beta at some alpha, epsilon at a delta."""
    from tf_subjectdp.accounting import fdp as f

    batch = f.BatchScheme.batch(100, 64)
    mixed = f.BatchScheme.mixed(20, 4, 16)
    alone = f.BatchScheme.individual(100, 64)
    sampled = f.BatchScheme.batch(100, 64, sampling="subsampling")
    how = {"epochs": 10, "noise_multiplier": 6.0, "group": 4}
    curves = {
        "gaussian": f.gaussian(1.2),
        "approximate": f.approximate_dp(1.0, 1e-4),
        "from approximate": f.from_approximate_dp([0.5, 1.0, 2.0], [1e-2, 1e-3, 1e-5]),
        "subsample": f.subsample(f.gaussian(1.5), 0.2),
        "tensor": f.tensor(f.gaussian(0.5), f.subsample(f.gaussian(1.0), 0.3)),
        "power": f.power(f.subsample(f.gaussian(0.8), 0.1), 20),
        "group": f.group(f.approximate_dp(0.5, 1e-4), 3),
        "exact, batch": f.exact_curve(batch, **how),
        "exact, mixed": f.exact_curve(mixed, **how),
        "exact, individual": f.exact_curve(alone, **how),
        "exact, subsampling": f.exact_curve(sampled, **how),
        "lower": f.lower_curve(mixed, **how),
        "upper": f.upper_curve(mixed, **how),
        "closed form": f.closed_form_curve(batch, **how),
        "independent": f.independent_curve(sampled, epochs=2, noise_multiplier=6.0),
        "sampled parts": f.sampled_parts_curve(
            q=0.01, k=5, parts=4, steps=50, noise_multiplier=3.0
        ),
        "fixed parts": f.fixed_size_parts_curve(
            n_items=1000, batch_size=40, k=5, parts=4, steps=50, noise_multiplier=3.0
        ),
        "shuffled parts": f.shuffled_parts_curve(
            n_items=1000, batch_size=40, k=5, parts=4, epochs=3, noise_multiplier=4.0
        ),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", acc.PaperRuleWarning)
        curves["paper E1"] = f.paper_e1_curve(rounds=100, epochs=5, noise_multiplier=4.0)
        curves["paper F3"] = f.paper_f3_curve(batch, **how)
    points = np.array([1e-3, 0.05, 0.3, 0.8])
    found: dict[str, Any] = {}
    for name, curve in curves.items():
        found[name] = {
            "beta": np.asarray(curve(points)).tolist(),
            "epsilon": float(curve.epsilon(2e-3)),
            "adversary": curve.adversary,
        }
    law = f.hit_law(mixed, epochs=3, group=4)
    found["hits"] = {"mean": law.mean(), "probability": [law.probability(c) for c in range(13)]}
    return found


# -- plans -------------------------------------------------------------------------------------------

ALGORITHMS = {
    "ItemDP": sdp.ItemDP(1.0),
    "HiGradAvg": sdp.HiGradAvg(1.0),
    "HiGradAvg, subjects": sdp.HiGradAvg(1.0, normalization="expected_subjects"),
    "GroupDP": sdp.GroupDP(1.0),
    "GroupDP, 4": sdp.GroupDP(1.0, max_items_per_subject=4),
    "SubjectDP": sdp.SubjectDP(0.5),
    "UserLDP": sdp.UserLDP(2.0),
    "ElementDP": sdp.ElementDP(0.2, max_elements=10),
    "ElementDP, items": sdp.ElementDP(0.2, max_elements=10, max_items_per_element=5),
    "BatchClipping": sdp.BatchClipping(1.0),
    "MixedClipping": sdp.MixedClipping(1.0, parts=4),
    "MixedClipping, schedule": sdp.MixedClipping(
        1.0, parts=4, clip_schedule=sdp.ClipSchedule.inverse_power(5)
    ),
}
SAMPLINGS = {
    "PoissonItems": sdp.PoissonItems(256),
    "PoissonSubjects": sdp.PoissonSubjects(24),
    "PoissonSubjects, 8": sdp.PoissonSubjects(24, max_items_per_subject=8),
    "PoissonElements": sdp.PoissonElements(100),
    "FixedSize": sdp.FixedSize(250),
    "Shuffle": sdp.Shuffle(256),
    "Shuffle, half": sdp.Shuffle(256, keep_probability=0.5),
}
UNITS = ("subject", "element", "item")


SMALL = sdp.SubjectStats.from_ids(IDS, TOPICS)
SMALL_SAMPLINGS = {
    "PoissonItems": sdp.PoissonItems(24),
    "PoissonSubjects": sdp.PoissonSubjects(5),
    "PoissonSubjects, 3": sdp.PoissonSubjects(5, max_items_per_subject=3),
    "PoissonElements": sdp.PoissonElements(9),
    "FixedSize": sdp.FixedSize(24),
    "Shuffle": sdp.Shuffle(25),
}


def plans_of() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every algorithm x sampling x unit, of many people, of these with a bound on rows, and of few."""
    for size, cap in (("", None), (" | 20 rows", 20), (" | few", None)):
        few = size == " | few"
        samplings = SMALL_SAMPLINGS if few else SAMPLINGS
        for (a, algorithm), (s, sampling) in itertools.product(
            ALGORITHMS.items(), samplings.items()
        ):
            if cap is not None and s in ("Shuffle, half", "PoissonSubjects, 8"):
                continue
            stats = SMALL if few else LARGE_ELEMENTS if s == "PoissonElements" else LARGE
            for unit in UNITS:
                if unit == "element" and not a.startswith("ElementDP"):
                    continue

                def make(algorithm=algorithm, sampling=sampling, stats=stats, unit=unit, cap=cap):
                    length = {"steps": 40, "delta": 1e-3} if stats is SMALL else {"steps": 400}
                    options = {"noise_multiplier": 8.0, "delta": 1e-6, "unit": unit, **length}
                    return sdp.plan(
                        algorithm, sampling, stats, max_items_per_subject=cap, **options
                    )

                yield f"{a} | {s} | {unit}{size}", make


@section(COMPOSED)
def plans() -> dict[str, Any]:
    """The epsilon of every combination, or that it is refused; the noise of a promise for some."""
    found: dict[str, Any] = {}
    for name, make in plans_of():
        with refused(found, name) as put:
            put(make().epsilon())
    for a, s in (
        ("ItemDP", "PoissonItems"), ("HiGradAvg", "PoissonItems"), ("GroupDP, 4", "PoissonItems"),
        ("SubjectDP", "PoissonSubjects"), ("UserLDP", "FixedSize"), ("ElementDP", "PoissonElements"),
        ("BatchClipping", "Shuffle"), ("MixedClipping", "PoissonItems"),
    ):  # fmt: skip
        stats = LARGE_ELEMENTS if s == "PoissonElements" else LARGE
        plan = sdp.plan(
            ALGORITHMS[a], SAMPLINGS[s], stats, epochs=2.5, epsilon=4.0, delta=1e-6,
            max_items_per_subject=None if a == "ElementDP" else 20,
        )  # fmt: skip
        found[f"{a} | {s} | noise for epsilon 4"] = {
            "noise": plan.noise_multiplier,
            "epsilon": plan.epsilon(),
            "smaller delta": plan.epsilon(1e-8),
            "half of it": plan.epsilon(steps=plan.steps // 2),
            "twice as long": plan.extended(steps=2 * plan.steps).epsilon(),
            "rdp": acc.epsilon(plan.event, delta=1e-6, engine="rdp"),
            "text": str(plan),
        }
    return found


@section(CLOSED)
def constants() -> dict[str, Any]:
    """What a plan freezes: divisor, rate, k, length; and config and digests, which saved files hold."""
    found: dict[str, Any] = {}
    seen = set()
    for name, make in plans_of():
        a, s, _, *size = name.split(" | ")
        pair = " | ".join([a, s, *size])
        if pair in seen or "20 rows" in size:
            continue
        with contextlib.suppress(ValueError):
            plan = make()
            seen.add(pair)
            found[pair] = [
                plan.divisor, plan.facts.rate, plan.facts.max_items, plan.steps_per_epoch,
                plan.epochs, plan.stated_delta, plan.fingerprint, plan.identity,
            ]  # fmt: skip
    for name in (
        "HiGradAvg | PoissonItems | subject | 20 rows",
        "ElementDP | PoissonElements | element",
    ):
        config = dict(plans_of())[name]().get_config()
        again = sdp.Plan.from_config(json.loads(json.dumps(config))).get_config()
        found[f"config {name}"] = config
        found[f"config {name} again"] = again == config
    for name, stats in (
        ("stats", sdp.SubjectStats.from_ids(IDS)),
        ("stats with elements", SMALL),
        ("stats, bounded", sdp.SubjectStats.from_ids(IDS).bounded(5)),
        ("stats of counts", sdp.SubjectStats.from_counts(np.bincount(IDS))),
    ):
        found[name] = {"config": stats.get_config(), "text": str(stats)}
    return found


# -- statements --------------------------------------------------------------------------------------


@section(COMPOSED)
def statements() -> dict[str, Any]:
    """What plans say of themselves, word by word."""
    found = {}
    wanted = (
        "ItemDP | PoissonItems | item", "ItemDP | PoissonItems | subject",
        "HiGradAvg | PoissonItems | subject | 20 rows", "HiGradAvg | FixedSize | subject",
        "GroupDP, 4 | PoissonSubjects | subject", "SubjectDP | PoissonSubjects | subject",
        "SubjectDP | Shuffle | subject", "UserLDP | FixedSize | subject",
        "ElementDP | PoissonSubjects | element", "ElementDP | PoissonElements | element",
        "BatchClipping | Shuffle | subject", "MixedClipping, schedule | PoissonItems | subject",
    )  # fmt: skip
    every = dict(plans_of())
    for name in wanted:
        found[name] = every[name]().statement()
    stats = sdp.SubjectStats.from_ids(IDS)
    bare = sdp.plan(sdp.HiGradAvg(1.0), sdp.PoissonItems(24), stats, steps=40, noise_multiplier=0.0)
    found["without noise"] = bare.statement()
    counted = sdp.plan(
        sdp.SubjectDP(1.0), sdp.PoissonSubjects(5), stats, steps=40, epsilon=3.0, delta=1e-3
    )
    found["counted"] = counted.statement()
    return found


# -- the command -------------------------------------------------------------------------------------

_PLANNED = "--batch 256 --items 50000 --subjects 2400 --items-per-subject 60"
_ONE = "--items 50000 --items-per-subject 50"
#: A line a case; {folder} holds visits.csv (id, silo) and, after `plan --save`, plan.json.
LINES = f"""
epsilon --algorithm higradavg --batch 512 --items 31700 --items-per-subject 145 --noise 60 --steps 6200 --delta 1e-5
epsilon --algorithm itemdp --unit item --batch 256 {_ONE} --noise 0.8 --epochs 10 --delta 1e-5
epsilon --algorithm itemdp --batch 256 {_ONE} --noise 8 --epochs 10 --delta 1e-5 --engine rdp
epsilon --algorithm itemdp --batch 256 {_ONE} --noise 8 --epochs 10 --delta 1e-5
epsilon --algorithm groupdp --q 0.02 --items-per-subject 7 --cap 2 --noise 3 --steps 40 --delta 1e-5
epsilon --algorithm groupdp --q 0.02 --cap-data 7 --noise 3 --steps 40 --delta 1e-5
epsilon --algorithm subjectdp --p 0.1 --noise 3 --steps 40 --delta 1e-5
epsilon --algorithm subjectdp --expected-subjects 20 --subjects 200 --noise 3 --steps 40 --delta 1e-5
epsilon --algorithm subjectdp --p 0.1 --unit item --items-per-subject 7 --noise 3 --steps 40 --delta 1e-5
epsilon --algorithm userldp --noise 30 --steps 40 --delta 1e-5
epsilon --algorithm userldp --unit silo --noise 30 --steps 40 --delta 1e-5
epsilon --algorithm elementdp --p 0.01 --noise 2 --steps 1000 --delta 1e-5
epsilon --algorithm elementdp --r 0.01 --noise 2 --steps 1000 --delta 1e-5
epsilon --algorithm elementdp --r 0.01 --elements 10 --unit subject --noise 2 --steps 1000 --delta 1e-5
epsilon --algorithm element-subject --p 0.1 --elements 3 --noise 3 --steps 40 --delta 1e-5
epsilon --algorithm elementdp --expected-elements 100 --elements-in-all 12000 --noise 2 --steps 100 --delta 1e-5
epsilon --algorithm batchclipping --batch 256 {_ONE} --noise 16 --epochs 2 --delta 1e-5
epsilon --algorithm batchclipping --sampling shuffle --batch 256 {_ONE} --noise 16 --epochs 2 --delta 1e-5
epsilon --algorithm mixedclipping --parts 4 --batch 256 {_ONE} --noise 16 --epochs 2 --delta 1e-5
epsilon --algorithm higradavg --sampling shuffle --batch 256 {_ONE} --noise 4 --epochs 10 --delta 1e-5
epsilon --algorithm higradavg --sampling shuffle --keep-probability 0.5 --batch 256 {_ONE} --noise 4 --epochs 10 --delta 1e-5
epsilon --algorithm itemdp --sampling fixed-size --batch 250 {_ONE} --unit item --noise 4 --steps 100 --delta 1e-5
epsilon --algorithm higradavg --batch 64 --items 10000 --items-per-subject 20 --noise 12 --silos 5 --rounds 50 --steps-per-round 20 --delta 1e-6
epsilon --algorithm higradavg --batch 64 --items 10000 --items-per-subject 20 --noise 12 --silos 5 --silos-per-subject 2 --rounds 50 --steps-per-round 20 --delta 1e-6
epsilon --algorithm groupdp --q 0.02 --items-per-subject 7 --rounds 30 --silos 4 --view average --noise 3 --delta 1e-5
epsilon --algorithm groupdp --q 0.02 --items-per-subject 7 --rounds 30 --silos 4 --view final_model --noise 3 --delta 1e-5
epsilon --algorithm centralgroup --q 0.02 --items-per-subject 7 --rounds 30 --silos 4 --noise 9 --delta 1e-5
epsilon --algorithm centralhigradavg --q 0.02 --items-per-subject 7 --rounds 30 --silos 4 --silos-per-subject 1 --noise 9 --delta 1e-5
epsilon --algorithm higradavg --q 0.02 --items-per-subject 7 --noise 0 --steps 40 --delta 1e-5
noise --algorithm higradavg --batch 512 --items 31700 --items-per-subject 145 --steps 6200 --epsilon 4 --delta 1e-5
noise --algorithm elementdp --r 0.01 --steps 1000 --epsilon 1 --delta 1e-5
noise --algorithm mixedclipping --parts 4 --batch 256 {_ONE} --epochs 1 --epsilon 4 --delta 1e-5
noise --algorithm groupdp --q 0.02 --items-per-subject 7 --rounds 30 --silos 4 --epsilon 4 --delta 1e-5
rounds --algorithm higradavg --batch 512 --items 31700 --items-per-subject 145 --noise 60 --epsilon 4 --delta 1e-5
rounds --algorithm higradavg --batch 64 --items 10000 --items-per-subject 20 --noise 12 --silos 5 --steps-per-round 20 --epsilon 4 --delta 1e-6
plan --algorithm higradavg {_PLANNED} --epochs 10 --epsilon 4 --delta 1e-5 --save {{folder}}/plan.json
plan --algorithm subjectdp --expected-subjects 20 --subjects 2000 --items 50000 --items-per-subject 60 --steps 1000 --noise 3 --delta 1e-5
plan --algorithm elementdp --expected-subjects 20 --elements 10 --subjects 2000 --items 50000 --items-per-subject 60 --steps 1000 --noise 10 --delta 1e-5
plan --algorithm itemdp --ids {{folder}}/visits.csv --column id --batch 24 --steps 40 --noise 5 --delta 1e-3
statement --plan {{folder}}/plan.json
statement --plan {{folder}}/plan.json --steps-taken 1200
statement --algorithm higradavg {_PLANNED} --epochs 1 --noise 12 --delta 1e-5
compare --ids {{folder}}/visits.csv --column id --epsilon 4 --delta 1e-4 --batch 24 --epochs 1 --cap 2 --elements 3
compare --ids {{folder}}/visits.csv --column id --silo-column silo --epsilon 4 --delta 1e-4 --batch 24 --epochs 1
epsilon --algorithm higradavg --q 0.02 --noise 3 --steps 40 --delta 1e-5
epsilon --algorithm nobody --q 0.02 --noise 3 --steps 40 --delta 1e-5
epsilon --algorithm itemdp --q 2 --unit item --noise 3 --steps 40 --delta 1e-5
epsilon --algorithm itemdp --q 0.02 --unit item --noise 3 --steps 40 --delta 7
noise --algorithm itemdp --q 0.02 --unit item --steps 40 --epsilon -1 --delta 1e-5
plan --algorithm elementdp {_PLANNED} --epochs 10 --epsilon 4 --delta 1e-5
plan --algorithm itemdp --ids {{folder}}/nothing.csv --column id --batch 24 --steps 40 --noise 5 --delta 1e-3
compare --ids {{folder}}/visits.csv --column nobody --epsilon 4 --delta 1e-4 --batch 24 --epochs 1
""".strip().splitlines()  # noqa: E501


def command_of(words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(words.split())
    return status, out.getvalue(), err.getvalue()


@section(COMPOSED)
def command() -> dict[str, Any]:
    """Standard output, notes and status of every line, as text and as JSON; of a refusal the status."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        rows = [f"p{who},s{where}" for who, where in zip(IDS, SILOS, strict=True)]
        pathlib.Path(folder, "visits.csv").write_text(
            "\n".join(["id,silo", *rows]) + "\n", encoding="utf-8"
        )
        for line in LINES:
            status, out, err = command_of(line.replace("{folder}", folder))
            if status:
                found[line] = {"status": status, "lines": len(err.splitlines()), "output": out}
                continue
            found[line] = {
                "text": out.replace(folder, "{folder}"),
                "notes": err.replace(folder, "{folder}"),
            }
            if not line.startswith("statement"):  # there it is the same text again
                _, as_json, _ = command_of(line.replace("{folder}", folder) + " --json")
                found[line]["json"] = json.loads(as_json.replace(folder, "{folder}"))
        found["plan.json"] = json.loads(
            pathlib.Path(folder, "plan.json").read_text(encoding="utf-8")
        )
    return found


# -- silos -------------------------------------------------------------------------------------------


def federated_plans() -> dict[str, Callable[[], Any]]:
    stats = sdp.SiloStats.from_ids(IDS, SILOS)
    pairs = sdp.SiloStats.from_ids(IDS, SILOS, element_id=TOPICS)
    twos = sdp.SiloStats.from_ids(IDS, (IDS + np.arange(ROWS) % 2) % 4)

    def make(algorithm, sampling, stats=stats, **options):
        options = {"rounds": 10, "noise_multiplier": 8.0, "delta": 1e-3, **options}
        return lambda: sdp.federated.plan(algorithm, sampling, stats, **options)

    by_silo = [sdp.PoissonItems(4), sdp.PoissonItems(8), sdp.PoissonItems(6), sdp.PoissonItems(5)]
    fixed = sdp.FixedSize(6)
    return {
        "FedAvg": make(None, sdp.PoissonItems(8), noise_multiplier=None, delta=None),
        "ItemDP": make(sdp.ItemDP(1.0), sdp.PoissonItems(8)),
        "ItemDP, item": make(sdp.ItemDP(1.0), sdp.PoissonItems(8), unit="item"),
        "HiGradAvg": make(sdp.HiGradAvg(1.0), sdp.PoissonItems(8), local_steps=3),
        "HiGradAvg, two of four": make(
            sdp.HiGradAvg(1.0), sdp.PoissonItems(8), silos_per_round=2, local_steps=2
        ),
        "HiGradAvg, average": make(sdp.HiGradAvg(1.0), sdp.PoissonItems(8), view="average"),
        "HiGradAvg, unlike": make(
            sdp.HiGradAvg(1.0), by_silo, noise_multiplier=[8.0, 9.0, 10.0, 11.0], weighting="items"
        ),
        "HiGradAvg, bounded": make(
            sdp.HiGradAvg(1.0), sdp.PoissonItems(8), max_items_per_subject=4
        ),
        "HiGradAvg, in two": make(
            sdp.HiGradAvg(1.0), sdp.PoissonItems(8), twos, silos_per_subject=2
        ),
        "HiGradAvg, server": make(sdp.HiGradAvg(1.0), sdp.PoissonItems(8), noise_at="server"),
        "GroupDP": make(sdp.GroupDP(1.0, max_items_per_subject=2), sdp.PoissonItems(8)),
        "GroupDP, server": make(sdp.GroupDP(1.0), sdp.PoissonItems(8), noise_at="server"),
        "GroupDP, fixed": make(sdp.GroupDP(1.0), fixed, noise_multiplier=40.0),
        "SubjectDP": make(sdp.SubjectDP(1.0), sdp.PoissonSubjects(3)),
        "UserLDP": make(sdp.UserLDP(1.0), sdp.PoissonItems(8), local_steps=2),
        "UserLDP, fixed, average": make(sdp.UserLDP(1.0), fixed, view="average"),
        "ElementDP": make(sdp.ElementDP(1.0, max_elements=6), sdp.PoissonElements(4), pairs),
        "ElementDP, subjects": make(sdp.ElementDP(1.0, max_elements=6), sdp.PoissonSubjects(3)),
        "BatchClipping": make(sdp.BatchClipping(1.0), sdp.PoissonItems(8)),
        "noise for epsilon 4": make(
            sdp.HiGradAvg(1.0), sdp.PoissonItems(8), noise_multiplier=None, epsilon=4.0,
            local_steps=2,
        ),
        "noise for epsilon 4, average": make(
            sdp.GroupDP(1.0), sdp.PoissonItems(8), noise_multiplier=None, epsilon=4.0,
            view="average",
        ),
    }  # fmt: skip


SAID_IN_FULL = (
    "FedAvg", "ItemDP", "HiGradAvg, two of four", "HiGradAvg, average", "HiGradAvg, unlike",
    "HiGradAvg, in two", "HiGradAvg, server", "GroupDP, fixed", "SubjectDP", "UserLDP", "ElementDP",
    "noise for epsilon 4",
)  # fmt: skip


@section(COMPOSED)
def federated() -> dict[str, Any]:
    """Plans over silos: what they cost in every unit and view, by whom, and what they say."""
    from tf_subjectdp.federated import Spent

    found: dict[str, Any] = {}
    for name, make in federated_plans().items():
        with refused(found, name) as put:
            plan = make()
            said: dict[str, Any] = {
                "noise": list(plan.noise_multipliers),
                "rounds of a silo": plan.rounds_of_a_silo,
                "divisors": list(plan.divisors),
                "weights": list(plan.weights),
                "server divisor": plan.server_divisor,
                "text": str(plan),
            }
            if name in SAID_IN_FULL:
                said["statement"] = plan.statement()
            for unit in UNITS if plan.algorithm is not None else ():
                with contextlib.suppress(ValueError):
                    said[f"epsilon, {unit}"] = plan.epsilon(unit=unit)
            if plan.algorithm is not None:
                spent = Spent(3, (3, 2, 1, 0))
                with contextlib.suppress(ValueError):
                    said["epsilon, spent"] = plan.epsilon(spent=spent)
                    if name in ("HiGradAvg", "HiGradAvg, average", "ElementDP"):
                        said["statement, spent"] = plan.statement(spent=spent)
                with contextlib.suppress(ValueError):
                    said["of every subject"] = plan.per_subject_epsilon().epsilon.tolist()
            put(said)
    return found


@section(CLOSED)
def federated_constants() -> dict[str, Any]:
    """Configs and fingerprints of silo plans; who goes where when a table is spread with a test seed."""
    from tf_subjectdp.federated import FederatedPlan, as_text, hashed_ids, partition

    found: dict[str, Any] = {}
    for name, make in federated_plans().items():
        if "epsilon" in name:
            continue  # its noise is of a search
        with contextlib.suppress(ValueError):
            plan = make()
            config = plan.get_config()
            again = FederatedPlan.from_config(json.loads(json.dumps(config)))
            found[name] = {
                "fingerprint": plan.fingerprint,
                "again": again.get_config() == config,
            }
            if name in ("HiGradAvg, unlike", "ElementDP"):
                found[name]["config"] = config
    found["stats"] = str(sdp.SiloStats.from_ids(IDS, SILOS, element_id=TOPICS))
    found["hashed ids"] = plain(hashed_ids(["Ann", "bob"], b"0123456789abcdef0123456789abcdef"))
    found["ids as text"] = plain(as_text(np.array([7, 8])))
    found["uniform"] = digest(partition.uniform(IDS, 4, seed=3))
    found["power"] = digest(partition.power(IDS, 4, 2.0, seed=3))
    found["natural"] = digest(partition.natural(SILOS)[0])
    found["small"] = digest(partition.small(IDS, 10))
    return found


# -- tables, releases, elements ----------------------------------------------------------------------


@section(CLOSED)
def tables() -> dict[str, Any]:
    """Statistics read from a file, and samplers as they are written down."""
    found: dict[str, Any] = {}
    for name, sampler in SAMPLINGS.items():
        found[name] = {"config": sampler.get_config(), "text": str(sampler)}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "visits.csv")
        lines = [f"p{who};s{where}" for who, where in zip(IDS, SILOS, strict=True)]
        path.write_text("\n".join(["id;silo", *lines]) + "\n", encoding="utf-8")
        found["table"] = sdp.stats_from_table(path, "id", delimiter=";").get_config()
        found["table of silos"] = str(
            sdp.stats_from_table(path, "id", silo_column="silo", delimiter=";")
        )
    return found


@section(COMPOSED)
def releases() -> dict[str, Any]:
    """Noise from a test seed; estimates, radii, cost and statement."""
    counts = release.count_elements(IDS, TOPICS, vocabulary=np.arange(6))
    met = release.count_elements(IDS, TOPICS)
    how = {"epsilon": 1.0, "delta": 1e-6, "seed": 3}
    histogram = release.histogram(counts, radius=3.0, max_elements=6, **how)
    made = {
        "histogram": histogram,
        "histogram, blocks": release.histogram(
            counts, radius=3.0, block=[0, 0, 1, 1, 2, 2], sensitivity="counts", **how
        ),
        "two stages": release.two_stage_histogram(counts, items=20, **how),
        "user level": release.user_level_histogram(counts, radius=6.0, **how),
        "frequent": release.frequent_elements(histogram, top=3),
        "discovered": release.discover_elements(met, **how),
    }
    found: dict[str, Any] = {}
    for name, one in made.items():
        found[name] = {
            "estimate": np.asarray(one.estimate).tolist(),
            "noise": one.noise_multiplier,
            "epsilon": one.epsilon(),
            "statement": one.statement(),
        }
        for field in ("radius", "noise_stddev", "names", "threshold"):
            if hasattr(one, field):
                found[name][field] = plain(getattr(one, field))
        with contextlib.suppress(ValueError):
            found[name]["epsilon of a subject"] = one.epsilon(unit="subject")
    for level in ("element", "user"):
        found[f"bound, {level}"] = figures_of(
            release.error_bound(
                np.full(10, 0.1), n_subjects=1000, items=20, radius=3.0, noise_multiplier=4.0,
                level=level,
            )
        )  # fmt: skip
    return found


@section(COMPOSED)
def element_maps() -> dict[str, Any]:
    """Maps from rows to elements, what a private fit costs, and statements that count it."""
    found: dict[str, Any] = {}
    words = np.array(["Ann", "bob", "cem", "Dora"])
    found["hash"] = elements.HashElements(16, salt="x").element_ids(words).tolist()
    urls = np.array(["https://a.example.org/x", "http://b.example.com"])
    found["domains"] = plain(elements.FunctionElements(elements.url_domain).element_ids(urls))
    users = elements.pseudo_users(TOPICS, n_users=6, items_per_user=8, elements_per_user=3, seed=3)
    found["pseudo users"] = [digest(users.rows), digest(users.users), digest(users.elements)]
    # four corners, well apart: any k-means finds them
    corners = np.array([[3.0, 3.0], [-3.0, 3.0], [3.0, -3.0], [-3.0, -3.0]], np.float32)
    points = corners[np.arange(ROWS) % 4] + 0.01 * np.cos(np.arange(2 * ROWS)).reshape(-1, 2)
    points = points.astype(np.float32)
    topics = elements.KMeansElements(4).fit(points, public=True, seed=3)
    ids = topics.element_ids(points)
    found["k-means"] = [int(ids[i] == ids[i + 4]) for i in range(0, 40, 4)]
    found["k-means, clusters"] = len(set(np.asarray(ids).tolist()))
    fitted = elements.KMeansElements(4).fit_private(
        points, IDS, noise_multiplier=20.0, radius=5.0, iterations=3
    )
    found["k-means, private"] = {
        "epsilon": acc.epsilon(fitted.event, delta=1e-5),
        "epsilon of an element": acc.epsilon(fitted.element_event, delta=1e-5),
    }
    for name, source in (("public", topics), ("paid", fitted), ("nobody knows", None)):
        plan = sdp.plan(
            sdp.ElementDP(0.2, max_elements=6, elements=source), sdp.PoissonElements(20),
            sdp.SubjectStats.from_ids(IDS, TOPICS), steps=20, noise_multiplier=6.0, delta=1e-4,
        )  # fmt: skip
        found[f"plan, {name}"] = {
            "epsilon": plan.epsilon(),
            "known": plan.known_epsilon(),
            "statement": plan.statement(),
        }
    return found


# -- steps (TensorFlow) ------------------------------------------------------------------------------

#: 18 rows of five people, some gradients above the clip norm and some below it.
WHO = np.repeat(np.arange(5), (1, 2, 5, 7, 3))
TOPIC = (WHO + np.arange(18) // 2) % 3
X = (np.cos(np.arange(54.0)).reshape(18, 3) * (0.05 + np.arange(18)[:, None] % 4)).astype("float32")
Y = (np.arange(18) % 2).astype("int32")


def net() -> Any:
    import tensorflow as tf

    layers = [tf.keras.Input([3]), tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(2)]
    model = tf.keras.Sequential(layers)
    model.set_weights(
        [0.5 * np.sin(1.0 + np.arange(w.size)).reshape(w.shape) for w in model.get_weights()]
    )
    return model


def everybody(algorithm: Any, *, noise_multiplier: float = 0.0, steps: int = 1) -> Any:
    """A plan in which every row is in every step, so that a sum depends on no draw."""
    elements_too = isinstance(algorithm, sdp.ElementDP)
    stats = sdp.SubjectStats.from_ids(WHO, TOPIC if elements_too else None)
    return sdp.plan(
        algorithm, sdp.PoissonItems(len(WHO)), stats, steps=steps, noise_multiplier=noise_multiplier,
        delta=1e-3,
    )  # fmt: skip


def update(
    algorithm: Any, engine: str, *, rows: tuple[Any, Any] = (X, Y), steps: int = 1
) -> list[float]:
    """What `private_step` without noise takes off the weights, times the divisor: the clipped sum."""
    import tensorflow as tf

    plan, model, rate = everybody(algorithm, steps=steps), net(), 64.0 if steps == 1 else 1.0
    optimizer = plan.optimizer(
        tf.keras.optimizers.SGD(rate), engine={"strategy": engine}, initial_weights="public"
    )
    data = plan.dataset(*rows, WHO, *([TOPIC] if isinstance(algorithm, sdp.ElementDP) else []))
    before = model.get_weights()

    def row_function(rows):
        outputs = model(rows[0], training=True)
        losses = tf.keras.losses.sparse_categorical_crossentropy(rows[1], outputs, from_logits=True)
        return losses, outputs

    def step(features, labels, extras):
        rows = (features, labels)
        sdp.private_step(
            optimizer, row_function, model.trainable_variables, rows, extras, model=model
        )

    step = tf.function(step, input_signature=data.element_spec, autograph=False)
    for batch in data:
        step(*batch)
    taken = [old - new for old, new in zip(before, model.get_weights(), strict=True)]
    return (np.concatenate([one.ravel() for one in taken]) * plan.divisor / rate).tolist()


@section(TRAINED)
def steps() -> dict[str, Any]:
    """Clipped sums of fixed batches by every algorithm; engines must give one and the same.

    Clip norms lie among the norms of rows (0.8 to 1.7), of people's means (0.5 to 0.9), of elements'
    (0.2 to 1.6), of the batch's (0.37): some are clipped and some are not.
    """
    import tensorflow as tf

    algorithms = {
        "ItemDP": sdp.ItemDP(1.09),
        "HiGradAvg": sdp.HiGradAvg(1.09),
        "GroupDP": sdp.GroupDP(1.09, max_items_per_subject=7),
        "SubjectDP": sdp.SubjectDP(0.65),
        "UserLDP": sdp.UserLDP(0.3),
        "ElementDP": sdp.ElementDP(0.9, max_elements=3),
    }
    found: dict[str, Any] = {}
    for name, algorithm in algorithms.items():
        found[f"{name}, loop"] = update(algorithm, "loop")
    for name, engine in (
        ("HiGradAvg", "vectorized"), ("SubjectDP", "vectorized"),
        ("HiGradAvg", "norm_only"), ("SubjectDP", "norm_only"),
    ):  # fmt: skip
        found[f"{name}, {engine}"] = update(algorithms[name], engine)
    # Parts are drawn afresh; of rows that are all the same each has the same mean.
    mixed = sdp.MixedClipping(0.1, parts=2)
    same = tuple(np.repeat(one[3:4], len(one), axis=0) for one in (X, Y))
    found["MixedClipping, loop"] = update(mixed, "loop", rows=same)
    inner = sdp.InnerOptimizer(tf.keras.optimizers.SGD(0.1, momentum=0.9), steps=2)
    found["BatchClipping, inner"] = update(sdp.BatchClipping(1.0, inner=inner), "loop", rows=same)
    schedule = sdp.ClipSchedule([1.0, 0.5])
    found["BatchClipping, schedule, two steps"] = update(
        sdp.BatchClipping(0.5, clip_schedule=schedule), "loop", steps=2
    )
    return found


@section(CLOSED)
def draws() -> dict[str, Any]:
    """Which rows are in a step: `plan.dataset` with a test seed; and how often over many steps."""
    found: dict[str, Any] = {}
    for name, sampling, cap in (
        ("PoissonItems", sdp.PoissonItems(24), None),
        ("PoissonItems, bounded", sdp.PoissonItems(24), 4),
        ("PoissonSubjects", sdp.PoissonSubjects(5), None),
        ("PoissonSubjects, 3", sdp.PoissonSubjects(5, max_items_per_subject=3), None),
        ("PoissonElements", sdp.PoissonElements(9), None),
        ("FixedSize", sdp.FixedSize(24), None),
        ("Shuffle", sdp.Shuffle(25), None),
        ("Shuffle, half", sdp.Shuffle(25, keep_probability=0.5), None),
    ):
        of_elements = name == "PoissonElements"
        algorithm = sdp.ElementDP(1.0, max_elements=3) if of_elements else sdp.HiGradAvg(1.0)
        topics = TOPICS if of_elements else None
        stats = sdp.SubjectStats.from_ids(IDS, topics)
        with refused(found, name) as put:
            plan = sdp.plan(
                algorithm, sampling, stats, steps=100, noise_multiplier=1.0,
                max_items_per_subject=cap,
            )  # fmt: skip
            numbers = np.arange(ROWS)
            data = plan.dataset(numbers, numbers, IDS, topics, seed=5)
            drawn = [np.sort(batch[0]) for batch in data.as_numpy_iterator()]
            often = np.bincount(np.concatenate(drawn), minlength=ROWS)
            put(
                {
                    "divisor": plan.divisor,
                    "first": drawn[0].tolist(),
                    "sizes": [len(batch) for batch in drawn[:20]],
                    "all": digest(np.concatenate(drawn)),
                    "draws of a row, fewest, most, all": [
                        int(often.min()), int(often.max()), int(often.sum()),
                    ],
                    "rows of a person in a step": max(
                        int(np.bincount(IDS[batch]).max()) for batch in drawn if len(batch)
                    ),
                }
            )  # fmt: skip
    return found


def noise_over_planned(algorithm: Any, planned: float) -> float:
    """Standard deviation of a hundred thousand noises over `planned`; 1.0 within 2 %, 9 errors of it."""
    import tensorflow as tf

    plan = everybody(algorithm, noise_multiplier=2.0)
    weights = tf.keras.layers.Dense(200, use_bias=False)
    model = tf.keras.Sequential([tf.keras.Input([500]), weights])
    before = model.get_weights()[0]
    optimizer = plan.optimizer(tf.keras.optimizers.SGD(1.0), engine={"strategy": "loop"})
    private = sdp.PrivateModel(model)
    private.compile(optimizer=optimizer, loss="mse")
    nothing = [np.zeros((len(WHO), size), "float32") for size in (500, 200)]
    private.fit(plan.dataset(*nothing, WHO), verbose=0)
    ratio = float((before - model.get_weights()[0]).std()) * plan.divisor / planned
    return 1.0 if abs(ratio - 1.0) < 0.02 else ratio


@section(TRAINED)
def training() -> dict[str, Any]:
    """`fit`: figures of an epoch, the ledger, the saved file, what is said of them; the noise's size."""
    import tensorflow as tf

    found: dict[str, Any] = {
        "noise over planned, HiGradAvg": noise_over_planned(sdp.HiGradAvg(0.5), 2.0 * 0.5),
        "noise over planned, BatchClipping": noise_over_planned(
            sdp.BatchClipping(0.5), 2.0 * 2 * 0.5
        ),
    }

    def trained(plan, model, **options):
        private = sdp.PrivateModel(model, initial_weights="public")
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = plan.optimizer(tf.keras.optimizers.SGD(0.5), engine={"strategy": "loop"})
        private.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
        return private, private.fit(plan.dataset(X, Y, WHO), verbose=0, **options).history

    plan = everybody(sdp.HiGradAvg(1.09), steps=3)
    model, history = trained(plan, net(), steps_per_epoch=1, epochs=3)
    names = ("loss", "accuracy", "clipped")
    found["history without noise"] = {name: history[name] for name in names}
    found["weights without noise"] = np.concatenate(
        [one.ravel() for one in model.inner_model.get_weights()]
    ).tolist()
    found["statement without noise"] = model.privacy_statement()
    plan = everybody(sdp.SubjectDP(0.4), noise_multiplier=3.0, steps=40)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ledger.json")
        model, history = trained(
            plan, net(), steps_per_epoch=4, epochs=2,
            callbacks=[sdp.PrivacyLedger(path, reserve=5), sdp.PrivacyScalars()],
        )  # fmt: skip
        found["figures of epochs"] = {
            name: values for name, values in history.items() if "epsilon" in name
        }
        ledger = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        ledger["releases"]["runs"] = list(ledger["releases"]["runs"].values())  # named at random
        found["ledger"] = ledger
        saved = os.path.join(folder, "private.keras")
        model.save(saved)
        again = tf.keras.models.load_model(saved)
        found["steps of the loaded"] = int(again.optimizer.steps_taken)
        found["epsilon of the loaded"] = again.plan.epsilon(steps=again.optimizer.steps_taken)
        found["statement"] = model.privacy_statement()
        found["statement of the loaded"] = again.privacy_statement()
        config = model.optimizer.get_config()
        found["config of the optimizer"] = {key: config[key] for key in ("plan", "engine")}
        status, out, err = command_of(f"statement --model {saved}")
        found["the command on the saved"] = {
            "status": status, "text": out.replace(folder, "{folder}"),
            "notes": err.replace(folder, "{folder}"),
        }  # fmt: skip
    return found


# -- comparing ---------------------------------------------------------------------------------------


def figures_of(value: Any) -> dict[str, Any]:
    return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


@contextlib.contextmanager
def refused(found: dict[str, Any], name: str) -> Iterator[Callable[[Any], None]]:
    """Puts what the body gives under `name`; or that it was refused. In what words is no figure."""
    try:
        yield lambda value: found.__setitem__(name, value)
    except (ValueError, TypeError, NotImplementedError) as error:
        found[name] = f"refused: {type(error).__name__}"


def plain(value: Any) -> Any:
    """A value as JSON holds it: twelve digits of a figure, infinities by name."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float):
        return float(f"{value:.12g}") if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(f"{value!r} is no value of a golden file.")


_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


def differences(
    old: Any, new: Any, tolerance: float, path: str, scale: float = 0.0
) -> Iterator[str]:
    """What differs, a line a difference.

    Args:
      scale: figures may differ by `tolerance * scale` at least: the largest entry of a trained sum.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key in new and key in old:
                yield from differences(old[key], new[key], tolerance, f"{path} / {key}")
            else:
                yield f"{path} / {key}: {'gone' if key in old else 'not in the golden file'}"
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        if tolerance == TRAINED:
            scale = max((abs(one) for one in old if isinstance(one, float)), default=0.0)
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, tolerance, f"{path} [{index}]", scale)
    elif isinstance(old, str) and isinstance(new, str):
        yield from differences_of_text(old, new, tolerance, path)
    elif isinstance(old, float) and isinstance(new, float):
        if abs(old - new) > tolerance * max(abs(old), abs(new), scale):
            yield f"{path}: {old!r} became {new!r}"
    elif isinstance(old, list) and isinstance(new, list):
        yield f"{path}: {len(old)} entries became {len(new)}"
    elif type(old) is not type(new) or old != new:
        yield f"{path}: {old!r} became {new!r}"


def differences_of_text(old: str, new: str, tolerance: float, path: str) -> Iterator[str]:
    """Other words, or numbers further apart than they may be."""
    mine, other = old.split(), new.split()
    if _NUMBER.sub("#", " ".join(mine)) != _NUMBER.sub("#", " ".join(other)):
        pairs = zip(mine, other, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(other)))
        around = slice(max(0, at - 4), at + 8)
        yield f"{path}: '{' '.join(mine[around])}' became '{' '.join(other[around])}'"
        return
    for one, two in zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True):
        if one != two and not close_as_printed(one, two, tolerance):
            yield f"{path}: {one} became {two}"


def close_as_printed(old: str, new: str, tolerance: float) -> bool:
    """Within the tolerance; or one unit of the last place apart, where that is below 2 %."""
    here, there = (float(one.replace(",", "")) for one in (old, new))
    largest, apart = max(abs(here), abs(there)), abs(here - there)
    if apart <= tolerance * largest:
        return True
    unit = max(_last_place(old), _last_place(new)) * (1.0 + 1e-6)
    return EXACT < tolerance and unit < 1.0 and unit <= 0.02 * largest and apart <= unit


def _last_place(number: str) -> float:
    digits, _, exponent = number.lower().replace(",", "").partition("e")
    return 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Checks or makes the golden file.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument(
        "--check", action="store_true", help="print what moved; status 1 if any did"
    )
    parser.add_argument("--exact", action="store_true", help="with --check: tolerances of 1e-9")
    parser.add_argument("--write", action="store_true", help="make the sections anew")
    arguments = parser.parse_args(argv)
    if arguments.check == arguments.write:
        parser.error("say --check or --write")
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    names = arguments.sections or list(SECTIONS)
    golden = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    moved = 0
    for name in names:
        made = plain(SECTIONS[name].make())
        if arguments.write:
            old = golden.get(name, {})
            moved_cases = {
                case for case in made if case not in old or _moved(name, old, made, case)
            }
            golden[name] = {case: made[case] if case in moved_cases else old[case] for case in made}
            continue
        for line in check(name, made, golden, exact=arguments.exact):
            moved += 1
            print(line)
    if arguments.write:
        ordered = {name: golden[name] for name in SECTIONS if name in golden}
        GOLDEN.write_text(written(ordered), encoding="utf-8")
    else:
        print(f"{moved} moved" if moved else "nothing moved")
    return int(moved > 0)


def check(name: str, made: Any, golden: Any, *, exact: bool = False) -> list[str]:
    """What of a section moved."""
    tolerance = SECTIONS[name].tolerance
    if exact and tolerance != TRAINED:
        tolerance = EXACT
    return list(differences(golden.get(name, {}), made, tolerance, name))


def _moved(name: str, old: Any, made: Any, case: str) -> list[str]:
    return check(name, {case: made[case]}, {name: {case: old[case]}}, exact=True)


def written(golden: dict[str, Any]) -> str:
    """JSON with a line a case, so that a diff shows which moved."""
    lines = ["{"]
    for i, (name, cases) in enumerate(golden.items()):
        lines.append(f"{json.dumps(name)}: {{")
        for j, (case, value) in enumerate(cases.items()):
            comma = "," if j + 1 < len(cases) else ""
            lines.append(f"{json.dumps(case)}: {json.dumps(value, ensure_ascii=False)}{comma}")
        lines.append("}" + ("," if i + 1 < len(golden) else ""))
    return "\n".join([*lines, "}"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
