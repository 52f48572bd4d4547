"""Pages for files: a virtual machine gives memory that was freed back to its host, and fetching it again costs more than writing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_ZEROS: Final = bytes(1 << 20)


def warm_pages(folder: Path, size_bytes: int) -> None:
    """Write and delete a file a quarter larger than what will be written, so that its pages are at hand."""
    file = folder / "pages"
    with file.open("wb", buffering=0) as out:
        for _ in range(-(-size_bytes * 5 // 4 // len(_ZEROS))):
            out.write(_ZEROS)
    file.unlink()
