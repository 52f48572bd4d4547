"""A driver of ``sync`` is killed with SIGKILL at every step of a micro-batch.

After the next micro-batch, each record is in one table once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.usefixtures("has_lakes"), pytest.mark.long]

PROGRAM = Path(__file__).parents[1] / "support" / "sync_kills.py"


@pytest.mark.parametrize(("kind", "buckets"), [("iceberg", 0), ("iceberg", 2), ("delta", 0)])
def test_a_driver_that_is_killed_at_any_step_neither_loses_nor_repeats_a_record(
    tmp_path: Path, kind: str, buckets: int
) -> None:
    """The program checks both tables after each kill and after another micro-batch. The table is partitioned by day."""
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), kind, str(buckets)],
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    steps = json.loads(ran.stdout)
    assert steps[0] == "before add_columns"
    for name in ("commit", "add_columns", "remove"):
        assert f"before {name}" in steps
        assert f"after {name}" in steps
    assert steps.count("after commit") >= 2, "that of the data and that of the quarantine"
    assert steps.count("before a file of metadata") >= (6 if kind == "iceberg" else 0)
