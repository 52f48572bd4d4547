"""Pass 2 of a compaction round over one group of segments: writes the records that stay into one new segment.

Source: apache/kafka Cleaner (cleanSegments, cleanInto), MemoryRecords.RecordFilter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic

from stratalog.cleaning.compact.digest_notes import DigestNotes
from stratalog.cleaning.compact.part_rewrite import PartRewrite, fields_of
from stratalog.cleaning.compact.segment_digests import Digest
from stratalog.cleaning.compact.segment_range import RewriteStoppedError, S
from stratalog.cleaning.compact.transaction_filter import AbortedIndex, TransactionPass, is_special
from stratalog.cleaning.compact.unchanged_segments import BatchVerdicts
from stratalog.cleaning.compact.verdicts import (
    AT_HORIZON,
    AT_HORIZON_IS_OVER,
    DROP,
    KEEP,
    judge_records,
    old_format_verdicts,
    split_by_batch,
    stay_empty,
)
from stratalog.errors import CorruptBatchError
from stratalog.model.batches import CONTROL_BIT, DELETE_HORIZON_BIT, BatchTable, Buffer
from stratalog.model.records import Fields
from stratalog.segment.build import BuiltSegment, SegmentBuilder
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.search import decode
from stratalog.segment.segment import Segment

_WRITTEN_BYTES: Final = 1 << 19  # number of buffered bytes from which on they are written


@dataclass(slots=True)
class GroupRewrite(Generic[S]):
    """Rewrite of one group of segments into one new segment, without the records that are dropped.

    Filters do not judge transaction markers: a marker stays until its transaction has no records any more, and then
    until its delete horizon. An empty batch stays if the state of its producer depends on the batch. For a group of one
    segment, the new segment is begun when the first record is dropped, unless ``PartRewrite.is_copied`` is True. If no
    segment is begun, the old segment stays.

    Attributes:
        work: the rewrite of the part of the log (local or tier) that has the group.
        end: exclusive end of the offsets that the filters have observed; records at or above ``end`` stay.
        legacy_horizon_ms: in segments that were last modified at or before this time, tombstones of V0 and V1 have
            expired. These formats have no delete horizon.
        last_records: last data offset and epoch of each producer, by producer id.
        transactions: state of transactions at the current position in the log.
    """

    work: PartRewrite[S]
    end: int
    legacy_horizon_ms: int
    last_records: dict[int, tuple[int, int]]
    transactions: TransactionPass
    notes: DigestNotes
    aborted: AbortedIndex
    _builder: SegmentBuilder | None = None
    _is_index_loaded: bool = False
    _aborted_rows: Sequence[bool] | None = None  # True for each batch of the current table that ``transactions`` drops
    _buffered: list[Buffer] = field(default_factory=list)
    _buffered_bytes: int = 0

    def run(self, group: Sequence[S]) -> None:
        """Merge a group of consecutive segments into one compacted segment.

        If the group is one segment, and no record is dropped, the segment stays as it is.
        """
        if len(group) > 1 or self._skip_unchanged(group[0]) is None:
            self._publish(self._copy_group(group), group)
        self.work.stats.segments_before += len(group)
        self.work.stats.segments_after += 1

    def _skip_unchanged(self, segment: S) -> Digest | None:
        """Return a segment's digest, and advance the pass past the segment, if the digest proves that it loses nothing.

        Then the state of the pass (transactions, digest) is as if the pass had read the segment.
        """
        work = self.work
        if work.digests is None or not isinstance(segment, Segment) or segment.end_offset > work.job.dirty_start:
            return None
        digest = work.digests.find_sparing(segment, work.filters, work.job.now_ms)
        if digest is None:
            return None
        unchanged, open_commits = digest.unchanged, self.transactions.committed
        if not unchanged.holds(open_commits, self.last_records, old_tombstones_stay=not self._is_old(segment)):
            return None
        unchanged.pass_over(open_commits)
        self.notes.pass_over(unchanged)
        work.stats.segments_spared += 1
        return digest

    def _copy_group(self, group: Sequence[S]) -> BuiltSegment | None:
        """Copy the segments of a group into a new segment, and return it; None if no segment was begun."""
        work = self.work
        try:
            if work.is_copied or len(group) > 1:
                self._builder = work.publisher.begin(group[0].base_offset)
            for segment in group:
                digest = self._skip_unchanged(segment) if len(group) > 1 else None
                if digest is not None:
                    self._copy_whole(segment, digest)
                else:
                    self._copy(segment)
            work.check()
            if self._builder is None:
                return None
            return self._builder.finish(group[-1].end_offset, work.part.modified_ms(group[-1]))
        except BaseException:
            self.notes.abandon()
            if self._builder is not None:
                self._builder.discard()
            raise

    def _publish(self, built: BuiltSegment | None, group: Sequence[S]) -> None:
        """Replace a group by its new segment, if there is one, and complete the digest file."""
        work = self.work
        try:
            if built is not None:
                if not work.publisher.replace(built, group):
                    raise RewriteStoppedError(f"{work.part.name} changed meanwhile")  # noqa: TRY301 - the digest goes first
                work.stats.bytes_freed += sum(segment.size_bytes for segment in group) - built.size_bytes
            self.notes.seal()
        except BaseException:
            self.notes.abandon()
            raise

    def _copy(self, segment: S) -> None:
        """Read a segment, and write its batches without the dropped records."""
        work, components = self.work, self.work.part.components
        end_offset = segment.end_offset
        self.transactions.kept_entries.clear()
        self._is_index_loaded = False
        # Pass 1 has checked the CRCs in the file. A second download may return other bytes than the first one.
        was_checked = (
            isinstance(segment, Segment) and work.job.dirty_start <= segment.base_offset and end_offset <= self.end
        )
        for chunk in walk(
            segment, 0, components, check_crc=not was_checked, read_bytes=work.read_bytes, offset_limit=end_offset
        ):
            work.step(chunk.data.nbytes)
            work.stats.bytes_read += chunk.data.nbytes
            for table in chunk.tables:
                retained = self._retain_records(segment, chunk, table)
                start, end = table.position[0], table.position[-1] + table.size_bytes[-1]
                if self._builder is None:
                    if retained == chunk.data[start:end]:
                        continue
                    self._builder = work.publisher.begin(segment.base_offset)
                    self._copy_range(segment, chunk.position + start)
                self._write(retained)
            self.notes.collect(end=False)
        self._flush()

    def _copy_whole(self, segment: S, digest: Digest) -> None:
        """Write all batches of a segment unchanged. CRCs are checked, but no record is decoded."""
        work = self.work
        for chunk in walk(
            segment, 0, work.part.components, read_bytes=work.read_bytes, offset_limit=segment.end_offset
        ):
            work.step(chunk.data.nbytes)
            work.stats.bytes_read += chunk.data.nbytes
            self._write(chunk.data[: chunk.end_position - chunk.position])  # the rest may be a partial batch
        self._flush()
        self.notes.take_over(digest)

    def _copy_range(self, segment: S, end: int) -> None:
        """Write the batches of a segment before position ``end`` (bytes) unchanged."""
        components = self.work.part.components
        for chunk in walk(
            segment, 0, components, check_crc=False, read_bytes=self.work.read_bytes, offset_limit=segment.end_offset
        ):
            for table in chunk.tables:
                first = chunk.position + table.position[0]
                if first >= end:
                    return
                last = min(chunk.position + table.position[-1] + table.size_bytes[-1], end)
                self._write(chunk.data[table.position[0] : last - chunk.position])

    def _write(self, data: Buffer) -> None:
        """Buffer data, and write the buffer when the buffer is large enough."""
        if len(data):
            self._buffered.append(data)
            self._buffered_bytes += len(data)
            if self._buffered_bytes >= _WRITTEN_BYTES:
                self._flush()

    def _flush(self) -> None:
        """Write the buffered data, with the index entries in ``transactions.kept_entries``, to the new segment."""
        if not self._buffered or self._builder is None:
            return
        data = self._buffered[0] if len(self._buffered) == 1 else b"".join(self._buffered)
        self._builder.append(data, self.transactions.kept_entries)
        self.work.throttle(len(data))
        self.work.stats.bytes_written += len(data)
        self._buffered, self._buffered_bytes = [], 0

    def _retain_records(self, segment: S, chunk: Chunk, table: BatchTable) -> Buffer:
        """Return the encoded batches of a table without the dropped records, b"" if nothing stays."""
        formats = self.work.part.components.formats
        record_format = formats.get(table.magic) or formats.of(
            table.magic, segment.label, chunk.position + table.position[0]
        )
        verdicts = self._verdicts(segment, chunk, table)
        all_verdicts = b"".join(verdicts)
        self.work.stats.records_read += len(all_verdicts)
        self.work.stats.records_kept += len(all_verdicts) - all_verdicts.count(DROP)
        horizon_ms = self.work.job.now_ms + self.work.part.config.delete_retention_ms
        ends_round = table.last_offset[-1] + 1 == self.work.job.end
        stay = stay_empty(table, self.last_records, ends_round=ends_round) if table.magic >= 2 else None
        facts = BatchVerdicts(chunk.data, verdicts, stay, self._aborted_rows, horizon_ms)
        self.notes.note(table, facts, is_plain=stay is None and AT_HORIZON not in all_verdicts)
        try:
            retained = record_format.retain(
                chunk.data,
                table,
                verdicts,
                None if self.work.keeps_tombstones else horizon_ms,
                retain_empty=stay,
                limit_bytes=self.work.part.components.limits.decompressed_bytes,
            )
            pieces = list(retained)
        except CorruptBatchError as error:
            raise CorruptBatchError(error.reason, segment.label, chunk.position + error.position) from error
        if len(pieces) == 1 and not isinstance(pieces[0], memoryview):
            return pieces[0]
        return b"".join(pieces)  # a view would keep the chunk in memory until it is written

    def _verdicts(self, segment: S, chunk: Chunk, table: BatchTable) -> list[Buffer]:
        """Return one byte string for each batch of a table, with one verdict for each record of the batch."""
        self._aborted_rows = None
        if not is_special(table):
            verdicts = list[Buffer](self._judge(segment, chunk, table))
        else:
            verdicts = self._judge_with_transactions(segment, chunk, table)
        if table.magic < 2:
            ends_round = table.last_offset[-1] + 1 == self.work.job.end
            old = old_format_verdicts(verdicts, is_over=self._is_old(segment), ends_round=ends_round)
            self.notes.note_old_tombstones(stay=old.have_tombstones, is_last_kept=old.is_last_kept)
            return old.verdicts
        if self.work.keeps_tombstones or not any(map(DELETE_HORIZON_BIT.__and__, table.attributes)):
            return verdicts
        for row, (attributes, base_ms) in enumerate(zip(table.attributes, table.base_timestamp_ms, strict=True)):
            if attributes & DELETE_HORIZON_BIT and base_ms <= self.work.job.now_ms:
                batch_verdicts = bytes(verdicts[row])
                below_end = self._count_below_end(segment, chunk, table.take(row, row + 1), len(batch_verdicts))
                verdicts[row] = batch_verdicts[:below_end].translate(AT_HORIZON_IS_OVER) + batch_verdicts[below_end:]
        return verdicts

    def _count_below_end(self, segment: S, chunk: Chunk, row: BatchTable, count: int) -> int:
        """Return the number of a batch's ``count`` records below ``end``; filters judged only these records."""
        if row.last_offset[0] < self.end or row.attributes[0] & CONTROL_BIT:
            return count
        decoded = decode(chunk, row, segment, self.work.part.components, Fields.OFFSET)
        return sum(bisect_left(columns.offset, self.end) for columns in decoded)

    def _judge(self, segment: S, chunk: Chunk, table: BatchTable) -> Iterator[Buffer]:
        """Yield the filters' verdicts on a table, which must not have markers; one byte string for each batch."""
        work = self.work
        decoded = decode(chunk, table, segment, work.part.components, fields_of(work.filters))
        return split_by_batch(table, (judge_records(work.filters, columns, self.end) for columns in decoded))

    def _judge_with_transactions(self, segment: S, chunk: Chunk, table: BatchTable) -> list[Buffer]:
        if not self._is_index_loaded:  # most segments have no transactions
            self.aborted.load_for(segment, self.transactions)
            self._is_index_loaded = True
        dropped = self._aborted_rows = self.transactions.rows(table, chunk.data)
        rows = zip(dropped, table.attributes, strict=True)
        is_data = [not is_dropped and not attributes & CONTROL_BIT for is_dropped, attributes in rows]
        judgements = self._judge(segment, chunk, table.keep(is_data))
        verdicts: list[Buffer] = []
        for row, count in enumerate(table.record_count):
            if is_data[row]:
                verdicts.append(next(judgements))
            elif not dropped[row]:
                verdicts.append(KEEP * count)
            elif table.attributes[row] & CONTROL_BIT:
                verdicts.append(AT_HORIZON * count)
            else:
                verdicts.append(DROP * count)
        return verdicts

    def _is_old(self, segment: S) -> bool:
        """Return True if the tombstones of V0 and V1 in a segment have expired, and may be dropped."""
        return self.work.part.modified_ms(segment) <= self.legacy_horizon_ms and not self.work.keeps_tombstones
