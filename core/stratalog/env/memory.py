"""Tuning of the C library's allocator for large blocks that are allocated and freed often."""

from __future__ import annotations

import contextlib
from typing import Final

_LARGEST_BYTES: Final = (32 << 20) - (64 << 10)  # glibc ignores blocks above 32 MiB


def reuse_large_blocks() -> None:
    """Make glibc reuse freed blocks of several megabytes instead of returning them to the system.

    glibc returns free memory to the system when it exceeds twice the largest block freed so far. A reader of a tier
    allocates and frees chunks of a few megabytes continuously. Each returned chunk would be fetched again, zeroed, page
    by page; on a virtual machine this costs more than the checksums of the chunk. Freeing one block of almost 32 MiB
    raises the bound to 64 MiB per arena. The block's pages are never touched, so it uses no memory. Other allocators
    ignore it.

    Source: mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, "dynamic".
    """
    with contextlib.suppress(MemoryError):  # only a hint: a process with a low memory limit works without it
        bytes(_LARGEST_BYTES)
