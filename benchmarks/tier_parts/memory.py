"""Memory of an upload, and of a reader with prefetching, each in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from harness import Options, Reporter, Verdict, ceiling
from stratalog.config.engine_settings import Limits
from tier_parts.logs import LocalLog, Store, make_log, offload
from tier_parts.server import LoopbackS3

UPLOAD: Final = "tier/memory/upload"
READER: Final = "tier/memory/reader"
_CHILD: Final = Path(__file__).with_name("memory_child.py")
_TITLE: Final = "memory of an upload or a prefetching reader"
_MIB: Final = 1 << 20
_SMALL_MIB: Final = 16  # for modules that libraries import late, and for one read of a log
_UPLOADED_BYTES: Final = 1 << 30
_QUICK_BYTES: Final = 4 * _MIB


def memory_verdicts(server: LoopbackS3, scratch: Path, options: Options, reporter: Reporter) -> Iterator[Verdict]:
    """Yield verdicts on the memory of the upload of a segment of 1 GiB, and of a read of this segment."""
    limits, store = Limits(), Store(server.uri("memory"), server.options)
    limit_by_case = {
        UPLOAD: limits.upload_bytes,
        READER: limits.chunk_cache_bytes + limits.prefetch_bytes + limits.index_cache_bytes,
    }
    size_bytes = _QUICK_BYTES if options.quick else _UPLOADED_BYTES
    local_log = make_log(scratch / "memory", store, size_bytes, size_bytes)
    if not options.wants(UPLOAD):
        offload(local_log, store)
    for case in filter(options.wants, limit_by_case):
        operation = case.rpartition("/")[2]
        peak_bytes = _child(operation, local_log, store)
        if peak_bytes is None:
            reporter.missing([f"{case}: the system does not tell the peak of memory"])
            continue
        mib = peak_bytes / _MIB
        title = f"{operation} of {local_log.size_bytes >> 20} MiB, limits {limit_by_case[case] >> 20} MiB"
        reporter.memory(case, title, mib)
        yield ceiling(_TITLE, case, title, mib, limit_by_case[case] / _MIB + _SMALL_MIB)


def _child(operation: str, local_log: LocalLog, store: Store) -> int | None:
    command = [sys.executable, str(_CHILD), operation, str(local_log.folder), store.uri, json.dumps(store.options)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    peak_bytes: int | None = json.loads(process.stdout)
    return peak_bytes
