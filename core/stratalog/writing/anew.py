"""A part of what a tier has of a log, written anew by one task of a job that replaces it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from stratalog.cleaning.rewrite import Rewriting
from stratalog.cleaning.throttle import Throttle
from stratalog.cleaning.tierpart import TierSource, Traffic, source_of
from stratalog.config.topic import TopicConfig
from stratalog.log.cleaned import CleanedSegment, SpooledSegment
from stratalog.log.tiered import producers_at
from stratalog.producers.snapshot import ProducerEntry
from stratalog.segment.components import Components
from stratalog.segment.readable import ReadableSegment
from stratalog.spi.cleanup import RecordFilter, RewriteJob
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.segments import SegmentStore
from stratalog.tier.closed import INDEX_KINDS
from stratalog.tier.fetch import RemoteSegment
from stratalog.tier.log import TierLog
from stratalog.writing.values import Rewritten, StagedSegment


@dataclass(slots=True)
class Standing:
    """Where a task writes: the log, in which epoch, with which components and settings, and a place for temporary files."""

    remote: TierLog
    leader_epoch: int
    parts: Components
    config: TopicConfig
    temporaries: SegmentStore


class StagedPart:
    """A ``Rewritable`` of which everything that is made is staged. For one thread.

    Args:
        at: where it writes.
        entries: the segments of the part, and all that follow them: markers of their transactions may be there.
    """

    def __init__(self, at: Standing, entries: Sequence[StoredSegment]) -> None:
        self._at, traffic = at, Traffic()
        self.name, self.parts, self.config = at.remote.log, at.parts, at.config
        self.segments: Sequence[TierSource] = [
            TierSource(RemoteSegment(entry, at.remote.fetcher), None, traffic) for entry in entries
        ]
        self.staged: list[StagedSegment] = []

    def producers(self) -> list[ProducerEntry]:
        """Those that are known at the tier's end."""
        view = self._at.remote.view()
        return list(producers_at(view, view.end_offset, self.parts).entries())

    def modified_ms(self, segment: ReadableSegment) -> int:
        """When its ``.log`` file was last written."""
        return _entry(segment).info.modified_ms

    def index_bytes(self, segment: ReadableSegment, role: IndexRole) -> int:
        """The size of an index, as it is stored."""
        place = _entry(segment).slices.get(INDEX_KINDS[role])
        return 0 if place is None else place.size_bytes

    def new_cleaned(self, base_offset: int) -> CleanedSegment:
        """Begin a segment in a temporary folder of its own."""
        name = uuid.UUID(int=self.parts.env.chance.getrandbits(128), version=4).hex
        return SpooledSegment(self._at.temporaries.open_log(name, create=True), base_offset, self.parts, self.config)

    def replace(self, made: CleanedSegment, old: Sequence[ReadableSegment], ticket: int) -> bool:
        """Upload a finished one; errors as ``TierLog.store``."""
        del ticket
        assert isinstance(made, SpooledSegment)
        at, layout = self._at, self.config.tier_layout
        source = source_of(made, old)
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
    """Write the segments of [start, end) anew, as the second pass of a round of compaction does.

    Raises:
        CorruptBatchError: an entry is damaged.
        DiskFullError: no space for temporary files.
        StoreError: the store failed.
    """
    start, end = span
    parts = part.parts
    job = RewriteJob(part.name, start, end, first_dirty_offset, now_ms, 0, config=part.config)
    throttle = Throttle(parts.env.clock, float("inf"))
    rewriting = Rewriting(
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
    rewriting.rewrite(end)
    stats = rewriting.stats
    return Rewritten(tuple(part.staged), stats.records_read, stats.records_kept, stats.bytes_read, stats.bytes_written)


def _entry(segment: ReadableSegment) -> StoredSegment:
    assert isinstance(segment, TierSource)  # there are no others in a part
    return segment.stored
