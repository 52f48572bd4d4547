"""What a round works on, a log or the part of it that one tier has, and what it tells of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from stratalog.config.topic import TopicConfig
from stratalog.log.log import Log
from stratalog.model.names import TopicPartition
from stratalog.producers.snapshot import ProducerEntry
from stratalog.segment.cleaned_segment import CleanedSegment
from stratalog.segment.components import Components
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole

S = TypeVar("S", bound=ReadableSegment)


class RewriteStoppedError(Exception):
    """The log was changed below its end meanwhile, or is going away: what was done so far stays, the rest is not done."""


@dataclass(slots=True)
class RewriteStats:
    """What a round read and wrote. Pass 1 reads the dirty range, pass 2 all segments but those that it spares.

    ``segments_spared`` of ``segments_before`` lose nothing, as their digests tell: their records were not looked at.
    ``bytes_freed`` is how much smaller the new segments are than those that they replace; negative if they are larger.
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


class Rewritable(Protocol[S]):
    """A log, or the part of it that one tier has, as a round finds it when it begins."""

    @property
    def name(self) -> TopicPartition:
        """Topic and partition."""

    @property
    def parts(self) -> Components:
        """What the log works with."""

    @property
    def config(self) -> TopicConfig:
        """The topic's settings."""

    def from_offset(self, offset: int) -> Iterator[S]:
        """Those that end above ``offset``, ascending; each is let go of when the next is asked for, since there may be many.

        What follows them in the log comes too, as far as markers of their transactions may be there.
        """

    def producers(self) -> list[ProducerEntry]:
        """The producers that are known of the log."""

    def modified_ms(self, segment: S) -> int:
        """When a segment was last written."""

    def index_bytes(self, segment: S, role: IndexRole) -> int:
        """The size of an index of a segment."""

    def new_cleaned(self, base_offset: int) -> CleanedSegment:
        """Begin a segment that shall take the place of others."""

    def replace(self, made: CleanedSegment, old: Sequence[S], ticket: int) -> bool:
        """Put a finished one there; False if the log has changed since, so that nothing was done."""


class LocalPart:
    """The local part of a log, as it is now."""

    def __init__(self, log: Log) -> None:
        self.name, self.parts, self.config, self.segments = log.name, log.parts, log.config, log.view().segments
        self._log = log
        self._sizes: dict[str, int] | None = None
        self.producers, self.new_cleaned, self.replace = log.producers, log.new_cleaned, log.replace

    def from_offset(self, offset: int) -> Iterator[Segment]:
        """Those that end above ``offset``, ascending."""
        first = bisect_right(self.segments, offset, key=lambda segment: segment.end_offset)
        return iter(self.segments[first:])

    def modified_ms(self, segment: Segment) -> int:
        """When its ``.log`` file was last written."""
        return segment.log.modified_ms

    def index_bytes(self, segment: Segment, role: IndexRole) -> int:
        """The size of an index file; the folder is listed once."""
        if self._sizes is None:
            self._sizes = {found.name: found.size_bytes for found in segment.files.list()}
        return self._sizes.get(segment.file_name(segment.parts.indexes[role].suffix), 0)
