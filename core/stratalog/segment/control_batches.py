"""Control batches: decoding and encoding.

Source: apache/kafka ProducerAppendInfo.append, MemoryRecords.withEndTransactionMarker.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Final

from stratalog.errors import StorageError
from stratalog.model.batches import CONTROL_BIT, NO_EPOCH, NO_PRODUCER, BatchTable, Buffer, RecordBatch, ScanStop
from stratalog.model.messages.control import ControlRecord, EndMarker, control_key, control_value, parse_control
from stratalog.model.records import Fields, Record
from stratalog.segment.components import Components
from stratalog.spi.formats import BatchHeader, RecordFormat

CONTROL_MAGIC: Final = 2  # magic of every control batch: older formats have no such flag


def drop_markers(table: BatchTable) -> BatchTable:
    """Return the batches of a table without its control batches. Below magic 2, the control bit has no meaning."""
    if table.magic < CONTROL_MAGIC or not any(map(CONTROL_BIT.__and__, table.attributes)):
        return table
    return table.keep([not attributes & CONTROL_BIT for attributes in table.attributes])


def read_control(data: Buffer, batch: RecordBatch, components: Components) -> ControlRecord | None:
    """Return the first record of a control batch in ``data``. As in Kafka, later records are ignored.

    The result is None for a data batch, an empty batch, an unknown magic or type, and a record that cannot be parsed.
    Kafka also ignores such batches when it replays a log.
    """
    record_format = components.formats.get(batch.magic)
    if not batch.is_control or batch.record_count <= 0 or record_format is None:
        return None
    row = BatchTable.from_rows(batch.magic, [astuple(batch)[1:]], ScanStop.END, batch.position + batch.size_bytes)
    fields = Fields.KEY | Fields.VALUE
    try:
        columns = next(
            record_format.decode(data, row, fields=fields, limit_bytes=components.limits.decompressed_bytes), None
        )
        if columns is None or not columns.count:
            return None
        first = columns.take(0, 1)
        return parse_control(first.keys()[0], first.values()[0])
    except StorageError:
        return None


def control_batch(
    form: RecordFormat,
    record: ControlRecord,
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
) -> bytearray:
    """Encode a control batch with one record: uncompressed, no sequence number, transactional if it ends a transaction.

    Args:
        form: a format of magic 2.
        record: content of the record.
        timestamp_ms: timestamp of the record (ms since 1970).
        base_offset: offset of the record.
        leader_epoch: leader epoch of the log; only needed in the log of a KRaft quorum.
        producer_id: id of the producer whose transaction ends.
        producer_epoch: epoch of that producer.
    """
    header = BatchHeader(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=isinstance(record, EndMarker),
        control=True,
    )
    content = Record(timestamp_ms=timestamp_ms, key=control_key(record.kind), value=control_value(record))
    return form.encode([content], header, None, None)
