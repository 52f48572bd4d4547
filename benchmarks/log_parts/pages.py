"""Functions that reserve memory before a measurement.

A virtual machine returns freed memory to its host. To get it back costs more time than to write to it.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

_ZEROS: Final = bytes(1 << 20)


def warm_pages(folder: Path, size_bytes: int) -> None:
    """Write a file 25 % larger than ``size_bytes``, and delete it: the next files can reuse its memory."""
    file = folder / "pages"
    with file.open("wb", buffering=0) as stream:
        for _ in range(-(-size_bytes * 5 // 4 // len(_ZEROS))):
            stream.write(_ZEROS)
    file.unlink()


def warm_memory(size_bytes: int) -> None:
    """Fill and free this much memory: a later step that allocates it does not wait for the host."""
    with mmap.mmap(-1, size_bytes) as pages:
        for start in range(0, size_bytes, len(_ZEROS)):
            pages[start : start + len(_ZEROS)] = _ZEROS[: size_bytes - start]
