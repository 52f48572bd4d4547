"""Base classes of Kafka's index formats and their readers.

Entries ascend and have a fixed size; there is no header or checksum.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct
from typing import Any, ClassVar, TypeVar

from stratalog.errors import CorruptIndexError
from stratalog.spi import Buffer, IndexBuilder, IndexFormat, IndexReader, TopicConfig
from stratalog_formats.kernels.dispatch import KERNELS, Kernels

Entry = TypeVar("Entry")


class EntryReader(IndexReader[Entry]):
    """Reader that searches entries without a copy. A search ignores bytes after the last complete entry.

    The key of an entry is the number by which the entries ascend: an offset or a timestamp. Offsets of entries are relative
    to ``base_offset``, the base offset of the segment.
    """

    layout: ClassVar[Struct]
    key: ClassVar[tuple[int, int]]
    """Position and size (bytes) of the key in an entry."""
    is_key_relative: ClassVar[bool] = False
    """True if the key of an entry is relative to the base offset."""

    def __init__(self, entries: Buffer, base_offset: int) -> None:
        self._entries, self._base_offset = memoryview(entries).cast("B"), base_offset
        self._count = len(self._entries) // self.layout.size

    @abstractmethod
    def _entry(self, index: int) -> Entry:
        """Return the entry at ``index``, which is at least 0 and below the number of entries."""

    @abstractmethod
    def _fault(self, end_offset: int, size_bytes: int) -> tuple[int, str] | None:
        """Return the index of the first entry that contradicts the segment, and the reason.

        Return None if there is no such entry.
        """

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Entry:
        if not -self._count <= index < self._count:
            raise IndexError(f"there is no entry {index}, only {self._count} entries")
        return self._entry(index if index >= 0 else index + self._count)

    def floor(self, target: int) -> Entry | None:
        """Return the last entry whose key is at or below ``target``; None if all keys are above ``target``."""
        index = self._count_up_to(target)
        return self._entry(index - 1) if index else None

    def after(self, target: int) -> Entry | None:
        """Return the first entry whose key is at or above ``target``; None if all keys are below ``target``."""
        index = self._count_up_to(target - 1)
        return self._entry(index) if index < self._count else None

    def check(self, end_offset: int, size_bytes: int) -> None:
        """Check that the keys ascend, and that the entries are possible in the segment (``IndexReader.check``)."""
        fault = self._fault(end_offset, size_bytes)
        if fault is not None:
            raise CorruptIndexError(fault[1], "", fault[0] * self.layout.size)
        complete_bytes = self._count * self.layout.size
        if complete_bytes < len(self._entries):
            raise CorruptIndexError("the index ends inside an entry", "", complete_bytes)

    def kept_bytes(self, end_offset: int) -> int:
        """Return the size (bytes) of the entries before the first entry with an offset at or above ``end_offset``."""
        return bisect_left(range(self._count), end_offset, key=self._offset) * self.layout.size

    def _count_up_to(self, target: int) -> int:
        """Return the number of entries with a key at or below ``target``."""
        target_key = target - self._base_offset if self.is_key_relative else target
        return KERNELS.entries_up_to(self._entries, self.layout.size, *self.key, target_key)

    @abstractmethod
    def _offset(self, index: int) -> int:
        """Return the offset of the entry at ``index``."""

    def _fields(self, index: int) -> tuple[Any, ...]:
        return self.layout.unpack_from(self._entries, index * self.layout.size)

    def _all_fields(self) -> Iterator[tuple[Any, ...]]:
        return self.layout.iter_unpack(self._entries[: self._count * self.layout.size])


class EntryIndex(IndexFormat[Entry]):
    """Base class of Kafka's index formats, whose entries ``reader_class`` reads."""

    reader_class: ClassVar[type[EntryReader[Any]]]

    def __init__(self, kernels: Kernels = KERNELS) -> None:
        self._kernels = kernels

    def builder(self, base_offset: int, config: TopicConfig, *, entries: Buffer = b"") -> IndexBuilder:
        """Return a builder that continues an index with the ascending entries ``entries``.

        A new index has no entries, b"".
        """
        max_entries = config.segment_index_bytes // self.entry_bytes
        return self._continue_index(
            base_offset, config.index_interval_bytes, max_entries, self.reader(entries, base_offset)
        )

    @abstractmethod
    def _continue_index(
        self, base_offset: int, interval_bytes: int, max_entries: int, existing: EntryReader[Entry]
    ) -> IndexBuilder:
        """Return a builder that adds entries after the entries of ``existing``."""

    def reader(self, entries: Buffer, base_offset: int) -> EntryReader[Entry]:
        """Return a reader over ``entries``."""
        return self.reader_class(entries, base_offset)

    def kept_bytes(self, entries: Buffer, base_offset: int, end_offset: int) -> int:
        """Return the size (bytes) of the entries before the first entry with an offset at or above ``end_offset``."""
        return self.reader(entries, base_offset).kept_bytes(end_offset)
