# SPDX-License-Identifier: Apache-2.0
"""The words after `subjectdp`: argparse only, so that `--help` is quick."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

from tf_subjectdp.cli import texts
from tf_subjectdp.cli.options import (
    ALGORITHMS,
    PLANNED,
    add_data,
    add_length,
    add_noise,
    add_promise,
    add_silos,
    add_sizes,
)
from tf_subjectdp.cli.values import one_of, real, whole
from tf_subjectdp.version import __version__


class UsageError(ValueError):
    """The command was asked in a way that has no answer."""


class _Parser(argparse.ArgumentParser):
    """One line instead of the usage and a line, and no abbreviations that later mean another."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see '{self.prog} --help')")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    parser = _Parser(prog="subjectdp", description=texts.MAIN, epilog=texts.WORDS)
    parser.add_argument("--version", action="version", version=f"subjectdp {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.help,
            description=f"{command.description}\n\n{texts.WORDS}",
            epilog=f"{texts.PAPERS}\n\n{texts.JSON}",
        )
        command.add(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _add_question(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--algorithm",
        type=one_of(*ALGORITHMS),
        required=True,
        metavar="NAME",
        help=", ".join(ALGORITHMS),
    )
    parser.add_argument("--q", type=real, help="probability that one item is in a step's batch")
    parser.add_argument("--p", type=real, help="probability that one subject is in a step's batch")
    parser.add_argument(
        "--r",
        type=real,
        help="elementdp: probability that one element of a person is in a step's batch",
    )
    add_sizes(parser)
    parser.add_argument(
        "--expected-elements",
        type=real,
        metavar="S",
        help="elementdp: elements (of all persons) a step on average, with --elements-in-all",
    )
    parser.add_argument(
        "--elements-in-all",
        type=whole,
        metavar="N",
        help="elementdp: (person, element) pairs in the data",
    )
    parser.add_argument(
        "--items-per-element",
        type=whole,
        metavar="K",
        help="elementdp with sampled items: the most rows of one element of a person, enforced",
    )
    parser.add_argument(
        "--cap",
        type=whole,
        metavar="Z",
        help="the most items of one person that count in a step: groupdp, centralgroup, or whatever "
        "samples subjects",
    )
    parser.add_argument(
        "--elements",
        type=whole,
        metavar="M",
        help="elementdp: the most elements of one person, enforced",
    )
    parser.add_argument(
        "--unit",
        type=one_of("subject", "item", "element", "silo"),
        metavar="NAME",
        help="what is protected: subject (default; element for elementdp), item, element, silo",
    )
    parser.add_argument("--delta", type=real, required=True, metavar="D", help="in (0, 1)")
    parser.add_argument(
        "--engine",
        type=one_of("pld", "rdp"),
        metavar="NAME",
        help="pld (default, within 1e-3 and never below the truth) or rdp (looser)",
    )


def _add_epsilon(parser: argparse.ArgumentParser) -> None:
    _add_question(parser)
    add_noise(parser, required=True)
    add_length(parser)
    add_silos(parser)
    add_data(parser)


def _add_noise_command(parser: argparse.ArgumentParser) -> None:
    _add_question(parser)
    add_promise(parser, required=True)
    add_length(parser)
    add_silos(parser)
    add_data(parser)


def _add_rounds(parser: argparse.ArgumentParser) -> None:
    _add_question(parser)
    add_noise(parser, required=True)
    add_promise(parser, required=True)
    add_silos(parser)
    add_data(parser)


def _add_planned(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--algorithm",
        type=one_of(*PLANNED),
        required=required,
        metavar="NAME",
        help=", ".join(PLANNED),
    )
    add_sizes(parser, planned=True)
    add_length(parser)
    add_promise(parser)
    add_noise(parser)
    parser.add_argument("--delta", type=real, metavar="D", help="in (0, 1)")
    parser.add_argument(
        "--unit",
        type=one_of("subject", "item", "element"),
        metavar="NAME",
        help="whose promise it is: subject (default; element for elementdp), item or element",
    )
    parser.add_argument(
        "--elements",
        type=whole,
        metavar="M",
        help="elementdp: the most elements of one person, enforced by dropping further ones",
    )
    parser.add_argument(
        "--cap", type=whole, metavar="Z", help="the most items of one person in a step"
    )
    parser.add_argument(
        "--clip-norm", type=real, metavar="C", help="bound of a contribution's L2 norm (default 1)"
    )
    add_data(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    _add_planned(parser, required=True)
    parser.add_argument(
        "--save", metavar="FILE", help="write the plan there, for 'statement --plan'"
    )


def _add_statement(parser: argparse.ArgumentParser) -> None:
    _add_planned(parser, required=False)
    parser.add_argument("--plan", metavar="FILE", help="a plan saved by 'plan --save' or --json")
    parser.add_argument(
        "--model", metavar="FILE", help="a PrivateModel saved as '.keras': plan, steps and remarks"
    )
    parser.add_argument("--steps-taken", type=whole, metavar="T", help="steps of the run so far")
    parser.add_argument(
        "--ledger",
        metavar="FILE",
        help="the file of a PrivacyLedger: holds the steps taken (or reserved) under --plan",
    )


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epsilon", type=real, required=True, metavar="E", help="the budget")
    parser.add_argument("--delta", type=real, required=True, metavar="D", help="in (0, 1)")
    parser.add_argument(
        "--batch",
        type=real,
        required=True,
        metavar="B",
        help="items a step on average, in each silo",
    )
    add_length(parser)
    parser.add_argument(
        "--expected-subjects",
        type=real,
        metavar="S",
        help="people a step for what samples people (default: as many as bring B items on average)",
    )
    parser.add_argument(
        "--cap",
        type=whole,
        action="append",
        metavar="Z",
        help="a row for groupdp with at most Z items of one person in a step; may be repeated",
    )
    parser.add_argument(
        "--elements", type=whole, metavar="K", help="a row for elementdp: elements of one person"
    )
    parser.add_argument(
        "--silos-per-subject",
        type=whole,
        metavar="M",
        help="a public bound on the silos that hold one person (default: as counted in the table)",
    )
    add_data(parser)


@dataclasses.dataclass(frozen=True)
class Command:
    """One of the commands: where it is, and its words.

    Attributes:
      module, function: `tf_subjectdp.cli.<module>.<function>` answers.
      help: one line.
      description: what it says.
      add: adds its options to a parser.
    """

    module: str
    function: str
    help: str
    description: str
    add: Callable[[argparse.ArgumentParser], None]


COMMANDS = {
    "epsilon": Command("ask", "epsilon", texts.EPSILON[0], texts.EPSILON[1], _add_epsilon),
    "noise": Command("ask", "noise", texts.NOISE[0], texts.NOISE[1], _add_noise_command),
    "rounds": Command("ask", "rounds", texts.ROUNDS[0], texts.ROUNDS[1], _add_rounds),
    "plan": Command("plans", "plan", texts.PLAN[0], texts.PLAN[1], _add_plan),
    "statement": Command(
        "plans", "statement", texts.STATEMENT[0], texts.STATEMENT[1], _add_statement
    ),
    "compare": Command("compare", "compare", texts.COMPARE[0], texts.COMPARE[1], _add_compare),
}
