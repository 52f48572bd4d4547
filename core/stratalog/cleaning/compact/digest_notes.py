"""Notes of a round about the segments that it reads, which let later rounds skip unchanged segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratalog.cleaning.compact import unchanged_segments
from stratalog.cleaning.compact.segment_digests import NEVER_MS, Digest, Digests
from stratalog.cleaning.compact.transaction_filter import is_special
from stratalog.cleaning.compact.unchanged_segments import BatchVerdicts, UnchangedState, UnchangedTracker
from stratalog.cleaning.compact.verdicts import AT_HORIZON
from stratalog.model.batches import DELETE_HORIZON_BIT, BatchTable
from stratalog.spi.cleanup import RecordFilter


class DigestNotes:
    """Digest of the segment that replaces one group of segments.

    No digest is written if the next round will drop or change something in the segment, for example the marker of a
    transaction that is empty now. None is written either for a segment that the round has not read to its end.

    Args:
        digests: where the digest is written; None: nowhere.
        filters: filters of the round; all must make digests.
        base_offset: base offset of the group.
        state: state of the pass.
        is_whole: True if the filters judge all records of the group, and the due time of the kept records is known.
    """

    def __init__(
        self,
        digests: Digests[Any] | None,
        filters: Sequence[RecordFilter],
        base_offset: int,
        state: UnchangedTracker,
        *,
        is_whole: bool,
    ) -> None:
        self._digests, self._filters = digests, filters
        self._state, self._unchanged = state, UnchangedState()
        self._due_ms = NEVER_MS
        is_wanted = bool(filters) and all(found.digest_kind for found in filters)
        self._writer = digests.begin(base_offset) if digests is not None and is_wanted and is_whole else None

    def note(self, table: BatchTable, facts: BatchVerdicts, *, is_plain: bool = False) -> None:
        """Note the batches of a table; call once for every table.

        Batches that need a delete horizon and have none get the one of ``facts``. ``is_plain`` says that no batch needs a
        horizon and that no batch stays empty.
        """
        if self._digests is None or (is_plain and not is_special(table)):
            return
        if table.magic >= 2 and not self._state.note(table, facts, self._unchanged):
            self.abandon()
        if self._writer is None:
            return
        for row, words in enumerate(facts.verdicts):
            if AT_HORIZON in bytes(words):
                has_one = table.attributes[row] & DELETE_HORIZON_BIT
                self._due_ms = min(self._due_ms, table.base_timestamp_ms[row] if has_one else facts.horizon_ms)

    def pass_over(self, found: UnchangedState) -> None:
        """Apply the effects of a segment that is not read, as if the pass had read it."""
        found.pass_over(self._state.met)

    def old_tombstones(self, *, stay: bool, is_last_kept: bool) -> None:
        """Note a table of a format without horizons: tombstones that ``stay`` expire by the segment's time.

        ``is_last_kept`` says that the last record of the table stays only because it ends this round.
        """
        self._unchanged.has_old_tombstones |= stay
        if is_last_kept:
            self.abandon()

    def collect(self, *, end: bool) -> None:
        """Write the sections that the filters have completed so far."""
        if self._digests is None:
            return
        for found in self._filters:
            for section in found.digest(end=end):
                if self._writer is not None:
                    self._writer.add(found.digest_kind, section)

    def take_over(self, digest: Digest) -> None:
        """Add the digest of a segment whose records the round did not read."""
        if self._writer is None or self._digests is None:
            return
        self._due_ms = min(self._due_ms, digest.due_ms)
        self._unchanged.join(digest.unchanged)
        for kind, section in self._digests.sections(digest):
            self._writer.add(kind, section)

    def seal(self) -> None:
        """Complete the digest after all records were read: it describes the segment that is stored now."""
        self.collect(end=True)
        if self._writer is not None:
            if self._unchanged:
                self._writer.add(unchanged_segments.KIND, self._unchanged.encode())
            self._writer.seal(self._due_ms)

    def abandon(self) -> None:
        """Discard the digest; later calls write nothing."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
