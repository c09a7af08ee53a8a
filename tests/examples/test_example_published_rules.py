# SPDX-License-Identifier: Apache-2.0
"""The example prints the study's figures, without TensorFlow."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "published_rules.py"


def test_the_quick_table_has_the_studys_figures(capsys):
    spec = importlib.util.spec_from_file_location("published_rules", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main(["--quick"])
    out = capsys.readouterr().out
    found = [float(word) for word in re.findall(r"(?<![\w.])\d+\.\d+", out)]
    for figure in (1.553, 8.98, 3.91, 69.1, 12.82, 24.0, 23.4):
        assert any(abs(value / figure - 1.0) < 2e-3 for value in found), figure
    assert "Shakespeare" not in out


def test_the_example_needs_no_tensorflow():
    code = (
        "import sys, runpy; sys.argv = ['x', '--help']\n"
        f"try: runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
