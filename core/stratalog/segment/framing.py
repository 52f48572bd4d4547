"""Walking entries of any magic: the 17 bytes that every format shares, and whole batches read in large pieces.

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
OVERHEAD_BYTES: Final = 12  # offset and size; the size counts what follows them
MIN_SIZE: Final = 14  # of the smallest V0 message
_FIRST_WITH_EPOCH: Final = 2  # the magic
_NEVER: Final = 1 << 62
MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1  # how far an offset may lie above its segment's base offset


class OffsetOverflowError(CorruptBatchError):
    """The batch at ``position`` is good, but lies further above its segment's base than 31 bits can say.

    That is damage to its offset, or a segment of Kafka before 2.0, whose cleaner and followers made such.
    """


class MixedScan(NamedTuple):
    """Tables of batches, one a run of equal magic, and why and where (bytes into the buffer) the scan stopped."""

    tables: tuple[BatchTable, ...]
    stop: ScanStop
    stop_position: int
    reason: str


def scan(formats: FormatTable, data: Buffer, start: int, end: int, *, check_crc: bool) -> MixedScan:
    """All whole batches in [start, end) of ``data``, whatever their magic. Never raises on bytes."""
    tables: list[BatchTable] = []
    position = start
    while True:
        if position == end:
            return MixedScan(tuple(tables), ScanStop.END, position, "")
        if end - position < FRAME_BYTES:
            return MixedScan(tuple(tables), ScanStop.PARTIAL, position, "the last entry is cut off")
        magic = FRAME.unpack_from(data, position)[3]
        found = formats.get(magic)
        if found is None:
            return MixedScan(tuple(tables), ScanStop.CORRUPT, position, f"unknown magic {magic}")
        table = found.scan(data, position, end, check_crc=check_crc)
        if len(table):
            tables.append(table)
        if table.stop is not ScanStop.OTHER_MAGIC:
            return MixedScan(tuple(tables), table.stop, table.stop_position, table.reason)
        if table.stop_position <= position:
            return MixedScan(tuple(tables), ScanStop.CORRUPT, position, f"magic {magic} is refused by its format")
        position = table.stop_position


class EpochSetter:
    """Gives all batches of a file that comes in pieces another leader epoch, which no CRC covers.

    What has none, magic 0 and 1, stays, and so does all that follows an entry that cannot be one.

    Args:
        epoch: the one that they get.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch.to_bytes(4, "big", signed=True)
        self._ahead = 0  # bytes to the next batch
        self._rest = bytearray()  # the beginning of its frame

    def feed(self, piece: Buffer) -> bytearray:
        """The next bytes, as far as they are decided; nothing but a part of a frame is kept for later."""
        data = self._rest + piece
        at = self._ahead
        while at + FRAME_BYTES <= len(data):
            _, size, _, magic = FRAME.unpack_from(data, at)
            if size < MIN_SIZE:
                at = _NEVER
                break
            if magic >= _FIRST_WITH_EPOCH:
                data[at + OVERHEAD_BYTES : at + OVERHEAD_BYTES + len(self._epoch)] = self._epoch
            at += OVERHEAD_BYTES + size
        decided = min(at, len(data))
        self._rest, self._ahead = data[decided:], at - decided
        return data[:decided]

    def rest(self) -> bytearray:
        """What is left at the end of the file."""
        return self._rest


class Chunk(NamedTuple):
    """Whole batches read in one piece. Table positions are into ``data``; add ``position`` for those of the file."""

    data: memoryview
    position: int
    tables: tuple[BatchTable, ...]

    def batches(self) -> Iterator[RecordBatch]:
        """The headers, with positions into ``data``."""
        for table in self.tables:
            yield from table

    @property
    def end_position(self) -> int:
        """The file position after the last batch."""
        last = self.tables[-1]
        return self.position + last.position[-1] + last.size_bytes[-1]


def walk(
    segment: ReadableSegment,
    position: int,
    parts: Components,
    *,
    check_crc: bool = True,
    read_bytes: int = 0,
    below: int | None = None,
    until: int | None = None,
    read: Callable[[int, int], memoryview] | None = None,
    relative_to: int | None = None,
) -> Iterator[Chunk]:
    """The batches of a segment from ``position`` (a batch's start) to its end.

    Beyond Kafka, offsets must ascend from batch to batch, since no CRC covers them. Each read either shows a whole batch, or
    asks for more bytes than the read before it, or raises: a walk over a file that ends too early ends there.

    Args:
        segment: local or in a tier.
        position: bytes.
        parts: the log's components.
        check_crc: compare each batch with its CRC.
        read_bytes: how much to read at a time, 0 is ``limits.read.bytes``; more only for a batch that is larger.
        below: the offset that no batch may reach; None for the active segment, whose end moves.
        until: a position that is not read past before all up to it has been yielded: who needs no more stops there.
        read: what reads, from a position so many bytes; None is ``segment.read``.
        relative_to: the offset from which on 31 bits must do; None is the segment's base.

    Raises:
        CorruptBatchError: an entry is bad or cut off, or the file is shorter than the segment; all good entries before that
            have been yielded.
        OffsetOverflowError: the same, where nothing but the distance from ``relative_to`` is wrong.
    """
    end, after = segment.size_bytes, segment.base_offset - 1
    beyond = (segment.base_offset if relative_to is None else relative_to) + MAX_RELATIVE_OFFSET + 1
    if below is not None:
        beyond = min(beyond, below)
    read = read or segment.read
    usual = want = max(read_bytes or parts.limits.read_bytes, FRAME_BYTES)
    while position < end:
        near = end if until is None or want != usual or until - position < FRAME_BYTES else until
        asked_bytes = min(want, near - position)
        data = read(position, asked_bytes)
        found = scan(parts.formats, data, 0, len(data), check_crc=check_crc)
        tables, stray, bound = ascending(found.tables, after, beyond)
        if tables:
            chunk = Chunk(data, position, tables)
            yield chunk
            after, want = tables[-1].last_offset[-1], usual
        if stray is not None:
            limit = below if bound == beyond else bound
            raise _out_of_place(segment, stray, position + stray.position, (after, bound, limit))
        if tables:
            position = chunk.end_position
        if found.stop is ScanStop.CORRUPT:
            raise CorruptBatchError(found.reason, segment.label, position)
        if len(data) < asked_bytes:
            missing = f"the file ends before the segment does, {end - position} more bytes were expected here"
            raise CorruptBatchError(missing, segment.label, position)
        if not tables:
            want = _entry_bytes(data, segment, position, parts)


def _out_of_place(
    segment: ReadableSegment, batch: RecordBatch, position: int, bounds: tuple[int, int, int | None]
) -> CorruptBatchError:
    after, beyond, below = bounds
    is_far = after < batch.base_offset <= batch.last_offset and (below is None or batch.last_offset < below)
    kind = OffsetOverflowError if is_far else CorruptBatchError
    reason = f"offsets {batch.base_offset} to {batch.last_offset} do not lie between {after} and {beyond}"
    return kind(reason, segment.label, position)


def ascending(
    tables: tuple[BatchTable, ...], after: int, beyond: int
) -> tuple[tuple[BatchTable, ...], RecordBatch | None, int]:
    """The batches before the first that is out of place, and that one, with the offset that it had to be below.

    Offsets must be above those before and below ``beyond``. Of two batches that contradict each other the second is out of
    place; but if it begins exactly where it would, had the first followed its own predecessor, then the first is.
    """
    for number, table in enumerate(tables):
        firsts, lasts = table.base_offset, table.last_offset
        if after < firsts[0] and lasts[-1] < beyond and table.ascends:
            after = lasts[-1]
            continue
        before = after  # where the batch before the last one ends
        for row, (first, last) in enumerate(zip(table.base_offset, table.last_offset, strict=True)):
            if not after < first <= last < beyond:
                bound = beyond
                if row and first == before + 2 + after - firsts[row - 1] <= after:
                    row, bound = row - 1, first  # noqa: PLW2901 - the loop ends here
                return (*tables[:number], *([table.take(0, row)] if row else [])), table[row], bound
            before, after = after, last
    return tables, None, beyond


def _entry_bytes(data: memoryview, segment: ReadableSegment, position: int, parts: Components) -> int:
    """The size of the entry at the start of ``data``, which did not fit; an error if the segment ends inside it."""
    left = segment.size_bytes - position
    if left < FRAME_BYTES or len(data) < FRAME_BYTES:
        raise CorruptBatchError(f"the last entry is cut off, {left} bytes are left", segment.label, position)
    needed: int = FRAME.unpack_from(data)[1] + OVERHEAD_BYTES
    if needed > left:
        raise CorruptBatchError(f"an entry of {needed} bytes is cut off, {left} are left", segment.label, position)
    if needed > parts.limits.batch_bytes:
        raise CorruptBatchError(
            f"an entry of {needed} bytes is above limits.batch.bytes={parts.limits.batch_bytes}",
            segment.label,
            position,
        )
    if needed <= len(data):
        raise CorruptBatchError(f"an entry of {needed} bytes is refused by its format", segment.label, position)
    return needed
