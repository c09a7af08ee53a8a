# SPDX-License-Identifier: Apache-2.0
"""The words after `subjectdp`: argparse only, so that `--help` is quick."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

from tf_subjectdp.cli import texts
from tf_subjectdp.cli.values import one_of, real, whole
from tf_subjectdp.version import __version__

#: Names of algorithms that `epsilon`, `noise` and `rounds` take; `plan` takes the first five.
PLANNED = ("itemdp", "higradavg", "groupdp", "subjectdp", "userldp")
ALGORITHMS = (*PLANNED, "elementdp", "element-subject", "centralgroup", "centralhigradavg")
SAMPLINGS = ("poisson-items", "poisson-subjects", "fixed-size", "shuffle")
VIEWS = ("updates", "average", "final_model")


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


def _add_data(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument_group("the data", "figures, or a table to read them from")
    data.add_argument("--items", type=whole, metavar="N", help="rows, in one silo")
    data.add_argument("--subjects", type=whole, metavar="N", help="people, in one silo")
    data.add_argument(
        "--items-per-subject", type=whole, metavar="K", help="the most rows of one person, k"
    )
    data.add_argument(
        "--cap-data",
        type=whole,
        metavar="K",
        help="a public bound k, enforced by dropping a person's further rows",
    )
    data.add_argument(
        "--ids", metavar="FILE", help="a CSV (.gz too; - is standard input) or Parquet"
    )
    data.add_argument("--column", metavar="NAME", help="the column with the person of each row")
    data.add_argument("--silo-column", metavar="NAME", help="the column with the silo of each row")
    data.add_argument(
        "--delimiter", default=None, metavar="C", help="of a CSV; default ','; tab for a tabulator"
    )
    data.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="a progress bar on standard error (default: if it is a terminal)",
    )


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=real, metavar="B", help="items a step, expected or fixed")
    parser.add_argument(
        "--expected-subjects", type=real, metavar="S", help="people a step on average"
    )
    parser.add_argument(
        "--sampling",
        type=one_of(*SAMPLINGS),
        metavar="NAME",
        help=f"{', '.join(SAMPLINGS)} (default: Poisson, of items with --batch or --q, of subjects "
        "with --expected-subjects or --p)",
    )


def _add_length(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=whole, metavar="T", help="steps of the run")
    parser.add_argument("--epochs", type=real, metavar="E", help="passes over the data on average")


def _add_silos(parser: argparse.ArgumentParser) -> None:
    silos = parser.add_argument_group("horizontal composition over silos")
    silos.add_argument("--silos", type=whole, metavar="S", help="equal silos in a round")
    silos.add_argument(
        "--silos-per-subject",
        type=whole,
        metavar="M",
        help="the most silos that hold one person (default: all, or as counted in the table)",
    )
    silos.add_argument("--rounds", type=whole, metavar="R", help="rounds of the run")
    silos.add_argument("--steps-per-round", type=whole, metavar="T", help="local steps a round")
    silos.add_argument(
        "--view",
        type=one_of(*VIEWS),
        metavar="NAME",
        help="what the adversary sees: every silo's updates (default), the average only (of silos "
        "of equal weight and clip norm), or the final_model only",
    )


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
    _add_sizes(parser)
    parser.add_argument(
        "--cap",
        type=whole,
        metavar="Z",
        help="the most items of one person that count in a step: groupdp, centralgroup, or whatever "
        "samples subjects",
    )
    parser.add_argument(
        "--elements", type=whole, metavar="K", help="elementdp: the most elements of one person"
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
    _add_noise(parser, required=True)
    _add_length(parser)
    _add_silos(parser)
    _add_data(parser)


def _add_noise_command(parser: argparse.ArgumentParser) -> None:
    _add_question(parser)
    _add_promise(parser, required=True)
    _add_length(parser)
    _add_silos(parser)
    _add_data(parser)


def _add_rounds(parser: argparse.ArgumentParser) -> None:
    _add_question(parser)
    _add_noise(parser, required=True)
    _add_promise(parser, required=True)
    _add_silos(parser)
    _add_data(parser)


def _add_noise(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    parser.add_argument(
        "--noise",
        type=real,
        required=required,
        metavar="SIGMA",
        help="noise standard deviation / clip norm; 0 is not private",
    )


def _add_promise(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    parser.add_argument(
        "--epsilon", type=real, required=required, metavar="E", help="the budget, above 0"
    )


def _add_planned(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--algorithm",
        type=one_of(*PLANNED),
        required=required,
        metavar="NAME",
        help=", ".join(PLANNED),
    )
    _add_sizes(parser)
    _add_length(parser)
    _add_promise(parser)
    _add_noise(parser)
    parser.add_argument("--delta", type=real, metavar="D", help="in (0, 1)")
    parser.add_argument(
        "--unit",
        type=one_of("subject", "item"),
        metavar="NAME",
        help="whose promise it is: subject (default) or item",
    )
    parser.add_argument(
        "--cap", type=whole, metavar="Z", help="the most items of one person in a step"
    )
    parser.add_argument(
        "--clip-norm", type=real, metavar="C", help="bound of a contribution's L2 norm (default 1)"
    )
    _add_data(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    _add_planned(parser, required=True)
    parser.add_argument(
        "--save", metavar="FILE", help="write the plan there, for 'statement --plan'"
    )


def _add_statement(parser: argparse.ArgumentParser) -> None:
    _add_planned(parser, required=False)
    parser.add_argument("--plan", metavar="FILE", help="a plan saved by 'plan --save' or --json")
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
    _add_length(parser)
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
    _add_data(parser)


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
