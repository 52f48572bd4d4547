"""The policy, which plans rewrites, and the filter that drops expired records."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import ClassVar, Final

from stratalog import RecordColumns
from stratalog.spi import (
    Action,
    CleanupPolicy,
    Fields,
    Headers,
    Keep,
    LogSummary,
    RecordFilter,
    Rewrite,
    RewriteJob,
    TopicConfig,
    Verdict,
)
from ttl_header.settings import TtlHeaderSection

_NEVER_MS: Final = (1 << 63) - 1
_LONGEST_TTL: Final = 18  # largest number of digits: the sum with a timestamp must fit an int64
_SOONEST: Final = Struct("<q")


class TtlHeaderPolicy(CleanupPolicy):
    """Policy that rewrites closed segments outside of the tier when enough of their bytes were not checked yet."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return one action for the closed segments outside of the tier, up to the last stable offset.

        The action is a Rewrite if more than ``min.cleanable.dirty.ratio`` of their bytes were not checked yet, and a
        Keep otherwise. Without such segments, there is no action.
        """
        del now_ms
        may_change = [
            segment
            for segment in log.segments
            if segment.is_local
            and not segment.is_remote
            and not segment.is_active
            and log.offsets.log_start < segment.end_offset <= log.offsets.last_stable
        ]
        if not may_change:
            return ()
        start, end = may_change[0].base_offset, may_change[-1].end_offset
        dirty_start = max(start, min(log.dirty_start or 0, end))
        total = sum(segment.size_bytes for segment in may_change)
        dirty = sum(segment.size_bytes for segment in may_change if segment.end_offset > dirty_start)
        ratio = dirty / total if total else 0.0
        rule = f"{ratio:.0%} is not checked yet, min.cleanable.dirty.ratio={config.min_cleanable_dirty_ratio:g}"
        if ratio <= config.min_cleanable_dirty_ratio:
            return (Keep(start, end, f"not enough is new: {rule}"),)
        return (Rewrite(start, end, dirty_start, rule, ratio),)

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """Return a filter that drops each record whose expiry time is at or before ``job.now_ms``."""
        section = job.config.sections.get("ttl_header")
        return Expiry(job, section if isinstance(section, TtlHeaderSection) else TtlHeaderSection())


class Expiry(RecordFilter):
    """Filter that drops expired records, and stores the earliest expiry time of kept records for the digest file."""

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.TIMESTAMP | Fields.HEADERS

    def __init__(self, job: RewriteJob, section: TtlHeaderSection) -> None:
        self._name, self._now_ms, self._soonest_ms = section.name, job.now_ms, _NEVER_MS
        self.digest_kind = f"ttl_header@1 {section.name}" if section.name.isascii() and len(section.name) < 50 else ""

    def observe(self, records: RecordColumns) -> int:
        """Return the number of records. The filter needs no information about other records."""
        return records.count

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write one verdict per record: a record expires at its timestamp plus the lifetime in its header."""
        for row, (stamp_ms, headers) in enumerate(zip(records.timestamp_ms, records.headers(), strict=True)):
            expires_ms = expiry_ms(stamp_ms, headers, self._name)
            verdicts[row] = Verdict.DROP if expires_ms <= self._now_ms else Verdict.KEEP
            if expires_ms > self._now_ms:
                self._soonest_ms = min(self._soonest_ms, expires_ms)

    def digest(self, *, end: bool) -> Sequence[bytes]:
        """Return one section with the earliest expiry time of the segment's kept records; () unless ``end``."""
        if not end:
            return ()
        soonest_ms, self._soonest_ms = self._soonest_ms, _NEVER_MS
        return (_SOONEST.pack(soonest_ms),)

    def spares(self, section: memoryview) -> bool:
        """Return True if no record that the section covers has expired when the compaction round begins."""
        return len(section) == _SOONEST.size and _SOONEST.unpack(section)[0] > self._now_ms


def expiry_ms(stamp_ms: int, headers: Headers, name: str) -> int:
    """Return the time (ms since 1970) at which a record expires: its timestamp plus the lifetime in header ``name``.

    If the record has no timestamp, or no valid lifetime, the result is the largest number of 64 bits.
    """
    value = next((value for key, value in reversed(headers) if key == name), None)
    if value is None or stamp_ms < 0 or not value.isdigit() or len(value) > _LONGEST_TTL:
        return _NEVER_MS
    return stamp_ms + int(value)
