"""Layout ``kafka_local_tiered``: what Kafka's own LocalTieredStorage keeps in a folder, for reading alone.

``{topic}-{partition}-{topic id}/{base offset}-{segment id}.{log,index,timeindex,txnindex,snapshot,leader_epoch_checkpoint}``

Kafka keeps the rest of what is known of a segment in the topic ``__remote_log_metadata``. Here it follows from the files: the
end offset from the last batches of the log, the largest timestamp from the time index. There are no hashes.

Source: apache/kafka storage tests LocalTieredStorage, RemoteLogSegmentFileset, RemoteTopicPartitionDirectory.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from stratalog.spi import (
    ConfigError,
    CorruptObjectError,
    EpochEntry,
    FileKind,
    ObjectInfo,
    ObjectSink,
    ObjectSlice,
    RangeReader,
    Section,
    SegmentInfo,
    SegmentSource,
    StoredSegment,
    TierLayout,
    TopicId,
    TopicPartition,
)
from stratalog_formats.layouts.pieces import UNKNOWN_SHA256, exactly, place_of

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
_DELTA: Final = struct.Struct(">i")  # how far the last offset of a V2 batch lies above the first; at byte 23
_DELTA_AT: Final = 23
_TAIL_LIMIT_BYTES: Final = 64 << 20
_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")


class KafkaLocalLayout(TierLayout):
    """Reads the files of a segment as Kafka left them.

    Args:
        fetch_chunk_bytes: the most that one ranged read asks for.
    """

    def __init__(self, fetch_chunk_bytes: int) -> None:
        self._fetch_chunk_bytes = fetch_chunk_bytes

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """ConfigError: this layout is Kafka's, to be read only."""
        del source, sink, section
        raise ConfigError(f"tier.layout={NAME} is for reading what Kafka wrote: choose another one to write")

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        """Bytes [start, end) of the ``.log`` file; CorruptObjectError if the file is shorter."""
        place = place_of(segment, FileKind.LOG)
        for first in range(start, end, self._fetch_chunk_bytes):
            yield memoryview(exactly(fetch, place, first, min(end, first + self._fetch_chunk_bytes)))

    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        """A small file as it is."""
        place = segment.slices.get(kind)
        return None if place is None else exactly(fetch, place, 0, place.size_bytes)

    def discover(self, objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
        """The segments whose files are among ``objects``; at most four ranged reads each.

        Raises:
            CorruptObjectError: a ``.log`` file has no whole batch at its end, or the epochs are malformed.
        """
        found: dict[tuple[str, str, str, str, str], dict[FileKind, ObjectInfo]] = {}
        for info in objects:
            named = _KEY.match(info.key)
            if named and named["suffix"] in _SUFFIXES:
                key = (named["topic"], named["partition"], named["id"], named["base"], named["segment"])
                found.setdefault(key, {})[_SUFFIXES[named["suffix"]]] = info
        for (topic, partition, topic_id, base, _), files in found.items():
            if FileKind.LOG in files:
                log = TopicPartition(topic, int(partition))
                yield _described(log, TopicId(topic_id), int(base), files, fetch)


def _described(
    log: TopicPartition, topic_id: TopicId, base: int, files: Mapping[FileKind, ObjectInfo], fetch: RangeReader
) -> StoredSegment:
    slices = {kind: ObjectSlice(info.key, 0, info.size_bytes) for kind, info in files.items()}
    end = _end_offset(slices, base, fetch)
    info = SegmentInfo(
        log=log,
        topic_id=topic_id,
        base_offset=base,
        end_offset=end,
        size_bytes=files[FileKind.LOG].size_bytes,
        max_timestamp_ms=_last_entry(slices.get(FileKind.TIME_INDEX), _TIME_ENTRY, (-1, 0), fetch)[0],
        modified_ms=files[FileKind.LOG].modified_ms,
        leader_epochs=_epochs(slices.get(FileKind.LEADER_EPOCHS), base, end, fetch),
    )
    return StoredSegment(info, LABEL, slices, UNKNOWN_SHA256)


def _last_entry(
    place: ObjectSlice | None, entry: struct.Struct, default: tuple[int, int], fetch: RangeReader
) -> tuple[int, int]:
    if place is None or place.size_bytes < entry.size:
        return default
    at = place.size_bytes - place.size_bytes % entry.size - entry.size
    first, second = entry.unpack(exactly(fetch, place, at, at + entry.size))
    return first, second


def _end_offset(slices: Mapping[FileKind, ObjectSlice], base: int, fetch: RangeReader) -> int:
    """The offset behind the last batch, found from the last entry of the offset index on."""
    place = slices[FileKind.LOG]
    start = _last_entry(slices.get(FileKind.OFFSET_INDEX), _OFFSET_ENTRY, (0, 0), fetch)[1]
    if not 0 <= start <= place.size_bytes or place.size_bytes - start > _TAIL_LIMIT_BYTES:
        raise CorruptObjectError("the offset index does not lead to the end of the log", place.key, start)
    data, at, end = exactly(fetch, place, start, place.size_bytes), 0, base
    while len(data) - at >= _FRAME.size:
        offset, size_bytes, _, magic = _FRAME.unpack_from(data, at)
        if size_bytes <= 0 or at + 12 + size_bytes > len(data) or (magic >= 2 and size_bytes < _DELTA_AT + 4):
            break
        end = offset + 1 + (_DELTA.unpack_from(data, at + _DELTA_AT)[0] if magic >= 2 else 0)
        at += 12 + size_bytes
    if at != len(data) or end < base:
        raise CorruptObjectError("the log does not end with a whole batch", place.key, start + at)
    return end


def _epochs(place: ObjectSlice | None, base: int, end: int, fetch: RangeReader) -> tuple[EpochEntry, ...]:
    """The epochs of the segment's offsets, out of those that its checkpoint holds."""
    if place is None:
        return ()
    try:
        lines = exactly(fetch, place, 0, place.size_bytes).decode("ascii").split()
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
