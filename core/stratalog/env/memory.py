"""How the C library's allocator treats large blocks that come and go."""

from __future__ import annotations

import contextlib
from typing import Final

_LARGEST_BYTES: Final = (32 << 20) - (64 << 10)  # glibc looks no further than to 32 MiB


def reuse_large_blocks() -> None:
    """Have freed blocks of megabytes filled again instead of being given back to the system, where that can be said.

    glibc gives free memory back once it is more than twice the largest block freed so far. Whoever reads a tier frees
    and allocates chunks of a few megabytes all the time, and would give them back and fetch them again, zeroed and page
    by page: on a virtual machine that costs more than checking their contents. To free one block of almost 32 MiB raises
    the bound to 64 MiB, an arena. The block is never touched, so it takes no memory; other allocators take no notice.

    Source: mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, "dynamic".
    """
    with contextlib.suppress(MemoryError):  # of a process that may take little: it is a hint, and no more
        bytes(_LARGEST_BYTES)
