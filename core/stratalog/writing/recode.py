"""Rewriting of an offset range of a log in a tier, by one task of a job. The job commits the new segments later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Final, Self

from stratalog.cleaning.compact.part_rewrite import PartRewrite
from stratalog.cleaning.compact.tier_range import TierRange, Traffic, entry_of, facts_of
from stratalog.cleaning.compact.two_pass import observe, rewrite
from stratalog.errors import StorageError
from stratalog.log.load.tier_producers import producers_at
from stratalog.log.prepare.prepare_records import codec_of
from stratalog.model.batches import DELETE_HORIZON_BIT, BatchTable, Buffer, RecordBatch, TimestampType
from stratalog.model.records import Fields, RecordColumns
from stratalog.producers.snapshot import ProducerEntry
from stratalog.segment.build import BuiltSegment, SegmentBuilder, copy_batches
from stratalog.segment.components import Components
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import decode
from stratalog.spi.cleanup import CleanupPolicy, RecordFilter, RewriteJob
from stratalog.spi.codecs import Codec
from stratalog.spi.formats import BatchHeader
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.writing.column_encoder import Encoder
from stratalog.writing.staged import Rewritten, StagedSegment
from stratalog.writing.tier_target import TierTarget

MAGIC: Final = 2  # magic of rewritten batches


@dataclass(frozen=True, slots=True)
class RewriteTarget:
    """Segments of a log in a tier that a task rewrites. A ``SegmentPublisher`` that only stages the new segments.

    Attributes:
        segments: the segments of the task's offset range and all later segments of the log, which may have markers of
            the range's transactions.
        first_dirty_offset: offset up to which the log is compacted, exclusive.
    """

    target: TierTarget
    segments: TierRange
    first_dirty_offset: int
    staged: list[StagedSegment] = field(default_factory=list)

    @classmethod
    def of(cls, target: TierTarget, entries: Sequence[StoredSegment], first_dirty_offset: int) -> Self:
        """Return the target for the segments with these manifest entries."""
        remote, components = target.remote, target.encoder.components

        def list_segments(offset: int) -> Iterator[RemoteSegment]:
            return (RemoteSegment(entry, remote.fetcher) for entry in entries if entry.info.end_offset > offset)

        def list_producers() -> list[ProducerEntry]:
            view = remote.view()
            return list(producers_at(view, view.end_offset, components).entries())

        segments = TierRange(remote.name, components, target.encoder.config, list_segments, list_producers, Traffic())
        return cls(target, segments, first_dirty_offset)

    def begin(self, base_offset: int) -> SegmentBuilder:
        """Return the builder of a segment in a temporary file."""
        return self.target.begin(base_offset)

    def replace(self, built: BuiltSegment, old: Sequence[ReadableSegment]) -> bool:
        """Upload a finished segment that will replace ``old``, and add it to ``staged``. Always return True.

        Raises the errors of ``TierPublisher.upload``.
        """
        try:
            self.staged.append(self.target.upload(built, facts_of(old)))
        finally:
            built.discard()  # also if the facts cannot be read
        return True


def rewrite_part(
    target: RewriteTarget,
    span: tuple[int, int],
    filters: Sequence[RecordFilter],
    *,
    now_ms: int,
    keeps_tombstones: bool,
) -> Rewritten:
    """Rewrite the segments in the offset range ``span`` like pass 2 of a compaction round, and stage the new segments.

    Raises:
        CorruptBatchError: a batch is damaged.
        DiskFullError: no space for temporary files.
        StoreError: the store failed.
    """
    log, config = target.segments.name, target.segments.config
    job = RewriteJob(log, *span, target.first_dirty_offset, now_ms, 0, config=config)
    return _run_rewrite(target, _prepare_rewrite(target, job, filters, keeps_tombstones=keeps_tombstones))


def compact_part(
    target: RewriteTarget, span: tuple[int, int], policy: CleanupPolicy, *, now_ms: int, memory_bytes: int
) -> Rewritten:
    """Run both passes of a compaction over the range ``span`` with the policy's filter, and stage the new segments.

    Raises:
        StorageError: the filter needs more memory than ``memory_bytes``; nothing was staged.
        The other errors of ``rewrite_part``.
    """
    start, end = span
    log, config = target.segments.name, target.segments.config
    # compaction rounds of other policies keep older records of a key
    compacted_to = target.first_dirty_offset if "compact" in config.cleanup_policy else 0
    dirty_start = min(max(compacted_to, start), end)
    job = RewriteJob(log, start, end, dirty_start, now_ms, memory_bytes, config=config)
    work = _prepare_rewrite(target, job, [policy.record_filter(job)], keeps_tombstones=False)
    observed_end = observe(work)
    if observed_end < end:
        raise StorageError(
            f"the keys of {log} up to offset {end} need more than {memory_bytes} bytes, which were full at offset "
            f"{observed_end}"
        )
    return _run_rewrite(target, work)


def _prepare_rewrite(
    target: RewriteTarget, job: RewriteJob, filters: Sequence[RecordFilter], *, keeps_tombstones: bool
) -> PartRewrite[ReadableSegment]:
    read_bytes = target.segments.components.limits.read_bytes
    return PartRewrite(target.segments, target, job, filters, keeps_tombstones, read_bytes, is_copied=True)


def _run_rewrite(target: RewriteTarget, work: PartRewrite[ReadableSegment]) -> Rewritten:
    """Run pass 2, and return the staged segments and the statistics."""
    rewrite(work, work.job.end)
    stats = work.stats
    return Rewritten(
        tuple(target.staged),
        stats.segments_before,
        stats.records_read,
        stats.records_kept,
        stats.bytes_read,
        stats.bytes_written,
    )


def recode_part(target: RewriteTarget, span: tuple[int, int], *, recompress: bool) -> Rewritten:
    """Rewrite the segments with the offsets ``span`` in record batches of magic 2, and stage the new segments.

    All records stay the same. If ``recompress`` is True, batches of magic 2 with another codec than that of the encoder
    are encoded again with the encoder's codec. If it is False, batches of magic 2 are not changed. Control batches,
    batches with a delete horizon, and batches without a record at their first or last offset are never changed. A
    segment is not staged if it has the target's layout and no batch changes.

    Raises:
        The errors of ``rewrite_part``.
    """
    encoder, components = target.target.encoder, target.segments.components
    recoding = _Recoding(components, encoder, codec_of(encoder.config, components, 0) if recompress else None)
    layout = target.target.remote.fetcher.layouts.label(encoder.config.tier_layout)
    segments = bytes_read = 0
    for segment in target.segments.from_offset(span[0]):
        if segment.base_offset >= span[1]:
            break
        if segment.base_offset < span[0] or (entry_of(segment).layout == layout and recoding.is_done(segment)):
            continue
        with target.begin(segment.base_offset) as builder:
            bytes_read += copy_batches(segment, builder, components, partial(recoding.recode_table, segment)).bytes_read
            new_segment = builder.finish(segment.end_offset, target.segments.modified_ms(segment))
        target.replace(new_segment, [segment])
        segments += 1
    bytes_written = sum(segment.size_bytes for segment in target.staged)
    return Rewritten(tuple(target.staged), segments, recoding.records, recoding.records, bytes_read, bytes_written)


@dataclass(slots=True)
class _Recoding:
    """Conversion of batches of magic 0 and 1 to magic 2, and of batches of magic 2 to another codec.

    Attributes:
        encoder: encoder for batches of magic 0 and 1.
        codec: None to leave batches of magic 2 unchanged; otherwise a pair of the codec (None for no compression) and
            its level.
        records: number of records in all tables with which ``recode_table`` was called.
    """

    components: Components
    encoder: Encoder
    codec: tuple[Codec | None, int | None] | None
    records: int = 0

    def is_done(self, segment: ReadableSegment) -> bool:
        """Return True if no batch of a segment needs a conversion. The whole segment is read."""
        return all(
            table.magic >= MAGIC and all(columns is None for columns in self._columns_to_encode(segment, chunk, table))
            for chunk in walk(segment, 0, self.components, offset_limit=segment.end_offset)
            for table in chunk.tables
        )

    def recode_table(self, segment: ReadableSegment, chunk: Chunk, table: BatchTable) -> Iterator[Buffer]:
        """Yield the encoded batches of a table, each converted if necessary, and add their records to ``records``."""
        if table.magic < MAGIC:
            for messages in self._decode(segment, chunk, table):
                self.records += messages.count
                yield from (prepared.data for prepared in self.encoder.batches(messages, keep_offsets=True))
            return
        self.records += sum(table.record_count)
        for batch, columns in zip(table, self._columns_to_encode(segment, chunk, table), strict=True):
            end = batch.position + batch.size_bytes
            yield chunk.data[batch.position : end] if columns is None else self._encode(segment, columns, batch)

    def _columns_to_encode(
        self, segment: ReadableSegment, chunk: Chunk, table: BatchTable
    ) -> Iterator[RecordColumns | None]:
        """Yield, for each batch of magic 2, its records if it must be encoded with another codec, or None if not.

        A batch whose first or last offset has no record is not encoded, because its offset range would be lost. Control
        batches, and batches that compaction has given a delete horizon, are not encoded either.
        """
        if self.codec is None:
            yield from repeat(None, len(table))
            return
        codec_id = self.codec[0].id if self.codec[0] is not None else 0
        for row, batch in enumerate(table):
            if batch.codec_id == codec_id or not batch.record_count or batch.is_control or _is_cleaned(batch):
                yield None
                continue
            [columns] = self._decode(segment, chunk, table.take(row, row + 1))
            is_whole = columns.offset[0] == batch.base_offset and columns.offset[-1] == batch.last_offset
            yield columns if is_whole else None

    def _decode(self, segment: ReadableSegment, chunk: Chunk, table: BatchTable) -> Iterator[RecordColumns]:
        return decode(chunk, table, segment, self.components, Fields.ALL)

    def _encode(self, segment: ReadableSegment, columns: RecordColumns, batch: RecordBatch) -> bytearray:
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
        record_format = self.components.formats.of(MAGIC, segment.label, batch.position)
        return record_format.encode(columns, header, *self.codec, keep_offsets=True)


def _is_cleaned(batch: RecordBatch) -> bool:
    return bool(batch.attributes & DELETE_HORIZON_BIT)
