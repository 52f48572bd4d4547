"""The published state of a log: one immutable value. A reader takes it once and needs no lock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
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
from stratalog.model.offsets import EpochEnd, Isolation, LogOffsets
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.segment import Segment

_end_offset: Final = attrgetter("end_offset")
_of: Final = tuple.__new__  # makes a named tuple of all its fields; calling its class is a call more


class LogView(NamedTuple):
    """What readers of one log see.

    ``segments`` are the local ones, ascending, the last one active; ``remote`` is the tier's side, None without a
    tier. ``damage`` is what is wrong at the log's end if it was found cut or broken: readers that get there are told.
    ``leader_epoch`` is the one that the log leads or follows, -1 for a log that is only read and has no epochs.
    """

    log: TopicPartition
    segments: tuple[Segment, ...]
    offsets: LogOffsets
    epochs: EpochCache
    remote: RemoteView | None = None
    damage: CorruptBatchError | None = None
    leader_epoch: int = NO_EPOCH
    is_leader: bool = True

    def grown_to(self, end: int, recovery_point: int) -> LogView:
        """This view after appends to its last segment and nothing else. Only where the high watermark is the log's end.

        Args:
            end: of the log, now.
            recovery_point: now; brought between the log's bounds.
        """
        start, local_start, *_ = self.offsets
        synced = max(start, min(recovery_point, end))
        offsets = _of(LogOffsets, (start, local_start, synced, end, end, end))
        return _of(LogView, (self.log, self.segments, offsets, *self[3:]))

    def segment_at(self, offset: int) -> ReadableSegment | None:
        """The segment to read ``offset`` from, or the next one there is; None at the log's end.

        Local disk is preferred; the tier has what is below the local log start.
        """
        local, start = self.segments, max(offset, self.offsets.log_start)
        if not local or start < local[0].base_offset:
            return next(self.readable_from(offset), None)
        index = bisect_right(local, start, key=_end_offset)
        return local[index] if index < len(local) else None

    def readable(self) -> Iterator[ReadableSegment]:
        """All segments of both tiers that hold offsets of the log, ascending; a local one hides its remote copy."""
        yield from self.readable_from(self.offsets.log_start)
        if self.segments and self.segments[-1].end_offset <= self.offsets.log_start:
            yield self.segments[-1]

    def stored(self) -> Iterator[ReadableSegment]:
        """The same, and those below the log start that retention has not taken yet."""
        yield from self.remote_from(0)
        yield from self.segments

    def is_active(self, segment: ReadableSegment) -> bool:
        """Whether it is the segment that appends go to; all others never change."""
        return bool(self.segments) and segment is self.segments[-1]

    def readable_from(self, offset: int, *, since_ms: int | None = None) -> Iterator[ReadableSegment]:
        """The readable ones that end above ``offset``; finding the first takes no walk through those before it.

        ``since_ms`` may leave out some of the tier whose records are all older.
        """
        start = max(offset, self.offsets.log_start)
        if self.remote is not None:
            yield from self.remote_from(start, since_ms)
        local = self.segments
        for index in range(bisect_right(local, start, key=_end_offset), len(local)):
            yield local[index]

    def remote_from(self, start: int, since_ms: int | None = None) -> Iterator[ReadableSegment]:
        """What only the tier has, from ``start`` on; without looking at pages of its list that local disk hides.

        Raises:
            CorruptManifestError: the tier ends before local disk begins; after what it has. Nothing leaves local disk before
                it is in the tier, so that the tier has lost it: readers would pass over these offsets without a word.
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
                    f"offsets [{end}, {local_start}) of {self.log} are neither on local disk nor in its tier, which ends at "
                    f"{self.remote.end_offset}: was it rolled back? Bring its newest state back, or give them up with "
                    f"delete_records({local_start})",
                    str(self.log),
                )

    def check_range(self, offset: int) -> None:
        """Raise OffsetOutOfRangeError unless ``log_start <= offset <= log_end``."""
        if not self.offsets.log_start <= offset <= self.offsets.log_end:
            raise OffsetOutOfRangeError(str(self.log), offset, self.offsets.log_start, self.offsets.log_end)

    def check_leader_epoch(self, expected: int | None) -> None:
        """Compare the leader epoch that a caller goes by with the log's; None is not compared.

        Raises:
            StaleLeaderEpochError: it is older.
            UnknownLeaderEpochError: it is newer.
        """
        if expected is None or expected == self.leader_epoch:
            return
        reason = f"leader epoch {expected} is asked for, log {self.log} is in {self.leader_epoch}"
        raise StaleLeaderEpochError(reason) if expected < self.leader_epoch else UnknownLeaderEpochError(reason)

    def epoch_end(self, epoch: int) -> EpochEnd:
        """Where a leader epoch ends in this log, by what the tier knows too; see ``EpochCache.end_offset_for``."""
        epochs = self.epochs if self.remote is None else self.epochs.after(self.remote.leader_epochs)
        return epochs.end_offset_for(epoch, self.offsets.log_end)

    def bound(self, isolation: str) -> int:
        """The offset that a reader of this isolation does not go past (exclusive)."""
        return self.offsets.bound(Isolation.of(isolation))
