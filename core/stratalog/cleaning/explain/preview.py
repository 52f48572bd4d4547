"""Preview of a compaction round: both passes run over the log, but count bytes instead of writing them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, cast

from stratalog.cleaning.compact.compaction_round import CleanerLimits, job_of, reason_of
from stratalog.cleaning.compact.part_rewrite import PartRewrite, filters_of
from stratalog.cleaning.compact.segment_digests import SegmentDigests
from stratalog.cleaning.compact.segment_range import LocalRange, RewriteStoppedError
from stratalog.cleaning.compact.tier_range import TierRange, Traffic
from stratalog.cleaning.compact.two_pass import run_passes
from stratalog.cleaning.plan.compaction_plan import CompactionPlan
from stratalog.errors import SegmentGoneError
from stratalog.model.batches import Buffer
from stratalog.model.records import Fields
from stratalog.segment.build import BuiltSegment, SegmentBuilder
from stratalog.segment.components import Components
from stratalog.segment.framing import scan
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.cleanup import CleanupPolicy


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """One segment that a compaction round would write in place of the segments with the offsets [start, end)."""

    start: int
    end: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class RoundPreview:
    """Expected result of a compaction round.

    Attributes:
        end: exclusive end offset of the range that the round would compact.
        segments: the segments that the round would write. A segment that loses no record is not rewritten, and not
            listed.
        kept: the watched offsets in ``segments`` whose records would stay.
        reason: cause of the round. If the round would end before the planned end, the text also has the reason for
            that.
    """

    end: int
    segments: tuple[PlannedSegment, ...]
    kept: frozenset[int]
    reason: str = ""


def preview(
    plan: CompactionPlan,
    policies: Mapping[str, CleanupPolicy],
    limits: CleanerLimits,
    now_ms: int,
    watched: Sequence[int] = (),
) -> RoundPreview | None:
    """Run a planned compaction round without writing, and return its expected result; None if no round is planned.

    If the plan is for the tier part of a log, the call downloads the segments of the round that have no local copy.
    ``now_ms`` is the time when the round would begin. ``watched`` are ascending offsets to look up for
    ``RoundPreview.kept``.

    Raises:
        SegmentGoneError: the log changed during the preview; call again.
        StorageError: the round would fail with this error.
    """
    rewrite = plan.rewrite
    if rewrite is None:
        return None
    log, job = plan.log, job_of(plan.log, rewrite, limits, now_ms)
    counting = _CountingPublisher(log.components, watched)
    try:
        if plan.tier is None:
            digests = SegmentDigests(log, writable=False)
            job = replace(job, secret=digests.secret)
            filters = filters_of(policies, job)
            local = PartRewrite.of_log(log, LocalRange(log), counting, job, filters, limits.read_bytes)
            local.digests = digests
            end = run_passes(local)
        else:
            part, filters = TierRange.of(log, Traffic()), filters_of(policies, job)
            end = run_passes(PartRewrite.of_log(log, part, counting, job, filters, limits.read_bytes))
    except RewriteStoppedError as stopped:
        raise SegmentGoneError(str(stopped), str(log.name)) from stopped
    reason = reason_of(rewrite, end, limits)
    return RoundPreview(end, tuple(counting.planned), frozenset(counting.kept_offsets), reason)


@dataclass(slots=True)
class _CountingBuilder:
    """Builder that writes no file: counts bytes, and adds watched offsets of records to ``kept_offsets``."""

    components: Components
    watched: Sequence[int]
    kept_offsets: list[int]
    size_bytes: int = 0

    def append(self, data: Buffer, aborted: object = None) -> None:
        del aborted
        size_bytes = memoryview(data).nbytes
        self.size_bytes += size_bytes
        if not self.watched:
            return
        components = self.components
        for table in scan(components.formats, data, 0, size_bytes, check_crc=False).tables:
            record_format, limit_bytes = components.formats.of(table.magic, "", 0), components.limits.decompressed_bytes
            for records in record_format.decode(data, table, fields=Fields.OFFSET, limit_bytes=limit_bytes):
                offsets = set(records.offset)
                first = bisect_left(self.watched, records.offset[0]) if records.count else len(self.watched)
                last = records.offset[-1] if records.count else -1
                self.kept_offsets += [
                    offset for offset in self.watched[first : bisect_left(self.watched, last + 1)] if offset in offsets
                ]

    def finish(self, end_offset: int, modified_ms: int) -> Self:
        """Return this object, whose ``size_bytes`` is that of the segment."""
        del end_offset, modified_ms
        return self

    def discard(self) -> None:
        """Do nothing, because there is no file to remove."""


class _CountingPublisher:
    """Publisher for a preview: records the segments that a compaction round would write, and changes nothing.

    Attributes:
        planned: the segments that a round would publish.
        kept_offsets: the watched offsets in these segments.
    """

    def __init__(self, components: Components, watched: Sequence[int]) -> None:
        self._components, self._watched = components, watched
        self.planned: list[PlannedSegment] = []
        self.kept_offsets: list[int] = []

    def begin(self, base_offset: int) -> SegmentBuilder:
        """Return a builder that counts bytes instead of writing them."""
        del base_offset
        return cast(SegmentBuilder, _CountingBuilder(self._components, self._watched, self.kept_offsets))

    def replace(self, built: BuiltSegment, old: Sequence[ReadableSegment]) -> bool:
        """Add the segment to ``planned`` instead of publishing it. Always return True."""
        before = sum(segment.size_bytes for segment in old)
        self.planned.append(PlannedSegment(old[0].base_offset, old[-1].end_offset, before, built.size_bytes))
        return True
