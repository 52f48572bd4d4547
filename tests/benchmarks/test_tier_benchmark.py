"""The benchmark of remote reads runs, and tells a figure for each bound."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tier.py"


def test_every_bound_has_a_figure() -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    verdicts = [found for line in done.stdout.splitlines() if (found := json.loads(line))["kind"] == "verdict"]
    assert {found["case"] for found in verdicts} == {"tier/cold/file", "tier/cold/s3", "tier/warm"}
    assert all(found["figure"] > 0 for found in verdicts)
