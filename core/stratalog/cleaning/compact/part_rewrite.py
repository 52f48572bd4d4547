"""Rewrite of the local or the tier part of a log: its bounds, its filters and its publisher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Self

from stratalog.cleaning.compact.segment_digests import SegmentDigests
from stratalog.cleaning.compact.segment_range import RewriteStats, S, SegmentPublisher, SegmentRange
from stratalog.cleaning.plan.policy_actions import rewriters
from stratalog.env.progress import OnBytes, uncounted
from stratalog.log.log import Log
from stratalog.log.read.columns import read_columns
from stratalog.model.records import Fields, RecordColumns
from stratalog.spi.cleanup import CleanupPolicy, RecordFilter, RewriteJob


def fields_of(filters: Sequence[RecordFilter]) -> Fields:
    """Return the union of the record fields that the filters read; the offset is always one of them."""
    fields = Fields.OFFSET
    for record_filter in filters:
        fields |= record_filter.fields
    return fields


def filters_of(policies: Mapping[str, CleanupPolicy], job: RewriteJob) -> list[RecordFilter]:
    """Return a new filter of each policy that rewrites logs."""
    return [policy.record_filter(job) for policy in rewriters(policies).values()]


def _has_older(log: Log, job: RewriteJob) -> bool:
    """Return True if the log has records below the start of a compaction round, in the tier or in local segments.

    The round must then keep all tombstones and transaction markers.
    """
    view = log.view()
    remote = view.remote
    start = None if remote is None else remote.segments.start_offset
    if start is not None and start < job.start:
        return True
    log_start = view.offsets.log_start
    return any(segment.base_offset < job.start and segment.end_offset > log_start for segment in view.segments)


def _whole_log_reader(log: Log) -> Callable[[Fields], Iterator[RecordColumns]]:
    """Return a function that reads the given fields of all committed records of a log, in the tier and on local disk.

    The function first makes the log durable.
    """

    def read(fields: Fields) -> Iterator[RecordColumns]:
        log.flush()  # otherwise a power loss could lose a record because of which a filter drops another record
        return read_columns(log.view, log.components, log.offsets().log_start, None, "read_committed", fields)

    return read


@dataclass(slots=True)
class PartRewrite(Generic[S]):
    """Rewrite of the local or the tier part of a log by two passes, for a compaction, its preview, or a task of a job.

    Attributes:
        part: segments of the part of the log that is rewritten.
        publisher: begins the new segments, and replaces the old ones by them.
        job: bounds of the rewrite: the closed segments from ``start`` to ``end`` (exclusive).
        filters: a record is dropped if at least one of these filters drops it.
        keeps_tombstones: True if the log has older records below ``job.start``: the compaction round then drops neither
            tombstones nor transaction markers.
        read_bytes: number of bytes to read with one call.
        throttle: called with the number of bytes of each read and write; may wait, to limit the bytes per second.
        check: called regularly; an error that ``check`` raises ends the compaction round.
        on_bytes: called with the number of bytes of each read.
        is_copied: True to write each new segment while its group is read for the first time, even if possibly no record
            is dropped. For a group of one segment in a tier, a second read costs more than the temporary file.
        digests: digest files of segments, made with ``job.secret``, by which the round skips unchanged segments; None
            to read all segments. Only local segments have digest files.
        whole_log: returns the given fields of all committed records of the log, in the tier and on local disk; None if
            not available.
    """

    part: SegmentRange[S]
    publisher: SegmentPublisher[S]
    job: RewriteJob
    filters: Sequence[RecordFilter]
    keeps_tombstones: bool
    read_bytes: int
    throttle: OnBytes = uncounted
    check: Callable[[], None] = lambda: None
    on_bytes: OnBytes = uncounted
    is_copied: bool = False
    stats: RewriteStats = field(default_factory=RewriteStats)
    digests: SegmentDigests | None = None
    whole_log: Callable[[Fields], Iterator[RecordColumns]] | None = None

    @classmethod
    def of_log(
        cls,
        log: Log,
        part: SegmentRange[S],
        publisher: SegmentPublisher[S],
        job: RewriteJob,
        filters: Sequence[RecordFilter],
        read_bytes: int,
    ) -> Self:
        """Return the rewrite of the local or the tier part of an engine's log."""
        return cls(part, publisher, job, filters, _has_older(log, job), read_bytes, whole_log=_whole_log_reader(log))

    def segments(self, start: int, end: int) -> Iterator[S]:
        """Yield the job's segments with an end offset (exclusive) above ``start`` and a base offset below ``end``."""
        for segment in self.part.from_offset(start):
            if segment.base_offset >= end or not self.part.includes(segment):
                return
            if segment.base_offset >= self.job.start:
                yield segment

    def step(self, size_bytes: int) -> None:
        """Call ``check``, and report ``size_bytes`` to ``throttle``, which may wait, and to ``on_bytes``."""
        self.check()
        self.throttle(size_bytes)
        self.on_bytes(size_bytes)
