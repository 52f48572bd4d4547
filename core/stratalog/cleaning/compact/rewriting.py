"""One round of compaction over a range of segments: its bounds, its filters, and where it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic

from stratalog.cleaning.compact.segment_digests import Digests
from stratalog.cleaning.compact.segment_range import RewriteStats, S, SegmentPublisher, SegmentRange
from stratalog.env.progress import OnBytes, uncounted
from stratalog.env.rate_limit import Throttle
from stratalog.log.log import Log
from stratalog.log.read.columns import read_columns
from stratalog.model.records import Fields, RecordColumns
from stratalog.spi.cleanup import RecordFilter, RewriteJob


def fields_of(filters: Sequence[RecordFilter]) -> Fields:
    """Return the fields that filters read, and the offsets."""
    wanted = Fields.OFFSET
    for found in filters:
        wanted |= found.fields
    return wanted


def whole_log(log: Log) -> Callable[[Fields], Iterator[RecordColumns]]:
    """Return a function that reads the committed records of a log, in the tier and on local disk."""

    def read(fields: Fields) -> Iterator[RecordColumns]:
        log.flush()  # a power loss must not take a record that decides about another one
        return read_columns(log.view, log.components, log.offsets().log_start, None, "read_committed", fields)

    return read


@dataclass(slots=True)
class Rewriting(Generic[S]):
    """One round over one log.

    Attributes:
        log: the log, or the part of it that is rewritten.
        publisher: makes the new segments and puts them in the place of others.
        job: bounds of the round: closed segments from ``start`` up to ``end``; records from ``end`` on must stay.
        filters: filters that must all return KEEP for a record to stay.
        keeps_tombstones: True if a tier holds older segments: the round then drops neither tombstones nor markers.
        read_bytes: bytes that are read at once.
        throttle: counts the bytes.
        check: called regularly; an error that it raises ends the round.
        on_bytes: called with the bytes that were read.
        is_copied: True if a group of one segment is always written from its beginning, even if it may lose nothing:
            reading it twice would cost more.
        stats: statistics of the round.
        digests: digests of segments that need not be read; None: all are read. The job's secret is theirs.
        whole_log: returns the committed records of the log in both parts, with these fields; None: they cannot be read.
    """

    log: SegmentRange[S]
    publisher: SegmentPublisher[S]
    job: RewriteJob
    filters: Sequence[RecordFilter]
    keeps_tombstones: bool
    read_bytes: int
    throttle: Throttle
    check: Callable[[], None]
    on_bytes: OnBytes = uncounted
    is_copied: bool = False
    stats: RewriteStats = field(default_factory=RewriteStats)
    digests: Digests[S] | None = None
    whole_log: Callable[[Fields], Iterator[RecordColumns]] | None = None

    def segments(self, start: int, end: int) -> Iterator[S]:
        """Yield the segments of the job that end above ``start`` and begin below ``end``."""
        for found in self.log.from_offset(start):
            if found.base_offset >= end:
                return
            if found.base_offset >= self.job.start:
                yield found

    @property
    def fields(self) -> Fields:
        """Fields that the filters read."""
        return fields_of(self.filters)

    def step(self, size_bytes: int) -> None:
        """Call ``check`` and count bytes that were read."""
        self.check()
        self.throttle.took(size_bytes)
        self.on_bytes(size_bytes)
