# SPDX-License-Identifier: Apache-2.0
"""The README's code runs as it stands, in its order."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_first_twenty_lines_of_code_are_plan_compile_and_fit():
    lines = [line for line in blocks()[0].splitlines() if line.strip()]
    assert len(lines) <= 20
    assert all(word in blocks()[0] for word in ("sdp.plan(", ".compile(", ".fit(plan.dataset("))


@pytest.mark.slow
def test_the_code_blocks_of_the_readme_run_as_they_stand(tmp_path):
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks()), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert "PRIVACY STATEMENT" in run.stdout
    assert "per subject: epsilon = " in run.stdout.lower()
