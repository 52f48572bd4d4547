"""Compaction in two passes: filters observe the dirty range, then every segment up to its end is rewritten.

Source: apache/kafka Cleaner (doClean, buildOffsetMap, cleanSegments, cleanInto), MemoryRecords.RecordFilter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from stratalog.cleaning.compact.copy_pass import CopyPass
from stratalog.cleaning.compact.digest_notes import DigestNotes
from stratalog.cleaning.compact.rewriting import Rewriting
from stratalog.cleaning.compact.segment_digests import Digest
from stratalog.cleaning.compact.segment_groups import groups_of
from stratalog.cleaning.compact.segment_range import RewriteStoppedError, S
from stratalog.cleaning.compact.transaction_filter import AbortedIndex, TransactionPass, is_special
from stratalog.cleaning.compact.unchanged_segments import UnchangedTracker
from stratalog.errors import PluginError, SegmentGoneError
from stratalog.model.batches import CONTROL_BIT, BatchTable
from stratalog.segment.framing import Chunk
from stratalog.segment.search import aborted_transactions, chunks_from, decode


def run_passes(of: Rewriting[S]) -> int:
    """Run both passes; return the exclusive end offset of the clean part.

    Raises:
        CorruptBatchError: an entry is damaged. Its segment loses nothing, and the segments before it are rewritten.
        DiskFullError: the disk is full. The segments before are rewritten.
        PluginError: a filter accepts no record, or returns wrong verdicts.
        RewriteStoppedError: see the class.
    """
    try:
        end = observe(of)
        rewrite(of, end)
    except SegmentGoneError as error:
        raise RewriteStoppedError(f"a segment of {of.log.name} was deleted: {error}") from error
    return end


# --- pass 1 ------------------------------------------------------------------------------------------------------


def observe(of: Rewriting[S]) -> int:
    """Run pass 1 alone: show filters the dirty range; return the offset where they stopped. Errors as for ``run``."""
    job, parts = of.job, of.log.parts
    transactions = TransactionPass(parts)
    following = of.log.from_offset(job.dirty_start)
    transactions.expect(aborted_transactions(following, job.dirty_start, job.end, parts))
    seen = job.dirty_start
    for segment in of.segments(job.dirty_start, job.end):
        for chunk in chunks_from(segment, max(job.dirty_start, segment.base_offset), parts, below=segment.end_offset):
            of.step(chunk.data.nbytes)
            of.stats.bytes_observed += chunk.data.nbytes
            for table in chunk.tables:
                stop = _observe_table(of, segment, chunk, table, transactions, seen)
                if stop is not None:
                    return _checked_progress(of, stop)
                seen = max(seen, table.last_offset[-1] + 1)
        seen = max(seen, segment.end_offset)  # offsets may be missing at the end
    return job.end


def _observe_table(
    of: Rewriting[S], segment: S, chunk: Chunk, table: BatchTable, transactions: TransactionPass, seen: int
) -> int | None:
    """Return None, or the offset at which the round ends because a filter is full."""
    dirty_start = of.job.dirty_start
    wanted = table
    if is_special(table):
        dropped = transactions.rows(table, chunk.data)
        rows = zip(dropped, table.attributes, strict=True)
        wanted = table.keep([not gone and not attributes & CONTROL_BIT for gone, attributes in rows])
    if len(wanted) and wanted.last_offset[0] < dirty_start:
        wanted = wanted.take(bisect_left(wanted.last_offset, dirty_start), len(wanted))
    if not len(wanted):
        return None
    for columns in decode(chunk, wanted, segment, of.log.parts, of.fields):
        records = columns
        if records.count and records.offset[0] < dirty_start:
            records = records.take(bisect_left(records.offset, dirty_start), records.count)
        taken = min((found.observe(records) for found in of.filters), default=records.count)
        if not 0 <= taken <= records.count:
            raise PluginError(f"a filter reports that it read {taken} of {records.count} records")
        if taken < records.count:
            refused = records.offset[taken]
            whole = bisect_left(table.last_offset, refused)  # batches before that of the refused record
            ends = [seen, *table.last_offset[max(whole - 1, 0) : whole], *records.offset[max(taken - 1, 0) : taken]]
            return max(ends[0], *(last + 1 for last in ends[1:])) if len(ends) > 1 else seen
    return None


def _checked_progress(of: Rewriting[S], end: int) -> int:
    if end <= of.job.dirty_start:
        raise PluginError(
            f"no record of {of.log.name} fits the {of.job.memory_bytes} bytes that its filter may use: raise "
            "log.cleaner.dedupe.buffer.size"
        )
    return end


# --- pass 2 ------------------------------------------------------------------------------------------------------


def rewrite(of: Rewriting[S], end: int) -> None:
    """Run pass 2 alone, with filters that already know the records of pass 1; errors as for ``run``."""
    log, job = of.log, of.job
    clean = next(of.segments(max(job.dirty_start - 1, job.start), job.dirty_start), None)  # the last one
    legacy_horizon_ms = 0 if clean is None else log.modified_ms(clean) - log.config.delete_retention_ms
    last_records = {found.producer_id: (found.last_offset, found.producer_epoch) for found in of.log.producers()}
    transactions = TransactionPass(log.parts, keeps_markers=of.keeps_tombstones)
    aborted = AbortedIndex(log.from_offset(job.start), log.parts)
    state = UnchangedTracker(log.parts, last_records)
    for group in groups_of(of.segments(job.start, end), log.index_bytes, log.config):
        is_whole = group[-1].end_offset <= end and not of.keeps_tombstones
        notes = DigestNotes(of.digests, of.filters, group[0].base_offset, state, is_whole=is_whole)
        _rewrite_group(of, group, CopyPass(of, end, legacy_horizon_ms, last_records, transactions, notes, aborted))


def _rewrite_group(of: Rewriting[S], group: Sequence[S], over: CopyPass[S]) -> None:
    """Make one segment of a group. A group of one segment that loses nothing is left as it is, without a write."""
    if len(group) > 1 or _sparing(of, group[0], over) is None:
        _rewrite_read(of, group, over)
    of.stats.segments_before += len(group)
    of.stats.segments_after += 1


def _sparing(of: Rewriting[S], segment: S, over: CopyPass[S]) -> Digest | None:
    """Return the digest of a segment that need not be read because it loses nothing; otherwise None."""
    if of.digests is None or segment.end_offset > of.job.dirty_start:
        return None
    digest = of.digests.sparing(segment, of.filters, of.job.now_ms)
    if digest is None or not over.passes_over(segment, digest):
        return None
    of.stats.segments_spared += 1
    return digest


def _rewrite_read(of: Rewriting[S], group: Sequence[S], over: CopyPass[S]) -> None:
    try:
        if of.is_copied or len(group) > 1:
            over.begin(group[0].base_offset)
        for segment in group:
            digest = _sparing(of, segment, over) if len(group) > 1 else None
            if digest is not None:
                over.copy_spared(segment, digest)
            else:
                over.copy(segment)
        of.check()
        built = over.finish(group)
    except BaseException:
        over.discard()
        raise
    try:
        if built is not None:
            if not of.publisher.replace(built, group):
                raise RewriteStoppedError(f"{of.log.name} changed meanwhile")  # noqa: TRY301 - the digest goes first
            of.stats.bytes_freed += sum(segment.size_bytes for segment in group) - built.size_bytes
        over.notes.seal()
    except BaseException:
        over.notes.abandon()
        raise
