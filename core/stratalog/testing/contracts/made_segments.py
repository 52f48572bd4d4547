"""Closed segments with arbitrary contents, and objects in memory, for the contract tests of tier layouts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Final

from stratalog.model.batches import Buffer
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import FileKind, SegmentInfo
from stratalog.spi.layouts import SegmentSource
from stratalog.spi.objects import ByteSource, BytesSource, ObjectInfo
from stratalog.tier.store.object_keys import log_prefix, segment_key

LOG: Final = TopicPartition("orders", 0)
TOPIC_ID: Final = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
PREFIX: Final = log_prefix(LOG, TOPIC_ID)


def made_segment(
    base_offset: int,
    end_offset: int,
    *,
    data: bytes | None = None,
    files: Mapping[FileKind, bytes] | None = None,
    leader_epoch: int = 0,
    max_timestamp_ms: int = 1_000,
    log: TopicPartition = LOG,
    topic_id: TopicId = TOPIC_ID,
) -> SegmentSource:
    """Return a closed segment whose log has the bytes ``data``; by default, a text with its offsets.

    The bytes need not be batches, because a tier does not parse them. By default, ``files`` has only an offset index.
    """
    content = f"[{base_offset}, {end_offset}) ".encode() * 8 if data is None else data
    info = SegmentInfo(
        log,
        topic_id,
        base_offset,
        end_offset,
        len(content),
        max_timestamp_ms,
        modified_ms=2_000,
        leader_epochs=(EpochEntry(leader_epoch, base_offset),),
    )
    return SegmentSource(info, BytesSource(content), {FileKind.OFFSET_INDEX: b"index"} if files is None else files)


def source_bytes(source: ByteSource) -> bytes:
    """Return all bytes of a source."""
    return b"".join(source.chunks(1 << 20))


class MemoryObjects:
    """Objects in a dictionary. ``put`` and ``key`` make it an ``ObjectSink``; ``fetch`` is a range reader.

    Args:
        base_offset: base offset of the segment, which is part of the keys.
        passes: number of attempts of each upload. Only the last attempt reads the whole source; an earlier attempt
            stops after the first piece, as if it failed.

    Attributes:
        objects: bytes of each object, by key.
        reads: key, start and exclusive end of each range that ``fetch`` has returned.
    """

    def __init__(self, base_offset: int = 100, passes: int = 1) -> None:
        self.objects: dict[str, bytes] = {}
        self.reads: list[tuple[str, int, int]] = []
        self._base_offset, self._passes = base_offset, passes
        self._next: dict[str, str] = {}

    def key(self, suffix: str = "seg") -> str:
        """Return the key that the next ``put`` with this suffix will use."""
        return self._next.setdefault(suffix, segment_key(PREFIX, self._base_offset, 0, uuid.uuid4(), suffix))

    def put(self, source: ByteSource, suffix: str = "seg") -> ObjectInfo:
        """Store an object under ``key(suffix)``; raise AssertionError if the source's ``size_bytes`` is wrong."""
        key = self.key(suffix)
        del self._next[suffix]
        for _ in range(self._passes - 1):
            next(source.chunks(7), None)  # an attempt that failed
        data = source_bytes(source)
        assert len(data) == source.size_bytes
        self.objects[key] = data
        return ObjectInfo(key, len(data))

    def fetch(self, key: str, start: int, end: int) -> bytes:
        """Return bytes [start, end) of an object; raise AssertionError if the range is empty or exceeds the object."""
        assert 0 <= start < end <= len(self.objects[key]), "a layout asks for bytes that are there"
        self.reads.append((key, start, end))
        return self.objects[key][start:end]

    def infos(self) -> list[ObjectInfo]:
        """Return the objects as a store lists them, sorted by key."""
        return [ObjectInfo(key, len(data)) for key, data in sorted(self.objects.items())]


class OddChunks:
    """Byte source that returns its bytes in pieces of varying sizes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size_bytes(self) -> int:
        """Size of the data in bytes."""
        return len(self._data)

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Yield all bytes in pieces of 1, 2, 3, ... bytes, at most ``chunk_bytes``."""
        start, step = 0, 1
        while start < len(self._data):
            yield self._data[start : start + min(step, chunk_bytes)]
            start, step = start + min(step, chunk_bytes), step + 1
