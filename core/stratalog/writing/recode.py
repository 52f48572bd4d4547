"""Rewriting of a part of a log in a tier, by one task of a job that replaces it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from stratalog.cleaning.compact.throttle import Throttle
from stratalog.cleaning.compact.tier_range import TierSource, Traffic, source_of
from stratalog.cleaning.compact.two_pass import Rewriting
from stratalog.config.topic import TopicConfig
from stratalog.errors import StorageError
from stratalog.log.load.tier_producers import producers_at
from stratalog.log.prepare.prepare_records import codec_of
from stratalog.model.batches import DELETE_HORIZON_BIT, BatchTable, Buffer, RecordBatch, TimestampType
from stratalog.model.records import Fields, RecordColumns
from stratalog.producers.snapshot import ProducerEntry
from stratalog.segment.cleaned_segment import CleanedSegment, SpooledSegment
from stratalog.segment.components import Components
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import decode, transaction_index
from stratalog.spi.cleanup import CleanupPolicy, RecordFilter, RewriteJob
from stratalog.spi.codecs import Codec
from stratalog.spi.formats import BatchHeader
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.segment_store import SegmentStore
from stratalog.tier.read.fetcher import RemoteSegment
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upload.closed_segment import INDEX_KINDS
from stratalog.writing.column_encoder import Encoder
from stratalog.writing.staged import Rewritten, StagedSegment

MAGIC: Final = 2  # magic of rewritten batches


@dataclass(slots=True)
class Standing:
    """Target of a task: the log, its leader epoch, components and settings, and a store for temporary files."""

    remote: TierLog
    leader_epoch: int
    parts: Components
    config: TopicConfig
    temporaries: SegmentStore


class StagedPart:
    """A ``Rewritable`` whose new segments are staged. For one thread.

    Args:
        at: target of the task.
        entries: the segments of the part and all later ones, which may hold markers of its transactions.
    """

    def __init__(self, at: Standing, entries: Sequence[StoredSegment]) -> None:
        self._at, self._entries, self._traffic = at, entries, Traffic()
        self.name, self.parts, self.config = at.remote.log, at.parts, at.config
        self.staged: list[StagedSegment] = []

    def from_offset(self, offset: int) -> Iterator[TierSource]:
        """Yield the segments that end above ``offset``, ascending."""
        for entry in self._entries:
            if entry.info.end_offset > offset:
                yield TierSource(RemoteSegment(entry, self._at.remote.fetcher), None, self._traffic)

    def producers(self) -> list[ProducerEntry]:
        """Return the producers that are known at the tier's end."""
        view = self._at.remote.view()
        return list(producers_at(view, view.end_offset, self.parts).entries())

    def modified_ms(self, segment: ReadableSegment) -> int:
        """Return the time of the last write to the ``.log`` file."""
        return _entry(segment).info.modified_ms

    def index_bytes(self, segment: ReadableSegment, role: IndexRole) -> int:
        """Return the stored size of an index."""
        place = _entry(segment).slices.get(INDEX_KINDS[role])
        return 0 if place is None else place.size_bytes

    def has_its_layout(self, segment: ReadableSegment) -> bool:
        """Return True if a segment is stored with the layout of the new segments."""
        return _entry(segment).layout == self._at.remote.fetcher.layouts.label(self.config.tier_layout)

    def new_cleaned(self, base_offset: int) -> CleanedSegment:
        """Begin a segment in its own temporary folder."""
        name = uuid.UUID(int=self.parts.env.chance.getrandbits(128), version=4).hex
        return SpooledSegment(self._at.temporaries.open_log(name, create=True), base_offset, self.parts, self.config)

    def replace(self, made: CleanedSegment, old: Sequence[ReadableSegment], ticket: int) -> bool:
        """Upload a finished segment and stage it; errors as ``TierLog.store``."""
        del ticket
        assert isinstance(made, SpooledSegment)
        at, layout = self._at, self.config.tier_layout
        source = source_of(made, old, self.parts, self.config)
        try:
            section = self.config.sections.get(layout)
            stored = at.remote.store(source, layout=layout, leader_epoch=at.leader_epoch, section=section)
        finally:
            made.discard()
        info = source.info
        self.staged.append(
            StagedSegment(
                info.log,
                info.topic_id,
                info.base_offset,
                info.end_offset,
                info.size_bytes,
                at.leader_epoch,
                stored,
            )
        )
        return True


def rewrite_part(
    part: StagedPart,
    span: tuple[int, int],
    filters: Sequence[RecordFilter],
    *,
    first_dirty_offset: int,
    now_ms: int,
    keeps_tombstones: bool,
) -> Rewritten:
    """Rewrite the segments of [start, end), like pass 2 of a round of compaction.

    Raises:
        CorruptBatchError: an entry is damaged.
        DiskFullError: no space for temporary files.
        StoreError: the store failed.
    """
    job = RewriteJob(part.name, *span, first_dirty_offset, now_ms, 0, config=part.config)
    return _rewritten(_rewriting(part, job, filters, keeps_tombstones=keeps_tombstones))


def compact_part(
    part: StagedPart,
    span: tuple[int, int],
    policy: CleanupPolicy,
    first_dirty_offset: int,
    *,
    now_ms: int,
    memory_bytes: int,
) -> Rewritten:
    """Run both passes of a round of compaction over [start, end), with a filter of the policy.

    Raises:
        StorageError: the filter needs more memory; nothing was staged.
        Others as ``rewrite_part``.
    """
    start, end = span
    dirty_start = min(max(first_dirty_offset, start), end)
    job = RewriteJob(part.name, start, end, dirty_start, now_ms, memory_bytes, config=part.config)
    rewriting = _rewriting(part, job, [policy.record_filter(job)], keeps_tombstones=False)
    seen = rewriting.observe()
    if seen < end:
        raise StorageError(
            f"the keys of {part.name} up to offset {end} need more than {memory_bytes} bytes: at {seen} these were full"
        )
    return _rewritten(rewriting)


def _rewriting(
    part: StagedPart, job: RewriteJob, filters: Sequence[RecordFilter], *, keeps_tombstones: bool
) -> Rewriting[TierSource]:
    parts = part.parts
    throttle = Throttle(parts.env.clock, float("inf"))
    return Rewriting(
        part,
        job,
        filters,
        keeps_tombstones,
        parts.limits.read_bytes,
        throttle,
        lambda: None,
        0,
        is_copied=True,
    )


def _rewritten(rewriting: Rewriting[TierSource]) -> Rewritten:
    """Run pass 2."""
    part, stats = rewriting.log, rewriting.stats
    assert isinstance(part, StagedPart)
    rewriting.rewrite(rewriting.job.end)
    return Rewritten(
        tuple(part.staged),
        stats.segments_before,
        stats.records_read,
        stats.records_kept,
        stats.bytes_read,
        stats.bytes_written,
    )


def recode_part(part: StagedPart, span: tuple[int, int], encoder: Encoder, *, recompress: bool) -> Rewritten:
    """Rewrite the segments of [start, end) in record batches of magic 2, each record as it was.

    Batches of magic 2 stay as they are unless ``recompress`` asks for the encoder's codec: then batches with another codec are
    encoded again. Control batches, batches without records, and batches that have lost records by compaction always stay.
    Segments of the part's layout in which no batch changes are left alone.

    Raises:
        As ``rewrite_part``.
    """
    recoding = _Recoding(part, encoder, codec_of(encoder.config, part.parts, 0) if recompress else None)
    segments = bytes_read = 0
    for segment in part.from_offset(span[0]):
        if segment.base_offset >= span[1]:
            break
        if segment.base_offset < span[0] or (part.has_its_layout(segment) and recoding.is_done(segment)):
            continue
        made = part.new_cleaned(segment.base_offset)
        try:
            ended = {entry.last_offset: entry for entry in transaction_index(segment, part.parts)}
            for chunk in walk(segment, 0, part.parts, below=segment.end_offset):
                bytes_read += chunk.data.nbytes
                for table in chunk.tables:
                    for data in recoding.of(segment, chunk, table):
                        made.append(data, ended)
            made.finish(part.modified_ms(segment))
        except BaseException:
            made.discard()
            raise
        part.replace(made, [segment], 0)
        segments += 1
    written = sum(found.size_bytes for found in part.staged)
    return Rewritten(tuple(part.staged), segments, recoding.records, recoding.records, bytes_read, written)


@dataclass(slots=True)
class _Recoding:
    """Conversion of batches to magic 2, and to another codec if one is given.

    Attributes:
        part: part of the segments.
        encoder: encoder for batches that have another magic.
        codec: codec for all other batches, and its level; None leaves them as they are.
        records: number of records of the batches that ``of`` converted.
    """

    part: StagedPart
    encoder: Encoder
    codec: tuple[Codec | None, int | None] | None
    records: int = 0

    def is_done(self, segment: TierSource) -> bool:
        """Return True if every batch of a segment needs no change."""
        return all(
            table.magic >= MAGIC and all(columns is None for columns in self._changing(segment, chunk, table))
            for chunk in walk(segment, 0, self.part.parts, below=segment.end_offset)
            for table in chunk.tables
        )

    def of(self, segment: TierSource, chunk: Chunk, table: BatchTable) -> Iterator[Buffer]:
        """Yield the converted batches of a table."""
        if table.magic < MAGIC:
            for messages in self._decoded(segment, chunk, table):
                self.records += messages.count
                yield from (prepared.data for prepared in self.encoder.batches(messages, keep_offsets=True))
            return
        self.records += sum(table.record_count)
        for batch, columns in zip(table, self._changing(segment, chunk, table), strict=True):
            end = batch.position + batch.size_bytes
            yield chunk.data[batch.position : end] if columns is None else self._encoded(segment, columns, batch)

    def _changing(self, segment: TierSource, chunk: Chunk, table: BatchTable) -> Iterator[RecordColumns | None]:
        """Yield for each batch of magic 2 its records if it needs another codec and loses nothing by it; otherwise None."""
        if self.codec is None:
            yield from repeat(None, len(table))
            return
        wanted = self.codec[0].id if self.codec[0] is not None else 0
        for row, batch in enumerate(table):
            if batch.codec_id == wanted or not batch.record_count or batch.is_control or _is_cleaned(batch):
                yield None
                continue
            [columns] = self._decoded(segment, chunk, table.take(row, row + 1))
            is_whole = columns.offset[0] == batch.base_offset and columns.offset[-1] == batch.last_offset
            yield columns if is_whole else None

    def _decoded(self, segment: TierSource, chunk: Chunk, table: BatchTable) -> Iterator[RecordColumns]:
        return decode(chunk, table, segment, self.part.parts, Fields.ALL)

    def _encoded(self, segment: TierSource, columns: RecordColumns, batch: RecordBatch) -> bytearray:
        assert self.codec is not None  # without a codec no batch of magic 2 changes
        is_append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
        header = BatchHeader(
            base_offset=batch.base_offset,
            leader_epoch=batch.leader_epoch,
            timestamp_type=TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME,
            append_time_ms=batch.max_timestamp_ms,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=batch.is_transactional,
        )
        found = self.part.parts.formats.of(MAGIC, segment.label, batch.position)
        return found.encode(columns, header, *self.codec, keep_offsets=True)


def _is_cleaned(batch: RecordBatch) -> bool:
    return bool(batch.attributes & DELETE_HORIZON_BIT)


def _entry(segment: ReadableSegment) -> StoredSegment:
    assert isinstance(segment, TierSource)  # a part has no other segments
    return segment.stored
