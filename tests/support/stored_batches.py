"""Batches in the form that appenders and index builders take, and the batches and records in stored bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stratalog.model.batches import BatchTable, Buffer, RecordBatch, ScanStop
from stratalog.model.prepared import PreparedBatches
from stratalog.model.records import Record
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components, FormatTable
from stratalog.segment.framing import scan
from stratalog.spi.indexes import IndexBuilder

LIMIT_BYTES: Final = 64 << 20


def stored_batch(position: int, size_bytes: int, base_offset: int, last_offset: int, stamp: int) -> PreparedBatches:
    """Return one batch at a position (in bytes) of a ``.log`` file."""
    row = (position, size_bytes, base_offset, last_offset, stamp, stamp, -1, -1, -1, -1, 1, 0, 0)
    return PreparedBatches(BatchTable.from_rows(2, [row], ScanStop.END, position + size_bytes))


def prepared(formats: FormatTable, data: Buffer) -> PreparedBatches:
    """Return the batches of ``data``. All must have one magic, and their final offsets."""
    (table,) = scan(formats, data, 0, len(data), check_crc=True).tables
    return PreparedBatches(table, bytearray(data))


def batches_in(data: Buffer, components: Components) -> Iterator[tuple[RecordBatch, list[Record]]]:
    """Yield every batch in ``data`` with its records. ``data`` must contain whole batches only; CRCs are checked."""
    scan_result = scan(components.formats, data, 0, len(data), check_crc=True)
    assert (scan_result.stop, scan_result.stop_position, scan_result.reason) == (ScanStop.END, len(data), "")
    for table in scan_result.tables:
        record_format = components.formats.of(table.magic, "", 0)
        for index in range(len(table)):
            columns = record_format.decode(data, table.take(index, index + 1), limit_bytes=LIMIT_BYTES)
            yield table[index], [record for part in columns for record in part.to_records()]


def records_in(data: Buffer, components: Components) -> list[Record]:
    """Return the records of all batches in ``data``, which ``batches_in`` reads."""
    return [record for _, records in batches_in(data, components) for record in records]


def added(builder: IndexBuilder, batch: PreparedBatches, aborted: AbortedTransaction | None = None) -> bytes:
    """Add a batch to a builder, and return the new index entries.

    ``aborted`` is the transaction that the batch aborts, if any.
    """
    return builder.add(batch, 0, {} if aborted is None else {batch.last_offset: aborted})
