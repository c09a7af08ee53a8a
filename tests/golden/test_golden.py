# SPDX-License-Identifier: Apache-2.0
"""No figure moves: the package against the golden file; `make_golden.py` makes and checks it."""

import importlib.util
import json
import pathlib

import pytest

_spec = importlib.util.spec_from_file_location(
    "make_golden", pathlib.Path(__file__).with_name("make_golden.py")
)
make_golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_golden)

SLOW = ("steps", "training")


@pytest.fixture(scope="module")
def golden():
    return json.loads(make_golden.GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
        for name in make_golden.SECTIONS
    ],
)
def test_no_figure_moved(name, golden):
    made = make_golden.plain(make_golden.SECTIONS[name].make())
    moved = make_golden.check(name, made, golden)
    assert not moved, "\n".join(["moved from the golden file:", *moved])


def test_the_file_holds_these_sections_and_is_small(golden):
    assert list(golden) == list(make_golden.SECTIONS)
    assert make_golden.GOLDEN.stat().st_size < 400_000
    # Whoever writes by hand, or with another layout, would hide what moved in a long diff.
    assert make_golden.GOLDEN.read_text(encoding="utf-8") == make_golden.written(golden)


@pytest.mark.parametrize(
    ("old", "new", "tolerance", "same"),
    [
        (2.0, 2.0019, 1e-3, True),
        (2.0, 2.0021, 1e-3, False),
        (2.0, 1.9979, 1e-3, False),
        (2.0, "inf", 1e-3, False),
        (2, 3, 1e-3, False),
        (True, 1, 1e-3, False),
        ("epsilon 4.01", "epsilon 4.02", 1e-3, True),
        ("epsilon 4.01", "epsilon 4.02", 1e-9, False),
        ("epsilon 4.01", "epsilon 4.03", 1e-3, False),
        ("clip norm 0.5", "clip norm 0.6", 1e-3, False),
        ("400 steps", "401 steps", 1e-3, False),
        ("of a person", "of an item", 1e-3, False),
        ("one\n two", "one two", 1e-3, True),
        ({"a": 1.0}, {"a": 1.0, "b": 1.0}, 1e-3, False),
        ({"a": 1.0, "b": 1.0}, {"a": 1.0}, 1e-3, False),
        ([1.0, 2.0], [1.0], 1e-3, False),
        ([1.0, 1e-6], [1.0, 2e-6], 1e-5, True),
        ([1.0, 1e-6], [1.0, 2e-5], 1e-5, False),
    ],
)
def test_what_counts_as_moved(old, new, tolerance, same):
    assert (not list(make_golden.differences(old, new, tolerance, "case"))) is same
