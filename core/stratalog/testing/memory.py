"""Measurements of the memory that code uses."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stratalog.errors import StorageError

_SELF = Path("/proc/self")
_RESET_PEAK = "5"


@contextlib.contextmanager
def memory_below(limit_bytes: int) -> Iterator[None]:
    """Fail if the memory that Python allocates in the ``with`` block reaches ``limit_bytes``."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
        assert peak < limit_bytes, f"{peak} bytes were allocated at a time"
    finally:
        tracemalloc.stop()


def peak_bytes(call: Callable[[], object]) -> int:
    """Call ``call``, and return the number of bytes by which the process's peak resident memory grew.

    Unlike ``memory_below``, the number includes allocations of C libraries.

    A StorageError of ``call`` is ignored. The test is skipped if the kernel does not report the peak: on each system
    except Linux, and on some Linux systems.
    """
    if sys.platform != "linux":
        pytest.skip("only Linux reports the peak memory of a process")
    gc.collect(1)  # frees young garbage before the call, not during it; a full collection is slow in a large test run
    ctypes.CDLL(None).malloc_trim(0)  # without this, the call could reuse freed memory, which the peak does not show
    try:
        (_SELF / "clear_refs").write_text(_RESET_PEAK)
    except OSError as error:
        pytest.skip(f"the kernel does not let a process reset its peak: {error}")
    before = _resident_peak_bytes()
    with contextlib.suppress(StorageError):
        call()
    return _resident_peak_bytes() - before


def _resident_peak_bytes() -> int:
    line = next(line for line in (_SELF / "status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
