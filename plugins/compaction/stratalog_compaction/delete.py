"""Cleanup policy ``delete``: delete whole segments, oldest first, by log start offset, size and time.

Source: apache/kafka UnifiedLog.deleteOldSegments; KIP-405 for the local tier.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from stratalog.spi import Action, CleanupPolicy, DeletePrefix, Keep, LogSummary, SegmentSummary, TopicConfig

ReasonFunction = Callable[[SegmentSummary], str]
"""Function that returns the reason to delete a segment, or "" to keep it.

It is called for each segment from the oldest on, until it keeps a segment.
"""

Rule = Callable[[Sequence[SegmentSummary]], ReasonFunction]
"""Function that receives the segments that earlier rules kept, oldest first.

It returns a function that decides about each of these segments.
"""

USE_TOTAL: Final = -2  # value of local.retention.*: retention.* applies
KEPT: Final = "inside every retention limit"


class DeletePolicy(CleanupPolicy):
    """Kafka's ``cleanup.policy=delete``."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return a plan that deletes the oldest segments by log start offset, retention.bytes and retention.ms."""
        rules = (
            below_log_start(log),
            _too_large(config.retention_bytes, "retention.bytes"),
            too_old(config.retention_ms, now_ms, "retention.ms"),
        )
        return plan_prefix(log, rules)

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return a plan that deletes the oldest local segments by local.retention.bytes and local.retention.ms."""
        rules = (
            _too_large(config.local_limit_bytes, "local.retention.bytes"),
            too_old(config.local_limit_ms, now_ms, "local.retention.ms"),
        )
        return plan_prefix(log, rules)


class RewritingPolicy(CleanupPolicy):
    """Base class of policies without retention.*, which rewrite segments."""

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return a plan that deletes the oldest local segments by local.retention.bytes and local.retention.ms.

        The default -2 of a setting means no limit. If both settings are -2, the plan is empty.
        """
        rules = list[Rule]()
        if config.local_retention_bytes != USE_TOTAL:
            rules.append(_too_large(config.local_retention_bytes, "local.retention.bytes"))
        if config.local_retention_ms != USE_TOTAL:
            rules.append(too_old(config.local_retention_ms, now_ms, "local.retention.ms"))
        return plan_prefix(log, rules) if rules else ()


def plan_prefix(log: LogSummary, rules: Sequence[Rule]) -> Sequence[Action]:
    """Return a plan that deletes the oldest segments by rules, and keeps the other segments.

    For an empty log, it is empty.

    The rules are applied in order. Each rule deletes the oldest remaining segments, until it keeps a segment. Segments
    whose end offset (exclusive) is above the high watermark are never deleted. An empty active segment is never
    deleted, either.
    """
    if not log.segments:
        return ()
    remaining, reasons = list(log.segments), list[str]()
    for rule in rules:
        find_reason = rule(remaining)
        new_reasons = list(itertools.takewhile(bool, map(find_reason, _deletable(log, remaining))))
        remaining = remaining[len(new_reasons) :]
        reasons += new_reasons
    start, end = log.segments[0].base_offset, log.segments[-1].end_offset
    if not reasons:
        return (Keep(start, end, KEPT),) if end > start else ()
    last_deleted = log.segments[len(log.segments) - len(remaining) - 1]
    # a segment in the tier may end inside the first local segment
    middle = max(last_deleted.end_offset, remaining[0].base_offset) if remaining else end
    deletion = DeletePrefix(start, middle, "; ".join(dict.fromkeys(reasons)))
    return (deletion, Keep(middle, end, KEPT)) if end > middle else (deletion,)


def _deletable(log: LogSummary, segments: Sequence[SegmentSummary]) -> Iterator[SegmentSummary]:
    for segment in segments:
        if log.offsets.high_watermark < segment.end_offset or (segment.is_active and not segment.size_bytes):
            return
        yield segment


def below_log_start(log: LogSummary) -> Rule:
    """Return the rule that deletes segments whose end is at or below the log start offset.

    It keeps the last segment.
    """

    def rule(segments: Sequence[SegmentSummary]) -> ReasonFunction:
        last = segments[-1] if segments else None

        def find_reason(segment: SegmentSummary) -> str:
            is_below = segment is not last and segment.end_offset <= log.offsets.log_start
            return f"below the log start offset {log.offsets.log_start}" if is_below else ""

        return find_reason

    return rule


def _too_large(limit_bytes: int, name: str) -> Rule:
    def rule(segments: Sequence[SegmentSummary]) -> ReasonFunction:
        total = sum(segment.size_bytes for segment in segments)
        excess = total - limit_bytes

        def find_reason(segment: SegmentSummary) -> str:
            nonlocal excess
            if limit_bytes < 0 or excess < segment.size_bytes:
                return ""
            excess -= segment.size_bytes
            return f"the log has {total} bytes, above {name}={limit_bytes}"

        return find_reason

    return rule


def too_old(limit_ms: int, now_ms: int, name: str) -> Rule:
    """Return the rule that deletes segments whose newest record is older than ``limit_ms``.

    A negative limit deletes none.
    """

    def find_reason(segment: SegmentSummary) -> str:
        age_ms = now_ms - segment.age_from_ms
        return f"its newest record is older than {name}={limit_ms}" if 0 <= limit_ms < age_ms else ""

    return lambda _: find_reason
