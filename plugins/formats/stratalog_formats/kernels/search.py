"""Search in index entries of a fixed size, without a copy, in pure Python."""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import Final

from stratalog.spi import Buffer, OffsetPosition

_OFFSET_ENTRY: Final = Struct(">ii")


def entries_up_to(entries: Buffer, entry_bytes: int, key_position: int, key_bytes: int, target: int) -> int:
    """Return the number of ascending entries with a key at or below ``target``.

    The key of an entry is the number by which the entries ascend. If they do not ascend, the result is undefined.

    Args:
        entries: concatenated entries; bytes after the last complete entry are ignored.
        entry_bytes: size of an entry.
        key_position: position (bytes) of the key in an entry.
        key_bytes: 4 or 8; keys are signed and big-endian.
        target: any integer.

    Raises:
        ValueError: the key is not inside the entry, or ``key_bytes`` is neither 4 nor 8.
    """
    if key_bytes not in {4, 8} or not 0 <= key_position <= entry_bytes - key_bytes:
        raise ValueError(f"no key of {key_bytes} bytes is at {key_position} of an entry of {entry_bytes}")
    view = memoryview(entries).cast("B")

    def key_of(index: int) -> int:
        position = index * entry_bytes + key_position
        return int.from_bytes(view[position : position + key_bytes], "big", signed=True)

    return bisect_right(range(len(view) // entry_bytes), target, key=key_of)


def offsets_around(
    entries: Buffer, base_offset: int, target: int
) -> tuple[OffsetPosition | None, OffsetPosition | None, OffsetPosition | None]:
    """Return the last entry of an offset index at or below the offset ``target``, and the next two entries.

    An entry that does not exist is None.
    """
    size = _OFFSET_ENTRY.size
    view = memoryview(entries).cast("B")
    count, index = len(view) // size, entries_up_to(view, size, 0, 4, target - base_offset)

    def entry(number: int) -> OffsetPosition | None:
        if not 0 <= number < count:
            return None
        relative, position = _OFFSET_ENTRY.unpack_from(view, number * size)
        return OffsetPosition(base_offset + relative, position)

    return entry(index - 1), entry(index), entry(index + 1)
