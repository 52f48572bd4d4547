"""Batches in the form that appenders and index builders take."""

from __future__ import annotations

from stratalog.model.batches import BatchTable, Buffer, ScanStop
from stratalog.model.prepared import PreparedBatches
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import FormatTable
from stratalog.segment.framing import scan
from stratalog.spi.indexes import IndexBuilder


def stored_batch(position: int, size_bytes: int, base_offset: int, last_offset: int, stamp: int) -> PreparedBatches:
    """Return one batch at a position (in bytes) of a ``.log`` file."""
    row = (position, size_bytes, base_offset, last_offset, stamp, stamp, -1, -1, -1, -1, 1, 0, 0)
    return PreparedBatches(BatchTable.from_rows(2, [row], ScanStop.END, position + size_bytes))


def prepared(formats: FormatTable, data: Buffer) -> PreparedBatches:
    """Return the batches of ``data``. All must have one magic, and their final offsets."""
    (table,) = scan(formats, data, 0, len(data), check_crc=True).tables
    return PreparedBatches(table, bytearray(data))


def added(builder: IndexBuilder, batch: PreparedBatches, aborted: AbortedTransaction | None = None) -> bytes:
    """Add a batch to a builder, and return the new index entries.

    ``aborted`` is the transaction that the batch aborts, if any.
    """
    return builder.add(batch, 0, {} if aborted is None else {batch.last_offset: aborted})
