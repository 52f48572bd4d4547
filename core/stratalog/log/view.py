"""The published state of a log: one immutable value. A reader takes it once and needs no lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.epochs.cache import EpochCache
from stratalog.errors import CorruptBatchError, OffsetOutOfRangeError
from stratalog.log.remote import RemoteView
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import Isolation, LogOffsets
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.segment import Segment


@dataclass(frozen=True, slots=True)
class LogView:
    """What readers of one log see.

    ``segments`` are the local ones, ascending, the last one active; ``remote`` is the tier's side, None without a
    tier. ``damage`` is what is wrong at the log's end if it was found cut or broken: readers that get there are told.
    """

    log: TopicPartition
    segments: tuple[Segment, ...]
    offsets: LogOffsets
    epochs: EpochCache
    remote: RemoteView | None = None
    damage: CorruptBatchError | None = None

    def segment_at(self, offset: int) -> ReadableSegment | None:
        """The segment to read ``offset`` from, or the next one there is; None at the log's end.

        Local disk is preferred; the tier has what is below the local log start.
        """
        for segment in self.readable():
            if segment.end_offset > offset:
                return segment
        return None

    def readable(self) -> Iterator[ReadableSegment]:
        """All segments of both tiers that hold offsets of the log, ascending; a local one hides its remote copy."""
        start = self.offsets.log_start
        return (segment for segment in self.stored() if segment.end_offset > start or self.is_active(segment))

    def stored(self) -> Iterator[ReadableSegment]:
        """The same, and those below the log start that retention has not taken yet."""
        local_start = self.segments[0].base_offset if self.segments else self.offsets.log_end
        for remote in () if self.remote is None else self.remote.segments:
            if remote.base_offset < local_start:
                yield remote
        yield from self.segments

    def is_active(self, segment: ReadableSegment) -> bool:
        """Whether it is the segment that appends go to; all others never change."""
        return bool(self.segments) and segment is self.segments[-1]

    def readable_from(self, offset: int) -> Iterator[ReadableSegment]:
        """Those of them that end above ``offset``."""
        return (segment for segment in self.readable() if segment.end_offset > offset)

    def check_range(self, offset: int) -> None:
        """Raise OffsetOutOfRangeError unless ``log_start <= offset <= log_end``."""
        if not self.offsets.log_start <= offset <= self.offsets.log_end:
            raise OffsetOutOfRangeError(str(self.log), offset, self.offsets.log_start, self.offsets.log_end)

    def bound(self, isolation: str) -> int:
        """The offset that a reader of this isolation does not go past (exclusive)."""
        return self.offsets.bound(Isolation.of(isolation))
