"""Compaction in two passes: pass 1 shows the dirty records to the filters, and pass 2 rewrites the segments.

Source: apache/kafka Cleaner (doClean, buildOffsetMap, cleanSegments, cleanInto), MemoryRecords.RecordFilter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic

from stratalog.cleaning.compact.digest_notes import DigestNotes
from stratalog.cleaning.compact.group_rewrite import GroupRewrite
from stratalog.cleaning.compact.part_rewrite import PartRewrite, fields_of
from stratalog.cleaning.compact.segment_groups import groups_of
from stratalog.cleaning.compact.segment_range import RewriteStoppedError, S
from stratalog.cleaning.compact.transaction_filter import AbortedIndex, TransactionPass, is_special
from stratalog.cleaning.compact.unchanged_segments import UnchangedTracker
from stratalog.errors import PluginError, SegmentGoneError, StorageError
from stratalog.model.batches import CONTROL_BIT, BatchTable
from stratalog.model.records import RecordColumns
from stratalog.segment.framing import Chunk
from stratalog.segment.search import aborted_transactions, chunks_from, decode
from stratalog.spi.cleanup import RecordFilter


def run_passes(work: PartRewrite[S]) -> int:
    """Run both passes of a compaction round; return the exclusive end of the offsets that are compacted now.

    After an error, some segments may already be compacted, and the other segments are unchanged.

    Raises:
        CorruptBatchError: a batch is damaged.
        DiskFullError: the disk is full.
        PluginError: the memory of a filter is too small for any progress, or a filter returns wrong verdicts.
        StoreError, FencedEpochError: the tier cannot be read, or does not accept a new segment.
        RewriteStoppedError: the log was changed or is being closed.
    """
    try:
        end = observe(work)
        rewrite(work, end)
    except SegmentGoneError as error:
        raise RewriteStoppedError(f"a segment of {work.part.name} was deleted: {error}") from error
    return end


# --- pass 1 ------------------------------------------------------------------------------------------------------


def observe(work: PartRewrite[S]) -> int:
    """Run pass 1: show the records to the filters. Return the exclusive end of the offsets that the filters observed.

    The result is the end offset of the job, or a lower offset if a filter's memory is full. Raises the errors of
    ``run_passes``, and SegmentGoneError if a segment was deleted.
    """
    by_kind: dict[str, list[RecordFilter]] = {"dirty": [], "part": [], "log": []}
    for record_filter in work.filters:
        if record_filter.observes not in by_kind:
            raise PluginError(f"a filter observes {record_filter.observes!r}, which is not one of {', '.join(by_kind)}")
        by_kind[record_filter.observes].append(record_filter)
    if by_kind["log"]:
        _observe_log(work, by_kind["log"])
    ends = [work.job.end]
    for kind, start in (("dirty", work.job.dirty_start), ("part", work.job.start)):
        if by_kind[kind]:
            ends.append(_PartPass(work, by_kind[kind], start).run())
    return min(ends)


def _observe_log(work: PartRewrite[S], filters: Sequence[RecordFilter]) -> None:
    if work.whole_log is None:
        raise StorageError(f"a filter observes all of {work.part.name}, which only an engine can read here")
    for records in work.whole_log(fields_of(filters)):
        work.step(memoryview(records.arena).nbytes)
        if _observe_records(filters, records) < records.count:
            raise _memory_error(work)


class _PartPass(Generic[S]):
    """Pass 1 over a log's local or tier part from offset ``start`` on, for the filters that observe these records."""

    def __init__(self, work: PartRewrite[S], filters: Sequence[RecordFilter], start: int) -> None:
        self._work, self._filters, self._start = work, filters, start
        self._transactions = TransactionPass(work.part.components)
        self._observed_end = start  # exclusive end of the offsets that were observed so far

    def run(self) -> int:
        """Show the records to the filters; return the end offset of the job, or a lower offset if a filter is full."""
        work, start, end, components = self._work, self._start, self._work.job.end, self._work.part.components
        self._transactions.expect(aborted_transactions(work.part.from_offset(start), start, end, components))
        for segment in work.segments(start, end):
            for chunk in chunks_from(
                segment, max(start, segment.base_offset), components, offset_limit=segment.end_offset
            ):
                work.step(chunk.data.nbytes)
                work.stats.bytes_observed += chunk.data.nbytes
                for table in chunk.tables:
                    stop = self._show(segment, chunk, table)
                    if stop is not None and stop <= work.job.dirty_start:
                        raise _memory_error(work)
                    if stop is not None:
                        return stop
                    self._observed_end = max(self._observed_end, table.last_offset[-1] + 1)
            self._observed_end = max(self._observed_end, segment.end_offset)  # offsets may be missing at the end
        return end

    def _show(self, segment: S, chunk: Chunk, table: BatchTable) -> int | None:
        """Show a table's records to the filters.

        Return None, or the exclusive end of the accepted offsets if a filter is full.
        """
        visible = table
        if is_special(table):
            dropped = self._transactions.rows(table, chunk.data)
            rows = zip(dropped, table.attributes, strict=True)
            visible = table.keep([not is_dropped and not attributes & CONTROL_BIT for is_dropped, attributes in rows])
        if len(visible) and visible.last_offset[0] < self._start:
            visible = visible.take(bisect_left(visible.last_offset, self._start), len(visible))
        if not len(visible):
            return None
        for columns in decode(chunk, visible, segment, self._work.part.components, fields_of(self._filters)):
            records = columns
            if records.count and records.offset[0] < self._start:
                records = records.take(bisect_left(records.offset, self._start), records.count)
            accepted = _observe_records(self._filters, records)
            if accepted < records.count:
                ends = [self._observed_end]
                whole_batches = bisect_left(
                    table.last_offset, records.offset[accepted]
                )  # batches before the refused record
                if whole_batches:
                    ends.append(table.last_offset[whole_batches - 1] + 1)
                if accepted:
                    ends.append(records.offset[accepted - 1] + 1)
                return max(ends)
        return None


def _observe_records(filters: Sequence[RecordFilter], records: RecordColumns) -> int:
    """Show records to the filters, and return the number of records, from the first on, that every filter accepted."""
    accepted = min((record_filter.observe(records) for record_filter in filters), default=records.count)
    if not 0 <= accepted <= records.count:
        raise PluginError(f"a filter reports that it read {accepted} of {records.count} records")
    return accepted


def _memory_error(work: PartRewrite[S]) -> PluginError:
    return PluginError(
        f"no record of {work.part.name} fits the {work.job.memory_bytes} bytes that its filter may use: raise "
        "log.cleaner.dedupe.buffer.size"
    )


# --- pass 2 ------------------------------------------------------------------------------------------------------


def rewrite(work: PartRewrite[S], end: int) -> None:
    """Run pass 2: rewrite the segments that begin below the offset ``end``, which ``observe`` returned.

    Raises the errors of ``observe``.
    """
    part, job = work.part, work.job
    compacted = work.segments(max(job.dirty_start - 1, job.start), job.dirty_start)
    last_compacted = next(compacted, None)
    legacy_horizon_ms = (
        0 if last_compacted is None else part.modified_ms(last_compacted) - part.config.delete_retention_ms
    )
    last_records = {
        producer.producer_id: (producer.last_offset, producer.producer_epoch) for producer in part.producers()
    }
    transactions = TransactionPass(part.components, keeps_markers=work.keeps_tombstones)
    aborted = AbortedIndex(part.from_offset(job.start), part.components)
    state = UnchangedTracker(part.components, last_records)
    for group in groups_of(work.segments(job.start, end), part.index_bytes, part.config):
        is_whole = group[-1].end_offset <= end and not work.keeps_tombstones
        notes = DigestNotes(work.digests, work.filters, group[0].base_offset, state, is_whole=is_whole)
        GroupRewrite(work, end, legacy_horizon_ms, last_records, transactions, notes, aborted).run(group)
