"""The benchmark of very many segments runs, and tells a figure for each bound."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "manifest.py"


@pytest.mark.skipif(sys.platform != "linux", reason="it reads the kernel's accounts")
def test_every_bound_has_a_figure() -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    verdicts = [found for line in done.stdout.splitlines() if (found := json.loads(line))["kind"] == "verdict"]
    cases = {found["case"]: found for found in verdicts}
    assert set(cases) == {f"manifest/{case}" for case in ("commit", "attach/requests", "attach/cpu", "attach/memory")}
    assert cases["manifest/attach/requests"]["figure"] == 5
    assert cases["manifest/commit"]["figure"] < 2
