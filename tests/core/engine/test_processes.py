"""Processes that are killed, or that reach their file size limit, lose no written record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CYCLES = 100
KILL_LOOP = Path(__file__).parents[2] / "support" / "kill_loop.py"
LIMITED = """
import resource, sys
from stratalog import Record, open_engine
from stratalog.errors import DiskFullError

_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
record = [Record(value=b"v" * 1000)]
with open_engine(sys.argv[1]) as engine:
    engine.create_topic("t", config={"index.interval.bytes": 0})
    log = engine.log("t", 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    for durability in ("written", "durable"):
        try:
            while True:
                log.append(record, durability)
        except DiskFullError as error:
            assert "t-0" in str(error), error
    full = log.offsets().log_end
    assert 80 < full < 100, full
    assert len(list(log.records())) == full
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert log.append(record, "durable").base_offset == full
with open_engine(sys.argv[1]) as engine:
    assert [found.offset for found in engine.log("t", 0).records()] == list(range(full + 1))
"""


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.long
def test_written_records_survive_every_kill(tmp_path: Path, seed: int) -> None:
    command = [sys.executable, str(KILL_LOOP), str(tmp_path), str(CYCLES), str(seed)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own script
    assert process.returncode == 0, process.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no RLIMIT_FSIZE")
@pytest.mark.long
def test_a_file_that_may_not_grow_refuses_appends_until_it_may(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own script
    assert process.returncode == 0, process.stderr
