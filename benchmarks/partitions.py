"""Many logs in one process: opening them after a clean stop, and the resources of each open log.

    python benchmarks/partitions.py [--quick] [--json]

10,000 logs in a process that may open 1,024 descriptors; 100 logs with --quick. Every log is appended to. Disk space
and memory are those that the kernel reports for a separate process.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from harness import Machine, Options, Reporter, Verdict, parse_options
from stratalog import Engine, Record, open_engine

_LOGS: Final = 10_000
_QUICK_LOGS: Final = 100
_DESCRIPTORS: Final = 1024
_TOPIC: Final = "many"
_TARGET: Final = "10,000 logs open and each appended to, 1,024 descriptors"
_OPENING_S: Final = 5.0
_LOG_KIB: Final = 8.0
_INDEXES_MIB: Final = 100.0


def main(arguments: list[str] | None = None) -> int:
    """Measure, and return 0, even if a bound is missed."""
    options = parse_options(__doc__ or "", arguments)
    reporter = Reporter(as_json=options.json)
    reporter.machine(Machine.now(("stratalog",)))
    with tempfile.TemporaryDirectory(prefix="partitions-benchmark-") as scratch:
        reporter.verdicts(_verdicts(Path(scratch) / "logs", options))
    return 0


def _verdicts(directory: Path, options: Options) -> list[Verdict]:
    logs = _QUICK_LOGS if options.quick else _LOGS
    _make(directory, logs)
    command = [sys.executable, __file__, "--child", str(directory), str(logs)]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows = (
        ("open", f"opening {logs:,} logs: {figures['open_s']:.2f} s ({figures['open_cpu_s']:.2f} s of processor time)",
         figures["open_s"], _OPENING_S, "s"),
        ("memory/open", f"beyond the process, a log: {figures['open_kib']:.2f} KiB", figures["open_kib"], _LOG_KIB, "KiB"),
        ("memory/appended", f"appended to, a log: {figures['appended_kib']:.2f} KiB", figures["appended_kib"], _LOG_KIB, "KiB"),
        ("disk/indexes", f"all index files: {figures['indexes_mib']:.1f} MiB", figures["indexes_mib"], _INDEXES_MIB, "MiB"),
    )  # fmt: skip
    return [
        Verdict(_TARGET, f"partitions/{case}", measured, f"at most {bound:g} {unit}", figure, figure <= bound)
        for case, measured, figure, bound, unit in rows
        if options.wants(f"partitions/{case}")
    ]


def _make(directory: Path, logs: int) -> None:
    with open_engine(directory) as engine:
        engine.create_topic(_TOPIC, partitions=logs)
        _append_to_each(engine, logs)


def _append_to_each(engine: Engine, logs: int) -> None:
    for partition in range(logs):
        engine.log(_TOPIC, partition).append([Record(value=b"v" * 100)])


def _child(directory: Path, logs: int) -> None:
    """Measure the logs, and print the figures as JSON."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, hard))
    with open_engine(directory.with_name("warm-up")) as engine:  # imports, and other work that a process does only once
        engine.create_topic(_TOPIC)
        _append_to_each(engine, 1)
    resident = _resident_bytes()
    began, began_cpu = time.perf_counter(), time.process_time()
    with open_engine(directory) as engine:
        figures = {"open_s": time.perf_counter() - began, "open_cpu_s": time.process_time() - began_cpu}
        figures["open_kib"] = (_resident_bytes() - resident) / logs / 1024
        _append_to_each(engine, logs)
        figures["appended_kib"] = (_resident_bytes() - resident) / logs / 1024
        blocks = sum(path.stat().st_blocks for path in directory.glob(f"{_TOPIC}-*/*index"))
        figures["indexes_mib"] = blocks * 512 / (1 << 20)
    print(json.dumps(figures))


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(main())
