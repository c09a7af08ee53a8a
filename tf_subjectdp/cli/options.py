# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and the names that they take.

Knows `values`; argparse only, so that `--help` is quick.
"""

from __future__ import annotations

import argparse

from tf_subjectdp.cli.values import one_of, real, whole

#: Names of algorithms that `plan` takes, and those that `epsilon`, `noise` and `rounds` take.
PLANNED = (
    "itemdp",
    "higradavg",
    "groupdp",
    "subjectdp",
    "userldp",
    "elementdp",
    "batchclipping",
    "mixedclipping",
)
ALGORITHMS = (*PLANNED, "element-subject", "centralgroup", "centralhigradavg")
#: Those whose noise counts in two clip norms, and those that clip elements.
CLIP_PARTS = ("batchclipping", "mixedclipping")
CLIP_ELEMENTS = ("elementdp", "element-subject")
SAMPLINGS = ("poisson-items", "poisson-subjects", "poisson-elements", "fixed-size", "shuffle")
VIEWS = ("updates", "average", "final_model")


def add_data(parser: argparse.ArgumentParser) -> None:
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


def add_sizes(parser: argparse.ArgumentParser, *, planned: bool = False) -> None:
    """Sizes of a step; `planned` where neither rates nor elements can be said."""
    drawn = (
        "of items with --batch or --q, of subjects with --expected-subjects or --p, of elements "
    )
    drawn += "with --expected-elements or --r"
    listed = SAMPLINGS
    if planned:
        drawn = "of items with --batch, of subjects with --expected-subjects"
        listed = tuple(name for name in SAMPLINGS if name != "poisson-elements")
    parser.add_argument("--batch", type=real, metavar="B", help="items a step, expected or fixed")
    parser.add_argument(
        "--expected-subjects", type=real, metavar="S", help="people a step on average"
    )
    parser.add_argument(
        "--sampling",
        type=one_of(*SAMPLINGS),
        metavar="NAME",
        help=f"{', '.join(listed)} (default: Poisson, {drawn})",
    )
    parser.add_argument(
        "--keep-probability",
        type=real,
        metavar="F",
        help="shuffle: a row takes part in an epoch with this probability; nothing is gained by it but "
        "shorter epochs",
    )
    parser.add_argument(
        "--parts", type=whole, metavar="M", help="mixedclipping: clipped parts of a batch"
    )


def add_length(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=whole, metavar="T", help="steps of the run")
    parser.add_argument("--epochs", type=real, metavar="E", help="passes over the data on average")


def add_silos(parser: argparse.ArgumentParser) -> None:
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


def add_noise(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    parser.add_argument(
        "--noise",
        type=real,
        required=required,
        metavar="SIGMA",
        help="noise standard deviation / clip norm, and / (2 x clip norm) for batchclipping and "
        "mixedclipping; 0 is not private",
    )


def add_promise(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    parser.add_argument(
        "--epsilon", type=real, required=required, metavar="E", help="the budget, above 0"
    )
