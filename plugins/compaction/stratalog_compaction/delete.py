"""Deletion of whole segments, oldest first: by log start offset, size and time.

Source: apache/kafka UnifiedLog.deleteOldSegments; KIP-405 for the local tier.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from stratalog.spi import Action, CleanupPolicy, DeletePrefix, Keep, LogSummary, SegmentSummary, TopicConfig

Why = Callable[[SegmentSummary], str]
"""Why a segment may go, or "" if it stays. Asked from the oldest on; the first that stays ends the prefix."""

Rule = Callable[[Sequence[SegmentSummary]], Why]
"""Given the segments that earlier rules left, oldest first, what to ask of each."""

USE_TOTAL: Final = -2  # of local.retention.*: as the retention of the whole log
KEPT: Final = "inside every retention limit"


class DeletePolicy(CleanupPolicy):
    """Kafka's ``cleanup.policy=delete``."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """The prefix that retention.ms, retention.bytes or the log start let go, the rest kept."""
        rules = (
            below_log_start(log),
            _too_large(config.retention_bytes, "retention.bytes"),
            too_old(config.retention_ms, now_ms, "retention.ms"),
        )
        return plan_prefix(log, rules)

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """The prefix of local segments that local.retention.ms or local.retention.bytes let go."""
        rules = (
            _too_large(config.local_limit_bytes, "local.retention.bytes"),
            too_old(config.local_limit_ms, now_ms, "local.retention.ms"),
        )
        return plan_prefix(log, rules)


def plan_local(log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
    """The same for topics whose records are not deleted by age or size: only what the topic itself says of local disk."""
    rules = list[Rule]()
    if config.local_retention_bytes != USE_TOTAL:
        rules.append(_too_large(config.local_retention_bytes, "local.retention.bytes"))
    if config.local_retention_ms != USE_TOTAL:
        rules.append(too_old(config.local_retention_ms, now_ms, "local.retention.ms"))
    return plan_prefix(log, rules) if rules else ()


def plan_prefix(log: LogSummary, rules: Sequence[Rule]) -> Sequence[Action]:
    """Delete a prefix, each rule going on where the one before it stopped; keep the rest.

    Nothing at or above the high watermark goes, and no empty active segment.
    """
    if not log.segments:
        return ()
    left, reasons = list(log.segments), list[str]()
    for rule in rules:
        why = rule(left)
        gone = list(itertools.takewhile(bool, map(why, _deletable(log, left))))
        left = left[len(gone) :]
        reasons += gone
    start, end = log.segments[0].base_offset, log.segments[-1].end_offset
    if not reasons:
        return (Keep(start, end, KEPT),) if end > start else ()
    middle = left[0].base_offset if left else end
    deletion = DeletePrefix(start, middle, "; ".join(dict.fromkeys(reasons)))
    return (deletion, Keep(middle, end, KEPT)) if end > middle else (deletion,)


def _deletable(log: LogSummary, left: Sequence[SegmentSummary]) -> Iterator[SegmentSummary]:
    for segment in left:
        if log.offsets.high_watermark < segment.end_offset or (segment.is_active and not segment.size_bytes):
            return
        yield segment


def below_log_start(log: LogSummary) -> Rule:
    """Segments whose next one begins at or below the log start."""

    def rule(left: Sequence[SegmentSummary]) -> Why:
        last = left[-1] if left else None

        def why(segment: SegmentSummary) -> str:
            gone = segment is not last and segment.end_offset <= log.offsets.log_start
            return f"below the log start offset {log.offsets.log_start}" if gone else ""

        return why

    return rule


def _too_large(limit_bytes: int, name: str) -> Rule:
    def rule(left: Sequence[SegmentSummary]) -> Why:
        total = sum(segment.size_bytes for segment in left)
        excess = total - limit_bytes

        def why(segment: SegmentSummary) -> str:
            nonlocal excess
            if limit_bytes < 0 or excess < segment.size_bytes:
                return ""
            excess -= segment.size_bytes
            return f"the log has {total} bytes, {name}={limit_bytes}"

        return why

    return rule


def too_old(limit_ms: int, now_ms: int, name: str) -> Rule:
    """Segments whose newest record is older than a limit; a negative one is none."""

    def why(segment: SegmentSummary) -> str:
        age_ms = now_ms - segment.age_from_ms
        return f"its newest record is older than {name}={limit_ms}" if 0 <= limit_ms < age_ms else ""

    return lambda _: why
