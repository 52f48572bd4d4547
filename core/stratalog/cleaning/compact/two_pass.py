"""Compaction in two passes: filters observe the dirty range, then every segment up to its end is rewritten.

Source: apache/kafka Cleaner (doClean, buildOffsetMap, cleanSegments, cleanInto), MemoryRecords.RecordFilter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic

from stratalog.cleaning.compact.digest_notes import Notes
from stratalog.cleaning.compact.empty_batches import stay_empty
from stratalog.cleaning.compact.segment_digests import Digest, Digests
from stratalog.cleaning.compact.segment_groups import groups_of
from stratalog.cleaning.compact.segment_range import Rewritable, RewriteStats, RewriteStoppedError, S
from stratalog.cleaning.compact.throttle import Throttle
from stratalog.cleaning.compact.transaction_filter import AbortedAhead, TransactionPass, is_special
from stratalog.cleaning.compact.unchanged_segments import Looks, SteadyState
from stratalog.cleaning.compact.verdicts import (
    AT_HORIZON,
    AT_HORIZON_IS_OVER,
    DROP,
    KEEP,
    by_batch,
    judged,
    of_old_format,
)
from stratalog.errors import CorruptBatchError, PluginError, SegmentGoneError
from stratalog.model.batches import CONTROL_BIT, DELETE_HORIZON_BIT, BatchTable, Buffer
from stratalog.model.records import Fields
from stratalog.segment.cleaned_segment import CleanedSegment
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.search import aborted_transactions, chunks_from, decode
from stratalog.spi.cleanup import RecordFilter, RewriteJob

_WRITTEN_BYTES: Final = 1 << 19  # written at once


@dataclass(slots=True)
class Rewriting(Generic[S]):
    """One round over one log.

    Attributes:
        log: the log, or the part of it that is rewritten.
        job: bounds of the round: closed segments from ``start`` up to ``end``; records from ``end`` on must stay.
        filters: filters that must all return KEEP for a record to stay.
        keeps_tombstones: True if a tier holds older segments: the round then drops neither tombstones nor markers.
        read_bytes: bytes that are read at once.
        throttle: counts the bytes.
        check: called regularly; an error that it raises ends the round.
        ticket: ``CleaningState.generation`` of the log when the round began.
        is_copied: True if a group of one segment is always written from its beginning, even if it may lose nothing:
            reading it twice would cost more.
        stats: statistics of the round.
        digests: digests of segments that need not be read; None: all are read. The job's secret is theirs.
    """

    log: Rewritable[S]
    job: RewriteJob
    filters: Sequence[RecordFilter]
    keeps_tombstones: bool
    read_bytes: int
    throttle: Throttle
    check: Callable[[], None]
    ticket: int
    is_copied: bool = False
    stats: RewriteStats = field(default_factory=RewriteStats)
    digests: Digests[S] | None = None

    def run(self) -> int:
        """Run both passes; return the exclusive end offset of the clean part.

        Raises:
            CorruptBatchError: an entry is damaged. Its segment loses nothing, and the segments before it are rewritten.
            DiskFullError: the disk is full. The segments before are rewritten.
            PluginError: a filter accepts no record, or returns wrong verdicts.
            RewriteStoppedError: see the class.
        """
        try:
            end = self.observe()
            self.rewrite(end)
        except SegmentGoneError as error:
            raise RewriteStoppedError(f"a segment of {self.log.name} went away: {error}") from error
        return end

    # --- pass 1 ------------------------------------------------------------------------------------------------------

    def observe(self) -> int:
        """Run pass 1 alone: show filters the dirty range; return the offset where they stopped. Errors as for ``run``."""
        job, parts = self.job, self.log.parts
        transactions = TransactionPass(parts)
        following = self.log.from_offset(job.dirty_start)
        transactions.expect(aborted_transactions(following, job.dirty_start, job.end, parts))
        seen = job.dirty_start
        for segment in self._segments(job.dirty_start, job.end):
            for chunk in chunks_from(
                segment, max(job.dirty_start, segment.base_offset), parts, below=segment.end_offset
            ):
                self.step(chunk.data.nbytes)
                self.stats.bytes_observed += chunk.data.nbytes
                for table in chunk.tables:
                    stop = self._observe_table(segment, chunk, table, transactions, seen)
                    if stop is not None:
                        return self._checked_progress(stop)
                    seen = max(seen, table.last_offset[-1] + 1)
            seen = max(seen, segment.end_offset)  # offsets may be missing at the end
        return job.end

    def _observe_table(
        self, segment: S, chunk: Chunk, table: BatchTable, transactions: TransactionPass, seen: int
    ) -> int | None:
        """Return None, or the offset at which the round ends because a filter is full."""
        dirty_start = self.job.dirty_start
        wanted = table
        if is_special(table):
            dropped = transactions.rows(table, chunk.data)
            rows = zip(dropped, table.attributes, strict=True)
            wanted = table.keep([not gone and not attributes & CONTROL_BIT for gone, attributes in rows])
        if len(wanted) and wanted.last_offset[0] < dirty_start:
            wanted = wanted.take(bisect_left(wanted.last_offset, dirty_start), len(wanted))
        if not len(wanted):
            return None
        for columns in decode(chunk, wanted, segment, self.log.parts, self.fields):
            records = columns
            if records.count and records.offset[0] < dirty_start:
                records = records.take(bisect_left(records.offset, dirty_start), records.count)
            taken = min((found.observe(records) for found in self.filters), default=records.count)
            if not 0 <= taken <= records.count:
                raise PluginError(f"a filter says that it took {taken} of {records.count} records")
            if taken < records.count:
                refused = records.offset[taken]
                whole = bisect_left(table.last_offset, refused)  # batches before that of the refused record
                ends = [seen, *table.last_offset[max(whole - 1, 0) : whole], *records.offset[max(taken - 1, 0) : taken]]
                return max(ends[0], *(last + 1 for last in ends[1:])) if len(ends) > 1 else seen
        return None

    def _checked_progress(self, end: int) -> int:
        if end <= self.job.dirty_start:
            raise PluginError(
                f"no record of {self.log.name} fits the {self.job.memory_bytes} bytes that its filter may use: raise "
                "log.cleaner.dedupe.buffer.size"
            )
        return end

    # --- pass 2 ------------------------------------------------------------------------------------------------------

    def rewrite(self, end: int) -> None:
        """Run pass 2 alone, with filters that already know the records of pass 1; errors as for ``run``."""
        log, job = self.log, self.job
        clean = next(self._segments(max(job.dirty_start - 1, job.start), job.dirty_start), None)  # the last one
        legacy_horizon_ms = 0 if clean is None else log.modified_ms(clean) - log.config.delete_retention_ms
        last_records = {found.producer_id: (found.last_offset, found.producer_epoch) for found in self.log.producers()}
        transactions = TransactionPass(log.parts, keeps_markers=self.keeps_tombstones)
        aborted = AbortedAhead(log.from_offset(job.start), log.parts)
        state = SteadyState(log.parts, last_records)
        for group in groups_of(self._segments(job.start, end), log.index_bytes, log.config):
            is_whole = group[-1].end_offset <= end and not self.keeps_tombstones
            notes = Notes(self.digests, self.filters, group[0].base_offset, state, is_whole=is_whole)
            self._rewrite_group(group, _Pass(self, end, legacy_horizon_ms, last_records, transactions, notes, aborted))

    def _rewrite_group(self, group: Sequence[S], over: _Pass[S]) -> None:
        """Make one segment of a group. A group of one segment that loses nothing is left as it is, without a write."""
        if len(group) > 1 or self._sparing(group[0], over) is None:
            self._rewrite_read(group, over)
        self.stats.segments_before += len(group)
        self.stats.segments_after += 1

    def _sparing(self, segment: S, over: _Pass[S]) -> Digest | None:
        """Return the digest of a segment that need not be read because it loses nothing; otherwise None."""
        if self.digests is None or segment.end_offset > self.job.dirty_start:
            return None
        digest = self.digests.sparing(segment, self.filters, self.job.now_ms)
        if digest is None or not over.passes_over(segment, digest):
            return None
        self.stats.segments_spared += 1
        return digest

    def _rewrite_read(self, group: Sequence[S], over: _Pass[S]) -> None:
        is_begun = self.is_copied or len(group) > 1
        made = self.log.new_cleaned(group[0].base_offset) if is_begun else None
        try:
            for segment in group:
                digest = self._sparing(segment, over) if len(group) > 1 else None
                if digest is not None and made is not None:
                    over.copy_spared(segment, digest, made)
                else:
                    made = over.copy(segment, made)
            if made is not None:
                made.finish(self.log.modified_ms(group[-1]))
                self.check()
                if not self.log.replace(made, group, self.ticket):
                    raise RewriteStoppedError(f"{self.log.name} was changed meanwhile")  # noqa: TRY301 - files go first
                self.stats.bytes_freed += sum(segment.size_bytes for segment in group) - made.size_bytes
            over.notes.seal()
        except BaseException:
            over.notes.abandon()
            if made is not None:
                made.discard()
            raise

    # --- both --------------------------------------------------------------------------------------------------------

    def _segments(self, start: int, end: int) -> Iterator[S]:
        """Yield the segments of the job that end above ``start`` and begin below ``end``."""
        for found in self.log.from_offset(start):
            if found.base_offset >= end:
                return
            if found.base_offset >= self.job.start:
                yield found

    @property
    def fields(self) -> Fields:
        """Fields that the filters read."""
        wanted = Fields.OFFSET
        for found in self.filters:
            wanted |= found.fields
        return wanted

    def step(self, size_bytes: int) -> None:
        """Call ``check`` and count bytes that were read."""
        self.check()
        self.throttle.took(size_bytes)


@dataclass(slots=True)
class _Pass(Generic[S]):
    """State of pass 2: the end of the range that filters know, and what must stay regardless of their verdicts."""

    of: Rewriting[S]
    end: int
    legacy_horizon_ms: int
    last_records: dict[int, tuple[int, int]]
    transactions: TransactionPass
    notes: Notes
    aborted: AbortedAhead
    _expected: bool = False
    _aborted_rows: Sequence[bool] | None = None  # of the current table, including markers that end nothing
    _held: list[Buffer] = field(default_factory=list)
    _held_bytes: int = 0

    def copy(self, segment: S, made: CleanedSegment | None) -> CleanedSegment | None:
        """Write the kept part of a segment; if ``made`` is None, begin it at the first loss. Return ``made``."""
        of, parts = self.of, self.of.log.parts
        after = segment.end_offset
        self.transactions.kept.clear()
        self._expected = False
        was_checked = of.job.dirty_start <= segment.base_offset and after <= self.end  # by pass 1
        chunks = walk(segment, 0, parts, check_crc=not was_checked, read_bytes=of.read_bytes, below=after)
        try:
            for chunk in chunks:
                of.step(chunk.data.nbytes)
                of.stats.bytes_read += chunk.data.nbytes
                for table in chunk.tables:
                    out = self._retained(segment, chunk, table)
                    start, end = table.position[0], table.position[-1] + table.size_bytes[-1]
                    if made is None:
                        if out == chunk.data[start:end]:
                            continue
                        made = of.log.new_cleaned(segment.base_offset)
                        self._copy_range(segment, chunk.position + start, made)
                    self._write(out, made)
                self.notes.collect(end=False)
            if made is not None:
                self._flush(made)
        except BaseException:
            if made is not None:
                made.discard()
            raise
        return made

    def passes_over(self, segment: S, digest: Digest) -> bool:
        """Return True if reading a segment would change nothing in it; then apply its effects as if it had been read."""
        steady, met = digest.steady, self.transactions.committed
        if not steady.holds(met, self.last_records, old_tombstones_stay=not self._is_old(segment)):
            return False
        steady.pass_over(met)
        self.notes.pass_over(steady)
        return True

    def copy_spared(self, segment: S, digest: Digest, made: CleanedSegment) -> None:
        """Write a segment that loses nothing; check the bytes, and do not look at the records."""
        of = self.of
        for chunk in walk(segment, 0, of.log.parts, read_bytes=of.read_bytes, below=segment.end_offset):
            of.step(chunk.data.nbytes)
            of.stats.bytes_read += chunk.data.nbytes
            self._write(chunk.data[: chunk.end_position - chunk.position], made)  # the rest may be a partial batch
        self._flush(made)
        self.notes.take_over(digest)

    def _copy_range(self, segment: S, end: int, made: CleanedSegment) -> None:
        """Write the batches before position ``end``, which lose nothing."""
        parts = self.of.log.parts
        for chunk in walk(segment, 0, parts, check_crc=False, read_bytes=self.of.read_bytes, below=segment.end_offset):
            for table in chunk.tables:
                first = chunk.position + table.position[0]
                if first >= end:
                    return
                last = min(chunk.position + table.position[-1] + table.size_bytes[-1], end)
                self._write(chunk.data[table.position[0] : last - chunk.position], made)

    def _write(self, data: Buffer, made: CleanedSegment) -> None:
        """Hold data to write it with what follows, because the kept part of a chunk may be small."""
        if len(data):
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes >= _WRITTEN_BYTES:
                self._flush(made)

    def _flush(self, made: CleanedSegment) -> None:
        """Write the held data; must happen before ``transactions`` changes to those of another segment."""
        if not self._held:
            return
        data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        made.append(data, self.transactions.kept)
        self.of.throttle.took(len(data))
        self.of.stats.bytes_written += len(data)
        self._held, self._held_bytes = [], 0

    def _retained(self, segment: S, chunk: Chunk, table: BatchTable) -> Buffer:
        """Return the batches of a table without the dropped records."""
        formats = self.of.log.parts.formats
        found = formats.get(table.magic) or formats.of(table.magic, segment.label, chunk.position + table.position[0])
        verdicts = self._verdicts(segment, chunk, table)
        words = b"".join(verdicts)
        self.of.stats.records_read += len(words)
        self.of.stats.records_kept += len(words) - words.count(DROP)
        horizon_ms = self.of.job.now_ms + self.of.log.config.delete_retention_ms
        ends_round = table.last_offset[-1] + 1 == self.of.job.end
        stay = stay_empty(table, self.last_records, ends_round=ends_round) if table.magic >= 2 else None
        looks = Looks(chunk.data, verdicts, stay, self._aborted_rows, horizon_ms)
        self.notes.look_at(table, looks, is_plain=stay is None and AT_HORIZON not in words)
        try:
            retained = found.retain(
                chunk.data,
                table,
                verdicts,
                None if self.of.keeps_tombstones else horizon_ms,
                retain_empty=stay,
                limit_bytes=self.of.log.parts.limits.decompressed_bytes,
            )
            pieces = list(retained)
        except CorruptBatchError as error:
            raise CorruptBatchError(error.reason, segment.label, chunk.position + error.position) from error
        if len(pieces) == 1 and not isinstance(pieces[0], memoryview):
            return pieces[0]
        return b"".join(pieces)  # a view would keep the chunk in memory until it is written

    def _verdicts(self, segment: S, chunk: Chunk, table: BatchTable) -> list[Buffer]:
        """Return one list of verdicts for each batch."""
        self._aborted_rows = None
        if not is_special(table):
            verdicts = list[Buffer](self._judged(segment, chunk, table))
        else:
            verdicts = self._judged_among_transactions(segment, chunk, table)
        if table.magic < 2:
            ends_round = table.last_offset[-1] + 1 == self.of.job.end
            old = of_old_format(verdicts, is_over=self._is_old(segment), ends_round=ends_round)
            self.notes.old_tombstones(stay=old.have_tombstones, is_last_kept=old.is_last_kept)
            return old.words
        if self.of.keeps_tombstones or not any(map(DELETE_HORIZON_BIT.__and__, table.attributes)):
            return verdicts
        for row, (attributes, base_ms) in enumerate(zip(table.attributes, table.base_timestamp_ms, strict=True)):
            if attributes & DELETE_HORIZON_BIT and base_ms <= self.of.job.now_ms:
                words = bytes(verdicts[row])
                below = self._below_end(segment, chunk, table.take(row, row + 1), len(words))
                verdicts[row] = words[:below].translate(AT_HORIZON_IS_OVER) + words[below:]
        return verdicts

    def _below_end(self, segment: S, chunk: Chunk, row: BatchTable, count: int) -> int:
        """Return how many of the ``count`` records of a batch the filters judged."""
        if row.last_offset[0] < self.end or row.attributes[0] & CONTROL_BIT:
            return count
        decoded = decode(chunk, row, segment, self.of.log.parts, Fields.OFFSET)
        return sum(bisect_left(columns.offset, self.end) for columns in decoded)

    def _judged(self, segment: S, chunk: Chunk, table: BatchTable) -> Iterator[Buffer]:
        """Return the filters' verdicts on a table of data."""
        of = self.of
        decoded = decode(chunk, table, segment, of.log.parts, of.fields)
        return by_batch(table, (judged(of.filters, columns, self.end) for columns in decoded))

    def _judged_among_transactions(self, segment: S, chunk: Chunk, table: BatchTable) -> list[Buffer]:
        if not self._expected:  # most segments have no transactions
            self.aborted.show(segment, self.transactions)
            self._expected = True
        dropped = self._aborted_rows = self.transactions.rows(table, chunk.data)
        rows = zip(dropped, table.attributes, strict=True)
        is_data = [not gone and not attributes & CONTROL_BIT for gone, attributes in rows]
        judgements = self._judged(segment, chunk, table.keep(is_data))
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
        """Return True if tombstones of formats without horizons have expired."""
        return self.of.log.modified_ms(segment) <= self.legacy_horizon_ms and not self.of.keeps_tombstones
