"""Framing of batches of any magic: the 17 bytes that all formats share, and walks over whole batches.

A message of magic 0 or 1 counts as a batch. Error texts call a batch or a message an entry.

Source: apache/kafka LogInputStream, FileLogInputStream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from stratalog.errors import CorruptBatchError
from stratalog.model.batches import BatchTable, Buffer, RecordBatch, ScanStop
from stratalog.segment.components import Components, FormatTable
from stratalog.segment.readable import ReadableSegment

FRAME: Final = Struct(">qiib")  # offset, size, CRC or leader epoch, magic
FRAME_BYTES: Final = FRAME.size  # 17
OVERHEAD_BYTES: Final = 12  # offset and size; the size counts the bytes after it
MIN_SIZE: Final = 14  # size of the smallest V0 message
_FIRST_WITH_EPOCH: Final = 2  # the first magic with a leader epoch
_NEVER: Final = 1 << 62
MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1  # largest distance of an offset from its segment's base offset


class OffsetOverflowError(CorruptBatchError):
    """The batch at ``position`` is good, except that its offset is too far above the base offset of its segment.

    The distance is above 2^31 - 1. Either the offset is damaged, or Kafka before 2.0 wrote the segment.
    """


class MixedScan(NamedTuple):
    """Result of a scan: one table for each run of batches of equal magic.

    ``stop`` is the reason why the scan ended. ``stop_position`` is the position in the buffer (bytes) where it ended.
    ``reason`` describes the damage; "" if there is none.
    """

    tables: tuple[BatchTable, ...]
    stop: ScanStop
    stop_position: int
    reason: str


def scan(formats: FormatTable, data: Buffer, start: int, end: int, *, check_crc: bool) -> MixedScan:
    """Scan all whole batches of any magic in [start, end) of ``data``. Damaged bytes end the scan without an error.

    Raises the same errors as ``FormatTable.get``.
    """
    tables: list[BatchTable] = []
    position = start
    while True:
        if position == end:
            return MixedScan(tuple(tables), ScanStop.END, position, "")
        if end - position < FRAME_BYTES:
            return MixedScan(tuple(tables), ScanStop.PARTIAL, position, "the last entry is cut off")
        magic = FRAME.unpack_from(data, position)[3]
        record_format = formats.get(magic)
        if record_format is None:
            return MixedScan(tuple(tables), ScanStop.CORRUPT, position, f"unknown magic {magic}")
        table = record_format.scan(data, position, end, check_crc=check_crc)
        if len(table):
            tables.append(table)
        if table.stop is not ScanStop.OTHER_MAGIC:
            return MixedScan(tuple(tables), table.stop, table.stop_position, table.reason)
        if table.stop_position <= position:
            return MixedScan(tuple(tables), ScanStop.CORRUPT, position, f"the record format refuses magic {magic}")
        position = table.stop_position


class EpochSetter:
    """Converter that sets the leader epoch of all batches in a file. It receives the file in pieces.

    The CRCs stay valid, because no CRC covers the leader epoch. Batches of magic 0 and 1 have no epoch and stay
    unchanged. If the stored size of a batch is below 14 bytes, the batch and all bytes after it stay unchanged. No
    other damage is detected.

    Args:
        epoch: the new leader epoch.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch.to_bytes(4, "big", signed=True)
        self._ahead = 0  # bytes up to the next batch
        self._rest = bytearray()  # first bytes of the next batch's frame

    def feed(self, piece: Buffer) -> bytearray:
        """Return the converted bytes of the next piece. An incomplete header at its end is kept for the next call."""
        data = self._rest + piece
        position = self._ahead
        while position + FRAME_BYTES <= len(data):
            _, size, _, magic = FRAME.unpack_from(data, position)
            if size < MIN_SIZE:
                position = _NEVER
                break
            if magic >= _FIRST_WITH_EPOCH:
                data[position + OVERHEAD_BYTES : position + OVERHEAD_BYTES + len(self._epoch)] = self._epoch
            position += OVERHEAD_BYTES + size
        converted_bytes = min(position, len(data))
        self._rest, self._ahead = data[converted_bytes:], position - converted_bytes
        return data[:converted_bytes]

    def rest(self) -> bytearray:
        """Return the incomplete header that ``feed`` has kept. Call it after the last piece of the file."""
        return self._rest


class Chunk(NamedTuple):
    """Whole batches of one read. Table positions refer to ``data``; add ``position`` for positions in the file."""

    data: memoryview
    position: int
    tables: tuple[BatchTable, ...]

    def batches(self) -> Iterator[RecordBatch]:
        """Yield the header of each batch, with its position in ``data``."""
        for table in self.tables:
            yield from table

    @property
    def end_position(self) -> int:
        """File position after the last batch."""
        last = self.tables[-1]
        return self.position + last.position[-1] + last.size_bytes[-1]


def walk(
    segment: ReadableSegment,
    position: int,
    components: Components,
    *,
    check_crc: bool = True,
    read_bytes: int = 0,
    offset_limit: int | None = None,
    stop_position: int | None = None,
    read: Callable[[int, int], memoryview] | None = None,
    relative_to: int | None = None,
) -> Iterator[Chunk]:
    """Yield the batches of a segment from ``position`` (the start of a batch) to its end.

    Unlike in Kafka, offsets must ascend from batch to batch, because no CRC covers them.

    Args:
        segment: the segment, local or in a tier.
        position: start position (bytes).
        components: the log's components.
        check_crc: True to compare each batch with its CRC.
        read_bytes: size of a read; 0 means ``limits.read.bytes``. A batch that is larger needs a larger read.
        offset_limit: exclusive upper bound of the offsets; None for the active segment, whose end moves.
        stop_position: position (bytes) that no read crosses before all batches up to it are yielded. The caller can
            stop there.
        read: function of a position and a size that reads bytes; None means ``segment.read``.
        relative_to: offset that the offsets may exceed by at most 2^31 - 1; None means the segment's base offset.

    Raises:
        CorruptBatchError: a batch is damaged or truncated, or the file is shorter than the segment. All good batches
            before it were yielded.
        OffsetOverflowError: a batch is good, except that its offset exceeds ``relative_to`` by more than 2^31 - 1.
        The errors of ``ReadableSegment.read``.
    """
    end, last_offset = segment.size_bytes, segment.base_offset - 1
    effective_limit = (segment.base_offset if relative_to is None else relative_to) + MAX_RELATIVE_OFFSET + 1
    if offset_limit is not None:
        effective_limit = min(effective_limit, offset_limit)
    read = read or segment.read
    usual_bytes = next_bytes = max(read_bytes or components.limits.read_bytes, FRAME_BYTES)
    while position < end:
        read_end = (
            end
            if stop_position is None or next_bytes != usual_bytes or stop_position - position < FRAME_BYTES
            else stop_position
        )
        requested_bytes = min(next_bytes, read_end - position)
        data = read(position, requested_bytes)
        scanned = scan(components.formats, data, 0, len(data), check_crc=check_crc)
        tables, misplaced, bound = ascending(scanned.tables, last_offset, effective_limit)
        if tables:
            yield Chunk(data, position, tables)
            last_offset, next_bytes = tables[-1].last_offset[-1], usual_bytes
        if misplaced is not None:
            limit = offset_limit if bound == effective_limit else bound
            raise _misplaced_error(segment, misplaced, position + misplaced.position, (last_offset, bound, limit))
        if tables:
            position += tables[-1].position[-1] + tables[-1].size_bytes[-1]
        if scanned.stop is ScanStop.CORRUPT:
            raise CorruptBatchError(scanned.reason, segment.label, position)
        if len(data) < requested_bytes:
            reason = f"the file ends before the segment does, {end - position} more bytes were expected here"
            raise CorruptBatchError(reason, segment.label, position)
        if not tables:
            next_bytes = _entry_bytes(data, segment, position, components)
        del data  # `read` may reuse the memory, which is still in the processor's caches


def _misplaced_error(
    segment: ReadableSegment, batch: RecordBatch, position: int, bounds: tuple[int, int, int | None]
) -> CorruptBatchError:
    last_offset, bound, limit = bounds
    is_far = last_offset < batch.base_offset <= batch.last_offset and (limit is None or batch.last_offset < limit)
    kind = OffsetOverflowError if is_far else CorruptBatchError
    reason = f"offsets {batch.base_offset} to {batch.last_offset} are not between {last_offset} and {bound}"
    return kind(reason, segment.label, position)


def ascending(
    tables: tuple[BatchTable, ...], last_offset: int, offset_limit: int
) -> tuple[tuple[BatchTable, ...], RecordBatch | None, int]:
    """Return the batches before the first misplaced batch, this batch (or None), and the upper bound of its offsets.

    Offsets must be above ``last_offset``, above those of earlier batches, and below ``offset_limit``. If a batch begins
    at or below the end of the batch before it, the later batch is misplaced. The earlier batch is misplaced instead if
    the later batch begins exactly where a correct earlier batch would have ended.
    """
    for number, table in enumerate(tables):
        firsts, lasts = table.base_offset, table.last_offset
        if last_offset < firsts[0] and lasts[-1] < offset_limit and table.ascends:
            last_offset = lasts[-1]
            continue
        second_last_offset = last_offset  # end of the batch before the previous one
        for row, (first, last) in enumerate(zip(table.base_offset, table.last_offset, strict=True)):
            if not last_offset < first <= last < offset_limit:
                bound = offset_limit
                if row and first == second_last_offset + 2 + last_offset - firsts[row - 1] <= last_offset:
                    row, bound = row - 1, first  # noqa: PLW2901 - the loop ends here
                return (*tables[:number], *([table.take(0, row)] if row else [])), table[row], bound
            second_last_offset, last_offset = last_offset, last
    return tables, None, offset_limit


def _entry_bytes(data: memoryview, segment: ReadableSegment, position: int, components: Components) -> int:
    """Return the size of the batch that begins with ``data``; raise CorruptBatchError if the stored size is wrong."""
    remaining_bytes = segment.size_bytes - position
    if remaining_bytes < FRAME_BYTES or len(data) < FRAME_BYTES:
        raise CorruptBatchError(f"the last entry is cut off after {remaining_bytes} bytes", segment.label, position)
    entry_bytes: int = FRAME.unpack_from(data)[1] + OVERHEAD_BYTES
    if entry_bytes > remaining_bytes:
        raise CorruptBatchError(
            f"an entry of {entry_bytes} bytes is cut off after {remaining_bytes}", segment.label, position
        )
    if entry_bytes > components.limits.batch_bytes:
        raise CorruptBatchError(
            f"an entry of {entry_bytes} bytes is above limits.batch.bytes={components.limits.batch_bytes}",
            segment.label,
            position,
        )
    if entry_bytes <= len(data):
        raise CorruptBatchError(f"the record format refuses an entry of {entry_bytes} bytes", segment.label, position)
    return entry_bytes
