"""Batches that are ready to be written, in pure Python. ``prepared_c`` has the same class as compiled code."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.model.batches import BATCH_COLUMNS, CONTROL_BIT, NO_PRODUCER, BatchTable, ScanStop

_LAST_OFFSET: Final = BATCH_COLUMNS.index("last_offset")
_BASE_OFFSET: Final = BATCH_COLUMNS.index("base_offset")
_POSITION: Final = BATCH_COLUMNS.index("position")
_RECORD_COUNT: Final = BATCH_COLUMNS.index("record_count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of a topic for the batches that a leader writes. Compiled record formats check the rules themselves.

    Attributes:
        max_batch_bytes: ``max.message.bytes``.
        before_ms: maximum distance (ms) of a timestamp before the clock's time.
        after_ms: maximum distance (ms) of a timestamp after the clock's time.
        needs_keys: True if every record needs a key.
        keeps_times: True if records keep the producer's timestamps (CreateTime). If False, no timestamp breaks a rule.
        limit_bytes: size limit of a new batch before compression: keys, values and headers, plus ``overhead_bytes`` for
            each record. A single record may be larger.
        overhead_bytes: size added for each record.
    """

    max_batch_bytes: int
    before_ms: int
    after_ms: int
    needs_keys: bool
    keeps_times: bool
    limit_bytes: int
    overhead_bytes: int


class PreparedBatches:
    """One or more batches of one magic, which a log writes and indexes. Not thread-safe.

    A record format prepares the batches, ``RecordFormat.assign`` sets their offsets, and a log writes them.

    Args:
        table: result of a scan of the batches, with at least one row.
        data: the bytes of the batches, which ``assign`` may change; the first batch starts at the first byte. None if
            the batches are stored already, and are only indexed.

    Attributes:
        data: the bytes; empty for stored batches.
        span: number of offsets of the batches. A message of magic 0 or 1 has one offset for each of its records.
        last_offset: last offset of the last batch.
        largest_ms: the largest timestamp of the batches (ms since 1970).
        largest_offset: last offset of the first batch with the timestamp ``largest_ms``.
        has_producer: True if any batch has a producer id.
        is_control: True if the first batch is a control batch.

    Raises:
        ValueError: there are no batches.
    """

    __slots__ = (
        "batch_count",
        "data",
        "has_producer",
        "is_control",
        "largest_ms",
        "largest_offset",
        "last_offset",
        "magic",
        "size_bytes",
        "span",
        "table",
    )

    def __init__(self, table: BatchTable, data: bytearray | None = None) -> None:
        self.data = bytearray() if data is None else data
        self._use(table)

    def replace_table(self, table: BatchTable) -> None:
        """Set ``table`` to the result of a new scan, after the headers of batches in ``data`` were changed.

        The record counts of compressed messages are kept, because a scan does not find them.

        Raises:
            ValueError: the new scan has another number of batches.
        """
        old_counts = self.table.record_count
        if len(table) != len(old_counts):
            raise ValueError(f"{len(table)} batches cannot replace {len(old_counts)} batches")
        counts = [old if new < 0 else new for old, new in zip(old_counts, table.record_count, strict=True)]
        columns = list(table.columns)
        columns[_RECORD_COUNT] = memoryview(array("q", counts))
        self._use(BatchTable(table.magic, columns, table.stop, table.stop_position, table.reason))

    def _use(self, table: BatchTable) -> None:
        if not len(table):
            raise ValueError("there are no batches")
        self.table, self.magic, self.batch_count, self.size_bytes = table, table.magic, len(table), len(self.data)
        self.span = sum(_spans(table))
        self.last_offset = table.last_offset[-1]
        stamps = table.max_timestamp_ms.tolist()
        self.largest_ms = max(stamps)
        self.largest_offset = table.last_offset[stamps.index(self.largest_ms)]
        self.has_producer = max(table.producer_id) > NO_PRODUCER
        self.is_control = table.magic >= 2 and bool(table.attributes[0] & CONTROL_BIT)

    @staticmethod
    def joined(pieces: Sequence[PreparedBatches]) -> PreparedBatches:
        """Return one object with copies of the batches of all ``pieces``. A single piece is returned unchanged.

        In ``table`` of the result, the offsets start at 0. The offsets in ``data`` are not changed.

        Raises:
            ValueError: the pieces have different magics, or there are no pieces.
        """
        if len({piece.magic for piece in pieces}) != 1:
            raise ValueError("batches of one magic are needed")
        if len(pieces) == 1:
            return pieces[0]
        rows, position, offset = list[tuple[int, ...]](), 0, 0
        for piece in pieces:
            for row, span in zip(zip(*piece.table.columns, strict=True), _spans(piece.table), strict=True):
                fields = list(row)
                distance = row[_LAST_OFFSET] - row[_BASE_OFFSET]
                fields[_POSITION] += position
                fields[_BASE_OFFSET] = offset + span - 1 - distance
                fields[_LAST_OFFSET] = offset + span - 1
                rows.append(tuple(fields))
                offset += span
            position += piece.size_bytes
        data = bytearray().join([piece.data for piece in pieces])
        return PreparedBatches(BatchTable.from_rows(pieces[0].magic, rows, ScanStop.END, position), data)


def _spans(table: BatchTable) -> list[int]:
    """Return the number of offsets of each batch."""
    if table.magic < 2:
        return table.record_count.tolist()
    return [last - base + 1 for base, last in zip(table.base_offset, table.last_offset, strict=True)]
