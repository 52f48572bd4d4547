"""Construction of a ``SegmentSource``, the input of an upload, from a segment's batches and small files."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.env.progress import OnBytes
from stratalog.epochs.checkpoint import format_epochs
from stratalog.errors import CorruptionError, UnsupportedCompressionError
from stratalog.log.change.extra_indexes import pack_segment_extras
from stratalog.model.batches import TIMESTAMP_TYPE_BIT, BatchTable, Buffer
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import EpochEntry
from stratalog.model.records import Fields
from stratalog.model.segment_info import FileKind, SegmentInfo
from stratalog.segment.build import BuiltSegment
from stratalog.segment.components import Components
from stratalog.segment.control_batches import drop_markers
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import decode
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import INDEX_KINDS, SegmentSource
from stratalog.spi.objects import ByteSource
from stratalog.tier.store.store import ChunkSource
from stratalog.tier.upload.uncompressed import uncompressed_source

_LOGGER: Final = logging.getLogger(__name__)


def count_bytes(source: ByteSource, on_bytes: OnBytes) -> ByteSource:
    """Return a source that has the bytes of ``source``, and reports its reads.

    ``on_bytes`` is called after each chunk with the number of its bytes that were read for the first time. Bytes that a
    retry reads again are not counted.
    """
    counted_bytes = 0

    def chunks(chunk_bytes: int) -> Iterator[Buffer]:
        nonlocal counted_bytes
        position = 0
        for chunk in source.chunks(chunk_bytes):
            yield chunk
            position += memoryview(chunk).nbytes
            if position > counted_bytes:
                on_bytes(position - counted_bytes)
                counted_bytes = position

    return ChunkSource(source.size_bytes, chunks)


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Facts about a built segment that its batches do not contain.

    Attributes:
        leader_epochs: leader epochs of the segment's offsets.
        snapshot: producer snapshot at the end of the segment; empty or None if it is not known.
    """

    leader_epochs: tuple[EpochEntry, ...]
    snapshot: bytes | None


def describe_segment(
    segment: ReadableSegment,
    log: TopicPartition,
    topic_id: TopicId,
    leader_epochs: tuple[EpochEntry, ...],
    components: Components,
    *,
    max_timestamp_ms: int,
    modified_ms: int,
) -> SegmentInfo:
    """Return the description of a closed segment for a manifest entry. ``add_record_facts`` reads the records."""
    info = SegmentInfo(
        log=log,
        topic_id=topic_id,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        max_timestamp_ms=max_timestamp_ms,
        modified_ms=modified_ms,
        leader_epochs=leader_epochs,
    )
    return add_record_facts(info, segment, components)


def segment_source(
    info: SegmentInfo,
    log: ByteSource,
    entries: Mapping[IndexRole, Buffer],
    components: Components,
    *,
    snapshot: bytes | None,
    extras: bytes = b"",
) -> SegmentSource:
    """Return the source for the upload of a segment. Empty files are left out.

    ``snapshot`` is the producer snapshot at the end of the segment, None if it is unknown. ``extras`` is the file with
    the segment's EXTRA indexes.
    """
    files = {INDEX_KINDS[role]: bytes(data) for role, data in entries.items()}
    files[FileKind.SNAPSHOT] = snapshot or b""
    files[FileKind.LEADER_EPOCHS] = format_epochs(info.leader_epochs)
    files[FileKind.EXTRA] = extras
    present = {kind: data for kind, data in files.items() if data}
    return SegmentSource(info, log, present, partial(uncompressed_source, components=components))


def built_source(
    built_segment: BuiltSegment, log: TopicPartition, topic_id: TopicId, facts: SegmentFacts, config: TopicConfig
) -> SegmentSource:
    """Return the source for the upload of a built segment, with the EXTRA indexes that ``config`` names."""
    components = built_segment.components
    with contextlib.closing(built_segment.reader()) as segment:
        info = describe_segment(
            segment,
            log,
            topic_id,
            facts.leader_epochs,
            components,
            max_timestamp_ms=segment.max_timestamp_ms,
            modified_ms=built_segment.modified_ms,
        )
        extras = pack_segment_extras(segment, info, components, config)
    return segment_source(
        info, built_segment, built_segment.entries, components, snapshot=facts.snapshot, extras=extras
    )


def add_record_facts(info: SegmentInfo, segment: ReadableSegment, components: Components) -> SegmentInfo:
    """Return ``info`` with the number of the segment's data records and their smallest timestamp (-1 without records).

    Records are decoded, because a batch header has only the timestamp of its first record, and later records may be
    older. If a batch is damaged, or its codec is not installed, a warning is logged, and ``info`` is returned
    unchanged.

    Raises:
        StorageError: a read failed.
    """
    records, least_ms = 0, None
    try:
        for chunk in walk(segment, 0, components, check_crc=False):
            for table in chunk.tables:
                for count, timestamp_ms in _table_facts(chunk, table, segment, components):
                    if count:
                        records += count
                        least_ms = timestamp_ms if least_ms is None else min(least_ms, timestamp_ms)
    except (CorruptionError, UnsupportedCompressionError):
        _LOGGER.warning("%s is uploaded without the number of its records", segment.label, exc_info=True)
        return info
    return replace(info, records=records, min_timestamp_ms=-1 if least_ms is None else max(least_ms, -1))


def _table_facts(
    chunk: Chunk, table: BatchTable, segment: ReadableSegment, components: Components
) -> list[tuple[int, int]]:
    """Return pairs (number of data records, their smallest timestamp in ms), each for a part of the table.

    The parts together are the whole table. A record without a timestamp counts as -1.
    """
    data_batches = drop_markers(table)
    if table.magic == 2 and all(
        map(TIMESTAMP_TYPE_BIT.__and__, data_batches.attributes)
    ):  # each record has the batch's time
        rows = zip(data_batches.record_count, data_batches.max_timestamp_ms, strict=True)
        return list(rows)
    decoded = decode(chunk, data_batches, segment, components, Fields.OFFSET | Fields.TIMESTAMP)
    return [(columns.count, min(columns.timestamp_ms, default=-1)) for columns in decoded]
