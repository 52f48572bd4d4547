"""The benchmark of a tier runs, and tells a figure for each bound."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tier.py"


@pytest.mark.skipif(sys.platform != "linux", reason="it reads the kernel's accounts")
def test_every_bound_has_a_figure() -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    verdicts = [found for line in done.stdout.splitlines() if (found := json.loads(line))["kind"] == "verdict"]
    cases = {found["case"]: found for found in verdicts}
    assert set(cases) == {
        "tier/offload/s3",
        *(f"tier/cold/{kind}" for kind in ("s3", "disk", "file")),
        "tier/warm",
        *(f"tier/first/{kind}" for kind in ("attached", "warm")),
        *(f"tier/memory/{kind}" for kind in ("upload", "reader")),
    }
    assert all(found["figure"] > 0 or "memory" in found["case"] for found in verdicts)
    assert all(cases[name]["reached"] for name in cases if "first" in name or "memory" in name)
