# SPDX-License-Identifier: Apache-2.0
"""The trade-off figure: what it draws, and that matplotlib is optional."""

import subprocess
import sys

import numpy as np
import pytest

from tf_subjectdp import plots
from tf_subjectdp.accounting import fdp


@pytest.fixture
def pyplot():
    matplotlib = pytest.importorskip("matplotlib", reason="figures need tf-subjectdp[plots]")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def test_the_lines_are_the_curves(pyplot):
    curves = [fdp.gaussian(1.0), fdp.approximate_dp(1.0, 1e-3), fdp.subsample(fdp.gaussian(2), 0.1)]
    ax = plots.trade_off(*curves)
    assert len(ax.lines) == len(curves) + 1
    for line, curve in zip(ax.lines, curves, strict=False):
        alpha, beta = line.get_data()
        np.testing.assert_array_equal(beta, curve(alpha))
        assert alpha[0] == 0.0 and alpha[-1] == 1.0 and len(alpha) == 401
    np.testing.assert_array_equal(ax.lines[-1].get_data(), [[0.0, 1.0], [1.0, 0.0]])
    assert "alpha" in ax.get_xlabel() and "beta" in ax.get_ylabel()
    assert "Gaussian, mu = 1" in [t.get_text() for t in ax.get_legend().get_texts()]


def test_axes_and_labels_of_the_caller_are_used(pyplot):
    _, axes = pyplot.subplots(1, 2)
    scheme = fdp.BatchScheme.batch(20, 30, "subsampling")
    args = {"epochs": 2, "noise_multiplier": 2.0}
    curves = [f(scheme, **args) for f in (fdp.lower_curve, fdp.exact_curve, fdp.upper_curve)]
    ax = plots.trade_off(*curves, labels=["lower", "exact", "upper"], ax=axes[1], points=51)
    assert ax is axes[1] and not axes[0].lines
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["lower", "exact", "upper"]
    assert "(A1)" in plots.trade_off(curves[1], ax=axes[0]).get_legend().get_texts()[0].get_text()


def test_wrong_arguments_are_refused(pyplot):
    with pytest.raises(ValueError, match="at least one curve"):
        plots.trade_off()
    with pytest.raises(TypeError, match="list"):
        plots.trade_off([fdp.gaussian(1.0)])
    with pytest.raises(ValueError, match="labels"):
        plots.trade_off(fdp.gaussian(1.0), labels=["a", "b"])
    with pytest.raises(ValueError, match="points"):
        plots.trade_off(fdp.gaussian(1.0), points=1)


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"tf-subjectdp\[plots\]"):
        plots.trade_off(fdp.gaussian(1.0))


def test_neither_module_imports_matplotlib_or_tensorflow():
    code = (
        "import sys, tf_subjectdp.plots, tf_subjectdp.accounting.fdp;"
        "sys.exit(('matplotlib' in sys.modules) + 2 * ('tensorflow' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
