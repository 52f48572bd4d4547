"""Layout ``kafka_local_tiered``: the files that Kafka's own LocalTieredStorage stores in a folder. Read-only.

``{topic}-{partition}-{topic id}/{base offset}-{segment id}.{log,index,timeindex,txnindex,snapshot,leader_epoch_checkpoint}``

Kafka stores the metadata of a segment in the topic ``__remote_log_metadata``. stratalog computes the metadata from the
files: the end offset from the last batches of the log, and the largest timestamp from the time index. There are no
hashes.

Kafka before 2.0 wrote segments with offsets more than 2^31 - 1 above the base offset. stratalog splits such a segment
into several segments, which are ranges of one file. Only the first of these segments has indexes, because an index
cannot store larger offsets.

Source: apache/kafka storage tests LocalTieredStorage, RemoteLogSegmentFileset, RemoteTopicPartitionDirectory.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog import TopicId, TopicPartition
from stratalog.errors import ConfigError, CorruptObjectError
from stratalog.spi import (
    EpochEntry,
    FileKind,
    HashedLog,
    ObjectInfo,
    ObjectSink,
    ObjectSlice,
    RangeReader,
    Section,
    SegmentInfo,
    SegmentSource,
    StoredSegment,
    TierLayout,
)
from stratalog_formats.layouts.pieces import fetch_exactly, place_of

NAME: Final = "kafka_local_tiered"
VERSION: Final = 1
LABEL: Final = f"{NAME}@{VERSION}"
_SUFFIXES: Final = {
    "log": FileKind.LOG,
    "index": FileKind.OFFSET_INDEX,
    "timeindex": FileKind.TIME_INDEX,
    "txnindex": FileKind.TRANSACTION_INDEX,
    "snapshot": FileKind.SNAPSHOT,
    "leader_epoch_checkpoint": FileKind.LEADER_EPOCHS,
}
_KEY: Final = re.compile(
    r"(?:.*/)?(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d{1,10})-(?P<id>[A-Za-z0-9_-]{22})/"
    r"(?P<base>\d{20})-(?P<segment>[A-Za-z0-9_-]{22})\.(?P<suffix>[a-z_]+)\Z"
)
_FRAME: Final = struct.Struct(">qiib")  # offset, size, CRC or leader epoch, magic
_SIZE_AT_BYTES: Final = 12  # header bytes of a batch that its size field does not count
_DELTA: Final = struct.Struct(">i")  # difference of last and first offset of a V2 batch, stored at byte 23
_DELTA_AT: Final = 23
_TAIL_LIMIT_BYTES: Final = 64 << 20
_MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
_HEAD_BYTES: Final = _DELTA_AT + _DELTA.size
_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")


class KafkaLocalLayout(TierLayout):
    """Tier layout that reads the files of a segment that Kafka wrote, at most ``fetch_chunk_bytes`` at a time."""

    def __init__(self, fetch_chunk_bytes: int) -> None:
        self._fetch_chunk_bytes = fetch_chunk_bytes

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """Raise ConfigError: this layout is read-only."""
        del source, sink, section
        raise ConfigError(f"tier.layout={NAME} only reads segments that Kafka wrote: set tier.layout to another layout")

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        """Yield bytes [start, end) of the segment's part of the ``.log`` file. No hash is checked."""
        place = place_of(segment, FileKind.LOG)
        for first in range(start, end, self._fetch_chunk_bytes):
            yield memoryview(fetch_exactly(fetch, place, first, min(end, first + self._fetch_chunk_bytes)))

    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        """Return an index or another small file; None if the segment does not have it. No hash is checked."""
        place = segment.slices.get(kind)
        return None if place is None else fetch_exactly(fetch, place, 0, place.size_bytes)

    def discover(self, objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
        """Yield the segments whose ``.log`` files are among ``objects``.

        A segment needs about four ranged reads. It needs more if the offset index ends far before the end of the log.

        Raises:
            CorruptObjectError: a ``.log`` file does not end with a complete batch, the last entry of the offset index
                is wrong, or the leader epochs are malformed.
        """
        files_by_segment: dict[tuple[str, str, str, str, str], dict[FileKind, ObjectInfo]] = {}
        for info in objects:
            match = _KEY.match(info.key)
            if match and match["suffix"] in _SUFFIXES:
                key = (match["topic"], match["partition"], match["id"], match["base"], match["segment"])
                files_by_segment.setdefault(key, {})[_SUFFIXES[match["suffix"]]] = info
        heads = _Heads(fetch, self._fetch_chunk_bytes)
        base_offsets_by_log: dict[tuple[str, str, str], set[int]] = {}
        for *log_name, base, _ in files_by_segment:
            base_offsets_by_log.setdefault((log_name[0], log_name[1], log_name[2]), set()).add(int(base))
        for (topic, partition, topic_id, base, _), files in files_by_segment.items():
            if FileKind.LOG in files:
                log = TopicPartition(topic, int(partition))
                base_offsets = base_offsets_by_log[topic, partition, topic_id]
                yield from _describe(log, TopicId(topic_id), int(base), files, base_offsets, heads)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Position of a batch in its file, and its last offset."""

    position: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class _Heads:
    """Reader of the batch headers in a ``.log`` file. It fetches at most ``step_bytes`` bytes in one request."""

    fetch: RangeReader
    step_bytes: int

    def batches(self, place: ObjectSlice, position: int) -> Iterator[_Batch]:
        """Yield the batches from ``position`` on. Raise CorruptObjectError if the file does not end with a batch."""
        data, data_start = b"", position
        while position < place.size_bytes:
            if position + _HEAD_BYTES > data_start + len(data) < place.size_bytes:
                data_start = position
                data = fetch_exactly(self.fetch, place, data_start, min(data_start + self.step_bytes, place.size_bytes))
            index = position - data_start
            if len(data) - index < _FRAME.size:
                raise _cut_off(place, position)
            offset, size_bytes, _, magic = _FRAME.unpack_from(data, index)
            end = position + _SIZE_AT_BYTES + size_bytes
            if size_bytes <= 0 or end > place.size_bytes or (magic >= 2 and size_bytes < _HEAD_BYTES):
                raise _cut_off(place, position)
            yield _Batch(position, offset + (_DELTA.unpack_from(data, index + _DELTA_AT)[0] if magic >= 2 else 0))
            position = end


def _cut_off(place: ObjectSlice, position: int) -> CorruptObjectError:
    return CorruptObjectError("the log does not end with a whole batch", place.key, position)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a segment: offsets [base, end), stored in bytes [start, stop) of the file."""

    base: int
    end: int
    start: int
    stop: int


def _describe(
    log: TopicPartition,
    topic_id: TopicId,
    base: int,
    files: Mapping[FileKind, ObjectInfo],
    log_base_offsets: Collection[int],
    heads: _Heads,
) -> Iterator[StoredSegment]:
    slices = {kind: ObjectSlice(info.key, 0, info.size_bytes) for kind, info in files.items()}
    newest_ms = _last_entry(slices.get(FileKind.TIME_INDEX), _TIME_ENTRY, (-1, 0), heads.fetch)[0]
    pieces = _pieces(slices, base, log_base_offsets, heads)
    for piece in pieces:
        piece_slices = dict(slices)
        piece_slices[FileKind.LOG] = ObjectSlice(slices[FileKind.LOG].key, piece.start, piece.stop - piece.start)
        if piece is not pieces[0]:
            piece_slices.pop(FileKind.OFFSET_INDEX, None)
            piece_slices.pop(FileKind.TIME_INDEX, None)
        if piece is not pieces[-1]:
            piece_slices.pop(FileKind.SNAPSHOT, None)  # the snapshot is valid at the end of the last piece only
        info = SegmentInfo(
            log=log,
            topic_id=topic_id,
            base_offset=piece.base,
            end_offset=piece.end,
            size_bytes=piece.stop - piece.start,
            max_timestamp_ms=newest_ms,
            modified_ms=files[FileKind.LOG].modified_ms,
            leader_epochs=_epochs(slices.get(FileKind.LEADER_EPOCHS), piece.base, piece.end, heads.fetch),
        )
        yield StoredSegment(info, LABEL, piece_slices, HashedLog.UNKNOWN_SHA256)


def _last_entry(
    place: ObjectSlice | None, entry: struct.Struct, default: tuple[int, int], fetch: RangeReader
) -> tuple[int, int]:
    if place is None or place.size_bytes < entry.size:
        return default
    position = place.size_bytes - place.size_bytes % entry.size - entry.size
    first, second = entry.unpack(fetch_exactly(fetch, place, position, position + entry.size))
    return first, second


def _pieces(
    slices: Mapping[FileKind, ObjectSlice], base: int, log_base_offsets: Collection[int], heads: _Heads
) -> list[_Piece]:
    """Return the segment as one piece, or the pieces into which it must be split.

    Raise CorruptObjectError if the last entry of the offset index is wrong, or the log does not end with a whole batch.
    """
    # No CRC covers a base offset. Offsets more than 2^31 - 1 above the segment's base are therefore accepted only if
    # another batch follows in order, or if another segment begins at the end offset. Otherwise a read finds the damage.
    place = slices[FileKind.LOG]
    start = _last_entry(slices.get(FileKind.OFFSET_INDEX), _OFFSET_ENTRY, (0, 0), heads.fetch)[1]
    if not 0 <= start <= place.size_bytes:
        raise CorruptObjectError("the last entry of the offset index is not in the log", place.key, start)
    borders, last, in_order, count = [(base, 0)], base - 1, True, 0
    for batch in heads.batches(place, start):
        if batch.position - start > _TAIL_LIMIT_BYTES and len(borders) == 1:
            raise CorruptObjectError("the last entry of the offset index is not in the log", place.key, start)
        in_order = in_order and batch.last_offset > last
        if batch.last_offset - borders[-1][0] > _MAX_RELATIVE_OFFSET:
            borders.append((max(last + 1, batch.last_offset - _MAX_RELATIVE_OFFSET), batch.position))
            count = 0
        last, count = batch.last_offset, count + 1
    end = last + 1
    is_believed = in_order and (count > 1 or end in log_base_offsets)
    if len(borders) > 1 and not is_believed:
        borders = borders[:1]
    ends = [*borders[1:], (end, place.size_bytes)]
    return [
        _Piece(first_offset, end_offset, first_byte, stop)
        for (first_offset, first_byte), (end_offset, stop) in zip(borders, ends, strict=True)
    ]


def _epochs(place: ObjectSlice | None, base: int, end: int, fetch: RangeReader) -> tuple[EpochEntry, ...]:
    """Return the leader epochs of the offsets [base, end) from the leader epoch checkpoint; () without a checkpoint.

    Raise CorruptObjectError if the checkpoint is malformed.
    """
    if place is None:
        return ()
    try:
        lines = fetch_exactly(fetch, place, 0, place.size_bytes).decode("ascii").split()
        numbers = [int(word) for word in lines]
    except ValueError as error:
        raise CorruptObjectError("the leader epochs are malformed", place.key) from error
    if len(numbers) < 2 or numbers[0] or len(numbers) != 2 + 2 * numbers[1]:
        raise CorruptObjectError("the leader epochs are malformed", place.key)
    pairs = list(zip(numbers[2::2], numbers[3::2], strict=True))
    within = [EpochEntry(epoch, max(start, base)) for epoch, start in pairs if start < end]
    return tuple(
        entry
        for entry, after in zip(within, [*within[1:], None], strict=True)
        if after is None or after.start_offset > base
    )
