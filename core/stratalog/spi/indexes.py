"""Index formats: search and encoding over buffers. They own no file.

An index is a run of entries of fixed size, ascending, without header or checksum. Indexes are disposable: a reader
that meets one that contradicts its log rebuilds it from the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import StrEnum
from typing import ClassVar, Generic, NamedTuple, TypeVar

from stratalog.config.topic import TopicConfig
from stratalog.model.batches import BatchTable, Buffer
from stratalog.model.segment_info import AbortedTransaction

Entry = TypeVar("Entry")


class IndexRole(StrEnum):
    """What a log uses an index for: one ``IndexFormat`` each of the first three per log, any number of ``ExtraIndex``."""

    OFFSET = "offset"
    TIME = "time"
    TRANSACTION = "transaction"
    EXTRA = "extra"


class Appended(NamedTuple):
    """One batch that was written to a segment.

    ``position`` is where it starts in the ``.log`` file. ``aborted`` is the transaction that this batch, an abort
    marker, ends.
    """

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    aborted: AbortedTransaction | None = None


class IndexBuilder(ABC):
    """Makes the entries of one segment's index, in the order of its batches."""

    __slots__ = ()

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether the segment must be rolled before the next batch. It may change when entries are made, not else."""

    @abstractmethod
    def add(self, appended: Appended) -> bytes:
        """Tell of a batch; returns the entry bytes due now, often ``b""``."""

    def add_batch(
        self, position: int, size_bytes: int, base_offset: int, last_offset: int, max_timestamp_ms: int
    ) -> bytes:
        """``add`` of a batch that ends no aborted transaction; an append of one batch asks, with nothing made for it.

        A TRANSACTION index, which has no entry for such a batch, need not be asked.
        """
        return self.add(Appended(position, size_bytes, base_offset, last_offset, max_timestamp_ms))

    def add_table(self, table: BatchTable, position: int) -> bytes:
        """Tell of many batches, none of which ends an aborted transaction: the entries are those of ``add``, row by row.

        Recovery tells of whole tables. Overridden where that can be done faster than here. What is told after the
        builder is full gets no entry.

        Args:
            table: batches behind each other without gaps, offsets ascending.
            position: of the first byte of what was scanned, in the ``.log`` file (bytes).
        """
        made = []
        columns = (table.position, table.size_bytes, table.base_offset, table.last_offset, table.max_timestamp_ms)
        for start, size_bytes, base_offset, last_offset, max_timestamp_ms in zip(*columns, strict=True):
            if self.full:
                break
            made.append(self.add_batch(position + start, size_bytes, base_offset, last_offset, max_timestamp_ms))
        return b"".join(made)

    @abstractmethod
    def finish(self) -> bytes:
        """Entry bytes due when the segment is rolled or closed, often ``b""``; calling twice adds nothing twice."""


class IndexReader(ABC, Generic[Entry]):
    """Searches one segment's index. Targets: offset for OFFSET and TRANSACTION, timestamp (ms) for TIME."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of entries."""

    @abstractmethod
    def __getitem__(self, index: int) -> Entry:
        """The entry at ``index``, which may be negative."""

    @abstractmethod
    def floor(self, target: int) -> Entry | None:
        """The last entry whose key is at or below ``target``; None if all are above.

        The key of a TRANSACTION entry is the offset of its marker.
        """

    @abstractmethod
    def after(self, target: int) -> Entry | None:
        """The first entry whose key is at or above ``target``; None if there is none.

        For OFFSET the key is here the position (bytes), because a fetch asks what lies behind its last byte.
        """

    @abstractmethod
    def check(self, end_offset: int, size_bytes: int) -> None:
        """Compare with the segment: offsets in [base_offset, end_offset), positions below ``size_bytes``, keys ascending.

        Raises:
            CorruptIndexError: an entry contradicts that, or the buffer ends inside one; ``position`` is the entry's.
                ``file`` is "": the caller knows it.
        """

    def __iter__(self) -> Iterator[Entry]:
        return (self[index] for index in range(len(self)))


class IndexFormat(ABC, Generic[Entry]):
    """One kind of index.

    ``Entry`` is OffsetPosition for OFFSET, TimestampOffset for TIME, AbortedTransaction for TRANSACTION.

    Attributes:
        role: what a log uses it for.
        suffix: of its file, with the dot; unique among the formats of an engine.
        entry_bytes: size of one entry.
    """

    role: ClassVar[IndexRole]
    suffix: ClassVar[str]
    entry_bytes: ClassVar[int]

    @abstractmethod
    def builder(self, base_offset: int, config: TopicConfig, *, entries: Buffer = b"") -> IndexBuilder:
        """A builder for a segment; ``entries`` are those already written, when an index is continued."""

    @abstractmethod
    def reader(self, entries: Buffer, base_offset: int) -> IndexReader[Entry]:
        """A reader over ``entries``, which it does not copy; bytes after the last whole entry are left out."""

    def around(self, entries: Buffer, base_offset: int, target: int) -> tuple[Entry | None, Entry | None, Entry | None]:
        """``reader(entries, base_offset).floor(target)`` and the two entries after it: how much to read to find the target.

        None for each that there is not, or that is not known: the default knows the first alone.
        """
        return self.reader(entries, base_offset).floor(target), None, None

    @abstractmethod
    def kept_bytes(self, entries: Buffer, base_offset: int, end_offset: int) -> int:
        """How many bytes of ``entries`` stay when everything from ``end_offset`` on is truncated."""
