"""Searching entries of a fixed size where they lie, in pure Python."""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import Final

from stratalog.spi import Buffer, OffsetPosition

_OFFSET_ENTRY: Final = Struct(">ii")


def entries_up_to(entries: Buffer, entry_bytes: int, key_position: int, key_bytes: int, target: int) -> int:
    """How many entries have a key at or below ``target``, in entries that ascend by it; where they do not, some number.

    Args:
        entries: behind each other; bytes after the last whole one are left out.
        entry_bytes: of each.
        key_position: where (bytes) in an entry its key is.
        key_bytes: 4 or 8; keys are big-endian and have a sign.
        target: any integer.

    Raises:
        ValueError: there are no such keys in such entries.
    """
    if key_bytes not in {4, 8} or not 0 <= key_position <= entry_bytes - key_bytes:
        raise ValueError(f"no key of {key_bytes} bytes is at {key_position} of an entry of {entry_bytes}")
    view = memoryview(entries).cast("B")

    def key_of(index: int) -> int:
        at = index * entry_bytes + key_position
        return int.from_bytes(view[at : at + key_bytes], "big", signed=True)

    return bisect_right(range(len(view) // entry_bytes), target, key=key_of)


def offsets_around(
    entries: Buffer, base_offset: int, target: int
) -> tuple[OffsetPosition | None, OffsetPosition | None, OffsetPosition | None]:
    """In an offset index the last entry at or below offset ``target``, and the two after it; None where there is none."""
    size = _OFFSET_ENTRY.size
    view = memoryview(entries).cast("B")
    count, index = len(view) // size, entries_up_to(view, size, 0, 4, target - base_offset)

    def entry(at: int) -> OffsetPosition | None:
        if not 0 <= at < count:
            return None
        relative, position = _OFFSET_ENTRY.unpack_from(view, at * size)
        return OffsetPosition(base_offset + relative, position)

    return entry(index - 1), entry(index), entry(index + 1)
