"""The benchmark of idle retention runs, and tells a figure for each bound."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "retention.py"


def test_every_bound_has_a_figure_and_no_file_is_opened() -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    verdicts = [found for line in done.stdout.splitlines() if (found := json.loads(line))["kind"] == "verdict"]
    figures = {found["case"]: found["figure"] for found in verdicts}
    assert set(figures) == {"retention/cpu", "retention/files"}
    assert figures["retention/cpu"] > 0
    assert figures["retention/files"] == 0
