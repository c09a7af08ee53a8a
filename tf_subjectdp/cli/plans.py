# SPDX-License-Identifier: Apache-2.0
"""`subjectdp plan` and `statement`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import warnings
import zipfile
from typing import Any

from tf_subjectdp.cli.options import UsageError
from tf_subjectdp.cli.output import Result, jsonable
from tf_subjectdp.cli.question import (
    algorithm_of,
    figures,
    read_from_data,
    read_table,
    sampler_of,
    sampling_of,
)
from tf_subjectdp.plans import Plan
from tf_subjectdp.plans import plan as make_plan
from tf_subjectdp.runs import Lineage, PrivateRun, WeightsCost
from tf_subjectdp.sampling import SubjectStats
from tf_subjectdp.statement import privacy_statement, weights_statement

_IN_PYTHON = (
    "is made in Python, by tf_subjectdp.plan with SubjectStats.from_ids(subject_id, element_id); "
    "'statement --plan' reads its get_config(), saved as JSON"
)


def plan(arguments: argparse.Namespace) -> Result:
    """The plan of the options."""
    made, stats = _planned(arguments)
    if arguments.save is not None:
        with open(arguments.save, "w", encoding="utf-8") as file:
            json.dump(made.get_config(), file, indent=2)
            file.write("\n")
    told = read_from_data(stats)
    config = jsonable(made.get_config())
    config["epsilon"] = _epsilon(made)  # no elements that were paid for are made here
    if told:
        config["read_from_data"] = told
    text = str(made)
    if arguments.noise == 0.0:
        text += "\n\nNOT PRIVATE: the noise multiplier is 0."
    return Result(config, text="\n\n".join(part for part in (text, told) if part))


def statement(arguments: argparse.Namespace) -> Result:
    """The privacy statement of a plan, made before or now, or of a saved model."""
    if arguments.model is not None:
        return _of_model(arguments)
    if arguments.plan is not None:
        made = read_plan(arguments.plan)
    else:
        if arguments.algorithm is None:
            raise UsageError("say --plan FILE, --model FILE, or the options of 'subjectdp plan'")
        made, _ = _planned(arguments)
    steps, source = _steps_taken(arguments, made)
    if arguments.ledger is None:
        planned = arguments.steps_taken is None
        text = privacy_statement(made, steps=steps, delta=arguments.delta, planned=planned)
    else:
        released = _of_ledger(arguments, made, steps)
        text = weights_statement(released, delta=arguments.delta)
    if steps > made.steps:
        warnings.warn(
            f"{steps} steps are more than the {made.steps} of the plan: its promise does not hold.",
            stacklevel=2,
        )
    data = _figures(made, steps, arguments.delta, text)
    if source:
        text += f"\n\n{source}"
        data["steps_source"] = source
    return Result(data, text=text)


def _figures(made: Plan, steps: int, delta: float | None, text: str) -> dict[str, Any]:
    delta = made.stated_delta if delta is None else delta
    return {
        "command": "statement",
        "statement": text,
        "unit": made.unit,
        "delta": delta,
        "steps_taken": steps,
        "steps_planned": made.steps,
        "epsilon": made.epsilon(delta, steps=steps),
        "epsilon_with_fit_of_elements": (
            None if made.algorithm.unpaid() else made.total_epsilon(delta, steps=steps)
        ),
        "noise_multiplier": made.noise_multiplier,
    }


def _of_model(arguments: argparse.Namespace) -> Result:
    released = read_model(arguments.model)
    own = released.own
    text = weights_statement(released, delta=arguments.delta)
    if own.plan is None:
        remarks = list(released.remarks)
        return Result({"command": "statement", "statement": text, "remarks": remarks}, text=text)
    data = _figures(own.plan, own.steps, arguments.delta, text)
    # That figure is of the plan's steps; what else was released of the same weights is counted here.
    data["runs_beside"] = len(released.others)
    data["epsilon_in_all"] = released.epsilon_in_all(delta=data["delta"])
    data["remarks"] = list(released.remarks)
    return Result(data, text=text)


def _planned(arguments: argparse.Namespace) -> tuple[Plan, SubjectStats]:
    drawn = sampling_of(arguments, arguments.unit)
    if arguments.algorithm == "elementdp" and drawn == "poisson-items":
        raise UsageError(
            f"a plan of elementdp samples subjects here (--expected-subjects); one for items {_IN_PYTHON}"
        )
    algorithm = algorithm_of(
        arguments.algorithm,
        arguments,
        1.0 if arguments.clip_norm is None else arguments.clip_norm,
    )
    sampler = sampler_of(arguments, drawn)
    stats = read_table(arguments)
    if stats is None:
        stats = figures(arguments)
    found = make_plan(
        algorithm,
        sampler,
        stats,
        epochs=arguments.epochs,
        steps=arguments.steps,
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        noise_multiplier=arguments.noise,
        max_items_per_subject=arguments.cap_data,
        unit=arguments.unit,
    )
    return found, stats


def _epsilon(made: Plan) -> float | None:
    return None if made.delta is None else made.epsilon()


def read_plan(path: str) -> Plan:
    """A plan from the file of `plan --save` (or `--json`), with its constants checked anew.

    Raises:
      ValueError: a file that is no plan, or a plan whose figures contradict one another.
      OSError: a file that cannot be read.
    """
    return _checked_plan(_read_json(path), path)


def _checked_plan(config: Any, path: str) -> Plan:
    known = {field.name for field in dataclasses.fields(Plan)}
    if not isinstance(config, dict) or not known <= set(config):
        raise UsageError(f"{path} is no plan: write one with 'subjectdp plan --save'")
    try:
        found = Plan.from_config({name: config[name] for name in known})
        again = make_plan(
            found.algorithm,
            found.sampling,
            found.stats,
            steps=found.steps,
            noise_multiplier=found.noise_multiplier,
            delta=found.delta,
            max_items_per_subject=found.max_items_per_subject,
            unit=found.unit,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path} is no plan: {error}") from None
    for name, was, now in _constants(found, again):
        if type(was) is bool or type(now) is bool or isinstance(was, str):
            same = was == now
        else:
            same = was is now or (
                isinstance(was, (int, float)) and now is not None and math.isclose(was, now)
            )
        if not same:
            raise UsageError(
                f"{path} contradicts itself: its {name} is {was!r}, and its sampling and stats make "
                f"it {now!r}"
            )
    return found


def read_model(path: str) -> WeightsCost:
    """What was released of a PrivateModel saved as '.keras'.

    Raises:
      ValueError: another file, or one that does not say what was released.
      OSError: a file that cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
    except (zipfile.BadZipFile, KeyError, ValueError, RecursionError):
        raise UsageError(
            f"{path} is no model saved as '.keras': use model.save('private.keras'), with model the "
            "PrivateModel"
        ) from None
    kind = config.get("class_name") if isinstance(config, dict) else None
    if kind != "PrivateModel":
        raise UsageError(
            f"{path} holds a {kind} and not a PrivateModel: an inner model carries neither plan nor steps"
        )
    try:
        releases = config["config"]["releases"]
        for run in (*releases["record"]["runs"].values(), releases["own"]):
            _check_run(run, path)
        record, own = (
            Lineage.from_config(releases["record"]),
            PrivateRun.from_config(releases["own"]),
        )
        return WeightsCost.of_file(record, own, float(releases["divisor"]))
    except UsageError:
        raise
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} does not say what was released of its weights in a way that this version reads "
            f"({type(error).__name__}: {error}); load it, and print model.privacy_statement()"
        ) from None


def _check_run(run: dict[str, Any], path: str) -> None:
    if run.get("plan") is not None:
        _checked_plan(run["plan"], f"a plan in {path}")
    for name in ("steps", "seeded"):
        if type(run[name]) is not int or not 0 <= run[name] <= 2**53:
            raise ValueError(f"its {name} are {run[name]!r}")


def _constants(found: Plan, again: Plan):
    """What the promise depends on, as it was read and as it follows from the choices."""
    # Of the sizes of unlike subjects nothing is left in a file: what they make is not checked. They
    # are divisors, but where batches have a fixed size: there the size follows from the rate.
    unchecked = {"expected_subjects"}
    if found.facts.scheme == "poisson_subjects":
        unchecked.add("batch_size")
    for field in dataclasses.fields(found.facts):
        if field.name not in unchecked:
            yield field.name, getattr(found.facts, field.name), getattr(again.facts, field.name)
    yield "steps_per_epoch", found.steps_per_epoch, again.steps_per_epoch


def _read_json(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} is no JSON file: {error}") from None


def _of_ledger(arguments: argparse.Namespace, made: Plan, steps: int) -> WeightsCost:
    """What a ledger knows of the weights: its own plan's steps, and what other runs brought."""
    name = os.fspath(arguments.ledger)
    try:
        config = _read_json(arguments.ledger).get("releases", {"runs": {}, "remarks": []})
        for run in config["runs"].values():
            _check_run(run, name)
        record = Lineage.from_config(config)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{name} is no ledger of a PrivacyLedger ({error})") from None
    own = PrivateRun(made, made.algorithm, made.noise_multiplier, steps)
    found = WeightsCost.of_file(record, own, made.divisor)
    own = dataclasses.replace(own, seeded=found.own.seeded)
    return dataclasses.replace(found, own=own, before=0)


def _steps_taken(arguments: argparse.Namespace, made: Plan) -> tuple[int, str]:
    if arguments.ledger is None:
        steps = made.steps if arguments.steps_taken is None else arguments.steps_taken
        return steps, ""
    record = _read_json(arguments.ledger)
    name = os.fspath(arguments.ledger)
    if not isinstance(record, dict) or not {"steps", "plan"} <= set(record):
        raise UsageError(f"{name} is no ledger of a PrivacyLedger")
    steps, owner = record["steps"], record["plan"]
    if type(steps) is not int or not 0 <= steps <= 2**53:
        raise UsageError(f"{name} is no ledger of a PrivacyLedger: its steps are {steps!r}")
    if owner != made.identity:
        raise UsageError(
            f"{name} belongs to another plan than {arguments.plan}: algorithm, sampling or noise differ"
        )
    return steps, (
        f"Steps from the ledger {name}: those taken, or reserved ahead of being taken, which is never "
        "fewer."
    )
