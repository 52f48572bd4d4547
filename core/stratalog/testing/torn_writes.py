"""Parts of a write that may reach the disk before a power loss."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

SECTOR_BYTES: Final = 512
_AT_A_SECTOR: Final = 0.5  # share of cuts at a sector boundary
_WITH_A_HOLE: Final = 0.3  # share of damaged writes with a missing sector before later ones


@dataclass(eq=False, slots=True)
class Write:
    """A write of ``data`` at ``position`` (bytes); if ``data`` is None, a change of the file size to ``position``."""

    position: int
    data: bytes | None

    def apply(self, to: bytearray) -> None:
        """Apply the write to the bytes of a file."""
        end = self.position if self.data is None else self.position + len(self.data)
        if self.data is None:
            del to[end:]
        if len(to) < end:
            to.extend(bytes(end - len(to)))
        if self.data is not None:
            to[self.position : end] = self.data


Fate: TypeAlias = Callable[[Write], Sequence[Write]]
"""Function that gets a write and returns the part that reached the disk: the whole write, parts of it, or nothing."""


def kept(write: Write) -> Sequence[Write]:
    """Return the whole write."""
    return [write]


def lost(write: Write) -> Sequence[Write]:
    """Return an empty list: the write is lost."""
    del write
    return []


def longer_alone(write: Write) -> Sequence[Write]:
    """Return the write with zeros instead of its bytes; return a change of the file size unchanged."""
    return [write if write.data is None else Write(write.position, bytes(len(write.data)))]


def by_chance(chance: random.Random, write: Write) -> Sequence[Write]:
    """Return a random part of the write, which a power loss may leave on the disk.

    The result is the whole write, nothing, zeros instead of the bytes, the bytes before a cut, or the bytes with zeros
    in one sector. A change of the file size is kept or lost.
    """
    fate = chance.choice((kept, kept, lost, longer_alone, None, None))
    if fate is not None or not write.data:
        return (fate or kept)(write)
    data = write.data
    cut_position = chance.randrange(len(data) + 1)
    if chance.random() < _AT_A_SECTOR:
        cut_position = cut_position // SECTOR_BYTES * SECTOR_BYTES
    hole = bytes(len(data[cut_position : cut_position + SECTOR_BYTES]))
    after_hole = data[cut_position + SECTOR_BYTES :]
    return [Write(write.position, data[:cut_position] + (hole + after_hole if chance.random() < _WITH_A_HOLE else b""))]
