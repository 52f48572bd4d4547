"""Record batches, magic 2.

Source: apache/kafka DefaultRecordBatch, DefaultRecord.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from stratalog import Record, RecordColumns, TimestampType
from stratalog.errors import CorruptBatchError, UnsupportedCompressionError
from stratalog.spi import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    ArrowBuffers,
    BatchHeader,
    BatchTable,
    Buffer,
    Codec,
    CodecTable,
    Fields,
    PreparedBatches,
    RecordBatch,
    RecordFormat,
    Verdict,
    arrow_batches,
)
from stratalog_formats.kernels.dispatch import KERNELS, Kernels
from stratalog_formats.kernels.encode import Body
from stratalog_formats.kernels.layout import BATCH_HEADER, BATCH_HEADER_BYTES, MAX_ARENA_BYTES
from stratalog_formats.kernels.retain import check_lengths, wrong_count

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - used only as a type

_Arena: TypeAlias = tuple[Buffer, BatchTable, memoryview | None]
"""An arena for the kernels: bytes, the batches whose records are in these bytes, and the bounds of the records.

The bounds are start and end of each batch's records, alternating. They are None if the records of each batch follow its
header.
"""

_BATCH_COLUMNS: Final = frozenset({"partition", "offset", "timestamp_type", "leader_epoch"})
_JOINED_BYTES: Final = 1 << 18  # limit for decompressed batches that share an arena; a larger batch has its own arena


class BatchFormat(RecordFormat):
    """Record format of batches with one header and one CRC-32C. The records of a batch may be one compressed stream."""

    magic: ClassVar[int] = 2

    def __init__(self, codecs: CodecTable, kernels: Kernels = KERNELS) -> None:
        self._codecs, self._kernels = codecs, kernels
        for name in ("prepare_records", "prepare_batches", "assign", "select"):
            kernel = getattr(kernels, name)
            if kernel is not None:
                setattr(self, name, kernel)  # replaces the method, which saves three calls per append and one per fetch

    # --- reading -----------------------------------------------------------------------------------------------------

    def scan(self, data: Buffer, start: int, end: int, *, check_crc: bool) -> BatchTable:
        """Return the batches in [start, end) before the first bytes that are not a valid, complete batch."""
        return self._kernels.scan_batches(data, start, end, check_crc)

    def decode(
        self, data: Buffer, batches: BatchTable, *, fields: Fields = Fields.ALL, limit_bytes: int
    ) -> Iterator[RecordColumns]:
        """Yield the records as columns. Each result has an arena: the bytes to which positions in its columns refer.

        The arena of consecutive uncompressed batches is ``data`` or a view of ``data``. The decompressed records of
        small consecutive batches share an arena.
        """
        for arena, run, bounds in self._arenas(data, batches, limit_bytes):
            yield self._kernels.decode_batches(arena, run, bounds, fields)

    def decode_arrow(
        self,
        data: Buffer,
        batches: BatchTable,
        *,
        partition: int,
        limit_bytes: int,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the records as Arrow batches.

        If the batch headers determine the values of all requested columns, the records are neither read nor
        decompressed. Damaged records then cause no error.
        """
        kernels = self._kernels
        if kernels.pack_batches is None or kernels.expand_batches is None:
            yield from super().decode_arrow(
                data, batches, partition=partition, limit_bytes=limit_bytes, columns=columns
            )
            return
        allocate, fields = ArrowBuffers.allocator(), ArrowBuffers.needed_fields(columns)
        if columns is not None and _BATCH_COLUMNS.issuperset(columns):
            buffers = kernels.expand_batches(batches, partition, allocate)
            if buffers is not None:
                yield buffers.batch(columns)
                return
        for arena, run, bounds in self._arenas(data, batches, limit_bytes):
            buffers = kernels.pack_batches(arena, run, bounds, partition, allocate, fields)
            if buffers is None:
                chunk = kernels.decode_batches(arena, run, bounds, fields)
                yield from arrow_batches(chunk, partition, columns)
            else:
                yield buffers.batch(columns)

    def _arenas(self, data: Buffer, batches: BatchTable, limit_bytes: int) -> Iterable[_Arena]:
        """Return the arenas that contain the uncompressed records of the batches, in the order of the batches."""
        if not len(batches):
            return ()
        attributes = batches.attributes
        is_small = memoryview(data).nbytes <= MAX_ARENA_BYTES
        if is_small and not (any(attributes) and any(map(CODEC_MASK.__and__, attributes))):
            return ((data, batches, None),)  # a fast path: most batches are uncompressed
        return self._split_arenas(data, batches, limit_bytes)

    def _split_arenas(self, data: Buffer, batches: BatchTable, limit_bytes: int) -> Iterator[_Arena]:
        for start, end in arena_runs(batches, joins_compressed=True):
            run = batches if end - start == len(batches) else batches.take(start, end)
            if run.attributes[0] & CODEC_MASK:
                yield from self._decompress_arenas(data, run, limit_bytes)
            else:
                yield self._uncompressed_arena(data, run)

    @staticmethod
    def _uncompressed_arena(data: Buffer, run: BatchTable) -> _Arena:
        end = run.position[-1] + run.size_bytes[-1]
        if end <= MAX_ARENA_BYTES:
            return (data if memoryview(data).nbytes <= MAX_ARENA_BYTES else memoryview(data)[:end]), run, None
        first = run.position[0]
        bounds = array("q")
        for position, size in zip(run.position, run.size_bytes, strict=True):
            bounds.extend((position - first + BATCH_HEADER_BYTES, position - first + size))
        return memoryview(data)[first:end], run, memoryview(bounds)

    def _decompress_arenas(self, data: Buffer, run: BatchTable, limit_bytes: int) -> Iterator[_Arena]:
        """Yield arenas of consecutive batches.

        An arena has at most ``_JOINED_BYTES`` after decompression, or one larger batch.
        """
        view = memoryview(data)
        pieces, bounds, first, total = list[memoryview](), array("q"), 0, 0
        for row in range(len(run)):
            piece = self._decompress_batch(view, run, row, limit_bytes)
            if pieces and total + len(piece) > _JOINED_BYTES:
                yield _join(pieces), run.take(first, row), memoryview(bounds)
                pieces, bounds, first, total = [], array("q"), row, 0
            pieces.append(piece)
            bounds.extend((total, total + len(piece)))
            total += len(piece)
        yield _join(pieces), run.take(first, len(run)), memoryview(bounds)

    def _decompress_batch(self, view: memoryview, run: BatchTable, row: int, limit_bytes: int) -> memoryview:
        if run.record_count[row] == 0:
            return memoryview(b"")  # a batch without records: bytes after the header are ignored
        start, end = run.position[row] + BATCH_HEADER_BYTES, run.position[row] + run.size_bytes[row]
        return decompress_records(self._codecs, run[row], view[start:end], limit_bytes)

    # --- writing -----------------------------------------------------------------------------------------------------

    def encode(
        self,
        records: Sequence[Record] | RecordColumns,
        header: BatchHeader,
        codec: Codec | None,
        level: int | None,
        *,
        keep_offsets: bool = False,
    ) -> bytearray:
        """Return one encoded batch.

        With ``keep_offsets``, gaps between the offsets of columns do not change. Otherwise, offsets ascend by one.
        """
        if isinstance(records, RecordColumns):
            return self._seal(self._kernels.encode_columns(records, keep_offsets), header, codec, level)
        return self._seal(self._kernels.encode_records(records), header, codec, level)

    def _seal(self, body: Body, header: BatchHeader, codec: Codec | None, level: int | None) -> bytearray:
        buffer, attributes = body.buffer, 0
        if codec is not None:
            compressed = codec.compress(memoryview(buffer)[BATCH_HEADER_BYTES:], level=level, magic=self.magic)
            buffer = bytearray(BATCH_HEADER_BYTES)
            buffer += compressed
            attributes |= codec.id
        max_ms = body.max_timestamp_ms
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            attributes |= TIMESTAMP_TYPE_BIT
            max_ms = header.append_time_ms
        attributes |= TRANSACTIONAL_BIT if header.transactional else 0
        attributes |= CONTROL_BIT if header.control else 0
        self._kernels.seal_batch(
            buffer,
            header.base_offset,
            header.leader_epoch,
            attributes,
            body.last_offset_delta,
            body.base_timestamp_ms,
            max_ms,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            body.record_count,
        )
        return buffer

    def assign(self, batches: PreparedBatches, base_offset: int, leader_epoch: int, append_time_ms: int | None) -> None:
        """Set offsets, leader epoch, timestamp type and largest timestamp in place.

        The CRC is computed again only if the timestamp type or the largest timestamp changes.
        """
        self._kernels.assign(batches, base_offset, leader_epoch, append_time_ms)

    def retain(
        self,
        data: Buffer,
        batches: BatchTable,
        verdicts: Sequence[Buffer],
        horizon_ms: int | None,
        *,
        retain_empty: Sequence[bool] | None = None,
        limit_bytes: int,
    ) -> Iterator[Buffer]:
        """Yield the bytes of the batches without the dropped records.

        Offsets, producer, sequence number and flags of a batch do not change. If a batch loses records or gets a delete
        horizon, its base timestamp, largest timestamp, record count and delete horizon are updated.
        """
        check_lengths(batches, verdicts, retain_empty)
        retained, start = self._kernels.retain_plain, 0
        for row in [*_rows_to_decompress(batches, verdicts, horizon_ms), len(batches)]:
            if start < row:
                rows = batches if row - start == len(batches) else batches.take(start, row)
                empty = None if retain_empty is None else retain_empty[start:row]
                yield retained(data, rows, verdicts[start:row], horizon_ms, empty)
            if row < len(batches):
                yield self._rewrite_compressed(data, batches.take(row, row + 1), verdicts[row], horizon_ms, limit_bytes)
            start = row + 1

    def _rewrite_compressed(
        self, data: Buffer, table: BatchTable, verdict: Buffer, horizon_ms: int | None, limit_bytes: int
    ) -> bytearray:
        """Return the only batch of ``table``, a compressed batch, without the dropped records.

        At least one record is kept.
        """
        batch = table[0]
        if len(verdict) != batch.record_count:  # retain_plain would report position 0
            raise wrong_count(len(verdict), batch.record_count, batch.position)
        batch_bytes = memoryview(data)[batch.position : batch.position + batch.size_bytes]
        records = decompress_records(self._codecs, batch, batch_bytes[BATCH_HEADER_BYTES:], limit_bytes)
        uncompressed = b"".join((batch_bytes[:BATCH_HEADER_BYTES], records))
        position, size_bytes = (memoryview(array("q", (number,))) for number in (0, len(uncompressed)))
        row = BatchTable(self.magic, [position, size_bytes, *table.columns[2:]], table.stop, len(uncompressed))
        try:
            retained = self._kernels.retain_plain(uncompressed, row, [verdict], horizon_ms, None)
        except CorruptBatchError as error:
            raise CorruptBatchError(error.reason, "", batch.position) from error
        codec, new_batch = self._codecs.by_id(batch.codec_id), retained[:BATCH_HEADER_BYTES]
        new_batch += codec.compress(memoryview(retained)[BATCH_HEADER_BYTES:], level=None, magic=self.magic)
        base_offset, _, leader_epoch, _, _, attributes, *later_fields = BATCH_HEADER.unpack_from(retained)
        self._kernels.seal_batch(new_batch, base_offset, leader_epoch, attributes | codec.id, *later_fields)
        return new_batch


def _rows_to_decompress(batches: BatchTable, verdicts: Sequence[Buffer], horizon_ms: int | None) -> Iterator[int]:
    """Yield the rows of compressed batches that keep some records, and that lose records or get a delete horizon."""
    if not any(map(CODEC_MASK.__and__, batches.attributes)):
        return  # a fast path: most batches are uncompressed
    for row, attributes in enumerate(batches.attributes):
        if attributes & CODEC_MASK:
            verdict = bytes(verdicts[row])
            dropped = verdict.count(Verdict.DROP)
            has_horizon = horizon_ms is None or attributes & DELETE_HORIZON_BIT
            if dropped < len(verdict) and (dropped or (Verdict.DROP_AT_HORIZON in verdict and not has_horizon)):
                yield row


def arena_runs(batches: BatchTable, *, joins_compressed: bool) -> Iterator[tuple[int, int]]:
    """Yield ranges [start, end) of rows, one for each arena. The batches of a range have at most 2 GiB.

    All or none of these batches are compressed. If ``joins_compressed`` is False, a compressed batch is alone.
    """
    position, size = batches.position, batches.size_bytes
    codec_ids = list(map(CODEC_MASK.__and__, batches.attributes))
    start = 0
    for row in range(1, len(batches)):
        first, other = codec_ids[start], codec_ids[row]
        is_other_arena = (not first) != (not other) if joins_compressed else first or other
        if is_other_arena or position[row] + size[row] - position[start] > MAX_ARENA_BYTES:
            yield start, row
            start = row
    if len(batches):
        yield start, len(batches)


def _join(pieces: list[memoryview]) -> Buffer:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decompress_records(codecs: CodecTable, batch: RecordBatch, compressed: memoryview, limit_bytes: int) -> memoryview:
    """Return the decompressed records of ``batch``. ``compressed`` contains the compressed records.

    Raises:
        CorruptBatchError: the codec refuses the bytes. The error contains the position of the batch.
        DecompressedSizeError: the records exceed ``limit_bytes``. The error contains no position.
        UnsupportedCompressionError: no codec has the batch's codec id. The error contains the position of the batch.
    """
    try:
        codec = codecs.by_id(batch.attributes & CODEC_MASK)
    except UnsupportedCompressionError as error:
        raise UnsupportedCompressionError(error.reason, "", batch.position) from error
    try:
        return codec.decompress(compressed, limit_bytes=limit_bytes, magic=batch.magic)
    except CorruptBatchError as error:
        raise CorruptBatchError(error.reason, "", batch.position) from error
