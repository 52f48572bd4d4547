"""Segments that a log has committed to its tier, as the input and the output of a compaction round.

If a segment has a copy on local disk, the compaction round reads the copy. It writes new segments into the tier.

The compaction round first uploads the new objects, then deletes the local copies of the replaced segments, and then
commits. Therefore a local copy never differs from the committed segment. After a crash before the commit, the tier
still has the old segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from stratalog.cleaning.compact.segment_range import RewriteStoppedError
from stratalog.config.topic import TopicConfig
from stratalog.errors import FencedEpochError, SegmentGoneError
from stratalog.log.log import Log
from stratalog.log.read.tier_view import RemoteView, merged_epochs
from stratalog.log.read.view import LogView
from stratalog.model.batches import Buffer
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
    """Numbers of bytes of ``.log`` files that one compaction round has read from the tier and uploaded to it.

    The requests transfer another number of bytes: a layout may compress a segment, and a cache may contain a piece of
    a segment. Indexes and snapshots are not counted.
    """

    downloaded_bytes: int = 0
    uploaded_bytes: int = 0


class CommittedSegment(StoredBounds):
    """A committed segment, as a ``ReadableSegment`` that reads batches from its local copy if there is one.

    The tier is read after ``forget``, or if the copy was deleted. Index entries always come from the tier.
    """

    __slots__ = ("_local", "_traffic", "entry", "remote")

    def __init__(self, remote: RemoteSegment, local: Segment | None, traffic: Traffic) -> None:
        self.remote, self.entry, self._local, self._traffic = remote, remote.entry, local, traffic

    @property
    def label(self) -> str:
        """Path of the local copy, or key of the object, from which the next read takes the bytes."""
        return self.remote.label if self._local is None else self._local.label

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` from ``position`` (bytes) on; raise the errors of ``RemoteSegment.read``."""
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
        """Prepare a second read after damage: discard the cached bytes, or stop reading the local copy.

        Return True if a second read may return other bytes.
        """
        if self._local is None:
            return self.remote.forget()
        self._local = None
        return True


class TierRange:
    """Committed segments of a log as the input of a compaction round (a ``SegmentRange``). Not thread-safe.

    Args:
        committed: returns the committed segments whose end offset (exclusive) is above an offset, ascending.
        producers: returns the known producers of the log.
        traffic: counts the bytes that are read from the tier.
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
        self._later_segments: Sequence[Segment] = ()
        self._doubt = ""

    @classmethod
    def of(cls, log: Log, traffic: Traffic) -> Self:
        """Return the committed segments of an engine's log. Reads use existing local copies.

        Raises RewriteStoppedError if the log has left its tier.
        """
        view = log.view()
        remote = _require_remote(view)
        tier_range = cls(log.name, log.components, log.config, remote.segments.from_offset, log.producers, traffic)
        tier_range._copies = {segment.base_offset: segment for segment in view.segments[:-1]}
        tier_range._later_segments = [segment for segment in view.segments if segment.end_offset > remote.end_offset]
        tier_range._doubt = log.maintenance.cleaning.tier_doubt
        return tier_range

    def from_offset(self, offset: int) -> Iterator[ReadableSegment]:
        """Iterate over committed segments with an end offset above ``offset``, and then over later local segments."""
        for remote in self._committed(offset):
            if isinstance(remote, RemoteSegment):
                yield CommittedSegment(remote, _copy_of(remote, self._copies, self._doubt), self._traffic)
        yield from (segment for segment in self._later_segments if segment.end_offset > offset)

    def includes(self, segment: ReadableSegment) -> bool:
        """Return True if a segment is committed; False for a later local segment."""
        return isinstance(segment, CommittedSegment)

    def modified_ms(self, segment: ReadableSegment) -> int:
        """Return the time (ms since 1970) of the last write to the ``.log`` file from which a segment was uploaded."""
        return entry_of(segment).info.modified_ms

    def index_bytes(self, segment: ReadableSegment, role: IndexRole) -> int:
        """Return the size (bytes) of a segment's index in the tier, 0 if the tier does not store the index."""
        index_slice = entry_of(segment).slices.get(INDEX_KINDS[role])
        return 0 if index_slice is None else index_slice.size_bytes

    def forget(self, label: str) -> None:
        """Call ``CommittedSegment.forget`` for the segment with this label."""
        for segment in self.from_offset(0):
            if segment.label == label:
                segment.forget()


class CommittedPublisher:
    """Publisher with which an engine replaces committed segments of a log (a ``SegmentPublisher``). Not thread-safe.

    ``replace`` uploads a new segment. ``commit`` makes all uploaded segments part of the log. ``abandon`` deletes
    uploaded segments that were not committed.

    Args:
        log: the log; it must be the leader.
        traffic: counts the uploaded bytes.

    Attributes:
        keeps_swaps: True to collect the committed replacements in ``committed_swaps``, which may become many.
        committed_swaps: the committed replacements; empty unless ``keeps_swaps`` is True.
    """

    def __init__(self, log: Log, tier: TierPublisher, kind: ChangeKind, reason: str, traffic: Traffic) -> None:
        self._log, self._tier, self._kind, self._reason, self._traffic = log, tier, kind, reason, traffic
        self._end = _require_remote(log.view()).end_offset
        self._swaps = list[SegmentSwap]()
        self.keeps_swaps = False
        self.committed_swaps: tuple[SegmentSwap, ...] = ()

    @classmethod
    def open(
        cls, log: Log, tier: TierLog, reason: str, traffic: Traffic, kind: ChangeKind = ChangeKind.COMPACT
    ) -> Self:
        """Read the newest state of the tier, begin this engine's leader epoch in it, and return a publisher.

        Nothing is committed if the epoch has already begun.

        Raises:
            RewriteStoppedError: the log is a follower now, or has left its tier.
            FencedEpochError: another writer owns the log. The log no longer accepts appends here.
            UnknownTopicError: the topic was deleted.
            StoreError: the store failed.
            The other errors of ``TierLog.refresh`` and ``TierPublisher.claim``.
        """
        view = log.view()
        if not view.is_leader:  # a commit in the epoch of the leader would fence the leader
            raise RewriteStoppedError(f"{log.name} is a follower now")
        with log.maintenance.stop_if_fenced(view.leader_epoch):
            publisher = TierPublisher(tier, view.leader_epoch, log.config)
            tier.refresh()
            publisher.claim()
        log.maintenance.refresh_remote()
        return cls(log, publisher, kind, reason, traffic)

    def begin(self, base_offset: int) -> SegmentBuilder:
        """Return the builder of a segment in a temporary local file."""
        return self._log.maintenance.new_spooled(base_offset)

    def replace(self, built: BuiltSegment, old: Sequence[ReadableSegment]) -> bool:
        """Upload a finished segment in place of ``old``, and remove its local file. Always return True.

        Nothing is uploaded if ``old`` is one segment with the same bytes. After many uploads, the method calls
        ``commit``. Raises the errors of ``TierPublisher.upload_built`` and ``commit``.
        """
        entries = tuple(entry_of(segment) for segment in old)
        try:
            has_size = len(entries) == 1 and built.size_bytes == entries[0].info.size_bytes
            if has_size and built.sha256() == entries[0].sha256:
                return True
            entry = self._tier.upload_built(built, facts_of(old))
        finally:
            built.discard()
        self._traffic.uploaded_bytes += built.size_bytes
        self._swaps.append(SegmentSwap(entries, entry))
        if len(self._swaps) >= MOST_SWAPS:
            self.commit()
        return True

    def commit(self, first_dirty_offset: int | None = None, *, always: bool = False) -> None:
        """Commit the new segments in place of the old segments. Without new segments or arguments, do nothing.

        Args:
            first_dirty_offset: offset up to which the log is compacted now; None keeps the committed value.
            always: commit even if there is no new segment.

        Raises:
            FencedEpochError: another writer owns the log. The log no longer accepts appends here.
            RewriteStoppedError: the leader epoch of the log has changed.
            StoreError: the store failed, and the commit may have taken effect. ``TierLog.refresh`` reads the actual
                state.
        """
        if not self._swaps and first_dirty_offset is None and not always:
            return
        log, tier = self._log, self._tier
        if log.leader_epoch != tier.leader_epoch:
            raise RewriteStoppedError(f"the leader epoch of {log.name} changed")
        self._evict()
        swaps, self._swaps = self._swaps, []  # from here on only the committed root decides whether these are in use
        try:
            committed = tier.swap(swaps, self._kind, self._reason, first_dirty_offset=first_dirty_offset)
            self.committed_swaps += committed if self.keeps_swaps else ()
        except FencedEpochError as error:
            if log.leader_epoch != tier.leader_epoch:
                raise RewriteStoppedError(f"the leader epoch of {log.name} changed") from error
            with log.maintenance.stop_if_fenced(tier.leader_epoch):
                raise
        finally:
            log.maintenance.refresh_remote()

    def abandon(self) -> None:
        """Delete the objects of segments that were uploaded after the last ``commit``."""
        swaps, self._swaps = self._swaps, []
        if swaps:
            self._tier.discard([swap.new for swap in swaps])

    def _evict(self) -> None:
        """Delete the local copies of the segments that the next commit replaces, and all local segments below them."""
        spans = [(swap.old[0].info.base_offset, swap.old[-1].info.end_offset) for swap in self._swaps]
        copies = [segment for segment in self._log.view().segments[:-1] if segment.end_offset <= self._end]
        stale = [
            copy.end_offset
            for copy in copies
            if any(copy.base_offset < end and start < copy.end_offset for start, end in spans)
        ]
        self._log.maintenance.evict(max(stale, default=0))


def _require_remote(view: LogView) -> RemoteView:
    if view.remote is None:
        raise RewriteStoppedError(f"{view.name} has left its tier")
    return view.remote


def facts_of(old: Sequence[ReadableSegment]) -> SegmentFacts:
    """Return the leader epochs and the producer snapshot of the segment that replaces ``old``.

    The snapshot is that of the last old segment, because compaction does not change the producers' state.
    """
    epochs = merged_epochs(entry_of(segment).info.leader_epochs for segment in old)
    last = old[-1]
    assert isinstance(last, CommittedSegment)
    return SegmentFacts(epochs, last.remote.read_file(FileKind.SNAPSHOT))


def entry_of(segment: ReadableSegment) -> StoredSegment:
    """Return the manifest entry of a committed segment that a ``TierRange`` returned."""
    assert isinstance(segment, CommittedSegment)  # segments above the tier's end offset are only read
    return segment.entry


def _copy_of(remote: RemoteSegment, local: Mapping[int, Segment], doubt: str) -> Segment | None:
    """Return the local copy of a committed segment, or None if there is no copy with the same offsets and size.

    Also return None if ``doubt``, the text of the last error of damage, contains the path of the copy.
    """
    copy = local.get(remote.base_offset)
    if copy is None or (copy.end_offset, copy.size_bytes) != (remote.end_offset, remote.size_bytes):
        return None
    if copy.label in doubt:
        return None
    return copy
