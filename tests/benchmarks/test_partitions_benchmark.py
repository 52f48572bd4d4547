"""The benchmark of many logs runs, and tells a figure for each bound."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "partitions.py"


@pytest.mark.skipif(sys.platform != "linux", reason="it reads the kernel's accounts")
def test_every_bound_has_a_figure() -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    verdicts = [found for line in done.stdout.splitlines() if (found := json.loads(line))["kind"] == "verdict"]
    cases = {found["case"] for found in verdicts}
    assert cases == {f"partitions/{case}" for case in ("open", "memory/open", "memory/appended", "disk/indexes")}
    assert all(found["figure"] > 0 for found in verdicts)
