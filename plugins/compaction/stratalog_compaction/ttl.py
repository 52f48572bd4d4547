"""Cleanup policy ``ttl``: delete single records at a certain age, or at the time in a header.

Retention deletes only whole segments, from the oldest on. One young record therefore keeps its segment and all later
segments. This policy removes expired records from these segments, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import ClassVar, Final

from stratalog import RecordColumns
from stratalog.spi import Action, Fields, LogSummary, RecordFilter, RewriteJob, TopicConfig, Verdict
from stratalog_compaction.compact import plan_compaction
from stratalog_compaction.delete import RewritingPolicy, below_log_start, too_old
from stratalog_compaction.header_numbers import header_numbers
from stratalog_compaction.sections import OFF, TtlSection

NAME: Final = "ttl"
_NEVER_MS: Final = (1 << 63) - 1
_DIGEST: Final = Struct("<qq")
_LONGEST_KIND: Final = 64


class TtlPolicy(RewritingPolicy):
    """Policy ``ttl``, alone or with other policies.

    It rewrites segments under the same conditions as the policy ``compact``.

    If all records of a segment are older than ``ttl.ms``, the whole segment is deleted. Like with retention.ms,
    deletion starts at the oldest segment.
    """

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return a plan that deletes the oldest segments that are below the log start or older than ``ttl.ms``.

        A segment is older than ``ttl.ms`` if all its records are. The other segments are rewritten under the same
        conditions as with the policy ``compact``.
        """
        section = section_of(config)
        rules = (below_log_start(log), too_old(section.after_ms, now_ms, "ttl.ms"))
        return plan_compaction(log, rules, config, now_ms)

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """Return a filter that drops the records that have expired at ``now_ms`` of the job."""
        section = section_of(job.config)
        return HeaderExpiry(job, section) if section.header else Expiry(job, section)


def section_of(config: TopicConfig) -> TtlSection:
    """Return the ``ttl.*`` settings of a topic. If the topic sets none, return their defaults."""
    section = config.sections.get(NAME)
    return section if isinstance(section, TtlSection) else TtlSection()


class Expiry(RecordFilter):
    """Filter that drops records older than ``ttl.ms``. Records without a timestamp are kept.

    The digest section of a segment has 16 bytes: the smallest timestamp of the kept records, and the earliest expiry
    time in a header. The section stays valid if ``ttl.ms`` changes.
    """

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.TIMESTAMP

    def __init__(self, job: RewriteJob, section: TtlSection) -> None:
        self._section, self._now_ms = section, job.now_ms
        self._oldest_ms = self._soonest_ms = _NEVER_MS
        kind = f"ttl@1 {section.encoding} {section.header}" if section.header else "ttl@1"
        self.digest_kind = kind if kind.isascii() and len(kind) <= _LONGEST_KIND else ""

    def observe(self, records: RecordColumns) -> int:
        """Return the number of records. The filter stores nothing."""
        return records.count

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write one verdict per record: DROP if it is older than ``ttl.ms`` at the job's ``now_ms``, otherwise KEEP."""
        last_ms, timestamps_ms = self._last_ms, records.timestamp_ms
        verdicts[: records.count] = bytes(
            Verdict.DROP if 0 <= time_ms < last_ms else Verdict.KEEP for time_ms in timestamps_ms
        )
        kept_ms = (time_ms for time_ms in timestamps_ms if time_ms >= max(last_ms, 0))
        self._oldest_ms = min(self._oldest_ms, min(kept_ms, default=_NEVER_MS))

    @property
    def _last_ms(self) -> int:
        """Records with a timestamp (ms) below this value are dropped; 0 drops no records."""
        return 0 if self._section.after_ms == OFF else self._now_ms - self._section.after_ms

    def digest(self, *, end: bool) -> Sequence[bytes]:
        """Return one digest section at the ``end`` of a segment. Before the end, return none."""
        if not end:
            return ()
        section = _DIGEST.pack(self._oldest_ms, self._soonest_ms)
        self._oldest_ms = self._soonest_ms = _NEVER_MS
        return (section,)

    def spares(self, section: memoryview) -> bool:
        """Return True if no kept record of the segment can have expired at the job's ``now_ms``; otherwise False."""
        if len(section) != _DIGEST.size:
            return False
        oldest_ms, soonest_ms = _DIGEST.unpack(section)
        return bool(oldest_ms >= self._last_ms and soonest_ms > self._now_ms)


class HeaderExpiry(Expiry):
    """Filter that drops records older than ``ttl.ms``, or whose header has a passed time.

    It ignores invalid headers.
    """

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.TIMESTAMP | Fields.HEADERS

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write one verdict per record: DROP if it is older than ``ttl.ms``, or if its header has a passed time."""
        super().judge(records, verdicts)
        expiries = header_numbers(records, self._section.header, self._section.encoding, _NEVER_MS)
        for row, expiry_ms in enumerate(expiries):
            if expiry_ms <= self._now_ms:
                verdicts[row] = Verdict.DROP
            else:
                self._soonest_ms = min(self._soonest_ms, expiry_ms)
