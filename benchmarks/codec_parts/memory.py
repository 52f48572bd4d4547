"""Memory: reading a large file in steps, and batches that claim too large sizes or decompress to more than the limit.

Every measurement runs in its own process, ``memory_child.py``, because memory that a process freed earlier would
distort the figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import stratalog
from codec_parts.hostile import KINDS
from codec_parts.workloads import Shape, make
from harness import Options, Reporter, Verdict, ceiling

_CHILD: Final = Path(__file__).with_name("memory_child.py")
_MIB: Final = 1 << 20
_READ_TARGET: Final = "memory of decoding a file through to_arrow in steps, beyond the result of a step"
_HOSTILE_TARGET: Final = "memory of a hostile batch: its limit and 4 MiB"
_READ_MOST_MIB: Final = 64
_HOSTILE_MOST_MIB: Final = 4
_HOSTILE_LIMIT_BYTES: Final = 16 * _MIB
_QUICK_LIMIT_BYTES: Final = _MIB
_FILE_BYTES: Final = {"quick": 2 * _MIB, "full": 1024 * _MIB, "": 128 * _MIB}
_WAYS: Final = {
    "to_arrow": "log.to_arrow(start, end), 100,000 records a step",
    "columns": "to_arrow of each of log.columns()",
}


def memory_verdicts(options: Options, reporter: Reporter, scratch: Path) -> Iterator[Verdict]:
    """Measure the selected cases, and yield the verdicts on their bounds."""
    size_bytes = _FILE_BYTES["quick" if options.quick else "full" if options.full else ""]
    for codec in ("none", "zstd"):
        ways = [way for way in _WAYS if find_spec("pyarrow") and options.wants(f"memory/{way}/{codec}")]
        if ways:
            _write_log(scratch / f"log-{codec}", codec, size_bytes)
        for way in ways:
            measured = _child("read", way, str(scratch / f"log-{codec}"))
            if measured is None:
                reporter.missing([f"memory/{way}/{codec}: the system does not tell the peak of memory"])
                continue
            mib = (measured["peak_bytes"] - measured["result_bytes"]) / _MIB
            title = f"{measured['rows']:,} records, {codec}: {_WAYS[way]}"
            reporter.memory(f"memory/{way}/{codec}", title, mib)
            yield ceiling(_READ_TARGET, f"memory/{way}/{codec}", _WAYS[way], mib, _READ_MOST_MIB)
    yield from _hostile_verdicts(options, reporter, scratch)


def _hostile_verdicts(options: Options, reporter: Reporter, scratch: Path) -> Iterator[Verdict]:
    limit_bytes = _QUICK_LIMIT_BYTES if options.quick else _HOSTILE_LIMIT_BYTES
    for kind in KINDS:
        name = f"memory/hostile/{kind.name}"
        if not options.wants(name):
            continue
        file = scratch / "hostile"
        file.write_bytes(kind.make(limit_bytes))
        measured = _child("hostile", str(file), str(limit_bytes))
        if measured is None:
            reporter.missing([f"{name}: the system does not tell the peak of memory"])
            continue
        mib = measured["peak_bytes"] / _MIB
        title = f"{kind.title}, limit {limit_bytes // _MIB} MiB: {measured['outcome']}"
        reporter.memory(name, title, mib)
        if kind.hostile:
            yield ceiling(_HOSTILE_TARGET, name, title, mib, limit_bytes / _MIB + _HOSTILE_MOST_MIB)


def _child(*arguments: str) -> dict[str, int] | None:
    """Return the measurements of a child process; None if the platform does not support them."""
    process = subprocess.run([sys.executable, str(_CHILD), *arguments], stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, int] | None = json.loads(process.stdout)
    return measured


def _write_log(folder: Path, codec: str, size_bytes: int) -> None:
    """Write a log with one segment file, whose uncompressed records have at least ``size_bytes``."""
    workload = make(Shape(codec=codec), quick=False)
    config = {"segment.bytes": (1 << 31) - 1, "retention.ms": -1}
    with stratalog.open_engine(folder) as engine:
        engine.create_topic("t", config=config)
        log = engine.log("t", 0)
        for _ in range(-(-size_bytes // workload.raw_bytes)):
            log.append_as_leader(bytearray(workload.data))
