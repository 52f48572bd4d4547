"""Records that expire one by one: by their timestamp, or at the moment that a header names.

Retention deletes whole segments from the oldest on, so one young record keeps all that follow it. This policy takes expired
records out from between the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import ClassVar, Final

from stratalog.spi import (
    Action,
    CleanupPolicy,
    DeletePrefix,
    Fields,
    LogSummary,
    RecordColumns,
    RecordFilter,
    RewriteJob,
    TopicConfig,
    Verdict,
)
from stratalog_compaction.compact import plan_rewrite
from stratalog_compaction.delete import below_log_start, plan_local, plan_prefix, too_old
from stratalog_compaction.header_numbers import header_numbers
from stratalog_compaction.sections import OFF, TtlSection

NAME: Final = "ttl"
_NEVER_MS: Final = (1 << 63) - 1
_DIGEST: Final = Struct("<qq")
_LONGEST_KIND: Final = 64


class TtlPolicy(CleanupPolicy):
    """``cleanup.policy=ttl``, alone or with others: rounds are due as those of ``compact`` are.

    Segments that hold nothing but records older than ``ttl.ms`` go as a whole, from the oldest on, as with retention.ms.
    """

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Delete a prefix of expired segments; rewrite what is left if it is dirty enough."""
        section = section_of(config)
        rules = (below_log_start(log), too_old(section.after_ms, now_ms, "ttl.ms"))
        actions = [action for action in plan_prefix(log, rules) if isinstance(action, DeletePrefix)]
        start = actions[0].end if actions else log.segments[0].base_offset if log.segments else 0
        left = [segment for segment in log.segments if segment.base_offset >= start]
        return [*actions, *plan_rewrite(log, left, config, now_ms)]

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """What local.retention.* lets go, if the topic sets it."""
        return plan_local(log, config, now_ms)

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """A filter for what has expired by the time that the round begins."""
        section = section_of(job.config)
        return HeaderExpiry(job, section) if section.header else Expiry(job, section)


def section_of(config: TopicConfig) -> TtlSection:
    """The settings of a topic."""
    found = config.sections.get(NAME)
    return found if isinstance(found, TtlSection) else TtlSection()


class Expiry(RecordFilter):
    """Drops records by their timestamps; those without one stay.

    Its digests are the least timestamp of what stays and the first moment that a header names: 16 bytes a segment, true
    whatever ``ttl.ms`` says later.
    """

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.TIMESTAMP

    def __init__(self, job: RewriteJob, section: TtlSection) -> None:
        self._section, self._now_ms = section, job.now_ms
        self._oldest_ms = self._soonest_ms = _NEVER_MS
        kind = f"ttl@1 {section.encoding} {section.header}" if section.header else "ttl@1"
        self.digest_kind = kind if kind.isascii() and len(kind) <= _LONGEST_KIND else ""

    def observe(self, records: RecordColumns) -> int:
        """Nothing to learn."""
        return records.count

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """What is older than ``ttl.ms`` goes."""
        last_ms, stamps = self._last_ms, records.timestamp_ms
        verdicts[: records.count] = bytes(Verdict.DROP if 0 <= at < last_ms else Verdict.KEEP for at in stamps)
        self._oldest_ms = min(self._oldest_ms, min((at for at in stamps if at >= max(last_ms, 0)), default=_NEVER_MS))

    @property
    def _last_ms(self) -> int:
        """What is older than this goes; nothing is older than 0."""
        return 0 if self._section.after_ms == OFF else self._now_ms - self._section.after_ms

    def digest(self, *, end: bool) -> Sequence[bytes]:
        """Of a segment's records that stay."""
        if not end:
            return ()
        said = _DIGEST.pack(self._oldest_ms, self._soonest_ms)
        self._oldest_ms = self._soonest_ms = _NEVER_MS
        return (said,)

    def spares(self, section: memoryview) -> bool:
        """None has expired yet."""
        if len(section) != _DIGEST.size:
            return False
        oldest_ms, soonest_ms = _DIGEST.unpack(section)
        return bool(oldest_ms >= self._last_ms and soonest_ms > self._now_ms)


class HeaderExpiry(Expiry):
    """The same, and what a header says has expired; a header that cannot be read says nothing."""

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.TIMESTAMP | Fields.HEADERS

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """What is older than ``ttl.ms``, or has come to the moment in its header, goes."""
        super().judge(records, verdicts)
        expiries = header_numbers(records, self._section.header, self._section.encoding, _NEVER_MS)
        for row, at_ms in enumerate(expiries):
            if at_ms <= self._now_ms:
                verdicts[row] = Verdict.DROP
            else:
                self._soonest_ms = min(self._soonest_ms, at_ms)
