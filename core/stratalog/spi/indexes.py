"""Index formats: search and encoding of index entries in buffers. An index format opens no file.

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
    """A builder of the index of one segment. Batches are added in the order of the log."""

    __slots__ = ()

    @property
    @abstractmethod
    def full(self) -> bool:
        """True if the segment must be rolled before the next batch. Only ``add`` and ``finish`` change the value.

        The value becomes True before the entries would exceed ``segment.index.bytes``. The value is always False for a
        format without a limit.
        """

    @abstractmethod
    def add(self, batches: PreparedBatches, position: int, aborted: Mapping[int, AbortedTransaction]) -> bytes:
        """Add the batches of one write, and return the bytes of the entries to write now, often ``b""``.

        If ``full`` is True, the result is ``b""``; only ``finish`` may then return one more entry. The result contains
        whole entries only. One call with several batches adds the same entries as one call for each batch.

        Args:
            batches: the batches that directly follow the batches of the previous call. Their offsets ascend.
            position: position in the ``.log`` file (bytes) of the byte at position 0 of ``batches.table``.
            aborted: aborted transactions by the offset of their abort marker. A TRANSACTION index has an entry for each
                marker among the batches, and ignores other items. Other indexes ignore the argument.

        Raises:
            CorruptBatchError: an entry would not ascend, or an offset cannot be in the segment. If ``full`` is True,
                the builder need not raise it.
        """

    @abstractmethod
    def finish(self) -> bytes:
        """Return the bytes of the last entries, to write when the segment is rolled or closed; often ``b""``.

        A second call does not return an entry that the first call returned.
        """


class IndexReader(ABC, Generic[Entry]):
    """A reader of one segment's index, for searches.

    The key of an entry, and the target of a search, is an offset in OFFSET and TRANSACTION indexes and a timestamp (ms)
    in TIME indexes. If the entries are damaged, a search returns any entry or None. A search, or a read of an entry by
    its index, may raise CorruptIndexError instead.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of entries."""

    @abstractmethod
    def __getitem__(self, index: int) -> Entry:
        """Return the entry at ``index``; raise IndexError if there is none. A negative index counts from the end."""

    @abstractmethod
    def floor(self, target: int) -> Entry | None:
        """Return the last entry whose key is at or below ``target``; None if there is none.

        The key is the offset in OFFSET entries, the timestamp (ms) in TIME entries, and the offset of the abort marker
        in TRANSACTION entries.
        """

    @abstractmethod
    def after(self, target: int) -> Entry | None:
        """Return the first entry whose key is at or above ``target``; None if there is none.

        In TIME and TRANSACTION entries, the key is the key that ``floor`` uses. In OFFSET entries, the key is the
        position (bytes), because a fetch searches for the end of a byte range.
        """

    @abstractmethod
    def check(self, end_offset: int, size_bytes: int) -> None:
        """Check that the entries are possible in a segment with this exclusive end offset and size (bytes).

        Keys must ascend, and no key may occur twice. Offsets must be in [base_offset, end_offset), and positions must
        be below ``size_bytes``. In TRANSACTION entries, the offset of the abort marker must be in this range, but the
        first offset of the transaction may be below ``base_offset``.

        Raises:
            CorruptIndexError: an entry contradicts the segment, or the buffer ends inside an entry. The error has the
                position of the entry, and no file; the caller adds the file.
        """

    def __iter__(self) -> Iterator[Entry]:
        return (self[index] for index in range(len(self)))


class IndexFormat(ABC, Generic[Entry]):
    """One kind of index. Thread-safe.

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
        """Return a builder for the index of a segment; ``config`` holds the settings of the topic.

        ``entries`` are the entries that an earlier builder wrote for the segment; empty for a new index. A segment
        without batches has no entries.

        If the segment has batches, the first batch that a TIME builder gets may have no bytes (size 0). Such a batch
        has the largest timestamp of the earlier batches, and an offset in a batch with this timestamp.
        """

    @abstractmethod
    def reader(self, entries: Buffer, base_offset: int) -> IndexReader[Entry]:
        """Return a reader of ``entries`` that does not copy them.

        The reader ignores bytes after the last whole entry; only ``IndexReader.check`` raises an error for them.
        """

    def around(self, entries: Buffer, base_offset: int, target: int) -> tuple[Entry | None, Entry | None, Entry | None]:
        """Return ``reader(entries, base_offset).floor(target)`` and the two entries after it.

        From these entries, the core computes how many bytes to read to find the target. An entry is None if it does not
        exist. If ``floor`` returns None, the two entries after it are the first two of the index. A format may return
        None for the second and the third entry even if they exist, as the default implementation does.
        """
        return self.reader(entries, base_offset).floor(target), None, None

    @abstractmethod
    def kept_bytes(self, entries: Buffer, base_offset: int, end_offset: int) -> int:
        """Return the number of bytes of ``entries`` that remain if the log is truncated to ``end_offset``.

        The entries with an offset below ``end_offset`` remain. In TRANSACTION entries, this is the offset of the abort
        marker.
        """
