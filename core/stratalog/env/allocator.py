"""Tuning of the C library's allocator for large blocks that are allocated and freed often."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_LARGEST_BYTES: Final = (32 << 20) - (64 << 10)  # glibc ignores blocks above 32 MiB


def reuse_large_blocks() -> None:
    """Make glibc reuse freed blocks of several megabytes instead of returning them to the system.

    glibc returns the free memory at the top of an arena to the system if it is more than twice the largest block that
    was ever freed. A reader of a tier continuously allocates and frees chunks of a few megabytes. The system would map
    and zero the memory of each chunk again, which takes longer than the checksums of the chunk. This function
    allocates and frees one block of almost 32 MiB, which increases the limit to 64 MiB for each arena. Nothing is
    written to the block, so the block uses no memory: it is the buffer of a read that returns no bytes. ``bytes(SIZE)``
    would be zeroed if glibc took it from freed memory. With another allocator, the function has no effect.

    Source: mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, "dynamic".
    """
    limits = contextlib.suppress(MemoryError, OSError)  # only a hint: a process with low limits works without it
    with limits, Path(os.devnull).open("rb", buffering=0) as empty:
        empty.read(_LARGEST_BYTES)
