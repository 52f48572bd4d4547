"""Batches of records as a table: one row per batch, one column per header field."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum
from operator import le, lt
from typing import ClassVar, Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40
NO_TIMESTAMP: Final = -1
NO_EPOCH: Final = -1
NO_PRODUCER: Final = -1


class TimestampType(IntEnum):
    """The origin of a record's timestamp. Kafka defines the numbers, and batches contain them: never change them."""

    NONE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

    def __str__(self) -> str:
        return _TIMESTAMP_TYPE_NAMES[self]


_TIMESTAMP_TYPE_NAMES: Final = {
    TimestampType.NONE: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


class ScanStop(StrEnum):
    """The reason why a scan of batches ended. An entry is a batch, or a message of magic 0 or 1."""

    END = "end of the range"
    PARTIAL = "the range ends inside an entry"
    OTHER_MAGIC = "an entry of another magic"
    CORRUPT = "an entry is corrupt"


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """The header of one batch, as one row of a BatchTable.

    ``position`` is the position (bytes) of the batch in the scanned buffer or file. In magic 0 and 1, a batch is one
    message: ``base_offset`` equals ``last_offset``, and epochs, producer fields and sequence are -1. If the message is
    compressed, ``record_count`` is -1, because only the decompressed contents have the count.
    """

    magic: int
    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    attributes: int
    crc: int

    @property
    def next_offset(self) -> int:
        """The first offset after the batch."""
        return self.last_offset + 1

    @property
    def codec_id(self) -> int:
        """Id of the compression codec, bits 0 to 2 of the attributes; 0 means no compression."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        """The origin of the timestamps; NONE for magic 0, which has no timestamps."""
        if self.magic == 0:
            return TimestampType.NONE
        return TimestampType(1 if self.attributes & TIMESTAMP_TYPE_BIT else 0)

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction."""
        return self.magic == 2 and bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """True if the batch contains control records, such as the end marker of a transaction."""
        return self.magic == 2 and bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time (ms) from which compaction may drop tombstones and markers of this batch; None if no time is set."""
        if self.magic == 2 and self.attributes & DELETE_HORIZON_BIT:
            return self.base_timestamp_ms
        return None


BATCH_COLUMNS: Final = tuple(field.name for field in fields(RecordBatch))[1:]
"""Names of the columns of a BatchTable: the fields of a RecordBatch except ``magic``, which is equal in all rows."""


class BatchTable:
    """The batches of one magic that a scan found, as columns of int64, and the reason and position of the scan's end.

    Each name in ``BATCH_COLUMNS`` is an attribute of the table: a ``memoryview`` of format ``q``.

    Args:
        magic: magic of every batch in the table.
        columns: one ``memoryview`` of format ``q`` for each of ``BATCH_COLUMNS``, in that order, all of the same
            length.
        stop: reason for the end of the scan.
        stop_position: position (bytes) at which the scan stopped: the end of the last whole batch.
        reason: description of the damage at ``stop_position`` if ``stop`` is CORRUPT, otherwise "".
        ascends: value of the property ``ascends``, if it is already known.
    """

    column_names: ClassVar[tuple[str, ...]] = BATCH_COLUMNS
    __slots__ = (*BATCH_COLUMNS, "_ascends", "columns", "magic", "reason", "stop", "stop_position")

    def __init__(
        self,
        magic: int,
        columns: Sequence[memoryview],
        stop: ScanStop,
        stop_position: int,
        reason: str = "",
        *,
        ascends: bool | None = None,
    ) -> None:
        self.magic, self.stop, self.stop_position, self.reason = magic, stop, stop_position, reason
        self._ascends = ascends
        self.columns = tuple(columns)
        (
            self.position,
            self.size_bytes,
            self.base_offset,
            self.last_offset,
            self.base_timestamp_ms,
            self.max_timestamp_ms,
            self.leader_epoch,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
            self.attributes,
            self.crc,
        ) = self.columns

    @classmethod
    def from_rows(
        cls, magic: int, rows: Iterable[tuple[int, ...]], stop: ScanStop, stop_position: int, reason: str = ""
    ) -> BatchTable:
        """Return a table of ``rows``: one tuple for each batch, with the fields in the order of ``BATCH_COLUMNS``."""
        all_rows = list(rows)
        columns = zip(*all_rows, strict=True) if all_rows else ((),) * len(BATCH_COLUMNS)
        return cls(magic, [memoryview(array("q", column)) for column in columns], stop, stop_position, reason)

    @property
    def ascends(self) -> bool:
        """True if the offsets ascend: ``base_offset <= last_offset``, and both are below the next ``base_offset``."""
        if self._ascends is not None:
            return self._ascends
        firsts, lasts = self.base_offset, self.last_offset
        return all(map(le, firsts, lasts)) and all(map(lt, lasts, firsts[1:]))

    def __len__(self) -> int:
        return len(self.position)

    def __getitem__(self, index: int) -> RecordBatch:
        return RecordBatch(self.magic, *(column[index] for column in self.columns))

    def __iter__(self) -> Iterator[RecordBatch]:
        for row in zip(*self.columns, strict=True):
            yield RecordBatch(self.magic, *row)

    def take(self, start: int, end: int) -> BatchTable:
        """Return a table of the rows [start, end), with shared memory. ``stop`` and ``stop_position`` do not change."""
        rows = slice(start, end)
        columns = [column[rows] for column in self.columns]
        ascends = self._ascends or None  # a part may ascend even if the whole table does not
        return BatchTable(self.magic, columns, self.stop, self.stop_position, self.reason, ascends=ascends)

    def keep(self, wanted: Sequence[bool]) -> BatchTable:
        """Return a table of the rows whose entry in ``wanted`` is true. ``wanted`` has one entry for each row."""
        rows = [row for row, is_wanted in zip(zip(*self.columns, strict=True), wanted, strict=True) if is_wanted]
        return BatchTable.from_rows(self.magic, rows, self.stop, self.stop_position, self.reason)
