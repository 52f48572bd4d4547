"""What memory a call costs, as the operating system sees it: libraries allocate behind Python's back."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.errors import StorageError

_SELF = Path("/proc/self")
_RESET_PEAK = "5"


def peak_bytes(call: Callable[[], object]) -> int:
    """By how much the process's resident memory grew at most while ``call`` ran; a StorageError counts as an answer.

    Skips the test where the kernel does not tell (anything but Linux, and Linux that hides it).
    """
    if sys.platform != "linux":
        pytest.skip("only Linux tells how much memory a process had at most")
    gc.collect(1)  # young garbage is what a call may get back; to look at all objects takes long in a large test run
    ctypes.CDLL(None).malloc_trim(0)  # memory that was freed and kept would be used again, and not be seen
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
