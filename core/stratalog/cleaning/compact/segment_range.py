"""Interfaces for the input and the output of a compaction round, the input from local disk, and statistics.

The input is the local part of a log, or its tier part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from stratalog.config.topic import TopicConfig
from stratalog.log.log import Log
from stratalog.model.names import TopicPartition
from stratalog.producers.snapshot import ProducerEntry
from stratalog.segment.build import BuiltSegment, SegmentBuilder
from stratalog.segment.components import Components
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole

S = TypeVar("S", bound=ReadableSegment)
S_contra = TypeVar("S_contra", bound=ReadableSegment, contravariant=True)


class RewriteStoppedError(Exception):
    """A compaction round ended early because its log was changed, is in use or is being closed.

    New segments that are published already stay.
    """


@dataclass(slots=True)
class RewriteStats:
    """Statistics of one compaction round. Pass 1 shows records to the filters; pass 2 writes the records that stay.

    Attributes:
        bytes_observed: bytes that pass 1 has read, usually the bytes of the dirty range.
        bytes_read: bytes that pass 2 has read.
        bytes_written: bytes of the batches that were written to new segments.
        records_read: records that pass 2 has read.
        records_kept: records that stay, of those that pass 2 has read.
        segments_before: number of segments in the processed groups of adjacent segments.
        segments_after: number of segments after the compaction round; each group is one segment then.
        segments_spared: number of segments that lose nothing according to their digest files, and were not decoded.
        bytes_freed: size of the replaced segments minus the size of the new segments; can be negative.
    """

    bytes_observed: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    segments_before: int = 0
    segments_after: int = 0
    segments_spared: int = 0
    bytes_freed: int = 0


class SegmentRange(Protocol[S]):
    """Input of a compaction round: the segments of a log's local or tier part, as they were when the round began."""

    @property
    def name(self) -> TopicPartition:
        """Topic and partition of the log."""

    @property
    def components(self) -> Components:
        """Formats, codecs and environment of the log."""

    @property
    def config(self) -> TopicConfig:
        """Settings of the log's topic."""

    def from_offset(self, offset: int) -> Iterator[S]:
        """Iterate over the segments whose end offset (exclusive) is above ``offset``, ascending.

        The iterator also returns the log's segments after this part, because they may contain the end markers of its
        transactions. It keeps no reference to the segments that it has returned.
        """

    def includes(self, segment: S) -> bool:
        """Return True if a segment of ``from_offset`` belongs to this part of the log.

        The segment after the part may begin below the end of the part, because earlier leaders may have had other
        segment bounds.
        """

    def producers(self) -> list[ProducerEntry]:
        """Return the state of each producer that the log knows."""

    def modified_ms(self, segment: S) -> int:
        """Return the time (ms since 1970) of the last write to a segment."""

    def index_bytes(self, segment: S, role: IndexRole) -> int:
        """Return the size (bytes) of a segment's index with this role."""


class SegmentPublisher(Protocol[S_contra]):
    """Output of a compaction round: begins new segments, and replaces old segments by the new ones."""

    def begin(self, base_offset: int) -> SegmentBuilder:
        """Return the builder of a new segment. Raises the errors of a write, for example DiskFullError."""

    def replace(self, built: BuiltSegment, old: Sequence[S_contra]) -> bool:
        """Replace the adjacent segments ``old`` by one finished segment.

        Returns:
            True if the segments were replaced. False if the log has changed meanwhile: nothing was replaced, and the
            files of ``built`` were removed.
        """


class LocalRange:
    """Local segments of a log when the object was created, as the input of a compaction round (a ``SegmentRange``)."""

    def __init__(self, log: Log) -> None:
        self.name, self.components, self.config = log.name, log.components, log.config
        self.segments, self.producers = log.view().segments, log.producers
        self._sizes: dict[str, int] | None = None

    def from_offset(self, offset: int) -> Iterator[Segment]:
        """Iterate over the segments with an end offset above ``offset``, ascending. The active segment is the last."""
        first = bisect_right(self.segments, offset, key=lambda segment: segment.end_offset)
        return iter(self.segments[first:])

    def includes(self, segment: Segment) -> bool:
        """Return True."""
        del segment
        return True

    def modified_ms(self, segment: Segment) -> int:
        """Return the time (ms since 1970) of the last write to a segment's ``.log`` file."""
        return segment.file.modified_ms

    def index_bytes(self, segment: Segment, role: IndexRole) -> int:
        """Return the size (bytes) of an index file at the first call; 0 if the file did not exist."""
        if self._sizes is None:
            self._sizes = {info.name: info.size_bytes for info in segment.files.list()}
        return self._sizes.get(segment.file_name(segment.components.indexes[role].suffix), 0)
