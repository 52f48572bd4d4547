"""Deletion of whole segments, oldest first: by log start offset, size and time.

Source: apache/kafka UnifiedLog.deleteOldSegments; KIP-405 for the local tier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from stratalog.spi import Action, CleanupPolicy, DeletePrefix, Keep, LogSummary, SegmentSummary, TopicConfig

Why = Callable[[SegmentSummary], str]
"""Why a segment may go, or "" if it stays. Asked from the oldest on; the first that stays ends the prefix."""


class DeletePolicy(CleanupPolicy):
    """Kafka's ``cleanup.policy=delete``."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """The prefix that retention.ms, retention.bytes or the log start let go, the rest kept."""
        reasons = (
            below_log_start(log),
            _too_large(log, config.retention_bytes, "retention.bytes"),
            _too_old(config.retention_ms, now_ms, "retention.ms"),
        )
        return plan_prefix(log, reasons)

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """The prefix of local segments that local.retention.ms or local.retention.bytes let go."""
        reasons = (
            _too_large(log, config.local_limit_bytes, "local.retention.bytes"),
            _too_old(config.local_limit_ms, now_ms, "local.retention.ms"),
        )
        return plan_prefix(log, reasons)


def plan_prefix(log: LogSummary, reasons: Sequence[Why]) -> Sequence[Action]:
    """Delete the longest prefix that any single reason gives; nothing above the high watermark, no empty active one."""
    if not log.segments:
        return ()
    start = log.segments[0].base_offset
    end, reason = max(((_prefix_end(log, why)) for why in reasons), key=lambda found: found[0], default=(start, ""))
    last = log.segments[-1].end_offset
    actions: list[Action] = []
    if end > start:
        actions.append(DeletePrefix(start, end, reason))
    if last > end:
        actions.append(Keep(max(start, end), last, "inside every retention limit"))
    return actions


def _prefix_end(log: LogSummary, why: Why) -> tuple[int, str]:
    end, reason = log.segments[0].base_offset, ""
    for segment in _deletable(log):
        found = why(segment)
        if not found:
            break
        end, reason = segment.end_offset, found
    return end, reason


def _deletable(log: LogSummary) -> Iterator[SegmentSummary]:
    for segment in log.segments:
        if log.offsets.high_watermark < segment.end_offset or (segment.is_active and not segment.size_bytes):
            return
        yield segment


def below_log_start(log: LogSummary) -> Why:
    """Segments that end at or below the log start, the last one excepted."""
    last = log.segments[-1] if log.segments else None

    def why(segment: SegmentSummary) -> str:
        gone = segment.end_offset <= log.offsets.log_start and segment is not last
        return f"below the log start offset {log.offsets.log_start}" if gone else ""

    return why


def _too_large(log: LogSummary, limit_bytes: int, name: str) -> Why:
    excess = sum(segment.size_bytes for segment in log.segments) - limit_bytes
    left = [excess]

    def why(segment: SegmentSummary) -> str:
        if limit_bytes < 0 or left[0] - segment.size_bytes < 0:
            return ""
        left[0] -= segment.size_bytes
        return f"the log is {excess} bytes above {name}={limit_bytes}"

    return why


def _too_old(limit_ms: int, now_ms: int, name: str) -> Why:
    def why(segment: SegmentSummary) -> str:
        age_ms = now_ms - segment.age_from_ms
        return f"its newest record is older than {name}={limit_ms}" if 0 <= limit_ms < age_ms else ""

    return why
