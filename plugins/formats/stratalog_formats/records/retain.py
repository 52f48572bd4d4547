"""Removal of records from batches.

Source: apache/kafka MemoryRecords.filterTo, DefaultRecordBatch.writeEmptyHeader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, repeat
from typing import Final, TypeAlias

from stratalog import TimestampType
from stratalog.errors import CorruptBatchError, InvalidRecordError
from stratalog.spi import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchTable,
    Buffer,
    Codec,
    CodecTable,
    Fields,
    RecordBatch,
    RecordFormat,
    Verdict,
)
from stratalog_formats.kernels.layout import BATCH_HEADER_BYTES
from stratalog_formats.kernels.scan import seal_batch
from stratalog_formats.kernels.varint import read_varint, varint

_FLAGS: Final = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
_GONE: Final = b""

PlainRetainer: TypeAlias = Callable[
    [Buffer, BatchTable, Sequence[Buffer], int | None, Sequence[bool] | None], bytearray
]
"""Function that returns the kept parts of uncompressed batches, concatenated.

Its arguments are those of ``RecordFormat.retain``: data, batches, verdicts, delete horizon, and flags of the batches to
keep when they are empty.
"""

Rewrite: TypeAlias = Callable[[RecordBatch, bytes, bool], Buffer | None]
"""Function of a batch, the verdict on each record, and a flag to keep the batch when it is empty.

The result is the kept part of the batch; empty if the batch is left out, None if the batch is unchanged.
"""


def kept_pieces(
    data: Buffer,
    batches: BatchTable,
    verdicts: Sequence[Buffer],
    retain_empty: Sequence[bool] | None,
    rewrite: Rewrite,
) -> Iterator[Buffer]:
    """Yield the kept parts of all batches, in order. Consecutive unchanged batches are yielded as one view of ``data``.

    Raises:
        InvalidRecordError: as ``check_lengths``. The errors of ``rewrite`` are raised, too.
    """
    check_lengths(batches, verdicts, retain_empty)
    view, start, end = memoryview(data), 0, 0
    for batch, verdict, empty in zip(batches, verdicts, retain_empty or repeat(False)):  # noqa: B905 - repeat never ends
        piece = rewrite(batch, bytes(verdict), empty)
        if piece is None and batch.position == end:
            end += batch.size_bytes
            continue
        if start < end:
            yield view[start:end]
        start = end = batch.position
        if piece is None:
            end += batch.size_bytes
        elif len(piece):
            yield piece
    if start < end:
        yield view[start:end]


def check_lengths(batches: BatchTable, verdicts: Sequence[Buffer], retain_empty: Sequence[bool] | None) -> None:
    """Raise InvalidRecordError unless ``verdicts`` and, if given, ``retain_empty`` have one element for each batch."""
    chosen = [len(verdicts)] if retain_empty is None else [len(verdicts), len(retain_empty)]
    if any(count != len(batches) for count in chosen):
        raise InvalidRecordError(f"{len(batches)} batches have {chosen} lists of verdicts and choices")


def retain_batches(
    form: RecordFormat,
    codecs: CodecTable,
    retain_plain: PlainRetainer | None,
    data: Buffer,
    batches: BatchTable,
    verdicts: Sequence[Buffer],
    horizon_ms: int | None,
    retain_empty: Sequence[bool] | None,
    limit_bytes: int,
) -> Iterator[Buffer]:
    """Yield the bytes of batches of magic 2 without the dropped records, as ``RecordFormat.retain`` documents.

    ``form`` decodes the batches. ``retain_plain`` is the compiled function for uncompressed batches, or None.
    """

    def rewrite(batch: RecordBatch, verdict: bytes, empty: bool) -> Buffer | None:  # noqa: FBT001 - called by position
        if len(verdict) != batch.record_count:
            raise wrong_count(len(verdict), batch.record_count, batch.position)
        horizon = batch.delete_horizon_ms
        is_due = horizon is None and horizon_ms is not None and Verdict.DROP_AT_HORIZON in verdict
        if is_due:
            horizon = horizon_ms
        if verdict.count(Verdict.DROP) == len(verdict):
            return _header_alone(batch) if empty else _GONE
        if Verdict.DROP not in verdict and not is_due:
            return None
        piece = memoryview(data)[batch.position : batch.position + batch.size_bytes]
        codec = codecs.by_id(batch.codec_id) if batch.codec_id else None
        try:
            return _rewritten(form, codec, piece, verdict, horizon, limit_bytes)
        except CorruptBatchError as error:
            raise CorruptBatchError(error.reason, "", batch.position) from error

    check_lengths(batches, verdicts, retain_empty)
    for start, end, is_packed in _runs(batches):
        run, words = batches if end - start == len(batches) else batches.take(start, end), verdicts[start:end]
        empty = None if retain_empty is None else retain_empty[start:end]
        if is_packed or retain_plain is None:
            yield from kept_pieces(data, run, words, empty, rewrite)
        else:
            yield retain_plain(data, run, words, horizon_ms, empty)


def _runs(batches: BatchTable) -> Iterator[tuple[int, int, bool]]:
    """Yield start, end (exclusive) and a flag of each run of rows: True if all are compressed, False if none is."""
    row = 0
    if len(batches) and not any(map(CODEC_MASK.__and__, batches.attributes)):
        yield 0, len(batches), False  # a fast path: most batches are uncompressed
        return
    packed = [bool(attributes & CODEC_MASK) for attributes in batches.attributes]
    for is_packed, found in groupby(packed):
        start, row = row, row + sum(1 for _ in found)
        yield start, row, is_packed


def wrong_count(verdicts: int, records: int, position: int) -> InvalidRecordError:
    """Return the error for a batch at ``position`` whose numbers of verdicts and of records differ."""
    return InvalidRecordError(f"{verdicts} verdicts for {records} records position={position}")


def _rewritten(
    form: RecordFormat,
    codec: Codec | None,
    piece: memoryview,
    verdict: bytes,
    horizon_ms: int | None,
    limit_bytes: int,
) -> bytearray:
    """Return the batch in ``piece`` without the dropped records. ``verdict`` must not drop all records."""
    table = form.scan(piece, 0, len(piece), check_crc=False)
    batch = table[0]
    columns = next(form.decode(piece, table, fields=Fields.TIMESTAMP, limit_bytes=limit_bytes))
    raw = columns.arena if isinstance(columns.arena, bytes) else bytes(columns.arena)
    times = columns.timestamp_ms
    kept = [row for row, word in enumerate(verdict) if word != Verdict.DROP]
    base_ms = times[kept[0]] if horizon_ms is None else horizon_ms
    spans = _spans(raw, 0 if codec else BATCH_HEADER_BYTES, len(verdict))
    is_append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    if base_ms == batch.base_timestamp_ms and not is_append_time:
        parts = [raw[slice(*spans[row])] for row in kept]
    else:
        parts = [_shifted(raw, *spans[row], times[row] - base_ms) for row in kept]
    out, attributes = bytearray(BATCH_HEADER_BYTES), batch.attributes & _FLAGS
    if codec is None:
        out += b"".join(parts)
    else:
        out += codec.compress(b"".join(parts), level=None, magic=form.magic)
        attributes |= codec.id
    if horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
    largest = batch.max_timestamp_ms if is_append_time else max(times[row] for row in kept)
    _seal(out, batch, attributes, base_ms, largest, len(kept))
    return out


def _spans(raw: bytes, at: int, count: int) -> list[tuple[int, int]]:
    """Return start and end of each record, with its length field. ``raw`` must have been decoded, which checks it."""
    spans = []
    for _ in range(count):
        length, body = read_varint(raw, at)
        spans.append((at, body + length))
        at = body + length
    return spans


def _shifted(raw: bytes, start: int, end: int, delta_ms: int) -> bytes:
    """Return the record in [start, end) with the timestamp delta ``delta_ms``, and with attributes 0 as in Kafka."""
    _, body = read_varint(raw, start)
    _, rest = read_varint(raw, body + 1, 64)
    content = b"\0" + varint(delta_ms) + raw[rest:end]
    return varint(len(content)) + content


def _header_alone(batch: RecordBatch) -> bytearray:
    """Return ``batch`` without records, but with its offsets, producer, sequence number and flags."""
    out = bytearray(BATCH_HEADER_BYTES)
    _seal(out, batch, batch.attributes & _FLAGS, NO_TIMESTAMP, batch.max_timestamp_ms, 0)
    return out


def _seal(out: bytearray, batch: RecordBatch, attributes: int, base_ms: int, max_ms: int, count: int) -> None:
    seal_batch(
        out,
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
