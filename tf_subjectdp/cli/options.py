# SPDX-License-Identifier: Apache-2.0
"""What may stand after `subjectdp`: algorithms, samplings and options, a table each, and the help.

Argparse only, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from tf_subjectdp.version import __version__


class UsageError(ValueError):
    """The command was asked in a way that has no answer."""


# -- algorithms and samplings ------------------------------------------------------------------------

#: The class of each algorithm, and the options that are arguments of it.
ALGORITHMS: dict[str, tuple[str, dict[str, str]]] = {
    "itemdp": ("ItemDP", {}),
    "higradavg": ("HiGradAvg", {}),
    "groupdp": ("GroupDP", {"cap": "max_items_per_subject"}),
    "subjectdp": ("SubjectDP", {}),
    "userldp": ("UserLDP", {}),
    "elementdp": (
        "ElementDP",
        {"elements": "max_elements", "items_per_element": "max_items_per_element"},
    ),
    "batchclipping": ("BatchClipping", {}),
    "mixedclipping": ("MixedClipping", {"parts": "parts"}),
    "element-subject": (
        "ElementDP",
        {"elements": "max_elements", "items_per_element": "max_items_per_element"},
    ),
    "centralgroup": ("CentralGroupDP", {"cap": "max_items_per_subject"}),
    "centralhigradavg": ("CentralHiGradAvg", {}),
}
#: The server adds the noise once; these are no classes, and a plan knows them by `noise_at` only.
CENTRAL = ("centralgroup", "centralhigradavg")
PLANNED = tuple(ALGORITHMS)[:8]
CLIP_PARTS = ("batchclipping", "mixedclipping")


class Sampling(NamedTuple):
    """A way to draw batches.

    Attributes:
      kind: the class of the sampler.
      arguments: the options that are arguments of it; the first is the size of a step.
      rate: the option that says the rate at once, or None.
      counted: the option that says how many there are of what is drawn.
      words: what the answer calls it.
    """

    kind: str
    arguments: dict[str, str]
    rate: str | None
    counted: str
    words: str


SAMPLINGS = {
    "poisson-items": Sampling(
        "PoissonItems", {"batch": "expected_batch_size"}, "q", "items", "Poisson, items"
    ),
    "poisson-subjects": Sampling(
        "PoissonSubjects",
        {"expected_subjects": "expected_subjects", "cap": "max_items_per_subject"},
        "p",
        "subjects",
        "Poisson, subjects",
    ),
    "poisson-elements": Sampling(
        "PoissonElements",
        {"expected_elements": "expected_elements"},
        "r",
        "elements_in_all",
        "Poisson, elements of a subject",
    ),
    "fixed-size": Sampling(
        "FixedSize",
        {"batch": "batch_size"},
        None,
        "items",
        "batches of a fixed size, without replacement",
    ),
    "shuffle": Sampling(
        "Shuffle",
        {"batch": "batch_size", "keep_probability": "keep_probability"},
        None,
        "items",
        "shuffled epochs",
    ),
}

# -- from a word to a number or a name ---------------------------------------------------------------


def real(text: str) -> float:
    """A finite number."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return number


def whole(least: int) -> Callable[[str], int]:
    """A whole number of at least `least`; 1e6 is one."""

    def parse(text: str) -> int:
        try:
            number = int(text) if text.lstrip("-").isdigit() else float(text)
        except ValueError:
            number = 0.5
        if not abs(number) <= 2**53 or number != int(number):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at most 2**53")
        if number < least:
            raise argparse.ArgumentTypeError(f"it is {text}: it must be at least {least}")
        return int(number)

    return parse


def above_zero(most: float, words: str) -> Callable[[str], float]:
    """A number above 0 and at most `most`."""

    def parse(text: str) -> float:
        number = real(text)
        if not 0 < number <= most:
            raise argparse.ArgumentTypeError(f"it is {text}: {words}")
        return number

    return parse


count = whole(1)
positive = above_zero(2**53, "it must be above 0, at most 2**53")
probability = above_zero(1.0, "a probability is above 0 and at most 1")

# What people call it elsewhere.
_OTHER_WORDS = {"dpsgd": "itemdp", "person": "subject", "patient": "subject", "record": "item"}


def one_of(*names: str) -> Callable[[str], str]:
    """One of the names, however it is spelled: HiGradAvg, higradavg, hi-grad-avg."""
    plain = {_plain(name): name for name in names}
    plain |= {word: name for word, name in _OTHER_WORDS.items() if name in names}

    def parse(text: str) -> str:
        if _plain(text) not in plain:
            raise argparse.ArgumentTypeError(
                f"{text!r} is unknown; choose one of {', '.join(names)}"
            )
        return plain[_plain(text)]

    return parse


def _plain(text: str) -> str:
    return text.lower().replace("-", "").replace("_", "")


# -- options -----------------------------------------------------------------------------------------

_ASK = "epsilon noise rounds"
_MAKE = "plan statement"
_ALL = f"{_ASK} {_MAKE} compare"
_DATA = ("the data", "figures, or a table to read them from")
_SILOS = ("horizontal composition over silos", None)
_SIGMA = (
    "noise standard deviation / clip norm, and / (2 x clip norm) for batchclipping and "
    "mixedclipping; 0 is not private"
)


class Option(NamedTuple):
    """One option, as some commands take it.

    Attributes:
      name: of the attribute; items_per_subject is --items-per-subject.
      commands: that take it.
      kind: from its word to its value.
      metavar: what the help calls the value.
      help: a line.
      required: commands that cannot do without it.
      group: title and description of a group in the help, or None.
      more: further arguments of `ArgumentParser.add_argument`.
    """

    name: str
    commands: str
    kind: Callable[[str], Any]
    metavar: str | None
    help: str
    required: str = ""
    group: tuple[str, str | None] | None = None
    more: dict[str, Any] = {}


def _sampling(commands: str, names: Sequence[str], drawn: str) -> Option:
    text = f"{', '.join(names)} (default: Poisson, {drawn})"
    return Option("sampling", commands, one_of(*names), "NAME", text)


OPTIONS = (
    Option("algorithm", _ASK, one_of(*ALGORITHMS), "NAME", ", ".join(ALGORITHMS), required=_ASK),
    Option("algorithm", _MAKE, one_of(*PLANNED), "NAME", ", ".join(PLANNED), required="plan"),
    Option("q", _ASK, probability, "Q", "probability that one item is in a step's batch"),
    Option("p", _ASK, probability, "P", "probability that one subject is in a step's batch"),
    Option(
        "r",
        _ASK,
        probability,
        "R",
        "elementdp: probability that one element of a person is in a step's batch",
    ),
    Option("batch", f"{_ASK} {_MAKE}", real, "B", "items a step, expected or fixed"),
    Option("batch", "compare", real, "B", "items a step on average, in each silo", "compare"),
    Option("expected_subjects", f"{_ASK} {_MAKE}", real, "S", "people a step on average"),
    Option(
        "expected_subjects",
        "compare",
        real,
        "S",
        "people a step for what samples people (default: as many as bring B items on average)",
    ),
    Option(
        "expected_elements",
        _ASK,
        real,
        "S",
        "elementdp: elements (of all persons) a step on average, with --elements-in-all",
    ),
    Option("elements_in_all", _ASK, count, "N", "elementdp: (person, element) pairs in the data"),
    _sampling(
        _ASK,
        tuple(SAMPLINGS),
        "of items with --batch or --q, of subjects with --expected-subjects or --p, of elements "
        "with --expected-elements or --r",
    ),
    _sampling(
        _MAKE,
        [name for name in SAMPLINGS if name != "poisson-elements"],
        "of items with --batch, of subjects with --expected-subjects; of elements in Python only",
    ),
    Option(
        "keep_probability",
        f"{_ASK} {_MAKE}",
        probability,
        "F",
        "shuffle: a row takes part in an epoch with this probability; nothing is gained by it but "
        "shorter epochs",
    ),
    Option(
        "parts", f"{_ASK} {_MAKE}", count, "M", "mixedclipping: clipped parts of a batch, needed"
    ),
    Option(
        "cap",
        _ASK,
        count,
        "Z",
        "the most items of one person that count in a step: groupdp, centralgroup, or whatever "
        "samples subjects",
    ),
    Option("cap", _MAKE, count, "Z", "the most items of one person in a step"),
    Option(
        "cap",
        "compare",
        count,
        "Z",
        "a row for groupdp with at most Z items of one person in a step; may be repeated",
        more={"action": "append"},
    ),
    Option(
        "elements",
        f"{_ASK} {_MAKE}",
        count,
        "M",
        "elementdp: the most elements of one person, enforced by dropping further ones",
    ),
    Option("elements", "compare", count, "K", "a row for elementdp: elements of one person"),
    Option(
        "items_per_element",
        _ASK,
        count,
        "K",
        "elementdp with sampled items: the most rows of one element of a person, enforced",
    ),
    Option(
        "unit",
        _ASK,
        one_of("subject", "item", "element", "silo"),
        "NAME",
        "what is protected: subject (default; element for elementdp), item, element, silo",
    ),
    Option(
        "unit",
        _MAKE,
        one_of("subject", "item", "element"),
        "NAME",
        "whose promise it is: subject (default; element for elementdp), item or element",
    ),
    Option("noise", "epsilon rounds plan statement", real, "SIGMA", _SIGMA, "epsilon rounds"),
    Option(
        "epsilon",
        f"noise rounds {_MAKE} compare",
        real,
        "E",
        "the budget, above 0",
        "noise rounds compare",
    ),
    Option("delta", _ALL, real, "D", "in (0, 1)", f"{_ASK} compare"),
    Option(
        "engine",
        _ASK,
        one_of("pld", "rdp"),
        "NAME",
        "pld (default, within 1e-3 and never below the truth) or rdp (looser)",
    ),
    Option("steps", f"epsilon noise {_MAKE} compare", count, "T", "steps of the run"),
    Option(
        "epochs", f"epsilon noise {_MAKE} compare", positive, "E", "passes over the data on average"
    ),
    Option("clip_norm", _MAKE, real, "C", "bound of a contribution's L2 norm (default 1)"),
    Option("save", "plan", str, "FILE", "write the plan there, for 'statement --plan'"),
    Option("plan", "statement", str, "FILE", "a plan saved by 'plan --save' or --json"),
    Option(
        "model",
        "statement",
        str,
        "FILE",
        "a PrivateModel saved as '.keras': plan, steps and remarks",
    ),
    Option("steps_taken", "statement", whole(0), "T", "steps of the run so far"),
    Option(
        "ledger",
        "statement",
        str,
        "FILE",
        "the file of a PrivacyLedger: holds the steps taken (or reserved) under --plan",
    ),
    Option("silos", _ASK, count, "S", "equal silos in a round", group=_SILOS),
    Option(
        "silos_per_subject",
        _ASK,
        count,
        "M",
        "the most silos that hold one person (default: all, or as counted in the table)",
        group=_SILOS,
    ),
    Option(
        "silos_per_subject",
        "compare",
        count,
        "M",
        "a public bound on the silos that hold one person (default: as counted in the table)",
    ),
    Option("rounds", "epsilon noise", count, "R", "rounds of the run", group=_SILOS),
    Option("steps_per_round", _ASK, count, "T", "local steps a round", group=_SILOS),
    Option(
        "view",
        _ASK,
        one_of("updates", "average", "final_model"),
        "NAME",
        "what the adversary sees: every silo's updates (default), the average only (of silos "
        "of equal weight and clip norm), or the final_model only",
        group=_SILOS,
    ),
    Option("items", _ALL, count, "N", "rows, in one silo", group=_DATA),
    Option("subjects", _ALL, count, "N", "people, in one silo", group=_DATA),
    Option("items_per_subject", _ALL, count, "K", "the most rows of one person, k", group=_DATA),
    Option(
        "cap_data",
        _ALL,
        count,
        "K",
        "a public bound k, enforced by dropping a person's further rows",
        group=_DATA,
    ),
    Option(
        "ids", _ALL, str, "FILE", "a CSV (.gz too; - is standard input) or Parquet", group=_DATA
    ),
    Option("column", _ALL, str, "NAME", "the column with the person of each row", group=_DATA),
    Option(
        "silo_column",
        f"{_ASK} compare",
        str,
        "NAME",
        "the column with the silo of each row",
        group=_DATA,
    ),
    Option("delimiter", _ALL, str, "C", "of a CSV; default ','; tab for a tabulator", group=_DATA),
    Option(
        "progress",
        _ALL,
        bool,
        None,
        "a progress bar on standard error (default: if it is a terminal)",
        group=_DATA,
        more={"action": argparse.BooleanOptionalAction, "default": None},
    ),
    Option("json", _ALL, bool, None, "print one JSON object", more={"action": "store_true"}),
)
_CHOICES = tuple(
    one.name
    for one in OPTIONS
    if "statement" in one.commands.split()
    and "plan" in one.commands.split()
    and one.name not in ("delta", "json")
)
_SIZES = ("q", "p", "r", "batch", "expected_subjects", "expected_elements")
#: Of each line only one may be given ...
_AT_MOST_ONE = (
    ("steps", "epochs", "rounds"),
    ("steps", "steps_per_round"),
    ("epochs", "steps_per_round"),
    ("items_per_subject", "cap_data"),
    *(("ids", one) for one in ("items", "subjects", "items_per_subject", "silos", "q", "p")),
    ("ledger", "steps_taken"),
    *(("model", one) for one in ("plan", "ledger", "steps_taken", *_CHOICES)),
    *(("plan", one) for one in _CHOICES),
)
#: ... and the first needs one of the others.
_NEEDED = (
    *((one, "ids") for one in ("column", "silo_column", "delimiter", "progress")),
    ("ids", "column"),
    ("elements_in_all", "expected_elements"),
    ("silos_per_subject", "silos", "silo_column"),
    ("view", "silos", "silo_column"),
    ("ledger", "plan"),
)


def flag(name: str) -> str:
    """The option of an attribute: items_per_subject is --items-per-subject."""
    return "--" + name.replace("_", "-")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, each with an attribute (None if not given), without contradictions.

    Raises:
      UsageError: they contradict each other, or are no options.
    """
    arguments = make_parser().parse_args(argv)
    for option in OPTIONS:
        if not hasattr(arguments, option.name):
            setattr(arguments, option.name, None)
    sizes = () if arguments.command == "compare" else (_SIZES,)
    for names in (*sizes, *_AT_MOST_ONE):
        given = [flag(name) for name in names if getattr(arguments, name) is not None]
        if len(given) > 1:
            raise UsageError(f"{given[0]} and {given[1]} contradict each other: give one")
    for name, *others in _NEEDED:
        known = [one for one in others if one in _options_of(arguments.command)]
        if getattr(arguments, name) is not None:
            if all(getattr(arguments, one) is None for one in known):
                raise UsageError(f"{flag(name)} needs {ways(known)}")
    return arguments


def ways(names: Iterable[str]) -> str:
    """The options of attributes, one of which will do."""
    *first, last = map(flag, names)
    return f"{', '.join(first)} or {last}" if first else last


def takes(command: str, name: str) -> bool:
    """Whether a command has an option."""
    return name in _options_of(command)


def _options_of(command: str) -> dict[str, Option]:
    return {one.name: one for one in OPTIONS if command in one.commands.split()}


class _Parser(argparse.ArgumentParser):
    """One line instead of the usage and a line, and no abbreviations that later mean another."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (--\S+): it is", r"\1 is", message)
        raise UsageError(f"{message} (see '{self.prog} --help')")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    parser = _Parser(prog="subjectdp", description=_MAIN, epilog=_WORDS)
    parser.add_argument("--version", action="version", version=f"subjectdp {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    for name, (_, line, description) in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=line,
            description=f"{description}\n\n{_WORDS}",
            epilog=f"{_PAPERS}\n\n{_JSON}",
        )
        groups: dict[Any, Any] = {None: sub}
        for option in _options_of(name).values():
            if option.group not in groups:
                groups[option.group] = sub.add_argument_group(*option.group)
            typed = {} if option.kind is bool else {"type": option.kind, "metavar": option.metavar}
            required = {"required": True} if name in option.required.split() else {}
            groups[option.group].add_argument(
                flag(option.name), help=option.help, **typed, **required, **option.more
            )
    return parser


# -- what the library says, in the words of the command ----------------------------------------------

# Arguments of the library that no option has the name of.
_ARGUMENTS = {
    "noise_multiplier": "noise",
    "n_items": "items",
    "n_subjects": "subjects",
    "max_items": "items_per_subject",
    "expected_batch_size": "batch",
    "batch_size": "batch",
    "max_elements": "elements",
    "max_items_per_element": "items_per_element",
    "max_items_per_subject": "cap_data",
}


def in_options(message: str, arguments: argparse.Namespace) -> str:
    """An error of the library, with options for its arguments: delta= is --delta.

    `GroupDP(max_items_per_subject=M)` becomes `--cap Z`, and names of classes those of the command.
    """
    known = _options_of(arguments.command)
    names = {name: name for name in known} | {
        name: option for name, option in _ARGUMENTS.items() if option in known
    }
    if arguments.cap_data is None and arguments.cap is not None:
        names["max_items_per_subject"] = "cap"
    kinds = {kind: (name, bounds) for name, (kind, bounds) in reversed(ALGORITHMS.items())} | {
        one.kind: (name, one.arguments) for name, one in SAMPLINGS.items()
    }

    def call(match: re.Match) -> str:
        own = {argument: option for option, argument in kinds[match[1]][1].items()}
        said = []
        for name, value in (part.split("=") for part in match[2].split(", ") if "=" in part):
            asked = own.get(name)
            if asked not in known:
                continue
            if value[:1].isdigit():
                said.append(f"{flag(asked)} {value}")
            elif getattr(arguments, asked) is None:  # a remedy is what was not given
                said.append(f"{flag(asked)} {known[asked].metavar}")
        return " ".join(said) or match[1]

    def option(match: re.Match) -> str:
        return flag(names[match[1]])

    classes, listed = "|".join(kinds), "|".join(names)
    # Bare, only what no sentence has for a word.
    bare = "|".join(name for name in names if name in _ARGUMENTS or "_" in name)
    rules = (
        (rf"\b({classes})\(([^()]*)\)", call),
        (rf"\b(?<!-)({listed})=None must be", lambda m: f"{option(m)} is missing: it must be"),
        (rf"\b(?<!-)({listed})=(?=[^\s,.;)])", lambda m: f"{option(m)} "),
        (rf"\b(?<!-)({listed})=(?!\.\.)", option),
        (rf"\b(?<!-)({bare})\b(?!=)", option),
        (rf"\b({classes})\b", lambda m: kinds[m[1]][0]),
    )
    # Names of files and of columns stay as they are.
    file = re.escape(arguments.ids or "\n")
    kept = rf"((?<!\w)'[^']*'(?!\w)|(?<!\S){file}(?!\w))"
    pieces = re.split(kept, message)
    for number in range(0, len(pieces), 2):
        for pattern, words in rules:
            pieces[number] = re.sub(pattern, words, pieces[number])
    return "".join(pieces)


# -- help --------------------------------------------------------------------------------------------

_MAIN = """\
Differential privacy of a PERSON (subject): all rows of that person, in every silo.
Every epsilon is an upper bound. 'subjectdp COMMAND --help' says more."""

_WORDS = """\
words and units:
  item       one training record (row)
  subject    a person: all of their items, in every silo
  silo       one organisation that holds data
  sigma      noise multiplier: noise standard deviation / clip norm, no unit;
             of batchclipping and mixedclipping: noise standard deviation / (2 x clip norm)
  q          probability that one ITEM is in a step's batch, in [0, 1]
  p          probability that one SUBJECT is in a step's batch, in [0, 1]
  r          probability that one ELEMENT of a subject is in a step's batch, in [0, 1]
  element    a cluster of a subject's items (a topic, a word); each item is in exactly one
  k          the most items of one subject in a silo's data (--items-per-subject, --cap-data)
  adjacency  Poisson sampling: adding or removing one unit; one element: replacing, adding or
             removing it; fixed-size batches and shuffling: replacing one in place; userldp with
             Poisson sampling: any change of a silo's data
  A0, A1     adversaries: both see every noised update; A1 also knows in which batch and part
             (batchclipping, mixedclipping) each of the unit's items was. A figure against A1 is
             for replacing them in place and, with Poisson sampling, for adding or removing them"""

_PAPERS = """\
papers:
  itemdp           DP-SGD: Abadi et al. 2016, Algorithm 1 (arXiv:1607.00133). Its subject figure is
                   that of groupdp.
  higradavg        Marathe, Kanani, Peterson, Steele: HiGradAvgDP, 2022 text (arXiv:2206.03617),
                   Algorithm 1. Rate 1-(1-q)^k; published were q (too small) and k q (loose).
  groupdp          the same: LocalGroupDP, 2023 text, Algorithm 1 (LocalSubDP, 2022), with constant
                   noise: mixture of Gaussians, Choquette-Choo et al. (arXiv:2310.15526).
  subjectdp        user-level DP-SGD: McMahan et al. 2018 (arXiv:1710.06963).
  userldp          Marathe et al., both texts; sensitivity 2C at every step (published: C).
  elementdp        Asi, Duchi, Javidi (arXiv:1912.04042), Algorithm 1. Against Proposition 2, the
                   sampling of subjects does not amplify the promise to an element; that of
                   elements and items does. element-subject is its figure for a subject.
  batchclipping, mixedclipping
                   van Dijk, Nguyen, Nguyen, Nguyen (arXiv:2212.05796), Algorithm 1: the result of
                   the whole batch, or of each of its parts, is clipped. Items sampled.
  centralgroup, centralhigradavg
                   CentralGroupDP (CentralSubDP) of Marathe et al.: the server adds noise once, to
                   the sum over all silos."""

_JSON = """\
--json prints one object. A number that is infinite is null there, with "<its name>_infinite": true
beside it. Exit status: 0, or 2 with one line on standard error for bad input."""

#: Of each command: `tf_subjectdp.cli.<module>.<name>` answers; its help in a line, and in full.
COMMANDS = {
    "epsilon": (
        "ask",
        "what a run promises",
        """\
The epsilon of a run, what it protects, and why. Rates come as --q or --p, or from --batch and
--items (q = B/N), from --expected-subjects and --subjects (p = S/N), or from a table (--ids).

  subjectdp epsilon --algorithm higradavg --batch 512 --items 31700 --items-per-subject 145 \\
      --noise 60 --epochs 100 --delta 1e-5
  subjectdp epsilon --algorithm elementdp --q 0.01 --items-per-element 5 --noise 2 --steps 200 \\
      --delta 1e-5
  subjectdp epsilon --algorithm batchclipping --sampling shuffle --batch 500 --items 50000 \\
      --items-per-subject 20 --noise 8 --epochs 10 --delta 1e-5""",
    ),
    "noise": (
        "ask",
        "the noise that a promise needs",
        """\
The smallest noise multiplier sigma (noise standard deviation / clip norm; of batchclipping and
mixedclipping / (2 x clip norm)) with which a run keeps the budget.

  subjectdp noise --algorithm groupdp --q 0.016 --items-per-subject 145 --cap 5 \\
      --steps 6200 --epsilon 4 --delta 1e-5""",
    ),
    "rounds": (
        "ask",
        "how long a run may be",
        """\
The largest number of rounds (or steps) that keeps the budget at the noise given. With silos it is
shown beside the rule R/sqrt(s) of Marathe et al. (horizontal composition, both texts), which
overspends: over s silos R s steps compose, so about R/s rounds are left.

  subjectdp rounds --algorithm itemdp --unit subject --q 0.016 --items-per-subject 10 --noise 13 \\
      --silos 16 --steps-per-round 62 --epsilon 4 --delta 1e-5""",
    ),
    "plan": (
        "plans",
        "a plan: algorithm, sampling, length and promise together",
        """\
The plan that tf_subjectdp.plan(...) makes from the same choices, as a table. Say --epsilon with
--delta, or --noise.

  subjectdp plan --algorithm higradavg --batch 256 --ids visits.csv --column patient_id \\
      --epochs 10 --epsilon 4 --delta 1e-5 --save plan.json""",
    ),
    "statement": (
        "plans",
        "the privacy statement of a plan",
        """\
What a run protects, from whom and what not, in plain sentences. The epsilon is computed anew from
the plan's constants, never read from its file. A PrivacyLedger's file holds the steps taken, the
number of their plan, and the runs whose weights came in; it needs --plan beside it, whose steps
they are. A saved PrivateModel says what its own privacy_statement() says.

  subjectdp statement --plan plan.json --steps-taken 1200
  subjectdp statement --model private.keras""",
    ),
    "compare": (
        "ask",
        "every algorithm at the same data and budget",
        """\
One table: the noise that each algorithm needs for the same budget on the same data, that noise on
the averaged step relative to the clip norm (sigma / divisor), and what a subject is then promised.
The first row is ItemDP with the noise that is enough for single ITEMS. With --silo-column each
silo has its own N, q = B/N, k and steps; a subject's silos compose (the adversary sees every
update).

  subjectdp compare --ids visits.csv --column patient_id --silo-column hospital \\
      --epsilon 4 --delta 1e-5 --batch 64 --epochs 10""",
    ),
}
