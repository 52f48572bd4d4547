"""Cost of a retention pass that has nothing to delete.

    python benchmarks/retention.py [--quick] [--json]

10,000 logs of two segments each in one process; 100 with --quick. The number of files that the engine opens is counted.
The first pass after the start looks up the largest timestamp of each closed segment; later passes know the timestamps.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from harness import Machine, Reporter, Verdict, parse_options
from stratalog import Record, open_engine
from stratalog.env import Env, PosixVfs

_LOGS: Final = 10_000
_QUICK_LOGS: Final = 100
_CPU_S: Final = 1.0
_TARGET: Final = "retention pass over 10,000 idle partitions"


class CountingVfs(PosixVfs):
    """The real file system with a counter of opened files."""

    opened = 0

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Count the call, and open the file."""
        self.opened += 1
        return super().open(path, write=write, create=create)


def main(arguments: list[str] | None = None) -> int:
    """Measure, and return 0, even if a bound is missed."""
    options = parse_options(__doc__ or "", arguments)
    reporter = Reporter(as_json=options.json)
    reporter.machine(Machine.now(("stratalog",)))
    with tempfile.TemporaryDirectory(prefix="retention-benchmark-") as scratch:
        reporter.verdicts(_verdicts(Path(scratch) / "logs", _QUICK_LOGS if options.quick else _LOGS))
    return 0


def _verdicts(directory: Path, logs: int) -> list[Verdict]:
    _make(directory, logs)
    files = CountingVfs()
    with open_engine(directory, env=Env(files=files)) as engine:
        first_s, _ = _pass(engine.apply_retention, files)
        cpu_s, opened_files = min(_pass(engine.apply_retention, files) for _ in range(3))
    text = (
        f"{logs:,} logs: {cpu_s:.3f} s of processor time ({first_s:.3f} s the first pass), {opened_files} files opened"
    )
    return [
        Verdict(_TARGET, "retention/cpu", text, f"less than {_CPU_S:g} s", cpu_s, cpu_s < _CPU_S),
        Verdict(_TARGET, "retention/files", text, "no file opened", opened_files, opened_files == 0),
    ]


def _pass(work: object, files: CountingVfs) -> tuple[float, int]:
    assert callable(work)
    opened_before, began = files.opened, time.process_time()
    work()
    return time.process_time() - began, files.opened - opened_before


def _make(directory: Path, logs: int) -> None:
    with open_engine(directory) as engine:
        engine.create_topic("idle", partitions=logs, config={"segment.bytes": 250})
        now_ms = time.time_ns() // 1_000_000
        for partition in range(logs):
            log = engine.log("idle", partition)
            for _ in range(2):
                log.append([Record(value=b"v" * 100, timestamp_ms=now_ms)])


if __name__ == "__main__":
    sys.exit(main())
