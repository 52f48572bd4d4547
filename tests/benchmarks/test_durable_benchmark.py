"""The benchmark of durable appends does what it says, and what it tells can be read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "durable.py"


def test_a_quick_run_tells_both_bounds_of_a_disk() -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--json", "--only", "this-disk"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    sides = {line["side"] for line in told if line["kind"] == "figures"}
    assert sides == {"64 threads", "one fsync each"}
    verdicts = [line for line in told if line["kind"] == "verdict"]
    assert [line["case"] for line in verdicts] == ["durable/this-disk"] * 2
    assert all(line["figure"] > 0 for line in verdicts)
