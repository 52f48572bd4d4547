"""Input of a compaction round (a log, or the part of it in one tier), its output, and the statistics of the round."""

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
    """The log was changed or is being closed during the round: finished work stays, the rest is not done."""


@dataclass(slots=True)
class RewriteStats:
    """Counts of the work of a round. Pass 1 reads the dirty range, pass 2 all segments except the spared ones.

    ``segments_spared`` of the ``segments_before`` lose nothing according to their digests: the round did not look at their
    records. ``bytes_freed`` is the size of the replaced segments minus the size of the new ones; it can be negative.
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
    """A log, or the part of it in one tier, at the time when a round begins."""

    @property
    def name(self) -> TopicPartition:
        """Topic and partition."""

    @property
    def components(self) -> Components:
        """Components of the log."""

    @property
    def config(self) -> TopicConfig:
        """The topic's settings."""

    def from_offset(self, offset: int) -> Iterator[S]:
        """Return the segments that end above ``offset``, ascending.

        Each segment is released when the next one is requested, because there may be many. Segments that follow this part
        in the log are included as far as they may hold markers of its transactions.
        """

    def producers(self) -> list[ProducerEntry]:
        """Return the known producers of the log."""

    def modified_ms(self, segment: S) -> int:
        """Return the time of the last write to a segment."""

    def index_bytes(self, segment: S, role: IndexRole) -> int:
        """Return the size of an index of a segment."""


class SegmentPublisher(Protocol[S_contra]):
    """Maker of new segments, which it puts in the place of others."""

    def begin(self, base_offset: int) -> SegmentBuilder:
        """Begin a segment that replaces others; its errors are those of the first write."""

    def replace(self, built: BuiltSegment, old: Sequence[S_contra]) -> bool:
        """Replace ``old`` by a finished segment, or remove its files.

        Returns:
            False if the log has changed meanwhile: nothing was replaced.
        """


class LocalRange:
    """Local part of a log at the time of the call."""

    def __init__(self, log: Log) -> None:
        self.name, self.components, self.config, self.segments = (
            log.name,
            log.components,
            log.config,
            log.view().segments,
        )
        self._sizes: dict[str, int] | None = None
        self.producers = log.producers

    def from_offset(self, offset: int) -> Iterator[Segment]:
        """Return the segments that end above ``offset``, ascending."""
        first = bisect_right(self.segments, offset, key=lambda segment: segment.end_offset)
        return iter(self.segments[first:])

    def modified_ms(self, segment: Segment) -> int:
        """Return the time of the last write to the ``.log`` file."""
        return segment.log.modified_ms

    def index_bytes(self, segment: Segment, role: IndexRole) -> int:
        """Return the size of an index file; the folder is listed only once."""
        if self._sizes is None:
            self._sizes = {found.name: found.size_bytes for found in segment.files.list()}
        return self._sizes.get(segment.file_name(segment.components.indexes[role].suffix), 0)
