"""What Kafka's index formats share: entries of a fixed size, ascending, big-endian, without header or checksum."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct
from typing import Any, ClassVar, TypeVar

from stratalog.spi import Buffer, CorruptIndexError, IndexReader
from stratalog_formats.kernels.choice import KERNELS, Kernels

Entry = TypeVar("Entry")


class EntryReader(IndexReader[Entry]):
    """Searches entries where they lie; bytes after the last whole entry are left out.

    Args:
        entries: the index, which is not copied.
        base_offset: of the segment; relative offsets count from it.
    """

    layout: ClassVar[Struct]
    key: ClassVar[tuple[int, int]]
    """Position and size (bytes) of the number that entries ascend by, as it is stored."""
    is_key_relative: ClassVar[bool] = False
    """Whether it counts from the base offset."""

    def __init__(self, entries: Buffer, base_offset: int, kernels: Kernels = KERNELS) -> None:
        self._entries, self._base_offset = memoryview(entries).cast("B"), base_offset
        self._count_up_to = kernels.entries_up_to
        self._count = len(self._entries) // self.layout.size

    @abstractmethod
    def _entry(self, index: int) -> Entry:
        """The entry at ``index``, in [0, len)."""

    @abstractmethod
    def _fault(self, end_offset: int, size_bytes: int) -> tuple[int, str] | None:
        """The first entry that contradicts the segment, and how."""

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Entry:
        if not -self._count <= index < self._count:
            raise IndexError(f"no entry {index} among {self._count}")
        return self._entry(index if index >= 0 else index + self._count)

    def floor(self, target: int) -> Entry | None:
        """The last entry whose key is at or below ``target``."""
        index = self._up_to(target)
        return self._entry(index - 1) if index else None

    def after(self, target: int) -> Entry | None:
        """The first entry whose key is at or above ``target``."""
        index = self._up_to(target - 1)
        return self._entry(index) if index < self._count else None

    def check(self, end_offset: int, size_bytes: int) -> None:
        """Compare every entry with the segment."""
        fault = self._fault(end_offset, size_bytes)
        if fault is not None:
            raise CorruptIndexError(fault[1], "", fault[0] * self.layout.size)
        whole = self._count * self.layout.size
        if whole < len(self._entries):
            raise CorruptIndexError("the index ends inside an entry", "", whole)

    def kept_bytes(self, end_offset: int) -> int:
        """The size of the entries before the first one whose offset is at or above ``end_offset``."""
        return bisect_left(range(self._count), end_offset, key=self._offset) * self.layout.size

    def _up_to(self, target: int) -> int:
        """How many entries have a key at or below ``target``."""
        wanted = target - self._base_offset if self.is_key_relative else target
        return self._count_up_to(self._entries, self.layout.size, *self.key, wanted)

    @abstractmethod
    def _offset(self, index: int) -> int:
        """The offset of an entry, by which it stays or goes when the log is truncated."""

    def _fields(self, index: int) -> tuple[Any, ...]:
        return self.layout.unpack_from(self._entries, index * self.layout.size)

    def _all_fields(self) -> Iterator[tuple[Any, ...]]:
        return self.layout.iter_unpack(self._entries[: self._count * self.layout.size])
