"""Runs of benchmarks in their own process, with little data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def quick_run(script: str, *options: str) -> list[dict[str, Any]]:
    """Run ``benchmarks/SCRIPT --quick --json``, which must succeed. Return its output lines."""
    return [json.loads(line) for line in quick_text(script, "--json", *options).splitlines()]


def quick_text(script: str, *options: str) -> str:
    """Run ``benchmarks/SCRIPT --quick``, which must succeed. Return its output."""
    command = [sys.executable, str(_BENCHMARKS / script), "--quick", *options]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


def verdicts(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of the kind ``verdict``, which compare a figure with its bound."""
    return [line for line in lines if line["kind"] == "verdict"]
