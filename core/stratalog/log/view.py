"""The published state of a log: one immutable value. A reader takes it once and needs no lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.epochs.cache import EpochCache
from stratalog.errors import CorruptBatchError, OffsetOutOfRangeError, StaleLeaderEpochError, UnknownLeaderEpochError
from stratalog.log.remote import RemoteView
from stratalog.model.batches import NO_EPOCH
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import EpochEnd, Isolation, LogOffsets
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.segment import Segment


@dataclass(frozen=True, slots=True)
class LogView:
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

    def segment_at(self, offset: int) -> ReadableSegment | None:
        """The segment to read ``offset`` from, or the next one there is; None at the log's end.

        Local disk is preferred; the tier has what is below the local log start.
        """
        return next(self.readable_from(offset), None)

    def readable(self) -> Iterator[ReadableSegment]:
        """All segments of both tiers that hold offsets of the log, ascending; a local one hides its remote copy."""
        return self._from(self.offsets.log_start, None)

    def stored(self) -> Iterator[ReadableSegment]:
        """The same, and those below the log start that retention has not taken yet."""
        yield from self._remote_from(0, None)
        yield from self.segments

    def is_active(self, segment: ReadableSegment) -> bool:
        """Whether it is the segment that appends go to; all others never change."""
        return bool(self.segments) and segment is self.segments[-1]

    def readable_from(self, offset: int, *, since_ms: int | None = None) -> Iterator[ReadableSegment]:
        """Those of them that end above ``offset``; ``since_ms`` may leave out some whose records are all older."""
        found = self._from(max(offset, self.offsets.log_start), since_ms)
        return (segment for segment in found if segment.end_offset > offset)

    def _from(self, start: int, since_ms: int | None) -> Iterator[ReadableSegment]:
        yield from self._remote_from(start, since_ms)
        yield from (segment for segment in self.segments if segment.end_offset > start or self.is_active(segment))

    def _remote_from(self, start: int, since_ms: int | None) -> Iterator[ReadableSegment]:
        """What only the tier has, from ``start`` on; without looking at pages of its list that local disk hides."""
        local_start = self.segments[0].base_offset if self.segments else self.offsets.log_end
        if self.remote is not None and start < local_start:
            for segment in self.remote.segments.from_offset(start, since_ms=since_ms):
                if segment.base_offset >= local_start:
                    return
                yield segment

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
