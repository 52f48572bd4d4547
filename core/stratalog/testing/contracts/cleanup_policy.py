"""Contract tests of cleanup policies."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from stratalog.cleaning.plan.policy_actions import check_filter, check_prefix, check_rewrite, has_filter
from stratalog.config.keys import Section
from stratalog.config.topic import TopicConfig
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import LogOffsets
from stratalog.model.records import Record, RecordColumns
from stratalog.spi.cleanup import (
    Action,
    CleanupPolicy,
    DeletePrefix,
    Keep,
    LogSummary,
    RecordFilter,
    Rewrite,
    RewriteJob,
    SegmentSummary,
)
from stratalog.spi.formats import Verdict

NOW_MS = 1_700_000_000_000
OFFSETS_A_SEGMENT = 10
SEGMENT_BYTES = 100
CONFIGS = (
    TopicConfig(),
    TopicConfig(retention_ms=-1),
    TopicConfig(retention_ms=0, retention_bytes=0),
    TopicConfig(retention_ms=5000, retention_bytes=250),
    TopicConfig(retention_ms=5000, local_retention_ms=1000, retention_bytes=250, local_retention_bytes=50),
    TopicConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0),
    TopicConfig(cleanup_policy=("compact", "delete"), retention_ms=1),
)


class CleanupPolicyContract:
    """Contract of a cleanup policy: subclass it, name the class ``Test...``, and override the fixture ``policy``.

    The test logs have segments in the tier and on local disk, log starts at and inside segments, and high watermarks
    from 0 to the log end. Some logs are empty.

    Attributes:
        sections: the policy's own topic settings, by provider name. Each ``TopicConfig`` of the tests contains them.
    """

    sections: ClassVar[Mapping[str, Section]] = {}

    @pytest.fixture
    def policy(self) -> CleanupPolicy:
        """Return the policy to check; overridden by the subclass."""
        raise NotImplementedError("a subclass of CleanupPolicyContract must define the fixture policy")

    # --- test data ---------------------------------------------------------------------------------------------------

    @staticmethod
    def summary(
        closed: int, *, active_bytes: int = 40, high_watermark: int | None = None, log_start: int = 0, remote: int = 0
    ) -> LogSummary:
        """Return the summary of a log with ``closed`` closed segments and an active segment.

        The newest records of two adjacent segments are one second apart.

        Args:
            closed: number of closed segments, ten offsets and 100 bytes each.
            active_bytes: size of the active segment, which has four offsets, or none if the size is 0.
            high_watermark: the high watermark; None means the log end offset.
            log_start: the log start offset.
            remote: number of segments in the tier, which are the oldest ones. Of them, only the newest is also on local
                disk.
        """
        segments = [
            SegmentSummary(
                base_offset=index * OFFSETS_A_SEGMENT,
                end_offset=(index + 1) * OFFSETS_A_SEGMENT,
                size_bytes=SEGMENT_BYTES,
                age_from_ms=NOW_MS - (closed - index) * 1000,
                is_local=index >= remote - 1,
                is_remote=index < remote,
                is_active=False,
            )
            for index in range(closed)
        ]
        base = closed * OFFSETS_A_SEGMENT
        end = base + 4 if active_bytes else base
        segments.append(SegmentSummary(base, end, active_bytes, NOW_MS, is_local=True, is_remote=False, is_active=True))
        watermark = end if high_watermark is None else high_watermark
        local = max(log_start, next(segment.base_offset for segment in segments if segment.is_local))
        offsets = LogOffsets(log_start, local, end, watermark, watermark, end)
        return LogSummary(TopicPartition("t", 0), offsets, tuple(segments), has_tier=remote > 0)

    @classmethod
    def summaries(cls) -> list[LogSummary]:
        """Return summaries that differ in segments, high watermark, log start and tier. One of them has no segments."""
        sizes = ((0, 0), (0, 40), (1, 0), (4, 0), (4, 40))
        summaries = [cls.summary(closed, active_bytes=active) for closed, active in sizes]
        summaries += [cls.summary(4, high_watermark=watermark) for watermark in (0, 5, 10, 29, 30, 43)]
        summaries += [cls.summary(4, log_start=start) for start in (1, 10, 25, 40, 44)]
        summaries += [cls.summary(4, remote=remote) for remote in (1, 3, 4)]
        offsets = LogOffsets(7, 7, 7, 7, 7, 7)
        summaries.append(LogSummary(TopicPartition("t", 0), offsets, (), has_tier=False))
        return summaries

    @classmethod
    def configs(cls) -> tuple[TopicConfig, ...]:
        """Return topic settings with different retention and compaction, each with ``sections``."""
        return tuple(replace(config, sections=cls.sections) for config in CONFIGS)

    @classmethod
    def plans(cls, policy: CleanupPolicy) -> list[tuple[LogSummary, Sequence[Action]]]:
        """Return pairs of a log and a plan of the policy, for each log of ``summaries`` and settings of ``configs``.

        There are two pairs for each log and settings: the whole log with the result of ``plan``, and the log with only
        its local segments with the result of ``local_plan``.
        """
        plans = []
        for config, log in itertools.product(cls.configs(), cls.summaries()):
            plans.append((log, policy.plan(log, config, NOW_MS)))
            local = LogSummary(
                log.log, log.offsets, tuple(part for part in log.segments if part.is_local), log.has_tier
            )
            plans.append((local, policy.local_plan(local, config, NOW_MS)))
        return plans

    @staticmethod
    def carried_out(log: LogSummary, actions: Sequence[Action]) -> LogSummary:
        """Return the log after the core has executed ``actions``. A compaction round is assumed to remove no record."""
        for action in actions:
            if isinstance(action, DeletePrefix):
                segments = [segment for segment in log.segments if segment.end_offset > action.end]
                if not segments and log.segments:
                    segments = [replace(log.segments[-1], base_offset=log.segments[-1].end_offset, size_bytes=0)]
                offsets = log.offsets._replace(log_start=max(log.offsets.log_start, action.end))
                log = replace(log, segments=tuple(segments), offsets=offsets)
            elif isinstance(action, Rewrite):
                is_tiered = any(segment.is_remote and segment.end_offset > action.start for segment in log.segments)
                log = replace(log, tier_dirty_start=action.end) if is_tiered else replace(log, dirty_start=action.end)
        return log

    # --- the policy --------------------------------------------------------------------------------------------------

    def test_ranges_ascend_without_overlap(self, policy: CleanupPolicy) -> None:
        """Each range is [start, end) and not empty, and begins at or after the end of the range before it."""
        for _, plan in self.plans(policy):
            for action in plan:
                assert action.start < action.end
            for action, following in itertools.pairwise(plan):
                assert action.end <= following.start

    def test_ranges_lie_inside_the_log(self, policy: CleanupPolicy) -> None:
        """The ranges of a plan are between the first segment's base offset and the last segment's end offset."""
        for log, plan in self.plans(policy):
            for action in plan:
                assert log.segments
                assert log.segments[0].base_offset <= action.start
                assert action.end <= log.segments[-1].end_offset

    def test_deletion_takes_a_prefix(self, policy: CleanupPolicy) -> None:
        """A plan has at most one deletion, as its first action.

        The deletion begins at the base offset of the first segment. Its end is the end offset of a segment, or the log
        start.
        """
        for log, plan in self.plans(policy):
            deletions = [action for action in plan if isinstance(action, DeletePrefix)]
            assert len(deletions) <= 1
            for action in deletions:
                assert action is plan[0]
                assert action.start == log.segments[0].base_offset
                ends = {segment.end_offset for segment in log.segments} | {log.offsets.log_start}
                assert action.end in ends

    def test_a_deletion_has_bounds_that_the_core_takes_and_deletes_something(self, policy: CleanupPolicy) -> None:
        """A deletion passes the checks of the core, and increases the log start or covers a whole segment."""
        for config, log in itertools.product(self.configs(), self.summaries()):
            for action in policy.plan(log, config, NOW_MS):
                if isinstance(action, DeletePrefix):
                    check_prefix(log, action)
                    deleted_segments = [segment for segment in log.segments if segment.end_offset <= action.end]
                    assert deleted_segments or action.end > log.offsets.log_start

    def test_a_plan_that_is_carried_out_is_not_planned_again(self, policy: CleanupPolicy) -> None:
        """After a few repetitions of planning and executing, the plan has no DeletePrefix and no Rewrite."""
        for config, log in itertools.product(self.configs(), self.summaries()):
            summary, planned = log, list[Sequence[Action]]()
            for _ in range(len(log.segments) + 2):
                planned.append(
                    [action for action in policy.plan(summary, config, NOW_MS) if not isinstance(action, Keep)]
                )
                summary = self.carried_out(summary, planned[-1])
            assert planned[-1] == [], f"{planned[-1]} is planned of {summary}, whose work is done: {config}"

    def test_nothing_above_the_high_watermark_is_deleted(self, policy: CleanupPolicy) -> None:
        """The end offset of a DeletePrefix or Rewrite is at or below the high watermark."""
        for log, plan in self.plans(policy):
            for action in plan:
                if not isinstance(action, Keep):
                    assert action.end <= log.offsets.high_watermark

    def test_a_rewrite_has_bounds_that_the_core_takes(self, policy: CleanupPolicy) -> None:
        """A rewrite covers closed segments of a log's local or tier part, and ends at or below the last stable offset."""
        for log, plan in self.plans(policy):
            for action in plan:
                if isinstance(action, Rewrite):
                    check_filter(policy, action)
                    check_rewrite(log, action)
                    assert 0 <= action.dirty_ratio <= 1

    def test_an_empty_active_segment_stays(self, policy: CleanupPolicy) -> None:
        """The plan does not delete an empty active segment: the next record is appended to it."""
        log = self.summary(0, active_bytes=0)
        for config in self.configs():
            assert not [action for action in policy.plan(log, config, NOW_MS) if isinstance(action, DeletePrefix)]

    def test_every_action_has_a_reason(self, policy: CleanupPolicy) -> None:
        """Every action has a reason, which tells operators why records are kept or deleted."""
        for _, plan in self.plans(policy):
            for action in plan:
                assert action.reason.strip()

    def test_the_same_log_gives_the_same_plan(self, policy: CleanupPolicy) -> None:
        """A plan depends only on its arguments, not on earlier calls."""
        assert self.plans(policy) == self.plans(policy)

    def test_arguments_stay_as_they_are(self, policy: CleanupPolicy) -> None:
        """A policy does not modify its arguments."""
        for config, log in itertools.product(self.configs(), self.summaries()):
            before = copy.deepcopy((log, config))
            policy.plan(log, config, NOW_MS)
            policy.local_plan(log, config, NOW_MS)
            assert (log, config) == before

    def test_time_brings_no_deletion_back(self, policy: CleanupPolicy) -> None:
        """The end of the deletion does not decrease as time passes, so a dry run stays valid."""
        for config, log in itertools.product(self.configs(), self.summaries()):
            ends = [_deleted_end(policy.plan(log, config, NOW_MS + later)) for later in (0, 1, 10_000, 10**12)]
            assert ends == sorted(ends)

    # --- filters, of policies that rewrite ---------------------------------------------------------------------------

    @pytest.fixture
    def filters(self, policy: CleanupPolicy) -> tuple[RecordFilter, RecordFilter]:
        """Return two filters for two compaction rounds over the same log; skip the test if the policy has no filter."""
        if not has_filter(policy):
            pytest.skip("the policy rewrites nothing")
        job = RewriteJob(
            TopicPartition("t", 0),
            0,
            2000,
            0,
            NOW_MS,
            memory_bytes=1 << 16,
            config=TopicConfig(sections=self.sections),
            secret=bytes(range(16)),
        )
        return policy.record_filter(job), policy.record_filter(job)

    @staticmethod
    def records(start: int = 0, count: int = 50, prefix: bytes = b"k") -> RecordColumns:
        """Return records with repeated keys, in ascending order of offset. Some keys and values are null."""
        return RecordColumns.from_records(
            Record(
                offset=offset,
                timestamp_ms=NOW_MS + offset,
                key=None if offset % 11 == 0 else b"%b%d" % (prefix, offset % 7),
                value=None if offset % 5 == 0 else b"v",
            )
            for offset in range(start, start + count)
        )

    def test_a_filter_takes_records_from_the_first_on(self, filters: tuple[RecordFilter, RecordFilter]) -> None:
        """``observe`` returns the number of records that it added, from 0 to the number of records that it got."""
        for records in (self.records(), self.records(50), self.records(100, 0)):
            assert filters[0].observes in {"dirty", "part", "log"}
            assert 0 <= filters[0].observe(records) <= records.count
            assert 0 <= filters[0].load <= 1

    def test_a_filter_gives_a_verdict_for_each_record(self, filters: tuple[RecordFilter, RecordFilter]) -> None:
        """``judge`` writes one verdict for each record into the given buffer and does not resize the buffer."""
        allowed = {int(word) for word in Verdict}
        records = self.records()
        filters[0].observe(records)
        verdicts = bytearray(b"\xff" * records.count)
        filters[0].judge(records, verdicts)
        assert len(verdicts) == records.count
        assert set(verdicts) <= allowed
        filters[0].judge(self.records(0, 0), bytearray())

    def test_filters_do_not_know_of_each_other(self, filters: tuple[RecordFilter, RecordFilter]) -> None:
        """A filter ignores records that another filter observed. Two calls of ``judge`` return the same verdicts."""
        records, all_verdicts = self.records(), []
        filters[0].observe(self.records(500))
        for record_filter in (filters[1], filters[1]):
            verdicts = bytearray(records.count)
            record_filter.judge(records, verdicts)
            all_verdicts.append(bytes(verdicts))
        assert all_verdicts[0] == all_verdicts[1]

    @pytest.mark.parametrize("dirty", [b"k", b"other", b""], ids=["the same keys", "other keys", "no records"])
    def test_records_that_a_digest_spares_would_stay(
        self, filters: tuple[RecordFilter, RecordFilter], dirty: bytes
    ) -> None:
        """If ``spares`` returns True for all sections of a digest file, ``judge`` drops no record that they cover."""
        first, second = filters
        first.observe(self.records(500, prefix=b"unlike "))
        pieces, sections, kept_pieces = [self.records(), self.records(50)], list[bytes](), list[RecordColumns]()
        for piece in pieces:
            verdicts = bytearray(piece.count)
            first.judge(piece, verdicts)
            stays = (word != Verdict.DROP for word in verdicts)
            kept_pieces.append(RecordColumns.from_records(itertools.compress(piece.to_records(), stays)))
            sections += map(bytes, first.digest(end=piece is pieces[-1]))
        assert first.digest_kind == second.digest_kind
        assert first.digest_kind.isascii()
        assert len(first.digest_kind) <= 64
        if not first.digest_kind:
            pytest.skip("the filter makes no digests")
        assert sections
        second.observe(self.records(1000, 50 if dirty else 0, dirty))
        if all(second.spares(memoryview(section)) for section in sections):
            for piece in kept_pieces:
                verdicts = bytearray(piece.count)
                second.judge(piece, verdicts)
                assert Verdict.DROP not in verdicts


def _deleted_end(plan: Sequence[Action]) -> int:
    return max((action.end for action in plan if isinstance(action, DeletePrefix)), default=0)
