"""Removal of records from uncompressed batches of magic 2, in pure Python.

Source: apache/kafka MemoryRecords.filterTo, DefaultRecordBatch.writeEmptyHeader.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from stratalog import TimestampType
from stratalog.errors import InvalidRecordError
from stratalog.spi import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchTable,
    Buffer,
    Fields,
    RecordBatch,
    Verdict,
)
from stratalog_formats.kernels.decode import decode_batches
from stratalog_formats.kernels.layout import BATCH_HEADER_BYTES
from stratalog_formats.kernels.scan import seal_batch
from stratalog_formats.kernels.varint import read_varint, varint

_FLAGS: Final = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT


def retain_plain(
    data: Buffer,
    batches: BatchTable,
    verdicts: Sequence[Buffer],
    horizon_ms: int | None,
    retain_empty: Sequence[bool] | None,
) -> bytearray:
    """Return the kept parts of batches, concatenated. ``RecordFormat.retain`` documents the arguments and the errors.

    The caller must call ``check_lengths`` before.

    If a batch loses some of its records, or gets a delete horizon, it must be uncompressed. Other batches may be
    compressed, because their records are not read.
    """
    view, retained = memoryview(data), bytearray()
    for row, batch in enumerate(batches):
        if not 0 <= batch.position <= view.nbytes - batch.size_bytes or batch.size_bytes < BATCH_HEADER_BYTES:
            raise IndexError(
                f"a batch of {batch.size_bytes} bytes at {batch.position} is not inside {view.nbytes} bytes"
            )
        verdict, horizon = bytes(verdicts[row]), batch.delete_horizon_ms
        if len(verdict) != batch.record_count:
            raise wrong_count(len(verdict), batch.record_count, batch.position)
        is_due = horizon is None and horizon_ms is not None and Verdict.DROP_AT_HORIZON in verdict
        if verdict.count(Verdict.DROP) == len(verdict):
            if retain_empty is not None and retain_empty[row]:
                retained += _make_empty_batch(batch)
        elif Verdict.DROP in verdict or is_due:
            retained += _rewrite(view, batches.take(row, row + 1), verdict, horizon_ms if is_due else horizon)
        else:
            retained += view[batch.position : batch.position + batch.size_bytes]
    return retained


def check_lengths(batches: BatchTable, verdicts: Sequence[Buffer], retain_empty: Sequence[bool] | None) -> None:
    """Raise InvalidRecordError unless ``verdicts`` has one element for each batch.

    The same applies to ``retain_empty`` if it is not None.
    """
    lengths = [len(verdicts)] if retain_empty is None else [len(verdicts), len(retain_empty)]
    if any(count != len(batches) for count in lengths):
        raise InvalidRecordError(f"{len(batches)} batches have {lengths} lists of verdicts and choices")


def wrong_count(verdicts: int, records: int, position: int) -> InvalidRecordError:
    """Return the error for a batch at ``position`` that has another number of verdicts than of records."""
    return InvalidRecordError(f"{verdicts} verdicts for {records} records position={position}")


def _rewrite(data: memoryview, table: BatchTable, verdict: bytes, horizon_ms: int | None) -> bytearray:
    """Return the only batch of ``table`` without the dropped records. ``verdict`` must not drop all records."""
    batch = table[0]
    raw = bytes(data[batch.position + BATCH_HEADER_BYTES : batch.position + batch.size_bytes])
    times = decode_batches(raw, table, memoryview(array("q", (0, len(raw)))), Fields.TIMESTAMP).timestamp_ms
    kept_rows = [row for row, word in enumerate(verdict) if word != Verdict.DROP]
    base_ms = times[kept_rows[0]] if horizon_ms is None else horizon_ms
    spans = _spans(raw, len(verdict))
    is_append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    new_batch, attributes = bytearray(BATCH_HEADER_BYTES), batch.attributes & _FLAGS
    if base_ms == batch.base_timestamp_ms and not is_append_time:
        new_batch += b"".join(raw[slice(*spans[row])] for row in kept_rows)
    else:
        new_batch += b"".join(_set_delta(raw, *spans[row], times[row] - base_ms) for row in kept_rows)
    if horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
    largest = batch.max_timestamp_ms if is_append_time else max(times[row] for row in kept_rows)
    _seal(new_batch, batch, attributes, base_ms, largest, len(kept_rows))
    return new_batch


def _spans(raw: bytes, count: int) -> list[tuple[int, int]]:
    """Return start and end of each record, including its length field. ``raw`` must be valid: decode it before."""
    spans, position = [], 0
    for _ in range(count):
        length, body = read_varint(raw, position)
        spans.append((position, body + length))
        position = body + length
    return spans


def _set_delta(raw: bytes, start: int, end: int, delta_ms: int) -> bytes:
    """Return the record in [start, end) with the timestamp delta ``delta_ms``. As in Kafka, its attributes become 0."""
    _, body = read_varint(raw, start)
    _, after_delta = read_varint(raw, body + 1, 64)
    content = b"\0" + varint(delta_ms) + raw[after_delta:end]
    return varint(len(content)) + content


def _make_empty_batch(batch: RecordBatch) -> bytearray:
    """Return ``batch`` without records, but with its offsets, producer, sequence number and flags."""
    empty_batch = bytearray(BATCH_HEADER_BYTES)
    _seal(empty_batch, batch, batch.attributes & _FLAGS, NO_TIMESTAMP, batch.max_timestamp_ms, 0)
    return empty_batch


def _seal(buffer: bytearray, batch: RecordBatch, attributes: int, base_ms: int, max_ms: int, count: int) -> None:
    seal_batch(
        buffer,
        batch.base_offset,
        batch.leader_epoch,
        attributes,
        batch.last_offset - batch.base_offset,
        base_ms,
        max_ms,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        count,
    )
