"""Digest files that a compaction round writes. With the digest of a segment, a later round can skip the segment."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.cleaning.compact import unchanged_segments
from stratalog.cleaning.compact.segment_digests import NEVER_MS, Digest, SegmentDigests
from stratalog.cleaning.compact.transaction_filter import is_special
from stratalog.cleaning.compact.unchanged_segments import BatchVerdicts, UnchangedState, UnchangedTracker
from stratalog.cleaning.compact.verdicts import AT_HORIZON
from stratalog.model.batches import DELETE_HORIZON_BIT, BatchTable
from stratalog.spi.cleanup import RecordFilter


class DigestNotes:
    """Writer of the digest file of one new segment. Gets the batches of the old segments that the new segment replaces.

    A digest describes the records of a segment. No digest is written if the next compaction round will change the
    segment, for example drop the marker of a transaction that is empty now. No digest is written for a segment that
    the round has not read completely.

    Args:
        digests: creates the digest file; None to write no digest.
        filters: filters of the compaction round. If a filter makes no digests, no digest is written.
        state: state of producers and transactions in this pass.
        is_whole: True if the filters judge all records of the group and expired tombstones may be dropped; otherwise no
            digest is written.
    """

    def __init__(
        self,
        digests: SegmentDigests | None,
        filters: Sequence[RecordFilter],
        base_offset: int,
        state: UnchangedTracker,
        *,
        is_whole: bool,
    ) -> None:
        self._digests, self._filters = digests, filters
        self._state, self._unchanged = state, UnchangedState()
        self._due_ms = NEVER_MS
        has_digests = bool(filters) and all(record_filter.digest_kind for record_filter in filters)
        self._writer = digests.begin(base_offset) if digests is not None and has_digests and is_whole else None

    def note(self, table: BatchTable, facts: BatchVerdicts, *, is_plain: bool = False) -> None:
        """Add the batches of a table to the digest file. Call this method once for each table of the group.

        ``is_plain`` is True if no batch needs a delete horizon and no batch stays without records.
        """
        if self._digests is None or (is_plain and not is_special(table)):
            return
        if table.magic >= 2 and not self._state.note(table, facts, self._unchanged):
            self.abandon()
        if self._writer is None:
            return
        for row, batch_verdicts in enumerate(facts.verdicts):
            if AT_HORIZON in bytes(batch_verdicts):
                has_one = table.attributes[row] & DELETE_HORIZON_BIT
                self._due_ms = min(self._due_ms, table.base_timestamp_ms[row] if has_one else facts.horizon_ms)

    def pass_over(self, unchanged: UnchangedState) -> None:
        """Advance the transaction state past a segment that the pass does not read and whose state is ``unchanged``."""
        unchanged.pass_over(self._state.open_commits)

    def note_old_tombstones(self, *, stay: bool, is_last_kept: bool) -> None:
        """Add a table of batches with magic 0 or 1, whose tombstones expire by the segment's modification time.

        ``stay`` is True if the table keeps tombstones. ``is_last_kept`` is True if the compaction round keeps the last
        record of the table only because the round ends there. The next round drops this record, so no digest file is
        written.
        """
        self._unchanged.has_old_tombstones |= stay
        if is_last_kept:
            self.abandon()

    def collect(self, *, end: bool) -> None:
        """Write the digest sections that the filters have completed so far. ``end`` is True at the end of the group."""
        if self._digests is None:
            return
        for record_filter in self._filters:
            for section in record_filter.digest(end=end):
                if self._writer is not None:
                    self._writer.add(record_filter.digest_kind, section)

    def take_over(self, digest: Digest) -> None:
        """Add a segment's existing digest to the new digest file: the compaction round did not decode its records."""
        if self._writer is None or self._digests is None:
            return
        self._due_ms = min(self._due_ms, digest.due_ms)
        self._unchanged.join(digest.unchanged)
        for kind, section in self._digests.sections(digest):
            self._writer.add(kind, section)

    def seal(self) -> None:
        """Complete the digest file. If there is a new segment, publish the segment before this call."""
        self.collect(end=True)
        if self._writer is not None:
            if self._unchanged:
                self._writer.add(unchanged_segments.KIND, self._unchanged.encode())
            self._writer.seal(self._due_ms)

    def abandon(self) -> None:
        """Discard the digest file; later calls of other methods write nothing."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
