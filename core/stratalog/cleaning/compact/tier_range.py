"""Committed part of a log as the input and the output of a compaction round.

The round reads a local copy of a segment if there is one. It writes new segments into the tier.

The order is: upload the new objects, delete the local copies of the replaced segments, commit. A local copy therefore never
differs from the committed segment. A crash between these steps loses nothing, because the tier still holds all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from stratalog.cleaning.compact.segment_range import RewriteStoppedError
from stratalog.config.topic import TopicConfig
from stratalog.errors import FencedEpochError, SegmentGoneError
from stratalog.log.log import Log
from stratalog.log.read.tier_view import merged_epochs
from stratalog.model.batches import Buffer
from stratalog.model.events import SegmentEvicted
from stratalog.model.names import TopicPartition
from stratalog.model.segment_info import FileKind
from stratalog.producers.snapshot import ProducerEntry
from stratalog.segment.build import BuiltSegment, SegmentBuilder
from stratalog.segment.components import Components
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import INDEX_KINDS, StoredSegment
from stratalog.tier.commit.replace_change import SegmentSwap
from stratalog.tier.manifest.root import ChangeKind
from stratalog.tier.read.remote_segment import RemoteSegment, StoredBounds
from stratalog.tier.tier_log import TierLog
from stratalog.tier.tier_publisher import MOST_SWAPS, TierPublisher
from stratalog.tier.upload.segment_source import SegmentFacts


@dataclass(slots=True)
class Traffic:
    """Bytes of ``.log`` files that were downloaded from the tier and uploaded to it."""

    downloaded_bytes: int = 0
    uploaded_bytes: int = 0


class TierSource(StoredBounds):
    """A committed segment (a ReadableSegment), which reads its local copy while there is one."""

    __slots__ = ("_local", "_traffic", "remote", "stored")

    def __init__(self, remote: RemoteSegment, local: Segment | None, traffic: Traffic) -> None:
        self.remote, self.stored, self._local, self._traffic = remote, remote.stored, local, traffic

    @property
    def label(self) -> str:
        """Name of the file or object that is read."""
        return self.remote.label if self._local is None else self._local.label

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` from ``position``; raises the errors of a segment in a tier."""
        if self._local is not None:
            try:
                return self._local.read(position, size_bytes)
            except SegmentGoneError:  # the local copy was deleted meanwhile
                self._local = None
        data = self.remote.read(position, size_bytes)
        self._traffic.downloaded_bytes += len(data)
        return data

    def index_entries(self, role: IndexRole) -> Buffer:
        """Return the entries of an index as stored in the tier."""
        return self.remote.index_entries(role)

    def forget(self) -> bool:
        """Drop the cached bytes, which may have been damaged in transfer; do not read a damaged local copy again."""
        if self._local is None:
            return self.remote.forget()
        self._local = None
        return True


class TierRange:
    """Committed segments of a log as the input of a round (a ``SegmentRange``). For one thread.

    Args:
        name: the log.
        components: its components.
        config: settings of the topic.
        committed: returns the committed segments that end above an offset, ascending, read page by page.
        producers: returns the known producers of the log.
        traffic: counts the downloaded bytes.
    """

    def __init__(
        self,
        name: TopicPartition,
        components: Components,
        config: TopicConfig,
        committed: Callable[[int], Iterable[ReadableSegment]],
        producers: Callable[[], list[ProducerEntry]],
        traffic: Traffic,
    ) -> None:
        self.name, self.components, self.config, self.producers = name, components, config, producers
        self._committed, self._traffic = committed, traffic
        self._copies: Mapping[int, Segment] = {}
        self._behind: Sequence[Segment] = ()
        self._doubt = ""

    @classmethod
    def of(cls, log: Log, traffic: Traffic) -> Self:
        """Return the committed part of an engine's log, whose local copies are read while they exist."""
        view = log.view()
        remote = view.remote
        assert remote is not None
        found = cls(log.name, log.components, log.config, remote.segments.from_offset, log.producers, traffic)
        found._copies = {segment.base_offset: segment for segment in view.segments[:-1]}
        found._behind = [segment for segment in view.segments if segment.end_offset > remote.end_offset]
        found._doubt = log.maintenance.cleaning.tier_doubt
        return found

    def from_offset(self, offset: int) -> Iterator[ReadableSegment]:
        """Return the segments that end above ``offset``, ascending, and local ones after the committed part."""
        for found in self._committed(offset):
            if isinstance(found, RemoteSegment):
                yield TierSource(found, _copy_of(found, self._copies, self._doubt), self._traffic)
        yield from (segment for segment in self._behind if segment.end_offset > offset)

    def modified_ms(self, segment: ReadableSegment) -> int:
        """Return the time of the last write to the ``.log`` file."""
        return entry_of(segment).info.modified_ms

    def index_bytes(self, segment: ReadableSegment, role: IndexRole) -> int:
        """Return the stored size of an index."""
        place = entry_of(segment).slices.get(INDEX_KINDS[role])
        return 0 if place is None else place.size_bytes

    def forget(self, label: str) -> None:
        """Drop the cached bytes of the segment with this label."""
        for segment in self.from_offset(0):
            if segment.label == label:
                segment.forget()


class CommittedPublisher:
    """Publisher of an engine that replaces committed segments of a log (a ``SegmentPublisher``). For one thread.

    ``commit`` commits the new segments; ``abandon`` deletes them.

    Args:
        log: the log; it must be the leader.
        tier: publisher of the log's tier.
        kind: kind of the commits.
        reason: reason of the commits, for people.
        traffic: counts the uploaded bytes.

    Attributes:
        placed: replacements that were committed so far, if ``keeps_placed`` is set: their number is not limited.
    """

    def __init__(self, log: Log, tier: TierPublisher, kind: ChangeKind, reason: str, traffic: Traffic) -> None:
        self._log, self._tier, self._kind, self._reason, self._traffic = log, tier, kind, reason, traffic
        remote = log.view().remote
        assert remote is not None
        self._end = remote.end_offset
        self._made = list[SegmentSwap]()
        self.keeps_placed = False
        self.placed: tuple[SegmentSwap, ...] = ()

    @classmethod
    def open(
        cls, log: Log, tier: TierLog, reason: str, traffic: Traffic, kind: ChangeKind = ChangeKind.COMPACT
    ) -> Self:
        """Read the tier again and return a publisher for it.

        Raises:
            FencedEpochError: another writer owns the log. The log no longer accepts appends here.
            StoreError: the store failed.
        """
        with log.maintenance.stopped_if_fenced():
            publisher = TierPublisher(tier, log.leader_epoch, log.config)
            tier.refresh()
            publisher.claim()
        log.maintenance.refresh_remote()
        return cls(log, publisher, kind, reason, traffic)

    def begin(self, base_offset: int) -> SegmentBuilder:
        """Begin a segment in a file beside the log: a layout must know all bytes before an upload begins."""
        return self._log.maintenance.new_spooled(base_offset)

    def replace(self, built: BuiltSegment, old: Sequence[ReadableSegment]) -> bool:
        """Upload a finished segment unless it equals the committed one; raises the errors of ``TierPublisher.upload``."""
        entries = tuple(entry_of(segment) for segment in old)
        try:
            has_size = len(entries) == 1 and built.size_bytes == entries[0].info.size_bytes
            if has_size and built.sha256() == entries[0].sha256:
                return True
            stored = self._tier.upload_built(built, facts_of(old))
        finally:
            built.discard()
        self._traffic.uploaded_bytes += built.size_bytes
        self._made.append(SegmentSwap(entries, stored))
        if len(self._made) >= MOST_SWAPS:
            self.commit()
        return True

    def commit(self, first_dirty_offset: int | None = None, *, always: bool = False) -> None:
        """Commit the new segments in place of the old ones.

        Args:
            first_dirty_offset: offset up to which the log is compacted now; None keeps the committed value.
            always: commit even if there is no new segment.

        Raises:
            FencedEpochError: another writer owns the log. The log no longer accepts appends here.
            RewriteStoppedError: the log leads in another epoch now.
            StoreError: the store failed. Read the head again to find out whether the commit took effect.
        """
        if not self._made and first_dirty_offset is None and not always:
            return
        log, tier = self._log, self._tier
        if log.leader_epoch != tier.leader_epoch:
            raise RewriteStoppedError(f"the leader epoch of {log.name} changed")
        self._evict()
        made, self._made = self._made, []  # from here on only the committed root decides whether these are in use
        try:
            placed = tier.swap(made, self._kind, self._reason, first_dirty_offset=first_dirty_offset)
            self.placed += placed if self.keeps_placed else ()
        except FencedEpochError as error:
            if log.leader_epoch != tier.leader_epoch:
                raise RewriteStoppedError(f"the leader epoch of {log.name} changed") from error
            with log.maintenance.stopped_if_fenced():
                raise
        finally:
            log.maintenance.refresh_remote()

    def abandon(self) -> None:
        """Delete the objects that were uploaded and not committed."""
        made, self._made = self._made, []
        if made:
            self._tier.discard([found.new for found in made])

    def _evict(self) -> None:
        """Delete local copies up to the end of the last one that is about to be replaced, if there is one."""
        spans = [(found.old[0].info.base_offset, found.old[-1].info.end_offset) for found in self._made]
        copies = [found for found in self._log.view().segments[:-1] if found.end_offset <= self._end]
        stale = [
            copy.end_offset
            for copy in copies
            if any(copy.base_offset < end and start < copy.end_offset for start, end in spans)
        ]
        for gone in self._log.maintenance.drop_local(max(stale)) if stale else ():
            self._log.maintenance.notify(
                SegmentEvicted(log=self._log.name, base_offset=gone.base_offset, size_bytes=gone.size_bytes)
            )


def facts_of(old: Sequence[ReadableSegment]) -> SegmentFacts:
    """Return the facts about the segment that replaces ``old``: compaction does not change the producers' state at its end."""
    epochs = merged_epochs(entry_of(segment).info.leader_epochs for segment in old)
    last = old[-1]
    assert isinstance(last, TierSource)
    return SegmentFacts(epochs, last.remote.read_file(FileKind.SNAPSHOT))


def entry_of(segment: ReadableSegment) -> StoredSegment:
    """Return the manifest's entry of a committed segment of a ``TierRange``."""
    assert isinstance(segment, TierSource)  # segments above the tier's end are only read
    return segment.stored


def _copy_of(remote: RemoteSegment, local: Mapping[int, Segment], doubt: str) -> Segment | None:
    """Return the local copy of a committed segment if bounds and size match and the copy is not in doubt; otherwise None."""
    found = local.get(remote.base_offset)
    if found is None or (found.end_offset, found.size_bytes) != (remote.end_offset, remote.size_bytes):
        return None
    if found.label in doubt:
        return None
    return found
