"""The published state of a log: one immutable value, replaced as a whole. A reader loads it once and needs no lock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import (
    CorruptBatchError,
    CorruptManifestError,
    OffsetOutOfRangeError,
    StaleLeaderEpochError,
    UnknownLeaderEpochError,
)
from stratalog.log.read.tier_view import RemoteView
from stratalog.model.batches import NO_EPOCH
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import BOUND_FIELDS, EpochEnd, Isolation, LogOffsets
from stratalog.segment.components import Components
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.segment import Segment

_end_offset: Final = attrgetter("end_offset")
_new_tuple: Final = tuple.__new__  # creates a named tuple from all its fields, with one call fewer than its class


class ReadRange(NamedTuple):
    """Offsets [start, end) of a log that one segment has.

    ``offset_limit`` is the exclusive upper bound of the segment's offsets; None for the active segment, whose end
    moves.
    """

    segment: ReadableSegment
    start: int
    end: int
    offset_limit: int | None


class LogView(NamedTuple):
    """State of one log, as readers see it.

    ``segments`` are the local segments, ascending; the last one is active. ``components`` are the formats, codecs,
    indexes, limits and caches that reads use. ``remote`` is the tier part of this log, without segments of another
    leader that diverge from this log. It is None without a tier. ``damage`` is the error at the log's end, if the log is
    truncated or damaged there; readers that reach the log's end raise this error. ``leader_epoch`` is the epoch that the
    log leads or follows; -1 for a log that is only read and has no epochs.
    """

    name: TopicPartition
    segments: tuple[Segment, ...]
    offsets: LogOffsets
    epochs: EpochCache
    components: Components
    remote: RemoteView | None = None
    damage: CorruptBatchError | None = None
    leader_epoch: int = NO_EPOCH
    is_leader: bool = True

    def grown_to(self, end: int, recovery_point: int) -> LogView:
        """Return this view after appends to its last segment, without other changes.

        The result is right only if the high watermark and the last stable offset are the log end.

        Args:
            end: the current log end.
            recovery_point: the current recovery point; it is limited to the log's bounds.
        """
        name, segments, offsets, epochs, components, remote, damage, leader_epoch, is_leader = self
        start, local_start, _, _, _, _ = offsets
        synced_end = max(start, min(recovery_point, end))
        offsets = _new_tuple(LogOffsets, (start, local_start, synced_end, end, end, end))
        fields = (name, segments, offsets, epochs, components, remote, damage, leader_epoch, is_leader)
        return _new_tuple(LogView, fields)

    @property
    def remote_end(self) -> int:
        """Exclusive end offset of the records in the tier, without records of another leader; 0 without a tier."""
        return 0 if self.remote is None else self.remote.end_offset

    def segment_at(self, offset: int) -> ReadableSegment | None:
        """Return the segment that contains ``offset``, or the next segment after ``offset``; None at the log end.

        Local segments are preferred. The tier has the offsets below the local log start.
        """
        local, start = self.segments, max(offset, self.offsets.log_start)
        if not local or start < local[0].base_offset:
            return next(self.readable_from(offset), None)
        active = local[-1]
        if start >= active.base_offset:  # most fetches read the end of the log
            return active if start < active.end_offset else None
        return local[bisect_right(local, start, key=_end_offset)]

    def readable(self) -> Iterator[ReadableSegment]:
        """Yield all readable segments, in the tier and on local disk, ascending; a local segment hides its remote copy.

        If the log has no records, its active segment is yielded. Raises the same errors as ``remote_from``.
        """
        yield from self.readable_from(self.offsets.log_start)
        if self.segments and self.segments[-1].end_offset <= self.offsets.log_start:
            yield self.segments[-1]

    def all_segments(self) -> Iterator[ReadableSegment]:
        """Yield all segments, in the tier and on local disk, including segments below the log start."""
        yield from self.remote_from(0)
        yield from self.segments

    def is_active(self, segment: ReadableSegment) -> bool:
        """Return True if ``segment`` is the active one; all other segments never change."""
        return bool(self.segments) and segment is self.segments[-1]

    def readable_from(self, offset: int) -> Iterator[ReadableSegment]:
        """Return the readable segments with an end offset above ``offset``. A binary search finds the local ones."""
        local, start = self.segments, max(offset, self.offsets.log_start)
        local_segments = map(local.__getitem__, range(bisect_right(local, start, key=_end_offset), len(local)))
        return local_segments if self.remote is None else chain(self.remote_from(start), local_segments)

    def ranges(self, start: int, stop: int) -> Iterator[ReadRange]:
        """Yield the ranges of [start, stop), ascending, in the tier and on local disk; local segments are preferred.

        Args:
            start: first offset; offsets below the log start are in no range.
            stop: exclusive end.
        """
        start = max(start, self.offsets.log_start)
        active = self.segments[-1] if self.segments else None
        for segment in self.readable_from(start):
            first, end = max(start, segment.base_offset), segment.end_offset
            if first >= stop:
                return
            # The next segment may begin before this one ends: the bounds in the tier and on disk differ.
            if first < end:
                start = min(end, stop)
                yield ReadRange(segment, first, start, None if segment is active else end)

    def remote_from(self, start: int, since_ms: int | None = None) -> Iterator[ReadableSegment]:
        """Yield the segments that only the tier has, from ``start`` on.

        Pages of the tier's list that local disk hides are not read.

        Raises:
            CorruptManifestError: the tier ends before local disk begins. The error is raised after the tier's segments
                have been yielded. A segment leaves local disk only after the tier has it, so the tier has lost records.
                Without the error, readers would skip these offsets silently.
            The errors of ``RemoteLog.view``: a page of the tier's list cannot be read.
        """
        local_start = self.segments[0].base_offset if self.segments else self.offsets.log_end
        if self.remote is not None and start < local_start:
            for segment in self.remote.segments.from_offset(start, since_ms=since_ms):
                if segment.base_offset >= local_start:
                    return
                if segment.end_offset > start:
                    yield segment
            end = max(start, self.offsets.log_start, self.remote.end_offset)
            if end < local_start:
                raise CorruptManifestError(
                    f"offsets [{end}, {local_start}) of {self.name} are neither on local disk nor in its tier, which "
                    f"ends at {self.remote.end_offset}",
                    str(self.name),
                ).advised(
                    f"restore the newest manifest of the tier, or delete the records with delete_records({local_start})"
                )

    def checked_bound(self, offset: int, isolation: str) -> int:
        """Return ``bound(isolation)``; raise OffsetOutOfRangeError unless ``log_start <= offset <= log_end``."""
        offsets = self.offsets
        if not offsets.log_start <= offset <= offsets.log_end:
            raise OffsetOutOfRangeError(str(self.name), offset, offsets.log_start, offsets.log_end)
        return self.bound(isolation)

    def check_leader_epoch(self, expected: int | None) -> None:
        """Raise an error if ``expected`` is not the log's leader epoch. If it is None, nothing is checked.

        Raises:
            StaleLeaderEpochError: ``expected`` is older than the log's epoch.
            UnknownLeaderEpochError: ``expected`` is newer than the log's epoch.
        """
        if expected is None or expected == self.leader_epoch:
            return
        reason = f"the call expects leader epoch {expected}, but log {self.name} is in {self.leader_epoch}"
        raise StaleLeaderEpochError(reason) if expected < self.leader_epoch else UnknownLeaderEpochError(reason)

    def epoch_end(self, epoch: int) -> EpochEnd:
        """Return the end of a leader epoch, with the tier's epochs included; see ``EpochCache.end_offset_for``."""
        return self._all_epochs().end_offset_for(epoch, self.offsets.log_end)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch at ``offset``, with the tier's epochs included; -1 if none is known."""
        return self._all_epochs().epoch_at(offset)

    def _all_epochs(self) -> EpochCache:
        remote, entries = self.remote, self.epochs.entries
        if remote is None or (entries and remote.end_offset < entries[0].start_offset):  # epochs in between are missing
            return self.epochs
        return self.epochs.with_earlier(remote.leader_epochs)

    def bound(self, isolation: str) -> int:
        """Return the exclusive upper bound of offsets for a reader of this isolation; raise ConfigError if unknown."""
        number = BOUND_FIELDS.get(isolation)
        return self.offsets[number] if number is not None else self.offsets.bound(Isolation.of(isolation))


class PublishedView:
    """The view that readers of one log see, from the first ``replace`` on.

    Readers need no lock; the log changes the view under its lock.

    ``grow`` stores only the offsets of an append. The full view is built when a reader first requests it, because reads
    are rarer than appends.

    Attributes:
        base: the argument of the last ``replace``. Its offsets may be stale; its other fields are current.
    """

    __slots__ = ("_built", "_current", "_on_moved", "base")

    base: LogView
    _current: tuple[LogView, int | None, int]  # base view, log end or None if the base view is current, recovery point
    _built: tuple[object, LogView]  # a value of _current, and the view that was built from it

    def __init__(self) -> None:
        self._on_moved: Callable[[], None] | None = None

    def view(self) -> LogView:
        """Return the current view."""
        current = base_view, end, recovery_point = self._current
        if end is None:
            return base_view
        made_from, view = self._built
        if made_from is not current:
            view = base_view.grown_to(end, recovery_point)
            self._built = (current, view)
        return view

    def replace(self, view: LogView) -> None:
        """Publish ``view``, and call the subscriber if offsets have changed."""
        before = None if self._on_moved is None else self.view().offsets
        self._current, self.base = (view, None, 0), view
        self._built = (self._current, view)  # without this, the earlier view would stay in memory
        if self._on_moved is not None and view.offsets != before:
            self._on_moved()

    def grow(self, end: int, recovery_point: int) -> None:
        """Publish a new log end and a new recovery point, after an append.

        The high watermark and the last stable offset become equal to the log end. The rest of the view does not change.
        """
        self._current = (self._current[0], end, recovery_point)
        if self._on_moved is not None:
            self._on_moved()

    def subscribe(self, on_moved: Callable[[], None]) -> None:
        """Call ``on_moved`` each time that offsets have changed, instead of the earlier subscriber.

        The thread that changed the offsets calls ``on_moved`` under the log's lock, so ``on_moved`` must return at
        once.
        """
        self._on_moved = on_moved
