# SPDX-License-Identifier: Apache-2.0
"""The picture of per-subject epsilons."""

import builtins
import subprocess
import sys

import numpy as np
import pytest

from tf_subjectdp import accounting as acc
from tf_subjectdp.accounting.silos.horizontal import HorizontalPlan
from tf_subjectdp.plots import subject_epsilons

PLAN = HorizontalPlan(
    [
        (acc.higradavg_event(0.02, 4, 2.0), 10),
        (acc.higradavg_event(0.05, 2, 3.0), 20),
        (acc.nonprivate_event(), 1),
    ]
)
TABLE = np.array([[1, 0, 0], [0, 2, 0], [1, 1, 0], [0, 0, 0]])


def test_the_curve_is_the_distribution_and_says_it_is_not_for_release():
    pytest.importorskip("matplotlib")
    result = PLAN.per_subject_epsilon(TABLE, delta=1e-5)
    axes = subject_epsilons(result, plan_epsilon=9.0)
    curve, line = axes.get_lines()
    assert np.array_equal(curve.get_xdata(), np.sort(result.epsilon))
    assert np.array_equal(curve.get_ydata(), [0.25, 0.5, 0.75, 1.0])
    assert set(line.get_xdata()) == {9.0}
    assert "not for release" in axes.get_title()
    assert "1e-05" in axes.get_xlabel()


def test_given_axes_are_used_and_people_without_a_bound_are_told():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    mine = Figure().add_subplot()
    result = PLAN.per_subject_epsilon(np.vstack([TABLE, [[0, 0, 1]]]), delta=1e-5)
    assert subject_epsilons(result, ax=mine) is mine
    assert "1 of them without a bound" in mine.get_legend().get_texts()[0].get_text()
    assert mine.get_lines()[0].get_ydata()[-1] == 0.8


def test_a_curve_over_many_people_ends_at_the_worst():
    pytest.importorskip("matplotlib")
    result = PLAN.per_subject_epsilon(np.tile(TABLE, (2000, 1)), delta=1e-5)
    curve = subject_epsilons(result).get_lines()[0]
    assert len(curve.get_xdata()) <= 2000
    assert curve.get_xdata()[-1] == result.worst
    assert curve.get_ydata()[-1] == 1.0


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    result = PLAN.per_subject_epsilon(TABLE, delta=1e-5)
    usual = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return usual(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"tf-subjectdp\[plots\]"):
        subject_epsilons(result)


def test_importing_the_plots_imports_no_matplotlib():
    code = (
        "import sys, tf_subjectdp.plots; sys.exit('matplotlib' in sys.modules or "
        "'tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(TypeError, match="per_subject_epsilon"):
        subject_epsilons([1.0, 2.0])
    pytest.importorskip("matplotlib")
    result = PLAN.per_subject_epsilon([[0, 0, 1]], delta=1e-5)
    with pytest.raises(ValueError, match="finite"):
        subject_epsilons(result)
