"""Index formats: search and encoding over buffers. An index format owns no file.

An index is a sequence of entries of fixed size, ascending, without header or checksum. Indexes are disposable: if an
index contradicts its log, it is rebuilt from the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import ClassVar, Generic, TypeVar

from stratalog.config.topic import TopicConfig
from stratalog.model.batches import Buffer
from stratalog.model.prepared import PreparedBatches
from stratalog.model.segment_info import AbortedTransaction

Entry = TypeVar("Entry")


class IndexRole(StrEnum):
    """The purpose of an index in a log.

    A log has one ``IndexFormat`` for each of OFFSET, TIME and TRANSACTION, and any number of ``ExtraIndex``.
    """

    OFFSET = "offset"
    TIME = "time"
    TRANSACTION = "transaction"
    EXTRA = "extra"


class IndexBuilder(ABC):
    """A builder of the entries of one segment's index, in the order of the batches."""

    __slots__ = ()

    @property
    @abstractmethod
    def full(self) -> bool:
        """True if the segment must be rolled before the next batch. The value changes only in ``add``.

        The value becomes True before the entries would exceed ``segment.index.bytes``. It is always False for a format
        without a limit.
        """

    @abstractmethod
    def add(self, batches: PreparedBatches, position: int, aborted: Mapping[int, AbortedTransaction]) -> bytes:
        """Add batches, in one call for each write, and return the entry bytes to write now, often ``b""``.

        A full builder returns no further entries. The result contains whole entries only. Batches that are added in one
        call give the same entries as batches that are added one by one.

        Args:
            batches: the batches that directly follow the batches of the previous call. Their offsets ascend.
            position: position in the ``.log`` file (bytes) of the byte at position 0 of ``batches.table``.
            aborted: transactions that abort markers end, by the marker's offset. A TRANSACTION index has an entry for
                each marker among the batches, and ignores the others. Other indexes do not depend on them.

        Raises:
            CorruptBatchError: an entry would not ascend, or an offset cannot be in the segment.
        """

    @abstractmethod
    def finish(self) -> bytes:
        """Return the last entry bytes, to write when the segment is rolled or closed; often ``b""``.

        A second call does not return an entry that the first call returned.
        """


class IndexReader(ABC, Generic[Entry]):
    """A search over one segment's index.

    The key of an entry, and the target of a search, is an offset in OFFSET and TRANSACTION indexes and a timestamp (ms)
    in TIME indexes. If the entries are damaged, a search returns any entry or None, or raises CorruptIndexError.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of entries."""

    @abstractmethod
    def __getitem__(self, index: int) -> Entry:
        """Return the entry at ``index``, which may be negative; raise IndexError if there is no such entry."""

    @abstractmethod
    def floor(self, target: int) -> Entry | None:
        """Return the last entry whose key is at or below ``target``; None if all are above.

        The key of a TRANSACTION entry is the offset of its marker.
        """

    @abstractmethod
    def after(self, target: int) -> Entry | None:
        """Return the first entry whose key is at or above ``target``; None if all are below.

        Unlike in ``floor``, ``target`` and the key of an OFFSET entry are positions (bytes), because a fetch searches
        for the end of a byte range.
        """

    @abstractmethod
    def check(self, end_offset: int, size_bytes: int) -> None:
        """Check the entries: offsets in [base_offset, end_offset), positions below ``size_bytes``, keys ascending.

        Raises:
            CorruptIndexError: an entry contradicts the segment, or the buffer ends inside an entry. ``position`` of the
                error is that of the entry, and ``file`` is ""; the caller adds the file.
        """

    def __iter__(self) -> Iterator[Entry]:
        return (self[index] for index in range(len(self)))


class IndexFormat(ABC, Generic[Entry]):
    """One kind of index.

    ``Entry`` is OffsetPosition for OFFSET, TimestampOffset for TIME, AbortedTransaction for TRANSACTION.

    Attributes:
        role: purpose of the index in a log.
        suffix: suffix of the index file, with the dot and without a slash; unique among the formats of an engine.
        entry_bytes: size of one entry.
    """

    role: ClassVar[IndexRole]
    suffix: ClassVar[str]
    entry_bytes: ClassVar[int]

    @abstractmethod
    def builder(self, base_offset: int, config: TopicConfig, *, entries: Buffer = b"") -> IndexBuilder:
        """Return a builder for a segment.

        ``entries`` are the entries that an earlier builder wrote for the segment; empty for a new index. A segment
        without batches has no entries.
        """

    @abstractmethod
    def reader(self, entries: Buffer, base_offset: int) -> IndexReader[Entry]:
        """Return a reader over ``entries``, without a copy; bytes after the last whole entry are ignored."""

    def around(self, entries: Buffer, base_offset: int, target: int) -> tuple[Entry | None, Entry | None, Entry | None]:
        """Return ``reader(entries, base_offset).floor(target)`` and the two entries after it.

        The three entries show how many bytes to read to find the target. An entry is None if it does not exist or is
        not known. The default implementation returns None for the second and third entries.
        """
        return self.reader(entries, base_offset).floor(target), None, None

    @abstractmethod
    def kept_bytes(self, entries: Buffer, base_offset: int, end_offset: int) -> int:
        """Return the number of bytes of ``entries`` that stay if the log is truncated to ``end_offset``.

        The entries with an offset below ``end_offset`` stay.
        """
